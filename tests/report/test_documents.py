"""Documents that commands print have the keys that their types declare, and only those."""

import json
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from document_schema import declared_keys, found_keys
from json_documents import DOCUMENTS, described, rows_of
from typer.main import get_command

import fedray
from fedray.audit.auditing import audit_trace
from fedray.audit.filtered import Exclusions
from fedray.audit.guarantees import Guarantee
from fedray.audit.persons import Clients
from fedray.audit.questions import AnswerPrivacy
from fedray.audit.rules import Violations
from fedray.audit.several_tasks import audit_tasks
from fedray.cli import app
from fedray.commands.audit import audit_run_of_tasks
from fedray.commands.run import print_run_of_tasks
from fedray.encoding.tables import DevicesTrust, SecAgg
from fedray.mechanisms.files import write_strategy
from fedray.mechanisms.loss import Purpose
from fedray.mechanisms.registry import Identity
from fedray.runs.learning import _encoding_figures
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.scenario.availability import HabitAvailability
from fedray.studies.fit import Fit, FittedRun, ObservedRun
from fedray.studies.habits.fit import Estimate, HabitFit, Held
from fedray.studies.habits.observed import Layout, ObservedLog, Records
from fedray.studies.habits.statistics import Summary
from fedray.studies.plan import Candidate, Plan, PlanTarget
from fedray.studies.reach_and_pace import Interval
from fedray.studies.remedies import Remedy
from fedray.studies.what_ifs import WhatIf
from fedray.trace.groups import Group, GroupMetric, Groups, WorstTenth
from fedray.trace.reader import Trace
from fedray.trace.several_tasks import TasksRun
from fedray.wire.messages import ClassCounts, Evaluated, Metric, ShardUse, TrainReport

HERE = Placement(1, "in-process")
PATTERNS = [[0, 2], [1, 3], [0], [1, 2], [3]]
Command = Callable[..., tuple[int, str, str]]


def check(name: str, *examples: dict[str, Any], has_base: bool = True) -> None:
    """Examples have only keys that the document's types declare, and together all of them.

    Args:
        name: name of the document.
        examples: documents, or parts of them with the keys that lead there.
        has_base: whether the examples have all keys of the document's base.
    """
    document = DOCUMENTS[name]
    base = DOCUMENTS[document.base].types if document.base else ()
    found = [found_keys(json.loads(json.dumps(each)), *base, *document.types) for each in examples]
    # Objects that are documents themselves are left to the tests of these.
    others = tuple(kind for each in DOCUMENTS.values() for kind in each.types)
    declared = declared_keys(*document.types, *(base if has_base else ()), but=others)
    missing = declared - set().union(*found)
    assert not missing, f"no document has {missing}"


def test_undeclared_and_missing_keys_and_values_of_another_type_are_found(trace_of) -> None:
    document = audit_trace(trace_of(PATTERNS, 4)).to_json()
    with pytest.raises(AssertionError, match="new is not declared"):
        check("An audit", {**document, "new": 1})
    with pytest.raises(AssertionError, match=r"no document has .*'digest'"):
        check("An audit", {name: value for name, value in document.items() if name != "digest"})
    with pytest.raises(AssertionError, match="not integer"):
        check("An audit", {**document, "rounds": "4"})


def test_every_command_that_prints_json_has_a_document() -> None:
    commands: dict[str, Any] = vars(get_command(app))["commands"]
    told = " ".join(map(described, DOCUMENTS))
    printing = [
        name
        for name, command in commands.items()
        if any("--json" in option.opts for option in command.params)
    ]
    assert (
        len(printing) >= len(commands) - 3
    )  # reproductions print it; init and report print the paths of files
    assert not [name for name in printing if not re.search(f"`fedray {name}\\b[^`]* --json`", told)]


def test_every_key_of_every_document_has_a_meaning() -> None:
    for name in DOCUMENTS:
        rows = list(rows_of(name))
        assert len({each.path for each in rows}) == len(rows)
        assert not [each.path for each in rows if not each.key.meaning]
        assert not [each.path for each in rows if re.search("None|NaN|True", each.key.meaning)]


@pytest.fixture
def claim(tmp_path: Path) -> str:
    """The file of a claim that no run of these tests keeps."""
    content = 'mechanism = {kind = "tree"}\nnoise_multiplier = 3.0\nrounds = 2\nmin_sep = 3\n'
    (tmp_path / "claim.toml").write_text(content + "max_participations = 1\nrho = 0.01\n")
    return str(tmp_path / "claim.toml")


@pytest.fixture
def without_drawing(monkeypatch) -> None:
    """Commands tell of figures and events without making them, which takes seconds."""
    monkeypatch.setattr("fedray.report.files.write_figures", lambda *_: None)
    monkeypatch.setattr("fedray.audit.audit.write_events", lambda *given: given[-1])


@pytest.fixture
def log(tmp_path: Path, fedray_command: Command) -> dict[str, Any]:
    """What is printed of an imported log with rows that are left out."""
    (tmp_path / "log.csv").write_text(
        "dev,round,t,p\nx,1,10,1\nx,1,11,1\nX,1,10,1\n,2,20,1\ny,3,30,2\n"
    )
    columns = ("--column", "device=dev", "--column", "round=round", "--column", "time=t")
    columns = (*columns, "--column", "owner=p")
    others = (
        "--rounds",
        "logged",
        "--time-format",
        "seconds",
        "--leave-out-invalid",
        "--join-ids",
        "--repeats",
        "once",
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
    yield {"violations": Violations(1, 2, 0, 0).to_json()}
    yield {"exclusions": Exclusions(np.array([3, 5]), 2.0, 1.5, 0).to_json()}
    yield {"supported_delta": 1e-8}
    yield {"meets_target": True}
    yield {"joined_ids": 3}
    yield {"stopped": {"reason": "enough", "chosen_by": "callback", "metric": "loss"}}
    planned = Guarantee("planned", None, None, None, 1e-6, True, "it follows from the rules")
    yield {"mechanisms": [{"planned": planned.to_json()}]}
    what_if = Guarantee("without breakers", None, None, None, 1e-6, False, "not this run")
    yield {"without_breakers": what_if.to_json()}
    yield {"would_do": "min_sep = 2, if enforced, would give epsilon 1."}
    yield {"clients": Clients.of({"clients": 5, "most_devices": 2}, []).to_json()}
    yield {"no_guarantee": "no guarantee: no noise was added"}
    told = AnswerPrivacy("server", "noise", "a theorem", "window", 1, None, 1e-9, True, "it is so")
    yield {"answers": [told.to_json()]}
    least = {"devices": 9, "noise_multiplier": 1.5}
    noise = {"least_noise": {"round": 0, **least}, "least_permitted_noise": least}
    for table in (SecAgg(), DevicesTrust(parameters=10)):
        yield {"encoding": {**table.model_dump(), **noise}}


@pytest.mark.slow
@pytest.mark.usefixtures("without_drawing")
def test_documents_of_audits_match_their_types(
    trace_of, small, log, claim: str, tmp_path: Path, fedray_command
) -> None:
    adaptive = small(
        "privacy.noise_multiplier=3.0",
        'privacy.clipping={kind="adaptive", count_noise=90.0}',
        'privacy.mechanism={kind="identity"}',
        "population.owners.mean_devices=2",
    )
    path = str(trace_of(PATTERNS, 4, adaptive, [0, 0, 2, 3, 4]).path)
    written = {name: str(tmp_path / name) for name in ("page", "figures", "events", "statement")}
    options = [part for name, file in written.items() for part in (f"--{name}", file)]
    evidence = ("--evidence", str(tmp_path / "evidence.csv"))
    examples = [
        printed(fedray_command, "audit", path, "--json", *options),
        printed(fedray_command, "audit", path, "--claim", claim, *evidence, "--json"),
        printed(fedray_command, "audit", str(tmp_path / "log"), "--json"),
    ]
    check("fedray audit", *examples, *rare_parts_of_audits())


@pytest.mark.slow
@pytest.mark.usefixtures("without_drawing")
def test_documents_of_rounds_to_come_match_their_types(
    trace_of, small, claim: str, tmp_path: Path, fedray_command
) -> None:
    """In danger, with every sort of change: lists, rules, a timer at a pace, a round and noise."""
    keys = ("privacy.noise_multiplier=3.0", 'privacy.mechanism={kind="identity"}')
    timed = small(*keys, "participation.timer_hours=0.05")
    path = str(trace_of(PATTERNS, 4, timed).path)
    text = 'mechanism = "identity"\nnoise_multiplier = 3.0\n'
    Path(claim).write_text(f"{text}rho = 0.17\n")
    at = ("audit", path, "--claim", claim, "--until", "20", "--slowest", "0.03", "--json")
    files = {"hold": "hold.csv", "page": "page.html", "figures": "figures"}
    files |= {"history": "nights.jsonl", "gauges": "claim.prom"}
    options = [part for name, file in files.items() for part in (f"--{name}", str(tmp_path / file))]
    examples = [printed(fedray_command, *at, *options)]
    # Noise may keep a claim that no list can keep, and other statements have other figures.
    Path(claim).write_text(f"{text}rho = 0.05\nmin_sep = 1\n")
    examples.append(printed(fedray_command, *at))
    # A limit per period, which no rule of the scenario keeps.
    Path(claim).write_text(f"{text}most_per_period = {{ participations = 3, hours = 1 }}\n")
    examples.append(printed(fedray_command, *at))
    check("fedray audit, of rounds to come", *examples)


@pytest.mark.usefixtures("without_drawing")
def test_documents_of_statements_match_their_types(
    trace_of, small, tmp_path: Path, fedray_command
) -> None:
    path = str(trace_of(PATTERNS, 4, small("privacy.noise_multiplier=3.0")).path)
    statement = tmp_path / "statement"
    printed(fedray_command, "audit", path, "--statement", str(statement), "--json")
    check("A privacy statement", json.loads((statement / "statement.json").read_text()))


def test_documents_of_answers_match_their_types(
    tmp_path: Path, fedray_command, without_drawing
) -> None:
    """Of a run that asks a question, its audit, and the question asked again."""
    asked = {
        "population": {"devices": 500},
        "rounds": {
            "mode": "upload-then-train",
            "count": 1,
            "report_goal": 10,
            "uploads": {"window_hours": 4.0, "schedule": {"kind": "all"}},
        },
        "analytics": {
            "question": {"kind": "open_histogram"},
            "values": {"kind": "words", "words": 3},
            "trust": [{"kind": "server"}],
            "epsilon": 4.0,
            "delta": 1e-3,
        },
    }
    trace = str(simulate(Scenario.from_tables(asked), HERE, tmp_path / "t").path)
    files = {name: str(tmp_path / name) for name in ("page", "figures", "vocabulary")}
    options = [part for name, file in files.items() for part in (f"--{name}", file)]
    (tmp_path / "claim.toml").write_text('mechanism = "tree"\nnoise_multiplier = 3.0\nrounds = 1\n')
    ensure = ("--ensure", str(tmp_path / "claim.toml"))
    found = printed(fedray_command, "answer", trace, *options, *ensure, "--json")
    check("fedray answer", found)


def test_documents_of_imports_match_their_types(log) -> None:
    times = {**log["times"], "step": 60.0, "doubts": ["All times are multiples of 60 s."]}
    rare = {
        "sparse_rounds": "1 round with few rows.",
        "distinct_ids": ["device"],
        "times": times,
        "rows_digest": "0" * 64,
    }
    check("fedray import", log, rare)


@pytest.mark.slow
def test_documents_of_runs_and_trainings_match_their_types(
    trained: Trace, small, fedray_command, monkeypatch
) -> None:
    """What the commands print of a run that is there already."""
    monkeypatch.setattr("fedray.runs.pipeline.run_checked", lambda *_: trained)
    monkeypatch.setattr("fedray.runs.learning.train", lambda *_, **__: trained.trained)
    run = printed(fedray_command, "run", "quickstart", "--json")
    check("fedray run", run, {"question": {}}, has_base=False)
    of_devices = small(
        "privacy.mechanism={kind='identity'}",
        "privacy.trust={kind='devices', parameters=8, scale=4096}",
    )
    figures = _encoding_figures(of_devices, 8, TrainReport(round_index=0, devices=4))
    command = printed(fedray_command, "train", str(trained.path), "--json")
    best = {"metric": "loss", "rounds": 2, "sha256": "0" * 64}
    stopped = {"reason": "enough", "chosen_by": "public", "metric": "loss"}
    given = {"trace": "../whole", "digest": "0" * 64}
    of_metric = GroupMetric(0.5, 0.4, 0.6)
    groups = Groups(
        run="small",
        by="class",
        model="last",
        rounds=3,
        evaluated_on="held-out devices",
        data=Evaluated(9, 9, 2, 2),
        metrics=(Metric("loss", "", "lower"),),
        groups=(Group("0", 2, 9, {"loss": of_metric}),),
        worst_tenth={"loss": WorstTenth(1, 2, 0.7, 0.5, 0.7, -1.0, 1.0)},
    ).to_json()
    rare = {"encoding": figures, "best": best, "stopped": stopped, "groups": [groups]}
    rare |= {"cut_from": "0" * 64, "best_metrics": {"evaluation_loss": 0.5, "train_loss": None}}
    check("fedray train", command, {**rare, "given": given})
    check("Metrics by group", groups)


@pytest.mark.slow
@pytest.mark.usefixtures("without_drawing")
def test_documents_of_comparisons_match_their_types(
    trace_of, trained_of, tmp_path: Path, fedray_command
) -> None:
    trace = trace_of(PATTERNS, 4)
    tree = 'privacy.mechanism={kind="tree"}'
    finals = {"accuracy": 0.5}
    runs = [trained_of("a", trace, finals), trained_of("b", trace, finals, tree)]
    options = ("--page", str(tmp_path / "page.html"), "--figures", str(tmp_path / "figures"))
    paths = [str(run.path) for run in runs]
    options += ("--trace", str(trace.path), "--reach", "0.4")
    found = printed(fedray_command, "compare", *paths, *options, "--json")
    check("fedray compare", found)
    check("fedray compare-mechanisms", found)


@pytest.mark.slow
def test_documents_of_mechanisms_match_their_types(
    tmp_path: Path, fedray_command, monkeypatch
) -> None:
    """The optimisation takes most of the second."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    write_strategy(Identity(), tmp_path / "identity.json", Purpose("rms", "prefix"))
    setting = ("--rounds", "60", "--min-sep", "12", "--max-participations", "4")
    sampled = ("--sampling", "0.01", "--delta", "1e-6")
    file = str(tmp_path / "identity.json")
    workload = ("--workload", "momentum=0.9")
    page = ("--page", str(tmp_path / "page.html"), "--figures", str(tmp_path / "figures"))
    written = (*page, "--coefficients", str(tmp_path / "c.csv"))
    shown = ("--fixed-order", *written)
    bound = printed(fedray_command, "mechanism", "blt-1000", *setting, "--json")
    for command in (
        ("mechanism", "--noise-multiplier", "1", *workload),
        ("mechanism", "--epsilon", "4", *workload),
    ):
        name, *options = command
        found = printed(fedray_command, name, file, *setting, *sampled, *options, *shown, "--json")
        check("fedray mechanism", found, bound)
        # An optimised mechanism has the same keys, though not from one command.
        keys = ("hypothetical", "is_fixed_order", "made_for")
        parts = {key: found[key] for key in keys}
        parts |= {"theta_is_at_bound": bound["theta_is_at_bound"]}
    options = (*workload, *written, "--json")
    several = printed(fedray_command, "mechanism", file, "bisr", *setting, *options)
    check("fedray mechanism, of several", several)
    found = printed(fedray_command, "optimize", "identity", *setting, *workload, "--json")
    wanted = ("--rounds", "60", "--epsilon", "4", "--sampling", "0.1", "--bands", "3")
    tried = {"tried": printed(fedray_command, "optimize", "best", *wanted, "--json")["tried"]}
    check("fedray optimize", found, parts | tried, has_base=False)
    stressed = ("--rounds", "60", "--estimated", "12", "--actual", "9", "--mechanisms", "tree")
    settings = printed(fedray_command, "stress", *stressed, *page, "--json")
    result = fedray.stress(rounds=60, estimated=[12], actual=[9], mechanisms=["tree"])
    rows = [replace(row, seed=1, what_if=key) for row in result.rows for key in (None, "seed=2")]
    changes = {"rows": tuple(rows), "overrides": ("seed=2",), "shared_rows": tuple(rows)}
    simulated = replace(result, **changes).to_json()
    of_trace = {"setting": "60 rounds", "trace": "0123456789ab"}
    of_runs = {"conditions": [{"of": of_trace}], "left_out": {"tree": "has restarts"}}
    check("fedray stress", settings, simulated, {"comparison": {}}, of_runs)


def test_documents_of_forecasts_match_their_types(trace_of, fedray_command, tmp_path: Path) -> None:
    """A claimed min-sep that never breaks, and participations that do."""
    patterns = [[t, t + 9] for t in range(9)] + [[t, t + 9, t + 18] for t in range(20)]
    path = str(trace_of(patterns, 38).path)
    claim = tmp_path / "claim.toml"
    claim.write_text(
        'mechanism = "tree"\nnoise_multiplier = 4.0\nmin_sep = 1\nmax_participations = 3\n'
    )
    page = ("--page", str(tmp_path / "page.html"), "--figures", str(tmp_path / "figures"))
    options = ("--rounds", "76", "--seeds", "20", *page, "--claim", str(claim))
    log, in_force = tmp_path / "log.csv", tmp_path / "in-force.toml"
    rows = [f"d{t % 5}-{d},{t},{t * 6 * 3600}" for t in range(30) for d in range(4)]
    log.write_text("\n".join(["device,round,time", *rows]) + "\n")
    imported = fedray.import_log(
        *(log, "device", "round", 30, tmp_path / "log"), time_column="time", time_unit="seconds"
    )
    in_force.write_text("max_participations = 9\n")
    of_claim = tmp_path / "of-log.toml"
    of_claim.write_text('mechanism = "tree"\nnoise_multiplier = 4.0\nmax_participations = 8\n')
    enforced = ("--in-force", str(in_force), "--claim", str(of_claim))
    of_log = (str(imported.path), "--rounds", "60", "--seeds", "20", *enforced, "--json")
    check(
        "fedray forecast",
        printed(fedray_command, "forecast", path, *options, "--json"),
        printed(fedray_command, "forecast", *of_log),
    )


def test_documents_of_noise_for_a_trace_match_their_types(
    trace_of, fedray_command, tmp_path: Path
) -> None:
    """The first trace breaks its rules, so that its enforced noise is null."""
    for patterns in (PATTERNS, [[0, 2], [1, 3]]):
        path = str(trace_of(patterns, 4).path)
        options = (path, "--epsilon", "4", "--json")
        check("fedray calibrate", printed(fedray_command, "calibrate", *options))
    claim = tmp_path / "claim.toml"
    claim.write_text('mechanism = "tree"\nnoise_multiplier = 4.0\nmin_sep = 2\nepsilon = 4.0\n')
    options = (path, "--claim", str(claim), "--json")
    check("fedray calibrate", printed(fedray_command, "calibrate", *options))


@pytest.mark.usefixtures("without_drawing")
def test_documents_of_several_tasks_match_their_types(
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
    monkeypatch.setattr("fedray.commands.audit.open_tasks", lambda *_: (opened, audit))
    files = (tmp_path / "page.html", tmp_path / "figures")
    audit_run_of_tasks(opened.path, {}, None, *files, verify=None, verbose=False, as_json=True)
    check("fedray audit, of several tasks", json.loads(capsys.readouterr().out))


def test_documents_of_plans_match_their_types(small) -> None:
    """A plan that was made by hand, with a remedy, a what-if and own settings."""
    target = PlanTarget(2.0)
    common = (target, 12, 200, 24.0, 0.5, 90, (7, None), (2, 1))
    candidate = Candidate(*common, planned_min_sep=6, planned_max_participations=2, epsilon=2.5)
    rows = WhatIf("as planned", 1.0, 7, 2.5), WhatIf("fewer", starves_at=3)
    remedy = Remedy("rounds.report_goal", 1.9, 0.5, 3.0, 2.0, 90, 400, 40_000, 96.0)
    plan = Plan(target, small(), 2, 0.5, None, (candidate,), what_ifs=rows, remedies=(remedy,))
    check(
        "fedray plan",
        *(
            json.loads(json.dumps(each.to_json()))
            for each in (plan, replace(plan, best=candidate, own=candidate))
        ),
    )


def test_documents_of_fits_match_their_types(tmp_path: Path, fedray_command, monkeypatch) -> None:
    """Both fits are made by hand."""
    observed = ObservedRun(rounds=40, goal=5, timer_hours=24.0, min_sep=9, max_participations=4)
    run = FittedRun(observed, 9.5, 3.0, 0.5)
    found = Fit((Interval("reach", 0.5, 0.4, None),), (run,), 0.1)
    monkeypatch.setattr("fedray.studies.fit.fit_min_sep", lambda *_, **__: found)
    arguments = ("fit-min-sep", "quickstart", "--min-sep", "9", "--json")
    check("fedray fit-min-sep", printed(fedray_command, *arguments))
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
        zones={0.0: 1.0},
        proposed_offset_hours=None,
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
    check("fedray fit-log", printed(fedray_command, "fit-log", "a.csv", "--json"))


def test_documents_of_files_match_their_types(tmp_path: Path, fedray_command, monkeypatch) -> None:
    """Of those that are written, listed and described."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    check("fedray sweep, without a name", printed(fedray_command, "sweep", "--json"))
    described = [
        printed(fedray_command, "schema", name, "--json")
        for name in ("privacy.mechanism", "rounds.parquet")
    ]
    check("fedray schema TABLE", *described)


def test_documents_of_populations_match_their_types(small, tmp_path: Path, fedray_command) -> None:
    (tmp_path / "s.toml").write_bytes(small("population.devices=500").to_toml().encode())
    file = str(tmp_path / "sessions.parquet")
    options = ("--sessions", file, "--devices", "9", "--days", "1", "--json")
    document = printed(fedray_command, "population", str(tmp_path / "s.toml"), *options)
    # FedScale's pickle, of one device that comes once in a period of nine seconds.
    trace = {1: {"duration": 9, "active": [1], "inactive": [3], "finish_time": 9}}
    (tmp_path / "trace").write_bytes(pickle.dumps(trace))
    given = (str(tmp_path / "trace"), "--kind", "fedscale", "--json")
    check("fedray population", document, printed(fedray_command, "population", *given))
