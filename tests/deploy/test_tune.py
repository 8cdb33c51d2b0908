"""The program of docs/cluster.md for Ray Tune, as it stands there, on a cluster of two nodes of one CPU."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_docs import DOCS, blocks_of

import fedray

PROGRAM = """
import os, runpy, ray
os.chdir(arguments[0])
add(1)
add(1)
cluster.wait_for_nodes()
best = runpy.run_path(arguments[1], run_name="__main__")["best"]
trials = [each for each in ray._private.state.actors().values() if "ImplicitFunc" in each["ActorClassName"]]
nodes = {each["Address"]["NodeID"] for each in trials}
result = [len(nodes), best.config, best.metrics["accuracy"], best.metrics["trial_id"]]
"""


@pytest.mark.outside
@pytest.mark.slow
@pytest.mark.ray
def test_trials_of_ray_tune_are_trainings_of_one_trace(
    tmp_path: Path, fedray_command, on_nodes: Callable[..., Any], monkeypatch
) -> None:
    """On both nodes; that of the best setting is the training of this setting in this process, to the same bits."""
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of(DOCS / "cluster.md")
    (program,) = [each for each in blocks if each.title == "tune_rates.py"]
    Path(program.title).write_text(program.text, encoding="utf-8")
    (command,) = [
        line for each in blocks if each.language == "sh"
        for line in each.text.splitlines() if re.match(r"fedray run .*--out t$", line)
    ]  # fmt: skip
    code, _, told = fedray_command(*shlex.split(command)[1:])
    assert code == 0, told
    nodes, config, accuracy, trial = on_nodes(PROGRAM, tmp_path, program.title)
    assert nodes == 2
    trials = list(Path("trials").iterdir())
    # The scheduler ends some, which leave what they have.
    done = {each.name: fedray.TrainedRun.open(each) for each in trials if each.suffix == ""}
    assert len(trials) == 9
    assert {run.trace_digest for run in done.values()} == {fedray.Trace.open("t").digest}
    reached = {name: run.last_evaluation()["accuracy"].value for name, run in done.items()}
    assert reached[trial] == max(reached.values()) == pytest.approx(accuracy, abs=1e-6)
    best = done[trial]
    keys = [f"{key}={value}" for key, value in config.items()]
    scenario = fedray.Scenario.from_tables(fedray.Trace.open("t").scenario)
    here = fedray.train(
        "t",
        scenario.with_overrides("training.enabled=true", *keys),
        fedray.Placement(backend="in-process"),
        "here",
    )
    np.testing.assert_array_equal(here.parameters(), best.parameters())
