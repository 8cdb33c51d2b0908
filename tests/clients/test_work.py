"""What devices compute: steps against those written out by hand, and groups of any size."""

from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from fedray.base.errors import ScenarioError
from fedray.base.rng import Stream, stream_key
from fedray.clients.data.source import DamagedExamples, Field
from fedray.clients.tasks.layout import named
from fedray.clients.tasks.module import FunctionSource, ModuleTask
from fedray.clients.trainer import LocalTrainer
from fedray.clients.work.orders import example_orders
from fedray.clients.work.work import WorkOrder, WorkResult
from fedray.encoding.tables import FIXED_POINT_BITS
from fedray.scenario.training import CustomOptimizer, FedAvg, FedProx, FedSGD, Schedule
from fedray.server.learning.evaluation import evaluation_of
from fedray.wire.messages import Metric, TrainOrder

HELD = np.array([5, 12, 3, 40], np.int64)
DEVICES = np.arange(HELD.size, dtype=np.uint64)


def examples(device: int) -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(device)
    inputs = torch.randn(int(HELD[device % HELD.size]), 6, generator=draws)
    return inputs, (inputs.sum(dim=1) > 0).long()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))


def task() -> ModuleTask:
    return ModuleTask(model(), FunctionSource(examples), nn.functional.cross_entropy)


def order(made: ModuleTask, device_ids=DEVICES, held=HELD, round_index: int = 3) -> WorkOrder:
    return WorkOrder(round_index, device_ids, held, torch.from_numpy(made.initial_parameters()))


def computed(table, made: ModuleTask, work_order: WorkOrder) -> WorkResult:
    assert made.source is not None
    make = resolve_name(table.implementation)
    return make(table, made, made.source, seed=7, rounds=10).compute(work_order)


def by_hand(table: FedAvg, made: ModuleTask, device: int, steps: int) -> torch.Tensor:
    """A device's update by torch's own optimiser on the module's own parameters."""
    module = model()
    start = [part.detach().clone() for part in module.parameters()]
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.AdamW}.get(str(table.optimizer))
    kind = kind or torch.optim.RMSprop
    extra: dict = {"weight_decay": table.weight_decay}
    if table.optimizer == "sgd":
        extra |= {"momentum": table.momentum, "nesterov": table.nesterov}
    rate = table.learning_rate * table.schedule.factor(3, 10)
    optimizer = kind(module.parameters(), lr=rate, **extra)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, table.step_decay)
    usable = min(int(HELD[device]), table.max_examples or 10**9)
    key = stream_key(7, Stream.EXAMPLE_ORDER)
    positions = example_orders(
        key, 3, DEVICES[device : device + 1], np.array([usable]), steps * table.batch_size
    )[0]
    inputs, targets = examples(device)
    proximal = table.proximal if isinstance(table, FedProx) else 0.0
    for step in range(steps):
        batch = positions[step * table.batch_size : (step + 1) * table.batch_size]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(inputs[batch]), targets[batch])
        away = sum(
            ((part - begun) ** 2).sum()
            for part, begun in zip(module.parameters(), start, strict=True)
        )
        (loss + 0.5 * proximal * away).backward()
        if table.gradient_norm is not None:
            nn.utils.clip_grad_norm_(module.parameters(), table.gradient_norm)
        optimizer.step()
        scheduler.step()
    parts = zip(module.parameters(), start, strict=True)
    return torch.cat([(part.detach() - begun).flatten() for part, begun in parts])


RMSPROP = Path(__file__).parent / "tasks" / "rmsprop.py"
HALF = Schedule(warmup_rounds=8)
"""Half the learning rate in round 3."""
SMALLER_STEPS: dict[str, Any] = {"gradient_norm": 0.3, "schedule": HALF, "step_decay": 0.7}
TABLES = {
    "plain": FedAvg(learning_rate=0.5, batch_size=4, local_steps=3),
    "momentum": FedAvg(learning_rate=0.1, batch_size=4, local_steps=5, momentum=0.8),
    "adam": FedAvg(learning_rate=0.01, batch_size=4, local_steps=4, optimizer="adam"),
    "proximal": FedProx(learning_rate=0.5, batch_size=4, local_steps=5, proximal=0.7),
    "epochs": FedAvg(learning_rate=0.3, batch_size=4, epochs=1.5),
    "epochs with adam": FedAvg(learning_rate=0.01, batch_size=4, epochs=1, optimizer="adam"),
    "plain with all": FedAvg(
        learning_rate=0.5, batch_size=4, epochs=2, weight_decay=0.1, **SMALLER_STEPS
    ),
    "nesterov with all": FedAvg(
        learning_rate=0.2,
        batch_size=4,
        epochs=2,
        momentum=0.8,
        nesterov=True,
        weight_decay=0.1,
        **SMALLER_STEPS,
    ),
    "adam with all": FedAvg(
        learning_rate=0.02,
        batch_size=4,
        epochs=2,
        optimizer="adam",
        weight_decay=0.5,
        **SMALLER_STEPS,
    ),
    "proximal with a norm": FedProx(
        learning_rate=0.5, batch_size=4, local_steps=5, proximal=0.7, gradient_norm=0.2
    ),
    "file with all": FedAvg(
        learning_rate=0.02,
        batch_size=4,
        epochs=2,
        optimizer=CustomOptimizer(kind="custom", file=str(RMSPROP)),
        **SMALLER_STEPS,
    ),
    "few examples": FedAvg(learning_rate=0.3, batch_size=4, epochs=2, max_examples=7),
}


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        ("MEANS", "'MEANS' of its module changes in a step"),
        ("HIDDEN()", "after the steps of another device"),
        ("self.state[part]", ""),
    ],
)
def test_an_optimizer_that_one_device_leaves_changed_to_the_next_is_refused(
    tmp_path: Path, kept: str, says: str
) -> None:
    """Gradients of a device would be in the update of another."""
    (tmp_path / "own.py").write_text(
        "import torch\n\nMEANS = {}\nHIDDEN = (lambda means: lambda: means)({})\n\n"
        "class Own(torch.optim.Optimizer):\n"
        "    def __init__(self, parameters, rate):\n"
        "        super().__init__(parameters, {'lr': rate})\n\n"
        "    @torch.no_grad()\n    def step(self):\n"
        "        for number, part in enumerate(self.param_groups[0]['params']):\n"
        f"            kept = {kept}\n"
        "            kept[number] = 0.9 * kept.get(number, 0.0) + part.grad\n"
        "            part.sub_(kept[number], alpha=0.1)\n\noptimizer = Own\n"
    )
    own = CustomOptimizer(kind="custom", file=str(tmp_path / "own.py"))
    table, made = FedAvg(learning_rate=0.1, batch_size=4, local_steps=2, optimizer=own), task()
    if says:
        with pytest.raises(ScenarioError, match=says) as raised:
            computed(table, made, order(made))
        assert "keep what changes in `state`" in str(raised.value)
    else:
        assert computed(table, made, order(made)).updates.any()


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_steps_are_those_of_torch_s_own_optimisers_on_each_device(name: str) -> None:
    table, made = TABLES[name], task()
    result = computed(table, made, order(made))
    usable = np.minimum(HELD, table.max_examples or 10**9)
    for device in range(HELD.size):
        steps = table.local_steps
        if table.epochs is not None:
            steps = -int(-(table.epochs * usable[device]) // table.batch_size)
        expected = by_hand(table, made, device, steps)
        torch.testing.assert_close(result.updates[device], expected, rtol=1e-4, atol=1e-6)
        assert result.examples[device] == min(usable[device], steps * table.batch_size)


ALL_TABLES = {**TABLES, "one gradient": FedSGD(learning_rate=2.0)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_TABLES)
def test_a_loop_and_a_batch_of_devices_agree(name: str) -> None:
    table, made = ALL_TABLES[name], task()
    together = computed(table, made, order(made))
    for device in range(HELD.size):
        one = slice(device, device + 1)
        alone = computed(table, made, order(made, DEVICES[one], HELD[one]))
        torch.testing.assert_close(alone.updates[0], together.updates[device], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", TABLES)
def test_a_device_alone_leaves_the_parameters_of_the_round_as_they_are(name: str) -> None:
    made = task()
    alone = order(made, DEVICES[3:], HELD[3:])
    before = alone.start.clone()
    assert computed(TABLES[name], made, alone).updates.any()
    assert torch.equal(alone.start, before)


def test_many_steps_are_read_window_by_window(monkeypatch) -> None:
    made, table = task(), FedAvg(learning_rate=0.1, batch_size=4, epochs=3)
    whole = computed(table, made, order(made))
    monkeypatch.setattr("fedray.clients.work.local.MOST_EXAMPLES_HELD", 40)
    assert torch.equal(computed(table, made, order(made)).updates, whole.updates)


def test_one_gradient_is_that_of_the_mean_loss_over_all_examples(monkeypatch) -> None:
    made, table = task(), FedSGD(learning_rate=2.0)
    for most in (8192, 7):  # at once
        monkeypatch.setattr("fedray.clients.work.local.MOST_EXAMPLES_HELD", most)
        result = computed(table, made, order(made))
        for device in range(HELD.size):
            module = model()
            inputs, targets = examples(device)
            loss = nn.functional.cross_entropy(module(inputs), targets)
            loss.backward()
            flat = torch.cat([part.grad.flatten() for part in module.parameters()])  # pyright: ignore[reportOptionalMemberAccess]
            torch.testing.assert_close(result.updates[device], -2.0 * flat)
            assert float(result.losses[device]) == pytest.approx(loss.item(), rel=1e-6)


def test_orders_are_permutations_that_differ_between_rounds_and_devices() -> None:
    key = stream_key(1, Stream.EXAMPLE_ORDER)
    orders = example_orders(key, 4, DEVICES, HELD, 100)
    for row, held in zip(orders, HELD, strict=True):
        assert sorted(row[:held]) == list(range(held))
        assert (row == np.resize(row[:held], 100)).all()
    again = example_orders(key, 4, DEVICES[::-1].copy(), HELD[::-1].copy(), 100)
    assert (again[::-1] == orders).all()
    assert (example_orders(key, 5, DEVICES, HELD, 100) != orders).any()
    few = example_orders(key, 4, DEVICES, HELD, 3)
    assert (few == orders[:, :3]).all()


def test_every_order_is_as_likely() -> None:
    """Chi-squared over the 24 orders of four examples, 24,000 devices; a false alarm in 10^6."""
    devices = np.arange(24_000, dtype=np.uint64)
    held = np.full(devices.size, 4)
    orders = example_orders(stream_key(2, Stream.EXAMPLE_ORDER), 0, devices, held, 4)
    _, counts = np.unique(orders @ [64, 16, 4, 1], return_counts=True)
    assert counts.size == 24
    assert stats.chisquare(counts).pvalue > 1e-6


class Points:
    """Devices with a point each around a centre of their own; some hold nothing, one is damaged,
    one is infinite."""

    fields: Mapping[str, Field] = {"inputs": Field((3,), "real")}
    held_out_devices, optimum = 10, {}

    def __init__(self) -> None:
        self.damaged: set[int] = set()
        self.empty: set[int] = set()
        self.infinite: set[int] = set()

    def examples_on(self, device_ids):
        return np.array([0 if int(each) in self.empty else 4 for each in device_ids], np.int64)

    def centre(self, device: int) -> np.ndarray:
        return np.random.default_rng(device).normal(size=3)

    def examples(self, device_ids, positions):
        found = self.damaged & set(device_ids.tolist())
        if found:
            raise DamagedExamples(dict.fromkeys(found, "the record is cut"))
        rows = np.stack([np.tile(self.centre(each), (4, 1)) for each in device_ids.tolist()])
        for row, device in zip(rows, device_ids.tolist(), strict=True):
            if device in self.infinite:
                row[:] = np.inf
        picked = np.take_along_axis(rows, positions[:, :, None], axis=1)
        return {"inputs": picked.astype(np.float32)}


class Quadratic:
    """0.5 |w - x|^2, whose optimum over devices is the mean of their centres."""

    shapes: Mapping[str, tuple[int, ...]] = {"w": (3,)}
    metrics = (Metric("loss", "", "lower"),)

    def initial_parameters(self):
        return np.full(3, 5.0, np.float32)

    def losses(self, parameters, batch):
        away = batch["inputs"] - parameters["w"][:, None, :]
        return 0.5 * away.square().sum(dim=2).mean(dim=1)

    def measure(self, parameters, batch):
        away = batch["inputs"] - parameters["w"][:, None, :]
        return {"loss": (0.5 * away.square().sum(dim=2), torch.ones(away.shape[:2]))}


@pytest.fixture
def quadratic(small, monkeypatch):
    """A trainer of the quadratic on points that can be spoiled, and these."""

    def made(*overrides: str) -> tuple[LocalTrainer, Points]:
        points = Points()
        monkeypatch.setattr("fedray.clients.trainer.source_of", lambda scenario: points)
        monkeypatch.setattr("fedray.clients.trainer.task_of", lambda scenario, fields: Quadratic())
        return LocalTrainer(small("training.enabled=true", *overrides)), points

    return made


@pytest.mark.slow
@pytest.mark.parametrize("client", ["fedavg", "fedprox", "fedsgd"])
def test_federated_training_of_a_quadratic_ends_at_its_closed_form(quadratic, client: str) -> None:
    trainer, points = quadratic(
        "privacy.clip_norm=1000.0",
        f"training.client={{kind='{client}', learning_rate=0.3}}",
    )
    devices = np.arange(40, dtype=np.uint64)
    parameters = trainer.initial_parameters()
    for round_index in range(60):
        _, total = trainer.train(TrainOrder(round_index, np.split(devices, 4)), parameters)
        step = total * (1000.0 / 2.0**FIXED_POINT_BITS) / devices.size
        parameters = (parameters + step).astype(np.float32)
    optimum = np.mean([points.centre(device) for device in range(40)], axis=0)
    np.testing.assert_allclose(parameters, optimum, atol=1e-4)


def test_devices_that_fail_are_counted_and_add_nothing(quadratic) -> None:
    trainer, points = quadratic("privacy.clip_norm=0.5")
    groups = [np.arange(8, dtype=np.uint64), np.arange(8, 12, dtype=np.uint64)]
    start = trainer.initial_parameters()
    whole, total = trainer.train(TrainOrder(0, groups), start)
    assert (whole.devices, whole.trained, whole.clipped) == (12, 12, 12)
    points.damaged, points.empty, points.infinite = {2, 9}, {3, 4}, {11}
    report, rest = trainer.train(TrainOrder(0, groups), start)
    assert (report.devices, report.trained, report.clipped) == (12, 7, 7)
    assert (report.damaged, report.without_examples, report.not_finite) == (2, 2, 1)
    points.damaged, points.empty, points.infinite = set(), set(), set()
    spoiled = [np.array([device], np.uint64) for device in (2, 3, 4, 9, 11)]
    _, alone = trainer.train(TrainOrder(0, spoiled), start)
    np.testing.assert_allclose(rest + alone, total, rtol=1e-6)
    points.empty = set(range(12))
    report, nothing = trainer.train(TrainOrder(0, groups), start)
    assert (report.trained, report.without_examples) == (0, 12)
    assert not nothing.any()


def test_damage_that_names_nobody_is_raised(quadratic) -> None:
    trainer, points = quadratic()

    def damaged(device_ids, positions):
        raise DamagedExamples({10**9: "of nobody here"})

    points.examples = damaged
    with pytest.raises(DamagedExamples):
        trainer.train(TrainOrder(0, [DEVICES]), trainer.initial_parameters())


def test_metrics_are_ratios_of_sums_with_errors_clustered_by_device(quadratic) -> None:
    """Value and error by hand, and the error against the spread over many draws of devices."""
    trainer, points = quadratic("training.evaluation_devices=10")
    evaluation = evaluation_of([trainer.evaluate(np.zeros(3, np.float32))])
    first = 2**40
    losses = np.array([0.5 * np.sum(points.centre(first + each) ** 2) for each in range(10)])
    measured = evaluation.metrics["loss"]
    assert (evaluation.data.devices, evaluation.data.examples) == (10, 40)
    assert measured.value == pytest.approx(losses.mean(), rel=1e-5)
    assert measured.standard_error == pytest.approx(losses.std(ddof=1) / 10**0.5, rel=1e-5)


def test_layout_is_a_view_of_the_flat_vector() -> None:
    flat = torch.arange(10.0)[None, :]
    parts = named(flat, {"a": (2, 3), "b": (4,)})
    parts["b"].add_(1.0)
    assert flat[0].tolist() == [0, 1, 2, 3, 4, 5, 7, 8, 9, 10]
