"""Noise of a run for the accountants: the multiplier of the server's Gaussian noise, or the noise
that devices add in the round with the fewest devices.

Each accepted device adds an independent share of the noise. A sum with the noise of more devices is
one with the noise of fewer plus independent noise, so the round with the fewest devices bounds the
privacy loss of every round (post-processing). The fewest devices of a trace bound the observed
figures; only the fewest that the rules permit bound the enforced and claimed ones.

With b coefficients of C, a store opens in each round a sum of the updates of that round and of the
b - 1 rounds before, which has only that round's noise. So a device changes more sums than it has
rounds (`changed_rounds`), on which the cost of adding up discrete noise depends.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import numpy as np

from fedray.audit.participation import Patterns
from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.document import Document, IfAny, InJson, InPlace, Key, Keys, NotInJson
from fedray.base.errors import InputError
from fedray.base.rounding import shown_noise
from fedray.encoding.norms import device_variance, largest_square, padded
from fedray.encoding.tables import DeviceNoiseTable, DevicesTrust, SentTable
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.calibration import (
    check_one_target,
    least_noise_multiplier,
    noise_multiplier_for,
)
from fedray.mechanisms.accounting.events import DiscreteGaussianSum, Event, Gaussian
from fedray.mechanisms.accounting.zcdp import rho_of, rho_of_sums
from fedray.mechanisms.integer_toeplitz import IntegerToeplitz, integer_of
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Identity
from fedray.mechanisms.strategy import Strategy
from fedray.scenario import Scenario
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class DeviceNoise(Document):
    """Total noise of one round's devices."""

    report_goal: NotInJson[int]
    """Number of devices for which the noise multiplier is stated."""
    event: Annotated[DiscreteGaussianSum, Keys("devices")]
    """Sum of that round, for a device that contributes the largest update to it."""
    round_index: Annotated[IfAny[int], Key("round")]
    """Number of the round in the trace; None for a round with the fewest devices that the rules
    permit."""
    coefficients: NotInJson[int] = 1
    """b, number of coefficients of C; 1 for independent noise."""

    @classmethod
    def of(
        cls,
        table: DeviceNoiseTable,
        strategy: Identity | IntegerToeplitz,
        noise_multiplier: float,
        report_goal: int,
        devices: int,
        round_index: int | None = None,
    ) -> "DeviceNoise":
        """Returns the noise of a round with `devices` devices.

        Args:
            table: trust of the run.
            strategy: C of the run, with whole coefficients.
            noise_multiplier: z of a round with report_goal accepted devices.
            report_goal: report goal of the scenario.
            devices: accepted devices of the round.
            round_index: round of the trace, or None.

        Raises:
            InputError: nothing is proven for so little noise.
        """
        c = strategy.coefficients if isinstance(strategy, IntegerToeplitz) else (1,)
        coordinates = padded(table.parameters)
        shares = table.sharing(report_goal)
        variance = c[0] ** 2 * device_variance(noise_multiplier, table.scale, coordinates, shares)
        longest = c[0] * math.sqrt(largest_square(table.scale, coordinates))
        # Both are rounded to the safe side: a longer update, less noise.
        event = DiscreteGaussianSum(
            sensitivity=math.nextafter(longest, math.inf),
            device_variance=math.nextafter(float(variance), 0.0),
            devices=devices,
            dimension=coordinates,
        )
        return cls(report_goal, event, round_index, len(c))

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
OPENED = Identity | IntegerToeplitz
"""Strategies with whole coefficients, whose noise devices can add; of any other strategy it is the
server's."""


def noises_of(
    noise: ServerNoise, scenario: Scenario | None, strategy: Strategy, trace: Trace | ImportedTrace
) -> tuple[Noise, Noise]:
    """Returns the least noise of a trace's committed rounds, and the least that the rules permit.

    Args:
        noise: noise of a round with report_goal devices.
        scenario: scenario of the run; None for a log.
        strategy: mechanism to account for.
        trace: the trace.

    Raises:
        InputError: nothing is proven for so little noise.
    """
    if scenario is None or not isinstance(trace, Trace) or not isinstance(strategy, OPENED):
        return noise, noise
    table, goal = scenario.privacy.sent, scenario.rounds.report_goal
    if not isinstance(table, DeviceNoiseTable):
        return noise, noise
    accepted = trace.rounds["accepted"][trace.rounds["state"] == 0]
    fewest = int(accepted.argmin())
    devices = int(accepted[fewest])
    of_trace = DeviceNoise.of(table, strategy, noise.multiplier, goal, devices, fewest)
    return of_trace, permitted_noise(noise, scenario, strategy, of_trace)


def permitted_noise(
    noise: ServerNoise, scenario: Scenario, strategy: Strategy, observed: Noise | None = None
) -> ServerNoise | DeviceNoise:
    """Returns the least noise that the rules permit a committed round to have.

    Args:
        noise: noise of a round with report_goal devices.
        scenario: scenario of the run.
        strategy: mechanism to account for.
        observed: least noise of a recorded run, or None. A round with fewer devices than the rules
            permit shows that they were not kept, so its noise counts.

    Raises:
        InputError: nothing is proven for so little noise.
    """
    table, goal = scenario.privacy.sent, scenario.rounds.report_goal
    if not isinstance(table, DeviceNoiseTable) or not isinstance(strategy, OPENED):
        return noise
    fewest = scenario.rounds.least_accepted
    if isinstance(observed, DeviceNoise):
        fewest = min(fewest, observed.event.devices)
    return DeviceNoise.of(table, strategy, noise.multiplier, goal, fewest)


def changed_rounds(noise: Noise, patterns: Patterns, rounds: int | None = None) -> Int64Array:
    """Returns the number of rounds whose released sums each device changes, [P]; ones for the
    server's noise, whose figures do not depend on it.

    Args:
        noise: noise of the run.
        patterns: rounds of every device.
        rounds: number of rounds released so far; None for all.
    """
    if not isinstance(noise, DeviceNoise):
        return np.ones(patterns.counts.size, np.int64)
    return patterns.rounds_within(noise.coefficients, rounds)


def most_changed(noise: Noise, permitted: Iterable[MinSep]) -> int:
    """Returns the largest number of rounds whose released sums a device may change that keeps one
    of some limits."""
    coefficients = noise.coefficients if isinstance(noise, DeviceNoise) else 1
    return max(min(each.rounds, coefficients * each.max_participations) for each in permitted)


def released(noise: Noise, sensitivity: float, changed: int) -> Event:
    """Returns the release for a device with a given sensitivity at contributions of norm 1.

    Args:
        noise: noise of the run.
        sensitivity: sensitivity of the device.
        changed: number of rounds whose sums it changes, or an upper bound.
    """
    if not isinstance(noise, DeviceNoise):
        return Gaussian(noise_multiplier=noise.multiplier, sensitivity=sensitivity)
    if not sensitivity:
        # A device that contributed nothing spent nothing, whatever the noise.
        return Gaussian(noise_multiplier=1.0, sensitivity=0.0)
    longest = math.nextafter(noise.event.sensitivity * sensitivity, math.inf)
    return noise.event.model_copy(update={"sensitivity": longest, "rounds": changed})


def rhos_of(noise: Noise, sensitivities: Float64Array, changed: Int64Array) -> Float64Array:
    """Returns rho of the release for each device, [P], as that of `released`."""
    if isinstance(noise, DeviceNoise):
        longest = np.nextafter(noise.event.sensitivity * sensitivities, math.inf)
        return np.where(sensitivities > 0, rho_of_sums(noise.event, longest, changed), 0.0)
    # rho is proportional to the squared sensitivity (Bun and Steinke 2016, Proposition 1.6).
    return sensitivities**2 * rho_of(released(noise, 1.0, 1))


def least_multiplier(
    noise_at: Callable[[float], Noise],
    sensitivity: float,
    changed_by: Callable[[Noise], int],
    delta: float,
    *,
    epsilon: float | None = None,
    rho: float | None = None,
) -> float:
    """Returns the smallest noise multiplier, rounded up, at which a release meets a target.

    More noise never has a larger figure: a device's sensitivity over the noise falls with it, and
    so does tau. The returned multiplier was itself found to meet the target.

    Args:
        noise_at: function that returns the noise of a run at a noise multiplier.
        sensitivity: sensitivity at contributions of norm 1.
        changed_by: function that returns the largest number of rounds whose sums a device changes.
        delta: delta of epsilon.
        epsilon: largest epsilon allowed at delta. Give this or rho.
        rho: largest rho allowed.

    Raises:
        InputError: not exactly one target is given, or no noise multiplier meets it.
    """
    check_one_target(epsilon, rho)
    most = epsilon if rho is None else rho
    assert most is not None

    def proven(z: float) -> Noise | None:
        try:
            return noise_at(z)
        except ValueError:  # nothing is proven for so little noise of devices
            return None

    def figure(z: float) -> float:
        if (noise := proven(z)) is None:
            return 2.0 * most
        event = released(noise, sensitivity, changed_by(noise))
        return rho_of(event) if epsilon is None else epsilon_of(event, delta).epsilon

    if isinstance(proven(1.0), ServerNoise):
        return noise_multiplier_for(sensitivity, delta, epsilon=epsilon, rho=rho)
    return least_noise_multiplier(figure, most, target="rho" if epsilon is None else "epsilon")


@dataclass(frozen=True, slots=True)
class PlannedNoise:
    """Source of the noise of runs to come, on which the cost of a mechanism depends."""

    table: DeviceNoiseTable | None = None
    """Trust of runs whose devices add the noise; None if the server adds it."""
    report_goal: int = 1
    """Number of devices for which the noise multiplier is stated."""
    fewest: int = 1
    """Fewest devices of a committed round."""

    @classmethod
    def of(cls, scenario: Scenario) -> "PlannedNoise":
        """Returns the source of the noise of a scenario's runs."""
        table, rounds = scenario.privacy.sent, scenario.rounds
        if not isinstance(table, DeviceNoiseTable):
            return cls()
        return cls(table, rounds.report_goal, rounds.least_accepted)

    def as_added(self, strategy: Strategy) -> Strategy:
        """Returns a mechanism as its noise is added: by devices with whole coefficients. Raises
        InputError if they cannot add it."""
        if self.table is None:
            return strategy
        if isinstance(self.table, DevicesTrust):
            return integer_of(strategy, self.table.coefficient_bits, self.table.coefficients)
        if not isinstance(strategy, Identity):
            raise InputError(
                f"mechanism.kind={strategy.kind!r} correlates rounds, and trust.kind="
                f"{self.table.kind!r} adds the noise of each update by itself; use identity"
            )
        return strategy

    def release(self, strategy: Strategy, limits: MinSep) -> "PlannedRelease":
        """Returns the release of runs in which devices keep some limits. Raises InputError."""
        added = self.as_added(strategy)
        sensitivity = added.participation_sensitivity(limits).value
        changed = min(limits.rounds, _coefficients(added) * limits.max_participations)
        return PlannedRelease(self, added, sensitivity, changed)

    def release_of(
        self, strategy: Strategy, patterns: Patterns, sensitivity: float
    ) -> "PlannedRelease":
        """Returns the release of a recorded run, given the sensitivity of its patterns for the
        mechanism as it is added. Raises InputError."""
        added = self.as_added(strategy)
        if self.table is None:
            return PlannedRelease(self, added, sensitivity, 1)
        accepted = np.bincount(patterns.rounds, minlength=patterns.committed_rounds)
        changed = int(patterns.rounds_within(_coefficients(added)).max())
        own = replace(self, fewest=int(accepted.min()))
        return PlannedRelease(own, added, sensitivity, changed)


def _coefficients(strategy: Strategy) -> int:
    return len(strategy.coefficients) if isinstance(strategy, IntegerToeplitz) else 1


@dataclass(frozen=True, slots=True)
class PlannedRelease:
    """Release of runs to come, for a device with the largest sensitivity."""

    source: PlannedNoise
    """Source of the noise."""
    strategy: Strategy
    """Mechanism as its noise is added."""
    sensitivity: float
    """Sensitivity at contributions of norm 1."""
    changed: int
    """Largest number of rounds whose sums the device changes, for noise of devices."""

    def noise_at(self, noise_multiplier: float) -> Noise:
        """Returns the noise at a multiplier. Raises InputError if nothing is proven for it."""
        source = self.source
        if source.table is None or not isinstance(self.strategy, OPENED):
            return ServerNoise(noise_multiplier)
        of = source.table, self.strategy, noise_multiplier, source.report_goal, source.fewest
        return DeviceNoise.of(*of)

    def event(self, noise_multiplier: float) -> Event:
        """Returns the event at a noise multiplier. Raises ValueError if nothing is proven."""
        return released(self.noise_at(noise_multiplier), self.sensitivity, self.changed)

    def epsilon(self, noise_multiplier: float, delta: float) -> float:
        """Returns epsilon at a noise multiplier. Raises ValueError if nothing is proven."""
        return epsilon_of(self.event(noise_multiplier), delta).epsilon

    def least_noise(self, delta: float, epsilon: float) -> float:
        """Returns the least noise multiplier for an epsilon, rounded up. Raises InputError."""
        return least_multiplier(
            self.noise_at, self.sensitivity, lambda _: self.changed, delta, epsilon=epsilon
        )

    def of_group(self, devices: int) -> "PlannedRelease":
        """Returns the release for a person with a number of devices (group privacy)."""
        return replace(self, sensitivity=devices * self.sensitivity, changed=devices * self.changed)


@dataclass(frozen=True, slots=True)
class AuditedEncoding:
    """Encoding of the updates, and the unit of their noise."""

    table: InPlace[SentTable]
    least_noise: DeviceNoise | None
    """The round with the least noise, on which observed figures rest; None if the server adds the
    noise."""
    least_permitted_noise: DeviceNoise | None
    """The least noise that the rules permit a round, on which enforced and claimed figures rest;
    None if the server adds the noise."""

    @classmethod
    def of(
        cls, table: SentTable, noises: Iterable[tuple[Noise | None, Noise | None]]
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
