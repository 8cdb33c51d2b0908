"""A user's own values; every answer is checked."""

from typing import Any

import numpy as np

from fedray.base.arrays import UInt64Array
from fedray.base.errors import ScenarioError
from fedray.mechanisms.questions.question import Items
from fedray.scenario import Scenario
from fedray.scenario.analytics import CustomValues
from fedray.scenario.python_file import called, function_in


class CustomItems:
    """See `fedray.scenario.analytics.CustomValues`. Raises ScenarioError if the code fails."""

    def __init__(self, scenario: Scenario, table: CustomValues) -> None:
        self._seed = scenario.seed
        self._name = f"{table.table}.file={table.file!r}: values(device_ids, seed)"
        self._function = function_in(table, "values")

    def on(self, device_ids: UInt64Array) -> Items:
        def call() -> list[Any]:
            return [np.asarray(each) for each in self._function(device_ids, self._seed)]

        found = called(self._name, call)
        if len(found) != 3:
            raise self._refused("returns (counts, keys, values)")
        kinds = ("iu", "iu", "iufb")
        # An empty list has no whole numbers' type.
        if any(
            each.size and each.dtype.kind not in kind
            for each, kind in zip(found, kinds, strict=True)
        ):
            raise self._refused("returns whole numbers as counts and keys, and real values")
        counts, keys, values = found
        is_counted = counts.shape == device_ids.shape and (counts >= 0).all()
        if not is_counted or not keys.shape == values.shape == (counts.sum(),):
            raise self._refused(
                "returns a count for each device, and as many keys and values as they sum to"
            )
        real = values.astype(np.float64)
        if not np.isfinite(real).all():
            raise self._refused("returns finite values")
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        return Items(starts.astype(np.int64), keys.astype(np.int64), real)

    def label(self, key: int) -> str:
        return str(key)

    def _refused(self, rule: str) -> ScenarioError:
        return ScenarioError(f"{self._name} must be a function that {rule}; correct it")
