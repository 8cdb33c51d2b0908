"""The models of a trained run on disk: the last one, and the best one if it was kept."""

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, get_args

import numpy as np

from fedray.base.arrays import Float32Array
from fedray.base.errors import InputError, TraceCorrupt, shown
from fedray.base.regular_file import open_regular_file
from fedray.trace.files import first_line

TRAINING_FILE = "training.json"
MODEL_FILE = "model.safetensors"
BEST_FILE = "best.safetensors"
Which = Literal["last", "best"]
"""One of the models of a trained run."""


class BestFigures(TypedDict):
    """The best evaluated round of a training."""

    metric: str
    """Name of the metric by which it is the best."""
    rounds: int
    """Number of rounds that its model was trained on."""
    sha256: str
    """SHA-256 of the file of its model, in hexadecimal: best.safetensors, or model.safetensors if
    the best model is the last one."""


class BestModel(NamedTuple):
    """Model after the best evaluated round of a training."""

    metric: str
    """Name of the metric by which it is the best."""
    rounds: int
    """Number of rounds that it was trained on."""
    parameters: Float32Array
    """Its parameters, [D]."""


def model_content(parameters: Float32Array, shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    """Returns a model as a safetensors file, with its parameters by name.

    Args:
        parameters: the model, [D].
        shapes: shape of every parameter by name, in the order of the vector.
    """
    sizes = [math.prod(shape) for shape in shapes.values()]
    # `np.split` needs no edge at the end of the vector.
    parts = np.split(parameters, np.cumsum(sizes)[:-1])
    named = {}
    for (name, shape), part in zip(shapes.items(), parts, strict=True):
        named[name] = np.ascontiguousarray(part).reshape(shape)
    import safetensors.numpy

    return safetensors.numpy.save(named)


def figures_of(best: BestModel, content: bytes) -> BestFigures:
    """Returns the best round as training.json records it, given its model's file."""
    sha256 = hashlib.sha256(content).hexdigest()
    return BestFigures(metric=best.metric, rounds=best.rounds, sha256=sha256)


def read_model(
    directory: Path, document: Mapping[str, Any], which: Which, verify: bool
) -> dict[str, Float32Array]:
    """Returns the parameters of a model by name.

    Args:
        directory: directory of the trained run.
        document: its training.json.
        which: the last or the best model.
        verify: whether the file must have its recorded digest.

    Raises:
        InputError: no best model was kept, or `which` is another word.
        TraceCorrupt: the file is missing, damaged or changed.
    """
    import safetensors.numpy  # only needed to read a model, and may not be installed

    if which not in get_args(Which):
        raise InputError.of("which", which, 'is not "last" or "best"', "give one of them")
    name, recorded = MODEL_FILE, document["model_sha256"]
    if which == "best":
        best = document.get("best")
        if best is None:
            why = "its training did not stop early, and its scenario has no table training.stop"
            if document.get("stopped") or document["scenario"]["training"].get("stop"):
                why = "its metric was not a number in any evaluation"
            raise InputError(f"{shown(str(directory))} has no best model: {why}; take the last one")
        # The best model may be the last one.
        if best["sha256"] != recorded:
            name, recorded = BEST_FILE, best["sha256"]
    file = directory / name
    try:
        with open_regular_file(file) as stream:
            content = stream.read()
    except OSError as error:
        raise _unreadable(file, error) from None
    if verify and hashlib.sha256(content).hexdigest() != recorded:
        raise changed(file)
    try:
        parts = safetensors.numpy.load(content)
        return {name: parts[name] for name in document["parameters"]}
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise _unreadable(file, error) from None


def changed(file: Path) -> TraceCorrupt:
    """Returns the error of a file of a trained run without its recorded digest."""
    return TraceCorrupt(
        f"{file} does not have the digest that {TRAINING_FILE} records, so it was changed; train "
        "again, or leave digests unchecked"
    )


def _unreadable(file: Path, error: BaseException) -> TraceCorrupt:
    return TraceCorrupt(f"{file} cannot be read ({first_line(error)}); train again")
