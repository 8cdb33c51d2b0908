"""What synthetic sources have in common: how many examples a device has is drawn, and any number of
devices may be held out."""

import numpy as np
from numpy.typing import NDArray

from fedray.clients.data.source import FIRST_HELD_OUT
from fedray.clients.population import ExampleModel, examples_on
from fedray.scenario import Scenario


class DrawnCounts:
    """Mixin for a source (fedray.clients.data.source.ExampleSource) whose counts are those of the
    table `population`.

    Args:
        scenario: has the table.
    """

    held_out_devices: int = int(FIRST_HELD_OUT)

    def __init__(self, scenario: Scenario) -> None:
        self._drawn = ExampleModel.of(scenario)

    def examples_on(self, device_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """How many examples each of `device_ids` has, [G], as the trace records them."""
        return examples_on(self._drawn, device_ids).astype(np.int64)
