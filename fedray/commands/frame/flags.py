"""Translates the arguments that errors of the library name into options of commands: for
`trust_code=True`, the user of a command reads `--trust-code`."""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from fedray.base.errors import FedrayError, shown

OTHER_NAMES = {
    "is_resumed": "resume",
    "keep_ids": "keep_id",
    "rounds_file": "rounds",
    "devices": "sample",
    "time_unit": "time_format",
    "timer_hours": "timer",
    "what_ifs": "what_if",
}
"""Arguments of the library, with the parameter of commands that gives each."""
SETTINGS = {
    "column": {f"{role}_column": role for role in ("device", "round", "time", "start", "end")},
}
"""Arguments of the library that an option of several settings gives, with their names there."""
VALUES = {("renumber", "True"): "--rounds=logged"}
"""Arguments that are a value of an option of another name."""
_KEY_NAMES = {
    "population": "devices",
    "rounds": "count",
    "timer": "timer_hours",
    "epsilon": "target_epsilon",
}
"""Words for keys of a scenario that have another name."""


def as_key(option: str) -> str | None:
    """Returns the error of an unknown option that is the name of a scenario's key.

    Args:
        option: the option, which a command with `--set` lacks.

    Returns:
        The error with the way to set the key; None if no key has the name.
    """
    # Unknown options are rare, and importing scenarios takes a while.
    from fedray.scenario.keys import tables_of

    name = option.lstrip("-").replace("-", "_")
    name = _KEY_NAMES.get(name, name)
    found = [
        f"{each.path}.{name}".lstrip(".") for each in tables_of() if name in each.table.model_fields
    ]
    choices = [f"--set {key}=VALUE" for key in dict.fromkeys(found)]
    # A name of many tables, such as kind, does not identify one.
    if not 0 < len(choices) < 5:
        return None
    return f"No such option: {option}; a scenario's key is given by {' or '.join(choices)}"


def as_placement(option: str) -> str | None:
    """Returns the error of an unknown option that is a key of `--place`; None if it is none."""
    name = option.lstrip("-").replace("-", "_")
    # These are the two most used keys, which one may expect to be options.
    choices = {"in_process": "backend=in-process", "ray": "backend=ray"}
    keys = {each: f"{each}=VALUE" for each in _placement_keys()}
    setting = (choices | keys).get(name)
    if setting is None:
        return None
    return f"No such option: {option}; it is given by --place {setting}"


def _placement_keys() -> list[str]:
    from fedray.runtime.placement import Placement

    return [each.name for each in fields(Placement)]


def in_flags(error: FedrayError, parameters: Iterable[Any]) -> str:
    """Returns the message of an error with the options of a command for arguments of the library.

    Args:
        error: error whose arguments may include some that the command lacks: those keep their
            names.
        parameters: parameters of the command, as click has them.
    """
    flags: dict[str, tuple[str, str]] = {}
    for each in parameters:
        if each.param_type_name == "option":
            on = each.opts[0]
            flags[each.name] = on, next(iter(each.secondary_opts), on)
    flags |= {name: flags[own] for name, own in OTHER_NAMES.items() if own in flags}
    settings = {name: SETTINGS[name] for name in SETTINGS.keys() & flags}
    if "place" in flags:
        settings["place"] = {each: each for each in _placement_keys()}

    def flag(argument: str, value: str) -> str | None:
        for option, names in settings.items():
            if argument in names:
                return f"--{option} {names[argument]}={value}"
        if argument not in flags:
            return VALUES.get((argument, value)) if "rounds" in flags else None
        on, off = flags[argument]
        return {"True": on, "None": on, "False": off}.get(value, f"{on}={value}")

    return error.naming(flag)


def with_set(message: str, overrides: Iterable[str]) -> str:
    """Puts `--set` in a message of the library that names overrides.

    Args:
        message: message that names them as "override 'table.key=value'".
        overrides: overrides that were typed; a command may set further keys itself.
    """
    for each in overrides:
        message = message.replace(f"override {shown(each)}", f"--set {shown(each)}")
    return message
