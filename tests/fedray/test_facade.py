"""What `fedray` promises to whoever imports it: names, tables, errors, results."""

import ast
import dataclasses
import html
import importlib
import inspect
import json
import re
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from document_schema import found_keys
from pydantic import BaseModel

import fedray
from fedray.audit.participation import Patterns
from fedray.base import errors
from fedray.base.errors import ScenarioError, TraceError
from fedray.base.facade import homes
from fedray.base.result import DrawnResult, Result
from fedray.mechanisms import BLT, Matrix, Tree
from fedray.report.audits import guarantees_table, participation_table
from fedray.scenario import AlwaysOn, CustomAvailability, Population, Privacy, Rounds, Training
from fedray.scenarios.reproduction import Reproduced
from fedray.studies.fit import FittedRun
from fedray.studies.plan import Candidate
from fedray.studies.reach_and_pace import Interval
from fedray.studies.sweep.run import CellResult
from fedray.trace.columns import ROUND_SCHEMA

FUNCTIONS = [name for name in fedray.__all__ if inspect.isfunction(getattr(fedray, name))]
PACKAGES = ("fedray", "fedray.mechanisms", "fedray.scenario")
VALUES = [
    f"{package}.{name}"
    for package in PACKAGES
    for name in homes(package)
    if inspect.isclass(kind := getattr(importlib.import_module(package), name))
    and (issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind))
]
BUILT = ("Placement", "MechanismRequest", "MinSep", "PlanTarget", "PoissonSampling", "Target")
"""Dataclasses that users build; others are results."""
SETTING = fedray.MinSep(60, 10, 4)


def _classes_in(annotation: Any) -> Iterator[type]:
    if inspect.isclass(annotation):
        yield annotation
    for each in typing.get_args(annotation):
        for part in each if isinstance(each, list) else [each]:
            yield from _classes_in(part)


def _missing(annotations: dict[str, Any]) -> set[str]:
    named = {each for annotation in annotations.values() for each in _classes_in(annotation)}
    ours = {each for each in named if each.__module__.partition(".")[0] == "fedray"}
    public = {name for package in PACKAGES for name in homes(package)}
    return {
        f"{each.__name__}: add it to __all__ of {each.__module__}, or to a stub `__init__.pyi`"
        for each in ours
        if each.__name__ not in public
    }


@pytest.mark.parametrize("name", FUNCTIONS)
def test_everything_that_a_public_function_takes_and_returns_is_public(name: str) -> None:
    assert not _missing(typing.get_type_hints(getattr(fedray, name)))


@pytest.mark.parametrize("name", VALUES)
def test_everything_that_a_public_value_is_built_from_is_public(name: str) -> None:
    package, _, attribute = name.rpartition(".")
    kind = getattr(importlib.import_module(package), attribute)
    if issubclass(kind, BaseModel):
        assert not _missing({key: each.annotation for key, each in kind.model_fields.items()})
    elif attribute in BUILT:
        assert not _missing(typing.get_type_hints(kind))


def test_fedray_has_the_roots_of_all_errors() -> None:
    """Narrower errors are public in `fedray.base.errors`."""
    kinds = [each for each in vars(errors).values() if inspect.isclass(each)]
    ours = [each for each in kinds if each.__module__ == errors.__name__]
    roots = {each.__name__ for each in ours if fedray.FedrayError in each.__bases__}
    assert all(issubclass(each, fedray.FedrayError) for each in ours)
    assert roots == {"InputError", "MissingExtra", "RunFailed", "StopTraining"}
    assert roots < set(fedray.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_stub_lists_each_public_name_once_with_the_module_that_defines_it(package: str) -> None:
    """Type checkers take a name of a stub for a public one only where it is given to itself, and
    people look for it where it is defined. Kinds are listed by their modules."""
    root = importlib.import_module(package)
    stub = ast.parse(Path(root.__file__ or "").with_suffix(".pyi").read_text())
    lines = [each for each in stub.body if isinstance(each, ast.ImportFrom)]
    found: dict[str, str] = {}
    for each in lines:
        assert each.module is not None
        (alias,) = each.names
        listed = [alias.name]
        home = each.module
        if alias.name == "*":
            listed = importlib.import_module(each.module).__all__
            assert listed
        elif each.module == package:
            home = f"{package}.{alias.name}"
            assert inspect.ismodule(getattr(root, alias.name))
        else:
            assert alias.asname == alias.name
            value = getattr(root, alias.name)
            assert getattr(inspect.unwrap(value), "__module__", each.module) == each.module
        assert not found.keys() & set(listed)
        found |= dict.fromkeys(listed, home)
    assert homes(package) == found
    assert root.__all__ == dir(root) == sorted(found)


def test_fedray_offers_little_more_than_a_hundred_names() -> None:
    """Tables, strategies and narrower errors are elsewhere, where a new kind adds no name here. Audits of models and questions to devices have two names each."""
    assert len(dir(fedray)) <= 105
    tables = set(homes("fedray.scenario")) - {"Scenario", "SeveralTasks"}
    assert not (tables | set(homes("fedray.mechanisms"))) & set(dir(fedray))


def _scenario(**tables: Any) -> fedray.Scenario:
    return fedray.Scenario(
        population=Population(devices=3000),
        rounds=Rounds(count=20, report_goal=50, max_days=30.0),
        training=Training(enabled=False),
        **tables,
    )


def test_a_scenario_is_built_from_its_tables(tmp_path: Path) -> None:
    """It is the value that its TOML gives; what has a default may be left out."""
    built = _scenario(
        availability=AlwaysOn(),
        privacy=Privacy(mechanism=BLT(theta=(0.9,), omega=(0.1,))),
    )
    (tmp_path / "scenario.toml").write_text(built.to_toml())
    assert fedray.Scenario.from_toml(str(tmp_path / "scenario.toml")) == built


def test_a_file_may_be_named_by_a_path(tmp_path: Path) -> None:
    file = tmp_path / "C.npy"
    np.save(file, np.eye(3))
    given: Any = file  # its type is that of TOML and JSON, where a path is text
    assert Matrix(file=given) == Matrix(file=str(file))


def test_a_table_that_was_read_from_a_file_can_be_part_of_another_scenario(
    tmp_path: Path, monkeypatch
) -> None:
    """Its file is not looked for again, from a directory in which it is not."""
    (tmp_path / "devices.py").write_text("def runs(device_ids, low, high, seed, parameters): ...\n")
    monkeypatch.chdir(tmp_path)
    custom = CustomAvailability(file="devices.py")
    monkeypatch.chdir("/")
    assert _scenario(availability=custom).availability.content == custom.content


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "number": (
        lambda: Population(devices=0),
        ScenarioError,
        "^Population: devices = 0: input should be greater than 0; correct it ",
    ),
    "misspelt key": (
        lambda: Rounds(count=2, repot_goal=2),  # pyright: ignore[reportCallIssue]
        ScenarioError,
        "^Rounds: unknown key repot_goal = 2 .*; did you mean 'report_goal'",
    ),
    "table within": (
        lambda: fedray.Scenario(
            population={"devices": 0, "reach": 3.0},  # pyright: ignore[reportArgumentType]
            rounds=Rounds(count=2, report_goal=2),
        ),
        ScenarioError,
        r"^Scenario: 2 problems: \(1\) population.devices = 0: .*\(2\) population.reach = 3.0: ",
    ),
    "rule across tables": (
        lambda: fedray.Scenario(
            population=Population(devices=5), rounds=Rounds(count=2, report_goal=6)
        ),
        ScenarioError,
        "^Scenario: rounds.report_goal=6: must not exceed population.devices=5; lower",
    ),
    "strategy": (
        lambda: BLT(theta=(0.2,), omega=(1.0, 3.0)),
        fedray.InputError,
        "^BLT: theta has 1 entries and omega 2; give one omega per theta$",
    ),
    "matrix": (
        lambda: Matrix.from_matrix(np.zeros((2, 2)), "m.npy"),
        fedray.InputError,
        "^Matrix: .*the diagonal must be positive",
    ),
    "claim": (
        lambda: fedray.Claim(noise_multiplier=1.0),  # pyright: ignore[reportCallIssue]
        fedray.InputError,
        "^Claim: mechanism is missing; add it",
    ),
    "sweep": (
        lambda: fedray.Sweep(name="s", vary={"min_sep": (0,)}, x="min_sep", mechanisms=()),
        fedray.InputError,
        "^Sweep: ",
    ),
    "schema": (lambda: fedray.MinSep(0, 0, 0), fedray.InputError, "^rounds=0 must be at least 1"),
    "sampling": (
        lambda: fedray.PoissonSampling(3, 2.0),
        fedray.InputError,
        "^probability=2.0 must be",
    ),
    "request": (
        lambda: fedray.MechanismRequest("tree", SETTING, buffers=2),
        fedray.InputError,
        "^buffers=2 does not apply to tree",
    ),
    "optimisation": (
        lambda: fedray.optimize_mechanism(fedray.MechanismRequest("blt", SETTING, buffers=99)),
        fedray.InputError,
        "buffers",
    ),
    "target": (lambda: fedray.Target(SETTING, -1.0), fedray.InputError, "^weight=-1.0 of a target"),
    "noise": (
        lambda: fedray.mechanism_figures(Tree(), SETTING, 0.0, 1e-9),
        fedray.InputError,
        "^noise_multiplier=0.0 must be",
    ),
    "delta": (
        lambda: fedray.mechanism_figures(Tree(), SETTING, 1.0, 2.0),
        fedray.InputError,
        "^delta=2.0 must",
    ),
    "amplification": (
        lambda: fedray.mechanism_figures(
            Tree(), SETTING, 1.0, 1e-9, fedray.PoissonSampling(60, 0.1)
        ),
        fedray.InputError,
        "amplification is proven for",
    ),
    "two targets": (
        lambda: fedray.calibrated_figures(Tree(), SETTING, 1e-9, epsilon=1.0, rho=1.0),
        fedray.InputError,
        "^exactly one target",
    ),
    "epsilon": (
        lambda: fedray.calibrated_figures(Tree(), SETTING, 1e-9, epsilon=-1.0),
        fedray.InputError,
        "^epsilon=-1.0",
    ),
    "no mechanism file": (
        lambda: fedray.read_strategy("missing/m.json"),
        fedray.InputError,
        "^mechanism file 'missing/m.json' cannot be read",
    ),
    "unwritable mechanism file": (
        lambda: fedray.write_strategy(Tree(), "missing/m.json"),
        fedray.InputError,
        "^mechanism file 'missing/m.json' cannot be written",
    ),
    "no claim": (lambda: fedray.read_claim("missing"), fedray.InputError, "^claim 'missing'"),
    "no sweep": (
        lambda: fedray.Sweep.from_toml("missing"),
        fedray.InputError,
        "^sweep 'missing' cannot be read",
    ),
    "no trace": (lambda: fedray.audit_trace("missing"), TraceError, "missing"),
    "plan": (lambda: fedray.PlanTarget(0.0), fedray.InputError, "^epsilon=0.0 must be positive"),
    "placement": (lambda: fedray.Placement(shards=0), fedray.InputError, "^shards=0 must be"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_is_a_fedray_error_in_one_line(
    what: str, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call, kind, message = REFUSED[what]
    with pytest.raises(fedray.FedrayError, match=message) as caught:
        call()
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)


def test_a_sweep_and_a_claim_are_built_in_python() -> None:
    sweep = fedray.Sweep(
        name="two",
        vary={"min_sep": (10, 20), "rounds": (60,), "max_participations": ("most",)},
        x="min_sep",
        mechanisms=(fedray.MechanismSpec(kind="tree"), fedray.MechanismSpec(kind="identity")),
        estimate=fedray.Estimate(rounds=60, min_sep=10, max_participations=6),
    )
    assert len(sweep.cells()) == 2
    assert fedray.Claim(mechanism=Tree(), noise_multiplier=3.0).mechanism == Tree()


def test_no_caller_hands_a_stopwatch_to_a_result() -> None:
    for name in (*(f"fedray.{each}" for each in FUNCTIONS), *VALUES):
        assert "seconds" not in inspect.signature(resolve_name(name)).parameters, name


def _candidate() -> Candidate:
    found = {"epsilon": 2.5, "rho": 0.1, "days": 3.0, "planned_max_participations": 4}
    return Candidate(
        fedray.PlanTarget(3.0), 12, 50, 72.0, 1.0, 60, (3,), (4,), planned_min_sep=3, **found
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, Any]:
    """One of each result, of a directory whose name alone is as long as names may be."""
    folder = tmp_path_factory.mktemp("facade") / ("x" * 200)
    trace = fedray.simulate(_scenario(), fedray.Placement(1, "in-process"), str(folder / "t"))
    log = folder / "log.csv"
    log.write_text("device,round\na,0\nb,1\na,1\n")
    imported = fedray.import_log(str(log), "device", "round", 2, str(folder / "imported"))
    audit = fedray.audit_trace(str(folder / "t"))
    sweep = fedray.Sweep(
        name="a sweep of settings" * 20,
        vary={"min_sep": (10,), "rounds": (60,), "max_participations": (2, "most")},
        x="min_sep",
        mechanisms=(fedray.MechanismSpec(kind="tree"),),
    )
    observed = fedray.ObservedRun(
        rounds=60, goal=5, timer_hours=24.0, min_sep=12, max_participations=3
    )
    run = FittedRun(observed, 12.0, 3.0, 0.1)
    reach = Interval("reach", 0.5, 0.4, None)
    canary = fedray.CanaryResult(
        *("banded-toeplitz", 2000, 8192, tuple(range(2000)), 7.0, 1.0, 1.0, 1.0, 0.9, 1.1),
        *(1.0, 1.0, (fedray.CanaryTest("law", 0.5, "nothing", "the sampler"),) * 10, 1e-6),
    )
    plan = fedray.Plan(
        fedray.PlanTarget(3.0), _scenario(), 3, 0.1, _candidate(), (_candidate(),) * 40
    )
    trained = fedray.TrainedRun(
        folder / "t", {"rounds": 20, "trace_digest": trace.digest, "scenario": {}}
    )
    cells = tuple(CellResult(cell, ()) for cell in sweep.cells())
    return {
        "Trace": trace,
        "ImportedTrace": imported,
        "Audit": audit,
        "Statement": fedray.privacy_statement(audit),
        "TrainedRun": trained,
        "SweepResult": fedray.SweepResult(sweep, cells),
        "Plan": plan,
        "Fit": fedray.Fit((reach,), (run,) * 16, 0.1),
        "CanaryResult": canary,
        "Figures": fedray.mechanism_figures(Tree(), SETTING, 2.0, 1e-9),
        "TraceCalibration": fedray.calibrate_trace(trace, epsilon=2.0),
        "Reproduced": Reproduced("a" * 80, {"runs": []}, [], [], "1 of 1 rows agrees."),
    }


RESULTS = ("Trace", "ImportedTrace", "Audit", "Statement", "TrainedRun", "SweepResult", "Plan")
RESULTS += ("Fit", "CanaryResult", "Figures", "TraceCalibration", "Reproduced")


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_shown_in_a_short_line_and_names_itself(results, name: str) -> None:
    shown = repr(results[name])
    assert shown.startswith(f"<{name} ")
    assert len(shown) < 200
    assert "\n" not in shown


@pytest.mark.parametrize("name", [name for name in RESULTS if name != "TrainedRun"])
def test_a_result_is_one_json_object_with_the_keys_of_its_type(results, name: str) -> None:
    """That of a trained run needs a trained run: tests/simulation/test_learning.py."""
    document = json.loads(json.dumps(results[name].to_json(), allow_nan=False))
    assert isinstance(document, dict)
    # The documents of traces are files with their own types; each reproduction has another.
    if name not in ("Trace", "ImportedTrace", "Reproduced"):
        found_keys(document, type(results[name]))


def test_every_result_that_is_a_table_or_a_figure_is_one_in_notebooks() -> None:
    """Each class names the functions that make them."""
    kinds = [resolve_name(name) for name in VALUES] + [fedray.Trace, fedray.ImportedTrace]
    kinds += [fedray.Audit, fedray.TrainedRun]
    shown = {kind for kind in kinds if issubclass(kind, Result)}
    drawn = {kind for kind in kinds if issubclass(kind, DrawnResult)}
    assert len(shown) > len(drawn) > 7
    places = [each.TABLES for each in shown]
    places += [place for each in drawn for place in (each.FIGURES, each.PAGE)]
    assert all(callable(resolve_name(place)) for place in places)


@pytest.mark.parametrize(
    "name", [name for name in RESULTS if issubclass(getattr(fedray, name, Reproduced), Result)]
)
def test_a_result_in_a_notebook_is_an_element_that_loads_nothing(results, name: str) -> None:
    """Of trained runs and of what is made of them: tests/simulation/test_learning.py."""
    if name == "TrainedRun":
        return
    result = results[name]
    page = result._repr_html_()
    assert page.startswith("<div")
    assert page.rstrip().endswith("</div>")
    assert (getattr(result, "headline", "") or repr(result)) in html.unescape(page)
    assert not re.search("<script|<link|<img|http|url", page)


def test_an_audit_in_a_notebook_has_the_tables_that_are_printed(results) -> None:
    audit = results["Audit"]
    page = audit._repr_html_()
    cells = [cell for _, cell in participation_table(audit).rows]
    cells += [cell for row in guarantees_table(audit).rows for cell in row]
    assert all(f">{cell}</t" in page for cell in cells)
    named = dataclasses.replace(audit, path=Path("<script>"))
    assert "<script" not in named._repr_html_()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Trace", "Audit"])
def test_plots_are_the_figures_of_the_page_as_svg(results, name: str) -> None:
    drawing = results[name].plot()
    page = {each.name for each in results["Audit"].figures()}
    assert set(drawing.svgs) <= page
    for svg in drawing.svgs.values():
        ElementTree.fromstring(svg)
    assert drawing._repr_html_().count("</svg>") == len(drawing.svgs) > 2
    assert "<?xml" not in drawing._repr_html_()
    one = results[name].plot(next(iter(drawing.svgs)))
    assert repr(one) == f"<Drawing of {next(iter(drawing.svgs))}>"


def test_figures_of_an_audit_begin_with_those_of_its_trace(results) -> None:
    of_run = [each.name for each in results["Trace"].figures()]
    of_audit = [each.name for each in results["Audit"].figures()]
    assert of_audit[: len(of_run)] == of_run
    assert {"participations", "privacy"} <= set(of_audit[len(of_run) :])


@pytest.mark.parametrize("name", ["Trace", "Audit", "Plan", "SweepResult", "Reproduced"])
def test_one_function_writes_the_page_of_every_result_that_has_figures(
    results, name: str, tmp_path: Path
) -> None:
    """Of trained runs and of what is made of them: tests/simulation/test_learning.py."""
    page = fedray.write_report(results[name], str(tmp_path / "page.html"))
    assert page == tmp_path / "page.html"
    content = page.read_text()
    assert content.startswith("<!doctype html>")
    assert all(html.escape(each.title) in content for each in results[name].figures())


def test_the_page_of_a_trace_is_that_of_its_audit(results) -> None:
    assert results["Trace"].page() == fedray.audit_trace(results["Trace"]).page()


def test_a_figure_that_a_result_does_not_have_is_refused(results) -> None:
    with pytest.raises(fedray.InputError, match="^names='gap' is no figure of this Audit; it has "):
        results["Audit"].plot("gap")


def test_a_plot_without_matplotlib_says_what_to_install(results, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(fedray.MissingExtra, match=r"pip install 'fedray\[figures\]'"):
        results["Trace"].plot()


def test_tables_of_arrow_have_the_rows_of_the_results(results) -> None:
    audit, trace, plan, fit = (results[name] for name in ("Audit", "Trace", "Plan", "Fit"))
    rows = audit.to_arrow().to_pylist()
    assert [row["name"] for row in rows] == ["observed", "enforced", "claimed"]
    assert rows[0]["epsilon"] == audit.mechanisms[0].observed.epsilon
    assert trace.to_arrow().column_names == [each.name for each in ROUND_SCHEMA]
    assert trace.to_arrow()["state"].to_pylist().count("committed") == 20
    target = {"target_epsilon": plan.target.epsilon, "delta": plan.target.delta}
    candidates = json.loads(json.dumps(plan.to_json()))["candidates"]
    assert plan.to_arrow().to_pylist() == [{**each, **target} for each in candidates]
    assert fit.to_arrow().to_pylist() == fit.to_json()["runs"]


def test_the_epsilon_in_the_line_of_an_audit_says_what_it_is_a_statement_about(results) -> None:
    """A bare epsilon would be taken for the guarantee."""
    assert "observed epsilon " in repr(results["Audit"])


def test_rows_of_a_sweep_are_a_table_of_arrow(results) -> None:
    result = results["SweepResult"]
    assert result.to_arrow().to_pylist() == result.table()


def test_patterns_are_no_part_of_what_is_shown(results) -> None:
    assert isinstance(results["Audit"].patterns, Patterns)
    assert "array" not in repr(results["Audit"])


def test_a_wrong_type_is_a_type_error_and_a_fraction_is_no_number_of_rounds() -> None:
    call: Any = fedray.MinSep
    for arguments in ((), ("60", 10, 4), (60, 10.0, 4), (60.5, 10, 4), (60, 10, 1.5)):
        with pytest.raises(TypeError):
            call(*arguments)
    assert call(np.int64(60), 10, 4).rounds == 60
    sampling: Any = fedray.PoissonSampling
    for arguments in ((60.0, 0.1), (60, 0.1, 1.5), (60, 0.1, 1, 2.5)):
        with pytest.raises(TypeError):
            sampling(*arguments)


def test_importing_fedray_imports_no_package_of_others() -> None:
    code = "import sys, fedray; print({'pydantic', 'inspect', 'numpy'} & sys.modules.keys())"
    found = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert found.stdout == "set()\n"
