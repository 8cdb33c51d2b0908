"""How much each rule and habit moves the min-sep, participations and length of published runs.

Each setting is simulated with the same seed as the row's own scenario, at a fraction of its size,
and compared with it. Differences of one or two per cent are within the spread of seeds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedray.base.document import Document
from fedray.runtime.placement import Placement
from fedray.scenarios.gboard import PublishedRun, select
from fedray.studies.fit import scaled
from fedray.studies.outcome import outcomes_of

ROWS = "nwp-en-GB,nwp-pt-BR"
"""The rows that are varied unless others are named: without and with a fitted reach."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that differs from the row's scenario."""

    name: str
    """What tables call it."""
    overrides: tuple[str, ...]
    """Keys that are set; `{timer}` stands for the row's timer in hours, and `{between}` for its
    published rounds between."""

    def keys_of(self, run: PublishedRun) -> list[str]:
        """The keys for a run.

        Args:
            run: whose timer and rounds between are filled in.
        """
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
"""What is varied, one at a time."""


@dataclass(frozen=True, slots=True)
class Moved(Document):
    """What a setting did to a run."""

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
    """Relative difference of the gap to that of the row's own scenario."""
    days_change: float
    """Relative difference of the days to those of the row's own scenario."""


def vary_gboard(
    rows: str | None = None,
    overrides: Sequence[str] = (),
    scale: float = 0.01,
    placement: Placement | None = None,
    on_run: Callable[[int, int], None] | None = None,
) -> list[Moved]:
    """Simulates rows under every setting.

    Args:
        rows: as `fedray.scenarios.gboard.select` takes them; None for `ROWS`.
        overrides: keys set in every scenario.
        scale: of population and report goal.
        placement: where the simulations run, a task each.
        on_run: hears how many runs are done, of how many.

    Returns:
        For every row its own scenario, then every setting in the order of `SETTINGS`.

    Raises:
        InputError: if a row is unknown, or a run starves.
    """
    runs = select(rows or ROWS)
    settings = (Setting("", ()), *SETTINGS)
    cases = [(run, setting) for run in runs for setting in settings]
    scenarios = []
    for run, setting in cases:
        own = run.scenario(overrides)
        keys = setting.keys_of(run)
        # Reach is varied relative to the row's own, which no fixed key can say.
        if setting.name.startswith("reach"):
            keys = [f"population.reach={0.9 * own.population.reach!r}"]
        scenarios.append(scaled(own.with_overrides(*keys), scale))
    found = outcomes_of(scenarios, placement or Placement(), on_run)
    moved = []
    for place, (run, setting) in enumerate(cases):
        # The cases of a row lie together, and the first of them is the row as it ships.
        base = found[place - place % len(settings)]
        each = found[place]
        moved.append(
            Moved(
                setting=setting.name,
                row=run.name,
                min_sep=each.min_sep,
                max_participations=each.max_participations,
                days=each.days,
                min_sep_change=each.min_sep / base.min_sep - 1.0,
                days_change=each.days / base.days - 1.0,
            )
        )
    return moved
