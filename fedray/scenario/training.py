"""The table `training`: the model, the local training of devices, the server's step."""

import math
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from fedray.base.table import NonNegative, Positive, PositiveShare, Share, Table, told_apart_by
from fedray.scenario.content import ContentFile, PythonFile
from fedray.scenario.data_file import Digest, NamesDataFiles
from fedray.scenario.planted import Planted
from fedray.scenario.tasks import AnyTask, NextWordTask
from fedray.scenario.weighting import AnyWeighting, MeanWeighting

__all__ = [
    "CustomOptimizer",
    "CustomServer",
    "FedAvg",
    "FedProx",
    "FedSGD",
    "InitialModel",
    "Planted",
    "Schedule",
    "ServerAdagrad",
    "ServerAdam",
    "ServerSGD",
    "ServerYogi",
    "Stop",
    "Training",
]

BelowOne = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(gt=0, lt=2**31)]


class Schedule(Table):
    """Factor on a learning rate over the rounds.

    It rises linearly from 1 / warmup_rounds to 1, follows `shape`, and falls linearly to 0 over the
    last cooldown_rounds.
    """

    warmup_rounds: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Number of rounds at the start in which the factor rises to 1."""
    shape: Literal["constant", "cosine"] = "constant"
    """Factor after the warm-up: 1, or half a cosine wave from 1 down to `final`."""
    final: Share = 0.0
    """Factor at the end of the cosine."""
    cooldown_rounds: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Number of rounds at the end in which the factor falls to 0."""

    def factor(self, round_index: int, rounds: int) -> float:
        """Returns the factor on the learning rate in a round, from 0 to rounds - 1."""
        # Round 0 has a positive rate, and so has the last round below: a round whose step is zero
        # would spend privacy for nothing.
        warmup = self.warmup_rounds
        rise = min(1.0, (round_index + 1) / warmup) if warmup else 1.0
        fall = 1.0
        if self.cooldown_rounds:
            fall = min(1.0, (rounds - round_index) / (self.cooldown_rounds + 1))
        shape = 1.0
        if self.shape == "cosine":
            # The wave runs from the end of the warm-up to the last round.
            span = max(1, rounds - 1 - warmup)
            progress = min(1.0, max(0.0, (round_index - warmup) / span))
            wave = 0.5 * (1.0 + math.cos(math.pi * progress))
            shape = self.final + (1.0 - self.final) * wave
        return rise * shape * fall


class WorkTable(Table):
    """The table of a kind of local training; the key `kind` selects it."""

    implementation: ClassVar[str]
    """`module:name` of the work: called with this table, a task, a source of examples, a seed and
    the number of rounds, it returns a `DeviceWork`."""


class LocalSteps(WorkTable):
    """Base class of local training tables."""

    learning_rate: Positive = 1.0
    """Step size of the local steps."""
    batch_size: Count = 8
    """Number of examples per local step. A device that holds fewer starts over."""
    max_examples: Count | None = None
    """Largest number of examples of a device used in training: its first ones. Default: all."""
    max_tokens: Count | None = None
    """Largest number of tokens of a device used in training: its first texts up to this total, at
    least one. Padding does not count. Default: no cap. Only for examples that are texts."""


class CustomOptimizer(PythonFile):
    """The user's own optimizer of local steps, from a Python file that imports all it needs.

    The file defines `optimizer`, a function or a class. `optimizer(parameters, learning_rate)` gets
    a list of tensors, the parameters of one device, and returns a `torch.optim.Optimizer` of them.
    It is called for every device and round. Reading a trace does not run it.
    """

    kind: Literal["custom"] = "custom"
    """The user's own optimizer."""
    table: ClassVar[str] = "training.client.optimizer"


AnyOptimizer = Annotated[
    Annotated[Literal["sgd", "adam"], Tag("name")] | Annotated[CustomOptimizer, Tag("custom")],
    Discriminator(lambda given: "name" if isinstance(given, str) else "custom"),
]
"""A built-in optimizer of local steps by its name, or the table of a user's own."""


class FedAvg(LocalSteps):
    """Local stochastic gradient descent (federated averaging, McMahan et al. 2017, Algorithm 1).

    The order of a device's examples is drawn again for every participation.
    """

    kind: Literal["fedavg"] = "fedavg"
    """Federated averaging."""
    implementation: ClassVar[str] = "fedray.clients.work.local:LocalTraining"
    local_steps: Count = 2
    """Number of local steps per round; not used if `epochs` is given."""
    epochs: Positive | None = None
    """Number of passes over the device's examples per round, rounded up to whole steps. Default:
    `local_steps` is used."""
    optimizer: AnyOptimizer = "sgd"
    """Optimizer of the local steps, "sgd" or "adam", or a table of the user's own with `file`. Its
    state is reset in every round."""
    momentum: BelowOne = 0.0
    """Share of the previous local step that is kept; only for sgd."""
    # The keys below are left out at their defaults, so that scenarios without them keep their
    # digest.
    nesterov: Annotated[bool, Field(exclude_if=lambda nesterov: not nesterov)] = False
    """Whether a step is momentum * velocity + gradient (Sutskever et al. 2013); only for sgd."""
    weight_decay: Annotated[float, Field(ge=0, exclude_if=lambda decay: decay == 0)] = 0.0
    """Factor in the term weight_decay * w: of the gradient for sgd, and of the step for adam, which
    is then AdamW."""
    gradient_norm: Positive | None = None
    """Largest norm of a gradient of a local step, over all parameters; longer ones are scaled down.
    Default: no limit. The whole update is clipped to privacy.clip_norm besides."""
    schedule: Annotated[Schedule, Field(exclude_if=lambda schedule: schedule == Schedule())] = (
        Schedule()
    )
    """Factor on the learning rate over the rounds."""
    step_decay: Annotated[PositiveShare, Field(exclude_if=lambda decay: decay == 1)] = 1.0
    """Factor on the learning rate after every local step of a round."""

    @model_validator(mode="after")
    def _keys_are_of_the_optimizer(self) -> Self:
        # A key that is never read would let a user believe in an effect that is not there.
        own = {"sgd": (), "adam": ("momentum", "nesterov")}
        name = self.optimizer if isinstance(self.optimizer, str) else "a file"
        for key in own.get(name, ("momentum", "nesterov", "weight_decay")):
            if value := getattr(self, key):
                raise ValueError(f"{key}={value:g}: {name} has its own; leave it out, or take sgd")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov=true: needs momentum; set it, or leave nesterov out")
        return self


class FedProx(FedAvg):
    """Federated averaging whose local loss has the additional term proximal / 2 * |w - w_start|^2
    (Li et al. 2020, equation 2)."""

    kind: Literal["fedprox"] = "fedprox"  # pyright: ignore[reportIncompatibleVariableOverride]
    """Federated averaging with a proximal term."""
    proximal: NonNegative = 0.01
    """Weight of the proximal term (mu in the paper)."""


class FedSGD(WorkTable):
    """One gradient of a device's mean loss (federated SGD, McMahan et al. 2017, section 2): the
    update is -learning_rate times that gradient."""

    kind: Literal["fedsgd"] = "fedsgd"
    """Federated SGD."""
    implementation: ClassVar[str] = "fedray.clients.work.local:OneGradient"
    learning_rate: Positive = 1.0
    """Factor on the gradient."""
    max_examples: Count | None = None
    """Largest number of examples of a device used in training: its first ones. Default: all."""
    max_tokens: Count | None = None
    """Largest number of tokens of a device used in training: its first texts up to this total, at
    least one. Padding does not count. Default: no cap. Only for examples that are texts."""


AnyWork = Annotated[
    Annotated[FedAvg, Tag("fedavg")]
    | Annotated[FedProx, Tag("fedprox")]
    | Annotated[FedSGD, Tag("fedsgd")],
    told_apart_by("kind", "fedavg"),
]
"""Tables of local training, distinguished by `kind`."""


class ServerStep(Table):
    """Base class of server optimizer tables."""

    learning_rate: Positive = 1.0
    """Step size of the server."""
    schedule: Schedule = Schedule()
    """Factor on the step size over the rounds."""
    weight_decay: Annotated[float, Field(ge=0, exclude_if=lambda decay: decay == 0)] = 0.0
    """Share of the model that every step of size 1 takes away: before the step,
    w -= learning_rate * weight_decay * w."""

    @model_validator(mode="after")
    def _decays_at_most_to_zero(self) -> Self:
        if self.learning_rate * self.weight_decay > 1:
            raise ValueError(
                f"weight_decay={self.weight_decay:g}: times learning_rate={self.learning_rate:g} "
                "exceeds 1, so the model would change its sign; lower it"
            )
        return self


class ServerSGD(ServerStep):
    """velocity = momentum * velocity + update; w += learning_rate * velocity, where `update` is the
    mean of the clipped, noised updates (FedAvgM, Hsu, Qi, Brown 2019)."""

    kind: Literal["sgd"] = "sgd"
    """Momentum on the mean update."""
    momentum: BelowOne = 0.9
    """Share of the previous step that is kept."""
    nesterov: bool = False
    """Whether the step is momentum * velocity + update (Sutskever et al. 2013)."""


class _Adaptive(ServerStep):
    """w += learning_rate * m / (sqrt(v) + epsilon): Reddi et al. 2021, Algorithm 2."""

    # Steps are divided by sqrt(v), so a rate for plain SGD would be far too large.
    learning_rate: Positive = 0.01
    """Step size of the server."""
    beta1: BelowOne = 0.9
    """Share of the previous m that is kept: m = beta1 * m + (1 - beta1) * update."""
    epsilon: Positive = 1e-3
    """Constant that is added to sqrt(v) (tau in the paper)."""


class ServerAdagrad(_Adaptive):
    """FedAdagrad: v = v + update^2."""

    kind: Literal["adagrad"] = "adagrad"
    """FedAdagrad."""


class ServerAdam(_Adaptive):
    """FedAdam: v = beta2 * v + (1 - beta2) * update^2."""

    kind: Literal["adam"] = "adam"
    """FedAdam."""
    # Reddi et al. 2021 fix beta1 at 0.9 and beta2 at 0.99 in their experiments.
    beta2: BelowOne = 0.99
    """Share of the previous v that is kept."""


class ServerYogi(_Adaptive):
    """FedYogi: v = v - (1 - beta2) * update^2 * sign(v - update^2)."""

    kind: Literal["yogi"] = "yogi"
    """FedYogi."""
    beta2: BelowOne = 0.99
    """Decay rate of v."""


class CustomServer(PythonFile, ServerStep):
    """The user's own optimizer, from a Python file that imports all it needs.

    The file defines `optimizer`, a function or a class. `optimizer(parameters, learning_rate)` gets
    a list of one tensor, all parameters of the model [D], and returns a `torch.optim.Optimizer` of
    it. Its gradient is the mean update, with the opposite sign. With a `schedule`, the option `lr`
    is set before every step. Reading a trace does not run it.
    """

    kind: Literal["custom"] = "custom"
    """The user's own optimizer."""
    table: ClassVar[str] = "training.server"


AnyServerStep = Annotated[
    Annotated[ServerSGD, Tag("sgd")]
    | Annotated[ServerAdagrad, Tag("adagrad")]
    | Annotated[ServerAdam, Tag("adam")]
    | Annotated[ServerYogi, Tag("yogi")]
    | Annotated[CustomServer, Tag("custom")],
    told_apart_by("kind", "sgd"),
]
"""Tables of server optimizers, distinguished by `kind`."""


class InitialModel(NamesDataFiles):
    """Parameters to start training from, such as a model trained on public data."""

    table: ClassVar[str] = "training.initial"
    digest_keys: ClassVar[dict[str, str]] = {"file": "sha256"}
    file: Annotated[str, Field(min_length=1)]
    """A safetensors file, relative to the scenario's directory: the model.safetensors of a trained
    run, or another file that has the task's parameters by name."""
    sha256: Digest = ""
    """SHA-256 of the file; filled in when it is read, and checked if given."""


class Stop(Table):
    """Ends a training that no longer improves on held-out data, and keeps the model of its best
    evaluation."""

    metric: Annotated[str, Field(min_length=1)]
    """Metric of the task that must improve, such as loss or accuracy."""
    patience: Count
    """Number of evaluations in a row without a better value than before, after which it ends."""
    held_out: Literal["public", "clients"] = "clients"
    """Owners of the held-out data: a choice by public data costs no privacy, and one by data of
    clients reveals something of these clients, which no figure covers."""


class Training(Table):
    """Training of a model. Population, rounds, trace and audit do not depend on it."""

    enabled: bool = True
    """Whether a model is trained."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Seed of the model, its data and its noise, on which the population never depends. Default:
    the scenario's seed."""
    task: AnyTask = NextWordTask()
    """Model, loss and metrics: a table with `kind` and that kind's keys, or only a kind's name."""
    initial: InitialModel | None = None
    """Parameters to start from. Default: the task draws them."""
    cohort_sample: Annotated[int, Field(gt=0, le=100_000)] = 64
    """Number of accepted devices of a round that really train; the noise is scaled by their share
    of the accepted devices. In a Poisson sample all devices train, and the key is not used."""
    client: AnyWork = FedAvg()
    """Table: local training of a device."""
    devices_at_once: Annotated[int, Field(gt=0, le=4096)] = 16
    """Largest number of devices that are trained as one batch of independent models; fewer if they
    have more than 2^19 parameters together, since batches of large models are no faster on a CPU.
    It may change the last bits of a sum. On GPUs batches are not made smaller for large models."""
    planted: tuple[Planted, ...] = Field(
        default=(),
        strict=False,
        description="Tables: phrases that are planted among the devices' texts.",
        # Left out at its default, so that scenarios without the key keep their digest.
        exclude_if=lambda planted: not planted,
    )
    weighting: AnyWeighting = Field(
        default=MeanWeighting(),
        description="Weights of updates, and the denominator of a round's sum: a table with "
        "`kind`; all but mean are for Poisson samples, or mechanism none.",
        # Left out at its default, so that scenarios without the key keep their digest.
        exclude_if=lambda weighting: weighting == MeanWeighting(),
    )
    server: AnyServerStep = ServerSGD()
    """Table: optimizer on the server."""
    evaluate_every: Count | None = None
    """Number of rounds between two evaluations on held-out data. Default: 10, or more if there
    would be more than 50 evaluations."""
    evaluation_devices: Count = 128
    """Number of held-out devices whose data the model is evaluated on; fewer if there are fewer."""
    evaluation_examples: Count | None = None
    """Largest number of examples of each of these devices, its first ones. Default: all, or the
    same share of each device's if they are more than 10,000 together."""
    stop: Stop | None = Field(
        default=None,
        description="Table: early end of a training. Default: all rounds are trained.",
        # Left out at its default, so that scenarios without the key keep their digest.
        exclude_if=lambda stop: stop is None,
    )
    report_by: tuple[Literal["class", "zone"], ...] = Field(
        default=(),
        strict=False,
        description="Kinds of groups by which the last model is evaluated at the end: classes of "
        "examples, or time zones of devices.",
        # Left out at its default, so that scenarios without the key keep their digest.
        exclude_if=lambda kinds: not kinds,
    )
    stands_for: Annotated[int, Field(gt=0, lt=2**40)] | None = None
    """Number of devices of a deployment for which a smaller population stands. A training then says
    how much more noise its mean updates have; no result depends on it. Default: not known."""
    checkpoint_every: Count = 100
    """Number of rounds between two copies of the aggregator's state, from which training continues
    if the aggregator is lost."""

    def rounds_between(self, rounds: int) -> int:
        """Returns the number of rounds between two evaluations in a training of so many rounds."""
        return self.evaluate_every or max(10, math.ceil(rounds / 50))

    @property
    def files(self) -> tuple[ContentFile, ...]:
        """The tables of the task and of the optimizers that name a file."""
        tables = (self.task, getattr(self.client, "optimizer", None), self.server)
        return tuple(table for table in tables if isinstance(table, ContentFile))

    @model_validator(mode="before")
    @classmethod
    def _read_as_meant(cls, given: Any) -> Any:
        # Code may also construct the table from the short form, so it is read here too.
        return with_task_as_table(given)


def with_task_as_table(given: Any) -> Any:
    """Returns the table `training` in its long form: `task = "custom"` with the key `file` is short
    for a table `task`."""
    # Values of other types than the short form's are left to validation, which explains them.
    if not isinstance(given, dict) or not isinstance(given.get("task", ""), str | dict):
        return given
    own = {key: given[key] for key in ("file", "sha256") if key in given}
    # A file without a task belongs to the default kind, which refuses it under its own path.
    task = given.get("task", "next_word" if own else None)
    if task is None:
        return given
    table = task if isinstance(task, dict) else {"kind": task}
    # The keys move into the table, because `training` itself does not have them.
    kept = {key: value for key, value in given.items() if key not in own}
    return {**kept, "task": {**table, **own}}
