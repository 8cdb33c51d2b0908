"""The training side of a committed round: sample the cohort, have fixed groups trained, aggregate, evaluate now and then."""

import dataclasses
import logging
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedray.errors import AggregatorLost
from fedray.messages import Evaluation, TrainingMetrics, TrainOrder
from fedray.protocols import Aggregator, Pending, Trainer
from fedray.rng import Stream, stream_generator
from fedray.scenario import Scenario

GROUP_DEVICES = 16
"""Devices per group, in order of id: fixed, so that no result depends on how groups are spread over trainers."""

SaveModel = Callable[[dict[str, NDArray]], None]


class TrainingLoop:
    """Trains the model round by round. `metrics` has a row per committed round.

    An aggregator that dies is started anew from its last checkpoint, and the rounds since are trained again: the same bits, because
    training is a function of parameters, round and devices, and noise of the round.
    """

    def __init__(self, scenario: Scenario, trainers: Sequence[Trainer], aggregator: Aggregator, save_model: SaveModel) -> None:
        self._scenario, self._trainers, self._aggregator = scenario, trainers, aggregator
        self._save_model = save_model
        self._is_aggregator_up = False
        """Whether the aggregator has been told of the model; it is when it is first needed."""
        self.metrics: list[TrainingMetrics] = []
        self.last_evaluation: TrainingMetrics | None = None
        self._evaluations: dict[int, Pending[Evaluation]] = {}
        self._saved: dict[str, NDArray] = {}
        """The aggregator's last checkpoint; empty for none yet. `_since` has the rounds after it, with their devices."""
        self._since: list[tuple[int, NDArray[np.uint64]]] = []

    def train(self, round_index: int, accepted_device_ids: NDArray[np.uint64]) -> TrainingMetrics:
        """One committed round, on a sample of its accepted devices [A]; evaluations are awaited a round later at the most."""
        cohort = self._sample(round_index, accepted_device_ids)
        self._steadily(lambda: self._train(round_index, cohort))
        self._since.append((round_index, cohort))
        if (round_index + 1) % self._scenario.training.checkpoint_every == 0:
            self._steadily(self._checkpoint)
            self._save_model(self._saved)
        return self.metrics[-1]

    def finish(self) -> None:
        """Awaits what is under way and saves the last state."""
        self._collect_evaluations()
        self._steadily(self._checkpoint)
        self._save_model(self._saved)

    def state(self) -> dict[str, NDArray]:
        """Everything, as named arrays, for a checkpoint between two rounds."""
        self._collect_evaluations()
        self._steadily(self._checkpoint)
        rows = [dataclasses.astuple(row) for row in self.metrics]
        metrics = np.array(rows, np.float64).reshape(len(rows), len(dataclasses.fields(TrainingMetrics)))
        return {"metrics": metrics, **{f"aggregator.{name}": array for name, array in self._saved.items()}}

    def load(self, state: dict[str, NDArray]) -> None:
        """Takes up a state."""
        prefix = "aggregator."
        self._saved = {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
        self._steadily(lambda: None)  # so that a state that the aggregator refuses is refused now
        self.metrics = [TrainingMetrics(int(row[0]), *row[1:]) for row in state["metrics"].tolist()]
        evaluated = [row for row in self.metrics if not math.isnan(row.evaluation_loss)]
        self.last_evaluation = evaluated[-1] if evaluated else None

    @property
    def device(self) -> str:
        """The kind of device that the aggregator runs on, as of its last checkpoint."""
        return str(self._saved["device"])

    def _steadily(self, act: Callable[[], None]) -> None:
        """Acts; when the aggregator is lost, brings it back, as often as it may, and acts again."""
        while True:
            try:
                if not self._is_aggregator_up:
                    self._catch_up()
                    self._is_aggregator_up = True
                return act()
            except AggregatorLost as lost:
                logging.getLogger("fedray").warning("fedray: %s; it is started anew", lost)
                self._is_aggregator_up = False
                self._aggregator.restart()  # raises when it was lost too often

    def _catch_up(self) -> None:
        """Tells a new aggregator what is saved, and trains the rounds since again."""
        if self._saved:
            self._aggregator.restore(self._saved).result()
            self._parameters = self._saved["parameters"]
        else:
            self._parameters = self._trainers[0].initial_parameters().result()
            self._aggregator.start(self._parameters).result()
        if self._since:
            first = self._since[0][0]
            self.metrics = [row for row in self.metrics if row.round_index < first]
            self._evaluations = {index: pending for index, pending in self._evaluations.items() if index < first}
        for round_index, cohort in self._since:
            self._train(round_index, cohort)

    def _checkpoint(self) -> None:
        self._saved = self._aggregator.checkpoint().result()
        self._since.clear()

    def _train(self, round_index: int, cohort: NDArray[np.uint64]) -> None:
        training = self._scenario.training
        pending = [
            self._trainers[group % len(self._trainers)].train(TrainOrder(round_index, group, members, self._parameters))
            for group, members in enumerate(np.split(cohort, range(GROUP_DEVICES, cohort.size, GROUP_DEVICES)))
        ]
        reports = [answer.result() for answer in pending]
        self._parameters = self._aggregator.commit(round_index, reports).result()
        self._collect_evaluations()
        is_last = round_index + 1 == self._scenario.rounds.count
        if (round_index + 1) % training.evaluate_every == 0 or is_last:
            self._evaluations[round_index] = self._trainers[-1].evaluate(self._parameters)
        devices = sum(report.devices for report in reports)
        self.metrics.append(
            TrainingMetrics(
                round_index=round_index,
                train_loss=math.fsum(report.loss_sum for report in reports) / devices,
                clipped_share=sum(report.clipped for report in reports) / devices,
                evaluation_loss=math.nan,
                evaluation_accuracy=math.nan,
            )
        )

    def _sample(self, round_index: int, accepted_device_ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """cohort_sample of the accepted devices, without replacement, sorted; addressed by the round."""
        generator = stream_generator(self._scenario.seed, Stream.COHORT, round_index)
        return np.sort(generator.choice(accepted_device_ids, self._scenario.training.cohort_sample, replace=False))

    def _collect_evaluations(self) -> None:
        for round_index, pending in self._evaluations.items():
            evaluation, row = pending.result(), self.metrics[round_index]
            self.metrics[round_index] = TrainingMetrics(
                row.round_index, row.train_loss, row.clipped_share, evaluation.loss, evaluation.accuracy
            )
            self.last_evaluation = self.metrics[round_index]
        self._evaluations.clear()
