"""Number of bands that needs the least noise if cyclic Poisson sampling amplifies privacy.

With b partitions that take turns, at most b bands are amplified (`sampled_in_turn`). More bands
cancel more noise, but with rounds of equal size a device of one of b partitions is drawn in its
turn with a probability b times as large, which amplifies less (Choquette-Choo et al. 2023,
"(Amplified) banded matrix factorization", section 4 and appendix G).
"""

from dataclasses import dataclass, replace
from typing import Protocol

from fedray.base.document import Document
from fedray.base.errors import InputError
from ..accounting.sampled import PoissonSampling, largest_column
from ..figures import Figures, calibrated_figures
from ..loss import Objective
from ..participation import MinSep
from ..strategy import Strategy
from .design import MechanismRequest, best_number
from .objective import Progress


class MakeStrategy(Protocol):
    """Function that makes the mechanism of a request."""

    def __call__(self, request: MechanismRequest, *, on_progress: Progress) -> Strategy: ...


@dataclass(frozen=True, slots=True)
class Amplification:
    """Privacy wanted of rounds that draw a share of all devices."""

    rounds: int
    """n, at least 1."""
    share: float
    """Expected share of all devices in a round; with b partitions, each device of a partition is
    drawn in its turn with b times this probability."""
    epsilon: float
    """Largest epsilon at `delta`."""
    delta: float
    """delta of epsilon."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            rule = "must be above 0 and at most 1"
            remedy = "it is the share of all devices that a round draws"
            raise InputError.of("sampling", self.share, rule, remedy)
        PoissonSampling(self.rounds, self.share)

    @property
    def most_bands(self) -> int:
        """Largest number of partitions with a probability of at most 1."""
        # A share of 1 / b is rarely a float, and b partitions must remain possible.
        return min(self.rounds, int(1.0 / self.share + 1e-6))

    @property
    def numbers_of_bands(self) -> list[int]:
        """The smallest number of partitions for each number of turns, in order: with more, devices
        are drawn more often for hardly fewer errors."""
        numbers = {-(-self.rounds // turns) for turns in range(1, self.rounds + 1)}
        return sorted(each for each in numbers if each <= self.most_bands)

    def sampling(self, bands: int) -> PoissonSampling:
        """Returns the sampling with as many partitions as `bands`."""
        return PoissonSampling(self.rounds, min(1.0, bands * self.share), bands)


@dataclass(frozen=True, slots=True)
class AmplifiedBands(Document):
    """Least noise of a number of bands, with as many partitions."""

    bands: int
    """Number of bands and of partitions."""
    probability: float
    """Probability that a device is drawn in its turn."""
    turns: int
    """Largest number of turns of a device."""
    noise_multiplier: float
    """Least noise multiplier for the epsilon, rounded up: standard deviation of the noise on the
    rows of C x, at clip norm 1."""
    column_multiplier: float
    """The noise multiplier over the largest norm of a column of C."""
    noise: float
    """Error of the workload times the noise multiplier: standard deviation of its noise at clip
    norm 1, root mean square over the rounds or, with the objective max, the largest."""


def best_bands(
    wanted: Amplification, request: MechanismRequest, make: MakeStrategy, on_progress: Progress
) -> tuple[Figures, tuple[AmplifiedBands, ...]]:
    """Returns the figures of the number of bands with the least noise, and all numbers tried, in
    order. Only the smallest number for each number of turns is tried.

    Args:
        wanted: privacy and sampling.
        request: kind, objective and workload of the mechanism; its bands, if given, are the only
            number tried.
        make: function that optimises a mechanism.
        on_progress: receives progress lines.
    """
    most = wanted.most_bands
    if request.bands is not None and request.bands > most:
        rule = f"must be at most {most} with sampling={wanted.share:g} and rounds={wanted.rounds}"
        raise InputError.of(
            "bands", request.bands, rule, "more are drawn with a probability above 1"
        )
    known: dict[int, tuple[Figures, AmplifiedBands]] = {}

    def noise(bands: int) -> float:
        if bands not in known:
            sampling = wanted.sampling(bands)
            turns = MinSep(wanted.rounds, bands, sampling.compositions)
            strategy = make(
                replace(request, participation=turns, bands=bands), on_progress=on_progress
            )
            figures = calibrated_figures(
                strategy,
                turns,
                wanted.delta,
                epsilon=wanted.epsilon,
                sampling=sampling,
                workload=request.workload,
            )
            known[bands] = figures, _noise_of(figures, sampling, request.objective)
            on_progress(f"bands {bands}: noise {known[bands][1].noise:.6f}")
        return known[bands][1].noise

    if request.bands is not None:
        noise(request.bands)
    else:
        numbers = wanted.numbers_of_bands
        # The last number, where nothing is amplified, may be a second minimum.
        grid = [1 << place for place in range((len(numbers) - 1).bit_length())]
        grid.append(len(numbers))
        best_number(lambda place: noise(numbers[place - 1]), grid, len(numbers))
    tried = [known[bands] for bands in sorted(known)]
    best, _ = min(tried, key=lambda each: each[1].noise)
    return best, tuple(each for _, each in tried)


def _noise_of(figures: Figures, sampling: PoissonSampling, objective: Objective) -> AmplifiedBands:
    z, found = figures.noise_multiplier, figures.loss
    assert z is not None
    norm, _ = largest_column(figures.strategy, sampling.rounds)
    return AmplifiedBands(
        sampling.partitions,
        sampling.probability,
        sampling.compositions,
        z,
        z / norm,
        z * (found.max_error if objective == "max" else found.rms_error),
    )
