"""The training side of committed rounds: fixed groups are trained, and the aggregator adds them up.

A round's cohort is a sample of its accepted devices. It is drawn from how many there are, so that
it can be drawn while the run is simulated or afterwards, from the trace.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedray.errors import AggregatorLost
from fedray.messages import Evaluation, TrainingMetrics, TrainOrder, TrainReport
from fedray.protocols import Aggregator, Trainer
from fedray.rng import Stream, stream_generator
from fedray.scenario import Scenario
from fedray.trace.checkpoints import prefixed, under
from fedray.workers import Pending

GROUP_DEVICES = 16
"""Devices per group, in order of id. It is fixed, so that no result depends on how groups are
spread over trainers."""


def cohort_places(scenario: Scenario, round_index: int, accepted: int) -> NDArray[np.int64]:
    """Which of a round's accepted devices train: sorted places [cohort_sample] in order of id.

    They are drawn without replacement. The draw is addressed by seed and round.

    accepted: how many devices were accepted.
    """
    generator = stream_generator(scenario.training_seed, Stream.COHORT, round_index)
    return np.sort(generator.choice(accepted, scenario.training.cohort_sample, replace=False))


class TrainingLoop:
    """Trains the model round by round.

    An aggregator that is lost is started anew from its last known state, and the rounds since are
    trained again. That gives the same bits, because training is a function of parameters, round
    and devices, and noise of the round.

    metrics: a row per round so far.
    last_evaluation: the last of these rows that has held-out figures; None before the first.
    """

    def __init__(
        self, scenario: Scenario, trainers: Sequence[Trainer], aggregator: Aggregator
    ) -> None:
        self._scenario, self._trainers, self._aggregator = scenario, trainers, aggregator
        self._is_aggregator_up = False
        """Whether the aggregator has been told of the model; it is when it is first needed."""
        self.metrics: list[TrainingMetrics] = []
        self.last_evaluation: TrainingMetrics | None = None
        self._evaluations: dict[int, Pending[Evaluation]] = {}
        self._aggregator_state: dict[str, NDArray] = {}
        """As it was last asked for; empty before. `_since` has the rounds after it."""
        self._since: list[tuple[int, NDArray[np.uint64]]] = []

    @property
    def next_round(self) -> int:
        """The round that is to be trained next."""
        return len(self.metrics)

    def train(self, round_index: int, cohort: NDArray[np.uint64]) -> TrainingMetrics:
        """One round, on the devices [cohort_sample] of its cohort, sorted.

        Its evaluation, if it is due, is awaited a round later at the most.
        """
        self._steadily(lambda: self._train(round_index, cohort))
        self._since.append((round_index, cohort))
        if (round_index + 1) % self._scenario.training.checkpoint_every == 0:
            self._steadily(self._fetch_state)
        return self.metrics[-1]

    def finish(self) -> dict[str, NDArray]:
        """Evaluates the last round too. Returns the aggregator's state."""
        self._steadily(self._fetch_state)
        self._collect_evaluations()
        if math.isnan(self.metrics[-1].evaluation_loss):
            parameters = self._aggregator_state["parameters"]
            self._evaluations[self.next_round - 1] = self._trainers[-1].evaluate(parameters)
            self._collect_evaluations()
        return self._aggregator_state

    def state(self) -> dict[str, NDArray]:
        """Everything, between two rounds."""
        self._collect_evaluations()
        self._steadily(self._fetch_state)
        rows = [dataclasses.astuple(row) for row in self.metrics]
        columns = len(dataclasses.fields(TrainingMetrics))
        metrics = np.array(rows, np.float64).reshape(len(rows), columns)
        return {"metrics": metrics, **prefixed("aggregator.", self._aggregator_state)}

    def load(self, state: dict[str, NDArray]) -> None:
        """Takes up a state."""
        self._aggregator_state = under("aggregator.", state)
        self._steadily(lambda: None)  # so that a state that the aggregator refuses is refused now
        self.metrics = [TrainingMetrics(int(row[0]), *row[1:]) for row in state["metrics"].tolist()]
        evaluated = [row for row in self.metrics if not math.isnan(row.evaluation_loss)]
        self.last_evaluation = evaluated[-1] if evaluated else None

    def _steadily(self, act: Callable[[], None]) -> None:
        """Acts; when the aggregator is lost, brings it back, as often as it may, and acts again."""
        while True:
            try:
                if not self._is_aggregator_up:
                    self._catch_up()
                    self._is_aggregator_up = True
                return act()
            except AggregatorLost:
                self._is_aggregator_up = False
                self._aggregator.restart()  # raises when it was lost too often

    def _catch_up(self) -> None:
        """Tells a new aggregator the last known state, and trains the rounds since again."""
        if self._aggregator_state:
            self._aggregator.load(self._aggregator_state).result()
            self._parameters = self._aggregator_state["parameters"]
        else:
            self._parameters = self._trainers[0].initial_parameters().result()
            self._aggregator.start(self._parameters).result()
        if self._since:
            first = self._since[0][0]
            del self.metrics[first:]
            self._evaluations = {
                index: pending for index, pending in self._evaluations.items() if index < first
            }
        for round_index, cohort in self._since:
            self._train(round_index, cohort)

    def _fetch_state(self) -> None:
        self._aggregator_state = self._aggregator.state().result()
        self._since.clear()

    def _train(self, round_index: int, cohort: NDArray[np.uint64]) -> None:
        groups = np.split(cohort, range(GROUP_DEVICES, cohort.size, GROUP_DEVICES))
        pending = [
            self._trainers[group % len(self._trainers)].train(
                TrainOrder(round_index, group, members, self._parameters)
            )
            for group, members in enumerate(groups)
        ]
        reports = [answer.result() for answer in pending]
        self._parameters = self._aggregator.commit(round_index, reports).result()
        self._collect_evaluations()
        if (round_index + 1) % self._scenario.training.evaluate_every == 0:
            self._evaluations[round_index] = self._trainers[-1].evaluate(self._parameters)
        self.metrics.append(_metrics_of(round_index, reports))

    def _collect_evaluations(self) -> None:
        for round_index, pending in self._evaluations.items():
            evaluation, row = pending.result(), self.metrics[round_index]
            self.metrics[round_index] = dataclasses.replace(
                row, evaluation_loss=evaluation.loss, evaluation_accuracy=evaluation.accuracy
            )
            self.last_evaluation = self.metrics[round_index]
        self._evaluations.clear()


def _metrics_of(round_index: int, reports: Sequence[TrainReport]) -> TrainingMetrics:
    devices = sum(report.devices for report in reports)
    return TrainingMetrics(
        round_index=round_index,
        train_loss=math.fsum(report.loss_sum for report in reports) / devices,
        clipped_share=sum(report.clipped for report in reports) / devices,
        evaluation_loss=math.nan,
        evaluation_accuracy=math.nan,
    )
