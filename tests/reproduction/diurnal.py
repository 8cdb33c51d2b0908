"""A day of a simulated population beside published ones: Bonawitz et al. 2019, section 9 (phones
mostly in the US), and FLASH (Yang et al. 2021, 723 phones).

python tests/reproduction/diurnal.py [PNG]    simulates the next-word model of en-US at a hundredth
                                              of its size (a few seconds), prints tables, and draws
"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from fedray.report.figure import Axis, Figure, Series
from fedray.report.files import drawn_figure
from fedray.report.table import Table
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario

SCENARIO = Path(__file__).parents[2] / "scenarios" / "gboard" / "nwp_en_us.toml"
HOUR, DAY = 3600.0, 86_400.0


@dataclass(frozen=True)
class Day:
    """Means by hour of the day in UTC, over the whole days of a run after the first."""

    eligible: np.ndarray
    """[24] devices eligible at once, as the simulator's census estimates them."""
    rounds: np.ndarray
    """[24] committed rounds in an hour."""
    dropped: np.ndarray
    """[24] share of the selected devices that dropped out or failed, by the hour of check-in."""
    selected: np.ndarray
    """[24] selected devices, over all days."""

    @property
    def is_night(self) -> np.ndarray:
        """[24] whether more devices than in the mean hour are eligible."""
        return self.eligible > self.eligible.mean()

    def dropped_in(self, hours: np.ndarray) -> float:
        """Share of the devices selected in some hours that dropped out or failed."""
        return float(np.average(self.dropped[hours], weights=self.selected[hours]))


def simulated_day(*overrides: str, scale: float = 0.01) -> Day:
    """Simulates the scenario, and counts by hour of the day."""
    scenario = Scenario.from_toml(SCENARIO, overrides).scaled(scale)
    with tempfile.TemporaryDirectory() as folder:
        trace = simulate(scenario, Placement(1, "in-process"), Path(folder) / "trace")
        parts = Path(folder) / "trace" / "participations"
        rows = pq.read_table(parts, columns=["checkin_time", "outcome"])
        rounds = {name: np.array(column) for name, column in trace.rounds.items()}
    # The first day begins with all timers open, and the last one is not whole.
    until = DAY * (rounds["closed"][-1] // DAY)

    def by_hour(times: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        inside = (times >= DAY) & (times < until)
        hours = (times[inside] // HOUR % 24).astype(np.int64)
        return np.bincount(hours, None if weights is None else weights[inside], minlength=24)

    started, checked_in = rounds["started"], rows["checkin_time"].to_numpy()
    is_lost = np.isin(rows["outcome"].to_pylist(), ["dropped", "failed"])
    selected = by_hour(checked_in)
    return Day(
        by_hour(started, rounds["eligible_estimate"].astype(np.float64)) / by_hour(started),
        by_hour(rounds["closed"][rounds["state"] == 0]) / (until / DAY - 1),
        by_hour(checked_in, is_lost.astype(np.float64)) / selected,
        selected,
    )


def most_over_fewest(by_hour: np.ndarray, hours: int = 1) -> float:
    """Ratio of the largest to the smallest mean over some hours, from 0:00 on."""
    means = by_hour.reshape(-1, hours).mean(axis=1)
    return float(means.max() / means.min())


def tables(day: Day) -> list[Table]:
    """Returns the published figures beside those of the day, and its hours."""
    every, night = np.ones(24, np.bool_), day.is_night
    follow = np.corrcoef(day.eligible, day.rounds)[0, 1]
    figures = [
        ("figure", "published", "simulated"),
        ("eligible devices, most over fewest", "about 4", f"{most_over_fewest(day.eligible):.2f}"),
        (
            "the same, of four hours (FLASH)",
            "1.95 [1.67, 2.37]",
            f"{most_over_fewest(day.eligible, 4):.2f}",
        ),
        ("drop-outs of the selected", "6 to 10 %", f"{day.dropped_in(every):.1%}"),
        (
            "drop-outs by day and by night",
            "more by day",
            f"{day.dropped_in(~night):.1%}, {day.dropped_in(night):.1%}",
        ),
        ("rounds follow eligible devices: correlation", "in sync", f"{follow:.2f}"),
        ("rounds in an hour, most over fewest", "-", f"{most_over_fewest(day.rounds):.2f}"),
    ]
    cells = {
        "hour (UTC)": lambda hour: f"{hour:02}:00",
        "eligible": lambda hour: f"{day.eligible[hour]:,.0f}",
        "rounds": lambda hour: f"{day.rounds[hour]:.1f}",
        "minutes a round": lambda hour: f"{60 / day.rounds[hour]:.1f}",
        "drop-outs": lambda hour: f"{day.dropped[hour]:.1%}",
    }
    return [
        Table.headed("Published and simulated", figures),
        Table.of("Hours of the day", range(24), cells),
    ]


def picture(day: Day) -> Figure:
    """Returns the hours of the day as three lines, each relative to its mean."""
    lines = {"eligible devices": day.eligible, "rounds": day.rounds, "drop-outs": day.dropped}
    hours = np.arange(24.0)
    return Figure(
        "diurnal",
        "A day of en-US",
        "Each line is relative to its mean.",
        Axis("Hour of the day (UTC)"),
        Axis("Over the mean of the day"),
        tuple(Series(name, "line", hours, each / each.mean()) for name, each in lines.items()),
    )


if __name__ == "__main__":
    found = simulated_day()
    for table in tables(found):
        print(table.text(100))
    if len(sys.argv) > 1:
        drawn_figure(picture(found)).savefig(sys.argv[1], dpi=130)
