"""Reads the sessions in FedScale's pickle of clients, in a separate process.

    python -I -S fedscale_pickle.py BYTES SECONDS < PICKLE

A pickle is a program for the machine of `pickle.Unpickler`. It can run other code only through
`find_class`, which is refused here. A short pickle may still need unbounded time (the hash of
nested tuples), memory or stack, so `fedray.imports.foreign_sessions` runs this file as a script and
the system limits both. It imports only the standard library, and prints the number of clients and
three columns (device, start and end of each session) as doubles, or the reason for a refusal with
exit code 1.
"""

import contextlib
import math
import os
import pickle
import resource
import sys
from array import array
from typing import Any


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        raise pickle.UnpicklingError(
            f"it names {ascii(module_name)[:80]}, {ascii(global_name)[:80]}; a pickle that names "
            "code may run it, so it is not read"
        )


def sessions_of(clients: Any) -> "tuple[array[float], array[float], array[float]]":
    """Returns device, start and end of every session; devices are numbered in the order of ids.

    Args:
        clients: dict of clients by id.

    Raises:
        ValueError: `clients` is not such a dict, or a client has no valid sessions.
    """
    if type(clients) is not dict or not clients:
        raise ValueError("it is not a dict of clients")
    # isinstance would accept True as a number.
    if not all(type(client) in (int, str) for client in clients):
        raise ValueError("its keys are not the ids of clients")
    device, start, end = array("d"), array("d"), array("d")
    # Numbers and strings cannot be compared, so all numbers come first.
    ids = sorted(clients, key=lambda client: (type(client) is str, client))
    for number, client in enumerate(ids):
        starts = _numbers(client, clients[client], "active")
        ends = _numbers(client, clients[client], "inactive")
        # NaN fails every comparison.
        are_in_order = all(0 <= a <= b < math.inf for a, b in zip(starts, ends, strict=False))
        if len(starts) != len(ends) or not are_in_order:
            raise ValueError(
                f"client {_shown(client)} has sessions that do not end after they start"
            )
        # Sessions without a duration are dropped.
        lasting = [(a, b) for a, b in zip(starts, ends, strict=True) if b > a]
        device.extend([number] * len(lasting))
        start.extend(a for a, _ in lasting)
        end.extend(b for _, b in lasting)
    return device, start, end


def _numbers(client: int | str, record: Any, name: str) -> "array[float]":
    values = record.get(name) if type(record) is dict else None
    if isinstance(values, list | tuple) and all(type(value) in (int, float) for value in values):
        # An integer may be larger than any float.
        with contextlib.suppress(OverflowError):
            return array("d", values)
    raise ValueError(f"client {_shown(client)} has no list {name!r} of numbers")


def _shown(client: int | str) -> str:
    return ascii(client)[:80]


def _limit(memory: int, seconds: int) -> None:
    limits = (
        (resource.RLIMIT_CPU, seconds),
        # A crash is an expected answer, and its core file would be as large as the memory.
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, memory),
    )
    for kind, most in limits:
        # macOS refuses to limit the address space.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))


def _clients() -> Any:
    try:
        # Python 2 stored text as bytes.
        return _PlainUnpickler(sys.stdin.buffer, encoding="latin1").load()
    except MemoryError:
        raise
    # The unpickler raises errors of every kind for bytes that are not a pickle.
    except Exception as error:
        raise ValueError(f"it is not a complete pickle of plain values ({error})") from None


def _main() -> int:
    try:
        _limit(int(sys.argv[1]), int(sys.argv[2]))
        clients = _clients()
        columns = sessions_of(clients)
        for column in (array("d", [len(clients)]), *columns):
            column.tofile(sys.stdout.buffer)
        sys.stdout.flush()
        return 0
    except MemoryError:
        print("it needs too much memory", file=sys.stderr)
    except ValueError as error:
        print(error, file=sys.stderr)
    sys.stderr.flush()
    return 1


if __name__ == "__main__":
    # An ordinary exit would free deeply nested values, which could overflow the stack.
    os._exit(_main())
