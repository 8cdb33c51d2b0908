"""The table `rounds.uploads`: devices upload once, and a program on the server trains on stored
uploads."""

import math
from typing import Annotated, Literal

from pydantic import Field, Tag

from fedray.base.table import PositiveShare, Table, told_apart_by

__all__ = [
    "AllSchedule",
    "CyclicPoissonSchedule",
    "CyclicSchedule",
    "MinSepSchedule",
    "PoissonSchedule",
    "Uploads",
]

ONE_IN = 10
"""A round fails if more than one in this many of its uploads is unresolved."""


class CyclicSchedule(Table):
    """Groups of stored uploads that take turns.

    The uploads of a window are shuffled into `min_sep` groups of equal size; a remainder is in no
    group. Group r mod min_sep is eligible in round r, and report_goal of its uploads are drawn
    without replacement.
    """

    kind: Literal["cyclic"] = "cyclic"
    """Groups that take turns."""
    min_sep: Annotated[int, Field(ge=1, lt=2**31)]
    """Number of groups, and so the smallest difference between two round numbers of one upload."""


class PoissonSchedule(Table):
    """Every stored upload takes part in a round with the same probability, independently."""

    kind: Literal["poisson"] = "poisson"
    """Poisson samples."""
    probability: PositiveShare
    """Probability that an upload takes part in a round (q in McMahan et al. 2018)."""


class MinSepSchedule(Table):
    """Every stored upload takes part in a round with the same probability, independently, unless
    it did in one of the last min_sep - 1 rounds (b-min-sep sampling; Dong et al. 2026).

    A window begins in the stationary state, so that its rounds are equally large. With probability
    1 it is random allocation: a uniform first round, and every min_sep-th from there.
    """

    kind: Literal["min_sep"] = "min_sep"
    """Poisson samples of the uploads whose last round is min_sep rounds ago."""
    min_sep: Annotated[int, Field(ge=1, lt=2**31)]
    """Smallest difference between two round numbers of one upload."""
    probability: PositiveShare = 1.0
    """Probability that an upload takes part in a round in which it may."""


class CyclicPoissonSchedule(Table):
    """Partitions of the uploads that take turns, with a Poisson sample in every turn.

    Partition r mod partitions is eligible in round r, and each of its uploads takes part with the
    same probability, independently (Choquette-Choo et al. 2023, Algorithm 2).
    """

    kind: Literal["cyclic_poisson"] = "cyclic_poisson"
    """Poisson samples of partitions that take turns."""
    partitions: Annotated[int, Field(ge=1, lt=2**31)]
    """Number of partitions, and so the smallest difference between two round numbers of one upload.
    With at most as many bands in the mechanism, sampling amplifies its privacy."""
    probability: PositiveShare
    """Probability that an upload takes part in a round of its partition."""
    assignment: Literal["equal", "independent"]
    """Assignment to partitions. equal: the uploads of a window are shuffled into partitions of
    equal size, and a remainder is in none; the guarantee is for a device whose upload is replaced
    by an empty one. independent: every device is in one random partition for the whole run, so that
    its rounds of different windows are apart too; the guarantee is also for a device that is added
    or removed."""


class AllSchedule(Table):
    """Every stored upload takes part in the one round of its window, as in a question to devices.

    A window with fewer than report_goal uploads ends the run.
    """

    kind: Literal["all"] = "all"
    """All uploads of a window, in one round."""


AnySchedule = Annotated[
    Annotated[AllSchedule, Tag("all")]
    | Annotated[CyclicSchedule, Tag("cyclic")]
    | Annotated[CyclicPoissonSchedule, Tag("cyclic_poisson")]
    | Annotated[PoissonSchedule, Tag("poisson")]
    | Annotated[MinSepSchedule, Tag("min_sep")],
    told_apart_by("kind", "cyclic"),
]
"""Tables of schedules, distinguished by `kind`."""


class Uploads(Table):
    """Times at which devices upload, and the choice of stored uploads for a round.

    A device uploads at most once in a window, when it checks in and the policies of `participation`
    admit it; the time of its contribution is that of the upload. When the window is over, its share
    of the rounds is trained on its uploads.
    """

    window_hours: Annotated[float, Field(gt=0, le=87_840)]
    """Length of an upload window, hours; a multiple of rounds.look_ahead_minutes."""
    windows: Annotated[int, Field(ge=1, le=87_840)] = 1
    """Number of consecutive upload windows. The rounds are divided evenly between them; the first
    ones have one more if there is a remainder."""
    schedule: AnySchedule
    """Table: which uploads take part in a round; its `kind` is all, cyclic, cyclic_poisson, poisson
        or min_sep."""
    round_minutes: Annotated[float, Field(gt=0, le=87_840)] = 1.0
    """Minutes that an attempt at a round takes on the server."""
    keep_days: Annotated[
        float | None,
        # Left out at its default, so that scenarios without the key keep their digest.
        Field(gt=0, le=3660, exclude_if=lambda days: days is None),
    ] = None
    """Days after which a stored upload expires: a round that starts later never draws it. Default:
    uploads do not expire."""
    unresolved_share: Annotated[float, Field(ge=0, lt=1 / ONE_IN)] = 0.0
    """Stress: probability that an upload that was drawn cannot be read. A round with more than a
        tenth of such uploads fails, and is repeated with another draw."""

    @property
    def seconds(self) -> float:
        """Length of an upload window, seconds."""
        return 3600.0 * self.window_hours

    def rounds_of_windows(self, count: int) -> list[int]:
        """Returns the number of rounds of each window; they sum to `count`."""
        # The first windows get one more round each, until the remainder is used up.
        least, more = divmod(count, self.windows)
        return [least + (window < more) for window in range(self.windows)]

    @property
    def keep_seconds(self) -> float:
        """Seconds for which an upload is kept once it is complete; infinite if it does not
        expire."""
        return math.inf if self.keep_days is None else 86_400.0 * self.keep_days

    @property
    def takes_all(self) -> bool:
        """Whether every upload takes part, in the one round of its window."""
        return isinstance(self.schedule, AllSchedule)

    @property
    def groups(self) -> int:
        """Number of groups of uploads that take turns, or least difference between two rounds of an
        upload; 1 for plain Poisson samples and for all uploads."""
        match self.schedule:
            case CyclicSchedule() | MinSepSchedule():
                return self.schedule.min_sep
            case CyclicPoissonSchedule():
                return self.schedule.partitions
            case PoissonSchedule() | AllSchedule():
                return 1

    @property
    def keeps_groups(self) -> bool:
        """Whether a device is in the same group in every window."""
        schedule = self.schedule
        is_cyclic_poisson = isinstance(schedule, CyclicPoissonSchedule)
        return is_cyclic_poisson and schedule.assignment == "independent"

    @property
    def sampling_probability(self) -> float | None:
        """Probability that an upload of the group takes part in a round, independently of the
        others; None if rounds are not Poisson samples."""
        schedule = self.schedule
        is_fixed = isinstance(schedule, CyclicSchedule | AllSchedule)
        return None if is_fixed else schedule.probability

    def least_accepted(self, drawn: int) -> int:
        """Returns the smallest number of accepted uploads in a committed round that drew
        `drawn`."""
        # Without the stress every upload can be read, so every round accepts all that were drawn.
        return drawn - most_unresolved(drawn) if self.unresolved_share else drawn


def most_unresolved(drawn: int) -> int:
    """Returns the largest number of unresolved uploads in a round: a tenth, rounded down."""
    # Integer division has no rounding error.
    return drawn // ONE_IN
