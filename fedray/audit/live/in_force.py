"""Rules that began after the first round: a list of devices that must wait, and rules beside it. A
simulated trace has them in its scenario (`participation.hold` and `later`), a log in a file of the
same words. A list or a rule that the trace broke since it began ensures nothing.

    from_round = 60                     # in the log's numbers
    hold = "hold.csv"                   # relative to this file
    later = { round_separation = 24 }
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from fedray.audit.guarantees import round_times
from fedray.audit.live.round_numbers import RoundNumbers
from fedray.audit.live.rules_ahead import RulesAhead
from fedray.audit.participation import Patterns
from fedray.base.arrays import BoolArray, Float64Array, Int64Array
from fedray.base.errors import InputError
from fedray.base.rounding import counted
from fedray.base.table import Table, read_table_file
from fedray.scenario import Scenario
from fedray.scenario.hold import LAST_ROUND, Hold, read_hold, write_hold
from fedray.scenario.participation import LaterRules
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace

NEVER = float(LAST_ROUND)
"""First round of a device that never comes back."""


class RulesInForce(Table):
    """Rules that a server has enforced since a round of a log."""

    from_round: Annotated[int, Field(ge=-(2**62), lt=2**62)]
    """Number of the first round to which they apply, as the log has it."""
    hold: str | None = None
    """Hold file of devices that must wait, named as in the log."""
    later: LaterRules | None = None
    """Rules beside those of the claim."""

    @model_validator(mode="after")
    def _has_a_rule(self) -> Self:
        if self.hold is None and self.later is None:
            raise ValueError("neither hold nor later is given; add one")
        return self


def read_in_force(path: Path) -> RulesInForce:
    """Reads rules in force from a TOML file. Raises InputError."""
    found = read_table_file(RulesInForce, path, "in_force")
    if found.hold is None:
        return found
    return found.model_copy(update={"hold": str(path.parent / found.hold)})


@dataclass(frozen=True, eq=False)
class Waiting:
    """Devices of a list, with the first round in which each may take part again."""

    first: Int64Array
    """First round of each device of the trace, [P]; 0 if the list does not name it."""
    unseen: tuple[tuple[str, float], ...] = ()
    """Names and first rounds of devices of the list that have not taken part yet."""

    @property
    def names(self) -> tuple[str, ...]:
        """The list in words; empty without one."""
        held = int((self.first > 0).sum()) + len(self.unseen)
        return (f"a list of {counted(held, 'device')} that must wait, in force",) if held else ()

    def joined(self, first: Int64Array | None) -> "Waiting":
        """Returns the list with longer waits [P]; None adds none."""
        if first is None:
            return self
        return replace(self, first=np.maximum(self.first, first))

    def write(self, file: Path, trace: Trace | ImportedTrace, patterns: Patterns, end: int) -> int:
        """Writes the devices that still wait.

        Args:
            file: the hold file.
            trace: the trace, whose names of devices and numbers of rounds the file has.
            patterns: devices of the trace, [P].
            end: planned number of rounds; a device that waits as long never comes back.

        Returns:
            Number of devices.

        Raises:
            InputError: numbers of rounds to come are unknown or too large, or the file cannot be
                written.
        """
        released = trace.committed_rounds
        places = np.flatnonzero(self.first > released)
        unseen = [each for each in self.unseen if each[1] > released]
        names = _names(trace, patterns.device_ids[places]).to_pylist()
        first = np.append(self.first[places], [int(each[1]) for each in unseen]).astype(np.int64)
        numbers = np.full(first.size, np.inf)
        is_back = first < end
        if is_back.any():
            numbers[is_back] = RoundNumbers(trace).of(first[is_back])
            # Such a number, if of a log, cannot be written as one of a hold file.
            if numbers[is_back].max() >= NEVER or numbers[is_back].min() < 0:
                rule = f"must have round numbers from 0 to {LAST_ROUND - 1}"
                raise InputError.of("hold", str(file), rule, "import the log with smaller ones")
        names += [each[0] for each in unseen]
        write_hold(file, Hold(names, numbers, "first_round"))
        return len(names)


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
        self._later: LaterRules | None = None
        self._begins: int | None = 0
        self.notes: list[str] = []
        """Remarks on rules that do not count."""
        if scenario is not None:
            if given is not None:
                raise InputError(
                    "in_force: rules of a simulated trace are in its scenario; leave it out"
                )
            self._of_scenario(scenario)
        elif given is not None:
            self._begins = RoundNumbers(trace).begins(given.from_round)
            self._later = given.later
            self._hold = None if given.hold is None else read_hold(Path(given.hold))
        number = None if given is None else given.from_round
        if self._begins is None:
            self.notes.append(
                f"Rules in force from round {number} do not count, as other rounds may come before"
            )
            self._hold = self._later = None

    def _of_scenario(self, scenario: Scenario) -> None:
        given = scenario.participation
        if given.hold is None:
            return
        if given.from_round > self._trace.committed_rounds:
            self.notes.append(
                f"The list begins with round {given.from_round} and is left out, as a bound"
            )
            return
        held = given.hold.devices
        is_time = bool(((held.first_times > 0) & np.isfinite(held.first_times)).any())
        first = held.first_times if is_time else held.first_rounds.astype(np.float64)
        first = np.where(np.isinf(held.first_times), np.inf, first)
        names = [str(each) for each in held.device_ids.tolist()]
        self._hold = Hold(names, first, "first_time" if is_time else "first_round")
        self._begins = given.from_round

    @property
    def has_times(self) -> bool:
        """Whether the list names times."""
        return self._hold is not None and self._hold.by == "first_time"

    def besides(self, rules: RulesAhead) -> RulesAhead:
        """Returns the rules of a claim with those in force beside them."""
        later = self._later
        if later is None or self._begins is None:
            return rules
        for name, value, is_broken in self._kept(later, self._begins):
            if is_broken:
                self.notes.append(f"The log broke {name}, which is in force, so it does not count")
                continue
            rules = rules.stricter(*value)
            rules = replace(rules, names=(*rules.names, f"{name}, in force"))
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
            name = f"a separation of {counted(least, 'round')}"
            found.append((name, (least, None, 0.0), is_broken))
        if later.max_participations is not None:
            most = later.max_participations
            last = patterns.rounds[patterns.starts + patterns.counts - 1]
            is_broken = bool(((patterns.counts > most) & (last >= begins)).any())
            name = f"at most {counted(most, 'participation')} of a device"
            found.append((name, (1, most, 0.0), is_broken))
        if later.timer_hours is not None:
            seconds = 3600.0 * later.timer_hours
            name = f"a timer of {later.timer_hours:g} h"
            found.append((name, (1, None, seconds), self._breaks_timer(seconds, begins)))
        return found

    def _breaks_timer(self, seconds: float, begins: int) -> bool:
        times = round_times(self._trace)
        if times is None:
            return False
        rounds = self._patterns.rounds
        return any(
            (
                (times[1][rounds[at]] - times[0][rounds[at - 1]] < seconds) & (rounds[at] >= begins)
            ).any()
            for _, at in self._patterns.pairs()
        )

    def waiting(self, rules: RulesAhead) -> Waiting:
        """Returns the devices of the list in force; none of a list that the trace broke.

        Args:
            rules: rules with the times of rounds to come, if these are known.

        Raises:
            InputError: the list names times, and the log has none.
        """
        nobody = Waiting(np.zeros(self._patterns.counts.size, np.int64))
        if self._hold is None or self._begins is None:
            return nobody
        names, own = self._hold.device_ids, self._first(self._hold, rules)
        all_names = _names(self._trace, self._patterns.device_ids)
        places = pc.call_function(
            "index_in", [pa.array(names, pa.string())], pc.SetLookupOptions(all_names)
        )
        is_seen = places.is_valid().to_numpy(zero_copy_only=False)
        first = nobody.first.copy()
        first[places.drop_null().to_numpy()] = own[is_seen].astype(np.int64)
        broken = self._breaking(first)
        if broken.any():
            devices = np.unique(self._patterns.devices_at(np.flatnonzero(broken))).size
            self.notes.append(
                f"The list in force ensures nothing: {counted(devices, 'device')} broke it, in "
                f"{counted(int(broken.sum()), 'participation')}"
            )
            return nobody
        unseen = [
            (str(names[place]), float(own[place])) for place in np.flatnonzero(~is_seen).tolist()
        ]
        if unseen:
            self.notes.append(
                f"The list in force names {counted(len(unseen), 'device')} without a participation"
            )
        return Waiting(first, tuple(unseen))

    def _breaking(self, first: Int64Array) -> BoolArray:
        """Whether each participation [A] is before the first round of its device [P]."""
        rounds, patterns = self._patterns.rounds, self._patterns
        is_early = rounds < np.repeat(np.minimum(first, LAST_ROUND), patterns.counts)
        return is_early & (rounds >= (self._begins or 0))

    def _first(self, hold: Hold, rules: RulesAhead) -> Float64Array:
        """Returns the first round of each device of a list, [H], at most NEVER."""
        if hold.by == "first_round":
            return np.minimum(RoundNumbers(self._trace).first_from(hold.first), NEVER)
        times = rules.times or round_times(self._trace)
        if times is None:
            rule = "names times, but the trace has none"
            raise InputError.of("hold", "first_time", rule, "give first_round")
        origin = 0.0
        if isinstance(self._trace, ImportedTrace):
            origin = (self._trace.run["times"] or {"origin": 0.0})["origin"]
        # Without a pace no round to come is known to be early; with one, the slowest counts.
        until = np.maximum.accumulate(times[1])
        found = np.searchsorted(until, hold.first - origin, side="left").astype(np.float64)
        return np.where(np.isinf(hold.first), NEVER, found)
