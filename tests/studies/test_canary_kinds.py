"""Canaries for every kind of encoding, clipping, weighting and rounds: what is right is let through, and each planted bug is caught.

`make canary` runs 100 seeds, the suite 3. Right code is called wrong with a probability below 1e-3 per seed (ten p-values below 5e-5), so that of 100 more than one is with a probability of 5e-3. A run has a p-value below 0.05 over their number with a
probability of at most 0.05; more than 12 of 100 (2 of 3) have a probability of 2e-3 (1e-4). A bug must be caught for every seed.
"""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedray.audit.participation import read_patterns
from fedray.audit.sensitivity import trace_sensitivity
from fedray.base.errors import InputError, RunFailed
from fedray.clients.canaries import Canaries, CanaryTrainer
from fedray.encoding import device_noise, secagg
from fedray.encoding.device_noise import DeviceNoiseEncoding
from fedray.encoding.norms import inflation
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.scenario.buffer import PolynomialWeighting
from fedray.server.learning.aggregator import ModelAggregator
from fedray.server.learning.estimator import ClippedBelow, Fixed, Mean
from fedray.server.learning.noise import OutputsNoise
from fedray.studies.canary import CanaryResult, Recorded, check_training, run_canary

SEEDS = 100 if os.environ.get("FEDRAY_ALL_SEEDS") else 3
ROUNDS, PATTERN = 12, (1, 5, 9)
COORDINATES, COORDINATES_OF_DEVICES_NOISE = 512, 256
STALENESS = (1, 3, 0)
BUFFERED = (
    "rounds={mode='buffered', count=12, report_goal=200, look_ahead_minutes=30.0, "
    "buffer={concurrency=300, max_staleness=4, weighting={kind='polynomial', exponent=0.5}}}"
)
POISSON = (
    "rounds={mode='upload-then-train', count=12, report_goal=20, look_ahead_minutes=60.0, "
    "uploads={window_hours=2.0, schedule={kind='poisson', probability=0.01}}}"
)
TREE = "privacy.mechanism={kind='tree', restarts=[4, 8]}"
IDENTITY = "privacy.mechanism={kind='identity'}"
KINDS = {
    "secagg": ("privacy.encoding={kind='secagg', scale=4096}",),
    "devices": (
        IDENTITY,
        "privacy.trust={kind='devices', scale=4096, parameters=10}",
    ),
    "devices, correlated": (
        "privacy.mechanism={kind='toeplitz', coefficients=[1.0, 0.6, 0.35, -0.2]}",
        "privacy.trust={kind='devices', scale=4096, parameters=10}",
    ),
    "adaptive": (TREE, "privacy.clipping={kind='adaptive', count_noise=0.7}"),
    "adaptive_secagg": (
        IDENTITY,
        "privacy.clipping={kind='adaptive'}",
        "privacy.encoding={kind='secagg', scale=4096}",
    ),
    "zeroed": ("privacy.clipping={kind='fixed', zero_above=2.0}",),
    "scheduled": (
        TREE,
        "privacy.clipping={kind='schedule', steps=[{from_round=4, norm=0.4}, {from_round=8, norm=2.5}]}",
    ),
    "scheduled, noise of devices": (
        IDENTITY,
        "privacy.clipping={kind='schedule', steps=[{from_round=5, norm=0.4}]}",
        "privacy.trust={kind='devices', scale=4096, parameters=10}",
    ),
    "per_layer": ("privacy.clipping={kind='per_layer'}",),
    "per_layer_norms": ("privacy.clipping={kind='per_layer', norms=[0.3, 0.1, 0.2]}",),
    "fixed": (POISSON, IDENTITY, "training.weighting={kind='fixed', mean_weight=0.7}"),
    "clipped": (
        POISSON,
        IDENTITY,
        "training.weighting={kind='clipped', example_cap=60, least_mean_weight=0.5}",
        # One round in three is scaled down, which shows where signals are large.
        "privacy.noise_multiplier=0.3",
    ),
    "buffered": (BUFFERED,),
}
Plant = Callable[[pytest.MonkeyPatch], dict]


@pytest.fixture(scope="module")
def setting(small) -> Callable[[str, int], Scenario]:
    def made(kind: str, seed: int = 0) -> Scenario:
        own = ("participation.timer_hours=1.0",) if POISSON in KINDS[kind] else ()
        return small(
            *own,
            "training.enabled=true",
            "privacy.noise_multiplier=1.0",
            "privacy.clip_norm=0.5",
            *KINDS[kind],
            f"seed={1000 * seed}",
        )

    return made


def check(scenario: Scenario, recorded: Recorded | None = None, **planted) -> CanaryResult:
    adds_noise = scenario.privacy.sent.adds_noise
    coordinates = COORDINATES_OF_DEVICES_NOISE if adds_noise else COORDINATES
    staleness = STALENESS if scenario.rounds.buffer is not None else ()
    told = recorded or Recorded(PATTERN, ROUNDS, staleness)
    return check_training(scenario, told, coordinates, **planted)


def problems_of(scenario: Scenario, recorded: Recorded | None = None, **planted) -> list[str]:
    try:
        return check(scenario, recorded, **planted).problems
    except RunFailed as error:  # no noise at all
        return [str(error)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_called_wrong(setting, kind: str) -> None:
    results = [check(setting(kind, seed)) for seed in range(SEEDS)]
    wrong = [result.problems for result in results if result.problems]
    assert len(wrong) <= (1 if SEEDS == 100 else 0), wrong
    tests = [result.tests for result in results]
    low = sum(min(test.p for test in each) * len(each) < 0.05 for each in tests)
    assert low <= (12 if SEEDS == 100 else 2)
    covered = sum(result.covers for result in results)
    assert covered >= (95 if SEEDS == 100 else 2)


def test_expected_figures_are_those_of_the_definitions(setting) -> None:
    root = 3**0.5
    found = check(setting("devices"))
    assert found.claimed_mu == pytest.approx(root)
    assert found.expected_mu == pytest.approx(root / inflation(4096, 256))
    found = check(setting("per_layer_norms"))
    assert found.expected_mu == pytest.approx(found.claimed_mu * 0.14**0.5 / 0.5)
    found = check(setting("clipped"))
    # Half of it, and in the second round another half: there are twice as many weights.
    assert found.expected_mu == pytest.approx((1 + 0.5**2 + 1) ** 0.5 / 2 / 0.3)
    assert check(setting("fixed")).expected_mu == pytest.approx(root)
    identical = setting("buffered").with_overrides(IDENTITY)
    assert check(identical).expected_mu == pytest.approx((1 / 2 + 1 / 4 + 1) ** 0.5)


@pytest.mark.slow
def test_devices_that_drop_out_take_their_noise_along(setting) -> None:
    shares = tuple(0.5 if index == 5 else 1.0 for index in range(ROUNDS))
    recorded = Recorded(PATTERN, ROUNDS, shares=shares)
    found = check(setting("devices"), recorded)
    assert found.problems == []
    # The audit takes every round for the one with the least noise.
    assert found.claimed_mu == pytest.approx(6**0.5)
    assert found.expected_mu == pytest.approx((1 + 2 + 1) ** 0.5 / inflation(4096, 256))

    class Full(CanaryTrainer):
        """Noise of the devices that were wanted, whoever came."""

        def __init__(self, scenario: Scenario, canaries: Canaries) -> None:
            fewer = scenario.rounds.model_copy(
                update={"report_goal": scenario.rounds.report_goal // 2}
            )
            sampled = scenario.training.model_copy(update={"cohort_sample": fewer.report_goal})
            tables = {"rounds": fewer, "training": sampled}
            super().__init__(scenario.model_copy(update=tables), canaries)

    assert problems_of(setting("devices"), recorded, trainer=Full) != []


@pytest.mark.slow
def test_correlated_noise_of_devices_is_right_also_where_some_drop_out(setting) -> None:
    """With the covariance of unequal rounds, C^-1 diag(f) C^-T."""
    shares = tuple(0.5 if index in (2, 5, 6) else 1.0 for index in range(ROUNDS))
    recorded = Recorded(PATTERN, ROUNDS, shares=shares)
    assert check(setting("devices, correlated"), recorded).problems == []


def no_rotation(patch: pytest.MonkeyPatch) -> dict:
    def unrotated(value, multiplier, signs):
        rotated = np.zeros(signs.size)
        rotated[: value.size] = value * multiplier * signs.size**0.5
        return rotated

    def not_back(values):
        values *= values.size**0.5

    patch.setattr(secagg, "_rotated", unrotated)
    patch.setattr(secagg, "walsh_hadamard", not_back)
    patch.setattr(secagg, "signs_of", lambda seed, index, coordinates: np.ones(coordinates))
    return {}


def modulus_for_one_device(patch: pytest.MonkeyPatch) -> dict:
    sized = secagg._modulus
    patch.setattr(
        secagg, "_modulus", lambda table, least, devices: sized(table, least // devices, devices)
    )
    return {}


def discarded_noise_shares(patch: pytest.MonkeyPatch) -> dict:
    patch.setattr(DeviceNoiseEncoding, "encode_zeros_into", lambda self, *given: None)
    return {}


def half_of_the_variance(patch: pytest.MonkeyPatch) -> dict:
    whole = DeviceNoiseEncoding._send

    def every_second(self, total_P, steps_P, device_id, round_index):
        if device_id % 2:
            return secagg._add_modulo(total_P, steps_P, self.modulus)
        return whole(self, total_P, steps_P, device_id, round_index)

    patch.setattr(DeviceNoiseEncoding, "_send", every_second)
    return {}


def estimating(change: Callable[[ModelAggregator], None]) -> Plant:
    """An aggregator that is changed after it was made."""

    def made(scenario: Scenario) -> ModelAggregator:
        aggregator = ModelAggregator(scenario)
        change(aggregator)
        return aggregator

    return lambda patch: {"aggregator": made}


def noise_of_a_fixed_denominator(aggregator: ModelAggregator) -> None:
    aggregator._estimator.noise_factor = 1.0


class Unclipped(ClippedBelow):
    def scale(self, report):
        return self._denominator / max(1.0, report.weights)


class Unscaled(ClippedBelow):
    def scale(self, report):
        return 1.0


def denominator_below_the_least(aggregator: ModelAggregator) -> None:
    aggregator._estimator = Unclipped(aggregator._estimator._denominator)


def sum_not_scaled(aggregator: ModelAggregator) -> None:
    aggregator._estimator = Unscaled(aggregator._estimator._denominator)


def mean_of_who_came(aggregator: ModelAggregator) -> None:
    aggregator._estimator = Mean()


def one_device_more(aggregator: ModelAggregator) -> None:
    aggregator._estimator = Fixed(aggregator._estimator._denominator * 1.2)


def all_noise_for_the_sums(aggregator: ModelAggregator) -> None:
    aggregator._noise_multiplier = aggregator._scenario.privacy.noise_multiplier


def first_norm_for_ever(patch: pytest.MonkeyPatch) -> dict:
    """Noise by the first clip norm although the norm has moved."""

    class Aggregator(ModelAggregator):
        def release(self, scale=1.0, noise_share=1.0):
            self._noise_multiplier = self._scenario.update_noise_multiplier * (
                self._scenario.privacy.clip_norm / self._rule.clip().norm
            )
            return super().release(scale, noise_share)

    return {"aggregator": Aggregator}


def layers_of_the_whole_norm(patch: pytest.MonkeyPatch) -> dict:
    class Trainer(CanaryTrainer):
        def __init__(self, scenario: Scenario, canaries: Canaries) -> None:
            super().__init__(scenario, canaries)
            layers = len(canaries.layer_norms)
            self._clipper._layer_norms = (scenario.privacy.clip_norm,) * layers

    return {"trainer": Trainer}


def weights_without_a_cap(patch: pytest.MonkeyPatch) -> dict:
    class Trainer(CanaryTrainer):
        def _weights(self, held):
            return np.where(held > 0, 2.0, 0.0)

    return {"trainer": Trainer}


def a_rotation_for_each_round(patch: pytest.MonkeyPatch) -> dict:
    patch.setattr(DeviceNoiseEncoding, "_signs", secagg.SecAggEncoding._signs)
    return {}


def opened_without_earlier_rounds(patch: pytest.MonkeyPatch) -> dict:
    opened = DeviceNoiseEncoding.opened
    patch.setattr(
        DeviceNoiseEncoding, "opened", lambda self, total, earlier: opened(self, total, [])
    )
    return {}


def nothing_is_fed_back(patch: pytest.MonkeyPatch) -> dict:
    patch.setattr(OutputsNoise, "_add_weighted", lambda self, place, weights: None)
    return {}


def noise_without_the_first_coefficient(patch: pytest.MonkeyPatch) -> dict:
    patch.setattr(
        device_noise,
        "_device_variance",
        lambda table, setting: device_noise.device_variance(
            setting.noise_multiplier,
            table.scale,
            device_noise.padded(setting.dimension),
            table.sharing(setting.devices),
        ),
    )
    return {}


def growing_with_staleness(patch: pytest.MonkeyPatch) -> dict:
    def weights(self, staleness):
        return (1.0 + staleness) ** self.exponent

    patch.setattr(PolynomialWeighting, "weights", weights)
    return {}


BUGS: dict[str, tuple[str, Plant]] = {
    "no rotation": ("secagg", no_rotation),
    "modulus too small": ("secagg", modulus_for_one_device),
    "modulus too small for devices' noise": ("devices", modulus_for_one_device),
    "discarded noise shares": ("devices", discarded_noise_shares),
    "half of the devices add no noise": ("devices", half_of_the_variance),
    "a rotation for each round": ("devices, correlated", a_rotation_for_each_round),
    "opened without earlier rounds": ("devices, correlated", opened_without_earlier_rounds),
    "nothing is fed back": ("devices, correlated", nothing_is_fed_back),
    "noise without c_0": ("devices, correlated", noise_without_the_first_coefficient),
    "wrong denominator": ("fixed", estimating(one_device_more)),
    "denominator of who came": ("fixed", estimating(mean_of_who_came)),
    "noise of a fixed denominator": ("clipped", estimating(noise_of_a_fixed_denominator)),
    "denominator not clipped": ("clipped", estimating(denominator_below_the_least)),
    "sum not scaled": ("clipped", estimating(sum_not_scaled)),
    "weights above 1": ("clipped", weights_without_a_cap),
    "all noise for the sums": ("adaptive", estimating(all_noise_for_the_sums)),
    "noise by the first norm": ("adaptive", first_norm_for_ever),
    "layers of the whole norm": ("per_layer", layers_of_the_whole_norm),
    "staleness weight above 1": ("buffered", growing_with_staleness),
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_caught(setting, bug: str, monkeypatch) -> None:
    kind, plant = BUGS[bug]
    planted = plant(monkeypatch)
    seeds = range(SEEDS if SEEDS == 100 else 1)
    missed = [seed for seed in seeds if not problems_of(setting(kind, seed), **planted)]
    assert missed == []


@pytest.mark.slow
def test_a_buffered_trace_tells_how_stale_canaries_are(setting, tmp_path: Path) -> None:
    """By the audit's weights of the device that binds the trace."""
    scenario = setting("buffered").with_overrides("training.enabled=false", IDENTITY)
    trace = simulate(scenario, Placement(1, "in-process"), tmp_path / "t")
    binding = trace_sensitivity(scenario.privacy.mechanism, read_patterns(trace))
    found = run_canary(scenario.with_overrides("training.enabled=true"), trace, 256)
    assert found.pattern == binding.rounds
    assert found.claimed_mu == pytest.approx(binding.value)
    assert found.problems == []


def test_devices_noise_has_fewer_coordinates_and_is_refused_beyond_reason(
    setting, trace_of
) -> None:
    trace = trace_of([[0, 4, 9], [1, 6], [2], [3], [5], [7], [8], [10], [11]], 12)
    value = setting("devices").with_overrides("training.cohort_sample=1", "rounds.report_goal=3")
    with pytest.raises(InputError, match="coordinates=8192 is too large for .* rounds; "):
        run_canary(value, trace.path, 8192)
    found = run_canary(value, trace.path)
    # Rounds with one device of three have a third of the variance.
    assert (found.coordinates, found.problems) == (256, [])
    assert found.claimed_mu == pytest.approx(3.0)


def test_steps_so_coarse_that_rounding_looks_like_noise_are_refused(setting) -> None:
    coarse = setting("secagg").with_overrides("privacy.encoding.scale=20")
    with pytest.raises(InputError, match="scale=20 is too coarse: the rounding of 231 canaries"):
        check(coarse)
    least = setting("secagg").with_overrides("privacy.encoding.scale=106")
    assert check(least).problems == []


@pytest.mark.slow
def test_a_trace_without_participations_has_no_pattern(setting) -> None:
    nobody = setting("fixed").with_overrides("rounds.uploads.schedule.probability=1e-9")
    with pytest.raises(InputError, match="there is no pattern for canaries"):
        run_canary(nobody)


def with_secagg(small, **planted):
    scenario = small(
        "training.enabled=true",
        "privacy.noise_multiplier=8.0",
        "privacy.clip_norm=0.5",
        "rounds.count=12",
        "privacy.encoding={kind='secagg', scale=40}",
    )
    return check_training(scenario, Recorded((1, 9), 12), 2048, **planted)


@pytest.mark.slow
def test_canaries_find_the_noise_of_the_inflated_norm_and_notice_that_of_the_clip_norm(
    small,
) -> None:
    class ByTheClipNorm(ModelAggregator):
        def release(self, scale=1.0, noise_share=1.0):
            self._noise_multiplier = 8.0 / inflation(40, 2048)
            return super().release(scale, noise_share)

    found = with_secagg(small)
    assert found.problems == []
    assert found.expected_mu == pytest.approx(found.claimed_mu / inflation(40, 2048))
    assert with_secagg(small, aggregator=ByTheClipNorm).problems != []
