"""A task from a torch module, a function that gives a device's examples, and a loss.

def task(seed):
    def examples(device):
        draws = torch.Generator().manual_seed(seed + device)
        inputs = torch.randn(50, 20, generator=draws)
        return inputs, (inputs.sum(dim=1) > 0).long()

    return ModuleTask(torch.nn.Linear(20, 2), examples, torch.nn.functional.cross_entropy)
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap

from clients.tasks.task import FIRST_HELD_OUT
from fedray.messages import Evaluation

HELD_OUT_DEVICES, HELD_OUT_EXAMPLES = 128, 4

Examples = tuple[Tensor, Tensor]
"""Inputs [B, ...] and targets [B, ...] of B examples."""


def share_correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """Share of the targets, which are class numbers, that have the greatest of the outputs.

    Args:
        outputs: scores [B, classes, ...], as `torch.nn.functional.cross_entropy` takes them.
        targets: class numbers [B, ...].
    """
    if targets.is_floating_point():
        raise ValueError(
            "the targets are no class numbers; give ModuleTask an accuracy= of its own"
        )
    return (outputs.argmax(dim=1) == targets).double().mean()


class ModuleTask:
    """See clients.tasks.task.Task.

    A group of devices is one call of the module by `torch.func.vmap`, each with parameters of its
    own. Recurrent layers of torch have no such call, so a module with one is called device by
    device, which is slower. Parameters that need no gradient stay as they are, and are not
    averaged.

    Args:
        module: the model. Its parameters are the initial ones, so it must be a function of the
            seed; torch's own generator is seeded while `task(seed)` runs.
        examples: gives all examples of a device: `examples(device)` is inputs [N, ...] and targets
            [N, ...]. A pure function. A device that has fewer than it is asked for goes round
            again.
        loss: the mean loss, a scalar, of outputs and targets of one device's batch.
        accuracy: of outputs and targets, a scalar; by default the share of class numbers that are
            found.
        held_out: on which the model is evaluated. By default four examples of each of 128 devices
            whose ids, from 2^40 on, are in no population.

    Raises:
        ValueError: the module draws random numbers or keeps statistics of batches (dropout, batch
            norm), so that a loss is not a function of parameters and examples.
    """

    def __init__(
        self,
        module: nn.Module,
        examples: Callable[[int], Examples],
        loss: Callable[[Tensor, Tensor], Tensor],
        accuracy: Callable[[Tensor, Tensor], Tensor] = share_correct,
        held_out: Examples | None = None,
    ) -> None:
        for part in module.modules():
            if _is_impure(part):
                raise ValueError(
                    f"the module has a {type(part).__name__} that draws or remembers; set its "
                    "dropout to 0, or take a norm without statistics of batches"
                )
        self._module, self._examples = module.train(), examples
        self._loss, self._accuracy, self._held_out = loss, accuracy, held_out
        own = [(name, part) for name, part in module.named_parameters() if part.requires_grad]
        self._initial = {name: part.detach().clone() for name, part in own}
        self.shapes = {name: tuple(part.shape) for name, part in own}
        self._is_recurrent = any(isinstance(part, nn.RNNBase) for part in module.modules())
        self._layout: tuple[Tensor, Tensor] | None = None
        """One example's inputs and targets, [1, ...] each; known when the first are read."""

    def initial_parameters(self) -> NDArray[np.float32]:
        """[D]: as the module was given."""
        return torch.cat([part.flatten().float() for part in self._initial.values()]).numpy()

    def device_examples(self, device_ids: NDArray[np.uint64], count: int) -> Tensor:
        """[G, count, bytes]: an example's inputs and targets are one row of bytes, because they may
        be of two types and the examples of a task are one tensor."""
        return torch.stack([self._packed(int(device), count) for device in device_ids])

    def losses(self, parameters: dict[str, Tensor], batch: Tensor) -> Tensor:
        """Mean loss [G] of each device's own parameters on its own batch [G, B, bytes]."""
        inputs, targets = self._unpacked(batch)
        if not self._is_recurrent:
            return vmap(self._loss_of)(parameters, inputs, targets)
        each_device = range(batch.shape[0])
        own = [{name: part[g] for name, part in parameters.items()} for g in each_device]
        return torch.stack([self._loss_of(own[g], inputs[g], targets[g]) for g in each_device])

    def evaluate(self, parameters: dict[str, Tensor]) -> Evaluation:
        """Loss and accuracy on the held-out examples."""
        if self._held_out is None:
            ids = FIRST_HELD_OUT + np.arange(HELD_OUT_DEVICES, dtype=np.uint64)
            packed = self.device_examples(ids, HELD_OUT_EXAMPLES)
            inputs, targets = self._unpacked(packed.flatten(0, 1)[None])
            self._held_out = inputs[0], targets[0]
        inputs, targets = self._held_out
        with torch.no_grad():
            own = {name: part[0] for name, part in parameters.items()}
            outputs = functional_call(self._module, own, (inputs,))
            loss, accuracy = self._loss(outputs, targets), self._accuracy(outputs, targets)
        return Evaluation(float(loss), float(accuracy))

    def _loss_of(self, parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        return self._loss(functional_call(self._module, parameters, (inputs,)), targets)

    def _packed(self, device: int, count: int) -> Tensor:
        """[count, bytes]."""
        inputs, targets = self._examples(device)
        have = len(inputs)
        if not 0 < have == len(targets):
            raise ValueError(
                f"device {device} has {have} inputs and {len(targets)} targets; give as many of "
                "both, one at least"
            )
        self._layout = inputs[:1], targets[:1]
        places = torch.arange(count) % have
        return torch.cat([_bytes_of(inputs[places]), _bytes_of(targets[places])], dim=1)

    def _unpacked(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets, [G, B, ...] each, of [G, B, bytes]."""
        assert self._layout is not None  # a batch is made of examples that were read here
        widths = [part.nbytes for part in self._layout]
        parts = batch.split(widths, dim=2)
        inputs, targets = (
            part.contiguous().view(like.dtype).reshape(*batch.shape[:2], *like.shape[1:])
            for part, like in zip(parts, self._layout, strict=True)
        )
        return inputs, targets


def _bytes_of(rows: Tensor) -> Tensor:
    return rows.reshape(rows.shape[0], -1).contiguous().view(torch.uint8)


def _is_impure(part: nn.Module) -> bool:
    is_batch_norm = isinstance(part, nn.modules.batchnorm._NormBase) and part.track_running_stats
    share = (
        part.p if isinstance(part, nn.modules.dropout._DropoutNd) else part.__dict__.get("dropout")
    )
    return is_batch_norm or (isinstance(share, float | int) and share > 0)
