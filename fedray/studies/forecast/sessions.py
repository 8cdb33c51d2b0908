"""Sessions of a server that stops at the same hours of each day, such as for maintenance.

After such a stop the first round starts at once, and the pace begins again, so distances between
rounds in expected rounds do not continue. Whole observed sessions are drawn with replacement
instead, and keep their hours.
"""

from dataclasses import dataclass

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array
from fedray.studies.forecast.history import DAY

LEAST_STARTS = 20
"""Least number of recent starts from which a stop is looked for."""
LEAST_SESSIONS = 4
LIKE = 0.1
"""Relative difference of the fitted rounds of two sessions that count as alike."""


@dataclass(frozen=True)
class Sessions:
    """Observed sessions between daily stops."""

    middle: float
    """Middle of the stop, in seconds of the day."""
    begins: float
    """Latest observed start before the stop, in seconds after the middle of the one before."""
    latest: float
    """Time before which the stop must have begun, or a session would have had another round."""
    days: Int64Array
    """Days of the whole sessions, [S]; a session begins in the middle of the stop of its day."""
    offsets: tuple[Float64Array, ...]
    """Starts of each, in seconds after its begin."""

    @classmethod
    def of(cls, at: Float64Array, since: float) -> "Sessions | None":
        """Returns the sessions of starts `at` [r]; None without a daily stop. It is the longest
        time of the day without a start after `since`, twice as long as any other such time and
        as two rounds are usually apart."""
        recent = at[at >= since]
        if recent.size < LEAST_STARTS:
            return None
        of_day = np.sort(recent % DAY)
        free = np.diff(of_day, append=of_day[0] + DAY)
        place = int(np.argmax(free))
        longest = float(free[place])
        others = max(float(np.delete(free, place).max()), float(np.median(np.diff(recent))))
        if longest <= 2 * others:
            return None
        middle = (float(of_day[place]) + longest / 2) % DAY
        day, offset = np.divmod(at - middle, DAY)
        day = day.astype(np.int64)
        is_during = (offset < longest / 2 - 1.0) | (offset > DAY - longest / 2 + 1.0)
        # Sessions since the stop exists; the first may have begun late, the last may not be over.
        first = int(day[is_during].max(initial=day[0])) + 1
        days = np.arange(first, int(day[-1]))
        offsets = tuple(offset[day == each] for each in days)
        if len(offsets) < LEAST_SESSIONS or min(each.size for each in offsets) < 2:
            return None
        ends = max(float(each[-1]) for each in offsets)
        latest = min(float(2 * each[-1] - each[-2]) for each in offsets)
        return cls(middle, ends, max(ends, latest), days, offsets)

    @property
    def levels(self) -> Float64Array:
        """Logarithm of the rounds of each session, [S]."""
        return np.log(np.array([each.size for each in self.offsets], np.float64))

    @property
    def words(self) -> str:
        """The stop in words."""
        from_, to = (
            (self.middle + each) % DAY / 3600.0
            for each in (self.begins, min(float(each[0]) for each in self.offsets))
        )
        return f"no rounds from {from_:.1f} h to {to:.1f} h of each day"

    def continued(
        self,
        last: float,
        count: int,
        observed: Float64Array,
        drawn: Float64Array,
        rng: np.random.Generator,
    ) -> Float64Array:
        """Returns the next `count` starts.

        Args:
            last: last start.
            count: number of starts.
            observed: fitted level of each session, [S].
            drawn: drawn level of each day from day 0 on, [D]; the last one holds on.
            rng: generator of the draws.
        """
        stop = self.begins + (self.latest - self.begins) * float(rng.random())
        day = int((last - self.middle) // DAY)
        parts, missing = [], count
        while missing > 0:
            level = float(drawn[min(day, drawn.size - 1)])
            apart = np.abs(observed - level)
            like = np.flatnonzero(apart <= apart.min() + LIKE)
            chosen = int(like[rng.integers(0, like.size)])
            offsets = self.offsets[chosen]
            factor = float(np.exp(observed[chosen] - level))
            begin = day * DAY + self.middle
            if begin + offsets[0] <= last:
                # The session of the last start goes on as another did at that time of the day.
                near = int(np.argmin(np.abs(offsets - (last - begin))))
                gaps = np.diff(offsets[near:])
                offset = last - begin
            else:
                offset = float(offsets[0])
                gaps = np.diff(offsets)
                parts.append(np.array([begin + offset]))
                missing -= 1
            # Quicker rounds than observed leave time for more of them.
            more = np.full(int(1 + max(0.0, 1 / factor - 1) * offsets.size), np.diff(offsets)[-1])
            starts = offset + factor * np.cumsum(np.concatenate([gaps, more]))
            parts.append(begin + starts[starts <= stop])
            missing -= parts[-1].size
            day += 1
        return np.concatenate(parts)[:count]
