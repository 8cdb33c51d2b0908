"""Upload, then train: who may upload, who is drawn, and what an audit finds of it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedray.audit.audit import Audit
from fedray.audit.auditing import audit_trace
from fedray.audit.calibration import calibrate_trace
from fedray.audit.claims import Claim
from fedray.audit.noise import ServerNoise
from fedray.audit.participation import read_patterns
from fedray.audit.rules import violations_of
from fedray.audit.sampled import sampled
from fedray.audit.schedule import following_rounds
from fedray.audit.waits import waits_between
from fedray.base.errors import InputError, ScenarioError, Starved
from fedray.mechanisms.accounting.events import Gaussian, MinSepSampled, PoissonSampled, Repeated
from fedray.mechanisms.accounting.monte_carlo import monte_carlo_epsilon
from fedray.mechanisms.accounting.pld import pld_epsilon
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import BLT, Identity, Tree
from fedray.mechanisms.strategy import Strategy
from fedray.report.page import audit_page
from fedray.runs.budgeted import worst_rho
from fedray.runs.calibrated import worst_participation
from fedray.runs.learning import train
from fedray.runs.pipeline import run_scenario
from fedray.runs.simulation import resume, simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.server.rounds.schedules import Cyclic, MinSepPoisson, Poisson, Unresolved
from fedray.trace.reader import Trace
from fedray.wire.messages import Outcome, RunProgress

HERE = Placement(1, "in-process")
MIN_SEP, ROUNDS = 5, 22
HOUR = 3600.0
CYCLIC = {"kind": "cyclic", "min_sep": MIN_SEP}
POISSON = {"kind": "poisson", "probability": 0.02}
CYCLIC_POISSON = {
    "kind": "cyclic_poisson",
    "partitions": 5,
    "probability": 0.1,
    "assignment": "equal",
}
APART = {"kind": "min_sep", "min_sep": MIN_SEP, "probability": 0.3}
EVERYTHING = {"kind": "all"}
SCHEDULES = (CYCLIC, POISSON, CYCLIC_POISSON, APART, EVERYTHING)
LONG = "participation.policies=[{kind='swor', period_hours=9.0}]"
BLT_2 = BLT(kind="blt", theta=(0.95, 0.6), omega=(0.2, 0.3))


def scenario(schedule: dict, *overrides: str, **uploads: float) -> Scenario:
    count = uploads.get("windows", 1) if schedule is EVERYTHING else ROUNDS
    return Scenario.from_tables(
        {
            "seed": 11,
            "population": {"devices": 3000},
            "availability": {"model": "poisson", "sessions_per_day": 6.0},
            "participation": {"policies": [{"kind": "swor", "period_hours": 6.0}]},
            "rounds": {
                "mode": "upload-then-train",
                "count": count,
                "report_goal": 40,
                "uploads": {"window_hours": 4.0, "schedule": schedule, **uploads},
            },
            "training": {"enabled": False},
        }
    ).with_overrides(*overrides)


def simulated(folder: Path, value: Scenario, shards: int = 1) -> Trace:
    return simulate(value, Placement(shards, "in-process"), folder / "t")


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Trace:
    """One window, groups in turn."""
    return simulated(tmp_path_factory.mktemp("plain"), scenario(CYCLIC))


def test_an_upload_that_takes_centuries_ends_beyond_what_settlements_hold(tmp_path: Path) -> None:
    """Its end does not wrap around in 32 bits, of which numpy warns: the device does not come again."""
    slow = "latency={model_megabytes=1e3, downlink_megabytes_per_second=1e-3, downlink_sigma=3.0}"
    always, goal = "availability={model='always_on'}", "rounds.report_goal=10"
    run = scenario(CYCLIC, always, slow, goal, "rounds.max_days=3.0", windows=5)
    assert simulated(tmp_path, run).run["ended"] == "completed"


@pytest.fixture(scope="module")
def windows(tmp_path_factory) -> Trace:
    """Three windows, some of whose draws fail."""
    value = scenario(CYCLIC, LONG, windows=3, unresolved_share=0.09)
    return simulated(tmp_path_factory.mktemp("windows"), value)


@pytest.fixture(scope="module")
def whole_groups(plain: Trace, tmp_path_factory) -> Trace:
    """Every group takes part as a whole in each of its rounds."""
    size = plain.run["uploads"][0]["stored"] // MIN_SEP
    value = scenario(CYCLIC, f"rounds.report_goal={size}")
    return simulated(tmp_path_factory.mktemp("whole"), value)


@pytest.fixture(scope="module")
def poisson(tmp_path_factory) -> Trace:
    return simulated(tmp_path_factory.mktemp("poisson"), scenario(POISSON))


def rows_of(trace: Trace) -> dict[str, np.ndarray]:
    return trace.columns(0)


@pytest.fixture(scope="module")
def everything(tmp_path_factory) -> Trace:
    """Three windows, in each of which all uploads are one round."""
    folder = tmp_path_factory.mktemp("everything")
    return simulated(folder, scenario(EVERYTHING, windows=3))


def test_all_uploads_of_a_window_are_its_round(everything: Trace) -> None:
    rows, table = rows_of(everything), everything.rounds
    stored = [each["stored"] for each in everything.run["uploads"]]
    assert table["accepted"].tolist() == stored
    assert min(stored) > 40
    # Each device has at most one upload in a window, made within it.
    assert np.unique(np.stack([rows["device_id"], rows["round"]]), axis=1).shape[1] == sum(stored)
    assert (rows["report_time"] // (4 * HOUR) == rows["round"]).all()
    mechanism = audited(everything, Identity()).mechanisms[0]
    # The period of 6 h is more than a window of 4 h, yet the first of the next may come in time.
    assert mechanism.enforced.participation == MinSep(3, 1, 3)
    assert mechanism.sampled is None


def test_a_window_with_fewer_uploads_than_the_goal_ends_the_run(tmp_path: Path) -> None:
    value = scenario(EVERYTHING, "rounds.report_goal=2900", windows=3)
    with pytest.raises(Starved, match=r"stored \d+ uploads, .*report_goal=2900"):
        simulated(tmp_path, value)


def test_all_uploads_need_a_round_per_window() -> None:
    with pytest.raises(ScenarioError, match="one round per window, but count=4 with windows=3"):
        scenario(EVERYTHING, "rounds.count=4", windows=3)


def test_a_device_uploads_once_and_its_rounds_are_those_of_one_group(plain: Trace) -> None:
    rows, stored = rows_of(plain), plain.run["uploads"][0]["stored"]
    assert plain.committed_rounds == ROUNDS
    assert (plain.rounds["accepted"] == 40).all()
    assert (plain.rounds["eligible_estimate"] == stored // MIN_SEP).all()
    for device in np.unique(rows["device_id"]):
        own = rows["device_id"] == device
        assert np.unique(rows["checkin_time"][own]).size == 1
        assert np.unique(rows["round"][own] % MIN_SEP).size == 1
    assert (rows["report_time"] <= 4 * HOUR).all()
    assert (plain.rounds["started"] >= 4 * HOUR).all()
    assert next(iter(waits_between(plain, read_patterns(plain)) or []))[0].size == 0


@pytest.mark.parametrize(
    "schedule", [CYCLIC, CYCLIC_POISSON, APART, EVERYTHING], ids=lambda each: each["kind"]
)
def test_sharding_changes_nothing(tmp_path: Path, schedule: dict) -> None:
    windows = ROUNDS if schedule is EVERYTHING else 1
    value = scenario(schedule, "population.devices=140000", window_hours=1.0, windows=windows)
    value = value.with_overrides("rounds.uploads.unresolved_share=0.05")
    one, several = (simulated(tmp_path / str(count), value, count) for count in (1, 3))
    assert one.digest == several.digest


def test_a_run_that_was_interrupted_goes_on_to_the_same_trace(
    windows: Trace, tmp_path: Path
) -> None:
    def stop(progress: RunProgress) -> None:
        if progress.committed == 12:
            raise KeyboardInterrupt

    value = Scenario.from_tables(windows.scenario)
    often = Placement(1, "in-process", checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        simulate(value, often, tmp_path / "t", stop)
    told: list[int] = []
    trace = resume(tmp_path / "t", HERE, on_commit=lambda index, *_: told.append(index))
    assert trace.digest == windows.digest
    assert trace.run["uploads"] == windows.run["uploads"]
    assert told == list(range(ROUNDS))


@pytest.mark.slow
def test_what_is_learned_in_step_is_what_is_learned_from_the_trace(tmp_path: Path) -> None:
    value = scenario(
        CYCLIC,
        "training.enabled=true",
        "training.cohort_sample=36",
        "training.task={kind='quadratic'}",
        "data={kind='points', dimension=3}",
        "training.evaluation_devices=8",
        "rounds.count=4",
        unresolved_share=0.05,
    )
    trace = run_scenario(value, HERE, tmp_path / "t")
    assert trace.trained is not None
    again = train(trace, placement=HERE, out=tmp_path / "again")
    assert (trace.trained.parameters() == again.parameters()).all()


def squared_of_cyclic_tree(rounds: int, min_sep: int) -> int:
    """Per starting index i, the sum over complete nodes of the squared number of leaves under it
    that are congruent to i; the largest."""
    squares = []
    for start in range(min_sep):
        square, width = 0, 1
        while width <= rounds:
            for first in range(0, rounds - width + 1, width):
                leaves = range(first, first + width)
                square += sum(leaf % min_sep == start for leaf in leaves) ** 2
            width *= 2
        squares.append(square)
    return max(squares)


def audited(trace: Trace, strategy: Strategy) -> Audit:
    return audit_trace(trace, noise_multiplier=2.0, delta=1e-6, mechanism=strategy)


def test_a_tree_under_the_cyclic_order_has_the_sensitivity_of_its_residues(
    whole_groups: Trace,
) -> None:
    found = audited(whole_groups, Tree()).mechanisms[0].trace
    assert found.is_exact
    assert found.value**2 == pytest.approx(squared_of_cyclic_tree(ROUNDS, MIN_SEP), rel=1e-12)


def test_a_blt_under_the_cyclic_order_has_that_of_its_formula(whole_groups: Trace) -> None:
    participation = MinSep(ROUNDS, MIN_SEP, -(-ROUNDS // MIN_SEP))
    formula = BLT_2.participation_sensitivity(participation)
    mechanism = audited(whole_groups, BLT_2).mechanisms[0]
    assert mechanism.trace.value == pytest.approx(formula.value, rel=1e-12)
    assert mechanism.enforced.sensitivity is not None
    assert mechanism.enforced.sensitivity.value == pytest.approx(formula.value, rel=1e-12)


def test_the_schedule_enforces_its_min_sep_and_participations(plain: Trace) -> None:
    enforced = audited(plain, Tree()).mechanisms[0].enforced
    assert enforced.participation == MinSep(ROUNDS, MIN_SEP, -(-ROUNDS // MIN_SEP))
    assert enforced.may_rest_on
    sampled_ = audited(plain, Tree()).mechanisms[0].sampled
    assert sampled_ is not None
    assert (sampled_.epsilon, sampled_.sensitivity, sampled_.assumptions) == (None, None, ())
    assert "draws a fixed number of uploads of its group without replacement" in sampled_.reason


def test_windows_share_the_rounds_and_each_trains_on_its_own_uploads(windows: Trace) -> None:
    rows, table = rows_of(windows), windows.rounds
    committed = table["state"] == 0
    opened = table["opened"][committed]
    ends, counts = np.unique(opened, return_counts=True)
    assert ends.tolist() == [4 * HOUR, 8 * HOUR, 12 * HOUR]
    assert counts.tolist() == [8, 7, 7] == [each["rounds"] for each in windows.run["uploads"]]
    accepted = rows["outcome"] == Outcome.ACCEPTED
    ends_of_rows = opened[rows["round"][accepted]]
    uploaded = rows["report_time"][accepted]
    assert ((ends_of_rows - 4 * HOUR <= uploaded) & (uploaded <= ends_of_rows)).all()
    # The policy keeps uploads apart, whatever the schedule does with them.
    for device in np.unique(rows["device_id"]):
        times = np.unique(rows["checkin_time"][rows["device_id"] == device])
        assert (np.diff(times) > 9 * HOUR).all()
    enforced = audited(windows, Tree()).mechanisms[0].enforced
    # No device uploads in two windows of 4 h one after the other. So the last round of one and the
    # first of the next but one are 8 apart, and 5 is less; at most two windows have two rounds.
    assert enforced.participation == MinSep(ROUNDS, MIN_SEP, 4)


def test_windows_that_a_device_may_join_one_after_the_other_have_no_separation(
    tmp_path: Path,
) -> None:
    """Each pair of windows is within reach of a device, so rounds 7 and 8 may have it."""
    trace = simulated(tmp_path, scenario(CYCLIC, windows=3))
    enforced = audited(trace, Tree()).mechanisms[0].enforced
    assert enforced.participation == MinSep(ROUNDS, 1, 6)


def test_a_round_with_too_many_unresolved_uploads_is_repeated(windows: Trace) -> None:
    rows, table = rows_of(windows), windows.rounds
    is_failed = table["state"] == 1
    assert is_failed.any()
    unresolved = table["selected"] - table["reported"]
    assert (unresolved[is_failed] > 4).all()
    assert (unresolved[~is_failed] <= 4).all()
    assert (table["accepted"][~is_failed] == table["reported"][~is_failed]).all()
    outcomes = set(rows["outcome"].tolist())
    assert outcomes == {Outcome.ACCEPTED, Outcome.FAILED, Outcome.ABANDONED}
    assert rows["round"].size == table["selected"].sum()


def test_a_window_that_stores_too_little_ends_the_run(tmp_path: Path) -> None:
    value = scenario(CYCLIC, "rounds.report_goal=590")
    with pytest.raises(Starved, match=r"window 0 stored \d+ uploads, .*report_goal=590; lower it"):
        simulated(tmp_path, value)


def test_caps_count_uploads_and_lost_histories_do_not_upload_twice_in_a_window(
    tmp_path: Path,
) -> None:
    capped = scenario(CYCLIC, "participation.max_participations=1", windows=3)
    capped = capped.with_overrides("participation.history_loss_per_day=2.0")
    trace = simulated(tmp_path, capped)
    rows = rows_of(trace)
    is_broken = False
    for device in np.unique(rows["device_id"]):
        times = np.unique(rows["checkin_time"][rows["device_id"] == device])
        is_broken |= times.size > 1
        assert np.unique(times // (4 * HOUR)).size == times.size
    violations = violations_of(trace, capped)
    assert violations is not None
    assert is_broken == (violations.participations > 0)


def test_a_budget_ends_a_run_on_stored_uploads(whole_groups: Trace, tmp_path: Path) -> None:
    value = Scenario.from_tables(whole_groups.scenario)
    value = value.with_overrides(
        "privacy.mechanism={kind='tree'}", "privacy.noise_multiplier=2.0", "privacy.stop_at.rho=2.5"
    )
    trace = simulated(tmp_path, value)
    assert trace.run["ended"].startswith(f"stopped: round {trace.committed_rounds} would have")
    assert 0 < trace.committed_rounds < ROUNDS
    rho = audit_trace(trace).mechanisms[0].rho
    assert rho is not None
    assert rho <= 2.5
    assert (trace.rounds["accepted"][-1], trace.rounds["state"][-1]) == (0, 1)


def test_a_claimed_timer_says_nothing_of_the_rounds_of_one_upload(windows: Trace) -> None:
    """It is checked between uploads, and no min-sep follows from it."""
    own = Scenario.from_tables(windows.scenario).privacy
    claim = Claim(mechanism=own.mechanism, noise_multiplier=7.0, timer_hours=8.0)
    audit = audit_trace(windows, claim=claim)
    verdicts = {each.statement: each.verdict.name for each in audit.findings}
    assert verdicts["timer_hours"] == "HOLDS"
    assert "one upload takes part in several rounds" in audit.mechanisms[0].claimed.reason
    assert audit.mechanisms[0].claimed.sensitivity is None


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 3.7]),
    st.integers(1, 5),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_what_may_follow_is_what_looking_at_all_pairs_finds(
    counts: list[int], period: float, min_sep: int, across_windows: bool
) -> None:
    """Of windows of length 1, where an upload may be at any time of its own."""
    window = np.repeat(np.arange(len(counts)), counts)
    n = window.size
    expected = []
    for r in range(n):
        same = [s for s in range(r + min_sep, n) if window[s] == window[r]]
        later = [
            s
            for s in range(n)
            if window[s] > window[r] and window[s] + 1 > window[r] + period
            if not across_windows or s >= r + min_sep
        ]
        expected.append(min([*same, *later], default=n))
    found = following_rounds(window + 1.0, 1.0, period, min_sep, across_windows)
    assert found.tolist() == expected


def test_poisson_samples_are_independent_draws_with_their_probability(poisson: Trace) -> None:
    """False alarms: 1e-6 each."""
    stored = poisson.run["uploads"][0]["stored"]
    drawn = poisson.rounds["selected"].astype(float)
    mean, deviation = 0.02 * stored, np.sqrt(0.02 * 0.98 * stored)
    assert abs(drawn.mean() - mean) < 4.9 * deviation / np.sqrt(ROUNDS)
    assert drawn.min() < drawn.max()
    rows = rows_of(poisson)
    # Devices that were in two rounds at least, as a binomial law says.
    counts = np.unique(rows["device_id"], return_counts=True)[1]
    often = 1.0 - 0.98**ROUNDS - ROUNDS * 0.02 * 0.98 ** (ROUNDS - 1)
    assert abs((counts > 1).sum() - often * stored) < 4.9 * np.sqrt(often * stored)


@pytest.mark.parametrize("probability", [0.3, 1.0])
def test_min_sep_samples_have_the_law_of_their_process(probability: float) -> None:
    """Chi-square tests of first rounds and of gaps; false alarms: 1e-6 each."""
    b, n, uploads = 4, 60, 20_000
    schedule = MinSepPoisson(7, probability, b)
    schedule.start_window(0, np.arange(uploads, dtype=np.uint64))
    takes_part = np.zeros((n, uploads), np.bool_)
    for index in range(n):
        takes_part[index, schedule.draw(schedule.eligible(index), index)] = True
    # In every round the same share takes part, from the first one on.
    share = probability / (1 + (b - 1) * probability)
    spread = np.sqrt(share * (1 - share) * uploads)
    assert np.all(abs(takes_part.sum(axis=1) - share * uploads) < 6 * spread)
    first = takes_part[: 3 * b].argmax(axis=0)[takes_part[: 3 * b].any(axis=0)]
    rounds = np.arange(3 * b)
    waited = np.minimum(rounds, b - 1)
    # Free at the start and not drawn yet, or free since round w + 1 after a wait.
    law = [
        (
            (1 - probability) ** t
            + probability * sum((1 - probability) ** (t - w) for w in range(1, w_max + 1))
        )
        * share
        for t, w_max in zip(rounds, waited, strict=True)
    ]
    is_possible = np.array(law) > 1e-4
    found = np.bincount(first, minlength=3 * b)
    assert not found[np.array(law) == 0.0].any()
    expected = np.array(law)[is_possible] / sum(np.array(law)[is_possible])
    found = found[is_possible]
    assert chisquare(found, expected * found.sum()).pvalue > 1e-6
    columns, indices = np.nonzero(takes_part.T)
    gaps = np.diff(indices)[np.diff(columns) == 0]
    assert gaps.min() == b
    if probability == 1.0:
        assert gaps.max() == b
    else:
        # Gaps that begin early enough not to be cut off.
        begins = indices[:-1][np.diff(columns) == 0] < n - 40
        counts = np.bincount(gaps[begins] - b, minlength=12)[:12]
        geometric = probability * (1 - probability) ** np.arange(12)
        assert chisquare(counts, geometric / geometric.sum() * counts.sum()).pvalue > 1e-6


def test_the_audit_accounts_min_sep_samples_by_draws(tmp_path: Path) -> None:
    trace = simulated(tmp_path, scenario(APART))
    mechanism = audited(trace, Identity()).mechanisms[0]
    assert mechanism.enforced.participation == MinSep(ROUNDS, MIN_SEP, 5)
    assert mechanism.sampled is not None
    assert mechanism.enforced.epsilon is not None
    event = MinSepSampled(
        strategy=Identity(), rounds=ROUNDS, min_sep=MIN_SEP, probability=0.3, noise_multiplier=2.0
    )
    assert mechanism.sampled.event == event
    assert mechanism.sampled.epsilon == monte_carlo_epsilon(event, 1e-6)
    assert mechanism.sampled.epsilon < mechanism.enforced.epsilon
    assert "1e-06" in mechanism.sampled.assumptions[1]
    refused = audited(trace, BLT_2).mechanisms[0].sampled
    assert refused is not None
    assert refused.event is None
    assert "with probability=1" in refused.reason


def test_noise_for_min_sep_samples_is_not_calibrated_by_the_options_of_other_samples(
    tmp_path: Path,
) -> None:
    trace = simulated(tmp_path, scenario(APART))
    with pytest.raises(InputError, match="least separation .* noise multipliers of your choice"):
        calibrate_trace(trace, epsilon=2.0, delta=1e-6, mechanism=Identity())


@pytest.mark.parametrize(
    "schedule", [CYCLIC, CYCLIC_POISSON, APART, EVERYTHING], ids=lambda each: each["kind"]
)
def test_the_worst_case_of_a_run_is_what_its_schedule_enforces(
    tmp_path: Path, schedule: dict
) -> None:
    noise = ("privacy.noise_multiplier=2.0", "privacy.mechanism={kind='identity'}")
    value = scenario(schedule, *noise)
    enforced = audit_trace(simulated(tmp_path, value)).mechanisms[0].enforced
    assert worst_rho(value, worst_participation(value)) == pytest.approx(enforced.rho, rel=1e-12)


def test_random_allocation_accounts_for_any_mechanism_in_one_window(tmp_path: Path) -> None:
    allocated = {**APART, "probability": 1.0}
    trace = simulated(tmp_path, scenario(allocated))
    mechanism = audited(trace, BLT_2).mechanisms[0]
    assert mechanism.sampled is not None
    assert mechanism.sampled.epsilon is not None
    assert mechanism.enforced.epsilon is not None
    assert mechanism.sampled.epsilon < mechanism.enforced.epsilon
    windows = simulated(tmp_path / "windows", scenario(allocated, LONG, windows=2))
    refused = audited(windows, BLT_2).mechanisms[0].sampled
    assert refused is not None
    assert refused.event is None
    assert "use one window" in refused.reason


def test_the_audit_accounts_poisson_samples_by_their_event(poisson: Trace) -> None:
    mechanism = audited(poisson, Identity()).mechanisms[0]
    event = Repeated(
        event=PoissonSampled(probability=0.02, event=Gaussian(noise_multiplier=2.0)), count=ROUNDS
    )
    assert mechanism.sampled is not None
    assert mechanism.sampled.event == event
    assert mechanism.sampled.epsilon == pld_epsilon(event, 1e-6)
    assert mechanism.sampled.rho is None
    assert mechanism.sampled.may_rest_on
    assert mechanism.enforced.participation == MinSep(ROUNDS, 1, ROUNDS)
    assert mechanism.enforced.epsilon is not None
    assert mechanism.sampled.epsilon < mechanism.enforced.epsilon


def test_noise_for_poisson_samples_is_calibrated_by_the_options_that_the_refusal_names(
    poisson: Trace, fedray_command
) -> None:
    path = str(poisson.path)
    # No rho is proven of samples, so an epsilon must be asked for instead.
    code, out, err = fedray_command(
        "--quiet", "calibrate", path, "--mechanism", "identity", "--rho", "0.2"
    )
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "to an epsilon" in err
    found = re.findall(r"(sampling|rounds|min-sep|max participations) ([0-9.]*[0-9])", err)
    named = [f"--{name.replace(' ', '-')}={value}" for name, value in found]
    assert len(named) == 4
    code, out, _ = fedray_command(
        "mechanism", "identity", *named, "--epsilon", "2", "--delta", "1e-6", "--json"
    )
    assert code == 0
    z = json.loads(out)["noise_multiplier"]
    mechanism = audit_trace(poisson, z, 1e-6, Identity()).mechanisms[0]
    assert mechanism.sampled is not None
    assert 1.999 < mechanism.sampled.epsilon <= 2.0
    # Of correlated noise no amplification is proven, so the sensitivities are all there is.
    found = calibrate_trace(poisson, epsilon=2.0, delta=1e-6, mechanism=BLT_2)
    assert found.enforced.noise_multiplier is not None
    assert found.observed.noise_multiplier is not None


def test_a_page_has_the_guarantee_of_samples_beside_the_others(poisson: Trace) -> None:
    """Its epsilon is composed numerically, which bounds it; its sensitivity is exact."""
    page = audit_page(audited(poisson, Identity()))
    card = page.split('<article class="guarantee sampled may">')[1].split("</article>")[0]
    assert "an upper bound</p>" in card
    assert "rho (zCDP)" not in card
    refused = audit_page(audited(poisson, Tree()))
    card = refused.split('<article class="guarantee sampled">')[1].split("</article>")[0]
    assert "not known" in card
    assert "Not for publication as a DP guarantee." in card


def test_a_claimed_epsilon_may_follow_from_the_samples(poisson: Trace) -> None:
    spent = audited(poisson, Identity()).mechanisms[0].sampled
    assert spent is not None
    assert spent.epsilon is not None
    # The run's own mechanism is another, so that finding is broken whatever epsilon is.
    for claimed, holds in ((spent.epsilon * 1.01, True), (spent.epsilon * 0.9, False)):
        claim = Claim(mechanism=Identity(), noise_multiplier=2.0, epsilon=claimed, delta=1e-6)
        verdicts = {
            each.statement: each.verdict for each in audit_trace(poisson, claim=claim).findings
        }
        assert (verdicts["epsilon"].name == "HOLDS") == holds


@pytest.mark.parametrize(
    ("changes", "strategy", "reason"),
    [
        ({}, Tree(), "this tree mechanism has 22 bands, and two turns of a device may be 1 round"),
        ({"rounds.uploads.unresolved_share": 0.01}, Identity(), "not drawn independently"),
        ({"privacy.stop_at.rho": 1e5}, Identity(), "may end the run by who was drawn"),
        ({"rounds.uploads.schedule.probability": 0.03}, Identity(), "run.json states"),
    ],
)
def test_sampling_adds_nothing_where_nothing_is_proven(
    poisson: Trace, changes: dict, strategy: Strategy, reason: str
) -> None:
    value = Scenario.from_tables(poisson.scenario)
    value = value.with_overrides(*(f"{key}={worth}" for key, worth in changes.items()))
    found = sampled(poisson, value, strategy, ServerNoise(2.0), 1e-6)
    assert found is not None
    assert reason in found.reason
    assert (found.epsilon, found.sensitivity, found.may_rest_on) == (None, None, False)


def test_uploads_of_another_window_are_found(poisson: Trace, tmp_path: Path) -> None:
    """A trace that says that its windows were half as long."""
    value = Scenario.from_tables(poisson.scenario)
    value = value.with_overrides("rounds.uploads.window_hours=2.0")
    found = sampled(poisson, value, Identity(), ServerNoise(2.0), 1e-6)
    assert found is not None
    assert "is not its only one of the round's window" in found.reason


def test_numbers_that_the_probability_does_not_give_are_found(poisson: Trace) -> None:
    value = Scenario.from_tables(poisson.scenario)
    other = Trace(poisson.path, poisson.run)
    other.__dict__["rounds"] = {**poisson.rounds, "selected": poisson.rounds["selected"] * 3}
    found = sampled(other, value, Identity(), ServerNoise(2.0), 1e-6)
    assert found is not None
    assert "rounds were drawn in another way" in found.reason


def test_a_trace_in_which_nobody_took_part_has_nothing_to_audit(tmp_path: Path) -> None:
    value = scenario(POISSON, "rounds.count=2", "rounds.uploads.schedule.probability=1e-9")
    with pytest.raises(InputError, match="no device took part in any of its 2 rounds") as told:
        audit_trace(simulated(tmp_path, value))
    # The sampled guarantee follows from the probability, whoever was drawn, and is not zero.
    assert "nothing was spent" not in str(told.value)
    assert "evaluate the mechanism identity at sampling=1e-09" in str(told.value)


def test_an_empty_poisson_sample_is_a_round(tmp_path: Path) -> None:
    value = scenario(POISSON, "rounds.uploads.schedule.probability=1e-4")
    trace = simulated(tmp_path, value)
    assert trace.committed_rounds == ROUNDS
    assert (trace.rounds["accepted"] == 0).any()
    assert audited(trace, Identity()).mechanisms[0].sampled is not None


def test_groups_are_equal_and_apart_and_draws_lie_within_them() -> None:
    device_ids = np.arange(103, dtype=np.uint64)
    schedule = Cyclic(seed=1, groups=10, drawn=7)
    schedule.start_window(0, device_ids)
    groups = [schedule.eligible(turn) for turn in range(10)]
    assert {group.size for group in groups} == {10}
    assert np.unique(np.concatenate(groups)).size == 100
    assert (schedule.eligible(23) == groups[3]).all()
    first, again, other = (schedule.draw(groups[3], attempt) for attempt in (5, 5, 6))
    assert (first == again).all()
    assert not (first == other).all()
    assert first.size == 7
    assert np.isin(first, groups[3]).all()
    schedule.start_window(1, device_ids)
    assert not (schedule.eligible(3) == groups[3]).all()


def test_certain_draws_are_certain() -> None:
    device_ids = np.arange(50, dtype=np.uint64)
    everybody = Poisson(1, 1.0)
    everybody.start_window(0, device_ids)
    assert everybody.draw(everybody.eligible(0), 3).size == 50
    assert not Unresolved(1, 0.0).among(device_ids, 3).any()


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("rounds.mode='on-device'", "devices choose when they take part"),
        ("rounds.uploads.window_hours=1.3", "must be a multiple of look_ahead_minutes"),
        ("rounds.uploads.windows=23", "some windows would have no round"),
        ("rounds.max_days=0.1", "end after max_days"),
        ("rounds.start_share=0.9", "start_share is a rule for devices that wait"),
        ("rounds.uploads.unresolved_share=0.2", "unresolved_share"),
        # The whole first sentence of the key's description, which has a full stop in it.
        (
            "rounds.uploads.schedule={kind='poisson', probability=2}",
            r"round \(q in McMahan et al\. 2018\)\)$",
        ),
        ("participation.round_separation=3", "an upload, which belongs to no round"),
        (
            "training={enabled=true, cohort_sample=37}",
            "must not exceed rounds.report_goal=40, of which only 36 may be accepted",
        ),
    ],
)
def test_what_does_not_fit_is_refused(override: str, reason: str) -> None:
    with pytest.raises(ScenarioError, match=reason) as refused:
        scenario(CYCLIC, override, unresolved_share=0.05)
    assert "\n" not in str(refused.value)


def test_the_mode_needs_its_table() -> None:
    tables = scenario(CYCLIC).to_tables()
    del tables["rounds"]["uploads"]
    with pytest.raises(ScenarioError, match="needs the table uploads"):
        Scenario.from_tables(tables)
