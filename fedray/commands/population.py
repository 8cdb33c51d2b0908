"""`fedray population`: when devices are eligible, as figures and as sessions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedray.base.errors import InputError
from fedray.commands.frame.output import print_json, print_pieces
from fedray.commands.frame.placing import placement_of
from fedray.commands.frame.progress import progress_line
from fedray.report.table import Table


def population(
    source: str,
    *,
    kind: str = "scenario",
    sessions: Path | None = None,
    devices: int | None = None,
    days: int | None = None,
    overrides: list[str] | None = None,
    place: list[str] | None = None,
    as_json: bool = False,
) -> None:
    """Show how many devices are eligible at once, by hour of the day, and write their sessions.

    Sessions replay as `availability.model = "replay"`. Kinds of published traces are flash
    (user_behavior_tiny.json, whose devices are idle with the screen off), flash-locked (idle while
    locked) and fedscale (the pickle client_behave_trace, from which no code is run).

    Example: fedray population quickstart --sessions sessions.parquet --devices 10000

    Args:
        source: scenario file or name; or a published trace, with --kind
        kind (scenario|flash|flash-locked|fedscale): kind of SOURCE
        sessions (FILE): Parquet file of sessions to write: device, start and end in seconds
        devices (N): number of devices to write; default: all, at most 100,000
        days (D): simulated days to write; default: 28
    """
    from fedray.clients.sessions import PUBLISHED, of_scenario, of_trace

    if kind == "scenario":
        with progress_line("measuring the population"):
            found = of_scenario(
                source, overrides or (), sessions, devices, days, placement_of(place)
            )
    elif kind in PUBLISHED:
        # A published trace is read as it is: nothing of it is drawn or simulated.
        given = {"--devices": devices, "--days": days, "--set": overrides, "--place": place}
        for flag, value in given.items():
            if value is not None:
                raise InputError(f"{flag} is for a scenario, and SOURCE is not one; leave it out")
        found = of_trace(Path(source), kind, sessions)
    else:
        raise InputError.of("kind", kind, f"is none of scenario, {', '.join(PUBLISHED)}")
    if as_json:
        print_json(found.to_json())
        return
    print_pieces([Table.facts("", _facts(found))])
    if (supply := found.eligible_at_once) is not None:
        print_pieces([_hours(supply.by_hour, found.devices)])


def _hours(by_hour: Sequence[int], devices: int) -> Table:
    most = max(1, *by_hour)
    cells = {
        "hour (UTC)": lambda hour: f"{hour:02}:00",
        "eligible": lambda hour: f"{by_hour[hour]:,}",
        "of devices": lambda hour: f"{100 * by_hour[hour] / devices:.1f} %",
        "": lambda hour: "█" * round(30 * by_hour[hour] / most),
    }
    note = "Estimates from a fixed sample: means over the first week, whatever the timers."
    return Table.of("Eligible by hour of the day", range(24), cells, note)


def _facts(found: Any) -> list[tuple[str, str]]:
    facts = [("devices", f"{found.devices:,}")]
    supply, file = found.eligible_at_once, found.file
    if supply is not None:
        text = (
            f"{supply.least:,} to {supply.most:,} over the first week, {supply.mean:,} on average"
        )
        facts.append(("eligible at once", text))
    if file is not None:
        content = f"{file.sessions:,} of {file.devices:,} devices in {file.days} days"
        facts += [("sessions", content), ("file", file.path)]
        keys = f'availability.model = "replay", recorded_devices = {file.devices}'
        facts.append(("replayed by", keys))
    return facts
