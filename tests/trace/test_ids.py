"""Ids that look alike, or like a missing value, are kept apart and named in one line."""

import json
import random
import unicodedata
from datetime import date
from pathlib import Path

import pytest

from fedray.audit.audit import audit_trace
from fedray.audit.calibration import calibrate_trace
from fedray.audit.claims import Claim, read_claim
from fedray.audit.findings import Verdict
from fedray.audit.ledger import Ledger
from fedray.audit.privacy_statement import privacy_statement
from fedray.base.rounding import up
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
    said = [each for each in [it.text for it in trace.rests_on] if f" of {role}s" in each]
    assert all(each in json.dumps(audit.to_json(), ensure_ascii=False) for each in said)
    return [each for each in notes if " ids of " in each or " id of " in each], said


@pytest.mark.parametrize(
    ("kind", "role"), [*((kind, "device") for kind in ALIKE), (next(iter(ALIKE)), "owner")]
)
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


@pytest.mark.parametrize("repeats", ["once", "each"])
def test_an_audit_has_the_figures_of_joined_ids_as_of_a_log_with_one_spelling(
    tmp_path: Path, repeats: str
) -> None:
    drawn = random.Random(5)
    rows = [(f"D{drawn.randrange(9)}", number) for number in range(12) for _ in range(4)]
    spelled = (str.lower, " {} ".format, "'{}'".format, str)
    written = {"clean": rows, "dirty": [(drawn.choice(spelled)(name), i) for name, i in rows]}
    claim = Claim(mechanism=Tree(), noise_multiplier=4.0, min_sep=2, max_participations=9)
    traces = {}
    for name, lines in written.items():
        log = tmp_path / f"{name}.csv"
        log.write_text("device,round\n" + "".join(f'"{d}",{i}\n' for d, i in lines))
        options = ("device", "round", 12), {"repeats": repeats}
        traces[name] = import_log(log, *options[0], tmp_path / name, **options[1])
        if name == "dirty":
            at_import = import_log(
                log, *options[0], tmp_path / "joined", join_ids=True, **options[1]
            )
    clean, dirty = (audit_trace(each, claim=claim) for each in traces.values())
    joined = audit_trace(at_import, claim=claim)
    assert clean.joined is joined.joined is None
    assert dirty.devices > 9
    for each in (dirty.joined, joined):
        assert each is not None
        assert (each.devices, each.min_sep, each.max_participations, each.supported_epsilon) == (
            *(clean.devices, clean.min_sep, clean.max_participations, clean.supported_epsilon),
        )
        assert each.mechanisms[0].epsilon == clean.mechanisms[0].epsilon
        assert each.claim_holds is clean.claim_holds
    document = dirty.to_json()
    assert document["joined_epsilon"] == clean.supported_epsilon
    assert document["joined_min_sep"] == clean.min_sep
    ids = f"are one device ({dirty.devices} ids of 9 devices), "
    assert ids in dirty.verdict
    assert ids in json.dumps(document)
    taken = "Ids that differ only in writing were taken as one device: "
    taken += f"{dirty.devices} ids, 9 devices."
    says = privacy_statement(joined).to_markdown() if repeats == "once" else joined.verdict
    assert all(taken in text for text in (joined.verdict, json.dumps(joined.to_json()), says))
    assert taken in joined.page()
    assert any("once ids that differ in writing are joined." in a for a in joined.assumptions)
    assert all(taken not in each.verdict for each in (clean, dirty))


def test_ids_that_change_nothing_as_one_device_do_not_repeat_the_verdict(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("device,round\na,0\nb,0\nb,1\nc,2\nA,3\n")
    trace = import_log(tmp_path / "log.csv", "device", "round", 4, tmp_path / "t")
    claim = Claim(mechanism=Tree(), noise_multiplier=4.0, min_sep=2, max_participations=2)
    audit = audit_trace(trace, claim=claim)
    assert (
        audit.verdict.count("The claim does not hold") == audit.verdict.count("min-sep is 1") == 1
    )
    assert "The same holds if ids that differ only in case" in audit.verdict
    assert "The same holds if ids that differ only in case" in audit_trace(trace).verdict


def test_devices_of_rows_that_were_left_out_are_named_on_request(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("device,round\nzoe,0\nbob,0\nbob,0\nzoe,\n")
    log, options = tmp_path / "log.csv", {"leave_out_invalid": True, "repeats": "each"}
    trace = import_log(log, "device", "round", 1, tmp_path / "t", **options)
    hidden, shown = (audit_trace(trace, show_devices=each) for each in (False, True))
    text = json.dumps(shown.to_json())
    assert "device zoe, round" in shown.left_out[0].example
    assert "device bob, round 0" in text
    assert "device #" not in text
    assert not any(name in json.dumps(hidden.to_json()) for name in ("zoe", "bob"))


def test_a_timer_is_checked_on_joined_ids_only_if_the_import_joined_them(tmp_path: Path) -> None:
    at = "2026-03-0{}T12:00:00Z".format
    rows = f"a,0,{at(1)}\nA,1,{at(2)}\nb,1,{at(2)}\n"
    (tmp_path / "log.csv").write_text("device,round,time\n" + rows)
    trace, one, distinct = (
        import_log(
            *(tmp_path / "log.csv", "device", "round", 2, tmp_path / f"t{join}"),
            time_column="time",
            join_ids=join,
        )
        for join in (None, True, False)
    )
    claim = Claim(mechanism=Tree(), noise_multiplier=4.0, timer_hours=48.0, epsilon=9.0)
    found, one, distinct = (audit_trace(each, claim=claim) for each in (trace, one, distinct))
    assert found.joined is not None
    verdicts = [
        {each.statement: each.verdict for each in audit.findings}["timer_hours"]
        for audit in (found, found.joined, one, distinct)
    ]
    assert verdicts == [Verdict.HOLDS, Verdict.UNCHECKED, Verdict.BROKEN, Verdict.HOLDS]
    # Without the timer a device may take part in both rounds.
    assert found.supported_epsilon == found.joined.supported_epsilon
    assert distinct.supported_epsilon is not None
    assert found.supported_epsilon > distinct.supported_epsilon
    assert (found.claim_holds, found.standing) == (False, "open")
    assert "; its timer is unchecked." in found.verdict
    assert (distinct.claim_holds, distinct.standing) == (True, "holds")


def test_a_claim_that_holds_only_for_ids_as_written_fails_until_they_are_settled(
    tmp_path: Path, fedray_command
) -> None:
    rows = "a,0\na,4\nA,5\nb,1\nb,5\n" + "".join(f"z{i},{i}\n" for i in range(6))
    (tmp_path / "log.csv").write_text("device,round\n" + rows)
    claim = 'mechanism = {kind = "tree"}\nnoise_multiplier = 4.0\nmin_sep = 3\n'
    (tmp_path / "claim.toml").write_text(claim)
    columns = ("--column", "device=device", "--column", "round=round", "--rounds", "6", "--out")
    found = {}
    for flags in ((), ("--join-ids",), ("--no-join-ids",)):
        folder = str(tmp_path / f"t{''.join(flags)}")
        code, out, _ = fedray_command("import", str(tmp_path / "log.csv"), *columns, folder, *flags)
        assert (code, "as distinct ones" in out) == (0, not flags)
        arguments = ("audit", folder, "--claim", str(tmp_path / "claim.toml"), "--json")
        code, out, stderr = fedray_command(*arguments)
        found[flags] = document = json.loads(out)
        assert code == (0 if flags == ("--no-join-ids",) else 1), stderr
        assert document["claim_holds"] is (code == 0)
        assert (document["verdict"] in stderr) is (code == 1)
    doubted, joined, distinct = found.values()
    start = "The claim is shown to hold only if ids that differ in writing are distinct devices. "
    assert doubted["verdict"].startswith(start)
    assert (doubted["devices"], doubted["joined_devices"]) == (9, 8)
    assert (joined["devices"], joined["joined_ids"]) == (8, 9)
    assert (distinct["devices"], distinct["joined_ids"]) == (9, 0)
    assert "taken as distinct devices: 9 ids, 9 devices." in distinct["verdict"]
    assert "joined_ids" not in doubted
    # One figure, the worse one, in verdict, statement, page and JSON.
    assert doubted["supported_epsilon"] == joined["supported_epsilon"]
    assert doubted["supported_epsilon"] > distinct["supported_epsilon"]
    assert doubted["supported_by"].endswith("are counted as one device")
    audit = audit_trace(tmp_path / "t", claim=read_claim(tmp_path / "claim.toml"))
    epsilon = up(joined["supported_epsilon"])
    assert f"epsilon is {epsilon}, not {up(distinct['supported_epsilon'])}; " in audit.verdict
    assert f"({epsilon}, 1e-10)-differential" in privacy_statement(audit).to_markdown()
    assert f"&epsilon; = {epsilon}" in audit.page()
    noise, ledgers = [], []
    for each in ("", "--join-ids"):
        calibrated = calibrate_trace(tmp_path / f"t{each}", epsilon=5.0, claim=audit.claim)
        noise.append([found.noise_multiplier for found in calibrated.guarantees])
        ledger = Ledger.create(tmp_path / f"ledger{each}", 20.0, 1e-6, "year")
        found = audit_trace(tmp_path / f"t{each}", claim=audit.claim)
        ledgers.append(ledger.charge([found], date(2026, 1, 1)).windows)
    assert noise[0] == noise[1]
    assert ledgers[0] == ledgers[1]
    page = audit_trace(tmp_path / "t", claim=read_claim(tmp_path / "claim.toml")).page()
    assert start.strip(" .") in page


def test_joined_ids_have_the_noise_of_a_scenario(small, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("device,round\na,0\nA,2\nb,1\n")
    log = import_log(tmp_path / "log.csv", "device", "round", 3, tmp_path / "t")
    scenario = small("training.enabled=true", "privacy.mechanism={kind='tree'}")
    audit = audit_trace(log, scenario=scenario)
    assert audit.joined is not None
    own, joined = (each.mechanisms[0].epsilon or 0.0 for each in (audit, audit.joined))
    assert joined > own > 0
    assert f"epsilon is {up(joined)}, not {up(own)}; " in audit.verdict
