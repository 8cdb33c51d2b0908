"""A list and a rule that are in force count until the last planned round, unless the trace broke them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedray import import_log
from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim
from fedray.audit.live.in_force import RulesInForce, read_in_force
from fedray.audit.live.outlook import Outlook, State, look_ahead
from fedray.base.errors import InputError
from fedray.mechanisms.registry import Identity
from fedray.scenario.hold import read_hold

PATTERNS = [[0, 4, 8], [1, 5], [2], [3, 7], [6], [9, 5]]
CLAIM = Claim(mechanism=Identity(), noise_multiplier=3.0, rho=5 / 18)
PLANNED, SEPARATION = 34, 5


def log_of(folder: Path, patterns: list[list[int]], step: int = 1, ids: str = "d"):
    """A log whose round i has the number 100 + step i, and no times."""
    folder.mkdir()
    rows = "".join(
        f"{ids}{device},{100 + step * each}\n"
        for device, pattern in enumerate(patterns)
        for each in pattern
    )
    (folder / "log.csv").write_text(f"d,r\n{rows}")
    return import_log(folder / "log.csv", "d", "r", None, folder / "t", renumber=True)


def listed(outlook: Outlook) -> Outlook:
    """The outlook with its first list as the only change."""
    return replace(outlook, changes=tuple(e for e in outlook.changes if e.first is not None)[:1])


def in_force(folder: Path, number: int):
    text = (
        f'from_round = {number}\nhold = "hold.csv"\nlater = {{ round_separation = {SEPARATION} }}\n'
    )
    (folder / "force.toml").write_text(text)
    return read_in_force(folder / "force.toml")


@pytest.mark.parametrize(("step", "ids"), [(1, "d"), (3, "d"), (1, "7")])
def test_a_log_that_continues_with_list_and_rule_is_kept(
    tmp_path: Path, step: int, ids: str
) -> None:
    begun = look_ahead(
        audit_trace(log_of(tmp_path / "a", PATTERNS, step, ids), claim=CLAIM), PLANNED
    )
    assert begun.state is State.IN_DANGER
    listed(begun).write_hold(tmp_path / "hold.csv")
    hold = read_hold(tmp_path / "hold.csv")
    numbers = dict(zip(hold.device_ids, hold.first, strict=True))
    # Device 0 waits until round 24.
    assert numbers[f"{ids}0"] == 100 + step * 24
    given = in_force(tmp_path, 100 + 9 * step + 1)
    # One more day, with devices that are not on the list.
    later = [*PATTERNS, [10], [11], [12], [13]]
    audit = audit_trace(log_of(tmp_path / "b", later, step, ids), claim=CLAIM)
    kept = look_ahead(audit, PLANNED, in_force=given)
    assert kept.state is State.KEPT
    assert look_ahead(audit, PLANNED).state is State.IN_DANGER
    # The list of the next night leaves out devices that may come in the next round, whatever its
    # number.
    kept.write_hold(tmp_path / "next.csv")
    again = read_hold(tmp_path / "next.csv")
    waits = {name: first for name, first in numbers.items() if first > 100 + step * 13 + 1}
    assert dict(zip(again.device_ids, again.first, strict=True)) == waits
    assert len(waits) > 0
    assert (len(waits) < len(numbers)) is (step == 1)


def test_hours_by_which_times_of_a_round_differ_are_subtracted_and_named(tmp_path: Path) -> None:
    """Rounds an hour apart, of which one has check-ins two hours apart: a device may come late in one round and early in the next."""
    claim = Claim(mechanism=Identity(), noise_multiplier=3.0, rho=5 / 18)
    rows = [(f"d{each}", 100 + each, float(each)) for each in range(4)]
    given = RulesInForce(timer_hours=6.0)
    whole = look_ahead(audit_of_times(tmp_path, rows, claim), 30, 1.0, given)
    assert whole.rows[1].min_sep == 6
    assert not any("Times within" in each for each in whole.notes)
    # The check-in two hours before belongs to a device that came once.
    (tmp_path / "b").mkdir()
    audit = audit_of_times(tmp_path / "b", [*rows, ("e", 103, 1.0)], claim)
    spread = look_ahead(audit, 30, 1.0, given)
    (note,) = [each for each in spread.notes if "Times within" in each]
    assert "differ by up to 2.01 h" in note
    assert "(6 h are 4 rounds at the stated pace, and would be 6 without)" in note
    # Device e of round 3 came two hours early, and may be two hours late in round 5.
    assert "less still after a released round" in note
    assert spread.rows[1].min_sep == 2


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ("d0 d1", None),
        ("d0 x", "the list in force names 1 device that the log does not have: 'x'"),
        ("d0 w x y z", "names 4 devices that the log does not have: 'w', 'x', 'y', ..."),
        (
            "0 1",
            "no device of the list in force is in the log, which probably has other ids: '0', '1'",
        ),
    ],
)
def test_devices_of_a_list_that_the_log_does_not_have_are_named(
    tmp_path: Path, monkeypatch, fedray_command, ids: str, said: str | None
) -> None:
    log_of(tmp_path / "a", PATTERNS)
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{each},120\n" for each in ids.split())
    in_force_since(tmp_path, 110, f"device_id,first_round\n{rows}")
    Path("claim.toml").write_text('mechanism = "identity"\nnoise_multiplier = 3.0\nrho = 9\n')
    options = ("--claim", "claim.toml", "--until", "34", "--in-force", "force.toml", "--json")
    code, _, err = fedray_command("audit", str(Path("a", "t")), *options)
    assert code == 0
    assert err == "" if said is None else said in err


@pytest.mark.parametrize("step", [1, 3])
def test_rounds_are_named_by_the_numbers_of_the_log(tmp_path: Path, step: int) -> None:
    audit = audit_trace(log_of(tmp_path / "a", PATTERNS, step), claim=CLAIM)
    outlook = look_ahead(audit, PLANNED)
    rows, changes, *_ = outlook.tables()
    # Without a rule, device 0 of rounds 0, 4 and 8 may come in every round from 10 on.
    shown = [str(100 + step * each) for each in (0, 4, 8, *range(10, 18))]
    assert outlook.past == (0, 4, 8)
    note = next(each for each in rows.notes if each.startswith("Forward is reached"))
    assert f"in rounds {', '.join(shown[:3])} so far" in note
    assert f"takes part in rounds {', '.join(shown[3:])}, ... (24 in all)" in note
    (named,) = [each for each in rows.notes if "by the log's numbers" in each]
    assert ("3 apart" in named) is (step == 3)
    of = changes.columns.index("noticed in round")
    for change, row in zip(outlook.changes, changes.rows, strict=True):
        noticed = change.first_noticed
        assert row[of] == ("-" if noticed is None else str(100 + step * noticed))
    (last,) = [each for each in outlook.changes if each.last_round is not None]
    assert last.last_round is not None
    number = 100 + step * (last.last_round - 1)
    assert f"Stop after {last.last_round} rounds (round {number})" in last.text
    lost = look_ahead(
        audit_trace(audit.trace, claim=CLAIM.model_copy(update={"min_sep": 5})), PLANNED
    )
    assert f"min_sep 5 was lost in round {100 + step * 4}: it is 4 now" in lost.headline


def test_a_list_that_the_log_broke_ensures_nothing(tmp_path: Path) -> None:
    begun = look_ahead(audit_trace(log_of(tmp_path / "a", PATTERNS), claim=CLAIM), PLANNED)
    listed(begun).write_hold(tmp_path / "hold.csv")
    later = [[0, 4, 8, 13], *PATTERNS[1:], [10], [11], [12]]
    audit = audit_trace(log_of(tmp_path / "b", later), claim=CLAIM)
    broken = look_ahead(audit, PLANNED, in_force=in_force(tmp_path, 110))
    assert any("1 device broke it, in 1 participation" in each for each in broken.notes)
    assert broken.state is State.IN_DANGER
    # The rule is broken too if a device comes back after four rounds.
    (again,) = [[6, 10]]
    closer = audit_trace(log_of(tmp_path / "c", [*PATTERNS[:4], again, PATTERNS[5]]), claim=CLAIM)
    found = look_ahead(closer, PLANNED, in_force=in_force(tmp_path, 110))
    assert any("broke a separation of 5 rounds" in each for each in found.notes)


def test_rules_of_a_simulated_trace_are_those_of_its_scenario(
    small, trace_of, tmp_path: Path, fedray_command
) -> None:
    given = (
        "privacy.noise_multiplier=3.0",
        'privacy.mechanism={kind = "identity"}',
        "participation.timer_hours=0",
        "participation.round_separation=4",
    )
    begun = look_ahead(audit_trace(trace_of(PATTERNS, 10, small(*given)), claim=CLAIM), PLANNED)
    listed(begun).write_hold(tmp_path / "hold.csv")
    held = small(
        *given,
        f"participation.hold={tmp_path / 'hold.csv'}",
        "participation.from_round=10",
        f"participation.later={{round_separation = {SEPARATION}}}",
    )
    later = [*PATTERNS, [10], [11], [12], [13]]
    audit = audit_trace(trace_of(later, 14, held), claim=CLAIM)
    kept = look_ahead(audit, PLANNED)
    assert kept.state is State.KEPT
    assert any("that must wait, in force" in each for each in kept.rules)
    with pytest.raises(InputError, match="are in its scenario"):
        look_ahead(audit, PLANNED, in_force=in_force(tmp_path, 10))
    claim = tmp_path / "claim.toml"
    claim.write_text('mechanism = "identity"\nnoise_multiplier = 3.0\nrho = 0.27778\n')
    code, out, _ = fedray_command(
        "audit", str(audit.path), "--claim", str(claim), "--until", str(PLANNED)
    )
    assert (code, "The claim is kept" in out) == (0, True)
    broken = [[0, 4, 8, 13], *PATTERNS[1:], [10], [11], [12]]
    found = look_ahead(audit_trace(trace_of(broken, 14, held), claim=CLAIM), PLANNED)
    assert found.state is State.IN_DANGER
    assert any("ensures nothing" in each for each in found.notes)
    assert np.count_nonzero(found.waiting.first) == 0


def in_force_since(folder: Path, number: int, rows: str = "", later: str = ""):
    """Rules in force of a list with these rows, the names of its columns first."""
    text = f"from_round = {number}\n"
    if rows:
        (folder / "listed.csv").write_text(rows)
        text += 'hold = "listed.csv"\n'
    (folder / "force.toml").write_text(text + (f"later = {later}\n" if later else ""))
    return read_in_force(folder / "force.toml")


HOUR = 3600
MIDNIGHT = 1_767_225_600
"""2026-01-01, Unix seconds."""


def audit_of_times(folder: Path, rows: Sequence[tuple[str, int, float]], claim: Claim):
    """The audit of a log of (device, round, hours since midnight)."""
    (folder / "times.csv").write_text(
        "d,r,t\n" + "".join(f"{d},{r},{MIDNIGHT + int(h * HOUR)}\n" for d, r, h in rows)
    )
    log = import_log(
        folder / "times.csv", "d", "r", None, folder / "timed", renumber=True, time_column="t"
    )
    return audit_trace(log, claim=claim)


# Rounds last for half a day, so devices that were in two of them had less time than the rounds.
LONG_ROUNDS = [("a", 0, 0), ("b", 0, 12), ("b", 1, 14), ("c", 1, 26), ("d", 2, 40), ("e", 2, 52)]
TWICE = Claim(mechanism=Identity(), noise_multiplier=3.0, rho=2 / 18)


def test_a_timer_counts_by_the_times_of_each_device(tmp_path: Path) -> None:
    # Round 1 ended 26 h after round 0 began, but b waited for 2 h.
    audit = audit_of_times(tmp_path, LONG_ROUNDS, TWICE)
    given = in_force_since(tmp_path, 0, later="{ timer_hours = 6 }")
    found = look_ahead(audit, 4, 13.0, given)
    assert any("broke a timer of 6 h" in each for each in found.notes)
    assert not any("timer" in each for each in found.rules)
    # Kept since round 2, and with a shorter one at all times.
    for number, hours in ((2, 6), (0, 1)):
        given = in_force_since(tmp_path, number, later=f"{{ timer_hours = {hours} }}")
        assert f"a timer of {hours} h" in look_ahead(audit, 4, 13.0, given).rules


@pytest.mark.parametrize(("hours", "is_broken"), [(15, True), (13, False)])
def test_a_list_by_time_counts_by_the_times_of_each_device(
    tmp_path: Path, hours: int, is_broken: bool
) -> None:
    # Round 1 was still open at hour 15, but b took part at hour 14.
    audit = audit_of_times(tmp_path, LONG_ROUNDS, TWICE)
    rows = f"device_id,first_time\nb,{MIDNIGHT + hours * HOUR}\n"
    found = look_ahead(audit, 4, 13.0, in_force_since(tmp_path, 1, rows))
    assert any("1 device broke it, in 1 participation" in each for each in found.notes) is is_broken


def test_without_times_of_devices_rules_in_hours_ensure_nothing(tmp_path: Path) -> None:
    audit = audit_trace(log_of(tmp_path / "a", PATTERNS), claim=CLAIM)
    rows = f"device_id,first_time\nd0,{MIDNIGHT}\n"
    given = in_force_since(tmp_path, 100, rows, "{ timer_hours = 6 }")
    found = look_ahead(audit, PLANNED, in_force=given)
    assert sum("cannot be checked" in each for each in found.notes) == 2
    assert not any("in force" in each for each in found.rules)


def test_a_written_list_keeps_the_times_of_the_list_in_force(tmp_path: Path) -> None:
    audit = audit_of_times(tmp_path, LONG_ROUNDS, Claim(**{**dict(TWICE), "rho": 4 / 18}))
    until = MIDNIGHT + 500 * HOUR
    rows = f"device_id,first_time\nb,{until}\nz,{until + 1}\na,{MIDNIGHT + HOUR}\nc,\n"
    given = in_force_since(tmp_path, 2, rows)
    # With a pace and without, a number of rounds might let b come earlier.
    for pace in (None, 13.0):
        kept = look_ahead(audit, 4, pace, given)
        assert kept.state is State.KEPT
        assert kept.write_hold(tmp_path / "next.csv") == 3
        again = read_hold(tmp_path / "next.csv")
        assert again.by == "first_time"
        assert dict(zip(again.device_ids, again.first, strict=True)) == {
            "b": until,
            "z": until + 1,
            "c": np.inf,
        }


def test_rounds_are_not_mixed_with_the_times_of_a_list_in_force(tmp_path: Path) -> None:
    rows = f"device_id,first_time\nb,{MIDNIGHT + 500 * HOUR}\n"
    audit = audit_of_times(tmp_path, LONG_ROUNDS, Claim(**{**dict(TWICE), "min_sep": 3}))
    found = look_ahead(audit, 30, in_force=in_force_since(tmp_path, 2, rows))
    added = np.full(found.waiting.first.size, 20)
    given = audit.trace, audit.patterns, 30, added
    with pytest.raises(InputError, match="is not that of the list in force, whose devices wait by"):
        found.waiting.hold(*given, "first_round")
    with pytest.raises(InputError, match="whose times of participation are unknown"):
        found.waiting.hold(*given)
    # A device that never comes back has an empty value in either.
    added[:] = 30
    assert np.isinf(found.waiting.hold(*given).first).all()


def test_a_list_ahead_is_written_but_does_not_count(tmp_path: Path) -> None:
    audit = audit_trace(log_of(tmp_path / "a", PATTERNS), claim=CLAIM)
    without = look_ahead(audit, PLANNED)
    rows = "device_id,first_round\nnew,150\nd0,\nd1,120\n"
    ahead = look_ahead(audit, PLANNED, in_force=in_force_since(tmp_path, 118, rows))
    assert ahead.rows == without.rows
    assert any("from round 118 do not count" in each for each in ahead.notes)
    listed(ahead).write_hold(tmp_path / "both.csv")
    listed(without).write_hold(tmp_path / "new.csv")
    both, new = (read_hold(tmp_path / name) for name in ("both.csv", "new.csv"))
    waits = dict(zip(new.device_ids, new.first, strict=True))
    for name, first in (("new", 150.0), ("d0", np.inf), ("d1", 120.0)):
        waits[name] = max(first, waits.get(name, 0.0))
    assert dict(zip(both.device_ids, both.first, strict=True)) == waits


def test_a_list_ahead_of_a_simulated_trace_is_written(small, trace_of, tmp_path: Path) -> None:
    (tmp_path / "hold.csv").write_text("device_id,first_round\n3,30\n77,25\n")
    given = small(
        "privacy.noise_multiplier=3.0",
        'privacy.mechanism={kind = "identity"}',
        f"participation.hold={tmp_path / 'hold.csv'}",
        "participation.from_round=12",
    )
    claim = Claim(mechanism=Identity(), noise_multiplier=3.0, rho=100 / 18)
    found = look_ahead(audit_trace(trace_of(PATTERNS, 10, given), claim=claim), PLANNED)
    assert any("begins with round 12 and is left out" in each for each in found.notes)
    assert found.write_hold(tmp_path / "next.csv") == 2
    again = read_hold(tmp_path / "next.csv")
    assert dict(zip(again.device_ids, again.first, strict=True)) == {"3": 30, "77": 25}


def test_a_list_that_cannot_be_read_is_named_in_force(tmp_path: Path) -> None:
    audit = audit_trace(log_of(tmp_path / "a", PATTERNS), claim=CLAIM)
    repeated = in_force_since(tmp_path, 100, "device_id,first_round,first_round\nd0,120,121\n")
    with pytest.raises(InputError, match="has the columns") as found:
        look_ahead(audit, PLANNED, in_force=repeated)
    assert found.value.argument == "in_force"
    (tmp_path / "listed.csv").unlink()
    with pytest.raises(InputError, match="cannot be read") as found:
        look_ahead(audit, PLANNED, in_force=repeated)
    assert found.value.argument == "in_force"


@pytest.mark.parametrize("step", [1, 3])
def test_the_step_of_round_numbers_is_an_assumption_of_a_list_in_force(
    tmp_path: Path, step: int
) -> None:
    audit = audit_trace(log_of(tmp_path / "a", PATTERNS, step), claim=CLAIM)
    given = in_force_since(tmp_path, 100, "device_id,first_round\nnew,150\n")
    found = look_ahead(audit, PLANNED, in_force=given)
    assert any(f"grow by at most {step} from one round" in each for each in found.notes)
    assert not any("grow by at most" in each for each in look_ahead(audit, PLANNED).notes)
