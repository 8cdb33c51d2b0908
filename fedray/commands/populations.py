"""Populations of devices: fitted to a log, exported for other tools, imported from published
traces."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedray.base.errors import InputError
from fedray.commands.output import (
    JsonFlag,
    QuietFlag,
    print_json,
    print_pieces,
    progress_line,
    scenario_argument,
)
from fedray.report.table import Table

_SETS = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the scenario."),
]
_FORM = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="parquet|csv|json|fedscale",
        help="Default: by the suffix. json is for Flower and APPFL, fedscale for FedScale.",
    ),
]


def fit_log(
    log: Path,
    columns: dict[str, str | None],
    *,
    utc_offset: str,
    timer: float | None,
    days: float | None,
    seed: int,
    overrides: list[str],
    out: Path | None,
    page: Path | None,
    figures: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Fits the habit model to a log, prints the fit, and writes what was asked for.

    Args:
        log: a CSV or Parquet file, or a directory of them.
        columns: of `fedray.imports.log_records.RecordColumns`; None for a default.
        utc_offset: local time minus the log's clock, hours, or "unknown".
        timer: hours that a device keeps away after it took part; None for none.
        days: of a log of rounds alone.
        seed: of the simulated devices.
        overrides: keys of the table `availability` that the fit begins with, or holds.
        out: a new TOML file of the tables.
        page: a file for the page.
        figures: a directory for SVG and CSV.
        quiet: whether to show no progress.
        as_json: whether to print JSON.
    """
    import tomli_w

    from fedray.base.atomic import write_whole
    from fedray.imports.log_records import RecordColumns
    from fedray.report.files import write_figures
    from fedray.report.page import write_page
    from fedray.studies.habits.fit import fit_habits
    from fedray.studies.habits.page import habit_fit_page
    from fedray.studies.habits.parameters import base_table
    from fedray.studies.habits.read import read_observed_log

    # What was not given has the defaults of `RecordColumns`.
    known = {name: value for name, value in columns.items() if value is not None}
    # Mistakes in the keys are told before the log is read, which may take long.
    base = base_table(overrides)
    fits_offset = utc_offset == "unknown"
    with progress_line("fitting", quiet) as on_status:
        on_status("reading the log")
        observed = read_observed_log(
            log,
            RecordColumns(**known),
            utc_offset_hours=0.0 if fits_offset else _hours(utc_offset),
            timer_hours=timer,
            days=days,
        )
        fit = fit_habits(
            observed,
            base,
            seed=seed,
            fits_offset=fits_offset,
            on_progress=on_status,
        )
    toml = tomli_w.dumps(fit.to_tables())
    if out is not None:
        write_whole(out, toml.encode(), f"out={str(out)!r}", InputError)
    if page is not None:
        write_page(habit_fit_page(fit, shlex.join(["fedray", *sys.argv[1:]])), page)
    if figures is not None:
        write_figures(fit, figures)
    if as_json:
        print_json({**fit.to_json(), "times": observed.form})
    else:
        print_pieces([*fit.tables(), toml])


def _hours(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError.of(
            "utc_offset",
            text,
            "is neither a number of hours nor unknown",
            "give local time minus the log's clock",
        ) from None


def population(
    scenario: Annotated[Path, scenario_argument("A scenario, by file or name.")],
    sessions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write when devices are eligible: device, start and end, seconds since the start.",
        ),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(metavar="N", help="The first N devices; default: all, at most 100,000."),
    ] = None,
    days: Annotated[int, typer.Option(metavar="D", help="Simulated days.")] = 28,
    file_format: _FORM = None,
    overrides: _SETS = None,
    quiet: QuietFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Tell when a scenario's devices are eligible, and write it for other tools to replay.

    Example: fedray population scenarios/quickstart.toml --sessions
    sessions.parquet --devices 10000 --days 28
    """
    from fedray.clients.availability.supply import eligible_at_once
    from fedray.clients.sessions import population_sessions
    from fedray.imports.sessions import form_of, write_sessions
    from fedray.scenario import Scenario

    value = Scenario.from_toml(scenario, overrides or ())
    wanted = min(value.device_ids, 100_000) if devices is None else devices
    supply = eligible_at_once(value)
    document: dict[str, Any] = {
        "devices": value.population.devices,
        "eligible_at_once": {"least": supply.least, "mean": supply.mean, "most": supply.most},
        "file": None,
    }
    if sessions is not None:
        # An unknown format is refused before the sessions are made.
        chosen = form_of(sessions, file_format)
        blocks = population_sessions(value, wanted, days)
        with progress_line("writing sessions", quiet):
            total = write_sessions(blocks, sessions, chosen, 86_400.0 * days)
        written = {"devices": wanted, "days": days, "sessions": total, "format": chosen}
        document["file"] = {"path": str(sessions), **written}
    if as_json:
        print_json(document)
        return
    facts = [
        ("devices", f"{value.population.devices:,}"),
        (
            "eligible at once",
            f"{supply.mean:,}, {supply.least:,} to {supply.most:,} over the first week",
        ),
    ]
    if document["file"] is not None:
        facts += _session_facts(document["file"])
    print_pieces([Table.facts("", facts)])


def _session_facts(file: dict[str, Any]) -> list[tuple[str, str]]:
    """The content of a file of sessions, and the keys that replay it."""
    content = f"{file['sessions']:,} of {file['devices']:,} devices in {file['days']} days"
    facts = [("sessions", content), ("file", f"{file['path']} ({file['format']})")]
    if file["format"] in ("parquet", "csv"):
        keys = f'availability.model = "replay", recorded_devices = {file["devices"]}'
        facts.append(("replayed by", keys))
    return facts


def sessions(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="A published trace of devices.")],
    kind: Annotated[
        str,
        typer.Option(
            metavar="flash|fedscale",
            help="flash: JSON of FLASH (user_behavior_tiny.json). fedscale: FedScale's pickle "
            "(client_behave_trace), of which nothing is executed.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Where to: a .parquet, .csv or .json file.")
    ],
    idle: Annotated[
        str | None,
        typer.Option(
            metavar="screen-off|locked",
            help="When a device of FLASH is idle; default: screen-off.",
        ),
    ] = None,
    file_format: _FORM = None,
    as_json: JsonFlag = False,
) -> None:
    """Make sessions of a published trace of devices, for `availability.model = "replay"`.

    Example: fedray sessions user_behavior_tiny.json --kind flash
    --out flash.parquet
    """
    from fedray.imports.foreign_sessions import read_fedscale, read_flash
    from fedray.imports.sessions import form_of, write_sessions

    if kind not in ("flash", "fedscale"):
        raise InputError.of("kind", kind, "is none of flash, fedscale")
    if kind == "fedscale" and idle is not None:
        raise InputError.of("idle", idle, "is for FLASH", "leave it out")
    chosen = form_of(out, file_format)
    found = read_fedscale(trace) if kind == "fedscale" else read_flash(trace, idle or "screen-off")
    # A recording is replayed over and over, with a period of whole days.
    days = int(-(-found.end.max() // 86_400.0))
    total = write_sessions([found], out, chosen, 86_400.0 * days)
    document = {
        "devices": found.end_device,
        "sessions": total,
        "days": days,
        "path": str(out),
        "format": chosen,
    }
    if as_json:
        print_json(document)
        return
    print_pieces([Table.facts("", _session_facts(document))])
