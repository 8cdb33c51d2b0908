"""Trust models: where noise is added to sums of the devices' vectors, and so who must be trusted.

A question turns a device's items into a bounded vector of whole steps; a trust model is calibrated
to the bounds, and releases noisy sums, of which the question makes its answer. `observed_by` says
from whom a device is then private: a guarantee is about an observer.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError
from fedray.base.mistakes import Explained
from ..accounting.accountants import epsilon_of
from ..accounting.events import MOST_STATED_EPSILON, Event, Repeated
from ..accounting.limits import LEAST_DELTA

LEAST_EPSILON, MOST_DELTA = 1e-4, 0.1
Claim = Literal["exact", "bound", "estimate"]
OBSERVERS = (
    "whoever gets the answers",
    "a device of the cohort",
    "the operator of the server",
    "the operator with a share of malicious devices",
    "the network",
)
"""Names of the observers that every trust model has."""
ENCRYPTED = (
    "it is assumed that messages are encrypted to their reader, and equally long whatever a device "
    "holds"
)


class PairRefused(InputError):
    """No theorem here answers a question under a trust model."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Privacy that one device may spend in one window."""

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not LEAST_EPSILON <= self.epsilon < MOST_STATED_EPSILON:
            rule = f"must be from {LEAST_EPSILON:g} to below {MOST_STATED_EPSILON:g}"
            raise InputError.of("epsilon", self.epsilon, rule, "1 is usual")
        if self.delta != 0 and not LEAST_DELTA <= self.delta <= MOST_DELTA:
            rule = f"must be 0, or from {LEAST_DELTA:g} to {MOST_DELTA:g}"
            raise InputError.of("delta", self.delta, rule, "1e-10 is usual for millions of devices")


@dataclass(frozen=True, slots=True)
class Shape:
    """Bounds of a device's vector, in steps."""

    size: int
    """P, number of coordinates."""
    most_l1: int
    """Largest sum of absolute values."""
    most_l2: float
    """Largest Euclidean norm."""
    is_signed: bool = False
    """Whether a coordinate may be negative."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """The nonzero coordinates of the devices' vectors, [I] each, ordered by device."""

    owners: Int64Array
    keys: Int64Array
    steps: Int64Array
    size: int
    """P, number of coordinates."""
    devices: int
    """Devices that came, with or without a vector."""

    def totals(self) -> Int64Array:
        """Returns the exact sums, [P]."""
        total = np.zeros(self.size, np.int64)
        np.add.at(total, self.keys, self.steps)
        return total


@dataclass(frozen=True, slots=True)
class NoisySums:
    """A release of sums, [P] each."""

    estimates: Float64Array
    """Unbiased estimates, in steps."""
    variances: Float64Array
    """Variances of the estimates."""
    claim: Claim
    """Kind of the variances: exact, bounds or estimates."""
    interval: Callable[[float], tuple[Float64Array, Float64Array]]
    """Function that returns lower and upper ends from the largest probability that the interval of
    a sum misses it."""


class SumMechanism(ABC):
    """A trust model calibrated to a shape and a budget."""

    name: str
    """Name of the mechanism, such as "discrete Laplace noise of scale 0.91"."""
    theorem: str
    """Theorem that proves the privacy."""
    event: Event
    """Spending of one device in all releases of a window."""
    least_devices: int = 1
    """Least number of devices for which the event holds."""
    groups: int = 1
    """Number of groups of devices that take turns at the releases; 1 if all take part in each."""

    def event_of(self, honest: int) -> Event:
        """Returns the spending of a device in all releases of a window against an observer who
        knows the items, noise and reports of the other devices of a release, except `honest` ones.

        Args:
            honest: number of devices of a release unknown to the observer, with the device itself.
        """
        del honest
        return self.event

    @abstractmethod
    def variance(self, devices: int) -> float:
        """Returns the variance of an estimate of a sum that is 0, in squared steps."""

    @abstractmethod
    def release(self, vectors: Vectors, rng: np.random.Generator) -> NoisySums:
        """Returns noisy sums of the vectors."""


class Value(Explained):
    """A frozen value whose JSON is its `kind` and its fields."""

    kind: str
    """Kind of question or trust model."""


@dataclass(frozen=True, slots=True)
class Observer:
    """A party, and the privacy of a device from it. Its neighbour is a device without items: that
    the device came, and when, is not protected from the operator and the network."""

    name: str
    """Name of the party, one of `OBSERVERS`, or "the shuffler"."""
    sees: str
    """Messages, noise and results that it sees."""
    epsilon: float | None
    """Epsilon at `delta`; None without a guarantee."""
    delta: float | None
    """Delta of all windows together; None without a guarantee."""
    reason: str
    """Noise and assumptions behind the guarantee, or the reason for its absence."""


class Trust(Value, ABC):
    """A trust model: server, enclave, devices, shuffled or local (`registry.AnyTrust`)."""

    rests_on: ClassVar[str]
    """Noise that protects from an observer who knows about all but `honest` devices of a release,
    with the number in braces."""
    device_sees: ClassVar[str]
    """Knowledge of one of the devices beside the answer."""
    operator_sees: ClassVar[str]
    """Messages, noise and results that the operator of the server sees."""
    no_protection: ClassVar[str] = ""
    """Reason why nothing protects from the operator; empty if something does."""
    most_malicious: ClassVar[float] = math.inf
    """Share of malicious devices from which on the protocol hides nothing from the operator."""

    def observed_by(
        self, sums: SumMechanism, delta: float, windows: int = 1, *, malicious: float
    ) -> tuple[Observer, ...]:
        """Returns the privacy of a device from each observer, over windows in which it answered.

        It holds from the number of devices on for which the mechanism is calibrated: more of them
        only add noise.

        Args:
            sums: mechanism of this trust model.
            delta: delta of a window: that of the budget, or another one above 0 if that is 0.
            windows: number of windows in which the device answered.
            malicious: share of each cohort, the devices of a release, that passes on its items,
                noise and reports to the operator, 0 to 1; never the device itself.

        Returns:
            The observers, in the order of `OBSERVERS`. The row of whoever gets the answers is the
            event of the mechanism.

        Raises:
            InputError: the share, the delta or the number of windows is impossible.
        """
        if not 0 <= malicious <= 1:
            raise InputError.of("malicious", malicious, "must be from 0 to 1", "take 0.1")
        cohort = sums.least_devices // sums.groups

        def row(name: str, sees: str, known: int = 0, unprotected: str = "") -> Observer:
            if unprotected:
                return Observer(name, sees, None, None, unprotected)
            honest = max(1, cohort - known)
            reason = self.rests_on.format(honest=f"{honest:,}")
            return observer(name, sees, sums.event_of(honest), delta, windows, reason)

        answers, device, operator, share, network = OBSERVERS
        with_share = f"{self.operator_sees}, and all that {100 * malicious:.3g} % of a cohort know"
        too_many = self.no_protection
        if malicious >= self.most_malicious:
            too_many = f"its protocol needs a share below {self.most_malicious:.3g}"
        return (
            row(answers, "the answer"),
            row(device, f"the answer, and {self.device_sees}", 1),
            row(operator, self.operator_sees, 0, self.no_protection),
            row(share, with_share, math.ceil(malicious * cohort), too_many),
            Observer(network, "when a device sends, and how much", 0.0, 0.0, ENCRYPTED),
        )

    @abstractmethod
    def mechanism(self, shape: Shape, budget: Budget, releases: int = 1) -> SumMechanism:
        """Returns the mechanism for a number of adaptive releases of vectors of one shape.

        Raises:
            PairRefused: no theorem applies.
            InputError: the budget cannot be met.
        """


def observer(
    name: str, sees: str, event: Event, delta: float, windows: int, reason: str
) -> Observer:
    """Returns an observer against whom a device spends an event in each of its windows, with a
    `delta` each."""
    if windows * delta >= 1:
        rule = "the deltas of the windows add up to 1 or more, at which nothing is private"
        return Observer(name, sees, None, None, rule)
    spent = epsilon_of(Repeated(event=event, count=windows), windows * delta)  # pyright: ignore[reportArgumentType]
    return Observer(name, sees, spent.epsilon, windows * delta, reason)
