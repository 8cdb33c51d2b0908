"""The file of evidence has everything that breaks a claim, once, in order, for runs and for logs."""

from pathlib import Path

import numpy as np
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest

from fedray.audit.auditing import audit_trace
from fedray.audit.check import check_participation
from fedray.audit.claims import Claim, read_claim
from fedray.audit.evidence import write_evidence
from fedray.audit.findings import Verdict
from fedray.audit.participation import read_patterns
from fedray.audit.statements import statement
from fedray.audit.statements.statement import Subject
from fedray.base.errors import InputError
from fedray.imports.importer import import_log
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Tree

COLUMNS = "statement device first_round last_round first_log_round last_log_round found claimed"


def claim_of(**limits) -> Claim:
    return Claim(mechanism=Tree(), noise_multiplier=3.0, **limits)


def rows_of(file: Path) -> list[tuple]:
    if file.suffix == ".csv":
        # Ids of a run are digits, which would be read as numbers.
        text = arrow_csv.ConvertOptions(column_types={"device": "string"}, strings_can_be_null=True)
        table = arrow_csv.read_csv(file, convert_options=text)
    else:
        table = pq.read_table(file)
    assert " ".join(table.column_names) == COLUMNS
    return [tuple(row.values()) for row in table.to_pylist()]


@pytest.mark.parametrize("chunk", [1, 3, 1 << 18])
def test_every_breach_of_random_patterns_has_one_row(
    trace_of, tmp_path: Path, monkeypatch, chunk: int
) -> None:
    """Against a search by hand over all devices, in parts of any size."""
    monkeypatch.setattr(statement, "CHUNK", chunk)
    rng = np.random.default_rng(4)
    n, b, k, hours = 40, 4, 5, 0.2
    patterns = [np.flatnonzero(rng.random(n) < share).tolist() for share in rng.random(60) * 0.4]
    trace = trace_of(patterns, n)
    period = {"participations": 3, "hours": 0.15}
    claim = claim_of(
        rounds=35, min_sep=b, max_participations=k, timer_hours=hours, most_per_period=period
    )
    audit = audit_trace(trace, claim=claim)
    pairs = [
        (str(device), first, last)
        for device, pattern in enumerate(patterns)
        for first, last in zip(pattern, pattern[1:], strict=False)
    ]
    none = (None, None)
    expected: list[tuple] = [("rounds", None, 35, 39, *none, 40, 35)]
    expected += [
        ("min_sep", *each, *none, each[2] - each[1], b) for each in pairs if each[2] - each[1] < b
    ]
    expected += [
        ("max_participations", str(device), each[0], each[-1], *none, len(each), k)
        for device, each in enumerate(patterns)
        if len(each) > k
    ]
    # Rounds are 100 s apart in this trace; a device checks in 1 s after a start, reports after 50.
    waits = [(*each, 100.0 * (each[2] - each[1]) - 49.0) for each in pairs]
    expected += [
        ("timer_hours", *pair, *none, pytest.approx(wait / 3600), hours)
        for *pair, wait in waits
        if wait < 3600 * hours
    ]
    for device, each in enumerate(patterns):
        # Less than 540 s between the starts of rounds are at most five rounds.
        within = [[t for t in each if begin <= t <= begin + 5] for begin in each]
        fullest = max(within, key=len, default=[])
        if len(fullest) > 3:
            row = ("most_per_period", str(device), fullest[0], fullest[-1], *none, len(fullest))
            expected.append((*row, None))
    for name in ("e.csv", "e.parquet", "e.pq"):
        assert write_evidence(audit, tmp_path / name) == len(expected)
        assert rows_of(tmp_path / name) == expected
    counts = {each.statement: each.broken_by for each in audit.findings if each.broken_by}
    # What an audit counts is what the file has; the extra rounds are one row.
    rows = [row[0] for row in expected]
    assert {each: rows.count(each) for each in counts} == {**counts, "rounds": 1}


def test_a_log_s_devices_are_hashed_or_named_and_rounds_have_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("d,r\n=1+1,107\n=1+1,109\nb,107\nb,111\n")
    (tmp_path / "rounds.csv").write_text("r\n107\n109\n111\n")
    trace = import_log(
        tmp_path / "log.csv", "d", "r", None, tmp_path / "t", rounds_file=tmp_path / "rounds.csv"
    )
    audit = audit_trace(trace, claim=claim_of(min_sep=2))
    expected = ("min_sep", 0, 1, 107, 109, 1, 2)
    for name, shows, device in (
        ("hashed.csv", False, audit.findings[2].evidence[0].device),
        # A program for tables would compute a name that begins like a formula.
        ("named.csv", True, "'=1+1"),
        ("named.parquet", True, "=1+1"),
    ):
        assert write_evidence(audit, tmp_path / name, show_devices=shows) == 1
        statement, found, *rest = rows_of(tmp_path / name)[0]
        assert ((statement, *rest), found) == (expected, device)


def test_a_timer_of_a_log_is_held_against_its_times(tmp_path: Path) -> None:
    rows = "a,0,2025-01-01T00:00:00Z\na,1,2025-01-01T06:00:00Z\na,2,2025-01-02T06:00:00Z\n"
    (tmp_path / "log.csv").write_text("d,r,t\n" + rows)
    trace = import_log(tmp_path / "log.csv", "d", "r", 3, tmp_path / "t", time_column="t")
    audit = audit_trace(trace, claim=claim_of(timer_hours=24.0))
    write_evidence(audit, tmp_path / "e.csv", show_devices=True)
    assert rows_of(tmp_path / "e.csv") == [("timer_hours", "a", 0, 1, 0, 1, 6.0, 24.0)]


def test_a_period_of_a_log_is_counted_by_first_times_that_may_be_a_step_closer(
    tmp_path: Path,
) -> None:
    """Three participations from midnight to noon, of which whole hours are recorded."""
    hours = ("00", "06", "12")
    rows = "".join(f"a,{r},2025-01-01T{hour}\n" for r, hour in enumerate(hours))
    (tmp_path / "log.csv").write_text("d,r,t\n" + rows)
    log = ("d", "r", 3, tmp_path / "t")
    trace = import_log(tmp_path / "log.csv", *log, time_column="t", time_format="%Y-%m-%dT%H")
    step = trace.time_step / 3600
    for length, most in ((6.0 - step, 1), (6.1, 2), (12.0 - step, 2), (12.1, 3)):
        period = {"participations": 1, "hours": length}
        (finding,) = check_participation(
            claim_of(most_per_period=period), Subject(trace, read_patterns(trace), str)
        )
        assert finding.found == f"{most} within {length:g} h"
        assert finding.verdict is (Verdict.BROKEN if most > 1 else Verdict.HOLDS)


def test_a_wait_of_a_log_begins_at_the_last_row_of_a_contribution(tmp_path: Path) -> None:
    """A wait of 2 h; the first row of the contribution is 12 h before the next."""
    hour = "2025-01-01T{:02d}:00:00Z"
    rows = f"a,0,{hour.format(0)}\na,0,{hour.format(10)}\na,1,{hour.format(12)}\n"
    (tmp_path / "log.csv").write_text("d,r,t\n" + rows)
    log = tmp_path / "log.csv"
    trace = import_log(log, "d", "r", 2, tmp_path / "t", repeats="once", time_column="t")
    audit = audit_trace(trace, claim=claim_of(timer_hours=5.0))
    finding = audit.findings[-1]
    assert (finding.verdict, finding.found) == (Verdict.BROKEN, 2.0)
    assert audit.mechanisms[0].enforced.sensitivity is None
    write_evidence(audit, tmp_path / "e.csv", show_devices=True)
    assert rows_of(tmp_path / "e.csv") == [("timer_hours", "a", 0, 1, 0, 1, 2.0, 5.0)]


@pytest.mark.parametrize(
    ("hours", "b", "k"), [(6.0, 1, 8), (20.0, 4, 2), (24.0, 4, 2), (25.0, 5, 2)]
)
def test_a_timer_that_a_log_kept_bounds_min_sep_and_participations(
    tmp_path: Path, hours: float, b: int, k: int
) -> None:
    """Rounds are 6 h apart, each with a device of its own, so the bound is of the timer only."""
    rows = "".join(f"d{index},{index},{21600 * index}\n" for index in range(8))
    (tmp_path / "log.csv").write_text("d,r,t\n" + rows)
    form = {"time_column": "t", "time_unit": "seconds"}
    trace = import_log(tmp_path / "log.csv", "d", "r", 8, tmp_path / "t", **form)
    enforced = audit_trace(trace, claim=claim_of(timer_hours=hours)).mechanisms[0].enforced
    assert enforced.participation == MinSep(8, b, k)


@pytest.mark.slow
def test_timers_of_random_logs_are_judged_as_by_brute_force(tmp_path: Path) -> None:
    for seed in range(40):
        (tmp_path / str(seed)).mkdir()
        check_timer_of_random_log(tmp_path / str(seed), seed)


def check_timer_of_random_log(folder: Path, seed: int) -> bool:
    """Compares an audit of a random log, most of it repeated rows, with a search by hand over all
    pairs of rows. Returns whether the claimed timer holds."""
    rng = np.random.default_rng(seed)
    rounds = 8
    hours = float(rng.integers(1, 7))
    # Rounds begin 6 h apart, and a contribution is recorded for up to 2 h: both outcomes are common.
    rows = [("d0", 0, 0)]
    rows += [
        (f"d{device}", index, int(6 * 3600 * index + rng.integers(0, 7200)))
        for device in range(6)
        for index in np.flatnonzero(rng.random(rounds) < rng.choice([0.15, 0.6])).tolist()
        for _ in range(rng.integers(1, 4))
    ]
    order = rng.permutation(len(rows))
    rows = [rows[place] for place in order]
    text = "d,r,t\n" + "".join(f"{name},{index},{second}\n" for name, index, second in rows)
    (folder / "log.csv").write_text(text)
    (folder / "rounds.csv").write_text("r\n" + "".join(f"{index}\n" for index in range(rounds)))
    trace = import_log(
        folder / "log.csv", "d", "r", None, folder / "t", rounds_file=folder / "rounds.csv",
        repeats="once", time_column="t", time_unit="seconds",
    )  # fmt: skip
    audit = audit_trace(trace, claim=claim_of(timer_hours=hours))
    waits = {}
    for name, index, second in rows:
        for other_name, other_index, other_second in rows:
            if name == other_name and other_index > index:
                pair = (name, index, other_index)
                waits[pair] = min(other_second - second, waits.get(pair, 10**9))
    finding = next(each for each in audit.findings if each.statement == "timer_hours")
    least = min(waits.values(), default=None)
    assert finding.found == (None if least is None else least / 3600)
    holds = least is None or least >= 3600 * hours
    assert (finding.verdict is Verdict.HOLDS) == holds
    write_evidence(audit, folder / "e.csv", show_devices=True)
    broken = {(row[1], row[2], row[3]): row[6] for row in rows_of(folder / "e.csv")}
    short = {pair: wait / 3600 for pair, wait in waits.items() if wait < 3600 * hours}
    # The file has consecutive participations; here no other pair is close.
    assert broken == short
    limits = audit.mechanisms[0].enforced.participation
    assert (limits is not None) == holds
    if limits is not None:
        patterns = read_patterns(trace)
        assert patterns.min_sep is None or limits.min_sep <= patterns.min_sep
        assert limits.max_participations >= patterns.max_participations
    return holds


def test_a_claim_that_holds_has_a_file_without_rows(trace_of, tmp_path: Path) -> None:
    trace = trace_of([[0, 2], [1]], 3)
    audit = audit_trace(trace, claim=claim_of(min_sep=2))
    assert write_evidence(audit, tmp_path / "e.csv") == 0
    assert (tmp_path / "e.csv").read_text().replace('"', "").split("\n") == [
        COLUMNS.replace(" ", ","),
        "",
    ]


def test_what_cannot_be_written_is_refused_before_the_audit(trace_of, tmp_path: Path) -> None:
    trace = trace_of([[0, 1], [2]], 3)
    audit = audit_trace(trace, claim=claim_of(min_sep=2))
    (tmp_path / "there.csv").write_text("mine")
    bare, spent = audit_trace(trace), audit_trace(trace, claim=claim_of(rho=1e9))
    for given, name, says in (
        (audit, "e.txt", "suffix that is none of .parquet, .pq, .csv"),
        (audit, "there.csv", "exists already"),
        (audit, "none/e.csv", "cannot be written"),
        (bare, "e.csv", "there is no claim; give a claim with one of rounds, min_sep"),
        (spent, "e.csv", "the claim states nothing of it"),
    ):
        with pytest.raises(InputError, match="evidence=") as caught:
            write_evidence(given, tmp_path / name)
        assert says in str(caught.value)
    assert (tmp_path / "there.csv").read_text() == "mine"
    assert not (tmp_path / "e.csv").exists()


def test_the_command_writes_evidence(trace_of, tmp_path: Path, fedray_command) -> None:
    trace = trace_of([[2 * each, 2 * each + 1] for each in range(12)], 24)
    claim, file = tmp_path / "claim.toml", tmp_path / "e.csv"
    claim.write_text('mechanism = {kind = "tree"}\nnoise_multiplier = 3.0\nmin_sep = 2\n')
    audit = ("audit", str(trace.path), "--claim", str(claim))
    code, out, _ = fedray_command(*audit)
    assert code == 1
    assert "--evidence FILE.csv writes every participation that breaks the claim" in out
    code, out, _ = fedray_command(*audit, "--evidence", str(file))
    assert (code, len(rows_of(file))) == (1, 12)
    assert out.endswith(f"evidence {file}\n")
    assert "--evidence" not in out
    code, _, err = fedray_command(*audit, "--evidence", str(file))
    assert (code, "exists already" in err) == (2, True)


def test_figures_without_the_devices_that_break_a_claim_are_those_of_a_log_without_them(
    tmp_path: Path, fedray_command
) -> None:
    rows = [f"d{(10 * i + d) % 100},{i}" for i in range(40) for d in range(10)]
    logs = {"all": [*rows, *(f"bad,{i}" for i in range(0, 40, 2))], "others": rows}
    traces = {}
    for name, lines in logs.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(["device,round", *lines]) + "\n")
        traces[name] = import_log(tmp_path / f"{name}.csv", "device", "round", 40, tmp_path / name)
    content = 'mechanism = {kind = "tree"}\nnoise_multiplier = 4.0\nmin_sep = 10\n'
    (tmp_path / "claim.toml").write_text(content + "max_participations = 4\n")
    claim = read_claim(tmp_path / "claim.toml")
    found, others = (audit_trace(each, claim=claim) for each in traces.values())
    what_if, own = found.without_breakers, others.mechanisms[0].observed
    assert what_if is not None
    assert what_if.epsilon == own.epsilon
    assert own.epsilon is not None
    assert (found.mechanisms[0].epsilon or 0.0) > own.epsilon
    assert what_if.participation == own.participation
    assert not what_if.may_rest_on
    said = "Without 1 breaking device: min-sep 10 and at most 4 participations; the other devices spent epsilon"
    assert what_if.reason.startswith(said)
    assert "no guarantee of this run, whose models have their updates." in what_if.reason
    assert what_if.reason in found.page()
    # Not without breaking devices, nor if all break the claim.
    assert others.without_breakers is None
    strict = claim.model_copy(update={"min_sep": 11})
    assert audit_trace(traces["others"], claim=strict).without_breakers is None
    printed = [
        fedray_command("audit", str(each.path), "--claim", str(tmp_path / "claim.toml"))[1]
        for each in traces.values()
    ]
    assert ["what if" in each for each in printed] == [True, False]


def test_the_page_and_the_breakers_of_a_log_have_its_conditions_and_its_own_rounds(
    tmp_path: Path,
) -> None:
    (tmp_path / "log.csv").write_text("device,round,ok\na,3,1\na,5,1\nb,4,0\n")
    trace = import_log(
        *(tmp_path / "log.csv", "device", "round", None, tmp_path / "t"),
        renumber=True,
        where=["ok=1"],
    )
    claim = 'mechanism = {kind = "tree"}\nnoise_multiplier = 4.0\nmin_sep = 2\n'
    (tmp_path / "claim.toml").write_text(claim)
    audit = audit_trace(trace, claim=read_claim(tmp_path / "claim.toml"))
    (shown,) = audit.findings[-1].evidence
    assert (shown.rounds, shown.log_rounds) == ((0, 1), (3, 5))
    page = audit.page()
    assert "rows that do not meet the conditions of the import: 1" in page
    assert "3, 5 of the log" in page
