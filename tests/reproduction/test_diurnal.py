"""A day of the shipped en-US population against Bonawitz et al. 2019, section 9."""

import pytest
from diurnal import most_over_fewest, picture, simulated_day, tables


@pytest.mark.slow
def test_a_day_of_en_us_has_the_published_peak_and_drop_outs() -> None:
    """Published: about four times as many devices at the peak as at the trough, 6 to 10 % of the
    selected drop out, and more by day. At a hundredth of the size 163,000 devices are selected, so
    that the standard error of a share of 7 % is 0.06 points; the peak has the tolerance of
    test_availability.py."""
    day = simulated_day()
    assert 3.0 < most_over_fewest(day.eligible) < 5.0
    night = day.is_night
    assert 0.06 < day.dropped_in(night | ~night) < 0.10
    assert day.dropped_in(~night) > day.dropped_in(night) + 0.01
    published, hours = tables(day)
    assert {len(row) for row in published.rows} == {3}
    assert len(hours.rows) == 24
    assert [each.name for each in picture(day).series] == [
        "eligible devices",
        "rounds",
        "drop-outs",
    ]
