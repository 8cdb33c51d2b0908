"""Rules that a server enforces: from the first round on, or from a later one, with a list of
devices that must wait. A simulated trace has them in its scenario (`participation`), a log in a
file of the same words. A list or a rule that the trace broke since it began ensures nothing, and so
does one that the trace cannot show to be kept.

    timer_hours = 24                    # since the first round, as are the next three
    round_separation = 24
    max_participations = 10
    policies = [{ kind = "most_per_period", participations = 1, hours = 24 }]
    from_round = 60                     # first round of the next two, in the log's numbers
    hold = "hold.csv"                   # relative to this file
    later = { round_separation = 30 }
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from fedray.audit.findings import Verdict
from fedray.audit.guarantees import round_times
from fedray.audit.live.changes import Change
from fedray.audit.live.round_numbers import RoundNumbers
from fedray.audit.live.rules_ahead import RulesAhead
from fedray.audit.participation import Patterns
from fedray.audit.rules import cap_name, separation_name
from fedray.audit.statements.most_per_period import MostPerPeriod, MostPerPeriodStatement
from fedray.audit.statements.statement import Subject
from fedray.audit.waits import are_known, is_too_short, times_of, waits_between
from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError
from fedray.base.rounding import counted
from fedray.base.table import Table, read_table_file
from fedray.scenario import Scenario
from fedray.scenario.hold import LAST_ROUND, By, Hold, read_hold
from fedray.scenario.participation import LaterRules, MostPerPeriodPolicy
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace

NEVER = float(LAST_ROUND)
"""First round of a device that never comes back."""


class RulesInForce(Table):
    """Rules that a server enforces on a log, by the keys of a scenario's table `participation`."""

    timer_hours: Annotated[float, Field(gt=0, le=87_840)] | None = None
    """Hours from one participation of a device to the next, in all rounds of the log."""
    round_separation: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """Least difference between the numbers of two rounds of a device, in all rounds."""
    max_participations: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """Largest number of participations of a device, in all rounds."""
    policies: Annotated[tuple[MostPerPeriodPolicy, ...], Field(strict=False)] = ()
    """Limits on the participations within a period, in all rounds."""
    from_round: Annotated[int, Field(ge=-(2**62), lt=2**62)] | None = None
    """Number of the first round to which `hold` and `later` apply, as the log has it. Default: the
    first."""
    hold: str | None = None
    """Hold file of devices that must wait, named as in the log."""
    later: LaterRules | None = None
    """Rules besides the others."""

    @model_validator(mode="after")
    def _has_a_rule(self) -> Self:
        if not (self.hold or self.later or self.policies or self.whole):
            raise ValueError("no rule is given; add round_separation, max_participations or others")
        if self.from_round is not None and not (self.hold or self.later):
            raise ValueError("from_round is the first round of hold and later; add one of them")
        return self

    @property
    def whole(self) -> LaterRules | None:
        """Rules of all rounds; None without one."""
        given = {key: getattr(self, key) for key in LaterRules.model_fields}
        return LaterRules(**given) if any(each is not None for each in given.values()) else None


def read_in_force(path: Path) -> RulesInForce:
    """Reads rules in force from a TOML file. Raises InputError."""
    found = read_table_file(RulesInForce, path, "in_force")
    if found.hold is None:
        return found
    return found.model_copy(update={"hold": str(path.parent / found.hold)})


@dataclass(frozen=True, eq=False)
class Waiting:
    """Devices of a list in force."""

    first: Int64Array
    """First round of each device of the trace, [P]; 0 if no list that counts names it."""
    unseen: tuple[str, ...] = ()
    """Devices of the list that have not taken part yet."""
    listed: Hold | None = None
    """The list as it was given, also if it does not count; None without."""

    @property
    def names(self) -> tuple[str, ...]:
        """The list in words; empty without one."""
        held = int((self.first > 0).sum()) + len(self.unseen)
        return (f"a list of {counted(held, 'device')} that must wait, in force",) if held else ()

    @property
    def warning(self) -> str | None:
        """A sentence about devices of the list that a log does not name, which may be misspelt;
        None without one."""
        if not self.unseen:
            return None
        shown = ", ".join(map(repr, self.unseen[:3])) + ", ..." * (len(self.unseen) > 3)
        if self.listed is not None and len(self.unseen) == len(self.listed.device_ids):
            text = "no device of the list in force is in the log, which probably has other ids"
            return f"{text}: {shown}"
        devices = counted(len(self.unseen), "device")
        return f"the list in force names {devices} that the log does not have: {shown}"

    def hold(
        self,
        trace: Trace | ImportedTrace,
        patterns: Patterns,
        rounds: int,
        added: Int64Array | None,
        by: By | None = None,
        latest: Float64Array | None = None,
    ) -> Hold:
        """Returns the devices that still wait. None may take part earlier than the list in force
        says, whether or not that list counts.

        Args:
            trace: the trace, whose names of devices and numbers of rounds or times the list has.
            patterns: devices of the trace, [P].
            rounds: planned number of rounds; a device that waits as long never comes back.
            added: first rounds that a change asks for, [P]; None without.
            by: meaning of its values; None for that of the list in force, or rounds without one.
            latest: latest time of a participation in each round at the stated pace, [R seconds];
                None if unknown.

        Raises:
            InputError: numbers or times of rounds to come are unknown or too large, or the list in
                force has others.
        """
        listed = self.listed or Hold((), np.empty(0), by or "first_round")
        is_open = listed.first > _next(trace, listed)
        waits = {
            str(listed.device_ids[place]): float(listed.first[place])
            for place in np.flatnonzero(is_open).tolist()
        }
        by = by or listed.by
        if by != listed.by and np.isfinite(list(waits.values())).any():
            rule = f"is not that of the list in force, whose devices wait by {listed.by}"
            raise InputError.of("hold_by", by, rule, "leave it out, or give that list by the other")
        added = np.zeros_like(self.first) if added is None else added
        places = np.flatnonzero(added > np.maximum(self.first, trace.committed_rounds))
        first = np.full(places.size, np.inf)
        is_back = added[places] < rounds
        if is_back.any():
            back = added[places][is_back]
            is_round = by == "first_round"
            first[is_back] = _numbers(trace, back) if is_round else _times(trace, back, latest)
        names = _names(trace, patterns.device_ids[places]).to_pylist()
        for name, number in zip(names, first.tolist(), strict=True):
            waits[name] = max(number, waits.get(name, 0.0))
        return Hold(list(waits), np.array(list(waits.values())), by)


def _numbers(trace: Trace | ImportedTrace, rounds: Int64Array) -> Float64Array:
    """Returns the log's numbers of rounds to come [H]. Raises InputError."""
    numbers = RoundNumbers(trace).of(rounds)
    # Such a number, if of a log, cannot be written as one of a hold file.
    if numbers.max() >= NEVER or numbers.min() < 0:
        raise InputError(
            f"hold: a list has round numbers from 0 to {LAST_ROUND - 1}, and the log's are not; "
            "import the log with such ones"
        )
    return numbers.astype(np.float64)


def _times(
    trace: Trace | ImportedTrace, rounds: Int64Array, latest: Float64Array | None
) -> Float64Array:
    """Returns times before which no round to come [H] begins at the stated pace, though the one
    before it may last until then. Raises InputError."""
    if latest is None or not are_known(trace):
        raise InputError(
            "hold_by='first_time' has devices whose times of participation are unknown, so no "
            "audit could check it; import times, or leave it out"
        )
    ends = np.maximum.accumulate(latest)[rounds - 1]
    return np.floor(ends + _origin(trace)) + 1.0


def _next(trace: Trace | ImportedTrace, hold: Hold) -> float:
    """Returns the least number of the next round, or, for a list by time, the time before which no
    later round is taken to begin; -infinity if unknown."""
    if not len(hold.device_ids):
        return -np.inf
    if hold.by == "first_round":
        return RoundNumbers(trace).least_next
    times = round_times(trace)
    # The last round may still have been open.
    begun = np.empty(0) if times is None else times[0][np.isfinite(times[0])]
    return float(begun.max(initial=-np.inf)) + _origin(trace)


def _origin(trace: Trace | ImportedTrace) -> float:
    """Returns the time 0 of a trace as a list has it: seconds since 1970 for a log."""
    times = trace.run["times"] if isinstance(trace, ImportedTrace) else None
    return 0.0 if times is None else times["origin"]


def _toml(rules: LaterRules) -> list[str]:
    given = ((key, getattr(rules, key)) for key in LaterRules.model_fields)
    return [f"{key} = {value}" for key, value in given if value is not None]


def _period(most: int, hours: float | None) -> str:
    length = 'period = "local_day"' if hours is None else f"hours = {hours}"
    return f'{{ kind = "most_per_period", participations = {most}, {length} }}'


def _stricter(rules: LaterRules, others: LaterRules) -> LaterRules:
    """Returns the stricter one of each of two rules."""

    def of(choose: Callable[..., Any], key: str) -> Any:
        both = (getattr(rules, key), getattr(others, key))
        return choose((each for each in both if each is not None), default=None)

    return LaterRules(
        timer_hours=of(max, "timer_hours"),
        round_separation=of(max, "round_separation"),
        max_participations=of(min, "max_participations"),
    )


def _names(trace: Trace | ImportedTrace, device_ids: np.ndarray) -> pa.Array:
    """Returns names of devices [H] as a list has them: bytes are in hexadecimal."""
    if not isinstance(trace, ImportedTrace):
        return pc.cast(pa.array(device_ids), pa.string())
    found = trace.ids_of("device").take(pa.array(device_ids.astype(np.int64))).combine_chunks()
    if pa.types.is_binary(found.type) or pa.types.is_large_binary(found.type):
        return pa.array([each.hex() for each in found.to_pylist()], pa.string())
    return pc.cast(found, pa.string())


class InForce:
    """Rules in force on a trace.

    Args:
        trace: the trace of the released rounds.
        patterns: rounds of its devices.
        scenario: scenario of the run; None for a log.
        given: rules in force of a log; None without.

    Raises:
        InputError: rules are given for a simulated trace, or a file cannot be read.
    """

    def __init__(
        self,
        trace: Trace | ImportedTrace,
        patterns: Patterns,
        scenario: Scenario | None,
        given: RulesInForce | None,
    ) -> None:
        self._trace, self._patterns = trace, patterns
        self._hold: Hold | None = None
        self._listed: Hold | None = None
        self._later: LaterRules | None = None
        self._begins: int | None = 0
        self._given, self._is_log = given, scenario is None
        self.notes: list[str] = []
        """Remarks on rules that do not count."""
        if given is not None and not isinstance(trace, ImportedTrace):
            raise InputError(
                "in_force: rules of a simulated trace are in its scenario; leave it out"
            )
        if scenario is not None:
            self._of_scenario(scenario)
        elif given is not None:
            if given.from_round is not None:
                self._begins = RoundNumbers(trace, "in_force").begins(given.from_round)
            self._later = given.later
            self._hold = self._listed = None if given.hold is None else _list_of(given.hold)
        number = None if given is None else given.from_round
        if self._begins is None:
            self.notes.append(
                f"Rules in force from round {number} do not count, as other rounds may come before"
            )
            self._hold = self._later = None
        if self.has_times and not are_known(trace):
            self.notes.append(
                "The list in force ensures nothing: it has times, and the log has none of devices, "
                "so it cannot be checked"
            )
            self._hold = None

    def _of_scenario(self, scenario: Scenario) -> None:
        given = scenario.participation
        self._later = given.later
        if given.hold is None:
            return
        held = given.hold.devices
        is_time = bool(((held.first_times > 0) & np.isfinite(held.first_times)).any())
        first = held.first_times if is_time else held.first_rounds.astype(np.float64)
        first = np.where(np.isinf(held.first_times), np.inf, first)
        names = [str(each) for each in held.device_ids.tolist()]
        self._listed = Hold(names, first, "first_time" if is_time else "first_round")
        self._begins = given.from_round
        if given.from_round > self._trace.committed_rounds:
            self.notes.append(
                f"The list begins with round {given.from_round} and is left out, as a bound"
            )
            return
        self._hold = self._listed

    @property
    def has_times(self) -> bool:
        """Whether the list names times."""
        return self._hold is not None and self._hold.by == "first_time"

    def besides(self, rules: RulesAhead) -> RulesAhead:
        """Returns rules with those of a log that are in force beside them."""
        if self._given is None:
            return rules
        for given, begins in ((self._given.whole, 0), (self._later, self._begins)):
            if given is None or begins is None:
                continue
            for name, value, is_broken in self._kept(given, begins):
                if is_broken:
                    self.notes.append(f"The log broke {name}, which is in force: it does not count")
                    continue
                rules = rules.stricter(*value)
                rules = replace(rules, names=(*rules.names, name))
        for policy in self._given.policies:
            period = MostPerPeriod(
                participations=policy.participations, hours=policy.hours, period=policy.period
            )
            subject = Subject(self._trace, self._patterns, str)
            verdict = MostPerPeriodStatement().check(period, subject).verdict
            name = f"at most {period.text}"
            if verdict is not Verdict.HOLDS:
                shown = "broke" if verdict is Verdict.BROKEN else "cannot show"
                self.notes.append(f"The log {shown} {name}, which is in force: it does not count")
                continue
            rules = replace(rules.within(period), names=(*rules.names, name))
        return rules

    def _kept(
        self, later: LaterRules, begins: int
    ) -> list[tuple[str, tuple[int, int | None, float], bool]]:
        """Returns each rule with its words, its arguments of `stricter`, and whether the trace
        broke it in the rounds from `begins` on."""
        patterns = self._patterns
        found = []
        if later.round_separation is not None:
            least = later.round_separation
            is_broken = any(
                ((gaps < least) & (patterns.rounds[at] >= begins)).any()
                for gaps, at in patterns.pairs()
            )
            name = separation_name(least)
            found.append((name, (least, None, 0.0), is_broken))
        if later.max_participations is not None:
            most = later.max_participations
            last = patterns.rounds[patterns.starts + patterns.counts - 1]
            is_broken = bool(((patterns.counts > most) & (last >= begins)).any())
            name = cap_name(most)
            found.append((name, (1, most, 0.0), is_broken))
        if later.timer_hours is not None:
            name = f"a timer of {later.timer_hours:g} h"
            waits = waits_between(self._trace, patterns)
            if waits is None:
                self.notes.append(
                    f"The log has no times of devices, so {name}, in force, cannot be checked and "
                    "does not count"
                )
                return found
            is_broken = any(
                (is_too_short(seconds, later.timer_hours) & (rounds[:, 1] >= begins)).any()
                for seconds, _, rounds in waits
            )
            found.append((name, (1, None, 3600.0 * later.timer_hours), is_broken))
        return found

    def adoption(self, changes: Sequence[Change], first: int | None) -> str | None:
        """Returns lines of TOML that put the first of some changes in force, with the rules that
        are; None if it has neither rules nor a list.

        Args:
            changes: the changes.
            first: number of the next round; None if unknown.
        """
        if not changes or first is None or not changes[0].is_enough:
            return None
        change = changes[0]
        added = LaterRules(
            timer_hours=change.timer_hours,
            round_separation=change.separation,
            max_participations=change.max_participations,
        )
        if added == LaterRules() and change.first is None and change.most_per_period is None:
            return None
        lines = [] if self._given is not None or self._is_log else ["[participation]"]
        whole = None if self._given is None else self._given.whole
        lines += [] if whole is None else _toml(whole)
        policies = () if self._given is None else self._given.policies
        periods = [(each.participations, each.hours) for each in policies]
        if change.most_per_period is not None:
            periods.append((change.most_per_period.participations, change.most_per_period.hours))
        if periods:
            lines.append(f"policies = [{', '.join(_period(*each) for each in periods)}]")
        later = _toml(_stricter(self._later or LaterRules(), added))
        has_list = change.first is not None or self._listed is not None
        lines += [f"from_round = {first}"] if later or has_list else []
        lines += ['hold = "hold.csv"'] if has_list else []
        lines += [f"later = {{ {', '.join(later)} }}"] if later else []
        return "\n".join(lines)

    def waiting(self, rules: RulesAhead) -> Waiting:
        """Returns the devices of the list in force; none count of a list that the trace broke.

        Args:
            rules: rules with the times of rounds to come, if these are known.

        Raises:
            InputError: the numbers of the log's rounds do not increase.
        """
        hold, patterns = self._hold, self._patterns
        nobody = Waiting(np.zeros(patterns.counts.size, np.int64), listed=self._listed)
        if hold is None:
            return nobody
        all_names = _names(self._trace, patterns.device_ids)
        places = pc.call_function(
            "index_in", [pa.array(hold.device_ids, pa.string())], pc.SetLookupOptions(all_names)
        )
        is_seen = places.is_valid().to_numpy(zero_copy_only=False)
        seen = places.drop_null().to_numpy()
        first = nobody.first.copy()
        first[seen] = self._first(hold, rules)[is_seen].astype(np.int64)
        devices, participations = self._breaking(hold, first, seen, hold.first[is_seen])
        if participations:
            self.notes.append(
                f"The list in force ensures nothing: {counted(devices, 'device')} broke it, in "
                f"{counted(participations, 'participation')}"
            )
            return nobody
        if hold.by == "first_round" and isinstance(self._trace, ImportedTrace):
            self.notes.append(RoundNumbers(self._trace, "in_force").assumption)
        unseen = tuple(str(hold.device_ids[at]) for at in np.flatnonzero(~is_seen).tolist())
        if unseen:
            devices = counted(len(unseen), "device")
            self.notes.append(f"The list in force names {devices} without a participation")
        return Waiting(first, unseen, self._listed)

    def _breaking(
        self, hold: Hold, first: Int64Array, seen: Int64Array, own: Float64Array
    ) -> tuple[int, int]:
        """Returns the number of devices that broke a list, and that of their participations.

        Args:
            hold: the list.
            first: first round of each device of the trace, [P].
            seen: places of devices of the list, [S].
            own: their entries of the list, [S].
        """
        patterns = self._patterns
        if hold.by == "first_round":
            until = np.minimum(first, LAST_ROUND).astype(np.float64)
            ids = np.repeat(patterns.device_ids, patterns.counts)
            parts = [(patterns.rounds, ids, patterns.rounds)]
        else:
            # A round has participations at different times, so each device's own ones count.
            until = np.full(first.size, -np.inf)
            until[seen] = own - _origin(self._trace)
            parts = times_of(self._trace, patterns) or ()
        devices = participations = 0
        for at, device_ids, rounds in parts:
            is_early = at < until[np.searchsorted(patterns.device_ids, device_ids)]
            is_early &= rounds >= (self._begins or 0)
            # Parts have whole devices.
            devices += np.unique(device_ids[is_early]).size
            participations += int(is_early.sum())
        return devices, participations

    def _first(self, hold: Hold, rules: RulesAhead) -> Float64Array:
        """Returns the first round of each device of a list, [H], at most NEVER."""
        if hold.by == "first_round":
            numbers = RoundNumbers(self._trace, "in_force")
            return np.minimum(numbers.first_from(hold.first), NEVER)
        times = rules.times or round_times(self._trace)
        assert times is not None  # Times of devices are known, so those of rounds are too.
        # Without a pace no round to come is known to be early; with one, the slowest counts.
        until = np.maximum.accumulate(times[1])
        found = np.searchsorted(until, hold.first - _origin(self._trace), side="left")
        return np.where(np.isinf(hold.first), NEVER, found.astype(np.float64))


def _list_of(file: str) -> Hold:
    """Reads a list in force. Raises InputError."""
    try:
        return read_hold(Path(file))
    except InputError as error:
        raise InputError.of("in_force", error.value, error.rule, error.remedy) from None
