"""A task from a torch module, and a source from a function that gives a device's examples.

def task(seed):
    def examples(device):
        draws = np.random.default_rng([seed, device])
        inputs = torch.from_numpy(draws.standard_normal((50, 20), np.float32))
        return inputs, (inputs.sum(dim=1) > 0).long()

    return ModuleTask(torch.nn.Linear(20, 2), examples, torch.nn.functional.cross_entropy)
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedray.base.errors import InputError, one_line
from fedray.runtime.devices import is_about_the_device, own_draws, seed_draws
from fedray.scenario.python_file import called
from fedray.wire.messages import Metric
from ..data.source import DamagedExamples, ExampleSource, Field, Ids, Integers
from .alone import filled
from .draws import DeviceDraws, UnknownDraw
from .gradients import gradients_of, slopes_of
from .layout import Named, Shapes, repeated
from .task import Batch, Measures, Parameters, Vector

Examples = tuple[Tensor, Tensor]
"""Inputs [B, ...] and targets [B, ...] of B examples."""
GivenExamples = tuple[Tensor | NDArray, Tensor | NDArray]
"""Examples in the forms that a user's function may return."""
Score = Tensor | tuple[Tensor, Tensor]
"""Values [B] of examples, whose mean is a metric; or numerators and weights [B]."""
T = TypeVar("T")
DEVICES_REMEMBERED = 256
_CPU = torch.device("cpu")
_DRAWS = "it draws random numbers, as dropout does"


def is_correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """Returns, for each example [B], the share of its targets whose class has the highest score.

    It is the default accuracy of a `ModuleTask`.

    Args:
        outputs: scores [B, classes, ...], as `torch.nn.functional.cross_entropy` takes them, or
            [B, ..., classes].
        targets: class numbers [B, ...].

    Raises:
        InputError: the targets are no class numbers, or the axis of the classes is unclear.
    """
    if targets.is_floating_point():
        raise InputError(
            f"the targets are real numbers ({_described(targets)}), not classes; give class "
            "numbers (targets.long()), or give ModuleTask an accuracy="
        )
    forms = [outputs] if outputs.ndim < 3 else [outputs.movedim(1, -1), outputs]
    # A single score is no choice between classes.
    fitting = [e for e in forms if e.shape[:-1] == targets.shape and e.shape[-1] > 1]
    if len(fitting) != 1:
        raise InputError(
            f"the axis of the classes is unclear: outputs {_described(outputs)} must have the axes "
            f"of targets {_described(targets)} and classes on axis 1 or the last; give ModuleTask "
            "an accuracy="
        )
    # The share is over all further axes of the targets.
    is_found = (fitting[0].argmax(dim=-1) == targets).double()
    return is_found.reshape(len(targets), -1).mean(dim=1)


class FunctionSource:
    """Examples from a user's function; see fedray.clients.data.source.ExampleSource.

    Args:
        examples: pure function from a device id to all examples of the device: inputs [N, ...] and
            targets [N, ...], as tensors or arrays. Ids from 2^40 on are held out.
        classes: number of possible class numbers, for the contract suite.
    """

    held_out_devices = 2**40
    optimum: Mapping[str, float] = {}

    def __init__(self, examples: Callable[[int], GivenExamples], classes: int = 2**31) -> None:
        self._examples = examples
        self._classes = classes
        # A round asks for a device's examples more than once, first to count them and then to
        # train, so some devices are remembered.
        self._of = lru_cache(DEVICES_REMEMBERED)(self._read)

    @cached_property
    def fields(self) -> dict[str, Field]:
        """Fields `inputs` and `targets`, with the shapes of device 0; other devices must agree."""
        return self._fields_of(self._given(0))

    def examples_on(self, device_ids: Ids) -> Integers:
        counts = [len(self._of(device)[0]) for device in device_ids.tolist()]
        return np.array(counts, np.int64)

    def examples(self, device_ids: Ids, positions: Integers) -> dict[str, NDArray]:
        chosen: list[Examples] = []
        wanted_by_device = torch.from_numpy(positions)
        for device, wanted in zip(device_ids.tolist(), wanted_by_device, strict=True):
            inputs, targets = self._of(device)
            chosen.append((inputs[wanted], targets[wanted]))
        columns = zip(("inputs", "targets"), zip(*chosen, strict=True), strict=True)
        return {name: torch.stack(parts).numpy() for name, parts in columns}

    def _read(self, device: int) -> Examples:
        examples = self._given(device)
        # The shape of a device without examples does not matter.
        if len(examples[0]) and self._fields_of(examples) != self.fields:
            raise InputError(
                f"{_call_of(device)} gave {_shown(examples)}, but examples(0) "
                f"{_shown(self._given(0))}; only the number of examples may differ: pad or cut the "
                "others"
            )
        return examples

    def _given(self, device: int) -> Examples:
        call = _call_of(device)
        given: Any = called(call, lambda: self._examples(device), (DamagedExamples,))
        is_pair = isinstance(given, tuple | list) and len(given) == 2
        if not is_pair or not all(map(_is_array_of_examples, given)):
            raise InputError(
                f"{call} gave {_named(given)}; it must give two tensors or arrays of numbers, "
                "inputs [N, ...] and targets [N, ...] of the device's N examples"
            )
        inputs, targets = given
        if len(inputs) != len(targets):
            raise InputError(
                f"device {device} has {len(inputs)} inputs and {len(targets)} targets; give "
                "equally many of both"
            )
        examples = _plain(inputs), _plain(targets)
        for name, part in zip(("inputs", "targets"), examples, strict=True):
            # Updates with NaN would be dropped, and the training reported as diverged.
            if part.isnan().any():
                raise InputError(
                    f"{call} gave {name} with NaN; replace these values, or leave out their "
                    "examples"
                )
        return examples

    def _fields_of(self, examples: Examples) -> dict[str, Field]:
        inputs, targets = examples
        return {"inputs": self._field(inputs), "targets": self._field(targets)}

    def _field(self, part: Tensor) -> Field:
        shape = tuple(part.shape[1:])
        if part.is_floating_point():
            return Field(shape, "real")
        return Field(shape, "whole", values=self._classes)


def _scored(score: Callable[[Tensor, Tensor], T], outputs: Tensor, targets: Tensor) -> T:
    """Returns the values of a metric. Raises CodeFailed with the name of a user's function."""
    if score is is_correct:
        return score(outputs, targets)
    name = getattr(score, "__name__", type(score).__name__)
    # A caller makes room on a device that is full.
    passed_on = (torch.OutOfMemoryError,)
    return called(f"{name}()", lambda: score(outputs, targets), passed_on)


class ModuleTask:
    """A task whose model is a torch module; see fedray.clients.tasks.task.Task.

    Its data has the fields `inputs` and `targets`, or `tokens`, texts [N, length + 1] of which all
    but the last are inputs and all but the first are targets. A group of devices is one call of the
    module by `torch.func.vmap`, if that takes the module; otherwise devices train one at a time, on
    the module's own parameters. Each device of a group draws from generators of its own. Parameters
    that need no gradient stay constant, and are not averaged. Buffers are as they were given before
    every call.

    Args:
        module: the model. Its parameters are the initial ones, so it must be a function of the
            seed; torch's own generator is seeded while `task(seed)` runs. Layers that are in
            evaluation mode stay so, unless the whole module is.
        examples: function that gives all examples of a device, as in FunctionSource, or a source;
            None for the data of the scenario.
        loss: mean loss, a scalar, of the outputs and targets of one device's batch.
        accuracy: function of outputs and targets that gives values [B], or numerators and weights
            [B] of which the metric is the ratio of sums, such as correct words and words; by
            default the share of correct classes, padding among them.
        metrics: names and units of loss and accuracy.
        further: more metrics, each with such a function.

    alone: why devices train one at a time; empty if they train together. Known after `choose`.
    uneven: that the loss is not a mean over examples, in a sentence; empty if it seems one.
    draws: whether devices that train together draw numbers, from the seeds of `seed_devices`.

    Raises:
        InputError: a batch norm in training mode, whose statistics would leave the devices.
    """

    alone = uneven = ""
    draws = _is_chosen = False
    _seeds: Sequence[int] = ()

    def __init__(
        self,
        module: nn.Module,
        examples: Callable[[int], GivenExamples] | ExampleSource | None,
        loss: Callable[[Tensor, Tensor], Tensor],
        accuracy: Callable[[Tensor, Tensor], Score] = is_correct,
        metrics: tuple[Metric, Metric] = (
            Metric("loss", "", "lower"),
            Metric("accuracy", "share of targets", "higher"),
        ),
        further: Mapping[Metric, Callable[[Tensor, Tensor], Score]] = MappingProxyType({}),
    ) -> None:
        # Pretrained models come in evaluation mode.
        is_whole = not module.training
        for name, part in module.named_modules():
            is_norm = isinstance(part, nn.modules.batchnorm._NormBase) and part.track_running_stats
            part.training |= is_whole and not is_norm
            if is_norm and part.training:
                raise InputError(
                    f"{name or 'the module'!r} is a {type(part).__name__} in training mode, whose "
                    "statistics of the devices' data no noise protects; use torch.nn.GroupNorm, or "
                    "call .eval() on the layer to keep its statistics fixed"
                )
        self._module = module
        self._switched = [part for part in module.modules() if part.training]
        self._loss = loss
        if not all(isinstance(each, Metric) for each in further):
            raise InputError(
                "further: its keys must be of fedray.Metric; give {Metric(..): function}"
            )
        self._scores = {metrics[1]: accuracy, **further}
        self.metrics: tuple[Metric, ...] = *metrics, *further
        self._names = [metric.name for metric in self.metrics]
        if repeated_names := {each for each in self._names if self._names.count(each) > 1}:
            raise InputError.of(
                "further", ", ".join(sorted(repeated_names)), "names two metrics", "rename one"
            )
        self.source = FunctionSource(examples) if callable(examples) else examples
        parameters = dict(module.named_parameters())
        self._trained = {name: part for name, part in parameters.items() if part.requires_grad}
        self.frozen = sum(p.numel() for name, p in parameters.items() if name not in self._trained)
        self._initial = {name: part.detach().clone() for name, part in self._trained.items()}
        self.shapes: Shapes = {name: tuple(part.shape) for name, part in self._initial.items()}
        self._buffers = [
            (part, name, None if each is None else each.clone())
            for part in module.modules()
            for name, each in part._buffers.items()
        ]
        self._placed = _CPU, torch.float32
        module.to(*self._placed)
        self._reset()

    def initial_parameters(self) -> Vector:
        flat = [part.flatten().float() for part in self._initial.values()]
        return torch.cat(flat).numpy()

    def choose(self, batch: Batch) -> None:
        """Chooses whether devices train together or one at a time, by a step on a batch.

        It is a function of the module and the batch. Raises what the module or the loss raises for
        a single device.
        """
        self.alone, self.draws, self._is_chosen = "", False, True
        parameters = {name: part[None] for name, part in self._initial.items()}
        one = {
            name: part[:1].float() if part.is_floating_point() else part[:1]
            for name, part in batch.items()
        }
        with torch.enable_grad(), own_draws(_CPU), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            two = repeated(parameters, 2), repeated(one, 2)
            why = self._why_alone(*two)
            if why == _DRAWS:
                self.draws = True
                self.seed_devices((0, 1))
                why = self._why_alone(*two)
                self.seed_devices(())
            self.alone, self.draws = why, self.draws and not why
            if self.alone:
                gradients_of(self, parameters, one)
            self.uneven = self._uneven(parameters, one)

    def _why_alone(self, parameters: Parameters, batch: Batch) -> str:
        """Returns why these two devices cannot train together; empty if they can."""
        try:
            gradients_of(self, parameters, batch)
        except Exception as error:
            return _why(error)
        changed = self._changed_buffer()
        return f"its buffer {changed!r} changes" if changed else ""

    def seed_devices(self, seeds: Sequence[int]) -> None:
        """Sets the seeds [G] from which devices draw in the next losses; without them, devices draw
        from torch's own generators."""
        self._seeds = seeds

    @torch.no_grad()
    def _uneven(self, parameters: Parameters, batch: Batch) -> str:
        # It also shows that the accuracy takes the outputs.
        if (measured := self.measure(parameters, batch).get("loss")) is None:
            return ""
        inputs, targets = (part[0] for part in _pair(batch))
        self._prepare(parameters)
        with self.evaluating():
            whole = self._loss_of(_of_device(parameters, 0), inputs, targets)
        mean = measured[0].sum() / measured[1].sum()
        # A loss of another shape is refused by its gradients.
        if whole.ndim or torch.isclose(whole, mean, 1e-4, 1e-4, equal_nan=True):
            return ""
        return (
            f"the loss of a batch is {whole:.4f}, but the mean loss of its examples {mean:.4f}, so "
            "examples weigh otherwise than in the held-out loss: a mean over all words, for "
            "instance, weighs long texts more"
        )

    def losses(self, parameters: Parameters, batch: Batch) -> Tensor:
        own = self._one_at_a_time(parameters, batch)
        if own is not None:
            losses, slopes = own
            # For a subclass or a task that adds to them: terms of value 0 that have the slopes.
            for name, part in parameters.items():
                if part.requires_grad:
                    terms = slopes[name] * (part - part.detach())
                    losses = losses + terms.reshape(len(terms), -1).sum(dim=1)
            return losses
        inputs, targets = _pair(batch)
        self._prepare(parameters)
        is_group = len(inputs) > 1
        own = DeviceDraws(self._seeds, is_group) if self._seeds else nullcontext()
        # Other kernels of attention have no rule for batches of models.
        with sdpa_kernel(SDPBackend.MATH), own:
            if not is_group:
                return self._loss_of(_of_device(parameters, 0), inputs[0], targets[0])[None]
            together = vmap(self._loss_of, randomness="different" if self.draws else "error")
            return together(dict(parameters), inputs, targets)

    def gradients(self, parameters: Parameters, batch: Batch) -> tuple[Tensor, Named] | None:
        """Returns losses [G] and gradients [G, *shape] of devices that train one at a time; None if
        devices train together, or a subclass has losses of its own."""
        if getattr(self.losses, "__func__", None) is not ModuleTask.losses:
            return None
        return self._one_at_a_time(parameters, batch)

    def _one_at_a_time(self, parameters: Parameters, batch: Batch) -> tuple[Tensor, Named] | None:
        if not self._is_chosen:
            self.choose(batch)
        if not self.alone:
            return None
        own = list(self._trained.values())
        losses: list[Tensor] = []
        slopes: list[tuple[Tensor, ...]] = []
        rows = (part.unbind() for part in (*_pair(batch), *parameters.values()))
        for inputs, targets, *values in zip(*rows, strict=True):
            self._prepare(parameters)
            with filled(own, values), torch.enable_grad():
                with _takes(inputs):
                    outputs = self._module(inputs)
                loss = self._loss_value(outputs, targets)
                slopes.append(slopes_of(loss, own))
            losses.append(loss.detach())
        gradients = map(_joined, zip(*slopes, strict=True))
        return _joined(losses), dict(zip(parameters, gradients, strict=True))

    def measure(self, parameters: Parameters, batch: Batch) -> Measures:
        inputs, targets = _pair(batch)
        losses: list[Tensor] = []
        scored: dict[str, list[tuple[Tensor, Tensor]]] = {each.name: [] for each in self._scores}
        for g in range(len(inputs)):
            self._prepare(parameters)
            own = _of_device(parameters, g)
            # Dropout is off, but a module may draw in evaluation mode too.
            with self.evaluating(), own_draws(inputs.device):
                seed_draws(inputs.device, 0)
                with _takes(inputs):
                    outputs = functional_call(self._module, own, (inputs[g],))
                # The user's loss is a mean over a batch, so each example is a batch of its own.
                pairs = zip(outputs.split(1), targets[g].split(1), strict=True)
                of_examples = [self._loss_value(output, target) for output, target in pairs]
            losses.append(torch.stack(of_examples))
            for metric, score in self._scores.items():
                scored[metric.name].append(
                    _weighted(metric, _scored(score, outputs, targets[g]), len(outputs))
                )
        weights = torch.ones(inputs.shape[:2], device=inputs.device)
        found: Measures = {self._names[0]: (torch.stack(losses), weights)}
        for name, scores in scored.items():
            numerators, of_examples = zip(*scores, strict=True)
            found[name] = torch.stack(numerators), torch.stack(of_examples)
        return found

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Within: the module is in evaluation mode."""
        before = [part.training for part in self._switched]
        for part in self._switched:
            part.training = False
        try:
            yield
        finally:
            for part, is_training in zip(self._switched, before, strict=True):
                part.training = is_training

    def _prepare(self, parameters: Parameters) -> None:
        """Puts all that is not trained where the parameters are, with the buffers as given."""
        like = next(iter(parameters.values()))
        # The contract's check of gradients computes in float64.
        if (like.device, like.dtype) != self._placed:
            self._placed = like.device, like.dtype
            self._module.to(*self._placed)
            self._reset()
        elif self._changed_buffer():
            self._reset()

    def _reset(self) -> None:
        self._kept: list[tuple[nn.Module, str, Tensor | None, int]] = []
        for part, name, given in self._buffers:
            fresh = given
            if given is not None:
                device, real = self._placed
                kind = real if given.is_floating_point() else given.dtype
                fresh = given.to(device, kind, copy=True)
            part._buffers[name] = fresh
            self._kept.append((part, name, fresh, _version(fresh)))

    def _changed_buffer(self) -> str:
        """Returns the name of a buffer that a call changed, or an empty string."""
        for part, name, fresh, version in self._kept:
            if part._buffers[name] is not fresh or _version(fresh) != version:
                return name
        return ""

    def _loss_of(self, parameters: Named, inputs: Tensor, targets: Tensor) -> Tensor:
        with _takes(inputs):
            outputs = functional_call(self._module, parameters, (inputs,))
        return self._loss_value(outputs, targets)

    def _loss_value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        try:
            return self._loss(outputs, targets)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            if is_about_the_device(error):
                raise
            message = (
                f"the loss does not take outputs {_described(outputs)} and targets "
                f"{_described(targets)} ({one_line(str(error))}); {_remedy(outputs, targets)}"
            )
            raise InputError(message).with_traceback(error.__traceback__) from None


def _weighted(metric: Metric, score: Any, count: int) -> tuple[Tensor, Tensor]:
    """Returns numerators and weights [B] of B examples of a metric. Raises InputError."""
    parts = score if isinstance(score, tuple) else (score,)
    given = [part for part in parts if isinstance(part, Tensor)]
    if len(given) < len(parts) or len(parts) > 2 or {part.shape for part in given} != {(count,)}:
        found = ", ".join(
            _described(p) if isinstance(p, Tensor) else type(p).__name__ for p in parts
        )
        raise InputError.of(
            "metric",
            metric.name,
            f"gave {found} for {count} examples",
            "give a tensor with a value for each example, [B], or two",
        )
    return given[0], given[1] if len(given) == 2 else torch.ones_like(given[0])


def _why(error: Exception) -> str:
    """Returns why `vmap` does not take a module."""
    if "called random operation" in str(error):
        return _DRAWS
    if isinstance(error, UnknownDraw):
        return str(error)
    return f"torch.func.vmap does not take it ({one_line(str(error).split('. ')[0])})"


@contextmanager
def _takes(inputs: Tensor) -> Iterator[None]:
    """Within: a module that refuses real inputs, as an embedding does, is told the remedy. Raises
    InputError."""
    try:
        yield
    except RuntimeError as error:
        if not inputs.is_floating_point() or "FloatTensor" not in str(error):
            raise
        message = (
            f"the module does not take inputs {_described(inputs)} ({one_line(str(error))}); data "
            "files have inputs as float32, integers too: call inputs.long() in forward, or name "
            "the column as data.tokens"
        )
        raise InputError(message).with_traceback(error.__traceback__) from None


def _version(part: Tensor | None) -> int:
    return 0 if part is None else part._version


def _described(part: Tensor) -> str:
    """Returns the type and the shape of a tensor, such as "float32 [16, 2]"."""
    return f"{str(part.dtype).removeprefix('torch.')} {list(part.shape)}"


def _shown(examples: Examples) -> str:
    inputs, targets = examples
    return f"inputs {_described(inputs)} and targets {_described(targets)}"


def _remedy(outputs: Tensor, targets: Tensor) -> str:
    if outputs.ndim > 2 and outputs.shape[:-1] == targets.shape:
        return "torch's cross_entropy takes classes on axis 1: outputs.movedim(-1, 1)"
    if outputs.ndim == targets.ndim + 1:
        rule = (
            f"for classes, targets must be whole numbers from 0 to {outputs.shape[1] - 1} "
            "(targets.long())"
        )
        # Values of a batch of models cannot be read; the step of a single device tells them.
        with suppress(RuntimeError):
            if targets.numel() and (needed := int(targets.max()) + 1) > outputs.shape[1]:
                return f"{rule}, or give the output layer {needed:,} outputs"
        return rule
    return "give targets of the type and shape that the loss takes"


def _pair(batch: Batch) -> tuple[Tensor, Tensor]:
    """Returns inputs and targets; of texts, the targets are the next tokens."""
    if "tokens" in batch:
        return batch["tokens"][..., :-1], batch["tokens"][..., 1:]
    return batch["inputs"], batch["targets"]


def _joined(parts: Sequence[Tensor]) -> Tensor:
    # Of a single device it is a view.
    return parts[0].unsqueeze(0) if len(parts) == 1 else torch.stack(list(parts))


def _of_device(parameters: Parameters, g: int) -> Named:
    return {name: part[g] for name, part in parameters.items()}


def _plain(part: Tensor | NDArray) -> Tensor:
    """Converts to float32 or int64 on the CPU, where examples are gathered."""
    if isinstance(part, np.ndarray):
        # A copy, because torch takes no array that is reversed, read-only or byte-swapped.
        kind = np.float32 if part.dtype.kind == "f" else np.int64
        return torch.from_numpy(np.array(part, kind, order="C"))
    part = part.detach().cpu()
    return part.float() if part.is_floating_point() else part.long()


def _call_of(device: int) -> str:
    if device < FunctionSource.held_out_devices:
        return f"examples({device})"
    return f"examples({device}) of a held-out device (their ids start at 2^40)"


def _is_array_of_examples(part: Any) -> bool:
    """Whether a value is an array of numbers with an axis of examples."""
    is_numbers = isinstance(part, Tensor) or (
        isinstance(part, np.ndarray) and part.dtype.kind in "biuf"
    )
    return is_numbers and part.ndim > 0


def _named(given: Any) -> str:
    """Returns the types in a user's result, such as "a tuple of list, Tensor"."""
    if isinstance(given, tuple | list) and len(given) <= 4:
        return f"a {type(given).__name__} of {', '.join(type(part).__name__ for part in given)}"
    return f"a {type(given).__name__}"
