"""The Flower app of docs/switch.md on clients in this process: `python run_moved_app.py CALLBACKS`, in the folder of its files.

Prints the losses of its server, the examples of every round, and the shapes of the model, as JSON.
"""

import json
import logging
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path.cwd()))
import client_app
import server_app
import torch
from common import CLIENTS, make_model
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from run_flower import InProcess, set_identity


class Clients(InProcess):
    """The clients of the app, each with the partition of its number."""

    def __init__(self) -> None:
        super().__init__()
        self.examples: list[int] = []

    def get_node_ids(self) -> Iterable[int]:
        return range(1, CLIENTS + 1)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: Any = None):
        replies = [self._trained(each) for each in messages]
        counts = [int(each.content["metrics"]["num-examples"]) for each in replies]
        if counts:  # nobody evaluates
            self.examples.append(sum(counts))
        return replies

    def _trained(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        return client_app.app(message, context_of({"partition-id": node - 1}, node))


def context_of(config: dict[str, Any], node: int = 0) -> Context:
    return Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={})


def main() -> None:
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    set_identity()
    torch.manual_seed(1)
    grid: Grid = Clients()
    server_app.app(grid=grid, context=context_of({}))
    shapes = {name: list(part.shape) for name, part in make_model().state_dict().items()}
    losses = json.loads(Path("losses.json").read_text())
    print(json.dumps({"losses": losses, "examples": grid.examples, "shapes": shapes}))


if __name__ == "__main__":
    main()
