"""Python files of users, run where they are needed."""

import builtins
import contextlib
import inspect
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar

from fedray.base.errors import FedrayError, ScenarioError
from fedray.scenario.content import PythonFile

T = TypeVar("T")


class CodeFailed(ScenarioError):
    """A user's function failed; the message names it."""


PROBED_STEPS = 20
"""Steps of a user's optimizer before a training, in which it must change nothing of its module."""
# Prefix of the names of users' modules.
_MODULES = "fedray_custom_"
_DISTRIBUTIONS = {
    "cv2": "opencv-python",
    "PIL": "pillow",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Packages that pip knows by another name than that of the import."""


def called(what: str, call: Callable[[], T], passed_on: tuple[type[Exception], ...] = ()) -> T:
    """Returns the result of a user's code.

    Args:
        what: name of the code in messages.
        call: call of the code.
        passed_on: errors that the caller handles.

    Raises:
        CodeFailed: the code fails with any other error. The message names the line of the user's
            file, if there is one, or the package that is not installed.
    """
    try:
        return call()
    except passed_on:
        raise
    except ModuleNotFoundError as error:
        raise not_installed(what, error) from None
    except FedrayError as error:
        # Its message names the remedy already.
        where = _line_of(error, " in line ")
        raise ScenarioError(f"{what} failed{where}: {error}") from None
    except (Exception, SystemExit) as error:
        remedy = f"correct{_line_of(error, ' line ') or ' it'}"
        if isinstance(error, NameError) and error.name == "__file__":
            remedy = (
                f"a copy runs, which has no path, so write paths out{_line_of(error, ' in line ')}"
            )
        raise CodeFailed(f"{what} failed: {type(error).__name__}: {error}; {remedy}") from None


def not_installed(what: str, error: ModuleNotFoundError) -> ScenarioError:
    """Returns the error for a user's code that imports a module which is not there.

    Args:
        what: name of the code in messages.
        error: error of the import.
    """
    name = str(error.name or error)
    package, where = name.partition(".")[0], _line_of(error, " in line ")
    if package in sys.modules:
        return ScenarioError(
            f"{what} imports {name}{where}, which the installed package {package!r} does not have; "
            f"install a version of {package!r} that has it"
        )
    return ScenarioError(
        f"{what} imports {name}{where}, which is not installed: pip install "
        f"{_DISTRIBUTIONS.get(package, package)}, or put {package}.py beside the file"
    )


def _line_of(error: BaseException, lead: str) -> str:
    """Returns the lead and the last line of a user's file in a traceback, or an empty string."""
    lines: list[str] = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        name, _, beside = str(frame.f_globals.get("__name__")).partition(".")
        if name.startswith(_MODULES):
            lines.append(f"{line} of {beside}.py" if beside else str(line))
    return f"{lead}{lines[-1]}" if lines else ""


def _name_of(file: PythonFile) -> str:
    """Returns the name of a user's module."""
    # The name contains the digest, so that two versions of a file do not replace each other.
    return f"{_MODULES}{file.sha256[:12]}"


def function_in(file: PythonFile, name: str) -> Callable[..., Any]:
    """Runs a user's file, and returns the function or class of that name in it.

    Raises:
        ScenarioError: the code fails, or has no such function.
    """
    module = ModuleType(_name_of(file))
    # Dataclasses and pickle look up the module of a class by its name.
    sys.modules[module.__name__] = module
    try:
        code, beside = file.compiled(), file.beside
    except ValueError as error:
        raise ScenarioError(f"{file.table}: {error}") from None
    if beside:
        vars(module)["__builtins__"] = _builtins_with(beside, module.__name__)
    called(f"{file.table}.file={file.file!r}", lambda: exec(code, vars(module)))
    function = vars(module).get(name)
    if not callable(function):
        raise ScenarioError(
            f"{file.table}.file={file.file!r} has no function {name!r}; define it there, or name "
            "another file"
        )
    return function


class OptimizerFile:
    """A user's file that defines `optimizer(parameters, learning_rate)`.

    Args:
        table: table that names the file.

    Raises:
        ScenarioError: the file has no such function. Methods raise it if the user's code fails.
    """

    def __init__(self, table: PythonFile) -> None:
        self._table = table
        self._name = f"{table.table}.file={table.file!r}: optimizer"
        self._make = function_in(table, "optimizer")
        own = _name_of(table)
        self._modules = [
            module
            for name, module in sys.modules.items()
            if name == own or name.startswith(f"{own}.")
        ]

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raises ScenarioError if a block changes a variable of the user's modules, or of a class
        there: neither a checkpoint nor a device of its own has it."""
        before = self._variables()
        yield
        after = self._variables()
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                raise self.refused(
                    f"{name!r} of its module changes in a step", "keep what changes in `state`"
                )

    def _variables(self) -> dict[str, bytes]:
        """Returns the content of every variable that can be pickled, by name."""
        found = {}
        for module in self._modules:
            for name, value in _variables_of(module.__name__, vars(module)):
                # Of what cannot be pickled nothing is known.
                with contextlib.suppress(Exception):
                    found[name] = pickle.dumps(value)
        return found

    def made(self, parameters: list[Any], learning_rate: float) -> Any:
        """Returns a `torch.optim.Optimizer` of these tensors."""
        given = called(
            f"{self._name}(parameters, learning_rate)",
            lambda: self._make(parameters, learning_rate),
        )
        parts = ("param_groups", "state", "step")
        if not all(hasattr(given, part) for part in parts):
            raise self.refused(
                f"optimizer(parameters, learning_rate) gave a {type(given).__name__}",
                "return a torch.optim.Optimizer",
            )
        return given

    def step(self, optimizer: Any) -> None:
        """Takes a step of an optimizer that `made` returned."""
        called(f"{self._name}: step()", optimizer.step)

    def refused(self, rule: str, remedy: str) -> ScenarioError:
        """Returns the error for a file that breaks a rule."""
        return ScenarioError.of(f"{self._table.table}.file", self._table.file, rule, remedy)


def _variables_of(
    module: str, names: Mapping[str, Any], seen: frozenset[type] = frozenset()
) -> Iterator[tuple[str, Any]]:
    """Yields the variables among names of a user's module, those of its classes but the seen ones,
    and defaults of its functions, by name."""
    for name, value in [*names.items()]:
        if name.startswith("__") or isinstance(value, ModuleType):
            continue
        if isinstance(value, FunctionType):
            # Torch wraps the step of a class when its first object is made.
            inner = inspect.unwrap(value)
            yield name, (inner.__defaults__, inner.__kwdefaults__, vars(inner))
        elif not isinstance(value, type):
            yield name, value
        elif value.__module__ == module and value not in seen:
            for own, each in _variables_of(module, vars(value), seen | {value}):
                yield f"{name}.{own}", each


def _builtins_with(codes: Mapping[str, CodeType], prefix: str) -> dict[str, Any]:
    """Returns Python's builtins, with an `import` that knows the files beside a user's file.

    These modules have names of their own in `sys.modules`, so that other packages do not get them.
    """
    made: dict[str, ModuleType] = {}

    def load(name: str, *arguments: Any, **more: Any) -> Any:
        if name not in codes:
            return __import__(name, *arguments, **more)
        if name not in made:
            made[name] = module = ModuleType(f"{prefix}.{name}")
            sys.modules[module.__name__] = module
            vars(module)["__builtins__"] = own
            exec(codes[name], vars(module))
        return made[name]

    own = {**vars(builtins), "__import__": load}
    return own
