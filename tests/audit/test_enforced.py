"""The enforced guarantee is no smaller than the worst run that the rules permit: found by brute force, from the rules only."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim
from fedray.audit.findings import Verdict
from fedray.audit.so_far import RoundsSoFar, bound_so_far
from fedray.base.errors import Starved
from fedray.mechanisms.registry import Identity
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.trace.reader import Trace

HERE = Placement(1, "in-process")
EXAMPLES = 1000 if "FEDRAY_ALL_SEEDS" in os.environ else 60
"""Random scenarios; `make laws` has all."""
MECHANISMS = (
    {"kind": "identity"},
    {"kind": "blt", "theta": [0.95, 0.6], "omega": [0.2, 0.3]},
    {"kind": "toeplitz", "coefficients": [1.0, 0.5, 0.25]},
    {"kind": "tree"},
)
TABLES: tuple[dict[str, Any], ...] = (
    {"encoding": {"kind": "fixed_point"}},
    {"encoding": {"kind": "secagg"}},
    {"trust": {"kind": "devices", "parameters": 1000, "scale": 4096, "coefficients": 3}},
    {"trust": {"kind": "local", "parameters": 1000, "scale": 4096}},
)
"""How updates are sent, and who adds the noise."""


@st.composite
def scenarios(draw) -> Scenario:
    """Twelve rounds at the most, of every mode, encoding, closing rule, schedule and policy."""
    mode = draw(st.sampled_from(["on-device", "buffered", "upload-then-train"]))
    is_poisson = False
    goal = draw(st.sampled_from([10, 20, 50]))
    rounds: dict[str, Any] = {
        "mode": mode,
        "count": draw(st.integers(2, 12)),
        "report_goal": goal,
        "look_ahead_minutes": 20.0,
        "max_days": 6.0,
    }
    if mode == "on-device":
        closing = [None, {"kind": "at_least", "open_minutes": 5.0}]
        rounds |= {
            "over_selection": draw(st.sampled_from([1.0, 1.5, 2.0])),
            "closing": draw(st.sampled_from(closing)),
        }
    elif mode == "buffered":
        rounds["buffer"] = {
            "concurrency": 3 * goal,
            "max_staleness": draw(st.integers(0, 3)),
        }
    else:
        cyclic = {"kind": "cyclic", "min_sep": draw(st.integers(1, 6))}
        is_poisson = draw(st.booleans())
        schedule = {"kind": "poisson", "probability": 0.02} if is_poisson else cyclic
        rounds["uploads"] = {
            "window_hours": 2.0,
            "windows": draw(st.integers(1, min(3, rounds["count"]))),
            "schedule": schedule,
            "unresolved_share": draw(st.sampled_from([0.0, 0.03])),
        }
    # Sums modulo M need to know how many devices they have at most, and in which round a device is.
    is_modular = mode != "buffered" and not is_poisson
    # With stored uploads, devices send data and no updates.
    most = 4 if mode != "upload-then-train" else 2
    table = draw(st.sampled_from(TABLES[: most if is_modular else 1]))
    trust = table.get("trust", {}).get("kind")
    opened = MECHANISMS[:1] if trust == "local" else MECHANISMS[:3] if trust else MECHANISMS
    mechanism = draw(st.sampled_from(opened))
    hours = draw(st.sampled_from([0.3, 1.0, 4.0]))
    rules = [
        {"timer_hours": draw(st.sampled_from([0.0, hours]))},
        {"timer_hours": hours, "timer_resets_on": draw(st.sampled_from(["reported", "selected"]))},
        {"policies": [{"kind": "swor", "period_hours": hours}]},
        {"policies": [{"kind": "min_sep", "minimum_separation": 2, "counts": "between"}]},
    ]
    # Stored uploads are of no round, so no rule keeps rounds apart but the schedule's.
    rule = draw(st.sampled_from(rules[: 3 if mode == "upload-then-train" else 4]))
    return Scenario.from_tables(
        {
            "seed": draw(st.integers(0, 2**32)),
            "population": {"devices": 6000},
            "availability": {"model": "always_on"},
            "participation": {**rule, "max_participations": draw(st.sampled_from([None, 1, 3]))},
            "rounds": rounds,
            "privacy": {"noise_multiplier": 4.0, "mechanism": mechanism, **table},
            "training": {"enabled": False},
        }
    )


def fewest_devices(scenario: Scenario) -> int:
    """A committed round has report_goal devices or more; of stored uploads a tenth may be unresolved."""
    goal, uploads = scenario.rounds.report_goal, scenario.rounds.uploads
    return goal - goal // 10 if uploads and uploads.unresolved_share else goal


class Rules:
    """The least seconds between two contributions, the least rounds between two, and the most contributions."""

    def __init__(self, scenario: Scenario) -> None:
        given = scenario.participation
        (policy,) = given.policies or [None]
        self.hours = getattr(policy, "period_hours", given.timer_hours if policy is None else 0.0)
        self.apart = policy.minimum_separation + 1 if hasattr(policy, "minimum_separation") else 1
        self.is_from_report = policy is None and given.timer_resets_on in ("accepted", "reported")
        self.most = given.max_participations or scenario.rounds.count

    @property
    def seconds(self) -> float:
        return 3600.0 * self.hours


def legal_patterns(scenario: Scenario, rounds: dict[str, NDArray]) -> Iterator[tuple[int, ...]]:
    """Every pattern of rounds in which a device may have been, given when the rounds ran: it does everything as early as it may."""
    rules, n = Rules(scenario), rounds["started"].size
    opened, started, closed = (rounds[name] for name in ("opened", "started", "closed"))
    uploads = scenario.rounds.uploads
    group = getattr(uploads.schedule, "min_sep", 1) if uploads else 1

    def begins(r: int, free: float) -> tuple[float, float] | None:
        """(from when on the timer runs, from when on the device is free) if it takes part in round r."""
        if uploads:
            upload = max(opened[r] - uploads.seconds, free)
            return (upload, upload) if upload < opened[r] else None
        if scenario.rounds.buffer is None:
            return (started[r], started[r]) if free <= started[r] else None
        check_in = max(opened[max(r - scenario.rounds.max_staleness, 0)], free)
        report = max(opened[r], check_in)
        return (
            (report if rules.is_from_report else check_in, report) if report <= closed[r] else None
        )

    def go_on(pattern: tuple[int, ...], timer: float, free: float, used: int) -> Iterator[tuple]:
        yield pattern
        for s in range(pattern[-1] + 1, n):
            # The upload of a window takes part in other rounds of it too.
            if uploads and opened[s] == opened[pattern[-1]]:
                if (s - pattern[-1]) % group == 0:
                    yield from go_on((*pattern, s), timer, free, used)
                continue
            after = begins(s, max(timer + rules.seconds, free))
            if after and s - pattern[-1] >= rules.apart and used < rules.most:
                yield from go_on((*pattern, s), *after, used + 1)

    for r in range(n):
        after = begins(r, -np.inf)
        assert after is not None
        yield from go_on((r,), *after, 1)


def worst_square(strategy: Any, n: int, patterns: Iterator[tuple[int, ...]]) -> float:
    """The largest squared norm of the sum of the columns of C at the rounds of a pattern; no C here has a negative entry."""
    columns = strategy.definition(n)
    return max(float((columns[:, list(each)].sum(axis=1) ** 2).sum()) for each in patterns)


def committed(trace: Trace) -> dict[str, NDArray]:
    is_committed = trace.rounds["state"] == 0
    return {name: trace.rounds[name][is_committed] for name in ("opened", "started", "closed")}


def check(trace: Trace) -> None:
    scenario = Scenario.from_tables(trace.scenario)
    rounds, privacy = committed(trace), scenario.privacy
    n, strategy = rounds["started"].size, privacy.needed_strategy()
    claim = Claim(
        mechanism=privacy.mechanism, noise_multiplier=4.0, min_sep=2, max_participations=3
    )
    audits = audit_trace(trace), audit_trace(trace, claim=claim)
    (used,), (claimed,) = (each.mechanisms for each in audits)
    share = 1.0
    if privacy.trust.kind in ("devices", "local"):
        shares = scenario.rounds.report_goal if privacy.trust.kind == "devices" else 1
        share = fewest_devices(scenario) / shares
    # Zero-concentrated DP of normal noise (Bun and Steinke 2016), of a round with the least noise.
    a_unit = 1.0 / (2 * privacy.noise_multiplier**2 * share)
    worst = worst_square(strategy, n, legal_patterns(scenario, rounds)) * a_unit
    assert used.enforced.rho >= worst * (1 - 1e-9)
    assert used.enforced.rho >= used.observed.rho * (1 - 1e-9)
    bound = bound_so_far(scenario, RoundsSoFar(**rounds))
    assert bound.rho == used.enforced.rho
    if claimed.claimed.rho is not None:
        two_apart = (each for each in legal_patterns(scenario, rounds) if is_claimed(each))
        assert claimed.claimed.rho >= worst_square(strategy, n, two_apart) * a_unit * (1 - 1e-9)


def is_claimed(pattern: tuple[int, ...]) -> bool:
    return len(pattern) <= 3 and bool((np.diff(pattern) >= 2).all())


@pytest.mark.slow
@given(scenarios())
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_enforced_is_no_smaller_than_the_worst_run_that_the_rules_permit(scenario) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            trace = simulate(scenario, HERE, Path(folder) / "trace")
        except Starved:
            return
        check(trace)


def test_more_devices_than_the_goal_help_what_was_observed_only(small, trace_of) -> None:
    """Four devices where the goal is two: the noise of this round is twice that of a round that the rules permit."""
    scenario = small(
        "rounds.report_goal=2",
        "rounds.closing={kind='at_least', open_minutes=5.0}",
        "privacy.noise_multiplier=4.0",
        "privacy.mechanism={kind='identity'}",
        "privacy.trust={kind='devices', parameters=1000, scale=4096}",
    )
    claim = Claim(mechanism=Identity(), noise_multiplier=4.0, max_participations=1, rho=0.02)
    audit = audit_trace(trace_of([[0]] * 4, 1, scenario), claim=claim)
    used = audit.mechanisms[0]
    assert used.observed.rho == pytest.approx(1 / 64, rel=1e-3)
    assert used.enforced.rho == pytest.approx(1 / 32, rel=1e-3)
    assert used.claimed.rho == used.enforced.rho
    (finding,) = (each for each in audit.findings if each.statement == "rho")
    # The claim covers this trace, but not every run that the claimed limits permit.
    assert finding.verdict is Verdict.TRACE_ONLY
    permitted = "a round may be committed with 2 of 2 devices"
    assert sum(permitted in text for text in audit.assumptions) == 1
