"""A list and a rule that are in force count until the last planned round, unless the trace broke them."""

from pathlib import Path

import numpy as np
import pytest

from fedray import import_log
from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim
from fedray.audit.live.in_force import read_in_force
from fedray.audit.live.outlook import State, look_ahead
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
    begun.write_hold(tmp_path / "hold.csv")
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
    # The list of the next night leaves out devices that may come in round 14 again.
    kept.write_hold(tmp_path / "next.csv")
    again = read_hold(tmp_path / "next.csv")
    waits = {name: first for name, first in numbers.items() if first > 100 + step * 14}
    assert dict(zip(again.device_ids, again.first, strict=True)) == waits
    assert 0 < len(waits) < len(numbers)


def test_a_list_that_the_log_broke_ensures_nothing(tmp_path: Path) -> None:
    begun = look_ahead(audit_trace(log_of(tmp_path / "a", PATTERNS), claim=CLAIM), PLANNED)
    begun.write_hold(tmp_path / "hold.csv")
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
    begun.write_hold(tmp_path / "hold.csv")
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
