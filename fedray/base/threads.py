"""Work that is done on several threads, with answers in order.

Threads help where most of the time goes into code that releases Python's lock: arrays of numpy,
Parquet's decoding, digests.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

MOST_THREADS = 4
"""Threads at most, because each needs memory for what it makes."""
AHEAD = 2
"""Answers that wait to be taken, at most, beside those in the making."""

_Part = TypeVar("_Part")
_Made = TypeVar("_Made")


def usable_cpus() -> int:
    """CPUs of this machine on which this process may run."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_order(make: Callable[[_Part], _Made], parts: Iterable[_Part]) -> Iterator[_Made]:
    """What `make` makes of each of the `parts`, in order; on a few threads, and never far ahead of
    what is taken, so that memory stays bounded."""
    threads = min(MOST_THREADS, usable_cpus())
    with ThreadPoolExecutor(threads) as pool:
        pending: deque[Future[_Made]] = deque()
        try:
            for part in parts:
                pending.append(pool.submit(make, part))
                if len(pending) >= threads + AHEAD:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            # Whoever stops early does not wait for parts that nobody will look at.
            for future in pending:
                future.cancel()
