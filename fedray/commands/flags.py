"""Flags of the command for arguments of the library: an error of the library names an argument,
such as `trust_code=True`, and whoever typed a command reads its flag, `--trust-code`."""

import re
from collections.abc import Iterable
from typing import Any

OTHER_NAMES = {
    "devices": "population",
    "is_resumed": "resume",
    "memory_mebibytes": "memory",
    "timer_hours": "timer",
    "worker_timeout_seconds": "worker_timeout",
}
"""Arguments of the library whose name is not that of the command's parameter."""
_OF_A_FILE = re.compile(r"\bfile '[^']*': ")
"""What follows is about keys of a file, which may be called like arguments."""


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
    flags |= {name: flags[own] for name, own in OTHER_NAMES.items() if own in flags}
    names = "|".join(map(re.escape, flags))
    mention = re.compile(rf"(?<![\w.'/-])({names})(=(?:True|None|False)\b|=)")

    def flag(found: re.Match[str]) -> str:
        on, off = flags[found[1]]
        return {"=False": off, "=": f"{on}="}.get(found[2], on)

    of_a_file = _OF_A_FILE.search(message)
    end = of_a_file.end() if of_a_file else len(message)
    return mention.sub(flag, message[:end]) + message[end:] if flags else message
