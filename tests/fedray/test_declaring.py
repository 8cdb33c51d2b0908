"""Commands are declared by their functions: signatures give the options, docstrings the help."""

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

import fedray
from fedray.cli import GROUPS, app
from fedray.commands.frame.declaring import COMMON, Described, declared, parsed
from fedray.commands.frame.placing import placement_of
from fedray.commands.frame.shared import FLAGS, SHARED

FOLDER = Path(fedray.__file__).parent / "commands"
COMMANDS: dict[str, Any] = vars(typer.main.get_command(app))["commands"]
FUNCTIONS = [function for group in GROUPS.values() for function in group]


def options_of(command: Any) -> list[Any]:
    return [each for each in command.params if each.param_type_name == "option"]


def test_a_docstring_describes_parameters_under_headings() -> None:
    text, described = parsed(
        inspect.cleandoc(
            """Do one thing.

            Example: it ends with a colon:
            and goes on.

            Args:
                first: one
                    and more
            Of the second kind:
                second (N|all): two: a number
            """
        )
    )
    assert text == "Do one thing.\n\nExample: it ends with a colon:\nand goes on."
    assert described == {
        "first": Described("One and more", None, None),
        "second": Described("Two: a number", "N|all", "Of the second kind"),
    }


def test_a_signature_gives_arguments_options_and_flags() -> None:
    called = []

    def example(
        source: str, *, is_on: bool = False, verify: bool | None = None, level: int = 3
    ) -> None:
        """Example.

        Args:
            source: source
            is_on: switch
            verify: check
            level (N): level
        """
        called.append((source, is_on, verify, level))

    app = typer.Typer(add_completion=False)
    app.command()(declared(example))
    for given in (["x"], ["x", "--is-on", "--no-verify", "--level", "4"], ["x", "--verify"]):
        assert CliRunner().invoke(app, given).exit_code == 0
    assert called == [("x", False, None, 3), ("x", True, False, 4), ("x", False, True, 3)]
    assert CliRunner().invoke(app, ["x", "--no-is-on"]).exit_code == 2
    assert CliRunner().invoke(app, []).exit_code == 2


def test_a_parameter_without_a_description_is_an_error() -> None:
    def example(*, unheard_of: int = 1) -> None:
        """Example."""

    with pytest.raises(KeyError, match="unheard_of"):
        declared(example)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
def test_a_command_is_one_short_file_of_its_name(function: Any) -> None:
    file = Path(inspect.getfile(function))
    assert file.stem == function.__name__
    assert file.parent in (FOLDER, FOLDER / "studies")
    # A docstring describes no parameter that the function lacks.
    described = parsed(inspect.getdoc(function) or "")[1]
    assert set(described) <= set(inspect.signature(function).parameters)


def test_every_file_is_a_command() -> None:
    """The command finds its parts by their files, so a misspelt name would hide one."""
    files = [*FOLDER.glob("[a-z]*.py"), *FOLDER.glob("studies/[a-z]*.py")]
    listed = [function.__name__ for function in FUNCTIONS]
    assert sorted(file.stem for file in files) == sorted([*listed, "reproduce"])


def test_a_parameter_has_the_same_option_in_every_command() -> None:
    found: dict[str, set[tuple[str, ...]]] = {}
    for command in COMMANDS.values():
        for each in options_of(command):
            found.setdefault(each.name, set()).add((*each.opts, *each.secondary_opts))
    assert not {name: each for name, each in found.items() if len(each) > 1}
    assert set(FLAGS) <= found.keys()


def test_every_shared_description_is_used_by_several_commands() -> None:
    parameters = [each.name for command in COMMANDS.values() for each in command.params]
    parameters += ["place"]  # of reproductions
    assert not [name for name in parsed(SHARED)[1] if parameters.count(name) < 2]


def test_commands_have_few_options() -> None:
    many = {
        name: sum(each.name not in COMMON for each in options_of(command))
        for name, command in COMMANDS.items()
    }
    # --help and what else every command has is not among them.
    found = [name for name, count in many.items() if count > 13]
    assert found == ["import", "audit", "budget", "mechanism", "stress"]


def test_the_schema_describes_every_key_of_a_placement(fedray_command) -> None:
    code, out, _ = fedray_command("schema", "placement", "--json")
    assert code == 0
    (part,) = json.loads(out)["parts"]
    names = [each.name for each in dataclasses.fields(fedray.Placement)]
    assert [each["name"] for each in part["rows"]] == names
    assert all(each["meaning"] and each["type"] for each in part["rows"])


def test_a_placement_is_read_key_by_key() -> None:
    texts = ["shards=4", "address = auto", "checkpoint_seconds=0.5", "shards=2"]
    expected = fedray.Placement(shards=2, address="auto", checkpoint_seconds=0.5)
    assert placement_of(texts) == expected
    assert placement_of(None) == fedray.Placement()
