"""How long a selected device takes, as far as it is the device's own (Bonawitz et al. 2019; rates
and spreads as in `Latency`).

    seconds = slowdown * (setup + secagg + download + upload + train * device speed * round factor *
    (1 + examples / median) / 2)

Half of the training time is taken to grow with the device's examples, half to be fixed cost
(loading, compiling). The round factor and failures are drawn per attempt, for the selected alone
(server/rounds.py).
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedray.clients.data.source import ExampleSource
from fedray.clients.population import DeviceModel, speed_of
from fedray.scenario import Scenario

MEDIAN_DEVICES = 4096
"""Devices, the first ones, whose median of examples is taken for that of all, where the data says
how many there are."""


class LatencyModel(NamedTuple):
    """What compiled code needs of a scenario's latency table; the slowdown is in all seconds.

    devices: of the scenario.
    examples_median: median number of examples on a device.
    setup_seconds: before training starts, and of secure aggregation.
    train_seconds: median training time at the median number of examples.
    download_seconds, upload_seconds: of the model, at the median rates.
    """

    devices: DeviceModel
    examples_median: float
    setup_seconds: float
    train_seconds: float
    download_seconds: float
    upload_seconds: float

    @classmethod
    def of(cls, scenario: Scenario, source: ExampleSource) -> "LatencyModel":
        """The compiled form of a scenario's latency table.

        Args:
            scenario: has the table.
            source: says how many examples devices have, which the training time grows with.
        """
        table = scenario.latency
        megabytes = table.slowdown * table.model_megabytes
        return cls(
            devices=DeviceModel.of(scenario),
            examples_median=_examples_median(scenario, source),
            setup_seconds=table.slowdown * table.fixed_seconds,
            train_seconds=table.slowdown * table.train_seconds,
            download_seconds=megabytes / table.downlink_megabytes_per_second,
            upload_seconds=megabytes / table.uplink_megabytes_per_second,
        )


def _examples_median(scenario: Scenario, source: ExampleSource) -> float:
    if scenario.data.draws_counts:
        return scenario.population.examples_median
    devices = min(MEDIAN_DEVICES, scenario.device_ids)
    first_ones = np.arange(devices, dtype=np.uint64)
    counts = source.examples_on(first_ones)
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
    fixed = np.empty(device_ids.size, np.float32)
    training = np.empty(device_ids.size, np.float32)
    for asked in range(device_ids.size):
        speed, downlink, uplink = speed_of(model.devices, device_ids[asked])
        download_seconds = model.download_seconds / downlink
        upload_seconds = model.upload_seconds / uplink
        fixed[asked] = model.setup_seconds + download_seconds + upload_seconds
        amount = examples[asked] / model.examples_median
        training[asked] = model.train_seconds * speed * 0.5 * (1.0 + amount)
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
    seconds = np.empty(device_ids.size, np.float32)
    for asked in range(device_ids.size):
        _, _, uplink = speed_of(model.devices, device_ids[asked])
        seconds[asked] = model.upload_seconds / uplink
    return seconds
