"""`fedray fit-min-sep`: fit reach or check-in rate to an observed min-sep."""

import itertools
from pathlib import Path
from typing import Any

from fedray.base.errors import InputError
from fedray.base.part_done import PartDone
from fedray.commands.frame.output import print_line, print_result
from fedray.commands.frame.placing import placement_of
from fedray.commands.frame.progress import progress_line

KEYS = {"reach": "population.reach", "checkins": "rounds.max_checkins_per_hour"}
"""Keys that can be fitted, by the value of `--vary`."""


def fit_min_sep(
    scenario: Path | None = None,
    *,
    min_sep: int,
    vary: str = "reach",
    scale: float = 0.1,
    overrides: list[str] | None = None,
    place: list[str] | None = None,
    as_json: bool = False,
) -> None:
    """Fit the reach of a population, or its check-in rate, to an observed min-sep.

    Publications that count the M rounds between two participations of a device observe the min-sep
    M + 1. Without SCENARIO, --set must give population.devices, participation.timer_hours and
    rounds.count; rounds.report_goal is then 6500, as published. A scale of 0.1 is ten times as fast
    as 1, and one or two per cent off.

    Example: fedray fit-min-sep --min-sep 207 --set population.devices=3240000
    --set participation.timer_hours=48 --set rounds.count=1170

    Args:
        min_sep (B): observed min-sep: least difference of two rounds of a device
        vary (reach|checkins): key to fit
        scale (S): share of population and report goal to simulate
    """
    from fedray.studies.fit import MOST_RUNS, scenario_to_fit
    from fedray.studies.fit import fit_min_sep as fit

    # Short words stand for the only two keys that make min-sep grow.
    if vary not in KEYS:
        raise InputError.of("vary", vary, f"is not one of {', '.join(KEYS)}")
    value = scenario_to_fit(scenario, overrides or ())
    with progress_line(f"fitting {vary}") as show:
        numbers = itertools.count(1)

        def show_run(run: Any) -> None:
            text = f"{run.value:g} gives min-sep {run.min_sep_text}"
            # The search may need fewer runs, so the time left is an upper bound.
            show(PartDone(text, next(numbers), MOST_RUNS, is_least=True))

        where = placement_of(place) if place else None
        found = fit(value, min_sep, KEYS[vary], scale, placement=where, on_run=show_run)
    print_result(found, as_json, scale=scale)
    if not as_json:
        error = f"{100 * found.relative_error:+.1f} %"
        best = f"{found.key}={found.best.value:g}  gives min-sep {found.best.min_sep}"
        print_line(f"{best} for {min_sep} ({error})")
