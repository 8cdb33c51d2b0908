"""Every name of `fedray` answers arguments of wrong types with a `FedrayError`, or does its work."""

import inspect
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

import fedray
from fedray.base.validated import validated
from fedray.mechanisms import Tree
from fedray.scenario import Population, Rounds, Training

SECONDS = 20
"""Longest call; a longer one counts as a hang."""
WRONG: dict[str, Any] = {
    "None": None,
    "true": True,
    "zero": 0,
    "negative": -1,
    "large": 10**400,
    "beyond printing": 10**5000,
    "float": 1.5,
    "NaN": float("nan"),
    "text": "x",
    "empty text": "",
    "null byte": "a\0b",
    "half a character": "\ud800",
    "bytes": b"x",
    "list": [],
    "list of objects": [object()],
    "list of text": ["x"],
    "tuple": (1, 2),
    "dict": {},
    "dict of numbers": {1: 2},
    "set": {1},
    "object": object(),
    "class": int,
    "module": sys,
    "function": lambda: None,
    "array": np.zeros(3),
    "path": Path("elsewhere"),
    "generator": (each for each in ()),
}
SCENARIO = fedray.Scenario(
    population=Population(devices=50),
    rounds=Rounds(count=2, report_goal=2),
    training=Training(enabled=False),
)
SETTING = fedray.MinSep(8, 2, 2)
SWEEP = fedray.Sweep(
    name="s",
    vary={"min_sep": (2,), "rounds": (8,), "max_participations": (2,)},
    x="min_sep",
    mechanisms=(fedray.MechanismSpec(kind="tree"),),
)
NOWHERE = "/proc/nowhere/x"
BASE: dict[str, Any] = {
    # What is missing, or cannot be written, ends a call whose types are right before it works long.
    **dict.fromkeys(("trace", "run", "log", "directory", "path", "file", "trained"), "missing"),
    **dict.fromkeys(("out", "rounds_file"), NOWHERE),
    "runs": ["missing"],
    "rows": "missing",
    "scenario": SCENARIO,
    "several": None,
    "strategy": Tree(),
    "mechanism": Tree(),
    "participation": SETTING,
    "setting": SETTING,
    "sweep": SWEEP,
    "request": fedray.MechanismRequest("tree", SETTING),
    "target": fedray.PlanTarget(3.0),
    "timers": (),
    "seeds": (),
    "placement": fedray.Placement(1, "in-process"),
    "pretraining": None,
    "columns": fedray.RecordColumns(),
    "device_column": "device",
    "round_column": "round",
    "rounds": 8,
    "sensitivity": 1.0,
    "rho": 0.5,
    "delta": 1e-6,
    "noise_multiplier": 1.0,
    "min_sep": 0,
    "scale": 0.0,
    "overrides": ("x",),
    "audit": None,
}
"""A value for each argument that has no default, or whose default would work long."""


@contextmanager
def _deadline() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TimeoutError(f"it takes more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _callables() -> dict[str, Callable[..., Any]]:
    """Functions, constructors and class methods."""
    found: dict[str, Callable[..., Any]] = {}
    packages = (fedray.mechanisms, fedray.scenario, fedray)
    for name, value in ((name, getattr(each, name)) for each in packages for name in dir(each)):
        is_kind = inspect.isclass(value)
        if is_kind and (issubclass(value, Exception) or inspect.isabstract(value)):
            continue
        # Nobody constructs a protocol, or the mixin of results.
        if getattr(value, "_is_protocol", False) or value is fedray.DrawnResult:
            continue
        if is_kind or inspect.isfunction(value):
            found[name] = value
        for method in dir(value) if is_kind else ():
            static = inspect.getattr_static(value, method)
            is_method = isinstance(static, classmethod) and not method.startswith("_")
            # Others are pydantic's.
            if is_method and static.__func__.__module__.startswith("fedray"):
                found[f"{name}.{method}"] = getattr(value, method)
    return found


CALLABLES = _callables()


def _calls(function: Callable[..., Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each argument with each wrong value, while the others are of the right types."""
    defaults = _defaults(function)
    base = {name: BASE[name] for name in defaults if name in BASE}
    for name, default in defaults.items():
        for what, value in WRONG.items():
            # The default works, perhaps long.
            if value is not default:
                yield f"{name}={what}", {**base, name: value}
    # A function without required arguments would work with its defaults, perhaps long.
    if inspect.Parameter.empty in defaults.values():
        yield "no arguments", {}
    yield "unknown argument", {**base, "unknown_argument": 1}


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Arguments of a callable and their defaults."""
    if inspect.isclass(function) and issubclass(function, BaseModel):
        return {name: field.default for name, field in function.model_fields.items()}
    return {
        each.name: each.default
        for each in inspect.signature(function).parameters.values()
        if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    }


def _failure(function: Callable[..., Any], arguments: dict[str, Any]) -> str:
    """Why a call does not end as promised; empty if it does."""
    try:
        with _deadline():
            function(**arguments)
    except fedray.FedrayError as error:
        return f"more than a line: {error}" if "\n" in str(error) else ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    return ""


def failures_of(name: str) -> tuple[int, list[str]]:
    """Number of calls, and those that fail."""
    ends = {what: _failure(CALLABLES[name], given) for what, given in _calls(CALLABLES[name])}
    return len(ends), [f"{name}({what}): {end}" for what, end in ends.items() if end]


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLABLES)
def test_arguments_of_wrong_types_are_refused_by_a_fedray_error(
    name: str, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    calls, failures = failures_of(name)
    assert calls > 0
    assert failures == []


QUICK = ("MinSep", "Placement", "audit_trace", "calibrated_figures", "read_claim", "utility")


@pytest.mark.parametrize("name", QUICK)
def test_wrong_types_are_refused_in_a_few_functions(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert failures_of(name)[1] == []


def test_the_number_of_calls_is_that_of_a_real_search() -> None:
    calls = {name: len(list(_calls(each))) for name, each in CALLABLES.items()}
    assert sum(calls.values()) > 15_000
    functions = [name for name in CALLABLES if inspect.isfunction(getattr(fedray, name, None))]
    assert sum(calls[name] for name in functions) > 2_768


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "audit_trace(3)",
            "audit_trace: trace = 3: input should be an instance of Trace or an inst",
        ),
        (
            "audit_trace('x', delta='1e-6')",
            "audit_trace: delta = '1e-6': input should be a valid n",
        ),
        (
            "audit_trace()",
            "audit_trace: missing a required argument: 'trace'; it takes trace, noise",
        ),
        (
            "audit_trace('x', dleta=1)",
            "audit_trace: got an unexpected keyword argument 'dleta'; it",
        ),
        ("audit_trace('x', show_devices=1)", "show_devices = 1: input should be true or false"),
        ("MinSep(60, 10.0, 2)", "MinSep: min_sep = 10.0: input should be a valid integer"),
        (
            "simulate({'rounds': 3})",
            "simulate: scenario = {'rounds': 3}: input should be an instance",
        ),
        ("read_claim('a' + chr(0))", "read_claim: path = 'a.x00' has a null byte; leave it out"),
        (
            "Scenario.from_toml(3)",
            "Scenario.from_toml: path = 3: input should be a valid string or",
        ),
        ("Population(3)", "Population: tables take keyword arguments, such as devices=VALUE; name"),
    ],
)
def test_a_refusal_names_argument_value_and_rule(call: str, message: str) -> None:
    with pytest.raises(fedray.InputError, match=message) as caught:
        eval(
            call, {name: getattr(fedray, name) for name in dir(fedray)} | {"Population": Population}
        )
    assert "\n" not in str(caught.value)


def test_a_method_of_a_result_is_checked_though_its_class_was_never_named() -> None:
    """In a process of its own, since other tests name every class."""
    code = (
        "import fedray\n"
        "tree = fedray.mechanisms.Tree()\n"
        "figures = fedray.mechanism_figures(tree, fedray.MinSep(8, 2, 2), 1.0, 1e-6)\n"
        "try:\n    type(figures)(1)\n"
        "except fedray.InputError:\n    print('refused')\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (run.stdout, run.stderr) == ("refused\n", "")


def test_a_number_of_numpy_is_a_number() -> None:
    whole: Any = np.int64(60)
    assert fedray.MinSep(whole, 10, 4).rounds == 60
    figures = fedray.mechanism_figures(Tree(), SETTING, np.float32(1.0).item(), 1e-6)
    given: Any = np.float32(1.0)
    assert fedray.mechanism_figures(Tree(), SETTING, given, 1e-6).rho == figures.rho


def test_a_function_gets_the_values_that_were_passed_and_not_copies(monkeypatch) -> None:
    seen: list[Any] = []

    def audit(trace: str | Path, mechanism: Sequence[fedray.Strategy], delta: float = 1.0) -> None:
        """Keeps its arguments."""
        seen.extend((trace, mechanism, delta))

    mechanisms = [Tree()]
    validated(audit)("x", mechanisms, delta=1)
    assert seen[1] is mechanisms
    assert type(seen[2]) is int


def test_a_public_function_keeps_signature_help_and_place_in_pickles() -> None:
    from fedray.audit.audit import audit_trace

    assert fedray.audit_trace is fedray.audit_trace
    assert inspect.signature(fedray.audit_trace) == inspect.signature(audit_trace)
    assert fedray.audit_trace.__doc__ == audit_trace.__doc__
    assert pickle.loads(pickle.dumps(fedray.audit_trace)) is fedray.audit_trace


def test_importing_fedray_imports_no_validator() -> None:
    code = "import sys, fedray; print({'pydantic', 'inspect', 'numpy'} & sys.modules.keys())"
    found = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert found.stdout == "set()\n"


if __name__ == "__main__":
    total, bad = 0, []
    for each in sys.argv[1:] or CALLABLES:
        calls, failures = failures_of(each)
        total += calls
        bad += failures
    print(*bad, f"{total} calls, {len(bad)} failures", sep="\n")
