"""Tables of the availability models, which determine when devices are eligible. The models
themselves are in `clients/availability`."""

import io
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Discriminator, Field, Tag, model_validator

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.table import Shape, Share, Spread, Table
from fedray.mechanisms.triangular import NPY_DAMAGE
from fedray.scenario.content import ContentFile, PythonFile

__all__ = [
    "AlwaysOn",
    "ChargingHabits",
    "ConditionsAvailability",
    "CustomAvailability",
    "HabitAvailability",
    "PoissonAvailability",
    "ReplayAvailability",
    "Uses",
    "WifiHabits",
]

DAY = 86_400.0


class AvailabilityTable(Table):
    """The table of an availability model; the key `model` selects it."""

    implementation: ClassVar[str]
    """`module:name` of the model: called with this table, the scenario's seed and the time zones of
    the devices, it returns an `Availability`."""
    can_be_thinned: ClassVar[bool] = True
    """Whether the model can determine for any moment whether a device is eligible, so that
    check-ins can be drawn by thinning."""
    has_propensities: ClassVar[bool] = False
    """Whether devices have a propensity to be eligible that rises with the third word of their draw
    at (0, 0) of `fedray.base.rng.Stream.HABIT`, so that other attributes can be correlated with it.
    """


class Habits(Table):
    """Sessions at night and by day, by each device's own habits; see
    clients/availability/habit_sessions.py."""

    night_propensity: Annotated[tuple[Shape, Shape], Field(strict=False)] = (0.78, 1.85)
    """Beta parameters (alpha, beta) of a device's probability that a night has an eligible
    session."""
    night_center_hours: float = 2.5
    """Mean midpoint of the night session, hours after local midnight."""
    night_center_between_hours: Annotated[float, Field(ge=0, le=6)] = 1.75
    """Standard deviation of the midpoint between devices, hours."""
    night_center_within_hours: Annotated[float, Field(ge=0, le=3)] = 0.65
    """Standard deviation of the midpoint between the nights of one device, hours."""
    night_length_hours: Annotated[float, Field(gt=0, le=24)] = 4.9
    """Median length of a night session, hours."""
    night_length_between: Spread = 0.85
    """Log-standard deviation of the night length between devices."""
    night_length_within: Spread = 0.36
    """Log-standard deviation of the night length between the nights of one device."""
    session_max_hours: Annotated[float, Field(gt=0, le=24)] = 12.0
    """Longest session of either kind, hours."""
    interruption_on_hours: Annotated[float, Field(ge=0.5)] = 8.0
    """Mean time between two interruptions of a night, hours (exponential)."""
    interruption_off_hours: Annotated[float, Field(ge=0, le=24)] = 0.4
    """Mean length of an interruption, hours (exponential)."""
    day_sessions: Annotated[float, Field(ge=0, le=4)] = 1.05
    """Mean number of daytime sessions, the daytime rate (Poisson, per device and day)."""
    day_habit_weight: Share = 0.55
    """Share of the daytime rate that is proportional to the night propensity; the rest is Gamma."""
    day_habit_shape: Shape = 0.35
    """Shape of the Gamma part (mean 1) of the daytime rate."""
    day_start_hours: Annotated[tuple[float, float], Field(strict=False)] = (7.5, 23.5)
    """Earliest and latest local start of a day session, hours (uniform)."""
    day_length_minutes: Annotated[float, Field(gt=0, le=1440)] = 38.0
    """Median length of a day session, minutes."""
    day_length_sigma: Spread = 0.72
    """Log-standard deviation of a day session's length."""
    weekend_factor: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Factor on night propensity and daytime rate on Saturdays and Sundays (day 0 is a Monday)."""

    @model_validator(mode="after")
    def _hours_fit_the_day(self) -> Self:
        first, last = self.day_start_hours
        if not 0 <= first < last <= 24:
            raise ValueError(
                f"day_start_hours={list(self.day_start_hours)}: must be two increasing hours "
                "between 0 and 24"
            )
        # The night of a day may start on the evening before, so its middle may be before midnight.
        if not -6 <= self.night_center_hours <= 8:
            raise ValueError(
                f"night_center_hours={self.night_center_hours}: must be from -6 to 8 hours after "
                "local midnight"
            )
        return self


class HabitAvailability(Habits, AvailabilityTable):
    """Nights on the charger and short sessions by day, by each device's own habits; see
    clients/availability/habit_sessions.py."""

    model: Literal["habit"] = "habit"
    """Name of the availability model."""
    implementation: ClassVar[str] = "fedray.clients.availability.habit:HabitAvailabilityModel"
    has_propensities: ClassVar[bool] = True


class ChargingHabits(Habits):
    """Times of charging, which use of the device (table `uses`) does not interrupt."""

    night_propensity: Annotated[tuple[Shape, Shape], Field(strict=False)] = (0.6, 1.3)
    """Beta parameters (alpha, beta) of a device's probability that it charges in a night."""
    night_center_between_hours: Annotated[float, Field(ge=0, le=6)] = 2.4
    """Standard deviation of the midpoint of the night's charging between devices, hours."""
    interruption_off_hours: Annotated[float, Field(ge=0, le=24)] = 0.0
    """Mean length of an interruption, hours (exponential)."""
    day_sessions: Annotated[float, Field(ge=0, le=4)] = 1.7
    """Mean number of times on the charger by day (Poisson, per device and day)."""
    day_habit_shape: Shape = 0.25
    """Shape of the Gamma part (mean 1) of the daytime rate."""
    day_length_minutes: Annotated[float, Field(gt=0, le=1440)] = 45.0
    """Median length of charging by day, minutes."""


class WifiHabits(Habits):
    """Times on unmetered wifi: at home from evening to morning, and elsewhere by day."""

    night_propensity: Annotated[tuple[Shape, Shape], Field(strict=False)] = (4.0, 0.6)
    """Beta parameters (alpha, beta) of a device's probability that a night is on wifi."""
    night_center_hours: float = 1.5
    """Mean midpoint of the night on wifi, hours after local midnight."""
    night_center_between_hours: Annotated[float, Field(ge=0, le=6)] = 1.5
    """Standard deviation of the midpoint between devices, hours."""
    night_center_within_hours: Annotated[float, Field(ge=0, le=3)] = 0.75
    """Standard deviation of the midpoint between the nights of one device, hours."""
    night_length_hours: Annotated[float, Field(gt=0, le=24)] = 13.0
    """Median length of a night on wifi, hours."""
    night_length_between: Spread = 0.25
    """Log-standard deviation of the night length between devices."""
    night_length_within: Spread = 0.1
    """Log-standard deviation of the night length between the nights of one device."""
    session_max_hours: Annotated[float, Field(gt=0, le=24)] = 20.0
    """Longest time on wifi of either kind, hours."""
    interruption_off_hours: Annotated[float, Field(ge=0, le=24)] = 0.0
    """Mean length of an interruption, hours (exponential)."""
    day_sessions: Annotated[float, Field(ge=0, le=4)] = 1.5
    """Mean number of times on wifi by day (Poisson, per device and day)."""
    day_start_hours: Annotated[tuple[float, float], Field(strict=False)] = (5.0, 16.0)
    """Earliest and latest local start of a time on wifi by day, hours (uniform)."""
    day_length_minutes: Annotated[float, Field(gt=0, le=1440)] = 480.0
    """Median length of a time on wifi by day, minutes."""


class Uses(Table):
    """Uses of a device, during which it is not idle: a Poisson process with one rate by day and one
    by night, the same for all devices."""

    per_hour_by_day: Annotated[float, Field(ge=0, le=6)] = 0.2
    """Mean number of uses that begin per hour by day."""
    per_hour_by_night: Annotated[float, Field(ge=0, le=6)] = 0.125
    """Mean number of uses that begin per hour at night."""
    minutes: Annotated[float, Field(gt=0, le=240)] = 24.0
    """Mean length of a use, minutes (exponential, plus two seconds)."""
    day_hours: Annotated[tuple[float, float], Field(strict=False)] = (7.5, 23.5)
    """Local hours at which the day begins and ends; the rest is night."""

    @model_validator(mode="after")
    def _hours_fit_the_day(self) -> Self:
        # The night is the rest of the local day, so the hours of the day must lie within one day.
        first, last = self.day_hours
        if not 0 <= first < last <= 24:
            raise ValueError(
                f"day_hours={list(self.day_hours)}: must be two increasing hours between 0 and 24"
            )
        return self


class ConditionsAvailability(AvailabilityTable):
    """A device is eligible while it charges, is on unmetered wifi and is idle. These are three
    processes, each with its own habits; see clients/availability/conditions.py."""

    model: Literal["conditions"] = "conditions"
    """Name of the availability model."""
    implementation: ClassVar[str] = "fedray.clients.availability.conditions:ConditionsModel"
    needs_charging: bool = True
    """Whether a device must be charging to be eligible."""
    needs_wifi: bool = True
    """Whether a device must be on unmetered wifi to be eligible."""
    needs_idle: bool = True
    """Whether a device must be idle to be eligible."""
    charging: ChargingHabits = ChargingHabits()
    """Table: when devices charge; the habit model's keys, with other defaults."""
    wifi: WifiHabits = WifiHabits()
    """Table: when devices are on unmetered wifi; the habit model's keys, with other defaults."""
    uses: Uses = Uses()
    """Table: when devices are in use and therefore not idle."""
    has_propensities: ClassVar[bool] = True

    @model_validator(mode="after")
    def _something_ends_intervals(self) -> Self:
        # Without any condition an interval has no end, and the code that follows it would not stop.
        if not (self.needs_charging or self.needs_wifi or self.needs_idle):
            raise ValueError(
                "needs_charging, needs_wifi and needs_idle are all false, so devices are always "
                "eligible; use model = 'always_on'"
            )
        # Only uses end an interval then, so their rate must be above 0 at every hour.
        least = min(self.uses.per_hour_by_day, self.uses.per_hour_by_night)
        if not (self.needs_charging or self.needs_wifi) and least == 0.0:
            raise ValueError(
                "uses: if devices only need to be idle, both rates must be above 0, or they stay "
                "eligible without end; raise per_hour_by_day and per_hour_by_night"
            )
        return self


class AlwaysOn(AvailabilityTable):
    """Every device is eligible at all times, as studies that sample clients assume."""

    model: Literal["always_on"] = "always_on"
    """Name of the availability model."""
    implementation: ClassVar[str] = "fedray.clients.availability.always_on:AlwaysOnModel"


class PoissonAvailability(AvailabilityTable):
    """Sessions that are equally likely to start at any time of the day, with the same rate for all
    devices: no habits, no daily rhythm."""

    model: Literal["poisson"] = "poisson"
    """Name of the availability model."""
    implementation: ClassVar[str] = "fedray.clients.availability.poisson:PoissonModel"
    sessions_per_day: Annotated[float, Field(gt=0, le=20)] = 2.0
    """Mean number of sessions that a device starts in a day (Poisson)."""
    session_minutes: Annotated[float, Field(gt=0, le=1440)] = 60.0
    """Mean length of a session, minutes (exponential, before it is cut to session_max_hours)."""
    session_max_hours: Annotated[float, Field(gt=0, le=48)] = 12.0
    """Longest session, hours; longer ones are cut."""

    @model_validator(mode="after")
    def _leaves_gaps(self) -> Self:
        # This is an upper bound, as cut lengths average below the cut and below the uncut mean.
        at_once = self.sessions_per_day * min(
            self.session_minutes / 1440.0, self.session_max_hours / 24.0
        )
        if at_once > 3.0:
            raise ValueError(
                f"sessions_per_day={self.sessions_per_day:g} of {self.session_minutes:g} minutes "
                f"overlap {at_once:.1f} times on average, more than 3, so a device is nearly "
                "always eligible; lower one of them, or use model always_on"
            )
        return self


class Recording:
    """Eligible sessions of recorded devices, as arrays [S] sorted by (device, start). Devices are
    numbered from 0."""

    def __init__(
        self,
        device: Int64Array,
        start: Float64Array,
        end: Float64Array,
        devices: int | None = None,
    ) -> None:
        self.device, self.start, self.end = device, start, end
        # Rows are sorted by device, so the last row has the highest number.
        self.devices = devices or int(device[-1]) + 1
        """Number of recorded devices: as given, or the number that have a session."""


class ReplayAvailability(ContentFile, AvailabilityTable):
    """A recorded on/off trace, which repeats after `period_days`. Device i replays the recorded
    device i modulo their number."""

    model: Literal["replay"] = "replay"
    """Name of the availability model."""
    implementation: ClassVar[str] = "fedray.clients.availability.replay:ReplayModel"
    file: Annotated[str, Field(min_length=1)]
    """A Parquet file with columns device, start and end, relative to the scenario's directory.
    Times are timestamps, or numbers of seconds since the midnight before the first session, to
    which timestamps are converted. They are read as the device's local time (as UTC if they name a
    zone), and the first day becomes the simulation's first Monday."""
    period_days: Annotated[int, Field(ge=1, le=3660)] | None = None
    """Number of days after which the recording repeats. Default: up to the end of the day on which
    the last session ends."""
    day_shift: Literal["none", "uniform"] = "none"
    """Whether each device's replay is shifted by a whole number of days, drawn uniformly below the
    period."""
    jitter_minutes: Annotated[float, Field(gt=0, le=1440)] | None = None
    """Upper end of the uniform distribution of each device's delay in its replay, minutes. Default:
    no delay, so devices that replay the same record come and go in the same second."""
    # Devices without a session matter: their replayed devices are never eligible.
    recorded_devices: Annotated[int, Field(ge=1, lt=2**32)] | None = None
    """Number of recorded devices, needed if some never had a session and so have no row; the file
    must then number its devices 0, 1, 2, ... Default: the number of devices in the file."""
    suffix: ClassVar[str] = ".npy"
    most_bytes: ClassVar[int] = 4 << 30

    @cached_property
    def recording(self) -> Recording:
        """The recorded sessions, in seconds since local midnight of the first day. Raises
        ValueError."""
        # The file may come with a stranger's trace, and a pickle in it could run code.
        try:
            rows = np.lib.format.read_array(io.BytesIO(self._content), allow_pickle=False)
        except NPY_DAMAGE as error:
            raise ValueError(f"file={self.file!r} is not a recording ({error})") from None
        if not _are_sessions(rows, self.recorded_devices):
            raise ValueError(
                f"file={self.file!r} is not a recording: it must have rows (device, start, end), "
                "sorted by device, with 0 <= start < end"
            )
        device, start, end = rows.T
        return Recording(device.astype(np.int64), start, end, self.recorded_devices)

    @property
    def period_seconds(self) -> float:
        """Time after which the recording repeats, seconds."""
        # Whole days keep the hours of the recording when it repeats.
        days = self.period_days or max(1, int(np.ceil(self.recording.end.max() / DAY)))
        return days * DAY

    def _canonical(self, path: Path) -> bytes:
        self._check_file(path)
        device, start, end = _read_sessions(path, self.file, self.recorded_devices)
        # The content has one order, so that files with the same rows shuffled have one digest.
        order = np.lexsort((start, device))
        buffer = io.BytesIO()
        # One array holds all columns. Float64 is exact for numbers of devices below 2^53.
        np.save(
            buffer, np.stack([device[order].astype(np.float64), start[order], end[order]], axis=1)
        )
        return buffer.getvalue()

    @model_validator(mode="after")
    def _has_its_devices(self) -> Self:
        # Inherited validators run first, so the file has been read here.
        highest = int(self.recording.device.max())
        if self.recorded_devices is not None and highest >= self.recorded_devices:
            raise ValueError(
                f"recorded_devices={self.recorded_devices}: the recording has device {highest}; "
                "raise recorded_devices"
            )
        return self

    @model_validator(mode="after")
    def _fits_its_period(self) -> Self:
        # A session beyond the period would overlap with the record's own repetition.
        last = float(self.recording.end.max())
        if last > self.period_seconds:
            raise ValueError(
                f"period_days={self.period_days}: the recording has a session that ends on day "
                f"{last / DAY:.2f}; raise the period"
            )
        return self


class CustomAvailability(PythonFile, AvailabilityTable):
    """The user's own function, in a Python file that imports all it needs.

    `runs(device_ids, low, high, seed, **parameters)` returns arrays [I] (index, start, end): the
    intervals of devices `device_ids` [N], uint64, that touch [low, high), seconds UTC. `index` is
    the position in `device_ids`; `start` and `end` are not cut to [low, high). Intervals are
    disjoint and sorted by (index, start). The function must be pure: a device has the same
    intervals in every call, whichever devices are queried with it. Reading a trace does not run it.
    """

    model: Literal["custom"] = "custom"
    """Name of the availability model."""
    implementation: ClassVar[str] = "fedray.clients.availability.custom:CustomModel"
    function: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = "runs"
    """Name of the function in the file."""
    parameters: dict[str, float | int | str | bool] = Field(default_factory=dict)
    """Keyword arguments that are passed to the function."""
    table: ClassVar[str] = "availability"
    # The user's function lists intervals only; it cannot be asked about single moments.
    can_be_thinned: ClassVar[bool] = False


def _model_name(value: Any) -> Any:
    # A table that is already an instance is validated again when it becomes part of a scenario.
    return value.get("model", "habit") if isinstance(value, dict) else getattr(value, "model", None)


Availability = Annotated[
    Annotated[HabitAvailability, Tag("habit")]
    | Annotated[ConditionsAvailability, Tag("conditions")]
    | Annotated[AlwaysOn, Tag("always_on")]
    | Annotated[PoissonAvailability, Tag("poisson")]
    | Annotated[ReplayAvailability, Tag("replay")]
    | Annotated[CustomAvailability, Tag("custom")],
    Discriminator(_model_name),
]
"""Table of any availability model; `model` distinguishes them and defaults to "habit"."""


def _read_sessions(
    path: Path, name: str, recorded_devices: int | None
) -> tuple[Int64Array, Float64Array, Float64Array]:
    """Returns (device, start, end) from a Parquet file. Devices are numbered in the order of their
    labels, or keep their numbers if `recorded_devices` is given. Raises ValueError."""
    # These imports take long, and only replays need them.
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix.lower() == ".csv":
        raise ValueError(
            f"file={name!r} is CSV; convert it to Parquet: pyarrow.parquet.write_table("
            "pyarrow.csv.read_csv(FILE), NEW)"
        )
    try:
        table = pq.read_table(path)
        # Chunks are joined, because a file of many row groups has its columns in parts.
        columns = [table.column(column).combine_chunks() for column in ("device", "start", "end")]
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        # Messages of pyarrow may have several lines, and an error of fedray has one.
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"file={name!r} is not a Parquet file with columns device, start, end ({reason})"
        ) from None
    if not table.num_rows or any(column.null_count for column in columns):
        raise ValueError(
            f"file={name!r} has no sessions, or empty cells; every row needs device, start and end"
        )
    start, end = _seconds(columns[1], columns[2], name)
    # NaN fails every comparison, so negating the whole rule refuses it too.
    wrong = ~((start >= 0) & (start < end) & np.isfinite(end))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"file={name!r}: row {row} runs from {start[row]:g} to {end[row]:g}; a session must "
            "start at 0 or later, and before it ends"
        )
    # Ranks would close the gaps left by devices without a session, so numbers are kept as they are.
    if recorded_devices is not None:
        if not pa.types.is_integer(columns[0].type):
            raise ValueError(
                f"recorded_devices={recorded_devices}: file={name!r} does not number its devices "
                "0, 1, 2, ...; number them, or leave the key out"
            )
        devices = columns[0].cast(pa.int64()).to_numpy()
        if devices.min() < 0:
            raise ValueError(f"file={name!r} has device {devices.min()}; device numbers start at 0")
        return devices, start, end
    encoded = columns[0].dictionary_encode()
    # Sorting the few labels is faster than sorting the rows, of which there may be millions.
    _, ranks = np.unique(encoded.dictionary.to_numpy(zero_copy_only=False), return_inverse=True)
    return ranks[encoded.indices.to_numpy()].astype(np.int64), start, end


def _are_sessions(rows: NDArray, recorded_devices: int | None) -> bool:
    """Whether an array has the form of a stored recording: [S, 3], sorted by device."""
    if rows.dtype != np.float64 or rows.ndim != 2 or rows.shape[1] != 3 or not rows.size:
        return False
    device, start, end = rows.T
    # Without a given number, devices are ranks, and every rank occurs.
    most = device.size if recorded_devices is None else 1 << 53
    numbers = np.isfinite(rows).all() and (device == np.floor(device)).all()
    in_order = device[0] >= 0 and (np.diff(device) >= 0).all() and device[-1] <= most
    return bool(numbers and in_order and ((start >= 0) & (start < end)).all())


def _seconds(start: Any, end: Any, name: str) -> tuple[Float64Array, Float64Array]:
    """Converts times [S], as pyarrow read them, to seconds since the recording's first midnight.
    Raises ValueError."""
    import pyarrow as pa

    # Whole microseconds are exact, while seconds since 1970 as floats are rounded.
    def microseconds(column: Any) -> Int64Array:
        return column.cast(pa.timestamp("us")).cast(pa.int64()).to_numpy()

    try:
        # A column of times beside one of numbers has no common zero, and the cast below refuses it.
        if pa.types.is_temporal(start.type) and pa.types.is_temporal(end.type):
            first, last = microseconds(start), microseconds(end)
            # Unix time has days of 86,400 seconds, so whole division finds the midnight before.
            midnight = int(first.min()) // (86_400 * 10**6) * (86_400 * 10**6)
            return (first - midnight) / 1e6, (last - midnight) / 1e6
        first, last = start.cast(pa.float64()).to_numpy(), end.cast(pa.float64()).to_numpy()
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"file={name!r}: start and end must both be timestamps, or both seconds since the "
            f"first midnight ({reason})"
        ) from None
    # NaN is ignored here, because the caller refuses it and names its row.
    earliest = float(np.nanmin(first, initial=np.inf))
    if DAY <= earliest < np.inf:
        raise ValueError(
            f"file={name!r}: the first session starts {earliest / DAY:.1f} days in, at "
            f"{earliest:g} s; subtract {earliest // DAY * DAY:.0f} from all times, or convert Unix "
            "times to timestamps"
        )
    return first, last
