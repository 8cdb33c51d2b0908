"""Time that a selected device needs (Bonawitz et al. 2019; rates and spreads as in `Latency`).

    seconds = slowdown * (setup + secagg + download + upload + train * device speed * round factor *
    (1 + examples / median) / 2)

Half of the training time grows with the device's examples, half is fixed cost (loading, compiling).
The round factor and failures are drawn per attempt, only for selected devices
(server/rounds/rounds.py). The class of a device (`population.classes`) may have its own setup, and
factors on its training time and its rates.
"""

from typing import NamedTuple

import numpy as np

from fedray.base.arrays import Float32Array, Float64Array, Int64Array, UInt64Array
from fedray.base.compiled import njit
from fedray.scenario import Scenario
from fedray.wire.device_classes import DeviceClasses, class_of, classes_of
from .data.source import ExampleSource
from .population import DeviceModel, speed_of

MEDIAN_DEVICES = 4096
"""Number of devices, from id 0 on, whose median number of examples stands for that of all devices
when the data determines how many each one has."""


class LatencyModel(NamedTuple):
    """Numbers of a scenario's latency table by class; all times include the slowdown."""

    devices: DeviceModel
    """Devices of the scenario."""
    classes: DeviceClasses
    """Their classes."""
    examples_median: float
    """Median number of examples on a device."""
    setup_seconds: Float64Array
    """[K]; time before training starts, and of secure aggregation."""
    train_seconds: Float64Array
    """[K]; median training time at the median number of examples."""
    download_seconds: Float64Array
    """[K]; download time of the model at the median rate."""
    upload_seconds: Float64Array
    """[K]; upload time of the model at the median rate."""

    @classmethod
    def of(cls, scenario: Scenario, source: ExampleSource) -> "LatencyModel":
        """Compiles the table `latency`; `source` gives the numbers of examples."""
        table = scenario.latency
        classes = classes_of(scenario)
        # Every figure includes the slowdown, so that kernels can ignore it.
        megabytes = table.slowdown * table.model_megabytes
        setups = [each.setup_seconds for each in classes]
        # A class may have a setup of its own; the rest of the table is the scenario's.
        tables = [
            table if setup is None else table.model_copy(update={"setup_seconds": setup})
            for setup in setups
        ]
        fixed_seconds = [each.fixed_seconds for each in tables]
        train_factors = [each.train_time_factor for each in classes]
        downlinks = [each.downlink_factor for each in classes]
        uplinks = [each.uplink_factor for each in classes]
        return cls(
            devices=DeviceModel.of(scenario),
            classes=DeviceClasses.of(scenario),
            examples_median=_examples_median(scenario, source),
            setup_seconds=table.slowdown * np.array(fixed_seconds),
            train_seconds=table.slowdown * table.train_seconds * np.array(train_factors),
            download_seconds=megabytes / table.downlink_megabytes_per_second / np.array(downlinks),
            upload_seconds=megabytes / table.uplink_megabytes_per_second / np.array(uplinks),
        )


def _examples_median(scenario: Scenario, source: ExampleSource) -> float:
    if scenario.data.draws_counts:
        return scenario.population.examples_median
    devices = min(MEDIAN_DEVICES, scenario.device_ids)
    first_ones = np.arange(devices, dtype=np.uint64)
    counts = source.examples_on(first_ones)
    # It is a divisor, and half of the clients may be empty.
    return max(1.0, float(np.median(counts)))


@njit(cache=True, nogil=True)
def work_seconds(
    model: LatencyModel,
    device_ids: UInt64Array,
    examples: Int64Array,
) -> tuple[Float32Array, Float32Array]:
    """Returns the seconds [A] of setup and transfers of devices [A] with examples [A], and the
    seconds [A] of training, which the round factor scales."""
    # Arrays are taken out of tuples once: compiled code counts references wherever it reaches into
    # a tuple.
    devices, classes, examples_median, setup, train, download, upload = model
    key, edges = classes
    fixed = np.empty(device_ids.size, np.float32)
    training = np.empty(device_ids.size, np.float32)
    for asked in range(device_ids.size):
        speed, downlink, uplink = speed_of(devices, device_ids[asked])
        own = class_of(key, edges, device_ids[asked])
        download_seconds = download[own] / downlink
        upload_seconds = upload[own] / uplink
        fixed[asked] = setup[own] + download_seconds + upload_seconds
        amount = examples[asked] / examples_median
        # A guess: no published figure separates starting up and reading from computing.
        # Half of the time is fixed, half grows with the examples.
        training[asked] = train[own] * speed * 0.5 * (1.0 + amount)
    return fixed, training


@njit(cache=True, nogil=True)
def upload_seconds(model: LatencyModel, device_ids: UInt64Array) -> Float32Array:
    """Returns the upload times [A] of devices [A]: the last part of the fixed seconds of
    `work_seconds`."""
    devices, classes, _, _, _, _, upload = model
    key, edges = classes
    seconds = np.empty(device_ids.size, np.float32)
    for asked in range(device_ids.size):
        _, _, uplink = speed_of(devices, device_ids[asked])
        own = class_of(key, edges, device_ids[asked])
        seconds[asked] = upload[own] / uplink
    return seconds
