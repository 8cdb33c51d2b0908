"""Problems of a table in a file as lines: the key, its value, the rule and the remedy.

Pydantic finds the problems, and names them by the tags of unions and its own error codes. Here they
get the names in the file, with the nearest existing key.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError

from fedray.base.descriptions import descriptions_of
from fedray.base.errors import InputError, one_line, shown
from fedray.base.nearest import did_you_mean

_TAGS = ("kind", "model")
"""Keys that select one of several tables."""
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
MOST_PROBLEMS = 50
"""Largest number of problems of a file that are listed."""
_TOLD_ALONE = {
    "extra_forbidden",
    "missing",
    "union_tag_invalid",
    "union_tag_not_found",
    "value_error",
}
"""Problems that are not reported as a value and the rule it breaks."""
_ELSEWHERE = {
    "discrete_gaussian": "give privacy.trust={kind='devices', parameters=...} instead",
    "shuffled": "it is for questions (analytics.trust), so take one of them",
}
"""Remedies for kinds of one table that belong to another."""


class Explained(BaseModel):
    """A frozen value that is checked when it is constructed: unknown keys, NaN, infinities and
    wrong types are refused in one line.

    The constructor raises `refusal`. `model_validate` still raises pydantic's ValidationError, so
    that a reader of files can name the file. The strings below fields are their descriptions, in
    the JSON schema too.
    """

    # Validators are built when they are first needed, since few processes need many.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True
    )
    # Class of the constructor's errors; not a description, since it is no key.
    refusal: ClassVar[type[InputError]] = InputError

    def __init__(self, **values: Any) -> None:
        # In a file a path is a string, so a path object becomes one here.
        values = {key: _as_text(value) for key, value in values.items()}
        try:
            super().__init__(**values)
        except ValidationError as error:
            kind = type(self)
            raise refused(self.refusal, kind.__name__, error, kind, values) from None

    # Pydantic then validates nested tables itself, without this constructor, so that the problems
    # of all tables are reported together.
    __init__.__pydantic_base_init__ = True  # pyright: ignore[reportFunctionMemberAccess]

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yields the values that differ from the defaults, so that a reader sees only these."""
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if field.is_required() or value != field.get_default(call_default_factory=True):
                yield name, value

    def __dir__(self) -> list[str]:
        """Names for completion, without the names of pydantic."""
        return sorted({*super().__dir__()} - ({*dir(BaseModel)} - {*dir(object)}))

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: Any, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        written = handler(core_schema)
        properties = handler.resolve_ref_schema(written).get("properties", {})
        for name, description in descriptions_of(cls).items():
            if name in properties:
                properties[name].setdefault("description", description)
        return written


_Refusal = TypeVar("_Refusal", bound=InputError)


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, PurePath) else value


def refused(
    refusal: type[_Refusal],
    source: str,
    error: ValidationError,
    kind: Any,
    tables: Any,
    needed: Mapping[str, str] | None = None,
) -> _Refusal:
    """Returns the error for a refused table: a message of one line, and a line per problem in
    `problems`.

    Args:
        refusal: class of the error.
        source: name of the table, such as its file; every line begins with it.
        error: the validation error.
        kind: class of the whole, or a union of classes with a tag.
        tables: the validated value, as a parser returns it.
        needed: an example for each key that is missing beyond those in `error`, or in it.
    """
    lines = _lines(error, kind, tables, needed or {})
    found = refusal(one_line(f"{source}: {_joined(lines)}"))
    found.problems = tuple(one_line(f"{source}: {line}") for line in lines)
    return found


def with_problems(refusal: type[_Refusal], problems: Sequence[str]) -> _Refusal:
    """Returns an error with these problems, one line each."""
    found = refusal(one_line(_joined(problems)))
    found.problems = tuple(map(one_line, problems))
    return found


def explain(error: ValidationError, kind: Any, tables: Any) -> str:
    """Returns all problems as one line.

    Args:
        error: the validation error.
        kind: class of the whole, or a union of classes with a tag.
        tables: the validated value, as a parser returns it.

    Returns:
        Key, given value, rule and remedy of each problem; numbered if there are several.
    """
    return _joined(_lines(error, kind, tables, {}))


def _joined(lines: Sequence[str]) -> str:
    if len(lines) == 1:
        return lines[0]
    numbered = [f"({place}) {line}" for place, line in enumerate(lines, 1)]
    return f"{len(lines)} problems: " + "; ".join(numbered)


def _lines(
    error: ValidationError,
    kind: Any,
    tables: Any,
    needed: Mapping[str, str],
) -> list[str]:
    """Returns a line per problem, without problems that follow from another one; then the keys that
    are `needed` too."""
    found = error.errors(include_url=False)
    # Each unknown key is compared with all known ones, and a file may have any number of them.
    problems = [_Problem(each, kind, tables, needed) for each in found[:MOST_PROBLEMS]]
    meant = {each.meant for each in problems}
    told: list[_Problem] = []
    for each in problems:
        # A misspelt key is also a missing one; both together are one mistake.
        if each.kind == "missing" and tuple(each.location) in meant:
            continue
        # A list with wrong items is also reported as too short.
        if each.kind == "too_short" and len(problems) > 1:
            continue
        # A value that may be of several types has a problem for each of them.
        same = next((other for other in told if each.shares_value_with(other)), None)
        if same is not None:
            same.rules += [rule.removeprefix("input should be ") for rule in each.rules]
            continue
        told.append(each)
    # Unknown keys come first, because they often explain missing ones.
    told.sort(key=lambda each: each.kind != "extra_forbidden")
    lines = [each.line for each in told]
    if len(found) > MOST_PROBLEMS:
        lines[-1] += f"; {len(found) - MOST_PROBLEMS:,} more problems are not listed"
    known = {*(each.key for each in told), *(".".join(map(str, each or ())) for each in meant)}
    further = (key for key in needed if key not in known)
    return [*lines, *(f"{key} is missing; add it, such as {needed[key]}" for key in further)]


def classes_in(annotation: Any) -> list[type[BaseModel]]:
    """Returns the table classes in an annotation, such as the classes of a union, in order."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [table for each in get_args(annotation) for table in classes_in(each)]


def first_sentence(description: str) -> str:
    """Returns the first sentence of a description on one line, without its full stop."""
    # A sentence ends before a capital, and "et al. 2018" does not.
    return re.split(r"\.\s+(?=[A-Z`])", " ".join(description.split()))[0].rstrip(".")


class _Problem:
    """One entry of pydantic's list."""

    def __init__(self, problem: Any, root: Any, tables: Any, needed: Mapping[str, str]) -> None:
        self.kind: str = problem["type"]
        self.location = _key_path(problem["loc"], tables)
        # Pydantic's messages are sentences; here they follow a colon.
        self.rules = [problem["msg"][0].lower() + problem["msg"][1:]]
        if self.kind in ("bool_type", "bool_parsing"):
            self.rules = ["input should be true or false, in lower case"]
        if problem.get("ctx", {}).get("pattern") == NAME_PATTERN:
            self.rules = ["may hold only letters, digits and, after the first, '.', '_' and '-'"]
        example = needed.get(self.key)
        self._problem, self._such_as = problem, f", such as {example}" if example else ""
        self._root = root
        self._tables = tables
        parent = _class_at(root, self.location[:-1], tables)
        self._known = list(parent.model_fields) if parent is not None else []

    @property
    def key(self) -> str:
        """The key, with those of its tables."""
        return ".".join(map(str, self.location))

    @property
    def meant(self) -> tuple[Any, ...] | None:
        """The key that an unknown one probably misspells."""
        if self.kind != "extra_forbidden":
            return None
        close = difflib.get_close_matches(str(self.location[-1]), self._known, n=1)
        return (*self.location[:-1], close[0]) if close else None

    def shares_value_with(self, other: "_Problem") -> bool:
        """Whether both problems are about the same value."""
        return self.location == other.location and not {self.kind, other.kind} & _TOLD_ALONE

    @property
    def line(self) -> str:
        """The problem in one line: the key, its value, the rule that it breaks, and the remedy."""
        key, given = self.key, self._problem["input"]
        match self.kind:
            case "extra_forbidden":
                return self._line_of_unknown(key, given)
            case "missing":
                about = self._description
                return f"{key} is missing; add it{self._such_as}" + (f" ({about})" if about else "")
            case "union_tag_invalid" | "union_tag_not_found":
                return self._line_of_tag(key, given)
            # Fedray's own validators already state the rule and the remedy.
            case "value_error":
                rule = self._problem["msg"].removeprefix("Value error, ")
                return f"{key}: {rule}" if key else rule
            case _:
                about = self._description
                remedy = f"correct it ({about})" if about else "correct it"
                rules = " or ".join(self.rules)
                return f"{key or 'the file'} = {shown(given)}: {rules}; {remedy}"

    def _line_of_unknown(self, key: str, given: Any) -> str:
        table = ".".join(map(str, self.location[:-1]))
        where = f"[{table}]" if self.location[:-1] else "the top level"
        if self.meant:
            remedy = f"did you mean {self.meant[-1]!r}?"
        elif self._known:
            remedy = f"the keys here are {', '.join(self._known)}"
        else:
            remedy = "leave it out"
        return f"unknown key {key} = {shown(given)} in {where}; {remedy}"

    def _line_of_tag(self, key: str, given: Any) -> str:
        names = _tags_of(_annotation_at(self._root, self.location, self._tables))
        tag = next(iter(names), "kind")
        full = f"{key}.{tag}" if key else tag
        known = list(names.get(tag, ()))
        if self.kind == "union_tag_not_found":
            return f"{full} is missing; it is one of {', '.join(known)}{self._such_as}"
        value = given.get(tag) if isinstance(given, dict) else given
        remedy = did_you_mean(str(value), known, _ELSEWHERE.get(str(value), "take one of them"))
        return f"{full} = {shown(value)} is not one of {', '.join(known)}; {remedy}"

    @property
    def _description(self) -> str:
        """First sentence of the key's description, or of the nearest table's above it."""
        description = ""
        # The walk goes from the top down, so that the nearest description is the last.
        for place, part in enumerate(self.location):
            table = _class_at(self._root, self.location[:place], self._tables)
            if _field(table, part) is not None:
                description = descriptions_of(table).get(part, "")
        return first_sentence(description)


def _key_path(location: tuple[Any, ...], tables: Any) -> list[Any]:
    """Returns pydantic's location without the tags that it inserts for unions."""
    path: list[Any] = []
    node: Any = tables
    for position, part in enumerate(location):
        is_last = position == len(location) - 1
        # The last part may be a missing key, which no table holds.
        if isinstance(node, dict) and (part in node or (is_last and part not in _tags_in(node))):
            path.append(part)
            node = node.get(part)
        elif isinstance(node, list | tuple) and isinstance(part, int) and part < len(node):
            path.append(part)
            node = node[part]
    return path


def _tags_in(node: dict[str, Any]) -> tuple[Any, ...]:
    """Returns the tags that pydantic inserts for a union, if the node is the table of one."""
    # Pydantic inserts the default where the file leaves the model out.
    tags = node.get("kind"), node.get("model", "habit"), node.get("task")
    # Python may pass values that cannot be compared, such as arrays.
    return tuple(tag for tag in tags if isinstance(tag, str))


def _field(table: type[BaseModel] | None, key: Any) -> Any:
    return table.model_fields.get(str(key)) if table is not None else None


def _annotation_at(root: Any, path: list[Any], tables: Any) -> Any:
    """Returns the annotation of the value at a path."""
    if not path:
        return root
    # An element of a list: the list's annotation has the element's class inside.
    if isinstance(path[-1], int):
        return _annotation_at(root, path[:-1], tables)
    field = _field(_class_at(root, path[:-1], tables), path[-1])
    return field.annotation if field is not None else None


def _class_at(root: Any, path: list[Any], tables: Any) -> type[BaseModel] | None:
    """Returns the class of the table at a path, or None if it is not a table or its class is
    unknown."""
    # In a union, the tag in the file decides on the class.
    classes = classes_in(_annotation_at(root, path, tables))
    if len(classes) == 1:
        return classes[0]
    node: Any = tables
    for part in path:
        node = node.get(part) if isinstance(node, dict) else node[part]
    if not isinstance(node, dict):
        return None
    for table in classes:
        if any(node.get(tag) in names for tag, names in _tags_of(table).items()):
            return table
    # Without a tag it is the class of the default, if it has one.
    if not path or any(tag in node for tag in _TAGS):
        return None
    field = _field(_class_at(root, path[:-1], tables), path[-1])
    default = type(getattr(field, "default", None))
    return default if default in classes else None


def _tags_of(annotation: Any) -> dict[str, tuple[Any, ...]]:
    """Returns the keys that distinguish the classes of a union, with their values in order."""
    found: dict[str, tuple[Any, ...]] = {}
    for table in classes_in(annotation):
        for tag in _TAGS:
            field = table.model_fields.get(tag)
            if field is not None and get_origin(field.annotation) is Literal:
                found[tag] = (*found.get(tag, ()), *get_args(field.annotation))
    return found
