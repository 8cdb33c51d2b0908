"""Work on several threads, with results in order.

Threads help if most of the time goes into code that releases Python's lock: arrays of numpy,
Parquet's decoding, digests.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

MOST_THREADS = 4  # each needs memory for its result
AHEAD = 2
"""Largest number of finished results that wait for the consumer, beside those in the making."""

_Part = TypeVar("_Part")
_Made = TypeVar("_Made")


def usable_cpus() -> int:
    """Returns the number of CPUs on which this process may run."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_order(make: Callable[[_Part], _Made], parts: Iterable[_Part]) -> Iterator[_Made]:
    """Yields make(part) for each part, in order.

    A few threads work ahead of the consumer, but never far, so that memory stays bounded.
    """
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
            # A consumer that stops early does not wait for the remaining parts.
            for future in pending:
                future.cancel()
