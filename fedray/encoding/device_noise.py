"""Distributed discrete Gaussian noise: devices add it before secure aggregation sums them (Kairouz,
Liu and Steinke 2021).

A device sends the update of fedray/encoding/secagg.py plus exact discrete Gaussian noise on every
coordinate (fedray/base/discrete_noise.py), modulo M. The server adds no noise, and sees nothing
without noise. Each device's variance is such that the total of report_goal devices has a standard
deviation of z times the inflated norm. A device that takes part without a usable update sends only
noise. The noise of a device that drops out is missing, so the audit counts the devices of each
round.

If only a sample of the cohort trains, its devices add less noise, so that the sum has the sample's
share of the cohort's noise, as everywhere in fedray.

M leaves nine standard deviations for the noise. A coordinate of a sum wraps with a probability
below 2 exp(-81 / 2) = 5e-18, because discrete Gaussians and their sums are subgaussian (Canonne,
Kamath, Steinke 2020). A wrapped coordinate costs accuracy, not privacy.
"""

import math

import numpy as np

from fedray.base.arrays import Int64Array, Numbers, UInt64Array
from fedray.base.discrete_noise import MOST_DEVIATION, NoiseScale, add_noise
from fedray.base.errors import ScenarioError
from fedray.base.rng import Stream, stream_key
from fedray.encoding.encoding import ClippedUpdates, SumSetting
from fedray.encoding.norms import device_variance, largest_square
from fedray.encoding.secagg import SecAggEncoding
from fedray.encoding.tables import LEAST_DEVICE_VARIANCE, DeviceNoiseTable

ROOM = 9
"""Number of standard deviations of a sum's noise that fit into M."""


class DeviceNoiseEncoding(SecAggEncoding):
    """Sums modulo M of updates and noise.

    Raises:
        ScenarioError: see `SecAggEncoding`; also if the table is for a model of another size, or
            its steps are too coarse or too fine for the noise.
    """

    adds_noise = True

    def __init__(self, table: DeviceNoiseTable, setting: SumSetting) -> None:
        if table.parameters != setting.dimension:
            raise ScenarioError.of(
                "privacy.trust.parameters",
                table.parameters,
                f"is not the model's number of parameters, {setting.dimension:,}, on which the "
                "privacy depends",
                f"set it to {setting.dimension}",
            )
        super().__init__(table, setting)
        shares = table.sharing(setting.devices)
        variance = device_variance(setting.noise_multiplier, table.scale, self._coordinates, shares)
        if variance < LEAST_DEVICE_VARIANCE:
            finer = math.sqrt(LEAST_DEVICE_VARIANCE * shares) / setting.noise_multiplier
            raise ScenarioError.of(
                "privacy.trust.scale",
                table.scale,
                f"is too coarse: one of {shares:,} devices would add noise of variance "
                f"{float(variance):.3g} steps^2, and nothing is proven below "
                f"{LEAST_DEVICE_VARIANCE:g}",
                f"take a scale of at least {math.ceil(finer):,}",
            )
        # The total of the sample then has its share of the cohort's standard deviation.
        own = variance * setting.sampled / setting.devices
        if own > MOST_DEVIATION**2:
            raise ScenarioError.of(
                "privacy.trust.scale",
                table.scale,
                f"is too fine: the noise of a device deviates by {math.sqrt(own):.3g} steps; "
                f"the most is {MOST_DEVIATION:,}",
                "take a smaller scale",
            )
        self.noise = NoiseScale.at_least(own)
        """Variance that a device adds to a coordinate, in squared steps."""
        self._noise_key = stream_key(setting.seed, Stream.DISCRETE_NOISE)

    def encode_zeros_into(
        self, total_P: Numbers, device_ids: UInt64Array, round_index: int
    ) -> None:
        """Adds noise, because devices without an update send noise.

        It is drawn on the host, also for a sum in torch: a number takes a loop of unknown length
        over random bits, and depends on no update.
        """
        noise_P = self.zero_sum()
        for device_id in device_ids.tolist():
            self._send(noise_P, np.zeros(self._coordinates, np.int64), device_id, round_index)
        # Loads torch, which a trainer needs anyway.
        from fedray.runtime.devices import like

        self.add(total_P, like(noise_P, total_P))

    def encode_into(self, total_P: Numbers, updates: ClippedUpdates, clip_norm: float) -> None:
        super().encode_into(total_P, updates, clip_norm)
        # The compiled code has added the noise to each update before the modulus.
        if not isinstance(total_P, np.ndarray):
            self.encode_zeros_into(total_P, updates.device_ids, updates.round_index)

    def _largest_sum(self) -> int:
        square = largest_square(self.scale, self._coordinates)
        noise = ROOM * self._setting.noise_multiplier * math.sqrt(square)
        return super()._largest_sum() + math.ceil(noise)

    def _send(
        self,
        total_P: Int64Array,
        steps_P: Int64Array,
        device_id: int,
        round_index: int,
    ) -> None:
        # Noise is added before the modulus, so nothing leaves a device without noise.
        add_noise(steps_P, self._noise_key, device_id, round_index, *self.noise)
        super()._send(total_P, steps_P, device_id, round_index)
