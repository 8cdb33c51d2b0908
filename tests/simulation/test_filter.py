"""Devices at their privacy budget are excluded: no device goes beyond it, the run goes on, and a
device is excluded only when its participation would have broken the budget."""

from pathlib import Path

import numpy as np
import pytest

from fedray.audit.auditing import audit_trace
from fedray.base.errors import InputError, ScenarioError
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import Gaussian
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.registry import BLT
from fedray.mechanisms.running import SensitivityFilter
from fedray.runs.learning import train
from fedray.runs.pipeline import resume_run
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.trace.reader import Trace
from fedray.wire.messages import Outcome

HERE = Placement(1, "in-process")
OVERRIDES = (
    "population.devices=9000",
    "rounds.count=24",
    "rounds.report_goal=300",
    "participation.timer_hours=3.0",
    "rounds.look_ahead_minutes=15.0",
    "rounds.max_days=6.0",
    "privacy.at_limit=exclude",
)
MECHANISMS = {
    "blt": ("privacy.stop_at.rho=0.09",),
    "tree": ("privacy.mechanism={kind='tree'}", "privacy.stop_at.rho=0.2"),
    "identity": ("privacy.mechanism={kind='identity'}", "privacy.stop_at.epsilon=1.5"),
}


@pytest.fixture(scope="module", params=MECHANISMS)
def run(request, small, tmp_path_factory) -> tuple[Scenario, Trace]:
    """A run that excludes some devices."""
    scenario = small(*OVERRIDES, *MECHANISMS[request.param])
    return scenario, simulate(scenario, HERE, tmp_path_factory.mktemp("run") / "t")


def rows_by_device(trace: Trace) -> dict[int, list[tuple[int, int]]]:
    """The (round, outcome) rows of every device, in order of time."""
    rows: dict[int, list[tuple[int, int]]] = {}
    for part in range(len(trace.run["parts"])):
        columns = trace.columns(part)
        for device, index, outcome in zip(
            columns["device_id"].tolist(),
            columns["round"].tolist(),
            columns["outcome"].tolist(),
            strict=True,
        ):
            rows.setdefault(device, []).append((index, outcome))
    return rows


def is_beyond(scenario: Scenario, pattern: list[int]) -> bool:
    """Whether a device with these rounds is beyond the budget, by the matrix itself."""
    privacy, rounds = scenario.privacy, scenario.rounds.count
    C = privacy.mechanism.definition(rounds)
    sensitivity = float(np.linalg.norm(C[:, pattern].sum(axis=1)))
    event = Gaussian(noise_multiplier=privacy.noise_multiplier, sensitivity=sensitivity)
    stop_at = privacy.stop_at
    assert stop_at is not None
    if stop_at.rho is not None:
        return rho_of(event) > stop_at.rho * (1 + 1e-9)
    assert stop_at.epsilon is not None
    return epsilon_of(event, privacy.budget_delta).epsilon > stop_at.epsilon * (1 + 1e-9)


@pytest.mark.slow
def test_no_device_is_beyond_and_whoever_is_excluded_would_have_been(
    run: tuple[Scenario, Trace],
) -> None:
    """Against C written down as a matrix, for every device of the trace."""
    scenario, trace = run
    assert trace.run["ended"] == "completed"
    excluded = 0
    found: dict[tuple[int, ...], bool] = {}

    def beyond(pattern: list[int]) -> bool:
        return found.setdefault(tuple(pattern), is_beyond(scenario, pattern))

    for rows in rows_by_device(trace).values():
        pattern = [index for index, outcome in rows if outcome == Outcome.ACCEPTED]
        assert not beyond(pattern)
        last, outcome = rows[-1]
        if outcome == Outcome.EXCLUDED:
            excluded += 1
            assert beyond([*pattern, last])
        assert all(outcome != Outcome.EXCLUDED for _, outcome in rows[:-1])
    assert 100 < excluded < 9000
    trace.verify()


@pytest.mark.slow
def test_shards_change_nothing(small, tmp_path: Path) -> None:
    scenario = small(*OVERRIDES, "population.devices=140000", "privacy.stop_at.rho=0.03")
    # Within a day most devices were in a round, and those that are left are too few.
    scenario = scenario.with_overrides(
        "rounds.report_goal=5000", "participation.timer_hours=1.0", "rounds.max_days=1.0"
    )
    one = simulate(scenario, HERE, tmp_path / "one")
    more = simulate(scenario, Placement(3, "in-process"), tmp_path / "more")
    assert one.outcome_counts()["excluded"] > 100
    assert one.run["ended"].startswith("starved")
    assert (more.digest, more.run["ended"]) == (one.digest, one.run["ended"])


@pytest.mark.slow
@pytest.mark.parametrize("moment", [8, 23])
def test_a_run_that_was_interrupted_excludes_the_same_devices(
    small, tmp_path: Path, moment: int
) -> None:
    scenario = small(*OVERRIDES, *MECHANISMS["blt"])
    reference = simulate(scenario, HERE, tmp_path / "reference")
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
    assert trace.digest == reference.digest


def test_a_lost_history_does_not_bring_an_excluded_device_back(small, tmp_path: Path) -> None:
    """The server's count decides; a device that forgot its timer is held to the budget too."""
    scenario = small(
        *OVERRIDES,
        *MECHANISMS["blt"],
        "participation.history_loss_per_day=0.5",
        "participation.history_loss=corrupted",
    )
    trace = simulate(scenario, HERE, tmp_path / "t")
    rows = rows_by_device(trace).values()
    excluded = [each for each in rows if each[-1][1] == Outcome.EXCLUDED]
    assert len(excluded) > 100
    for each in rows:
        pattern = [index for index, outcome in each if outcome == Outcome.ACCEPTED]
        assert len(pattern) <= 3
        assert all(outcome != Outcome.EXCLUDED for _, outcome in each[:-1])
    trace.verify()


def test_a_budget_that_no_device_reaches_changes_nothing(small, tmp_path: Path) -> None:
    free = small(*OVERRIDES[:-1])
    loose = free.with_overrides("privacy.stop_at.rho=5.0", "privacy.at_limit=exclude")
    digests = [
        simulate(each, HERE, tmp_path / str(place)).digest
        for place, each in enumerate([free, loose])
    ]
    assert digests[0] == digests[1]


def test_where_all_are_excluded_the_run_starves_and_says_so(small, tmp_path: Path) -> None:
    scenario = small(*OVERRIDES, "privacy.stop_at.rho=0.034", "rounds.max_days=4.0")
    trace = simulate(scenario, HERE, tmp_path / "t")
    assert trace.run["ended"].startswith("starved")
    assert "raise privacy.stop_at or privacy.noise_multiplier" in trace.run["ended"]
    # Somebody was excluded from the round that was never closed.
    trace.verify()


def test_a_training_keeps_the_way_in_which_its_trace_was_limited(small, tmp_path: Path) -> None:
    scenario = small(*OVERRIDES, *MECHANISMS["blt"], "training.enabled=true")
    trace = simulate(scenario, HERE, tmp_path / "t")
    with pytest.raises(InputError, match="privacy.at_limit=None but"):
        train(trace, scenario.with_overrides("privacy.at_limit=stop"), HERE, tmp_path / "x")


SIGNS = "privacy.mechanism={kind='toeplitz', coefficients=[1.0, -0.4, 0.3]}"
BUFFER = "rounds.buffer={concurrency=300, max_staleness=3}"


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ((), "at_limit='exclude' has no effect without stop_at"),
        (("privacy.stop_at.rho=0.1", SIGNS), "has negative entries"),
        (("privacy.stop_at.rho=0.0103",), "one participation has the sensitivity"),
        (("privacy.stop_at.rho=0.1", "rounds.mode=buffered", BUFFER), "which buffer its report"),
        (
            ("privacy.stop_at.rho=0.1", "privacy.at_limit=leave"),
            "at_limit = 'leave': input should be 'stop' or 'exclude'",
        ),
    ],
)
def test_what_is_not_sound_is_refused_in_one_line(
    small, overrides: tuple[str, ...], told: str
) -> None:
    with pytest.raises(ScenarioError, match=told) as error:
        small("privacy.at_limit=exclude", *overrides)
    assert "\n" not in str(error.value)


def test_a_filter_looks_at_a_device_alone() -> None:
    """What others do changes nothing of whether a device may take part."""
    strategy = BLT(kind="blt", theta=(0.9, 0.4), omega=(0.2, 0.3))
    rng = np.random.default_rng(3)
    alone, crowded = (SensitivityFilter(strategy, 40, 2.5) for _ in range(2))
    device = np.zeros(1, np.uint64)
    refused = 0
    for _ in range(40):
        others = np.unique(rng.integers(1, 30, 10)).astype(np.uint64)
        may = bool(alone.admits(device)[0])
        assert bool(crowded.admits(np.append(others[::-1], device))[-1]) == may
        comes = device[: int(may and rng.random() < 0.3)]
        refused += not may
        alone.add(comes)
        crowded.add(np.append(device[: comes.size], others[crowded.admits(others)]))
    assert 0 < refused < 40


def test_an_audit_tells_of_the_filter_and_what_it_ensures(
    run: tuple[Scenario, Trace],
) -> None:
    """The budget itself, which a guarantee may rest on; for this mechanism and noise alone."""
    scenario, trace = run
    audit = audit_trace(trace)
    found = audit.mechanisms[0].filtered
    assert found is not None
    assert found.may_rest_on
    assert found.rho is not None
    assert found.rho >= (audit.mechanisms[0].observed.rho or 0.0)
    stop_at = scenario.privacy.stop_at
    assert stop_at is not None
    if stop_at.rho is not None:
        assert found.rho == pytest.approx(stop_at.rho, rel=1e-9)
    else:
        assert found.epsilon == pytest.approx(stop_at.epsilon, rel=1e-9)
    exclusions = audit.exclusions
    assert exclusions is not None
    assert exclusions.devices == trace.outcome_counts()["excluded"]
    assert exclusions.participations > exclusions.of_others
    assert "kept by a filter" in " ".join(audit.assumptions)
    assert audit_trace(trace, noise_multiplier=8.0).mechanisms[0].filtered is None


def test_a_device_beyond_the_budget_refutes_the_filter(small, trace_of) -> None:
    """A trace in which a device took part more often than its budget allows has no such guarantee."""
    scenario = small("privacy.at_limit=exclude", "privacy.stop_at.rho=0.04", "rounds.count=12")
    patterns = [[0, 3, 6, 9], [1], [2, 4], [5], [7], [8], [10], [11]]
    trace = trace_of(patterns, 12, scenario)
    found = audit_trace(trace).mechanisms[0].filtered
    assert found is not None
    assert (found.rho, found.may_rest_on) == (None, False)
    assert "so the budget was not enforced" in found.reason


def test_the_command_and_the_page_tell_who_was_excluded(
    fedray_command, run: tuple[Scenario, Trace], tmp_path: Path
) -> None:
    _, trace = run
    code, out, err = fedray_command("audit", str(trace.path), "--page", str(tmp_path / "a.html"))
    assert code == 0, err
    assert "excluded at their budget" in out
    assert "filtered" in out
    page = (tmp_path / "a.html").read_text()
    assert "Excluded devices" in page


def test_a_claim_of_the_budget_follows_from_the_filter(
    fedray_command, small, tmp_path: Path
) -> None:
    scenario = small(*OVERRIDES, *MECHANISMS["tree"], "participation.timer_violators=0.1")
    trace = simulate(scenario, HERE, tmp_path / "t")
    assert audit_trace(trace).mechanisms[0].enforced.rho != 0.2
    for rho, code in ((0.2, 0), (0.199, 1)):
        claim = tmp_path / "claim.toml"
        claim.write_text(f"mechanism = {{kind = 'tree'}}\nnoise_multiplier = 7.0\nrho = {rho}\n")
        assert fedray_command("audit", str(trace.path), "--claim", str(claim))[0] == code
