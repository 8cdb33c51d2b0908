"""Mechanisms trained at one epsilon: calibration, reuse of finished runs, and what is refused."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

import fedray
from fedray.base.errors import TraceError
from fedray.base.part_done import Announcement
from fedray.runs import learning
from fedray.runs.learning import scenario_of, train_many
from fedray.trace.partial import partial_directory
from fedray.trace.progress import ProgressFile
from fedray.trace.reader import Trace

HERE = fedray.Placement(1, "in-process")
TRAINED = (
    "training.enabled=true",
    "training.task.kind=quadratic",
    "data={kind='points', dimension=2}",
    "rounds={count=6, report_goal=20}",
    "training.cohort_sample=20",
    "training.evaluation_devices=8",
)


@pytest.fixture(scope="module")
def traces(small, tmp_path_factory) -> dict[str, Trace]:
    """A trace whose rules ensure limits, and one in which any device may be in every round."""
    folder = tmp_path_factory.mktemp("traces")
    rules = {
        "enforced": "participation={timer_hours=0, round_separation=3}",
        "observed": "participation.timer_hours=0",
    }
    return {
        name: fedray.simulate(small(*TRAINED, rule), HERE, folder / name)
        for name, rule in rules.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("basis", ["enforced", "observed"])
def test_every_mechanism_has_the_epsilon_and_every_seed_a_pair(
    traces, tmp_path, basis: str
) -> None:
    names = ["tree", "identity", "bisr", "none"]
    said: list[str] = []
    found = fedray.compare_mechanisms(
        traces[basis],
        names,
        tmp_path / "c",
        epsilon=4.0,
        delta=1e-6,
        seeds=2,
        placement=HERE,
        on_progress=said.append,
    )
    assert {group.label for group in found.groups} == {*names}
    # What is said before the first training: noise of the settings with noise, time, and how to continue.
    (ahead,) = (each for each in said if isinstance(each, Announcement))
    assert said.index(ahead) < next(p for p, each in enumerate(said) if "0 of 8 models" in each)
    noise = {
        group.label: next(iter(group.runs.values())).document["update_noise"]
        for group in found.groups
    }
    least, most = (pick([*names[:3]], key=noise.__getitem__) for pick in (min, max))
    assert ahead.startswith(
        f"The noise acts on the models like independent noise of {noise[least]:.2g} ({least}) to "
        f"{noise[most]:.2g} ({most}) times the clip norm on each mean update. 8 trainings of 6 rounds take about 1 s of "
        f"CPU time. Fewer seeds, fewer mechanisms or training.cohort_sample="
    )
    assert " take less. If they are cut off, the same out continues them: " in ahead
    assert ahead.endswith(os.path.relpath(tmp_path / "c"))
    assert next(each for each in said if "trained" in each).startswith(
        "0 of 8 models trained, now tree-1; "
    )
    assert found.groups[-1].label == "none"
    assert (found.basis, found.delta) == (basis, 1e-6)
    for group in found.groups[:-1]:
        assert 3.99 < group.epsilon[basis] <= 4.0
        privacy = fedray.Scenario.from_tables(
            group.runs[1].document["scenario"], directory=group.runs[1].path
        ).privacy
        less = fedray.audit_trace(
            traces[basis], 0.999 * group.noise_multiplier, 1e-6, privacy.strategy
        )
        assert getattr(less.mechanisms[0], basis).epsilon > 4.0
        assert [*group.runs] == [1, 2]
    assert f"at epsilon 4 ({basis})" in found.answer
    assert " of loss to no noise; " in found.answer or "apart from no noise" in found.answer
    # The result is that of a comparison of its runs, and finished runs are not trained again.
    runs = [run for group in found.groups for run in group.runs.values()]
    document = fedray.compare_runs(runs, traces[basis], 1e-6).to_json()
    assert document["answer"] == found.answer
    before = {run.path: run.document["written"] for run in runs}
    said.clear()
    given = {"epsilon": 4.0, "delta": 1e-6, "seeds": 2, "placement": HERE}
    again = fedray.compare_mechanisms(
        traces[basis], names, tmp_path / "c", **given, on_progress=said.append
    )
    assert not any(isinstance(each, Announcement) for each in said)
    assert again.to_json() == found.to_json()
    after = [run for group in again.groups for run in group.runs.values()]
    assert {run.path: run.document["written"] for run in after} == before


def test_a_single_mechanism_with_noise_has_the_epsilon_that_it_was_calibrated_to(
    traces, tmp_path
) -> None:
    """Its enforced epsilon is larger here, and equal to itself, which does not make it the basis."""
    # Steps so small that even noisy ones are better than none.
    slow = scenario_of(traces["observed"]).with_overrides("training.server.learning_rate=0.01")
    given = {"epsilon": 2.0, "seeds": 1, "placement": HERE, "scenario": slow}
    found = fedray.compare_mechanisms(traces["observed"], ["tree", "none"], tmp_path, **given)
    assert found.groups[0].epsilon["enforced"] > 2.1
    assert found.basis == "observed"
    assert "at epsilon 2 (observed)" in found.answer
    ensured = found.groups[0].epsilon["enforced"]
    shown = re.search(
        r"Epsilon is that .* the rules ensure only tree ([\d.]+)\.", found.warnings[0]
    )
    assert ensured <= float(shown[1]) <= 1.01 * ensured
    # All have one epsilon, over which nothing can be drawn.
    assert not any("epsilon" in each.name for each in found.figures())


def test_the_time_left_follows_the_rounds_of_all_models_that_are_trained_side_by_side(
    traces, tmp_path, monkeypatch
) -> None:
    """When the first of four is reported, the second has ended too, and the third is half trained."""
    trace, shares = traces["observed"], []

    def side_by_side(work, jobs, _):
        work(jobs[0])
        work(jobs[1])
        partial = partial_directory(jobs[2][2])
        partial.mkdir()
        ProgressFile(partial).begin("training", 3, 6)
        yield 0, None
        shutil.rmtree(partial)
        yield 1, None
        for place in (2, 3):
            yield place, work(jobs[place])

    monkeypatch.setattr(learning, "run_jobs", side_by_side)
    seeds = {n: scenario_of(trace).with_overrides(f"training.seed={n}") for n in range(4)}
    trainings = {n: (each, tmp_path / str(n)) for n, each in seeds.items()}
    train_many(trace, trainings, on_progress=lambda line: shares.append(4 * line.share))
    assert shares == [0.0, 2.5, 2.0, 3.0, 4.0]


@pytest.mark.slow
def test_the_command_says_the_answer_first_and_prints_json(
    traces, fedray_command, tmp_path
) -> None:
    given = ["compare-mechanisms", str(traces["enforced"].path), "--mechanisms", "tree, identity"]
    given += [
        "--rho",
        "0.5",
        "--seeds",
        "1",
        "--out",
        str(tmp_path / "c"),
        "--place",
        "backend=in-process",
    ]
    code, out, _ = fedray_command(*given)
    assert code == 0
    code, printed, _ = fedray_command(*given, "--json")
    assert code == 0
    document = json.loads(printed)
    assert " ".join(out.split()).startswith(" ".join(document["answer"].split()))
    assert {group["label"] for group in document["groups"]} == {"tree", "identity"}
    assert all(0.499 < group["rho"]["enforced"] <= 0.5 for group in document["groups"])


def test_bad_arguments_are_refused_in_one_line(trace_of, fedray_command, tmp_path) -> None:
    trace = str(trace_of([[0, 2], [1]], 3).path)
    out = ["--out", str(tmp_path / "c")]
    for arguments, words in [
        (["--epsilon", "8"], "--mechanisms must be given"),
        (["--mechanisms", "tree"], "exactly one target"),
        (["--mechanisms", "tree,tree", "--epsilon", "8"], "different names"),
        (["--mechanisms", "foo", "--epsilon", "8"], "mechanism 'foo' is neither"),
        (
            ["--mechanisms", "blt,tre,banded", "--epsilon", "8"],
            "'tre' is neither a file nor one of the kinds blt, banded, banded-toeplitz, band-fhu, "
            "bisr, dense, tree, tree-full, identity, blt-100, blt-400, blt-1000, none; the nearest "
            "is 'tree'",
        ),
        (["--mechanisms", "tree", "--epsilon", "0"], "--epsilon=0.0 must be positive"),
        (
            ["--mechanisms", "tree", "--epsilon", "8", "--seeds", "0"],
            "--seeds=0 must be at least 1",
        ),
    ]:
        code, printed, err = fedray_command("compare-mechanisms", trace, *arguments, *out)
        assert (code, printed, err.count("\n")) == (2, "", 1), err
        assert words in err, err


def test_trainings_in_other_processes_find_their_directories(trace_of, monkeypatch) -> None:
    """A worker of a cluster that was started elsewhere has another working directory."""
    trace, jobs = trace_of([[0], [1]], 2), []
    monkeypatch.chdir(trace.path.parent)
    monkeypatch.setattr(
        "fedray.runs.learning.run_jobs", lambda work, given, _: jobs.extend(given) or ()
    )
    opened = fedray.Trace.open(trace.path.name)
    with pytest.raises(TraceError):  # nothing was trained
        train_many(opened, {0: (scenario_of(opened), Path("out"))})
    assert jobs[0][::2] == (trace.path, trace.path.parent / "out")
