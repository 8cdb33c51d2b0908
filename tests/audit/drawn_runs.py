"""Small runs with random parts, and with a private vocabulary, for the tests of audits and of studies."""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedray.mechanisms.accounting.events import ApproximateDP, Composed, Repeated
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario

HERE = Placement(1, "in-process")
ONLY_MODELS = "counts updates of models only, and the scenario has a question"
"""Refusal of whatever would meet a target by the noise of a model on a trace of `paid`."""
QUESTION = {
    "participation": {"timer_hours": 0.0, "max_participations": None},
    "privacy": {"mechanism": {"kind": "identity"}, "noise_multiplier": 4.0, "delta": 1e-8},
}


class Drawn(NamedTuple):
    """Random parts of a scenario."""

    tables: dict[str, Any]
    rng: np.random.Generator
    folder: Path

    def pick(self, *values: Any) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def run(self, **tables: Any) -> Any:
        """The trace of the scenario with further tables."""
        merged = {key: self.tables.get(key, {}) | of for key, of in tables.items()}
        value = Scenario.from_tables({**self.tables, **merged}, directory=self.folder)
        return simulate(value, HERE, self.folder / "trace")


def drawn(case: int, folder: Path) -> Drawn:
    rng = np.random.default_rng(case)
    mechanism = [{"kind": "identity"}, {"kind": "tree"}, {"kind": "band-fhu", "bands": 2}][case % 3]
    participation: dict[str, Any] = {"timer_hours": float(rng.choice([0.0, 0.3, 2.0, 24.0]))}
    if rng.random() < 0.5:
        participation["max_participations"] = int(rng.integers(1, 4))
    elif rng.random() < 0.3:
        participation["timer_violators"] = 0.5
    tables = {
        "name": f"case-{case}",
        "seed": int(rng.integers(2**31)),
        "population": {"devices": 800},
        "availability": {"model": "always_on"},
        "participation": participation,
        "rounds": {"count": int(rng.integers(2, 6)), "report_goal": 20},
        "privacy": {
            "mechanism": mechanism,
            "noise_multiplier": float(rng.choice([0.5, 1.3, 4.0, 20.0])),
            "delta": float(rng.choice([1e-6, 1e-8, 3e-9])),
        },
        "training": {"enabled": False, "cohort_sample": 10},
    }
    return Drawn(tables, rng, folder)


def words(each: Drawn, epsilon: float) -> dict[str, Any]:
    """A table of data with a private vocabulary of (epsilon, 2e-8)."""
    text = "word0\nword1\n"
    (each.folder / "words.txt").write_text(text)
    # In each of two windows: half of epsilon, and the chance that a key of one device is shown.
    parts = (
        ApproximateDP(epsilon=epsilon / 2, delta=0.0, theorem="t"),
        ApproximateDP(epsilon=0.0, delta=8.191944783181514e-9, theorem="t"),
    )
    cost = {
        "trust": "server",
        "mechanism": "discrete Laplace noise",
        "theorem": "a theorem",
        "windows": 2,
        "delta": 2e-8,
        "event": Repeated(event=Composed(events=parts), count=2).to_json(),
        "vocabulary_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "run": "0" * 64,
    }
    (each.folder / "words.txt.json").write_text(json.dumps({"cost": cost}))
    rows = [{"client": f"c{n}", "text": "word0 word1"} for n in range(30)]
    pq.write_table(pa.Table.from_pylist(rows), each.folder / "d.parquet")
    files = {"file": str(each.folder / "d.parquet"), "tokens": "text"}
    return {"kind": "parquet", **files, "vocabulary_file": str(each.folder / "words.txt")}


def paid(folder: Path, epsilon: float = 4.0, **tables: Any) -> tuple[Drawn, Any]:
    """A trace whose devices took part once, with a vocabulary of (epsilon, 2e-8)."""
    each = drawn(0, folder)
    data = words(each, epsilon)
    once = {"participation": {"timer_hours": 24.0, "max_participations": 1}}
    return each, each.run(data=data, **(QUESTION | once), **tables)
