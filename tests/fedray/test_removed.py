"""A name of an earlier version is refused in one sentence with its replacement, and no name that exists is."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer.main

import fedray
from fedray.base.errors import InputError, TraceVersion
from fedray.base.removed import REMOVED, removed
from fedray.cli import app
from fedray.mechanisms.accounting.events import read_event
from fedray.trace.reader import Trace
from fedray.trace.schema import DOCUMENT_DIGEST, document_digest

PROGRAM = typer.main.get_command(app)
OF_COMMANDS = [each for each in REMOVED if each.startswith("fedray ")]
OF_PACKAGE = [each for each in REMOVED if each.startswith("fedray.")]
EVENT = "kind = 'gaussian-sum'"
"""A kind of the events file."""
TRUST = ("analytics.trust.kind = 'local'", "analytics.trust.kind = 'shuffled'")
"""Kinds within a list."""
NORMS = ("analytics.question.most_l1", "analytics.question.most_l2")
"""Keys of one kind of a question."""


@pytest.mark.parametrize("name", OF_COMMANDS)
def test_a_removed_command_or_option_is_refused_with_its_replacement(
    name: str, fedray_command
) -> None:
    code, out, err = fedray_command(*name.split()[1:], "x")
    assert (code, out, err) == (2, "", f"fedray: {removed(name)}\n")


def test_no_removed_command_or_option_exists() -> None:
    for name in OF_COMMANDS:
        *path, last = name.split()[1:]
        found: Any = PROGRAM
        for each in path:
            found = found.get_command(None, each)
        options = [each for param in found.params for each in param.opts]
        commands = found.list_commands(None) if hasattr(found, "list_commands") else []
        assert last not in (*options, *commands)


@pytest.mark.parametrize("name", OF_PACKAGE)
def test_a_removed_function_is_refused_with_its_replacement(name: str) -> None:
    with pytest.raises(AttributeError) as found:
        getattr(fedray, name.removeprefix("fedray."))
    assert str(found.value) == removed(name)


def test_a_removed_key_or_value_is_refused_with_its_replacement(small) -> None:
    elsewhere = {"clock_changes_digest", EVENT, *TRUST, *NORMS}
    for name in set(REMOVED) - {*OF_COMMANDS, *OF_PACKAGE} - elsewhere:
        key, _, value = name.partition(" = ")
        with pytest.raises(InputError) as found:
            small(f"{key}={value or 1}")
        assert removed(name) in str(found.value)


@pytest.mark.parametrize("name", TRUST)
def test_a_removed_trust_model_is_refused_with_its_replacement(small, name: str) -> None:
    with pytest.raises(InputError) as found:
        small(f"analytics.trust=[{{{name.removeprefix('analytics.trust.')}}}]")
    assert removed(name) in str(found.value)


@pytest.mark.parametrize("name", NORMS)
def test_a_removed_key_of_a_question_is_refused_with_its_replacement(small, name: str) -> None:
    with pytest.raises(InputError) as found:
        small(f"analytics.question={{kind='sum',high=1,{name.rpartition('.')[2]}=1}}")
    assert removed(name) in str(found.value)


def test_a_trace_that_records_clock_changes_is_refused(trace_of) -> None:
    trace = trace_of([[0], [1]], 2)
    run = json.loads((trace.path / "run.json").read_text()) | {"clock_changes_digest": "0"}
    run[DOCUMENT_DIGEST] = document_digest(run)
    (trace.path / "run.json").write_text(json.dumps(run))
    with pytest.raises(TraceVersion, match="clock_changes_digest was removed; use the fedray"):
        Trace.open(trace.path)


def test_an_event_of_a_removed_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gaussian-sum' was removed; describe it by kind"):
        read_event({"kind": "gaussian-sum"}, tmp_path)
    with pytest.raises(InputError, match="gaussian-sum' was removed; describe it by kind"):
        read_event({"kind": "composed", "events": [{"kind": "gaussian-sum"}]}, tmp_path)


def test_every_refusal_is_one_sentence() -> None:
    for name in REMOVED:
        refusal = removed(name)
        assert refusal is not None
        assert ". " not in refusal
        assert "\n" not in refusal
