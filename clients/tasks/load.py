"""A trained model in a user's own torch module."""

from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from fedray.base.errors import InputError, shown
from fedray.trace.model_files import Which
from fedray.trace.trained import TRAINING, TrainedRun

M = TypeVar("M", bound=nn.Module)


def load_model(directory: str | Path, module: M, which: Which = "last") -> M:
    """Fills a module with the parameters of a trained model, and returns it.

    Parameters that did not train, and buffers, stay as the module has them.

    Args:
        directory: a trained run, or the trace of a run that trained.
        module: the module that the task trained, made in the same way.
        which: model after the last round, or "best" for that after the best evaluation.

    Raises:
        InputError: no best model was kept, or the module has other trained parameters, by name or
            by shape.
        TraceError: the directory is not a trained run.
    """
    within = Path(directory) / TRAINING
    run = TrainedRun.open(within if within.is_dir() else directory)
    found = run.named_parameters(which)
    own = dict(module.named_parameters())
    trained = {name: tuple(part.shape) for name, part in own.items() if part.requires_grad}
    shapes = {name: part.shape for name, part in found.items()}
    if wrong := sorted(dict(trained.items() ^ shapes.items())):
        name = wrong[0]
        raise InputError(
            f"parameter {name!r} of the module has the shape {_shape(trained, name)}, and that of "
            f"the model in {shown(str(run.path))} has {_shape(shapes, name)}; make the module as "
            "the task did, with the same parameters frozen"
        )
    with torch.no_grad():
        for name, part in found.items():
            own[name].copy_(torch.from_numpy(part))
    return module


def _shape(shapes: dict[str, tuple[int, ...]], name: str) -> str:
    return str(list(shapes[name])) if name in shapes else "none"
