"""Runs a sampler of a training loop, and imports the participations that it makes as a trace."""

import contextlib
import itertools
import os
import sys
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedray.base.errors import InputError
from fedray.imports.importer import import_log
from fedray.trace.imported import ImportedTrace


def record_sampler(name: str, rounds: int, folder: Path) -> ImportedTrace:
    """Runs a sampler for a number of rounds, and returns their trace.

    Args:
        name: the sampler as "module:object", which is looked up in the working directory too: an
            iterable of rounds, or a function without arguments that returns one. A round is a list,
            array or tensor of ids: integers from 0 to 2^64 - 1, or strings.
        rounds: number of rounds to take; a sampler may be endless.
        folder: existing folder for the log and the trace.

    Raises:
        InputError: the sampler is not found, fails, ends early, or yields other values.
    """
    place = os.getcwd()
    try:
        found = _rounds_of(name, rounds)
    # The code is the user's, so it may fail in any way.
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [each for each in frames if os.path.dirname(each.filename) == place]
        where = f" in {Path(own[-1].filename).name}, line {own[-1].lineno}" if own else ""
        rule = f"failed{where}: {type(error).__name__}: {error}"
        remedy = "give module:object, such as my_sampler:batches, whose rounds are lists of ids"
        raise InputError.of("sampler", name, rule, remedy) from None
    if len(found) < rounds:
        rule = f"ended after {len(found):,} of {rounds:,} rounds"
        remedy = "its accountant and it must agree on their number"
        raise InputError.of("sampler", name, rule, remedy)
    ids = [each for of_round in found for each in of_round]
    numbers = np.repeat(np.arange(rounds), [len(each) for each in found])
    # Ids are not negative, and hashed ones take all 64 bits.
    kind = pa.string() if any(isinstance(each, str) for each in ids) else pa.uint64()
    devices = pa.array(ids, kind)
    pq.write_table(pa.table({"device": devices, "round": numbers}), folder / "log.parquet")
    # Every round released something, even if no device was drawn for it.
    (folder / "rounds.txt").write_text("\n".join(map(str, range(rounds))))
    return import_log(
        folder / "log.parquet",
        "device",
        "round",
        None,
        folder / "trace",
        rounds_file=folder / "rounds.txt",
        repeats="each",
        # Ids are values of a program, which are equal or distinct as they are.
        join_ids=False,
        keep_ids=[each for each in set(ids) if isinstance(each, str)],
    )


def _rounds_of(name: str, rounds: int) -> list[list[int | str]]:
    """Runs the sampler, and undoes its changes to the rest of the command."""
    place, path = os.getcwd(), list(sys.path)
    # As for `python -m`, users' modules are found where they work.
    sys.path.insert(0, place)
    try:
        # Its output is not a result of the command.
        with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings(), np.errstate():
            sampler: Any = resolve_name(name)
            # A class of rounds has the method too, but only its objects are iterable.
            made = sampler if hasattr(type(sampler), "__iter__") else sampler()
            found = [_ids_of(each) for each in itertools.islice(made, rounds)]
    finally:
        os.chdir(place)
        sys.path[:] = path
    # As text, the number 1 and the text "1" would be one device.
    if len({type(each) for of_round in found for each in of_round}) > 1:
        raise TypeError("ids are integers in part and strings in part")
    return found


def _ids_of(of_round: Any) -> list[int | str]:
    # These are iterable, but yield letters, bytes and names of columns.
    if isinstance(of_round, str | bytes | bytearray | Mapping) or not hasattr(of_round, "__iter__"):
        raise TypeError(f"a round is of type {type(of_round).__name__}, not a list of ids")
    # Arrays of NumPy, JAX and torch have this method, and so have their scalars.
    plain = [getattr(each, "tolist", lambda each=each: each)() for each in of_round]
    for each in plain:
        if type(each) not in (int, str):
            raise TypeError(f"a round has an id of type {type(each).__name__}, not int or str")
        if isinstance(each, int) and not 0 <= each < 2**64:
            raise ValueError(f"a round has the id {each}, which is not from 0 to 2^64 - 1")
        # Half a surrogate has no encoding, and an empty text names no device.
        if not str(each).encode():
            raise ValueError("a round has an empty id")
    return plain
