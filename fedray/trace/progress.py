"""Progress of a run that is being made: a small file in its partial directory, for watchers.

    DIRECTORY.partial/progress.json

The file is not part of the result, and no result depends on it. It is replaced about once a second,
and removed when the directory gets its name. If it cannot be written, watchers lose their view and
the run continues.
"""

import contextlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from fedray.base.atomic import whole_file
from fedray.base.parsing import finite_or_none, parse_json
from fedray.base.regular_file import read_regular_file

PROGRESS_FILE = "progress.json"
FORMAT = "fedray-progress"
VERSION = 1
MOST_BYTES = 16 << 20
"""Largest file that is read."""
SECONDS_BETWEEN = 1.0
"""Least time between two versions of the file."""
MOST_SHARE = 0.01
"""Most share of the time that writing may take: on a slow disk the file is written less often."""

Kind = Literal["simulation", "training"]


@dataclass(frozen=True, slots=True)
class Process:
    """A process, as others can recognise it: its number may later belong to another process.

    pid: its number.
    started: its start, in ticks of the system since the start of the machine.
    machine: the machine's present start, and the namespace of the pid.
    """

    pid: int
    started: int
    machine: str

    @classmethod
    def present(cls) -> Self | None:
        """This process; None if the system has no /proc."""
        started, machine = _started(os.getpid()), _machine()
        if started is None or machine is None:
            return None
        return cls(os.getpid(), started, machine)

    def is_running(self) -> bool | None:
        """Whether it still runs; None if it is a process of another machine, or the system has no
        /proc."""
        # On another machine, or after a restart, the number belongs to another process.
        if _machine() != self.machine:
            return None
        return _started(self.pid) == self.started


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """Content of a progress file.

    kind: work in progress.
    process: process at work; None if its system has no /proc.
    has_ended: whether it reported that it gave up.
    begun: start or resumption, seconds since 1970.
    told: last write of the file, seconds since 1970.
    done, count: rounds simulated or trained so far, and in total.
    seconds_left: an estimate from the pace so far, or None.
    facts: other figures of this kind, by name.
    """

    kind: Kind
    process: Process | None
    has_ended: bool
    begun: float
    told: float
    done: int
    count: int
    seconds_left: float | None
    facts: Mapping[str, Any]


class ProgressFile:
    """The progress file of one partial directory.

    Args:
        partial: the directory in which something is made.
    """

    def __init__(self, partial: Path) -> None:
        self._file = partial / PROGRESS_FILE
        self._head: dict[str, Any] = {}
        self._last: tuple[int, Callable[[], Mapping[str, Any]]] = (0, dict)
        """The latest report; the file may be older."""
        self._done_at_start = 0
        self._started = 0.0
        self._next = 0.0
        self._has_warned = False

    def begin(self, kind: Kind, done: int, count: int) -> None:
        """Writes the first version.

        Args:
            kind: work in progress.
            done: rounds already done, if it resumes.
            count: rounds in total.
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
        # Readers get the time of day; durations need a clock that is never set.
        self._done_at_start, self._started = done, time.monotonic()
        self._last = done, dict
        self._write()

    def tell(self, done: int, facts: Callable[[], Mapping[str, Any]]) -> None:
        """Writes the next version, if it is time.

        Args:
            done: rounds done.
            facts: returns further figures by name; only called if it is time.
        """
        self._last = done, facts
        # Without a head it has not begun, or is over.
        if self._head and time.monotonic() >= self._next:
            self._write()

    def end(self) -> None:
        """Says that the process has given up, in a directory that is kept."""
        if self._head:
            self._head["has_ended"] = True
            self._write()
        self.stop()

    def stop(self) -> None:
        """Writes nothing any more."""
        self._head = {}

    def _write(self) -> None:
        begun = time.monotonic()
        done, facts = self._last
        # Rounds that an earlier process did say nothing of this one's pace.
        newly_done = done - self._done_at_start
        pace = (begun - self._started) / newly_done if newly_done > 0 else None
        document = {
            **self._head,
            "told": time.time(),
            "done": done,
            "seconds_left": None if pace is None else pace * (self._head["count"] - done),
            "facts": dict(facts()),
        }
        self._replace(document)
        taken = time.monotonic() - begun
        self._next = begun + max(SECONDS_BETWEEN, taken / MOST_SHARE)

    def _replace(self, document: Mapping[str, Any]) -> None:
        # It is not synced to the disk: after a power cut no process works at the run any more.
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
        process = document["process"]
        left = document["seconds_left"]
        kind: Kind = "training" if document["kind"] == "training" else "simulation"
        return ProgressReport(
            kind,
            None if process is None else _process_of(process),
            document["has_ended"] is True,
            _finite(document["begun"]),
            _finite(document["told"]),
            _count(document["done"]),
            _count(document["count"]),
            None if left is None else finite_or_none(left),
            dict(document["facts"]),
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        # Whatever is wrong with the file, watchers see no progress and ask again.
        return None


def _finite(value: Any) -> float:
    if not math.isfinite(number := float(value)):
        raise ValueError
    return number


def _count(value: Any) -> int:
    # JavaScript, which reads counts of watchers, is exact up to here.
    if not 0 <= (number := int(value)) < 2**53:
        raise ValueError
    return number


def _process_of(document: Mapping[str, Any]) -> Process:
    return Process(int(document["pid"]), int(document["started"]), str(document["machine"]))


def _started(pid: int) -> int | None:
    """Returns the start of a process in ticks, or None if it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        # The name of the program is in brackets, and may have spaces and brackets of its own.
        state, *numbers = stat.rpartition(")")[2].split()
        # A process that has ended, and of which its parent has not heard yet, works no more.
        return None if state in "ZX" else int(numbers[18])
    except (OSError, ValueError, IndexError):
        return None


def _machine() -> str | None:
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return None
