"""Flags of the command for arguments of the library: an error of the library names an argument,
such as `trust_code=True`, and whoever typed a command reads its flag, `--trust-code`."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, get_args, get_type_hints

from fedray.base.errors import InputError, shown

OTHER_NAMES = {
    "memory": "memory_mebibytes",
    "population": "devices",
    "resume": "is_resumed",
    "sample": "devices",
    "timer": "timer_hours",
    "worker_timeout": "worker_timeout_seconds",
}
"""Parameters of commands, with the library's name of the same argument where that is another."""
RENAMED = {
    ("audit", "--out"): "--page",
    ("evaluate", "--devices"): "--sample",
    ("fit", "--devices"): "--population",
    ("plan", "--devices"): "--population",
}
"""What options of commands were called, and are called now."""
KEY_NAMES = {"population": "devices", "rounds": "count", "timer": "timer_hours"}
"""Options of some commands, with the name of the scenario's key where that is another."""
_WITH_THOUSANDS = re.compile(r"\d{1,3}([., ']\d{3})+")
"""A whole number as people write it, such as 400.000 or 400,000."""
_OF_A_FILE = re.compile(r"\bfile '[^']*': ")
"""What follows is about keys of a file, which may be called like arguments."""


def renamed(command: str, option: str) -> str | None:
    """What to say of an `option` of a `command` that has a new name; None where it has none."""
    new_name = RENAMED.get((command, option))
    if new_name is None:
        return None
    return f"fedray {command} {option}: this option is called {new_name} now; use that"


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
            raise InputError(f"{flag}={shown(given)} must be {rule}") from None


def _rule_of_whole(given: str) -> str:
    example = re.sub(r"\D", "", given) if _WITH_THOUSANDS.fullmatch(given) else "1000"
    return f"a whole number, in digits alone, such as {example}"


def _rule_of_number(given: str) -> str:
    with_point = given.replace(",", ".")
    is_meant = re.fullmatch(r"\d+\.\d+", with_point) is not None
    return f"a number, with a decimal point if any, such as {with_point if is_meant else '0.5'}"


def in_flags(message: str, parameters: Iterable[Any]) -> str:
    """Puts the flags of a command in a message of the library.

    Args:
        message: names arguments as `name=value`, `name=True`, `name=False` or `name=None`. A name
            without its sign may be prose, such as rounds, and stays as it is.
        parameters: those of the command, as click has them. What is none of them keeps its name.
    """
    flags: dict[str, tuple[str, str]] = {}
    for each in parameters:
        if each.param_type_name == "option":
            flags[each.name] = each.opts[0], (*each.secondary_opts, each.opts[0])[0]
    # Arguments that the library calls otherwise lead to the same flags.
    flags |= {name: flags[own] for own, name in OTHER_NAMES.items() if own in flags}
    names = "|".join(map(re.escape, flags))
    # Names inside paths, quotes and dotted keys are no arguments, hence what may not stand before.
    mention = re.compile(rf"(?<![\w.'/-])({names})(=(?:True|None|False)\b|=)")

    def flag(found: re.Match[str]) -> str:
        on, off = flags[found[1]]
        # A value stays behind its flag; True and None name the flag itself, and False its opposite.
        return {"=False": off, "=": f"{on}="}.get(found[2], on)

    of_a_file = _OF_A_FILE.search(message)
    end = of_a_file.end() if of_a_file else len(message)
    return mention.sub(flag, message[:end]) + message[end:] if flags else message


def with_set(message: str, overrides: Iterable[str]) -> str:
    """Puts `--set` in a message of the library that names overrides.

    Args:
        message: names them as "override 'table.key=value'".
        overrides: those that were typed. A command may set keys by other options too.
    """
    for each in overrides:
        message = message.replace(f"override {shown(each)}", f"--set {shown(each)}")
    return message
