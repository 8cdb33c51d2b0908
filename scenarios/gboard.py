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
from mechanisms.participation import gap_of

FOLDER = Path(__file__).resolve().parent / "gboard"


@dataclass(frozen=True)
class PublishedRun:
    """A row of the tables. rounds_between: the printed MinS, rounds strictly between two
    participations of a device. rho, epsilon (at delta 1e-10, where printed): of online tree
    aggregation at the noise multiplier."""

    task: str
    locale: str
    population: int
    rounds: int
    report_goal: int
    timer_hours: float
    rounds_between: int
    max_participations: int
    noise_multiplier: float
    rho: float
    epsilon: float | None

    @property
    def name(self) -> str:
        """As on the command line: nwp-pt-BR."""
        return f"{self.task.lower()}-{self.locale}"

    @property
    def min_sep(self) -> int:
        """The min-sep that a simulated run should have: the gap."""
        return gap_of(self.rounds_between)

    @cached_property
    def file(self) -> Path:
        """Its scenario."""
        return FOLDER / f"{self.name.lower().replace('-', '_')}.toml"


def published_runs() -> list[PublishedRun]:
    """All rows, in the tables' order."""
    with (FOLDER / "published.csv").open(newline="", encoding="utf-8") as file:
        return [
            PublishedRun(
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
                epsilon=float(row["epsilon_at_delta_1e-10"])
                if row["epsilon_at_delta_1e-10"]
                else None,
            )
            for row in csv.DictReader(file)
        ]


def select(names: str | None) -> list[PublishedRun]:
    """The rows whose name or locale is among a comma-separated list; all for None. Raises
    InputError for what is neither."""
    runs = published_runs()
    if names is None:
        return runs
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if not any(name.lower() in (run.name.lower(), run.locale.lower()) for run in runs):
            known = ", ".join(
                dict.fromkeys([*(run.locale for run in runs), *(run.name for run in runs)])
            )
            raise InputError(
                f"rows: {name!r} is none of the published runs; the locales and rows are {known}"
            )
    chosen = [
        run
        for run in runs
        if any(name.lower() in (run.name.lower(), run.locale.lower()) for name in wanted)
    ]
    if not chosen:
        raise InputError(
            "rows: the list is empty; name a locale such as en-GB, or leave it out for all rows"
        )
    return chosen
