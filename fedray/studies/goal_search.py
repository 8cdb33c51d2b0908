"""Search for the least report goal that meets a target, one simulated goal at a time."""

import math

PRECISION = 0.02
"""Relative distance where a search ends, between a failing goal and one that meets the target or
starves."""
GROWTH = 2.0
MEETS, MISSES, STARVES = "meets", "misses", "starves"
"""Outcomes of a goal."""


class GoalSearch:
    """The least report goal of one timer that meets the target: steps by factors of two either way,
    then bisection between a goal that fails and one that meets the target or starves.

    A goal whose outcome follows from a simulated neighbour (`bound`) is not simulated, unless it is
    the answer. If a simulation contradicts a bound, bounds no longer count, and the search repeats
    its steps with simulated outcomes only.
    """

    def __init__(self, least: int, most: int, first: int) -> None:
        self._least = least
        self._most = most
        self._first = first
        # Largest goal that failed, smallest that met the target, smallest that starved; 0 for none.
        self._low = self._high = self._starving = 0
        self._simulated: dict[int, str] = {}
        # Largest goal known to miss, and smallest known to meet the target below one that did.
        self._misses: list[tuple[float, float]] = []
        self._meets: list[tuple[float, float]] = []
        self._has_bounds = True
        self.is_given_up = False
        """Whether no goal can meet the target, so that the search has ended early."""

    def next_goal(self) -> int | None:
        """Returns the goal to simulate next, or None when the search is over."""
        while not self.is_given_up:
            goal = self._step()
            if goal is None:
                # The answer is simulated, whatever bounds say.
                is_known = not self._high or self._high in self._simulated
                return None if is_known else self._high
            outcome = self._simulated.get(goal) or self._bounded(goal)
            if outcome is None:
                return goal
            self._take(goal, outcome)
        return None

    def learn(self, goal: int, outcome: str) -> None:
        """Takes the simulated outcome of a goal."""
        bounded = self._bounded(goal)
        self._simulated[goal] = outcome
        if bounded not in (None, outcome):
            self._has_bounds = False
            self._low = self._high = self._starving = 0
        else:
            self._take(goal, outcome)

    def bound(self, low: float, high: float, outcome: str) -> None:
        """Takes the outcome, MISSES or MEETS, of all goals from `low` to `high`."""
        if low <= high:
            (self._misses if outcome == MISSES else self._meets).append((low, high))

    @property
    def low(self) -> int:
        """Largest goal that failed so far; 0 if none has."""
        return self._low

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

    def may_take(self, goal: int) -> bool:
        """Whether a goal is one of the search's."""
        return self._least <= goal <= self._most

    def may_starve(self, goal: int) -> bool:
        """Whether a goal is above all simulated ones that did not starve."""
        served = (each for each, outcome in self._simulated.items() if outcome != STARVES)
        return goal > max(served, default=0)

    def _step(self) -> int | None:
        """Returns the next goal of the search, whose outcome may be known."""
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

    def _bounded(self, goal: int) -> str | None:
        if not self._has_bounds:
            return None
        known = {MISSES: self._misses, MEETS: self._meets}
        found = (o for o, of in known.items() if any(low <= goal <= high for low, high in of))
        return next(found, None)

    def _take(self, goal: int, outcome: str) -> None:
        if outcome == MEETS:
            self._high = goal
        elif outcome == STARVES and not self._high:
            self._starving = goal
        else:
            # A goal that starves below one that meets the target is noise of the search: it fails.
            self._low = goal
