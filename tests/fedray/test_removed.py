"""A name of an earlier version is refused in one sentence with its replacement, and no name that exists is."""

import pytest
import typer.main

from fedray.base.errors import InputError
from fedray.base.removed import REMOVED, removed
from fedray.cli import app

COMMANDS = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
OF_COMMANDS = [each for each in REMOVED if "=" not in each and "." not in each]


@pytest.mark.parametrize("name", OF_COMMANDS)
def test_a_removed_command_or_option_is_refused_with_its_replacement(
    name: str, fedray_command
) -> None:
    code, out, err = fedray_command(*name.split(), "x")
    assert (code, out, err) == (2, "", f"fedray: {removed(name)}\n")


def test_no_removed_command_or_option_exists() -> None:
    for name in OF_COMMANDS:
        command, _, option = name.partition(" ")
        if option:
            options = [each for param in COMMANDS[command].params for each in param.opts]
            assert option not in options
        else:
            assert command not in COMMANDS


def test_a_removed_key_or_value_is_refused_with_its_replacement(small) -> None:
    for name in set(REMOVED) - set(OF_COMMANDS):
        key, _, value = name.partition(" = ")
        with pytest.raises(InputError) as found:
            small(f"{key}={value or 1}")
        assert removed(name) in str(found.value)


def test_every_refusal_is_one_sentence() -> None:
    for name in REMOVED:
        refusal = removed(name)
        assert refusal is not None
        assert ". " not in refusal
        assert "\n" not in refusal
