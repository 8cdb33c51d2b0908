"""Sums that a store opens: a slow twin in Python's integers, what the server gets, the store's rules, and the law of the noise.

The twin has every x and z as an integer without a modulus, and Y in rationals. Statistical tests have fixed seeds and a stated false-alarm rate.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.linalg import hadamard

from fedray.base.discrete_noise import NoiseScale, add_noise
from fedray.base.rng import Stream, stream_key
from fedray.clients.clipping import clip_whole
from fedray.encoding.device_noise import DeviceNoiseEncoding
from fedray.encoding.encoding import ClippedUpdates
from fedray.encoding.rotation import signs_of
from fedray.scenario import Scenario
from fedray.scenario.clipping import Clip
from fedray.server.learning.aggregator import ModelAggregator
from fedray.server.learning.draws import OpenedSums
from fedray.server.learning.noise import noise_stream
from fedray.server.learning.store import SumStore, fewest_devices

ALARM = 1e-4
MECHANISMS = {
    "identity": "{kind='identity'}",
    "toeplitz": "{kind='toeplitz', coefficients=[1.0, 0.62, -0.17]}",
    "band-fhu": "{kind='band-fhu', bands=4}",
    "blt": "{kind='blt', theta=[0.9, 0.4], omega=[0.2, 0.3]}",
    "bisr": "{kind='bisr', bands=3}",
}
KEPT = ", coefficients=5"
"""Coefficients of mechanisms whose C has no last one."""


def of_devices(small, mechanism: str, *overrides: str, dimension: int = 7, **keys: Any) -> Scenario:
    own = {"parameters": dimension, "scale": 64, **keys}
    text = "".join(f", {key}={value}" for key, value in own.items())
    cut = KEPT if mechanism in ("blt", "bisr") else ""
    return small(
        f"privacy.mechanism={MECHANISMS[mechanism]}",
        f"privacy.trust={{kind='devices'{text}{cut}}}",
        "privacy.noise_multiplier=0.5",
        "training.enabled=true",
        "rounds.report_goal=6",
        "training.cohort_sample=6",
        *overrides,
    )


class Twin:
    """Sums of a run in Python's integers and fractions, coordinate by coordinate."""

    def __init__(self, encoding: DeviceNoiseEncoding, seed: int) -> None:
        self.encoding, self.seed = encoding, seed
        self.X: list[list[int]] = []
        self.Z: list[list[int]] = []
        self.Y: list[list[Fraction]] = []

    def noise(self, device: int, round_index: int) -> list[int]:
        z = np.zeros(self.encoding.zero_opened().size, np.int64)
        add_noise(
            z,
            stream_key(self.seed, Stream.DISCRETE_NOISE),
            device,
            round_index,
            *self.encoding.noise,
        )
        return z.tolist()

    def admit(self, messages: dict[int, list[int]], round_index: int) -> None:
        """Takes the messages of a round, [P] or [2 P] residues of each device."""
        size = self.encoding.zero_opened().size
        X, Z = [0] * size, [0] * size
        for device, message in messages.items():
            z = self.noise(device, round_index)
            if self.encoding.parts == 2:
                assert [each % self.encoding.modulus for each in z] == message[size:]
            for place in range(size):
                x = message[place] - (z[place] if self.encoding.parts == 1 else 0)
                x %= self.encoding.modulus
                x -= self.encoding.modulus * (x > self.encoding.modulus // 2)
                assert abs(x) <= self.encoding.largest
                X[place] += x
                Z[place] += z[place]
        self.X.append(X)
        self.Z.append(Z)
        c, rounds = self.encoding.coefficients, len(self.X)
        W = [
            sum(c[age] * self.X[-1 - age][place] for age in range(min(len(c), rounds))) + Z[place]
            for place in range(size)
        ]
        self.W = [each % self.encoding.modulus for each in W]
        self.Y.append(
            [
                (
                    W[place]
                    - sum(c[age] * self.Y[-age][place] for age in range(1, min(len(c), rounds)))
                )
                / Fraction(c[0])
                for place in range(size)
            ]
        )

    def unrotated(self, round_index: int, dimension: int) -> np.ndarray:
        """Y [D] in steps."""
        size = self.encoding.zero_opened().size
        values = np.array([float(each) for each in self.Y[round_index]])
        signs = signs_of(self.seed, 0, size)
        return (hadamard(size) @ values * signs / math.sqrt(size))[:dimension]


def messages_of(
    encoding: DeviceNoiseEncoding, devices: list[int], round_index: int, dimension: int
) -> dict[int, np.ndarray]:
    """Messages of devices: the first has a NaN, the second no examples, and the others an update."""
    found = {}
    for device in devices:
        total = encoding.zero_sum()
        values = (
            np.random.default_rng([device, round_index])
            .normal(size=(1, dimension))
            .astype(np.float32)
        )
        ids = np.array([device], np.uint64)
        if device == devices[0]:
            values[0, 0] = np.nan
        if device == devices[1]:
            encoding.encode_zeros_into(total, ids, round_index)
        else:
            factors = clip_whole(values, Clip(1.0)).factors
            encoding.encode_into(total, ClippedUpdates(round_index, ids, values, factors), 1.0)
        found[device] = total
    return found


def sums_of(
    encoding: DeviceNoiseEncoding, messages: dict[int, np.ndarray], trainers: int, order: int
):
    """Messages as sums of trainers, each with its devices, in another order for each number."""
    ids = list(messages)[::order]
    for trainer in range(trainers):
        own = ids[trainer::trainers]
        total = encoding.zero_sum()
        for device in own:
            encoding.add(total, messages[device])
        yield total, np.array(own, np.uint64)


COHORTS = [
    [1, 2, 3, 4, 5, 6],
    [2, 3, 9],
    [0, 1, 7, 8, 10],
    [1, 2, 3, 4, 5, 6],
    [4, 5],
    [1, 9, 10, 11],
    [3, 4, 5],
]


def opened_rounds(scenario: Scenario, trainers: int = 1, order: int = 1):
    """Runs the rounds, and yields (round, twin, W, Y of the aggregator) of each."""
    store, aggregator = SumStore(scenario, fewest=2), ModelAggregator(scenario)
    store.start(7)
    aggregator.start(np.zeros(7, np.float32))
    encoding = store._encoding
    twin = Twin(encoding, scenario.training_seed)
    for index, cohort in enumerate(COHORTS):
        messages = messages_of(encoding, cohort, index, 7)
        store.close(index, np.array(cohort, np.uint64))
        for total, ids in sums_of(encoding, messages, trainers, order):
            store.add(total, ids)
        devices, W = store.open()
        assert devices == len(cohort)
        twin.admit({device: each.tolist() for device, each in messages.items()}, index)
        aggregator.add(W)
        aggregator.release()
        yield index, twin, W, aggregator._noise._out.numpy().copy()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_sums_and_models_inputs_are_those_of_the_twin_in_any_order(small, mechanism: str) -> None:
    scenario = of_devices(small, mechanism)
    runs = zip(opened_rounds(scenario), opened_rounds(scenario, trainers=2, order=-1), strict=True)
    twin = None
    for (index, twin, W, Y), (_, _, other_W, other_Y) in runs:
        assert W.tolist() == twin.W
        assert (other_W == W).all()
        assert (other_Y == Y).all()
        np.testing.assert_allclose(Y, twin.unrotated(index, 7), rtol=1e-11, atol=1e-9)
    assert twin is not None
    # Exactly Y = X + C^-1 Z, with the inverse in rationals.
    c, rounds = twin.encoding.coefficients, len(COHORTS)
    assert len(c) == {"identity": 1, "toeplitz": 3, "band-fhu": 4, "blt": 5, "bisr": 5}[mechanism]
    inverse = [Fraction(1, c[0])]
    for age in range(1, rounds):
        lags = range(1, min(len(c), age + 1))
        inverse.append(-sum((c[lag] * inverse[age - lag] for lag in lags), Fraction(0)) / c[0])
    for t in range(rounds):
        for place in range(8):
            noise = sum(inverse[t - j] * twin.Z[j][place] for j in range(t + 1))
            assert twin.Y[t][place] == twin.X[t][place] + noise


def test_one_rotation_serves_all_rounds_and_is_undone(small) -> None:
    """With little noise and fine steps Y is the sum of updates, in every round."""
    scenario = of_devices(small, "toeplitz", "privacy.noise_multiplier=0.01", scale=1 << 16)
    for index, twin, _, Y in opened_rounds(scenario):
        exact = np.zeros(7)
        for device in COHORTS[index][2:]:
            values = np.random.default_rng([device, index]).normal(size=7)
            exact += values / max(1.0, float(np.linalg.norm(values)))
        assert np.abs(Y / (1 << 16) - exact).max() < 0.1
        assert twin.encoding.parts == 2


def closed(
    small, mechanism: str = "toeplitz"
) -> tuple[SumStore, np.ndarray, dict[int, np.ndarray]]:
    """A store whose first round is closed for six devices, and their messages."""
    store = SumStore(of_devices(small, mechanism))
    store.start(7)
    ids = np.array([5, 3, 1, 2, 9, 7], np.uint64)
    store.close(0, ids)
    return store, ids, messages_of(store._encoding, ids.tolist(), 0, 7)


def filled(store: SumStore, messages: dict[int, np.ndarray]) -> np.ndarray:
    for total, ids in sums_of(store._encoding, messages, 2, 1):
        store.add(total, ids)
    return store.open()[1]


def test_a_second_opening_repeats_the_answer_for_the_same_set_and_is_refused_for_another(
    small,
) -> None:
    store, ids, messages = closed(small)
    W = filled(store, messages)
    store.close(0, ids[::-1])
    devices, again = store.open()
    assert (devices, again.tolist()) == (6, W.tolist())
    # Also if other sums come with it.
    store.close(0, ids)
    store.add(messages[5], ids[:1])
    assert store.open()[1].tolist() == W.tolist()
    assert store.next_round == 1
    with pytest.raises(ValueError, match="was opened for another set of devices"):
        store.close(0, np.append(ids[:-1], np.uint64(8)))
    with pytest.raises(ValueError, match="round_index=2 but round 1 is next"):
        store.close(2, ids)


def test_an_abandoned_round_leaves_nothing_and_opens_nothing(small) -> None:
    store, ids, messages = closed(small)
    before = store.state()
    store.add(messages[5], ids[:1])
    with pytest.raises(ValueError, match="lacks the messages of 5 devices of its closed set"):
        store.open()
    other = np.array([20, 21, 22, 23, 24, 25], np.uint64)
    store.close(0, other)
    after = store.state()
    assert {name: each.tolist() for name, each in after.items()} == {
        name: each.tolist() for name, each in before.items()
    }
    own = messages_of(store._encoding, other.tolist(), 0, 7)
    fresh = SumStore(of_devices(small, "toeplitz"))
    fresh.start(7)
    fresh.close(0, other)
    assert filled(store, own).tolist() == filled(fresh, own).tolist()


def test_only_the_closed_set_is_admitted_and_each_device_once(small) -> None:
    store, ids, messages = closed(small)
    store.add(messages[5], ids[:1])
    for again in (ids[:1], np.array([4], np.uint64), np.array([2**40], np.uint64)):
        with pytest.raises(ValueError, match="not in the closed set, or its message was admitted"):
            store.add(messages[5], again)
    with pytest.raises(ValueError, match="a device twice"):
        store.close(0, np.array([1, 2, 3, 4, 5, 5], np.uint64))


def test_a_set_has_the_fewest_devices_of_the_rules_at_least(small) -> None:
    store, ids, _ = closed(small)
    with pytest.raises(ValueError, match="has 5 devices, fewer than the 6 whose noise"):
        store.close(0, ids[:5])
    sample = of_devices(small, "toeplitz", "training.cohort_sample=4")
    assert fewest_devices(sample) == 4


def test_a_store_continues_from_its_own_state_and_repeats_its_last_answer(small) -> None:
    """Beside a store that was never lost."""
    scenario = of_devices(small, "blt")
    stores = [SumStore(scenario, fewest=2) for _ in range(2)]
    for each in stores:
        each.start(7)
    for index, cohort in enumerate(COHORTS):
        messages = messages_of(stores[0]._encoding, cohort, index, 7)
        ids = np.array(cohort, np.uint64)
        opened = []
        for each in stores:
            each.close(index, ids)
            opened.append(filled(each, messages).tolist())
        assert opened[0] == opened[1]
        lost = SumStore(scenario, fewest=2)
        lost.load(stores[1].state())
        lost.close(index, ids)
        assert lost.open()[1].tolist() == opened[0]
        with pytest.raises(ValueError, match="another set"):
            lost.close(index, ids[1:])
        stores[1] = lost


def law_of(scale: NoiseScale) -> float:
    """Exact variance of the discrete Gaussian, from its probabilities."""
    variance = float(scale.variance)
    values = np.arange(-math.ceil(40 * variance**0.5) - 10, math.ceil(40 * variance**0.5) + 11)
    weights = np.exp(-(values**2) / (2 * variance))
    return float((weights * values**2).sum() / weights.sum())


SEEDS, ROUNDS, DIMENSION = 2000, 6, 8
PREFIX = np.tril(np.ones((ROUNDS, ROUNDS)))


def noises(scenario: Scenario, cohorts: tuple[int, ...]) -> tuple[np.ndarray, DeviceNoiseEncoding]:
    """Y of devices that send zero, in steps, [seeds, rounds, D]: Y - X, since X = 0."""
    found = np.empty((SEEDS, ROUNDS, DIMENSION))
    strategy = scenario.privacy.needed_strategy()
    encoding = None
    for seed in range(SEEDS):
        store = SumStore(scenario.model_copy(update={"seed": seed}), fewest=1)
        store.start(DIMENSION)
        encoding = store._encoding
        rows = OpenedSums()
        decoder = noise_stream(strategy, 0, DIMENSION, torch.device("cpu"), ROUNDS, draws=rows)
        for index, size in enumerate(cohorts):
            ids = np.arange(size, dtype=np.uint64)
            total = encoding.zero_sum()
            encoding.encode_zeros_into(total, ids, index)
            store.close(index, ids)
            store.add(total, ids)
            rows.put(encoding.steps(store.open()[1]))
            found[seed, index] = decoder.next().numpy()
    assert encoding is not None
    return found, encoding


def farthest(values: np.ndarray, expected: np.ndarray) -> float:
    """Largest distance of an entry of the second moments [n, n] of values [N, n], in standard errors."""
    found = values.T @ values / len(values)
    variances = np.diag(expected)
    errors = np.sqrt((np.outer(variances, variances) + expected**2) / len(values))
    return float((np.abs(found - expected) / errors).max())


@pytest.mark.slow
@pytest.mark.parametrize("cohorts", [(3,) * ROUNDS, (1, 4, 2, 5, 1, 3)], ids=["equal", "unequal"])
@pytest.mark.parametrize("mechanism", ["identity", "toeplitz", "band-fhu", "blt"])
def test_the_noise_of_rounds_and_of_prefix_sums_has_the_covariance_of_the_mechanism(
    small, mechanism: str, cohorts: tuple[int, ...]
) -> None:
    """A false alarm has a probability of at most 1e-4 for all entries together; 10 % more or less variance, and another matrix, are noticed."""
    scenario = of_devices(
        small, mechanism, "privacy.noise_multiplier=0.05", "rounds.count=6", dimension=DIMENSION
    )
    found, encoding = noises(scenario, cohorts)
    c = np.zeros(ROUNDS)
    c[: len(encoding.coefficients)] = encoding.coefficients[:ROUNDS]
    C = sum(c[age] * np.eye(ROUNDS, k=-age) for age in range(ROUNDS))
    inverse = np.linalg.inv(C)
    expected = law_of(encoding.noise) * inverse @ np.diag(cohorts) @ inverse.T
    values = found.transpose(0, 2, 1).reshape(-1, ROUNDS)
    # Upper triangles of both matrices.
    limit = stats.norm.isf(ALARM / 2 / (ROUNDS * (ROUNDS + 1)))
    assert farthest(values, expected) < limit
    assert farthest(values @ PREFIX.T, PREFIX @ expected @ PREFIX.T) < limit
    for factor in (0.9, 1.1):
        assert farthest(values, factor * expected) > limit
    if mechanism != "identity":
        alone = law_of(encoding.noise) * np.diag(cohorts) / c[0] ** 2
        assert farthest(values @ PREFIX.T, PREFIX @ alone @ PREFIX.T) > limit


def test_the_modulus_has_room_for_all_coefficients_and_the_noise_of_a_whole_round(small) -> None:
    scenario = of_devices(small, "toeplitz", dimension=7)
    encoding = SumStore(scenario)
    encoding.start(7)
    made = encoding._encoding
    c, goal = made.coefficients, 6
    square = made.largest_square
    # By hand: s = c_0 z D, shared by the goal.
    assert made.variance == Fraction(c[0] * 0.5) ** 2 * square / goal
    room = goal * made.largest * sum(map(abs, c)) + math.ceil(9 * c[0] * 0.5 * math.sqrt(square))
    assert made.modulus == 2 * room + 1
    assert made.bits_per_parameter == 2 * (made.modulus - 1).bit_length() * 8 / 7
    assert made.wrap_probability(12) == pytest.approx(2 * 12 * 8 * math.exp(-40.5))
    local = small(
        "privacy.mechanism={kind='identity'}",
        "privacy.trust={kind='local', parameters=7, scale=64}",
        "privacy.noise_multiplier=0.5",
        "rounds.report_goal=6",
    )
    setting = local.sum_setting(7)
    alone = DeviceNoiseEncoding(local.privacy.trust, setting)  # pyright: ignore[reportArgumentType]
    assert alone.variance == Fraction(0.5) ** 2 * square
    room = goal * alone.largest + math.ceil(9 * 0.5 * math.sqrt(6 * square))
    assert alone.modulus == 2 * room + 1
