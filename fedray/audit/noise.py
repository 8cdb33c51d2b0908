"""Noise of a run for the accountants: the multiplier of the server's Gaussian noise, or the noise
that devices add in the round with the fewest devices.

Each accepted device adds an independent share of the noise. A sum with the noise of more devices is
one with the noise of fewer plus independent noise, so the round with the fewest devices bounds the
privacy loss of every round (post-processing). The fewest devices of a trace bound the observed
figures; only the fewest that the rules permit bound the enforced and claimed ones.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.base.document import Document, IfAny, InJson, InPlace, Key, Keys, NotInJson
from fedray.base.rounding import shown_noise
from fedray.encoding.norms import device_variance, largest_square, padded
from fedray.encoding.tables import DeviceNoiseTable, EncodingTable
from fedray.mechanisms.accounting.events import DiscreteGaussianSum, Event, Gaussian, Repeated
from fedray.scenario import Scenario


@dataclass(frozen=True, slots=True)
class DeviceNoise(Document):
    """Total noise of one round's devices."""

    report_goal: NotInJson[int]
    """Number of devices for which the noise multiplier is stated."""
    event: Annotated[DiscreteGaussianSum, Keys("devices")]
    """Sum of that round."""
    round_index: Annotated[IfAny[int], Key("round")]
    """Number of the round in the trace; None for a round with the fewest devices that the rules
    permit."""

    @classmethod
    def of(
        cls,
        table: DeviceNoiseTable,
        noise_multiplier: float,
        report_goal: int,
        devices: int,
        round_index: int | None = None,
    ) -> "DeviceNoise":
        """Returns the noise of a round with `devices` devices.

        Args:
            table: encoding of the run.
            noise_multiplier: z of a round with report_goal accepted devices.
            report_goal: report goal of the scenario.
            devices: accepted devices of the round.
            round_index: round of the trace, or None.

        Raises:
            InputError: nothing is proven for so little noise.
        """
        coordinates = padded(table.parameters)
        shares = table.sharing(report_goal)
        variance = device_variance(noise_multiplier, table.scale, coordinates, shares)
        longest = math.sqrt(largest_square(table.scale, coordinates))
        # Both are rounded to the safe side: a longer update, less noise.
        event = DiscreteGaussianSum(
            sensitivity=math.nextafter(longest, math.inf),
            device_variance=math.nextafter(float(variance), 0.0),
            devices=devices,
            dimension=coordinates,
        )
        return cls(report_goal, event, round_index)

    @property
    def noise_multiplier(self) -> InJson[float]:
        """Standard deviation of the round's noise, in inflated norms."""
        return self.event.noise_at_unit_sensitivity

    @property
    def sentence(self) -> str:
        """A sentence on the noise of the round, and the figures that rest on it."""
        of_goal = f"{self.event.devices:,} of {self.report_goal:,}"
        noise = f"Its noise has {shown_noise(self.noise_multiplier)} times the inflated norm as "
        noise += "standard deviation, and every round is accounted for as that one"
        if self.round_index is None:
            return (
                f"Enforced and claimed: a round may be committed with {of_goal} devices. {noise}, "
                "however many devices were accepted in this run."
            )
        return (
            f"Observed: the round with the fewest accepted devices is round {self.round_index}, "
            f"with {of_goal}. {noise}."
        )


class ServerNoise(NamedTuple):
    """Gaussian noise that the server added."""

    multiplier: float
    """z."""
    count_noise: float | None = None
    """Standard deviation of the noise on the counts of short updates that z covers; None if only
    sums of updates were released."""


Noise = ServerNoise | DeviceNoise
"""Noise of the server, or of devices."""


def observed_noise(
    noise: ServerNoise, scenario: Scenario, accepted: NDArray[np.integer]
) -> ServerNoise | DeviceNoise:
    """Returns the least noise of a run's committed rounds.

    Args:
        noise: noise of a round with report_goal devices.
        scenario: scenario of the run.
        accepted: devices of each committed round [n].

    Raises:
        InputError: nothing is proven for so little noise.
    """
    table, goal = scenario.privacy.sent, scenario.rounds.report_goal
    if not isinstance(table, DeviceNoiseTable):
        return noise
    fewest = int(accepted.argmin())
    return DeviceNoise.of(table, noise.multiplier, goal, int(accepted[fewest]), fewest)


def permitted_noise(
    noise: ServerNoise, scenario: Scenario, observed: Noise | None = None
) -> ServerNoise | DeviceNoise:
    """Returns the least noise that the rules permit a committed round to have.

    Args:
        noise: noise of a round with report_goal devices.
        scenario: scenario of the run.
        observed: least noise of a recorded run, or None. A round with fewer devices than the rules
            permit shows that they were not kept, so its noise counts.

    Raises:
        InputError: nothing is proven for so little noise.
    """
    table, goal = scenario.privacy.sent, scenario.rounds.report_goal
    if not isinstance(table, DeviceNoiseTable):
        return noise
    fewest = scenario.rounds.least_accepted
    if isinstance(observed, DeviceNoise):
        fewest = min(fewest, observed.event.devices)
    return DeviceNoise.of(table, noise.multiplier, goal, fewest)


def released(noise: Noise, sensitivity: float) -> Event:
    """Returns the release for a device with a given sensitivity at contributions of norm 1.

    Args:
        noise: noise of the run.
        sensitivity: sensitivity of the device. If devices add the noise, which is independent, it
            is the root of the number of contributions.
    """
    if not isinstance(noise, DeviceNoise):
        return Gaussian(noise_multiplier=noise.multiplier, sensitivity=sensitivity)
    # Independent noise has C'C = I, so the squared sensitivity is the number of contributions, and
    # `round` only undoes the error of the root.
    contributions = round(sensitivity**2)
    if not contributions:
        # A device that contributed nothing spent nothing, whatever the noise.
        return Gaussian(noise_multiplier=1.0, sensitivity=0.0)
    return Repeated(event=noise.event, count=contributions)


@dataclass(frozen=True, slots=True)
class AuditedEncoding:
    """Encoding of the updates, and the unit of their noise."""

    table: InPlace[EncodingTable]
    least_noise: DeviceNoise | None
    """The round with the least noise, on which observed figures rest; None if the server adds the
    noise."""
    least_permitted_noise: DeviceNoise | None
    """The least noise that the rules permit a round, on which enforced and claimed figures rest;
    None if the server adds the noise."""

    @classmethod
    def of(
        cls, table: EncodingTable, noises: Iterable[tuple[Noise | None, Noise | None]]
    ) -> "AuditedEncoding":
        """Returns the encoding of a run, given the least noise of its trace and the least that its
        rules permit, for each mechanism."""
        # Only noise that devices add depends on their number.
        for of_trace, permitted in noises:
            if isinstance(of_trace, DeviceNoise) and isinstance(permitted, DeviceNoise):
                return cls(table, of_trace, permitted)
        return cls(table, None, None)

    @property
    def kind(self) -> InJson[str]:
        """Kind of the encoding; the next keys are present if its table has them."""
        return self.table.kind

    @property
    def noise_is_relative_to(self) -> InJson[str]:
        """Unit of the noise multiplier."""
        return self.table.noise_is_relative_to
