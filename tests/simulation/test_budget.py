"""A privacy budget: a run ends before the first round that would break it, and at no other."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedray.audit.auditing import audit_trace
from fedray.audit.noise import ServerNoise
from fedray.audit.over_rounds import SpentAfter, privacy_over_rounds
from fedray.audit.participation import Patterns, read_patterns
from fedray.audit.sensitivity import trace_sensitivity
from fedray.base.errors import InputError, ScenarioError
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import Gaussian
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.runs.learning import train
from fedray.runs.pipeline import resume_run, run_scenario
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.server.rounds.budget import Budget
from fedray.server.rounds.coordinator import Coordinator
from fedray.trace.reader import Trace
from fedray.wire.messages import Settlement

HERE = Placement(1, "in-process")
OVERRIDES = (
    "population.devices=9000",
    "rounds.count=24",
    "rounds.report_goal=300",
    "participation.timer_hours=3.0",
    "rounds.look_ahead_minutes=15.0",
)
MECHANISMS = {
    "blt": (),
    "tree": ("privacy.mechanism={kind='tree'}",),
    "signs": ("privacy.mechanism={kind='toeplitz', coefficients=[1.0, -0.4, 0.3]}",),
}


@pytest.fixture(scope="module")
def whole(small, tmp_path_factory) -> Trace:
    """All rounds, without a budget."""
    return simulate(small(*OVERRIDES), HERE, tmp_path_factory.mktemp("whole") / "t")


def spent_by(trace: Trace, scenario: Scenario) -> list[SpentAfter]:
    """What an audit says was spent after every round."""
    privacy, patterns = scenario.privacy, read_patterns(trace)
    rounds = patterns.committed_rounds
    noise = ServerNoise(privacy.noise_multiplier)
    return privacy_over_rounds(privacy.mechanism, patterns, noise, privacy.delta, entries=rounds)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("what", ["rho", "epsilon"])
@pytest.mark.parametrize("share", [0.3, 0.7, 0.999])
def test_the_run_ends_at_the_first_round_that_would_break_the_budget(
    small, whole: Trace, tmp_path: Path, mechanism: str, what: str, share: float
) -> None:
    """Against audits of the same run without a budget, of as many rounds and of one more."""
    free = small(*OVERRIDES, *MECHANISMS[mechanism])
    entries = spent_by(whole, free)
    first, last = (getattr(each, what) for each in (entries[0], entries[-1]))
    most = first + share * (last - first)
    kept = sum(getattr(entry, what) <= most for entry in entries)
    scenario = free.with_overrides(f"privacy.stop_at.{what}={most!r}")
    trace = simulate(scenario, HERE, tmp_path / "t")
    assert trace.committed_rounds == kept < len(entries)
    audit = audit_trace(trace)
    assert getattr(audit.mechanisms[0], what) <= most * (1 + 1e-9)
    assert getattr(entries[kept], what) > most
    assert trace.run["ended"].startswith(f"stopped: round {kept} would have brought a device to ")
    assert f"privacy.stop_at.{what}=" in trace.run["ended"]


def as_patterns(cohorts: list[list[int]]) -> Patterns:
    rows = sorted((device, t) for t, cohort in enumerate(cohorts) for device in cohort)
    devices, counts = np.unique([device for device, _ in rows], return_counts=True)
    rounds = np.array([t for _, t in rows], np.uint32)
    return Patterns(len(cohorts), devices.astype(np.uint64), counts, rounds)


@pytest.mark.slow
@given(
    st.lists(st.sets(st.integers(0, 12), min_size=1, max_size=5), min_size=2, max_size=24),
    st.sampled_from(list(MECHANISMS)),
    st.floats(0.0, 1.0),
    st.sampled_from(["rho", "epsilon"]),
)
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_for_any_trace_the_audit_is_within_the_budget_and_beyond_it_a_round_later(
    small, cohorts: list[set[int]], mechanism: str, share: float, what: str
) -> None:
    free = small(*OVERRIDES, *MECHANISMS[mechanism])
    rounds = [sorted(cohort) for cohort in cohorts]

    def spent(n: int) -> float:
        """By an audit of the first rounds."""
        found = trace_sensitivity(free.privacy.mechanism, as_patterns(rounds[:n])).value
        release = Gaussian(noise_multiplier=free.privacy.noise_multiplier, sensitivity=found)
        delta = free.privacy.delta
        return rho_of(release) if what == "rho" else epsilon_of(release, delta).epsilon

    first, last = spent(1), spent(len(rounds))
    most = (first + share * (last - first)) * (1 + 1e-9)
    budget = Budget.of(free.with_overrides(f"privacy.stop_at.{what}={most!r}"))
    assert budget is not None
    committed = 0
    for cohort in rounds:
        if budget.refusal(np.array(cohort, np.uint64)):
            break
        committed += 1
    assert spent(committed) <= most * (1 + 1e-9)
    assert committed == len(rounds) or spent(committed + 1) > most * (1 - 1e-9)


def test_nothing_of_the_refused_round_is_released_and_all_before_is_as_without_a_budget(
    small, whole: Trace, tmp_path: Path
) -> None:
    entries = spent_by(whole, small(*OVERRIDES))
    kept = 15
    scenario = small(*OVERRIDES, f"privacy.stop_at.rho={entries[kept].rho * (1 - 1e-6)!r}")
    committed: list[int] = []
    trace = simulate(
        scenario,
        HERE,
        tmp_path / "t",
        on_commit=lambda index, ids, versions: committed.append(index),
    )
    assert committed == list(range(trace.committed_rounds))
    assert trace.rounds["state"][-1] == 1  # abandoned
    assert trace.rounds["accepted"][-1] == 0
    size = trace.rounds["state"].size
    for name, column in trace.rounds.items():
        if name not in ("state", "accepted"):
            assert (column == whole.rounds[name][:size]).all()
    before, after = read_patterns(whole), read_patterns(trace)
    owners = np.repeat(before.device_ids, before.counts)
    is_kept = before.rounds < trace.committed_rounds
    assert (owners[is_kept] == np.repeat(after.device_ids, after.counts)).all()
    assert (before.rounds[is_kept] == after.rounds).all()
    trace.verify()


def test_a_budget_that_is_not_reached_changes_nothing(small, whole: Trace, tmp_path: Path) -> None:
    spent = spent_by(whole, small(*OVERRIDES))[-1]
    scenario = small(
        *OVERRIDES, f"privacy.stop_at={{rho={spent.rho!r}, epsilon={spent.epsilon!r}}}"
    )
    trace = simulate(scenario, HERE, tmp_path / "t")
    assert trace.digest == whole.digest
    assert trace.run["ended"] == "completed"


def test_of_two_budgets_the_stricter_decides(small, whole: Trace, tmp_path: Path) -> None:
    """And epsilon is taken at the budget's own delta."""
    entries = spent_by(whole, small(*OVERRIDES))
    loose = f"rho={entries[-1].rho!r}"
    scenario = small(
        *OVERRIDES, f"privacy.stop_at={{{loose}, epsilon={entries[9].epsilon!r}, delta=1e-12}}"
    )
    trace = simulate(scenario, HERE, tmp_path / "t")
    assert 0 < trace.committed_rounds < 10
    assert audit_trace(trace, delta=1e-12).mechanisms[0].epsilon <= entries[9].epsilon
    assert "epsilon=" in trace.run["ended"]
    assert "rho=" not in trace.run["ended"]


@pytest.mark.slow
@pytest.mark.parametrize("shards", [2, 3])
def test_shards_change_nothing(small, tmp_path: Path, shards: int) -> None:
    budget = small(*OVERRIDES, "population.devices=200000", "privacy.stop_at.rho=0.0125")
    one = simulate(budget, HERE, tmp_path / "one")
    more = simulate(budget, Placement(shards, "in-process"), tmp_path / "more")
    assert (more.digest, more.run["ended"]) == (one.digest, one.run["ended"])
    assert one.run["ended"].startswith("stopped")


@pytest.mark.slow
@pytest.mark.parametrize("moment", [4, 12, 13])
def test_a_run_that_was_interrupted_ends_at_the_same_round(
    small, whole: Trace, tmp_path: Path, moment: int, monkeypatch
) -> None:
    """Interrupted among the rounds, after the last that is committed, or after the refused one."""
    entries = spent_by(whole, small(*OVERRIDES))
    scenario = small(
        *OVERRIDES, f"privacy.stop_at.rho={0.5 * sum(e.rho for e in entries[11:13])!r}"
    )
    reference = simulate(scenario, HERE, tmp_path / "reference")
    assert reference.committed_rounds == 12
    seen = 0

    def interrupt(progress) -> None:
        nonlocal seen
        seen += 1
        if seen == moment:
            raise KeyboardInterrupt

    often = Placement(1, "in-process", checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        simulate(scenario, often, tmp_path / "t", on_progress=interrupt)
    trace = resume_run(tmp_path / "t", often)
    assert (trace.digest, trace.run["ended"]) == (reference.digest, reference.run["ended"])


def test_a_coordinator_without_a_budget_keeps_no_patterns(small) -> None:
    coordinator = Coordinator(small(*OVERRIDES), [])
    none = np.zeros(3)
    ids, times = none.astype(np.uint64), none.astype(np.uint32)
    codes = none.astype(np.uint8)
    coordinator.remember(Settlement(0, 0, ids, none, none, codes, times, none > 0, times))
    assert coordinator.tasks[0]._budget is None


def test_the_command_tells_of_the_end_and_does_not_fail(
    fedray_command, small, tmp_path: Path
) -> None:
    """In the terminal, as JSON and on the page; and so does an audit, later."""
    scenario = small(*OVERRIDES, "privacy.stop_at.rho=0.03")
    (tmp_path / "s.toml").write_text(scenario.to_toml())
    run = (
        "run",
        str(tmp_path / "s.toml"),
        "--place",
        "backend=in-process",
        "--out",
        str(tmp_path / "t"),
    )
    code, out, err = fedray_command(*run)
    assert code == 0, err
    assert out.startswith("ended     stopped: round")
    assert "above privacy.stop_at.rho=0.03" in " ".join(out.split())
    page = (tmp_path / "t" / "report.html").read_text()
    assert "within it by construction" in page
    assert "stopped: round" in page
    code, out, _ = fedray_command("audit", str(tmp_path / "t"), "--json")
    assert code == 0
    assert json.loads(out)["ended"].startswith("stopped")


def test_the_model_is_trained_on_the_committed_rounds(small, tmp_path: Path) -> None:
    scenario = small(
        *OVERRIDES,
        "privacy.stop_at.rho=0.03",
        "training.enabled=true",
        "training.cohort_sample=4",
        "training.task={kind='quadratic'}",
        "data={kind='points'}",
    )
    trace = run_scenario(scenario, HERE, tmp_path / "t")
    assert trace.trained is not None
    assert trace.trained.document["rounds"] == trace.committed_rounds < 24
    again = train(trace, scenario, HERE, tmp_path / "again")
    assert (again.path / "model.safetensors").read_bytes() == (
        trace.trained.path / "model.safetensors"
    ).read_bytes()
    with pytest.raises(InputError, match="the budget, which determined the rounds"):
        train(trace, scenario.with_overrides("privacy.stop_at.rho=0.04"), HERE, tmp_path / "x")


@pytest.mark.parametrize(
    ("stop_at", "told"),
    [
        ("{}", "has neither rho nor epsilon"),
        ("{delta=1e-6}", "has neither rho nor epsilon"),
        ("{rho=1.0, delta=1e-6}", "has no effect without stop_at.epsilon"),
        ("{rho=0.0}", "greater than 0"),
        ("{epsilon=-1.0}", "greater than 0"),
        ("{rh=1.0}", "did you mean 'rho'"),
        ("{rho=1e-9}", "the first round already spends"),
        ("{epsilon=1e-9}", "the first round already spends"),
        ("7", "stop_at"),
    ],
)
def test_impossible_budgets_are_refused_in_one_line(small, stop_at: str, told: str) -> None:
    with pytest.raises(ScenarioError, match=told) as error:
        small(f"privacy.stop_at={stop_at}")
    assert "\n" not in str(error.value)


def test_scenarios_without_a_budget_keep_their_digest(small) -> None:
    scenario = small()
    assert "stop_at" not in scenario.to_tables()["privacy"]
    assert small("privacy.stop_at.rho=1.0").digest != scenario.digest
