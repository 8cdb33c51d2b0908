"""Small runs, audits, imports and sweeps whose results are frozen: what only moves or rewrites code leaves every digest as it is.

`FEDRAY_FREEZE=1 pytest tests/frozen` writes digests.json again; a commit that changes a digest says why. Traces are compared to the
last bit; documents up to the order of keys and the last digits of floats, which depend on the processor.
"""

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from document_schema import found_keys
from pyarrow import csv

import fedray
from fedray.mechanisms import Tree
from fedray.studies import simulated as simulated_runs

HERE = fedray.Placement(1, "in-process")
FILE = Path(__file__).with_name("digests.json")
IS_FREEZING = "FEDRAY_FREEZE" in os.environ

RECORDING = "device,start,end\n" + "".join(
    f"d{device},{7000 * (device % 11) + 86_400 * (device % 3)},{7000 * (device % 11) + 86_400 * (device % 3) + 30_000}\n"
    for device in range(40)
)
CUSTOM = '''
import numpy as np

def runs(device_ids, low, high, seed, hours):
    """On for some hours from a time of the day that is the device's own."""
    rows = []
    for place, device in enumerate(device_ids.tolist()):
        start = 3600.0 * ((device * 7919 + seed) % 24)
        day = int((low - start) // 86400) - 1
        while start + 86400 * day < high:
            if start + 86400 * day + 3600 * hours > low:
                rows.append((place, start + 86400 * day, start + 86400 * day + 3600 * hours))
            day += 1
    return [np.array(column) for column in zip(*rows)] if rows else [np.empty(0)] * 3
'''
UPLOADS = "rounds.mode='upload-then-train'"
IDENTITY = "privacy.mechanism={kind='identity'}"
RUNS: dict[str, tuple[str, ...]] = {
    "habit": (),
    "rules of every kind": (
        "participation.policies=[{kind='timer'}, {kind='swor', period_hours=5.0}, "
        "{kind='min_sep', minimum_separation=2, counts='gap'}, {kind='data_available', min_example_count=20}]",
        "participation.max_participations=3",
        "participation.history_loss_per_day=0.5",
        "participation.timer_violators=0.1",
        "population.joins_per_day=3000.0",
        "population.lifetime_days=20.0",
        "rounds.outages=[{start_hours=2.0, hours=1.5}]",
    ),
    "classes": (
        "population.classes=[{name='old',share=0.3,availability={night_length_hours=2.0}},"
        "{name='far',share=0.7,time_zones=[{utc_offset_hours=9.0}]}]",
    ),
    "conditions, reservoir": (
        "availability={model='conditions'}",
        "rounds.selection='reservoir'",
        "rounds.min_minutes_between=30.0",
    ),
    "poisson, thinning": (
        "availability={model='poisson',sessions_per_day=3.0,session_minutes=200.0}",
        "rounds.sampler='thinning'",
        "participation.timer_resets_on='selected'",
    ),
    "replay": (
        "availability={model='replay',file='recording.parquet',day_shift='uniform',period_days=5}",
    ),
    "custom": ("availability={model='custom',file='mine.py',parameters={hours=5.0}}",),
    "always on, at least, discrete": (
        "availability={model='always_on'}",
        "rounds.closing={kind='at_least', open_minutes=5.0}",
        "privacy.trust={kind='devices', parameters=1000}",
        IDENTITY,
    ),
    "buffered": (
        "population.devices=30000",
        "rounds.report_goal=100",
        "rounds.look_ahead_minutes=5.0",
        "rounds.mode='buffered'",
        "rounds.buffer={concurrency=250, max_staleness=3, weighting={kind='polynomial'}}",
        "participation.timer_hours=0.2",
    ),
    "cyclic uploads, secagg": (
        UPLOADS,
        "rounds.uploads={window_hours=6.0, windows=2, schedule={kind='cyclic', min_sep=3}, unresolved_share=0.02}",
        "privacy.encoding={kind='secagg'}",
    ),
    "poisson uploads": (
        UPLOADS,
        "rounds.uploads={window_hours=8.0, schedule={kind='poisson', probability=0.05}}",
        IDENTITY,
    ),
    "filter": (
        "participation.timer_hours=1.0",
        "availability={model='always_on'}",
        "population.devices=3000",
        "privacy.noise_multiplier=2.0",
        "privacy.mechanism={kind='tree'}",
        "privacy.stop_at={epsilon=10.0}",
        "privacy.at_limit='exclude'",
    ),
}
CLAIM = {
    "noise_multiplier": 1.0,
    "min_sep": 3,
    "max_participations": 2,
    "rounds": 12,
    "epsilon": 9.0,
}
AUDITS: dict[str, tuple[str, dict[str, Any]]] = {
    "habit, own mechanism": ("habit", {}),
    "habit, claimed tree": ("habit", {"claim": {"mechanism": {"kind": "tree"}, **CLAIM}}),
    "rules that are not kept": ("rules of every kind", {}),
    "noise of devices": ("always on, at least, discrete", {}),
    "sampled": ("poisson uploads", {}),
    "filtered": ("filter", {}),
}
LOG = "device,round,when,kind\n" + "".join(
    f"d{(7 * i) % 23},{i // 9},2026-01-{1 + i // 9:02d}T{(5 * i) % 24:02d}:30:00Z,{'ab'[i % 7 == 0]}\n"
    for i in range(180)
)
IMPORTS: dict[str, dict[str, Any]] = {
    "rounds alone": {"rounds": 20, "repeats": "once"},
    "with times": {"renumber": True, "time_column": "when", "repeats": "each"},
    "some rows": {
        "renumber": True,
        "time_column": "when",
        "where": ["kind=a"],
        "repeats": "once",
    },
}
SETTINGS = 'name = "settings"\nx = "min_sep"\nvary = {rounds = [60], max_participations = [3], min_sep = [12, 20]}\n'
KINDS = '[[mechanisms]]\nkind = "tree-full"\n[[mechanisms]]\nkind = "banded"\nbands = 12\nmade_for = ["estimate"]\n'
ESTIMATE = "estimate = {rounds = 60, min_sep = 12, max_participations = 3}\n"
OF_RUNS = (
    'name = "runs"\nscenario = "small.toml"\nestimate = {rounds = 12, min_sep = 6, max_participations = 2}\n'
    'x = "participation.timer_hours"\ny = "epsilon"\n'
    'vary = {"participation.timer_hours" = [2.0, 4.0]}\n[[mechanisms]]\nkind = "identity"\n'
)
SWEEPS = {
    "settings": SETTINGS + '[[mechanisms]]\nkind = "identity"\n',
    "optimised": SETTINGS + ESTIMATE + KINDS,
    "runs": OF_RUNS,
}


FAST = ("habit", "habit, own mechanism")
"""The run and the audit that `make check` compares, so that it shows whether a move changed anything."""


def cases(names: Iterable[str]) -> list[Any]:
    """Parameters for names, all slow but the fast ones."""
    return [
        pytest.param(name, marks=() if name in FAST else pytest.mark.slow, id=name)
        for name in names
    ]


def digest_of(value: Any) -> str:
    """SHA-256 of a document, its floats in nine digits."""

    def plain(each: Any) -> Any:
        if isinstance(each, dict):
            return {
                str(key): plain(item)
                for key, item in each.items()
                if key not in ("trace", "run", "path")
            }
        if isinstance(each, list | tuple):
            return [plain(item) for item in each]
        return f"{each:.9g}" if isinstance(each, float) else each

    return hashlib.sha256(json.dumps(plain(value), sort_keys=True).encode()).hexdigest()[:16]


@pytest.fixture(scope="module")
def frozen() -> Any:
    """Compares a digest with the one that is stored under its name, or stores it."""
    stored: dict[str, str] = json.loads(FILE.read_text()) if FILE.exists() else {}

    def compare(name: str, digest: str) -> None:
        if IS_FREEZING:
            stored[name] = digest
        else:
            assert stored.get(name) == digest, f"{name} has another digest"

    yield compare
    if IS_FREEZING:
        FILE.write_text(json.dumps(dict(sorted(stored.items())), indent=1) + "\n")


@pytest.fixture(scope="module")
def run_of(small, tmp_path_factory) -> Callable[[str], fedray.Trace]:
    """The trace of one of RUNS, simulated once."""
    folder, made = tmp_path_factory.mktemp("runs"), {}
    pq.write_table(csv.read_csv(io.BytesIO(RECORDING.encode())), folder / "recording.parquet")
    (folder / "mine.py").write_text(CUSTOM)
    (folder / "small.toml").write_text(small().to_toml())

    def run(name: str) -> fedray.Trace:
        if name not in made:
            # Paths in overrides are relative to the working directory.
            with contextlib.chdir(folder):
                scenario = fedray.Scenario.from_toml("small.toml", list(RUNS[name]))
            made[name] = fedray.simulate(scenario, HERE, folder / f"trace-{len(made)}")
        return made[name]

    return run


def document_of(result: Any) -> dict[str, Any]:
    """The document of a result, which has the keys that the result's type declares."""
    document = result.to_json()
    found_keys(json.loads(json.dumps(document)), type(result))
    return document


@pytest.mark.parametrize("name", cases(RUNS))
def test_a_run_has_the_frozen_trace(name: str, run_of, frozen) -> None:
    frozen(f"run: {name}", run_of(name).digest)


@pytest.mark.slow
def test_several_tasks_have_the_frozen_traces(small, frozen, tmp_path: Path) -> None:
    tables = {
        **small("participation.timer_hours=4.0").to_tables(),
        "tasks": {"a": {"timer_group": "g"}, "b": {"timer_group": "g", "rounds": {"count": 5}}},
    }
    run = fedray.simulate(fedray.SeveralTasks.from_tables(tables), HERE, tmp_path / "t")
    for task, trace in run.traces.items():
        frozen(f"run: several tasks, {task}", trace.digest)
    frozen("audit: several tasks", digest_of(document_of(fedray.audit_tasks(run))))


@pytest.mark.parametrize("name", cases(AUDITS))
def test_an_audit_has_the_frozen_document(name: str, run_of, frozen) -> None:
    run, options = AUDITS[name]
    if "claim" in options:
        options = {"claim": fedray.Claim.model_validate(options["claim"])}
    frozen(f"audit: {name}", digest_of(document_of(fedray.audit_trace(run_of(run), **options))))


@pytest.mark.parametrize("name", cases(IMPORTS))
def test_an_import_has_the_frozen_trace_and_audit(name: str, frozen, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(LOG)
    options = {"rounds": None, **IMPORTS[name]}
    trace = fedray.import_log(
        tmp_path / "log.csv", "device", "round", out=tmp_path / "t", **options
    )
    audit = fedray.audit_trace(trace, mechanism=Tree(), noise_multiplier=2.0)
    frozen(f"import: {name}", digest_of([trace.digest, document_of(audit)]))


@pytest.mark.parametrize("name", cases(SWEEPS))
def test_a_sweep_has_the_frozen_rows(name: str, small, frozen, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(
        simulated_runs,
        "run_jobs",
        lambda work, jobs, *_: ((place, work(job)) for place, job in enumerate(jobs)),
    )
    (tmp_path / "small.toml").write_text(small("population.devices=5000").to_toml())
    (tmp_path / "sweep.toml").write_text(SWEEPS[name])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    result = fedray.run_sweep(*fedray.Sweep.from_toml(tmp_path / "sweep.toml"), HERE)
    frozen(f"sweep: {name}", digest_of(document_of(result)))
