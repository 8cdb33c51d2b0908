"""Pretraining on public data of the model that a private training starts from."""

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
from fedray.base.storage import local_path
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
    """Safetensors file of the model, for `training.initial.file`."""
    sha256: str
    """Digest of the file."""
    examples: int
    """Number of examples available for training."""
    steps: tuple[Step, ...]
    """Evaluations, from before the first step to the last."""

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
    """Trains a scenario's model on public data, in this process, and writes it to a file.

    Nothing is clipped and no noise is added, so the data must not need protection. The result is a
    function of the scenario's task, seed and initial model, of the pretraining, and of the data.

    Args:
        scenario: scenario with the task, its initial model, and the numbers of held-out clients and
            examples for evaluations. Its data defines what an example is, and is not trained on.
        pretraining: public data and training steps.
        out: new file, which is written as a whole at the end.
        on_progress: function that is called with a line of progress at every evaluation.
        trust_code: whether code that the tables find by its digest may be run.

    Raises:
        InputError: the data is the scenario's own, does not match it, or cannot be read; or `out`
        exists or cannot be written.
        RunFailed: the parameters are not finite.
    """
    file = Path(os.path.abspath(local_path(out)))
    # This is checked first, so that a wrong name does not cost a training.
    if os.path.lexists(file):
        raise InputError.of(
            "out", str(out), "exists already", "give a new file, or remove this one"
        )
    if not file.parent.is_dir():
        raise InputError.of(
            "out", str(out), "is not in an existing directory", f"make {str(file.parent)!r} first"
        )
    # Code of both tables may come from a stranger.
    if not trust_code:
        scenario.demand_trust_of_training()
        if isinstance(pretraining.data, PythonFile):
            pretraining.data.demand_trust()
    if isinstance(pretraining.data, AssignedData) and pretraining.data == scenario.data:
        raise InputError(
            "data is the scenario's own, which would be trained on without noise; use public data, "
            "or another split"
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
    # The file records its training data, because it may be copied elsewhere.
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
