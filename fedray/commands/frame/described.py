"""Keys of scenario tables and of placements, and columns of traces, by name."""

from dataclasses import dataclass, fields
from pkgutil import resolve_name
from typing import get_type_hints

from fedray.base.descriptions import descriptions_of
from fedray.base.document import Document, InPlace
from fedray.base.errors import InputError
from fedray.base.mistakes import nearest_first
from fedray.runtime.placement import Placement
from fedray.scenario.keys import Key, path_of, tables_of, type_text, unit_of
from fedray.scenario.literals import literal
from fedray.trace.columns import COLUMNS, Column

PLACEMENT = "placement"
"""Name of the keys of `--place`."""
FILES = {
    "claim": "fedray.audit.claims:Claim",
    # Needs numba, as sweeps do.
    "sweep": "fedray.studies.sweep.sweep:Sweep",
}
"""Classes of other files, whose tables are described too, as in sweep.mechanisms."""


@dataclass(frozen=True, slots=True)
class SchemaRow(Document):
    """A key of a table, or a column of a trace."""

    column: InPlace[Column | Key]


@dataclass(frozen=True, slots=True)
class SchemaPart(Document):
    """A table of a scenario, one kind of it, or a file of a trace."""

    name: str
    """The table, or the file of a trace."""
    kind: str
    """Such as "kind = blt"; empty if all tables of this path have the same keys."""
    rows: list[SchemaRow]
    """Its keys or columns, in order."""


@dataclass(frozen=True, slots=True)
class Schema(Document):
    """The keys of a table, or the columns of a file."""

    table: str
    """The name that was given."""
    parts: list[SchemaPart]
    """One, or one for each kind of the table."""


def known_names() -> list[str]:
    """Names that can be described."""
    paths = [each.path or "scenario" for each in tables_of()]
    # A table of several kinds occurs once for each of them.
    return list(dict.fromkeys([*paths, *COLUMNS, PLACEMENT, *FILES]))


def described(name: str) -> Schema:
    """Describes a table, a file of a trace, or the placement.

    Args:
        name: name of it. The last part of a table's path is enough if it is clear, and a kind may
            follow it.

    Raises:
        InputError: the name is unknown, means several tables, or has no such kind.
    """
    table, _, kind = name.rpartition(".")
    if not table or name in COLUMNS or path_of(name) is not None or path_of(table) is None:
        return Schema(name, _parts(name))
    # `SchemaPart.kind` is "kind = blt", or "model = habit".
    parts = _parts(table)
    if of_kind := [part for part in parts if part.kind.endswith(f" = {kind}")]:
        return Schema(table, of_kind)
    known = ", ".join(part.kind.rpartition(" ")[2] for part in parts if part.kind)
    rule = f"is not one of {known}" if known else f"is of no use: {table} has one kind"
    raise InputError.of("kind", kind, rule)


def _parts(name: str) -> list[SchemaPart]:
    # File names have a suffix, so they never collide with tables.
    if name in COLUMNS:
        return [SchemaPart(name, "", [SchemaRow(each) for each in COLUMNS[name]])]
    if name == PLACEMENT:
        return [SchemaPart(name, "", [SchemaRow(each) for each in _placement_keys()])]
    file, _, inner = name.partition(".")
    tables = tables_of(resolve_name(FILES[file])) if file in FILES else []
    # Without the name of a table, those of several kinds are left out.
    if found := [each for each in tables if (each.path == inner if inner else not each.kind)]:
        return [
            SchemaPart(f"{file}.{each.path}".rstrip("."), each.kind, [*map(SchemaRow, each.keys)])
            for each in found
        ]
    if (path := path_of(name)) is None:
        known = ", ".join(nearest_first(name, known_names()))
        raise InputError(f"table {name!r} is unknown; choose from {known}")
    return [
        # Whoever writes the table begins with the keys that it cannot lack.
        SchemaPart(
            each.path or "scenario",
            each.kind,
            [
                SchemaRow(key)
                for key in sorted(each.keys, key=lambda key: key.default != "required")
            ],
        )
        for each in tables_of()
        if each.path == path
    ]


def _placement_keys() -> list[Key]:
    types, meanings = get_type_hints(Placement), descriptions_of(Placement)
    return [
        Key(
            each.name,
            type_text(types[each.name]),
            unit_of(each.name),
            "left out" if each.default is None else literal(each.default),
            " ".join(meanings[each.name].split()),
        )
        for each in fields(Placement)
    ]
