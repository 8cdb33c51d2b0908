"""Limits that a claim sets for the last planned round."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from fedray.audit.claims import Claim
from fedray.audit.findings import ROUNDED
from fedray.audit.live.reached import Reached
from fedray.audit.live.rules_ahead import RulesAhead
from fedray.audit.noise import DeviceNoise, Noise, released
from fedray.base.errors import InputError
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import Event
from fedray.mechanisms.accounting.zcdp import rho_of

NOT_AHEAD = ("frontier", "keep_days", "sampling")
"""Statements of a claim that are not judged ahead of the last round."""


@dataclass(frozen=True, slots=True)
class Promise:
    """Limits of a claim; None for statements that it does not make."""

    noise: Noise
    """Noise of every round."""
    delta: float
    """delta of epsilon."""
    sensitivity: float | None
    """Largest sensitivity with which the claimed rho and epsilon hold."""
    min_sep: int | None
    """Claimed min-sep."""
    max_participations: int | None
    """Claimed participations."""
    rounds: int | None
    """Claimed rounds."""
    changed: int
    """Most rounds whose sums a device changes, for noise of devices."""
    claim: Claim | None = None
    """The claim; None if only figures are wanted."""

    @classmethod
    def of(cls, claim: Claim, noise: Noise, rounds: int, most: int) -> "Promise":
        """Returns the limits of a claim.

        Args:
            claim: the claim.
            noise: noise of every round.
            rounds: planned number of rounds.
            most: most participations of a device under the rules.

        Raises:
            InputError: the claim has a statement that is not judged ahead, or none that is.
        """
        named = [each for each in NOT_AHEAD if getattr(claim, each) is not None]
        if named:
            value = "the claim's"
            remedy = "leave it out of the claim, or audit the released rounds only"
            raise InputError.of(named[0], value, "is not judged for rounds to come", remedy)
        is_of_devices = isinstance(noise, DeviceNoise)
        changed = min(rounds, noise.coefficients * most) if is_of_devices else 1
        promise = cls(
            noise,
            claim.delta,
            None,
            claim.min_sep,
            claim.max_participations,
            claim.rounds,
            changed,
            claim,
        )
        limits = [
            promise.largest(getattr(claim, key) * (1 + ROUNDED[key]), getattr(promise, f"{key}_at"))
            for key in ROUNDED
            if getattr(claim, key) is not None
        ]
        return replace(promise, sensitivity=min(limits, default=None))

    def event(self, sensitivity: float) -> Event:
        """Returns the release for a device with this sensitivity."""
        return released(self.noise, sensitivity, self.changed)

    def rho_at(self, sensitivity: float) -> float:
        """Returns rho of a device with this sensitivity."""
        return rho_of(self.event(sensitivity))

    def epsilon_at(self, sensitivity: float) -> float:
        """Returns epsilon of a device with this sensitivity."""
        return epsilon_of(self.event(sensitivity), self.delta).epsilon

    def largest(self, most: float, figure: Callable[[float], float]) -> float:
        """Returns the largest float, as a sensitivity, whose figure is at most `most`."""
        low, high = 0.0, 1.0
        while figure(high) <= most:
            low, high = high, 2.0 * high
        while low < (middle := (low + high) / 2.0) < high:
            low, high = (middle, high) if figure(middle) <= most else (low, middle)
        return low

    def broken(self, sensitivity: float, reached: Reached, rules: RulesAhead) -> tuple[str, ...]:
        """Returns the statements that figures under rules break, by their keys."""
        claim, found = self.claim, []
        assert claim is not None, "a claim is judged"
        if self.sensitivity is not None and sensitivity > self.sensitivity:
            found += [key for key in ROUNDED if self._exceeds(key, sensitivity)]
        if reached.max_participations >= 2 and reached.min_sep < (self.min_sep or 1):
            found.append("min_sep")
        most = self.max_participations
        if most is not None and reached.max_participations > most:
            found.append("max_participations")
        if rules.rounds > (self.rounds or rules.rounds):
            found.append("rounds")
        if rules.timer_seconds < 3600.0 * (claim.timer_hours or 0.0):
            found.append("timer_hours")
        if claim.most_per_period is not None and not rules.keeps_period(claim.most_per_period):
            found.append("most_per_period")
        return tuple(found)

    def _exceeds(self, key: str, sensitivity: float) -> bool:
        claimed = None if self.claim is None else getattr(self.claim, key)
        if claimed is None:
            return False
        return getattr(self, f"{key}_at")(sensitivity) > claimed * (1 + ROUNDED[key])
