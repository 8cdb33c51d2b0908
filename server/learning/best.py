"""The best of the evaluated rounds, and when a training no longer improves."""

import math
from collections.abc import Sequence

from fedray.base.rounding import counted
from fedray.scenario.training import Stop
from fedray.wire.messages import Metric, TrainingMetrics


def best_round(rows: Sequence[TrainingMetrics], metric: Metric) -> int | None:
    """Returns the first round after which a metric had its best value; None if it was never
    finite.

    Args:
        rows: figures of all rounds, in order.
        metric: metric of the task.
    """
    values = {
        row.round_index: metric.sign * row.evaluation.metrics[metric.name].value
        for row in rows
        if row.evaluation is not None
    }
    finite = [index for index, value in values.items() if math.isfinite(value)]
    return max(finite, key=values.__getitem__, default=None)


def why_stopped(rows: Sequence[TrainingMetrics], metric: Metric, stop: Stop | None) -> str:
    """Returns the reason to end a training after the last of its rounds; empty to continue."""
    if stop is None or not rows or rows[-1].evaluation is None:
        return ""
    best = best_round(rows, metric)
    first = -1 if best is None else best
    since = [row for row in rows if row.evaluation is not None and row.round_index > first]
    if len(since) < stop.patience:
        return ""
    patience = counted(stop.patience, "evaluation")
    if best is None:
        return f"held-out {metric.title} was not a number in {patience}"
    after = f"in {patience} since round {best + 1}"
    return f"held-out {metric.title} did not improve {after}"
