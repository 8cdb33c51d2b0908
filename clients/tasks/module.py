"""A task from a torch module, and a source from a function that gives a device's examples.

def task(seed):
    def examples(device):
        draws = torch.Generator().manual_seed(seed + device)
        inputs = torch.randn(50, 20, generator=draws)
        return inputs, (inputs.sum(dim=1) > 0).long()

    return ModuleTask(torch.nn.Linear(20, 2), examples, torch.nn.functional.cross_entropy)
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap

from clients.data.source import ExampleSource, Field
from clients.tasks.task import Batch, Parameters
from fedray.messages import Metric

Examples = tuple[Tensor, Tensor]
"""Inputs [B, ...] and targets [B, ...] of B examples."""
DEVICES_REMEMBERED = 256


def is_correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """Share of an example's targets, which are class numbers, that have the greatest output: [B].

    Args:
        outputs: scores [B, classes, ...], as `torch.nn.functional.cross_entropy` takes them.
        targets: class numbers [B, ...].
    """
    if targets.is_floating_point():
        raise ValueError(
            "the targets are no class numbers; give ModuleTask an accuracy= of its own"
        )
    is_found = (outputs.argmax(dim=1) == targets).double()
    return is_found.reshape(len(targets), -1).mean(dim=1)


class FunctionSource:
    """Examples from a function of the user's own; see clients.data.source.ExampleSource.

    Args:
        examples: gives all examples of a device: `examples(device)` is inputs [N, ...] and targets
            [N, ...]. A pure function. Ids from 2^40 on are held out.
        classes: how many class numbers there may be, for the contract suite.
    """

    held_out_devices = 2**40
    optimum: Mapping[str, float] = {}

    def __init__(self, examples: Callable[[int], Examples], classes: int = 2**31) -> None:
        self._examples = examples
        self._classes = classes
        self._recent: OrderedDict[int, Examples] = OrderedDict()

    @property
    def fields(self) -> dict[str, Field]:
        """Of the first device's examples."""
        inputs, targets = self._of(0)
        return {"inputs": self._field(inputs), "targets": self._field(targets)}

    def examples_on(self, device_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """See ExampleSource."""
        counts = [len(self._of(device)[0]) for device in device_ids.tolist()]
        return np.array(counts, np.int64)

    def examples(
        self, device_ids: NDArray[np.uint64], positions: NDArray[np.int64]
    ) -> dict[str, NDArray]:
        """See ExampleSource."""
        chosen = [
            tuple(part[row] for part in self._of(device))
            for device, row in zip(device_ids.tolist(), positions.tolist(), strict=True)
        ]
        inputs, targets = (torch.stack(parts).numpy() for parts in zip(*chosen, strict=True))
        return {"inputs": inputs, "targets": targets}

    def _of(self, device: int) -> Examples:
        """All examples of a device, which are asked for more than once."""
        if device not in self._recent:
            inputs, targets = self._examples(device)
            if len(inputs) != len(targets):
                raise ValueError(
                    f"device {device} has {len(inputs)} inputs and {len(targets)} targets; give "
                    "as many of both"
                )
            self._recent[device] = _plain(inputs), _plain(targets)
            if len(self._recent) > DEVICES_REMEMBERED:
                self._recent.popitem(last=False)
        return self._recent[device]

    def _field(self, part: Tensor) -> Field:
        if part.is_floating_point():
            return Field(tuple(part.shape[1:]), "real")
        return Field(tuple(part.shape[1:]), "whole", values=self._classes)


class ModuleTask:
    """See clients.tasks.task.Task. Its data has the fields `inputs` and `targets`.

    A group of devices is one call of the module by `torch.func.vmap`, each with parameters of its
    own. Recurrent layers of torch have no such call, so a module with one is called device by
    device, which is slower. Parameters that need no gradient stay as they are, and are not
    averaged.

    Args:
        module: the model. Its parameters are the initial ones, so it must be a function of the
            seed; torch's own generator is seeded while `task(seed)` runs.
        examples: gives all examples of a device, as FunctionSource takes them, or is a source
            itself; None: those of the scenario's table `data`.
        loss: the mean loss, a scalar, of outputs and targets of one device's batch.
        accuracy: of outputs and targets, [B]; by default the share of class numbers that are found.
        metrics: names and units of loss and accuracy.

    Raises:
        ValueError: the module draws random numbers or keeps statistics of batches (dropout, batch
            norm), so that a loss is not a function of parameters and examples.
    """

    def __init__(
        self,
        module: nn.Module,
        examples: Callable[[int], Examples] | ExampleSource | None,
        loss: Callable[[Tensor, Tensor], Tensor],
        accuracy: Callable[[Tensor, Tensor], Tensor] = is_correct,
        metrics: tuple[Metric, Metric] = (
            Metric("loss", "", "lower"),
            Metric("accuracy", "share of targets", "higher"),
        ),
    ) -> None:
        for part in module.modules():
            if _is_impure(part):
                raise ValueError(
                    f"the module has a {type(part).__name__} that draws or remembers; set its "
                    "dropout to 0, or take a norm without statistics of batches"
                )
        self._module = module.train()
        self._loss, self._accuracy = loss, accuracy
        self.metrics = metrics
        self.source = FunctionSource(examples) if callable(examples) else examples
        own = [(name, part) for name, part in module.named_parameters() if part.requires_grad]
        self._initial = {name: part.detach().clone() for name, part in own}
        self.shapes = {name: tuple(part.shape) for name, part in own}
        rest = [*module.named_parameters(), *module.named_buffers()]
        self._fixed = {name: part.detach() for name, part in rest if name not in self._initial}
        self._is_recurrent = any(isinstance(part, nn.RNNBase) for part in module.modules())

    def initial_parameters(self) -> NDArray[np.float32]:
        """[D]: as the module was given."""
        return torch.cat([part.flatten().float() for part in self._initial.values()]).numpy()

    def losses(self, parameters: Parameters, batch: Batch) -> Tensor:
        """Mean loss [G] of each device's own parameters on its own batch."""
        inputs, targets = batch["inputs"], batch["targets"]
        devices = range(len(inputs))
        if len(devices) > 1 and not self._is_recurrent:
            return vmap(self._loss_of)(dict(parameters), inputs, targets)
        own = [{name: part[g] for name, part in parameters.items()} for g in devices]
        return torch.stack([self._loss_of(own[g], inputs[g], targets[g]) for g in devices])

    def measure(self, parameters: Parameters, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Loss and accuracy of every example alone."""
        inputs, targets = batch["inputs"], batch["targets"]
        losses, accuracies = [], []
        for g in range(len(inputs)):
            own = {name: part[g] for name, part in parameters.items()}
            outputs = self._outputs(own, inputs[g])
            pairs = zip(outputs.split(1), targets[g].split(1), strict=True)
            losses.append(torch.stack([self._loss(*pair) for pair in pairs]))
            accuracies.append(self._accuracy(outputs, targets[g]))
        weights = torch.ones(inputs.shape[:2])
        loss, accuracy = (metric.name for metric in self.metrics)
        return {
            loss: (torch.stack(losses), weights),
            accuracy: (torch.stack(accuracies).view_as(weights), weights),
        }

    def _loss_of(self, parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        return self._loss(self._outputs(parameters, inputs), targets)

    def _outputs(self, parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
        kind = next(iter(parameters.values())).dtype  # float64 where gradients are checked
        fixed = {
            name: part.to(kind) if part.is_floating_point() else part
            for name, part in self._fixed.items()
        }
        return functional_call(self._module, {**fixed, **parameters}, (inputs,))


def _plain(part: Tensor) -> Tensor:
    """As the fields say: float32 or int64."""
    return part.float() if part.is_floating_point() else part.long()


def _is_impure(part: nn.Module) -> bool:
    is_batch_norm = isinstance(part, nn.modules.batchnorm._NormBase) and part.track_running_stats
    share = (
        part.p if isinstance(part, nn.modules.dropout._DropoutNd) else part.__dict__.get("dropout")
    )
    return is_batch_norm or (isinstance(share, float | int) and share > 0)
