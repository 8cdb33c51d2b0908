"""Rules on the number of participations within a period: what they enforce, by enumeration of all patterns, and how they are kept."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from fedray.audit.auditing import audit_trace
from fedray.audit.claimed import joined
from fedray.audit.claims import Claim
from fedray.audit.forward import OUTER, largest_permitted
from fedray.audit.guarantees import Limits, fitting, limits_at, of_limits
from fedray.audit.noise import ServerNoise
from fedray.audit.participation import read_patterns
from fedray.audit.rules import are_periods_kept
from fedray.audit.waits import times_of
from fedray.audit.zones import zone_hours_on
from fedray.base.arrays import Float64Array
from fedray.base.rounding import up
from fedray.mechanisms import BLT, BandFHU, Identity, Toeplitz, Tree, recent_rounds
from fedray.mechanisms.accounting.events import StrategyRelease
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.strategy import Strategy
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.wire.zones import zone_offsets_on

HOUR = 3600.0
HERE = Placement(1, "in-process")


def scenario(participation: dict, zones: tuple[float, ...] = (0.0,), **tables) -> Scenario:
    each = [{"share": 1.0 / len(zones), "utc_offset_hours": hours} for hours in zones]
    return Scenario.from_tables(
        {
            "population": {"devices": 4000, "time_zones": each},
            "participation": participation,
            "rounds": {"count": 20, "report_goal": 20},
            "training": {"enabled": False},
            **tables,
        }
    )


def enforced(value: Scenario, started: Float64Array) -> MinSep:
    found = limits_at(value, started, started, started + 60.0).participation
    assert found is not None
    return found


def is_allowed(pattern: tuple[int, ...], times: Float64Array, given: dict, hours: float) -> bool:
    """Whether a device in one time zone may take part in exactly these rounds, by the words of the rules."""
    gaps = [
        (later - earlier, times[later] - times[earlier])
        for earlier, later in itertools.pairwise(pattern)
    ]
    period = next(each for each in given["policies"] if each["kind"] == "most_per_period")
    most = period["participations"]
    for first, last in zip(pattern, pattern[most:], strict=False):
        if "hours" in period:
            is_within = times[last] - times[first] < HOUR * period["hours"]
        else:
            days = [np.floor((times[each] + HOUR * hours) / 86_400.0) for each in (first, last)]
            is_within = days[0] == days[1]
        if is_within:
            return False
    return (
        all(rounds >= given["round_separation"] for rounds, _ in gaps)
        and all(seconds >= HOUR * given.get("timer_hours", 0.0) for _, seconds in gaps)
        and len(pattern) <= given.get("max_participations", len(pattern))
    )


def patterns_allowed(
    times: Float64Array, given: dict, zones: tuple[float, ...]
) -> list[tuple[int, ...]]:
    """All patterns that a device of any zone may have."""
    return [
        pattern
        for size in range(1, times.size + 1)
        for pattern in itertools.combinations(range(times.size), size)
        if any(is_allowed(pattern, times, given, hours) for hours in zones)
    ]


def separation_of(pattern: tuple[int, ...], rounds: int) -> int:
    return min([rounds, *(later - earlier for earlier, later in itertools.pairwise(pattern))])


def random_setting(rng: np.random.Generator) -> tuple[Float64Array, dict, tuple[float, ...]]:
    """Starts of rounds, rules with a limit within a period, and time zones."""
    n = int(rng.integers(5, 11))
    # Whole quarters of hours, so that starts often lie exactly one period apart.
    times = 900.0 * np.cumsum(rng.choice([1, 2, 3, 12, 40, 97], n))
    most, is_day = int(rng.integers(1, 4)), bool(rng.integers(2))
    zones = tuple(
        np.sort(
            rng.choice([-9.5, -3.0, 0.0, 5.5, 10.0], 1 + int(rng.integers(3)), replace=False)
        ).tolist()
    )
    period = (
        {"period": "local_day"} if is_day else {"hours": float(rng.choice([0.75, 3.0, 10.0, 24.0]))}
    )
    given = {
        "policies": [{"kind": "most_per_period", "participations": most, **period}],
        "round_separation": int(rng.integers(0, 3)),
    }
    if rng.integers(2):
        given["policies"].append({"kind": "timer"})
        given |= {"timer_hours": float(rng.choice([0.5, 2.0])), "timer_resets_on": "selected"}
    if rng.integers(3) == 0:
        given["max_participations"] = int(rng.integers(1, 5))
    return times, given, zones


def check_random_settings(count: int) -> None:
    rng = np.random.default_rng(66)
    seen: dict[tuple, int] = {}
    for _ in range(count):
        times, given, zones = random_setting(rng)
        found = enforced(scenario(given, zones), times)
        patterns = patterns_allowed(times, given, zones)
        k = max(len(each) for each in patterns)
        assert found.max_participations == k, (times / HOUR, given, zones)
        if k > 1:
            b = min(separation_of(each, times.size) for each in patterns)
            assert found.min_sep == b, (times / HOUR, given, zones)
        period = given["policies"][0]
        key = (period["participations"], "period" in period, k > 1)
        seen[key] = seen.get(key, 0) + 1
    # Every m met windows and days, with devices that come back.
    assert {(m, day, True) for m in (1, 2, 3) for day in (False, True)} <= seen.keys()


def test_enforced_figures_are_those_of_all_allowed_patterns() -> None:
    check_random_settings(40)


@pytest.mark.slow
def test_enforced_figures_are_those_of_all_allowed_patterns_in_300_settings() -> None:
    check_random_settings(300)


STRATEGIES: dict[str, Strategy] = {
    "identity": Identity(),
    "band-fhu": BandFHU(bands=5),
    "tree": Tree(),
    "blt": BLT(theta=(0.95, 0.6), omega=(0.2, 0.3)),
    "toeplitz with signs": Toeplitz(coefficients=(1.0, -0.5, 0.25)),
}


def largest_of(strategy: Strategy, patterns: list[tuple[int, ...]], rounds: int) -> float:
    """The largest sensitivity of some patterns; with |G|, a bound, if entries are negative."""
    C = strategy.definition(rounds)
    G = np.abs(C.T @ C)
    return max(float(G[np.ix_(each, each)].sum()) ** 0.5 for each in patterns)


def check_sensitivities(count: int, has_program: bool = True) -> None:
    rng = np.random.default_rng(67)
    exact = dict.fromkeys(STRATEGIES, 0)
    before: dict[str, list[float]] = {name: [] for name in STRATEGIES}
    now: dict[str, list[float]] = {name: [] for name in STRATEGIES}
    known = 0
    for _ in range(count):
        times, given, zones = random_setting(rng)
        n = times.size
        enforced = limits_at(scenario(given, zones), times, times, times + 60.0)
        assert enforced.participation is not None
        known += enforced.rules is not None
        patterns = patterns_allowed(times, given, zones)
        pairs = [(1, n)]
        limits = enforced
        if rng.integers(2):
            # A claim on top of the rules: for each device, one of two pairs.
            pairs = [(2, n), (1, int(rng.integers(1, 4)))]
            whole = MinSep(n, 1, n)
            claim = Limits(whole, "claimed", pairs=tuple(fitting(n, *each) for each in pairs))
            limits = joined(enforced, claim, n)
            patterns = [
                each
                for each in patterns
                if any(separation_of(each, n) >= b and len(each) <= k for b, k in pairs)
            ]
        for name, strategy in STRATEGIES.items():
            guarantee = of_limits("enforced", limits, strategy, ServerNoise(1.0, None), 1e-6, True)
            found, true = guarantee.sensitivity, largest_of(strategy, patterns, n)
            assert found is not None
            assert isinstance(guarantee.event, StrategyRelease)
            assert guarantee.event.sensitivity == found
            assert found.value >= true * (1 - 1e-9), (name, times / HOUR, given, zones)
            # One participation within hours is a wait, and its figure that of (b, k).
            if enforced.rules is None:
                continue
            # The event does not say that all patterns of (b, k) have this sensitivity.
            assert guarantee.event.participation is None
            if found.lower_bound:
                assert found.worst_pattern in patterns
                attained = largest_of(strategy, [found.worst_pattern], n)
                assert found.lower_bound <= attained * (1 + 1e-9)
                if name != "toeplitz with signs":
                    assert found.lower_bound == pytest.approx(attained, rel=1e-9)
            if found.is_exact:
                assert found.value == pytest.approx(true, rel=1e-9), (name, found.theorem)
            exact[name] += found.is_exact
            both = [
                strategy.participation_sensitivity(each).value
                for each in limits.pairs or [limits.participation]
                if each is not None
            ]
            # No figure is above that of (b, k).
            assert found.value <= max(both) * (1 + 1e-9)
            before[name].append(max(both) / true - 1)
            now[name].append(found.value / true - 1)
    print(f"{known} of {count} with periods; above brute force, median and largest:")
    for name in STRATEGIES:
        print(
            f"  {name}: exact {exact[name]}; by (b, k) {np.median(before[name]):.1%}, "
            f"{max(before[name]):.1%}; by the rules {np.median(now[name]):.1%}, "
            f"{max(now[name]):.1%}"
        )
    assert known > count // 2
    if has_program:
        assert all(exact[name] == known for name in ("identity", "band-fhu", "tree", "blt"))
    else:
        assert exact["blt"] < known
    # Rules that were left out would be seen.
    assert max(max(each) for each in before.values()) > 0.2


def test_enforced_sensitivities_are_those_of_all_allowed_patterns() -> None:
    check_sensitivities(30)


def test_bounds_on_enforced_sensitivities_are_never_below_those_of_allowed_patterns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recent_rounds, "MOST_STATES", 0)
    check_sensitivities(30, has_program=False)


@pytest.mark.slow
def test_bounds_on_enforced_sensitivities_are_never_below_in_300_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recent_rounds, "MOST_STATES", 0)
    check_sensitivities(300, has_program=False)


@pytest.mark.slow
def test_enforced_sensitivities_are_those_of_all_allowed_patterns_in_300_settings() -> None:
    check_sensitivities(300)


FOUR_HOURS = HOUR * np.arange(20.0, 24.25, 0.25)
"""Seventeen rounds from 20:00 to 24:00 UTC."""


@pytest.mark.parametrize(
    ("zones", "k"),
    [
        ((-10.0, 6.0), 1),  # from 10:00 and from 02:00
        ((0.0,), 2),  # midnight is the start of the last round
        ((2.0,), 2),  # midnight is 22:00 UTC
        ((-10.0, 2.0, 6.0), 2),
        ((4.0,), 1),  # midnight is the start of the first round, so none lies before it
    ],
)
def test_once_a_local_day_is_twice_where_a_midnight_lies_among_the_starts(
    zones: tuple[float, ...], k: int
) -> None:
    policies = [{"kind": "most_per_period", "participations": 1, "period": "local_day"}]
    found = enforced(scenario({"policies": policies}, zones), FOUR_HOURS)
    assert found.max_participations == k
    # Two participations around a midnight may be in two rounds one after the other.
    assert found.min_sep == (17 if k == 1 else 1)
    # Without the rule a device may be in every round.
    assert enforced(scenario({"policies": []}, zones), FOUR_HOURS) == MinSep(17, 1, 17)


def test_a_midnight_between_the_starts_only_of_other_rounds_does_not_count() -> None:
    policies = [{"kind": "most_per_period", "participations": 1, "period": "local_day"}]
    # Rounds at 20:00 and 20:15 lie before the midnight of no zone but +4 and +3.75.
    found = enforced(scenario({"policies": policies}, (3.0, 5.0)), FOUR_HOURS[:2])
    assert found.max_participations == 1


def hourly(participations: int) -> Limits:
    """Limits of m participations within 4 hours, over 24 hourly rounds."""
    policies = [
        {"kind": "most_per_period", "participations": participations, "hours": 4.0},
    ]
    starts = HOUR * np.arange(24.0)
    return limits_at(scenario({"policies": policies}), starts, starts, starts)


def test_sensitivity_under_a_limit_of_two_is_that_of_the_rules() -> None:
    once, twice = hourly(1), hourly(2)
    # One participation within hours is a wait, of which (b, k) say all.
    assert once.rules is None
    assert once.participation == MinSep(24, 4, 6)
    assert twice.participation is not None
    assert twice.participation == MinSep(24, 1, 12)
    exact = of_limits("enforced", twice, BandFHU(bands=6), None, 1e-6, True).sensitivity
    assert exact is not None
    assert exact.is_exact
    assert exact.theorem.startswith("dynamic program")
    assert exact.value < BandFHU(bands=6).participation_sensitivity(twice.participation).value
    assert exact.worst_pattern[:4] == (0, 1, 4, 5)


@pytest.mark.slow
def test_the_documented_sensitivities_of_two_a_day_are_those_of_the_audit() -> None:
    starts = HOUR * np.arange(2000.0)
    policies = [{"kind": "most_per_period", "participations": 2, "hours": 24.0}]
    limits = limits_at(scenario({"policies": policies}), starts, starts, starts)
    text = (Path(__file__).parents[2] / "docs/participation.md").read_text()
    for name, strategy in {
        "`band-fhu`, 32 bands": BandFHU(bands=32),
        "`tree`": Tree(),
    }.items():
        found = of_limits("enforced", limits, strategy, None, 1e-6, True).sensitivity
        assert found is not None
        assert limits.participation is not None
        outer = strategy.participation_sensitivity(limits.participation).value
        how = "exact" if found.is_exact else "a bound"
        assert f"| {name} | {up(found.value, 2)}, {how} | {up(outer, 2)} |" in text


def test_a_tree_of_many_rounds_under_a_limit_of_two_has_the_smaller_of_two_bounds() -> None:
    # More rounds than the program admits for a tree, whose columns are nowhere orthogonal.
    starts = HOUR * np.arange(300.0)
    policies = [{"kind": "most_per_period", "participations": 2, "hours": 4.0}]
    limits = limits_at(scenario({"policies": policies}), starts, starts, starts)
    assert limits.rules is not None
    assert limits.participation is not None
    assert limits.participation == MinSep(300, 1, 150)
    found = of_limits("enforced", limits, Tree(), None, 1e-6, True).sensitivity
    assert found is not None
    assert not found.is_exact
    outer = Tree().participation_sensitivity(limits.participation)
    assert found.lower_bound < found.value <= outer.value
    assert found.lower_bound > 0
    # If (b, k) is the smaller bound, it is called one.
    apart = MinSep(300, 3, 100)
    found = largest_permitted(Tree(), limits.rules, apart)
    assert found.theorem.endswith(OUTER)
    assert not found.is_exact
    assert 0 < found.lower_bound <= found.value
    assert found.value == Tree().participation_sensitivity(apart).value


@pytest.mark.slow
def test_a_claimed_rho_holds_at_the_sensitivity_of_the_rules(tmp_path: Path) -> None:
    policies = [{"kind": "most_per_period", "participations": 2, "hours": 4.0}]
    value = scenario(
        {"policies": policies},
        rounds={"count": 24, "report_goal": 20, "min_minutes_between": 60.0, "max_days": 3.0},
        availability={"model": "always_on"},
        privacy={"mechanism": {"kind": "tree"}, "noise_multiplier": 2.0},
    )
    trace = simulate(value, HERE, tmp_path / "t")
    found = audit_trace(trace).mechanisms[0].enforced
    assert found.participation is not None
    assert found.participation == MinSep(24, 1, 12)
    assert found.may_rest_on
    assert found.rho is not None
    assert found.sensitivity is not None
    assert found.sensitivity.is_exact
    outer = Tree().participation_sensitivity(found.participation).value
    assert found.sensitivity.value < 0.9 * outer
    for rho, holds in ((found.rho * 1.001, True), (found.rho * 0.999, False)):
        claim = Claim.model_validate(
            {"mechanism": Tree(), "noise_multiplier": 2.0, "rho": rho, "delta": 1e-6}
        )
        assert audit_trace(trace, claim=claim).claim_holds == holds


ZONES = (-7.0, 0.0, 5.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "period", [{"hours": 5.0}, {"period": "local_day"}], ids=["hours", "local day"]
)
@pytest.mark.parametrize("most", [1, 2, 3])
def test_simulated_devices_keep_the_limit_and_use_it(
    tmp_path: Path, most: int, period: dict
) -> None:
    def run(policies: list[dict]):
        value = scenario(
            {"policies": policies},
            ZONES,
            rounds={"count": 80, "report_goal": 20, "min_minutes_between": 20.0, "max_days": 6.0},
            availability={"model": "always_on"},
            population={
                "devices": 300 if policies and most == 1 else 100 if policies else 60,
                "time_zones": [{"share": 1 / 3, "utc_offset_hours": hours} for hours in ZONES],
            },
        )
        trace = simulate(value, HERE, tmp_path / f"t{len(policies)}")
        return trace, value

    trace, value = run([{"kind": "most_per_period", "participations": most, **period}])
    assert are_periods_kept(trace, value)
    counts = counts_in_periods(trace, value, period)
    # The limit is reached by most devices, and would be broken without the rule.
    assert counts.max() == most
    assert (counts == most).mean() > 0.5
    free, _ = run([])
    assert counts_in_periods(free, value, period).max() > most
    # One participation within some hours is a wait, which (min-sep, participations) show.
    assert are_periods_kept(free, value) == (most == 1 and "hours" in period)


def counts_in_periods(trace, value: Scenario, period: dict) -> np.ndarray:
    """The most participations of each device within a period, counted one by one."""
    counts: list[int] = []
    for times in times_of(trace, read_patterns(trace)) or ():
        offsets = HOUR * zone_offsets_on(value, times.device_ids)
        for device in np.unique(times.device_ids):
            rows = times.device_ids == device
            starts = times.seconds[rows]
            if "hours" in period:
                within = [
                    ((starts >= s) & (starts < s + HOUR * period["hours"])).sum() for s in starts
                ]
            else:
                days = np.floor((starts + offsets[rows]) / 86_400.0)
                within = [(days == day).sum() for day in days]
            counts.append(int(max(within)))
    return np.array(counts)


def test_the_audit_draws_the_time_zones_of_devices_that_the_simulator_draws() -> None:
    value = Scenario.from_tables(
        {
            "seed": 9,
            "population": {
                "devices": 4000,
                "time_zones": [
                    {"share": 0.2, "utc_offset_hours": -7.0},
                    {"share": 0.8, "utc_offset_hours": 5.5},
                ],
                "classes": [
                    {"name": "a", "share": 0.3},
                    {
                        "name": "b",
                        "share": 0.7,
                        "time_zones": [
                            {"share": 0.5, "utc_offset_hours": 1.0},
                            {"share": 0.5, "utc_offset_hours": 2.0},
                        ],
                    },
                ],
            },
            "rounds": {"count": 2, "report_goal": 20},
            "training": {"enabled": False},
        }
    )
    device_ids = np.arange(3000, dtype=np.uint64)
    found = zone_hours_on(value, device_ids)
    assert np.unique(found).size == 4
    assert (found == zone_offsets_on(value, device_ids)).all()
