"""Federated averaging by Flower: `python flwr_run.py SETTING ROUNDS ACTORS`.

Its simulation runs clients in Ray actors, here of one CPU each. Devices clip, and the server adds
the noise. Prints one JSON line: seconds of the rounds, and the devices that were trained.
"""

import json
import logging
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg
from flwr.simulation import run_simulation
from settings import CLIP_NORM, DEVICES, NOISE_DEVIATION, SETTINGS, examples_of, model_of
from torch.nn import functional


def client_app(name: str) -> ClientApp:
    """Local training of a setting: one pass over the examples of a device, in a drawn order."""
    app = ClientApp(mods=[fixedclipping_mod])
    setting = SETTINGS[name]

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        logging.getLogger("flwr").setLevel(logging.ERROR)  # else a line of every device is printed
        model = model_of(name)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=setting.learning_rate)
        inputs, targets = examples_of(name, int(context.node_config["partition-id"]))
        for rows in torch.randperm(len(inputs)).split(setting.batch):
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()
            optimizer.step()
        content = RecordDict(
            {
                "arrays": ArrayRecord(model.state_dict()),
                "metrics": MetricRecord({"num-examples": len(inputs)}),
            }
        )
        return Message(content=content, reply_to=message)

    return app


def server_app(name: str, rounds: int, seconds: list[float]) -> ServerApp:
    """The rounds; how long they took is added to `seconds`."""
    app = ServerApp()
    setting = SETTINGS[name]

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        average = FedAvg(
            fraction_train=setting.cohort / DEVICES,
            fraction_evaluate=0.0,
            min_train_nodes=setting.cohort,
            min_available_nodes=DEVICES,
        )
        strategy = DifferentialPrivacyClientSideFixedClipping(
            average, NOISE_DEVIATION / CLIP_NORM, CLIP_NORM, setting.cohort
        )
        arrays = ArrayRecord(model_of(name).state_dict())
        started = time.perf_counter()
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds)
        seconds.append(time.perf_counter() - started)

    return app


def main(name: str, rounds: int, actors: int) -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    seconds: list[float] = []
    run_simulation(
        server_app=server_app(name, rounds, seconds),
        client_app=client_app(name),
        num_supernodes=DEVICES,
        backend_config={
            "init_args": {
                # Else Ray would join any cluster that runs on the machine, and Flower would wait.
                "address": "local",
                "num_cpus": actors,
                "include_dashboard": False,
                "log_to_driver": False,
            },
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    print(json.dumps({"seconds": seconds[0], "devices": rounds * SETTINGS[name].cohort}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]))
