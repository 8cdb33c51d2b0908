"""An NVFlare training with the log of docs/callbacks: `python run_nvflare.py CALLBACKS LOG`.

NVFlare's simulator with its FedAvg, on clients in threads. Prints the participations, as JSON.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, sys.argv[1])
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.job_config.api import FedJob
from nvflare_log import ParticipationLog

ROUNDS, CLIENTS, COHORT = 5, 4, 2


class Trains(Executor):
    """Writes that it trained, and sends a vector; the last client always fails."""

    def __init__(self, trained: str) -> None:
        super().__init__()
        self.trained = trained

    def execute(self, task_name, shareable: Shareable, fl_ctx, abort_signal) -> Shareable:
        client = fl_ctx.get_identity_name()
        if client == f"site-{CLIENTS}":
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        number = shareable.get_header(AppConstants.CURRENT_ROUND)
        Path(self.trained, f"{client}.{number}").touch()
        model = FLModel(params={"w": np.ones(3)}, current_round=number)
        return FLModelUtils.to_shareable(model)


def main(log: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trained = Path(folder, "trained")
        trained.mkdir()
        job = FedJob(name="logged", min_clients=CLIENTS)
        workflow = FedAvg(
            num_clients=COHORT,
            num_rounds=ROUNDS,
            persistor_id="",
            model={"w": np.zeros(3).tolist()},
            ignore_result_error=True,
        )
        job.to_server(workflow)
        job.to_server(ParticipationLog(log), id="participation_log")
        job.to_clients(Trains(str(trained)), tasks=["train"])
        job.simulator_run(f"{folder}/work", n_clients=CLIENTS, threads=CLIENTS)
        found = [each.name.rsplit(".", 1) for each in trained.iterdir()]
    print(json.dumps([(client, int(number)) for client, number in found]))


if __name__ == "__main__":
    main(sys.argv[2])
