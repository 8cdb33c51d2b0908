"""`fedray schema`: keys of scenario tables, columns of traces."""

from typing import Annotated, Any

from fedray.commands.frame.output import print_json, print_pieces


def _names(begun: str) -> list[str]:
    from fedray.commands.frame.described import known_names

    return [name for name in known_names() if name.startswith(begun)]


def schema(table: Annotated[str | None, _names] = None, *, as_json: bool = False) -> None:
    """Describe the keys of a scenario's table or the columns of a trace.

    Each has a type, unit, default and meaning; a table of several kinds is described kind by kind.
    The last part of a name is enough: mechanism is privacy.mechanism. Without TABLE, print the JSON
    schema of scenario files.

    Args:
        table: table such as privacy.mechanism, its kind such as data.parquet, file such as
            rounds.parquet, placement, claim or sweep
    """
    from fedray.commands.frame.described import described
    from fedray.scenario.several_tasks import scenario_schema

    # A JSON schema is JSON already, so --json makes no difference here.
    if table is None:
        print_json(scenario_schema())
        return
    found = described(table)
    if as_json:
        print_json(found.to_json())
        return
    for part in found.parts:
        _print_part(part)


def _print_part(part: Any) -> None:
    from fedray.report.table import Table

    rows = part.to_json()["rows"]
    title = f"{part.name} ({part.kind})" if part.kind else part.name
    header = list(rows[0])
    cells = [list(each.values()) for each in rows]
    print_pieces([Table.headed(title, [header, *cells])])
