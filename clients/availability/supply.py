"""How many devices are eligible at once, said before a run: whether the population suffices is then
known at once."""

from typing import NamedTuple

import numpy as np

from clients.availability.registry import availability_of
from clients.availability.runs import DAY, HOUR
from clients.population import are_reachable, device_model, devices_of_ranks, presence_of
from fedray.scenario import Scenario

SAMPLE_DEVICES = 10_000
"""At least so many devices are looked at, where there are so many."""


class Supply(NamedTuple):
    """Devices that are eligible at once at the full hours of the first week: fewest, mean, most.
    Estimates from a fixed sample."""

    least: int
    mean: int
    most: int


def eligible_at_once(scenario: Scenario) -> Supply:
    """The supply of the devices that are there at the start, whatever their timers say. Raises
    ScenarioError as the models do."""
    devices = scenario.population.devices
    stride = max(1, devices // SAMPLE_DEVICES)
    sample = devices_of_ranks(presence_of(scenario).order, np.arange(0, devices, stride)).astype(
        np.uint64
    )
    usable = sample[are_reachable(device_model(scenario), sample)]
    runs = availability_of(scenario).list_runs(usable, np.zeros(usable.size), 0.0, 7.0 * DAY)
    hours = HOUR * np.arange(7 * 24)
    begun, over = (
        np.searchsorted(np.sort(times), hours, side="right") for times in (runs.start, runs.end)
    )
    counts = stride * (begun - over)
    return Supply(int(counts.min()), round(float(counts.mean())), int(counts.max()))
