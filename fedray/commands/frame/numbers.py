"""Check of options that must be numbers."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, get_args, get_type_hints

from fedray.base.errors import InputError

WRITTEN_NUMBER = re.compile(r"\d{1,3}([., ']\d{3})+")
"""A whole number as people write it, such as 400.000 or 400,000."""


def check_numbers(
    typed: Sequence[str], command: Callable[..., Any], parameters: Iterable[Any]
) -> None:
    """Refuses options whose value is not the number that it must be.

    Releases of typer read the whole number "400.000", which is meant as 400,000, as 400.

    Args:
        typed: arguments behind the command's name.
        command: its function, whose annotations say which options are numbers.
        parameters: its parameters as click has them.

    Raises:
        InputError: a value is not a number, or not a whole one.
    """
    annotations = get_type_hints(command)
    kinds: dict[str, type[int] | type[float]] = {}
    for each in parameters:
        annotation = annotations.get(each.name)
        for kind in (int, float):
            if kind in (annotation, *get_args(annotation)):
                kinds |= dict.fromkeys(each.opts, kind)
    for place, one in enumerate(typed):
        # A value follows as --flag=VALUE or as the next word.
        flag, equals, value = one.partition("=")
        if flag not in kinds or not (equals or place + 1 < len(typed)):
            continue
        given = value if equals else typed[place + 1]
        try:
            kinds[flag](given)
        except ValueError:
            rule = whole_number_rule(given) if kinds[flag] is int else _number_rule(given)
            raise InputError.of(flag, given, f"must be {rule}") from None


def whole_number_rule(given: str) -> str:
    """Returns the rule of whole numbers, with an example near the text that was given."""
    example = re.sub(r"\D", "", given) if WRITTEN_NUMBER.fullmatch(given) else "1000"
    return f"a whole number, in digits only, such as {example}"


def _number_rule(given: str) -> str:
    # Many languages write a comma where TOML and Python have a point.
    with_point = given.replace(",", ".")
    is_meant = re.fullmatch(r"\d+\.\d+", with_point) is not None
    example = with_point if is_meant else "0.5"
    return f"a number, with a decimal point if any, such as {example}"
