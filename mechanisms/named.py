"""Mechanisms by name: the BLTs of McMahan, Xu, Zhang 2024, which need no optimiser and no file.

The paper's three were made for min-seps 100, 400 and 1000 (section 5 and appendix A). The
parameters of `blt-400` are published in the code of google-parfait/federated-compute. Those of the
other two are not in print, and were found again by their rows of Table 4, which
`fedray reproduce blt` shows:

* `blt-1000` is the optimum of MaxLoss at (n, b, k) = (4000, 1000, 2).
* `blt-100` is a local optimum of MaxLoss at (2000, 100, 10) with three buffers and without a decay
  near 1: 18.847, where the global one is 17.404. Of the optima found from 1,000 random starts, only
  those of loss 18.847 to 18.849 give both printed rows of pt-PT.
"""

from .blt import BLT
from .loss import Purpose
from .strategy import Strategy
from .workload import PREFIX

PARAMETERS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "blt-100": (
        (0.9897399577366023, 0.73520072686991, 0.1677606543546285),
        (0.20502918828538091, 0.23357823873941155, 0.06959102008908266),
    ),
    "blt-400": (
        (0.9999999999921251, 0.9944453083640997, 0.8985923474607591, 0.4912001418098778),
        (0.0070314825502323835, 0.10613806907600574, 0.1898159060327625, 0.1966594748073734),
    ),
    # Its first decay is the bound of the search, exp(-1e-13): a buffer that forgets nothing.
    "blt-1000": (
        (0.9999999999999, 0.9973412140887514, 0.958462952061479, 0.6581797258118893),
        (0.008657391557734396, 0.05890890647771417, 0.1454817604184882, 0.27701169184871666),
    ),
}
"""(theta, omega) by name."""
NAMED_PURPOSE = Purpose("max", str(PREFIX))
"""Loss that the paper's mechanisms were made for."""


def named_mechanism(name: str) -> BLT:
    """Returns the mechanism of a name in PARAMETERS. What is recorded of it is the whole mechanism,
    not its name."""
    theta, omega = PARAMETERS[name]
    return BLT(theta=theta, omega=omega)


def name_of(strategy: Strategy) -> str:
    """Returns the name of a strategy in PARAMETERS, or else its kind."""
    return next((each for each in PARAMETERS if named_mechanism(each) == strategy), strategy.kind)
