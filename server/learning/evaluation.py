"""An evaluation that trainers share: each measures some batches, and their sums are added in one
order, so that no bit depends on the number of trainers."""

from collections.abc import Sequence

import numpy as np

from fedray.base.arrays import Float64Array
from fedray.base.intervals import ratio_with_error
from fedray.wire.messages import Evaluation, EvaluationPart, Measured
from fedray.wire.protocols import Kept, Trainer


class SharedEvaluation:
    """The future evaluation of parameters [D] on held-out data, which begins at once.

    Args:
        trainers: trainers, of which the last ones have the least other work.
        parameters: the parameters, as the trainers take them.
    """

    def __init__(self, trainers: Sequence[Trainer], parameters: Kept) -> None:
        self._parts = [
            trainer.evaluate(parameters, (number, len(trainers)))
            for number, trainer in enumerate(trainers)
        ]

    def result(self) -> Evaluation:
        """Waits for all parts. Raises the error of the first part that has one."""
        return evaluation_of([part.result() for part in self._parts])


def evaluation_of(parts: Sequence[EvaluationPart]) -> Evaluation:
    """Returns value and standard error of every metric, given all parts in order."""
    metrics, data = parts[0].metrics, parts[0].data
    sums = {metric.name: np.zeros((data.devices, 2)) for metric in metrics}
    # Sums of floats depend on the order, and a device may have rows in several parts.
    for owners, rows in (batch for part in parts for batch in part.batches):
        for name, of_rows in rows.items():
            np.add.at(sums[name], owners, of_rows)
    figures = {each.name: _measured(sums[each.name], each.is_exponential) for each in metrics}
    return Evaluation(figures, data)


def _measured(sums: Float64Array, is_exponential: bool) -> Measured:
    """Returns value and standard error of a metric, given its sums [devices, 2]; a metric may count
    nothing, for example if no device has a word of the vocabulary."""
    ratio, error = ratio_with_error(sums)
    if is_exponential:
        # By the delta method: the slope of the exponential is the exponential itself.
        with np.errstate(over="ignore"):
            value = float(np.exp(ratio))
        return Measured(value, value * error)
    return Measured(ratio, error)
