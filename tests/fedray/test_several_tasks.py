"""Scenario files with several tasks, and what the command does with them."""

import json
from pathlib import Path

import pytest

from fedray.base.errors import InputError, ScenarioError, TraceError
from fedray.scenario import Scenario, SeveralTasks
from fedray.scenario.several_tasks import read_scenario, sharing_timer
from fedray.trace.imported import open_trace

FILE = """
name = "two"
seed = 3
[population]
devices = 20000
[participation]
timer_hours = 12
[rounds]
count = 6
report_goal = 200
look_ahead_minutes = 30.0
[training]
enabled = false
[tasks.next-word]
timer_group = "keyboard"
[tasks.next-word.rounds]
report_goal = 150
[tasks.suggestions]
weight = 2
starts_days = 0.1
timer_group = "keyboard"
[tasks.suggestions.privacy.mechanism]
kind = "tree"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "two.toml"
    path.write_text(FILE)
    return path


def test_a_task_has_the_common_tables_with_its_own_keys_in_place(file: Path) -> None:
    several = read_scenario(file, ["rounds.count=9", "tasks.suggestions.rounds.count=4"])
    assert isinstance(several, SeveralTasks)
    words, suggestions = (task.scenario for task in several.tasks)
    assert (words.rounds.count, words.rounds.report_goal) == (9, 150)
    assert (suggestions.rounds.count, suggestions.rounds.report_goal) == (4, 200)
    # A mechanism of another kind takes none of the keys of the common one.
    assert words.privacy.mechanism.kind == "blt"
    assert suggestions.privacy.mechanism.kind == "tree"
    assert sharing_timer(several.tasks, 0) == (1,)
    assert several.tasks[1].starts_seconds == 8640.0
    assert words.name == "two.next-word"


def test_a_long_name_leaves_that_of_the_task_whole(file: Path) -> None:
    file.write_text(FILE.replace('"two"', '"' + "x" * 75 + '"'))
    several = read_scenario(file)
    assert isinstance(several, SeveralTasks)
    names = [task.scenario.name for task in several.tasks]
    assert names == [f"{'x' * 70}.next-word", f"{'x' * 68}.suggestions"]
    assert several.name == "x" * 70


def test_keys_of_one_kind_are_joined_and_another_kind_is_taken_whole(tmp_path: Path) -> None:
    base = {
        "population": {"devices": 9},
        "rounds": {"count": 1, "report_goal": 1},
        "training": {"enabled": False, "client": {"kind": "fedprox", "proximal": 0.5}},
    }
    tasks = {
        "same": {"training": {"client": {"batch_size": 3}}},
        "other": {"training": {"client": {"kind": "fedavg", "batch_size": 4}}},
    }
    several = SeveralTasks.from_tables({**base, "tasks": tasks})
    same, other = (task.scenario.training.client for task in several.tasks)
    assert (same.kind, same.batch_size, same.model_dump()["proximal"]) == ("fedprox", 3, 0.5)
    assert (other.kind, other.batch_size) == ("fedavg", 4)


def test_no_two_tasks_draw_the_same_noise(file: Path) -> None:
    several = read_scenario(file)
    seeds = [task.scenario.training_seed for task in several.tasks]
    assert seeds[0] == several.seed
    assert len(set(seeds)) == 2
    # The seed of a task depends on its name, and not on the others.
    more = read_scenario(file, ["tasks.third.weight=1.0"])
    assert [task.scenario.training_seed for task in more.tasks][:2] == seeds
    with pytest.raises(ScenarioError, match="the same noise, and privacy would not compose"):
        read_scenario(file, ["tasks.suggestions.training.seed=3"])


def test_what_is_recorded_is_read_back(file: Path, tmp_path: Path) -> None:
    several = read_scenario(file)
    assert isinstance(several, SeveralTasks)
    document = json.loads(json.dumps(several.to_document()))
    again = SeveralTasks.of_document(document, "recorded", tmp_path)
    assert again.digest == several.digest
    assert again.names == several.names
    assert again.tasks == several.tasks
    changed = read_scenario(file, ["tasks.suggestions.weight=3.0"])
    assert changed.digest != several.digest


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["tasks.suggestions.gaol=3"], "task suggestions: unknown key gaol = 3 in the top level"),
        (["tasks.suggestions.rounds.gaol=3"], "unknown key rounds.gaol = 3 in \\[rounds\\]"),
        (["tasks.suggestions.weight=0"], "task suggestions: weight = 0: .*greater than 0"),
        (["tasks.suggestions.starts_days=400"], "starts_days=400 is not before rounds.max_days=366"),
        (["tasks.suggestions.population.devices=3"], "unknown key population"),
        (["tasks.suggestions.rounds.sampler=thinning"], "tasks share this setting; set it once, in \\[rounds\\]"),
        (["tasks.suggestions.participation.history_loss_per_day=1"], "participation.history_loss_per_day=1.0 differs from that of task next-word"),
        (["tasks.suggestions.participation.timer_hours=3"], "timer_group='keyboard' shares its timer with task suggestions, but participation.timer_hours=12.0 is 3.0 there"),
        (["tasks.suggestions.participation.timer_resets_on=selected"], "participation.timer_resets_on=accepted is selected there"),
        (["tasks.suggestions.rounds.mode=buffered", "tasks.suggestions.rounds.buffer={concurrency=300, max_staleness=3}"], "task suggestions: rounds.mode='buffered': tasks can share devices only if"),
        (["tasks.journal.weight=1"], "the task 'journal' cannot have that name"),
        (["tasks.a/b.weight=1"], "cannot have that name"),
        (["tasks=3"], "tasks must be named tables"),
        (["tasks={}"], "tasks must be named tables"),
        (["tasks.suggestions=3"], "task suggestions: "),
    ],
)  # fmt: skip
def test_what_is_wrong_with_tasks_is_told_in_one_line(
    file: Path, overrides: list[str], problem: str
) -> None:
    with pytest.raises(ScenarioError, match=problem) as raised:
        read_scenario(file, overrides)
    assert "\n" not in str(raised.value)


def test_who_wants_one_task_refuses_several(file: Path) -> None:
    with pytest.raises(ScenarioError, match="has several tasks, but only one is possible here"):
        Scenario.from_toml(file)


@pytest.mark.slow
def test_the_command_runs_audits_and_reports_several_tasks(
    file: Path, tmp_path: Path, fedray_command
) -> None:
    out = tmp_path / "t"
    code, shown, _ = fedray_command(
        "run", str(file), "--place", "backend=in-process", "--out", str(out), "--json"
    )
    assert code == 0
    document = json.loads(shown)
    assert list(document["tasks"]) == ["next-word", "suggestions"]
    composition = document["composition"]
    rhos = [each["guarantees"][0]["rho"] for each in document["tasks"].values()]
    assert max(rhos) <= composition["observed"]["rho"] <= sum(rhos) * (1 + 1e-12)
    assert (out / "report.html").exists()
    assert (out / "next-word" / "report.html").exists()

    code, shown, _ = fedray_command("audit", str(out), "--json", "--verify")
    assert code == 0
    again = json.loads(shown)
    assert again["composition"] == composition
    assert again["digest_verified"]
    code, shown, _ = fedray_command(
        "audit", str(out), "--delta", "1e-6", "--figures", str(tmp_path / "f")
    )
    assert code == 0
    assert "sum of each task's largest" in shown
    assert (tmp_path / "f" / "devices.svg").exists()
    code, shown, _ = fedray_command("report", str(out), "--out", str(tmp_path / "p.html"))
    assert code == 0
    assert "What the devices got" in (tmp_path / "p.html").read_text()

    # Each trace is one like any other.
    code, shown, _ = fedray_command("audit", str(out / "suggestions"), "--json")
    assert code == 0
    assert json.loads(shown)["guarantees"] == document["tasks"]["suggestions"]["guarantees"]
    assert any("one of several tasks" in each for each in json.loads(shown)["assumptions"])
    _, shown, _ = fedray_command("audit", str(out), "--no-verify")
    assert "over all tasks" in shown.lower()
    for command, told in (
        (["audit", str(out), "--noise-multiplier", "3"], "--noise-multiplier is about one trace"),
        (["audit", str(out), "--show-devices"], "--show-devices is about one trace"),
        (["audit", str(out), "--statement", "s"], "--statement is about one trace"),
        (["calibrate", str(out), "--rho", "1"], "but only one is possible here"),
        (["train", str(out)], "several tasks"),
        (["canary", str(file)], "has several tasks, but only one is possible here"),
        (["run", "--resume", str(out)], "is complete; give the `out` of an interrupted run"),
    ):
        code, _, error = fedray_command(*command)
        assert code in (1, 2)
        assert told in error
        assert len(error.splitlines()) == 1
    with pytest.raises(TraceError, match="give one of the folders in it"):
        open_trace(out)


def test_the_schema_has_tasks(fedray_command) -> None:
    code, shown, _ = fedray_command("schema")
    assert code == 0
    task = json.loads(shown)["properties"]["tasks"]["additionalProperties"]
    assert set(task["properties"]) >= {"starts_days", "weight", "timer_group", "rounds", "privacy"}
    assert all("description" in each for each in task["properties"].values())


def test_damage_of_tasks_json_is_told(tmp_path: Path) -> None:
    from fedray.trace.several_tasks import TASKS_FILE, TasksRun

    with pytest.raises(TraceError, match=r"has no tasks.json"):
        TasksRun.open(tmp_path)
    for content, problem in (
        (b"{", "cannot be read"),
        (b"[]", "has no format ="),
        (b'{"format": "fedray-tasks", "version": 7}', "has version=7"),
        (b'{"format": "fedray-tasks", "version": 1}', "lacks digest"),
    ):
        (tmp_path / TASKS_FILE).write_bytes(content)
        with pytest.raises(InputError, match=problem):
            TasksRun.open(tmp_path)
