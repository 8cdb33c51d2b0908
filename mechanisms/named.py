"""Mechanisms by name: BLTs of four buffers for 4000 rounds, which need no optimiser and no file.

Each has the least MaxLoss at 4000 rounds, its min-sep and half as many participations as fit: the
three min-seps are those of McMahan, Xu, Zhang 2024, appendix A. The parameters of `blt-400` are
published in the code of google-parfait/federated-compute; the others are results of
`optimize_blt` at (4000, 100, 20) and (4000, 1000, 2), not printed ones.
"""

from .blt import BLT
from .strategy import Strategy

PARAMETERS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    # The first decay of blt-100 and blt-1000 is the bound of the search, exp(-1e-13): within 4000
    # rounds, a buffer that forgets nothing.
    "blt-100": (
        (0.9999999999999, 0.9838976607498795, 0.9838969011892937, 0.6048919411567695),
        (0.005007194344314008, 0.014448667235478819, 0.2163815575661362, 0.26798721011629095),
    ),
    "blt-400": (
        (0.9999999999921251, 0.9944453083640997, 0.8985923474607591, 0.4912001418098778),
        (0.0070314825502323835, 0.10613806907600574, 0.1898159060327625, 0.1966594748073734),
    ),
    "blt-1000": (
        (0.9999999999999, 0.9973412140887514, 0.958462952061479, 0.6581797258118893),
        (0.008657391557734396, 0.05890890647771417, 0.1454817604184882, 0.27701169184871666),
    ),
}
"""(theta, omega) by name."""


def named_mechanism(name: str) -> BLT:
    """Returns the mechanism of a name in PARAMETERS. What is recorded of it is the whole mechanism,
    not its name."""
    theta, omega = PARAMETERS[name]
    return BLT(theta=theta, omega=omega)


def name_of(strategy: Strategy) -> str:
    """Returns the name of a strategy in PARAMETERS, or else its kind."""
    return next((each for each in PARAMETERS if named_mechanism(each) == strategy), strategy.kind)
