"""The in-process shell around ModelAggregator: the same class, called directly. For tests and debugging."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedray.answers import Ready
from fedray.messages import TrainReport
from fedray.scenario import Scenario
from server.aggregator import ModelAggregator


class InProcessAggregator:
    """The aggregator in this process."""

    restarts = 0

    def __init__(self, scenario: Scenario, device: str) -> None:
        self._aggregator = ModelAggregator(scenario, device)

    def start(self, parameters: NDArray[np.float32]) -> Ready[None]:
        """See fedray.protocols.Aggregator."""
        return Ready(self._aggregator.start(parameters))

    def commit(self, round_index: int, reports: Sequence[TrainReport]) -> Ready[NDArray[np.float32]]:
        """See fedray.protocols.Aggregator."""
        return Ready(self._aggregator.commit(round_index, reports))

    def restore(self, state: dict[str, NDArray]) -> Ready[None]:
        """See fedray.protocols.Aggregator."""
        return Ready(self._aggregator.restore(state))

    def restart(self) -> None:
        """See fedray.protocols.Aggregator."""
        raise AssertionError("this process is the aggregator's")

    def checkpoint(self) -> Ready[dict[str, NDArray]]:
        """See fedray.protocols.Aggregator."""
        return Ready(self._aggregator.checkpoint())

    def close(self) -> None:
        """Nothing to end."""
