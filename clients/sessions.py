"""Sessions of a population's devices, or of a published trace, for other programs to replay."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedray.base.document import Document
from fedray.base.errors import InputError
from fedray.imports.foreign_sessions import read_fedscale, read_flash
from fedray.imports.sessions import Sessions, write_sessions
from fedray.runtime.placement import Placement
from fedray.runtime.tasks import run_jobs
from fedray.scenario import Scenario
from fedray.scenario.shipped import find_scenario
from .availability.factory import availability_of
from .availability.intervals import DAY, Intervals, joined
from .availability.model import Availability, Listing
from .availability.supply import Supply, eligible_at_once
from .population import DeviceModel, Presence, are_usable, present_between

PUBLISHED = ("flash", "flash-locked", "fedscale")
"""Kinds of published traces."""
MOST_DEVICES = 100_000
"""Most devices whose sessions are written by default."""
DAYS = 28
"""Simulated days that are written by default."""
BLOCK_DEVICE_DAYS = 1 << 18
"""Device-days in memory at once."""
_WINDOW_DAYS = 7
"""Number of days of one listing, since models refuse too many sessions of a device in one listing.
"""


@dataclass(frozen=True, slots=True)
class SessionFile(Document):
    """A file of sessions."""

    path: str
    """The file that was written."""
    devices: int
    """Devices whose sessions are in it."""
    days: int
    """Days that it covers: simulated days, or days until the last session ends, rounded up."""
    sessions: int
    """Sessions that were written."""


@dataclass(frozen=True, slots=True)
class PopulationSupply(Document):
    """Devices of a population or a published trace, and the file that was written."""

    devices: int
    """Devices of the population at the start, or of the published trace."""
    eligible_at_once: Supply | None
    """Devices that are eligible at once at the full hours of the first week: estimates from a fixed
    sample; None for a published trace."""
    file: SessionFile | None
    """The file that was written; None without `--sessions`."""


def of_scenario(
    source: str,
    overrides: Sequence[str],
    out: Path | None,
    devices: int | None,
    days: int | None,
    placement: Placement | None = None,
) -> PopulationSupply:
    """Returns the supply of a scenario's population, and writes its sessions.

    Args:
        source: file or name of the scenario.
        overrides: keys to set, as "table.key=value".
        out: file of sessions; None for no file.
        devices: number of devices to write; None for all, up to `MOST_DEVICES`.
        days: simulated days to write; None for `DAYS`.
        placement: place of the sessions' tasks; by default this process.
    """
    value = Scenario.from_toml(find_scenario(source), overrides)
    written = min(value.device_ids, MOST_DEVICES) if devices is None else devices
    days = DAYS if days is None else days
    # Impossible numbers are refused before the supply is estimated.
    blocks = population_sessions(value, written, days, placement)
    supply = eligible_at_once(value)
    file = _written(blocks, out, written, days)
    return PopulationSupply(value.population.devices, supply, file)


def of_trace(source: Path, kind: str, out: Path | None) -> PopulationSupply:
    """Reads a published trace of devices, and writes its sessions.

    Args:
        source: file of the trace.
        kind: one of `PUBLISHED`.
        out: file of sessions; None for no file.
    """
    if kind == "fedscale":
        found = read_fedscale(source)
    else:
        found = read_flash(source, "locked" if kind == "flash-locked" else "screen-off")
    # A recording is replayed with a period of whole days.
    days = int(-(-found.end.max() // DAY))
    file = _written([found], out, found.end_device, days)
    return PopulationSupply(found.end_device, None, file)


def population_sessions(
    scenario: Scenario, devices: int, days: int, placement: Placement | None = None
) -> Iterator[Sessions]:
    """Lists the sessions of the first devices of a population, while they are present.

    Devices that have not joined, or that the task cannot use, have no sessions. A session under way
    at the start is cut there; one under way at the end has its true end, so that a replay of the
    days is the same to the last moment. A device that is always eligible has one session, to the
    end of the days.

    Args:
        scenario: scenario of the population.
        devices: number of devices, with the ids 0, 1, 2, ...
        days: days from the start of the simulation.
        placement: place of the tasks, one for each block; by default this process.

    Yields:
        Blocks of devices, in order of their ids; times are seconds UTC since the start.

    Raises:
        InputError: `devices` is not from 1 to the population's size, or `days` is below 1.
        RunFailed: a task's process died too often.
    """
    most = scenario.device_ids
    if not 1 <= devices <= most:
        raise InputError.of("devices", devices, f"must be from 1 to {most:,}")
    if days < 1:
        raise InputError.of("days", days, "must be at least 1")
    # Blocks are quick, so Ray is used only if it is asked for.
    here = (placement or Placement()).resolved(lambda: 0.0)
    return _blocks(scenario, devices, days, here)


def long_intervals(availability: Availability, listing: Listing) -> Intervals:
    """Lists the intervals of devices [N] over any number of days, in several listings.

    Returns:
        Result of one listing of the whole time; see `Availability.list_intervals`.
    """
    device_ids, _, low, until_time, _ = listing
    # Otherwise every listing would draw the constants of the devices again.
    known = availability.known_of(device_ids)
    # An interval that reaches into a window is known from the window before, with its true end.
    last_ends = np.full(device_ids.size, -np.inf)
    parts: list[Intervals] = []
    while low < until_time:
        high = min(low + _WINDOW_DAYS * DAY, until_time)
        part = listing._replace(from_time=low, until_time=high, known=known)
        found = availability.list_intervals(part)
        found = found.take(found.start_times > last_ends[found.local])
        # `at`, because a device may have several intervals in one window.
        np.maximum.at(last_ends, found.local, found.end_times)
        parts.append(found)
        low = high
    # Windows follow one another, so each device's intervals are in order of start.
    return joined(parts).sorted_by_device()


def _blocks(
    scenario: Scenario, devices: int, days: int, placement: Placement
) -> Iterator[Sessions]:
    size = max(1, BLOCK_DEVICE_DAYS // days)
    jobs = [
        (scenario, first, min(first + size, devices), days) for first in range(0, devices, size)
    ]
    names = [f"list sessions of devices {first} to {end - 1}" for _, first, end, _ in jobs]
    # Tasks end in any order.
    done: dict[int, Sessions] = {}
    written = 0
    for place, block in run_jobs(_block, jobs, placement, names=names):
        done[place] = block
        while written in done:
            yield done.pop(written)
            written += 1


def _block(job: tuple[Scenario, int, int, int]) -> Sessions:
    scenario, first, end_device, days = job
    until = days * DAY
    ids = np.arange(first, end_device, dtype=np.uint64)
    ids = ids[are_usable(DeviceModel.of(scenario), ids)]
    joins, leaves = present_between(Presence.of(scenario), ids)
    listing = Listing(ids, joins, 0.0, until)
    intervals = long_intervals(availability_of(scenario), listing)
    local = intervals.local
    start = np.maximum(intervals.start_times, joins[local])
    end = np.minimum(intervals.end_times, leaves[local])
    end[end == math.inf] = until
    # Nothing may be left of an interval in which the device joins or leaves.
    is_left = (end > start) & (start < until)
    chosen = ids[local[is_left]].astype(np.int64)
    return Sessions(first, end_device, chosen, start[is_left], end[is_left])


def _written(
    blocks: Iterable[Sessions], out: Path | None, devices: int, days: int
) -> SessionFile | None:
    if out is None:
        return None
    total = write_sessions(blocks, out)
    return SessionFile(str(out), devices, days, total)
