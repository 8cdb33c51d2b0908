"""Learning from a trace: the same model as in step with the simulation, and what may differ."""

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import fedray
from fedray.base.errors import CheckpointError, InputError, ScenarioError, TraceError
from fedray.base.threads import usable_cpus
from fedray.clients.trainer import LocalTrainer
from fedray.imports.importer import import_log
from fedray.runs import simulation
from fedray.runs.learning import (
    cohorts,
    predicted_seconds,
    train,
    unfinished_training,
)
from fedray.runs.pipeline import run_scenario
from fedray.runs.simulation import resume, simulate
from fedray.runtime.placement import LEAST_SECONDS, Placement
from fedray.runtime.reservation import where
from fedray.server.learning import training
from fedray.server.learning.training import cohort_places
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun
from fedray.wire.messages import Progress, TrainingEstimate, TrainingProgress

HERE = Placement(1, "in-process", checkpoint_seconds=0.0)
TRAINED = (
    "population.devices=140000",
    "rounds.count=8",
    "training.enabled=true",
    "training.cohort_sample=20",
    "training.evaluate_every=3",
)


@pytest.fixture(scope="module")
def trace(small, tmp_path_factory) -> Trace:
    """A trace of three parts, so that cohorts are put together from several files."""
    return simulate(small(*TRAINED), HERE, tmp_path_factory.mktemp("learning") / "t")


@pytest.fixture(scope="module")
def reference(trace: Trace, tmp_path_factory):
    return train(trace, None, HERE, tmp_path_factory.mktemp("trained") / "m")


def test_the_cohort_of_a_round_is_a_sample_of_its_accepted_devices(trace: Trace, small) -> None:
    """The slow twin takes each round's accepted devices from all parts and draws from the list."""
    scenario = small(*TRAINED)
    parts = list(trace.accepted())
    assert len(parts) == 3
    device_ids = np.concatenate([part.device_ids for part in parts])
    rounds = np.concatenate([part.rounds for part in parts])
    found = dict(cohorts(trace, scenario))
    assert list(found) == list(range(8))
    for index, cohort in found.items():
        accepted = np.sort(device_ids[rounds == index])
        expected = accepted[cohort_places(scenario, index, accepted.size)]
        assert cohort.device_ids.tolist() == expected.tolist()
        assert cohort.versions is None
        assert np.unique(cohort.device_ids).size == 20


def test_the_last_round_is_evaluated_whenever_the_others_are(reference) -> None:
    evaluated = np.flatnonzero(~np.isnan(reference.metrics["evaluation_loss"]))
    assert evaluated.tolist() == [2, 5, 7]


def test_a_notebook_shows_metrics_rows_and_figures(reference) -> None:
    """Rounds that were not evaluated are null."""
    table = reference.to_arrow()
    assert table.num_rows == reference.document["rounds"]
    is_evaluated = [value is not None for value in table["evaluation_loss"].to_pylist()]
    assert is_evaluated == np.isfinite(reference.metrics["evaluation_loss"]).tolist()
    assert all(value in reference._repr_html_() for _, value in reference.rows()[:2])
    assert list(reference.plot("train-loss").svgs) == ["train-loss"]


def test_another_mechanism_trains_on_the_same_devices(
    trace: Trace, reference, small, tmp_path: Path
) -> None:
    """The first round's loss is before any noise, so that it is the same; the last one's is not."""
    other = small(*TRAINED, 'privacy.mechanism={kind="identity"}')
    trained = train(trace, other, HERE, tmp_path / "m")
    assert trained.trace_digest == reference.trace_digest == trace.digest
    assert trained.metrics["train_loss"][0] == reference.metrics["train_loss"][0]
    assert trained.metrics["train_loss"][-1] != reference.metrics["train_loss"][-1]
    assert trained.document["scenario"]["privacy"]["mechanism"]["kind"] == "identity"


@pytest.mark.slow
def test_another_training_seed_gives_another_model_and_the_same_trace(
    trace: Trace, reference, small, tmp_path: Path
) -> None:
    scenario = small(*TRAINED, "training.seed=99")
    other = train(trace, scenario, HERE, tmp_path / "m")
    assert not np.array_equal(other.parameters(), reference.parameters())
    assert other.document["seed"] == 99
    assert simulate(scenario, HERE, tmp_path / "t").digest == trace.digest
    same = train(trace, small(*TRAINED, f"training.seed={small().seed}"), HERE, tmp_path / "s")
    assert np.array_equal(same.parameters(), reference.parameters())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "population.devices=150000",
            r"population.devices=150000 but the trace was simulated with 140000",
        ),
        ("rounds.count=7", r"rounds.count=7 but the trace was simulated with 8; only the tables"),
        ("seed=3", "seed=3 but the trace was simulated with 7"),
    ],
)
def test_a_scenario_of_another_population_is_refused(
    trace: Trace, small, tmp_path: Path, override: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        train(trace, small(*TRAINED, override), HERE, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_a_sample_larger_than_a_round_is_refused(small, tmp_path: Path) -> None:
    """The trace of a scenario that does not train may have a cohort sample that cannot be drawn."""
    untrained = small("rounds.count=1", "training.cohort_sample=300")
    trace = simulate(untrained, HERE, tmp_path / "t")
    with pytest.raises(ScenarioError, match="must not exceed rounds.report_goal=200"):
        train(trace, None, HERE, tmp_path / "m")


def test_a_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("device,round\na,0\nb,1\n")
    log = import_log(tmp_path / "log.csv", "device", "round", 2, tmp_path / "t")
    with pytest.raises(InputError, match="was imported from a log, so its devices have no data"):
        train(log, None, HERE, tmp_path / "m")


def test_an_interrupted_training_goes_on_to_the_same_bits(
    trace: Trace, reference, small, tmp_path: Path
) -> None:
    def interrupt(progress: Progress) -> None:
        if getattr(progress, "trained", 0) == 5:
            raise KeyboardInterrupt

    # Whoever gave no directory knows its name from here alone.
    with pytest.raises(KeyboardInterrupt, match="continue with `resume='.*/m'`"):
        train(trace, None, HERE, tmp_path / "m", interrupt)
    with pytest.raises(
        CheckpointError, match="is a training of a finished trace; continue it by resume_run"
    ):
        resume(tmp_path / "m")
    with pytest.raises(InputError, match="has an unfinished run"):
        train(trace, None, HERE, tmp_path / "m")
    with pytest.raises(
        CheckpointError,
        match=r"is a training of another scenario .*: training.seed was not set, and is 1;",
    ):
        train(trace, small(*TRAINED, "training.seed=1"), HERE, tmp_path / "m", is_resumed=True)
    where, kept = unfinished_training(tmp_path / "m")
    assert (where, kept.digest) == (trace.path.resolve(), reference.document["scenario_digest"])
    trained_in: list[int] = []
    resumed = train(
        trace,
        None,
        HERE,
        tmp_path / "m",
        lambda progress: (
            trained_in.append(progress.trained) if isinstance(progress, TrainingProgress) else None
        ),
        is_resumed=True,
    )
    assert trained_in == [5, 6, 7, 8]  # each once, the last with its evaluation
    assert (resumed.parameters() == reference.parameters()).all()
    assert (resumed.metrics["train_loss"] == reference.metrics["train_loss"]).all()
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("way", ["train", "resume_run"])
def test_a_training_goes_on_with_the_scenario_that_it_was_started_with(
    way: str, trace: Trace, small, tmp_path: Path
) -> None:
    scenario, out = small(*TRAINED, "training.seed=1"), tmp_path / "m"

    def fail(progress: Progress) -> None:
        if getattr(progress, "trained", 0) == 5:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as failed:
        train(trace, scenario, HERE, out, fail)
    (hint,) = failed.value.__notes__
    assert hint.endswith(f"continue with `fedray.resume_run({str(out)!r})`")
    for place in (out, f"{out}.partial"):
        for read in (TrainedRun.open, fedray.audit_trace):
            with pytest.raises(
                TraceError, match=r"did not finish; continue it by `fedray.resume_r"
            ):
                read(place)
    if way == "train":
        resumed = fedray.train(trace.path, out=out, is_resumed=True)
    else:
        resumed = fedray.resume_run(out)
    assert isinstance(resumed, TrainedRun)
    assert resumed.document["seed"] == 1
    whole = train(trace, scenario, HERE, tmp_path / "whole")
    assert (resumed.parameters() == whole.parameters()).all()


SLOW = """
import time

import torch
from fedray.clients.tasks.module import ModuleTask

def task(seed):
    def loss(outputs, targets):
        time.sleep(0.005)
        return torch.nn.functional.cross_entropy(outputs, targets)

    def examples(device):
        return torch.ones(8, 2), torch.zeros(8).long()

    return ModuleTask(torch.nn.Linear(2, 2), examples, loss)
"""
"""A task whose every local step takes a group of devices 5 ms at least."""


@pytest.mark.slow
def test_how_long_it_takes_is_measured_with_the_task_that_is_trained(
    trace: Trace, small, tmp_path: Path
) -> None:
    """The estimate comes before the first round; placement is chosen by the same measurement."""
    (tmp_path / "slow.py").write_text(SLOW)
    own = f"training.task={{kind='custom', file='{tmp_path / 'slow.py'}'}}"
    scenario = small(*TRAINED, own, "training.devices_at_once=4", "training.client.local_steps=1")
    # Held-out devices take as long, and are not in the estimate.
    scenario = scenario.with_overrides("training.evaluation_devices=4")
    told: list[Progress] = []
    train(trace, scenario, HERE, tmp_path / "m", told.append)
    estimate, *rounds = told
    assert isinstance(estimate, TrainingEstimate)
    assert {type(each) for each in rounds} == {TrainingProgress}
    assert (estimate.count, estimate.devices, estimate.accepted) == (8, 20, 200)
    # 8 rounds of 5 groups, or 50 of a whole round
    assert estimate.sample_seconds > 8 * 5 * 0.005
    assert estimate.full_seconds == pytest.approx(10 * estimate.sample_seconds)
    assert predicted_seconds(scenario) > 8 * 5 * 0.005
    many = scenario.with_overrides("rounds.count=4000")
    assert Placement().resolved(lambda: predicted_seconds(many)).backend == "ray"
    assert Placement().resolved(lambda: 59.9).backend == "in-process"


@pytest.mark.slow
def test_what_a_placement_was_chosen_by_is_not_measured_again(
    trace: Trace, small, tmp_path: Path, monkeypatch
) -> None:
    """Neither by a training of a trace nor by a run with training."""
    told: list[Progress] = []
    measured: list[float] = []
    inner = LocalTrainer.seconds_per_device

    def counted(*arguments) -> float:
        measured.append(inner(*arguments))
        return measured[-1]

    monkeypatch.setattr(LocalTrainer, "seconds_per_device", counted)
    scenario = small(*TRAINED, "training.devices_at_once=4")
    train(trace, scenario, Placement(), tmp_path / "m", told.append)
    run_scenario(scenario, Placement(), tmp_path / "t", told.append)
    estimates = [each for each in told if isinstance(each, TrainingEstimate)]
    # 8 rounds of 5 groups, dealt to a trainer per CPU, and four at the most.
    devices = 4 * math.ceil(5 / min(usable_cpus(), 4))
    expected = [pytest.approx(8 * devices * seconds) for seconds in measured]
    assert [each.sample_seconds for each in estimates] == expected
    assert len(measured) == 2


def test_threads_train_and_evaluate_the_same_model(
    trace: Trace, reference, small, tmp_path: Path, monkeypatch
) -> None:
    """Here groups are dealt to five threads, each of which also measures its part of an evaluation
    while others train the next round."""
    shares: list[tuple[int, int]] = []
    inner = LocalTrainer.evaluate

    def noted(self, parameters, share):
        shares.append(share)
        return inner(self, parameters, share)

    monkeypatch.setattr(LocalTrainer, "evaluate", noted)
    scenario = small(*TRAINED, "training.devices_at_once=4", "training.evaluate_every=1")
    one = train(trace, scenario, Placement(backend="in-process", trainers=1), tmp_path / "1")
    five = train(trace, scenario, Placement(backend="in-process", trainers=5), tmp_path / "5")
    assert (one.document["trainers"], five.document["trainers"]) == (1, 5)
    # The initial model, and that of each of 8 rounds.
    assert Counter(shares) == {(0, 1): 9, **{(part, 5): 9 for part in range(5)}}
    for key in ("start", "start_errors", "evaluated"):
        assert one.document[key] == five.document[key]
    assert np.array_equal(one.parameters(), five.parameters())
    for name, column in one.metrics.items():
        assert np.array_equal(column, five.metrics[name], equal_nan=True)
    # Another size of groups, and other evaluations, change at most the last bits.
    assert np.allclose(one.parameters(), reference.parameters(), atol=1e-5)


@pytest.mark.slow
def test_uneven_devices_train_the_same_model_on_any_trainers_and_after_a_resume(
    trace: Trace, small, tmp_path: Path
) -> None:
    scenario = small(
        *TRAINED,
        "training.devices_at_once=4",
        "training.client={epochs=1.0, max_examples=40}",
    )
    one = train(trace, scenario, Placement(backend="in-process", trainers=1), tmp_path / "1")
    five = train(trace, scenario, Placement(backend="in-process", trainers=5), tmp_path / "5")

    def interrupt(progress: Progress) -> None:
        if getattr(progress, "trained", 0) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(trace, scenario, HERE, tmp_path / "r", interrupt)
    resumed = train(trace, scenario, HERE, tmp_path / "r", is_resumed=True)
    loop = scenario.with_overrides("training.devices_at_once=1")
    one_by_one = train(trace, loop, HERE, tmp_path / "l")
    assert np.array_equal(one.parameters(), five.parameters())
    assert np.array_equal(one.parameters(), resumed.parameters())
    assert np.array_equal(one.metrics["train_loss"], five.metrics["train_loss"])
    assert np.allclose(one.parameters(), one_by_one.parameters(), atol=1e-5)
    assert np.array_equal(one.metrics["trained"], one_by_one.metrics["trained"])


def test_groups_of_a_large_model_are_smaller_and_their_size_is_recorded(
    trace: Trace, reference, small, tmp_path: Path, monkeypatch
) -> None:
    """A resumed training keeps its size."""
    monkeypatch.setattr(training, "MOST_PARAMETERS", 3 * reference.parameters().size)

    def interrupt(progress: Progress) -> None:
        if getattr(progress, "trained", 0) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(trace, None, HERE, tmp_path / "m", interrupt)
    monkeypatch.undo()
    resumed = train(trace, None, HERE, tmp_path / "m", is_resumed=True)
    assert (reference.document["devices_at_once"], resumed.document["devices_at_once"]) == (16, 3)
    assert np.allclose(resumed.parameters(), reference.parameters(), atol=1e-5)


def test_a_users_code_is_trained_by_one_thread(trace: Trace, small, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW.replace("0.005", "0"))
    own = f"training.task={{kind='custom', file='{tmp_path / 'slow.py'}'}}"
    scenario = small(*TRAINED, own, "rounds.count=8")
    with pytest.raises(InputError, match=r"trainers=2 must be 1 in one process.*train on Ray"):
        train(trace, scenario, Placement(backend="in-process", trainers=2), tmp_path / "m")
    assert not (tmp_path / "m").exists()
    alone = train(trace, scenario, Placement(backend="in-process"), tmp_path / "m")
    assert alone.document["trainers"] == 1


def test_long_simulations_take_ray_if_it_is_installed(small, monkeypatch) -> None:
    """A large population does not, whose rounds are few."""
    few = small("population.devices=16600000", "rounds.count=100", "rounds.report_goal=6500")
    many = few.with_overrides("rounds.count=2000")
    seconds = [simulation.predicted_seconds(each) for each in (few, many)]
    assert seconds[0] < LEAST_SECONDS <= seconds[1]
    assert [Placement().resolved(lambda each=each: each).backend for each in seconds] == [
        "in-process",
        "ray",
    ]
    monkeypatch.setattr("fedray.runtime.placement.find_spec", lambda name: None)
    here = Placement().resolved(lambda: 1e6)
    assert here.backend == "in-process"
    assert where(here, None, 2) == "in this process (Ray is not installed): 2 shards"


def test_nothing_is_measured_where_the_placement_is_clear() -> None:
    def measured() -> float:
        raise AssertionError("it was asked")

    assert Placement(trainers=1).resolved(measured).backend == "ray"
    assert Placement(shards=2).resolved(measured).backend == "ray"
    assert Placement(backend="in-process").resolved(measured).backend == "in-process"


@pytest.mark.slow
def test_the_command_trains_a_second_mechanism(
    trace: Trace, tmp_path: Path, fedray_command
) -> None:
    arguments = ["train", str(trace.path), "--set", 'privacy.mechanism={kind="tree"}', "--json"]
    code, out, err = fedray_command(*arguments, "--out", str(tmp_path / "m"))
    assert code == 0, err
    document = json.loads(out)
    assert document["rounds"] == 8
    assert document["trace_digest"] == trace.digest
    assert document["scenario"]["privacy"]["mechanism"]["kind"] == "tree"
    assert document["audit"]["mechanisms"][0]["name"].startswith("tree")
    code, out, err = fedray_command(*arguments[:-1], "--out", str(tmp_path / "n"))
    assert code == 0, err
    assert "held-out accuracy" in out
    assert "training: 8 rounds of 20 devices take about" in err
    assert "; with all 200 devices of a round it would be about" in err
    assert str(tmp_path / "n") in out


@pytest.mark.slow
def test_the_command_accounts_for_the_noise_that_the_training_s_devices_add(
    trace: Trace, tmp_path: Path, fedray_command
) -> None:
    """The trace was simulated with the server's noise."""
    mechanism, trust = '{kind="identity"}', '{kind="devices", parameters=30320}'
    settings = [f"privacy.mechanism={mechanism}", f"privacy.trust={trust}"]
    arguments = [word for each in settings for word in ("--set", each)]
    code, out, err = fedray_command(
        "train", str(trace.path), *arguments, "--json", "--out", str(tmp_path / "m")
    )
    assert code == 0, err
    assumptions = json.loads(out)["audit"]["assumptions"]
    assert any("the round with the fewest accepted devices" in each for each in assumptions)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "is not a directory"),
        (["TRACE", "--resume", "m", "--out", "m"], "leave out SCENARIO, --set and --out"),
        (["--resume", "m", "--set", "training.seed=1"], "leave out SCENARIO, --set and --out"),
        ([], "TRACE is missing"),
        (["TRACE", "--resume", "m"], "/m' has no unfinished run next to it (m.partial)"),
        (["TRACE", "--set", "training.task=chess"], "is not one of next_word"),
        (
            ["TRACE", "--set", "rounds.count=9"],
            "only the tables data, training and privacy may differ",
        ),
        (
            ["TRACE", "--place", "backend=in-process", "--place", "address=auto"],
            "drop the address to run in-process",
        ),
        (["TRACE", "--place", "trainers=0"], "trainers=0 must be at least 1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    trace: Trace, tmp_path: Path, monkeypatch, fedray_command, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    named = [str(trace.path) if each == "TRACE" else each for each in arguments]
    code, out, err = fedray_command("train", *named)
    assert code == 2, err
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 1
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
