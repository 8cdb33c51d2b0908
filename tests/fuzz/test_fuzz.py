"""A small part of `make fuzz` in every run of the suite."""

import importlib.util
import math
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from fedray.audit.guarantees import Guarantee

CASES = 200
SEED = 1


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "fedray_fuzz", Path(__file__).with_name("fuzz.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow  # two hundred inputs are read, and damaged, of each kind that there is
def test_damaged_and_hostile_inputs_end_in_the_same_figures_or_in_one_line(
    fuzz: ModuleType,
) -> None:
    results = list(fuzz.run_cases(CASES, SEED))
    assert [each for each in results if each[2].startswith("FOUND")] == []
    ends = Counter(result for _, _, result in results)
    assert ends["refused"] > CASES / 2  # it can tell: most damage is refused ...
    assert ends["same"] > 0  # ... and what changes nothing that is read is not


@pytest.mark.slow  # fifty small runs, imports, calibrations
def test_valid_inputs_at_the_edges_reach_what_is_behind_validation(
    fuzz: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    targets = {"simulations": 20, "trainings": 5, "tasks": 5, "imports": 8, "mechanisms": 8}
    results = [
        result
        for name, count in targets.items()
        for result in fuzz.run_cases(count, SEED, name, is_valid=True)
    ]
    assert [each for each in results if each[2].startswith("FOUND")] == []
    reached = [result for _, _, result in results if result.startswith("reached")]
    assert len(reached) > len(results) / 2
    for operation in ("simulate", "train", "resume", "import", "audit", "calibrate"):
        assert any(operation in each for each in reached), operation


@pytest.mark.slow
@pytest.mark.parametrize("what", ["more is observed than enforced", "another digest", "infinity"])
def test_the_checks_behind_validation_can_fail(
    fuzz: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    import valid_inputs

    if what == "another digest":
        monkeypatch.setattr(valid_inputs, "figures_of", lambda trace: str(trace.path))
    elif what == "infinity":
        monkeypatch.setattr(Guarantee, "rho", property(lambda self: math.inf))
    else:
        rho = {"observed": 3.0}
        monkeypatch.setattr(Guarantee, "rho", property(lambda self: rho.get(self.name, 1.0)))
    target = fuzz.valid_targets(tmp_path, fuzz.DATA_FILES)
    simulations = next(each for name, _, each in target if name == "simulations")
    results = (fuzz.run_case(simulations, SEED, "simulations", number) for number in range(20))
    assert any(result.startswith("FOUND Finding") for result in results)


@pytest.mark.slow
def test_the_harness_finds_what_it_is_for(fuzz: ModuleType, tmp_path: Path, monkeypatch) -> None:
    """With digests unchecked, as they once were, flips go unnoticed; and an error that is none of ours is told."""
    read = fuzz.open_trace
    monkeypatch.setattr(fuzz, "open_trace", lambda path, verify=True: read(path, False))
    traces = fuzz.Traces(tmp_path, fuzz.make_own, fuzz.read_own)
    results = (fuzz.run_case(traces, SEED, "own trace", number) for number in range(60))
    assert any("changed without a word" in result for result in results)

    class Broken:
        def case(self, rng: object) -> bool:
            raise KeyError("x")

    assert fuzz.run_case(Broken(), SEED, "broken", 0).startswith("FOUND KeyError")
