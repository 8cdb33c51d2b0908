"""Keys of documents, and how they are taken from the classes of which documents are made.

What a key means stands where its value is defined: below a field, in the docstring of its class, or
in that of a property (`fedray.base.descriptions.attributes_of`).
"""

import re
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from fedray.base.descriptions import attributes_of, descriptions_of

_SYMBOLS = {"rho", "mu", "delta"}
"""First words that stay as they are, beside single letters."""
_WORDS = {int: "integer", float: "number", bool: "boolean", str: "text", type(None): "null"}


@dataclass(frozen=True, slots=True)
class JsonKey:
    """A key of a document, or of an object within it."""

    type: str
    """Such as "number or null", "list of integers", or "object by metric" where keys are names."""
    meaning: str
    """A sentence or a phrase, with the unit where there is one."""
    within: Mapping[str, "JsonKey"] | None = None
    """The keys of the object, of each object of the list, or of each object by name; None where the
    value has none, or where its keys are those of something else."""


_AS_DEFINED = JsonKey("", "")
"""Of an attribute: with its own type and meaning."""
Keys = Mapping[str, JsonKey]


def keys_of(owner: type, names: str = "", **given: JsonKey) -> Keys:
    """Keys that are attributes of a class.

    Args:
        owner: the class.
        names: the keys, in order; empty for all fields of a dataclass.
        given: keys that are none of its attributes, or whose value is another one in JSON. An empty
            type or meaning is that of the attribute.
    """
    listed = names.split() or [field.name for field in fields(owner)]
    return {name: key_of(owner, name, given.get(name, _AS_DEFINED)) for name in listed}


def key_of(owner: type, name: str, given: JsonKey = _AS_DEFINED) -> JsonKey:
    """A key that is an attribute of a class.

    Args:
        owner: the class.
        name: of the attribute.
        given: as in `keys_of`.
    """
    meaning = given.meaning or meaning_of(owner, name)
    return JsonKey(given.type or _type_of(_annotation(owner, name)), meaning, given.within)


def meaning_of(owner: type, name: str) -> str:
    """What an attribute means, as a sentence with JSON's words for values.

    Args:
        owner: the class.
        name: of the attribute.
    """
    told = descriptions_of if issubclass(owner, BaseModel) else attributes_of
    meaning = " ".join(told(owner)[name].split())
    for ours, json in (("None", "null"), ("True", "true"), ("False", "false")):
        meaning = re.sub(rf"(^|\. ){ours}\b", rf"\1{json.capitalize()}", meaning)
        meaning = re.sub(rf"\b{ours}\b", json, meaning)
    first = re.match(r"\w*", meaning)
    assert first is not None
    word = first[0]
    is_word = len(word) > 1 and word.isalpha() and word.islower() and word not in _SYMBOLS
    return meaning[0].upper() + meaning[1:] if is_word else meaning


def finite_or_null(owner: type, name: str) -> JsonKey:
    """A key of a number that is NaN in its class where it is null in JSON.

    Args:
        owner: the class.
        name: of the attribute.
    """
    return JsonKey("number or null", meaning_of(owner, name).replace("NaN", "null"))


def text(meaning: str) -> JsonKey:
    """A key of a text that no class has.

    Args:
        meaning: as in `JsonKey`.
    """
    return JsonKey("text", meaning)


def written() -> dict[str, JsonKey]:
    """What commands add of files that were asked for."""
    return {
        "page": text("Path of the page; only with `--page`."),
        "figures": text("Directory of the figures; only with `--figures`."),
    }


def _annotation(owner: type, name: str) -> Any:
    value = vars(owner).get(name)
    getter = getattr(value, "fget", None) or getattr(value, "func", None)
    return get_type_hints(getter)["return"] if getter else get_type_hints(owner)[name]


def _type_of(annotation: Any) -> str:
    """An annotation in the words of JSON."""
    if annotation in _WORDS:
        return _WORDS[annotation]
    arguments = get_args(annotation)
    origin = get_origin(annotation)
    if origin in (types.UnionType, Union):
        return " or ".join(_type_of(each) for each in arguments)
    if origin in (tuple, list):
        several = (f"{_type_of(each)}s" for each in get_args(arguments[0]) or arguments[:1])
        return f"list of {' and '.join(several)}".replace("texts", "text")
    is_text = origin is Literal or issubclass(annotation, StrEnum)
    assert is_text, f"{annotation} has no words in JSON"
    return "text"
