"""The table `rounds.uploads`: devices upload once, and a program on the server trains on stored
uploads."""

from typing import Annotated, Literal

from pydantic import Field, Tag

from fedray.base.table import PositiveShare, Table, told_apart_by

__all__ = [
    "CyclicSchedule",
    "PoissonSchedule",
    "Uploads",
]

ONE_IN = 10
"""A round fails if more than one in this many of its uploads is unresolved."""


class CyclicSchedule(Table):
    """Groups of uploads that take turns.

    The uploads of a window are shuffled into `min_sep` groups of equal size; the rest are in no
    group. Group r mod min_sep is eligible in round r, and report_goal of its uploads are drawn
    without replacement.
    """

    kind: Literal["cyclic"] = "cyclic"
    """Groups in turn."""
    min_sep: Annotated[int, Field(ge=1, lt=2**31)]
    """Number of groups, and so the least difference between two rounds of one upload."""


class PoissonSchedule(Table):
    """Every stored upload takes part in a round with the same probability, independently."""

    kind: Literal["poisson"] = "poisson"
    """Poisson samples."""
    probability: PositiveShare
    """Probability with which an upload takes part in a round (q of McMahan et al. 2018)."""


AnySchedule = Annotated[
    Annotated[CyclicSchedule, Tag("cyclic")] | Annotated[PoissonSchedule, Tag("poisson")],
    told_apart_by("kind", "cyclic"),
]
"""Tables of schedules, distinguished by `kind`."""


class Uploads(Table):
    """Time of uploads, and the choice of stored uploads for a round.

    A device uploads at most once in a window, when it checks in and the policies of `participation`
    admit it; the upload is its contribution in time. When the window is over, its share of the
    rounds is trained on its uploads.
    """

    window_hours: Annotated[float, Field(gt=0, le=87_840)]
    """Length of an upload window, hours; whole look-ahead windows."""
    windows: Annotated[int, Field(ge=1, le=87_840)] = 1
    """Upload windows, one after the other. The rounds are divided evenly between them; the first
    ones have one more where that does not go out."""
    schedule: AnySchedule
    """Table: who takes part in a round; its `kind` is cyclic or poisson."""
    round_minutes: Annotated[float, Field(gt=0, le=87_840)] = 1.0
    """Minutes that an attempt at a round takes on the server."""
    unresolved_share: Annotated[float, Field(ge=0, lt=1 / ONE_IN)] = 0.0
    """Stress: probability with which an upload that was drawn cannot be read. A round with more
    than a tenth of such uploads fails, and is repeated with another draw."""

    @property
    def seconds(self) -> float:
        """Length of an upload window, seconds."""
        return 3600.0 * self.window_hours

    def rounds_of_windows(self, count: int) -> list[int]:
        """Returns the number of rounds of each window, of `count` in all."""
        least, more = divmod(count, self.windows)
        return [least + (window < more) for window in range(self.windows)]

    def least_accepted(self, drawn: int) -> int:
        """Fewest accepted uploads of a committed round that drew this many."""
        # Without the stress every upload can be read, so every round has all that were drawn.
        return drawn - most_unresolved(drawn) if self.unresolved_share else drawn


def most_unresolved(drawn: int) -> int:
    """Most unresolved uploads of a committed round: a tenth, rounded down."""
    # Whole numbers have no rounding error.
    return drawn // ONE_IN
