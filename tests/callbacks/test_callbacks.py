"""The files of docs/callbacks, in the environments of the software that they are for.

`FEDRAY_PEERS` names the folder of the environments; `tests/benchmarks/peers` has their lists.
"""

import csv
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_docs import DOCS, blocks_of

from fedray.trace.trained import TrainedRun

pytestmark = pytest.mark.outside

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CALLBACKS = ROOT / "docs" / "callbacks"
Pairs = list[tuple[str, int]]


def run_in(peer: str, script: str, folder: Path, *arguments: str) -> Any:
    """The JSON that a script prints last, run by the interpreter of a peer's environment."""
    python = (
        Path(os.environ.get("FEDRAY_PEERS", ROOT / ".venv" / "peers")) / peer / "bin" / "python"
    )
    if not python.exists():
        pytest.skip(f"FEDRAY_PEERS has no environment {peer!r}")
    # fedray is there by its path alone: an environment has its own packages.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(folder)}
    command = [str(python), str(HERE / script), str(CALLBACKS), *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def logged(log: Path) -> Pairs:
    with log.open(newline="") as file:
        rows = list(csv.DictReader(file))
    times = [float(row["time"]) for row in rows]
    assert times == sorted(times)
    return [(row["device"], int(row["round"])) for row in rows]


def limits(pairs: Pairs) -> tuple[int, int]:
    """(min-sep, most participations), where exactly the rounds that occur released something."""
    numbers = {each: place for place, each in enumerate(sorted({each for _, each in pairs}))}
    patterns: dict[str, list[int]] = {}
    for device, number in pairs:
        patterns.setdefault(device, []).append(numbers[number])
    gaps = [b - a for each in patterns.values() for a, b in pairwise(sorted(each))]
    return min(gaps), max(map(len, patterns.values()))


def audited(log: Path, folder: Path, fedray_command) -> tuple[int, int]:
    """The same by `fedray import` and `fedray audit`."""
    columns = ["--column", "device=device", "--column", "round=round"]
    code, _, told = fedray_command(
        "import", str(log), *columns, "--rounds", "logged", "--out", str(folder / "trace")
    )
    assert code == 0, told
    code, printed, told = fedray_command("audit", str(folder / "trace"), "--json")
    assert code == 0, told
    found = json.loads(printed)
    return found["min_sep"], found["max_participations"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("peer", "script"),
    [("flwr", "run_flower.py"), ("pfl", "run_pfl.py"), ("nvflare", "run_nvflare.py")],
)
def test_a_log_has_the_participations_that_were_used_and_no_others(
    peer: str, script: str, tmp_path: Path, fedray_command
) -> None:
    """Clients that failed, and rounds in which all did, are not in it."""
    log = tmp_path / "log.csv"
    truth = [(str(device), number) for device, number in run_in(peer, script, tmp_path, str(log))]
    assert sorted(logged(log)) == sorted(truth)
    assert len(truth) > 5
    assert audited(log, tmp_path, fedray_command) == limits(truth)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("peer", "name", "sampling"),
    [
        ("flwr", "flower_cohorts", "kind = 'fixed_size', devices = 400, size = 20"),
        ("pfl", "pfl_cohorts", "kind = 'in_turn', devices = 600"),
    ],
)
def test_samplers_of_peers_do_as_their_accountants_assume(
    peer: str, name: str, sampling: str, tmp_path: Path, fedray_command, monkeypatch
) -> None:
    rounds = run_in(peer, "run_samplers.py", tmp_path, name, "120")
    (tmp_path / f"of_{peer}.py").write_text(f"rounds = {rounds!r}\n")
    claim = f"mechanism = 'tree'\nnoise_multiplier = 1.0\nrounds = 120\nsampling = {{{sampling}}}\n"
    (tmp_path / "claim.toml").write_text(claim)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    command = ("audit", "--sampler", f"of_{peer}:rounds", "--assume", "claim.toml")
    code, printed, error = fedray_command("--quiet", *command)
    assert code == 0, printed + error


@pytest.mark.slow
def test_a_flower_training_has_the_noise_of_the_mechanism(tmp_path: Path) -> None:
    """Of clipped updates, all alike in weight, with one row of noise per round that released."""
    found = run_in("flwr", "run_flower_noise.py", tmp_path)
    np.testing.assert_allclose(found["released"], found["expected"], atol=1e-6)
    assert found["rows"] == len(found["released"]) - 2


@pytest.mark.slow
def test_a_training_by_opacus_has_the_noise_of_the_mechanism_and_no_other(tmp_path: Path) -> None:
    """In sums and in means; an optimizer with noise of its own, or another clip norm, is refused."""
    found = run_in("opacus", "run_opacus.py", tmp_path)
    for reduction in ("mean", "sum"):
        parameters, expected = found[reduction]
        np.testing.assert_allclose(parameters, expected, atol=1e-4)
    assert found["refused"][0].startswith("noise_multiplier=1.0")
    assert found["refused"][1].startswith("max_grad_norm=1.0")


FEDSCALE = """\
(11-22) 10:00:01 INFO     [aggregator.py:455] Wall clock: 0 s, round: 1, Planned participants: 0, Succeed participants: 0, Training loss: 0.0
(11-22) 10:00:01 INFO     [aggregator.py:471] Selected participants to run: [4, 7, 9]
(11-22) 10:00:31 INFO     [aggregator.py:455] Wall clock: 61 s, round: 2, Planned participants: 4, Succeed participants: 3, Training loss: 3.2
(11-22) 10:00:31 INFO     [aggregator.py:471] Selected participants to run: [2, 3]
(11-22) 10:01:02 INFO     [aggregator.py:455] Wall clock: 130 s, round: 3, Planned participants: 4, Succeed participants: 2, Training loss: 3.1
(11-22) 10:01:02 INFO     [aggregator.py:471] Selected participants to run: [4, 9]
(11-22) 10:01:55 INFO     [aggregator.py:455] Wall clock: 190 s, round: 4, Planned participants: 4, Succeed participants: 2, Training loss: 2.9
(11-22) 10:01:55 INFO     [aggregator.py:471] Selected participants to run: [1, 2]
"""


def test_a_log_of_fedscale_has_the_rounds_that_were_completed(
    tmp_path: Path, fedray_command
) -> None:
    """Lines as its aggregator writes them; nobody ran in the last round."""
    (tmp_path / "aggregator.log").write_text(FEDSCALE)
    log = tmp_path / "log.csv"
    script = CALLBACKS / "fedscale_log.py"
    command = [sys.executable, str(script), str(tmp_path / "aggregator.log"), str(log)]
    subprocess.run(command, check=True)
    pairs = logged(log)
    assert pairs == [("4", 1), ("7", 1), ("9", 1), ("2", 2), ("3", 2), ("4", 3), ("9", 3)]
    assert audited(log, tmp_path, fedray_command) == limits(pairs) == (2, 2)


@pytest.mark.slow
def test_a_flower_app_and_its_translation_train_alike(
    tmp_path: Path, fedray_command, monkeypatch
) -> None:
    """The files of docs/switch.md: their model, start and numbers of examples are equal, later losses are close."""
    for block in blocks_of(DOCS / "switch.md"):
        if block.title:
            (tmp_path / block.title).write_text(block.text, encoding="utf-8")
    theirs = run_in("flwr", "run_moved_app.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    code, _, told = fedray_command("--quiet", "run", "moved.toml", "--out", "moved")
    assert code == 0, told
    run = TrainedRun.open(tmp_path / "moved" / "training")
    assert run.document["parameters"] == theirs["shapes"]
    trained = run.metrics["trained"].tolist()
    assert [30 * each for each in trained] == theirs["examples"] == 15 * [600]
    assert run.document["evaluated"]["examples"] == 300
    ours = [run.document["start"]["loss"], *run.metrics["evaluation_loss"]]
    assert ours[0] == pytest.approx(theirs["losses"][0], rel=1e-6)
    # Two trainings of this app, or of its translation, by other seeds are as far apart.
    np.testing.assert_allclose(ours, theirs["losses"], atol=0.08)
    assert max(ours[-1], theirs["losses"][-1]) < 0.75 * ours[0]
