"""Code of a user's own, run where it is needed."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from fedray.errors import ScenarioError
from fedray.scenario.content import PythonFile

T = TypeVar("T")


def called(what: str, call: Callable[[], T], passed_on: tuple[type[Exception], ...] = ()) -> T:
    """What a user's code gives.

    Args:
        what: names the code in messages.
        call: runs it.
        passed_on: errors that are the caller's to treat.

    Raises:
        ScenarioError: it fails, in whatever way.
    """
    try:
        return call()
    except passed_on:
        raise
    except (Exception, SystemExit) as error:  # whatever a user's code may raise
        raise ScenarioError(f"{what} failed: {type(error).__name__}: {error}; correct it") from None


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
    module = ModuleType(f"fedray_custom_{file.sha256[:12]}")
    sys.modules[module.__name__] = module
    code = compile(file.content, file.file, "exec")
    called(f"{file.table}.file={file.file!r}", lambda: exec(code, vars(module)))
    function = vars(module).get(name)
    if not callable(function):
        raise ScenarioError(
            f"{file.table}.file={file.file!r} has no function {name!r}; define it there, or name "
            "one that is"
        )
    return function
