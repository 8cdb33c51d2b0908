"""What all commands have in common: help, versions, names of scenarios, completion."""

import re
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

import fedray
from fedray.cli import app
from fedray.commands.flags import RENAMED
from fedray.scenario.shipped import find_scenario, shipped_scenario_files

COMMANDS = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
SAME_AS_SHORT = ["-h", "--help"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_by_both_names_of_the_option(command: str) -> None:
    told = [CliRunner().invoke(app, [command, option]) for option in SAME_AS_SHORT]
    assert [each.exit_code for each in told] == [0, 0]
    assert told[0].stdout == told[1].stdout
    assert f"fedray {command}" in re.sub(r"\s+", " ", told[0].stdout.replace("root", "fedray"))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_an_option_that_it_does_not_have(
    command: str, fedray_command
) -> None:
    code, out, err = fedray_command(command, "--no-such-option")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("fedray: No such option: --no-such-option")


def test_the_version_is_that_of_the_package(fedray_command) -> None:
    assert fedray_command("--version") == (0, f"fedray {fedray.__version__}\n", "")


def test_an_old_name_is_the_name_of_no_option_and_its_new_name_is() -> None:
    for (command, old), new in RENAMED.items():
        options = {option for each in COMMANDS[command].params for option in each.opts}
        assert new in options
        assert old not in options


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
        ("fedray stress tim", "timer"),
        ("fedray reproduce gboard-", "gboard-privacy"),
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
    assert all(line.startswith(f"fedray: {file}: ") for line in lines)
    told = "\n".join(lines)
    assert "unknown key rounds.report_gaol = 10 in [rounds]; did you mean 'report_goal'?" in told
    assert "population.devices = 0: input should be greater than" in told
    assert "training.cohort_sample = -1: input should be greater" in told
    assert "unknown key privacy.mechanism.buffers = 2" in told
    assert len(lines) == len({line.split(": ")[2].split(" = ")[0] for line in lines})


def test_the_library_tells_all_mistakes_on_one_line_and_has_them_apart() -> None:
    with pytest.raises(fedray.InputError) as caught:
        fedray.Population(devices=0, reach=3.0)
    assert "\n" not in str(caught.value)
    assert len(caught.value.problems) == 2
    assert all(each.startswith("Population: ") for each in caught.value.problems)
