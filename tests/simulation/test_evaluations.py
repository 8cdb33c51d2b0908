"""Federated evaluation: the values are those of a slow direct computation, held-out devices never train, answers are within their
intervals as often as stated, what devices spend composes, and nothing depends on shards or interruptions."""

import dataclasses
import json
import math
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from scipy.stats import binom

from fedray.audit.auditing import audit_trace
from fedray.audit.several_tasks import audit_tasks
from fedray.base.errors import CheckpointError, InputError, ScenarioError, TraceCorrupt
from fedray.base.rng import Stream, stream_generator
from fedray.clients.data.factory import source_of
from fedray.clients.workers import start_trainers
from fedray.commands.run import print_run_of_tasks
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import ApproximateDP, Composed, Gaussian, Repeated
from fedray.runs.answers import answer
from fedray.runs.evaluated import EvaluatedModel
from fedray.runs.evaluations import versions_at
from fedray.runs.learning import cohorts, scenario_of
from fedray.runs.pipeline import resume_run, run_scenario
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario, SeveralTasks
from fedray.server.learning.training import TrainingLoop
from fedray.server.learning.workers import start_aggregator
from fedray.trace.evaluated import EVALUATED_FILE, devices_of_rounds, read_evaluated
from fedray.trace.several_tasks import TasksRun
from fedray.wire.members import are_members

HERE = Placement(1, "in-process")
HELD_OUT = 0.3
VALUES = {"kind": "evaluation", "of": "model", "held_out": HELD_OUT}
MEAN = {"kind": "mean", "low": 0.0, "high": 20.0}
TABLES: dict[str, Any] = {
    "seed": 11,
    "population": {"devices": 2_000},
    "participation": {"timer_hours": 2.0},
    "rounds": {"count": 7, "report_goal": 40, "max_days": 4.0},
    "data": {"kind": "points", "dimension": 4},
    "training": {
        "cohort_sample": 10,
        "task": {"kind": "quadratic"},
        "evaluation_devices": 4,
        "devices_at_once": 8,
    },
    "privacy": {"noise_multiplier": 4.0, "delta": 1e-6},
    "tasks": {
        "model": {},
        "quality": {
            "rounds": {"count": 9, "report_goal": 30},
            "analytics": {
                "question": MEAN,
                "values": VALUES,
                "trust": [{"kind": "server"}],
                "epsilon": 1.0,
            },
        },
    },
}  # fmt: skip


def tables(**changes: Any) -> dict[str, Any]:
    """The tables with changes by a path of keys, joined by two underscores."""
    found = deepcopy(TABLES)
    for path, value in changes.items():
        *keys, last = path.split("__")
        table = found
        for key in keys:
            table = table[key]
        table[last] = value
    return found


def several(**changes: Any) -> SeveralTasks:
    return SeveralTasks.from_tables(tables(**changes))


ASKED = "tasks__quality__analytics"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> TasksRun:
    return run_scenario(several(), HERE, tmp_path_factory.mktemp("evaluations") / "run")


def test_values_are_those_of_a_slow_direct_computation(run: TasksRun) -> None:
    """Every version of the model is trained anew, and every loss computed from the device's points."""
    model, quality = run.traces["model"], run.traces["quality"]
    scenario = scenario_of(model)
    source = source_of(scenario)
    closed = [
        end
        for end, state in zip(model.rounds["closed"], model.rounds["state"], strict=True)
        if not state
    ]
    accepted = devices_of_rounds(quality)
    started = quality.rounds["started"][quality.rounds["state"] == 0]
    # The first evaluations come before the first round of the model has closed, the last after all.
    evaluated = read_evaluated(quality)
    assert len(evaluated) == quality.committed_rounds == 9
    assert len({each.version for each in evaluated}) >= 3
    for index, found in enumerate(evaluated):
        version = sum(end <= started[index] for end in closed)
        assert found.version == version
        assert found.device_ids.tolist() == accepted[index].tolist()
        w = _parameters(model, scenario, version)
        for device, value in zip(found.device_ids, found.values, strict=True):
            ids = np.array([device], np.uint64)
            held = min(64, int(source.examples_on(ids)[0]))
            if held == 0:
                assert math.isnan(value)
                continue
            points = source.examples(ids, np.arange(held)[None, :])["inputs"][0]
            expected = np.mean(0.5 * ((w - points.astype(np.float64)) ** 2).sum(axis=1))
            assert value == pytest.approx(expected, rel=1e-5)


def _parameters(trace: Any, scenario: Scenario, rounds: int) -> np.ndarray:
    """The model after some rounds, by a training of these only."""
    trainers = start_trainers(scenario.for_trainers(), HERE, None)
    if rounds == 0:
        return trainers[0].initial_parameters().result()
    loop = TrainingLoop(scenario, trainers, start_aggregator(scenario.for_aggregator(), HERE))
    for index, cohort in cohorts(trace, scenario):
        if index < rounds:
            loop.train(index, cohort)
    return loop.finish()["parameters"].astype(np.float64)


def test_devices_that_are_held_out_never_train(run: TasksRun) -> None:
    scenarios = {name: scenario_of(trace) for name, trace in run.traces.items()}
    ids = np.arange(2_000, dtype=np.uint64)
    held_out = are_members(scenarios["quality"], ids)
    assert np.array_equal(held_out, ~are_members(scenarios["model"], ids))
    trained, asked = (np.unique(np.concatenate(devices_of_rounds(run.traces[name]))) for name in ("model", "quality"))  # fmt: skip
    assert held_out[asked].all()
    assert not held_out[trained].any()
    # A fair draw is outside these bounds with a probability below 1e-6.
    low, high = binom.ppf((5e-7, 1 - 5e-7), 2_000, HELD_OUT)
    assert low <= held_out.sum() <= high
    # The answers count only held-out devices as those that may come.
    found = answer(run.traces["quality"])
    assert {each.devices for each in found.windows} == {int(held_out.sum())}


def test_a_held_out_device_that_trained_breaks_the_rules(trace_of, small) -> None:
    scenario = small("participation.members=[0.3, 1.0]", "participation.timer_hours=1000")
    is_member = are_members(scenario, np.arange(200, dtype=np.uint64))
    kept = [[0] if each else [] for each in is_member]
    guarantee = audit_trace(trace_of(kept, 1, scenario)).mechanisms[0].enforced
    assert guarantee.event is not None
    broken = [*kept]
    broken[int(np.flatnonzero(~is_member)[0])] = [0]
    guarantee = audit_trace(trace_of(broken, 1, scenario)).mechanisms[0].enforced
    assert guarantee.event is None
    assert "1 device of this trace took part although held out" in guarantee.reason


def test_without_held_out_devices_all_may_do_both(tmp_path: Path) -> None:
    values = {**VALUES, "held_out": 0.0}
    own = several(
        **{f"{ASKED}__values": values}, population__devices=1_000, participation__timer_hours=1.0
    )
    assert all(task.scenario.participation.members == (0.0, 1.0) for task in own.tasks)
    found = simulate(own, HERE, tmp_path / "run")
    trained, asked = (
        set(np.concatenate(devices_of_rounds(each)).tolist()) for each in found.traces.values()
    )
    assert trained & asked


@pytest.mark.parametrize("sampler", ["enumeration", "thinning"])
def test_members_restrict_a_single_task_too(small, tmp_path: Path, sampler: str) -> None:
    scenario = small("participation.members=[0.5, 0.9]", f"rounds.sampler={sampler}")
    trace = simulate(scenario, HERE, tmp_path / "trace")
    came = np.unique(np.concatenate(devices_of_rounds(trace)))
    assert came.size > 1000
    assert are_members(scenario, came).all()


@pytest.mark.slow
@pytest.mark.parametrize("shards", [2, 5])
def test_nothing_depends_on_shards(shards: int, tmp_path: Path) -> None:
    own = several(
        population__devices=300_000, rounds__report_goal=300, rounds__count=3,
        tasks__quality__rounds={"count": 3, "report_goal": 200},
    )  # fmt: skip
    runs = [run_scenario(own, Placement(n, "in-process"), tmp_path / str(n)) for n in (1, shards)]
    one, other = runs
    assert other.document["shards"] == shards
    assert one.digest == other.digest
    files = [(each.path / "quality" / EVALUATED_FILE).read_bytes() for each in runs]
    assert files[0] == files[1]
    documents = [answer(each.traces["quality"]).to_json()["windows"] for each in runs]
    assert documents[0] == documents[1]


def test_an_interrupted_training_writes_the_same_values(run: TasksRun, tmp_path: Path) -> None:
    """It stops after four rounds, with a checkpoint after each."""
    placement = dataclasses.replace(HERE, checkpoint_seconds=0.0)

    def stop(progress: Any) -> None:
        if getattr(progress, "metrics", None) and progress.trained == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_scenario(several(), placement, tmp_path / "run", stop)
    with pytest.raises(InputError, match="not trained yet"):
        answer(tmp_path / "run" / "quality")
    found = resume_run(tmp_path / "run", placement, several())
    assert found.digest == run.digest
    files = [each.path / "quality" / EVALUATED_FILE for each in (run, found)]
    assert files[0].read_bytes() == files[1].read_bytes()
    with pytest.raises(CheckpointError, match="complete"):
        resume_run(tmp_path / "run")


def test_answers_are_within_their_intervals_as_often_as_stated(run: TasksRun) -> None:
    """450 draws of the noise on the real values. By the exact binomial distribution, fewer are inside with a probability below 1e-6 if
    the stated 90 % are true. The mean error is within five of its standard errors of 0, and the ratio's own bias, a twentieth of the
    stated error of an answer (6e-7 by the normal approximation). The deviation is within five of its standard errors, 0.28, of the stated
    one; noise of half or twice the size is not."""
    trace = run.traces["quality"]
    scenario = scenario_of(trace).with_overrides(
        "analytics.epsilon=8.0", "analytics.question.high=40.0"
    )
    (plan,), values = (
        scenario.analytics.plans(30),
        EvaluatedModel(scenario, scenario.evaluation, trace),
    )
    inside, errors, stated = 0, [], []
    told = answer(trace, 0.9, scenario)
    # Rounds are of different models, whose answers have no mean.
    assert told.pooled is None
    for window, each in enumerate(told.windows):
        items, (row,) = values.of_round(window), each.answers[0].rows
        # What `answer` prints is such a draw, at the address of the task's seed, the round and the
        # question that is not the run's.
        digest = int(sha256(scenario.analytics.model_dump_json().encode()).hexdigest(), 16)
        address = stream_generator(scenario.training_seed, Stream.ANSWER, window, digest)
        assert plan.answer(items, address, 0.9).estimates[0] == row.estimate
        assert items.values.mean() == pytest.approx(row.of_came)
        for seed in range(50):
            found = plan.answer(items, np.random.default_rng([window, seed]), 0.9)
            inside += bool(found.low[0] <= row.of_came <= found.high[0])
            errors.append(found.estimates[0] - row.of_came)
            stated.append(found.standard_errors[0])
    assert inside >= binom.ppf(1e-6, len(errors), 0.9)
    allowed = 5 * np.std(errors) / math.sqrt(len(errors)) + np.mean(stated) / 20
    assert abs(np.mean(errors)) < allowed
    assert abs(np.std(errors) / np.mean(stated) - 1) < 0.28


@pytest.mark.parametrize(
    "question",
    [
        {"kind": "histogram", "size": 5},
        {"kind": "quantiles", "low": 0.0, "high": 40.0, "shares": [0.5]},
    ],
    ids=lambda each: each["kind"],
)
def test_histograms_and_quantiles_are_of_the_devices_metrics(run: TasksRun, question: dict) -> None:
    trace = run.traces["quality"]
    own = scenario_of(trace)
    asked = own.analytics.model_dump(mode="json") | {"question": question}
    asked["values"] |= {"low": 0.0, "high": 10.0}
    scenario = Scenario.from_tables({**own.to_tables(), "analytics": asked})
    found = answer(trace, scenario=scenario)
    for window, each in zip(found.windows, read_evaluated(trace), strict=True):
        values = each.values[~np.isnan(each.values)]
        rows = {row.label: row.of_came for row in window.answers[0].rows}
        if question["kind"] == "quantiles":
            assert list(rows.values()) == [np.quantile(values, 0.5, method="inverted_cdf")]
            continue
        expected = [int(((low <= values) & (values < high)).sum()) for low, high in
                    [(-math.inf, 2), (2, 4), (4, 6), (6, 8), (8, math.inf)]]  # fmt: skip
        labels = ["-inf to 2", "2 to 4", "4 to 6", "6 to 8", "8 to inf"]
        assert rows == dict(zip(labels, expected, strict=True))
        json.dumps(window.to_json(), allow_nan=False)


def test_what_devices_spend_is_composed_by_hand(tmp_path: Path) -> None:
    """Every device's epsilon, by the events of its own rounds; the composition has the largest."""
    values = {**VALUES, "held_out": 0.0}
    own = several(
        **{f"{ASKED}__values": values, f"{ASKED}__epsilon": 0.7},
        population__devices=1_000, participation__timer_hours=1.0, privacy__mechanism={"kind": "identity"},
    )  # fmt: skip
    run = simulate(own, HERE, tmp_path / "run")
    found = audit_tasks(run)
    counts = {}
    for name, trace in run.traces.items():
        ids = np.concatenate(devices_of_rounds(trace)).astype(np.int64)
        counts[name] = np.bincount(ids, minlength=1_000)
    assert ((counts["model"] > 0) & (counts["quality"] > 0)).any()
    each = ApproximateDP(epsilon=0.7, theorem="any")
    epsilons = {}
    for trained, asked in set(
        zip(counts["model"].tolist(), counts["quality"].tolist(), strict=True)
    ):
        events: list[Any] = [Gaussian(noise_multiplier=4.0, sensitivity=math.sqrt(trained))] * (
            trained > 0
        )
        events += [Repeated(event=each, count=asked)] if asked else []
        if events:
            whole = events[0] if len(events) == 1 else Composed(events=tuple(events))
            epsilons[trained, asked] = epsilon_of(whole, 1e-6).epsilon
    composition = found.composition
    assert composition.epsilon == pytest.approx(max(epsilons.values()), rel=1e-9)
    device = composition.worst_device
    own_counts = int(counts["model"][device]), int(counts["quality"][device])
    assert epsilons[own_counts] == pytest.approx(composition.epsilon, rel=1e-9)
    rho = counts["model"] / 32 + counts["quality"] * 0.7**2 / 2
    assert composition.rho == pytest.approx(rho.max())
    assert composition.mean_rho == pytest.approx(rho[rho > 0].mean())
    assert not composition.is_exact
    assert composition.devices == np.count_nonzero(rho)
    # Enforced limits permit at least as much, and cost at most the sum of both tasks.
    assert composition.enforced_epsilon is not None
    assert composition.enforced_epsilon >= composition.bound_epsilon >= composition.epsilon
    model, quality = found.audits["model"], found.audits["quality"]
    assert not quality.mechanisms
    assert model.mechanisms[0].enforced.epsilon is not None
    together = model.mechanisms[0].enforced.epsilon + quality.answers[-1].epsilon
    assert composition.enforced_epsilon <= together * (1 + 1e-9)


def test_two_evaluations_of_a_model_have_noise_of_their_own(tmp_path: Path) -> None:
    own = tables()
    own["tasks"]["again"] = own["tasks"]["quality"]
    found = SeveralTasks.from_tables(own)
    assert len({task.scenario.training_seed for task in found.tasks}) == 3
    run = run_scenario(found, HERE, tmp_path / "run")
    errors = [
        [each.answers[0].error for each in answer(run.traces[name]).windows]
        for name in ("quality", "again")
    ]
    assert not np.isclose(*errors).any()


@pytest.mark.parametrize("as_json", [False, True])
def test_a_model_without_a_round_is_not_evaluated_and_the_audit_follows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    own = several(
        tasks__model={"starts_days": 3.9999}, tasks__quality__rounds={"count": 2, "report_goal": 30}
    )
    found = run_scenario(own, HERE, tmp_path / "run")
    assert found.traces["model"].committed_rounds == 0
    with pytest.raises(typer.Exit) as ended:
        print_run_of_tasks(found, as_json)
    assert ended.value.exit_code == 1
    printed = capsys.readouterr()
    assert "task model: starved" in printed.err
    if as_json:
        document = json.loads(printed.out)
        assert document["questions"] == {}
        assert list(document["tasks"]) == ["quality"]
    else:
        assert "Task quality: no answer, as task model committed no round" in printed.out
        assert "Over all tasks, for one device" in printed.out
    with pytest.raises(InputError, match="or committed no round"):
        answer(found.traces["quality"])


def test_another_question_has_noise_of_its_own(run: TasksRun) -> None:
    """With the same draws, answers at nearly the same epsilon would be nearly equal, and both
    together would show the exact answer. The run's own answer keeps its draws."""
    trace = run.traces["quality"]
    own = scenario_of(trace)
    scenarios = None, own, own.with_overrides("analytics.epsilon=1.0001")
    found = [answer(trace, scenario=scenario) for scenario in scenarios]
    first, again, other = (
        [window.answers[0].rows[0].estimate for window in each.windows] for each in found
    )
    assert first == again
    assert not np.isclose(first, other, rtol=1e-3).any()
    notes = ["".join(each.tables()[-1].notes) for each in found]
    assert ["asking both is not accounted for" in note for note in notes] == [False, False, True]


def test_values_of_another_trace_are_refused(run: TasksRun, tmp_path: Path) -> None:
    other = run_scenario(several(seed=12), HERE, tmp_path / "run")
    file = other.path / "quality" / EVALUATED_FILE
    file.write_bytes((run.path / "quality" / EVALUATED_FILE).read_bytes())
    with pytest.raises(TraceCorrupt, match="of another trace"):
        answer(other.path / "quality")


def test_what_was_evaluated_cannot_be_asked_again(run: TasksRun) -> None:
    trace = run.traces["quality"]
    scenario = scenario_of(trace).with_overrides("analytics.values.most_examples=3")
    with pytest.raises(InputError, match="change low and high only"):
        answer(trace, scenario=scenario)


def test_a_version_is_one_that_had_closed(run: TasksRun) -> None:
    versions = versions_at(run.traces["model"], run.traces["quality"])
    assert (np.diff(versions) >= 0).all()
    assert versions.max() <= run.traces["model"].committed_rounds


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{ASKED}__values": {**VALUES, "of": "other"}}, "is no task that trains a model"),
        ({f"{ASKED}__values": {**VALUES, "of": "quality"}}, "is no task that trains a model"),
        ({"tasks__model": {"training": {"enabled": False}}}, "name one of .none."),
        ({"tasks__quality__training": {"enabled": True}}, "leave training out"),
        ({"tasks__quality__data": {"kind": "language"}}, "make the tables equal"),
        ({f"{ASKED}__question": {"kind": "count"}}, "use mean, quantiles or histogram"),
        ({f"{ASKED}__trust": [{"kind": "server"}, {"kind": "devices", "least_devices": 30}], f"{ASKED}__delta": 1e-6}, "added up for one"),
        ({f"{ASKED}__trust": [{"kind": "shuffled", "least_devices": 30}], f"{ASKED}__delta": 1e-6}, "shuffled, which has a delta"),
        ({f"{ASKED}__values": {**VALUES, "held_out": 1.0}}, "held_out"),
        ({f"{ASKED}__values": {**VALUES, "low": 2.0}}, "is not below high"),
        ({f"{ASKED}__values": {**VALUES, "held_out": 0.01}}, "task quality: .*report_goal"),
        ({"participation__members": [0.5, 0.2]}, "put the smaller one first"),
        ({"tasks__model": {"participation": {"members": [0.0, 0.9]}}}, "leave one of the two out"),
        ({"tasks__quality__rounds__mode": "buffered"}, "buffer"),
    ],
)  # fmt: skip
def test_bad_tables_are_refused_in_a_line(changes: dict, message: str) -> None:
    with pytest.raises(ScenarioError, match=message) as caught:
        several(**changes)
    assert "\n" not in str(caught.value)


def test_a_metric_of_no_such_name_is_refused_before_the_run(tmp_path: Path) -> None:
    own = several(**{f"{ASKED}__values": {**VALUES, "metric": "accuracy"}})
    with pytest.raises(InputError, match="use loss"):
        run_scenario(own, HERE, tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_an_evaluation_needs_other_tasks(tmp_path: Path) -> None:
    alone = several().tasks[1].scenario
    with pytest.raises(InputError, match="has no tasks"):
        simulate(alone, HERE, tmp_path / "run")
