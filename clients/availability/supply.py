"""Number of devices eligible at once, estimated before a run: shows whether the population
suffices."""

from typing import NamedTuple

import numpy as np

from fedray.base.arrays import Int64Array, UInt64Array
from fedray.scenario import Scenario
from fedray.wire.device_classes import DeviceClasses, classes_on
from ..population import DeviceModel, Presence, are_usable, devices_of_ranks
from .factory import availability_of
from .intervals import DAY, HOUR
from .model import Listing

SAMPLE_DEVICES = 10_000
"""Smallest sample of a population that has more devices."""


class Supply(NamedTuple):
    """Devices eligible at once at the full hours of the first week; estimates from a fixed
    sample."""

    least: int
    """Number at the hour with the fewest."""
    mean: int
    """Mean over all hours."""
    most: int
    """Number at the hour with the most."""
    by_hour: tuple[int, ...]
    """Mean number at each hour of the day in UTC, from 0:00 on, over the week."""


def eligible_at_once(scenario: Scenario) -> Supply:
    """Estimates the supply of devices present at the start, whatever their timers.

    Raises:
        ScenarioError: see `Availability.list_intervals`.
    """
    sample = _sample(scenario)
    per_sampled = scenario.population.devices / sample.size
    counts = per_sampled * _counts_at_full_hours(scenario, sample)
    return Supply(
        least=round(float(counts.min())),
        mean=round(float(counts.mean())),
        most=round(float(counts.max())),
        by_hour=tuple(counts.reshape(7, 24).mean(axis=0).round().astype(int).tolist()),
    )


def eligible_share_by_class(scenario: Scenario) -> list[float]:
    """Returns the mean share of each class's devices that are eligible at once, as
    `eligible_at_once` samples them; 0 for a class without a device in the sample."""
    sample = _sample(scenario)
    own_class = classes_on(DeviceClasses.of(scenario), sample)
    shares: list[float] = []
    for place, of_class in enumerate(scenario.of_classes):
        own = sample[own_class == place]
        mean = float(_counts_at_full_hours(of_class, own).mean())
        shares.append(mean / max(1, own.size))
    return shares


def _sample(scenario: Scenario) -> UInt64Array:
    """Returns devices of the start, evenly spaced, all if there are few."""
    devices = scenario.population.devices
    # The standard error of a share of 5 % is then 0.2 percentage points.
    stride = max(1, devices // SAMPLE_DEVICES)
    # By join ranks, because the first ids of each block are present first.
    ranks = np.arange(0, devices, stride)
    return devices_of_ranks(Presence.of(scenario).order, ranks).astype(np.uint64)


def _counts_at_full_hours(scenario: Scenario, sample: UInt64Array) -> Int64Array:
    """Counts the usable devices of a sample that are eligible at each hour of the first week."""
    usable = sample[are_usable(DeviceModel.of(scenario), sample)]
    week = Listing(usable, np.zeros(usable.size), 0.0, 7.0 * DAY)
    found = availability_of(scenario).list_intervals(week)
    hours = HOUR * np.arange(7 * 24)
    # A device's intervals are apart, so each start less each end counts one eligible device.
    starts = np.sort(found.start_times)
    ends = np.sort(found.end_times)
    begun = np.searchsorted(starts, hours, side="right")
    ended = np.searchsorted(ends, hours, side="right")
    return begun - ended
