"""Effect of each rule and habit on the min-sep, participations and length of Gboard's published
runs.

Each setting is simulated with the same seed as the row's own scenario, at a fraction of its size,
and compared with it. Differences of one or two per cent are within the spread of seeds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, TypedDict

import fedray
from .gboard_rows import PublishedRun, Rows, select
from .reproduction import Document, Progress, Reproduced, Reproduction, Table
from .small_runs import SCALE, outcomes_of

ROWS = "nwp-en-GB,nwp-pt-BR"
"""Default rows: one without and one with a fitted reach."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One change to the row's scenario."""

    name: str
    """Name in tables."""
    overrides: tuple[str, ...]
    """Keys to set; `{timer}` stands for the row's timer in hours, and `{between}` for its published
    number of rounds between participations."""

    def keys_of(self, run: PublishedRun) -> list[str]:
        """Returns the keys, with the timer and the rounds between of a run filled in."""
        between = str(run.rounds_between)
        timer = f"{run.timer_hours:.1f}"
        return [
            each.replace("{timer}", timer).replace("{between}", between) for each in self.overrides
        ]


_BOUNDED = ("rounds.start_share=0.8", "rounds.selection_timeout_minutes=10.0")
SETTINGS = (
    Setting("timer resets on reported", ("participation.timer_resets_on='reported'",)),
    Setting("timer resets on upload", ("participation.timer_resets_on='upload'",)),
    Setting("timer resets on selected", ("participation.timer_resets_on='selected'",)),
    Setting(
        "policy swor for the timer",
        ("participation={policies=[{kind='swor',period_hours={timer}}]}",),
    ),
    Setting(
        "timer, and policy min_sep of the published MinS",
        (
            "participation.policies=[{kind='timer'},"
            "{kind='min_sep',minimum_separation={between},counts='between'}]",
        ),
    ),
    Setting("1 % of histories lost a day", ("participation.history_loss_per_day=0.01",)),
    Setting("clock skew 2 h", ("participation.clock_skew_hours=2.0",)),
    Setting("rounds open for 5 min", ("rounds.closing={kind='at_least',open_minutes=5.0}",)),
    Setting("bounded waiting: 10 min, then 80 %", _BOUNDED),
    Setting("over-selection 1.1", ("rounds.over_selection=1.1",)),
    Setting("over-selection 1.5", ("rounds.over_selection=1.5",)),
    Setting("10 % of the selected fail", ("latency.failure_probability=0.1",)),
    Setting("devices half as fast", ("latency.slowdown=2.0",)),
    Setting("a round per 7 min at most", ("rounds.min_minutes_between=7.0",)),
    Setting("2 check-ins an hour at most", ("rounds.max_checkins_per_hour=2.0",)),
    Setting("reach -10 %", ()),
    Setting("night propensity -20 %", ("availability.night_propensity=[0.78,2.5]",)),
    Setting("no interruptions", ("availability.interruption_off_hours=0.0",)),
    Setting("interruptions every 2 h", ("availability.interruption_on_hours=2.0",)),
    Setting("day sessions -50 %", ("availability.day_sessions=0.525",)),
    Setting("weekends at 70 %", ("availability.weekend_factor=0.7",)),
    Setting(
        "slow days: a quarter, at 50 %, 3 on end",
        ("availability.slow_days={share=0.25,factor=0.5,days=3}",),
    ),
    Setting("a server outage of 24 h", ("rounds.outages=[{start_hours=120.0,hours=24.0}]",)),
    Setting("devices leave after 60 days", ("population.lifetime_days=60.0",)),
)
"""Settings, varied one at a time."""


@dataclass(frozen=True, slots=True)
class Moved(Document):
    """Effect of a setting on a run."""

    setting: str
    """Name of the setting; empty for the scenario as it ships."""
    row: str
    """Name of the row."""
    min_sep: int
    """The gap."""
    max_participations: int
    """k."""
    days: float
    """Simulated time to the last commit, in days."""
    min_sep_change: float
    """Relative difference of the gap to the row's own scenario."""
    days_change: float
    """Relative difference of the days to the row's own scenario."""


class MovedRuns(TypedDict):
    """`fedray reproduce gboard-sensitivity`."""

    scale: float
    """Size of the simulations, as a share of population and report goal."""
    settings: list[Moved]
    """For every row its own scenario first, then the outcome of one other setting."""


def run(
    rows: Rows = ROWS,
    scale: Annotated[float, "Size of the simulations."] = SCALE,
    overrides: Sequence[str] = (),
    placement: "fedray.Placement | None" = None,
    on_progress: Progress = lambda _: None,
) -> Iterator[Reproduced]:
    """Simulates rows under every setting.

    Args:
        rows: rows as `gboard_rows.select` takes them.
        scale: share of population and report goal that is simulated.
        overrides: keys set in every scenario.
        placement: place of the simulations, a task each.
        on_progress: listener.

    Raises:
        InputError: if a row is unknown, or a run starves.
    """
    settings = (Setting("", ()), *SETTINGS)
    cases = [(each, setting) for each in select(rows) for setting in settings]
    scenarios = []
    for published, setting in cases:
        own = published.scenario(overrides)
        keys = setting.keys_of(published)
        # Reach is varied relative to the row's own, which no fixed key can express.
        if setting.name.startswith("reach"):
            keys = [f"population.reach={0.9 * own.population.reach!r}"]
        scenarios.append(own.with_overrides(*keys).scaled(scale))
    found = outcomes_of(scenarios, placement, on_progress)
    moved = []
    for place, (published, setting) in enumerate(cases):
        # The cases of a row are adjacent, the first being the row as it ships.
        base = found[place - place % len(settings)]
        each = found[place]
        moved.append(
            Moved(
                setting=setting.name,
                row=published.name,
                min_sep=each.min_sep,
                max_participations=each.max_participations,
                days=each.days,
                min_sep_change=each.min_sep / base.min_sep - 1.0,
                days_change=each.days / base.days - 1.0,
            )
        )
    yield _reproduced(moved, scale)


def _reproduced(moved: Sequence[Moved], scale: float) -> Reproduced:
    names = list(dict.fromkeys(each.row for each in moved))
    of_row = {name: [each for each in moved if each.row == name] for name in names}
    strongest = max(moved, key=lambda each: abs(each.min_sep_change))
    heading = ["setting", "min-sep", "", "k", "days", ""]
    return Reproduced(
        title="Sensitivity of Gboard's figures",
        document={"scale": scale, "settings": [each.to_json() for each in moved]},
        shown=[Table.headed(name, [heading, *map(_cells, own)]) for name, own in of_row.items()],
        notes=[
            "One thing differs from the row's scenario at a time. Simulated at "
            f"{scale:g} of population and report goal, one seed each: differences of a per cent or "
            "two are its spread."
        ],
        verdict=f"The min-sep moves most by {strongest.setting!r}, in {strongest.row}: "
        f"{100 * strongest.min_sep_change:+.1f} %.",
    )


def _cells(moved: Moved) -> list[str]:
    # Changes are relative to the row without a setting.
    is_own = not moved.setting
    return [
        moved.setting or "as it ships",
        f"{moved.min_sep}",
        "" if is_own else f"{100 * moved.min_sep_change:+.1f} %",
        f"{moved.max_participations}",
        f"{moved.days:.1f}",
        "" if is_own else f"{100 * moved.days_change:+.1f} %",
    ]


REPRODUCTION = Reproduction(
    "Effect of rules and habits on two runs of Xu et al. 2023 (50 small runs).", run
)
