"""Search for the least report goal that meets a target, one simulated goal at a time."""

import math

PRECISION = 0.02
"""Relative distance where a search ends, between a failing goal and one that meets the target or
starves."""
GROWTH = 2.0


class GoalSearch:
    """The least report goal of one timer that meets the target: steps by factors of two either way,
    then bisection between a goal that fails and one that meets the target or starves."""

    def __init__(self, least: int, most: int, first: int) -> None:
        self._least = least
        self._most = most
        self._first = first
        # Largest goal that failed, smallest that met the target, smallest that starved; 0 for none.
        self._low = self._high = self._starving = 0

    def next_goal(self) -> int | None:
        """Returns the goal to simulate next, or None when the search is over."""
        # A goal that starves bounds the search as one that meets the target does.
        top = self._high or self._starving
        if not self._low and not top:
            return self._first
        # Nothing has failed yet, so a smaller goal may do as well.
        if not self._low:
            smaller = max(self._least, round(top / GROWTH))
            return smaller if top > self._least else None
        if not top:
            larger = min(self._most, round(self._low * GROWTH))
            return larger if self._low < self._most else None
        # Goals are whole numbers, so neighbours have nothing between them.
        if top <= self._low * (1 + PRECISION) or top - self._low < 2:
            return None
        # Bisection of the logarithm, as precision is relative.
        return round(math.sqrt(self._low * top))

    def learn(self, goal: int, meets: bool, starves: bool) -> None:
        """Takes the outcome of a goal."""
        if meets:
            self._high = goal
        elif starves and not self._high:
            self._starving = goal
        else:
            # A goal that starves below one that meets the target is noise of the search: it fails.
            self._low = goal

    @property
    def top(self) -> int:
        """End of the goals that are left to try, or 0 once one has met the target."""
        return 0 if self._high else self._starving or self._most

    @property
    def most_left(self) -> float:
        """Most goals left to simulate, once the search bisects; infinite before."""
        top = self._high or self._starving
        if not self._low or not top:
            return math.inf
        parts = min(top - self._low, math.log(top / self._low) / math.log1p(PRECISION))
        return math.ceil(math.log2(max(1.0, parts)))

    def allows(self, goal: int) -> bool:
        """Whether the population can serve a goal that is not known to starve at this timer."""
        return goal <= self._most and not 0 < self._starving <= goal
