"""Lines of a ledger, a table for each kind."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AwareDatetime, Field, TypeAdapter, ValidationError

from fedray.base.errors import InputError
from fedray.base.mistakes import refused
from fedray.base.table import Positive, Table
from fedray.mechanisms.accounting.limits import LEAST_DELTA

MOST_AMOUNT = 1e100
"""Largest amount that a ledger takes; sums of larger ones might overflow."""
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Amount = Annotated[float, Field(ge=0, le=MOST_AMOUNT)]
"""rho, epsilon, or a number of answers."""
Release = Literal["gaussian", "zcdp", "pure"] | dict[str, Any]
"""Meaning of amounts: "gaussian" for the rho of a server's Gaussian noise, "zcdp" for the rho of
noise that devices add, "pure" for epsilon at delta 0, or the event of one answer, whose amounts are
numbers of answers."""
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$"
"""Pattern of the name of a release."""
Window = Annotated[str, Field(pattern=r"^\d{4}(-\d\d(-\d\d)?|-W\d\d|-Q[1-4])?$")]


class _Line(Table):
    refusal: ClassVar[type[InputError]] = InputError

    written: AwareDatetime = Field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))


class Budget(_Line):
    """The first line: what every unit may spend in every window."""

    kind: Literal["budget"] = "budget"
    format: Literal[3]
    """Form of the lines; charge the runs of a ledger of another form to a new ledger."""
    epsilon: Annotated[Positive, Field(le=1e6)]
    delta: Annotated[float, Field(ge=LEAST_DELTA, lt=1)]
    period: Literal["day", "week", "month", "quarter", "year"]
    unit: Literal["device", "person"]
    observer: Literal["models", "operator"] = "models"
    """Party against whom privacy is spent: whoever gets the models and answers, or the operator of
    the server."""
    ensured: Annotated[
        dict[str, Any] | None,
        # Left out without a claim, so that releases without such claims read the line.
        Field(exclude_if=lambda ensured: ensured is None),
    ] = None
    """Claim that every run must ensure, as run.json records it."""


class Promise(Table):
    """Worst case of a reserved run in one window, for every unit; a run has one for each model and
    each question."""

    release: Release = "gaussian"
    amount: Amount


class Spent(Table):
    """Privacy that units spent in one window on a model, or on the answers to a question."""

    release: Release
    file: Digest
    """Name and digest of the file of the units."""
    enforced: Amount | None
    """Largest amount by the rules of the run; None if they enforce nothing."""


class Vocabulary(Table):
    """A private vocabulary. Its answers may be of any unit, so its event counts for every unit, in
    every window of the runs that use it, once for all of them."""

    run: Digest
    """Digest of the scenario whose run found the words."""
    sha256: Digest
    """SHA-256 of the words."""
    event: dict[str, Any]
    """Most that a unit spent on it."""


class Reserved(_Line):
    """A run that is about to start."""

    kind: Literal["reserved"] = "reserved"
    run: Digest
    """Digest of the scenario."""
    start: date
    """Day on which the run starts (UTC)."""
    noise: tuple[str, ...]
    """Seeds and kinds of device of the noise of all tasks; equal texts mean equal draws."""
    vocabularies: tuple[Vocabulary, ...]
    """Private vocabularies of its data."""
    windows: dict[Window, tuple[Promise, ...]]


class Charged(_Line):
    """A version of a release. A unit spent the largest rho of its versions."""

    kind: Literal["charged"] = "charged"
    name: Annotated[str, Field(pattern=NAME)]
    """Name of the release, which its versions share."""
    run: Digest
    """Digest of the scenario of a run or training, or of a log's mechanism and noise."""
    trace: Digest
    """Digest of the participations; of a log, however its ids are written."""
    identity: Digest
    """Digest of all by which releases differ: run, participations, times, devices and owners,
    noise, and the hardware of a training."""
    first: AwareDatetime | None
    """Time of the first participation in a log; None if times are unknown."""
    last: AwareDatetime | None
    """Time of the last one."""
    start: date | None
    """Day on which a run started (UTC); None for a log with times."""
    noise: tuple[str, ...]
    """As in `Reserved`; empty for a log, whose noise is unknown."""
    columns: Annotated[int, Field(ge=1)]
    """Number of columns of a log that name a unit; 1 for a run."""
    are_distinct: bool
    """Whether ids of the log that share a key were stated to be distinct units."""
    vocabularies: tuple[Vocabulary, ...]
    """Private vocabularies of its data."""
    closes: int | None = None
    """Line of the reservation that this charge ends."""
    windows: dict[Window, tuple[Spent, ...]]

    def may_be(self, other: "Charged") -> bool:
        """Whether two logs may be of one release: the same mechanism, noise and participations, at
        times that overlap or are unknown."""
        if (self.run, self.trace) != (other.run, other.trace):
            return False
        if not (self.first and self.last and other.first and other.last):
            return True
        return self.first <= other.last and other.first <= self.last


class Cancelled(_Line):
    """The end of a reservation of a run that released nothing, or nothing new."""

    kind: Literal["cancelled"] = "cancelled"
    closes: int


Line = Budget | Reserved | Charged | Cancelled
_LINE: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Field(discriminator="kind")])


def read_lines(file: str, entries: Sequence[Mapping[str, Any]]) -> tuple[Line, ...]:
    """Returns the lines of a ledger.

    Args:
        file: name of the file in messages.
        entries: its JSON lines, with their digests.

    Raises:
        InputError: a line has a wrong key or value, is out of place, or closes no open reservation.
    """
    lines: list[Line] = []
    reserved: set[int] = set()
    for number, entry in enumerate(entries, 1):
        content = {key: entry[key] for key in entry if key not in ("digest", "previous")}
        source = f"{file}, line {number}"
        try:
            # Only from JSON do strict tables take dates as text and tuples as lists.
            line = _LINE.validate_json(json.dumps(content))
        except ValidationError as error:
            raise refused(InputError, source, error, Line, content) from None
        closes = getattr(line, "closes", None)
        closes_nothing = closes is not None and closes not in reserved
        if isinstance(line, Budget) != (number == 1) or closes_nothing:
            raise InputError(f"{source}: it is out of place; restore the ledger from a copy")
        reserved.discard(closes or 0)
        if isinstance(line, Reserved):
            reserved.add(number)
        lines.append(line)
    return tuple(lines)
