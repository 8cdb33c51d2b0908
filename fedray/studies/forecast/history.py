"""Observed part of a deployment: times of its rounds, patterns of its devices, and its rules."""

import math
from dataclasses import dataclass, replace

import numpy as np

from fedray.audit.guarantees import round_times
from fedray.audit.live.in_force import InForce, RulesInForce
from fedray.audit.live.rules_ahead import RulesAhead
from fedray.audit.participation import Patterns, read_patterns
from fedray.audit.rules import Rule, rules_of, strictest
from fedray.audit.waits import waits_between
from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError
from fedray.scenario import Scenario
from fedray.scenario.participation import Participation
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace

DAY = 86_400.0
LEAST_ROUNDS = 8
"""Least number of rounds from which a forecast is made."""


@dataclass(frozen=True)
class Ruling:
    """Rules of participation that a forecast continues."""

    timer_seconds: float
    """Seconds from the start of a round of a device to the next round that it may join; 0 for no
    timer."""
    source: str
    """Where the timer comes from, in words."""
    separation: int = 0
    """Least difference of two rounds of a device that the rules demand."""
    most: int | None = None
    """Most participations of a device; None for any number."""
    named: str = ""
    """Rules in force from now on, in words; empty without."""

    @property
    def text(self) -> str:
        """The timer and its source, in words."""
        return f"timer {self.timer_seconds / 3600.0:.4g} h, from {self.source}"


@dataclass(frozen=True)
class History:
    """Rounds 0 .. r - 1 of a deployment, with P devices and A participations."""

    starts: Float64Array
    """Starts of the rounds, [r] seconds since the start of the trace, in order."""
    patterns: Patterns
    """Rounds of every device that took part."""
    rules: Ruling
    """Rules of the observed rounds."""
    ahead: Ruling | None = None
    """Rules of the rounds to come; None for the same."""
    origin: float | None = None
    """Time 0 of a log, seconds since 1970; None for a simulated trace."""
    waits: Int64Array | None = None
    """First round in which each device may take part again, [P]; None without a list of them."""

    @property
    def rounds(self) -> int:
        """r: number of observed rounds."""
        return self.starts.size

    @property
    def days(self) -> float:
        """Days from the first start to the last."""
        return float(self.starts[-1] - self.starts[0]) / DAY

    def until(self, rounds: int) -> "History":
        """Returns the history as it was after `rounds` rounds, before rules from now on; the
        rules of the observed rounds stay."""
        whole = self.patterns
        is_kept = whole.rounds < rounds
        counts = np.add.reduceat(is_kept, whole.starts, dtype=np.int64)
        patterns = Patterns(
            rounds, whole.device_ids[counts > 0], counts[counts > 0], whole.rounds[is_kept]
        )
        return replace(self, starts=self.starts[:rounds], patterns=patterns, ahead=None, waits=None)

    def under(
        self, trace: Trace | ImportedTrace, rounds: int, given: RulesInForce
    ) -> tuple["History", tuple[str, ...]]:
        """Returns the history with rules in force from now on, and remarks on them.

        Args:
            trace: the log of this history.
            rounds: planned rounds.
            given: rules that its server enforces.

        Raises:
            InputError: the trace is a simulated one, or a rule is not one that a forecast
                continues.
        """
        found = InForce(trace, self.patterns, None, given)
        own = self.rules
        begun = RulesAhead(self.rounds, rounds)
        rules = found.besides(begun.stricter(own.separation, own.most, own.timer_seconds))
        windows = [seconds for seconds, most in rules.windows if most == 1]
        if len(windows) < len(rules.windows) or rules.of_day is not None:
            rule = "has more than one participation within hours, or is of a local day"
            remedy = "leave it out to forecast what happens without it"
            raise InputError.of("in_force.policies", "most_per_period", rule, remedy)
        if found.has_times:
            rule = "names times, which a forecast does not continue"
            raise InputError.of("in_force.hold", given.hold, rule, "give a list of rounds")
        seconds = max([rules.timer_seconds, *windows])
        named = ", ".join(rules.names)
        source = own.source if seconds == own.timer_seconds else "the rules in force"
        ahead = Ruling(seconds, source, rules.separation, rules.most, named)
        waiting = found.waiting(rules)
        return replace(self, ahead=ahead, waits=waiting.first), tuple(found.notes)

    def reopened(self) -> Int64Array:
        """Returns the first round in which a device of each round may take part again, [r]; r if
        that is later."""
        opens = self.starts + self.rules.timer_seconds
        return np.maximum(
            np.searchsorted(self.starts, opens, side="left"),
            np.arange(self.rounds) + max(1, self.rules.separation),
        ).clip(max=self.rounds)


def history_of(
    trace: Trace | ImportedTrace, scenario: Scenario | None, timer_hours: float | None
) -> History:
    """Returns the history of a trace.

    Args:
        trace: the observed rounds.
        scenario: scenario with the rules; None for a log.
        timer_hours: timer of a claim, for a log; None for the least observed wait.

    Raises:
        InputError: the rounds have no times or are too few, or the deployment is of a kind or has a
            rule that is not forecast.
    """
    if isinstance(trace, Trace) and (trace.is_buffered or trace.stores_uploads):
        rule = "has rounds that overlap, or that draw stored uploads"
        raise InputError.of("trace", str(trace.path), rule, "forecast one in the mode on-device")
    times = round_times(trace)
    if times is None or not np.isfinite(times[0]).all():
        remedy = "import the log with its times"
        raise InputError.of("trace", str(trace.path), "has rounds without times", remedy)
    if (count := trace.committed_rounds) < LEAST_ROUNDS:
        rule = f"has {count} rounds, and a forecast needs {LEAST_ROUNDS}"
        raise InputError.of("trace", str(trace.path), rule, "wait for more")
    patterns = read_patterns(trace)
    if patterns.min_sep == 0:
        rule = "has a device that contributed twice to a round"
        remedy = "import with repeats 'once' if they are one contribution"
        raise InputError.of("trace", str(trace.path), rule, remedy)
    starts = np.maximum.accumulate(times[0])
    of_log = trace.run["times"] if isinstance(trace, ImportedTrace) else None
    origin = None if of_log is None else of_log["origin"]
    if scenario is not None:
        rules = _continued_rules(scenario.participation)
        seconds, separation, most = strictest(rules)
        return History(
            starts, patterns, Ruling(seconds, "the scenario", separation, most), origin=origin
        )
    if timer_hours is not None:
        return History(starts, patterns, Ruling(3600.0 * timer_hours, "the claim"), origin=origin)
    waits = waits_between(trace, patterns)
    assert waits is not None, "the rounds have times"
    least = min((float(each.min(initial=math.inf)) for each, _, _ in waits), default=math.inf)
    if not math.isfinite(least):
        rule = "has no device that took part twice, so the timer is unknown"
        raise InputError.of("trace", str(trace.path), rule, "claim timer_hours")
    return History(starts, patterns, Ruling(least, "the least observed wait"), origin=origin)


def _continued_rules(given: Participation) -> list[Rule]:
    """Returns the rules that devices keep. Raises InputError for one that is not continued."""
    kept = [each for each in rules_of(given) if not each.unkept]
    refused: dict[str, object] = {}
    if given.hold is not None:
        refused["hold"] = given.hold.file
    if given.later is not None:
        refused["later"] = given.later.model_dump(exclude_none=True)
    if several := [each.name for each in kept if each.most_within]:
        refused["policies"] = several[0]
    for key, value in refused.items():
        rule = "is not continued by a forecast"
        remedy = "give a scenario without it to forecast what happens without the rule"
        raise InputError.of(f"participation.{key}", value, rule, remedy)
    return kept
