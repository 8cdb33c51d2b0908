"""Flags of the command for arguments of the library: an error of the library names an argument,
such as `trust_code=True`, and whoever typed a command reads its flag, `--trust-code`."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, get_args, get_type_hints

from fedray.base.errors import FedrayError, InputError, shown

OTHER_NAMES = {
    "memory": "memory_mebibytes",
    "population": "devices",
    "resume": "is_resumed",
    "sample": "devices",
    "timer": "timer_hours",
    "worker_timeout": "worker_timeout_seconds",
}
"""Parameters of commands, with the library's name of the same argument where that is another."""
KEY_NAMES = {"population": "devices", "rounds": "count", "timer": "timer_hours"}
"""Options of some commands, with the name of the scenario's key where that is another."""
_WITH_THOUSANDS = re.compile(r"\d{1,3}([., ']\d{3})+")
"""A whole number as people write it, such as 400.000 or 400,000."""


def as_key(option: str) -> str | None:
    """What to say of an `option` that a command with `--set` lacks, where keys of a scenario have
    its name; None where none has."""
    # Typing an option that there is not is rare, and scenarios take a while to import.
    from fedray.scenario.keys import tables_of

    name = option.lstrip("-").replace("-", "_")
    name = KEY_NAMES.get(name, name)
    found = [
        f"{each.path}.{name}".lstrip(".") for each in tables_of() if name in each.table.model_fields
    ]
    choices = [f"--set {key}=VALUE" for key in dict.fromkeys(found)]
    # A name of many tables, such as kind, tells nothing.
    if not 0 < len(choices) < 4:
        return None
    return f"No such option: {option}; a scenario's key is given by {' or '.join(choices)}"


def check_numbers(
    typed: Sequence[str], command: Callable[..., Any], parameters: Iterable[Any]
) -> None:
    """Refuses options whose value is not the number that it must be.

    Releases of typer read the whole number "400.000" as 400, which somebody wrote for 400,000.

    Args:
        typed: what stands behind the command.
        command: its function, whose annotations say which options are numbers.
        parameters: those of the command, as click has them.

    Raises:
        InputError: a value is no number, or no whole one.
    """
    annotations = get_type_hints(command)
    kinds: dict[str, type[int] | type[float]] = {}
    for each in parameters:
        annotation = annotations.get(each.name)
        for kind in (int, float):
            if kind in (annotation, *get_args(annotation)):
                kinds |= dict.fromkeys(each.opts, kind)
    for place, one in enumerate(typed):
        flag, equals, value = one.partition("=")
        if flag not in kinds or not (equals or place + 1 < len(typed)):
            continue
        given = value if equals else typed[place + 1]
        try:
            kinds[flag](given)
        except ValueError:
            rule = _rule_of_whole(given) if kinds[flag] is int else _rule_of_number(given)
            raise InputError.of(flag, given, f"must be {rule}") from None


def _rule_of_whole(given: str) -> str:
    example = re.sub(r"\D", "", given) if _WITH_THOUSANDS.fullmatch(given) else "1000"
    return f"a whole number, in digits alone, such as {example}"


def _rule_of_number(given: str) -> str:
    with_point = given.replace(",", ".")
    is_meant = re.fullmatch(r"\d+\.\d+", with_point) is not None
    return f"a number, with a decimal point if any, such as {with_point if is_meant else '0.5'}"


def in_flags(error: FedrayError, parameters: Iterable[Any]) -> str:
    """The message of an error, with the options of a command for the arguments of the library.

    Args:
        error: names arguments, some of which the command may lack: those keep their names.
        parameters: parameters of the command, as click has them.
    """
    flags: dict[str, tuple[str, str]] = {}
    for each in parameters:
        if each.param_type_name == "option":
            flags[each.name] = each.opts[0], (*each.secondary_opts, each.opts[0])[0]
    # Arguments that the library calls otherwise lead to the same flags.
    flags |= {name: flags[own] for own, name in OTHER_NAMES.items() if own in flags}

    def flag(argument: str, value: str) -> str | None:
        if argument not in flags:
            return None
        on, off = flags[argument]
        return {"True": on, "None": on, "False": off}.get(value, f"{on}={value}")

    return error.naming(flag)


def with_set(message: str, overrides: Iterable[str]) -> str:
    """Puts `--set` in a message of the library that names overrides.

    Args:
        message: names them as "override 'table.key=value'".
        overrides: those that were typed. A command may set keys by other options too.
    """
    for each in overrides:
        message = message.replace(f"override {shown(each)}", f"--set {shown(each)}")
    return message
