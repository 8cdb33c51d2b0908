"""Local training: clipping, exact sums, and devices that do not feel each other."""

from pathlib import Path

import numpy as np
import pytest
import torch

from clients.clipping import sum_of_clipped
from clients.tasks.next_word import LENGTH, START, WORDS, NextWord
from clients.tasks.registry import task_of
from clients.trainer import LocalTrainer
from fedray.errors import ScenarioError
from fedray.messages import FIXED_POINT_BITS, TrainOrder
from fedray.placement import Placement
from fedray.simulation import simulate


@pytest.fixture
def trainer(small) -> LocalTrainer:
    return LocalTrainer(small("training.enabled=true"))


def order(trainer: LocalTrainer, device_ids: list[int]) -> TrainOrder:
    return TrainOrder(0, 0, np.array(device_ids, np.uint64), trainer.initial_parameters())


@pytest.mark.parametrize("clip_norm", [0.3, 1.0, 1e3])
def test_no_clipped_update_is_longer_than_the_clip_norm(clip_norm: float) -> None:
    scales = np.logspace(-4, 4, 40)[:, None]
    updates = (np.random.default_rng(1).normal(size=(40, 500)) * scales).astype(np.float32)
    for update in updates:
        steps, is_longer = sum_of_clipped(update[None, :], clip_norm)
        norm = float(np.linalg.norm(steps.astype(np.float64) * (clip_norm / 2.0**FIXED_POINT_BITS)))
        own = float(np.linalg.norm(update.astype(np.float64)))
        rounding = clip_norm * 2.0**-FIXED_POINT_BITS * 500**0.5
        assert norm <= clip_norm
        assert is_longer.tolist() == [own > clip_norm]
        assert norm == pytest.approx(min(own, clip_norm), rel=1e-6, abs=rounding)


def test_a_sum_of_clipped_updates_is_that_of_each_alone() -> None:
    updates = np.random.default_rng(2).normal(size=(7, 300)).astype(np.float32)
    together, is_longer = sum_of_clipped(updates, 17.3)
    alone = [sum_of_clipped(update[None, :], 17.3) for update in updates]
    assert (together == sum(total for total, _ in alone)).all()
    assert is_longer.tolist() == [bool(longer[0]) for _, longer in alone]
    assert 0 < is_longer.sum() < 7


def test_an_update_that_is_not_finite_counts_as_zero() -> None:
    updates = np.array([[1.0, np.nan], [np.inf, 0.0], [0.25, 0.0]], np.float32)
    total, is_longer = sum_of_clipped(updates, 1.0)
    assert is_longer.tolist() == [True, True, False]
    assert total.tolist() == [2 ** (FIXED_POINT_BITS - 2), 0]


def test_a_device_trains_on_what_the_trace_says_it_holds_up_to_its_local_steps(
    small, tmp_path: Path
) -> None:
    """batch_size x local_steps = 16 examples, or all that a device holds where it holds fewer; some do."""
    scenario = small("population.examples_median=12.0", "rounds.count=1")
    rows = simulate(scenario, Placement(1, "in-process"), tmp_path / "t").columns(0)
    device_ids, held = rows["device_id"][:40], rows["examples"][:40]
    assert (held < 16).any()
    assert (held > 16).any()
    trainer = LocalTrainer(scenario.with_overrides("training.enabled=true"))
    assert trainer.train(order(trainer, device_ids.tolist())).examples == np.minimum(held, 16).sum()


def test_an_update_does_not_depend_on_the_rest_of_its_group_but_for_rounding(trainer) -> None:
    """Batched products may differ in the last bits: single updates and the group's sum agree to float32 rounding."""
    together = trainer.train(order(trainer, [3, 8, 12]))
    alone = [trainer.train(order(trainer, [device])) for device in (3, 8, 12)]
    total = sum(report.sum_fixed_point for report in alone)
    scale = np.abs(together.sum_fixed_point).max()
    np.testing.assert_allclose(together.sum_fixed_point / scale, total / scale, atol=1e-4)
    assert together.loss_sum == pytest.approx(sum(report.loss_sum for report in alone), rel=1e-5)


def test_a_group_trains_to_the_same_bits_again(small) -> None:
    first, second = (
        LocalTrainer(small("training.enabled=true")),
        LocalTrainer(small("training.enabled=true")),
    )
    assert (
        first.train(order(first, [1, 2])).sum_fixed_point
        == second.train(order(second, [1, 2])).sum_fixed_point
    ).all()


def test_the_gradients_are_those_of_finite_differences(trainer) -> None:
    task = NextWord(7)
    batch = task.device_examples(np.array([4], np.uint64), 6)
    parameters = trainer._named(torch.tensor(task.initial_parameters())[None, :].double())
    _, gradients = trainer._gradients(parameters, batch)
    generator = torch.Generator().manual_seed(2)
    for name, part in parameters.items():
        direction = torch.randn(part.shape, generator=generator, dtype=torch.float64)
        step = 1e-5
        with torch.no_grad():
            above = task.losses({**parameters, name: part + step * direction}, batch)
            below = task.losses({**parameters, name: part - step * direction}, batch)
        slope = float((above - below) / (2 * step))
        assert float((gradients[name] * direction).sum()) == pytest.approx(slope, rel=1e-5), name


def test_training_lowers_the_loss(small) -> None:
    trainer = LocalTrainer(
        small("training.enabled=true", "training.client.local_steps=40", "privacy.clip_norm=1000.0")
    )
    start = trainer.initial_parameters()
    report = trainer.train(order(trainer, list(range(16))))
    step = report.sum_fixed_point * (1000.0 / 2.0**FIXED_POINT_BITS) / 16
    assert (
        trainer.evaluate((start + step).astype(np.float32)).loss
        < trainer.evaluate(start).loss - 0.03
    )


def test_text_is_a_function_of_the_device_and_words_are_words() -> None:
    task = NextWord(7)
    both = task.device_examples(np.array([5, 9], np.uint64), 4)
    assert both.shape == (2, 4, LENGTH + 1)
    assert (both[:, :, 0] == START).all()
    assert int(both[:, :, 1:].max()) < WORDS
    assert torch.equal(task.device_examples(np.array([9], np.uint64), 2)[0], both[1, :2])
    assert not torch.equal(NextWord(8).device_examples(np.array([9], np.uint64), 4)[0], both[1])


def test_unknown_tasks_are_refused(small) -> None:
    with pytest.raises(ScenarioError, match="must be one of next_word"):
        task_of(small("training.task=chess"))
