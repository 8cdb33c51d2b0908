"""Dynamic program over the continuations of banded strategies. Its state is the recent rounds of a
device: those within reach of the bands, and those that bar later rounds.

V_t(s, l) = max(V_(t+1)(s, l), G[t, t] + 2 sum over x in s of G[x, t] + V_(t+1)(s + t, l - 1)), with
the second term only if s allows round t and l >= 1 participations are left. It is exact for G >= 0.
"""

from dataclasses import dataclass, field

import numpy as np

from fedray.base.arrays import BoolArray, Float64Array, Int64Array, UInt8Array
from .future import Barred
from .past_groups import Group, Part, PastGroups, ranks
from .sensitivity import PatternSensitivities

MOST_STATES = 10_000_000
"""Number of states, over all rounds, up to which the program takes seconds and 400 MB."""
MOST_VALUES = 400_000_000
"""The same for states times numbers of participations left."""
MOST_GROUPS = 1_000_000
"""Largest number of groups of devices."""
LONG_BANDS, SHORT_FUTURE = 256, 24
"""Bands from which on the state is most of the pattern, and the number of rounds up to which the
program runs all the same."""


@dataclass(slots=True)
class _Step:
    """Transitions of the states [S] before round t."""

    gains: Float64Array
    """Gain of taking part in round t, [S]."""
    skipped: Int64Array
    """State before round t + 1 without it, [S]."""
    taken: Int64Array
    """The same with it, [S]; -1 if it is not allowed."""
    is_taken: UInt8Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    """Best decisions, as bits of [S, values of l]."""


class RecentRounds:
    """The program for one set of rules.

    Args:
        sensitivities: sensitivities of the strategy over R rounds.
        bands: columns at least this far apart are orthogonal.
        rules: the rules from now on.
    """

    theorem = "dynamic program over the rounds within reach of the bands and of the rules"

    def __init__(self, sensitivities: PatternSensitivities, bands: int, rules: Barred) -> None:
        self._sensitivities = sensitivities
        self._bands = bands
        self._rules = rules
        self._groups = PastGroups(MOST_GROUPS)
        # As rounds pass, a round may only become less recent among a device's rounds.
        self._reach = np.maximum.accumulate(rules.barred[::-1])[::-1]
        self._longest = rules.least_lags.size
        self._is_short = bands <= LONG_BANDS or rules.rounds - rules.released <= SHORT_FUTURE

    def add(self, part: Part) -> None:
        """Takes devices with equally many participations."""
        if not self._is_short or self._groups.is_full:
            return
        recent = part.rounds.copy()
        self._forget(recent, part.entries[:, None])
        recent = recent[:, (recent >= 0).any(axis=0)]
        left = self._rules.left(part.rounds.shape[1])
        left = self._longest if left is None else min(left, self._longest)
        # Devices that never return differ in their pasts only.
        recent[part.entries >= self._rules.rounds] = -1
        lefts = np.full(len(recent), left)
        self._groups.add(part, np.column_stack([part.entries, lefts, recent]))

    def best(self) -> tuple[float, Group, list[int], str] | None:
        """Returns the largest square, the device that attains it, its continuation, and the
        theorem; None if there are too many states."""
        if not self._is_short or self._groups.is_full:
            return None
        groups = list(self._groups)
        entering = self._entering(groups)
        steps = self._forward(entering)
        if steps is None:
            return None
        # Without a binding cap the number of participations left does not matter.
        lefts = np.array([group.key[1] for group in groups])
        has_cap = bool((lefts < self._longest).any())
        width = self._longest + 1 if has_cap else 1
        if width * sum(step.gains.size for step in steps) > MOST_VALUES:
            return None
        columns = lefts if has_cap else np.zeros_like(lefts)
        squares = np.array([group.square for group in groups])
        self._backward(steps, width, has_cap, groups, columns, squares)
        place = int(squares.argmax())
        later = self._followed(steps, width, groups[place], int(columns[place]))
        return float(squares[place]), groups[place], later, self.theorem

    def _forget(self, rounds: Int64Array, now: Int64Array | int) -> None:
        """Replaces the rounds [N, K] of a pattern, or its latest ones, that no round from `now` on
        depends on by -1."""
        for q in range(1, rounds.shape[1] + 1):
            column = rounds[:, rounds.shape[1] - q]
            at = now if isinstance(now, int) else now[:, 0]
            is_far = column <= at - self._bands
            if q <= len(self._reach):
                is_far &= self._reach[q - 1, column] <= at
            column[is_far] = -1

    def _entering(self, groups: list[Group]) -> dict[int, list[int]]:
        entering: dict[int, list[int]] = {}
        for place, group in enumerate(groups):
            if group.key[0] < self._rules.rounds:
                entering.setdefault(group.key[0], []).append(place)
        self._places = entering
        self._states: dict[int, Int64Array] = {}
        self._recent = [group.key[2:] for group in groups]
        return entering

    def _forward(self, entering: dict[int, list[int]]) -> list[_Step] | None:
        """Finds the states that occur before each round from r on, and their transitions."""
        r, n = self._rules.released, self._rules.rounds
        states = np.empty((0, 1), np.int64)
        steps: list[_Step] = []
        total = 0
        kept = np.empty(0, np.int64)
        for t in range(r, n):
            # Devices enter when they may take part again.
            old = len(states)
            states = _widened(states, [self._recent[place] for place in entering.get(t, [])])
            first, rank = ranks(states)
            if t > r:
                steps[-1].skipped = rank[: steps[-1].skipped.size]
                is_allowed = kept >= 0
                taken = np.full(kept.size, -1)
                taken[is_allowed] = rank[kept[is_allowed]]
                steps[-1].taken = taken
            self._states[t] = rank[old:]
            states = states[first]
            total += len(states)
            if total > MOST_STATES:
                return None
            gains, is_allowed = self._gains(states, t)
            chosen = np.flatnonzero(is_allowed)
            joined = np.column_stack([states[chosen], np.full(chosen.size, t)])
            skipped = np.column_stack([np.full(len(states), -1), states])
            kept = np.full(len(states), -1)
            kept[chosen] = len(states) + np.arange(chosen.size)
            states = np.concatenate([skipped, joined])
            self._forget(states, t + 1)
            states = states[:, _first_used(states) :]
            steps.append(_Step(gains, np.arange(len(gains)), kept))
        # After the last round there is one state, of value 0.
        if steps:
            last = steps[-1]
            last.skipped = np.zeros_like(last.skipped)
            last.taken = np.where(last.taken >= 0, 0, -1)
        return steps

    def _gains(self, states: Int64Array, t: int) -> tuple[Float64Array, BoolArray]:
        """Returns the gain of round t in each state [S, K], and whether it is allowed."""
        at = np.full(len(states), t)
        gains = np.abs(self._sensitivities.entries(at, at))
        is_allowed = np.ones(len(states), np.bool_)
        for q in range(1, states.shape[1] + 1):
            column = states[:, -q]
            is_known = np.flatnonzero(column >= 0)
            known = column[is_known]
            if known.size:
                entries = self._sensitivities.entries(known, at[is_known])
                gains[is_known] += 2.0 * np.abs(entries)
                if q <= len(self._rules.barred):
                    is_allowed[is_known] &= self._rules.barred[q - 1, known] <= t
        return gains, is_allowed

    def _backward(
        self,
        steps: list[_Step],
        width: int,
        has_cap: bool,
        groups: list[Group],
        columns: Int64Array,
        squares: Float64Array,
    ) -> None:
        """Adds the largest gain to the square of each group, and notes all best decisions."""
        del groups
        values = np.zeros((1, width))
        for t in range(self._rules.rounds - 1, self._rules.released - 1, -1):
            step = steps[t - self._rules.released]
            without = values[step.skipped]
            allowed = np.flatnonzero(step.taken >= 0)
            taking = values[step.taken[allowed]] + step.gains[allowed, None]
            if has_cap:
                taking = np.column_stack([np.full(allowed.size, -np.inf), taking[:, :-1]])
            is_taken = np.zeros(without.shape, np.bool_)
            is_taken[allowed] = taking > without[allowed]
            without[allowed] = np.maximum(without[allowed], taking)
            step.is_taken = np.packbits(is_taken)
            values = without
            places = np.array(self._places.get(t, []), np.int64)
            squares[places] += values[self._states[t], columns[places]]

    def _followed(self, steps: list[_Step], width: int, group: Group, column: int) -> list[int]:
        """Returns the best continuation of a group."""
        r, n = self._rules.released, self._rules.rounds
        entry = group.key[0]
        if entry >= n:
            return []
        place = next(
            i for i, each in enumerate(self._places[entry]) if self._recent[each] == group.key[2:]
        )
        state = int(self._states[entry][place])
        later: list[int] = []
        for t in range(entry, n):
            step = steps[t - r]
            bit = state * width + column
            if step.is_taken[bit >> 3] >> (7 - (bit & 7)) & 1:
                later.append(t)
                state = int(step.taken[state])
                column = max(0, column - 1)
            else:
                state = int(step.skipped[state])
        return later


def _widened(states: Int64Array, rows: list[tuple[int, ...]]) -> Int64Array:
    """Returns states [S, K] with more rows, aligned at their last rounds, in as many columns as
    needed."""
    width = max([states.shape[1], *map(len, rows)])
    found = np.full((len(states) + len(rows), width), -1)
    found[: len(states), width - states.shape[1] :] = states
    for place, row in enumerate(rows, start=len(states)):
        if row:
            found[place, width - len(row) :] = row
    return found


def _first_used(states: Int64Array) -> int:
    """Returns the first column of states [S, K] that has a round, at most the last column."""
    is_used = (states >= 0).any(axis=0)
    return min(int(is_used.argmax()) if is_used.any() else len(is_used), len(is_used) - 1)
