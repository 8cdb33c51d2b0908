"""Progress of a long computation, for whatever displays it: a line of text with the share done."""

from typing import Self


class PartDone(str):
    """A line of progress that knows how much is done, so that the time left can be estimated.

    It is the line itself: listeners that want nothing but text take it as any other.
    """

    share: float
    """Share of the work that is done, from 0 to 1."""
    is_least: bool
    """Whether more may be done than the share says, as when a search may end early."""

    def __new__(cls, text: str, done: float, count: float, is_least: bool = False) -> Self:
        """Returns a line of progress.

        Args:
            text: the text.
            done: units finished.
            count: units in all; positive.
            is_least: whether `done` is a lower bound.
        """
        line = super().__new__(cls, text)
        line.share = done / count
        line.is_least = is_least
        return line
