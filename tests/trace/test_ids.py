"""Ids that look alike, or like a missing value, are kept apart and named in one line."""

import json
import unicodedata
from pathlib import Path

import pytest

from fedray.audit.audit import audit_trace
from fedray.imports.importer import import_log
from fedray.imports.inspected import inspect_log
from fedray.mechanisms.registry import Tree

CAFE = "caf\u00e9"
ALIKE = {
    "case": ("AB-12", "ab-12"),
    "spaces": ("x", " x\u00a0"),
    "a mark of the order of bytes": ("x", "\ufeffx"),
    "quotes": ("x", "'x'"),
    "braces": ("6f9619ff-8b86-d011-b42d-00cf4fc964ff", "{6F9619FF-8B86-D011-B42D-00CF4FC964FF}"),
    "Unicode form": (CAFE, unicodedata.normalize("NFD", CAFE)),
    "zeros": ("007", "7", "7.0"),
}
MISSING = ("nan", "None", "NULL", "N/A", "(null)", "undefined", "unknown", "  ",
           "00000000-0000-0000-0000-000000000000")  # fmt: skip


def notes_of(folder: Path, ids: tuple[str, ...], role: str) -> tuple[list[str], list[str]]:
    """Notes of an inspection, and assumptions of the audit of the import, about ids."""
    other = {"device": "owner", "owner": "device"}[role]
    lines = [f'"{each}","p{place}",{place}' for place, each in enumerate(ids)]
    (folder / "log.csv").write_text("\n".join([f"{role},{other},round", *lines]) + "\n")
    log = folder / "log.csv"
    notes = [each for each in inspect_log(log, {}).notes if f"{role}s" in each]
    trace = import_log(
        log, "device", "round", len(ids), folder / "t", owner_column="owner", leave_out_invalid=True
    )
    assert trace.run["devices"] == len(ids)
    audit = audit_trace(trace, 2.0, 1e-6, [Tree()])
    said = [each for each in trace.assumptions if f" of {role}s" in each]
    assert all(each in json.dumps(audit.to_json(), ensure_ascii=False) for each in said)
    return [each for each in notes if " ids of " in each or " id of " in each], said


@pytest.mark.parametrize("role", ["device", "owner"])
@pytest.mark.parametrize("kind", ALIKE)
def test_ids_that_are_written_differently_are_named(tmp_path: Path, kind: str, role: str) -> None:
    notes, said = notes_of(tmp_path, (*ALIKE[kind], "zebra", "10", "100"), role)
    start = f"{len(ALIKE[kind])} ids of {role}s, in 1 group, differ only in case, spaces"
    assert [each[: len(start)] for each in notes] == [start]
    assert [each[: len(start)] for each in said] == [start]
    assert repr(max(ALIKE[kind])) in notes[0]
    assert "zebra" not in notes[0]


@pytest.mark.parametrize("role", ["device", "owner"])
def test_ids_that_may_mean_a_missing_value_are_named(tmp_path: Path, role: str) -> None:
    notes, said = notes_of(tmp_path, (*MISSING, "nancy", "null-7"), role)
    assert sum(f"9 ids of {role}s may mean a missing value" in each for each in notes) == 1
    assert sum(f"9 ids of {role}s may mean a missing value" in each for each in said) == 1


@pytest.mark.parametrize("role", ["device", "owner"])
def test_distinct_ids_have_no_note(tmp_path: Path, role: str) -> None:
    assert notes_of(tmp_path, ("a", "b-1", "b1", "10", "1", "0", "é", "e"), role) == ([], [])
