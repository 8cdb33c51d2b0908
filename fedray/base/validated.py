"""Checks the types of arguments at the public interface: a wrong type is an `InputError`.

Only the names that `fedray` offers are checked; calls within fedray are checked by its type
checker. Arguments are only inspected: functions get the original, not a converted copy. Pydantic is
imported, and a function's validator built, at the first call.
"""

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from fedray.base.errors import InputError, shown

if TYPE_CHECKING:
    from pydantic import BaseModel

_OWN = "fedray"


@functools.cache
def validated(value: Any) -> Any:
    """Returns a value with its arguments checked.

    Args:
        value: a function, which gets a wrapper; or a class, whose constructor and public methods
            are replaced. Everything else is returned unchanged.
    """
    if inspect.isfunction(value):
        found = _validated_function(value, value.__name__)
        # Pickles name a function by its module, where the unchecked function has that name.
        found.__module__ = _OWN
        return found
    if _is_checked_class(value):
        for name, method in _methods_of(value):
            setattr(value, name, method)
    return value


def _is_checked_class(value: Any) -> bool:
    return (
        inspect.isclass(value)
        and value.__module__.startswith(_OWN)
        and not issubclass(value, Exception)
        and not getattr(value, "_is_protocol", False)
    )


def _methods_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Yields the constructor and the public methods of a class, with checks."""
    constructor = "__new__" if issubclass(kind, tuple) else "__init__"
    for name in dir(kind):
        method = inspect.getattr_static(kind, name)
        told = kind.__name__ if name == constructor else f"{kind.__name__}.{name}"
        if name.startswith("_") and name != constructor:
            continue
        if isinstance(method, classmethod | staticmethod):
            if name == constructor or method.__func__.__module__.startswith(_OWN):
                yield name, type(method)(_validated_function(method.__func__, told))
        # Tables check their values themselves; their methods may run for every update or round.
        elif inspect.isfunction(method) and not hasattr(kind, "model_fields"):
            yield name, _validated_function(method, told)


def _validated_function(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:  # missing or unknown arguments
            known = ", ".join(each for each in signature.parameters if each not in ("self", "cls"))
            raise InputError(f"{name}: {error}; it takes {known or 'no arguments'}") from None
        _check(_model_of(function), name, given)
        return function(*args, **kwargs)

    return checked


def _check(model: "type[BaseModel]", name: str, given: dict[str, Any]) -> None:
    from pydantic import ValidationError

    from fedray.base.mistakes import refused

    tables = {key: _plain(given[key]) for key in model.model_fields if key in given}
    for key, value in tables.items():
        _check_extremes(f"{name}: {key}", value)
    try:
        model.__pydantic_validator__.validate_python(tables)
    except ValidationError as error:
        raise refused(InputError, name, error, model, tables) from None


def _check_extremes(source: str, value: Any) -> None:
    """Refuses values of a right type that Python's own functions refuse."""
    if isinstance(value, str | PurePath) and "\0" in str(value):
        raise InputError(f"{source} = {shown(value)} has a null byte; leave it out")
    if isinstance(value, int) and value.bit_length() > 64:
        raise InputError(f"{source} = {shown(value)} has more than 64 bits; lower it")


def _plain(value: Any) -> Any:
    """Returns a numpy scalar as the Python number that it stands for."""
    is_scalar = type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0
    return value.item() if is_scalar else value


@functools.cache
def _model_of(function: Callable[..., Any]) -> "type[BaseModel]":
    from pydantic import ConfigDict, Field, create_model

    from fedray.base.descriptions import arguments_of

    parameters = inspect.signature(function).parameters.values()
    hints = get_type_hints(function)
    # Results of a function are checked too, though users do not name their classes.
    for each in _classes_in(hints.get("return")):
        validated(each)
    described = arguments_of(function)
    fields: dict[str, Any] = {
        each.name: (_checkable(hints[each.name]), Field(None, description=described.get(each.name)))
        for each in parameters
        if each.name in hints and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    }
    config = ConfigDict(strict=True, arbitrary_types_allowed=True, protected_namespaces=())
    return create_model(function.__name__, __config__=config, **fields)


def _classes_in(hint: Any) -> Iterator[type]:
    if inspect.isclass(hint):
        yield hint
    for each in get_args(hint):
        yield from _classes_in(each)


def _checkable(hint: Any) -> Any:
    """Returns a type hint in which fedray's classes stand for their instances, which are valid."""
    from pydantic import InstanceOf

    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _checkable(args[0])
    # The code that knows the meaning of a string checks it, for the command too.
    if origin is Literal:
        return Union[tuple({type(each) for each in args})]  # noqa: UP007
    if origin in (Union, types.UnionType):
        return Union[tuple(map(_checkable, args))]  # noqa: UP007
    if origin is not None and origin.__module__ == "numpy":
        return InstanceOf[origin]
    if origin is None or origin is Callable or not isinstance(origin, type):
        is_own = inspect.isclass(hint) and hint.__module__.startswith(_OWN)
        return InstanceOf[hint] if is_own else hint
    generic: Any = origin
    return generic[tuple(each if each is ... else _checkable(each) for each in args)]
