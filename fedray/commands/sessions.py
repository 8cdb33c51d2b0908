"""Supply and sessions of a population, or of a published trace of devices."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedray.base.document import Document
from fedray.clients.availability.supply import Supply, eligible_at_once
from fedray.clients.sessions import population_sessions
from fedray.commands.progress import progress_line
from fedray.imports.foreign_sessions import read_fedscale, read_flash
from fedray.imports.sessions import Sessions, form_of, write_sessions
from fedray.scenario import Scenario
from fedray.scenario.shipped import find_scenario

PUBLISHED = ("flash", "flash-locked", "fedscale")
"""Kinds of published traces."""
MOST_DEVICES = 100_000
"""Most devices whose sessions are written by default."""
DAYS = 28
"""Simulated days that are written by default."""
_DAY_SECONDS = 86_400.0


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
    format: str
    """Format of the file."""


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
) -> PopulationSupply:
    """Returns the supply of a scenario's population, and writes its sessions.

    Args:
        source: file or name of the scenario.
        overrides: keys to set, as "table.key=value".
        out: file of sessions; None for no file.
        devices: number of devices to write; None for all, up to `MOST_DEVICES`.
        days: simulated days to write; None for `DAYS`.
    """
    value = Scenario.from_toml(find_scenario(source), overrides)
    written = min(value.device_ids, MOST_DEVICES) if devices is None else devices
    days = DAYS if days is None else days
    # Impossible numbers are refused before the supply is estimated.
    blocks = population_sessions(value, written, days)
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
    days = int(-(-found.end.max() // _DAY_SECONDS))
    file = _written([found], out, found.end_device, days)
    return PopulationSupply(found.end_device, None, file)


def _written(
    blocks: Iterable[Sessions], out: Path | None, devices: int, days: int
) -> SessionFile | None:
    if out is None:
        return None
    with progress_line("writing sessions"):
        total = write_sessions(blocks, out)
    return SessionFile(str(out), devices, days, total, form_of(out))
