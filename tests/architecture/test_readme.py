"""What README shows works: its scenario, its program, its commands."""

import re
import tomllib
from pathlib import Path

import pytest

from fedray.scenario import Scenario

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
QUICKSTART = ROOT / "scenarios" / "quickstart.toml"


def block(language: str, section: str = "") -> str:
    """The only block of a language after a heading, up to the next one; anywhere without one."""
    text = README.split(f"\n## {section}\n")[1].split("\n## ")[0] if section else README
    found = re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)
    assert len(found) == 1
    return found[0]


def test_the_scenario_is_valid() -> None:
    scenario = Scenario.from_tables(tomllib.loads(block("toml")))
    assert scenario.rounds.report_goal == 1000


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_the_program_runs(capsys, tmp_path: Path, monkeypatch) -> None:
    """At full size, 20 rounds."""
    program = block("python", "From Python").replace(
        '"scenarios/', f'"{Path(__file__).resolve().parents[2]}/scenarios/'
    )
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "README.md", "exec"), {})
    assert re.search(r"participations \(accepted\) +130,000\n", capsys.readouterr().out)


@pytest.mark.slow
def test_the_task_keeps_the_contract_and_learns(tmp_path: Path, monkeypatch) -> None:
    """By the options that README shows, on a small population."""
    from fedray.clients.tasks.contract import CHECKS
    from fedray.clients.tasks.custom import CustomTask
    from fedray.pipeline import run_scenario
    from fedray.placement import Placement
    from fedray.scenario.tasks import CustomTask as CustomTable

    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_task.py").write_text(block("python", "Training"))
    command = next(line for line in README.splitlines() if "training.file=" in line)
    overrides = re.findall(r"--set (\S+)", command)
    small = ("rounds.count=12", "rounds.report_goal=100", "training.cohort_sample=100")
    quiet = (
        "privacy.noise_multiplier=0.01",
        "training.evaluate_every=6",
        "population.devices=20_000",
    )
    scenario = Scenario.from_toml(QUICKSTART, [*small, *quiet]).with_overrides(*overrides)
    table = scenario.training.task
    assert isinstance(table, CustomTable)

    def made(seed: int):
        task = CustomTask(table, seed, {})
        assert task.source is not None
        return task, task.source

    for check in CHECKS:
        check(made)
    trained = run_scenario(scenario, Placement(1, "in-process"), tmp_path / "t").trained
    assert trained is not None
    accuracy = trained.metrics["evaluation_accuracy"]
    assert accuracy[11] > 0.8


def test_every_command_is_shown() -> None:
    from fedray.cli import app

    commands = {
        command.name or command.callback.__name__
        for command in app.registered_commands
        if command.callback is not None
    }
    assert commands == set(
        re.findall(r"^fedray (\w+)", README.split("## Commands")[1], flags=re.MULTILINE)
    )


def test_every_option_of_every_command_is_in_its_synopsis_and_no_other() -> None:
    """A switch that is on by itself is named only by what turns it off."""
    from typer.main import get_command

    from fedray.cli import app

    listed = README.split("## Commands")[1].split("```")[1]
    synopses: dict[str, str] = {}
    for synopsis in re.split(r"^fedray ", listed, flags=re.MULTILINE)[1:]:
        name = synopsis.split()[0]
        synopses[name] = synopses.get(name, "") + synopsis
    for name, command in get_command(app).commands.items():  # pyright: ignore[reportAttributeAccessIssue]
        options = [each for each in command.params if each.param_type_name == "option"]
        known = {option for each in options for option in (*each.opts, *each.secondary_opts)}
        expected = {
            option
            for each in options
            for option in (
                each.secondary_opts if each.default is True else (*each.opts, *each.secondary_opts)
            )
        }
        shown = set(re.findall(r"--[a-z-]+", synopses[name]))
        assert expected <= shown, f"{name}: {sorted(expected - shown)} not in README"
        assert shown <= known, f"{name}: {sorted(shown - known)} not in --help"


def test_the_claim_shown_is_valid_and_has_every_key() -> None:
    from fedray.audit.claims import Claim

    shown = next(
        part
        for part in README.split("```")
        if part.lstrip("\n").startswith('mechanism = "blt.json"')
    )
    tables = tomllib.loads(shown)
    assert set(tables) == set(Claim.model_fields)
    required = {name for name, field in Claim.model_fields.items() if field.is_required()}
    assert required == {"mechanism", "noise_multiplier"}
    Claim.model_validate({**tables, "mechanism": {"kind": "tree"}})


@pytest.mark.slow
def test_the_commands_about_mechanisms_run(capsys, tmp_path: Path, monkeypatch) -> None:
    """And the request shown for Python gives the same mechanism."""
    import shlex

    import fedray
    from fedray.cli import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    section = README.split("## Mechanisms")[1]
    commands = [line for line in section.split("```")[1].splitlines() if line]
    assert len(commands) == 2
    for line in commands:
        app(shlex.split(line)[1:], standalone_mode=False)
    assert "MaxLoss / RmsLoss" in capsys.readouterr().out
    request = re.search(r"`fedray\.optimize_mechanism\((.*)\)`", section)
    assert request is not None
    made = fedray.optimize_mechanism(eval(request.group(1), {"fedray": fedray}))
    assert made == fedray.read_strategy(tmp_path / "blt.json")
