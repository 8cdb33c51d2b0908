"""The reference of JSON documents has exactly the keys that documents have, with their types."""

import json
import math
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command

from fedray.audit.audit import audit_trace
from fedray.audit.filtered import Exclusions
from fedray.audit.rules import Violations
from fedray.audit.several_tasks import audit_tasks
from fedray.cli import app
from fedray.clients.data.cache import CachedContent
from fedray.clients.pretraining import Step
from fedray.commands.several_tasks import audit_run_of_tasks, print_run_of_tasks
from fedray.documents.keys import JsonKey
from fedray.documents.registry import documents, rows_of
from fedray.documents.studies import VARIED
from fedray.encoding.tables import DiscreteGaussian, SecAgg
from fedray.mechanisms.files import write_strategy
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Identity
from fedray.runs.pretraining import Pretrained
from fedray.scenario.availability import HabitAvailability
from fedray.scenarios import learning
from fedray.scenarios.gboard import Compared, ReproducedRun
from fedray.scenarios.gboard_predict import PaceScore, Prediction, PredictionStudy, Score
from fedray.scenarios.gboard_sensitivity import Moved
from fedray.studies.canary import CanaryResult
from fedray.studies.fit import Fit, FittedRun
from fedray.studies.habits.fit import Estimate, HabitFit, Held
from fedray.studies.habits.observed import Layout, ObservedLog, Records
from fedray.studies.habits.statistics import Summary
from fedray.studies.noise_tests import CanaryTest
from fedray.studies.on_devices import NOTES, QUANTILES, DeviceGroup, OnDevices
from fedray.studies.plan import Candidate, Plan, PlanTarget
from fedray.studies.sweep.cells import Row
from fedray.studies.sweep.run import CellResult, SweepResult
from fedray.studies.sweep.sweep import Sweep
from fedray.trace.reader import Trace
from fedray.trace.several_tasks import TasksRun
from fedray.watch.entries import Entry, Listing, Privacy, TaskSoFar
from fedray.wire.messages import ClassCounts, Evaluation, Measured, Metric, ShardUse

PATTERNS = [[0, 2], [1, 3], [0], [1, 2], [3]]
KINDS: Mapping[str, type | tuple[type, ...]] = {
    "text": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "list": list,
    "object": dict,
    "any": object,
}
Command = Callable[..., tuple[int, str, str]]


def check(name: str, *examples: dict[str, Any], has_base: bool = True) -> None:
    """Examples, as JSON, have no key that the reference lacks, and together all that it has.

    Args:
        name: of the document.
        examples: documents, or parts of them with the keys that lead there.
        has_base: whether they have all keys of the document's base; else these are left to others.
    """
    document = documents()[name]
    as_json = json.loads(json.dumps(examples))
    seen = {id(key) for example in as_json for key in keys_of(example, document.all_keys, "")}
    others = {id(each.keys) for each in documents().values()}
    expected = told(document.all_keys if has_base else document.keys, others)
    missing = [path for key, path in expected.items() if key not in seen]
    assert not missing, f"no document has {missing}"


def told(keys: Mapping[str, JsonKey], others: set[int]) -> dict[int, str]:
    """The names of keys and of all within them, by the key; it may be in several places. Objects
    that are documents of their own are left to their tests."""
    found = {id(key): name for name, key in keys.items()}
    for key in keys.values():
        if key.within is not None and id(key.within) not in others:
            found |= told(key.within, others)
    return found


def keys_of(found: dict[str, Any], keys: Mapping[str, JsonKey], above: str) -> Iterator[JsonKey]:
    """The keys of an object and of all within it, each of which the reference has."""
    for name, value in found.items():
        known = VARIED if name.startswith("cell.") else name
        assert known in keys, f"the reference lacks {above}{name}"
        key = keys[known]
        assert is_of(value, key.type), f"{above}{name} is {value!r}, and no {key.type}"
        yield key
        for each in objects_in(value, key):
            yield from keys_of(each, key.within or {}, f"{above}{name}.")


def objects_in(value: Any, key: JsonKey) -> list[dict[str, Any]]:
    """The objects that have the keys within a key."""
    if value is None or key.within is None:
        return []
    if isinstance(value, list):
        return value
    if "object by" in key.type:
        return [each for each in value.values() if each is not None]
    return [value]


def is_of(value: Any, kind: str) -> bool:
    """Whether a value is of a type, in the words of the reference."""
    matching = [each for each in kind.split(" or ") if isinstance(value, KINDS[each.split()[0]])]
    return bool(matching) and (not isinstance(value, bool) or kind.startswith(("boolean", "any")))


def test_a_key_without_reference_and_one_without_a_document_are_found(trace_of) -> None:
    document = audit_trace(trace_of(PATTERNS, 4)).to_json()
    with pytest.raises(AssertionError, match="lacks new"):
        check("An audit", {**document, "new": 1})
    with pytest.raises(AssertionError, match=r"no document has .*'digest'"):
        check("An audit", {name: value for name, value in document.items() if name != "digest"})
    with pytest.raises(AssertionError, match="no integer"):
        check("An audit", {**document, "rounds": "4"})


def test_every_command_that_prints_json_has_a_document() -> None:
    commands: dict[str, Any] = vars(get_command(app))["commands"]
    told = " ".join(each.where for each in documents().values())
    printing = [
        name
        for name, command in commands.items()
        if any("--json" in option.opts for option in command.params)
    ]
    assert len(printing) > 20
    assert not [name for name in printing if not re.search(f"`fedray {name}\\b[^`]* --json`", told)]


def test_every_path_is_told_once_with_a_meaning() -> None:
    for name in documents():
        rows = rows_of(name)
        assert len({each.path for each in rows}) == len(rows)
        assert all(each.type and each.meaning for each in rows)
        assert not [each for each in rows if "None" in each.meaning]


@pytest.fixture
def claim(tmp_path: Path) -> str:
    """The file of a claim that no run of these tests keeps."""
    content = 'mechanism = {kind = "tree"}\nnoise_multiplier = 3.0\nrounds = 2\nmin_sep = 3\n'
    (tmp_path / "claim.toml").write_text(content + "max_participations = 1\nrho = 0.01\n")
    return str(tmp_path / "claim.toml")


@pytest.fixture
def without_drawing(monkeypatch) -> None:
    """Commands tell of figures and events without making them, which takes seconds."""
    monkeypatch.setattr("fedray.report.files.write_figure_files", lambda *_: None)
    monkeypatch.setattr("fedray.audit.audit.write_events", lambda *given: given[-1])


@pytest.fixture
def log(tmp_path: Path, fedray_command: Command) -> dict[str, Any]:
    """What is printed of an imported log with rows that are left out."""
    (tmp_path / "log.csv").write_text("dev,round,t\nx,1,10\n,2,20\ny,3,30\n")
    columns = ("--device-column", "dev", "--round-column", "round", "--time-column", "t")
    others = (
        "--renumber",
        "--time-unit",
        "seconds",
        "--leave-out-invalid",
        "--out",
        str(tmp_path / "log"),
        "--json",
    )
    return printed(fedray_command, "import", str(tmp_path / "log.csv"), *columns, *others)


def printed(command: Command, *arguments: str) -> dict[str, Any]:
    """What a command prints as JSON."""
    code, out, told_ = command(*arguments)
    assert code in (0, 1), told_
    return json.loads(out)


def rare_parts_of_audits() -> Iterator[dict[str, Any]]:
    """What few audits have: classes, broken rules, excluded devices, encodings, noise of
    devices."""
    counts = dict.fromkeys(ClassCounts._fields, 1)
    yield {"classes": [{"name": "all", "share": 1.0, "eligible_share": 0.1, **counts}]}
    yield {"violations": Violations(1, 2, 0, 0, 0, 0).to_json()}
    yield {"exclusions": Exclusions(np.array([3, 5]), 2.0, 1.5, 0).to_json()}
    least = {"devices": 9, "noise_multiplier": 1.5}
    noise = {"least_noise": {"round": 0, **least}, "least_permitted_noise": least}
    for table in (SecAgg(), DiscreteGaussian(parameters=10)):
        yield {"encoding": {**table.model_dump(), **noise}}


@pytest.mark.slow
@pytest.mark.usefixtures("without_drawing")
def test_the_reference_of_audits_is_that_of_their_documents(
    trace_of, small, log, claim: str, tmp_path: Path, fedray_command
) -> None:
    adaptive = small(
        "privacy.noise_multiplier=3.0",
        'privacy.clipping={kind="adaptive", count_noise=90.0}',
        'privacy.mechanism={kind="identity"}',
    )
    path = str(trace_of(PATTERNS, 4, adaptive).path)
    written = {name: str(tmp_path / name) for name in ("page", "figures", "events")}
    options = [part for name, file in written.items() for part in (f"--{name}", file)]
    evidence = ("--evidence", str(tmp_path / "evidence.csv"))
    examples = [
        printed(fedray_command, "audit", path, "--json", *options),
        printed(fedray_command, "audit", path, "--claim", claim, *evidence, "--json"),
        printed(fedray_command, "audit", str(tmp_path / "log"), "--json"),
    ]
    check("fedray audit", *examples, *rare_parts_of_audits())


@pytest.mark.usefixtures("without_drawing")
def test_the_reference_of_statements_and_reports_is_that_of_their_documents(
    trace_of, small, tmp_path: Path, fedray_command
) -> None:
    path = str(trace_of(PATTERNS, 4, small("privacy.noise_multiplier=3.0")).path)
    check("fedray statement", printed(fedray_command, "statement", path, "--json"))
    figures = ("--figures", str(tmp_path / "figures"))
    check("fedray report", printed(fedray_command, "report", path, *figures, "--json"))


def test_the_reference_of_canaries_is_that_of_their_documents() -> None:
    measured = dict.fromkeys(("claimed_mu", "expected_mu", "mu", "mu_low", "mu_high"), 1.0)
    tests = (CanaryTest("law", 0.5, "nothing", "the sampler"),)
    counts = CanaryResult(
        "tree",
        4,
        256,
        (0, 2),
        3.0,
        **measured,
        signal=1.0,
        noise=1.0,
        tests=tests,
    )
    check("fedray canary", replace(counts, counts=counts).to_json())


def test_the_reference_of_imports_is_that_of_their_documents(log) -> None:
    check("fedray import", log)


@pytest.mark.slow
def test_the_reference_of_runs_and_trainings_is_that_of_their_documents(
    trained: Trace, fedray_command, monkeypatch
) -> None:
    """What the commands print of a run that is there already."""
    monkeypatch.setattr("fedray.runs.pipeline.run_scenario", lambda *_: trained)
    monkeypatch.setattr("fedray.runs.learning.train", lambda *_, **__: trained.trained)
    run = printed(fedray_command, "run", "quickstart", "--json", "--quiet")
    check("fedray run", run, has_base=False)
    check("fedray train", printed(fedray_command, "train", str(trained.path), "--json", "--quiet"))


@pytest.mark.slow
@pytest.mark.usefixtures("without_drawing")
def test_the_reference_of_comparisons_is_that_of_their_documents(
    trace_of, trained_of, tmp_path: Path, fedray_command
) -> None:
    trace = trace_of(PATTERNS, 4)
    tree = 'privacy.mechanism={kind="tree"}'
    finals = {"accuracy": 0.5}
    runs = [trained_of("a", trace, finals), trained_of("b", trace, finals, tree)]
    options = ("--page", str(tmp_path / "page.html"), "--figures", str(tmp_path / "figures"))
    paths = [str(run.path) for run in runs]
    found = printed(
        fedray_command, "compare", *paths, "--trace", str(trace.path), *options, "--json"
    )
    check("fedray compare", found)


def test_the_reference_of_plans_is_that_of_their_documents(small) -> None:
    candidate = Candidate(100, 24.0, 0.1, 1.0, 7, (7, None), (2, 2), epsilon=1.0)
    target = PlanTarget(2.0)
    check("fedray plan", Plan(target, small(), 2, 1.0, candidate, (candidate,)).to_json())


def test_the_reference_of_sweeps_is_that_of_their_documents() -> None:
    vary = {"rounds": [60], "min_sep": [6, 20]}
    mechanisms = [{"kind": "tree-full"}, {"kind": "identity"}]
    sweep = Sweep.model_validate(
        {"name": "s", "x": "min_sep", "y": "rms_loss", "vary": vary, "mechanisms": mechanisms}
    )
    row = Row("tree", "anything", 60, 6, 2, 1.0, rms_loss=1.0)
    better = [(1.0, 2.0), (2.0, 1.0)]
    cells = tuple(
        CellResult(
            cell, (replace(row, rms_loss=tree), replace(row, mechanism="other", rms_loss=other))
        )
        for cell, (tree, other) in zip(sweep.cells(), better, strict=True)
    )
    check("fedray stress", SweepResult(sweep, cells).to_json())


@pytest.mark.slow
def test_the_reference_of_mechanisms_is_that_of_their_documents(
    tmp_path: Path, fedray_command, monkeypatch
) -> None:
    """The optimisation takes most of the second."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    write_strategy(Identity(), tmp_path / "identity.json")
    setting = ("--rounds", "60", "--min-sep", "12", "--max-participations", "4")
    sampled = ("--sampling", "0.01", "--delta", "1e-6")
    file = str(tmp_path / "identity.json")
    for command in (("mechanism", "--noise-multiplier", "1"), ("calibrate", "--epsilon", "4")):
        name, *options = command
        found = printed(fedray_command, name, file, *setting, *sampled, *options, "--json")
        check("fedray mechanism", found)
    several = printed(fedray_command, "mechanism", file, "tree", *setting, "--json")
    check("fedray mechanism, of several", several)
    outcomes = [
        {"rounds": 60, "min_sep": 12, "max_participations": 4},
        {"rounds": 50, "min_sep": 8, "max_participations": 5},
    ]
    (tmp_path / "targets.json").write_text(json.dumps(outcomes))
    targets = ("--targets", str(tmp_path / "targets.json"), "--buffers", "1")
    found = printed(fedray_command, "optimize", "blt", *targets, "--json")
    check("fedray optimize", found, has_base=False)


def test_the_reference_of_noise_for_a_trace_is_that_of_its_document(
    trace_of, fedray_command
) -> None:
    """The first trace breaks its rules, so that its enforced noise is null."""
    for patterns in (PATTERNS, [[0, 2], [1, 3]]):
        path = str(trace_of(patterns, 4).path)
        options = ("--trace", path, "--epsilon", "4", "--json")
        check("fedray calibrate, of a trace", printed(fedray_command, "calibrate", *options))


@pytest.mark.usefixtures("without_drawing")
def test_the_reference_of_several_tasks_is_that_of_their_documents(
    trace_of, small, tmp_path: Path, capsys, monkeypatch
) -> None:
    costs = {
        "wall_seconds": 1.0,
        "shard_use": [asdict(ShardUse(0, 9, 3, 1.0, 1.0, 1))],
        "driver_peak_mebibytes": 1.0,
        "restarts": 0,
    }
    traces = {"words": trace_of([[0], [1]], 2, small()), "none": trace_of([[], []], 0, small())}
    (tmp_path / "run").mkdir()
    opened = TasksRun(tmp_path / "run", {"digest": "", **costs}, traces)
    audit = audit_tasks(opened)
    check("An audit of several tasks", audit.to_json())
    print_run_of_tasks(opened, as_json=True)
    check("fedray run, of several tasks", json.loads(capsys.readouterr().out))
    monkeypatch.setattr("fedray.commands.several_tasks._audited", lambda *_: (opened, audit))
    files = (tmp_path / "page.html", tmp_path / "figures")
    audit_run_of_tasks(opened.path, {}, None, *files, verify=None, as_json=True)
    check("fedray audit, of several tasks", json.loads(capsys.readouterr().out))


@pytest.mark.usefixtures("without_drawing")
def test_the_reference_of_models_is_that_of_their_documents(
    trace_of, trained_of, tmp_path: Path, fedray_command, monkeypatch
) -> None:
    """Of pretrainings and evaluations; their results are made by hand."""
    evaluation = Evaluation({"loss": Measured(1.0, 0.1)}, 5, 9)
    steps = (Step(0, math.nan, evaluation), Step(9, 1.0, evaluation))
    check("fedray pretrain", Pretrained(tmp_path / "model", "0", 9, steps).to_json())
    run = trained_of("run", trace_of(PATTERNS, 4), {"accuracy": 0.5})
    means, quantiles = {"accuracy": (0.5, math.nan)}, {"accuracy": (0.5,) * len(QUANTILES)}
    groups = [
        DeviceGroup(by, 0.0, 0.0, 9, means, quantiles) for by in ("all", "participations", "zone")
    ]
    found = OnDevices(run, run.task_metrics, tuple(groups), 512, 64, 0, NOTES)
    monkeypatch.setattr("fedray.studies.on_devices.evaluate_on_devices", lambda *_, **__: found)
    files = ("--page", str(tmp_path / "page.html"), "--figures", str(tmp_path / "figures"))
    document = printed(fedray_command, "evaluate", str(run.path), *files, "--json", "--quiet")
    check("fedray evaluate", document)


def test_the_reference_of_reproductions_is_that_of_their_documents(fedray_command) -> None:
    """Simulated figures are made by hand."""
    same, alone = Compared(1.0, 1.0), Compared(1.0, None)
    run = ReproducedRun(
        "nwp",
        1.0,
        False,
        same,
        same,
        same,
        alone,
        1.0,
        1.0,
        (1.0, 2.0),
        None,
        (1.0, 2.0),
        "completed",
        "0",
        1.0,
    )
    check("fedray reproduce gboard", {"runs": [run.to_json()]})
    privacy = printed(fedray_command, "reproduce", "gboard-privacy", "--json")
    check("fedray reproduce gboard-privacy", privacy)
    prediction = Prediction(
        name="nwp",
        mechanism="timer",
        reach=1.0,
        min_sep=9.0,
        alone=9.0,
        low=8.0,
        high=10.0,
        days=7.0,
        max_participations=4,
        own_reach=None,
        transferred=9.0,
        upper_bound=20.0,
        renewal=9.0,
        fitted=None,
        is_fitted=False,
        published_min_sep=9,
        published_max_participations=4,
        published_days=(6.0, 8.0),
    )
    scores = (Score("one", "others", 3, 0.1, 0.1, None),)
    pace = (PaceScore("timer", 3, 0.1, 0),)
    study = PredictionStudy((prediction,), scores, pace, (1.0, 2.0), 0.01, 2)
    check("fedray reproduce gboard-predict", study.to_json())
    moved = Moved("", "nwp", 9, 4, 7.0, 0.0, 0.0)
    document = {"scale": 0.01, "settings": [asdict(moved)]}
    check("fedray reproduce gboard-sensitivity", document)


def test_the_reference_of_learning_curves_is_that_of_their_documents() -> None:
    comparison = learning.Comparison("blt", "tree", learning.mean_interval([0.1, 0.2]))
    metric = learning.MetricResult(
        Metric("accuracy", "share", "higher"),
        {"blt": {1: 0.5, 2: math.nan}, "tree": {1: 0.4, 2: 0.4}},
        0.01,
        (comparison,),
        (comparison,),
    )
    mechanism = learning.TrainedMechanism("blt", "blt", 9, 2.0, True, 7.0, None)
    study = learning.LearningCurves(
        "s", "0", MinSep(60, 9, 4), 0.1, 2.0, 1e-10, (1, 2), (mechanism,), (metric,), {}
    )
    check("fedray reproduce learning", {"studies": [study.to_json()]})


def test_the_reference_of_fits_is_that_of_their_documents(
    tmp_path: Path, fedray_command, monkeypatch
) -> None:
    """Both fits are made by hand."""
    run = FittedRun(0.5, 9, 4)
    found = Fit("population.reach", 9, run, (FittedRun(0.1, None, None), run))
    monkeypatch.setattr("fedray.studies.fit.fit_min_sep", lambda *_, **__: found)
    arguments = ("fit", "quickstart", "--min-sep", "9", "--json", "--quiet")
    check("fedray fit, of a min-sep", printed(fedray_command, *arguments))
    summary = Summary(
        {"rate": np.ones((5, 1))}, np.ones(5), lambda means: [("rate", means["rate"][..., 0])]
    )
    layout = Layout("check-ins", 8, 0)
    habits = HabitFit(
        layout=layout,
        devices=5,
        records=9,
        simulated_devices=20,
        estimates=(Estimate("day_sessions", 1.0, 0.1, 0.8, 1.2),),
        held=(Held("weekend_factor", 1.0, "the log does not tell it"),),
        table=HabitAvailability(),
        offset_hours=2.0,
        measured=summary,
        simulated=summary,
        errors=np.ones(summary.values.size),
        j_statistic=1.0,
        degrees_of_freedom=2,
    )
    records = Records(np.array([0, 1]), np.zeros(1), np.zeros(1))
    log = ObservedLog(records, layout, "seconds")
    monkeypatch.setattr("fedray.studies.habits.read.read_observed_log", lambda *_, **__: log)
    monkeypatch.setattr("fedray.studies.habits.fit.fit_habits", lambda *_, **__: habits)
    check("fedray fit, of a log", printed(fedray_command, "fit", "a.csv", "--json", "--quiet"))


def test_the_reference_of_files_is_that_of_their_documents(
    tmp_path: Path, fedray_command, monkeypatch
) -> None:
    """Of those that are written, listed and described."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    check("fedray init", printed(fedray_command, "init", str(tmp_path / "s.toml"), "--json"))
    check("fedray scenarios", printed(fedray_command, "scenarios", "--json"))
    check("fedray stress, without a sweep", printed(fedray_command, "stress", "--json"))
    described = [
        printed(fedray_command, "schema", name, "--json")
        for name in ("privacy.mechanism", "rounds.parquet")
    ]
    check("fedray schema", *described)
    content = CachedContent(tmp_path / "content", 9, 0.0)
    monkeypatch.setattr("fedray.clients.data.cache.cached_contents", lambda: [content])
    monkeypatch.setattr("fedray.clients.data.cache.delete_content", lambda _: True)
    deleted = printed(fedray_command, "cache", "--delete-unused-for", "0", "--json")
    check("fedray cache", printed(fedray_command, "cache", "--json"), deleted)


def test_the_reference_of_populations_is_that_of_their_documents(
    small, tmp_path: Path, fedray_command
) -> None:
    (tmp_path / "s.toml").write_bytes(small("population.devices=500").to_toml().encode())
    file = str(tmp_path / "sessions.json")
    options = ("--sessions", file, "--devices", "9", "--days", "1", "--json", "--quiet")
    document = printed(fedray_command, "population", str(tmp_path / "s.toml"), *options)
    check("fedray population", document)
    # FedScale's pickle, of one device that comes once in a period of nine seconds.
    trace = {1: {"duration": 9, "active": [1], "inactive": [3], "finish_time": 9}}
    (tmp_path / "trace").write_bytes(pickle.dumps(trace))
    given = (str(tmp_path / "trace"), "--kind", "fedscale", "--out", str(tmp_path / "s.csv"))
    check("fedray sessions", printed(fedray_command, "sessions", *given, "--json"))


def test_the_reference_of_listings_is_that_of_their_documents(
    tmp_path: Path, fedray_command, monkeypatch
) -> None:
    privacy = Privacy(1.0, 5.0, 1e-10, 9, "by its rules", {"epsilon": 6.0})
    tasks = {"words": TaskSoFar(9, 20, None), "emoji": TaskSoFar(9, None, privacy)}
    entries = (
        Entry(path="a", kind="run", state="running", evaluation={"loss": 1.0}, privacy=privacy),
        Entry(path="b", kind="run", state="interrupted", tasks=tasks),
    )
    listing = Listing(str(tmp_path), entries, False)
    monkeypatch.setattr("fedray.watch.entries.Runs.list", lambda _: listing)
    check("fedray status", printed(fedray_command, "status", str(tmp_path), "--json"))
