"""The noise of a trace, as the accountants need it: a multiplier of the server's normal noise, or
what devices added themselves, in the round in which that was least."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.encoding.norms import device_variance, largest_square, padded
from fedray.encoding.tables import DiscreteGaussian
from fedray.mechanisms.accounting.events import DiscreteGaussianSum, Event, Gaussian, Repeated
from fedray.rounding import shown_noise


@dataclass(frozen=True, slots=True)
class DeviceNoise:
    """Noise that devices added, in the round with the fewest of them.

    round_index: that round; the first, if there are several.
    report_goal: how many devices the noise multiplier is meant for.
    """

    round_index: int
    report_goal: int
    event: DiscreteGaussianSum
    """The sum of that round."""

    @classmethod
    def least(
        cls,
        table: DiscreteGaussian,
        noise_multiplier: float,
        report_goal: int,
        accepted: NDArray[np.integer],
    ) -> "DeviceNoise":
        """The noise of the round with the fewest accepted devices.

        Args:
            table: the encoding.
            noise_multiplier: z, of a round with report_goal accepted devices.
            report_goal: of the scenario.
            accepted: devices of each committed round [n].

        Raises:
            InputError: nothing is proven for so little noise.
        """
        worst, coordinates = int(accepted.argmin()), padded(table.parameters)
        variance = device_variance(noise_multiplier, table.scale, coordinates, report_goal)
        longest = math.sqrt(largest_square(table.scale, coordinates))
        # Both are rounded to the safe side: a longer update, and less noise.
        event = DiscreteGaussianSum(
            sensitivity=math.nextafter(longest, math.inf),
            device_variance=math.nextafter(float(variance), 0.0),
            devices=int(accepted[worst]),
            dimension=coordinates,
        )
        return cls(worst, report_goal, event)

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of that sum's noise, in inflated norms."""
        return math.sqrt(self.event.variance_ratio)

    @property
    def sentence(self) -> str:
        """Which round has the least noise, and how much."""
        devices, reached = self.event.devices, self.noise_multiplier
        return (
            f"The round with the fewest accepted devices is round {self.round_index}, with "
            f"{devices:,} of {self.report_goal:,}: its noise has {shown_noise(reached)} times "
            "the inflated norm as standard deviation, and every round is accounted for as that one."
        )


class ServerNoise(NamedTuple):
    """Normal noise that the server added.

    multiplier: z.
    count_noise: standard deviation of the noise on the counts of short updates that z covers; None
        where sums of updates are all that was released.
    """

    multiplier: float
    count_noise: float | None = None


Noise = ServerNoise | DeviceNoise
"""The noise of the server, or that of devices."""


def released(noise: Noise, sensitivity: float) -> Event:
    """What was released, for a device with a sensitivity at contributions of norm 1.

    Args:
        noise: that was added.
        sensitivity: of the device. Devices add independent noise, so there it is the root of the
            number of its contributions.
    """
    if not isinstance(noise, DeviceNoise):
        return Gaussian(noise_multiplier=noise.multiplier, sensitivity=sensitivity)
    # Of independent noise, the squared sensitivity is the number of contributions.
    contributions = round(sensitivity**2)
    if not contributions:
        # A device that contributed nothing spent nothing, whatever the noise was.
        return Gaussian(noise_multiplier=1.0, sensitivity=0.0)
    return Repeated(event=noise.event, count=contributions)
