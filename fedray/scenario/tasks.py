"""The tables `training.task`: a model, its loss and its metrics, one per kind."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, Tag, field_validator, model_validator

from fedray.base.table import NonNegative, Positive, Table, told_apart_by
from fedray.scenario.content import PythonFile

__all__ = [
    "CustomTask",
    "ImageCnnTask",
    "KeyboardLstmTask",
    "LogisticTask",
    "MlpTask",
    "NextWordTask",
    "QuadraticTask",
]

Width = Annotated[int, Field(ge=1, le=1 << 16)]
"""Number of units of a layer."""


class TaskTable(Table):
    """The table of a task; the key `kind` selects it."""

    implementation: ClassVar[str]
    """`module:name` of the task: called with this table, a seed and the fields of the data, it
    returns a `Task`."""


class NextWordTask(TaskTable):
    """A small LSTM that predicts the next word of the synthetic language; see
    clients/tasks/next_word.py."""

    kind: Literal["next_word"] = "next_word"
    """A small LSTM for the synthetic language."""
    implementation: ClassVar[str] = "fedray.clients.tasks.next_word:NextWord"


class MlpTask(TaskTable):
    """Layers of rectified linear units with a softmax over the classes; see
    clients/tasks/mlp.py."""

    kind: Literal["mlp"] = "mlp"
    """Fully connected layers."""
    implementation: ClassVar[str] = "fedray.clients.tasks.mlp:Mlp"
    hidden: Annotated[tuple[Width, ...], Field(strict=False, min_length=1, max_length=16)] = (
        200,
        200,
    )
    """Number of units of each hidden layer. The default is the "2NN" of McMahan et al. 2017."""


class LogisticTask(TaskTable):
    """Multinomial logistic regression; see clients/tasks/logistic.py."""

    kind: Literal["logistic"] = "logistic"
    """Multinomial logistic regression."""
    implementation: ClassVar[str] = "fedray.clients.tasks.logistic:Logistic"
    l2: NonNegative = 0.0
    """Factor in the term l2 / 2 * |weights|^2 of the training loss, but not of metrics or for
    biases."""


class QuadraticTask(TaskTable):
    """The mean of the data, whose optimum has a closed form; see clients/tasks/quadratic.py."""

    kind: Literal["quadratic"] = "quadratic"
    """The mean of the data."""
    implementation: ClassVar[str] = "fedray.clients.tasks.quadratic:Quadratic"
    curvatures: Annotated[tuple[Positive, ...], Field(strict=False, min_length=1)] = (1.0,)
    """Weights of the squared coordinates, repeated as needed: with (1, 100) every second coordinate
    has the weight 100."""


class ImageCnnTask(TaskTable):
    """Two convolutions and a dense layer for images; see clients/tasks/image_cnn.py."""

    kind: Literal["image_cnn"] = "image_cnn"
    """Two convolutions and a dense layer."""
    implementation: ClassVar[str] = "fedray.clients.tasks.image_cnn:ImageCnn"
    architecture: Literal["cifar10", "emnist"] = "cifar10"
    """Source of the model: pfl-research for CIFAR-10, or TensorFlow Federated for EMNIST. Both have
    the same layers, here without dropout; "cifar10" draws the initial biases, and "emnist" sets
    them to zero."""


class KeyboardLstmTask(TaskTable):
    """A recurrent model that predicts the next word; see clients/tasks/keyboard_lstm.py."""

    kind: Literal["keyboard_lstm"] = "keyboard_lstm"
    """A recurrent model that predicts the next word."""
    implementation: ClassVar[str] = "fedray.clients.tasks.keyboard_lstm:KeyboardLstm"
    cell: Literal["cifg", "lstm"] = "cifg"
    """"cifg": the input gate is one minus the forget gate, and the state is projected to the
    embedding before it recurs (Hard et al. 2018). "lstm": four gates, and a dense layer after the
    last state (McMahan et al. 2018)."""
    hidden: Width = 670
    """Number of units of the cell."""
    embedding: Width = 96
    """Dimensions of a word's embedding."""
    tied: bool = False
    """Whether the output layer is the transposed input embedding. Otherwise it has weights of its
    own, and biases."""
    # Left out at their defaults, so that scenarios without the keys keep their digest.
    layers: Annotated[int, Field(ge=1, le=16, exclude_if=lambda layers: layers == 1)] = 1
    """Recurrent layers, each of which reads the states of the one before."""
    projected: Annotated[bool, Field(exclude_if=lambda projected: projected)] = True
    """Whether a dense layer brings the last states to the size of the embedding. Otherwise the
    output layer reads them as they are; only for cell "lstm" without `tied`."""
    unit_embeddings: Annotated[bool, Field(exclude_if=lambda is_unit: not is_unit)] = False
    """Whether each embedding is divided by its norm wherever it is used, so that a step changes its
    direction only (McMahan et al. 2018)."""
    top: Annotated[
        tuple[Annotated[int, Field(ge=2, le=1000)], ...],
        Field(strict=False, exclude_if=lambda top: not top),
    ] = ()
    """Numbers of predictions: 3 adds the metric top_3_accuracy, the share of words that are among
    the three best predictions."""
    head: Annotated[
        Annotated[int, Field(ge=1, lt=2**31)] | None,
        Field(exclude_if=lambda head: head is None),
    ] = None
    """Number of most frequent words: adds head_accuracy (and head_top_3_accuracy), the accuracy on
    these words, and head_predictions, the share of the predictions that are such words. Default: no
    such metrics."""

    @field_validator("top")
    @classmethod
    def _differ(cls, top: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(top)) < len(top):
            raise ValueError(f"{list(top)} must be different numbers; keep one of each")
        return top

    @model_validator(mode="after")
    def _output_fits_the_states(self) -> Self:
        if not self.projected and (self.cell == "cifg" or self.tied):
            raise ValueError(
                "projected=false: a cell 'cifg' recurs by its projection, and a tied output layer "
                "has the size of the embedding; take cell='lstm' and tied=false"
            )
        return self


class CustomTask(PythonFile, TaskTable):
    """The user's own task, from a Python file that imports all it needs.

    The file defines `task`, a function or a class. `task(seed)` returns an object with the members
    of `fedray.clients.tasks.task.Task`, such as a `fedray.clients.tasks.module.ModuleTask`. Every
    trainer calls it once, with torch's own generator seeded too. Reading a trace does not run it.
    """

    kind: Literal["custom"] = "custom"
    """The user's own task."""
    implementation: ClassVar[str] = "fedray.clients.tasks.custom:CustomTask"
    table: ClassVar[str] = "training.task"


AnyTask = Annotated[
    Annotated[NextWordTask, Tag("next_word")]
    | Annotated[MlpTask, Tag("mlp")]
    | Annotated[LogisticTask, Tag("logistic")]
    | Annotated[QuadraticTask, Tag("quadratic")]
    | Annotated[ImageCnnTask, Tag("image_cnn")]
    | Annotated[KeyboardLstmTask, Tag("keyboard_lstm")]
    | Annotated[CustomTask, Tag("custom")],
    told_apart_by("kind", "next_word"),
]
"""Tables of all tasks, distinguished by `kind`."""
