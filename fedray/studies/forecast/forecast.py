"""`forecast`: min-sep, participations and epsilon of a running deployment at its end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from fedray.audit.claims import Claim
from fedray.audit.live.in_force import read_in_force
from fedray.audit.sensitivity import trace_sensitivity
from fedray.base.arrays import BoolArray, Float64Array, Int64Array
from fedray.base.document import Document, IfAny, InJson, NotInJson
from fedray.base.errors import InputError
from fedray.base.result import DrawnResult
from fedray.base.threads import in_order
from fedray.mechanisms.participation import MinSep
from fedray.report.subject import Subject
from fedray.report.subjects import trace_subject
from fedray.runs.learning import scenario_of
from fedray.scenario import Scenario
from fedray.studies.forecast.continuation import Continued, continued
from fedray.studies.forecast.devices import Devices, Known
from fedray.studies.forecast.history import DAY, LEAST_ROUNDS, History, history_of
from fedray.studies.forecast.pace import Pace
from fedray.studies.forecast.privacy import Privacy
from fedray.trace.imported import ImportedTrace, open_trace
from fedray.trace.reader import Trace

VERSION = 1
SEEDS = 60
LEVEL = 0.9
CUTS = (0.25, 0.5)
BROKEN = ", broken already"
"""Words behind a limit that the observed rounds break."""


@dataclass(frozen=True, slots=True)
class Interval(Document):
    """Median and middle 90 % of the continuations."""

    low: float
    """5 % quantile, rounded outward to a continuation."""
    median: float
    """Median, rounded up to a continuation."""
    high: float
    """95 % quantile, rounded outward to a continuation."""

    @classmethod
    def of(cls, values: Float64Array | Int64Array) -> "Interval":
        """Returns the interval of the values [S] of the continuations."""
        tail = (1.0 - LEVEL) / 2
        low = np.quantile(values, tail, method="lower")
        high = np.quantile(values, 1.0 - tail, method="higher")
        return cls(float(low), float(np.quantile(values, 0.5, method="higher")), float(high))

    def contains(self, value: float) -> bool:
        """Whether a value is within the interval."""
        return self.low <= value <= self.high

    @property
    def text(self) -> str:
        """The interval in words."""
        return f"{self.median:,.4g} [{self.low:,.4g} to {self.high:,.4g}]"


@dataclass(frozen=True, slots=True)
class Row(Document):
    """A figure of the end."""

    name: str
    """Name of the figure."""
    now: float | None
    """Value after the observed rounds; None if it has none."""
    end: Interval
    """Value after the planned rounds."""


@dataclass(frozen=True, slots=True)
class Backtest(Document):
    """A forecast of the observed rounds from their first ones, beside what then happened."""

    rounds: int
    """Rounds that the forecast knew."""
    name: str
    """Forecast figure."""
    forecast: Interval
    """Forecast value after the observed rounds."""
    happened: float
    """Value after the observed rounds."""

    @property
    def is_inside(self) -> InJson[bool]:
        """Whether the interval contains what happened."""
        return self.forecast.contains(self.happened)


@dataclass(frozen=True, slots=True)
class Break(Document):
    """A claimed limit, and when continuations break it."""

    claimed: str
    """The claimed limit, in words."""
    probability: float
    """Share of the continuations that break it by the end."""
    day: IfAny[Interval] = None
    """Day of the deployment on which it breaks, over the continuations that break it."""
    rounds: IfAny[Interval] = None
    """Number of rounds after which it is broken, over these continuations."""
    time: IfAny[float] = None
    """Median of the times at which it breaks, seconds since 1970; none for a simulated trace."""


@dataclass(frozen=True)
class Forecast(DrawnResult):
    """Forecast of a running deployment: estimates, not guarantees."""

    TABLES: ClassVar[str] = "fedray.studies.forecast.page:forecast_tables"
    SUBJECT: ClassVar[str] = "fedray.studies.forecast.page:forecast_subject"
    FIGURES: ClassVar[str] = "fedray.studies.forecast.page:forecast_figures"
    PAGE: ClassVar[str] = "fedray.studies.forecast.page:forecast_page"
    HEADLINE: ClassVar[str] = "fedray.studies.forecast.page:forecast_headline"

    version: int
    """Version of this document, 1."""
    observed_rounds: int
    """Number of observed rounds."""
    planned_rounds: int
    """Planned number of rounds."""
    seeds: int
    """Continuations."""
    timer_hours: float
    """Hours from the start of a round of a device to the next round that it may join; 0 for no
    timer."""
    timer_source: str
    """Where the timer comes from: the scenario, the claim, the rules in force or the least observed
    wait."""
    in_force: str
    """Rules in force from now on besides those of a scenario, in words; empty without."""
    notes: tuple[str, ...]
    """Remarks on these rules."""
    population_source: str
    """How devices that have not come yet are estimated."""
    drift: str
    """Drift of the pace, in words."""
    rows: tuple[Row, ...]
    """Figures of the end."""
    breaks: tuple[Break, ...]
    """Claimed limits; empty without a claim."""
    backtests: tuple[Backtest, ...]
    """Forecasts of the observed rounds from a quarter and a half of them, without those from too
    few rounds."""
    ends: NotInJson[tuple[MinSep, ...]]
    """(n, b, k) of each continuation."""
    paths: NotInJson[tuple[Continued, ...]]
    history: NotInJson[History]
    trace: NotInJson[Subject]

    def __repr__(self) -> str:
        return f"<Forecast of {self.planned_rounds:,} rounds from {self.observed_rounds:,}>"

    @property
    def timer(self) -> str:
        """The timer and its source, in words."""
        return self.history.rules.text

    def row(self, name: str) -> Row:
        """Returns a row by its name."""
        return next(each for each in self.rows if each.name == name)


def forecast(
    trace: Trace | ImportedTrace | str | Path,
    rounds: int,
    *,
    scenario: Scenario | None = None,
    claim: Claim | None = None,
    in_force: str | Path | None = None,
    seeds: int = SEEDS,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Forecast:
    """Returns the forecast of a running deployment at its planned last round.

    Args:
        trace: observed rounds, opened or as a directory.
        rounds: planned rounds, more than observed.
        scenario: scenario whose rules and population hold; default: that of a simulated trace,
            None for a log, whose population is estimated.
        claim: claim whose limits may break; for a log also its timer, mechanism and noise.
        in_force: TOML file of the rules that the server of a log enforces from now on.
        seeds: number of continuations, at least 20.
        on_progress: called with lines of progress.

    Raises:
        InputError: an argument is out of range, or the trace cannot be continued.
        TraceError: the trace cannot be read.
    """
    given = observed(trace, rounds, scenario=scenario, claim=claim)
    history, known = given.history, given.known
    notes: tuple[str, ...] = ()
    if in_force is not None:
        history, notes = history.under(given.trace, rounds, read_in_force(Path(in_force)))
    if not 20 <= seeds <= 10_000:
        raise InputError.of("seeds", seeds, "must be from 20 to 10000")
    privacy = Privacy.of(given.scenario, claim, rounds)
    now = None
    if privacy is not None:
        now = trace_sensitivity(privacy.strategy, history.patterns).value
    fits, paths = continuations(history, known, rounds, seeds, privacy, on_progress)
    back: list[Backtest] = []
    for cut in CUTS:
        if (r := int(cut * history.rounds)) >= LEAST_ROUNDS:
            early = history.until(r)
            tried = continuations(early, known, history.rounds, seeds, None, on_progress)[1]
            back += _backtests(r, history, tried)
    ends = [each.end for each in paths]
    r, patterns = history.rounds, history.patterns
    figures: dict[str, tuple[float | None, Sequence[float]]] = {
        "min-sep": (patterns.min_sep, [e.min_sep for e in ends]),
        "max participations": (patterns.max_participations, [e.max_participations for e in ends]),
        "min-sep under the timer": (None, [e.enforced.min_sep for e in paths]),
        "participations under the timer": (None, [e.enforced.max_participations for e in paths]),
        "days": (history.days, [(e.starts[-1] - history.starts[0]) / DAY for e in paths]),
    }
    if privacy is not None and now is not None:
        values = [each.spent.sensitivity for each in paths if each.spent is not None]
        for name, at in (("rho", privacy.promise.rho_at), ("epsilon", privacy.promise.epsilon_at)):
            figures[name] = at(now), [at(each) for each in values]
    ahead = history.ahead or history.rules
    cap = ahead.most
    if cap is None and claim is not None:
        cap = claim.max_participations
    if cap is not None:
        near = f"share of devices that came with {cap} or more participations"
        share = float(np.mean(patterns.counts >= cap))
        of = [float(e.by_count[cap:].sum() / e.by_count.sum()) for e in paths]
        figures[near] = share, of
    rows = tuple(
        Row(name, None if now is None else float(now), Interval.of(np.array(found, np.float64)))
        for name, (now, found) in figures.items()
    )
    return Forecast(
        VERSION, r, rounds, seeds, ahead.timer_seconds / 3600.0, ahead.source,
        ahead.named, notes,
        "the discovery curve of new devices (Good and Toulmin 1956)"
        + (", at most those of the scenario" if known else ""),
        fits[0].drift, rows, _breaks(claim, privacy, now, history, paths), tuple(back),
        tuple(ends), tuple(paths), history, trace_subject(given.trace),
    )  # fmt: skip


class Observed(NamedTuple):
    """A trace to continue."""

    trace: Trace | ImportedTrace
    """The trace."""
    scenario: Scenario | None
    """Scenario whose rules hold; None for a log without one."""
    history: History
    """Its rounds."""

    @property
    def known(self) -> Known | None:
        """Population of the scenario; None without one."""
        return None if self.scenario is None else Known.of(self.scenario)


def observed(
    trace: Trace | ImportedTrace | str | Path,
    rounds: int,
    *,
    scenario: Scenario | None,
    claim: Claim | None,
) -> Observed:
    """Returns a trace to continue; see `forecast`. Raises InputError or TraceError."""
    opened = trace if isinstance(trace, Trace | ImportedTrace) else open_trace(trace)
    if scenario is None and isinstance(opened, Trace):
        scenario = scenario_of(opened)
    history = history_of(opened, scenario, None if claim is None else claim.timer_hours)
    if rounds <= history.rounds:
        rule = f"must be more than the {history.rounds} observed rounds"
        raise InputError.of("rounds", rounds, rule, "give the planned last round")
    return Observed(opened, scenario, history)


def continuations(
    history: History,
    known: Known | None,
    rounds: int,
    seeds: int,
    privacy: Privacy | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> tuple[tuple[Pace, Devices], list[Continued]]:
    """Returns the fits of a history, and its continuations up to `rounds` rounds, with their
    privacy if it is wanted."""
    on_progress(f"fitting {history.rounds:,} rounds")
    pace, devices = Pace(history.starts), Devices(history, known)

    def one(seed: int) -> Continued:
        return continued(history, pace, devices, rounds, seed, privacy)

    paths: list[Continued] = []
    # The first one runs by itself: it makes the parts of the fits that the threads then share.
    for path in chain(map(one, [1]), in_order(one, range(2, seeds + 1))):
        paths.append(path)
        on_progress(f"continuation {len(paths)} of {seeds} from round {history.rounds:,}")
    return (pace, devices), paths


def _backtests(rounds: int, history: History, paths: list[Continued]) -> list[Backtest]:
    happened = history.patterns
    min_seps = Interval.of(np.array([each.min_seps[-1] for each in paths]))
    most = Interval.of(np.array([each.most[-1] for each in paths]))
    days = Interval.of(np.array([(e.starts[-1] - history.starts[0]) / DAY for e in paths]))
    return [
        Backtest(rounds, "min-sep", min_seps, happened.min_sep),
        Backtest(rounds, "max participations", most, happened.max_participations),
        Backtest(rounds, "days", days, history.days),
    ]


def _breaks(
    claim: Claim | None,
    privacy: Privacy | None,
    now: float | None,
    history: History,
    paths: list[Continued],
) -> tuple[Break, ...]:
    """Returns when claimed limits break, in each continuation.

    Args:
        claim: the claim; None for no limits.
        privacy: its mechanism and noise, if rho or epsilon can be judged.
        now: sensitivity of the observed rounds, with `privacy`.
        history: the observed rounds.
        paths: the continuations.
    """
    if claim is None:
        return ()
    past, r = history.patterns, history.rounds
    found = []
    if claim.rounds is not None:
        last = claim.rounds
        after = [last + 1 if last < r + e.starts.size else None for e in paths]
        found.append(_break(f"rounds <= {last:,}", last < r, after, history, paths))
    if (b := claim.min_sep) is not None:
        after = [_first(r, each.min_seps < b) for each in paths]
        found.append(_break(f"min-sep >= {b:,}", past.min_sep < b, after, history, paths))
    if (k := claim.max_participations) is not None:
        after = [_first(r, each.most > k) for each in paths]
        is_over = past.max_participations > k
        found.append(_break(f"participations <= {k:,}", is_over, after, history, paths))
    if privacy is not None and now is not None:
        for place, limit in enumerate(privacy.limits):
            after = [None if e.spent is None else e.spent.broken_after[place] for e in paths]
            is_over = now > limit.sensitivity
            found.append(_break(limit.words, is_over, after, history, paths))
    return tuple(found)


def _first(released: int, is_over: BoolArray) -> int | None:
    """Returns the number of rounds after which a limit is first exceeded, given whether it is after
    each round to come, [f]; None if it never is."""
    return released + int(np.argmax(is_over)) + 1 if is_over.any() else None


def _break(
    words: str,
    is_over: bool,
    after: Sequence[int | None],
    history: History,
    paths: list[Continued],
) -> Break:
    """Returns when a claimed limit breaks.

    Args:
        words: the limit.
        is_over: whether the observed rounds have broken it.
        after: number of rounds after which each continuation has broken it; None for never.
        history: the observed rounds.
        paths: the continuations.
    """
    if is_over:
        return Break(words + BROKEN, 1.0)
    found = [
        (each.starts[number - history.rounds - 1], number)
        for each, number in zip(paths, after, strict=True)
        if number is not None
    ]
    if not found:
        return Break(words, 0.0)
    starts, rounds = np.array(found, np.float64).T
    time = None
    if history.origin is not None:
        time = history.origin + float(np.quantile(starts, 0.5, method="higher"))
    days = Interval.of((starts - history.starts[0]) / DAY)
    return Break(words, len(found) / len(paths), days, Interval.of(rounds), time)
