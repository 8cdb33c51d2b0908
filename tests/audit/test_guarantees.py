"""Observed, enforced and claimed: three guarantees that are never confused, each with what it rests on."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from fedray.audit.audit import Audit
from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim
from fedray.audit.guarantees import _is_kept, allowed, true_positive_rate
from fedray.audit.participation import Patterns
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import BLT, Identity, Tree
from fedray.report.audits import participation_table
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario

TREE = Tree()


def longest_chain(started: np.ndarray, timer: float, separation: int) -> tuple[int, int]:
    """(b, k) by looking at every pair of rounds, and at every chain by dynamic programming."""
    n = started.size
    follows = np.zeros((n, n), np.bool_)
    for r, s in itertools.combinations(range(n), 2):
        follows[r, s] = started[s] >= started[r] + timer and s - r >= separation
    gaps = [s - r for r, s in zip(*np.nonzero(follows), strict=True)]
    length = np.ones(n, np.int64)
    for s in range(n):
        length[s] += max((length[r] for r in range(s) if follows[r, s]), default=0)
    return min(gaps, default=n), int(length.max())


@pytest.mark.parametrize(("min_sep", "most"), [(3, 2), (2, 1), (4, 2)])
def test_rules_are_kept_only_if_both_limits_hold(min_sep: int, most: int) -> None:
    """A device of rounds 0 and 3."""
    patterns = Patterns(9, np.array([5], np.uint64), np.array([2]), np.array([0, 3], np.uint32))
    assert _is_kept(MinSep(9, min_sep, most), patterns) == ((min_sep, most) == (3, 2))


@pytest.mark.slow
@given(
    st.lists(st.floats(0.01, 30.0), min_size=1, max_size=25),
    st.just(0.0) | st.floats(0.01, 60.0),
    st.integers(0, 6),
    st.none() | st.integers(1, 4),
)
@settings(max_examples=300, deadline=None)
def test_what_rules_allow_is_what_brute_force_finds(
    waits: list[float], timer: float, separation: int, most: int | None
) -> None:
    started = np.cumsum(waits)
    b, k = longest_chain(started, timer, separation)
    found = allowed(started, started, timer, separation, most)
    if most is None or most >= k:
        assert (found.min_sep, found.max_participations) == (b, k)
    else:
        assert found.max_participations == most
        assert found.min_sep == (started.size if most == 1 else b)
    if timer > 0:
        rounding = 1.0 + 1e-12  # of the sums of waits
        assert (found.max_participations - 1) * timer <= (started[-1] - started[0]) * rounding


def test_rounds_whose_recorded_times_overlap_are_taken_from_the_safe_side() -> None:
    """In a log, round 1 has an early straggler: a device of round 1 may come back as if round 1 had been before round 0."""
    earliest, latest = np.array([10.0, 0.0, 30.0, 40.0]), np.array([20.0, 25.0, 35.0, 50.0])
    found = allowed(earliest, latest, 30.0)
    assert (found.min_sep, found.max_participations) == (1, 2)
    backwards = allowed(
        np.array([10.0, 1.0]), np.array([80.0, 60.0]), 72.0
    )  # in round 1 at 1 h, in round 0 at 80 h
    assert (backwards.min_sep, backwards.max_participations) == (1, 2)


def test_an_abandoned_attempt_is_no_round_of_the_limits(small, tmp_path: Path) -> None:
    """So few devices that selection times out again and again."""
    scenario = small(
        "population.devices=5000", "rounds.count=4", "rounds.selection_timeout_minutes=20.0"
    )
    trace = simulate(scenario, Placement(1, "in-process"), tmp_path / "t")
    assert trace.committed_rounds == 4 < len(trace.rounds["state"])
    enforced = audit_trace(trace).mechanisms[0].enforced
    assert enforced.participation is not None
    assert enforced.participation.rounds == 4


@pytest.mark.slow
@given(st.data(), st.integers(2, 7), st.floats(0.5, 20.0))
@settings(max_examples=200, deadline=None)
def test_no_pattern_that_keeps_the_timer_is_beyond_the_limits_however_rounds_overlap(
    data, n: int, timer: float
) -> None:
    spans = data.draw(
        st.lists(st.tuples(st.floats(0, 40), st.floats(0, 15)), min_size=n, max_size=n)
    )
    earliest = np.array([start for start, _ in spans])
    latest = earliest + np.array([length for _, length in spans])
    found = allowed(earliest, latest, timer)
    for size in range(2, n + 1):
        for order in itertools.permutations(range(n), size):
            at = -np.inf
            for index in order:  # as early as the timer permits
                at = max(earliest[index], at + timer)
                if at > latest[index]:
                    break
            else:
                pattern = sorted(order)
                assert size <= found.max_participations
                assert min(np.diff(pattern)) >= found.min_sep


@pytest.fixture(scope="module")
def far_better(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """A timer of an hour among many devices: nobody is asked nearly as soon as the rules allow."""
    scenario = Scenario.from_tables(
        {
            "name": "far-better",
            "seed": 3,
            "population": {"devices": 200_000},
            "availability": {"model": "always_on"},
            "participation": {"timer_hours": 1.0},
            "rounds": {"count": 60, "report_goal": 60},
            "training": {"enabled": False},
        }
    )
    trace = simulate(scenario, Placement(1, "in-process"), tmp_path_factory.mktemp("far") / "t")
    return audit_trace(trace)


def test_the_observed_guarantee_may_be_far_better_than_the_enforced_one(far_better: Audit) -> None:
    found = far_better.mechanisms[0]
    assert found.enforced.epsilon > 1.2 * found.observed.epsilon
    assert found.enforced.may_rest_on
    assert not found.observed.may_rest_on
    assert "timer of 1 h" in found.enforced.reason


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**32),
    timer=st.sampled_from([0.0, 0.2, 1.0, 6.0]),
    separation=st.sampled_from([0, 0, 3, 7]),
    resets=st.sampled_from(["accepted", "reported", "selected"]),
    devices=st.sampled_from([900, 3000, 20_000]),
    strategy=st.sampled_from([TREE, Identity(), BLT(theta=(0.9,), omega=(0.3,))]),
)
@settings(max_examples=12, deadline=None)
def test_enforced_is_at_least_observed_on_random_scenarios(
    seed: int, timer: float, separation: int, resets: str, devices: int, strategy, tmp_path_factory
) -> None:
    scenario = Scenario.from_tables(
        {
            "seed": seed,
            "population": {"devices": devices},
            "availability": {"model": "always_on"},
            "participation": {
                "timer_hours": timer,
                "round_separation": separation,
                "timer_resets_on": resets,
            },
            "rounds": {"count": 15, "report_goal": 40, "look_ahead_minutes": 20.0},
            "training": {"enabled": False},
        }
    )
    trace = simulate(scenario, Placement(1, "in-process"), tmp_path_factory.mktemp("random") / "t")
    audit = audit_trace(trace, mechanism=strategy)
    found = audit.mechanisms[0]
    observed, limits, enforced = found.observed, found.observed_limits, found.enforced
    assert 0.0 <= observed.rho <= limits.rho * (1 + 1e-12)
    assert limits.rho <= enforced.rho * (1 + 1e-12)
    assert observed.epsilon <= enforced.epsilon * (1 + 1e-9)
    assert enforced.participation.min_sep <= audit.patterns.min_sep


def test_enforced_is_attained_where_a_device_comes_back_at_once(trace_of, small) -> None:
    """Rounds 100 s apart, a timer of 250 s: three rounds between, and one device takes each third round."""
    scenario = small("participation.timer_hours=0.0694")
    audit = audit_trace(trace_of([[0, 3, 6], [1, 4], [2, 5]], 7, scenario))
    found = audit.mechanisms[0]
    assert found.enforced.participation == MinSep(7, 3, 3)
    assert found.enforced.epsilon == pytest.approx(found.observed.epsilon, rel=1e-12)


@pytest.mark.parametrize("key", ["timer_violators=0.1", "clock_skew_hours=1.0"])
def test_a_timer_that_some_devices_do_not_keep_ensures_nothing(trace_of, small, key: str) -> None:
    scenario = small("participation.timer_hours=0.05", f"participation.{key}")
    found = audit_trace(trace_of([[0, 3, 6], [1, 4], [2, 5]], 7, scenario)).mechanisms[0].enforced
    assert found.participation == MinSep(7, 1, 7)
    assert "the timer ensures nothing" in found.reason


def test_rules_that_a_device_broke_ensure_nothing(trace_of, small) -> None:
    """A timer of 12 hours, and rounds 100 s apart in which a device took part one after the other."""
    found = audit_trace(trace_of([[0, 1], [2]], 3, small())).mechanisms[0].enforced
    assert found.sensitivity is None
    assert not found.may_rest_on
    assert "were not kept" in found.reason


def test_one_participation_each_has_no_min_sep(trace_of) -> None:
    audit = audit_trace(trace_of([[0], [1], [2]], 3))
    assert audit.min_sep is None
    assert audit.to_json()["min_sep"] is None
    assert dict(participation_table(audit).rows)["min-sep b (rounds)"] == "none (k = 1)"


def test_every_figure_of_the_json_says_what_it_is_a_statement_about(trace_of) -> None:
    document = audit_trace(trace_of([[0, 4], [1], [2], [3]], 5)).to_json()
    for mechanism in document["mechanisms"]:
        for each in [*mechanism["guarantees"], mechanism["observed_limits"]]:
            assert {"scope", "may_rest_on", "reason", "epsilon", "rho"} <= each.keys()
    assert [each["name"] for each in document["guarantees"]] == ["observed", "enforced", "claimed"]


def test_mechanisms_stand_side_by_side_at_equal_rho(trace_of, small) -> None:
    scenario = small("participation.timer_hours=0.0694")
    audit = audit_trace(trace_of([[0, 3, 6], [1, 4], [2, 5]], 7, scenario))
    rows = audit.utility
    assert {row.name for row in rows} == {"blt", "identity", "tree"}
    assert [row.rms_prefix_error for row in rows] == sorted(row.rms_prefix_error for row in rows)
    assert len({row.rho for row in rows}) == 1
    for row in rows:
        assert (row.sensitivity / row.noise_multiplier) ** 2 / 2 == pytest.approx(row.rho, rel=1e-9)


def test_all_mechanisms_that_are_given_are_audited(trace_of) -> None:
    audit = audit_trace(trace_of([[0, 3], [1], [2]], 4), mechanism=[TREE, Identity()])
    assert [each.name for each in audit.mechanisms] == ["tree", "identity"]
    assert not any(each.is_own for each in audit.mechanisms)


def test_assumptions_name_what_is_released_beside_the_models(trace_of, small) -> None:
    trained = " ".join(
        audit_trace(trace_of([[0], [1]], 2, small("training.enabled=true"))).assumptions
    )
    for what in ("train_loss", "clipped_share", "seed", "floating-point"):
        assert what in trained
    assert "64 of the 200" in trained
    whole = small("training.enabled=true", "training.cohort_sample=200")
    assert "really trained" not in " ".join(audit_trace(trace_of([[0], [1]], 2, whole)).assumptions)


SUBSETS = [
    dict(pairs)
    for size in range(4)
    for pairs in itertools.combinations(
        [("min_sep", 3), ("max_participations", 3), ("timer_hours", 0.0694)], size
    )
]


@pytest.mark.slow
@pytest.mark.parametrize("timer", [0.0, 0.0694])
def test_a_claim_that_says_less_never_holds_more_easily(trace_of, small, timer: float) -> None:
    """Whatever a claim adds to what it says of participation, its epsilon goes on holding where it held."""
    trace = trace_of([[0, 3, 6], [1, 5], [2], [4]], 7, small(f"participation.timer_hours={timer}"))
    reach = np.linspace(0.5, 8.0, 16)

    def holds(said: dict, epsilon: float) -> bool:
        claim = Claim(mechanism=TREE, noise_multiplier=2.0, epsilon=epsilon, delta=1e-6, **said)
        verdicts = {
            each.statement: str(each.verdict) for each in audit_trace(trace, claim=claim).findings
        }
        return verdicts["epsilon"] == "holds"

    passed = {tuple(said): {e for e in reach if holds(said, float(e))} for said in SUBSETS}
    for less, more in itertools.product(passed, passed):
        if set(less) <= set(more):
            assert passed[less] <= passed[more], (less, more)


def test_a_claim_that_only_this_trace_supports_is_no_pass(trace_of, small) -> None:
    trace = trace_of([[0, 3, 6], [1, 4], [2, 5]], 7, small("participation.timer_hours=0.0"))
    spent = audit_trace(trace, 2.0, 1e-6, TREE).mechanisms[0].epsilon
    claim = Claim(mechanism=TREE, noise_multiplier=2.0, epsilon=spent * 1.001, delta=1e-6)
    audit = audit_trace(trace, claim=claim)
    assert str(audit.findings[-1].verdict) == "not supported (this trace spent less)"
    assert not audit.claim_holds


def test_the_best_attack_is_the_one_of_the_neyman_pearson_test() -> None:
    for mu in (0.0, 0.3, 1.0, 5.0):
        assert true_positive_rate(mu) == pytest.approx(norm.sf(norm.isf(1e-3) - mu), rel=1e-9)
