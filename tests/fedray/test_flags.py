"""What the library says of arguments, the command says of flags."""

import pickle

import pytest
import typer.main

import fedray
from fedray.base.errors import FedrayError, InputError
from fedray.cli import app
from fedray.commands.frame.flags import OTHER_NAMES, in_flags
from fedray.commands.frame.numbers import check_numbers

COMMANDS = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("command", "error", "said"),
    [
        (
            "run",
            FedrayError("read it, and pass `trust_code=True`"),
            "read it, and pass `--trust-code`",
        ),
        (
            "import",
            InputError.of("device_column", "dev", "is missing", "give `renumber=True`"),
            "--column device='dev' is missing; give `--rounds=logged`",
        ),
        (
            "import",
            InputError("or `rounds_file='r.csv'`, or `renumber=True`"),
            "or `--rounds='r.csv'`, or `--rounds=logged`",
        ),
        ("run", InputError.of("shards", 0, "is low"), "--place shards=0 is low"),
        ("audit", FedrayError("unchecked (`verify=False`)"), "unchecked (`--no-verify`)"),
        (
            "import",
            InputError.of("where", "x", "is no number", "give `time_unit='seconds'`"),
            "--where='x' is no number; give `--time-format='seconds'`",
        ),
        (
            "import",
            InputError("ceil(rounds / min_sep) time_unit"),
            "ceil(rounds / min_sep) time_unit",
        ),
        ("fit-log", InputError.of("timer_hours", None, "must be given"), "--timer must be given"),
        (
            "fit-log",
            InputError.of("participation.timer_hours", 0.0, "is low", "raise it"),
            "participation.timer_hours=0.0 is low; raise it",
        ),
        ("audit", InputError.of("min_sep", 0, "is low"), "min_sep=0 is low"),
        ("audit", InputError("use more, or `seeds=3`"), "use more, or `seeds=3`"),
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
    assert set(OTHER_NAMES.values()) <= parameters


def test_a_command_that_is_refused_names_its_flags(fedray_command) -> None:
    numbers = ("--rounds", "5", "--max-participations", "2", "--min-sep", "0")
    code, _, stderr = fedray_command("mechanism", "identity", *numbers)
    assert (code, stderr) == (
        2,
        "fedray: --min-sep=0 must be at least 1; 1 permits every round\n",
    )


@pytest.mark.parametrize(
    ("typed", "rule"),
    [
        # Read as 400 by some releases of typer, and meant as 400,000.
        (("population", "--devices", "400.000"), "a whole number, in digits only, such as 400000"),
        (("population", "--devices=1,500"), "a whole number, in digits only, such as 1500"),
        (("population", "--devices", "1.5"), "a whole number, in digits only, such as 1000"),
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
    assert {"--rounds", "--min-sep", "--bands"} <= found["optimize"]
    assert "--out" not in found["optimize"]
    assert "--scale" in found["fit-min-sep"]
