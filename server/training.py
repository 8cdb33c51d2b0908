"""The training side of a committed round: sample the cohort, have fixed groups trained, aggregate, evaluate now and then."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedray.messages import Evaluation, TrainingMetrics, TrainOrder
from fedray.protocols import Aggregator, Pending, Trainer
from fedray.rng import Stream, stream_generator
from fedray.scenario import Scenario

GROUP_DEVICES = 16
"""Devices per group, in order of id: fixed, so that no result depends on how groups are spread over trainers."""

SaveModel = Callable[[dict[str, NDArray]], None]


class TrainingLoop:
    """Trains the model round by round. `metrics` has a row per committed round."""

    def __init__(self, scenario: Scenario, trainers: Sequence[Trainer], aggregator: Aggregator, save_model: SaveModel) -> None:
        self._scenario, self._trainers, self._aggregator = scenario, trainers, aggregator
        self._save_model = save_model
        self._parameters = trainers[0].initial_parameters().result()
        aggregator.start(self._parameters).result()
        self.metrics: list[TrainingMetrics] = []
        self.last_evaluation: TrainingMetrics | None = None
        self._evaluations: dict[int, Pending[Evaluation]] = {}

    def train(self, round_index: int, accepted_device_ids: NDArray[np.uint64]) -> TrainingMetrics:
        """One committed round, on a sample of its accepted devices [A]; evaluations are awaited a round later at the most."""
        training = self._scenario.training
        cohort = self._sample(round_index, accepted_device_ids)
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
        if (round_index + 1) % training.checkpoint_every == 0:
            self._save_model(self._aggregator.checkpoint().result())
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
        return self.metrics[-1]

    def finish(self) -> None:
        """Awaits what is under way and saves the last state."""
        self._collect_evaluations()
        self._save_model(self._aggregator.checkpoint().result())

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
