"""Coverage of forecasts: simulated deployments of five kinds, cut at a quarter and a half.

python tests/benchmarks/bench_forecast.py --deployments 50 --first-seed 1000
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.studies.forecast.devices import Known
from fedray.studies.forecast.forecast import CUTS, Interval, continuations
from fedray.studies.forecast.history import History, history_of

# A server that is down for a third of each day from day 3 on.
_SLOW = [{"start_hours": 24.0 * day + 6.0, "hours": 8.0} for day in range(3, 360)]
_ZONES = [{"utc_offset_hours": -7.0, "share": 0.6}, {"utc_offset_hours": 8.0, "share": 0.4}]
KINDS = {
    "constant": ({}, {}, {}),
    "growing": ({"joins_per_day": 60.0}, {}, {}),
    "slow server": ({}, {"outages": _SLOW}, {}),
    "two zones": ({"time_zones": _ZONES}, {}, {}),
    "weekends": ({}, {}, {"weekend_factor": 0.45}),
}


def scenario_of(kind: str, seed: int) -> Scenario:
    """Returns a deployment of a kind: 3,200 to 8,000 devices, and rounds of which a quarter takes
    two weeks."""
    rng = np.random.default_rng(seed)
    population, rounds, availability = KINDS[kind]
    devices = int(rng.integers(8, 21)) * 400
    goal = int(rng.integers(16, 36))
    # The slowest pace that every population keeps, or as fast as devices come.
    minutes = float(rng.choice([120.0, 180.0, 240.0]))
    count = int(64 * 24 * 60 / minutes)
    return Scenario.from_tables(
        {
            "name": kind.replace(" ", "-"),
            "seed": seed,
            "population": {"devices": devices, **population},
            "participation": {"timer_hours": float(rng.choice([24.0, 48.0, 72.0]))},
            "rounds": {
                "count": count,
                "report_goal": goal,
                "min_minutes_between": minutes,
                **rounds,
            },
            "availability": {"model": "habit", **availability},
            "training": {"enabled": False},
        }
    )


def histories(seeds: range) -> Iterator[tuple[str, Scenario, History]]:
    """Yields the deployment of each seed with its whole history."""
    names = list(KINDS)
    for seed in seeds:
        kind = names[seed % len(names)]
        scenario = scenario_of(kind, seed)
        with TemporaryDirectory() as own:
            trace = simulate(scenario, Placement(1, "in-process"), Path(own) / "trace")
            yield kind, scenario, history_of(trace, scenario, None)


def main() -> None:
    """Prints the coverage of the intervals by kind and cut, and the median errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deployments", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=60, help="continuations of each forecast")
    parser.add_argument("--scenario", action="store_true", help="take the population as known")
    given = parser.parse_args()
    found: dict[tuple[str, float], list[tuple[bool, bool, float, float]]] = {}
    for kind, scenario, history in histories(
        range(given.first_seed, given.first_seed + given.deployments)
    ):
        known = Known.of(scenario) if given.scenario else None
        for cut in CUTS:
            row = judged(history, known, cut, given.seeds)
            found.setdefault((kind, cut), []).append(row)
            print(scenario.seed, kind, cut, row, file=sys.stderr, flush=True)
    print(f"{'kind':12} cut   runs  min-sep  k      error of min-sep and k (median, relative)")
    for (kind, cut), rows in sorted(found.items()):
        print(f"{kind:12} {cut:4}  {len(rows):4}  {text(rows)}")
    rows = [row for several in found.values() for row in several]
    print(f"{'all':12}       {len(rows):4}  {text(rows)}")


def judged(
    history: History, known: Known | None, cut: float, seeds: int
) -> tuple[bool, bool, float, float]:
    """Returns whether min-sep and k of the end are in their intervals, and the relative errors of
    the medians."""
    early = history.until(int(cut * history.rounds))
    _, paths = continuations(early, known, history.rounds, seeds)
    pairs = (
        (history.patterns.min_sep, [each.min_seps[-1] for each in paths]),
        (history.patterns.max_participations, [each.most[-1] for each in paths]),
    )
    intervals = [(true, Interval.of(np.array(values))) for true, values in pairs]
    inside = [interval.contains(true) for true, interval in intervals]
    errors = [interval.median / true - 1.0 for true, interval in intervals]
    return inside[0], inside[1], errors[0], errors[1]


def text(rows: list[tuple[bool, bool, float, float]]) -> str:
    """Returns the share of runs inside, and the median of the absolute errors."""
    min_sep, most, *errors = (np.array(each) for each in zip(*rows, strict=True))
    off = "  ".join(f"{np.median(np.abs(each)):6.1%}" for each in errors)
    return f"{min_sep.mean():6.1%}  {most.mean():6.1%}  {off}"


if __name__ == "__main__":
    main()
