"""The keys of JSON documents, with their types and meanings, from the classes of the results.

The meanings are the strings below fields and in properties (`fedray.base.descriptions`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from fedray.base.descriptions import descriptions_of
from fedray.base.document import Source, getter_of, listed_sources, sources_of


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
    sources = listed_sources(only) if only else sources_of(owner)
    keys = [key for source in sources for key in _keys_from(owner, source)]
    # A later description of a key, such as that of a property, replaces an earlier one.
    return list({key.name: key for key in keys}.values())


def _keys_from(owner: type, source: Source) -> Iterator[DocumentKey]:
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
    getters = {name: getter_of(getattr(owner, name)) for name in dir(owner)}
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
