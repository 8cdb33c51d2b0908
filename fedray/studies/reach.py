"""Rounds to reach: the first round after which a held-out metric is as good as a value, and what
was spent until then."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedray.audit.audit import Audit
from fedray.audit.over_rounds import SpentAfter
from fedray.base.document import Document
from fedray.base.errors import InputError
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun
from fedray.wire.messages import Metric

NOTE = (
    "A round is the first evaluated one after which the metric is as good; rounds without an "
    "evaluation are unknown. Epsilon is the observed one of the rounds up to this one, of a run "
    "that was meant to end there; a vocabulary costs more. A run that is ended because its metric "
    "looks good spends up to what all its planned rounds would. Updates are those accepted until "
    "then, days those until the round closed."
)
"""Note for a reader of the table."""


@dataclass(frozen=True, slots=True)
class ReachedRun(Document):
    """When a run first reached the value, and what it had spent."""

    label: str
    """Its setting."""
    seed: int
    """Seed of the training."""
    best: float
    """Best value of the metric in any evaluated round; NaN without one."""
    round: int | None
    """First evaluated round after which the metric is as good as the value; None: not reached."""
    spent: SpentAfter | None
    """Observed privacy of the first `round` + 1 rounds, as an audit of them alone would find it;
    None if not reached, without noise, or if the trace is not known."""
    updates: int | None
    """Updates accepted in these rounds; None if not reached, or if the trace is not known."""
    days: float | None
    """Simulated days until that round closed; None as for `updates`."""


@dataclass(frozen=True, slots=True)
class Reach(Document):
    """What runs had spent when they first reached a value of a held-out metric."""

    metric: str
    """Name of the metric."""
    value: float
    """Value to reach."""
    runs: list[ReachedRun]
    """The runs by setting and seed, those that did not reach it too."""


def reach_of(
    metric: Metric,
    value: float,
    groups: Mapping[str, Mapping[int, TrainedRun]],
    audits: Sequence[Audit],
) -> Reach:
    """Returns what each run had spent when it reached a value.

    Args:
        metric: the metric.
        value: value to reach.
        groups: trained runs of one trace by seed, by label.
        audits: audit of the trace with the noise of each group; empty if the trace is not known.

    Raises:
        InputError: the value is not finite.
    """
    if not math.isfinite(value):
        raise InputError.of("reach", value, "must be finite", "give a value such as 0.4")
    runs = []
    for place, (label, by_seed) in enumerate(groups.items()):
        found = {seed: _first(by_seed[seed], metric, value) for seed in sorted(by_seed)}
        numbers = sorted({index + 1 for index, _ in found.values() if index is not None})
        audit = audits[place] if audits else None
        after = {each.rounds - 1: each for each in audit.spent_after(numbers)} if audit else {}
        for seed, (index, best) in found.items():
            until = (None, None) if index is None or audit is None else _until(audit, index)
            spent = None if index is None else after.get(index)
            runs.append(ReachedRun(label, seed, best, index, spent, *until))
    return Reach(metric.name, value, runs)


def _first(run: TrainedRun, metric: Metric, value: float) -> tuple[int | None, float]:
    """Returns the first round after which the metric is as good as `value`, and its best value."""
    sign = metric.sign
    good = sign * run.metrics[f"evaluation_{metric.name}"].astype(np.float64)
    # A round that was not evaluated is NaN, and so is not as good.
    places = np.flatnonzero(good >= sign * value)
    best = sign * float(np.fmax.reduce(good))
    return (int(places[0]) if places.size else None), best


def _until(audit: Audit, index: int) -> tuple[int, float]:
    """Returns the updates accepted until a round, and the days until it closed."""
    trace = audit.trace
    assert isinstance(trace, Trace), "a log has no trained runs"
    closed = trace.rounds["closed"][trace.rounds["state"] == 0]
    return int(np.count_nonzero(audit.patterns.rounds <= index)), float(closed[index]) / 86_400.0
