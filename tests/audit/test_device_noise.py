"""Noise that devices add, independent, correlated or local: figures of a run, of what is left of the noise, and of targets."""

import math
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from fedray.audit.auditing import audit_trace
from fedray.audit.calibration import calibrate_trace
from fedray.audit.claims import Claim
from fedray.audit.ledger import Ledger
from fedray.audit.noise import (
    DeviceNoise,
    ServerNoise,
    changed_rounds,
    most_changed,
    permitted_noise,
    released,
    rhos_of,
)
from fedray.audit.observers import noise_against_operator
from fedray.audit.participation import Patterns
from fedray.encoding.norms import inflation, largest_square, padded
from fedray.encoding.tables import DevicesTrust, LocalTrust
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import DiscreteGaussianSum
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.integer_toeplitz import IntegerToeplitz
from fedray.mechanisms.registry import Identity, Toeplitz
from fedray.report.audits import guarantees_table, short_guarantees_table
from fedray.runs.budgeted import charge_run, worst_case, worst_rho
from fedray.runs.calibrated import calibrated, worst_participation

PATTERNS = [[0, 3, 7], [1, 5], [2], [4, 8], [6, 11], [9], [10], [0, 1]]
ROUNDS = 12
WHOLE = IntegerToeplitz(kind="integer-toeplitz", coefficients=(4, 2, 1))
OWN = Toeplitz(kind="toeplitz", coefficients=(1.0, 0.5, 0.25))
CORRELATED = (
    "privacy.mechanism={kind='toeplitz', coefficients=[1.0, 0.5, 0.25]}",
    "privacy.trust={kind='devices', parameters=1000, scale=4096}",
)
INDEPENDENT = ("privacy.mechanism={kind='identity'}", CORRELATED[1])
LOCAL = (INDEPENDENT[0], "privacy.trust={kind='local', parameters=1000, scale=4096}")
KINDS = {"correlated": CORRELATED, "independent": INDEPENDENT, "local": LOCAL}
RULES = (
    "rounds.report_goal=4",
    "privacy.noise_multiplier=3.0",
    "participation.timer_hours=0",
    "participation.max_participations=3",
)


def noise_of(
    devices: int, variance: float = 9.0, coefficients: int = 1, dimension: int = 4
) -> DeviceNoise:
    event = DiscreteGaussianSum(
        sensitivity=2.0, device_variance=variance, devices=devices, dimension=dimension
    )
    return DeviceNoise(devices, event, 3, coefficients)


def test_rounds_that_a_device_changes_are_those_of_brute_force() -> None:
    rng = np.random.default_rng(3)
    for _ in range(40):
        n = int(rng.integers(1, 15))
        patterns = [
            sorted(rng.integers(0, n, int(rng.integers(1, 5))).tolist())
            for _ in range(int(rng.integers(1, 7)))
        ]
        counts = np.array([len(each) for each in patterns])
        rows = np.array([index for each in patterns for index in each], np.uint32)
        found = Patterns(n, np.arange(counts.size, dtype=np.uint64), counts, rows)
        coefficients, end = int(rng.integers(1, 6)), int(rng.integers(1, n + 1))
        noise = noise_of(3, coefficients=coefficients)
        for until in (None, end):
            last = n if until is None else until
            expected = [
                len({i + lag for i in each for lag in range(coefficients) if i + lag < last})
                for each in patterns
            ]
            assert changed_rounds(noise, found, until).tolist() == expected
        # No pattern within limits changes more.
        if found.participation is not None:
            assert most_changed(noise, [found.participation]) >= max(
                changed_rounds(noise, found).tolist()
            )


def test_a_correlated_round_has_the_noise_and_the_update_of_its_first_coefficient() -> None:
    """By hand: an update enlarges a sum by c_0 D, and the noise of the goal deviates by c_0 z D."""
    table = DevicesTrust(parameters=1000, scale=4096)
    correlated = DeviceNoise.of(table, WHOLE, 3.0, 10, 5).event
    independent = DeviceNoise.of(table, Identity(), 3.0, 10, 5).event
    square = largest_square(4096, 1024)
    assert correlated.sensitivity == pytest.approx(4 * math.sqrt(square), rel=1e-12)
    assert correlated.device_variance == pytest.approx(16 * 9 * square / 10, rel=1e-12)
    # Rounded to the safe side, and equal but for that.
    assert correlated.sensitivity**2 >= 16 * square
    apart = [each.noise_at_unit_sensitivity for each in (correlated, independent)]
    assert apart == pytest.approx([3 * math.sqrt(5 / 10)] * 2, rel=1e-12)
    of_each = LocalTrust(parameters=1000)
    local = DeviceNoise.of(of_each, Identity(), 3.0, 10, 5)
    assert local.noise_multiplier == pytest.approx(3 * math.sqrt(5))
    message = noise_against_operator(of_each, local)
    assert isinstance(message, DeviceNoise)
    # k messages, each with its own noise: k / (2 z^2), without tau.
    assert rho_of(released(message, math.sqrt(7), 7)) == pytest.approx(7 / 2 / 9)
    assert message.event.tau == 0.0


def test_independent_noise_has_the_rho_of_repeated_sums() -> None:
    noise = noise_of(8, variance=0.3)
    assert noise.event.tau > 0.1
    for k in (1, 2, 9):
        event = released(noise, math.sqrt(k), k)
        adaptive = k * (1 / noise.event.noise_at_unit_sensitivity + noise.event.tau * 2) ** 2 / 2
        other = k * (1 / noise.event.noise_at_unit_sensitivity**2 / 2 + noise.event.tau * 4)
        assert rho_of(event) == pytest.approx(min(adaptive, other), rel=1e-9)


@pytest.mark.parametrize("noise", [noise_of(5, 0.3, 3), noise_of(1), ServerNoise(2.0)])
def test_rho_of_many_devices_is_that_of_each(noise) -> None:
    values, changed = np.array([0.0, 1.0, 1.7, 2.2]), np.array([0, 1, 4, 3])
    found = rhos_of(noise, values, changed)
    expected = [
        rho_of(released(noise, value, count))
        for value, count in zip(values.tolist(), changed.tolist(), strict=True)
    ]
    assert found.tolist() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_of_an_audit_rests_on_the_sums_that_devices_change(
    trace_of, small, kind: str
) -> None:
    scenario = small(*KINDS[kind], *RULES)
    audit = audit_trace(trace_of(PATTERNS, ROUNDS, scenario))
    (used,) = audit.mechanisms
    assert isinstance(used.noise, DeviceNoise)
    C = scenario.privacy.needed_strategy().definition(ROUNDS)
    squares = [float((C[:, each].sum(axis=1) ** 2).sum()) for each in PATTERNS]
    # One device was accepted in the round with the fewest.
    goal = 1 if kind == "local" else 4
    noise = 9 / goal
    assert used.observed.rho == pytest.approx(max(squares) / noise / 2, rel=1e-9)
    event = used.observed.event
    assert isinstance(event, DiscreteGaussianSum)
    bands = 3 if kind == "correlated" else 1
    reached = [
        len({i + lag for i in each for lag in range(bands) if i + lag < 12}) for each in PATTERNS
    ]
    assert event.rounds == max(reached)
    enforced = used.enforced.event
    assert isinstance(enforced, DiscreteGaussianSum)
    assert enforced.rounds == min(ROUNDS, 3 * bands)
    assert audit.over_rounds[-1].epsilon == used.observed.epsilon
    assert audit.device_privacy is not None
    assert audit.device_privacy.quantiles[-1].rho == pytest.approx(used.observed.rho)
    assert audit.device_privacy.mean_rho == pytest.approx(np.mean(squares) / noise / 2)
    assert audit.worst_devices[0].rho == pytest.approx(used.observed.rho)
    # Of `local` the noise multiplier is that of a message, and the figures are those of sums.
    table, shown = guarantees_table(audit), short_guarantees_table(audit)
    is_of_each = kind == "local"
    assert (", noise multiplier 3 of each device, delta" in table.title) is is_of_each
    assert ("a sum has the noise of all its n devices" in " ".join(shown.notes)) is is_of_each
    assert audit.meets_target is None


def test_coarse_noise_costs_in_every_sum_that_a_device_changes(trace_of, small) -> None:
    """tau of 9 sums of 1,024 coordinates, if the noise of a device deviates by 1.3 steps."""
    coarse = ("privacy.trust.scale=25", "privacy.noise_multiplier=0.021")
    audit = audit_trace(trace_of(PATTERNS, ROUNDS, small(*CORRELATED, *RULES, *coarse)))
    event = audit.mechanisms[0].observed.event
    assert isinstance(event, DiscreteGaussianSum)
    assert event.rounds == 9
    event = event.model_copy(update={"devices": 3})
    numbers, apart = 9 * 1024, 1 / event.noise_at_unit_sensitivity
    assert event.tau * numbers > 0.001
    both = (apart + event.tau * math.sqrt(numbers)) ** 2, apart**2 + 2 * event.tau * numbers
    assert rho_of(event) == pytest.approx(min(both) / 2)


def test_a_claim_of_the_scenario_s_mechanism_is_about_its_whole_coefficients(
    trace_of, small
) -> None:
    trace = trace_of(PATTERNS, ROUNDS, small(*CORRELATED, *RULES))
    for named in (OWN, WHOLE):
        audit = audit_trace(
            trace, claim=Claim(mechanism=named, noise_multiplier=3.0, max_participations=3)
        )
        verdicts = {each.statement: each.verdict for each in audit.findings}
        assert verdicts["mechanism"] == "holds"
        assert audit.mechanisms[0].strategy == WHOLE
        assert isinstance(audit.mechanisms[0].noise, DeviceNoise)
    other = Claim(mechanism=Identity(), noise_multiplier=3.0, max_participations=3)
    assert audit_trace(trace, claim=other).findings[0].verdict == "broken"


@pytest.mark.parametrize("target", [{"epsilon": 5.0}, {"rho": 0.05}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_noise_for_a_target_is_the_least_that_an_audit_confirms(
    trace_of, small, kind: str, target: dict[str, float]
) -> None:
    scenario = small(*KINDS[kind], *RULES)
    trace = trace_of(PATTERNS, ROUNDS, scenario)
    ((what, most),) = target.items()
    found = calibrate_trace(trace, **target)
    for name in ("enforced", "observed"):
        each = getattr(found, name)
        z = each.noise_multiplier
        again, less = (
            getattr(audit_trace(trace, factor * z).mechanisms[0], name) for factor in (1, 1 - 1e-6)
        )
        assert getattr(again, what) <= most < getattr(less, what)
        assert getattr(each.guarantee, what) == getattr(again, what)
    # Before a run: with the noise of the fewest devices that the rules permit.
    given = [each for each in (*KINDS[kind], *RULES) if "noise_multiplier" not in each]
    before = calibrated(small(*given, f"privacy.target_{what}={most}"))
    z = before.privacy.noise_multiplier
    noise = permitted_noise(ServerNoise(z), before, before.privacy.needed_strategy())
    worst = worst_participation(before)
    sensitivity = before.privacy.needed_strategy().participation_sensitivity(worst).value
    event = released(noise, sensitivity, most_changed(noise, [worst]))
    spent = rho_of(event) if what == "rho" else epsilon_of(event, before.privacy.delta).epsilon
    assert 0.999 * most < spent <= most
    assert worst_rho(before, worst) == rho_of(event)
    # A training on the trace takes the noise of its own devices.
    trained = calibrated(small(*given, f"privacy.target_{what}={most}"), trace)
    assert isinstance(trained.privacy.noise_multiplier, float)
    assert getattr(audit_trace(trace, scenario=trained).mechanisms[0].enforced, what) <= most


@pytest.mark.parametrize("kind", KINDS)
def test_a_ledger_is_charged_what_each_device_spent(
    trace_of, small, tmp_path: Path, kind: str
) -> None:
    scenario = small(*KINDS[kind], *RULES)
    trace = trace_of(PATTERNS, ROUNDS, scenario)
    Ledger.create(tmp_path / "ledger", 40.0, 1e-6, "year")
    charged = charge_run(tmp_path / "ledger", trace, date(2026, 3, 1))
    (window,) = charged.windows
    used = audit_trace(trace).mechanisms[0]
    assert window.units == len(PATTERNS)
    assert window.recorded == pytest.approx(used.observed.rho)
    # What a run may spend at most is reserved before it.
    (promise,) = worst_case(scenario, worst_participation(scenario))
    assert promise.release == "zcdp"
    assert promise.amount >= worst_rho(scenario, worst_participation(scenario))


def test_targets_count_the_cost_of_coarse_noise() -> None:
    """Where steps are too coarse for a noise multiplier, the least one that has a proof is found."""
    table = DevicesTrust(parameters=4, scale=100)
    coarse = DeviceNoise.of(table, Identity(), 0.2, 1000, 1000).event
    assert coarse.device_variance < 0.41
    assert rho_of(coarse) > 1.5 * (1 / 0.2) ** 2 / 2
    with pytest.raises(ValueError, match="must be at least 0.25"):
        DeviceNoise.of(table, Identity(), 0.1, 1000, 1000)


def test_the_inflated_norm_cancels_in_rho(trace_of, small) -> None:
    fine, coarse = (
        audit_trace(
            trace_of(PATTERNS, ROUNDS, small(*CORRELATED, *RULES, f"privacy.trust.scale={scale}"))
        )
        for scale in (1 << 16, 100)
    )
    assert inflation(100, padded(1000)) > 1.01
    rho = [each.mechanisms[0].observed.rho for each in (fine, coarse)]
    assert rho[0] == pytest.approx(rho[1], rel=1e-9)
