"""What the library says of arguments, the command says of flags."""

import pytest
import typer.main

from fedray.cli import app
from fedray.commands.flags import OTHER_NAMES, in_flags

COMMANDS = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("command", "message", "said"),
    [
        ("run", "give trust_code=True if you trust it", "give --trust-code if you trust it"),
        (
            "audit",
            "leave digests unchecked (verify=False)",
            "leave digests unchecked (--no-verify)",
        ),
        ("import", "memory_mebibytes=5 is little", "--memory=5 is little"),
        ("import", "say it by time_unit='seconds'", "say it by --time-unit='seconds'"),
        ("import", "ceil(rounds / min_sep)", "ceil(rounds / min_sep)"),
        ("import", "rounds=9, but the rounds are 8", "--rounds=9, but the rounds are 8"),
        ("import", "column 'time_unit' is not there", "column 'time_unit' is not there"),
        ("fit", "timer_hours=None must be given", "--timer must be given"),
        ("fit", "participation.timer_hours=0.0 is low", "participation.timer_hours=0.0 is low"),
        ("optimize", "targets file 't': min_sep=0 is low", "targets file 't': min_sep=0 is low"),
        ("audit", "min_sep=0 is low", "min_sep=0 is low"),
        ("scenarios", "rounds=0 is low", "rounds=0 is low"),
    ],
)
def test_a_message_has_the_flags_of_its_command(command: str, message: str, said: str) -> None:
    assert in_flags(message, COMMANDS[command].params) == said


def test_every_other_name_is_of_a_parameter_that_a_command_has() -> None:
    parameters = {each.name for command in COMMANDS.values() for each in command.params}
    assert set(OTHER_NAMES) <= parameters


def test_a_command_that_is_refused_names_its_flags(fedray_command) -> None:
    code, _, stderr = fedray_command("fit", "--population", "9", "--rounds", "9", "--min-sep", "2")
    assert (code, stderr) == (2, "fedray: --timer must be given, or a scenario file\n")
