"""Logs of somebody else's system: import."""

from pathlib import Path
from typing import Annotated

import typer

from fedray.commands.output import JsonFlag, print_json, status_line


def import_(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="A CSV or Parquet file, or a directory of them; in any order.")],
    device_column: Annotated[str, typer.Option(metavar="D", help="Column of the device: a whole number, a string or bytes.")],
    round_column: Annotated[str, typer.Option(metavar="R", help="Column of the round, counted from 0.")],
    rounds: Annotated[int, typer.Option(metavar="N", help="Rounds that released a model.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="New directory for the trace.")],
    file_format: Annotated[str | None, typer.Option("--format", metavar="csv|parquet", help="Default: by the suffix.")] = None,
    leave_out_invalid: Annotated[
        bool, typer.Option("--leave-out-invalid", help="Leave out rows that are no participation, and report them.")
    ] = False,
    memory: Annotated[int, typer.Option(metavar="MiB", help="Memory of the sort; more than that goes to disk.")] = 2048,
    as_json: JsonFlag = False,
) -> None:
    """Make a trace of a log of participations, to be audited."""
    from fedray.trace.importer import import_log

    with status_line("importing") as on_status:
        trace = import_log(
            log, device_column, round_column, rounds, out, file_format,
            leave_out_invalid=leave_out_invalid, memory_mebibytes=memory, on_rows=lambda rows: on_status(f"{rows:,} rows read"),
        )  # fmt: skip
    if as_json:
        print_json({name: value for name, value in trace.run.items() if name != "parts"})
        return
    typer.echo(f"participations  {trace.run['rows']:,} of {trace.run['devices']:,} devices, from {trace.run['rows_read']:,} rows")
    for each in trace.left_out:
        typer.echo(f"left out        {each.rows:,} rows: {each.reason}, such as {each.example}")
    typer.echo(f"trace           {trace.path}")
