"""Strategies on disk: a JSON document `{"kind": ..., parameters}`, and for matrices a `.npy` file
beside it."""

import json
import os
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedray.base.atomic import replace_file
from fedray.base.errors import InputError, shown
from fedray.base.mistakes import classes_in, explain
from fedray.base.parsing import parse_json
from fedray.mechanisms.registry import AnyStrategy
from fedray.mechanisms.strategy import Strategy
from fedray.mechanisms.triangular import MatrixFile

_ADAPTER: TypeAdapter[Any] = TypeAdapter(AnyStrategy)
_KINDS = tuple(each.model_fields["kind"].default for each in classes_in(AnyStrategy))


def read_strategy(file: str | Path) -> Strategy:
    """The strategy that a JSON file describes, or the matrix that a .npy file is.

    Args:
        file: its path. A matrix's `file` is taken from the JSON's directory.

    Raises:
        InputError: the file cannot be read, or describes no valid mechanism; the message names the
            file and the rule.
    """
    path = Path(file)
    if path.suffix == ".npy":
        document = {"kind": "matrix", "file": path.name}
    else:
        document = read_json(path, "mechanism file")
    try:
        return strategy_of(document, path.parent)
    except ValidationError as error:
        problems = explain(error, AnyStrategy, document)
        raise InputError(
            f"mechanism file {str(path)!r}: {problems}; mechanisms/README.md has every kind"
        ) from None


def strategy_beside(name: str, what: str, context: dict[str, Any] | None) -> Strategy:
    """Returns the strategy that a scenario or a claim names: a file by its path relative to the
    naming file, or a kind without parameters. Raises InputError.

    Args:
        name: the path, or the kind.
        what: the naming file in messages: "scenario" or "claim".
        context: validation context; `directory` is the folder of the naming file.
    """
    directory = (context or {}).get("directory", Path())
    path = directory / name
    if not os.path.isfile(path):
        if name in _KINDS:
            return _of_kind(name, directory)
        raise InputError(
            f"{shown(name)} names no mechanism file: there is no {os.path.abspath(path)!r} "
            f"(a path is relative to the {what} file); correct the path, or put the file there"
        )
    return read_strategy(path)


def _of_kind(kind: str, directory: Path) -> Strategy:
    try:
        return strategy_of({"kind": kind}, directory)
    except ValidationError:
        raise InputError(
            f"{kind!r} is a kind of mechanism that has parameters; make one with `fedray optimize` "
            f"and name its file, or give a table with kind = {kind!r} and its parameters"
        ) from None


def write_strategy(strategy: Strategy, file: str | Path) -> None:
    """Writes a strategy's JSON to `file`, and before it the matrix, as a file named by its content.

    Until the JSON is replaced, whole, it names the matrix that it named before. Raises InputError
    where the file cannot be written.
    """
    path = Path(file)
    try:
        write_json(document_of(strategy, path), path)
    except (OSError, ValueError) as error:
        # ValueError is raised for impossible file names, such as one with a zero byte.
        raise InputError(
            f"mechanism file {str(path)!r} cannot be written ({error}); name a writable file"
        ) from None


def document_of(strategy: Strategy, path: Path) -> dict[str, Any]:
    """The strategy as JSON that is to stand at `path`; its matrix is written beside it. Raises
    OSError."""
    document = strategy.model_dump(mode="json")
    if isinstance(strategy, MatrixFile):
        # The name has the content in it, so that an older JSON never finds another matrix.
        matrix_path = path.with_name(f"{path.stem}-{strategy.sha256[:16]}.npy")
        replace_file(matrix_path, strategy.content)
        document["file"] = matrix_path.name
    return document


def strategy_of(document: Any, directory: Path) -> Strategy:
    """The strategy that a JSON `document` describes; matrices are looked for in `directory`. Raises
    pydantic's ValidationError for one that is refused."""
    return _ADAPTER.validate_python(document, context={"directory": directory})


def write_json(document: dict[str, Any], path: Path) -> None:
    """Writes a document to a JSON file at `path`, whole or not at all. Raises OSError, and
    ValueError for a number that is not finite, which JSON does not have."""
    text = json.dumps(document, indent=1, allow_nan=False)
    replace_file(path, (text + "\n").encode())


def read_json(path: Path, what: str) -> Any:
    """Returns the content of the JSON file at `path`. Raises InputError with the file's name;
    `what` is its role in messages."""
    try:
        return parse_json(path.read_bytes())
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{what} {str(path)!r} cannot be read ({reason}); name a JSON file"
        ) from None
    except json.JSONDecodeError as error:
        raise InputError(
            f"{what} {str(path)!r} is not valid JSON ({error}); correct that place"
        ) from None
    except ValueError as error:
        # A ValueError other than JSONDecodeError means numbers or nesting beyond reason.
        raise InputError(f"{what} {str(path)!r} is not usable JSON ({error}); correct it") from None
