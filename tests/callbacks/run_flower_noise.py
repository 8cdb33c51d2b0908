"""A Flower training with the noise of docs/callbacks: `python run_flower_noise.py CALLBACKS`.

Needs fedray. Prints the model of each round that was released, and what it should be, as JSON.
"""

import json
import sys
from typing import Any

import numpy as np
import torch

sys.path.insert(0, sys.argv[1])
from flower_noise import CorrelatedNoiseFedAvg
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from run_flower import BROKEN_ROUND, CLIENTS, ROUNDS, InProcess, set_identity

import fedray
from fedray.mechanisms import BLT

CLIP_NORM, ENDLESS = 0.5, 7


class Updating(InProcess):
    """Clients whose update is ((c - 1) / 10, ..) for client c: one learns nothing, and one sends no
    numbers."""

    def content(self, client: int, message: Message) -> RecordDict:
        model = message.content["arrays"].to_numpy_ndarrays()[0]
        update = np.full(4, np.nan if client == ENDLESS else (client - 1) / 10, np.float32)
        metrics = MetricRecord({"num-examples": client})
        arrays = ArrayRecord({"w": Array(model + update)})
        return RecordDict({"arrays": arrays, "metrics": metrics})


def noise() -> Any:
    mechanism = BLT(theta=(0.9,), omega=(0.3,))
    parameters = [torch.zeros(4)]
    return fedray.CorrelatedNoise(
        mechanism, ROUNDS, parameters, noise_multiplier=0.1, clip_norm=CLIP_NORM, seed=5
    )


def main() -> None:
    set_identity()
    grid = Updating()
    own = noise()
    strategy = CorrelatedNoiseFedAvg(own, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    released: list[list[float]] = []

    def keep(server_round: int, arrays: ArrayRecord) -> None:
        released.append(arrays.to_numpy_ndarrays()[0].tolist())

    first = ArrayRecord({"w": Array(np.zeros(4, np.float32))})
    strategy.start(grid, first, num_rounds=ROUNDS, evaluate_fn=keep)
    other = noise()
    expected = [np.zeros(4)]
    for server_round in range(1, ROUNDS + 1):
        if server_round == BROKEN_ROUND:
            expected.append(expected[-1])
            continue
        clients = [client for client, found in grid.used if found == server_round]
        # Four equal parts of at most CLIP_NORM together are CLIP_NORM / 2 each.
        sums = sum(min((each - 1) / 10, CLIP_NORM / 2) for each in clients if each != ENDLESS)
        step = (sums + other.next_noise()[0].numpy()) / len(clients)
        expected.append(expected[-1] + step)
    document = {"released": released, "expected": [each.tolist() for each in expected]}
    print(json.dumps({**document, "rows": own.next_step}))


main()
