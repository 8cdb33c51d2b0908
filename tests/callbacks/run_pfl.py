"""A pfl-research training with the log of docs/callbacks: `python run_pfl.py CALLBACKS LOG`.

Prints the participations, as JSON.
"""

import json
import sys

import numpy as np
import torch

sys.path.insert(0, sys.argv[1])
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from pfl_log import ParticipationLog

ITERATIONS, USERS, COHORT = 10, 12, 4


class Line(torch.nn.Module):
    """Linear regression, with the functions that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(3, 1)

    def loss(self, inputs, targets, is_eval=False):
        self.train(not is_eval)
        return (self.line(inputs) - targets).square().mean()

    @torch.no_grad()
    def metrics(self, inputs, targets):
        return {"loss": Weighted(float(self.loss(inputs, targets, True)), len(inputs))}


def main(log: str) -> None:
    np.random.seed(0)
    trained: list[str] = []
    inputs = torch.ones(5, 3)

    def dataset_of(user: str) -> PyTorchTensorDataset:
        trained.append(user)
        return PyTorchTensorDataset([inputs, inputs.sum(1, keepdim=True)], user_id=user)

    users = [f"user-{number}" for number in range(USERS)]
    data = FederatedDataset(dataset_of, get_user_sampler("minimize_reuse", users))
    module = Line()
    model = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=ITERATIONS,
            evaluation_frequency=10**9,
            train_cohort_size=COHORT,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(data, None, postprocessors=[ParticipationLog(log)]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=0.1, local_batch_size=5
        ),
        callbacks=[],
    )
    print(json.dumps([(user, place // COHORT) for place, user in enumerate(trained)]))


if __name__ == "__main__":
    main(sys.argv[2])
