"""What all commands have in common: help, versions, names of scenarios, completion."""

import ast
import importlib
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import typer.main
from typer.testing import CliRunner

import fedray
from fedray.cli import GROUPS, app
from fedray.scenario import Population
from fedray.scenario.shipped import find_scenario, shipped_scenario_files

COMMANDS = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
SAME_AS_SHORT = ["-h", "--help"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_by_both_names_of_the_option(command: str) -> None:
    shown = [CliRunner().invoke(app, [command, option]) for option in SAME_AS_SHORT]
    assert [each.exit_code for each in shown] == [0, 0]
    assert shown[0].stdout == shown[1].stdout
    assert f"fedray {command}" in re.sub(r"\s+", " ", shown[0].stdout.replace("root", "fedray"))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_an_option_that_it_does_not_have(
    command: str, fedray_command
) -> None:
    code, out, err = fedray_command(command, "--no-such-option")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("fedray: No such option: --no-such-option")


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--rounds", "a scenario's key is given by --set rounds.count=VALUE\n"),
        (
            "--timer-hours",
            "a scenario's key is given by --set participation.timer_hours=VALUE or --set "
            "participation.later.timer_hours=VALUE\n",
        ),
        ("--delta", "--set privacy.stop_at.delta=VALUE or --set analytics.delta=VALUE\n"),
        ("--kind", "No such option: --kind"),  # too many tables have one
    ],
)
def test_a_key_that_is_given_as_an_option_is_told_how_to_be_set(
    option: str, expected: str, fedray_command
) -> None:
    code, out, err = fedray_command("run", "quickstart", option, "10")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert expected in err
    # A command without --set knows of no scenario.
    assert "--set" not in fedray_command("audit", "trace", option, "10")[2]


def test_an_option_without_its_value_is_not_said_to_be_missing(fedray_command) -> None:
    assert "No such option" not in fedray_command("run", "quickstart", "--out")[2]
    assert "requires an argument" in fedray_command("fit-log", "log.csv", "--seed")[2]


def test_the_version_is_that_of_the_package(fedray_command) -> None:
    assert fedray_command("--version") == (0, f"fedray {fedray.__version__}\n", "")


def test_a_scenario_that_ships_is_found_by_its_name_and_a_path_stays_a_path() -> None:
    shipped = shipped_scenario_files()
    assert {"quickstart", "ample-supply", "nwp_en_gb", "language"} <= set(shipped)
    for name, file in shipped.items():
        assert find_scenario(name) == file
        assert find_scenario(file) == file
    assert find_scenario("quickstart.toml") == Path("quickstart.toml")


def test_a_file_goes_before_a_scenario_that_ships(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").write_text("")
    assert find_scenario("quickstart") == Path("quickstart")


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("fedray run qui", "quickstart"),
        ("fedray sweep tim", "timer"),
        ("fedray reproduce gboard-pri", "gboard-privacy"),
        ("fedray optimize band-", "band-fhu"),
        ("fedray calib", "calibrate"),
    ],
)
def test_a_shell_completes_commands_and_names(typed: str, expected: str) -> None:
    asked = {
        "_FEDRAY_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(typed.count(" ")),
    }
    done = CliRunner().invoke(app, prog_name="fedray", env=asked)
    assert done.stdout.split() == [expected]


def test_all_mistakes_of_a_scenario_are_told_at_once_a_line_each(
    tmp_path: Path, fedray_command
) -> None:
    file = tmp_path / "s.toml"
    file.write_text(
        "[population]\ndevices = 0\n"
        "[rounds]\ncount = 5\nreport_gaol = 10\n"
        "[privacy]\nmechanism = { kind = 'blt', buffers = 2 }\n"
    )
    code, out, err = fedray_command("run", str(file), "--set", "training.cohort_sample=-1")
    assert (code, out) == (2, "")
    lines = err.splitlines()
    of_file = [line for line in lines if line.startswith(f"fedray: {file}: ")]
    (of_override,) = set(lines) - set(of_file)
    assert of_override.startswith(
        f"fedray: --set 'training.cohort_sample=-1', applied to {file}: training.cohort_sample"
    )
    told = "\n".join(lines)
    assert "unknown key rounds.report_gaol = 10 in [rounds]; did you mean 'report_goal'?" in told
    assert "population.devices = 0: input should be greater than" in told
    assert "training.cohort_sample = -1: input should be greater" in told
    assert "unknown key privacy.mechanism.buffers = 2" in told
    assert len(lines) == len({line.split(": ")[2].split(" = ")[0] for line in lines})


def test_the_library_tells_all_mistakes_on_one_line_and_has_them_apart() -> None:
    with pytest.raises(fedray.InputError) as caught:
        Population(devices=0, reach=3.0)
    assert "\n" not in str(caught.value)
    assert len(caught.value.problems) == 2
    assert all(each.startswith("Population: ") for each in caught.value.problems)


SETTING = ["--rounds", "20", "--min-sep", "4", "--max-participations", "3"]
LOG = ["--column", "device=dev", "--column", "round=round", "--rounds", "logged", "--out", "OUT"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "MISSING"],
        ["compare", "MISSING", "MISSING"],
        ["audit-model", "MISSING"],
        ["audit", "MISSING"],
        ["import", "MISSING.csv", *LOG],
        ["report", "MISSING"],
        ["audit", "MISSING", "--statement", "OUT"],
        pytest.param(["canary", "MISSING.toml"], marks=pytest.mark.slow),
        ["sweep", "MISSING.toml"],
        ["plan", "MISSING.toml", "--epsilon", "3"],
        ["mechanism", "MISSING.json", *SETTING],
        ["mechanism", "MISSING.json", "--epsilon", "3", *SETTING],
        ["calibrate", "MISSING", "--epsilon", "3"],
        ["fit-min-sep", "MISSING.toml", "--min-sep", "4"],
        ["fit-log", "MISSING.csv"],
        ["population", "MISSING.toml"],
        ["population", "MISSING", "--kind", "flash"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_file_that_is_missing_is_named_in_one_line(
    arguments: list[str], fedray_command, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = fedray_command(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "MISSING" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["audit", "TRACE"], "mechanisms"),
        (["import", "log.csv", *LOG], "rows_read"),
        (["sweep"], "sweeps"),
        (["optimize", "band-fhu", *SETTING], "rms_loss"),
        (["mechanism", "tree.json", *SETTING], "rms_loss"),
        (["mechanism", "tree.json", "--epsilon", "3", *SETTING], "noise_multiplier"),
        (["reproduce", "gboard-privacy", "--rows", "en-GB"], "compared"),
        (["schema", "latency"], "parts"),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else "",
)
def test_json_is_one_object_and_nothing_else(
    arguments: list[str], key: str, fedray_command, tmp_path: Path, monkeypatch, trace_of
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "log.csv").write_text("dev,round\na,0\nb,1\na,1\n")
    (tmp_path / "tree.json").write_text('{"kind": "tree"}')
    if "TRACE" in arguments:
        path = str(trace_of([[0, 3], [1, 2]], 4).path)
        arguments = [path if word == "TRACE" else word for word in arguments]
    code, out, err = fedray_command("--quiet", *arguments, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert not key or key in document


def placed(module: ModuleType) -> Iterator[str]:
    """Functions with a parameter `placement` that a file imports, at its top or in a function."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedray"):
            source = importlib.import_module(node.module or "")
            for each in node.names:
                value = getattr(source, each.name)
                if inspect.isfunction(value) and "placement" in inspect.signature(value).parameters:
                    yield each.name


def test_a_command_that_starts_tasks_takes_place() -> None:
    """And the other way round. The options of `reproduce` are those of its reproductions."""
    found = {}
    for function in (each for group in GROUPS.values() for each in group):
        module = importlib.import_module(function.__module__)
        found[function.__name__.replace("_", "-")] = bool([*placed(module)])
    assert {name for name, is_placed in found.items() if is_placed} == {
        name
        for name, command in COMMANDS.items()
        if any(param.name == "place" for param in command.params)
    }
