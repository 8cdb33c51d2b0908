"""Times left follow the recent pace."""

import pytest

from fedray.base.pace import Pace

RECORDED = [
    (5.68, 1),
    (6.69, 29),
    (7.69, 54),
    (8.73, 88),
    (9.75, 116),
    (10.75, 139),
    (11.75, 163),
    (12.83, 190),
    (13.86, 207),
    (14.91, 224),
    (15.94, 248),
    (16.98, 286),
    (17.98, 324),
    (19.02, 357),
    (20.06, 392),
    (21.09, 435),
    (22.09, 448),
    (23.09, 483),
    (24.14, 548),
    (25.14, 613),
    (26.15, 672),
    (27.15, 722),
    (28.15, 770),
    (29.15, 837),
    (30.16, 890),
    (31.16, 950),
    (32.17, 1015),
    (33.17, 1089),
    (34.19, 1141),
    (35.19, 1177),
    (36.2, 1219),
    (37.21, 1269),
    (38.24, 1293),
    (39.29, 1310),
    (40.33, 1321),
    (41.44, 1337),
    (42.46, 1351),
    (43.48, 1380),
    (44.48, 1397),
    (45.48, 1434),
    (46.56, 1501),
    (47.57, 1526),
    (48.57, 1568),
    (49.58, 1609),
    (50.59, 1648),
    (51.61, 1685),
    (52.64, 1723),
    (53.66, 1770),
    (54.66, 1800),
    (55.67, 1840),
    (56.68, 1874),
    (57.75, 1892),
    (58.76, 1926),
    (59.77, 1958),
    (60.77, 1985),
    (61.84, 2021),
    (62.89, 2062),
    (63.89, 2127),
    (65.01, 2153),
    (66.04, 2192),
    (67.04, 2214),
    (68.08, 2257),
    (69.09, 2290),
    (70.09, 2327),
    (71.11, 2362),
    (72.17, 2399),
    (73.17, 2469),
]
"""Seconds and trained rounds of 2,500, about a second apart, of a run of scenarios/small.toml."""


def estimates(reports: list[tuple[float, int]], count: int) -> list[float]:
    pace = Pace()
    found = [pace.seconds_left(now, done, count) for now, done in reports]
    return [each for each in found if each is not None]


def rising(values: list[float]) -> int:
    """The longest stretch of estimates of which each is above the one before."""
    longest = present = 0
    for before, after in zip(values, values[1:], strict=False):
        present = present + 1 if after > before else 0
        longest = max(longest, present)
    return longest


def test_the_time_left_of_a_recorded_run_does_not_rise_steadily() -> None:
    found = estimates(RECORDED, 2500)
    assert len(found) == len(RECORDED) - 1
    assert rising(found) <= 5
    assert found[-1] < 3.0


def test_after_a_lasting_change_of_pace_the_estimate_falls_again_while_a_mean_rises_on() -> None:
    """Ten rounds a second for a minute, then one a second; the mean is what was shown before."""
    reports = [(float(t), 10 * t if t <= 60 else 600 + t - 60) for t in range(400)]
    mean = [(2000 - done) * now / done for now, done in reports[1:]]
    found = estimates(reports, 2000)
    assert rising(mean) > 200
    assert rising(found) <= 100
    assert found[-1] == pytest.approx(2000 - reports[-1][1], rel=0.01)


def test_a_window_without_progress_reaches_back_to_the_last_one() -> None:
    found = estimates([(0.0, 5), (10.0, 10), (500.0, 10), (510.0, 11)], 20)
    assert found[1] == pytest.approx(10 * 500.0 / 5)
