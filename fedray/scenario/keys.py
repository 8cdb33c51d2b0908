"""Keys of tables as rows, for `fedray schema TABLE` and `fedray init`.

Names, types with their bounds, defaults and descriptions are read from the classes.
"""

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedray.base.descriptions import descriptions_of
from fedray.base.mistakes import classes_in
from fedray.scenario.literals import literal
from fedray.scenario.scenario import Scenario
from fedray.scenario.several_tasks import FederatedTask

_TYPES = {int: "integer", float: "number", bool: "boolean", str: "text"}
_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_UNITS = {
    "_megabytes_per_second": "MB/s",
    "_megabytes": "MB",
    "_per_day": "per day",
    "_per_hour": "per hour",
    "_days": "days",
    "_hours": "hours",
    "_minutes": "minutes",
    "_minutes_between": "minutes",
    "_seconds": "seconds",
}
"""Unit by the end of a key's name."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a table, in words."""

    name: str
    """Name of the key in files."""
    type: str
    """Type and bounds, such as "number >= 0"."""
    unit: str
    """Such as "hours", from the end of the name; empty if the name has no unit."""
    default: str
    """Default as TOML; "required", or "left out" if the key has no value by default."""
    meaning: str
    """Description of the key."""


@dataclass(frozen=True, slots=True)
class KeyTable:
    """A table of a scenario, or one kind of it."""

    path: str
    """Path of the table, such as "privacy.mechanism"; empty for the top level."""
    kind: str
    """Kind, such as "kind = blt"; empty if all tables at this path have the same keys."""
    table: type[BaseModel]
    """Class of the table."""

    @property
    def keys(self) -> list[Key]:
        """Keys of the table, in the order of the class."""
        return [key_of(name, self.table) for name in self.table.model_fields]


def tables_of(root: type[BaseModel] = Scenario) -> list[KeyTable]:
    """All tables below a class, with every kind of each, in order of their paths in it; below a
    scenario, that of a task too."""
    found = {(each.path, each.table): each for each in _walk("", root, ())}
    # Tasks are read separately from the scenario, so its fields do not lead to their class.
    tasks = [KeyTable("tasks", "", FederatedTask)] if root is Scenario else []
    return [*found.values(), *tasks]


def path_of(name: str) -> str | None:
    """Returns the path of a scenario's table, of whose path the last part is enough; None if the
    name is unknown, or means several tables."""
    # The scenario itself is the table without a path.
    wanted = "" if name == "scenario" else name
    paths = {each.path for each in tables_of()}
    if wanted in paths:
        return wanted
    same_end = [path for path in paths if path.endswith(f".{wanted}")]
    least = min((path.count(".") for path in same_end), default=0)
    # A short name means the table that is least deep, as other tables copy parts of it.
    shallow = [path for path in same_end if path.count(".") == least]
    return shallow[0] if len(shallow) == 1 else None


def _walk(
    path: str, table: type[BaseModel], above: tuple[type[BaseModel], ...], kind: str = ""
) -> Iterator[KeyTable]:
    yield KeyTable(path, kind, table)
    for name, field in table.model_fields.items():
        classes = classes_in(field.annotation)
        for each in classes:
            # A mechanism may contain another mechanism, so classes above are skipped.
            if each not in (*above, table):
                below = f"{path}.{name}" if path else name
                told = _kind_of(each) if len(classes) > 1 else ""
                yield from _walk(below, each, (*above, table), told)


def _kind_of(table: type[BaseModel]) -> str:
    # Availability models are distinguished by `model`, all other unions by `kind`.
    for tag in ("kind", "model"):
        field = table.model_fields.get(tag)
        if field is not None and get_origin(field.annotation) is Literal:
            return f"{tag} = {' | '.join(get_args(field.annotation))}"
    return ""


def key_of(name: str, table: type[BaseModel]) -> Key:
    """Returns a field of a table as a row."""
    field = table.model_fields[name]
    if field.is_required():
        default = "required"
    else:
        default = _default_text(field.get_default(call_default_factory=True))
    meaning = " ".join(descriptions_of(table).get(name, "").split())
    return Key(
        name, type_text(field.annotation, tuple(field.metadata)), unit_of(name), default, meaning
    )


def unit_of(name: str) -> str:
    """The unit that the end of a key says; empty if it says none."""
    # The underscore lets a key that is nothing but its unit, such as `minutes`, match as well.
    return next((unit for end, unit in _UNITS.items() if f"_{name}".endswith(end)), "")


def _default_text(value: Any) -> str:
    if value is None:
        return "left out"
    if isinstance(value, BaseModel):
        tag = next((each for each in ("kind", "model") if hasattr(value, each)), "")
        return f'{tag} = "{getattr(value, tag)}"' if tag else "its defaults"
    return literal(value)


def type_text(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:
    """Returns the type in words, with the bounds of the type or its field."""
    # Bounds can be at any level of an annotation, so they are collected on the way down.
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return type_text(inner, (*more, *metadata))
    classes = classes_in(annotation)
    is_list = get_origin(annotation) in (tuple, list)
    if get_origin(annotation) is dict:
        return "table"
    if get_origin(annotation) is Literal:
        return " | ".join(map(str, get_args(annotation)))
    parts = [each for each in get_args(annotation) if each is not type(None)]
    is_union = get_origin(annotation) in (Union, types.UnionType)
    # A type that may be None reads like the type; the default says that it is left out.
    if is_union and len(parts) == 1:
        return type_text(parts[0], metadata)
    if is_union or (classes and not is_list):
        # Kinds are listed elsewhere, so one word stands for all tables.
        plain = [type_text(each, metadata) for each in parts if not classes_in(each)]
        return " or ".join([*(["table"] if classes else []), *dict.fromkeys(plain)])
    if is_list:
        return f"list of {type_text(parts[0], ())}"
    bounds = [bound for each in metadata for bound in _bounds_of(each)]
    return " ".join([_TYPES.get(annotation, "text"), ", ".join(bounds)]).strip()


def _bounds_of(constraint: Any) -> Iterator[str]:
    # A field inside an annotation holds its bounds one level deeper.
    if isinstance(constraint, FieldInfo):
        for each in constraint.metadata:
            yield from _bounds_of(each)
    for name, sign in _BOUNDS.items():
        bound = getattr(constraint, name, None)
        if bound is not None:
            yield f"{sign} {bound}"
