"""The matrix A that turns the updates of the rounds into the models (the workload).

Noise Z of a strategy C changes the models by A C^-1 Z, so an error belongs to a workload. Losses
are usually those of prefix sums, w_t = w_{t-1} + g_t. Sources: Denisov et al. 2022 (momentum and
learning rates as workloads, section 4); Koloskova et al. 2023, arXiv 2302.01463 (training forgets
old noise, because later gradients correct it); Kalinin and Andersson 2025, arXiv 2511.17994
(learning-rate schedules).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedray.base.arrays import Float64Array
from fedray.base.errors import InputError

FORMS = 'give "prefix", or parts joined by commas: momentum=0.9, decay=0.95, schedule'


@dataclass(frozen=True, slots=True)
class Workload:
    """v_t = momentum * v_{t-1} + (1 - momentum) * g_t; w_t = decay * w_{t-1} + rate_t * v_t.

    Row t of A has the weight of each g_s in w_t. The default parameters give prefix sums. The
    factor 1 - momentum preserves the total weight of an update, so that the errors of different
    momenta are comparable.
    """

    momentum: float = 0.0
    """Share of the previous step that is kept; from 0 to below 1."""
    decay: float = 1.0
    """Share of the model's earlier changes that remains after a round; above 0, at most 1."""
    rates: tuple[float, ...] = ()
    """Step size of each round, such as a learning-rate schedule; empty: 1 in every round."""

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise InputError.of("momentum", self.momentum, "must be from 0 to below 1")
        if not 0 < self.decay <= 1:
            raise InputError.of("decay", self.decay, "must be above 0 and at most 1")
        if self.rates and not (np.isfinite(self.rates).all() and min(self.rates) >= 0):
            raise InputError.of("rates", self.rates, "must be finite and not negative")
        # Without any step the error is 0, and no mechanism is better than another.
        if self.rates and not max(self.rates) > 0:
            raise InputError.of("rates", self.rates, "must not all be 0")

    def __str__(self) -> str:
        parts = []
        if self.momentum:
            parts.append(f"momentum={self.momentum:g}")
        if self.decay != 1:
            parts.append(f"decay={self.decay:g}")
        if self.rates:
            parts.append("schedule")
        return ",".join(parts) or "prefix"

    @property
    def rows(self) -> str:
        """Name of the rows that have the errors, for tables."""
        return "prefix sums" if self.is_prefix else f"the workload {self}"

    @property
    def is_prefix(self) -> bool:
        """Whether A x is the vector of prefix sums of x."""
        return self == PREFIX

    @property
    def is_toeplitz(self) -> bool:
        """Whether the diagonals of A are constant, in which case A commutes with a Toeplitz C."""
        # Equal rates only scale A.
        return len(set(self.rates)) <= 1

    def applied(self, X: Float64Array, first: int = 0) -> Float64Array:
        """Returns A[first:, first:] X, where X [rows, ...] has the rounds from `first` on; may
        overwrite X."""
        if self.is_prefix:
            return np.cumsum(X, axis=0, out=X)
        # Importing scipy.signal takes half a second, and prefix sums do not need it.
        from scipy.signal import lfilter

        # PyTorch's momentum has no factor 1 - momentum: its learning rate r is the rate r / (1 -
        # momentum) here.
        steps = lfilter([1.0 - self.momentum], [1.0, -self.momentum], X, axis=0)
        if self.rates:
            self.check_rounds(first + len(X))
            rates = np.array(self.rates[first : first + len(X)])
            steps = rates.reshape(-1, *(1,) * (X.ndim - 1)) * steps
        return np.asarray(lfilter([1.0], [1.0, -self.decay], steps, axis=0), np.float64)

    def matrix(self, rounds: int) -> Float64Array:
        """Returns A, [rounds, rounds]."""
        return self.applied(np.eye(rounds))

    def check_rounds(self, rounds: int) -> None:
        """Raises InputError if the workload has rates, but not for that many rounds."""
        if self.rates and rounds > len(self.rates):
            rule = f"is more than the workload has rates ({len(self.rates)})"
            raise InputError.of("rounds", rounds, rule, "use a schedule with as many rounds")

    @classmethod
    def parse(cls, text: str, rates: Sequence[float] = ()) -> "Workload":
        """Reads a workload: "prefix", "momentum=0.9", "momentum=0.9,decay=0.95", "schedule".

        Args:
            text: parts joined by commas, each at most once.
            rates: step size of each round, required by the part "schedule".

        Raises:
            InputError: the text has another form, or its values are out of range.
        """
        if text == "prefix":
            return PREFIX
        given: dict[str, float] = {}
        chosen: tuple[float, ...] = ()
        for part in text.split(","):
            name, _, value = part.partition("=")
            if part == "schedule" and not chosen:
                if not rates:
                    remedy = "name a scenario with schedule=FILE"
                    raise InputError.of("workload", text, "needs the rates of a scenario", remedy)
                chosen = tuple(rates)
            elif name in ("momentum", "decay") and name not in given:
                given[name] = _number(value, text)
            else:
                raise InputError.of("workload", text, "is not a workload", FORMS)
        return cls(**given, rates=chosen)


PREFIX = Workload()
"""Prefix sums: plain SGD with a constant learning rate."""


def workload_of(given: Workload | str) -> Workload:
    """Returns the workload given, or the one that a text describes. Raises InputError."""
    return Workload.parse(given) if isinstance(given, str) else given


def _number(value: str, text: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise InputError.of("workload", text, "has a part that is not a number", FORMS) from None
