"""Local training: a fixed group of devices at once, each with its own copy of the parameters.

A group is trained as one batch of independent models, so its result depends on the group alone, not
on shards. Torch works on one thread here: shards are the parallelism.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clients.clipping import sum_of_clipped
from clients.population import DeviceModel, examples_on
from clients.tasks.registry import task_of
from fedray.errors import ScenarioError
from fedray.messages import Evaluation, TrainOrder, TrainReport
from fedray.scenario import Scenario


class LocalTrainer:
    """Trains any devices of a scenario. Plain Python."""

    def __init__(self, scenario: Scenario) -> None:
        # Trainers are the parallelism: more threads of one would only take CPUs from the others.
        torch.set_num_threads(1)
        self._scenario = scenario
        self._devices = DeviceModel.of(scenario)
        self._task = task_of(scenario)

    def initial_parameters(self) -> NDArray[np.float32]:
        """[D], a function of the scenario."""
        return self._task.initial_parameters()

    def evaluate(self, parameters: NDArray[np.float32]) -> Evaluation:
        """Measures the model with parameters [D] on the task's held-out data."""
        return self._task.evaluate(self._named(torch.tensor(parameters)[None, :]))

    def train(self, order: TrainOrder) -> TrainReport:
        """Runs local SGD on each device of a group.

        Args:
            order: the group's devices, and the parameters that all of them start from.

        Returns:
            The clipped updates as one exact sum, with the group's metrics.
        """
        client, clip_norm = self._scenario.training.client, self._scenario.privacy.clip_norm
        devices = len(order.device_ids)
        wanted = client.local_steps * client.batch_size
        held = torch.from_numpy(examples_on(self._devices, order.device_ids).astype(np.int64))
        examples = self._task.device_examples(order.device_ids, wanted)
        start_D = torch.tensor(order.parameters)
        parameters = {
            name: part.repeat(devices, *(1,) * (part.dim() - 1))
            for name, part in self._named(start_D[None, :]).items()
        }
        first_losses = torch.zeros(devices)
        for step in range(client.local_steps):
            batch = _batch(examples, held, step, client.batch_size)
            losses, gradients = self._gradients(parameters, batch)
            first_losses = losses if step == 0 else first_losses
            for name, gradient in gradients.items():
                parameters[name].sub_(gradient, alpha=client.learning_rate)
        trained_gD = torch.cat([part.reshape(devices, -1) for part in parameters.values()], dim=1)
        clipped_sum, is_longer = sum_of_clipped(trained_gD.sub_(start_D).numpy(), clip_norm)
        return TrainReport(
            round_index=order.round_index,
            group=order.group,
            devices=devices,
            sum_fixed_point=clipped_sum,
            loss_sum=float(first_losses.double().sum()),
            examples=int(held.clamp(max=wanted).sum()),
            clipped=int(is_longer.sum()),
        )

    def _named(self, parameters_gD: Tensor) -> dict[str, Tensor]:
        """Flat parameters [G, D] as the task's tensors, [G, *shape] each."""
        shapes = self._task.shapes
        parts = parameters_gD.split([math.prod(shape) for shape in shapes.values()], dim=1)
        return {
            name: part.reshape(-1, *shape)
            for (name, shape), part in zip(shapes.items(), parts, strict=True)
        }

    def _gradients(
        self, parameters: dict[str, Tensor], batch: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Losses [G] and each one's gradients: the devices share nothing, so those of the sum are
        each one's own. A parameter that no loss depends on has gradient zero."""
        leaves = {name: part.detach().requires_grad_() for name, part in parameters.items()}
        losses = self._task.losses(leaves, batch)
        try:
            gradients = torch.autograd.grad(
                losses.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
            )
        except RuntimeError as error:
            raise ScenarioError(
                f"training.task={self._scenario.training.task!r}: its losses have no gradients "
                f"({error}); compute them from the parameters by differentiable steps"
            ) from None
        return losses.detach(), dict(zip(leaves, gradients, strict=True))


def _batch(examples: Tensor, held: Tensor, step: int, batch_size: int) -> Tensor:
    """The step's examples [G, B, ...]; a device with fewer goes round again."""
    positions = (torch.arange(batch_size) + step * batch_size)[None, :] % held[:, None]
    return examples[torch.arange(examples.shape[0])[:, None], positions]
