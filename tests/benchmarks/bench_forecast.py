"""Coverage of forecasts: simulated deployments of five kinds, cut at a quarter and a half.

python tests/benchmarks/bench_forecast.py --deployments 50 --first-seed 1000
python tests/benchmarks/bench_forecast.py --gboard
"""

import argparse
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from fedray.audit.sensitivity import trace_sensitivity
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.scenarios.gboard_rows import published_runs
from fedray.studies.forecast.devices import Known
from fedray.studies.forecast.forecast import CUTS, SEEDS, Interval, continuations
from fedray.studies.forecast.history import History, history_of
from fedray.studies.forecast.privacy import Privacy
from fedray.trace.imported import open_trace

# A server that is down for a part of each day from day 3 on: by day if it sets the pace, and in the
# evening, when most devices come, if they do.
_DAY = [{"start_hours": 24.0 * day + 6.0, "hours": 8.0} for day in range(3, 360)]
_EVENING = [{"start_hours": 24.0 * day + 18.0, "hours": 6.0} for day in range(3, 360)]
_ZONES = [{"utc_offset_hours": -7.0, "share": 0.6}, {"utc_offset_hours": 8.0, "share": 0.4}]
KINDS = {
    "constant": ({}, {}),
    "growing": ({"joins_per_day": 60.0}, {}),
    "slow server": ({}, {}),
    "two zones": ({"time_zones": _ZONES}, {}),
    "weekends": ({}, {"weekend_factor": 0.45}),
}
GBOARD = ("nwp-en-GB", "nwp-pt-PT", "nwp-es-AR")
PACES = ("server", "devices")
COUNTS = {24.0: 1000, 48.0: 720, 72.0: 620}
"""Rounds at the pace of the devices by timer in hours; a quarter takes two weeks or more."""


def kind_of(seed: int) -> tuple[str, str]:
    """Returns the kind of a deployment, and what sets its pace."""
    return list(KINDS)[seed % len(KINDS)], PACES[seed // len(KINDS) % len(PACES)]


def scenario_of(seed: int) -> Scenario:
    """Returns a deployment of 3,200 to 8,000 devices, and rounds of which a quarter takes two
    weeks. Either the server sets a pace that every population keeps, or rounds are as quick as
    devices come, so that weekends, growth and lost hours change the pace."""
    rng = np.random.default_rng(seed)
    kind, pace = kind_of(seed)
    population, availability = KINDS[kind]
    devices = int(rng.integers(8, 21)) * 400
    goal = int(rng.integers(16, 36))
    minutes = float(rng.choice([120.0, 180.0, 240.0]))
    count = int(64 * 24 * 60 / minutes)
    timer = float(rng.choice([24.0, 48.0, 72.0]))
    outages = _DAY
    if pace == "devices":
        goal, minutes, count, outages = devices // 50, 20.0, COUNTS[timer], _EVENING
    return Scenario.from_tables(
        {
            "name": kind.replace(" ", "-"),
            "seed": seed,
            "population": {"devices": devices, **population},
            "participation": {"timer_hours": timer},
            "rounds": {
                "count": count,
                "report_goal": goal,
                "min_minutes_between": minutes,
                "outages": outages if kind == "slow server" else [],
            },
            "availability": {"model": "habit", **availability},
            "training": {"enabled": False},
        }
    )


def history(scenario: Scenario, traces: Path | None, name: str) -> History:
    """Returns the whole history of a deployment.

    Args:
        scenario: the deployment.
        traces: folder of kept traces; None to keep none.
        name: name of its trace there.
    """
    kept = None if traces is None else traces / name / "trace"
    if kept is not None and (kept / "run.json").exists():
        return history_of(open_trace(kept), scenario, None)
    with TemporaryDirectory() as own:
        path = Path(own) / "trace" if kept is None else kept
        trace = simulate(scenario, Placement(1, "in-process"), path)
        return history_of(trace, scenario, None)


class Row(NamedTuple):
    """A forecast of a deployment from its first rounds, beside what then happened."""

    seed: int
    """Seed of the deployment, which has its kind and pace."""
    cut: float
    """Share of the rounds that the forecast knew."""
    has_min_sep: bool
    """Whether min-sep of the end is in its interval."""
    has_most: bool
    """Whether k of the end is in its interval."""
    min_sep_error: float
    """Relative error of the median min-sep."""
    most_error: float
    """Relative error of the median k."""
    drift: str
    """Drift with the largest weight: "none", "trend" or "step", and "+ weekend"."""


def main() -> None:
    """Prints the coverage of the intervals by kind and cut, and the median errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deployments", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="continuations of each forecast")
    parser.add_argument("--scenario", action="store_true", help="take the population as known")
    parser.add_argument("--traces", type=Path, help="folder of traces to keep and to use again")
    parser.add_argument("--gboard", action="store_true", help="forecast rows of Gboard instead")
    given = parser.parse_args()
    if given.gboard:
        gboard(given.seeds, given.traces)
        return
    rows = []
    for seed in range(given.first_seed, given.first_seed + given.deployments):
        scenario = scenario_of(seed)
        whole = history(scenario, given.traces, str(seed))
        known = Known.of(scenario) if given.scenario else None
        for cut in CUTS:
            rows.append(judged(seed, whole, known, cut, given.seeds))
            print(*kind_of(seed), tuple(rows[-1]), file=sys.stderr, flush=True)
    print("| kind | pace of | cut | min-sep | k | error of min-sep | error of k | drift |")
    print("|---|---|---|---|---|---|---|---|")
    for pace in PACES:
        for kind in KINDS:
            for cut in CUTS:
                own = [
                    each for each in rows if (*kind_of(each.seed), each.cut) == (kind, pace, cut)
                ]
                if own:
                    print(f"| {kind} | {pace} | {100 * cut:g} % | {text(own)} |")
        own = [each for each in rows if kind_of(each.seed)[1] == pace]
        if own:
            print(f"| all | {pace} |  | {text(own)} |")
    print(f"| all |  |  | {text(rows)} |")


def judged(seed: int, whole: History, known: Known | None, cut: float, seeds: int) -> Row:
    """Returns the forecast of a deployment from a share of its rounds, judged by its end."""
    early = whole.until(int(cut * whole.rounds))
    (pace, _), paths = continuations(early, known, whole.rounds, seeds)
    patterns = whole.patterns
    pairs = (
        (patterns.min_sep, [each.min_seps[-1] for each in paths]),
        (patterns.max_participations, [each.most[-1] for each in paths]),
    )
    intervals = [(true, Interval.of(np.array(values))) for true, values in pairs]
    inside = [interval.contains(true) for true, interval in intervals]
    errors = [interval.median / true - 1.0 for true, interval in intervals]
    weight = Counter[str]()
    for each, share in zip(*pace.candidates, strict=True):
        weight["trend" if each.trend else "none" if each.step is None else "step"] += share
        weight["weekend" if each.weekend is not None else "no weekend"] += share
    drift = max(("none", "trend", "step"), key=lambda name: weight[name])
    drift += " + weekend" if weight["weekend"] > 0.5 else ""
    return Row(seed, cut, inside[0], inside[1], errors[0], errors[1], drift)


def gboard(seeds: int, traces: Path | None) -> None:
    """Prints forecasts of published runs of Gboard, simulated whole and cut at a quarter."""
    print("| run | devices | rounds | figure | at a quarter | forecast | 90 % interval | end |")
    print("|---|---|---|---|---|---|---|---|")
    for run in published_runs():
        if run.name not in GBOARD:
            continue
        scenario = run.scenario()
        whole = history(scenario, traces, run.name)
        n = whole.rounds
        early = whole.until(n // 4)
        privacy = Privacy.of(scenario, None, n)
        assert privacy is not None, "each row has a mechanism"
        _, paths = continuations(early, Known.of(scenario), n, seeds, privacy)
        at = privacy.promise.epsilon_at
        now, then = (trace_sensitivity(privacy.strategy, e.patterns).value for e in (early, whole))
        spent = [each.spent.sensitivity for each in paths if each.spent is not None]
        figures = (
            (
                "min-sep",
                early.patterns.min_sep,
                [e.min_seps[-1] for e in paths],
                whole.patterns.min_sep,
            ),
            (
                "k",
                early.patterns.max_participations,
                [e.most[-1] for e in paths],
                whole.patterns.max_participations,
            ),
            ("epsilon", at(now), [at(each) for each in spent], at(then)),
        )
        for name, first, values, last in figures:
            end = Interval.of(np.array(values, np.float64))
            print(
                f"| {run.name} | {run.population:,} | {n:,} | {name} | {first:.4g} | "
                f"{end.median:.4g} | {end.low:.4g} to {end.high:.4g} | {last:.4g} |",
                flush=True,
            )


def text(rows: list[Row]) -> str:
    """Returns how often the intervals were right, the median errors, and the drifts found."""
    counts = [sum(each.has_min_sep for each in rows), sum(each.has_most for each in rows)]
    inside = " | ".join(f"{each} of {len(rows)}" for each in counts)
    errors = [[abs(each.min_sep_error) for each in rows], [abs(each.most_error) for each in rows]]
    off = " | ".join(f"{100 * np.median(each):.1f} %" for each in errors)
    drifts = ", ".join(f"{n} {name}" for name, n in Counter(e.drift for e in rows).most_common())
    return f"{inside} | {off} | {drifts}"


if __name__ == "__main__":
    main()
