"""The training side of committed rounds: trains fixed groups of devices, whose updates the
aggregator adds up.

A round's cohort is a sample of its accepted devices, or all of them. The draw depends only on their
number, so it can be made during the simulation or afterwards, from the trace.
"""

import dataclasses
import heapq
import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import AggregatorLost, CheckpointError, StoreLost
from fedray.base.rng import Stream, stream_generator
from fedray.encoding.norms import padded
from fedray.runtime.workers import ArgumentLost
from fedray.scenario import Scenario
from fedray.scenario.clipping import Clip
from fedray.trace.checkpoints import prefixed, under
from fedray.wire.messages import (
    DeviceMeasures,
    Evaluated,
    Evaluation,
    Measured,
    Metric,
    TrainingMetrics,
    TrainOrder,
    TrainReport,
)
from fedray.wire.protocols import Kept, Trainer
from .best import best_round, why_stopped
from .evaluation import SharedEvaluation
from .workers import AggregatorWorker, StoreWorker

MOST_PARAMETERS = 3 << 19
"""Largest number of parameters in all models of a group. Beyond 6 MiB, larger groups are no faster
on a CPU, and smaller ones are shared more evenly among trainers.
"""
MOST_OPENED = 1 << 25
"""Largest number of integers in opened sums, unless one has more, that a store keeps for an
aggregator that is lost: 256 MiB."""
Loads = Callable[[NDArray[np.uint64]], NDArray[np.int64]]
"""Returns the cost of training each device [G], in any unit."""


def cohort_places(scenario: Scenario, round_index: int, accepted: int) -> NDArray[np.int64]:
    """Returns the places [cohort_sample] of the accepted devices that train, sorted.

    They are drawn without replacement, at an address of seed and round. All devices of a Poisson
    sample train.

    accepted: number of accepted devices.
    """
    if scenario.trains_whole_rounds:
        # Training only some devices of a Poisson sample would change the sampling probability.
        return np.arange(accepted)
    # The mean of fewer updates varies more than that of the whole cohort, which nothing corrects:
    # such a model is, if anything, a little worse than the deployed one.
    generator = stream_generator(scenario.training_seed, Stream.COHORT, round_index)
    return np.sort(generator.choice(accepted, scenario.training.cohort_sample, replace=False))


class Cohort(NamedTuple):
    """The devices of a round that train."""

    device_ids: NDArray[np.uint64]
    """[cohort_sample], sorted."""
    versions: NDArray[np.uint32] | None = None
    """Model version sent to each, [cohort_sample]; None if all have the newest."""
    accepted: int | None = None
    """Devices that the round accepted; None if all of them train."""


class _Group(NamedTuple):
    """Devices of a cohort that are trained together, from the same version of the model."""

    device_ids: NDArray[np.uint64]
    version: int
    load: float
    """Cost of training these devices, in the unit of `Loads`."""


class TrainingLoop:
    """Trains the model round by round.

    A lost aggregator is replaced from its last known state, and the rounds since are trained again.
    That gives the same bits, because training is a function of parameters, round and devices, and
    noise of the round. If devices add noise, the store repeats the sums that it has opened since
    then; a lost store is replaced from its own state of the same round. In buffered rounds, handles
    of the last max_staleness + 1 versions of the parameters are kept, since devices train from
    these.

    Args:
        scenario: the scenario.
        trainers: the pool of trainers.
        aggregator: the model's aggregator.
        loads: cost of training devices, so that similar devices share a group and the trainers
            finish together; None if equal. It must be a function of the scenario.
        trainer_kind: kind of the trainers' device.
        store: store of the sums, if devices add the noise; else None.
        judged: metric by which the best round is kept and a training ends; None to keep no round.

    metrics: one row per round so far.
    last_evaluation: the latest evaluation in these rows, or None.
    evaluated: rounds behind the evaluated model; 0 before the first evaluation.
    devices_at_once: devices in a group; 0 before the aggregator has the model.
    """

    def __init__(
        self,
        scenario: Scenario,
        trainers: Sequence[Trainer],
        aggregator: AggregatorWorker,
        loads: Loads | None = None,
        trainer_kind: str = "cpu",
        store: StoreWorker | None = None,
        judged: Metric | None = None,
    ) -> None:
        self._judged = judged
        self.trainer_kind = trainer_kind
        self._scenario, self._trainers, self._aggregator = scenario, trainers, aggregator
        # Without it, sums of devices would come to the aggregator.
        assert (store is not None) == scenario.privacy.sent.adds_noise
        self._store = store
        self._loads = loads
        self._versions: dict[int, Kept] = {}
        """Parameters by version, the number of rounds they were trained on: the newest version, and
        those from which devices may still train."""
        self._buffer = scenario.rounds.buffer
        self._clip: Clip
        """Clipping of the next round's updates, from the aggregator."""
        self._is_aggregator_up = self._is_store_up = False
        """Whether they have the model and the sums, which they get when first needed."""
        self.metrics: list[TrainingMetrics] = []
        self.last_evaluation: Evaluation | None = None
        self.evaluated = 0
        self.devices_at_once = 0
        self._evaluations: dict[int, tuple[SharedEvaluation, Kept]] = {}
        """Evaluations that are awaited, with the evaluated parameters, by their last round."""
        self._best: tuple[int, Kept] | None = None
        """Last round and parameters of the best evaluation so far."""
        self._best_kept: tuple[int, NDArray[np.float32]] | None = None
        """The same as of the last known state of the aggregator, in this process."""
        self._aggregator_state: dict[str, NDArray] = {}
        """The state it last reported; empty before that. `_since` has the rounds after it."""
        self._store_state: dict[str, NDArray] = {}
        """State of the store after the same rounds."""
        self._states_every = scenario.training.checkpoint_every
        """Number of rounds between two reports of their states."""
        self._since: list[tuple[int, Cohort]] = []

    @property
    def next_round(self) -> int:
        """The next round to train."""
        return len(self.metrics)

    def train(self, round_index: int, cohort: Cohort) -> TrainingMetrics:
        """Trains one round, on the devices of its cohort.

        If an evaluation is due, its result is awaited a round later at most.
        """
        self._steadily(lambda: self._train(round_index, cohort))
        # Recorded only after it was trained, because until then `_steadily` repeats it.
        self._since.append((round_index, cohort))
        if (round_index + 1) % self._states_every == 0:
            self._steadily(self._settle)
        # A training that may end must know its evaluation before the next round.
        if self._scenario.training.stop is not None:
            self._steadily(self._collect_evaluations)
        return self.metrics[-1]

    @property
    def why_stopped(self) -> str:
        """Reason to end the training after its last round; empty to continue."""
        if self._judged is None:
            return ""
        return why_stopped(self.metrics, self._judged, self._scenario.training.stop)

    @property
    def best(self) -> tuple[int, NDArray[np.float32]] | None:
        """Index of the round after which the best evaluation was, and its parameters [D], after
        `state` or `finish`; None without one."""
        return self._best_kept

    def measure(self, device_ids: NDArray[np.uint64], most_examples: int) -> DeviceMeasures:
        """Returns the metrics of the newest model on the first examples of devices [G], by one
        trainer: batches, and so the last bits, do not depend on the number of trainers."""
        found: list[DeviceMeasures] = []

        def measured() -> None:
            newest = self._versions[self.next_round]
            answer = self._trainers[-1].measure_devices(newest, device_ids, most_examples)
            found.append(answer.result())

        self._steadily(measured)
        return found[-1]

    def finish(self) -> dict[str, NDArray]:
        """Evaluates the last round too. Returns the aggregator's state."""
        self._steadily(self._settle)
        if self.metrics[-1].evaluation is None:
            self._steadily(self._evaluate_last)
        return self._aggregator_state

    def state(self) -> dict[str, NDArray]:
        """Returns everything that a resumed training needs, between two rounds."""
        self._steadily(self._settle)
        best = {}
        if self._best_kept is not None:
            index, parameters = self._best_kept
            best = {"best.round": np.array(index), "best.parameters": parameters}
        return {
            **best,
            "devices_at_once": np.array(self.devices_at_once),
            "trainer_device": np.array(self.trainer_kind),
            "metrics": np.array(_text_of(self.metrics)),
            **prefixed("aggregator.", self._aggregator_state),
            **prefixed("store.", self._store_state),
        }

    def load(self, state: dict[str, NDArray]) -> None:
        """Restores a state.

        Raises:
            CheckpointError: its trainers, or its aggregator, were on another kind of device.
        """
        if str(state["trainer_device"]) != self.trainer_kind:
            raise CheckpointError(
                f"the model was trained on {str(state['trainer_device'])!r}, whose updates have "
                f"other last bits than those of {self.trainer_kind!r}, where the trainers are now; "
                "give trainer_gpus as before, with GPUs of that model"
            )
        self._aggregator_state = under("aggregator.", state)
        self._store_state = under("store.", state)
        if "best.round" in state:
            self._best_kept = int(state["best.round"]), state["best.parameters"]
        # The rows tell which version of the model the aggregator restores.
        self.metrics = _metrics_of(str(state["metrics"]))
        self._steadily(lambda: None)  # so that a state that the aggregator refuses is refused now
        self.devices_at_once = int(state["devices_at_once"])
        # The latest evaluation is reported until the next.
        for row in self.metrics:
            if row.evaluation is not None:
                self.last_evaluation, self.evaluated = row.evaluation, row.round_index + 1

    def restart(self, server: AggregatorWorker | StoreWorker) -> None:
        """Restarts the aggregator or the store, from its last known state. Raises AggregatorLost
        after too many restarts."""
        # Beside a restored store, the aggregator starts from the state of the same round.
        self._is_aggregator_up = False
        if server is self._store:
            self._is_store_up = False
        server.restart()

    def _steadily(self, act: Callable[[], None]) -> None:
        """Calls `act`; whenever the aggregator is lost, replaces it, as often as allowed, and calls
        `act` again."""
        while True:
            try:
                if not self._is_aggregator_up:
                    self._catch_up()
                    self._is_aggregator_up = True
                return act()
            except StoreLost:
                assert self._store is not None
                self.restart(self._store)
            except (AggregatorLost, ArgumentLost):  # what it had kept is gone with its machine
                self.restart(self._aggregator)  # raises when it was lost too often

    def _catch_up(self) -> None:
        """Gives a new aggregator the last known state, and trains the rounds since again."""
        if self._aggregator_state:
            parameters = self._aggregator_state["parameters"]
            answer = self._aggregator.load(self._aggregator_state)
        else:
            parameters = self._trainers[0].initial_parameters().result()
            answer = self._aggregator.start(parameters)
        if self._store is not None and not self._is_store_up:
            self._start_store(self._store, parameters.size)
        at_once = self._scenario.training.devices_at_once
        # A resumed training keeps its original group size.
        if not self.devices_at_once:
            self.devices_at_once = group_size(at_once, parameters.size, self.trainer_kind)
        self._clip, newest = answer.result()
        # The state is from before the first round of `_since`; a version's number is how many
        # rounds it was trained on.
        version = self._since[0][0] if self._since else self.next_round
        self._versions = {version: newest}
        for number in self._older_versions():
            self._versions[number] = self._aggregator.older_version(number).result()[1]
        # Rounds since are trained again and append the same rows, bit for bit. Every evaluation
        # that is awaited is of such a round, or begins again in `_evaluate_last`.
        del self.metrics[version:]
        self._best = self._best_kept
        self._evaluations.clear()
        for round_index, cohort in self._since:
            self._train(round_index, cohort)

    def _settle(self) -> None:
        # Evaluations are awaited first, so that the saved rows include them, and so that the best
        # of these rows is kept before its handle may be lost.
        self._collect_evaluations()
        self._keep_best()
        self._fetch_state()

    def _evaluate_last(self) -> None:
        self._evaluate(self.next_round - 1)
        self._collect_evaluations()
        self._keep_best()

    def _evaluate(self, round_index: int) -> None:
        """Begins the evaluation of the model after a round, which all trainers share."""
        kept = self._versions[round_index + 1]
        self._evaluations[round_index] = SharedEvaluation(self._trainers, kept), kept

    def _keep_best(self) -> None:
        if self._best is not None and self._best is not self._best_kept:
            index, kept = self._best
            self._best_kept = self._best = index, self._trainers[-1].fetch(kept).result()

    def _start_store(self, store: StoreWorker, dimension: int) -> None:
        state = self._store_state
        (store.load(state) if state else store.start(dimension)).result()
        self._is_store_up = True
        # An opened sum is kept until the state of the aggregator that has used it is known.
        most = max(1, MOST_OPENED // padded(dimension))
        self._states_every = min(self._states_every, most)

    def _fetch_state(self) -> None:
        state = self._aggregator.state().result()
        # Both states are of the same round, also if the store is lost in between.
        if self._store is not None:
            self._store_state = self._store.state().result()
        self._aggregator_state = state
        self._since.clear()

    def _older_versions(self) -> list[int]:
        """Returns the versions in the aggregator's last known state, apart from the newest."""
        return sorted(int(number) for number in under("older.", self._aggregator_state))

    def _train(self, round_index: int, cohort: Cohort) -> None:
        groups = self._groups(round_index, cohort)
        pending = [
            (np.concatenate(order.groups), trainer.train(order, self._versions[version]))
            for trainer, share in zip(self._trainers, self._shares(groups), strict=False)
            for version, order in self._orders(round_index, share)
        ]
        # While the trainers work, the aggregator has nothing to add yet.
        self._aggregator.draw_noise()
        store, reports, last = self._store, [], None
        added = [] if store is None else [store.close(round_index, cohort.device_ids)]
        for device_ids, answer in pending:
            # The aggregator adds a sum while later trainers still train; the order of integer sums
            # does not matter. The last one comes with the commit, which saves a message's time.
            if last is not None:
                added.append(self._aggregator.add(last))
            report, last = answer.result()
            reports.append(report)
            if store is not None:
                added.append(store.add(last, device_ids))
                last = None
        # Every other sum must have arrived before the round is committed.
        for answer in added:
            answer.result()
        # The commit replaces it by the clipping of the next round.
        clip = self._clip
        asked = TrainReport.of(round_index, reports)
        accepted = asked.devices if cohort.accepted is None else cohort.accepted
        report = dataclasses.replace(asked, accepted=accepted)
        seen = report
        if store is not None:
            # The server sees no loss, norm or sum, only W.
            devices, last = store.open().result()
            seen = TrainReport(round_index=round_index, devices=devices, accepted=accepted)
        self._clip, newest = self._aggregator.commit(seen, last).result()
        self._versions[round_index + 1] = newest
        # A device that starts from the newest version may be used up to max_staleness versions
        # later; no device may still train from an older one than this.
        oldest = round_index + 1 - self._scenario.rounds.max_staleness
        self._versions = {
            number: kept for number, kept in self._versions.items() if number >= oldest
        }
        self._collect_evaluations()
        every = self._scenario.training.rounds_between(self._scenario.rounds.count)
        if (round_index + 1) % every == 0:
            # Awaited a round later, so that it runs beside the next round.
            self._evaluate(round_index)
        self.metrics.append(TrainingMetrics(report, clip=clip))

    def _groups(self, round_index: int, cohort: Cohort) -> list[_Group]:
        """Returns the cohort's groups, version by version."""
        versions = cohort.versions
        if versions is None:
            versions = np.full(cohort.device_ids.size, round_index, np.uint32)
        groups: list[_Group] = []
        # Devices with different versions start from different parameters, so no group mixes them.
        for version in np.unique(versions).tolist():
            device_ids = cohort.device_ids[versions == version]
            loads = (self._loads or _equal)(device_ids)
            for places in balanced_groups(loads, self.devices_at_once):
                load = float(loads[places].sum())
                groups.append(_Group(device_ids[places], version, load))
        return groups

    def _orders(self, round_index: int, groups: list[_Group]) -> Iterator[tuple[int, TrainOrder]]:
        """Yields (version, order) for one trainer: an order for each version of the model."""
        for version in sorted({group.version for group in groups}):
            device_ids = [group.device_ids for group in groups if group.version == version]
            weight = self._weight(round_index - version)
            # All devices of an order start from the same parameters and have the same weight.
            yield version, TrainOrder(round_index, device_ids, self._clip, version, weight)

    def _weight(self, staleness: int) -> float:
        """Returns the factor on clipped updates of reports of this staleness."""
        if self._buffer is None:
            return 1.0
        return float(self._buffer.weighting.weights(np.array([staleness]))[0])

    def _shares(self, groups: list[_Group]) -> list[list[_Group]]:
        """Returns the groups of each trainer that gets any."""
        costs = [group.load for group in groups]
        shares = greedy_shares(costs, len(self._trainers))
        return [[groups[index] for index in share] for share in shares if share]

    def _collect_evaluations(self) -> None:
        for round_index, (pending, kept) in self._evaluations.items():
            self.last_evaluation, self.evaluated = pending.result(), round_index + 1
            self.metrics[round_index] = dataclasses.replace(
                self.metrics[round_index], evaluation=self.last_evaluation
            )
            if self._judged is not None and best_round(self.metrics, self._judged) == round_index:
                self._best = round_index, kept
        self._evaluations.clear()


def _equal(device_ids: NDArray[np.uint64]) -> NDArray[np.int64]:
    return np.ones(device_ids.size, np.int64)


def group_size(devices_at_once: int, parameters: int, kind: str = "cpu") -> int:
    """Returns the largest number of devices in a group: `devices_at_once`, or fewer if the model is
    large and the device is a CPU."""
    if kind != "cpu":
        return devices_at_once
    return max(1, min(devices_at_once, MOST_PARAMETERS // parameters))


def balanced_groups(loads: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """Returns groups of devices, each as places [<= size], in descending order of their loads.

    Devices of similar loads share a group, because they take their last steps at about the same
    time. A group of more than twice the mean load is halved, because a single trainer computes it.
    Equal loads make groups of equal size, in the order of the devices.

    Args:
        loads: cost of each device, [G].
        size: largest number of devices in a group.
    """
    groups = np.array_split(np.argsort(-loads, kind="stable"), math.ceil(loads.size / size))
    most = 2 * loads.sum() / len(groups)

    def halved(group: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        if group.size == 1 or loads[group].sum() <= most:
            return [group]
        return [part for half in np.array_split(group, 2) for part in halved(half)]

    return [part for group in groups for part in halved(group)]


def greedy_shares(costs: Sequence[float], workers: int) -> list[list[int]]:
    """Divides jobs among workers: the longest first, each to the worker with the least so far
    (Graham 1969: at most 4/3 of the best possible time).

    Returns:
        The places of each worker's jobs in `costs`, sorted.
    """
    shares: list[list[int]] = [[] for _ in range(workers)]
    queue = [(0.0, worker) for worker in range(workers)]
    for job in sorted(range(len(costs)), key=lambda each: -costs[each]):
        cost, worker = heapq.heappop(queue)
        shares[worker].append(job)
        # Ties go to the lower worker number, so that shares do not depend on the layout of the
        # heap.
        heapq.heappush(queue, (cost + costs[job], worker))
    return [sorted(share) for share in shares]


def _text_of(metrics: Sequence[TrainingMetrics]) -> str:
    """Returns metrics as JSON, which preserves integers of any size, and floats."""
    return json.dumps([dataclasses.asdict(row) for row in metrics])


def _metrics_of(text: str) -> list[TrainingMetrics]:
    """Reads the result of `_text_of`."""
    return [
        TrainingMetrics(
            TrainReport(**row["report"]), _evaluation_of(row["evaluation"]), Clip(**row["clip"])
        )
        for row in json.loads(text)
    ]


def _evaluation_of(table: dict[str, Any] | None) -> Evaluation | None:
    if table is None:
        return None
    metrics = {name: Measured(*figures) for name, figures in table["metrics"].items()}
    return Evaluation(metrics, Evaluated(**table["data"]))
