"""Strategies with whole coefficients, and the privacy of sums with discrete noise from devices: exactly, against the worst adversary."""

import itertools
import math
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from fedray.base.arrays import Float64Array
from fedray.base.errors import FedrayError
from fedray.encoding.norms import device_variance, largest_square, padded
from fedray.mechanisms.accounting.calibration import least_noise_multiplier
from fedray.mechanisms.accounting.events import DiscreteGaussianSum, Gaussian
from fedray.mechanisms.accounting.gdp import gaussian_epsilon
from fedray.mechanisms.accounting.zcdp import rho_of, zcdp_epsilon
from fedray.mechanisms.integer_toeplitz import IntegerToeplitz, integer_of
from fedray.mechanisms.participation import MinSep, most_of_device
from fedray.mechanisms.registry import BISR, BLT, BandFHU, Identity, Toeplitz, Tree
from fedray.mechanisms.toeplitz import ToeplitzStrategy

STEPS = 6_000
"""Steps of the grid of losses in the stated epsilon; n rounds round losses up by n steps at most."""
TOP = 12.0
"""Loss beyond epsilon from which on all probability counts toward delta."""
BELOW = 1.1
"""End of the grid below, in stated epsilons."""


class Setting(NamedTuple):
    """Sums of whole multiples of updates over one coordinate."""

    coefficients: tuple[int, ...]
    participation: MinSep
    devices: int
    variance: float
    longest: int
    """D, the largest update."""
    delta: float

    @property
    def event(self) -> DiscreteGaussianSum:
        c, p = self.coefficients, self.participation
        strategy = IntegerToeplitz(kind="integer-toeplitz", coefficients=c)
        return DiscreteGaussianSum(
            sensitivity=c[0] * self.longest * strategy.participation_sensitivity(p).value,
            device_variance=self.variance,
            devices=self.devices,
            dimension=1,
            rounds=min(p.rounds, len(c) * p.max_participations),
        )


def noise(variance: float, devices: int) -> Float64Array:
    """Probabilities of the sum of discrete Gaussians."""
    reach = math.ceil(math.sqrt(80.0 * variance)) + 2
    integers = np.arange(-reach, reach + 1)
    one = np.exp(-(integers**2) / (2 * variance))
    # The rest of the tail, below 1e-17, is in the mass that counts toward delta.
    one /= one.sum() * (1.0 + 1e-15)
    total = np.ones(1)
    for _ in range(devices):
        total = np.convolve(total, one).astype(np.float64)
    return total


def worst_deltas(setting: Setting, epsilon: float, is_shifted: bool) -> tuple[Float64Array, float]:
    """Upper bounds on the delta of the worst adaptive adversary at each epsilon -x of a grid, and the grid's step.

    A device chooses in each round, after all earlier outputs, whether it takes part, as (b, k) permits, and its update. The adversary
    has to tell outputs with its updates from outputs without them. V(x) is the largest delta from some round on, if the loss so far is x
    above epsilon: at the end max(0, 1 - e^-x), and before it the largest mean, over the choices, of V after the round.
    """
    c, participation = setting.coefficients, setting.participation
    b, longest = participation.min_sep, setting.longest
    step = epsilon / STEPS
    low = -math.ceil(BELOW * STEPS)
    size = math.ceil(TOP / step) - low + 1
    end = np.maximum(0.0, -np.expm1(-step * (low + np.arange(size))))
    law = noise(setting.variance, setting.devices)
    logs = np.log(law)

    @cache
    def losses(shift: int) -> tuple[list[tuple[int, float]], float]:
        """Losses of one output in steps, rounded up, with their probabilities; and the mass beside them."""
        shift = abs(shift)  # the noise is symmetric
        # With the shift, w - shift is noise, so that its probability is `law` there.
        shifted, plain = logs[: logs.size - shift], logs[shift:]
        loss, p = shifted - plain, law[: logs.size - shift]
        if not is_shifted:
            loss, p = -loss, law[shift:]
        places = np.ceil(loss / step - 1e-9).astype(int)
        kept, which = np.unique(places, return_inverse=True)
        masses = np.bincount(which, p)
        return list(zip(kept.tolist(), masses.tolist(), strict=True)), max(0.0, 1.0 - p.sum())

    def mean_after(after: Float64Array, shift: int) -> Float64Array:
        if shift == 0:
            return after
        pairs, beside = losses(shift)
        found = np.full(size, beside)
        for moved, mass in pairs:
            if moved >= 0:
                moved = min(moved, size)
                found[: size - moved] += mass * after[moved:]
                found[size - moved :] += mass
            else:
                moved = min(-moved, size)
                found[moved:] += mass * after[: size - moved]
                found[:moved] += mass * after[0]
        return np.minimum(found, 1.0)

    @cache
    def value(t: int, last: tuple[int, ...], since: int, left: int) -> Float64Array:
        """V from round t on, after the updates that are read again, rounds since the last participation, and participations left."""
        if t == participation.rounds:
            return end
        choices = [(0, since, left)]
        if left and since >= b:
            # By symmetry of the noise, the first update may be positive.
            signed = (
                range(-longest, longest + 1)
                if left < participation.max_participations
                else range(longest + 1)
            )
            choices += [(u, 0, left - 1) for u in signed if u]
        best = np.zeros(size)
        for u, since_, left_ in choices:
            read = (u, *last)
            shift = sum(each * update for each, update in zip(c, read, strict=True))
            if not any(read) and left_ == 0:
                after = end
            else:
                after = value(t + 1, read[: len(c) - 1], min(since_ + 1, b), left_)
            np.maximum(best, mean_after(after, shift), out=best)
        return best

    found = value(0, (0,) * (len(c) - 1), b, participation.max_participations)
    value.cache_clear()
    return found, step


def exact(setting: Setting) -> tuple[float, float, float]:
    """Stated epsilon, the worst delta at it, and the least epsilon at which the worst delta is at most the stated one."""
    stated = zcdp_epsilon(setting.event, setting.delta)
    at, least = 0.0, 0.0
    for is_shifted in (True, False):
        deltas, step = worst_deltas(setting, stated, is_shifted)
        origin = math.ceil(BELOW * STEPS)
        at = max(at, float(deltas[origin - STEPS]))
        # The largest x with delta(-x) within the stated one.
        least = max(
            least, step * (origin - int(np.searchsorted(deltas, setting.delta, "right")) + 1)
        )
    return stated, at, least


def settings() -> Iterator[Setting]:
    """Settings in which several sums read an update, tau counts, and a device comes back within the bands."""
    kinds = (
        (1,),
        (1, 1),
        (2, 1),
        (3, 2),
        (1, 1, 1),
        (3, 2, 1),
        (2, 1, 1, 1),
        (4, 3, 2, 1),
        (2, -1),
    )
    rounds = (3, 5, 8)
    variances = (0.25, 0.5, 1.0, 4.0, 9.0)
    draw = np.random.default_rng(65)
    for number in range(50):
        c = kinds[number % len(kinds)]
        n, b = int(draw.choice(rounds)), int(draw.integers(1, 5))
        k = int(draw.integers(1, min(4, most_of_device(n, b)) + 1))
        devices = 1 + number % 5
        # Coarse noise of several devices, where sums of discrete Gaussians are far from one.
        variance = variances[(number // 3) % len(variances)]
        longest, delta = (2, 1e-5) if len(c) <= 2 and number % 2 else (1, 1e-3)
        yield Setting(c, MinSep(n, b, k), devices, variance, longest, delta)


SETTINGS = list(settings())


def check(setting: Setting) -> None:
    stated, at, least = exact(setting)
    assert at <= setting.delta, f"{setting}: delta {at} at epsilon {stated}"
    # A bound on nothing would pass too: the worst adversary does come near.
    assert least >= stated / 40, f"{setting}: {least} of {stated}"


@pytest.mark.parametrize("number", [1, 4, 5, 17, 18, 38, 46])
def test_no_adversary_exceeds_the_stated_epsilon(number: int) -> None:
    check(SETTINGS[number])


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_no_adversary_exceeds_the_stated_epsilon_in_any_setting(number: int) -> None:
    check(SETTINGS[number])


def test_settings_have_what_they_are_for() -> None:
    assert {len(each.coefficients) for each in SETTINGS} == {1, 2, 3, 4}
    assert {each.devices for each in SETTINGS} == {1, 2, 3, 4, 5}
    assert max(each.participation.rounds for each in SETTINGS) == 8
    # tau is a good part of epsilon in some, and a device comes back within the bands.
    costs = [each.event.tau * each.event.rounds for each in SETTINGS if each.variance == 0.25]
    assert max(costs) > 1
    again = [each for each in SETTINGS if each.participation.max_participations > 1]
    assert any(each.participation.min_sep < len(each.coefficients) for each in again)


def test_an_account_of_a_device_s_own_rounds_only_is_refuted() -> None:
    """Power: the same bound, without the sums that read an update again."""
    setting = Setting((1, 1, 1), MinSep(5, 3, 2), 2, 4.0, 1, 1e-3)
    own = setting.event.model_copy(update={"sensitivity": math.sqrt(2)})
    stated = zcdp_epsilon(own, setting.delta)
    deltas, _ = worst_deltas(setting, stated, True)
    assert float(deltas[math.ceil(BELOW * STEPS) - STEPS]) > 3 * setting.delta


@pytest.mark.parametrize("coefficients", [(3, 2, 1), (1, 1), (5, -2), (2, 1, 4)])
def test_a_sensitivity_is_that_of_whole_columns_over_the_first_coefficient(coefficients) -> None:
    """By brute force over patterns and signs of contributions."""
    strategy = IntegerToeplitz(kind="integer-toeplitz", coefficients=coefficients)
    n, b, k = 6, 2, 3
    whole = np.zeros((n, n))
    for lag, each in enumerate(coefficients):
        whole += each * np.eye(n, k=-lag)
    patterns = [
        each
        for size in range(1, k + 1)
        for each in itertools.combinations(range(n), size)
        if (np.diff(each) >= b).all()
    ]
    worst = max(
        float(np.linalg.norm(whole[:, list(each)] @ signs))
        for each in patterns
        for signs in itertools.product((1, -1), repeat=len(each))
    )
    found = coefficients[0] * strategy.participation_sensitivity(MinSep(n, b, k)).value
    assert found >= worst * (1 - 1e-12)
    if min(coefficients) > 0 and list(coefficients) == sorted(coefficients, reverse=True):
        assert found == pytest.approx(worst)


KINDS = {
    "toeplitz": (Toeplitz(kind="toeplitz", coefficients=(0.8, 0.5, 0.25)), None, 3),
    "band-fhu": (BandFHU(kind="band-fhu", bands=6), None, 6),
    "blt": (BLT(kind="blt", theta=(0.95, 0.6), omega=(0.2, 0.3)), 8, 8),
    "bisr": (BISR(kind="bisr", bands=4), 12, 12),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [1, 4, 8, 12])
def test_coefficients_are_the_nearest_whole_ones_without_a_common_divisor(kind, bits: int) -> None:
    strategy, most, kept = KINDS[kind]
    found = integer_of(strategy, bits, most)
    c = strategy.first_column(kept)
    rounded = found.first_column(kept)
    assert np.abs(rounded - c / c[0]).max() <= 0.5 / 2**bits
    if isinstance(found, IntegerToeplitz):
        assert math.gcd(*found.coefficients) == 1
        assert found.diagonals(100) <= kept
        # Whole in the steps that were asked for.
        assert 2**bits % found.coefficients[0] == 0
    # It stays as it is if it is made whole again.
    assert integer_of(found, bits) == found


def test_coefficients_that_are_all_rounded_to_zero_leave_the_identity() -> None:
    assert integer_of(Toeplitz(kind="toeplitz", coefficients=(1.0, 0.001)), 8) == Identity()
    assert integer_of(Identity(), 8) == Identity()


def test_what_no_store_opens_is_refused() -> None:
    with pytest.raises(FedrayError, match="set trust.coefficients"):
        integer_of(BLT(kind="blt", theta=(0.9,), omega=(0.3,)), 8)
    with pytest.raises(FedrayError, match="'tree' has no constant diagonals"):
        integer_of(Tree(), 8)


@pytest.mark.parametrize(
    ("coefficients", "said"),
    [((0, 1), "begin with a positive"), ((2, 0), "is not 0"), ((4, 2), "common divisor 2")],
)
def test_coefficients_in_other_terms_are_refused(coefficients, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        IntegerToeplitz(kind="integer-toeplitz", coefficients=coefficients)


def test_rho_of_sums_is_the_smaller_of_two_forms() -> None:
    """Few coordinates favour the second form, many the first, and N counts as coordinates do."""
    for dimension, rounds in ((1, 1), (1, 6), (4, 2), (1000, 3)):
        event = DiscreteGaussianSum(
            sensitivity=2.0, device_variance=0.5, devices=8, dimension=dimension, rounds=rounds
        )
        numbers = dimension * rounds
        first = (2 / math.sqrt(4) + event.tau * math.sqrt(numbers)) ** 2 / 2
        second = 4 / 4 / 2 + event.tau * numbers
        assert rho_of(event) == pytest.approx(min(first, second), rel=1e-11)
        assert rho_of(event) >= min(first, second)
        flat = event.model_copy(update={"dimension": numbers, "rounds": 1})
        assert rho_of(event) == rho_of(flat)


class Cost(NamedTuple):
    """Noise of devices against noise of a server, at equal rho."""

    of_rounding: float
    """RMS error of prefix sums with whole coefficients over that of C as it is."""
    of_all: float
    """The same with everything that devices add: longer updates, tau, and rounded coordinates."""
    of_accountant: float
    """Epsilon of that rho by zCDP over epsilon of Gaussian DP."""


def cost(
    strategy: ToeplitzStrategy,
    most: int | None,
    participation: MinSep,
    *,
    bits: int = 8,
    parameters: int = 10_000,
    goal: int = 1000,
    scale: int = 2000,
    noise_multiplier: float = 1.0,
    delta: float = 1e-10,
) -> Cost:
    """Returns the cost of a strategy, cut to `most` coefficients on both sides."""
    n = participation.rounds
    kept = n if most is None else most
    central = Toeplitz(kind="toeplitz", coefficients=tuple(strategy.first_column(kept)))
    added = integer_of(strategy, bits, most)
    before, after = (math.sqrt(float(each.error_variances(n).mean())) for each in (central, added))
    s, own = (each.participation_sensitivity(participation).value for each in (central, added))
    rho = (s / noise_multiplier) ** 2 / 2
    coordinates = padded(parameters)
    c_0 = added.coefficients[0] if isinstance(added, IntegerToeplitz) else 1
    b = len(added.coefficients) if isinstance(added, IntegerToeplitz) else 1
    square = largest_square(scale, coordinates)

    def rho_at(z: float) -> float:
        return rho_of(
            DiscreteGaussianSum(
                sensitivity=c_0 * math.sqrt(square) * own,
                device_variance=c_0**2 * float(device_variance(z, scale, coordinates, goal)),
                devices=goal,
                dimension=coordinates,
                rounds=min(n, b * participation.max_participations),
            )
        )

    z = least_noise_multiplier(rho_at, rho)
    # In clip norms. A coordinate of an update is rounded with a variance of 1/4 step^2 at most, and
    # a prefix sum of t rounds has the rounding of t goal of them.
    of_noise = (z * math.sqrt(square) / scale * after) ** 2
    of_coordinates = (n + 1) / 2 * goal / (4 * scale**2)
    epsilon = gaussian_epsilon(math.sqrt(2 * rho), delta)
    event = Gaussian(noise_multiplier=noise_multiplier, sensitivity=s)
    return Cost(
        own * after / (s * before),
        math.sqrt(of_noise + of_coordinates) / (noise_multiplier * before),
        zcdp_epsilon(event, delta) / epsilon,
    )


@pytest.mark.parametrize(
    ("strategy", "most"),
    [(Identity(), 1), (BandFHU(kind="band-fhu", bands=8), 8), (KINDS["blt"][0], 32)],
    ids=lambda each: getattr(each, "kind", ""),
)
@pytest.mark.parametrize("noise_multiplier", [1.0, 4.0])
def test_noise_of_devices_costs_one_percent_at_equal_rho(
    strategy: ToeplitzStrategy, most: int, noise_multiplier: float
) -> None:
    found = cost(strategy, most, MinSep(200, 40, 5), noise_multiplier=noise_multiplier)
    assert 1.0 < found.of_all < 1.01
    # Coarse coefficients and steps are noticed.
    coarse = cost(strategy, most, MinSep(200, 40, 5), bits=1, scale=100)
    assert coarse.of_all > 1.05
