"""Whether JSON documents have the keys that their types declare, with values of these types."""

from collections.abc import Iterator, Mapping
from typing import Any

from document_keys import DocumentKey, keys_of

KINDS: Mapping[str, type | tuple[type, ...]] = {
    "text": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "list": list,
    "object": dict,
    "any": object,
}
Owned = tuple[Any, str]
"""A key, and the type that it is a key of."""


def found_keys(document: dict[str, Any], *types: type) -> set[Owned]:
    """The keys of a document and of all objects within it; each must be declared.

    Args:
        document: the document, as JSON has it.
        types: types whose keys it has together.
    """
    return set(_found(document, {(each, ""): keys_of(each) for each in types}, ""))


def declared_keys(*types: type, but: tuple[type, ...] = ()) -> set[Owned]:
    """The keys of types and of all objects within them.

    Args:
        types: the types.
        but: types whose objects are left out.
    """
    left = [(each, "") for each in types]
    declared: set[Owned] = set()
    seen = {(each, "") for each in but}
    while left:
        owner = left.pop()
        keys = keys_of(*owner)
        declared |= {(owner, key.name) for key in keys}
        within = {key.within for key in keys if key.within} - seen
        seen |= within
        left += within
    return declared


def _found(
    document: dict[str, Any], owners: dict[Any, list[DocumentKey]], above: str
) -> Iterator[Owned]:
    known = {key.name: (owner, key) for owner, keys in owners.items() for key in keys}
    for name, value in document.items():
        # The keys that a sweep varies have one description.
        declared = "cell.KEY" if name.startswith("cell.") else name
        assert declared in known, f"{above}{name} is not declared"
        owner, key = known[declared]
        assert _is_of(value, key.type), f"{above}{name} is {value!r}, not {key.type}"
        yield owner, key.name
        for each in _objects_in(value, key):
            assert key.within
            yield from _found(each, {key.within: keys_of(*key.within)}, f"{above}{name}.")


def _objects_in(value: Any, key: DocumentKey) -> list[dict[str, Any]]:
    if value is None or key.within is None:
        return []
    if "object by" in key.type:
        value = list(value.values())
    return [each for each in value if each] if isinstance(value, list) else [value]


def _is_of(value: Any, kind: str) -> bool:
    matching = [each for each in kind.split(" or ") if isinstance(value, KINDS[each.split()[0]])]
    return bool(matching) and (not isinstance(value, bool) or kind.startswith(("boolean", "any")))
