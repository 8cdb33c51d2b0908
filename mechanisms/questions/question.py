"""A question about what devices hold, a trust model, and the mechanism that answers under both.

A window asks every device that comes once. `question.plan(trust, budget)` calibrates a mechanism
without looking at data, or refuses the pair in one line; `plan.answer(items, rng)` answers from the
items of the devices that came. A device that came without items takes part too, because whether it
holds anything is private.

    plan = Histogram(size=3600).plan(Local(), Budget(math.log(3)))
    plan.standard_error(100_000)
    answer = plan.answer(items, rng)

Adjacency is zero-out of one device, as in all events; the local and the shuffled guarantee hold
between any two contributions of a device, which includes zero-out.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import ConfigDict

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError
from fedray.base.mistakes import Explained
from fedray.mechanisms.accounting.events import MOST_STATED_EPSILON, Event
from fedray.mechanisms.accounting.limits import LEAST_DELTA

LEAST_EPSILON, MOST_DELTA = 1e-4, 0.1
Claim = Literal["exact", "bound", "estimate"]


class PairRefused(InputError):
    """No theorem here answers a question under a trust model."""


@dataclass(frozen=True, slots=True)
class Items:
    """What the devices of a window hold, in rows: device g has items starts[g] to starts[g + 1]."""

    starts: Int64Array
    """First item of each device, and the number of items, [G + 1]."""
    keys: Int64Array
    """Index in the question's closed domain, or any whole number in an open domain, [I]."""
    values: Float64Array
    """Value at the key, [I]; questions about keys only ignore it."""

    @property
    def devices(self) -> int:
        """G, number of devices that came."""
        return self.starts.size - 1

    @property
    def owners(self) -> Int64Array:
        """Row of the device of each item, [I]."""
        return np.repeat(np.arange(self.devices), np.diff(self.starts))


@dataclass(frozen=True, slots=True)
class Budget:
    """Privacy that one device may spend in one window."""

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not LEAST_EPSILON <= self.epsilon < MOST_STATED_EPSILON:
            raise InputError.of(
                "epsilon",
                self.epsilon,
                f"must be from {LEAST_EPSILON:g} to below {MOST_STATED_EPSILON:g}",
                "1 is usual",
            )
        if not (self.delta == 0 or LEAST_DELTA <= self.delta <= MOST_DELTA):
            raise InputError.of(
                "delta",
                self.delta,
                f"must be 0, or from {LEAST_DELTA:g} to {MOST_DELTA:g}",
                "1e-10 is usual for populations of millions",
            )


@dataclass(frozen=True, slots=True)
class Answer:
    """A private answer: one row per key (or number, or quantile), with its error."""

    keys: Int64Array
    """Keys released, ascending, [R]: the closed domain, or the released keys of an open one. For
    quantiles and numbers, 0 to R - 1."""
    estimates: Float64Array
    """Estimate of each row, [R], in the unit of the question."""
    standard_errors: Float64Array
    """Standard error of the noise and of sampling by the mechanism, [R], given the devices that
    came; NaN if only the interval is known."""
    error_claim: Claim
    """Whether the standard errors are exact, bounds or estimates."""
    low: Float64Array
    """Lower end of each row's confidence interval, [R]."""
    high: Float64Array
    """Upper end, [R]."""
    confidence: float
    """Least probability that the interval of a row holds the true answer of the bounded
    contributions; for `quantiles`, all rows at once."""
    bias: float
    """Largest absolute bias of an estimate, given the bounded contributions."""
    bias_claim: Claim
    """Whether the bias is exact, a bound or an estimate."""
    devices: int
    """Devices that came."""

    def largest(self, count: int) -> Int64Array:
        """Returns the released keys of the `count` largest estimates, largest first. It costs
        nothing beyond the plan's event, because it reads only the answer."""
        return self.keys[np.argsort(-self.estimates, kind="stable")[:count]]


@dataclass(frozen=True, slots=True)
class Truth:
    """The exact answer, which only a simulation knows."""

    keys: Int64Array
    """Keys, ascending, [R]; for an open domain, those held by any device."""
    values: Float64Array
    """Exact answer from unbounded contributions, [R]."""
    bounded: Float64Array
    """Exact answer from the bounded contributions: the target of the estimates, [R]."""


class Plan(ABC):
    """A calibrated mechanism. It reads no data before `answer`."""

    mechanism: str
    """Name of the mechanism, such as "discrete Laplace noise, scale 0.91"."""
    theorem: str
    """Theorem that proves the privacy: paper, section or number."""
    event: Event
    """What one device spends in one window; windows compose by `Composed` and `Repeated`."""
    least_devices: int
    """Least number of devices for which the event holds; `answer` refuses fewer."""

    @abstractmethod
    def standard_error(self, devices: int) -> float:
        """Returns the standard error of a row whose true answer is 0, if `devices` come, in the
        question's unit; for `mean`, if all of them hold the middle of the range; for `quantiles`,
        of a rank, in devices."""

    @abstractmethod
    def answer(self, items: Items, rng: np.random.Generator, confidence: float = 0.95) -> Answer:
        """Returns the private answer.

        Args:
            items: contributions of the devices that came.
            rng: generator addressed by the caller, for bounding, noise and sampling.
            confidence: coverage of the intervals.

        Raises:
            InputError: fewer devices came than the plan is calibrated for, or a key is outside the
                closed domain.
        """


class Trust(Explained, ABC):
    """Where noise is added, and so who must be trusted: a frozen value whose JSON is its `kind` and
    its fields. Kinds: central, distributed, shuffled, local (`registry.AnyTrust`)."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True
    )
    kind: str
    """Kind of trust model."""


class Question(Explained, ABC):
    """A question: a frozen value whose JSON is its `kind` and its fields (contribution bounds and
    domain). Kinds: count, sum, mean, histogram, open_histogram, prefix_tree, quantiles, distinct
    (`registry.AnyQuestion`)."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True
    )
    kind: str
    """Kind of question."""

    @abstractmethod
    def plan(self, trust: Trust, budget: Budget) -> Plan:
        """Returns the mechanism calibrated to a budget.

        Raises:
            PairRefused: no theorem answers the question under the trust model.
            InputError: the budget cannot be met.
        """

    @abstractmethod
    def truth(self, items: Items, rng: np.random.Generator) -> Truth:
        """Returns the exact answers. With a generator in the state that `answer` had, the bounded
        contributions are those of `answer`."""
