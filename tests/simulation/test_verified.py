"""`fedray verify`: a run equals its repetition, and every change that keeps the digests consistent is named."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedray.runs.pipeline import run_scenario
from fedray.runs.simulation import simulate
from fedray.runs.verified import verify_run
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.trace.reader import Trace
from fedray.trace.schema import (
    DOCUMENT_DIGEST,
    column_digest,
    columns_digest,
    document_digest,
    run_digest,
)
from tests.simulation.test_several_tasks import several

pytestmark = pytest.mark.xdist_group("verified")
HERE = Placement(1, "in-process")


@pytest.fixture(scope="module")
def run(small, tmp_path_factory) -> Trace:
    scenario = small("population.devices=5000", "rounds.count=3", "rounds.report_goal=50")
    return simulate(scenario, HERE, tmp_path_factory.mktemp("verified") / "run")


def forged(run: Trace, folder: Path, change: Any) -> Path:
    """A copy with changed columns and document, all of whose digests are consistent again."""
    shutil.copytree(run.path, folder)
    document = json.loads((folder / "run.json").read_text())
    part = document["parts"][0]
    columns = {name: column.copy() for name, column in run.columns(0).items()}
    change(columns, document)
    table = pq.read_table(folder / part["file"])
    for name in ("examples", "device_id"):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(name), pa.array(columns[name]))
    pq.write_table(table, folder / part["file"])
    part["digest"] = columns_digest(columns)
    part["columns"] = {name: column_digest(name, each) for name, each in columns.items()}
    digests = [each["digest"] for each in document["parts"]]
    document["digest"] = run_digest(
        digests, document["rounds_digest"], document.get("losses_digest")
    )
    document[DOCUMENT_DIGEST] = document_digest(document)
    (folder / "run.json").write_text(json.dumps(document))
    return folder


def test_a_run_is_verified_with_any_number_of_shards(run: Trace, fedray_command) -> None:
    code, printed, _ = fedray_command("--quiet", "verify", str(run.path), "--place", "shards=2")
    assert code == 0
    assert "equal in all 12 digests" in printed
    assert run.digest in printed


def test_a_forged_column_is_named_although_all_digests_are_consistent(
    run: Trace, tmp_path: Path, fedray_command
) -> None:
    def one_example_more(columns: dict[str, np.ndarray], document: dict[str, Any]) -> None:
        columns["examples"][3] += 1
        document["packages"]["numpy"] = "1.0"

    folder = forged(run, tmp_path / "forged", one_example_more)
    Trace.open(folder).verify()
    code, _, error = fedray_command("--quiet", "verify", str(folder))
    assert code == 1
    assert "column examples of participations/devices-0000000000000.parquet differs" in error
    assert "numpy 1.0 (now " in error
    assert error.count("\n") == 1


def test_another_version_of_the_draws_is_named(run: Trace, tmp_path: Path) -> None:
    def older(columns: dict[str, np.ndarray], document: dict[str, Any]) -> None:
        columns["device_id"][-1] += 1
        document["samplers"]["costs_version"] = 0

    found = verify_run(forged(run, tmp_path / "older", older), HERE)
    assert found.difference.startswith("column device_id of ")
    assert "costs of samplers 0 (now 1)" in found.reason


def test_a_scenario_that_was_edited_is_refused(run: Trace, tmp_path: Path, fedray_command) -> None:
    def other_seed(columns: dict[str, np.ndarray], document: dict[str, Any]) -> None:
        document["scenario"]["seed"] = 8

    code, _, error = fedray_command("verify", str(forged(run, tmp_path / "edited", other_seed)))
    assert code == 2
    assert "scenario does not have the recorded digest" in error


def test_a_log_and_a_directory_that_is_no_run_are_refused(tmp_path: Path, fedray_command) -> None:
    (tmp_path / "log.csv").write_text("device,round\na,0\n")
    columns = ["--column", "device=device", "--column", "round=round", "--rounds", "logged"]
    trace = str(tmp_path / "trace")
    assert fedray_command("import", str(tmp_path / "log.csv"), *columns, "--out", trace)[0] == 0
    for folder, reason in ((trace, "was imported from a log"), (str(tmp_path), "run.json")):
        code, _, error = fedray_command("--quiet", "verify", folder)
        assert code == 2
        assert reason in error
        assert error.count("\n") == 1


@pytest.mark.slow
def test_several_tasks_are_verified_together(small, tmp_path: Path) -> None:
    scenario = small("population.devices=5000", "rounds.count=3", "rounds.report_goal=50")
    tasks = simulate(several(scenario, a={}, b={}), HERE, tmp_path / "tasks")
    found = verify_run(tasks.path, HERE)
    assert found.is_equal
    assert found.compared == 2 * 12
    with pytest.raises(ValueError, match="one of several tasks"):
        verify_run(tasks.path / "a", HERE)


@pytest.mark.slow
def test_a_model_is_trained_again_and_a_changed_one_is_named(
    small, tmp_path: Path, fedray_command
) -> None:
    scenario = small(
        "rounds.count=3",
        "rounds.report_goal=50",
        "training.enabled=true",
        "training.cohort_sample=20",
    )
    trace = run_scenario(scenario, HERE, tmp_path / "run")
    assert verify_run(trace.path / "training", HERE).is_equal
    apart = tmp_path / "model"
    shutil.copytree(trace.path / "training", apart)
    code, _, error = fedray_command("--quiet", "verify", str(apart))
    assert code == 2
    assert "move it there" in error
    document = json.loads((apart / "training.json").read_text())
    # Another learning rate, and digests that fit it.
    document["scenario"]["training"]["server"]["learning_rate"] = 0.5
    document["scenario_digest"] = Scenario.of_document(document, "model", apart).digest
    document[DOCUMENT_DIGEST] = document_digest(document)
    (apart / "training.json").write_text(json.dumps(document))
    found = verify_run(apart, HERE, trace=trace.path)
    assert found.difference.startswith("metrics.parquet differs: ")
