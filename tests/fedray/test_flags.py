"""What the library says of arguments, the command says of flags."""

import pickle

import pytest
import typer.main

import fedray
from fedray.base.errors import FedrayError, InputError
from fedray.cli import app
from fedray.commands.flags import OTHER_NAMES, check_numbers, in_flags

COMMANDS = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("command", "error", "said"),
    [
        (
            "run",
            FedrayError("read it, and pass `trust_code=True`"),
            "read it, and pass `--trust-code`",
        ),
        ("audit", FedrayError("unchecked (`verify=False`)"), "unchecked (`--no-verify`)"),
        ("import", InputError.of("memory_mebibytes", 5, "is little"), "--memory=5 is little"),
        (
            "import",
            InputError.of("where", "x", "is no number", "give `time_unit='seconds'`"),
            "--where='x' is no number; give `--time-unit='seconds'`",
        ),
        (
            "import",
            InputError("ceil(rounds / min_sep) time_unit"),
            "ceil(rounds / min_sep) time_unit",
        ),
        ("fit", InputError.of("timer_hours", None, "must be given"), "--timer must be given"),
        (
            "fit",
            InputError.of("participation.timer_hours", 0.0, "is low", "raise it"),
            "participation.timer_hours=0.0 is low; raise it",
        ),
        ("audit", InputError.of("min_sep", 0, "is low"), "min_sep=0 is low"),
        ("audit", InputError("use more, or `rounds=3`"), "use more, or `rounds=3`"),
    ],
)
def test_a_message_names_the_options_of_its_command(
    command: str, error: FedrayError, said: str
) -> None:
    assert in_flags(error, COMMANDS[command].params) == said


def test_an_error_has_its_argument_value_rule_and_remedy_as_fields() -> None:
    with pytest.raises(InputError) as found:
        fedray.Placement(shards=0)
    error = pickle.loads(pickle.dumps(found.value))
    assert (error.argument, error.value) == ("shards", 0)
    assert (error.rule, error.remedy) == ("must be at least 1", "leave it out for one per CPU")
    assert str(error) == "shards=0 must be at least 1; leave it out for one per CPU"


def test_every_other_name_is_of_a_parameter_that_a_command_has() -> None:
    parameters = {each.name for command in COMMANDS.values() for each in command.params}
    assert set(OTHER_NAMES) <= parameters


def test_a_command_that_is_refused_names_its_flags(fedray_command) -> None:
    code, _, stderr = fedray_command("fit", "--population", "9", "--rounds", "9", "--min-sep", "2")
    assert (code, stderr) == (2, "fedray: --timer must be given, or a scenario file\n")


@pytest.mark.parametrize(
    ("typed", "rule"),
    [
        # Read as 400 by some releases of typer, and meant as 400,000.
        (("plan", "--population", "400.000"), "a whole number, in digits alone, such as 400000"),
        (("plan", "--population=1,500"), "a whole number, in digits alone, such as 1500"),
        (("plan", "--population", "1.5"), "a whole number, in digits alone, such as 1000"),
        (("plan", "--epsilon", "3,5"), "a number, with a decimal point if any, such as 3.5"),
        (("plan", "--epsilon=viel"), "a number, with a decimal point if any, such as 0.5"),
    ],
)
def test_an_option_that_is_no_number_is_told_with_what_may_be_meant(
    fedray_command, typed: tuple[str, ...], rule: str
) -> None:
    code, stdout, stderr = fedray_command(*typed)
    flag, _, value = " ".join(typed[1:]).replace("=", " ").partition(" ")
    assert (code, stdout) == (2, "")
    assert stderr == f"fedray: {flag}={value!r} must be {rule}\n"


def test_annotations_of_every_command_can_be_read_for_numbers() -> None:
    found: dict[str, set[str]] = {}
    for name, command in COMMANDS.items():
        for each in command.params:
            flag = each.opts[0]
            try:
                check_numbers([flag, "x"], command.callback, command.params)
            except InputError:
                found.setdefault(name, set()).add(flag)
    assert {"--rounds", "--delta", "--bands"} <= found["optimize"]
    assert "--out" not in found["optimize"]
    assert "--checkpoint-seconds" in found["run"]
