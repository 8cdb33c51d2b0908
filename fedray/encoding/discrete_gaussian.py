"""Distributed discrete Gaussian noise: devices add it before secure aggregation sums them (Kairouz,
Liu and Steinke 2021).

A device sends the update of fedray/encoding/secagg.py, plus exact discrete Gaussian noise on every
coordinate (fedray/encoding/discrete_noise.py), modulo M. The server adds no noise, and sees nothing
without noise. The variance of a device is such that report_goal devices together have a standard
deviation of z times the inflated norm. A device that takes part without a usable update sends only
noise. A device that drops out takes its noise along, so the audit counts the devices of each round.

If only a sample of the cohort trains, a device of the sample adds less noise: the sum then has the
sample's share of the cohort's noise, as everywhere in fedray.

M has room for nine standard deviations of noise beside the updates. A coordinate of a sum wraps
with a probability below 2 exp(-81 / 2) = 5e-18, because discrete Gaussians are subgaussian
(Canonne, Kamath, Steinke 2020), and so are their sums. A wrapped one costs accuracy and no privacy.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import ScenarioError
from fedray.base.rng import Stream, stream_key
from fedray.encoding.discrete_noise import MOST_DEVIATION, NoiseScale, add_noise
from fedray.encoding.encoding import SumSetting
from fedray.encoding.norms import device_variance, largest_square
from fedray.encoding.secagg import SecAggEncoding
from fedray.encoding.tables import LEAST_DEVICE_VARIANCE, DiscreteGaussian

ROOM = 9
"""Standard deviations of the sum's noise that M has room for."""


class DiscreteGaussianEncoding(SecAggEncoding):
    """Sums modulo M of updates and noise.

    Args:
        table: table of the scenario.
        setting: other settings that an encoding depends on.

    noise: variance that a device adds to a coordinate, in squared steps.

    Raises:
        ScenarioError: as `SecAggEncoding`; the table is for a model of another size, or its steps
            are too coarse or too fine for the noise.
    """

    adds_noise = True

    def __init__(self, table: DiscreteGaussian, setting: SumSetting) -> None:
        if table.parameters != setting.dimension:
            raise ScenarioError.of(
                "privacy.encoding.parameters",
                table.parameters,
                f"is not the model's {setting.dimension:,}, on which its privacy depends",
                f"write {setting.dimension}",
            )
        super().__init__(table, setting)
        variance = device_variance(
            setting.noise_multiplier, table.scale, self._coordinates, setting.devices
        )
        if variance < LEAST_DEVICE_VARIANCE:
            finer = math.sqrt(LEAST_DEVICE_VARIANCE * setting.devices) / setting.noise_multiplier
            raise ScenarioError.of(
                "privacy.encoding.scale",
                table.scale,
                f"is too coarse: one of {setting.devices:,} devices would add noise of variance "
                f"{float(variance):.3g} steps^2, and nothing is proven below "
                f"{LEAST_DEVICE_VARIANCE:g}",
                f"take a scale of at least {math.ceil(finer):,}",
            )
        # All devices of the sample together then have its share of the cohort's deviation.
        own = variance * setting.sampled / setting.devices
        if own > MOST_DEVIATION**2:
            raise ScenarioError.of(
                "privacy.encoding.scale",
                table.scale,
                f"is too fine: the noise of a device deviates by {math.sqrt(own):.3g} steps; "
                f"the most is {MOST_DEVIATION:,}",
                "take a smaller scale",
            )
        self.noise = NoiseScale.at_least(own)
        self._noise_key = stream_key(setting.seed, Stream.DISCRETE_NOISE)

    def encode_zeros_into(
        self, total_P: NDArray[np.int64], device_ids: NDArray[np.uint64], round_index: int
    ) -> None:
        """See `Encoding`. They send noise."""
        for device_id in device_ids.tolist():
            self._send(total_P, np.zeros(self._coordinates, np.int64), device_id, round_index)

    def _largest_sum(self) -> int:
        square = largest_square(self._scale, self._coordinates)
        noise = ROOM * self._setting.noise_multiplier * math.sqrt(square)
        return super()._largest_sum() + math.ceil(noise)

    def _send(
        self,
        total_P: NDArray[np.int64],
        steps_P: NDArray[np.int64],
        device_id: int,
        round_index: int,
    ) -> None:
        # Noise comes before the modulus, so that nothing leaves a device without it.
        add_noise(steps_P, self._noise_key, device_id, round_index, *self.noise)
        super()._send(total_P, steps_P, device_id, round_index)
