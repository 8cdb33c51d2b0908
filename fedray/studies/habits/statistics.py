"""The statistics by which a log and simulated devices are compared, and their covariance.

Every statistic is a smooth function of means over devices, except the shares of the most eligible
devices. So the bootstrap over devices (Efron 1979) takes one product of matrices.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedray.base.arrays import Float64Array
from fedray.base.rng import Stream, stream_generator
from fedray.studies.habits.columns import (
    COUNT_RATES,
    DAY_RATES,
    GAP_HOURS,
    NIGHT_SHARES,
    RUN_HOURS,
    Columns,
)

BOOTSTRAP_DRAWS = 1000
MOST_RESAMPLED = 20_000
"""Devices that are resampled; the covariance of a larger log is scaled down from these."""
TOP_SHARES = (0.1, 0.3)
"""Shares of the most active devices: their share of the total is a statistic."""
_CHUNK = 50
"""Bootstrap draws whose weights are in memory at once."""

Means = dict[str, Float64Array]
"""Means of columns over devices, by name: [..., width]."""
Statistics = list[tuple[str, Float64Array]]
"""Statistics [...] with their names."""


@dataclass(frozen=True)
class Summary:
    """Summary of a log or a simulation: the columns of its devices.

    Its `values` are fitted; `hours` and the like are shown on pages.
    """

    columns: Means
    """By name, [N, width] each."""
    total: Float64Array
    """[N]; hours or records of each device, which the shares of the top devices are about."""
    of_means: Callable[[Means], Statistics]
    """Statistics [...] by name, of means [..., width]."""

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.total.size

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the statistics, [M]."""
        # Names do not depend on weights, so any will do.
        own = [name for name, _ in self.of_means(self._means(np.ones((1, self.devices))))]
        return (*own, *(f"share of the top {share:.0%} of devices" for share in TOP_SHARES))

    @cached_property
    def values(self) -> Float64Array:
        """The statistics, [M]."""
        return self.resampled(np.ones((1, self.devices)))[0]

    def resampled(self, weights: Float64Array) -> Float64Array:
        """Returns the statistics [B, M] of bootstrap resamples of the devices.

        Args:
            weights: [B, N]; how often each device counts.
        """
        own = [value for _, value in self.of_means(self._means(weights))]
        return np.column_stack([*own, *self._top_shares(weights)])

    def covariance(self, seed: int) -> Float64Array:
        """Returns the covariance [M, M] of the statistics, by the bootstrap over devices."""
        generator = stream_generator(seed, Stream.LOG_BOOTSTRAP)
        devices = min(self.devices, MOST_RESAMPLED)
        chosen = generator.permutation(self.devices)[:devices]
        sample = Summary(
            {name: column[chosen] for name, column in self.columns.items()},
            self.total[chosen],
            self.of_means,
        )
        drawn = []
        for _ in range(BOOTSTRAP_DRAWS // _CHUNK):
            # A resample is known by how often each device was drawn.
            counts = generator.multinomial(devices, np.full(devices, 1.0 / devices), _CHUNK)
            drawn.append(sample.resampled(counts.astype(np.float64)))
        # The covariance of means falls as 1 / devices.
        return np.cov(np.concatenate(drawn), rowvar=False) * devices / self.devices

    def _means(self, weights: Float64Array) -> Means:
        shares = weights / weights.sum(axis=1, keepdims=True)
        return {name: shares @ column for name, column in self.columns.items()}

    def _top_shares(self, weights: Float64Array) -> list[Float64Array]:
        order = np.argsort(-self.total, kind="stable")
        in_order = weights[:, order]
        devices = np.cumsum(in_order, axis=1)
        held = np.cumsum(in_order * self.total[order], axis=1)
        shares = []
        for share in TOP_SHARES:
            # The share may end within a device, of which a part counts then.
            wanted = share * devices[:, -1]
            found = [
                np.interp(at, many, much)
                for at, many, much in zip(wanted, devices, held, strict=True)
            ]
            shares.append(np.array(found) / held[:, -1])
        return shares


def summary_of_intervals(sums: Columns, days: int, weekend_days: int) -> Summary:
    """Returns the statistics of a log of intervals, from `interval_sums` of its devices."""
    # The first day's night began before the log did, so the log has one night fewer than days.
    nights = sums["nights"][:, :1] / max(1, days - 1)
    by_day = sums["by_day"][:, :1] / days
    columns = {
        **sums,
        "night_shares": (nights > NIGHT_SHARES).astype(np.float64),
        "day_rates": (by_day > DAY_RATES).astype(np.float64),
        # Second moments show how unequal devices are, and whether nights and days are correlated.
        "products": np.concatenate([nights * by_day, by_day**2, nights**2], axis=1),
    }

    def of_means(means: Means) -> Statistics:
        runs = means["runs"]
        again, before = np.moveaxis(means["again"], -1, 0)
        count, logs, log_squares = np.moveaxis(means["by_day"], -1, 0)
        both, squares, night_squares = np.moveaxis(means["products"], -1, 0)
        night, day = means["nights"][..., 0] / max(1, days - 1), count / days
        mean = _ratio(logs, count)
        longer, durations = _ratio(means["longer"], runs), map(_duration, RUN_HOURS)
        return [
            *_by_two_hours("eligible at", means["hours"] / days),
            ("intervals per device and day", runs[..., 0] / days),
            ("share of days with any", means["with_any"][..., 0] / days),
            *_each("intervals longer than {}", durations, longer),
            ("eligible 24 h later, if eligible", _ratio(again, before)),
            *_weekend(means["week"], days, weekend_days),
            *_each("devices with nights > {:.0%}", NIGHT_SHARES, means["night_shares"]),
            *_each("devices with > {:g} intervals by day", DAY_RATES, means["day_rates"]),
            ("nights with intervals by day, relative", _ratio(both, night * day)),
            ("intervals by day squared, relative", _ratio(squares, day**2)),
            ("nights squared, relative", _ratio(night_squares, night**2)),
            *_of_nights(means["nights"]),
            ("log length by day", mean),
            ("log length by day, variance", _ratio(log_squares, count) - mean**2),
        ]

    return Summary(columns, sums["hours"].sum(axis=1), of_means)


def _of_nights(nights: Float64Array) -> Statistics:
    """Middles and lengths: mean, variance, and covariance of one night with the next."""
    # The order is that of the column.
    count, middles, middle_squares, logs, log_squares = np.moveaxis(nights[..., :5], -1, 0)
    pairs, middle_pairs, log_pairs, gaps, gap_hours, spans = np.moveaxis(nights[..., 5:], -1, 0)
    middle, logarithm = _ratio(middles, count), _ratio(logs, count)
    return [
        ("middle of nights", middle),
        ("middle of nights, variance", _ratio(middle_squares, count) - middle**2),
        ("middle of nights, covariance", _ratio(middle_pairs, pairs) - middle**2),
        ("log length of nights", logarithm),
        ("log length of nights, variance", _ratio(log_squares, count) - logarithm**2),
        ("log length of nights, covariance", _ratio(log_pairs, pairs) - logarithm**2),
        ("interruptions per hour of night", _ratio(gaps, spans)),
        ("hours of an interruption", _ratio(gap_hours, gaps)),
    ]


def summary_of_records(sums: Columns, days: int, weekend_days: int) -> Summary:
    """Returns the statistics of a log of moments, from `point_sums` of its devices."""
    records = sums["hours"].sum(axis=1)
    counts = records[:, None] / days
    count_columns = np.concatenate([counts > COUNT_RATES, counts**2], axis=1).astype(np.float64)

    def of_means(means: Means) -> Statistics:
        per_device = means["hours"].sum(axis=-1)
        counts, gaps, pairs = means["counts"], means["gaps"], means["pairs"]
        shorter, durations = _ratio(gaps[..., :-1], gaps[..., -1:]), map(_duration, GAP_HOURS)
        names = ("difference", "hours, cosine", "hours, sine")
        return [
            ("records per device and day", per_device / days),
            ("share of days with any", means["with_any"][..., 0] / days),
            ("records squared, relative", _ratio(counts[..., -1], (per_device / days) ** 2)),
            *_each("gaps shorter than {}", durations, shorter),
            *_each("devices with > {:g} records a day", COUNT_RATES, counts),
            # The number of records is a statistic already, so hours are shares of it.
            *_by_two_hours("records at", _ratio(means["hours"], per_device[..., None])),
            *_weekend(means["week"], days, weekend_days),
            *_each("days in succession: {}", names, _ratio(pairs[..., 1:], pairs[..., :1])),
        ]

    return Summary({**sums, "counts": count_columns}, records, of_means)


def _each(form: str, marks: Iterable[object], values: Float64Array) -> Statistics:
    """A statistic for each mark, of values [..., marks]."""
    return [(form.format(mark), values[..., place]) for place, mark in enumerate(marks)]


def _by_two_hours(what: str, hours: Float64Array) -> Statistics:
    return [
        (f"{what} {hour}:00-{hour + 2}:00", 0.5 * hours[..., hour : hour + 2].sum(-1))
        for hour in range(0, 24, 2)
    ]


def _weekend(week: Float64Array, days: int, weekend_days: int) -> Statistics:
    """Weekends relative to other days; empty if the log lacks either."""
    if not 0 < weekend_days < days:
        return []
    on_weekends = week[..., 0] / weekend_days
    on_others = week[..., 1] / (days - weekend_days)
    return [("a day of a weekend, relative", _ratio(on_weekends, on_others))]


def _ratio(above: Float64Array, below: Float64Array) -> Float64Array:
    """The ratio; 0 for an empty denominator, so that every log has a value."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _duration(hours: float) -> str:
    return f"{60 * hours:.0f} min" if hours < 1 else f"{hours:g} h"
