"""Secure aggregation: the arithmetic of Xu et al. 2023, Algorithm 2, its bounds, and the bugs that must not pass.

The bugs are planted in the real code, and the check that catches each one passes without it.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.linalg import hadamard

from fedray.base.errors import ScenarioError
from fedray.base.rng import Stream, draw, stream_key, uniform
from fedray.clients.clipping import clip_whole
from fedray.clients.trainer import LocalTrainer
from fedray.encoding import secagg
from fedray.encoding.encoding import ClippedUpdates, SumSetting
from fedray.encoding.factory import encoding_of
from fedray.encoding.norms import inflation, largest_coordinate, largest_square, padded
from fedray.encoding.rotation import signs_of, walsh_hadamard
from fedray.encoding.secagg import SecAggEncoding
from fedray.encoding.tables import FixedPoint, SecAgg
from fedray.runs.learning import train
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario.clipping import Clip
from fedray.server.learning.aggregator import ModelAggregator
from fedray.wire.messages import TrainOrder, TrainReport

HERE = Placement(1, "in-process")


def made(table: SecAgg, dimension: int, devices: int, seed: int = 0) -> SecAggEncoding:
    return SecAggEncoding(table, SumSetting(dimension, devices, devices, 1.0, seed))


def updates_of(values: np.ndarray, clip_norm: float = 1.0, round_index: int = 2) -> ClippedUpdates:
    values = values.astype(np.float32)
    factors = clip_whole(values, Clip(clip_norm)).factors
    device_ids = np.arange(len(values), dtype=np.uint64)
    return ClippedUpdates(round_index, device_ids, values, factors)


def message(encoding: SecAggEncoding, updates: ClippedUpdates, place: int) -> list[int]:
    """What one device sends, as whole numbers of least size."""
    one = slice(place, place + 1)
    total = encoding.zero_sum()
    encoding.encode_into(
        total,
        ClippedUpdates(
            updates.round_index, updates.device_ids[one], updates.values[one], updates.factors[one]
        ),
        1.0,
    )
    residues = total.tolist()
    assert all(0 <= residue < encoding.modulus for residue in residues)
    return [each if 2 * each <= encoding.modulus else each - encoding.modulus for each in residues]


def halves(devices: int, scale: int, dimension: int) -> ClippedUpdates:
    """Updates on the clip norm that rotation brings to whole numbers and a half: none rounds to a longer vector more often.

    A vector with one coordinate becomes one whose coordinates are all as large.
    """
    steps = math.floor(scale / dimension**0.5 - 0.5) + 0.5
    values = np.zeros((devices, dimension))
    values[:, 0] = steps * dimension**0.5 / scale
    return updates_of(values)


def test_bounds_by_hand() -> None:
    """S = 64 and d = 1024: 64^2 + 1024 / 4 + 64 + 32 / 2 = 4432; Cinf = ceil(2 x 64 ln(1024) / 32) = ceil(27.73) = 28."""
    encoding = made(SecAgg(scale=64), dimension=1000, devices=10)
    assert largest_square(64, 1024) == 4432
    assert encoding.contribution_norm(0.5) == pytest.approx(0.5 * math.sqrt(4432) / 64, rel=1e-15)
    assert encoding.contribution_norm(0.5) == pytest.approx(0.520104, abs=1e-6)
    assert (encoding.largest, encoding.modulus) == (28, 2 * 28 * 10 + 1)
    assert encoding.bits_per_parameter == 10 * 1024 / 1000


def test_the_inflated_norm_is_that_of_the_paper() -> None:
    """Cinfl^2 = C^2 + d / (4 s^2) + sqrt(2 log(1 / alpha)) (C / s + sqrt(d) / (2 s^2)) with s = S / C and alpha = exp(-0.5)."""
    for scale, coordinates, clip in ((100, 256, 0.7), (5000, 1 << 20, 3.0), (1 << 16, 4, 1.0)):
        s, root = scale / clip, math.sqrt(2 * math.log(1 / math.exp(-0.5)))
        square = clip**2 + coordinates / (4 * s**2)
        square += root * (clip / s + math.sqrt(coordinates) / (2 * s**2))
        assert clip * inflation(scale, coordinates) == pytest.approx(math.sqrt(square), rel=1e-12)


def test_the_transform_is_that_of_hadamard_and_signs_are_fair() -> None:
    values = np.random.default_rng(0).normal(size=256)
    transformed = values.copy()
    walsh_hadamard(transformed)
    np.testing.assert_allclose(transformed, hadamard(256) @ values, rtol=1e-12)
    signs = signs_of(3, 0, 1 << 14)
    assert set(signs.tolist()) == {-1.0, 1.0}
    assert stats.binomtest(int((signs > 0).sum()), signs.size).pvalue > 1e-4
    assert abs(float(signs @ signs_of(3, 1, 1 << 14))) < 4.4 * signs.size**0.5  # p = 1e-5
    assert abs(float(signs[1:] @ signs[:-1])) < 4.4 * signs.size**0.5
    assert [padded(dimension) for dimension in (1, 4, 5, 1024, 1025)] == [4, 4, 8, 1024, 2048]


def test_what_is_sent_is_that_of_the_slow_twin() -> None:
    """With matrices and Python's whole numbers, one coordinate after the other."""
    dimension, scale, seed = 50, 300, 9
    encoding = made(SecAgg(scale=scale), dimension, 8, seed)
    updates = updates_of(np.random.default_rng(1).normal(size=(8, dimension)))
    key = stream_key(seed, Stream.ROUNDING)
    rotation = hadamard(64) * signs_of(seed, 2, 64) / 8.0
    total = [0] * 64
    for place in range(8):
        clipped = updates.factors[place] * updates.values[place].astype(np.float64)
        rotated = rotation @ np.pad(scale * clipped, (0, 14))
        rotated = rotated.clip(-encoding.largest, encoding.largest)
        for attempt in range(100):
            address = np.uint64(place + (attempt << 48))
            words = [word for block in range(16) for word in draw(key, address, 2, block)]
            below = np.floor(rotated)
            ups = [uniform(np.uint64(word)) for word in words] < rotated - below
            steps = [int(step) for step in below + ups]
            if sum(step**2 for step in steps) <= largest_square(scale, 64):
                break
        assert steps == message(encoding, updates, place)
        total = [(each + step) % encoding.modulus for each, step in zip(total, steps, strict=True)]
    together = encoding.zero_sum()
    encoding.encode_into(together, updates, 1.0)
    assert together.tolist() == total


def test_sums_are_exact_modulo_m_in_pieces_too() -> None:
    """A modulus of 62 bits, and sums that wrap again and again: int64 never overflows."""
    encoding = made(SecAgg(scale=1 << 20, modulus_bits=62), 64, 8, 0)
    rng, total, exact = np.random.default_rng(0), encoding.zero_sum(), [0] * 64
    for _ in range(50):
        part = rng.integers(0, 1 << 62, 64)
        encoding.add(total, part)
        exact = [(each + int(own)) % (1 << 62) for each, own in zip(exact, part, strict=True)]
        assert total.tolist() == exact


def longest_message(encoding: SecAggEncoding, updates: ClippedUpdates) -> int:
    squares = [
        sum(step**2 for step in message(encoding, updates, place))
        for place in range(updates.device_ids.size)
    ]
    return max(squares)


def test_no_message_is_longer_than_the_bound_where_rounding_makes_most_of_them_long() -> None:
    encoding = made(SecAgg(scale=200), 256, 1, 4)
    assert longest_message(encoding, halves(300, 200, 256)) <= largest_square(200, 256)


def test_rounding_once_only_is_caught_by_that_check(monkeypatch) -> None:
    """About one device in six would be beyond the bound."""
    monkeypatch.setattr(secagg, "largest_square", lambda scale, coordinates: 1 << 60)
    encoding = made(SecAgg(scale=200), 256, 1, 4)
    assert longest_message(encoding, halves(300, 200, 256)) > largest_square(200, 256)


def test_rounding_is_without_bias() -> None:
    """The mean of 4,000 roundings of the same vector, coordinate by coordinate: chi-square, false alarm 1e-4 for a fixed seed.

    Power: rounding to nearest is off by up to half a step, a hundred standard errors.
    """
    devices, dimension = 4000, 64
    encoding = made(SecAgg(scale=1000), dimension, devices, 0)
    value = np.random.default_rng(3).normal(size=dimension)
    updates = updates_of(np.tile(0.5 * value / np.linalg.norm(value), (devices, 1)))
    total = encoding.zero_sum()
    encoding.encode_into(total, updates, 1.0)
    rotated = hadamard(64) * signs_of(0, 2, 64) / 8.0 @ (1000.0 * updates.values[0])
    share = rotated - np.floor(rotated)
    sums = secagg._centred(total, encoding.modulus)
    errors = (sums - devices * rotated) / np.sqrt(devices * share * (1 - share))
    square = float((errors**2).sum())
    assert 2 * min(stats.chi2(64).sf(square), stats.chi2(64).cdf(square)) > 1e-4
    assert np.abs(devices * (np.round(rotated) - rotated)).max() > 1000


def check_decoded_sum(dimension: int, devices: int, scale: int, is_sparse: bool = True) -> None:
    """A decoded sum is within devices x sqrt(d) / scale clip norms of the exact one."""
    encoding = made(SecAgg(scale=scale), dimension, devices, 5)
    rng = np.random.default_rng(dimension)
    values = np.zeros((devices, dimension), np.float32)
    if is_sparse:
        values[:, 1] = 3.0
    else:
        values[:] = rng.normal(size=(devices, dimension)) + 0.5
    updates = updates_of(values)
    total = encoding.zero_sum()
    encoding.encode_into(total, updates, 1.0)
    exact = updates.factors @ updates.values.astype(np.float64)
    error = np.linalg.norm(encoding.decode(total, 1.0, 2) - exact)
    assert error <= devices * padded(dimension) ** 0.5 / scale + 2.0**-22 * devices
    assert np.linalg.norm(exact) > 1.0


@pytest.mark.parametrize("is_sparse", [True, False])
@pytest.mark.parametrize("dimension", [3, 1000, 4096, 1 << 20])
def test_a_decoded_sum_is_within_its_error(dimension: int, is_sparse: bool) -> None:
    check_decoded_sum(dimension, 6, 1 << 16, is_sparse)


def test_a_missing_rotation_is_caught_by_that_check(monkeypatch) -> None:
    """One large coordinate is then clipped to Cinf."""
    monkeypatch.setattr(secagg, "_rotated", secagg._rotated.py_func)
    check_decoded_sum(4096, 2, 1 << 16)
    monkeypatch.setattr(secagg, "walsh_hadamard", lambda values: values.__imul__(64.0))
    with pytest.raises(AssertionError):
        check_decoded_sum(4096, 2, 1 << 16)


def check_room_for_the_largest_sum() -> None:
    """Every device sends Cinf in some coordinates; such an update is what decodes to that."""
    devices, dimension, scale = 7, 1024, 1 << 14
    encoding = made(SecAgg(scale=scale), dimension, devices, 5)
    extreme = np.zeros(dimension, np.int64)
    extreme[:2], extreme[2:4] = encoding.largest, encoding.modulus - encoding.largest
    value = encoding.decode(extreme, 1.0, 2)
    assert np.linalg.norm(value) == pytest.approx(2.0 * encoding.largest / scale, rel=1e-6)
    updates = updates_of(np.tile(value, (devices, 1)))
    assert (updates.factors == 1.0).all()
    total = encoding.zero_sum()
    encoding.encode_into(total, updates, 1.0)
    error = np.linalg.norm(encoding.decode(total, 1.0, 2) - devices * value)
    assert error <= devices * dimension**0.5 / scale


def test_the_modulus_has_room_for_the_largest_sum() -> None:
    check_room_for_the_largest_sum()


def test_a_modulus_that_is_too_small_is_caught_by_that_check(monkeypatch) -> None:
    enough = secagg._modulus
    monkeypatch.setattr(
        secagg, "_modulus", lambda table, least, devices: enough(table, least, devices) - 200
    )
    with pytest.raises(AssertionError):
        check_room_for_the_largest_sum()


def check_mean(small, aggregator_class: type[ModelAggregator]) -> None:
    """A committed round moves the model by the mean of the clipped updates; noise is 0.01 x 10 / 200 / 10 a coordinate."""
    scenario = small(
        "training.enabled=true",
        "training.cohort_sample=10",
        "training.server={kind='sgd', momentum=0.0}",
        "privacy.noise_multiplier=0.01",
        "privacy.encoding={kind='secagg', scale=100000}",
    )
    aggregator = aggregator_class(scenario)
    aggregator.start(np.zeros(500, np.float32))
    updates = updates_of(np.random.default_rng(0).normal(size=(10, 500)) + 1.0, round_index=0)
    encoding = encoding_of(scenario.privacy.encoding, scenario.sum_setting(500))
    for part in (slice(0, 3), slice(3, 10)):
        total = encoding.zero_sum()
        encoding.encode_into(
            total,
            ClippedUpdates(
                0, updates.device_ids[part], updates.values[part], updates.factors[part]
            ),
            1.0,
        )
        aggregator.add(total)
    moved = aggregator.commit(TrainReport(round_index=0, devices=10, accepted=200))[1]
    mean = updates.factors @ updates.values / 10
    assert np.linalg.norm(moved - mean) < 0.03 * np.linalg.norm(mean)


def test_a_round_is_the_mean_of_the_clipped_updates(small) -> None:
    check_mean(small, ModelAggregator)


def test_a_wrong_denominator_is_caught_by_that_check(small) -> None:
    class OneTooMany(ModelAggregator):
        def commit(self, report):
            return super().commit(replace(report, devices=report.devices + 1))

    with pytest.raises(AssertionError):
        check_mean(small, OneTooMany)


def test_noise_is_measured_by_the_inflated_norm(small) -> None:
    """Rounds without any device release noise alone; the draws are the same for both encodings."""
    released = []
    for encoding in ("{kind='fixed_point'}", "{kind='secagg', scale=20}"):
        aggregator = ModelAggregator(small("training.enabled=true", f"privacy.encoding={encoding}"))
        aggregator.start(np.zeros(500, np.float32))
        released.append(aggregator.release().numpy())
    assert inflation(20, 512) > 1.15
    np.testing.assert_allclose(released[1], inflation(20, 512) * released[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("table", "dimension", "devices", "parts"),
    [
        (
            SecAgg(scale=10),
            1_000_000,
            100,
            ["privacy.encoding.scale=10", "1,000,000 parameters", "a scale of at least 297"],
        ),
        (
            SecAgg(scale=1000, modulus_bits=8),
            1000,
            100,
            ["privacy.encoding.modulus_bits=8", "scale=1000 need 17 bits", "wrap"],
        ),
        (
            SecAgg(scale=1 << 30),
            4,
            1 << 33,
            ["privacy.encoding.scale=1073741824", "the most is 2^62", "smaller scale"],
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused_in_one_line(
    table: SecAgg, dimension: int, devices: int, parts: list[str]
) -> None:
    with pytest.raises(ScenarioError) as caught:
        made(table, dimension, devices)
    assert "\n" not in str(caught.value)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_the_least_scale_that_is_named_is_accepted() -> None:
    made(SecAgg(scale=297), 1_000_000, 100, 0)
    with pytest.raises(ScenarioError, match="at least 297"):
        made(SecAgg(scale=296), 1_000_000, 100, 0)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("privacy.encoding.kind=secag", ["privacy.encoding.kind", "did you mean 'secagg'"]),
        ("privacy.encoding.scale=7", ["privacy.encoding.scale", "unknown key"]),
        ("privacy.encoding={kind='secagg',scale=0}", ["privacy.encoding.scale = 0", "equal to 1"]),
        ("privacy.encoding={kind='secagg',modulus_bits=63}", ["modulus_bits = 63", "equal to 62"]),
        (
            "latency={setup_seconds=1000.0, secagg_seconds=900.0}",
            ["secagg_seconds=900", "no device can report in time"],
        ),
    ],
)
def test_bad_keys_are_refused_in_one_line(small, override: str, parts: list[str]) -> None:
    with pytest.raises(ScenarioError) as caught:
        small(override)
    assert "\n" not in str(caught.value)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_an_update_that_was_not_clipped_is_refused() -> None:
    encoding = made(SecAgg(), 100, 1, 0)
    values = np.full((1, 100), 5.0, np.float32)
    updates = ClippedUpdates(0, np.zeros(1, np.uint64), values, np.ones(1))
    with pytest.raises(ValueError, match="longer than clip_norm=1 despite its factor"):
        encoding.encode_into(encoding.zero_sum(), updates, 1.0)


TRAINED = (
    "training.enabled=true",
    "training.cohort_sample=24",
    "training.evaluate_every=4",
    "privacy.noise_multiplier=0.05",
    "rounds.count=8",
)


def test_trainers_in_any_number_give_the_same_bits(small) -> None:
    """Six groups by one trainer; or dealt to three, whose sums are added."""
    scenario = small(*TRAINED, "privacy.encoding.kind=secagg")
    groups = np.split(np.arange(24, dtype=np.uint64), 6)
    start = LocalTrainer(scenario).initial_parameters()
    models = []
    for shares in ([groups], [groups[4:], groups[:1], groups[1:4]]):
        aggregator = ModelAggregator(scenario)
        aggregator.start(start)
        *sums, last = [
            LocalTrainer(scenario).train(TrainOrder(0, share), start)[1] for share in shares
        ]
        for total in sums:
            aggregator.add(total)
        report = TrainReport(round_index=0, devices=24)
        models.append(aggregator.commit(report, last)[1].copy())
    assert (models[0] == models[1]).all()
    assert not (models[0] == start).all()


@pytest.fixture(scope="module")
def trained(small, tmp_path_factory):
    """A run with each encoding, on one trace."""
    folder = tmp_path_factory.mktemp("encodings")
    scenario = small(*TRAINED)
    trace = simulate(scenario, HERE, folder / "t")
    secure = scenario.with_overrides("privacy.encoding.kind=secagg")
    runs = {
        name: train(trace, value, HERE, folder / name)
        for name, value in (("fixed", scenario), ("secagg", secure))
    }
    return trace, runs


@pytest.mark.slow
def test_a_model_trains_to_nearly_the_loss_of_fixed_point(trained) -> None:
    _, runs = trained
    losses = {name: run.metrics["evaluation_loss"] for name, run in runs.items()}
    first, last = losses["fixed"][3], losses["fixed"][-1]
    assert last < first - 0.02
    assert abs(losses["secagg"][-1] - last) < 0.05 * (first - last)
    assert losses["secagg"][-1] != last


@pytest.mark.slow
def test_a_trained_run_records_its_encoding(trained) -> None:
    _, runs = trained
    record = runs["secagg"].document["encoding"]
    parameters = runs["secagg"].parameters().size
    encoding = made(SecAgg(), parameters, 200, 7)
    assert record == {
        "kind": "secagg",
        "bits_per_parameter": encoding.bits_per_parameter,
        "inflation": inflation(1 << 16, padded(parameters)),
    }
    assert 15 < record["bits_per_parameter"] < 60
    (row,) = (row for row in runs["secagg"].rows() if row[0] == "encoding")
    assert row[1].startswith("secagg, ")
    assert "times the clip norm" in row[1]
    assert runs["fixed"].document["encoding"]["kind"] == "fixed_point"
    assert ["encoding", "fixed_point, 64 bits per parameter"] in runs["fixed"].rows()


def test_time_for_secure_aggregation_makes_rounds_longer(small, tmp_path) -> None:
    seconds = []
    for name, extra in (("without", ()), ("with", ("latency.secagg_seconds=60.0",))):
        rounds = simulate(small("rounds.count=3", *extra), HERE, tmp_path / name).rounds
        seconds.append(float(np.mean(rounds["closed"] - rounds["started"])))
    assert seconds[1] - seconds[0] > 40.0
    assert small().digest == small("latency.slowdown=1.0").digest
    assert "secagg_seconds" not in small().to_tables()["latency"]


def test_the_default_is_fixed_point(small) -> None:
    assert small().privacy.encoding == FixedPoint()
    chosen = small("privacy.encoding={kind='secagg', scale=99}")
    assert type(chosen).from_tables(chosen.to_tables()) == chosen
    assert chosen.digest != small().digest
    assert chosen.with_overrides("privacy.encoding.kind=fixed_point").digest == small().digest
    assert largest_coordinate(99, 4) == 99
