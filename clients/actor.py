"""The Ray shell around PopulationShard and LocalTrainer: placement, `remote`, gauges, and a new actor for one that was lost."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.util.metrics import Gauge

from clients.population import part_count, shard_ranges
from clients.shard import PopulationShard
from fedray.answers import RayAnswer, Start
from fedray.errors import ShardLost
from fedray.messages import CheckInOrder, CheckIns, Evaluation, Settlement, ShardPart, ShardUse, TrainOrder, TrainReport
from fedray.placement import Placement
from fedray.protocols import History
from fedray.scenario import Scenario
from fedray.trace.schema import part_ranges

REVIVED_CPUS = 0.0
"""What a new actor asks for in the place of one that was lost: nothing, since its node may be gone and the others full."""


class _ShardBody:
    """What runs in the actor's process. The trainer, and torch with it, is loaded when first asked for."""

    def __init__(self, scenario: Scenario, first_device: int, end_device: int) -> None:
        self._scenario = scenario
        self._shard = PopulationShard(scenario, first_device, end_device)
        self._trainer: Any = None
        tags = {"shard": str(first_device), "scenario": scenario.name}
        self._gauges = {name: _gauge(name, text, tags) for name, text in _GAUGES.items()}

    def check_ins(self, order: CheckInOrder) -> CheckIns:
        check_ins = self._shard.check_ins(order)
        use = self._shard.use()
        for name, gauge in self._gauges.items():
            gauge.set(getattr(use, name))
        return check_ins

    def prepare(self, order: CheckInOrder) -> None:
        self._shard.prepare(order)

    def settle(self, settlements: Sequence[Settlement]) -> None:
        self._shard.settle(settlements)

    def write_part(self, part: int, partial_directory: str, token: str) -> ShardPart:
        return self._shard.write_part(part, partial_directory, token)

    def use(self) -> ShardUse:
        return self._shard.use()

    def train(self, order: TrainOrder) -> TrainReport:
        return self._local_trainer().train(order)

    def evaluate(self, parameters: NDArray[np.float32]) -> Evaluation:
        return self._local_trainer().evaluate(parameters)

    def initial_parameters(self) -> NDArray[np.float32]:
        return self._local_trainer().initial_parameters()

    def _local_trainer(self) -> Any:
        if self._trainer is None:
            from clients.training import LocalTrainer

            self._trainer = LocalTrainer(self._scenario)
        return self._trainer


_GAUGES = {
    "rows": "Rows of the trace that a shard holds",
    "peak_mebibytes": "Peak memory of a shard's process, MiB",
    "busy_seconds": "Seconds that a shard has worked on windows",
    "window": "Look-ahead window that a shard listed last",
}


def _gauge(name: str, text: str, tags: dict[str, str]) -> Gauge:
    gauge = Gauge(f"fedray_shard_{name}", description=text, tag_keys=tuple(tags))
    gauge.set_default_tags(tags)
    return gauge


class RayShard:
    """A shard, and a trainer, in an actor of its own. One that dies or hangs is replaced: the new one hears all settlements again.

    scenario: as `ray.put` gives it, so that it travels once to every node.
    """

    def __init__(
        self,
        scenario: Any,
        device_ids: int,
        first_device: int,
        end_device: int,
        cpus: float,
        placement: Placement,
        history: History,
    ) -> None:
        self.first_device, self.end_device = first_device, end_device
        self.restarts = 0
        self._scenario, self._placement, self._history = scenario, placement, history
        self._parts = part_ranges(device_ids, first_device, end_device)
        self._who = f"the shard of devices {first_device} to {end_device}"
        self._start(cpus)

    def check_ins(self, order: CheckInOrder) -> RayAnswer[CheckIns]:
        """See fedray.protocols.Shard."""
        return self._call("check_ins", order)

    def prepare(self, order: CheckInOrder) -> None:
        """See fedray.protocols.Shard."""
        self._actor.prepare.remote(order)

    def settle(self, settlements: Sequence[Settlement]) -> RayAnswer[None]:
        """See fedray.protocols.Shard."""
        return self._call("settle", settlements)

    def part_count(self) -> int:
        """See fedray.protocols.Shard."""
        return len(self._parts)

    def write_part(self, part: int, partial: str, token: str) -> RayAnswer[ShardPart]:
        """See fedray.protocols.Shard."""
        return self._call("write_part", part, partial, token)

    def use(self) -> RayAnswer[ShardUse]:
        """See fedray.protocols.Shard."""
        return self._call("use")

    def train(self, order: TrainOrder) -> RayAnswer[TrainReport]:
        """See fedray.protocols.Trainer."""
        return self._call("train", order)

    def evaluate(self, parameters: NDArray[np.float32]) -> RayAnswer[Evaluation]:
        """See fedray.protocols.Trainer."""
        return self._call("evaluate", parameters)

    def initial_parameters(self) -> RayAnswer[NDArray[np.float32]]:
        """See fedray.protocols.Trainer."""
        return self._call("initial_parameters")

    def close(self) -> None:
        """Ends the actor."""
        ray.kill(self._actor)

    def _start(self, cpus: float) -> None:
        body: Any = ray.remote(_ShardBody).options(num_cpus=cpus, scheduling_strategy="SPREAD")
        self._actor: Any = body.remote(self._scenario, self.first_device, self.end_device)
        self._started = Start(self._actor.use.remote())

    def _call(self, method: str, *arguments: Any) -> RayAnswer[Any]:
        """Calls are pure, or applied once however often they are made, so that any may be made again."""
        reference = getattr(self._actor, method).remote(*arguments)
        again = partial(self._again, self.restarts, method, arguments)
        return RayAnswer(reference, self._started, self._placement.worker_timeout_seconds, again)

    def _again(self, restarts: int, method: str, arguments: tuple[Any, ...], what: str) -> RayAnswer[Any]:
        if restarts == self.restarts:  # else another call has brought it back already
            self._revive(what)
        return self._call(method, *arguments)

    def _revive(self, what: str) -> None:
        if self.restarts >= self._placement.most_restarts:
            raise ShardLost(
                f"{self._who} {what}, after {self.restarts} restarts; run again, with more memory, more shards or a longer worker "
                "timeout, if that was it"
            )
        self.restarts += 1
        logging.getLogger("fedray").warning("fedray: %s %s; it is started anew", self._who, what)
        ray.kill(self._actor)
        self._start(REVIVED_CPUS)
        for settlements in self._history(self.first_device, self.end_device):
            self._call("settle", settlements).result()


def start_shards(scenario: Scenario, placement: Placement, cpus: float, history: History) -> list[RayShard]:
    """One actor per shard, never more than the trace has parts; each takes its share of the free CPUs, at most one.

    `history` gives all settlements so far of a range of devices, batch by batch.
    """
    devices = scenario.device_ids
    count = min(placement.shards or max(1, int(cpus)), part_count(devices))
    each = max(0.001, min(1.0, cpus / count))
    once = ray.put(scenario)
    return [RayShard(once, devices, first, end, each, placement, history) for first, end in shard_ranges(devices, count)]
