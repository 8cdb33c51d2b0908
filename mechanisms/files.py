"""Strategies on disk: a JSON document `{"kind": ..., parameters}` and, for a matrix, a `.npy` file
next to it."""

import json
import os
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedray.base.atomic import write_beside, write_output
from fedray.base.errors import InputError, shown
from fedray.base.mistakes import explain
from fedray.base.nearest import nearest_first
from fedray.base.parsing import read_document
from .named import PARAMETERS, named_mechanism
from .registry import STRATEGY_KINDS, AnyStrategy
from .strategy import Strategy
from .triangular import MatrixFile
from .workload import Workload

_ADAPTER: TypeAdapter[Any] = TypeAdapter(AnyStrategy)
WORKLOAD = "workload"
"""Key of a file for the workload that the mechanism was made for."""


def read_strategy(file: str | Path) -> Strategy:
    """Reads a strategy from a JSON file, or a matrix from a .npy file.

    Args:
        file: path of the file; if there is none, blt-100, blt-400 or blt-1000 name a mechanism.
            Matrices are searched for in its directory.

    Raises:
        InputError: the file cannot be read, or does not describe a valid mechanism.
    """
    path = Path(file)
    if str(file) in PARAMETERS and not path.exists():
        return named_mechanism(str(file))
    if path.suffix == ".npy":
        # A bare matrix claims no structure, so audits assume nothing about it.
        document = {"kind": "matrix", "file": path.name}
    else:
        document = read_document(path, "mechanism file", "JSON")
    if isinstance(document, dict):
        # It documents the mechanism's purpose, and is no part of it.
        document.pop(WORKLOAD, None)
    try:
        return strategy_of(document, path.parent)
    except ValidationError as error:
        problems = explain(error, AnyStrategy, document)
        raise InputError(
            f"mechanism file {str(path)!r}: {problems}; mechanisms/README.md has every kind"
        ) from None


def strategy_beside(name: str, what: str, context: dict[str, Any] | None) -> Strategy:
    """Reads the strategy that a scenario or a claim names. Raises InputError.

    Args:
        name: path of the strategy's file, relative to the file that names it; a kind without
            parameters; or a name of `named_mechanism`.
        what: type of the file that names it, for messages: "scenario" or "claim".
        context: validation context; its `directory` is that of the file that names the strategy.
    """
    directory = (context or {}).get("directory", Path())
    path = directory / name
    if not os.path.isfile(path):
        if name in PARAMETERS:
            return named_mechanism(name)
        if name in STRATEGY_KINDS:
            return _of_kind(name, directory)
        raise InputError(
            f"{shown(name)} names no mechanism file: {os.path.abspath(path)!r} does not exist; "
            f"give a path relative to the {what} file, or a name such as "
            f"{', '.join(nearest_first(name, [*PARAMETERS, *STRATEGY_KINDS])[:3])}"
        )
    return read_strategy(path)


def _of_kind(kind: str, directory: Path) -> Strategy:
    try:
        return strategy_of({"kind": kind}, directory)
    except ValidationError:
        raise InputError(
            f"mechanism {kind!r} needs parameters; name a file written by `fedray optimize`, or "
            f"give a table with kind = {kind!r} and its parameters, or name "
            f"{', '.join(PARAMETERS)}"
        ) from None


def recorded_workload(file: Path) -> str | None:
    """Returns the workload that a mechanism file records, as text; None if it records none. Raises
    InputError."""
    document = read_document(file, "mechanism file", "JSON")
    workload = document.get(WORKLOAD) if isinstance(document, dict) else None
    if not isinstance(workload, str | None):
        rule = "of a mechanism file must be text, such as prefix"
        raise InputError.of(WORKLOAD, workload, rule, f"correct {str(file)!r}")
    return workload


def write_strategy(strategy: Strategy, file: str | Path, workload: Workload | None = None) -> None:
    """Writes the JSON of a strategy to `file`, after its matrix, whose file is named after its
    content.

    The JSON is replaced atomically, and always names a complete matrix.

    Args:
        strategy: the mechanism.
        file: path of the JSON file.
        workload: workload that the mechanism was made for, which the file records; None for none.

    Raises:
        InputError: the file cannot be written.
    """
    path = Path(file)
    recorded = {} if workload is None else {WORKLOAD: str(workload)}
    write_json({**document_of(strategy, path), **recorded}, path, _what(path))


def document_of(strategy: Strategy, path: Path) -> dict[str, Any]:
    """Returns the JSON document for `path`, and writes the matrix next to it. Raises InputError."""
    document = strategy.model_dump(mode="json")
    if isinstance(strategy, MatrixFile):
        # The name contains the digest, so that an older JSON never finds a different matrix.
        document["file"] = f"{path.stem}-{strategy.sha256[:16]}.npy"
        write_beside(path, lambda _: document["file"], strategy.content, _what(path))
    return document


def strategy_of(document: Any, directory: Path) -> Strategy:
    """Returns the strategy that a JSON document describes, with matrices from `directory`. Raises
    pydantic's ValidationError."""
    return _ADAPTER.validate_python(document, context={"directory": directory})


def write_json(document: dict[str, Any], path: Path, what: str) -> None:
    """Writes a document to an output as JSON. Raises InputError, also for a number that is not
    finite, which JSON has not."""
    try:
        text = json.dumps(document, indent=1, allow_nan=False)
    except ValueError as error:
        raise InputError(f"{what} cannot be written ({error}); name a writable file") from None
    write_output(path, f"{text}\n".encode(), what)


def _what(path: Path) -> str:
    return f"mechanism file {str(path)!r}"
