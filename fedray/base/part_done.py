"""Progress of a long computation, for any display: lines of text, some with the share done."""

from typing import Self


class Announcement(str):
    """A line that stays on the screen, such as how long a study will take."""

    __slots__ = ()


class PartDone(str):
    """A line of progress that knows the share done, so that the remaining time can be estimated.
    Listeners that only want text can use it as a string."""

    share: float
    """Share of the work that is done, from 0 to 1."""
    is_least: bool
    """Whether more may be done than the share says, for instance if a search may end early."""

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
