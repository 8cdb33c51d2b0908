"""The claim `most_per_period` on local days: checked on runs and logs, and ensured before a run."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from fedray import import_log
from fedray.audit.auditing import audit_trace
from fedray.audit.check import check_participation
from fedray.audit.claims import Claim
from fedray.audit.findings import Finding, Verdict
from fedray.audit.participation import read_patterns
from fedray.audit.statements.most_per_period import MostPerPeriod
from fedray.audit.statements.statement import Subject
from fedray.base.errors import InputError
from fedray.mechanisms import Tree
from fedray.mechanisms.participation import MinSep
from fedray.runs.ensured import unensured
from fedray.runs.pipeline import run_scenario
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario

HERE = Placement(1, "in-process")
DAY, HOUR = 86_400.0, 3600.0
OFFSETS = np.arange(-12.0, 14.25, 0.25)


def claim_of(participations: int, **period) -> Claim:
    limit = {"participations": participations, **(period or {"period": "local_day"})}
    return Claim.model_validate(
        {"mechanism": Tree(), "noise_multiplier": 3.0, "most_per_period": limit}
    )


def finding_of(claim: Claim, trace) -> Finding:
    (finding,) = check_participation(claim, Subject(trace, read_patterns(trace), str))
    return finding


def log_of(folder: Path, times: list[np.ndarray]):
    """A log in which device i took part at times[i], seconds since 2025-01-01 UTC, a round each."""
    folder.mkdir()
    every = np.unique(np.concatenate(times))
    rows = "".join(
        f"d{device},{np.searchsorted(every, second)},{1735689600 + int(second)}\n"
        for device, seconds in enumerate(times)
        for second in seconds
    )
    (folder / "log.csv").write_text("d,r,t\n" + rows)
    log = folder / "log.csv"
    return import_log(log, "d", "r", every.size, folder / "t", time_column="t", time_unit="seconds")


def test_the_fullest_local_day_of_a_log_is_that_of_the_worst_zone(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    counts = []
    for number in range(25):
        # An odd second keeps the times from being rounded to minutes.
        times = [
            np.sort(rng.choice(4 * 86_400, int(rng.integers(2, 9)), replace=False))
            for _ in range(3)
        ]
        trace = log_of(tmp_path / str(number), times)
        assert trace.time_step <= 1.0
        fullest = max(
            np.unique(np.floor((each + HOUR * offset) / DAY), return_counts=True)[1].max()
            for each in times
            for offset in OFFSETS
        )
        finding = finding_of(claim_of(1), trace)
        assert finding.found == f"{fullest:,} on a local day"
        assert finding.verdict is (Verdict.HOLDS if fullest == 1 else Verdict.BROKEN)
        assert finding_of(claim_of(int(fullest)), trace).verdict is Verdict.HOLDS
        assert f'participations = {fullest}, period = "local_day"' in finding.should_say
        counts.append(int(fullest))
    assert len(set(counts)) > 2


def is_kept(pattern: tuple[int, ...], starts: np.ndarray, most: int, period: dict) -> bool:
    """Whether a device of some zone may be in these rounds."""
    each = starts[list(pattern)]
    if "hours" in period:
        return bool((each[most:] - each[:-most] >= HOUR * period["hours"]).all())
    days = np.floor((each + HOUR * OFFSETS[:, None]) / DAY)
    return bool((days[:, most:] > days[:, :-most]).all(axis=1).any())


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("period", [{"hours": 6.0}, {"period": "local_day"}])
def test_a_claimed_limit_of_a_log_ensures_the_largest_sensitivity_of_all_patterns_that_keep_it(
    tmp_path: Path, period: dict, most: int
) -> None:
    starts = 14 * 3600 + 1801 + 7200 * np.arange(14)
    trace = log_of(tmp_path / "l", [starts[[place]] for place in range(14)])
    enforced = audit_trace(trace, claim=claim_of(most, **period)).mechanisms[0].enforced
    found = enforced.sensitivity
    C = Tree().definition(14)
    patterns = (
        pattern
        for size in range(1, 11)
        for pattern in itertools.combinations(range(14), size)
        if is_kept(pattern, starts, most, period)
    )
    largest = max(np.linalg.norm(C[:, list(each)].sum(axis=1)) for each in patterns)
    assert found is not None
    assert found.is_exact
    assert found.value == pytest.approx(largest)
    assert is_kept(found.worst_pattern, starts, most, period)
    assert enforced.participation is not None
    outer = Tree().participation_sensitivity(enforced.participation).value
    if "hours" in period and most == 1:
        # It is a wait, of which (b, k) say all at an even pace.
        assert found.value == pytest.approx(outer)
    elif "hours" in period or most == 1:
        assert found.value < 0.95 * outer
    else:
        assert found.value <= outer * (1 + 1e-9)


@pytest.mark.parametrize("period", [{"hours": 6.0}, {"period": "local_day"}])
def test_a_claimed_limit_of_a_log_ensures_figures_as_a_claimed_timer_does(
    tmp_path: Path, period: dict
) -> None:
    """Rounds every two hours from 14:30 for 26 hours; a device in the first and the last, others in each."""
    starts = 14 * 3600 + 1801 + 7200 * np.arange(14)
    times = [starts[[0, 13]], *(starts[[place]] for place in range(1, 13))]
    trace = log_of(tmp_path / "l", times)
    audit = audit_trace(trace, claim=claim_of(1, **period))
    enforced = audit.mechanisms[0].enforced
    # Every third round is 6 h later; in some zone two midnights lie among the starts.
    expected = MinSep(14, 3, 5) if "hours" in period else MinSep(14, 1, 3)
    assert enforced.participation == expected
    assert "it follows from the claimed limit of 1 " in enforced.reason
    assert not enforced.may_rest_on
    # A limit that the log contradicts ensures nothing.
    broken = log_of(tmp_path / "b", [starts[[0, 1]], starts[2:]])
    found = audit_trace(broken, claim=claim_of(1, **period)).mechanisms[0].enforced
    assert found.participation is None
    assert "was not kept" in found.reason


TWICE = {"kind": "most_per_period", "participations": 2, "period": "local_day"}


def scenario(*policies: dict, **rounds) -> Scenario:
    zones = [{"share": 0.5, "utc_offset_hours": hours} for hours in (-3.0, 4.5)]
    given = {"count": 90, "report_goal": 20, "min_minutes_between": 20.0, "max_days": 5.0}
    return Scenario.from_tables(
        {
            "population": {"devices": 150, "time_zones": zones},
            "availability": {"model": "always_on"},
            "participation": {"policies": policies},
            "rounds": {**given, **rounds},
            "privacy": {"mechanism": "tree", "noise_multiplier": 3.0},
            "training": {"enabled": False},
        }
    )


@pytest.mark.slow
def test_a_run_is_checked_in_the_zones_of_its_devices(tmp_path: Path) -> None:
    trace = simulate(scenario(TWICE), HERE, tmp_path / "t")
    assert finding_of(claim_of(2), trace).verdict is Verdict.HOLDS
    finding = finding_of(claim_of(1), trace)
    assert (finding.verdict, finding.found) == (Verdict.BROKEN, "2 on a local day")
    # A day is no window: around a midnight there are more participations within hours.
    assert finding_of(claim_of(2, hours=5.0), trace).verdict is Verdict.BROKEN
    assert finding_of(claim_of(4, hours=24.0), trace).verdict is Verdict.HOLDS


@pytest.mark.parametrize(
    ("policy", "claim", "ensured"),
    [
        (TWICE, claim_of(2), ""),
        (TWICE, claim_of(1), "2 on a local day"),
        (TWICE, claim_of(4, hours=24.0), ""),
        (TWICE, claim_of(3, hours=24.0), "4 within 24 h"),
        (TWICE, claim_of(5, hours=24.5), "6 within 24.5 h"),
        ({**TWICE, "period": None, "hours": 12.0}, claim_of(4), ""),
        ({**TWICE, "period": None, "hours": 12.0}, claim_of(3), "4 on a local day"),
        ({**TWICE, "period": None, "hours": 12.0}, claim_of(2, hours=12.0), ""),
        ({**TWICE, "period": None, "hours": 12.0}, claim_of(1, hours=1.0), "2 within 1 h"),
        ({**TWICE, "participations": 1, "period": None, "hours": 24.0}, claim_of(1), ""),
    ],
)
def test_rules_on_periods_ensure_claims_on_periods(
    policy: dict, claim: Claim, ensured: str
) -> None:
    value = scenario({key: given for key, given in policy.items() if given is not None})
    problems = unensured(claim, value, MinSep(90, 1, 90))
    expected = f"the rules ensure {ensured}"
    assert [each.rpartition("; ")[2] for each in problems] == ([expected] if ensured else [])


@pytest.mark.slow
def test_a_release_beyond_the_claimed_local_day_is_not_made(tmp_path: Path, monkeypatch) -> None:
    value, claim = scenario(TWICE, count=60), claim_of(2)
    kept = run_scenario(value, HERE, tmp_path / "kept", ensure=claim)
    assert kept.run["ended"] == "completed"
    assert audit_trace(kept).claim_holds
    from fedray.server.policies.most_per_period import MostPerPeriod

    monkeypatch.setattr(MostPerPeriod, "absence", lambda *_: None)
    trace = run_scenario(value, HERE, tmp_path / "t", ensure=claim)
    assert "took part 2 on a local day before" in trace.run["ended"]
    assert 0 < trace.committed_rounds < 60
    assert audit_trace(trace).claim_holds


@pytest.mark.parametrize("period", [{}, {"hours": 2.0, "period": "local_day"}])
def test_a_period_is_either_hours_or_days(period: dict) -> None:
    with pytest.raises(InputError, match="needs either hours or period"):
        MostPerPeriod(participations=1, **period)


def test_periods_of_more_than_one_participation_need_rounds_that_select_together() -> None:
    rounds = {"mode": "buffered", "buffer": {"concurrency": 40, "max_staleness": 2}}
    with pytest.raises(InputError, match="participations are counted by the starts of rounds"):
        scenario(TWICE, **rounds, min_minutes_between=None)
