"""Runs a sampler of a training loop, and imports the participations that it makes as a trace."""

import itertools
import os
import sys
import traceback
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
            array or tensor of ids: integers or strings.
        rounds: number of rounds to take; a sampler may be endless.
        folder: existing folder for the log and the trace.

    Raises:
        InputError: the sampler is not found, fails, ends early, or yields other values.
    """
    try:
        found = _rounds_of(name, rounds)
    # The code is the user's, so it may fail in any way.
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [each for each in frames if os.path.dirname(each.filename) == os.getcwd()]
        where = f" in {Path(own[-1].filename).name}, line {own[-1].lineno}" if own else ""
        rule = f"failed{where}: {type(error).__name__}: {error}"
        remedy = "give it as module:object, such as my_sampler:batches"
        raise InputError.of("sampler", name, rule, remedy) from None
    if len(found) < rounds:
        rule = f"ended after {len(found):,} of {rounds:,} rounds"
        remedy = "its accountant and it must agree on their number"
        raise InputError.of("sampler", name, rule, remedy)
    ids = [each for of_round in found for each in of_round]
    is_number = all(type(each) is int for each in ids)
    numbers = np.repeat(np.arange(rounds), [len(each) for each in found])
    devices = pa.array(ids if is_number else map(str, ids), pa.int64() if is_number else None)
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
    )


def _rounds_of(name: str, rounds: int) -> list[list[int | str]]:
    # As for `python -m`, users' modules are found where they work.
    sys.path.insert(0, os.getcwd())
    sampler = resolve_name(name)
    made = sampler if hasattr(sampler, "__iter__") else sampler()
    return [_ids_of(each) for each in itertools.islice(made, rounds)]


def _ids_of(of_round: Any) -> list[int | str]:
    # Arrays of NumPy, JAX and torch have this method, and so have their scalars.
    plain = [getattr(each, "tolist", lambda each=each: each)() for each in of_round]
    for each in plain:
        if type(each) not in (int, str):
            raise TypeError(f"a round has an id of type {type(each).__name__}, not int or str")
    return plain
