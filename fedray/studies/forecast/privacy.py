"""Privacy of continuations: the exact sensitivity of the patterns of each, and the number of rounds
after which it exceeds what a claim allows."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedray.audit.claims import Claim
from fedray.audit.findings import ROUNDED
from fedray.audit.live.promise import Promise
from fedray.audit.noise import ServerNoise
from fedray.audit.participation import Patterns
from fedray.audit.sensitivity import trace_sensitivity
from fedray.base.errors import InputError
from fedray.encoding.tables import DeviceNoiseTable
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.strategy import SensitivityUnknown, Strategy
from fedray.scenario import Scenario

WORTH_BOUNDS = 1 << 14
"""Participations from which devices with few of them are first left out by bounds."""


class Spent(NamedTuple):
    """Privacy of a continuation."""

    sensitivity: float
    """Sensitivity of its patterns at clip norm 1."""
    broken_after: tuple[int | None, ...]
    """Number of rounds after which each limit is exceeded; None if it never is."""


@dataclass(frozen=True)
class Limit:
    """Claimed rho or epsilon."""

    words: str
    """The limit in words."""
    sensitivity: float
    """Largest sensitivity that keeps it."""


@dataclass(frozen=True)
class Privacy:
    """Mechanism and noise by which continuations are judged."""

    strategy: Strategy
    """The mechanism C."""
    promise: Promise
    """Its noise and delta."""
    limits: tuple[Limit, ...]
    """Claimed rho and epsilon."""

    @classmethod
    def of(cls, scenario: Scenario | None, claim: Claim | None, rounds: int) -> "Privacy | None":
        """Returns the privacy of a claim, or of a scenario without one; None if neither has a
        mechanism, or if devices add the noise.

        Raises:
            InputError: the mechanism has fewer rounds, or the claim has a statement that is not
                judged ahead.
        """
        sent = None if scenario is None else scenario.privacy.sent
        is_of_devices = isinstance(sent, DeviceNoiseTable)
        if claim is None:
            if scenario is None or scenario.privacy.strategy is None or is_of_devices:
                return None
            strategy, privacy = scenario.privacy.strategy, scenario.privacy
            strategy.check_rounds(rounds)
            noise = ServerNoise(privacy.noise_multiplier, scenario.count_noise)
            return cls(strategy, Promise(noise, privacy.delta, None, None, None, None, 1), ())
        claim.mechanism.check_rounds(rounds)
        promise = Promise.of(claim, ServerNoise(claim.noise_multiplier), rounds, rounds)
        claimed = [(key, getattr(claim, key)) for key in ROUNDED if getattr(claim, key) is not None]
        if is_of_devices or isinstance(claim.trust, DeviceNoiseTable):
            if claimed:
                rule = "is not forecast if devices add the noise"
                raise InputError.of(*claimed[0], rule, "leave it out of the claim")
            return None
        limits = tuple(
            Limit(
                f"{key} <= {most:g}",
                promise.largest(most * (1 + ROUNDED[key]), getattr(promise, f"{key}_at")),
            )
            for key, most in claimed
        )
        return cls(claim.mechanism, promise, limits)

    def of_patterns(self, patterns: Patterns, released: int) -> Spent:
        """Returns the privacy of patterns of which `released` rounds have happened."""
        value = trace_sensitivity(self.strategy, patterns).value
        after = [
            None if value <= each.sensitivity else self._exceeds(patterns, released, each)
            for each in self.limits
        ]
        return Spent(value, tuple(after))

    def _exceeds(self, patterns: Patterns, released: int, limit: Limit) -> int:
        """Returns the number of rounds after which a limit is first exceeded, or `released` if it
        was by then. No device's sensitivity falls with the rounds, so it is found by bisection."""
        low, high = released - 1, patterns.committed_rounds
        patterns = self._large(patterns, limit.sensitivity)
        while high - low > 1:
            middle = (low + high) // 2
            (so_far,) = patterns.so_far([middle])
            is_over = trace_sensitivity(self.strategy, so_far).value > limit.sensitivity
            low, high = (low, middle) if is_over else (middle, high)
        return high

    def _large(self, patterns: Patterns, limit: float) -> Patterns:
        """Returns the devices whose sensitivity may exceed a limit: those with more participations
        than a bound for all patterns of their min-sep allows."""
        n, b = patterns.committed_rounds, patterns.min_sep
        is_quick = self.strategy.is_quick_under_participation(n)
        if patterns.participations < WORTH_BOUNDS or not is_quick:
            return patterns
        low, high = 0, patterns.max_participations
        try:
            while high - low > 1:
                middle = (low + high) // 2
                bound = self.strategy.participation_sensitivity(MinSep(n, b, middle)).value
                low, high = (middle, high) if bound <= limit else (low, middle)
        except SensitivityUnknown:
            return patterns
        is_large = patterns.counts > low
        rows = np.repeat(is_large, patterns.counts)
        return Patterns(
            n, patterns.device_ids[is_large], patterns.counts[is_large], patterns.rounds[rows]
        )
