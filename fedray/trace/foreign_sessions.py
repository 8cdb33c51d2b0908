"""Published traces of devices, made sessions: those of FLASH (JSON) and of FedScale (a pickle).

**FLASH** (Yang et al. 2021, "Characterizing Impacts of Heterogeneity in Federated Learning upon
Large-Scale Smartphone Data"; PKU-Chengxu/FLASH, `user_behavior_tiny.json`): a JSON object of users,
each with `messages`, a line "2020-01-30 00:09:32<tab>state" per change of state. A device is
eligible while it charges, is on wifi and is idle. FLASH says that everybody may define what idle
is; its own code takes a locked screen (models/timer.py).

**FedScale** (Lai et al. 2022; SymbioticLab/FedScale, `client_behave_trace`): a pickled dict of
clients, each with `active` and `inactive`, the seconds at which its sessions start and end.

A pickle is a program, and `pickle.load` runs it. `read_plain_pickle` runs no pickle: it reads the
opcodes by `pickletools.genops`, which only parses them, and interprets itself the few that build
None, booleans, numbers, text, lists, tuples and dicts. There is no code for the opcodes that import
a name, call something or build an object (GLOBAL, STACK_GLOBAL, REDUCE, BUILD, INST, OBJ, NEWOBJ,
EXT and persistent ids), so a file that has one is refused at that place. Every opcode adds at most
what it has in the file, or one reference, so that what is built grows with the file's size alone.
"""

import json
import pickletools
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedray.errors import InputError, shown
from fedray.trace.sessions import Sessions, joined_sessions

Idle = Literal["screen-off", "locked"]
"""When a device of FLASH is idle: its screen is off, or it is locked."""
_STATES = {
    "battery_charged_on": ("charging", True),
    "battery_charged_off": ("charging", False),
    "wifi": ("wifi", True),
    "unknown": ("wifi", False),
    "2g": ("wifi", False),
    "3g": ("wifi", False),
    "4g": ("wifi", False),
    "5g": ("wifi", False),
    "screen_off": ("screen-off", True),
    "screen_on": ("screen-off", False),
    "screen_lock": ("locked", True),
    "screen_unlock": ("locked", False),
}
"""What each message of FLASH says; others, such as the battery's level, say nothing of it."""
_IGNORED = ("battery_low", "battery_okay", "phone_off", "phone_on")
MOST_BYTES = 2 << 30
"""Largest file that is read, since it is read whole."""
_DAY = 86_400.0


def read_flash(file: Path, idle: str = "screen-off") -> Sessions:
    """The sessions of FLASH's devices, numbered in the file's order.

    Times have no zone, and are taken as local ones. The first midnight is that of the first
    message.

    Args:
        file: the JSON.
        idle: "screen-off" or "locked".

    Raises:
        InputError: it is no such file, or has a message that cannot be read.
    """
    if idle not in get_args(Idle):
        raise InputError(f"idle={idle!r} is none of {', '.join(get_args(Idle))}")
    try:
        users = json.loads(_content(file))
    except (ValueError, RecursionError) as error:
        raise _refused(file, f"it is no JSON ({error})") from None
    if not isinstance(users, dict) or not users:
        raise _refused(file, "it is no object of users")
    parts: list[tuple[int, float, float]] = []
    for device, (user, record) in enumerate(users.items()):
        messages = record.get("messages") if isinstance(record, dict) else None
        # Some users have a list of lines instead of one text.
        if isinstance(messages, list) and all(isinstance(each, str) for each in messages):
            messages = "\n".join(messages)
        if not isinstance(messages, str):
            raise _refused(file, f"user {shown(user)} has no text 'messages'")
        for start, end in _flash_sessions(file, user, messages, idle):
            parts.append((device, start, end))
    if not parts:
        raise _refused(file, "none of its users is ever charging, on wifi and idle")
    # Numbers of devices are exact as float64 far beyond the size of any file.
    device, start, end = np.array(parts).T
    return _sessions(len(users), device.astype(np.int64), start, end)


def read_fedscale(file: Path) -> Sessions:
    """The sessions of FedScale's clients, numbered in the order of their ids.

    Sessions of a client that overlap are one, since a client is active in either.

    Args:
        file: the pickle.

    Raises:
        InputError: it is no such file, or has anything but plain values.
    """
    try:
        clients = read_plain_pickle(_content(file))
    except ValueError as error:
        raise _refused(file, str(error)) from None
    if not isinstance(clients, dict) or not clients:
        raise _refused(file, "it is no dict of clients")
    # isinstance would take True for a number.
    if not all(type(client) in (int, str) for client in clients):
        raise _refused(file, "its keys are not the ids of clients")
    # Numbers and text cannot be compared, so all numbers come first.
    ids = sorted(clients, key=lambda client: (isinstance(client, str), client))
    parts = []
    for device, client in enumerate(ids):
        record = clients[client]
        columns = []
        for name in ("active", "inactive"):
            values = _numbers(record.get(name)) if isinstance(record, dict) else None
            if values is None:
                raise _refused(file, f"client {shown(client)} has no list {name!r} of numbers")
            columns.append(values)
        start, end = columns
        if start.size != end.size or not (np.isfinite(end) & (start >= 0) & (start <= end)).all():
            raise _refused(
                file, f"client {shown(client)} has sessions that do not end after they start"
            )
        # What ends when it starts is no time.
        lasts = end > start
        parts.append(
            np.stack([np.full(int(lasts.sum()), device, np.float64), start[lasts], end[lasts]])
        )
    device, start, end = np.concatenate(parts, axis=1)
    if not device.size:
        raise _refused(file, "none of its clients is ever active")
    return _sessions(len(ids), device.astype(np.int64), start, end)


def _numbers(values: Any) -> NDArray[np.float64] | None:
    """A list of numbers as an array; None if it is none."""
    if not isinstance(values, list | tuple):
        return None
    if not all(type(value) in (int, float) for value in values):
        return None
    try:
        return np.array(values, np.float64)
    except OverflowError:
        # A pickle's whole number may be larger than any float.
        return None


def read_plain_pickle(content: bytes) -> Any:
    """The value of a pickle of plain values; nothing that the pickle names is imported or called.

    Args:
        content: the pickle, of any protocol.

    Raises:
        ValueError: it is damaged, or has an opcode that builds anything else.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    try:
        for opcode, argument, _ in pickletools.genops(content):
            name = opcode.name
            if name == "STOP":
                # A whole pickle leaves one value.
                (value,) = stack
                return value
            _step(name, argument, stack, marks, memo)
    except (ValueError, LookupError, TypeError, OverflowError, UnicodeError) as error:
        # A refusal is a ValueError too, and says better what is wrong.
        if isinstance(error, _Refused):
            raise
        raise ValueError(f"it is no whole pickle ({error})") from None
    raise ValueError("it is no whole pickle")


class _Refused(ValueError):
    """A pickle that does more than build plain values."""


_PUSHED = (
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"),
    *("BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
)
"""Opcodes that push the value that they have."""
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}


def _step(name: str, argument: Any, stack: list[Any], marks: list[int], memo: dict) -> None:
    """What one opcode does to the stack, the marks in it and the memo."""
    if name in _PUSHED:
        stack.append(argument)
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name in ("PROTO", "FRAME"):
        # These opcodes tell how the pickle is stored, and build nothing.
        pass
    elif name == "MARK":
        marks.append(len(stack))
    elif name in ("EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE"):
        stack.append({"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}[name]())
    elif name in ("LIST", "TUPLE", "DICT"):
        items = _marked(stack, marks)
        stack.append({"LIST": list, "TUPLE": tuple, "DICT": _pairs}[name](items))
    elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
        size = int(name[-1])
        # Items come off the stack in reverse.
        items = [stack.pop() for _ in range(size)]
        stack.append(tuple(reversed(items)))
    elif name in ("APPEND", "APPENDS"):
        items = [stack.pop()] if name == "APPEND" else _marked(stack, marks)
        _add(stack[-1], list, items)
    elif name in ("SETITEM", "SETITEMS"):
        items = [stack.pop(-2), stack.pop()] if name == "SETITEM" else _marked(stack, marks)
        _add(stack[-1], dict, items)
    elif name in ("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"):
        memo[len(memo) if name == "MEMOIZE" else int(argument)] = stack[-1]
    elif name in ("GET", "BINGET", "LONG_BINGET"):
        stack.append(memo[int(argument)])
    elif name == "POP":
        stack.pop()
    else:
        raise _Refused(
            f"it has the opcode {name}, which builds more than numbers, text, lists and dicts; "
            "such a file may run code, so it is not read"
        )


def _marked(stack: list[Any], marks: list[int]) -> list[Any]:
    first = marks.pop()
    items = stack[first:]
    del stack[first:]
    return items


def _pairs(items: list[Any]) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))


def _add(container: Any, kind: type, items: list[Any]) -> None:
    # A container in itself could not be walked to an end.
    if type(container) is not kind or any(item is container for item in items):
        raise ValueError("something is added to what is no container, or to itself")
    if isinstance(container, list):
        container.extend(items)
    else:
        container.update(_pairs(items))


def _flash_sessions(file: Path, user: str, messages: str, idle: str) -> list[tuple[float, float]]:
    """The sessions of one user, seconds since 1970 by its own clock."""
    changes = list(_flash_changes(file, user, messages))
    # FLASH's messages of one second are in the order in which they were sent; a sort keeps it.
    changes.sort(key=lambda change: change[0])
    # Nothing is on until a message says so.
    state = dict.fromkeys(("charging", "wifi", idle), False)
    found: list[tuple[float, float]] = []
    since = None
    for place, (time, name, is_on) in enumerate(changes):
        if name in state:
            state[name] = is_on
        # Messages of one second have no time between them, so only the last state counts.
        is_last_of_second = place + 1 == len(changes) or changes[place + 1][0] > time
        if not is_last_of_second:
            continue
        if all(state.values()):
            since = time if since is None else since
        elif since is not None:
            found.append((since, time))
            since = None
    # What is on when the messages end is known to be on until the last of them.
    if since is not None and changes[-1][0] > since:
        found.append((since, changes[-1][0]))
    return found


def _flash_changes(file: Path, user: str, messages: str) -> Iterator[tuple[float, str, bool]]:
    for line in messages.splitlines():
        if not line.strip():
            continue
        moment, _, message = (part.strip() for part in line.strip().partition("\t"))
        try:
            # Without a zone: taken as UTC, so that no clock change of this machine moves it.
            time = datetime.strptime(moment, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
        except ValueError:
            raise _refused(file, f"user {shown(user)} has the line {shown(line)}") from None
        state = message.lower()
        if state in _STATES:
            yield (time, *_STATES[state])
        elif not state.endswith("%") and state not in _IGNORED:
            raise _refused(file, f"user {shown(user)} has the unknown state {shown(message)}")
        else:
            # The message tells no state, but that the device was recorded until then.
            yield (time, "", True)


def _sessions(
    devices: int, device: NDArray[np.int64], start: NDArray[np.float64], end: NDArray[np.float64]
) -> Sessions:
    """Sorted and apart, from the midnight before the first on."""
    midnight = np.floor(start.min() / _DAY) * _DAY
    return Sessions(0, devices, *joined_sessions(device, start - midnight, end - midnight))


def _content(file: Path) -> bytes:
    try:
        if file.stat().st_size > MOST_BYTES:
            raise _refused(file, f"it is larger than {MOST_BYTES >> 30} GiB")
        return file.read_bytes()
    except OSError as error:
        raise _refused(file, f"{error.strerror or error}") from None


def _refused(file: Path, problem: str) -> InputError:
    return InputError(
        f"trace {str(file)!r} cannot be read: {problem}; name a file of the kind that was said"
    )
