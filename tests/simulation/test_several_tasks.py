"""Runs of several tasks: one alone is the run that it would be, no device does two things at once, timers of a group are shared, and
nothing depends on shards or interruptions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedray.base.errors import CheckpointError, InputError, Starved
from fedray.runs.pipeline import resume_run, run_scenario
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario, SeveralTasks
from fedray.trace.reader import Trace
from fedray.trace.several_tasks import TasksRun
from fedray.wire.messages import Progress, RunProgress

HERE = Placement(1, "in-process")
RULES = (
    "rounds.outages=[{start_hours=2.0, hours=1.5}]",
    "population.joins_per_day=3000.0",
    "population.lifetime_days=20.0",
    "participation.policies=[{kind='timer'}, {kind='swor', period_hours=5.0}, "
    "{kind='min_sep', minimum_separation=2, counts='gap'}, {kind='data_available', min_example_count=20}]",
    "participation.max_participations=3",
    "participation.history_loss_per_day=0.5",
    "participation.timer_violators=0.1",
    "participation.clock_skew_hours=1.0",
)


def several(scenario: Scenario, **tasks: dict[str, Any]) -> SeveralTasks:
    """A scenario's tables with tasks."""
    return SeveralTasks.from_tables({**scenario.to_tables(), "tasks": tasks})


def digests(run: TasksRun) -> dict[str, str]:
    return {name: trace.digest for name, trace in run.traces.items()}


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        pytest.param(RULES, marks=pytest.mark.slow),
        pytest.param(("rounds.sampler=thinning", *RULES[1:]), marks=pytest.mark.slow),
        pytest.param(("rounds.report_goal=1000", "rounds.max_days=3"), marks=pytest.mark.slow),
        pytest.param(("privacy.stop_at={rho=0.02}", "population.devices=2500"), marks=pytest.mark.slow),
    ],
    ids=["as it is", "every rule", "thinning", "starved", "budget"],
)  # fmt: skip
def test_a_task_without_others_has_the_trace_of_its_scenario(
    small, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    scenario = small(*overrides)
    alone = simulate(scenario, HERE, tmp_path / "alone")
    run = simulate(several(scenario, only={}), HERE, tmp_path / "tasks")
    assert run.traces["only"].digest == alone.digest
    assert run.traces["only"].run["ended"] == alone.run["ended"]
    assert run.traces["only"].scenario["rounds"] == alone.scenario["rounds"]


BIG = ("population.devices=200000", "rounds.count=15")
"""Two parts of a trace and more, so that there can be two shards."""
TASKS: dict[str, dict[str, Any]] = {
    "next-word": {"timer_group": "keyboard", "weight": 3},
    "suggestions": {"timer_group": "keyboard", "rounds": {"report_goal": 350}},
    "late": {
        "starts_days": 0.4,
        "rounds": {"report_goal": 60, "count": 9},
        "participation": {"timer_hours": 3.0, "max_participations": 2, "round_separation": 2},
        "latency": {"train_seconds": 30.0},
        "privacy": {"mechanism": {"kind": "tree"}},
    },
}


@pytest.fixture(scope="module")
def reference(small, tmp_path_factory) -> TasksRun:
    scenario = small(*BIG, *RULES[:1], "participation.timer_hours=4.0")
    return simulate(several(scenario, **TASKS), HERE, tmp_path_factory.mktemp("one") / "t")


def scenario_of(run: TasksRun) -> SeveralTasks:
    return SeveralTasks.of_document(run.document, "recorded", run.path)


@pytest.mark.slow
def test_shards_and_interruptions_change_nothing(reference: TasksRun, tmp_path: Path) -> None:
    placement = Placement(2, "in-process", checkpoint_seconds=0.0)
    recorded = scenario_of(reference)

    def interrupt(progress: Progress) -> None:
        if isinstance(progress, RunProgress) and progress.committed == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="resume="):
        simulate(recorded, placement, tmp_path / "t", interrupt)
    with pytest.raises(CheckpointError, match="another scenario"):
        resume_run(tmp_path / "t", HERE, several(recorded.common, other={}))
    resumed = resume_run(tmp_path / "t", HERE)
    assert digests(resumed) == digests(reference)
    assert resumed.digest == reference.digest
    with pytest.raises(CheckpointError, match="is complete"):
        resume_run(tmp_path / "t", HERE)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_ray_changes_nothing(reference: TasksRun, tmp_path: Path) -> None:
    run = simulate(scenario_of(reference), Placement(2), tmp_path / "t")
    assert digests(run) == digests(reference)


def rows_of(trace: Trace) -> dict[str, np.ndarray]:
    """All rows of a trace, of accepted and other devices."""
    parts = [trace.columns(place) for place in range(len(trace.run["parts"]))]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def in_order(traces: list[Trace]) -> tuple[np.ndarray, ...]:
    """(device, check-in, report, outcome) of the rows of some traces together, by device and time; reports may be NaN."""
    rows = [rows_of(trace) for trace in traces]
    names = ("device_id", "checkin_time", "report_time", "outcome")
    columns = [np.concatenate([each[name] for each in rows]) for name in names]
    order = np.lexsort((columns[1], columns[0]))
    return tuple(column[order] for column in columns)


def test_no_device_does_two_things_at_once(reference: TasksRun) -> None:
    devices, check_ins, reports, _ = in_order(list(reference.traces.values()))
    is_same = devices[1:] == devices[:-1]
    assert is_same.sum() > 100
    # A device that reported was busy until then.
    known = is_same & ~np.isnan(reports[:-1])
    assert (check_ins[1:][known] >= reports[:-1][known]).all()
    assert (check_ins[1:][is_same] > check_ins[:-1][is_same]).all()


def waits(traces: list[Trace]) -> np.ndarray:
    """Seconds from a device's accepted report in any of the traces to its next check-in in any of them."""
    devices, check_ins, reports, outcomes = in_order(traces)
    follows = (devices[1:] == devices[:-1]) & (outcomes[:-1] == 0)
    return check_ins[1:][follows] - reports[:-1][follows]


FEW = (
    "population.devices=4000",
    "rounds.report_goal=40",
    "rounds.count=30",
    "participation.timer_hours=2.0",
)


@pytest.mark.parametrize("rule", ["timer", "swor"])
def test_a_contribution_to_one_task_of_a_group_counts_for_all(
    small, tmp_path: Path, rule: str
) -> None:
    rules = [
        "participation.policies=[{kind='swor', period_hours=2.0}]",
        "participation.timer_hours=72.0",
    ]
    scenario = small(*FEW, *(rules if rule == "swor" else ()))
    # The period of swor begins with the upload, which takes seconds.
    least = 2 * 3600 - (60 if rule == "swor" else 0)
    both = {name: {"timer_group": "g"} for name in ("one", "two")}
    together = simulate(several(scenario, **both, apart={}), HERE, tmp_path / "t")
    grouped = waits([together.traces[name] for name in both])
    assert grouped.size > 50
    assert grouped.min() >= least
    assert waits(list(together.traces.values())).min() < 3600
    for trace in together.traces.values():
        assert waits([trace]).min() >= least


def test_a_cap_of_one_task_does_not_keep_devices_from_those_that_share_its_timer(
    small, tmp_path: Path
) -> None:
    tasks = {
        "once": {"timer_group": "g", "participation": {"max_participations": 1}},
        "often": {"timer_group": "g"},
    }
    scenario = small(*FEW)
    run = simulate(several(scenario, **tasks), HERE, tmp_path / "t")
    once, often = (next(run.traces[name].accepted()) for name in tasks)
    assert np.unique(once.device_ids).size == once.device_ids.size
    assert np.unique(often.device_ids).size < often.device_ids.size
    is_later = np.isin(often.device_ids, once.device_ids)
    assert is_later.any()


def test_a_task_begins_when_it_starts_and_the_others_do_not_wait(reference: TasksRun) -> None:
    late = reference.traces["late"].rounds
    assert late["opened"].min() == late["started"].min() - (late["started"] - late["opened"])[0]
    assert late["opened"][0] == 0.4 * 86_400
    assert reference.traces["next-word"].rounds["started"][0] < 0.2 * 86_400
    assert [trace.committed_rounds for trace in reference.traces.values()] == [15, 15, 9]


@pytest.mark.slow
def test_a_task_that_ends_early_leaves_the_devices_to_the_others(small, tmp_path: Path) -> None:
    tasks = {
        "stops": {"privacy": {"stop_at": {"rho": 0.02}}},
        "starves": {"participation": {"max_participations": 1}, "rounds": {"count": 100}},
        "goes-on": {},
    }
    scenario = small(
        "population.devices=2500",
        "rounds.report_goal=30",
        "rounds.max_days=3",
        "rounds.count=40",
        "participation.timer_hours=5.0",
        # Without losses of history it would be certain before the run that one task starves.
        "participation.history_loss_per_day=1e-9",
    )
    named = several(scenario, **tasks)
    run = simulate(named, HERE, tmp_path / "t")
    ended = {name: trace.run["ended"].partition(":")[0] for name, trace in run.traces.items()}
    assert ended == {"stops": "stopped", "starves": "starved", "goes-on": "completed"}

    def interrupt(progress: Progress) -> None:
        if isinstance(progress, RunProgress) and progress.committed == 60:
            raise KeyboardInterrupt

    often = Placement(1, "in-process", checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        simulate(named, often, tmp_path / "i", interrupt)
    assert digests(resume_run(tmp_path / "i", HERE)) == digests(run)


@pytest.mark.slow
def test_a_run_that_is_resumed_when_a_task_starves_has_the_same_traces(
    small, tmp_path: Path
) -> None:
    """The last checkpoint is that of the moment at which the simulated days run out, while devices wait for a task."""
    tasks = {"ends": {"rounds": {"report_goal": 40, "count": 3}}, "starves": {}}
    scenario = small("rounds.report_goal=1000", "rounds.max_days=1", "rounds.count=20")
    named = several(scenario, **tasks)
    run = simulate(named, HERE, tmp_path / "t")
    assert run.traces["starves"].run["ended"].startswith("starved: rounds.max_days=1 ran out")

    def interrupt(progress: Progress) -> None:
        if isinstance(progress, RunProgress) and progress.simulated_seconds >= 86_400.0:
            raise KeyboardInterrupt

    often = Placement(1, "in-process", checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        simulate(named, often, tmp_path / "i", interrupt)
    assert digests(resume_run(tmp_path / "i", HERE)) == digests(run)


@pytest.mark.slow
def test_the_trace_of_each_task_counts_its_classes_of_devices(small, tmp_path: Path) -> None:
    classes = "population.classes=[{name='old',share=0.3},{name='new',share=0.7}]"
    tasks = {"a": {"rounds": {"count": 3}}, "b": {"rounds": {"count": 2}}}
    run = simulate(several(small(classes), **tasks), HERE, tmp_path / "t")
    for trace in run.traces.values():
        assert [each["name"] for each in trace.run["classes"]] == ["old", "new"]
        taken = sum(each["participations"] for each in trace.run["classes"])
        assert taken == trace.outcome_counts()["accepted"]


def test_nothing_is_left_where_no_task_commits_a_round(small, tmp_path: Path) -> None:
    # Without violators it would be certain before the run that the rounds cannot be committed.
    scenario = small(
        "rounds.report_goal=9000", "rounds.max_days=1", "participation.timer_violators=1e-6"
    )
    with pytest.raises(Starved, match=r"task a: rounds.max_days=1 ran out.*task b: "):
        simulate(several(scenario, a={}, b={}), HERE, tmp_path / "t")
    assert not list(tmp_path.iterdir())


def test_an_own_module_that_cannot_train_is_refused_before_the_simulation(
    small, tmp_path: Path
) -> None:
    """Also if another task could train; of a task that trains nothing, no code is run."""
    (tmp_path / "own.py").write_text(
        "import torch\nfrom fedray.clients.tasks.module import ModuleTask\n"
        "def task(seed):\n"
        "    return ModuleTask(torch.nn.Linear(3, 2), None, lambda outputs, targets: targets)\n"
    )
    own = {"training": {"task": {"kind": "custom", "file": str(tmp_path / "own.py")}}}
    scenario = small("training.enabled=true", "training.cohort_sample=8", "rounds.count=2")
    with pytest.raises(InputError, match=r"own.py.*dtype"):
        run_scenario(several(scenario, good={}, bad=own), HERE, tmp_path / "t")
    assert not (tmp_path / "t").exists()
    own["training"]["enabled"] = False
    run_scenario(several(scenario, good={}, bad=own), HERE, tmp_path / "t")


@pytest.mark.slow
def test_every_task_trains_a_model_of_its_own(small, tmp_path: Path) -> None:
    trained = (
        "training.enabled=true",
        "training.cohort_sample=8",
        "training.checkpoint_every=2",
        "rounds.count=4",
    )
    points = {"kind": "points", "dimension": 3}
    tasks = {
        "three": {"data": points},
        "five": {"data": {**points, "dimension": 5}},
        "none": {"training": {"enabled": False}},
    }
    scenario = small(*trained, "data={kind='points', dimension=3}", "training.task=quadratic")
    run = run_scenario(several(scenario, **tasks), HERE, tmp_path / "t")
    sizes = {
        name: trace.trained and trace.trained.parameters().size
        for name, trace in run.traces.items()
    }
    assert sizes == {"three": 3, "five": 5, "none": None}
    for name in ("three", "five"):
        assert run.traces[name].trained is not None
        assert run.traces[name].trained.trace_digest == run.traces[name].digest
