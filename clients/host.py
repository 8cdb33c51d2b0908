"""ShardHost: the shards of one node, on threads. Plain Python; clients/workers.py puts it on Ray.

The server sends a host one message per window, and gets one list of check-ins, so that the server's
work grows with the nodes and not with the shards. Compiled code of a shard runs without Python's
global lock, so that threads work side by side.
"""

import dataclasses
import resource
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from fedray.scenario import Scenario, SeveralTasks
from fedray.scenario.several_tasks import tasks_of
from fedray.wire.messages import (
    CheckInOrder,
    CheckIns,
    Settlement,
    ShardPart,
    ShardUse,
    settlements_of_devices,
)
from .shard import PopulationShard
from .tasks_shard import TasksShard, shard_of

T = TypeVar("T")
_AnyShard = PopulationShard | TasksShard


class ShardHost:
    """Shards of neighbouring ranges of devices as one shard, with the answers of `PopulationShard`.

    Args:
        scenario: source of the devices.
        ranges: the devices [first, end) of every shard; each begins where the one before ends.
        threads: number of shards that work at once; 1 to use the caller's thread only.

    busy_seconds: wall-clock time of calls for windows, without the time between calls.
    """

    def __init__(
        self, scenario: Scenario | SeveralTasks, ranges: Sequence[tuple[int, int]], threads: int = 1
    ) -> None:
        self.first_device, self.end_device = ranges[0][0], ranges[-1][1]
        self.busy_seconds = 0.0
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "shard") if threads > 1 else None
        self._shards = self._of_each(
            [lambda edges=edges: shard_of(scenario, *edges) for edges in ranges]
        )
        self._prepared: list[Future[None]] = []
        self._window = -1
        traces = len(tasks_of(scenario))
        counts = [shard.part_count // traces for shard in self._shards]
        # One trace after the other. The shards take turns, so that parts written at the same time
        # belong to different shards.
        self._parts = [
            (trace * counts[place] + part, place)
            for trace in range(traces)
            for part, place in sorted(
                (part, place) for place, count in enumerate(counts) for part in range(count)
            )
        ]
        self._parts_of_trace = sum(counts)
        self._locks = [threading.Lock() for _ in self._shards]
        self._written: dict[int, Future[ShardPart]] = {}

    def prepare(self, order: CheckInOrder) -> None:
        """See `PopulationShard.prepare`. With threads it continues after this has returned."""
        if self._pool is None:
            begun = time.perf_counter()
            for shard in self._shards:
                shard.prepare(order)
            self.busy_seconds += time.perf_counter() - begun
            return
        # A shard works on one order at a time, so earlier work must be over.
        self._finish_preparing()
        self._prepared = [self._pool.submit(shard.prepare, order) for shard in self._shards]

    def check_ins(self, order: CheckInOrder) -> CheckIns:
        """Applies the order's settlements, then lists its window's first check-ins of all shards,
        in order of (time, device)."""
        begun = time.perf_counter()
        self._finish_preparing()
        self._window = order.window.number
        # A batch would be cut into settlements again for every shard.
        settlements = tuple(order.settlements)
        orders = [
            dataclasses.replace(order, settlements=_of_shard(settlements, shard))
            for shard in self._shards
        ]
        answers = self._of_each(
            [
                lambda shard=shard, own=own: shard.check_ins(own)
                for shard, own in zip(self._shards, orders, strict=True)
            ]
        )
        merged = CheckIns.merged(answers)
        self.busy_seconds += time.perf_counter() - begun
        return merged

    def settle(self, settlements: Iterable[Settlement]) -> None:
        self._finish_preparing()
        whole = tuple(settlements)
        self._of_each(
            [lambda shard=shard: shard.settle(_of_shard(whole, shard)) for shard in self._shards]
        )

    def write_part(self, part: int, partial: str, token: str) -> ShardPart:
        """See `PopulationShard.write_part`.

        Args:
            part: its number among the host's, whose shards take turns. With threads the next ones
                are begun, too.
            partial: the run's directory.
            token: marker by which the host recognises its own file system.
        """
        self._finish_preparing()
        if self._pool is None:
            return self._write(part, partial, token)
        # Another trace is written elsewhere.
        end = (part // self._parts_of_trace + 1) * self._parts_of_trace
        for ahead in range(part, min(part + self._threads, end)):
            if ahead not in self._written:
                self._written[ahead] = self._pool.submit(self._write, ahead, partial, token)
        return self._written.pop(part).result()

    def use(self) -> ShardUse:
        """Use of resources by the shards so far."""
        # Linux reports the peak in KiB.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return ShardUse(
            self.first_device,
            self.end_device,
            sum(shard.rows for shard in self._shards),
            round(peak, 1),
            round(self.busy_seconds, 3),
            self._window,
        )

    def gauges(self) -> dict[str, tuple[str, float]]:
        """Returns descriptions and values for a cluster's monitoring of a node's shards."""
        use = self.use()
        return {
            "rows": ("Rows of the trace that a node's shards hold", use.rows),
            "peak_mebibytes": ("Peak memory of the shards' process, MiB", use.peak_mebibytes),
            "busy_seconds": ("Seconds that the shards have worked on windows", use.busy_seconds),
            "window": ("Look-ahead window that the shards listed last", use.window),
        }

    def _write(self, part: int, partial: str, token: str) -> ShardPart:
        own_part, place = self._parts[part]
        # Parts that are begun ahead may belong to one shard, which answers one call at a time.
        with self._locks[place]:
            return self._shards[place].write_part(own_part, partial, token)

    def _finish_preparing(self) -> None:
        """Waits for the work of `prepare`; raises its error."""
        prepared, self._prepared = self._prepared, []
        for future in prepared:
            future.result()

    def _of_each(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Returns the results of calls, in their order."""
        if self._pool is None:
            return [call() for call in calls]
        return [future.result() for future in [self._pool.submit(call) for call in calls]]


def _of_shard(settlements: tuple[Settlement, ...], shard: _AnyShard) -> tuple[Settlement, ...]:
    return settlements_of_devices(settlements, shard.first_device, shard.end_device)
