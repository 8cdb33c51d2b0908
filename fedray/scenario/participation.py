"""The table `participation`: when a device may take part again."""

from typing import Annotated, Literal

from pydantic import Field

from fedray.table import Share, Table


class Participation(Table):
    """When a device may take part again."""

    timer_hours: Annotated[float, Field(ge=0, le=87_840)] = 72.0
    """Hours that must pass before a device may be selected again; 0 for none."""
    round_separation: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Least difference between the numbers of two rounds of one device, which it remembers; 0 for
    none."""
    timer_resets_on: Literal["accepted", "reported", "selected"] = "accepted"
    """What starts the timer: its report is accepted; it reports at all (late included); it is
    selected."""
    max_participations: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """Most contributions of a device, which counts its accepted reports and never takes part again
    after that many; none: no cap. Reports accepted in rounds that were abandoned later count too,
    since the device cannot know. Devices that ignore the timer keep the cap."""
    timer_violators: Share = 0.0
    """Stress: share of devices that ignore the timer."""
    clock_skew_hours: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """Stress: standard deviation of the error of a device's timer, hours (normal, the same in all
    rounds of a device)."""

    @property
    def timer_seconds(self) -> float:
        """What the timer should be, in seconds."""
        return 3600.0 * self.timer_hours
