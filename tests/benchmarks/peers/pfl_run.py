"""Federated averaging by pfl-research: `python pfl_run.py SETTING ROUNDS`, one process or torchrun.

Prints one JSON line: seconds of the training loop, and the devices that were trained.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from settings import (
    CLIP_NORM,
    DEVICES,
    NOISE_DEVIATION,
    SETTINGS,
    examples_of,
    model_of,
)


class WithLoss(nn.Module):
    """The model with the functions that pfl asks for."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs):
        return self.inner(inputs)

    def loss(self, inputs, targets, is_eval=False):
        self.train(not is_eval)
        return nn.functional.cross_entropy(self(inputs), targets)

    @torch.no_grad()
    def metrics(self, inputs, targets):
        return {"loss": Weighted(float(self.loss(inputs, targets, is_eval=True)), len(inputs))}


def main(name: str, rounds: int) -> None:
    setting = SETTINGS[name]
    torch.set_num_threads(1)
    np.random.seed(0)
    data = {device: PyTorchTensorDataset(examples_of(name, device)) for device in range(DEVICES)}
    sampler = get_user_sampler("minimize_reuse", list(data))
    dataset = FederatedDataset(data.__getitem__, sampler)
    module = WithLoss(model_of(name))
    model = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    backend = SimulatedBackend(
        training_data=dataset,
        val_data=dataset,
        postprocessors=[
            CentrallyAppliedPrivacyMechanism(
                GaussianMechanism(CLIP_NORM, NOISE_DEVIATION / CLIP_NORM)
            )
        ],
    )
    train = NNTrainHyperParams(
        local_num_epochs=1,
        local_learning_rate=setting.learning_rate,
        local_batch_size=setting.batch,
    )
    params = NNAlgorithmParams(
        central_num_iterations=rounds,
        evaluation_frequency=10**9,
        train_cohort_size=setting.cohort,
        val_cohort_size=None,
    )
    started = time.perf_counter()
    FederatedAveraging().run(
        algorithm_params=params,
        backend=backend,
        model=model,
        model_train_params=train,
        callbacks=[],
    )
    seconds = time.perf_counter() - started
    if int(os.environ.get("RANK", "0")) == 0:
        print(json.dumps({"seconds": seconds, "devices": rounds * setting.cohort}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
