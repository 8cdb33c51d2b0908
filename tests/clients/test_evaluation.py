"""Evaluations: which examples of which devices, and standard errors beside brute force over devices."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from fedray.base.errors import InputError
from fedray.clients.data.source import FIRST_HELD_OUT, DamagedExamples, Field
from fedray.clients.evaluation import (
    MOST_EXAMPLES,
    device_sums,
    evaluate,
    examples_used,
    held_out,
    repeated_examples,
)
from fedray.clients.tasks.layout import named
from fedray.clients.tasks.logistic import Logistic
from fedray.clients.trainer import LocalTrainer
from fedray.runtime.workers import Ready
from fedray.scenario.tasks import LogisticTask
from fedray.scenario.training import Training
from fedray.server.learning.evaluation import SharedEvaluation, evaluation_of
from fedray.wire.messages import Evaluated, Evaluation, EvaluationPart

FIELDS = {"inputs": Field((3,), "real"), "targets": Field((), "whole", 3)}


class Unlike:
    """Held-out devices with these numbers of examples, whose classes depend on the device."""

    fields, optimum = FIELDS, {}

    def __init__(self, counts, damaged=()) -> None:
        self.damaged = set(damaged)
        self.counts = np.array(counts, np.int64)
        self.held_out_devices = self.counts.size

    def examples_on(self, device_ids):
        return self.counts[(device_ids - FIRST_HELD_OUT).astype(int)]

    def examples(self, device_ids, positions):
        if bad := self.damaged & set((device_ids - FIRST_HELD_OUT).tolist()):
            raise DamagedExamples(dict.fromkeys(sorted(bad), "the record is cut"))
        found = {"inputs": [], "targets": []}
        for device, row in zip(device_ids.tolist(), positions, strict=True):
            draws = np.random.default_rng(device)
            inputs = draws.standard_normal((400, 3)).astype(np.float32)
            targets = draws.choice(3, 400, p=draws.dirichlet(np.full(3, 0.4)))
            found["inputs"].append(inputs[row])
            found["targets"].append(targets[row])
        return {name: np.stack(each) for name, each in found.items()}


def evaluated(source: Any, **keys) -> tuple[Evaluation, Logistic, np.ndarray]:
    task: Any = Logistic(LogisticTask(), 3, FIELDS)
    parameters = np.random.default_rng(5).standard_normal(12).astype(np.float32)
    table = Training(evaluation_devices=10_000, **keys)
    return evaluation_of([evaluate(task, source, table, parameters)]), task, parameters


class Measurer:
    """A trainer of which only evaluations are asked."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.parts: list[EvaluationPart] = []

    def evaluate(self, parameters, share):
        task: Any = Logistic(LogisticTask(), 3, FIELDS)
        table = Training(evaluation_devices=10_000)
        self.parts.append(evaluate(task, self._source, table, parameters, share))
        return Ready(self.parts[-1])


def shared(source: Any, trainers: int) -> tuple[Evaluation, list[Any]]:
    pool: list[Any] = [Measurer(source) for _ in range(trainers)]
    parameters = np.random.default_rng(5).standard_normal(12).astype(np.float32)
    return SharedEvaluation(pool, parameters).result(), pool


@pytest.mark.parametrize("seed", range(3))
def test_value_and_error_are_those_of_a_walk_over_single_examples_of_single_devices(seed) -> None:
    """Cochran 1977, equation 6.13, written with loops; and the error is the spread of 4,000 resamples of the devices."""
    counts = np.random.default_rng(seed).integers(0, 20, 50)
    source = Unlike(counts)
    found, task, parameters = evaluated(source)
    model = named(torch.tensor(parameters)[None], task.shapes)
    sums = {metric.name: [] for metric in task.metrics}
    for place in np.flatnonzero(counts).tolist():
        own = {name: [0.0, 0.0] for name in sums}
        for position in range(counts[place]):
            ids = np.array([place], np.uint64) + FIRST_HELD_OUT
            one = source.examples(ids, np.array([[position]]))
            batch = {name: torch.from_numpy(part) for name, part in one.items()}
            with torch.no_grad():
                measured = task.measure(model, batch)
            for name, parts in measured.items():
                own[name] = [a + float(b.sum()) for a, b in zip(own[name], parts, strict=True)]
        for name, pair in own.items():
            sums[name].append(pair)
    for metric in task.metrics:
        pairs = sums[metric.name]
        total = math.fsum(weight for _, weight in pairs)
        ratio = math.fsum(numerator for numerator, _ in pairs) / total
        squares = math.fsum((numerator - ratio * weight) ** 2 for numerator, weight in pairs)
        n = len(pairs)
        value, error = found.metrics[metric.name]
        assert value == pytest.approx(ratio, rel=1e-5)
        assert error == pytest.approx(math.sqrt(squares * n / (n - 1)) / total, rel=1e-4)
        drawn = np.array(pairs)[np.random.default_rng(9).integers(0, n, (4000, n))].sum(axis=1)
        # The standard deviation of 4,000 draws is known to about 1 %, and the formula is linear.
        assert error == pytest.approx((drawn[:, 0] / drawn[:, 1]).std(), rel=0.1)


@pytest.mark.parametrize(
    ("counts", "keys", "expected"),
    [
        ([50] * 31 + [49] * 19, {}, (2481, 2481, 50)),
        ([50] * 31 + [49] * 19, {"evaluation_examples": 4}, (200, 2481, 50)),
        ([3, 0, 5], {}, (8, 8, 2)),
        ([0, 0], {}, (0, 0, 0)),
    ],
)
def test_all_examples_of_a_small_held_out_set_count(counts, keys, expected) -> None:
    found, _, _ = evaluated(Unlike(counts), **keys)
    examples, available, devices = expected
    assert found.data == Evaluated(examples, available, devices, len(counts))


@pytest.mark.parametrize("seed", range(200))
def test_examples_of_large_data_are_the_same_share_of_each_device(seed: int) -> None:
    rng = np.random.default_rng(seed)
    held = rng.integers(0, 2 + 10 ** rng.integers(0, 5), rng.integers(1, 300))
    used, total = examples_used(held, None), int(held.sum())
    assert (used <= held).all()
    assert ((used > 0) == (held > 0)).all()
    if total <= MOST_EXAMPLES:
        assert (used == held).all()
    else:
        share = held * MOST_EXAMPLES / total
        assert (used == np.where(held > 0, np.maximum(1, np.floor(share)), 0)).all()
        assert used.sum() <= MOST_EXAMPLES + np.count_nonzero(share < 1)
        assert used.sum() > MOST_EXAMPLES - held.size
    most = int(rng.integers(1, 50))
    assert (examples_used(held, most) == np.minimum(held, most)).all()


@pytest.mark.parametrize("at_once", [1, 7, 40, 2048])
def test_a_device_may_be_in_several_batches_and_a_batch_have_several_devices(
    at_once: int, monkeypatch
) -> None:
    """Sums of devices of 1 to 60 examples in batches of any size, and no batch is larger."""
    sizes: list[int] = []
    measure = Logistic.measure

    def noted(self, parameters, batch):
        sizes.append(batch["targets"].numel())
        return measure(self, parameters, batch)

    monkeypatch.setattr(Logistic, "measure", noted)
    source = Unlike([60, 1, 7, 8, 0, 33, 2])
    whole, _, _ = evaluated(source)
    assert sizes == [111]
    monkeypatch.setattr("fedray.clients.evaluation.EXAMPLES_AT_ONCE", at_once)
    sizes.clear()
    found, _, _ = evaluated(source)
    assert max(sizes) <= at_once
    assert sum(sizes) == 111
    assert found.data == whole.data
    for name, measured in found.metrics.items():
        assert measured == pytest.approx(whole.metrics[name], rel=1e-5)


@pytest.mark.parametrize("trainers", [1, 2, 3, 7])
@pytest.mark.parametrize("counts", [[60, 1, 7, 8, 0, 33, 2] * 9, [100], [3, 5], [0, 0], []])
def test_no_bit_of_an_evaluation_depends_on_how_many_trainers_share_it(
    counts, trainers: int, monkeypatch
) -> None:
    """Devices of up to five rows in as many batches, fewer devices than trainers, and none. A message has rows alone, each
    measured once; the value beside a plain walk over all pieces in order."""
    monkeypatch.setattr("fedray.clients.evaluation.EXAMPLES_AT_ONCE", 20)
    sizes: list[int] = []
    measure = Logistic.measure

    def noted(self, parameters, batch):
        sizes.append(batch["targets"].numel())
        found = measure(self, parameters, batch)
        # Sums of float32 would be exact in any order.
        return {name: (part.double() / 3, weight) for name, (part, weight) in found.items()}

    monkeypatch.setattr(Logistic, "measure", noted)
    found, pool = shared(Unlike(counts), trainers)
    assert sum(sizes) == sum(counts)
    batches = [len(trainer.parts[0].batches) for trainer in pool]
    assert sum(batches) == len(sizes)
    assert max(batches) - min(batches) <= 1
    owners = [part for trainer in pool for part, _ in trainer.parts[0].batches]
    assert sum(part.size for part in owners) == sum(-(-count // 20) for count in counts)
    whole, task, parameters = evaluated(Unlike(counts))
    assert found.data == whole.data
    assert repr(found.metrics) == repr(whole.metrics)
    order, used, _ = held_out(Unlike(counts), Training(evaluation_devices=10_000))
    for name, pairs in device_sums(task, Unlike(counts), order, used, parameters).items():
        total = pairs[:, 1].sum()
        ratio = float(pairs[:, 0].sum() / total) if total > 0 else math.nan
        assert np.array_equal(found.metrics[name].value, ratio, equal_nan=True)


@pytest.mark.parametrize("trainers", [1, 2, 3, 7])
def test_damaged_held_out_data_is_one_error_whoever_meets_it(trainers: int, monkeypatch) -> None:
    """In batches of several trainers: those of the first of these batches are named."""
    monkeypatch.setattr("fedray.clients.evaluation.EXAMPLES_AT_ONCE", 20)
    words = r"^data: the held-out data cannot be read \(device 1: .*; device 4: the record is cut\); repair it"
    with pytest.raises(InputError, match=words):
        shared(Unlike([20, 5, 20, 20, 5, 20, 20, 20], damaged=[7, 4, 1, 3]), trainers)


def test_a_shipped_task_is_evaluated_on_its_128_devices_with_at_most_10_000_examples(small) -> None:
    data = ("training.enabled=true", "training.task.kind=logistic", "data={kind='classes'}")
    for median in (40.0, 300.0):
        trainer = LocalTrainer(small(*data, f"population.examples_median={median}"))
        found = trainer.evaluate(trainer.initial_parameters()).data
        assert found.devices == 128
        assert found.held_out_devices == 2**40
        assert found.examples <= min(MOST_EXAMPLES, found.available)
        assert (found.available > MOST_EXAMPLES) == (median == 300.0)
        assert found.examples > MOST_EXAMPLES - 2 * 128 or found.examples == found.available


class Repeating(Unlike):
    """Held-out devices of which some have the examples of the device of that place, or all but one of these."""

    def __init__(self, of, examples: int = 30, damaged=()) -> None:
        super().__init__([examples] * len(of), damaged)
        self.of, self.asked = np.array(of, np.uint64), 0

    def examples(self, device_ids, positions):
        self.asked += positions.size
        places = self.of[(device_ids - FIRST_HELD_OUT).astype(int)]
        return super().examples(FIRST_HELD_OUT + places, positions)


@pytest.mark.parametrize("examples", [30, 5000])
@pytest.mark.parametrize(
    ("of", "sets"),
    [
        ([0] * 10, "1 set"),
        ([0, 1, 2, 0, 1, 2], "3 sets"),
        ([0, 1, 2, 3, 4, 0], ""),
        ([*range(10)], ""),
        ([0], ""),
        ([], ""),
    ],
)
def test_held_out_devices_with_the_same_examples_are_named(of, sets: str, examples: int) -> None:
    source: Any = Repeating(of, examples)
    said = repeated_examples(source, Training(evaluation_examples=min(examples, 400)))
    assert said.startswith(f"the {len(of)} held-out devices have only {sets} of") == bool(sets)
    assert bool(said) == bool(sets)
    # Only devices that begin alike are read as a whole.
    if len(set(of)) == len(of):
        assert source.asked == len(of) * (len(of) > 1)


def test_devices_that_differ_in_their_last_example_only_do_not_repeat_each_other() -> None:
    class Later(Repeating):
        def examples(self, device_ids, positions):
            found = super().examples(device_ids, positions)
            own = (device_ids - FIRST_HELD_OUT).astype(np.float32)
            found["inputs"][positions == 29] = own[np.nonzero(positions == 29)[0], None]
            return found

    source: Any = Later([0] * 10)
    assert repeated_examples(source, Training()) == ""
    # The last examples are not evaluated.
    assert "only 1 set of" in repeated_examples(source, Training(evaluation_examples=29))


def test_damaged_data_repeat_nothing_because_the_evaluation_refuses_them() -> None:
    source: Any = Repeating([0, 0, 1], damaged=[1])
    assert repeated_examples(source, Training()) == ""
