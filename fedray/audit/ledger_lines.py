"""Lines of a ledger, a table for each kind, and the identity of a release."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AwareDatetime, Field, TypeAdapter, ValidationError

from fedray.base.errors import InputError
from fedray.base.mistakes import refused
from fedray.base.table import Positive, Table
from fedray.mechanisms.accounting.limits import LEAST_DELTA

FORMAT = 2
"""Version of the lines. Lines before it did not identify releases."""
MOST_RHO = 1e12
"""Largest rho that a ledger takes; sums of larger ones might overflow."""
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Rho = Annotated[float, Field(ge=0, le=MOST_RHO)]
Window = Annotated[str, Field(pattern=r"^\d{4}(-\d\d(-\d\d)?|-W\d\d|-Q[1-4])?$")]
Name = Annotated[str, Field(pattern=r"^\w[\w.:-]*$", max_length=100)]


class _Table(Table):
    refusal: ClassVar[type[InputError]] = InputError


class Release(_Table):
    """Everything by which one release of models is told from another.

    Two releases of simulated devices are independent if their noise differs. Noise of a log is
    unknown, so only its times, devices and owners show whether it is another release.
    """

    run: Digest
    """Digest of the scenario of a run or training, or of a log's mechanism and noise."""
    trace: Digest
    """Digest of the participations."""
    units: str
    """Digest of the devices and owners of a log; empty for simulated devices."""
    times: str
    """Digest of the rounds with their times."""
    first: AwareDatetime | None
    """Time of the first participation, or of the first release of a run; None for a log without
    times."""
    last: AwareDatetime | None
    """Time of the last participation, or of the last release of a run."""
    noise: str | None
    """Seed and kind of device of the noise; None for a log. Equal texts mean equal draws."""
    hardware: str
    """Devices on which a model was trained; its last bits depend on them. Empty without one."""

    @property
    def default_name(self) -> str:
        """Name of a release that was not given one."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:12]

    def may_be(self, other: "Release") -> bool:
        """Whether two releases of logs may be one: the same mechanism, noise and participations, at
        times that overlap or are unknown."""
        if (self.run, self.trace) != (other.run, other.trace):
            return False
        if self.first is None or self.last is None or other.first is None or other.last is None:
            return True
        return self.first <= other.last and other.first <= self.last

    def differences(self, other: "Release") -> str:
        """Returns in words what distinguishes two releases that may be one."""
        found = []
        if None in (self.first, other.first):
            found.append("times that are not known")
        elif (self.times, self.first, self.last) != (other.times, other.first, other.last):
            found.append("other times")
        if self.units != other.units:
            found.append("other devices or owners")
        return " and ".join(found)


class _Line(_Table):
    written: AwareDatetime = Field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))
    """Time of writing (UTC)."""


class Budget(_Line):
    """The first line: the budget of every unit in every window."""

    kind: Literal["budget"] = "budget"
    format: Literal[2] = FORMAT
    """Version of the lines."""
    epsilon: Annotated[Positive, Field(le=1e6)]
    """Epsilon that a unit may spend in a window, at delta."""
    delta: Annotated[float, Field(ge=LEAST_DELTA, lt=1)]
    """Delta of epsilon."""
    period: Literal["day", "week", "month", "quarter", "year"]
    """Length of a window."""
    unit: Literal["device", "person"]
    """Unit of privacy."""


class Promise(_Table):
    """Worst case of a reserved run in one window."""

    rho: Rho
    """Largest rho that a unit may spend."""
    is_gaussian: bool
    """Whether the server adds the noise."""


class Spent(_Table):
    """Privacy that units spent in one window of one release."""

    file: Digest
    """Name and digest of the file of the units."""
    is_gaussian: bool
    """Whether the server added the noise."""
    enforced: Rho | None
    """Largest rho by the rules of the run; None if they enforce nothing."""


class Reserved(_Line):
    """A run that is about to start."""

    kind: Literal["reserved"] = "reserved"
    run: Digest
    """Digest of the scenario."""
    start: date
    """Day on which the run starts (UTC)."""
    noise: tuple[str, ...]
    """Noise of each task, as in `Release.noise`."""
    windows: dict[Window, Promise]
    """Worst case in every window that the run may touch."""


class Charged(_Line):
    """A version of a release. A unit spent the largest rho of its versions."""

    kind: Literal["charged"] = "charged"
    name: Name
    """Name of the release, which all its versions have."""
    release: Release
    """Identity of the release."""
    start: date | None
    """Day on which a run started (UTC); None for a log with times."""
    closes: int | None = None
    """Line of the reservation that this charge ends."""
    windows: dict[Window, Spent]
    """Privacy spent by window."""


class Cancelled(_Line):
    """The end of a reservation of a run that released nothing, or nothing new."""

    kind: Literal["cancelled"] = "cancelled"
    closes: int
    """Line of the reservation."""


Line = Budget | Reserved | Charged | Cancelled
_LINE: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Field(discriminator="kind")])


def read_lines(file: str, entries: Sequence[Mapping[str, Any]]) -> tuple[Line, ...]:
    """Returns the lines of a ledger as tables.

    Args:
        file: name of the file in messages.
        entries: its JSON lines; digests are not part of the tables.

    Raises:
        InputError: a line has a wrong key or value, is out of place, or closes no open reservation.
    """
    lines: list[Line] = []
    is_open = set[int]()
    for number, entry in enumerate(entries, 1):
        content = {key: entry[key] for key in entry if key not in ("digest", "previous")}
        source = f"{file}, line {number}"
        if number == 1 and content.get("format") != FORMAT:
            raise InputError(
                f"{source}: the ledger has another format than this release writes ({FORMAT}), so "
                "its charges cannot be told apart; charge the runs to a new ledger"
            )
        try:
            # JSON has no dates and tuples; strict tables take them from text and lists there.
            line = _LINE.validate_json(json.dumps(content))
        except ValidationError as error:
            raise refused(InputError, source, error, Line, content) from None
        closes = getattr(line, "closes", None)
        if isinstance(line, Budget) != (number == 1) or closes not in {None, *is_open}:
            raise InputError(f"{source}: is out of place; restore the ledger from a copy")
        is_open.discard(closes or 0)
        if isinstance(line, Reserved):
            is_open.add(number)
        lines.append(line)
    return tuple(lines)
