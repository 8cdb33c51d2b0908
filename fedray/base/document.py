"""Documents: typed results as JSON objects, and the type and the meaning of each key.

A key is spelled only in its result class. The keys of a dataclass (or a named tuple) are its
fields; the marks below leave a field out, add a property, or take keys from a value. Documents that
commands put together, and files that are read unchanged, are TypedDicts. The meanings are the
strings below fields and in properties (`fedray.base.descriptions`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum
from functools import cache, cached_property
from pathlib import PurePath
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NotRequired,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from fedray.base.descriptions import descriptions_of
from fedray.base.parsing import finite_or_none

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Keys:
    """Mark of an attribute that gives a document other keys than the attribute's own name.

    listed: the keys, each "key" or "key=path": attributes of the value, at a dotted path.
    """

    listed: str


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
"""Type of a key that is left out if its value is None."""


class Document:
    """Mixin for results that are JSON documents."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Returns one JSON object, not rounded; numbers that are not finite are null."""
        return json_of(self)


@dataclass(frozen=True, slots=True)
class _Source:
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
            return _object(value, _sources(type(value)))
        case list() | tuple():
            return [json_of(each) for each in value]
        # numpy arrays and scalars; base does not import numpy for this.
        case _ if hasattr(value, "tolist"):
            return json_of(value.tolist())
    raise TypeError(f"a value of {type(value).__name__} has no JSON form")


def _object(value: Any, sources: tuple[_Source, ...]) -> dict[str, Any]:
    document = {}
    for source in sources:
        found = source.value_in(value)
        if not source.key:
            document |= json_of(found)
        elif found is not None or not source.is_optional:
            document[source.key] = _selected(found, source.only) if source.only else json_of(found)
    return document


def _selected(value: Any, only: str) -> Any:
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return [_selected(each, only) for each in value]
    return None if value is None else _object(value, _listed(only))


@cache
def _sources(owner: type) -> tuple[_Source, ...]:
    return tuple(
        source
        for name, annotation in _annotations(owner).items()
        for source in _sources_of(name, annotation)
    )


@cache
def _listed(text: str) -> tuple[_Source, ...]:
    parts = [each.partition("=") for each in text.split()]
    return tuple(_Source(key, tuple((path or key).split("."))) for key, _, path in parts)


def _sources_of(name: str, annotation: Any) -> Iterator[_Source]:
    marks = _marks(annotation)
    listed = next((each.listed for each in marks if isinstance(each, Keys)), None)
    if listed is not None:
        for each in _listed(listed):
            yield _Source(each.key, (name, *each.path))
        return
    key = next((each.name for each in marks if isinstance(each, Key)), name)
    only = next((each.listed for each in marks if isinstance(each, Only)), "")
    yield _Source("" if _IN_PLACE in marks else key, (name,), _IF_ANY in marks, only)


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


def _getter(value: Any) -> Any:
    """Returns the function of a property; None for other attributes."""
    return value.func if isinstance(value, cached_property) else getattr(value, "fget", None)


def _returned(value: Any) -> Any:
    return getattr(_getter(value), "__annotations__", {}).get("return")


@dataclass(frozen=True, slots=True)
class DocumentKey:
    """A key of a document, as references describe it."""

    name: str
    type: str
    """Type in the words of JSON, such as "number or null", "list of integers", or "object by
    metric"."""
    meaning: str
    within: "tuple[type, str] | None"
    """Class whose keys the object has (or each object of the list or mapping), and the chosen keys,
    listed as for `Keys`; None if the keys are not listed."""


def keys_of(owner: type, only: str = "") -> list[DocumentKey]:
    """Returns the keys of a document.

    Args:
        owner: dataclass, named tuple or TypedDict of the document.
        only: chosen keys, listed as for `Keys`; empty for all.
    """
    sources = _listed(only) if only else _sources(owner)
    keys = [key for source in sources for key in _keys_from(owner, source)]
    # A later description of a key, such as that of a property, replaces an earlier one.
    return list({key.name: key for key in keys}.values())


def _keys_from(owner: type, source: _Source) -> Iterator[DocumentKey]:
    hint, meaning, is_nullable = Any, "", False
    for place, step in enumerate(source.path):
        if place:
            is_nullable |= NoneType in _parts(hint)
            (owner,) = [each for each in _parts(hint) if each is not NoneType]
        hint, meaning = _hints(owner)[step], _meaning(owner, step)
    if not source.key:
        for each in _parts(hint):
            if get_origin(each) is None:
                yield from keys_of(each)
            else:
                yield DocumentKey(f"{source.path[-1]}.KEY", "any", meaning, None)
        return
    kind = _words(hint)
    if source.is_optional:
        kind = kind.removesuffix(" or null")
    elif (is_nullable or "NaN" in meaning) and "null" not in kind:
        kind += " or null"
    within = _object_in(hint)
    yield DocumentKey(source.key, kind, _in_json_words(meaning), within and (within, source.only))


@cache
def _hints(owner: type) -> dict[str, Any]:
    """Returns the type of each field, property and constant of a class."""
    getters = {name: _getter(getattr(owner, name)) for name in dir(owner)}
    return get_type_hints(owner, include_extras=True) | {
        name: get_type_hints(getter, include_extras=True)["return"]
        for name, getter in getters.items()
        if getter is not None
    }


def _meaning(owner: type, name: str) -> str:
    return " ".join(descriptions_of(owner).get(name, "").split())


_SYMBOLS = {"rho", "mu", "delta"}
"""First words that keep their case, besides single letters."""
_PYTHON = {"None": "null", "NaN": "null", "True": "true", "False": "false"}


def _in_json_words(meaning: str) -> str:
    """Returns a description as a sentence, with the words of JSON for values."""
    for ours, json in _PYTHON.items():
        meaning = re.sub(rf"(^|\. ){ours}\b", rf"\1{json.capitalize()}", meaning)
        meaning = re.sub(rf"\b{ours}\b", json, meaning)
    word = re.split(r"\W", meaning, maxsplit=1)[0]
    is_word = len(word) > 1 and word.isalpha() and word.islower() and word not in _SYMBOLS
    return meaning[:1].upper() + meaning[1:] if is_word else meaning


_WORDS = {int: "integer", float: "number", bool: "boolean", NoneType: "null", Any: "any"}


def _bare(hint: Any) -> Any:
    """Returns a type without marks."""
    while get_origin(hint) in (Annotated, NotRequired, ClassVar):
        hint = get_args(hint)[0]
    return hint


def _parts(hint: Any) -> tuple[Any, ...]:
    """Returns the members of a union, or the type itself."""
    bare = _bare(hint)
    is_union = get_origin(bare) in (Union, UnionType)
    return tuple(part for each in get_args(bare) for part in _parts(each)) if is_union else (bare,)


def _object_in(hint: Any) -> type | None:
    """Returns the class whose keys the objects of a value have."""
    for part in _parts(hint):
        if isinstance(part, type) and _has_keys(part):
            return part
        for each in get_args(part) if get_origin(part) is not Literal else ():
            found = _object_in(each)
            if found is not None:
                return found
    return None


def _has_keys(kind: type) -> bool:
    return is_dataclass(kind) or is_typeddict(kind) or hasattr(kind, "_fields")


def _words(hint: Any) -> str:
    """Returns a type in the words of JSON."""
    return " or ".join(dict.fromkeys(map(_word, _parts(hint))))


def _word(part: Any) -> str:
    origin, arguments = get_origin(part), get_args(part)
    if part in _WORDS:
        return _WORDS[part]
    if origin in (list, tuple, Sequence):
        members = [part for each in arguments if each is not ... for part in _parts(each)]
        words = dict.fromkeys(map(_word, members))
        return f"list of {' and '.join(each if each == 'text' else f'{each}s' for each in words)}"
    if origin in (dict, Mapping):
        names = getattr(arguments[0], "__metadata__", ("name",))[0]
        return f"object by {names}" if _object_in(arguments[1]) else "object"
    if isinstance(part, type) and (_has_keys(part) or hasattr(part, "model_fields")):
        return "object"
    return "text"
