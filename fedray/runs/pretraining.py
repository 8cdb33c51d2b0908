"""Pretraining: the model that a private training starts from, learned from public data."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from fedray.base.atomic import write_whole
from fedray.base.document import Document, Key
from fedray.base.errors import InputError, RunFailed
from fedray.base.part_done import PartDone
from fedray.clients.pretraining import Pretrainer, Step
from fedray.scenario import Scenario
from fedray.scenario.content import PythonFile
from fedray.scenario.data import AssignedData
from fedray.scenario.pretraining import Pretraining
from fedray.trace.trained import model_content


@dataclass(frozen=True, slots=True)
class Pretrained(Document):
    """A model that was trained on public data."""

    path: Annotated[Path, Key("file")]
    """Its safetensors file, for `training.initial.file`."""
    sha256: str
    """Digest of the file."""
    examples: int
    """Examples that were there to be trained on."""
    steps: tuple[Step, ...]
    """The evaluations: before the first step, and up to the last."""

    def __repr__(self) -> str:
        return f"<Pretrained {self.path.name}: {self.steps[-1].number:,} steps>"


def pretrain(
    scenario: Scenario,
    pretraining: Pretraining,
    out: str | Path,
    on_progress: Callable[[str], None] | None = None,
    *,
    trust_code: bool = False,
) -> Pretrained:
    """Trains a scenario's model on public data, in this process, and writes it into a file.

    Nothing is clipped and no noise is added, so the data must be such that nothing of it needs
    protection. The result is a function of the scenario's task, seed and initial model, of the
    pretraining, and of the data.

    Args:
        scenario: has the task, its initial model, and how many held-out clients and examples it
            is evaluated on. Its data says what an example is, and is not trained on.
        pretraining: the public data and the steps.
        out: the file, which is written at the end, whole; it must not be there before.
        on_progress: hears how far the training is, at every evaluation.
        trust_code: whether code that the tables find by its digest may be run.

    Raises:
        InputError: the data is the scenario's own, does not fit it, or cannot be read; or `out`
            exists or cannot be written.
        RunFailed: the parameters are not finite.
    """
    file = Path(os.path.abspath(out))
    # This comes first, so that no training is lost because of a name.
    if os.path.lexists(file):
        raise InputError.of(
            "out", str(out), "exists already", "name a new file, or remove it first"
        )
    if not file.parent.is_dir():
        raise InputError.of(
            "out", str(out), "lies in no directory", f"make {str(file.parent)!r} first"
        )
    # Code of both tables may come from a stranger.
    if not trust_code:
        scenario.demand_trust_of_training()
        if isinstance(pretraining.data, PythonFile):
            pretraining.data.demand_trust()
    if isinstance(pretraining.data, AssignedData) and pretraining.data == scenario.data:
        raise InputError(
            "data is that of the scenario, whose devices it would be trained on without noise; "
            "name public data, or another split"
        )
    pretrainer, tell, steps = Pretrainer(scenario, pretraining), on_progress or _nobody, []
    for step in pretrainer.steps():
        steps.append(step)
        line = f"{step.number:,} of {pretraining.steps:,} steps, {_measures(step)}"
        tell(PartDone(line, step.number, pretraining.steps))
    parameters = pretrainer.parameters()
    if not np.isfinite(parameters).all():
        raise RunFailed(
            f"the parameters are not finite after {pretraining.steps} steps with learning_rate="
            f"{pretraining.learning_rate:g}; lower it"
        )
    # The file records its training data, since it may travel by itself.
    provenance = {"fedray.runs.pretraining": json.dumps(pretraining.model_dump(mode="json"))}
    content = model_content(parameters, pretrainer.description.shapes, provenance)
    write_whole(file, content, f"out={str(out)!r}", InputError)
    digest = hashlib.sha256(content).hexdigest()
    return Pretrained(file, digest, pretrainer.examples, tuple(steps))


def _nobody(text: str) -> None:
    """Hears nothing."""


def _measures(step: Step) -> str:
    measured = step.evaluation.metrics.items()
    return ", ".join(f"held-out {name} {each.value:.4f}" for name, each in measured)
