"""Buffered rounds from end to end: the trace and its laws, resuming, training by versions, the audit, and what is refused."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fedray.audit.auditing import audit_trace
from fedray.base.errors import AggregatorLost, ScenarioError, TraceCorrupt
from fedray.clients.data.factory import source_of
from fedray.clients.workers import start_trainers
from fedray.mechanisms.registry import Toeplitz, Tree
from fedray.runs.learning import train
from fedray.runs.pipeline import resume_run, run_scenario
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.runtime.workers import InProcessWorker, Ready
from fedray.scenario import Scenario
from fedray.server.learning.noise import noise_stream
from fedray.server.learning.training import Cohort, TrainingLoop
from fedray.server.learning.workers import start_aggregator
from fedray.trace.reader import Trace
from fedray.wire.messages import Outcome, Progress, RunProgress, TrainingProgress

HERE = Placement(1, "in-process", checkpoint_seconds=0.0)
BUFFERED = (
    "population.devices=70000",
    "rounds.report_goal=100",
    "rounds.count=30",
    "rounds.look_ahead_minutes=5.0",
    'rounds.mode="buffered"',
    "rounds.buffer={concurrency=250, max_staleness=3, weighting={kind='polynomial'}}",
    "participation.timer_hours=0.2",
)
"""A timer of 12 minutes and rounds of about one, so that devices come back."""
TRAINED = (
    *BUFFERED,
    "training.enabled=true",
    "training.cohort_sample=30",
    "training.task={kind='quadratic'}",
    "data={kind='points', dimension=7}",
    "training.checkpoint_every=3",
)


@pytest.fixture(scope="module")
def trace(small, tmp_path_factory) -> Trace:
    """Of two parts."""
    return simulate(small(*BUFFERED), HERE, tmp_path_factory.mktemp("buffered") / "t")


@pytest.fixture(scope="module")
def reference(small, tmp_path_factory) -> Trace:
    return run_scenario(small(*TRAINED), HERE, tmp_path_factory.mktemp("trained") / "t")


def rows_of(trace: Trace) -> dict[str, np.ndarray]:
    parts = [trace.columns(part) for part in range(len(trace.run["parts"]))]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@pytest.mark.slow
def test_sharding_changes_nothing(trace: Trace, small, tmp_path: Path) -> None:
    other = simulate(small(*BUFFERED), Placement(2, "in-process"), tmp_path / "t")
    assert other.digest == trace.digest
    assert other.run["shards"] == 2
    assert len(trace.run["parts"]) == 2


def test_every_buffer_keeps_its_size_and_nobody_is_staler_than_permitted(trace: Trace) -> None:
    rows, closed = rows_of(trace), trace.rounds["closed"]
    accepted = rows["outcome"] == Outcome.ACCEPTED
    assert (np.bincount(rows["round"][accepted]) == 100).all()
    staleness = rows["round"].astype(int) - rows["version"]
    assert set(staleness[accepted]) == {0, 1, 2, 3}
    late = staleness[rows["outcome"] == Outcome.LATE]
    assert late.size
    assert (late > 3).all()
    # The version is the number of buffers that had been released when the device checked in.
    assert (np.searchsorted(closed, rows["checkin_time"], side="right") == rows["version"]).all()
    # Who reports does so while its buffer is open.
    reported = ~np.isnan(rows["report_time"])
    index = rows["round"][reported]
    assert (rows["report_time"][reported] <= closed[index]).all()
    assert (rows["report_time"][reported] >= trace.rounds["opened"][index]).all()
    assert (np.bincount(rows["round"]) == trace.rounds["selected"]).all()


def test_no_more_devices_train_at_once_than_concurrency_permits(trace: Trace) -> None:
    """Of those that reported the trace tells when they were done; the others only make it more."""
    rows = rows_of(trace)
    known = ~np.isnan(rows["report_time"])
    starts, ends = rows["checkin_time"][known], rows["report_time"][known]
    changes = np.concatenate(
        [
            np.column_stack([starts, np.ones(starts.size)]),
            np.column_stack([ends, -np.ones(ends.size)]),
        ]
    )
    at_once = np.cumsum(changes[np.lexsort((changes[:, 1], changes[:, 0]))][:, 1])
    assert 200 < at_once.max() <= 250


def test_a_device_is_in_a_buffer_once_even_without_a_timer(small, tmp_path: Path) -> None:
    few = ("population.devices=400", "rounds.report_goal=200", "participation.timer_hours=0.0")
    always = "availability.model=always_on"
    trace = simulate(small(*BUFFERED, *few, always), HERE, tmp_path / "t")
    audit = audit_trace(trace)
    assert audit.min_sep == 1
    assert audit.max_participations > 10
    enforced = audit.mechanisms[0].enforced.participation
    assert enforced is not None
    assert (enforced.min_sep, enforced.max_participations) == (1, 30)


@pytest.mark.parametrize(
    "rule",
    [
        "participation.timer_resets_on=accepted",
        "participation.timer_resets_on=selected",
        "participation.policies=[{kind='swor', period_hours=0.2}]",
        "participation.round_separation=7",
    ],
)
def test_what_the_rules_ensure_is_kept_by_the_trace(small, tmp_path: Path, rule: str) -> None:
    """The enforced min-sep counts buffers: it follows from when each was open, and from how stale a report may be."""
    few = ("population.devices=8000", "availability.model=always_on")
    timer = () if "policies" not in rule else ("participation.timer_hours=72.0",)
    if "separation" in rule:
        timer = ("participation.timer_hours=0.0",)
    audit = audit_trace(simulate(small(*BUFFERED, *few, *timer, rule), HERE, tmp_path / "t"))
    enforced = audit.mechanisms[0].enforced.participation
    assert enforced is not None, audit.mechanisms[0].enforced.reason
    assert audit.max_participations > 1
    assert 2 <= enforced.min_sep <= audit.patterns.min_sep
    assert audit.max_participations <= enforced.max_participations
    if "separation" in rule:
        assert enforced.min_sep == 7


def test_the_enforced_min_sep_of_a_timer_that_starts_with_the_model_allows_for_staleness(
    small, tmp_path: Path
) -> None:
    """A device whose stale report is used late has had its timer running for some rounds already."""
    few = ("population.devices=8000", "availability.model=always_on")
    enforced = {}
    for resets_on in ("accepted", "selected"):
        rule = f"participation.timer_resets_on={resets_on}"
        trace = simulate(small(*BUFFERED, *few, rule), HERE, tmp_path / resets_on)
        audit = audit_trace(trace)
        participation = audit.mechanisms[0].enforced.participation
        assert participation is not None
        # The slow twin: the first round in which a device of round r can be again, over all r.
        opened, closed = trace.rounds["opened"], trace.rounds["closed"]
        back = 3 if resets_on == "selected" else 0
        gaps = [
            s - r
            for r in range(30)
            for s in range(r + 1, 30)
            if closed[s] >= opened[max(0, r - back)] + 720.0
        ]
        enforced[resets_on] = participation.min_sep
        assert participation.min_sep == min(gaps)
    assert enforced["selected"] < enforced["accepted"]


@pytest.mark.slow
def test_an_interrupted_run_goes_on_to_the_same_trace_and_model(
    reference: Trace, small, tmp_path: Path
) -> None:
    def interrupt(progress: Progress) -> None:
        if isinstance(progress, RunProgress) and progress.committed == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_scenario(small(*TRAINED), HERE, tmp_path / "t", interrupt)
    resumed = resume_run(tmp_path / "t", Placement(2, "in-process"))
    assert resumed.digest == reference.digest
    assert_same_model(resumed, reference)


SEVERAL = (
    *BUFFERED,
    "rounds.count=25",
    "rounds.outages=[{start_hours=0.1, hours=0.05}]",
    "population.joins_per_day=20000.0",
    "participation.policies=[{kind='timer'}, {kind='swor', period_hours=0.1}, "
    "{kind='min_sep', minimum_separation=4, counts='gap'}]",
    "participation.max_participations=3",
    "participation.history_loss_per_day=3.0",
    "participation.clock_skew_hours=0.05",
    "participation.timer_resets_on=upload",
)


@pytest.mark.slow
def test_shards_and_interruptions_change_nothing_with_several_policies_at_once(
    small, tmp_path: Path
) -> None:
    whole = simulate(small(*SEVERAL), Placement(1, "in-process"), tmp_path / "a")
    whole.verify()
    assert audit_trace(whole).max_participations > 1
    assert whole.outcome_counts()["failed"] > 0

    def interrupt(progress: Progress) -> None:
        if isinstance(progress, RunProgress) and progress.committed == 15:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(small(*SEVERAL), HERE, tmp_path / "b", interrupt)
    assert resume_run(tmp_path / "b", Placement(2, "in-process")).digest == whole.digest


def test_a_budget_ends_the_run_before_the_buffer_that_would_break_it(small, tmp_path: Path) -> None:
    few = ("population.devices=8000", "availability.model=always_on")
    stop = "privacy.stop_at={rho=0.04}"
    trace = simulate(small(*BUFFERED, *few, stop), HERE, tmp_path / "t")
    assert trace.run["ended"].startswith("stopped: round")
    assert 1 < trace.committed_rounds < 30
    rho = audit_trace(trace).mechanisms[0].rho
    assert rho is not None
    assert rho <= 0.04
    assert trace.outcome_counts()["abandoned"] == 100


def weights_of(trace: Trace) -> dict[int, np.ndarray]:
    """By device: [participations, 2], rounds and weights."""
    rows = rows_of(trace)
    accepted = rows["outcome"] == Outcome.ACCEPTED
    found: dict[int, list] = {}
    for device, index, version in zip(
        *(rows[name][accepted].tolist() for name in ("device_id", "round", "version")), strict=True
    ):
        found.setdefault(device, []).append((index, (1.0 + index - version) ** -0.5))
    return {device: np.array(pairs) for device, pairs in found.items()}


@pytest.mark.parametrize("mechanism", ["own", "tree", "signed"])
def test_the_observed_sensitivity_is_that_of_the_weighted_patterns(
    trace: Trace, small, tmp_path: Path, mechanism: str
) -> None:
    """Brute force: every device's contributions as columns of C, scaled, all signs tried where C'C has negative entries."""
    few = ("population.devices=8000", "availability.model=always_on", "rounds.count=20")
    dense = simulate(small(*BUFFERED, *few), HERE, tmp_path / "t")
    strategy = {
        "own": small().privacy.mechanism,
        "tree": Tree(),
        "signed": Toeplitz(coefficients=(1.0, -0.6, 0.3, -0.2)),
    }[mechanism]
    C = strategy.definition(20)
    largest = 0.0
    for pairs in weights_of(dense).values():
        columns = C[:, pairs[:, 0].astype(int)] * pairs[:, 1]
        signs = np.array(np.meshgrid(*[[1.0, -1.0]] * len(pairs))).reshape(len(pairs), -1)
        largest = max(largest, float(np.linalg.norm(columns @ signs, axis=0).max()))
    audit = audit_trace(dense, mechanism=strategy)
    found = audit.mechanisms[0].trace
    assert found.weights
    assert max(found.weights) <= 1.0
    if found.is_exact and mechanism != "signed":
        assert found.value == pytest.approx(largest, rel=1e-9)
    else:
        # Vectors in the plane may do better than signs.
        assert largest * (1 - 1e-9) <= found.value <= 1.2 * largest
    assert "weight of its staleness" in audit.mechanisms[0].observed.sensitivity.theorem
    assert audit.mechanisms[0].observed_limits.sensitivity.value > found.value
    assert any("scaled by a function of its staleness" in text for text in audit.assumptions)


def test_a_training_step_is_the_computation_by_hand(small) -> None:
    """The quadratic: one gradient per device, from the parameters of its own version, clipped, weighted, summed, noised."""
    scenario: Scenario = small(
        *TRAINED,
        "rounds.count=6",
        "rounds.report_goal=4",
        "training.cohort_sample=4",
        "training.client={kind='fedsgd', learning_rate=0.5}",
        "training.server={kind='sgd', learning_rate=0.8, momentum=0.0}",
        "training.devices_at_once=2",
        "privacy.clip_norm=0.7",
        "privacy.noise_multiplier=0.1",
        "rounds.buffer={concurrency=9, max_staleness=3, "
        "weighting={kind='polynomial', exponent=1.5}}",
    )
    here = Placement(backend="in-process")
    loop = TrainingLoop(
        scenario, start_trainers(scenario, here, None), start_aggregator(scenario, here)
    )
    noise = noise_stream(
        scenario.privacy.mechanism, scenario.training_seed, 7, torch.device("cpu"), 6
    )
    points = source_of(scenario)
    versions = [np.zeros(7)]
    generator = np.random.default_rng(0)
    for index in range(6):
        device_ids = np.sort(generator.choice(1000, 4, replace=False)).astype(np.uint64)
        staleness = np.minimum(generator.integers(0, 4, 4), index)
        loop.train(index, Cohort(device_ids, (index - staleness).astype(np.uint32)))
        total = np.zeros(7)
        for device, stale in zip(device_ids, staleness.tolist(), strict=True):
            count = int(points.examples_on(np.array([device]))[0])
            inputs = points.examples(np.array([device]), np.arange(count)[None])["inputs"][0]
            update = -0.5 * (versions[index - stale] - inputs.astype(float).mean(axis=0))
            total += update * min(1.0, 0.7 / np.linalg.norm(update)) * (1.0 + stale) ** -1.5
        released = total + 0.1 * 0.7 * noise.next().numpy()
        versions.append(versions[-1] + 0.8 * released / 4)
        state = loop.state()
        np.testing.assert_allclose(state["aggregator.parameters"], versions[-1], atol=1e-5)
        kept = sorted(name for name in state if name.startswith("aggregator.older."))
        first = max(0, index + 1 - 3)
        assert kept == [f"aggregator.older.{version}" for version in range(first, index + 1)]


def assert_same_model(one: Trace, other: Trace) -> None:
    assert one.trained is not None
    assert other.trained is not None
    assert np.array_equal(one.trained.parameters(), other.trained.parameters())
    assert (one.trained.metrics["train_loss"] == other.trained.metrics["train_loss"]).all()


def test_training_from_the_trace_gives_the_model_of_the_run(
    reference: Trace, trace: Trace, tmp_path: Path
) -> None:
    assert reference.digest == trace.digest
    again = train(reference, None, HERE, tmp_path / "m")
    assert reference.trained is not None
    assert np.array_equal(again.parameters(), reference.trained.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [2, 13])
def test_an_interrupted_training_goes_on_to_the_same_bits(
    reference: Trace, tmp_path: Path, rounds: int
) -> None:
    """Its checkpoint has the older versions from which devices may still train."""

    def interrupt(progress: Progress) -> None:
        if isinstance(progress, TrainingProgress) and progress.trained == rounds:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(reference, None, HERE, tmp_path / "m", interrupt)
    resumed = train(reference, None, HERE, tmp_path / "m", is_resumed=True)
    assert reference.trained is not None
    assert np.array_equal(resumed.parameters(), reference.trained.parameters())


class DyingWorker(InProcessWorker):
    """An aggregator that is lost at the first calls of some method."""

    method, deaths = "start", 2

    def call(self, method: str, *arguments: Any) -> Ready[Any]:
        if method == DyingWorker.method and DyingWorker.deaths:
            DyingWorker.deaths -= 1
            raise AggregatorLost("the aggregator died (killed)")
        return super().call(method, *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("call", ["start", "commit", "state", "older_version"])
def test_an_aggregator_that_dies_is_told_the_older_versions_again(
    reference: Trace, tmp_path: Path, monkeypatch, call: str
) -> None:
    """One that is lost at "older_version" is lost while it is brought back, so another call must lose it first."""
    monkeypatch.setattr("fedray.server.learning.workers.InProcessWorker", DyingWorker)
    monkeypatch.setattr(DyingWorker, "method", call)
    monkeypatch.setattr(DyingWorker, "deaths", 2)

    def interrupt(progress: Progress) -> None:
        if isinstance(progress, TrainingProgress) and progress.trained == 10:
            raise KeyboardInterrupt

    if call == "older_version":
        with pytest.raises(KeyboardInterrupt):
            train(reference, None, HERE, tmp_path / "m", interrupt)
    is_resumed = call == "older_version"
    again = train(reference, None, HERE, tmp_path / "m", is_resumed=is_resumed)
    assert DyingWorker.deaths == 0
    assert reference.trained is not None
    assert np.array_equal(again.parameters(), reference.trained.parameters())


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_ray_changes_nothing(reference: Trace, small, tmp_path: Path) -> None:
    there = run_scenario(small(*TRAINED), Placement(2, trainers=2), tmp_path / "t")
    assert there.digest == reference.digest
    assert_same_model(there, reference)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (['rounds.mode="buffered"'], "mode='buffered' needs the table buffer; add buffer ="),
        (
            ["rounds.buffer={concurrency=9, max_staleness=1}"],
            "with mode='on-device', which does not",
        ),
        ([*BUFFERED, "rounds.over_selection=1.5"], "over_selection is given with mode='buffered'"),
        ([*BUFFERED, "rounds.report_timeout_minutes=9.0"], "report_timeout_minutes is given with"),
        ([*BUFFERED, "rounds.min_minutes_between=9.0"], "min_minutes_between is given with mode"),
        ([*BUFFERED, "rounds.start_share=0.9"], "start_share is given with mode='buffered'"),
        ([*BUFFERED, "rounds.closing={kind='goal'}"], "closing is given with mode='buffered'"),
        ([*BUFFERED, "rounds.buffer.concurrency=0"], "concurrency = 0"),
        ([*BUFFERED, "rounds.buffer.max_staleness=-1"], "max_staleness = -1"),
        ([*BUFFERED, "rounds.buffer.concurrency=75000"], "exceeds the 70000 devices that"),
        (
            [*BUFFERED, "rounds.report_goal=60000", "population.reach=0.5"],
            "exceeds the 35000 devices that",
        ),
        (
            [*BUFFERED, "rounds.buffer.weighting={kind='loss'}"],
            "a weight may depend only on staleness",
        ),
        ([*BUFFERED, "rounds.buffer.weighting.exponent=0.0"], "exponent = 0.0"),
        ([*BUFFERED, "privacy.encoding={kind='secagg'}"], "cannot know which buffer"),
        (
            [
                *BUFFERED,
                "privacy.mechanism={kind='identity'}",
                "privacy.clipping={kind='adaptive'}",
            ],
            "clipped to the norms of different versions",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(small, overrides: list[str], told: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        small(*overrides)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("version", "told"), [(40, "a version is larger than its round"), (0, "rounds stale")]
)
def test_a_version_that_cannot_be_is_refused(
    trace: Trace, tmp_path: Path, version: int, told: str
) -> None:
    shutil.copytree(trace.path, tmp_path / "t")
    file = tmp_path / "t" / trace.run["parts"][0]["file"]
    table = pq.read_table(file)
    place = table.schema.get_field_index("version")
    versions = pa.array(np.full(table.num_rows, version), pa.uint32())
    pq.write_table(table.set_column(place, table.schema.field(place), versions), file)
    with pytest.raises(TraceCorrupt, match=told):
        list(Trace.open(tmp_path / "t", verify=False).accepted())
    with pytest.raises(TraceCorrupt, match="column version"):
        list(Trace.open(tmp_path / "t").accepted())


def test_a_scaled_population_has_its_concurrency_scaled(small) -> None:
    assert small(*BUFFERED).scaled(0.5).rounds.buffer.concurrency == 125


def test_scenarios_of_other_modes_are_written_as_before(small) -> None:
    rounds = small().to_tables()["rounds"]
    assert "mode" not in rounds
    assert "buffer" not in rounds
    buffered = small(*BUFFERED)
    assert Scenario.from_tables(buffered.to_tables()) == buffered
