"""The pace of work, from which its remaining time is estimated."""

from collections import deque

WINDOW_SECONDS, WINDOW_SHARE, SECONDS_APART = 60.0, 0.25, 0.5
"""The pace is that of the last minute or quarter of the time, whichever is longer, from reports
that are half a second apart."""


class Pace:
    """The pace of the recent part of some work.

    The mean since the beginning would follow a lasting change so slowly that the estimate rises for
    as long as the work goes on. What was done before the first report does not count.
    """

    def __init__(self) -> None:
        self._begun = 0.0
        self._reports: deque[tuple[float, float]] = deque()

    def seconds_left(self, now: float, done: float, count: float) -> float | None:
        """Returns an estimate of the remaining time, or None before the first progress.

        Args:
            now: time of this report, seconds of a clock that is never set.
            done: work done, in any unit; at least as much as in the report before.
            count: total work, in the same unit.
        """
        reports = self._reports
        if not reports:
            self._begun = now
        if not reports or now >= reports[-1][0] + SECONDS_APART:
            reports.append((now, done))
        earliest = now - max(WINDOW_SECONDS, WINDOW_SHARE * (now - self._begun))
        # A window without progress reaches back to the last one.
        while len(reports) > 1 and reports[1][0] <= earliest and reports[1][1] < done:
            reports.popleft()
        since, done_then = reports[0]
        return (count - done) * (now - since) / (done - done_then) if done > done_then else None
