"""Answers of the devices of an evaluation task: their metric of the model in each round."""

import math

import numpy as np

from fedray.mechanisms.questions.linear import Histogram
from fedray.mechanisms.questions.question import Items
from fedray.scenario import Scenario
from fedray.scenario.analytics import EvaluationValues
from fedray.trace.evaluated import read_evaluated
from fedray.trace.reader import Trace


class EvaluatedModel:
    """Values of devices that differ from round to round; see `EvaluationValues`.

    A device holds its metric, at key 0; for a histogram, at the key of its bin. Without examples it
    holds nothing.

    Args:
        scenario: scenario of the evaluation.
        table: its values.
        trace: its trace, with the devices' metrics.
    """

    def __init__(self, scenario: Scenario, table: EvaluationValues, trace: Trace) -> None:
        assert scenario.analytics is not None
        question = scenario.analytics.question
        self._table = table
        self._bins = question.size if isinstance(question, Histogram) else 0
        self._rounds = read_evaluated(trace)

    def of_round(self, index: int) -> Items:
        """Returns the values of a round's devices, in their order."""
        values = self._rounds[index].values
        counts = (~np.isnan(values)).astype(np.int64)
        held = values[counts == 1]
        keys = np.zeros(held.size, np.int64)
        if self._bins:
            share = (held - self._table.low) / (self._table.high - self._table.low)
            # Clipped as floats, because a metric may be infinite.
            keys = np.clip(np.floor(share * self._bins), 0, self._bins - 1).astype(np.int64)
        return Items(np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]), keys, held)

    def label(self, key: int) -> str:
        """Returns a bin in words."""
        edges = np.linspace(self._table.low, self._table.high, self._bins + 1)
        low = -math.inf if key == 0 else edges[key]
        high = math.inf if key == self._bins - 1 else edges[key + 1]
        return f"{low:g} to {high:g}"
