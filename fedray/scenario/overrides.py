"""Overrides: `table.key=value` texts, applied to the tables of a scenario."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel

from fedray.base.errors import ScenarioError, shown
from fedray.base.mistakes import classes_in, with_problems
from fedray.base.parsing import parse_toml
from fedray.encoding.tables import AnyEncoding
from fedray.mechanisms.questions.registry import AnyQuestion, AnyTrust
from fedray.scenario.analytics import AnyValues
from fedray.scenario.availability import Availability
from fedray.scenario.buffer import AnyStalenessWeighting
from fedray.scenario.clipping import AnyClipping
from fedray.scenario.data import AnyData
from fedray.scenario.data_file import PLACES
from fedray.scenario.participation import AnyPolicy
from fedray.scenario.privacy import TARGETS, AnyMechanism
from fedray.scenario.rounds import AnyClosing
from fedray.scenario.tasks import AnyTask
from fedray.scenario.training import AnyServerStep, AnyWork, with_task_as_table
from fedray.scenario.trust import AnyTrust as AnyModelTrust
from fedray.scenario.uploads import AnySchedule
from fedray.scenario.weighting import AnyWeighting

_LONG_FORMS = {"file": ["training", "task", "file"], "task": ["training", "task", "kind"]}
"""Short forms: keys of the table `training` that stand for keys of its table `task`."""
_NOISE = {f"privacy.{key}" for key in (*TARGETS, "noise_multiplier")}
"""Keys that state the noise; a scenario has one of them."""
_Made = TypeVar("_Made")


def naming_overrides(
    make: Callable[[Sequence[str]], _Made], source: str, overrides: Sequence[str]
) -> _Made:
    """Calls `make` with overrides; a problem that an override causes names that override.

    An override causes a problem if the problem disappears without it. All other problems are
    reported for the source.

    Args:
        make: function of overrides; raises ScenarioError whose problems begin with the source.
        source: file of the scenario, or another name for it.
        overrides: texts `table.key=value`.

    Raises:
        ScenarioError: raised by `make`; its problems name overrides.
    """
    # A single string would be read as a sequence of characters, which no caller means.
    overrides = [overrides] if isinstance(overrides, str) else overrides
    noise = [each for each in overrides if each.partition("=")[0].strip() in _NOISE]
    if len({each.partition("=")[0].strip() for each in noise}) > 1:
        named = " and ".join(f"override {shown(each)}" for each in noise)
        raise ScenarioError(f"{named} state the noise twice; leave one out")
    try:
        return make(overrides)
    except ScenarioError as error:
        if not overrides:
            raise
        refused = error
    # A problem that also occurs without overrides is a mistake in the file.
    of_source = _problems_of(make, ())
    # Leaving out one override at a time shows which of them a problem depends on.
    without = [
        _problems_of(make, [*overrides[:place], *overrides[place + 1 :]])
        for place in range(len(overrides))
    ]
    told = []
    for line in _problems(refused):
        rest = line.removeprefix(source)
        # Other lines are about the text of an override and already quote it.
        if line not in of_source and rest != line:
            needed = [
                override
                for override, problems in zip(overrides, without, strict=True)
                if line not in problems
            ]
            # If several overrides each break the rule, all of them are named.
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


def in_order(overrides: Sequence[str]) -> list[str]:
    """Returns overrides with those of digests last; a single text is one override."""
    texts = [overrides] if isinstance(overrides, str) else overrides
    return sorted(texts, key=lambda each: each.partition("=")[0].strip().endswith("sha256"))


def apply_override(tables: dict[str, Any], override: str, directory: Path | None = None) -> None:
    """Applies the text of an override to nested tables in place. Raises ScenarioError.

    Args:
        tables: the tables.
        override: text `table.key=value`.
        directory: folder of the scenario's files. Paths in overrides are relative to the working
            directory, so they become absolute if this is another folder.

    A file that is named is read as it is now, so its digest goes: `in_order` puts digests last.
    """
    key, separator, text = override.partition("=")
    names = [name.strip() for name in key.split(".")]
    if not separator or not all(names):
        raise ScenarioError(
            f"override {shown(override)} must have the form table.key=value, for example "
            "rounds.report_goal=3000"
        )
    value = _parse_value(text.strip(), override)
    if directory is not None and directory.resolve() != Path.cwd():
        value = _with_absolute_paths(names[-1], value)
    # The short form in a file and the long one in an override must meet in one table.
    if "training" in tables:
        tables["training"] = with_task_as_table(tables["training"])
    # A table replaces the whole task; a bare kind is written to the key `kind` of the table.
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
                f"override {shown(override)}: {shown(name)} is a value, not a table; override it "
                "without a key below it"
            )
    kinds = KINDS.get(tuple(names), {})
    # The new kind would refuse keys of the previous kind as unknown.
    if isinstance(value, str) and value in kinds:
        before = table.get(names[-1])
        # A file may have any value there; one that is not a kind is replaced.
        kind_before = kinds.get(before) if isinstance(before, str) else None
        _forget_keys_of_another_kind(table, kind_before, kinds[value])
    table[names[-1]] = value
    if names[-1] in PLACES:
        digest_key = names[-1].removesuffix("file") + "sha256"
        cost, before = table.get("vocabulary_cost"), table.pop(digest_key, None)
        # Nor was the file as it is now found at this cost.
        if isinstance(cost, dict) and cost.get(digest_key) == before:
            del table["vocabulary_cost"]
    # A target is the newer statement of the wish too.
    if names[-1] in TARGETS:
        table.pop("wanted_epsilon", None)
    # An override is the newer statement of the noise.
    if key.strip() in _NOISE:
        for other in _NOISE - {key.strip()}:
            table.pop(other.removeprefix("privacy."), None)


def _with_absolute_paths(key: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_absolute_paths(name, each) for name, each in value.items()}
    # A mechanism is a name or a file.
    is_path = isinstance(value, str) and (
        (key in (*PLACES, "hold") and value) or (key == "mechanism" and Path(value).is_file())
    )
    return str(Path(value).absolute()) if is_path else value


def _forget_keys_of_another_kind(
    table: dict[str, Any], before: type[BaseModel] | None, after: type[BaseModel]
) -> None:
    """Deletes keys that the new kind does not have, and defaults of the previous kind."""
    # A scenario's tables have all defaults written out, although the user did not choose them.
    defaults = before.model_fields if before is not None and before is not after else {}
    # The list is a copy, because keys are deleted in the loop.
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


def merged(base: Any, own: Any, path: tuple[str, ...]) -> Any:
    """Returns a table with some of its keys replaced, recursively for the tables in it.

    Args:
        base: the table, or a value in its place.
        own: keys with new values.
        path: path of keys to the table.

    Returns:
        A new table; only `own` if its kind differs, because keys of another kind mean nothing
        there.
    """
    if not isinstance(base, dict) or not isinstance(own, dict):
        return own
    # Only these paths have tables of several kinds; elsewhere `kind` would be a plain key.
    tags = [tag for tag in ("kind", "model") if (*path, tag) in KINDS]
    if any(tag in own and own[tag] != base.get(tag) for tag in tags):
        return own
    result = dict(base)
    for key, value in own.items():
        result[key] = merged(base[key], value, (*path, key)) if key in base else value
    return result


def _by_kind(union: Any, key: str) -> dict[str, type[BaseModel]]:
    """Returns the classes of a union by the value of `key`."""
    return {
        kind: each
        for each in classes_in(union)
        for kind in get_args(each.model_fields[key].annotation)
    }


KINDS: Mapping[tuple[str, ...], Mapping[str, type[BaseModel]]] = {
    ("analytics", "question", "kind"): _by_kind(AnyQuestion, "kind"),
    ("analytics", "trust", "kind"): _by_kind(AnyTrust, "kind"),
    ("analytics", "values", "kind"): _by_kind(AnyValues, "kind"),
    ("availability", "model"): _by_kind(Availability, "model"),
    ("data", "kind"): _by_kind(AnyData, "kind"),
    ("participation", "policies", "kind"): _by_kind(AnyPolicy, "kind"),
    ("privacy", "clipping", "kind"): _by_kind(AnyClipping, "kind"),
    ("privacy", "encoding", "kind"): _by_kind(AnyEncoding, "kind"),
    ("privacy", "mechanism", "kind"): _by_kind(AnyMechanism, "kind"),
    ("privacy", "trust", "kind"): _by_kind(AnyModelTrust, "kind"),
    ("rounds", "buffer", "weighting", "kind"): _by_kind(AnyStalenessWeighting, "kind"),
    ("rounds", "closing", "kind"): _by_kind(AnyClosing, "kind"),
    ("rounds", "uploads", "schedule", "kind"): _by_kind(AnySchedule, "kind"),
    ("training", "client", "kind"): _by_kind(AnyWork, "kind"),
    ("training", "server", "kind"): _by_kind(AnyServerStep, "kind"),
    ("training", "task", "kind"): _by_kind(AnyTask, "kind"),
    ("training", "weighting", "kind"): _by_kind(AnyWeighting, "kind"),
}
"""Maps the path of each key that selects a table's kind to the classes of all kinds."""
