"""The tables `rounds` and `rounds.outages`: the server's rules for a round. Stored uploads are in
`uploads.py`."""

import itertools
import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedray.base.table import PositiveShare, Table
from fedray.scenario.buffer import Buffer
from fedray.scenario.uploads import Uploads

__all__ = [
    "AtLeastClosing",
    "GoalClosing",
    "Outage",
    "Rounds",
]


class Outage(Table):
    """A time during which the server accepts neither check-ins nor reports."""

    start_hours: Annotated[float, Field(ge=0, le=87_840)]
    """Start of the outage, hours since the start of the run."""
    hours: Annotated[float, Field(gt=0, le=87_840)]
    """Length of the outage, hours."""


class GoalClosing(Table):
    """A round closes with its report_goal-th report, and keeps exactly report_goal reports."""

    kind: Literal["goal"] = "goal"
    """Closing with exactly the goal."""


class AtLeastClosing(Table):
    """A round also keeps the reports beyond its goal that arrive before it closes."""

    kind: Literal["at_least"] = "at_least"
    """Closing with at least the goal."""
    open_minutes: Annotated[float, Field(gt=0, le=87_840)]
    """Minutes from its start for which a round stays open even if its goal is met, at most
    `report_timeout_minutes`. If the goal is met later, the round closes at once."""


AnyClosing = Annotated[GoalClosing | AtLeastClosing, Field(discriminator="kind")]


_OF_SELECTED_COHORTS = (
    "over_selection",
    "selection",
    "waiting_multiple",
    "selection_timeout_minutes",
    "start_share",
    "report_timeout_minutes",
    "closing",
    "min_minutes_between",
    "small_population",
    "together_minutes",
)
"""Keys for rounds that select their devices together and wait for them."""


class Rounds(Table):
    """The server's rules for a round."""

    mode: Annotated[
        Literal["on-device", "buffered", "upload-then-train"],
        # Left out at its default, so that scenarios without the key keep their digest.
        Field(exclude_if=lambda mode: mode == "on-device"),
    ] = "on-device"
    """Formation of rounds. `on-device` selects the devices of a round together. `buffered` starts
    each device when it checks in; a round is a buffer of report_goal reports. In
    `upload-then-train` the server draws rounds from stored uploads; of the keys for rounds on
    devices, only max_checkins_per_hour, outages, sampler, look_ahead_minutes and max_days apply."""
    buffer: Buffer | None = None
    """Table: how many devices train at once and how stale a report may be; only in mode
    buffered."""
    uploads: Uploads | None = None
    """Table: upload windows, and the schedule of stored uploads; only in the mode
    upload-then-train."""
    count: Annotated[int, Field(gt=0, lt=2**31)]
    """Number of rounds to commit."""
    report_goal: Annotated[int, Field(gt=0)]
    """Number of reports that close a round. Every committed round has exactly this many accepted
    updates, or at least this many if `closing` keeps more. With stored uploads, it is the number
    that the schedule cyclic draws, or the smallest that the schedule all takes, of which a tenth
    may be unresolved, or the expected number that the schedule poisson draws, which sets
    denominators."""
    over_selection: Annotated[float, Field(ge=1, le=10)] = 1.3
    """Number of devices that are selected per report needed."""
    selection_timeout_minutes: Annotated[float, Field(ge=1)] = 1440.0
    """Longest wait for enough devices. After it the round starts if at least report_goal devices,
    and at least `start_share` of the target, are waiting; otherwise it is abandoned."""
    selection: Annotated[
        Literal["first", "reservoir"],
        # Left out at its default, so that scenarios without the key keep their digest.
        Field(exclude_if=lambda selection: selection == "first"),
    ] = "first"
    """Selection rule. `first`: devices wait in order of arrival, and all that wait are selected.
    `reservoir`: more devices may wait; when the round can start, it draws its devices from them at
    random and sends the others away, which may check in again."""
    waiting_multiple: Annotated[float, Field(ge=1, le=100)] | None = None
    """Number of devices that may wait at once per device to select; only with selection =
    "reservoir". Default: 3."""
    start_share: PositiveShare | None = None
    """Smallest share of the devices to select that must be waiting for a round to start after the
    selection timeout. Default: report_goal devices are enough."""
    report_timeout_minutes: Annotated[float, Field(ge=1)] = 30.0
    """Longest wait for the reports; then the round is abandoned."""
    closing: AnyClosing | None = None
    """Table: when a round closes and which reports it keeps; its `kind` is goal (the default) or
        at_least."""
    min_minutes_between: Annotated[float, Field(gt=0, le=87_840)] | None = None
    """Smallest number of minutes from the start of a committed round to the start of the next;
    devices that check in earlier wait. 144 allows at most ten rounds a day. Default: a round starts
    as soon as it can."""
    max_checkins_per_hour: Annotated[float, Field(ge=0.01, le=60)] = 6.0
    """Largest number of check-ins of an eligible device per hour; pace steering asks for fewer if
    devices are plentiful."""
    pace_multiple: Annotated[float, Field(ge=1)] = 1.25
    """Check-ins that pace steering asks for per device that rounds at full speed could select."""
    small_population: Annotated[float, Field(ge=0)] = 20.0
    """Number of usable devices per device to select below which pace steering asks devices to check
    in together instead of spreading them."""
    together_minutes: Annotated[float, Field(ge=1)] = 10.0
    """Minutes at the start of a look-ahead window during which the devices of a small population
    are asked to check in."""
    outages: Annotated[tuple[Outage, ...], Field(strict=False)] = ()
    """Stress: times during which the server is down, in order and without overlap."""
    sampler: Literal["predicted", "enumeration", "thinning"] = "predicted"
    """Sampler of check-ins: the one that is predicted to cost less, or always the named one. Both
    draw the same process."""
    look_ahead_minutes: Annotated[float, Field(ge=1, le=360)] = 60.0
    """Length of the windows for which check-in rates are set and check-ins are drawn, minutes; it
    must divide a day."""
    max_days: Annotated[float, Field(gt=0, le=3660)] = 366.0
    """Simulated days after which a run that has not committed all its rounds ends as starved: no
    round is committed later. Upload windows must end by then."""
    max_starved_days: Annotated[
        float,
        # Left out at its default, so that scenarios without the key keep their digest.
        Field(gt=0, le=3660, exclude_if=lambda days: days == 30.0),
    ] = 30.0
    """Simulated days without a committed round after which a run ends as starved, counted from the
    time at which the next round may start. The waits of `participation` and
    selection_timeout_minutes are added to it."""

    @property
    def selection_target(self) -> int:
        """Number of devices that must be waiting for a round to start: report_goal x
        over_selection, rounded up; report_goal if uploads are stored."""
        if self.uploads is not None:
            return self.report_goal
        # Rounding first keeps float noise out: 100 x 1.1 is a little more than 110.
        return math.ceil(round(self.report_goal * self.over_selection, 9))

    @property
    def waiting_room(self) -> int:
        """Number of devices that may wait at once."""
        # "first" selects every device that waits, so no more devices wait.
        if self.selection == "first":
            return self.selection_target
        return math.ceil(round(self.selection_target * (self.waiting_multiple or 3.0), 9))

    @property
    def least_to_start(self) -> int:
        """Number of waiting devices that a round needs to start after the selection timeout."""
        share = self.start_share or 0.0
        # Fewer devices than the goal cannot commit a round, whatever the share.
        return max(self.report_goal, math.ceil(round(self.selection_target * share, 9)))

    @property
    def wanted_at_once(self) -> int:
        """Number of devices that the server wants at the same time: those selected for a round, or
        those in training."""
        return self.buffer.concurrency if self.buffer is not None else self.selection_target

    @property
    def max_staleness(self) -> int:
        """Largest number of versions by which a device's model may be older than the newest one."""
        return self.buffer.max_staleness if self.buffer is not None else 0

    @property
    def keeps_surplus(self) -> bool:
        """Whether a round may accept more than `least_accepted`."""
        if self.uploads is not None and self.uploads.takes_all:
            return True
        # With stored uploads a few may be unresolved, so the number accepted varies.
        return isinstance(self.closing, AtLeastClosing) or self.least_accepted < self.report_goal

    @property
    def sampling_probability(self) -> float | None:
        """Probability that a stored upload takes part in a round, independently of the others; None
        if cohorts are not Poisson samples."""
        return self.uploads.sampling_probability if self.uploads is not None else None

    @property
    def least_accepted(self) -> int:
        """Smallest number of accepted updates in a committed round; 0 for Poisson samples."""
        # A Poisson sample may be empty, and its round is committed anyway.
        if self.sampling_probability is not None:
            return 0
        if self.uploads is None:
            return self.report_goal
        return self.uploads.least_accepted(self.report_goal)

    @model_validator(mode="after")
    def _mode_has_its_table(self) -> Self:
        if self.mode == "buffered" and self.buffer is None:
            raise ValueError(
                "mode='buffered' needs the table buffer; add buffer = {concurrency = ..., "
                "max_staleness = ...}"
            )
        if self.mode == "upload-then-train" and self.uploads is None:
            raise ValueError(
                "mode='upload-then-train' needs the table uploads; give it window_hours and a "
                "schedule"
            )
        if self.mode != "buffered" and self.buffer is not None:
            raise ValueError(
                f"buffer is given with mode={self.mode!r}, which does not use it; leave it out, or "
                "set mode = 'buffered'"
            )
        if self.mode != "upload-then-train" and self.uploads is not None:
            raise ValueError(
                f"uploads: rounds.mode={self.mode!r} stores no uploads: devices choose when they "
                "take part, so no schedule draws them (and privacy is not amplified by sampling); "
                "use mode='upload-then-train', or leave the table out"
            )
        return self

    @model_validator(mode="after")
    def _uploads_fit_the_rounds(self) -> Self:
        uploads = self.uploads
        if uploads is None:
            return self
        # These keys are None unless given; `selection` is compared with its default.
        keys = ("closing", "start_share", "min_minutes_between")
        given = [key for key in keys if getattr(self, key) is not None]
        given += ["selection"] if self.selection != "first" else []
        if given:
            raise ValueError(
                f"{given[0]} is a rule for devices that wait and report, but "
                "mode='upload-then-train' draws stored uploads; leave it out"
            )
        # Check-ins are drawn for whole look-ahead windows, so no upload window may end within one.
        ahead = 60.0 * uploads.window_hours / self.look_ahead_minutes
        if ahead < 1 or abs(ahead - round(ahead)) > 1e-9:
            raise ValueError(
                f"uploads: window_hours={uploads.window_hours:g} must be a multiple of "
                f"look_ahead_minutes={self.look_ahead_minutes:g}; change one of the two"
            )
        if uploads.window_hours * uploads.windows > 24.0 * self.max_days:
            raise ValueError(
                f"uploads: windows={uploads.windows} of window_hours={uploads.window_hours:g} end "
                f"after max_days={self.max_days:g}; raise max_days, or lower windows"
            )
        # Uploads of a window without a round would be collected for nothing.
        if uploads.windows > self.count:
            raise ValueError(
                f"uploads: windows={uploads.windows} is more than count={self.count}, so some "
                "windows would have no round; lower windows"
            )
        if uploads.takes_all and uploads.windows != self.count:
            raise ValueError(
                f"uploads: schedule.kind='all' has one round per window, but count={self.count} "
                f"with windows={uploads.windows}; set both to the same number"
            )
        return self

    @model_validator(mode="after")
    def _buffered_rounds_select_nobody_together(self) -> Self:
        if self.buffer is None:
            return self
        fields = type(self).model_fields
        for key in _OF_SELECTED_COHORTS:
            # A recorded scenario has all keys, so the default itself must be accepted.
            if getattr(self, key) != fields[key].default:
                raise ValueError(
                    f"{key} is given with mode='buffered', which selects no devices together and "
                    "releases a buffer as soon as it is full; leave it out"
                )
        return self

    @model_validator(mode="after")
    def _only_a_reservoir_has_room(self) -> Self:
        if self.waiting_multiple is not None and self.selection == "first":
            raise ValueError(
                f"waiting_multiple={self.waiting_multiple:g}: with selection='first' only the "
                "devices to select wait; use selection='reservoir', or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _some_devices_more_may_start(self) -> Self:
        share = self.start_share
        # `least_to_start` would silently override such a share.
        if share is not None and self.selection_target * share < self.report_goal:
            raise ValueError(
                f"start_share={share:g} of {self.selection_target} devices to select is less than "
                f"report_goal={self.report_goal}, too few to commit a round; raise it, or leave it "
                "out"
            )
        return self

    @model_validator(mode="after")
    def _is_open_until_the_timeout_at_most(self) -> Self:
        closing = self.closing
        if isinstance(closing, AtLeastClosing):
            minutes = closing.open_minutes
            if minutes > self.report_timeout_minutes:
                raise ValueError(
                    f"closing: open_minutes={minutes:g} is more than "
                    f"report_timeout_minutes={self.report_timeout_minutes:g}, after which no "
                    "report is accepted; lower it, or raise the timeout"
                )
        return self

    @model_validator(mode="after")
    def _windows_divide_a_day(self) -> Self:
        windows = 1440.0 / self.look_ahead_minutes
        if abs(windows - round(windows)) > 1e-9:
            raise ValueError(
                f"look_ahead_minutes={self.look_ahead_minutes:g}: must divide the 1440 minutes of "
                "a day; use 30 or 60"
            )
        return self

    @model_validator(mode="after")
    def _outages_are_in_order(self) -> Self:
        for before, after in itertools.pairwise(self.outages):
            if after.start_hours <= before.start_hours + before.hours:
                raise ValueError(
                    f"outages: the outage at hour {after.start_hours:g} does not start after the "
                    f"end of the one at hour {before.start_hours:g}; put them in order, and join "
                    "those that touch"
                )
        return self
