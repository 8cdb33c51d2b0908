"""Writes a scenario as a file to start from: every key has its meaning above it, and keys at their
defaults are commented out."""

import textwrap
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel

from fedray.base.errors import ScenarioError
from fedray.base.mistakes import classes_in, first_sentence
from fedray.scenario.keys import key_of
from fedray.scenario.literals import literal
from fedray.scenario.scenario import Scenario

WIDTH = 100
HEAD = """\
# A scenario of fedray. A key after a `#` without a space has its default; to change it, remove the
# `#` (and the one before the heading of its table, if there is one). `fedray schema TABLE`
# describes a table in full, with its other kinds. `fedray run FILE` runs it.

"""


def commented_toml(scenario: Scenario) -> str:
    """Returns a scenario as TOML with every key of its tables.

    Above each key is the first sentence of its description. Keys and tables at their defaults are
    commented out. Reading the text gives an equal scenario, whether or not these are uncommented.
    """
    lines = _table_lines((), scenario, scenario)
    return HEAD + "\n".join(lines) + "\n"


def _table_lines(path: tuple[str, ...], table: BaseModel, scenario: Scenario) -> Iterator[str]:
    """Yields the lines of a table's own keys, then of the tables inside it."""
    # The top level has no parent, and so no default.
    is_whole_default = bool(path) and _default_at(scenario, path) == table
    if path:
        about = type(_at(scenario, path[:-1]))
        yield ""
        yield from _prose(first_sentence(key_of(path[-1], about).meaning))
        # The heading of an unchanged table stays, so that a key below it can be uncommented on its
        # own.
        is_out = is_whole_default and not _may_be_empty(scenario, path)
        yield f"{'#' if is_out else ''}[{'.'.join(path)}]"
    # In TOML, keys after a heading belong to it, so inner tables come after all own keys.
    inner = []
    for name, field in type(table).model_fields.items():
        value = getattr(table, name)
        key = key_of(name, type(table))
        if isinstance(value, BaseModel):
            inner.append((*path, name))
            continue
        types = key.type
        # The class has only its own kind; readers want to know which others the table may have.
        if name in ("kind", "model") and path:
            types = " | ".join(_kinds(scenario, path, name))
        yield from _prose(_told(key.meaning, key.unit, types))
        # TOML has no null, so a comment says that a key has no value.
        if value is None:
            yield f"# {name} is left out."
            continue
        is_default = not field.is_required() and value == field.get_default(
            call_default_factory=True
        )
        # The other keys are only understood with their kind, so that is never commented out.
        is_out = is_whole_default or (is_default and name not in ("kind", "model"))
        yield f"{'#' if is_out else ''}{name} = {literal(value)}"
    for each in inner:
        yield from _table_lines(each, _at(scenario, each), scenario)


def _kinds(scenario: Scenario, path: tuple[str, ...], tag: str) -> list[str]:
    """Returns the kinds that a table may have."""
    field = type(_at(scenario, path[:-1])).model_fields[path[-1]]
    classes = [each for each in classes_in(field.annotation) if tag in each.model_fields]
    return [kind for each in classes for kind in get_args(each.model_fields[tag].annotation)]


def _told(meaning: str, unit: str, type_text: str) -> str:
    """Returns the first sentence, with the unit if it lacks it, and with the values that the key
    may have."""
    sentence = first_sentence(meaning)
    # The singular is searched for, so that "an hour" counts as naming the unit "hours".
    if unit and unit.split()[0].rstrip("s") not in sentence:
        sentence += f" ({unit})"
    if " | " in type_text:
        sentence += f" ({type_text})"
    return sentence


def _prose(text: str) -> list[str]:
    return textwrap.wrap(text + ".", WIDTH, initial_indent="# ", subsequent_indent="# ")


def _at(scenario: Scenario, path: tuple[str, ...]) -> Any:
    value: Any = scenario
    for name in path:
        value = getattr(value, name)
    return value


def _default_at(scenario: Scenario, path: tuple[str, ...]) -> Any:
    """Returns the default of a table in its parent, or None if it has none."""
    field = type(_at(scenario, path[:-1])).model_fields[path[-1]]
    return None if field.is_required() else field.get_default(call_default_factory=True)


def _may_be_empty(scenario: Scenario, path: tuple[str, ...]) -> bool:
    """Whether a heading without keys is read as the present table."""
    # Only validation knows how an empty table is read, so the scenario is validated with it.
    tables = scenario.to_tables()
    table = tables
    for name in path[:-1]:
        table = table.setdefault(name, {})
    table[path[-1]] = {}
    try:
        return _at(Scenario.from_tables(tables), path) == _at(scenario, path)
    except ScenarioError:
        return False
