"""Logs of somebody else's system: import."""

from pathlib import Path
from typing import Annotated

import typer

from fedray.commands.output import JsonFlag, QuietFlag, print_json, print_pieces, progress_line

_ROUNDS = "Which rounds released a model (one of the three)"
_ROWS = "Which rows are participations"
_TIMES = "When they were"
_FILES = "Files and memory"


def import_(
    log: Annotated[
        Path,
        typer.Argument(
            metavar="LOG", help="A CSV or Parquet file, or a directory of them; in any order."
        ),
    ],
    device_column: Annotated[
        list[str],
        typer.Option(
            metavar="D",
            help="Column of the device: whole numbers, strings or bytes. Given several times, each "
            "combination of the columns is "
            "what is protected, such as a device in a month.",
        ),
    ],
    round_column: Annotated[
        str, typer.Option(metavar="R", help="Column of the round: whole numbers.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="New directory for the trace.")],
    rounds: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            rich_help_panel=_ROUNDS,
            help="All of 0 .. N-1 did. Refused if one of them does not occur.",
        ),
    ] = None,
    renumber: Annotated[
        bool,
        typer.Option(
            "--renumber",
            rich_help_panel=_ROUNDS,
            help="Those that occur in the log did, in order of their numbers, and no others: gaps "
            "are closed.",
        ),
    ] = False,
    rounds_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=_ROUNDS,
            help="Those in this file did, in its order: a number per line, or CSV or Parquet with "
            "a column named as R or "
            "'round', and 'time' if there are times of rounds. Rows in other rounds released "
            "nothing and are left out, reported.",
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=VALUE",
            rich_help_panel=_ROWS,
            help="Only rows with this value are participations, e.g. outcome=accepted. May be "
            "repeated: values of one column are "
            "alternatives, and all columns must match.",
        ),
    ] = None,
    repeats: Annotated[
        str,
        typer.Option(
            metavar="refuse|once|each",
            rich_help_panel=_ROWS,
            help="What rows of one device in one round again are: records of one contribution "
            "(once), or contributions of "
            "their own (each), which cost more privacy.",
        ),
    ] = "refuse",
    leave_out_invalid: Annotated[
        bool,
        typer.Option(
            "--leave-out-invalid",
            rich_help_panel=_ROWS,
            help="Leave out rows without a device or a round, and report them; claims about the "
            "trace are then unchecked.",
        ),
    ] = False,
    time_column: Annotated[
        str | None,
        typer.Option(
            metavar="T",
            rich_help_panel=_TIMES,
            help="Column of times, so that timers can be checked: ISO 8601, Unix numbers, or text "
            "of --time-format.",
        ),
    ] = None,
    time_unit: Annotated[
        str | None,
        typer.Option(
            metavar="UNIT",
            rich_help_panel=_TIMES,
            help="Of times that are numbers which do not count from 1970: seconds, milliseconds, "
            "microseconds or nanoseconds.",
        ),
    ] = None,
    time_format: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            rich_help_panel=_TIMES,
            help="Of times that are other text, such as '%d.%m.%Y %H:%M'.",
        ),
    ] = None,
    time_zone: Annotated[
        str | None,
        typer.Option(
            metavar="ZONE",
            rich_help_panel=_TIMES,
            help="Of times without an offset, such as Europe/Berlin; default: UTC.",
        ),
    ] = None,
    file_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="csv|parquet",
            rich_help_panel=_FILES,
            help="Default: by the suffix.",
        ),
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option(
            metavar="C",
            rich_help_panel=_FILES,
            help="Between columns of CSV: one character, or tab. Default: a comma.",
        ),
    ] = None,
    memory: Annotated[
        int,
        typer.Option(
            metavar="MiB",
            rich_help_panel=_FILES,
            help="Memory of the sort; more than that goes to disk.",
        ),
    ] = 576,
    quiet: QuietFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Make a trace of a log of participations, to be audited.

    The log has a row per device and round, in any order. A participation is
    a contribution to a model that was released. So say which rounds released
    one: min-sep counts those, and a round that was given up but is counted
    makes participations look further apart than they were.

    Example: fedray import log.csv --device-column device --round-column attempt
    --where outcome=accepted --rounds-file released.csv --time-column time
    --out trace
    """
    from fedray.imports.importer import import_log

    with progress_line("importing", quiet) as on_status:
        trace = import_log(
            log,
            device_column,
            round_column,
            rounds,
            out,
            file_format,
            renumber=renumber,
            rounds_file=rounds_file,
            repeats=repeats,
            time_column=time_column,
            time_unit=time_unit,
            time_format=time_format,
            time_zone=time_zone,
            where=where or (),
            delimiter=delimiter,
            leave_out_invalid=leave_out_invalid,
            memory_mebibytes=memory,
            on_progress=on_status,
        )
    if as_json:
        print_json({name: value for name, value in trace.run.items() if name != "parts"})
        return
    print_pieces(trace.tables())
