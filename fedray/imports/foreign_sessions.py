"""Reads sessions from published device traces: FLASH (JSON) and FedScale (a pickle).

**FLASH** (Yang et al. 2021, "Characterizing Impacts of Heterogeneity in Federated Learning upon
Large-Scale Smartphone Data"; PKU-Chengxu/FLASH, `user_behavior_tiny.json`): a JSON object of users,
each with `messages`, a line "2020-01-30 00:09:32<tab>state" per change of state. A device is
eligible while it charges, is on wifi and is idle. FLASH leaves the definition of idle to its users;
its own code uses a locked screen (models/timer.py).

**FedScale** (Lai et al. 2022; SymbioticLab/FedScale, `client_behave_trace`): a pickled dict of
clients, each with `active` and `inactive`, the seconds at which its sessions start and end.

A pickle is a program, and `pickle.load` runs it. `fedscale_pickle.py` reads it in a separate
process with limited time and memory, and refuses every pickle that names code.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError, one_line, shown
from fedray.base.regular_file import read_regular_file
from fedray.imports.sessions import Sessions, joined_sessions

Idle = Literal["screen-off", "locked"]
"""Definition of an idle device in FLASH: its screen is off, or it is locked."""
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
"""The state that each message of FLASH changes, and its new value."""
_IGNORED = ("battery_low", "battery_okay", "phone_off", "phone_on")
MOST_BYTES = 2 << 30
"""Largest size of a file, which is read whole."""
_PICKLE_MEMORY = 1 << 30
"""Memory for the reader of a pickle, in addition to sixteen times the size of the file, bytes."""
_PICKLE_SECONDS = 10
"""CPU time for the reader of a pickle, in addition to two seconds per MiB of the file, seconds."""
_DAY = 86_400.0


def read_flash(file: Path, idle: str = "screen-off") -> Sessions:
    """Reads the sessions of FLASH's devices, numbered in the file's order.

    Times have no zone and are read as local times, from the midnight before the first session.

    Args:
        file: the JSON file.
        idle: "screen-off" or "locked".

    Raises:
        InputError: the file has another format, or a message that cannot be read.
    """
    if idle not in get_args(Idle):
        raise InputError.of("idle", idle, f"is none of {', '.join(get_args(Idle))}")
    try:
        users = json.loads(_content(file))
    except (ValueError, RecursionError) as error:
        raise _refused(file, f"it is not JSON ({error})") from None
    if not isinstance(users, dict) or not users:
        raise _refused(file, "it is not an object of users")
    parts: list[tuple[int, float, float]] = []
    for device, (user, record) in enumerate(users.items()):
        messages = record.get("messages") if isinstance(record, dict) else None
        # Some users have a list of lines instead of one string.
        if isinstance(messages, list) and all(isinstance(each, str) for each in messages):
            messages = "\n".join(messages)
        if not isinstance(messages, str):
            raise _refused(file, f"user {shown(user)} has no text 'messages'")
        for start, end in _flash_sessions(file, user, messages, idle):
            parts.append((device, start, end))
    if not parts:
        raise _refused(file, "no user is ever charging, on wifi and idle at once")
    # Device numbers are exact as float64 far beyond the size of any file.
    device, start, end = np.array(parts).T
    return _sessions(len(users), device.astype(np.int64), start, end)


def read_fedscale(file: Path) -> Sessions:
    """Reads the sessions of FedScale's clients, numbered in the order of their ids.

    Overlapping sessions of a client are joined, since it is active in both.

    Args:
        file: the pickle.

    Raises:
        InputError: the file cannot be read, or does not consist of plain values.
    """
    values = np.frombuffer(_read_apart(file), np.float64)
    device, start, end = values[1:].reshape(3, -1)
    if not device.size:
        raise _refused(file, "no client is ever active")
    return _sessions(int(values[0]), device.astype(np.int64), start, end)


def _read_apart(file: Path) -> bytes:
    """Returns the output of fedscale_pickle.py for a file."""
    content = _content(file)
    # Values need up to sixteen times their bytes in the pickle; two seconds read several MiB.
    memory = _PICKLE_MEMORY + 16 * len(content)
    seconds = _PICKLE_SECONDS + (len(content) >> 19)
    script = str(Path(__file__).with_name("fedscale_pickle.py"))
    # -I and -S prevent imports from the working directory and of site-specific code.
    command = [sys.executable, "-I", "-S", script, str(memory), str(seconds)]
    try:
        # The process limits its CPU time, which may take longer on a busy machine.
        run = subprocess.run(command, input=content, capture_output=True, timeout=10 * seconds)
    except subprocess.TimeoutExpired:
        raise _refused(file, f"reading it takes more than {10 * seconds} s") from None
    if run.returncode == 1:
        raise _refused(file, run.stderr.decode(errors="replace").strip())
    if run.returncode:
        raise _refused(
            file,
            f"reading it exceeds {seconds} s of computing, {memory >> 20} MiB or the stack "
            f"(exit code {run.returncode})",
        )
    return run.stdout


def _flash_sessions(file: Path, user: str, messages: str, idle: str) -> list[tuple[float, float]]:
    """Returns the sessions of one user, in seconds since 1970 by its own clock."""
    changes = list(_flash_changes(file, user, messages))
    # Messages of one second are in the order in which they were sent, which a stable sort keeps.
    changes.sort(key=lambda change: change[0])
    # All states are off until a message turns them on.
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
    # A device that is eligible at the end is known to be eligible only until the last message.
    if since is not None and changes[-1][0] > since:
        found.append((since, changes[-1][0]))
    return found


def _flash_changes(file: Path, user: str, messages: str) -> Iterator[tuple[float, str, bool]]:
    for line in messages.splitlines():
        if not line.strip():
            continue
        moment, _, message = (part.strip() for part in line.strip().partition("\t"))
        try:
            # Times are read as UTC, so that this machine's clock changes do not move them.
            time = datetime.strptime(moment, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
        except ValueError:
            raise _refused(file, f"user {shown(user)} has the line {shown(line)}") from None
        state = message.lower()
        if state in _STATES:
            yield (time, *_STATES[state])
        elif not state.endswith("%") and state not in _IGNORED:
            raise _refused(file, f"user {shown(user)} has the unknown state {shown(message)}")
        else:
            # Without a state, the message shows that the device was recorded until then.
            yield (time, "", True)


def _sessions(devices: int, device: Int64Array, start: Float64Array, end: Float64Array) -> Sessions:
    midnight = np.floor(start.min() / _DAY) * _DAY
    return Sessions(0, devices, *joined_sessions(device, start - midnight, end - midnight))


def _content(file: Path) -> bytes:
    try:
        return read_regular_file(file, MOST_BYTES)
    except OSError as error:
        raise _refused(file, f"{error.strerror or error}") from None


def _refused(file: Path, problem: str) -> InputError:
    return InputError(
        one_line(f"trace {str(file)!r} cannot be read: {problem}; check the file and its kind")
    )
