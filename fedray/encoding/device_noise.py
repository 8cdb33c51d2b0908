"""Discrete Gaussian noise of devices, added before secure aggregation sums updates (Kairouz, Liu
and Steinke 2021), also for correlated rounds (Ball et al. 2024, "Secure Stateful Aggregation").

A device sends the update x of fedray/encoding/secagg.py and exact discrete Gaussian noise z for
every coordinate (fedray/base/discrete_noise.py), both modulo M. The server adds no noise, and sees
nothing without noise. A device that takes part without a usable update sends x = 0. The noise of a
device that drops out is missing, so the audit counts the devices of each round.

With whole coefficients c_0 .. c_(b-1) of a Toeplitz C, a store (fedray/server/learning/store.py)
opens for round t, with X and Z the sums of x and z over the devices of a round,

    W_t = c_0 X_t + c_1 X_(t-1) + .. + c_(b-1) X_(t-b+1) + Z_t   modulo M.

For b > 1 a sum is [2 P], with X before Z. For the identity it is X + Z in [P], which is W itself.

A device's variance is s^2 / m with s = c_0 z D, D the inflated norm in steps, and m the number of
devices whose noise together has the noise multiplier z: the report goal, or 1 for local trust. If
only a sample of the cohort trains, its devices add less noise, so that the sum has the sample's
share of the cohort's noise, as everywhere in fedray.

One rotation serves the whole run, because W mixes rounds. So the bound on the number of clipped
coordinates is heuristic (later updates depend on the rotation), and clipped coordinates are
counted.

M leaves nine standard deviations for the noise. A coordinate of W wraps with a probability below
2 exp(-81 / 2) = 5e-18, because discrete Gaussians and their sums are subgaussian (Canonne, Kamath,
Steinke 2020). A wrapped coordinate costs accuracy, not privacy.
"""

import math
from fractions import Fraction

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array, Numbers, UInt64Array
from fedray.base.discrete_noise import MOST_DEVIATION, NoiseScale, add_noise
from fedray.base.errors import ScenarioError
from fedray.base.rng import Stream, stream_key
from fedray.encoding.encoding import ClippedUpdates, SumSetting
from fedray.encoding.norms import device_variance, padded
from fedray.encoding.rotation import signs_of
from fedray.encoding.secagg import SecAggEncoding
from fedray.encoding.tables import LEAST_DEVICE_VARIANCE, DeviceNoiseTable

ROOM = 9
"""Number of standard deviations of a sum's noise that fit into M."""


class DeviceNoiseEncoding(SecAggEncoding):
    """Sums modulo M of updates and noise.

    coefficients: whole coefficients of C.
    variance: variance of the noise that a device of a whole cohort adds to a coordinate, in squared
        steps, before `NoiseScale` rounds it up.

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
        self.coefficients = setting.coefficients
        self.variance = _device_variance(table, setting)
        # The modulus depends on the variance.
        super().__init__(table, setting)
        first, shares = setting.coefficients[0], table.sharing(setting.devices)
        if self.variance < LEAST_DEVICE_VARIANCE:
            finer = math.sqrt(LEAST_DEVICE_VARIANCE * shares) / setting.noise_multiplier / first
            raise ScenarioError.of(
                "privacy.trust.scale",
                table.scale,
                f"is too coarse: one of {shares:,} devices would add noise of variance "
                f"{float(self.variance):.3g} steps^2, and nothing is proven below "
                f"{LEAST_DEVICE_VARIANCE:g}",
                f"take a scale of at least {math.ceil(finer):,}",
            )
        # The total of the sample then has its share of the cohort's standard deviation.
        own = self.variance * setting.sampled / setting.devices
        if own > MOST_DEVIATION**2:
            coarser = math.log2(table.scale * MOST_DEVIATION / math.sqrt(own))
            raise ScenarioError.of(
                "privacy.trust.scale",
                table.scale,
                f"is too fine: the noise of a device deviates by {math.sqrt(own):.3g} steps; "
                f"the most is {MOST_DEVIATION:,}",
                f"take a scale of at most {1 << max(0, math.floor(coarser)):,}",
            )
        self.noise = NoiseScale.at_least(own)
        """Variance that a device adds to a coordinate, in squared steps."""
        self._noise_key = stream_key(setting.seed, Stream.DISCRETE_NOISE)

    @property
    def parts(self) -> int:
        """Number of vectors [P] that a device sends: x + z, or x and z."""
        return 1 if len(self.coefficients) == 1 else 2

    @property
    def bits_per_parameter(self) -> float:
        return self.parts * super().bits_per_parameter

    def zero_sum(self) -> Int64Array:
        return np.zeros(self.parts * self._coordinates, np.int64)

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

    def encode_into(self, total_P: Numbers, updates: ClippedUpdates, clip_norm: float) -> int:
        clipped = super().encode_into(total_P, updates, clip_norm)
        # The compiled code has added the noise of each update as it was sent.
        if not isinstance(total_P, np.ndarray):
            self.encode_zeros_into(total_P, updates.device_ids, updates.round_index)
        return clipped

    def wrap_probability(self, rounds: int) -> float:
        """Returns an upper bound on the probability that a coordinate of a run wraps."""
        return 2 * rounds * self._coordinates * math.exp(-(ROOM**2) / 2)

    def zero_opened(self) -> Int64Array:
        """Returns an empty W [P]."""
        return np.zeros(self._coordinates, np.int64)

    def updates_of(self, total_P: Int64Array) -> Int64Array:
        """Returns X [P], in steps, of a sum [2 P]: no wrap hides it, because it has no noise."""
        residues_P = total_P[: self._coordinates]
        return residues_P - self.modulus * (residues_P > self.modulus // 2)

    def opened(self, total_P: Int64Array, earlier: list[Int64Array]) -> Int64Array:
        """Returns W [P] of a round.

        Args:
            total_P: sum of the round [P], or [2 P] for b > 1.
            earlier: X [P] of the rounds before it, the last one first; at most b - 1.
        """
        opened_P = total_P[-self._coordinates :].copy()
        if self.parts == 1:
            return opened_P
        # M has room for the whole weighted sum of X, so no int64 overflows.
        rounds = [self.updates_of(total_P), *earlier]
        for weight, updates_P in zip(self.coefficients, rounds, strict=False):
            opened_P += weight * updates_P
        return opened_P % self.modulus

    def steps(self, opened_P: Int64Array) -> Float64Array:
        """Returns W / c_0 [D] of an opened sum, centred and without rotation, in steps."""
        return self._unrotated(opened_P, 1.0 / self.coefficients[0], 0)

    def _signs(self, round_index: int) -> Float64Array:
        # W adds up rounds, which therefore need the same basis.
        del round_index
        return signs_of(self.seed, 0, self._coordinates)

    def _largest_sum(self) -> int:
        weights = sum(map(abs, self.coefficients))
        noise = ROOM * math.sqrt(self.variance * self._setting.devices)
        return super()._largest_sum() * weights + math.ceil(noise)

    def _send(
        self,
        total_P: Int64Array,
        steps_P: Int64Array,
        device_id: int,
        round_index: int,
    ) -> None:
        noise_P = steps_P
        if self.parts > 1:
            super()._send(total_P[: self._coordinates], steps_P, device_id, round_index)
            noise_P = np.zeros_like(steps_P)
        # Noise is added before the modulus, so nothing leaves a device without noise.
        add_noise(noise_P, self._noise_key, device_id, round_index, *self.noise)
        super()._send(total_P[-self._coordinates :], noise_P, device_id, round_index)


def _device_variance(table: DeviceNoiseTable, setting: SumSetting) -> Fraction:
    shares, coordinates = table.sharing(setting.devices), padded(setting.dimension)
    of_first = device_variance(setting.noise_multiplier, table.scale, coordinates, shares)
    # W has X with the factor c_0, so the noise has it, too.
    return setting.coefficients[0] ** 2 * of_first
