"""Trainings that stop before their last planned round: by a callback, or as `training.stop` says.

A run that ended there for another reason is a simulation whose listener ends it, and the training of its trace.
"""

import json
import re
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedray
from fedray.audit.any_run import worst_participation
from fedray.audit.assumptions import CHOSEN_BY
from fedray.audit.audit import Audit
from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim
from fedray.audit.ledger import Ledger
from fedray.audit.privacy_statement import privacy_statement
from fedray.base.errors import (
    CheckpointError,
    InputError,
    ScenarioError,
    StopTraining,
    TraceCorrupt,
)
from fedray.base.rounding import number_text, up
from fedray.report.terminal import short_audit_text
from fedray.report.trained_page import trained_figures, trained_page, trained_verdict
from fedray.runs.budgeted import charge_run, worst_rho
from fedray.runs.cut import cut_trace
from fedray.runs.learning import train, train_many
from fedray.runs.pipeline import resume_run, run_scenario
from fedray.runs.simulation import simulate
from fedray.runs.verified import verify_run
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario, SeveralTasks
from fedray.scenario.training import Stop
from fedray.server.learning.best import best_round, why_stopped
from fedray.trace.model_files import BEST_FILE
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun
from fedray.wire.messages import (
    Evaluated,
    Evaluation,
    Measured,
    Metric,
    Progress,
    TrainingMetrics,
    TrainingProgress,
    TrainReport,
)

HERE = Placement(1, "in-process", checkpoint_seconds=0.0)
SMALL_MODEL = (
    "training.enabled=true",
    "training.cohort_sample=30",
    "training.task={kind='quadratic'}",
    "data={kind='points', dimension=7}",
    "training.evaluate_every=2",
)
LOSS = Metric("loss", "nats", "lower")
PATIENT = "training.stop={metric='loss', patience=2, held_out='public'}"
SWINGS = ("training.server.learning_rate=0.05", "training.server.momentum=0.99")
"""Momentum with which the loss of the small model falls for 14 rounds, then rises for 12."""
MODES: dict[str, tuple[str, ...]] = {
    "on device": ("participation.timer_hours=1.0",),
    "losses, classes, owners, outage": (
        "participation.history_loss_per_day=3.0",
        "participation.timer_hours=1.0",
        "participation.max_participations=3",
        "population.classes=[{name='old',share=0.3,availability={night_length_hours=2.0}},{name='far',share=0.7}]",
        "population.owners={mean_devices=1.3, most_devices=3}",
        "rounds.outages=[{start_hours=2.0, hours=1.5}]",
    ),
    "abandoned attempts": ("rounds.report_timeout_minutes=3.4", "participation.timer_hours=0.0"),
    "buffered": (
        "rounds.mode='buffered'",
        "rounds.buffer={concurrency=350, max_staleness=3}",
        "rounds.look_ahead_minutes=5.0",
        "participation.timer_hours=0.2",
    ),
    "uploads": (
        "rounds.mode='upload-then-train'",
        "rounds.uploads={window_hours=6.0, windows=2, schedule={kind='cyclic', min_sep=3}, unresolved_share=0.02}",
        "privacy.encoding={kind='secagg'}",
    ),
    "poisson uploads": (
        "rounds.mode='upload-then-train'",
        "rounds.uploads={window_hours=8.0, schedule={kind='poisson', probability=0.05}}",
        "privacy.mechanism={kind='identity'}",
    ),
    "filter": (
        "population.devices=3000",
        "availability={model='always_on'}",
        "participation.timer_hours=1.0",
        "privacy.noise_multiplier=2.0",
        "privacy.mechanism={kind='tree'}",
        "privacy.stop_at={epsilon=10.0}",
        "privacy.at_limit='exclude'",
    ),
}
"""Ways to form rounds whose traces have rows or files of their own."""
PARTS = ("ended", "digest", "rounds_digest", "losses_digest", "classes", "uploads", "sampling")


def stopping(rounds: int, why: str = "enough") -> Callable[[Progress], None]:
    """A listener that stops a training after some rounds."""

    def listen(progress: Progress) -> None:
        if isinstance(progress, TrainingProgress) and progress.trained == rounds:
            raise StopTraining(why)

    return listen


def ended_at(scenario: Scenario, rounds: int, out: Path, why: str = "ended") -> Trace:
    """The simulation of a scenario that ends after some rounds for another reason than its model."""

    def end(index: int, *_: object) -> str:
        return why if index + 1 == rounds else ""

    return simulate(scenario, HERE, out, on_commit=end)


def figures_of(audit: Audit) -> list[Any]:
    """Everything that an audit says of its rounds, without what a guarantee may rest on."""
    return [
        (audit.digest, audit.rounds, audit.devices, audit.min_sep, audit.max_participations),
        audit.patterns.rounds.tolist(),
        *(
            (each.name, each.participation, each.sensitivity, each.epsilon, each.rho)
            for each in audit.mechanisms[0].guarantees
            if each.name != "planned"
        ),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_cut_trace_is_that_of_a_simulation_that_ended_there(
    mode: str, small, tmp_path: Path
) -> None:
    scenario = small(*MODES[mode])
    whole = simulate(scenario, HERE, tmp_path / "whole")
    assert whole.committed_rounds == 12
    assert (whole.rounds["state"] != 0).any() or mode != "abandoned attempts"
    for rounds in (1, 7, 11):
        ended = ended_at(scenario, rounds, tmp_path / f"ended-{rounds}")
        place = tmp_path / f"cut-{rounds}"
        found = cut_trace(whole, scenario, rounds, place, {"ended": "ended"})
        found.verify()
        assert found.committed_rounds == rounds
        assert {key: found.run.get(key) for key in PARTS} == {
            key: ended.run.get(key) for key in PARTS
        }
        assert found.run["parts"] == ended.run["parts"]
        assert {each.name for each in place.iterdir()} == {
            each.name for each in ended.path.iterdir()
        }
        assert figures_of(audit_trace(found)) == figures_of(audit_trace(ended))
    # Cutting in place leaves nothing else behind.
    inside = cut_trace(whole, scenario, 7, whole.path, {"ended": "ended"})
    assert inside.digest == Trace.open(tmp_path / "cut-7").digest
    assert not list(tmp_path.glob("*.partial"))


MECHANISMS = {
    "blt": "privacy.mechanism={kind='blt', theta=[0.95, 0.6], omega=[0.2, 0.3]}",
    "banded": "privacy.mechanism={kind='band-fhu', bands=4}",
    "tree": "privacy.mechanism={kind='tree'}",
    "identity": "privacy.mechanism={kind='identity'}",
}


@pytest.mark.parametrize(
    "mechanism", ["tree", *(pytest.param(each, marks=pytest.mark.slow) for each in MECHANISMS)]
)
def test_model_audit_and_ledger_are_those_of_a_run_of_so_many_rounds_whose_plan_was_longer(
    mechanism: str, small, tmp_path: Path
) -> None:
    """In step with the simulation, on a finished trace, and on the trace of a simulation that ended there: the same bits, and the same spending."""
    scenario = small(*SMALL_MODEL, *MODES["on device"], MECHANISMS[mechanism])
    run = run_scenario(scenario, HERE, tmp_path / "run", stopping(7))
    shorter = ended_at(scenario, 7, tmp_path / "shorter")
    reference = train(shorter, None, HERE, tmp_path / "reference")
    whole = simulate(scenario, HERE, tmp_path / "whole")
    again = train(whole, None, HERE, tmp_path / "again", stopping(7))
    assert run.run["ended"] == "stopped by the training after 7 of 12 rounds: enough"
    assert (run.digest, run.committed_rounds) == (shorter.digest, 7)
    for trained in (run.trained, again):
        assert trained is not None
        assert np.array_equal(trained.parameters(), reference.parameters())
        assert trained.document["metrics_digest"] == reference.document["metrics_digest"]
        assert (trained.trace_digest, trained.short) == (shorter.digest, "7 of 12 rounds")
        assert trained.document["stopped"] == {
            "reason": "enough",
            "chosen_by": "callback",
            "metric": "loss",
        }
    # The given trace keeps its rounds, and the training has those that it used.
    assert Trace.open(whole.path).committed_rounds == 12
    assert again.trace_path == again.path / "trace"
    audits = [audit_trace(each) for each in (run, shorter, again.trace_path)]
    assert figures_of(audits[0]) == figures_of(audits[1]) == figures_of(audits[2])
    spent = []
    for name, charged in (("a", run), ("b", reference), ("c", again)):
        Ledger.create(tmp_path / name, 100.0, 1e-10, "year")
        (window,) = charge_run(tmp_path / name, charged, date(2026, 3, 1)).windows
        spent.append((window.units, window.recorded))
        assert window.may_rest_on
        if charged is not reference:
            # What rests on the rules is reserved before a run, for all rounds of its plan.
            assert window.spent == worst_rho(scenario, worst_participation(scenario))
    assert spent[0] == spent[1] == spent[2]


def test_a_stopped_run_rests_on_all_planned_rounds_and_shows_both(small, tmp_path: Path) -> None:
    """A number of rounds that released models decided has no guarantee of its own."""
    rules = ("participation.max_participations=2", "participation.timer_hours=0.5")
    scenario = small(*SMALL_MODEL, *rules, "privacy.mechanism={kind='tree'}")
    run = run_scenario(scenario, HERE, tmp_path / "run", stopping(5))
    audit, (used,) = audit_trace(run), audit_trace(run).mechanisms
    ended = audit_trace(ended_at(scenario, 5, tmp_path / "ended"))
    assert used.planned is not None
    assert used.planned.participation == worst_participation(scenario)
    assert used.planned.rho == worst_rho(scenario, worst_participation(scenario))
    assert not used.enforced.may_rest_on
    assert used.enforced.epsilon == ended.supported_epsilon
    assert audit.supported_epsilon == used.planned.epsilon > (used.enforced.epsilon or 0.0)
    both = [up(each.epsilon or 0.0) for each in (used.enforced, used.planned)]
    told = " ".join(str(each) for each in short_audit_text(audit))
    for text in (audit.verdict, audit.page(), told, privacy_statement(audit).summary):
        assert all(each in text for each in both)
    # How it ended is said once, also where the verdict is not alone.
    assert "5 of 12 planned rounds: enough." in audit.verdict
    assert run.trained is not None
    assert trained_verdict(run.trained, audit).count("5 of 12") == 1
    page = audit.page()
    assert page.partition("<section>")[0].count("5 of 12") == 1
    # A card of each guarantee, and only that of the planned rounds may be published.
    assert "Four guarantees: observed, enforced, claimed, planned" in page
    cards = re.findall(r'<article class="guarantee ([a-z]+)( may)?">', page)
    assert cards == [("observed", ""), ("enforced", ""), ("claimed", ""), ("planned", " may")]
    assert CHOSEN_BY["callback"].format(metric="loss") in audit.verdict
    document = audit.to_json()
    (of_tree,) = document["mechanisms"]
    named = {each["name"]: each["epsilon"] for each in of_tree["guarantees"]}
    assert named["enforced"] == used.enforced.epsilon
    assert of_tree["planned"]["epsilon"] == used.planned.epsilon == named["planned"]
    assert [each.name for each in audit.guarantees] == list(named)
    (rests,) = [each for each in document["guarantees"] if each["may_rest_on"]]
    assert rests["epsilon"] == document["supported_epsilon"]
    assert f"planned epsilon {both[1]}" in repr(audit)
    assert document["stopped"] == {"reason": "enough", "chosen_by": "callback", "metric": "loss"}
    # A claim about the rounds done leaves a doubt, and one about all of the plan does not.
    key = {"epsilon": 1000.0, "noise_multiplier": scenario.privacy.noise_multiplier}
    claims = [
        Claim(mechanism=used.strategy, rounds=n, max_participations=2, **key) for n in (5, 12)
    ]
    standings = [audit_trace(run, claim=each)._words.standing for each in claims]
    assert standings[0] == "open"
    assert "stopped" not in audit_trace(Trace.open(tmp_path / "ended")).to_json()


def test_a_training_on_a_finished_trace_rests_on_all_its_recorded_rounds(
    small, tmp_path: Path
) -> None:
    """Its planned guarantee is the enforced one of a training on all of them; without their trace, that of the rules in any run."""
    rules = ("participation.timer_hours=0.5",)
    scenario = small(*SMALL_MODEL, *rules, "privacy.mechanism={kind='tree'}")
    whole = simulate(scenario, HERE, tmp_path / "whole")
    enforced = audit_trace(whole).mechanisms[0].enforced
    trained = train(whole, None, HERE, tmp_path / "trained", stopping(5))
    assert trained.document["given"] == {"trace": "../whole", "digest": whole.digest}
    audit, (used,) = audit_trace(trained), audit_trace(trained).mechanisms
    assert used.planned is not None
    assert (used.planned.participation, used.planned.rho) == (enforced.participation, enforced.rho)
    assert audit.supported_epsilon == used.planned.epsilon == enforced.epsilon
    assert "times of all 12 recorded rounds" in used.planned.reason
    assert "round_separation" not in audit.verdict
    assert any("recorded before the training" in each for each in audit.assumptions)
    # A training that stopped has no less than one over the rounds done.
    assert (used.planned.epsilon or 0.0) > (used.enforced.epsilon or 0.0)
    any_run = worst_participation(scenario)
    assert any_run.max_participations > (used.planned.participation or any_run).max_participations
    # Who has the short trace only does not know the later times.
    alone = audit_trace(trained.trace_path).mechanisms[0].planned
    assert alone is not None
    assert alone.participation == any_run
    # A model decided how many rounds the short trace has, so later trainings cannot rest on them.
    again = train(trained.trace_path, None, HERE, tmp_path / "again", stopping(3))
    assert "given" not in again.document
    # A run that stops in step with its training never knew the later times.
    run = run_scenario(scenario, HERE, tmp_path / "run", stopping(5))
    assert run.trained is not None
    assert "given" not in run.trained.document
    assert audit_trace(run).mechanisms[0].planned == alone
    # Another form of the record is refused.
    spoilt = {**trained.document, "given": {"trace": "../whole"}}
    (spoilt_file := tmp_path / "spoilt" / "training.json").parent.mkdir()
    spoilt_file.write_text(json.dumps(spoilt))
    with pytest.raises(TraceCorrupt, match="another form in given"):
        TrainedRun.open(tmp_path / "spoilt", verify=False)
    # Another trace in the place of the given one changes nothing.
    whole.path.rename(tmp_path / "elsewhere")
    for _ in range(2):
        audit = audit_trace(trained)
        found = audit.mechanisms[0].planned
        assert found is not None
        assert (found.participation, found.epsilon) == (any_run, alone.epsilon)
        assert "is not at '../whole' as it was" in found.reason
        assert "participation.round_separation would" in audit.verdict
        if not whole.path.exists():
            ended_at(scenario, 11, whole.path)


def test_a_training_stops_when_its_metric_has_not_improved_for_its_patience() -> None:
    def rows(*values: float | None) -> list[TrainingMetrics]:
        data = Evaluated(1, 1, 1, 1)
        return [
            TrainingMetrics(
                TrainReport(round_index=index),
                None if each is None else Evaluation({"loss": Measured(each, 0.1)}, data),
            )
            for index, each in enumerate(values)
        ]

    def stops(*values: float | None, patience: int = 2) -> bool:
        stop = Stop(metric="loss", patience=patience)
        return bool(why_stopped(rows(*values), LOSS, stop))

    nan = float("nan")
    assert not stops(3.0, 2.0, 2.5)
    assert stops(3.0, 2.0, 2.5, 2.25)
    # Equal values are no improvement, and the first of them is the best.
    assert stops(2.0, 2.0, 2.0)
    assert best_round(rows(2.0, 2.0, 2.0), LOSS) == 0
    # Only evaluations count, and only just after one.
    assert not stops(2.0, None, 3.0, None)
    assert not stops(2.0, None, 3.0, None, 3.0, None)
    assert stops(2.0, None, 3.0, None, 3.0)
    assert not stops(3.0, 4.0, 2.0)
    # A value that is not finite is worse than any.
    reason = why_stopped(rows(nan, nan), LOSS, Stop(metric="loss", patience=2))
    assert reason == "held-out loss was not a number in 2 evaluations"
    reason = why_stopped(rows(2.0, 3.0), LOSS, Stop(metric="loss", patience=1))
    assert reason == "held-out loss did not improve in 1 evaluation since round 1"
    assert best_round(rows(nan, nan), LOSS) is None
    assert best_round(rows(nan, 3.0, nan, 2.5), LOSS) == 3
    assert best_round(rows(1.0, 3.0, 2.5), Metric("loss", "", "higher")) == 1
    assert not why_stopped(rows(2.0, 3.0, 4.0), LOSS, None)


def test_a_patience_beyond_all_evaluations_keeps_the_best_model_and_stops_nothing(
    small, tmp_path: Path
) -> None:
    stop = "training.stop={metric='loss', patience=1000, held_out='public'}"
    run = run_scenario(small(*SMALL_MODEL, *SWINGS, stop, "rounds.count=20"), HERE, tmp_path / "t")
    trained = run.trained
    assert trained is not None
    assert (run.run["ended"], trained.document["rounds"]) == ("completed", 20)
    assert "stopped" not in trained.document
    losses = trained.metrics["evaluation_loss"]
    assert trained.best_rounds == np.nanargmin(losses) + 1 < 20
    assert not np.array_equal(trained.parameters("best"), trained.parameters())


@pytest.fixture(scope="module")
def patient(small, tmp_path_factory) -> tuple[Scenario, Trace]:
    """A run that its patience stops."""
    scenario = small(*SMALL_MODEL, *SWINGS, PATIENT, "rounds.count=40")
    return scenario, run_scenario(scenario, HERE, tmp_path_factory.mktemp("patient") / "run")


def test_patience_stops_a_run_and_keeps_the_model_of_its_best_round(
    patient: tuple[Scenario, Trace], small, tmp_path: Path
) -> None:
    scenario, run = patient
    trained = run.trained
    assert trained is not None
    rounds, best = trained.document["rounds"], trained.best_rounds
    losses = trained.metrics["evaluation_loss"]
    evaluated = np.flatnonzero(np.isfinite(losses))
    assert best is not None
    assert 2 < best < rounds < 40
    assert best - 1 == evaluated[np.argmin(losses[evaluated])]
    # Two evaluations after the best one, at the last round.
    assert evaluated[-3:].tolist() == [best - 1, rounds - 3, rounds - 1]
    reason = f"held-out loss did not improve in 2 evaluations since round {best}"
    assert trained.document["stopped"] == {
        "reason": reason,
        "chosen_by": "public",
        "metric": "loss",
    }
    assert reason in run.run["ended"]
    assert reason in " ".join(" ".join(row) for row in trained.rows())
    assert BEST_FILE in " ".join(" ".join(row) for row in trained.rows())
    chosen = CHOSEN_BY["public"].format(metric="loss")
    assert chosen in audit_trace(run).verdict
    assert chosen in audit_trace(run).assumptions
    found = trained.best_evaluation()
    assert found is not None
    assert found["loss"].value == losses[best - 1] < trained.last_evaluation()["loss"].value
    assert trained.to_json()["best_metrics"]["evaluation_loss"] == losses[best - 1]
    shown, page = number_text(losses[best - 1]), trained_page(trained)
    assert shown in " ".join(" ".join(row) for row in trained.rows())
    assert f"; {shown} after {best} rounds, the best by loss" in page
    assert f"<b>{shown}</b><span>held-out loss of the best model, after {best} rounds" in page
    (curve,) = (each for each in trained_figures(trained) if each.name == "loss")
    assert (best, "best model, by loss") in [(each.at, each.text) for each in curve.marks]
    assert not trained.start_is_best
    # The weights are those of a training of so many rounds.
    same = scenario.with_overrides("training.stop={metric='loss', patience=1000}")
    until = train(run, same, HERE, tmp_path / "until", stopping(best))
    assert np.array_equal(until.parameters(), trained.parameters("best"))
    assert not np.array_equal(trained.parameters(), trained.parameters("best"))
    # Its own last round is its best.
    assert np.array_equal(until.parameters("best"), until.parameters())
    assert not (until.path / BEST_FILE).exists()
    # A trace that no training has stopped has models of all rounds.
    trace = simulate(small(*SMALL_MODEL, "rounds.count=2"), HERE, tmp_path / "trace")
    whole = train(trace, None, HERE, tmp_path / "whole")
    with pytest.raises(InputError, match="has no best model: its training did not stop early"):
        whole.parameters("best")


def test_a_best_round_that_is_worse_than_the_untrained_model_is_said_to_be(
    small, tmp_path: Path
) -> None:
    rate = "training.server.learning_rate=500.0"
    scenario = small(*SMALL_MODEL, rate, PATIENT, "training.evaluate_every=1")
    run = run_scenario(scenario, HERE, tmp_path / "run")
    trained = run.trained
    assert trained is not None
    start, best = trained.document["start"]["loss"], trained.best_rounds
    assert best is not None
    least = trained.metrics["evaluation_loss"][best - 1]
    assert start < least
    said = (
        f"The untrained model was better than the best one: held-out loss {number_text(start)} "
        f"before the training, {number_text(least)} after {best} rounds."
    )
    assert said in trained.warnings
    assert said in trained_page(trained)
    assert said in trained.to_json()["notes"]


def test_the_best_round_of_a_training_must_be_one_of_its_rounds(
    patient: tuple[Scenario, Trace], tmp_path: Path
) -> None:
    trained = patient[1].trained
    assert trained is not None
    rounds = trained.document["rounds"]
    for key, value in (("rounds", 0), ("rounds", rounds + 1), ("rounds", "2"), ("metric", "f")):
        place = tmp_path / f"{key}-{value}"
        shutil.copytree(trained.path, place)
        wrong = {**trained.document, "best": {**trained.document["best"], key: value}}
        (place / "training.json").write_text(json.dumps(wrong))
        with pytest.raises(TraceCorrupt, match="in best"):
            TrainedRun.open(place, verify=False)


@pytest.mark.slow
def test_load_model_has_the_best_round(small, tmp_path: Path) -> None:
    import torch

    (tmp_path / "mine.py").write_text(
        "import torch\nfrom fedray.clients.tasks.module import ModuleTask\n"
        "def task(seed):\n"
        "    def examples(device):\n"
        "        draws = torch.Generator().manual_seed(device % 1000)\n"
        "        inputs = torch.randn(8, 3, generator=draws)\n"
        "        return inputs, (inputs.sum(1) > 0).long()\n"
        "    return ModuleTask(torch.nn.Linear(3, 2), examples, torch.nn.functional.cross_entropy)\n"
    )
    own = f"training.task={{kind='custom', file='{tmp_path / 'mine.py'}'}}"
    stop = "training.stop={metric='loss', patience=1}"
    scenario = small("training.enabled=true", "training.cohort_sample=10", own, stop)
    scenario = scenario.with_overrides("training.evaluate_every=1", "rounds.count=30", *SWINGS)
    run = run_scenario(scenario, HERE, tmp_path / "run", stopping(6))
    assert run.trained is not None
    models = [fedray.load_model(run.path, torch.nn.Linear(3, 2), each) for each in ("last", "best")]
    for model, which in zip(models, ("last", "best"), strict=True):
        flat = torch.cat([each.detach().flatten() for each in model.parameters()]).numpy()
        assert np.array_equal(flat, run.trained.parameters(which))
    other: Any = "Best"
    with pytest.raises(InputError, match=r"^which='Best' is not \"last\" or \"best\"; give one"):
        fedray.load_model(run.path, torch.nn.Linear(3, 2), other)
    with pytest.raises(InputError, match="^which='Best' is not"):
        fedray.evaluate(run, "class", other, trust_code=True)


def assert_same(run: Trace, reference: Trace) -> None:
    """The same trace, model, best model and metrics, and nothing else lies about."""
    assert run.digest == reference.digest
    assert run.run["ended"] == reference.run["ended"]
    assert run.trained is not None
    assert reference.trained is not None
    keys = ("model_sha256", "metrics_digest", "best", "stopped", "rounds", "trace", "trace_digest")
    one, other = run.trained.document, reference.trained.document
    assert {key: one[key] for key in keys} == {key: other[key] for key in keys}
    names = {path.relative_to(run.path) for path in run.path.rglob("*")}
    assert names == {path.relative_to(reference.path) for path in reference.path.rglob("*")}
    assert not list(run.path.parent.glob("*.partial"))


@pytest.mark.slow
def test_two_trainers_stop_after_the_same_round(
    patient: tuple[Scenario, Trace], tmp_path: Path
) -> None:
    scenario, reference = patient
    two = Placement(backend="in-process", trainers=2)
    assert_same(run_scenario(scenario, two, tmp_path / "two"), reference)


@pytest.mark.slow
@pytest.mark.ray
def test_ray_stops_after_the_same_round_and_keeps_the_same_best_model(
    patient: tuple[Scenario, Trace], ray_cluster: None, tmp_path: Path
) -> None:
    scenario, reference = patient
    for trainers in (1, 2):
        placement = Placement(backend="ray", shards=2, trainers=trainers)
        assert_same(run_scenario(scenario, placement, tmp_path / f"ray-{trainers}"), reference)


@pytest.mark.slow
def test_a_run_that_was_interrupted_stops_after_the_same_round(
    patient: tuple[Scenario, Trace], tmp_path: Path
) -> None:
    """Whenever it is interrupted: in its first rounds, before and after its best one, and at its last."""
    scenario, reference = patient
    assert reference.trained is not None
    best, last = reference.trained.best_rounds, reference.trained.document["rounds"]
    assert best is not None
    for trained in sorted({1, best - 1, best, best + 1, last - 1}):

        def interrupt(progress: Progress, trained: int = trained) -> None:
            if isinstance(progress, TrainingProgress) and progress.trained == trained:
                raise KeyboardInterrupt

        out = tmp_path / str(trained) / "run"
        out.parent.mkdir()
        with pytest.raises(KeyboardInterrupt, match="continue with"):
            run_scenario(scenario, HERE, out, interrupt)
        run = resume_run(out, HERE, scenario)
        assert isinstance(run, Trace)
        assert_same(run, reference)


def test_a_listener_that_fails_costs_no_round(small, tmp_path: Path) -> None:
    scenario = small(*SMALL_MODEL, "rounds.count=6")
    rare = Placement(1, "in-process", checkpoint_seconds=1e6)
    heard: list[int] = []

    def listen(progress: Progress) -> None:
        if isinstance(progress, TrainingProgress):
            heard.append(progress.trained)
            if heard == [1, 2, 3]:
                raise ZeroDivisionError

    whole = run_scenario(scenario, rare, tmp_path / "whole")
    with pytest.raises(ZeroDivisionError) as failed:
        run_scenario(scenario, rare, tmp_path / "run", listen)
    (hint,) = failed.value.__notes__
    assert f"continue with `fedray.resume_run('{tmp_path / 'run'}')`" in hint
    run = resume_run(tmp_path / "run", rare, scenario, listen)
    assert heard == [1, 2, 3, 4, 5, 6]
    assert isinstance(run, Trace)
    assert whole.trained is not None
    assert run.trained is not None
    assert run.digest == whole.digest
    assert np.array_equal(run.trained.parameters(), whole.trained.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["the trace", "the training"])
def test_a_callback_s_stop_is_kept_if_the_run_is_killed_before_it_is_written(
    moment: str, small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener of the resumed run does not stop it."""
    from fedray.runs import learning
    from fedray.trace.trained import TrainedRunWriter

    scenario = small(*SMALL_MODEL, *MODES["on device"])
    reference = run_scenario(scenario, HERE, tmp_path / "reference", stopping(7))

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        if moment == "the trace":
            patched.setattr(learning, "cut_trace", killed)
        else:
            patched.setattr(TrainedRunWriter, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            run_scenario(scenario, HERE, tmp_path / "a" / "run", stopping(7))
        whole = simulate(scenario, HERE, tmp_path / "whole")
        with pytest.raises(KeyboardInterrupt):
            train(whole, None, HERE, tmp_path / "trained", stopping(7))
    run = resume_run(tmp_path / "a" / "run", HERE, scenario)
    assert isinstance(run, Trace)
    assert_same(run, reference)
    again = train(whole, None, HERE, tmp_path / "trained", is_resumed=True)
    assert reference.trained is not None
    assert again.document["best"] == reference.trained.document["best"]
    assert (again.trace_digest, again.trace_path) == (reference.digest, again.path / "trace")


def test_a_stopped_run_is_complete_and_does_not_go_on(
    patient: tuple[Scenario, Trace], tmp_path: Path
) -> None:
    scenario, run = patient
    with pytest.raises(
        CheckpointError, match="is complete .stopped by the training after .* do not exist; give"
    ):
        resume_run(run.path, HERE, scenario)
    assert run.trained is not None
    with pytest.raises(CheckpointError, match="has no unfinished run next to it"):
        train(run, None, HERE, run.trained.path, is_resumed=True)


@pytest.mark.slow
def test_stopped_runs_and_trainings_are_verified(
    patient: tuple[Scenario, Trace], small, tmp_path: Path
) -> None:
    _, run = patient
    assert run.trained is not None
    assert verify_run(run.path, HERE).is_equal
    assert verify_run(run.trained.path, HERE).is_equal
    whole = simulate(small(*SMALL_MODEL), HERE, tmp_path / "whole")
    trained = train(whole, None, HERE, tmp_path / "trained", stopping(5))
    assert verify_run(trained.path, HERE).is_equal
    # An edited best model is found.
    (run.trained.path / BEST_FILE).write_bytes(
        (run.trained.path / "model.safetensors").read_bytes()
    )
    with pytest.raises(TraceCorrupt, match=BEST_FILE):
        TrainedRun.open(run.trained.path).verify()


def test_a_run_of_several_tasks_does_not_stop_one_of_them(small, tmp_path: Path) -> None:
    tables = small(*SMALL_MODEL, "rounds.count=4").to_tables()
    with pytest.raises(ScenarioError, match="training.stop: a task that ends early would leave"):
        own = {"training": {"stop": {"metric": "loss", "patience": 1}}}
        SeveralTasks.from_tables({**tables, "tasks": {"one": {}, "two": own}})
    several = SeveralTasks.from_tables({**tables, "tasks": {"one": {}, "two": {}}})
    with pytest.raises(InputError, match="StopTraining was raised in a run of several tasks"):
        run_scenario(several, HERE, tmp_path / "run", stopping(2))
    # Without that listener it goes on.
    assert len(resume_run(tmp_path / "run", HERE, several).traces) == 2  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.slow
def test_the_commands_print_both_epsilons_of_a_stopped_training(
    small, tmp_path: Path, fedray_command: Callable[..., tuple[int, str, str]]
) -> None:
    whole = simulate(small(*SMALL_MODEL, *SWINGS, "rounds.count=20"), HERE, tmp_path / "whole")
    stop = "training.stop={metric='loss', patience=1}"
    keys = ("--set", stop, "--set", "training.evaluate_every=1")
    code, out, _ = fedray_command(
        "train", str(whole.path), *keys, "--out", str(tmp_path / "m"), "--json"
    )
    assert code == 0
    document = json.loads(out)
    rounds = document["rounds"]
    assert rounds < 20
    assert document["stopped"]["chosen_by"] == "clients"
    assert document["audit"]["rounds"] == rounds
    assert document["audit"]["mechanisms"][0]["planned"]["rounds"] == 20
    page = (tmp_path / "m" / "report.html").read_text()
    for text in (
        f"{rounds} of 20 planned rounds",
        "(planned)",
        CHOSEN_BY["clients"].format(metric="loss"),
    ):
        assert text in page
    code, out, _ = fedray_command("audit", str(tmp_path / "m"))
    assert code == 0
    assert f"after {rounds} of 20 planned rounds" in " ".join(out.split())


def test_a_metric_that_the_task_does_not_have_is_refused_before_anything_runs(
    small, tmp_path: Path
) -> None:
    scenario = small(*SMALL_MODEL, "training.stop={metric='accuracy', patience=1}")
    message = "training.stop.metric='accuracy' is no metric of the task; use loss"
    with pytest.raises(InputError, match=message):
        run_scenario(scenario, HERE, tmp_path / "run")
    trace = simulate(scenario, HERE, tmp_path / "trace")
    with pytest.raises(InputError, match=message):
        train(trace, None, HERE, tmp_path / "trained")
    with pytest.raises(InputError, match="leave the table out"):
        train_many(trace, {"one": (scenario, tmp_path / "one")})
    assert [each.name for each in tmp_path.iterdir()] == ["trace"]
