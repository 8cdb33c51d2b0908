"""Strategies on disk: a JSON document `{"kind": ..., parameters}` and, for a matrix, a `.npy` file
next to it; and C itself, for other programs."""

import csv
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from fedray.base.arrays import Float64Array
from fedray.base.atomic import write_beside, write_output
from fedray.base.errors import InputError, shown
from fedray.base.mistakes import explain
from fedray.base.nearest import nearest_first
from fedray.base.parsing import read_document
from .loss import LOSS_NAMES, Purpose
from .named import NAMED_PURPOSE, PARAMETERS, named_mechanism
from .registry import STRATEGY_KINDS, AnyStrategy
from .strategy import MOST_MATRIX_ROUNDS, Strategy
from .toeplitz import ToeplitzStrategy, toeplitz_blocks
from .triangular import MatrixFile

_ADAPTER: TypeAdapter[Any] = TypeAdapter(AnyStrategy)
WORKLOAD, LOSS = "workload", "loss"
"""Keys of a file for the workload and the loss that the mechanism was made for."""


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
        # They document the mechanism's purpose, and do not belong to it.
        for key in (WORKLOAD, LOSS):
            document.pop(key, None)
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


def recorded_purpose(file: str | Path) -> Purpose | None:
    """Returns the loss and the workload that a mechanism file records, or the ones of a named
    mechanism; None if neither is known. Raises InputError."""
    path = Path(file)
    if not path.is_file():
        return NAMED_PURPOSE if str(file) in PARAMETERS else None
    if path.suffix == ".npy":
        return None
    found = read_document(path, "mechanism file", "JSON")
    document = found if isinstance(found, dict) else {}
    workload, loss = document.get(WORKLOAD), document.get(LOSS)
    if not isinstance(workload, str | None):
        rule = "of a mechanism file must be text, such as prefix"
        raise InputError.of(WORKLOAD, workload, rule, f"correct {str(file)!r}")
    if loss is not None and (not isinstance(loss, str) or loss not in LOSS_NAMES):
        raise InputError.of(
            LOSS, loss, "of a mechanism file must be max or rms", f"correct {str(file)!r}"
        )
    return None if workload is loss is None else Purpose(loss, workload)


def write_strategy(strategy: Strategy, file: str | Path, purpose: Purpose | None = None) -> None:
    """Writes the JSON of a strategy to `file`, after its matrix, whose file is named after its
    content.

    The JSON is replaced atomically, and always names a complete matrix.

    Args:
        strategy: the mechanism.
        file: path of the JSON file.
        purpose: loss and workload that the mechanism was made for, which the file records; None
            for none.

    Raises:
        InputError: the file cannot be written.
    """
    path = Path(file)
    known = purpose or Purpose()
    recorded = {WORKLOAD: known.workload, LOSS: known.objective}
    recorded = {key: value for key, value in recorded.items() if value is not None}
    write_json({**document_of(strategy, path), **recorded}, path, _what(path))


def write_coefficients(strategies: Mapping[str, Strategy], rounds: int, file: str | Path) -> None:
    """Writes C over all rounds: to a .csv file the coefficients c_0, c_1, ..., [rounds], with a
    column for each mechanism, or to a .npy file the matrix of one mechanism, [rounds, rounds] or,
    of a tree, [nodes, rounds].

    Args:
        strategies: mechanisms by name; in a .csv file all are Toeplitz.
        rounds: number of rounds n.
        file: path of the file.

    Raises:
        InputError: the file cannot have these mechanisms, or cannot be written.
    """
    path = Path(file)
    what = f"coefficients {str(path)!r}"
    if path.suffix == ".npy":
        if len(strategies) > 1:
            rule = "has room for one matrix"
            raise InputError.of("coefficients", str(path), rule, "name one mechanism")
        if rounds > MOST_MATRIX_ROUNDS:
            rule = f"has a matrix of at most {MOST_MATRIX_ROUNDS:,} rounds"
            raise InputError.of("coefficients", str(path), rule, "give a .csv file")
        (strategy,) = strategies.values()
        buffer = io.BytesIO()
        strategy.check_rounds(rounds)
        np.save(buffer, _matrix(strategy, rounds))
        write_output(path, buffer.getvalue(), what)
        return
    if path.suffix != ".csv":
        raise InputError.of("coefficients", str(path), "must end in .csv or .npy")
    columns = []
    for name, strategy in strategies.items():
        if not isinstance(strategy, ToeplitzStrategy):
            rule = f"has a column per Toeplitz matrix, and C of {name} is not Toeplitz"
            raise InputError.of("coefficients", str(path), rule, "give a .npy file for its matrix")
        columns.append(strategy.first_column(rounds).tolist())
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["rounds later", *strategies])
    # Python writes the shortest decimals that are read back as the same number.
    writer.writerows(zip(range(rounds), *columns, strict=True))
    write_output(path, text.getvalue().encode(), what)


def _matrix(strategy: Strategy, rounds: int) -> Float64Array:
    if not isinstance(strategy, ToeplitzStrategy):
        return strategy.definition(rounds)
    # The definition goes through every entry, which takes minutes at 20,000 rounds.
    C = np.zeros((rounds, rounds))
    for first, block in toeplitz_blocks(strategy.first_column(rounds)):
        C[first:, first : first + block.shape[1]] = block
    return C


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
