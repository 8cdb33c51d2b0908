"""The published runs of Gboard's language models (Xu et al. 2023): one scenario file per row of
`gboard/published.csv`.

NWP rows are next-word prediction (table 1), OTF rows on-the-fly rescoring (table 2). Files bear
their row's name (`nwp_pt_br.toml`). `reach`, the share of a locale's devices that the task can use,
is not published: each locale has one value, fitted by `fedray fit --rounds-between` on its NWP row,
or on its OTF row where there is no other; 1 where the availability model alone comes near.
"""

import csv
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedray.errors import InputError
from fedray.mechanisms.participation import gap_of

FOLDER = Path(__file__).resolve().parent / "gboard"


@dataclass(frozen=True)
class PublishedRun:
    """A row of the tables: how a model was trained, and its privacy as printed."""

    task: str
    """NWP (next-word prediction) or OTF (on-the-fly rescoring)."""
    locale: str
    """Language and country of the keyboard, such as en-GB."""
    population: int
    """Devices of the locale, as printed."""
    rounds: int
    """n, rounds that released a model."""
    report_goal: int
    """Reports that closed a round."""
    timer_hours: float
    """Participation timer."""
    rounds_between: int
    """The printed MinS: rounds strictly between two participations of a device."""
    max_participations: int
    """The printed MaxP: k."""
    noise_multiplier: float
    """z of tree aggregation."""
    rho: float
    """The printed zCDP of online tree aggregation at the noise multiplier."""
    epsilon: float | None
    """The printed epsilon of the same at delta 1e-10; None where it is not printed."""

    @property
    def name(self) -> str:
        """The row's name as on the command line: task and locale, such as nwp-pt-BR."""
        return f"{self.task.lower()}-{self.locale}"

    @property
    def min_sep(self) -> int:
        """The min-sep that a simulated run should have: the gap, one more than the printed rounds
        between."""
        return gap_of(self.rounds_between)

    @property
    def days(self) -> tuple[float, float]:
        """Between how many days the run took, as its printed k implies.

        A device took part k times, so k - 1 timers ran out. Among so many devices one comes back
        as soon as its timer lets it, so fewer than k timers fit; that is an estimate, and no law.
        """
        timer_days = self.timer_hours / 24.0
        return (self.max_participations - 1) * timer_days, self.max_participations * timer_days

    @property
    def relative_pace(self) -> tuple[float, float]:
        """Between which values the mean pace lies, relative to that of the slowest days.

        Rounds in a timer's length on average, over the min-sep, which is the rounds in the slowest
        such time. It follows from `days`.
        """
        least, most = self.days
        lowest = relative_pace(self.rounds, most, self.timer_hours, self.min_sep)
        return lowest, relative_pace(self.rounds, least, self.timer_hours, self.min_sep)

    @cached_property
    def file(self) -> Path:
        """The scenario file of this run, named by its row."""
        return FOLDER / f"{self.name.lower().replace('-', '_')}.toml"


def relative_pace(rounds: int, days: float, timer_hours: float, min_sep: int) -> float:
    """The mean pace of a run, relative to that of its slowest days: `rounds` in a timer's length on
    average, over `min_sep`, the gap, which is the rounds in the slowest such time."""
    timers = days * 24.0 / timer_hours
    return rounds / timers / min_sep


def published_runs() -> list[PublishedRun]:
    """All rows of `gboard/published.csv`, in the tables' order: what Xu et al. 2023 print, and
    nothing that is ours."""
    with (FOLDER / "published.csv").open(newline="", encoding="utf-8") as file:
        return [_published_run(row) for row in csv.DictReader(file)]


def select(names: str | None) -> list[PublishedRun]:
    """The published runs that are asked for, in the tables' order.

    Args:
        names: names or locales, separated by commas, in any case of letters; None for all.

    Raises:
        InputError: a name is neither, or there is none.
    """
    runs = published_runs()
    if names is None:
        return runs
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if not any(_is_called(run, name) for run in runs):
            locales = [run.locale for run in runs]
            # A locale has up to two rows, and is named once.
            known = ", ".join(dict.fromkeys([*locales, *(run.name for run in runs)]))
            raise InputError(
                f"rows: {name!r} is none of the published runs; the locales and rows are {known}"
            )
    chosen = [run for run in runs if any(_is_called(run, name) for name in wanted)]
    if not chosen:
        raise InputError(
            "rows: the list is empty; name a locale such as en-GB, or leave it out for all rows"
        )
    return chosen


def _is_called(run: PublishedRun, name: str) -> bool:
    return name.lower() in (run.name.lower(), run.locale.lower())


def _published_run(row: dict[str, str]) -> PublishedRun:
    epsilon = row["epsilon_at_delta_1e-10"]
    return PublishedRun(
        task=row["task"],
        locale=row["locale"],
        population=int(row["population"]),
        rounds=int(row["rounds"]),
        report_goal=int(row["report_goal"]),
        timer_hours=float(row["timer_hours"]),
        rounds_between=int(row["rounds_between"]),
        max_participations=int(row["max_participations"]),
        noise_multiplier=float(row["noise_multiplier"]),
        rho=float(row["zcdp"]),
        epsilon=float(epsilon) if epsilon else None,
    )
