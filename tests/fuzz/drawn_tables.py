"""Random tables from the schema: values at, next to and between the bounds of their types."""

import math
import random
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

CAPS: dict[str, tuple[float, float]] = {
    "data.classes": (2, 12),
    "data.dimension": (1, 12),
    "data.length": (1, 8),
    "data.shape": (1, 4),
    "data.values": (0, 64),
    "data.vocabulary": (1, 50),
    "participation.max_participations": (1, 4),
    "participation.policies.min_example_count": (1, 40),
    "participation.policies.minimum_separation": (0, 6),
    "participation.policies.period_hours": (0, 48),
    "participation.round_separation": (0, 6),
    "participation.timer_hours": (0, 48),
    "population.devices": (300, 3000),
    "population.examples_max": (1, 300),
    "population.examples_median": (1, 100),
    "population.joins_per_day": (0, 2000),
    "privacy.encoding.parameters": (1, 1000),
    "privacy.mechanism.bands": (1, 40),
    "privacy.mechanism.rounds": (1, 64),
    "rounds.buffer.concurrency": (1, 200),
    "rounds.count": (1, 12),
    "rounds.max_days": (0, 4),
    "rounds.over_selection": (1, 4),
    "rounds.report_goal": (1, 40),
    "rounds.uploads.windows": (1, 4),
    "training.client.batch_size": (1, 9),
    "training.client.epochs": (0, 3),
    "training.client.local_steps": (1, 5),
    "training.cohort_sample": (1, 20),
    "training.evaluation_devices": (1, 20),
    "training.task.embedding": (1, 8),
    "training.task.feedforward": (1, 8),
    "training.task.heads": (1, 4),
    "training.task.hidden": (1, 8),
    "training.task.layers": (1, 2),
}
"""Bounds narrower than the schema's, which keep a case small."""
CHOICES: dict[str, tuple[Any, ...]] = {
    "privacy.mechanism.coefficients": ([1.0], [1.0, 0.5], [1.0, 0.0, 0.1], [1.0, -0.5], [1e-6, 1.0]),
    "privacy.mechanism.restarts": ([1], [3], [2, 5], [1, 2, 3, 4], [11]),
    "rounds.look_ahead_minutes": (5.0, 12.5, 20.0, 60.0, 360.0),
    "rounds.uploads.window_hours": (1.0, 2.0, 3.0, 6.0, 24.0),
}  # fmt: skip
"""Values of keys whose rules few random values meet."""
FILES: dict[str, dict[str, Any]] = {
    "ReplayAvailability": {"file": "sessions.parquet"},
    "CustomAvailability": {"file": "runs.py"},
    "CustomData": {"file": "data.py", "inputs": "x", "targets": "y"},
    "Matrix": {"file": "matrix.npy"},
    "Banded": {"file": "banded.npy"},
    "Dense": {"file": "matrix.npy"},
    "TffSqliteData": {"file": "tff_sqlite", "inputs": "x", "targets": "y"},
    "ParquetData": {"file": "parquet", "inputs": "x", "targets": "y"},
}
"""Keys of the tables that name a file; the files are the caller's."""
KEYS_OF_FILES = ("client", "file", "held_out_split", "inputs", "sha256", "split", "targets", "tokens", "vocabulary_cost", "vocabulary_file", "vocabulary_sha256")  # fmt: skip
"""Keys that say what is in a file, where only `FILES` is right."""
_LEFT_OUT = ("CustomTask", "InitialModel", "SourceCodeData")
"""Tables that are never drawn: they need a file of the task's own, or read for seconds."""


def drawn_key(table: type[BaseModel], key: str, path: str, rng: random.Random) -> Any:
    """A value of a key of a table, which stands at a path such as "rounds.buffer"."""
    field = table.model_fields[key]
    where = f"{path}.{key}" if path else key
    return _drawn(field.annotation, tuple(field.metadata), where, rng)


def drawn_table(table: type[BaseModel], path: str, rng: random.Random) -> dict[str, Any]:
    """All required keys of a table, and some of the others."""
    share, drawn = rng.choice([0.0, 0.2, 0.5]), dict(FILES.get(table.__name__, {}))
    for key, field in table.model_fields.items():
        if key in ("kind", "model") and get_origin(field.annotation) is Literal:
            drawn[key] = get_args(field.annotation)[0]
        elif key not in (*drawn, *KEYS_OF_FILES) and (field.is_required() or rng.random() < share):
            drawn[key] = drawn_key(table, key, path, rng)
    return drawn


def _drawn(annotation: Any, metadata: tuple[Any, ...], path: str, rng: random.Random) -> Any:
    if path in CHOICES:
        return rng.choice(CHOICES[path])
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _drawn(parts[0], (*parts[1:], *metadata), path, rng)
    if origin in (Union, types.UnionType):
        drawable = [part for part in parts if _name_of(part) not in _LEFT_OUT]
        return _drawn(rng.choice(drawable), metadata, path, rng)
    if annotation is type(None):
        return None
    if origin is Literal:
        return rng.choice(parts)
    if origin is tuple:
        size = rng.choice([1, 1, 2, 3]) if parts[-1] is Ellipsis else len(parts)
        return [_drawn(parts[0], (), path, rng) for _ in range(size)]
    if origin is dict:
        return {}
    if annotation is str:
        return f"x{rng.randrange(100)}"
    if annotation is bool:
        return rng.random() < 0.5
    if annotation in (int, float):
        return _number(annotation, metadata, CAPS.get(path, (-math.inf, math.inf)), rng)
    return drawn_table(annotation, path, rng)


def _name_of(part: Any) -> str:
    inner = get_args(part)[0] if get_origin(part) is Annotated else part
    return getattr(inner, "__name__", "")


def _number(
    kind: type, metadata: tuple[Any, ...], cap: tuple[float, float], rng: random.Random
) -> int | float:
    """A number at a bound, next to one, or between them, some of them close to the least."""
    least, most = cap
    constraints = [
        constraint
        for each in metadata
        for constraint in (each.metadata if isinstance(each, FieldInfo) else [each])
    ]
    for each in constraints:
        # Types whose bound itself is excluded begin at the next number.
        step = 1 if kind is int else 0.0
        if (bound := getattr(each, "ge", None)) is not None:
            least = max(least, bound)
        if (bound := getattr(each, "gt", None)) is not None:
            least = max(least, bound + step if step else math.nextafter(bound, math.inf))
        if (bound := getattr(each, "le", None)) is not None:
            most = min(most, bound)
        if (bound := getattr(each, "lt", None)) is not None:
            most = min(most, bound - step if step else math.nextafter(bound, -math.inf))
    if kind is int:
        low = int(max(least, -100))
        high = int(min(most, 2**62))
        near = min(high, low + 1), rng.randint(low, min(high, low + 40))
        return rng.choice([low, high, *near, rng.randint(low, high)])
    low, high = max(least, -1e9), min(most, 1e9)
    edges = low, high, math.nextafter(low, high), math.nextafter(high, low)
    close = low + math.exp(rng.uniform(-20.0, 0.0)) * (high - low)
    return float(rng.choice([*edges, close, close, *(rng.uniform(low, high) for _ in range(4))]))
