"""Documents: typed results as JSON objects.

A key is spelled only in its result class. The keys of a dataclass (or a named tuple) are its
fields; the marks below leave a field out, add a property, or take keys from a value. Documents that
commands put together, and files that are read unchanged, are TypedDicts. The reference of the
documentation lists the keys, with the strings below fields and in properties as their meanings.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from enum import Enum
from functools import cache, cached_property
from pathlib import PurePath
from typing import (
    Annotated,
    Any,
    ClassVar,
    TypeVar,
    get_args,
    get_origin,
)

from fedray.base.parsing import finite_or_none

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Keys:
    """Mark of an attribute that gives a document other keys than the attribute's own name."""

    listed: str
    """The keys, each "key" or "key=path": attributes of the value, at a dotted path."""


@dataclass(frozen=True, slots=True)
class Key:
    """Mark of an attribute whose key has another name; a property with this mark is a key."""

    name: str


@dataclass(frozen=True, slots=True)
class Only:
    """Mark of an attribute whose objects have these keys only, listed as for `Keys`."""

    listed: str


_IN_PLACE, _IF_ANY, _IN_JSON = "in place", "if any", "in JSON"
InJson = Annotated[T, _IN_JSON]
"""Type of a property, or of a constant of the class, that is a key."""
NotInJson = Annotated[T, Keys("")]
"""Type of a field that is not a key."""
InPlace = Annotated[T, _IN_PLACE]
"""Type of a field whose own keys are keys of the document; for a mapping they are `FIELD.KEY`."""
IfAny = Annotated[T | None, _IF_ANY, _IN_JSON]
"""Type of a key that is left out if its value is None or an empty text."""


class Document:
    """Mixin for results that are JSON documents."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Returns one JSON object, not rounded; numbers that are not finite are null."""
        return json_of(self)


@dataclass(frozen=True, slots=True)
class Source:
    """Source of a key's value: an attribute of the result, or a path below it."""

    key: str
    """Key in the document; empty if the keys of the value are keys of the document."""
    path: tuple[str, ...]
    is_optional: bool = False
    """Whether the key is left out if its value is None."""
    only: str = ""
    """Keys of the value, listed as for `Keys`; empty for all."""

    def value_in(self, owner: Any) -> Any:
        """Returns the value, or None if an attribute on the path is None."""
        for step in self.path:
            owner = None if owner is None else getattr(owner, step)
        return owner


def json_of(value: Any) -> Any:
    """Converts a result, or any value within one, to its JSON form.

    Raises:
        TypeError: the type of the value has no JSON form.
    """
    match value:
        case None | bool() | int():
            return value
        # Members of string enumerations are strings too, so they come first.
        case Enum():
            return json_of(value.value)
        case str() | PurePath():
            return str(value)
        case float():
            return finite_or_none(value)
        case Mapping():
            return {str(key): json_of(each) for key, each in value.items()}
        # Models of pydantic, which base does not import for this.
        case _ if hasattr(value, "model_dump"):
            return value.model_dump(mode="json")
        # Named tuples are objects, and other tuples are lists.
        case _ if is_dataclass(value) or hasattr(value, "_fields"):
            return _object(value, sources_of(type(value)))
        case list() | tuple():
            return [json_of(each) for each in value]
        # numpy arrays and scalars; base does not import numpy for this.
        case _ if hasattr(value, "tolist"):
            return json_of(value.tolist())
    raise TypeError(f"a value of {type(value).__name__} has no JSON form")


def _object(value: Any, sources: tuple[Source, ...]) -> dict[str, Any]:
    document = {}
    for source in sources:
        found = source.value_in(value)
        if not source.key:
            document |= json_of(found)
        elif not source.is_optional or not _is_empty(found):
            document[source.key] = _selected(found, source.only) if source.only else json_of(found)
    return document


def _is_empty(value: Any) -> bool:
    # An array has no truth value.
    return value is None or (isinstance(value, str) and not value)


def _selected(value: Any, only: str) -> Any:
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return [_selected(each, only) for each in value]
    return None if value is None else _object(value, listed_sources(only))


@cache
def sources_of(owner: type) -> tuple[Source, ...]:
    """Returns the sources of the keys of a class, in their order."""
    return tuple(
        source
        for name, annotation in _annotations(owner).items()
        for source in _marked_sources(name, annotation)
    )


@cache
def listed_sources(text: str) -> tuple[Source, ...]:
    """Returns the sources of keys that are listed as for `Keys`."""
    parts = [each.partition("=") for each in text.split()]
    return tuple(Source(key, tuple((path or key).split("."))) for key, _, path in parts)


def _marked_sources(name: str, annotation: Any) -> Iterator[Source]:
    marks = _marks(annotation)
    listed = next((each.listed for each in marks if isinstance(each, Keys)), None)
    if listed is not None:
        for each in listed_sources(listed):
            yield Source(each.key, (name, *each.path))
        return
    key = next((each.name for each in marks if isinstance(each, Key)), name)
    only = next((each.listed for each in marks if isinstance(each, Only)), "")
    yield Source("" if _IN_PLACE in marks else key, (name,), _IF_ANY in marks, only)


def _marks(annotation: Any) -> tuple[Any, ...]:
    metadata = getattr(annotation, "__metadata__", ())
    return tuple(each for each in metadata if isinstance(each, Keys | Key | Only | str))


def _annotations(owner: type) -> dict[str, Any]:
    """Returns the annotations of a class's fields, then of its marked constants and properties."""
    # Pydantic adds attributes to a class at run time, so its fields are asked for.
    if hasattr(owner, "model_fields"):
        return dict.fromkeys(owner.model_fields)  # pyright: ignore[reportAttributeAccessIssue]
    found, marked = {}, {}
    for each in reversed(owner.__mro__):
        own = vars(each).get("__annotations__", {})
        constants = {name: get_args(own[name])[0] for name in own if _is_constant(own[name])}
        fields = [name for name in own if name not in constants and not name.startswith("_")]
        found |= {name: own[name] for name in fields}
        returned = {name: _returned(value) for name, value in vars(each).items()}
        marked |= {name: kind for name, kind in (returned | constants).items() if _marks(kind)}
    return found | marked


def _is_constant(annotation: Any) -> bool:
    return get_origin(annotation) is ClassVar


def getter_of(value: Any) -> Any:
    """Returns the function of a property; None for other attributes."""
    return value.func if isinstance(value, cached_property) else getattr(value, "fget", None)


def _returned(value: Any) -> Any:
    return getattr(getter_of(value), "__annotations__", {}).get("return")
