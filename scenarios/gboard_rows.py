"""Published runs of Gboard's language models: of Xu et al. 2023 a row of `gboard/published.csv` and
a scenario file each, and of McMahan, Xu, Zhang 2024 the rows of `TABLE_4`.

NWP rows are next-word prediction (table 1), OTF rows on-the-fly rescoring (table 2). Files bear
their row's name (`nwp_pt_br.toml`). `reach`, the share of a locale's devices that the task can use,
is not published: each locale has one value, fitted by `fedray fit-min-sep` on the row that
`FITTED_ROWS` names; 1 where the plain availability model comes near.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, NamedTuple

import fedray
from fedray import InputError

FOLDER = Path(__file__).resolve().parent / "gboard"
FITTED_ROWS = (
    "nwp-de-DE",
    "nwp-pt-PT",
    "nwp-en-US",
    "nwp-pt-BR",
    "nwp-en-IN",
    "nwp-es-AR",
    "otf-es-ES",
)
"""Rows whose own min-sep was used to fit the reach of their locale. The min-seps of all other rows
are predictions: nothing was fitted on them."""


class TableRow(NamedTuple):
    """A row of table 4 of McMahan, Xu, Zhang 2024 (arXiv 2408.08868)."""

    locale: str
    """Language and country of the keyboard."""
    mechanism: str
    """Mechanism of the run, or its name."""
    noise_multiplier: float
    """z, as printed."""
    rounds: int
    """n: rounds of the run."""
    rounds_between: int
    """The printed min-sep: rounds strictly between two participations of a device."""
    max_participations: int
    """The printed k."""
    rho: str
    """zCDP, as printed."""
    epsilon: str
    """Epsilon at delta 1e-10, as printed."""
    report_goal: int
    """Number of reports that closed a round, by section 5."""


TABLE_4 = (
    TableRow("es-ES", "banded", 1.411, 1280, 296, 4, "0.29", "4.82", 6500),
    TableRow("es-ES", "blt-400", 7.379, 1280, 300, 4, "0.16", "3.46", 6500),
    TableRow("id-ID", "tree", 7.0, 2350, 437, 5, "0.94", "9.29", 6500),
    TableRow("id-ID", "blt-400", 7.379, 2350, 447, 5, "0.20", "3.93", 6500),
    TableRow("pt-BR", "banded", 4.523, 2000, 2001, 1, "0.0245", "1.32", 6500),
    TableRow("pt-BR", "blt-1000", 8.681, 2000, 2001, 1, "0.0223", "1.25", 6500),
    TableRow("pt-BR", "blt-1000", 16.1, 2000, 1181, 2, "0.0140", "0.98", 12000),
    TableRow("pt-PT", "tree", 7.0, 430, 91, 4, "1.33", "11.27", 3000),
    TableRow("pt-PT", "blt-100", 3.12, 430, 92, 4, "1.11", "10.19", 3000),
    TableRow("pt-PT", "blt-100", 5.5, 320, 49, 6, "0.75", "8.19", 6000),
)
"""Rows of table 4. Where k is 1 no device came back, and the printed 2001 is the number of rounds
and one."""
Rows = Annotated[str | None, "Locales or rows, comma-separated, such as en-GB,otf-de-DE."]
"""The option `rows` of every reproduction of these runs."""


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
        """Whether the reach was fitted on this row's own min-sep."""
        return self.name in FITTED_ROWS

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
    with (FOLDER / "published.csv").open(encoding="utf-8", newline="") as file:
        return [_run_of(row) for row in csv.DictReader(file)]


def later_runs() -> list[PublishedRun]:
    """Returns the rows of `TABLE_4` whose locales the earlier paper has too: all but those of
    id-ID, whose population is not printed."""
    runs = []
    for row in TABLE_4:
        earlier = next((each for each in published_runs() if each.locale == row.locale), None)
        if earlier is not None:
            own = replace(
                earlier,
                task=f"{row.mechanism}-{row.report_goal}",
                rounds=row.rounds,
                report_goal=row.report_goal,
                rounds_between=row.rounds_between,
                max_participations=row.max_participations,
                noise_multiplier=row.noise_multiplier,
                rho=None,
                epsilon=None,
                earlier=earlier,
            )
            runs.append(own)
    return runs


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


def _run_of(row: dict[str, str]) -> PublishedRun:
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
