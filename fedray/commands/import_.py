"""`fedray import`: import the log of another system as a trace."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from fedray.base.errors import InputError
from fedray.commands.frame.log_options import columns_of, time_form
from fedray.commands.frame.numbers import WRITTEN_NUMBER, whole_number_rule
from fedray.commands.frame.output import print_json, print_line, print_pieces
from fedray.commands.frame.progress import progress_line
from fedray.report.table import Paragraph, Table


def import_(
    log: Path,
    *,
    column: list[str] | None = None,
    rounds: str | None = None,
    out: Path | None = None,
    append: Path | None = None,
    inspect: bool = False,
    propose_rounds: Path | None = None,
    where: list[str] | None = None,
    repeats: str | None = None,
    leave_out_invalid: bool = False,
    join_ids: bool | None = None,
    keep_id: list[str] | None = None,
    time_format: list[str] | None = None,
    time_zone: str | None = None,
    delimiter: str | None = None,
    as_json: bool = False,
) -> None:
    """Import a log of participations as a trace, to be audited.

    The log has a row per device and round, in any order. A participation is a contribution to a
    model that was released, so --rounds must say which rounds released one. Min-sep counts those: a
    round that was abandoned but is counted makes participations look further apart.

    Columns are device, round, owner and time. With an owner, the person who has the device, audits
    have figures per person too. Several device columns protect each combination, such as a device
    in a month: time:month (or day, week, quarter, year; UTC) is that of the column of times. Values
    of one --where column are alternatives; all columns must match. A file of rounds has one per
    line, or the log's format with a column round, and perhaps time; rows in other rounds are left
    out. All files of a directory are read or refused; folders `day=1` are columns.

    A log that grows is given to --append again and again: only new files, and new rows at the end
    of CSV or JSON Lines, are parsed. The first time all options are needed; later they may be left
    out, and must not differ.

    Example: fedray import log.csv --column device=id --column round=attempt --rounds released.csv
    --where outcome=accepted --out trace

    Args:
        column (ROLE=NAME): column of the log, such as device=client_id; repeatable
        rounds (N|logged|FILE): rounds that released a model: 0 to N-1, all in the log, or a list
        out (DIR): new directory for the trace
        append (DIR): in place of --out: trace to which new rows are added; new the first time
        inspect: describe columns, guess options, report all problems; exit code 2 if there are any
        propose_rounds (FILE): with --inspect: list without rounds that look abandoned, for --rounds
    Rows that are participations:
        where (COLUMN=VALUE): only rows with this value; repeatable
        repeats (refuse|once|each): a device again in a round; default: refuse
        join_ids: whether ids that differ only in writing (case, hyphens, spaces) are one device
        keep_id (ID): an id that looks missing, such as NULL, and is none; repeatable
        leave_out_invalid: leave out rows without device or round; claims are then unchecked
    Form of the log:
        time_zone (ZONE): zone of times without an offset; default: UTC
        delimiter (C): character between columns of CSV, or tab; default: a comma
    """
    from fedray.imports.appended import append_log
    from fedray.imports.importer import import_log
    from fedray.imports.inspected import ALL_ROUNDS, inspect_log

    if append is not None and out is not None:
        raise InputError("--append and --out both name the trace; give one of them")
    if inspect:
        roles = columns_of(column, ("device", "round", "owner", "time"))
        form = {"delimiter": delimiter, "time_zone": time_zone}
        form |= time_form(time_format)
        answers = (where or (), repeats or "refuse", leave_out_invalid, join_ids, keep_id or ())
        released = ALL_ROUNDS if rounds is None else _released(rounds)
        found = inspect_log(log, roles, *answers, released, out, append, propose_rounds, **form)
        if as_json:
            print_json({**asdict(found), "is_importable": found.is_importable})
        else:
            headings = ("column", "type", "distinct", "empty", "examples", "role")
            print_pieces([Table(f"Columns of {log}", headings, found.columns)])
            print_pieces(Paragraph("problem  ", each) for each in found.problems)
            print_pieces(Paragraph("note     ", each) for each in found.notes)
            print_line(f"next     {shlex.join(found.command)}")
        if found.is_importable:
            return
        raise typer.Exit(2)
    if propose_rounds is not None:
        rule = "is of --inspect, which lists the rounds of a log"
        raise InputError.of("propose_rounds", str(propose_rounds), rule, "give it too")
    if append is None and (rounds is None or out is None):
        raise InputError("--rounds and --out are needed; --inspect proposes both")
    # Owners and times are optional: without times, the audit cannot check a timer.
    required = ("device", "round") if append is None else ()
    columns = columns_of(column, ("device", "round", "owner", "time"), required=required)
    options: dict[str, Any] = {
        "device_column": columns["device"],
        "round_column": next(iter(columns["round"]), None),
        "repeats": repeats,
        "owner_column": next(iter(columns["owner"]), None),
        "time_column": next(iter(columns["time"]), None),
        "time_zone": time_zone,
        "where": where,
        "delimiter": delimiter,
        "leave_out_invalid": leave_out_invalid or None,
        "join_ids": join_ids,
        "keep_ids": keep_id,
        **({} if rounds is None else _released(rounds)),
        **time_form(time_format),
    }
    given = {name: value for name, value in options.items() if value not in (None, [])}
    with progress_line("importing") as show:
        if append is not None:
            trace = append_log(log, append, on_progress=show, **given)
        else:
            assert out is not None
            named = {"rounds": None, **given}
            trace = import_log(log, out=out, on_progress=show, **named)
    if as_json:
        # Parts are files of the trace, which only its reader needs.
        print_json({name: value for name, value in trace.run.items() if name != "parts"})
        return
    print_pieces(trace.tables())


def _released(rounds: str) -> Mapping[str, Any]:
    """Arguments of the import that say which rounds released a model."""
    from fedray.imports.inspected import ALL_ROUNDS, LOGGED

    # A file of this name is given as ./logged.
    if rounds == LOGGED:
        return ALL_ROUNDS
    try:
        return {"rounds": int(rounds)}
    except ValueError:
        file = Path(rounds)
    if not file.exists():
        is_number = WRITTEN_NUMBER.fullmatch(rounds)
        rule = whole_number_rule(rounds) if is_number else f"N, {LOGGED}, or a file that exists"
        raise InputError.of("rounds", rounds, f"must be {rule}") from None
    # The path as it was typed, which --inspect repeats.
    return {"rounds": None, "rounds_file": rounds}
