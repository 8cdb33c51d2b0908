"""Gradient descent on the examples of many clients together, as on one machine with public data."""

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np
import torch

from fedray.base.document import Key, Keys
from fedray.base.errors import InputError, ScenarioError
from fedray.base.rng import Stream, stream_generator
from fedray.scenario import Scenario
from fedray.scenario.pretraining import Pretraining
from fedray.wire.messages import Evaluation, TaskDescription
from .data.factory import source_of
from .data.source import FIRST_HELD_OUT, ExampleSource, Ids, Integers
from .evaluation import damage_refused, evaluate
from .tasks.factory import task_of
from .tasks.gradients import gradients_of
from .tasks.initial import start_of
from .tasks.layout import Named, named, tensors
from .tasks.task import Vector
from .work.local import optimizer_of


class Step(NamedTuple):
    """Progress of a pretraining.

    number: steps taken.
    train_loss: mean loss over the batches since the last evaluation, each before its step; NaN
        before the first step.
    evaluation: metrics on held-out clients of the public data.
    """

    number: Annotated[int, Key("step")]
    train_loss: float
    evaluation: Annotated[Evaluation, Keys("metrics")]


class Pretrainer:
    """Trains the model of a scenario on public data, on one thread for a reproducible result.

    Args:
        scenario: scenario with the task and its evaluation.
        table: public data, and how to train on it.

    Raises:
        ScenarioError: the public data has another form than the scenario's data.
        InputError: data cannot be read, or is empty.

    description: shapes, metrics and optimum of the task.
    examples: number of examples of all clients together.
    """

    def __init__(self, scenario: Scenario, table: Pretraining) -> None:
        self._training = scenario.training
        self._table = table
        private = source_of(scenario)
        self._task = task_of(scenario, private.fields)
        # A user's task may bring its own data in place of the scenario's.
        private = getattr(self._task, "source", None) or private
        self._source = source_of(scenario.model_copy(update={"data": table.data}))
        _demand_alike(private, self._source)
        # The ids below the held-out ones are in no population, so synthetic public data belongs to
        # no device.
        first = FIRST_HELD_OUT - np.uint64(table.clients)
        self._client_ids = first + np.arange(table.clients, dtype=np.uint64)
        self._counts = self._source.examples_on(self._client_ids)
        self.examples = int(self._counts.sum())
        if not self.examples:
            raise InputError("data: no client of the public data has examples; give other data")
        self.description = TaskDescription(
            dict(self._task.shapes), tuple(self._task.metrics), dict(self._source.optimum)
        )
        # A copy, because the optimiser writes into it.
        self._parameters_D = torch.tensor(start_of(scenario, self._task))

    def steps(self) -> Iterator[Step]:
        """Trains; yields the state before the first step, after every evaluate_every steps, and
        after the last one.

        Raises:
            InputError: public data is damaged.
        """
        torch.set_num_threads(1)
        table = self._table
        batches = self._batches()
        losses: list[float] = []
        # An optimiser that changes these views changes the flat vector.
        parameters = named(self._parameters_D[None, :], self._task.shapes)
        optimizer = optimizer_of(table, list(parameters.values()))
        yield Step(0, float("nan"), self._evaluation())
        for number in range(1, table.steps + 1):
            loss_1, gradients = gradients_of(self._task, parameters, next(batches))
            # Torch's optimisers read gradients from the parameters.
            for name, part in parameters.items():
                part.grad = gradients[name]
            optimizer.step()
            losses.append(float(loss_1[0]))
            if number % table.evaluate_every == 0 or number == table.steps:
                yield Step(number, float(np.mean(losses)), self._evaluation())
                losses.clear()

    def parameters(self) -> Vector:
        """Returns a copy of the current parameters [D]."""
        return self._parameters_D.numpy().copy()

    def _evaluation(self) -> Evaluation:
        return evaluate(self._task, self._source, self._training, self.parameters())

    def _batches(self) -> Iterator[Named]:
        """Yields batches [1, B, ...] without end."""
        ends = np.cumsum(self._counts)
        firsts = ends - self._counts
        size = self._table.batch_size
        passes = 0
        waiting = np.empty(0, np.int64)
        while True:
            # The rest of a pass starts the next batch, so that a pass uses every example once.
            while waiting.size < size:
                draws = stream_generator(self._table.seed, Stream.PRETRAINING, passes)
                waiting = np.concatenate([waiting, draws.permutation(self.examples)])
                passes += 1
            chosen, waiting = waiting[:size], waiting[size:]
            # Examples are numbered over all clients: a number lies below its client's end.
            rows = np.searchsorted(ends, chosen, side="right")
            positions = chosen - firsts[rows]
            yield self._read(self._client_ids[rows], positions)

    def _read(self, client_ids: Ids, positions: Integers) -> Named:
        with damage_refused("public"):
            examples = self._source.examples(client_ids, positions[:, None])
        # One example of each of B clients, [B, 1], becomes the batch of one model, [1, B].
        return {name: part.transpose(0, 1) for name, part in tensors(examples).items()}


def _demand_alike(private: ExampleSource, public: ExampleSource) -> None:
    """Raises ScenarioError unless a model of one is a model of the other."""
    own = dict(private.fields)
    other = dict(public.fields)
    if own != other:
        raise ScenarioError(
            f"data: the public examples have {other}, and examples of the scenario {own}; give "
            "both the same columns, shapes, and numbers of classes or words"
        )
    # The same words under other numbers need another model, although all shapes agree.
    if getattr(private, "words", ()) != getattr(public, "words", ()):
        raise ScenarioError(
            "data: words of the public data have other numbers than in the scenario's data; give "
            "both tables the same vocabulary_file"
        )
