"""Code of a user's own, run where it is needed."""

import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from fedray.base.errors import FedrayError, ScenarioError
from fedray.scenario.content import PythonFile

T = TypeVar("T")
_MODULES = "fedray_custom_"
"""How the names of modules of users' code begin."""


def called(what: str, call: Callable[[], T], passed_on: tuple[type[Exception], ...] = ()) -> T:
    """What a user's code gives.

    Args:
        what: names the code in messages.
        call: runs it.
        passed_on: errors that are the caller's to treat.

    Raises:
        ScenarioError: it fails, in whatever way. The message names the line of the user's file
            where there is one.
    """
    try:
        return call()
    except passed_on:
        raise
    except FedrayError as error:  # it says what to do
        raise ScenarioError(f"{what} failed{_line_of(error, ' in line ')}: {error}") from None
    except (Exception, SystemExit) as error:  # whatever a user's code may raise
        where = _line_of(error, " line ") or " it"
        told = f"{what} failed: {type(error).__name__}: {error}; correct{where}"
        raise ScenarioError(told) from None


def _line_of(error: BaseException, lead: str) -> str:
    """The innermost line of a user's file that an error went through, after a `lead`; empty if it
    went through none."""
    lines = [
        line
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).startswith(_MODULES)
    ]
    return f"{lead}{lines[-1]}" if lines else ""


def function_in(file: PythonFile, name: str) -> Callable[..., Any]:
    """The function or class of that name in a user's file, whose code is run.

    The file is a module while it runs and afterwards, so that what it defines (dataclasses, such
    as pickle wants) finds its home.

    Args:
        file: the user's file, as its content.
        name: what it must define.

    Raises:
        ScenarioError: the code fails, or has no such function.
    """
    # It is named by its content, so that two versions of a file do not replace each other.
    module = ModuleType(f"{_MODULES}{file.sha256[:12]}")
    sys.modules[module.__name__] = module
    try:
        code = file.compiled(file.content)
    except ValueError as error:
        raise ScenarioError(f"{file.table}: {error}") from None
    called(f"{file.table}.file={file.file!r}", lambda: exec(code, vars(module)))
    function = vars(module).get(name)
    if not callable(function):
        raise ScenarioError(
            f"{file.table}.file={file.file!r} has no function {name!r}; define it there, or name "
            "one that is"
        )
    return function
