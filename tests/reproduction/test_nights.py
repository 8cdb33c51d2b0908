"""The README's picture of nights: a claim that is off its estimate, and kept by the advised change."""

from pathlib import Path

import pytest
from nights import ADOPTED, nights_of


@pytest.mark.slow
def test_the_advised_change_keeps_the_claim_from_the_next_night_on(tmp_path: Path) -> None:
    small = "population.devices=6000", "rounds.report_goal=50"
    found = nights_of(tmp_path, ADOPTED + 2, *small)
    states = [each.state.value for each in found.nights]
    assert states == ["in danger"] * ADOPTED + ["kept"] * 2
    assert all(each.spent.epsilon <= each.forward.epsilon for each in found.nights)
    assert all(each.forward.epsilon <= each.claimed.epsilon for each in found.nights[ADOPTED:])
    assert [each.name for each in found.figures()].count("nights") == 1
