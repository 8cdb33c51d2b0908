"""Synthetic published runs with known parameters, and what intervals recover of them.

python tests/scenarios/recovered.py [SETS]    simulates the surfaces (198 small runs) and prints
                                              the coverage of the intervals; 200 sets by default
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedray.scenarios.gboard_fits import (
    PACES,
    SHARES,
    TIMERS,
    WHOLE,
    Point,
    evidence_of,
    intervals,
    simulated_surfaces,
)
from fedray.scenarios.gboard_rows import PublishedRun, later_runs, published_runs
from fedray.scenarios.reproduction import Request
from fedray.studies.reach_and_pace import REPEAT_SD, TASK_SD, Surface


@dataclass
class Recovered:
    """Intervals of one parameter over locales and sets."""

    intervals: int = 0
    """Number of intervals."""
    covered: int = 0
    """Number of intervals that contain the value that made the runs."""
    not_identifiable: int = 0
    """Number of intervals that have an open end for runs without scatter too."""
    called_so: int = 0
    """Number of these that have one for the runs with scatter."""


def recovery(
    runs: Mapping[str, PublishedRun], surfaces: Mapping[str, Surface], sets: int
) -> dict[str, Recovered]:
    """Draws parameters of each locale from the grid, makes runs with scatter, and counts what the
    intervals of reach, pace and timer recover."""
    draws = np.random.default_rng(2024)
    counts = {name: Recovered() for name in ("reach", "pace", "timer")}
    for _ in range(sets):
        for locale in dict.fromkeys(each.locale for each in runs.values()):
            places = draws.integers((0, 0, 0), (WHOLE + 1, len(PACES), len(TIMERS)))
            truth = Point(*map(int, places))
            values = {
                "reach": SHARES[truth.share],
                "pace": PACES[truth.pace],
                "timer": TIMERS[truth.timer],
            }
            own = {name: run for name, run in runs.items() if run.locale == locale}
            sharp, drawn = (
                intervals(
                    [
                        evidence_of(
                            [synthetic(run, truth, surfaces[name], scatter)], surfaces[name]
                        )
                        for name, run in own.items()
                    ]
                )
                for scatter in (None, draws)
            )
            for exact, each in zip(sharp, drawn, strict=True):
                count, value = counts[each.parameter], values[each.parameter]
                is_open = None in (exact.low, exact.high)
                count.intervals += 1
                # The grid's values are exact, but for rounding in their powers.
                count.covered += (each.low or 0.0) <= value <= (each.high or math.inf)
                count.not_identifiable += is_open
                count.called_so += is_open and None in (each.low, each.high)
    return counts


def synthetic(
    run: PublishedRun, truth: Point, surface: Surface, draws: np.random.Generator | None
) -> PublishedRun:
    """Returns a run with the min-sep and k of a point, with scatter if there is a generator."""
    sd = math.hypot(TASK_SD, REPEAT_SD)
    gap, length = (0.0, 0.0) if draws is None else draws.normal(0.0, sd, 2)
    min_sep = round(math.exp(truth.of(run, surface.log_min_seps) + gap))
    hours = 24.0 * math.exp(truth.of(run, surface.log_days) + length)
    k = 1 if min_sep >= run.rounds else max(2, math.ceil(hours / truth.timer_hours(run)))
    return replace(run, rounds_between=max(1, min_sep) - 1, max_participations=k)


if __name__ == "__main__":
    sets = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    published = [*published_runs(), *later_runs()]
    found = recovery(
        {run.configuration: run for run in reversed(published)},
        simulated_surfaces(published, Request(on_progress=print), 0.01),
        sets,
    )
    for name, count in found.items():
        print(
            f"{name}: {count.covered} of {count.intervals} intervals contain the truth "
            f"({count.covered / count.intervals:.1%}); not identifiable {count.not_identifiable}, "
            f"called so {count.called_so}"
        )
