"""Overrides: `table.key=value` texts, applied to the tables of a scenario."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel

from fedray.base.errors import ScenarioError, shown
from fedray.base.mistakes import classes_in, with_problems
from fedray.base.parsing import parse_toml
from fedray.encoding.tables import AnyEncoding
from fedray.scenario.availability import Availability
from fedray.scenario.buffer import AnyStalenessWeighting
from fedray.scenario.clipping import AnyClipping
from fedray.scenario.data import AnyData
from fedray.scenario.participation import AnyPolicy
from fedray.scenario.privacy import AnyMechanism
from fedray.scenario.rounds import AnyClosing
from fedray.scenario.tasks import AnyTask
from fedray.scenario.training import AnyServerStep, AnyWork, with_task_as_table
from fedray.scenario.uploads import AnySchedule
from fedray.scenario.weighting import AnyWeighting

_LONG_FORMS = {"file": ["training", "task", "file"], "task": ["training", "task", "kind"]}
"""Keys of the table `training` that are short for keys of its table `task`."""
_Made = TypeVar("_Made")


def naming_overrides(
    make: Callable[[Sequence[str]], _Made], source: str, overrides: Sequence[str]
) -> _Made:
    """Calls `make` with overrides; a problem that an override causes names that override.

    An override causes a problem if the problem disappears without it. All other problems belong to
    the source.

    Args:
        make: function of overrides; raises ScenarioError whose problems begin with the source.
        source: file of the scenario, or another name of it.
        overrides: texts `table.key=value`.

    Raises:
        ScenarioError: raised by `make`, with overrides named.
    """
    # A single text is a sequence of characters, which no caller means.
    overrides = [overrides] if isinstance(overrides, str) else overrides
    try:
        return make(overrides)
    except ScenarioError as error:
        if not overrides:
            raise
        refused = error
    # No override can cause or mend a mistake of the file.
    of_source = _problems_of(make, ())
    # Leaving out one override at a time shows which of them a problem depends on.
    without = [
        _problems_of(make, [*overrides[:place], *overrides[place + 1 :]])
        for place in range(len(overrides))
    ]
    told = []
    for line in _problems(refused):
        rest = line.removeprefix(source)
        # Other lines are about the text of an override, and they quote it already.
        if line not in of_source and rest != line:
            needed = [
                override
                for override, problems in zip(overrides, without, strict=True)
                if line not in problems
            ]
            # If each of several overrides breaks the rule, all of them are named.
            named = " and ".join(f"override {shown(each)}" for each in needed or overrides)
            line = f"{named}, applied to {source}{rest}"
        told.append(line)
    # If no line changed, the first error is raised with its own message.
    if told == list(_problems(refused)):
        raise refused
    raise with_problems(ScenarioError, told)


def _problems_of(make: Callable[[Sequence[str]], Any], overrides: Sequence[str]) -> Sequence[str]:
    try:
        make(overrides)
    except ScenarioError as error:
        return _problems(error)
    return ()


def _problems(error: ScenarioError) -> Sequence[str]:
    return error.problems or (str(error),)


def apply_override(tables: dict[str, Any], override: str) -> None:
    """Changes nested tables in place as the text says. Raises ScenarioError."""
    key, separator, text = override.partition("=")
    names = [name.strip() for name in key.split(".")]
    if not separator or not all(names):
        raise ScenarioError(
            f"override {shown(override)} must read table.key=value, for example "
            "rounds.report_goal=3000"
        )
    value = _parse_value(text.strip(), override)
    # The short form in a file and the long one in an override must meet in one table.
    if "training" in tables:
        tables["training"] = with_task_as_table(tables["training"])
    # A table replaces the task whole; a bare kind is put where kinds of a table stand.
    if names == ["training", "file"] or (
        names == ["training", "task"] and not isinstance(value, dict | list)
    ):
        names = _LONG_FORMS[names[-1]]
    table = tables
    for name in names[:-1]:
        # Tables that the file leaves out are made, because all of their keys may have defaults.
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ScenarioError(
                f"override {shown(override)}: {shown(name)} is a value, not a table; name one of "
                "its own keys"
            )
    kinds = KINDS.get(tuple(names), {})
    # Keys of the kind before would be refused as unknown in the new one.
    if isinstance(value, str) and value in kinds:
        before = table.get(names[-1])
        # A file may have anything there; a value that is not a kind is replaced.
        kind_before = kinds.get(before) if isinstance(before, str) else None
        _forget_keys_of_another_kind(table, kind_before, kinds[value])
    table[names[-1]] = value


def _forget_keys_of_another_kind(
    table: dict[str, Any], before: type[BaseModel] | None, after: type[BaseModel]
) -> None:
    """Keys that the new kind does not have go, and so do defaults of the kind before."""
    # A scenario's tables have all defaults written out, though the user chose none.
    defaults = before.model_fields if before is not None and before is not after else {}
    # The list is a copy, because keys are deleted on the way.
    for name in list(table):
        is_default = name in defaults and table[name] == defaults[name].get_default(
            call_default_factory=True
        )
        if name not in after.model_fields or is_default:
            del table[name]


def _parse_value(text: str, override: str) -> Any:
    try:
        return parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a bare word, such as timer_resets_on=selected
    except ValueError as error:
        raise ScenarioError(f"override {shown(override)}: {error}; give a simpler value") from None


def _by_kind(union: Any, key: str) -> dict[str, type[BaseModel]]:
    """Returns the classes of a union by the value of `key`."""
    return {
        kind: each
        for each in classes_in(union)
        for kind in get_args(each.model_fields[key].annotation)
    }


KINDS: Mapping[tuple[str, ...], Mapping[str, type[BaseModel]]] = {
    ("availability", "model"): _by_kind(Availability, "model"),
    ("data", "kind"): _by_kind(AnyData, "kind"),
    ("participation", "policies", "kind"): _by_kind(AnyPolicy, "kind"),
    ("privacy", "clipping", "kind"): _by_kind(AnyClipping, "kind"),
    ("privacy", "encoding", "kind"): _by_kind(AnyEncoding, "kind"),
    ("privacy", "mechanism", "kind"): _by_kind(AnyMechanism, "kind"),
    ("rounds", "buffer", "weighting", "kind"): _by_kind(AnyStalenessWeighting, "kind"),
    ("rounds", "closing", "kind"): _by_kind(AnyClosing, "kind"),
    ("rounds", "uploads", "schedule", "kind"): _by_kind(AnySchedule, "kind"),
    ("training", "client", "kind"): _by_kind(AnyWork, "kind"),
    ("training", "server", "kind"): _by_kind(AnyServerStep, "kind"),
    ("training", "task", "kind"): _by_kind(AnyTask, "kind"),
    ("training", "weighting", "kind"): _by_kind(AnyWeighting, "kind"),
}
"""Keys that name the kind of a table, with the class of every kind."""
