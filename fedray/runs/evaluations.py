"""Federated evaluation: while a task is trained, its model is measured on the devices of the rounds
of other tasks, in the newest version that was committed before the round started.

It is a function of the traces and the training, because participation depends on neither.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedray.base.arrays import Float64Array
from fedray.base.errors import InputError
from fedray.clients.data.factory import source_of
from fedray.clients.tasks.factory import task_of
from fedray.scenario import SeveralTasks
from fedray.server.learning.training import TrainingLoop
from fedray.trace.evaluated import EvaluatedRound, devices_of_rounds, write_evaluated
from fedray.trace.reader import Trace
from fedray.wire.messages import Metric


def check_metrics(several: SeveralTasks) -> None:
    """Raises InputError if an evaluation names a metric that the evaluated task does not have."""
    for task in several.tasks:
        evaluation = task.scenario.evaluation
        if evaluation is None:
            continue
        of = several.tasks[several.names.index(evaluation.of)].scenario
        names = [each.name for each in task_of(of, source_of(of).fields).metrics]
        if evaluation.metric not in names:
            where = f"tasks.{task.name}.analytics.values.metric"
            rule = f"is no metric of task {evaluation.of}"
            raise InputError.of(where, evaluation.metric, rule, f"use {' or '.join(names)}")


def versions_at(trained: Trace, evaluation: Trace) -> NDArray[np.int64]:
    """Returns the version of the model that the devices of each round of an evaluation get, [n]:
    the number of rounds of the trained task that had closed when the round started."""
    closed = trained.rounds["closed"][trained.rounds["state"] == 0]
    started = evaluation.rounds["started"][evaluation.rounds["state"] == 0]
    return np.searchsorted(closed, started, side="right")


class Evaluations:
    """The evaluations of a task's model by devices of other tasks, during its training.

    Args:
        traces: traces of all tasks, by name.
        of: name of the task that is trained.
    """

    def __init__(self, traces: Mapping[str, Trace], of: str) -> None:
        self._tables = dict(_evaluations_of(traces, of))
        self._traces = traces
        self._devices = {name: devices_of_rounds(traces[name]) for name in self._tables}
        self._versions = {name: versions_at(traces[of], traces[name]) for name in self._tables}
        self._values: dict[str, Float64Array] = {}
        """Metrics of a round's devices [A], by address."""

    def measure(self, loop: TrainingLoop, metrics: Sequence[Metric]) -> None:
        """Measures the newest model on the devices of all rounds that get it."""
        for name, table in self._tables.items():
            metric = next(each for each in metrics if each.name == table["metric"])
            for index in np.flatnonzero(self._versions[name] == loop.next_round).tolist():
                asked = self._devices[name][index]
                found = loop.measure(asked, table["most_examples"])
                values = np.full(asked.size, np.nan)
                values[np.searchsorted(asked, found.device_ids)] = found.values(metric)
                self._values[_address(name, index)] = values

    def state(self) -> dict[str, NDArray]:
        """Returns the measurements so far, for a checkpoint."""
        return dict(self._values)

    def load(self, state: Mapping[str, NDArray]) -> None:
        """Restores a state."""
        self._values = dict(state)

    def write(self) -> None:
        """Writes the values next to the traces of the evaluations; all rounds were measured."""
        for name, devices in self._devices.items():
            rounds = [
                EvaluatedRound(version, ids, self._values[_address(name, index)])
                for index, (version, ids) in enumerate(
                    zip(self._versions[name].tolist(), devices, strict=True)
                )
            ]
            write_evaluated(self._traces[name].path, rounds)


def _evaluations_of(traces: Mapping[str, Trace], of: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the name and the table of each task with a round that evaluates a task's model."""
    for name, trace in traces.items():
        values = trace.scenario.get("analytics", {}).get("values", {})
        if values.get("kind") == "evaluation" and values["of"] == of and trace.committed_rounds:
            yield name, values


def _address(name: str, index: int) -> str:
    return f"{name}/{index}"
