"""Published runs of Gboard's language models: of Xu et al. 2023 a row of `gboard/published.csv` and
a scenario file each, and of McMahan, Xu, Zhang 2024 (arXiv 2408.08868) the rows of table 4 in
`gboard/later.csv`.

NWP rows are next-word prediction (table 1), OTF rows on-the-fly rescoring (table 2). Files bear
their row's name (`nwp_pt_br.toml`). `reach`, the share of a locale's devices that the task can use,
and the pace, `rounds.min_minutes_between`, are not published: each locale has one value of each,
fitted on the rows that `is_fitted` names, or the default where that comes near.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import fedray
from fedray import InputError
from .cells import Row, read_cells
from .reproduction import Option

FOLDER = Path(__file__).resolve().parent / "gboard"
FITTED_ROWS = ("nwp-de-DE", "nwp-pt-PT", "nwp-en-US", "nwp-en-IN", "nwp-es-AR")
"""Rows whose own min-sep was used to fit the reach of their locale, by a search over
simulated runs."""
FITTED_LOCALES = ("es-ES", "pt-BR")
"""Locales whose reach and pace were fitted on their rows of both papers, which contradict a fit on
one row (`gboard_fits`)."""
ROWS = Option(
    "rows", str | None, None, "Locales or rows, comma-separated, such as en-GB,otf-de-DE."
)
"""An option of every reproduction of these runs."""


@dataclass(frozen=True)
class PublishedRun:
    """A row of the tables: how a model was trained, and its privacy as printed."""

    task: str
    """NWP (next-word prediction) or OTF (on-the-fly rescoring); of the later paper, the mechanism
    and report goal."""
    locale: str
    """Language and country of the keyboard, such as en-GB."""
    population: int
    """Number of devices of the locale, as printed."""
    rounds: int
    """n, number of rounds that released a model."""
    report_goal: int
    """Number of reports that closed a round."""
    timer_hours: float
    """Participation timer, in hours."""
    rounds_between: int
    """The printed MinS: rounds strictly between two participations of a device."""
    max_participations: int
    """The printed MaxP: k."""
    noise_multiplier: float
    """z of tree aggregation."""
    rho: float | None
    """The printed zCDP of online tree aggregation at the noise multiplier; None for the later
    paper, whose rows `fedray reproduce blt` recomputes."""
    epsilon: float | None
    """The printed epsilon of online tree aggregation at delta 1e-10, or None."""
    earlier: "PublishedRun | None" = None
    """Earlier paper's first row of the locale, for a row of the later paper, which prints neither
    population nor timer: both are taken from this row, as is the scenario. Else None."""

    @property
    def is_fitted(self) -> bool:
        """Whether the reach or pace was fitted on this row's own min-sep; else it is predicted."""
        return self.name in FITTED_ROWS or self.locale in FITTED_LOCALES

    @property
    def name(self) -> str:
        """Name of the row on the command line: task and locale, such as nwp-pt-BR."""
        return f"{self.task.lower()}-{self.locale}"

    @property
    def min_sep(self) -> int:
        """The min-sep that a simulated run should have: the gap, one more than the printed rounds
        between; the number of rounds, which it is at least, if no device came back."""
        return min(self.rounds_between + 1, self.rounds)

    @property
    def days(self) -> tuple[float, float]:
        """Smallest and largest number of days of the run, as implied by its printed k.

        A device took part k times, so k - 1 timers ran out. Among many devices one comes back as
        soon as its timer lets it, so fewer than k timers fit, which is an estimate and not a law.
        """
        timer_days = self.timer_hours / 24.0
        return (self.max_participations - 1) * timer_days, self.max_participations * timer_days

    @property
    def file(self) -> Path:
        """The scenario file of this run, named after its row in the earlier paper."""
        name = (self.earlier or self).name
        return FOLDER / f"{name.lower().replace('-', '_')}.toml"

    @property
    def configuration(self) -> str:
        """Name of the configuration, which repeats of the run with other mechanisms share."""
        return f"{self.locale}-{self.report_goal}" if self.earlier else self.name

    @property
    def is_censored(self) -> bool:
        """Whether no device came back, so that the min-sep is at least the number of rounds."""
        return self.max_participations == 1

    def scenario(self, overrides: Sequence[str] = ()) -> "fedray.Scenario":
        """Returns the scenario of the run.

        Args:
            overrides: keys to set in it, as "table.key=value".
        """
        own = (f"rounds.count={self.rounds}", f"rounds.report_goal={self.report_goal}")
        keys = own if self.earlier else ()
        return fedray.Scenario.from_toml(self.file, (*keys, *overrides))


def published_runs() -> list[PublishedRun]:
    """Returns all rows of `gboard/published.csv` as printed by Xu et al. 2023, in the order of
    their tables."""
    return [_run_of(row) for row in read_cells("gboard/published")[1]]


def later_runs() -> list[PublishedRun]:
    """Returns the rows of `gboard/later.csv` whose locales the earlier paper has too: all but those
    of id-ID, whose population is not printed."""
    # The first row of a locale is the one that stays.
    by_locale = {run.locale: run for run in reversed(published_runs())}
    return [
        replace(
            by_locale[row["locale"]],
            task=f"{row['mechanism']}-{row['report_goal']}",
            rounds=int(row["rounds"]),
            report_goal=int(row["report_goal"]),
            rounds_between=int(row["rounds_between"]),
            max_participations=int(row["max_participations"]),
            noise_multiplier=float(row["noise_multiplier"]),
            rho=None,
            epsilon=None,
            earlier=by_locale[row["locale"]],
        )
        for row in read_cells("gboard/later")[1]
        if row["locale"] in by_locale
    ]


def select(names: str | None, runs: Sequence[PublishedRun]) -> list[PublishedRun]:
    """Selects published runs, in their order.

    Args:
        names: comma-separated names or locales, in any letter case; None for all runs.
        runs: runs to select from.

    Raises:
        InputError: a name is unknown, or the list is empty.
    """
    if names is None:
        return list(runs)
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if not any(_is_called(run, name) for run in runs):
            locales = [run.locale for run in runs]
            # A locale has up to two rows, but is listed once.
            known = ", ".join(dict.fromkeys([*locales, *(run.name for run in runs)]))
            raise InputError(
                f"rows: {name!r} is not a published run; the locales and rows are {known}"
            )
    chosen = [run for run in runs if any(_is_called(run, name) for name in wanted)]
    if not chosen:
        raise InputError(
            "rows: the list is empty; name a locale such as en-GB, or leave it out for all rows"
        )
    return chosen


def _is_called(run: PublishedRun, name: str) -> bool:
    return name.lower() in (run.name.lower(), run.locale.lower())


def _run_of(row: Row) -> PublishedRun:
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
