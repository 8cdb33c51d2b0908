"""Progress of an unfinished run: a small file in its partial directory, for watchers.

    DIRECTORY.partial/progress.json

The file is not part of the result, and no result depends on it. It is replaced about once a second,
and removed when the directory gets its final name. If it cannot be written, watchers see no
progress, but the run continues.
"""

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, FiniteFloat, TypeAdapter

from fedray.base.atomic import whole_file
from fedray.base.pace import Pace
from fedray.base.parsing import finite_or_none, parse_json
from fedray.base.regular_file import read_regular_file

PROGRESS_FILE = "progress.json"
FORMAT = "fedray-progress"
VERSION = 1
MOST_BYTES = 16 << 20
"""Largest size of a progress file that is read."""
SECONDS_BETWEEN = 1.0
"""Shortest time between two versions of the file, seconds."""
MOST_SHARE = 0.01
"""Largest share of time spent on writing; on a slow disk the file is written less often."""

Kind = Literal["simulation", "training"]
Count = Annotated[int, Field(ge=0, lt=2**53)]
"""The largest count that every reader of JSON represents exactly."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process, with enough to recognise it after its number was reused."""

    pid: int
    """Process id."""
    started: int
    """Start of the process, in clock ticks since the machine was started."""
    machine: str
    """Identity of the machine since its last start, and namespace of the pid."""

    @classmethod
    def present(cls) -> Self | None:
        """Returns this process, or None if the system has no /proc."""
        started, machine = _started(os.getpid()), _machine()
        if started is None or machine is None:
            return None
        return cls(os.getpid(), started, machine)

    def is_running(self) -> bool | None:
        """Whether the process is still running; None if it belongs to another machine, or the
        system has no /proc."""
        # On another machine, or after a restart, the pid may belong to another process.
        if _machine() != self.machine:
            return None
        return _started(self.pid) == self.started


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """Content of a progress file."""

    kind: Kind
    """Work in progress."""
    process: Process | None
    """Process that does the work; None if its system has no /proc."""
    has_ended: bool
    """Whether the process reported that it ended without finishing."""
    begun: FiniteFloat
    """Time at which the work started or was resumed, seconds since 1970."""
    told: FiniteFloat
    """Time at which the file was last written, seconds since 1970."""
    done: Count
    """Rounds simulated or trained so far."""
    count: Count
    """Rounds to simulate or train in total."""
    seconds_left: Annotated[FiniteFloat | None, BeforeValidator(finite_or_none)]
    """Estimated time left, from the recent pace; None if unknown."""
    facts: Mapping[str, Any]
    """Further figures by name, which depend on `kind`."""


class ProgressFile:
    """The progress file of one partial directory.

    Args:
        partial: directory of the unfinished run.
    """

    def __init__(self, partial: Path) -> None:
        self._file = partial / PROGRESS_FILE
        self._head: dict[str, Any] = {}
        self._last: tuple[int, Callable[[], Mapping[str, Any]]] = (0, dict)
        """Latest report; the file may contain an earlier one."""
        self._pace = Pace()
        self._next = 0.0
        self._has_warned = False

    def begin(self, kind: Kind, done: int, count: int, waiting: str = "") -> None:
        """Writes the first version.

        Args:
            kind: work in progress.
            done: number of rounds already done, if the work is resumed.
            count: total number of rounds.
            waiting: what the work waits for, before it can begin.
        """
        process = Process.present()
        self._head = {
            "format": FORMAT,
            "version": VERSION,
            "kind": kind,
            "process": None if process is None else asdict(process),
            "has_ended": False,
            "begun": time.time(),
            "count": count,
        }
        facts = {"waiting": waiting} if waiting else {}
        self._pace, self._last = Pace(), (done, lambda: facts)
        self._write()

    def tell(self, done: int, facts: Callable[[], Mapping[str, Any]]) -> None:
        """Writes the next version if it is due.

        Args:
            done: number of rounds done.
            facts: function that returns further figures by name; called only if a version is due.
        """
        self._last = done, facts
        # Without a head the work has not begun, or is over.
        if self._head and time.monotonic() >= self._next:
            self._write()

    def end(self) -> None:
        """Records that the process ended without finishing, if the directory is kept."""
        if self._head:
            self._head["has_ended"] = True
            self._write()
        self.stop()

    def stop(self) -> None:
        """Stops writing."""
        self._head = {}

    def _write(self) -> None:
        begun = time.monotonic()
        done, facts = self._last
        document = {
            **self._head,
            "told": time.time(),
            "done": done,
            "seconds_left": self._pace.seconds_left(begun, done, self._head["count"]),
            "facts": dict(facts()),
        }
        self._replace(document)
        taken = time.monotonic() - begun
        self._next = begun + max(SECONDS_BETWEEN, taken / MOST_SHARE)

    def _replace(self, document: Mapping[str, Any]) -> None:
        # The file is not synced, because after a power failure no process is left to report on.
        try:
            with whole_file(self._file) as new:
                new.write_text(json.dumps(document, allow_nan=False))
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                logging.getLogger("fedray").warning(
                    "fedray: %s cannot be written (%s); the run continues, but "
                    "`fedray status` does not show its progress",
                    self._file,
                    error.strerror or error,
                )


def read_progress(partial: Path) -> ProgressReport | None:
    """Returns the content of a directory's progress file, or None if it has no valid one.

    Args:
        partial: directory of the unfinished run.
    """
    try:
        content = read_regular_file(partial / PROGRESS_FILE, MOST_BYTES, inside=partial)
        document = parse_json(content)
        if document["format"] != FORMAT or document["version"] != VERSION:
            return None
        return TypeAdapter(ProgressReport).validate_python(document)
    except (OSError, ValueError, KeyError, TypeError):
        # Whatever is wrong with the file, watchers see no progress and read it again later.
        return None


def _started(pid: int) -> int | None:
    """Returns the start of a process in ticks, or None if it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        # The name of the program is in parentheses, and may itself have spaces and parentheses.
        state, *numbers = stat.rpartition(")")[2].split()
        # A zombie has ended, although its parent has not read its status.
        # The state is field 3 of proc(5), and the start is field 22.
        return None if state in "ZX" else int(numbers[18])
    except (OSError, ValueError, IndexError):
        return None


def _machine() -> str | None:
    with contextlib.suppress(OSError):
        # The boot id changes at every start; the namespace distinguishes containers.
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return None
