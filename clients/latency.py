"""How long a selected device takes, as far as it is the device's own (Bonawitz et al. 2019; rates
and spreads as in `Latency`).

    seconds = slowdown * (setup + secagg + download + upload + train * device speed * round factor *
    (1 + examples / median) / 2)

Half of the training time is taken to grow with the device's examples, half to be fixed cost
(loading, compiling). The round factor and failures are drawn per attempt, for the selected alone
(server/rounds/rounds.py). The class of a device (`population.classes`) may have another setup, and
factors on its training time and its rates.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedray.clients.data.source import ExampleSource
from fedray.clients.population import DeviceModel, speed_of
from fedray.scenario import Scenario
from fedray.wire.device_classes import DeviceClasses, class_of, classes_of

MEDIAN_DEVICES = 4096
"""Devices, the first ones, whose median of examples is taken for that of all, where the data says
how many there are."""


class LatencyModel(NamedTuple):
    """What compiled code needs of a scenario's latency table; the slowdown is in all seconds.

    devices: of the scenario.
    classes: theirs.
    examples_median: median number of examples on a device.
    setup_seconds: [K]; before training starts, and of secure aggregation; by class.
    train_seconds: [K]; median training time at the median number of examples.
    download_seconds, upload_seconds: [K]; of the model, at the median rates.
    """

    devices: DeviceModel
    classes: DeviceClasses
    examples_median: float
    setup_seconds: NDArray[np.float64]
    train_seconds: NDArray[np.float64]
    download_seconds: NDArray[np.float64]
    upload_seconds: NDArray[np.float64]

    @classmethod
    def of(cls, scenario: Scenario, source: ExampleSource) -> "LatencyModel":
        """The compiled form of a scenario's latency table.

        Args:
            scenario: has the table.
            source: says how many examples devices have, which the training time grows with.
        """
        table, classes = scenario.latency, classes_of(scenario)
        # The slowdown is put into every figure here, so that kernels need not know of it.
        megabytes = table.slowdown * table.model_megabytes
        # A class may have a setup of its own; the rest of the table is the scenario's.
        fixed = [
            table.model_copy(update={"setup_seconds": each.setup_seconds})
            if each.setup_seconds is not None
            else table
            for each in classes
        ]
        train_factors = np.array([each.train_time_factor for each in classes])
        downlinks = np.array([each.downlink_factor for each in classes])
        uplinks = np.array([each.uplink_factor for each in classes])
        return cls(
            devices=DeviceModel.of(scenario),
            classes=DeviceClasses.of(scenario),
            examples_median=_examples_median(scenario, source),
            setup_seconds=np.array([table.slowdown * each.fixed_seconds for each in fixed]),
            train_seconds=table.slowdown * table.train_seconds * train_factors,
            download_seconds=megabytes / table.downlink_megabytes_per_second / downlinks,
            upload_seconds=megabytes / table.uplink_megabytes_per_second / uplinks,
        )


def _examples_median(scenario: Scenario, source: ExampleSource) -> float:
    if scenario.data.draws_counts:
        return scenario.population.examples_median
    devices = min(MEDIAN_DEVICES, scenario.device_ids)
    first_ones = np.arange(devices, dtype=np.uint64)
    counts = source.examples_on(first_ones)
    # Examples are divided by it, and half of the clients may be empty.
    return max(1.0, float(np.median(counts)))


@njit(cache=True, nogil=True)
def work_seconds(
    model: LatencyModel,
    device_ids: NDArray[np.uint64],
    examples: NDArray[np.int64],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """How long devices work on a round, in two parts.

    Args:
        model: of the scenario.
        device_ids: [A].
        examples: that they have, [A].

    Returns:
        (fixed, training) seconds [A]: setup and transfers, and the training time that the round
        factor scales.
    """
    # Arrays are taken out of their tuples once: compiled code counts references anew wherever it
    # reaches into a tuple.
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
        training[asked] = train[own] * speed * 0.5 * (1.0 + amount)
    return fixed, training


@njit(cache=True, nogil=True)
def upload_seconds(model: LatencyModel, device_ids: NDArray[np.uint64]) -> NDArray[np.float32]:
    """How long devices upload: a part of the fixed seconds of `work_seconds`, and the last one.

    Args:
        model: of the scenario.
        device_ids: [A].

    Returns:
        Seconds [A].
    """
    devices, classes, _, _, _, _, upload = model
    key, edges = classes
    seconds = np.empty(device_ids.size, np.float32)
    for asked in range(device_ids.size):
        _, _, uplink = speed_of(devices, device_ids[asked])
        seconds[asked] = upload[class_of(key, edges, device_ids[asked])] / uplink
    return seconds
