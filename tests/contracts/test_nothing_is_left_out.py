"""Every kind that a scenario may name is implemented, and its suite has an example of it."""

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from fedray.audit.rules import POLICY_RULES
from fedray.scenario import Scenario
from fedray.scenario.overrides import KINDS
from fedray.server.learning import clip_rule
from fedray.server.learning.optimizers import OPTIMIZERS

TESTS = Path(__file__).parents[1]
REGISTRIES: dict[str, Mapping[str, Any]] = {
    "participation.policies.kind": POLICY_RULES,
    "privacy.clipping.kind": clip_rule.RULES,
    "training.server.kind": OPTIMIZERS,
}
"""What has a function or class for each kind of a key, beside what its table says."""
ARE_THEMSELVES = {
    "analytics.question.kind",
    "analytics.trust.kind",
    "privacy.mechanism.kind",
    "privacy.trust.kind",
    "rounds.buffer.weighting.kind",
}
"""Keys whose tables need nothing that implements them: they do so themselves."""
ARE_MATCHED = {"rounds.closing.kind", "rounds.uploads.schedule.kind", "training.weighting.kind"}
"""Keys whose tables a `match` turns into their rules: the type checker finds a missing case."""
EXAMPLES = {
    "analytics.question.kind": ("simulation/test_answers.py:QUESTIONS",),
    "analytics.trust.kind": ("simulation/test_answers.py:TRUSTS",),
    "analytics.values.kind": ("clients/test_values.py:EXAMPLES",),
    "availability.model": ("contracts/test_availability_models.py:MODELS",),
    "data.kind": (
        "clients/data/test_synthetic.py:TABLES",
        "clients/data/test_recorded.py:KINDS",
        "clients/data/test_custom_data.py:TABLE",
        "clients/data/test_custom_data.py:SOURCE_CODE",
    ),
    "participation.policies.kind": ("simulation/test_policies.py:POLICIES",),
    "privacy.clipping.kind": ("server/test_clip_rule.py:CLIPPING",),
    "privacy.encoding.kind": ("contracts/test_encodings.py:ENCODINGS",),
    "privacy.trust.kind": ("contracts/test_encodings.py:TRUST",),
    "privacy.mechanism.kind": ("mechanisms/example_mechanisms.py:OF_EACH_KIND",),
    "rounds.buffer.weighting.kind": ("server/test_buffer.py:WEIGHTINGS",),
    "rounds.closing.kind": ("server/test_closing.py:CLOSING",),
    "rounds.uploads.schedule.kind": ("simulation/test_uploads.py:SCHEDULES",),
    "training.client.kind": ("clients/test_work.py:ALL_TABLES",),
    "training.server.kind": ("server/test_optimizers.py:SERVERS",),
    "training.task.kind": (
        "clients/tasks/small_tasks.py:CASES",
        "contracts/test_tasks.py:DATA",
    ),
    "training.weighting.kind": ("server/test_weighting.py:WEIGHTINGS",),
}
"""Where the suite of each key has its examples, below tests/."""
ELSEWHERE = {
    "training.task.kind": {"custom"},
    "privacy.mechanism.kind": {"none"},
    "analytics.values.kind": {"evaluation"},
}
"""Kinds with tests of their own: a user's code in tests/contracts/test_tasks.py, a run without
noise in tests/simulation/test_no_noise.py, an evaluation in tests/simulation/test_evaluations.py."""
ALL = pytest.mark.parametrize("key", sorted(".".join(path) for path in KINDS))


def _classes(annotation: Any) -> list[type]:
    if isinstance(annotation, type) and not get_args(annotation):
        return [annotation]
    return [each for part in get_args(annotation) for each in _classes(part)]


@cache
def loaded(file: str) -> ModuleType:
    path = TESTS / file
    specification = importlib.util.spec_from_file_location(f"examples_of_{path.stem}", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[module.__name__] = module  # its dataclasses look there for their annotations
    specification.loader.exec_module(module)
    return module


def kinds_in(example: Any) -> Iterator[str]:
    """The kinds that an example names: those of its tables."""
    if isinstance(example, BaseModel):
        yield vars(example)["kind"]
    elif isinstance(example, dict):
        if "kind" in example:
            yield example["kind"]
        for each in example.values():
            yield from kinds_in(each)
    elif isinstance(example, list | tuple):
        for each in example:
            yield from kinds_in(each)


def kinds_of(place: str) -> set[str]:
    """The kinds of which a place has examples; what names no kind is named by it."""
    file, _, name = place.partition(":")
    examples = getattr(loaded(file), name)
    found = set(kinds_in(examples))
    return found or {name.partition(",")[0] for name in examples}


def unions_in(table: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[str]:
    """The keys that tell the tables of a union apart, in a table and in those below it."""
    for name, field in table.model_fields.items():
        below = [each for each in _classes(field.annotation) if issubclass(each, BaseModel)]
        if len(below) > 1:
            key = "model" if name == "availability" else "kind"
            yield ".".join((*path, name, key))
        elif below:
            yield from unions_in(below[0], (*path, name))


def test_every_union_of_a_scenario_is_known_by_its_key() -> None:
    """Else `--set` keeps the keys of another kind, and nobody asks for an example."""
    assert set(unions_in(Scenario)) == {".".join(path) for path in KINDS}


@ALL
def test_every_kind_has_what_implements_it(key: str) -> None:
    kinds = KINDS[tuple(key.split("."))]
    registry = REGISTRIES.get(key, {})
    if registry:
        unlike = sorted(kinds.keys() ^ registry.keys())
        assert not unlike, f"{key}={unlike}: a kind needs a table and a line in its registry"
        assert all(map(callable, registry.values()))
    for kind, table in kinds.items():
        place = getattr(table, "implementation", None)
        assert place or registry or key in ARE_THEMSELVES | ARE_MATCHED, (
            f"{key}={kind!r}: {table.__name__}.implementation must say where it is, or {key} "
            "needs a line in REGISTRIES here"
        )
        assert place is None or callable(resolve_name(place))


@ALL
def test_every_kind_is_an_example_of_its_suite(key: str) -> None:
    kinds = KINDS[tuple(key.split("."))].keys()
    assert key in EXAMPLES, f"{key}: say in EXAMPLES here where its suite has its examples"
    found = set.union(*(kinds_of(place) for place in EXAMPLES[key])) | ELSEWHERE.get(key, set())
    missing = sorted(kinds - found)
    assert not missing, f"{key}={missing}: add an example to tests/{' or '.join(EXAMPLES[key])}"
    assert found <= kinds, (
        f"{key}: {sorted(found - kinds)} are in no union; add their tables, or correct the examples"
    )
