"""How long a selected device takes, and whether it fails (Bonawitz et al. 2019; rates and spreads as in `Latency`).

    seconds = setup + train * device speed * round factor * (1 + examples / median) / 2 + download + upload

Half of the training time is taken to grow with the device's examples, half to be fixed cost (loading, compiling).
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from clients.population import DeviceModel, examples_of, speed_of
from fedray.rng import Key, Stream, draw, normal, stream_key, uniform
from fedray.scenario import Scenario


class LatencyModel(NamedTuple):
    """What compiled code needs of a scenario's latency table."""

    devices: DeviceModel
    key: Key
    setup_seconds: float
    train_seconds: float
    speed_within: float
    download_seconds: float
    upload_seconds: float
    failure_probability: float


def latency_model(scenario: Scenario, devices: DeviceModel) -> LatencyModel:
    """The compiled form of a scenario's latency table."""
    table = scenario.latency
    return LatencyModel(
        devices=devices,
        key=stream_key(scenario.seed, Stream.TRAINING_TIME),
        setup_seconds=table.setup_seconds,
        train_seconds=table.train_seconds,
        speed_within=table.speed_within,
        download_seconds=table.model_megabytes / table.downlink_megabytes_per_second,
        upload_seconds=table.model_megabytes / table.uplink_megabytes_per_second,
        failure_probability=table.failure_probability,
    )


class FixedWork(NamedTuple):
    """What does not vary between the rounds of a device; [N] each, float32, seconds."""

    fixed: NDArray[np.float32]
    """Setup, download, upload."""
    training: NDArray[np.float32]
    """Training time, which the round factor scales."""


@njit(cache=True, nogil=True)
def fixed_work_of(model: LatencyModel, first_device: int, count: int) -> FixedWork:
    """Fixed work of devices first_device .. first_device + count - 1: pure attributes of the devices."""
    fixed, training = np.empty(count, np.float32), np.empty(count, np.float32)
    for index in range(count):
        speed, downlink, uplink = speed_of(model.devices, first_device + index)
        examples = examples_of(model.devices, first_device + index) / model.devices.examples_median
        fixed[index] = model.setup_seconds + model.download_seconds / downlink + model.upload_seconds / uplink
        training[index] = model.train_seconds * speed * 0.5 * (1.0 + examples)
    return FixedWork(fixed, training)


@njit(forceinline=True)
def work_of(model, fixed, training, device, a, b):
    """(work seconds, failure seconds) of a device that is selected after the check-in at address (a, b).

    The failure comes at a uniform share of the work; infinity where there is none.
    """
    w0, w1, w2, _ = draw(model.key, device, a, b)
    seconds = fixed + training * math.exp(model.speed_within * normal(w0))
    fails = uniform(w1) < model.failure_probability
    return np.float32(seconds), np.float32(seconds * uniform(w2) if fails else math.inf)
