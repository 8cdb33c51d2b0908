"""What files have: schema, init."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from fedray.base.errors import InputError
from fedray.commands.output import JsonFlag, print_json, print_pieces

_HEAD = """\
# A scenario of fedray. `fedray run FILE` runs it, within half a minute on two CPUs; the
# first run of all compiles code for a minute. Keys that are left out have defaults: `fedray init
# --all` writes all of them, and `fedray schema TABLE` describes those of a table.
"""


def _names(begun: str) -> list[str]:
    return [name for name in _known_names() if name.startswith(begun)]


def _known_names() -> list[str]:
    from fedray.scenario.keys import tables_of
    from fedray.trace.columns import MEANINGS

    paths = [each.path or "scenario" for each in tables_of()]
    # A table of several kinds occurs once for each of them.
    return list(dict.fromkeys([*paths, *MEANINGS]))


def schema(
    table: Annotated[
        str | None,
        typer.Argument(
            metavar="[TABLE]",
            help="A table of scenarios, such as privacy.mechanism, or a file of a trace, such as "
            "rounds.parquet; none: the JSON schema of scenario files.",
            autocompletion=_names,
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Describe the keys of a scenario's table, or the columns of a trace: type, unit, default,
    meaning. Without a name, print the JSON schema of scenario files.

    A table that has several kinds is described kind by kind. The last part of
    a name is enough, such as mechanism: it means the table that is least deep.
    """
    from fedray.report.table import Table
    from fedray.scenario.several_tasks import scenario_schema

    if table is None:
        print_json(scenario_schema())
        return
    parts = _described(table)
    if as_json:
        print_json({"table": table, "parts": parts})
        return
    for part in parts:
        rows = part["rows"]
        title = " ".join(filter(None, [part["name"], f"({part['kind']})" if part["kind"] else ""]))
        cells = [list(row.values()) for row in rows]
        print_pieces([Table.headed(title, [list(rows[0]), *cells])])


def _described(name: str) -> list[dict[str, Any]]:
    """The parts of a table: one, or one per kind. Raises InputError."""
    from fedray.base.mistakes import nearest_first
    from fedray.scenario.keys import tables_of
    from fedray.trace.columns import MEANINGS, columns_of

    if name in MEANINGS:
        rows = [asdict(each) for each in columns_of(name)]
        return [{"name": name, "kind": "", "rows": rows}]
    tables = tables_of()
    # The scenario itself is the table without a path.
    wanted = "" if name == "scenario" else name
    paths = {each.path for each in tables}
    if wanted not in paths:
        # The last part of a name is enough where one table alone is least deep.
        same_end = [path for path in paths if path.endswith(f".{wanted}")]
        least = min((path.count(".") for path in same_end), default=0)
        same_end = [path for path in same_end if path.count(".") == least]
        if len(same_end) != 1:
            known = ", ".join(nearest_first(name, _known_names()))
            raise InputError(
                f"table {name!r} is none that a file has; there are {known}; take one of them"
            )
        wanted = same_end[0]
    return [
        {
            "name": each.path or "scenario",
            "kind": each.kind,
            "rows": [asdict(key) for key in each.keys],
        }
        for each in tables
        if each.path == wanted
    ]


def init(
    file: Annotated[
        Path, typer.Argument(metavar="[FILE]", help="New TOML file.", show_default=True)
    ] = Path("scenario.toml"),
    has_all_keys: Annotated[
        bool,
        typer.Option(
            "--all", help="Write every key of its tables, with its default and what it means."
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write a small scenario to start from, which runs in seconds, with comments that tell what to
    change.

    `fedray run small` runs the same scenario.
    """
    from fedray.base.atomic import write_whole
    from fedray.scenario import Scenario
    from fedray.scenario.commented import commented_toml
    from fedray.scenario.shipped import find_scenario

    if file.exists() or file.is_symlink():
        raise InputError(f"output {str(file)!r} exists already; name a new file")
    shipped = find_scenario("small")
    start = Scenario.from_toml(shipped)
    # Without its name and description, which are not those of the new file.
    if has_all_keys:
        text = commented_toml(start.model_copy(update={"name": "scenario", "description": ""}))
    else:
        own = shipped.read_text(encoding="utf-8").partition("\n\n")[2]
        text = f"{_HEAD}\n{own}"
    write_whole(file, text.encode(), f"scenario {str(file)!r}", InputError)
    if as_json:
        print_json({"file": str(file), "scenario_digest": start.digest})
        return
    typer.echo(f"{file}  (`fedray run {file}` runs it)")
