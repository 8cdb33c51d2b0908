"""Runs that `fedray status` finds under a directory."""

import errno
import json
import os
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from document_schema import found_keys

from fedray.audit.auditing import audit_trace
from fedray.audit.so_far import RoundsSoFar, bound_so_far
from fedray.base.errors import InputError
from fedray.commands.frame.output import print_pieces
from fedray.mechanisms.accounting.events import Gaussian
from fedray.runs.simulation import resume, simulate
from fedray.runtime.placement import Placement
from fedray.scenario import SeveralTasks
from fedray.scenario.data import VocabularyCost
from fedray.scenario.privacy import NO_GUARANTEE
from fedray.trace.checkpoints import has_checkpoint
from fedray.trace.partial import Lock, partial_directory
from fedray.trace.progress import PROGRESS_FILE, Process, read_progress
from fedray.trace.unfinished import write_unfinished
from fedray.watch.entries import Entry, Privacy, list_runs
from fedray.watch.shown import bound_text, status_text

HERE = Placement(1, "in-process", checkpoint_seconds=0.0)


def only(directory: Path) -> Entry:
    (entry,) = list_runs(directory).entries
    return entry


def under_way(
    directory: Path, scenario: Any, process: Process | None, done: int = 3, **facts: Any
) -> Path:
    """A run that is under way, as its driver has written it."""
    partial = partial_directory(directory)
    partial.mkdir(parents=True)
    write_unfinished(partial, scenario.to_document())
    times = [600.0 * number for number in range(done)]
    rounds = dict.fromkeys(("opened", "started", "closed"), times) | {"accepted": [200] * done}
    document = {
        "format": "fedray-progress",
        "version": 1,
        "kind": "simulation",
        "process": None if process is None else asdict(process),
        "has_ended": False,
        "begun": time.time() - 20.0,
        "told": time.time() - 10.0,
        "done": done,
        "count": scenario.rounds.count,
        "seconds_left": 5.0,
        "facts": {"shards": 2, "rounds": rounds, **facts},
    }
    (partial / PROGRESS_FILE).write_text(json.dumps(document))
    return partial


def test_a_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no directory; name one under which `fedray run`"):
        list_runs(tmp_path / "none")


def test_a_run_that_is_under_way(tmp_path: Path, small) -> None:
    under_way(tmp_path / "a" / "b", small(), Process.present(), simulated_seconds=7200.0)
    entry = only(tmp_path)
    assert (entry.path, entry.kind, entry.state) == ("a/b", "run", "running")
    assert (entry.name, entry.done, entry.count, entry.shards) == ("small", 3, 12, 2)
    assert (entry.simulated_seconds, entry.seconds_left, entry.resume) == (7200.0, 5.0, "")
    # Until now, also while nothing is reported; the report said 10 s, and was 10 s ago.
    assert entry.wall_seconds == pytest.approx(20.0, abs=5.0)
    assert entry.told == pytest.approx(10.0, abs=5.0)


def test_the_slower_one_of_simulation_and_training_ends_a_run(tmp_path: Path, small) -> None:
    partial = under_way(tmp_path / "a", small(), Process.present())
    document = json.loads((partial / PROGRESS_FILE).read_text())
    facts = {"train_loss": 1.5, "evaluation": {"accuracy": 0.25}, "trainers": 3}
    live = tmp_path / "a.training.partial"
    live.mkdir()
    of_training = {"kind": "training", "done": 2, "seconds_left": 9.0, "facts": facts}
    (live / PROGRESS_FILE).write_text(json.dumps({**document, **of_training}))
    entry = only(tmp_path)
    assert (entry.done, entry.trained, entry.seconds_left) == (3, 2, 9.0)
    assert (entry.train_loss, entry.evaluation, entry.trainers) == (1.5, {"accuracy": 0.25}, 3)


def test_a_run_whose_model_is_still_made_keeps_the_figures_of_its_simulation(
    tmp_path: Path, small
) -> None:
    trace = simulate(small("rounds.report_goal=150"), HERE, tmp_path / "a")
    live = under_way(tmp_path / "a.training", small(), Process.present(), done=2)
    document = json.loads((live / PROGRESS_FILE).read_text())
    (live / PROGRESS_FILE).write_text(json.dumps({**document, "kind": "training"}))
    entry = only(tmp_path)
    assert (entry.state, entry.done, entry.trained, entry.count) == ("running", 12, 2, 12)
    assert "completed, training unfinished, 2 of 12 rounds, digest" in repr(trace)
    shutil.move(live, tmp_path / "elsewhere")
    assert "training" not in repr(trace)
    shutil.move(tmp_path / "elsewhere", live)
    assert entry.simulated_seconds == trace.rounds["closed"][-1]
    assert entry.privacy is not None
    enforced = audit_trace(trace).mechanisms[0].enforced
    assert (entry.privacy.rho, entry.privacy.epsilon) == (enforced.rho, enforced.epsilon)


def test_a_run_that_starves_says_so_in_the_terminal_and_on_the_page(
    tmp_path: Path, small, fedray_command
) -> None:
    reason = "no round for 20.0 hours: of the eligible devices the timer held back 90 %"
    facts = {"eligible_estimate": 5678, "may_come": 1234, "starving": reason}
    under_way(tmp_path / "a", small(), Process.present(), **facts)
    entry = only(tmp_path)
    assert (entry.may_come, entry.eligible, entry.note) == (1234, 5678, f"starving, {reason}")
    out = " ".join(fedray_command("status", str(tmp_path))[1].split())
    assert f"a: starving, {reason}" in out
    assert "free" in out.split()
    assert "1,234" in out


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_run_at_which_nobody_works(has_checkpoint: bool, tmp_path: Path, small) -> None:
    own = Process.present()
    assert own is not None
    partial = under_way(tmp_path / "it's", small(), Process(own.pid, own.started - 1, own.machine))
    if has_checkpoint:
        (partial / "checkpoints").mkdir()
        (partial / "checkpoints" / "000000-0.npz").touch()
    entry = only(tmp_path)
    assert (entry.state, entry.seconds_left) == ("interrupted", None)
    command = f"fedray run --resume '{tmp_path}/it'\"'\"'s'"
    assert entry.resume == (command if has_checkpoint else "")
    # A training knows its trace.
    told = json.loads((partial / PROGRESS_FILE).read_text())
    (partial / PROGRESS_FILE).write_text(json.dumps({**told, "kind": "training"}))
    command = command.replace("fedray run", "fedray train")
    assert only(tmp_path).resume == (command if has_checkpoint else "")


def test_of_a_run_on_another_machine_the_last_word_is_known(tmp_path: Path, small) -> None:
    under_way(tmp_path / "a", small(), Process(1, 1, "another"))
    assert only(tmp_path).state == "elsewhere"


def test_the_bound_is_the_enforced_guarantee_of_the_rounds_so_far(tmp_path: Path, small) -> None:
    scenario = small()
    under_way(tmp_path / "a", scenario, Process.present())
    privacy = only(tmp_path).privacy
    assert privacy is not None
    times = np.array([0.0, 600.0, 1200.0])
    bound = bound_so_far(scenario, RoundsSoFar(times, times, times))
    # Three rounds within half an hour, and a timer of 12 hours: one participation each.
    assert bound.participation is not None
    assert bound.participation.max_participations == 1
    assert (privacy.rho, privacy.epsilon) == (bound.rho, bound.epsilon)
    assert (privacy.rounds, privacy.limit) == (3, {})


@pytest.mark.slow
def test_each_of_several_tasks_has_a_bound_of_its_own(tmp_path: Path, small, monkeypatch) -> None:
    monkeypatch.setattr("fedray.trace.progress.SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr("fedray.trace.progress.MOST_SHARE", 1e9)
    tables = {**small().to_tables(), "tasks": {"a": {}, "b": {"rounds": {"count": 5}}}}
    seen: list[Entry] = []
    several = SeveralTasks.from_tables(tables)
    run = simulate(several, HERE, tmp_path / "t", lambda told: seen.append(only(tmp_path)))
    last = seen[-1]
    assert (last.kind, last.state, last.privacy) == ("tasks", "running", None)
    assert sum(task.done for task in last.tasks.values()) == last.done == 16
    for name, trace in run.traces.items():
        privacy = last.tasks[name].privacy
        enforced = audit_trace(trace).mechanisms[0].enforced
        assert privacy is not None
        assert privacy.rho is not None
        assert enforced.rho is not None
        assert 0.0 < privacy.rho <= enforced.rho
    found = {entry.path: entry.kind for entry in list_runs(tmp_path).entries}
    assert found == {"t": "tasks", "t/a": "run", "t/b": "run"}


@pytest.mark.parametrize(
    "rounds", [{"opened": [1.0]}, {"opened": [1.0], "started": ["x"], "closed": [], "accepted": []}]
)
def test_no_bound_is_told_where_it_is_not_known(rounds: Any, tmp_path: Path, small) -> None:
    under_way(tmp_path / "a", small(), Process.present(), rounds=rounds)
    privacy = only(tmp_path).privacy
    assert privacy is not None
    assert (privacy.rho, privacy.epsilon) == (None, None)


@pytest.mark.slow
def test_the_bound_of_all_rounds_is_what_the_audit_finds_enforced(tmp_path: Path, small) -> None:
    overrides = ("participation.timer_hours=2.0", "population.devices=2000")
    scenario = small(*overrides)
    trace = simulate(scenario, HERE, tmp_path / "t")
    found = audit_trace(trace).mechanisms[0]
    columns = (trace.rounds[name] for name in ("opened", "started", "closed"))
    is_committed = trace.rounds["state"] == 0
    rounds = RoundsSoFar(*(column[is_committed] for column in columns))
    bound = bound_so_far(scenario, rounds)
    assert (bound.rho, bound.epsilon) == (found.enforced.rho, found.enforced.epsilon)
    assert found.observed.rho is not None
    assert bound.rho is not None
    assert found.observed.rho <= bound.rho
    # A bound of fewer rounds is no larger, so what is told later covers what was told before.
    half = bound_so_far(scenario, RoundsSoFar(*(column[:6] for column in rounds)))
    assert half.rho is not None
    assert half.rho <= bound.rho


@pytest.mark.slow
@pytest.mark.parametrize("is_trained", [False, True])
def test_the_bound_of_a_question_is_the_largest_enforced_epsilon_of_its_answers(
    is_trained: bool, tmp_path: Path, small
) -> None:
    """Two trust models, of which a deployment has one; with a model if one is trained."""
    scenario = small(
        "population.devices=3000",
        "participation={timer_hours=8.0, timer_resets_on='upload'}",
        "rounds={mode='upload-then-train', count=3, report_goal=100}",
        "rounds.uploads={window_hours=6.0, windows=3, schedule={kind='all'}}",
        f"training={{enabled={str(is_trained).lower()}, cohort_sample=4}}",
        "analytics={question={kind='count'}, epsilon=1.0, delta=1e-8}",
        "analytics.trust=[{kind='server'}, {kind='devices', least_devices=100}]",
    )
    trace = simulate(scenario, HERE, tmp_path / "t")
    basis = "enforced, with the model" if is_trained else "enforced"
    answers = [each for each in audit_trace(trace).answers or () if each.basis == basis]
    assert len(answers) == 2
    assert answers[0].windows == 3
    columns = (trace.rounds[name] for name in ("opened", "started", "closed"))
    bound = bound_so_far(scenario, RoundsSoFar(*columns))
    worst = max(answers, key=lambda each: each.epsilon or 0.0)
    assert (bound.epsilon, bound.delta) == (worst.epsilon, worst.delta)
    assert bound.reason == worst.reason


def test_the_bound_of_a_private_vocabulary_includes_what_it_cost(
    trace_of, small, monkeypatch
) -> None:
    scenario = small("privacy.mechanism={kind='tree'}")
    trace, spent = trace_of([[0], [1]], 2, scenario), Gaussian(noise_multiplier=0.5)
    cost = VocabularyCost(
        trust="server", mechanism="gaussian", theorem="t", windows=1, delta=1e-5,
        event=spent.model_dump(mode="json"), vocabulary_sha256="0" * 64, run="0" * 64,
    )  # fmt: skip
    rounds = RoundsSoFar(*(trace.rounds[name] for name in ("opened", "started", "closed")))
    alone = bound_so_far(scenario, rounds)
    monkeypatch.setattr("fedray.audit.so_far.vocabulary_cost", lambda _: cost)
    bound = bound_so_far(scenario, rounds)
    assert alone.rho is not None
    assert bound.rho == pytest.approx(alone.rho + 2.0)
    assert bound.delta == alone.delta + 1e-5


@pytest.mark.slow
def test_a_run_goes_on_where_the_file_cannot_be_written(
    tmp_path: Path, small, monkeypatch, caplog
) -> None:
    expected = simulate(small(), HERE, tmp_path / "before").digest

    def full(file: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("fedray.trace.progress.whole_file", full)
    monkeypatch.setattr("fedray.trace.progress.SECONDS_BETWEEN", 0.0)
    assert simulate(small(), HERE, tmp_path / "t").digest == expected
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.slow
def test_a_real_run_from_its_first_round_to_its_end(tmp_path: Path, small, monkeypatch) -> None:
    """It is seen while it runs, after an interruption, and when it is resumed; its trace is the same."""
    monkeypatch.setattr("fedray.trace.progress.SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr("fedray.trace.progress.MOST_SHARE", 1e9)
    scenario = small("rounds.report_goal=500")
    seen = []

    def look(progress: Any) -> None:
        told = read_progress(partial_directory(tmp_path / "t"))
        assert told is not None
        seen.append((progress.committed, only(tmp_path)))
        if has_checkpoint(partial_directory(tmp_path / "t")):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(scenario, HERE, tmp_path / "t", look)
    # A checkpoint is written at the end of a window, when the file has heard of all rounds.
    committed, last = seen[-1]
    assert (last.state, last.done) == ("running", committed)
    entry = only(tmp_path)
    assert (entry.state, entry.done, entry.count) == ("interrupted", committed, 12)
    assert entry.resume == f"fedray run --resume {tmp_path}/t"
    trace = resume(tmp_path / "t", HERE)
    entry = only(tmp_path)
    assert (entry.state, entry.done) == ("finished", 12)
    assert trace.digest == simulate(scenario, HERE, tmp_path / "again").digest
    assert not list((tmp_path / "t").rglob("*progress*"))


def test_finished_runs_trainings_and_studies(tmp_path: Path, trace_of, trained_of) -> None:
    trace = trace_of([[0, 2], [1, 3], [0], [1, 2], [3]], 4)
    study = tmp_path / "sweep"
    study.mkdir()
    for name in ("results.json", "results.parquet", "report.html"):
        (study / name).touch()
    trained_of("model", trace, {"accuracy": 0.5}, "training.seed=1")
    listing = list_runs(tmp_path)
    found_keys(json.loads(json.dumps(listing.to_json())), type(listing))
    found = {entry.path: entry for entry in listing.entries}
    assert {path: entry.kind for path, entry in found.items()} == {
        "trace-0": "run",
        "model": "training",
        "sweep": "sweep",
    }
    assert (found["trace-0"].done, found["model"].trained) == (12, 4)


def test_a_run_with_a_model_is_written_when_the_model_is(
    tmp_path: Path, trace_of, trained_of
) -> None:
    trace = trace_of([[0, 2], [1, 3]], 4)
    trained = trained_of("model", trace, {"accuracy": 0.5})
    trained.path.rename(trace.path / "training")
    entry = only(tmp_path)
    assert entry.kind == "run"
    assert entry.written == trained.document["written"] != trace.run["written"]


def test_a_damaged_run_is_shown_with_the_problem_and_links_are_not_followed(
    tmp_path: Path, trace_of, fedray_command
) -> None:
    trace = trace_of([[0]], 1)
    runs = tmp_path / "runs"
    (runs / "damaged").mkdir(parents=True)
    (runs / "damaged" / "run.json").write_text("{")
    (runs / "away").symlink_to(trace.path)
    assert (only(runs).path, only(runs).state) == ("damaged", "damaged")
    out = " ".join(fedray_command("status", str(runs))[1].split())
    assert "run.json cannot be read" in out


def test_what_is_no_run_of_ours_is_left_out(tmp_path: Path) -> None:
    for name in ("a.partial", "b.training.partial", "c", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "c" / "notes.txt").touch()
    (tmp_path / ".hidden" / "run.json").write_text("{}")
    assert list_runs(tmp_path).entries == ()


def test_status_prints_a_table_or_json(tmp_path: Path, small, fedray_command) -> None:
    own = Process.present()
    under_way(tmp_path / "a", small("privacy.stop_at={rho=0.5}"), own, eligible_estimate=1234)
    code, out, err = fedray_command("status", str(tmp_path))
    assert (code, err) == (0, "")
    for text in ("3/12", "1,234", "rho at most", "rho 0.5", "It is an upper bound", "running"):
        assert text in out
    code, out, err = fedray_command("status", str(tmp_path), "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["entries"][0]["privacy"]["limit"] == {"rho": 0.5}
    (tmp_path / "empty").mkdir()
    assert "no runs" in fedray_command("status", str(tmp_path / "empty"))[1]
    for options in ((), ("--watch", "0")):
        code, out, err = fedray_command("status", str(tmp_path / "none"), *options)
        assert (code, out, err.count("\n")) == (2, "", 1)


def test_a_process_that_has_not_reported_yet_is_not_called_interrupted(
    tmp_path: Path, small
) -> None:
    partial = partial_directory(tmp_path / "run")
    partial.mkdir()
    write_unfinished(partial, small().to_document())
    lock = Lock(partial)
    assert only(tmp_path).state == "running"
    lock.release()
    assert only(tmp_path).state == "interrupted"


def test_names_of_runs_are_escaped(tmp_path: Path, trace_of, capsys) -> None:
    trace_of([[0, 2], [1]], 3).path.rename(tmp_path / "a\x1b[2J\nb")
    print_pieces(status_text(list_runs(tmp_path)))
    found = capsys.readouterr().out
    assert all(map(str.isprintable, found.split("\n")))
    assert r"a\x1b[2J\nb" in found


def test_a_run_without_noise_has_no_guarantee() -> None:
    shown = bound_text(Privacy(None, None, 1e-10, 2, NO_GUARANTEE, {}))
    assert shown == f"{NO_GUARANTEE.capitalize()}."
