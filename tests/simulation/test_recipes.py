"""The scenarios of the other modes of rounds that ship, and the comparison that is documented, in
small."""

import json
import re
from pathlib import Path

import pytest

from fedray.trace.reader import Trace

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "overrides", "figure"),
    [
        ("buffered", ("rounds.buffer.concurrency=200",), "Staleness of reports"),
        ("amplified", ("rounds.uploads.schedule.partitions=40",), "Stored uploads"),
        ("upload-then-train", ("rounds.uploads.schedule.min_sep=4",), "Stored uploads"),
    ],
)
def test_a_recipe_runs_to_its_audit_and_report(
    fedray_command, tmp_path: Path, name: str, overrides: tuple[str, ...], figure: str
) -> None:
    small = (
        "population.devices=4000",
        "rounds.count=8",
        "rounds.report_goal=60",
        "training.cohort_sample=4",
        "training.evaluate_every=8",
    )
    keys = [word for key in (*small, *overrides) for word in ("--set", key)]
    scenario = str(ROOT / "scenarios" / f"{name}.toml")
    code, out, err = fedray_command(
        "run", scenario, *keys, "--place", "backend=in-process", "--out", str(tmp_path / "t")
    )
    assert code == 0, err
    assert "guarantee" in out
    assert figure in (tmp_path / "t" / "report.html").read_text()
    trace = Trace.open(tmp_path / "t")
    assert trace.committed_rounds == 8
    assert trace.trained is not None
    trace.verify()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "title"), [("new_words", "question open_histogram"), ("coverage", "question mean")]
)
def test_a_question_that_ships_is_answered(
    fedray_command, tmp_path: Path, name: str, title: str
) -> None:
    small = ("population.devices=20_000", "rounds.report_goal=5_000")
    keys = [word for key in small for word in ("--set", key)]
    scenario, out = str(ROOT / "scenarios" / f"{name}.toml"), tmp_path / "t"
    place = ("--place", "backend=in-process")
    code, text, err = fedray_command("run", scenario, *keys, *place, "--out", str(out))
    assert code == 0, err
    assert f"Answers to the {title}" in text
    assert "Privacy of the answers" in (out / "report.html").read_text()
    (window,) = json.loads((out / "answer.json").read_text())["windows"]
    assert 5_000 < window["came"] < window["devices"] == 20_000
    assert all(each["released"] for each in window["answers"])
    Trace.open(out).verify()


@pytest.mark.slow
def test_the_documented_comparison_of_every_kind_runs(
    fedray_command, tmp_path: Path, monkeypatch
) -> None:
    """On a small trace, with the commands as they are written."""
    readme = (ROOT / "docs" / "published.md").read_text()
    section = readme.split("## Every kind on one trace")[1]
    commands = section.split("```sh")[1].split("```")[0].replace("\\\n", " ").splitlines()
    small = (
        "--set rounds.count=9 --set rounds.report_goal=40 --set population.devices=4000 "
        "--set participation.timer_hours=12 "
    )
    tiny = (
        "--set training.cohort_sample=8 --set training.evaluate_every=9 --place backend=in-process "
    )
    monkeypatch.chdir(tmp_path)
    compared = None
    for command in filter(None, map(str.strip, commands)):
        changed = command.replace("scenarios/", f"{ROOT}/scenarios/")
        changed = changed.replace("--rounds 200 --min-sep 26", "--rounds 24 --min-sep 3")
        changed = changed.replace("50,100,150", "3,6")
        # So small rounds leave no room for the default noise on counts.
        changed = changed.replace(
            "clipping.kind=adaptive", 'clipping={kind="adaptive",count_noise=20.0}'
        )
        changed = re.sub(r"^fedray run \S+", rf"\g<0> {small}", changed)
        changed = re.sub(r"^fedray train \S+", rf"\g<0> {tiny}", changed)
        if command.startswith("fedray compare"):
            changed += " --json"
        arguments = [word.strip("'") for word in changed.split()[1:]]
        code, out, err = fedray_command(*arguments)
        assert code == 0, (command, err)
        if command.startswith("fedray compare"):
            compared = json.loads(out)
    assert compared is not None
    assert len(compared["groups"]) == 8
