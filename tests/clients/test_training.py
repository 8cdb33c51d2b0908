"""Local training: clipping, exact sums, and devices that do not feel each other."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedray.base.errors import ScenarioError
from fedray.clients import waiting
from fedray.clients.clipping import Clipped, Clipper, clip_whole
from fedray.clients.data.language import LENGTH, START, WORDS, Language
from fedray.clients.trainer import LocalTrainer
from fedray.encoding.encoding import ClippedUpdates
from fedray.encoding.fixed_point import FixedPointEncoding
from fedray.encoding.tables import FIXED_POINT_BITS
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario.clipping import Clip, FixedClipping, PerLayerClipping
from fedray.scenario.data import LanguageData
from fedray.scenario.privacy import Privacy
from fedray.server.learning.evaluation import evaluation_of
from fedray.wire.messages import TrainOrder, TrainReport


@pytest.fixture
def trainer(small) -> LocalTrainer:
    return LocalTrainer(small("training.enabled=true"))


def trained(
    trainer: LocalTrainer, *groups: list[int], round_index: int = 0
) -> tuple[TrainReport, NDArray[np.int64]]:
    """What becomes of some groups, from the initial parameters."""
    order = TrainOrder(round_index, [np.array(group, np.uint64) for group in groups])
    return trainer.train(order, trainer.initial_parameters())


def clipped(
    updates: NDArray[np.float32], clip_norm: float
) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    """The sum of clipped updates, and what was done to each."""
    encoding = FixedPointEncoding(updates.shape[1])
    total = encoding.zero_sum()
    group = clip_whole(updates, Clip(clip_norm))
    device_ids = np.arange(len(updates), dtype=np.uint64)
    encoding.encode_into(total, ClippedUpdates(0, device_ids, updates, group.factors), clip_norm)
    return total, group.done


@pytest.mark.parametrize("clip_norm", [0.3, 1.0, 1e3])
def test_no_clipped_update_is_longer_than_the_clip_norm(clip_norm: float) -> None:
    scales = np.logspace(-4, 4, 40)[:, None]
    updates = (np.random.default_rng(1).normal(size=(40, 500)) * scales).astype(np.float32)
    for update in updates:
        steps, done = clipped(update[None, :], clip_norm)
        norm = float(np.linalg.norm(steps.astype(np.float64) * (clip_norm / 2.0**FIXED_POINT_BITS)))
        own = float(np.linalg.norm(update.astype(np.float64)))
        rounding = clip_norm * 2.0**-FIXED_POINT_BITS * 500**0.5
        assert norm <= clip_norm
        assert done.tolist() == [Clipped.SHORTENED if own > clip_norm else Clipped.KEPT]
        assert norm == pytest.approx(min(own, clip_norm), rel=1e-6, abs=rounding)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000])
def test_a_norm_is_a_sum_in_64_lanes_and_so_the_same_on_every_machine(size: int) -> None:
    update = np.random.default_rng(size).normal(size=size).astype(np.float32)
    rows = np.zeros((-(-size // 64), 64))
    rows.flat[:size] = update.astype(np.float64) ** 2
    lanes = np.zeros(64)
    for row in rows:
        lanes += row
    clipper = Clipper(Privacy(), {"all": (size,)})
    (norm,) = clipper.clip(update[None, :], Clip(1.0)).norms
    assert norm == math.sqrt(sum(lanes.tolist()))
    assert norm == pytest.approx(math.sqrt(math.fsum(rows.flat)), rel=1e-15)


def test_a_sum_of_clipped_updates_is_that_of_each_alone() -> None:
    updates = np.random.default_rng(2).normal(size=(7, 300)).astype(np.float32)
    together, done = clipped(updates, 17.3)
    alone = [clipped(update[None, :], 17.3) for update in updates]
    assert (together == sum(total for total, _ in alone)).all()
    assert done.tolist() == [int(each[0]) for _, each in alone]
    assert 0 < done.sum() < 7


def test_groups_that_wait_for_each_other_give_the_sum_of_each_device(
    small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room for three devices: groups fill it, end within it, and are larger than it."""
    monkeypatch.setattr(waiting, "MOST_WAITING", 3)
    trainer = LocalTrainer(small("training.enabled=true"))
    groups = [[1, 2], [3], [4], [5, 6], [7, 8], [9, 10, 11, 12], [13]]
    report, together = trained(trainer, *groups)
    apart = [trained(trainer, group) for group in groups]
    assert (together == sum(total for _, total in apart)).all()
    assert report == TrainReport.of(0, [each for each, _ in apart])


SHAPES = {"a": (3, 20), "b": (20,), "c": (2, 210)}
SIZES = [60, 20, 420]


@given(
    st.integers(0, 2**32),
    st.sampled_from([1e-6, 0.3, 1.0, 1e6]),
    st.sampled_from([None, (0.2, 0.9, 0.1)]),
    st.sampled_from([None, 3.0]),
)
@settings(max_examples=150, deadline=None)
def test_no_layer_and_no_update_is_longer_than_its_norm(
    seed: int, clip_norm: float, norms: tuple[float, ...] | None, zero_above: float | None
) -> None:
    """Whatever the sizes of layers; what is encoded is no longer either."""
    given_norms = None if norms is None else tuple(clip_norm * each for each in norms)
    table = PerLayerClipping(norms=given_norms, zero_above=zero_above)
    clipper = Clipper(Privacy(clip_norm=clip_norm, clipping=table), SHAPES)
    rng = np.random.default_rng(seed)
    scales = np.repeat(10.0 ** rng.uniform(-3, 3, (6, 3)), SIZES, axis=1) * clip_norm / 20
    before = (rng.normal(size=(6, 500)) * scales).astype(np.float32)
    values = before.copy()
    group = clipper.clip(values, clipper.first)
    own = np.array(given_norms or (clip_norm / 3**0.5,) * 3)
    encoding = FixedPointEncoding(500)
    for device in range(6):
        total = encoding.zero_sum()
        one = slice(device, device + 1)
        device_ids = np.zeros(1, np.uint64)
        updates = ClippedUpdates(0, device_ids, values[one], group.factors[one])
        encoding.encode_into(total, updates, clip_norm)
        sent = total * (clip_norm / 2.0**FIXED_POINT_BITS)
        layers = [np.linalg.norm(each) for each in np.split(sent, np.cumsum(SIZES)[:-1])]
        assert (layers <= own).all()
        assert np.linalg.norm(sent) <= clip_norm
        norm = np.linalg.norm(before[device].astype(np.float64))
        assert group.norms[device] == pytest.approx(norm)
        if zero_above is not None and norm > zero_above * clip_norm:
            assert group.done[device] == Clipped.ZEROED
            assert not total.any()
            continue
        lengths = [
            np.linalg.norm(each.astype(np.float64))
            for each in np.split(before[device], np.cumsum(SIZES)[:-1])
        ]
        step = clip_norm * 2.0**-FIXED_POINT_BITS * 500**0.5
        np.testing.assert_allclose(layers, np.minimum(lengths, own), rtol=1e-6, atol=step)


def test_whole_updates_beyond_so_many_clip_norms_count_as_zero() -> None:
    clipper = Clipper(Privacy(clip_norm=0.5, clipping=FixedClipping(zero_above=4.0)), {"w": (2,)})
    updates = np.array([[0.25, 0.25], [1.0, 1.0], [1.5, 1.5], [np.nan, 0.0]], np.float32)
    group = clipper.clip(updates, clipper.first)
    assert group.done.tolist() == [
        Clipped.KEPT,
        Clipped.SHORTENED,
        Clipped.ZEROED,
        Clipped.NOT_FINITE,
    ]
    assert group.factors[:1].tolist() + group.factors[2:].tolist() == [1.0, 0.0, 0.0]
    assert group.factors[1] == pytest.approx(0.5 / 2**0.5, rel=1e-6)


def test_norms_for_another_number_of_layers_are_refused() -> None:
    table = PerLayerClipping(norms=(0.5, 0.5))
    with pytest.raises(ScenarioError, match=r"has 2 norms, but the model has 3 layers \(a, b, c\)"):
        Clipper(Privacy(clipping=table), SHAPES)


def test_a_trainer_clips_by_the_norm_of_its_order_and_counts_short_updates(trainer) -> None:
    """The sum of one device with an update of norm u is u steps long at most, whatever the scenario's clip norm."""
    group, start = [np.array([3], np.uint64)], trainer.initial_parameters()
    _, total = trainer.train(TrainOrder(0, group, Clip(1e3)), start)
    own = float(np.linalg.norm(total * (1e3 / 2.0**FIXED_POINT_BITS)))
    for norm, counted in ((own / 2, own * 1.01), (own * 2, own * 0.99), (own * 2, None)):
        report, total = trainer.train(TrainOrder(0, group, Clip(norm, counted_norm=counted)), start)
        found = float(np.linalg.norm(total * (norm / 2.0**FIXED_POINT_BITS)))
        assert found == pytest.approx(min(own, norm), rel=1e-5)
        expected = (0, 0) if counted is None else (1, 0) if counted > own else (0, 1)
        assert (report.short, report.long) == expected
        assert report.clipped == (norm < own)
    report, total = trainer.train(TrainOrder(0, group, Clip(own / 9, zero_above=own / 2)), start)
    assert (report.trained, report.zeroed, report.clipped) == (0, 1, 0)
    assert not total.any()


def test_an_update_that_is_not_finite_counts_as_zero() -> None:
    updates = np.array([[1.0, np.nan], [np.inf, 0.0], [0.25, 0.0]], np.float32)
    total, done = clipped(updates, 1.0)
    assert done.tolist() == [Clipped.NOT_FINITE, Clipped.NOT_FINITE, Clipped.KEPT]
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
    assert trained(trainer, device_ids.tolist())[0].examples == np.minimum(held, 16).sum()


def test_an_update_does_not_depend_on_the_rest_of_its_group_but_for_rounding(trainer) -> None:
    """Batched products may differ in the last bits: single updates and the group's sum agree to float32 rounding."""
    report, together = trained(trainer, [3, 8, 12])
    reports, alone = zip(*(trained(trainer, [device]) for device in (3, 8, 12)), strict=True)
    scale = np.abs(together).max()
    np.testing.assert_allclose(together / scale, sum(alone) / scale, atol=1e-4)
    assert report.loss_sum == pytest.approx(sum(each.loss_sum for each in reports), rel=1e-5)


def test_a_group_trains_to_the_same_bits_again(small) -> None:
    first, second = (
        LocalTrainer(small("training.enabled=true")),
        LocalTrainer(small("training.enabled=true")),
    )
    assert (trained(first, [1, 2])[1] == trained(second, [1, 2])[1]).all()


def test_training_lowers_the_loss(small) -> None:
    trainer = LocalTrainer(
        small("training.enabled=true", "training.client.local_steps=40", "privacy.clip_norm=1000.0")
    )
    start = trainer.initial_parameters()
    _, total = trained(trainer, list(range(16)))
    step = total * (1000.0 / 2.0**FIXED_POINT_BITS) / 16
    after, before = (
        evaluation_of([trainer.evaluate(each)]).metrics["loss"].value
        for each in ((start + step).astype(np.float32), start)
    )
    assert after < before - 0.03


def test_text_is_a_function_of_the_device_and_words_are_words(small) -> None:
    devices, positions = np.array([5, 9], np.uint64), np.tile(np.arange(4), (2, 1))
    source = Language(small("training.seed=7"), LanguageData())
    both = source.examples(devices, positions)["tokens"]
    assert both.shape == (2, 4, LENGTH + 1)
    assert (both[:, :, 0] == START).all()
    assert both[:, :, 1:].max() < WORDS
    second = source.examples(devices[1:], np.array([[2, 0]]))["tokens"][0]
    assert (second == both[1, [2, 0]]).all()
    other = Language(small("training.seed=8"), LanguageData())
    assert not (other.examples(devices, positions)["tokens"] == both).all()


def test_unknown_tasks_are_refused(small) -> None:
    with pytest.raises(ScenarioError, match="training.task"):
        small("training.task=chess")


def test_torch_works_on_one_thread_whatever_else_the_process_does(trainer: LocalTrainer) -> None:
    """A parallel step of numba, as an aggregator's, gives torch numba's number of threads."""
    before = torch.get_num_threads()
    try:
        for work in (
            lambda: trained(trainer, [1]),
            lambda: trainer.evaluate(trainer.initial_parameters()),
        ):
            torch.set_num_threads(2)
            work()
            assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
