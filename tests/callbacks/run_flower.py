"""A Flower training with the log of docs/callbacks: `python run_flower.py CALLBACKS LOG`.

Flower's own strategy, messages and records, on clients in this process. Client 3 always fails, and
so do all of them in round 5. Prints the participations that were used, as JSON.
"""

import json
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

sys.path.insert(0, sys.argv[1])
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

ROUNDS, CLIENTS, BROKEN_CLIENT, BROKEN_ROUND = 12, 12, 3, 5


class InProcess(Grid):
    """Clients that train at once."""

    def __init__(self) -> None:
        self.used: list[tuple[int, int]] = []

    def get_node_ids(self) -> Iterable[int]:
        return range(1, CLIENTS + 1)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: Any = None):
        return [self._reply(each) for each in messages]

    def _reply(self, message: Message) -> Message:
        client = message.metadata.dst_node_id
        server_round = int(message.content["config"]["server-round"])
        if client == BROKEN_CLIENT or server_round == BROKEN_ROUND:
            return Message(error=Error(code=0, reason="broken"), reply_to=message)
        self.used.append((client, server_round))
        return Message(content=self.content(client, message), reply_to=message)

    def content(self, client: int, message: Message) -> RecordDict:
        """What a client sends."""
        arrays = ArrayRecord({"w": Array(np.full(4, float(client)))})
        return RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    create_message = push_messages = pull_messages = set_run


def set_identity() -> None:
    """Messages of Flower bear the run and node of the process, which its SuperLink sets
    elsewhere."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


def main(log: str) -> None:
    from flower_log import logged

    set_identity()
    grid = InProcess()
    strategy = FedAvg(fraction_train=0.4, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    arrays = ArrayRecord({"w": Array(np.zeros(4))})
    logged(strategy, log).start(grid=grid, initial_arrays=arrays, num_rounds=ROUNDS)
    print(json.dumps(grid.used))


if __name__ == "__main__":
    main(sys.argv[2])
