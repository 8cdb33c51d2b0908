"""Published runs of Gboard's language models (Xu et al. 2023): a row of `gboard/published.csv` and
a scenario file each.

NWP rows are next-word prediction (table 1), OTF rows on-the-fly rescoring (table 2). Files bear
their row's name (`nwp_pt_br.toml`). `reach`, the share of a locale's devices that the task can use,
is not published: each locale has one value, fitted by `fedray fit-min-sep` on the row that
`FITTED_ROWS` names; 1 where the plain availability model comes near.

Rows of a user's own come from a CSV file with the columns of `gboard/published.csv`.
"""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

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
Rows = Annotated[
    str | None,
    "Locales or rows, comma-separated, such as en-GB,otf-de-DE; or a CSV file with rows of your "
    "own and the columns of scenarios/gboard/published.csv.",
]
"""The option `rows` of every reproduction of these runs."""
Name = Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,40}$")]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Number = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, config=ConfigDict(validate_by_name=True, validate_by_alias=True))
class PublishedRun:
    """A row of the tables: how a model was trained, and its privacy as printed."""

    task: Name
    """NWP (next-word prediction) or OTF (on-the-fly rescoring)."""
    locale: Name
    """Language and country of the keyboard, such as en-GB."""
    population: Count
    """Number of devices of the locale, as printed."""
    rounds: Count
    """n, number of rounds that released a model."""
    report_goal: Count
    """Number of reports that closed a round."""
    timer_hours: Number
    """Participation timer, in hours."""
    rounds_between: Count
    """The printed MinS: rounds strictly between two participations of a device."""
    max_participations: Count
    """The printed MaxP: k."""
    noise_multiplier: Number
    """z of tree aggregation."""
    rho: Number = Field(alias="zcdp")
    """The printed zCDP of online tree aggregation at the noise multiplier."""
    epsilon: Number | None = Field(alias="epsilon_at_delta_1e-10")
    """The printed epsilon of online tree aggregation at delta 1e-10, or None."""
    is_users: bool = False
    """Whether the row is from a user's file, so that no scenario ships for it."""

    @property
    def is_fitted(self) -> bool:
        """Whether the reach was fitted on this row's own min-sep."""
        return not self.is_users and self.name in FITTED_ROWS

    @property
    def name(self) -> str:
        """Name of the row on the command line: task and locale, such as nwp-pt-BR."""
        return f"{self.task.lower()}-{self.locale}"

    @property
    def min_sep(self) -> int:
        """The min-sep that a simulated run should have: the gap, one more than the printed rounds
        between."""
        return self.rounds_between + 1

    @property
    def days(self) -> tuple[float, float]:
        """Smallest and largest number of days of the run, as implied by its printed k.

        A device took part k times, so k - 1 timers ran out. Among many devices one comes back as
        soon as its timer lets it, so fewer than k timers fit, which is an estimate and not a law.
        """
        timer_days = self.timer_hours / 24.0
        return (self.max_participations - 1) * timer_days, self.max_participations * timer_days

    @property
    def relative_pace(self) -> tuple[float, float]:
        """Smallest and largest mean pace, relative to the pace of the slowest days.

        It is the mean number of rounds in a timer's length, divided by the min-sep, which is the
        number in the slowest such time. It follows from `days`.
        """
        least, most = self.days
        lowest = relative_pace(self.rounds, most, self.timer_hours, self.min_sep)
        return lowest, relative_pace(self.rounds, least, self.timer_hours, self.min_sep)

    @cached_property
    def file(self) -> Path:
        """The scenario file of this run, named after its row."""
        return FOLDER / f"{self.name.lower().replace('-', '_')}.toml"

    def scenario(self, overrides: Sequence[str] = ()) -> "fedray.Scenario":
        """Returns the scenario of the run: the file that ships, or for a user's row the defaults
        with the values of the row, and so with reach 1.

        Args:
            overrides: keys to set in it, as "table.key=value".

        Raises:
            ScenarioError: if a value makes no scenario.
        """
        if not self.is_users:
            return fedray.Scenario.from_toml(self.file, overrides)
        tables = {
            "name": self.name,
            "seed": 2023,
            "population": {"devices": self.population},
            "participation": {"timer_hours": self.timer_hours},
            "rounds": {"count": self.rounds, "report_goal": self.report_goal},
            "training": {"enabled": False},
            "privacy": {
                "noise_multiplier": self.noise_multiplier,
                "delta": 1e-10,
                "mechanism": {"kind": "tree"},
            },
        }
        return fedray.Scenario.from_tables(tables).with_overrides(*overrides)


def relative_pace(rounds: int, days: float, timer_hours: float, min_sep: int) -> float:
    """The mean pace of a run, relative to that of its slowest days: `rounds` in a timer's length on
    average, over `min_sep`, the gap, which is the rounds in the slowest such time."""
    timers = days * 24.0 / timer_hours
    return rounds / timers / min_sep


def published_runs() -> list[PublishedRun]:
    """Returns all rows of `gboard/published.csv` as printed by Xu et al. 2023, in the order of
    their tables."""
    return _runs_in(FOLDER / "published.csv", is_users=False)


def select(names: str | None) -> list[PublishedRun]:
    """Selects published runs, in the order of their tables.

    Args:
        names: comma-separated names or locales, in any letter case; or a CSV file of the user's
            own, whose name ends in .csv; None for all published runs.

    Raises:
        InputError: a name is unknown, the list is empty, or the file is not a table of runs.
    """
    if names is not None and names.lower().endswith(".csv"):
        return _runs_in(Path(names), is_users=True)
    runs = published_runs()
    if names is None:
        return runs
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


def _runs_in(path: Path, is_users: bool) -> list[PublishedRun]:
    """Reads a table of runs. Raises InputError that names the cell and its rule."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(
            f"rows {str(path)!r} cannot be read ({error.strerror or error}); name a CSV file"
        ) from None
    except UnicodeDecodeError:
        raise InputError(
            f"rows {str(path)!r} is not UTF-8; save it as a CSV file in UTF-8"
        ) from None
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        rows = list(reader)
    except csv.Error as error:
        raise InputError(f"rows {str(path)!r} is not a CSV file ({error}); correct it") from None
    if not rows:
        raise InputError(f"rows {str(path)!r} has no rows; add a line for each run")
    runs = [
        _run_of(row, f"rows {str(path)!r}, row {place}", is_users)
        for place, row in enumerate(rows, start=1)
    ]
    names = [run.name for run in runs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                f"rows {str(path)!r} has {name} more than once; a task and locale names one row"
            )
    return runs


def _run_of(row: dict[str, str | None], where: str, is_users: bool) -> PublishedRun:
    # An empty cell becomes None, which only epsilon may be; cells beyond the columns have no name.
    cells = {column: (cell or "").strip() or None for column, cell in row.items() if column}
    try:
        run = replace(_ROW.validate_python(cells, by_alias=True, by_name=False), is_users=is_users)
    except ValidationError as error:
        first = error.errors()[0]
        column = str(first["loc"][0])
        rule = re.sub(r"^(Input|String) should|^Field required", "must", first["msg"])
        raise InputError(
            f"{where}: {column}={cells.get(column) or ''!r} {rule}; correct the cell"
        ) from None
    if run.max_participations < 2 or run.rounds_between >= run.rounds - 1:
        raise InputError(
            f"{where}: max_participations={run.max_participations} and rounds_between="
            f"{run.rounds_between} do not describe a run in which a device took part "
            "twice; leave the row out"
        )
    return run


_ROW = TypeAdapter(PublishedRun)
