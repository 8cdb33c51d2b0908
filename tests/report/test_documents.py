"""The reference of JSON documents has exactly the keys that documents have, with their types."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedray.audit.audit import audit_trace
from fedray.audit.filtered import Exclusions
from fedray.audit.rules import Violations
from fedray.documents.keys import JsonKey
from fedray.documents.registry import documents, rows_of
from fedray.documents.studies import VARIED
from fedray.encoding.tables import DiscreteGaussian, SecAgg
from fedray.mechanisms.files import write_strategy
from fedray.mechanisms.registry import Identity
from fedray.studies.canary import CanaryResult
from fedray.studies.plan import Candidate, Plan, PlanTarget
from fedray.studies.sweep.cells import Row
from fedray.studies.sweep.run import CellResult, SweepResult
from fedray.studies.sweep.sweep import Sweep
from fedray.trace.reader import Trace

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
    return list(value.values()) if "object by" in key.type else [value]


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
    """What few audits have: broken rules, excluded devices, encodings, noise of devices."""
    yield {"violations": Violations(1, 2, 0, 0, 0, 0).to_json()}
    yield {"exclusions": Exclusions(np.array([3, 5]), 2.0, 1.5, 0).to_json()}
    least = {"round": 0, "devices": 9, "noise_multiplier": 1.5}
    for table in (SecAgg(), DiscreteGaussian(parameters=10)):
        yield {"encoding": {**table.model_dump(), "least_noise": least}}


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
    examples = [
        printed(fedray_command, "audit", path, "--json", *options),
        printed(fedray_command, "audit", path, "--claim", claim, "--json"),
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
    sizes = dict.fromkeys(("mu_p", "signal", "signal_p", "noise", "size_p", "noise_p"), 1.0)
    counts = CanaryResult(
        "tree",
        4,
        256,
        (0, 2),
        3.0,
        **measured,
        **sizes,
        worst_round=1,
        independence_p=1.0,
        worst_pair=(0, 1),
    )
    check("fedray canary", replace(counts, counts=counts).to_json())


def test_the_reference_of_imports_is_that_of_their_documents(log) -> None:
    check("fedray import", log)


@pytest.mark.slow
def test_the_reference_of_runs_and_trainings_is_that_of_their_documents(
    trained: Trace, fedray_command, monkeypatch
) -> None:
    """What the commands print of a run that is there already."""
    monkeypatch.setattr("fedray.pipeline.run_scenario", lambda *_: trained)
    monkeypatch.setattr("fedray.learning.train", lambda *_, **__: trained.trained)
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
    outcomes = [
        {"rounds": 60, "min_sep": 12, "max_participations": 4},
        {"rounds": 50, "min_sep": 8, "max_participations": 5},
    ]
    (tmp_path / "targets.json").write_text(json.dumps(outcomes))
    targets = ("--targets", str(tmp_path / "targets.json"), "--buffers", "1")
    found = printed(fedray_command, "optimize", "blt", *targets, "--json")
    check("fedray optimize", found, has_base=False)
