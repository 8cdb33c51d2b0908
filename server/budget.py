"""The privacy budget of a run: whether the next round may be committed."""

import numpy as np
from numpy.typing import NDArray

from fedray.rounding import up
from fedray.scenario import Scenario
from mechanisms.accounting.calibration import largest_sensitivity
from mechanisms.accounting.events import Gaussian
from mechanisms.accounting.gdp import gdp_epsilon
from mechanisms.accounting.zcdp import rho_of
from mechanisms.running import RunningSensitivity


class Budget:
    """Decides from who was accepted so far, and in the next round, whether that round may be
    committed: whether the worst device stays within `privacy.stop_at`.

    It is a decision on participation alone, which is not protected; no update is looked at.
    """

    def __init__(self, scenario: Scenario) -> None:
        privacy = scenario.privacy
        assert privacy.stop_at is not None
        self._stop_at, self._z = privacy.stop_at, privacy.noise_multiplier
        self._delta = privacy.stop_at.delta or privacy.delta
        limit = largest_sensitivity(
            self._z, self._delta, rho=self._stop_at.rho, epsilon=self._stop_at.epsilon
        )
        self._running = RunningSensitivity(privacy.mechanism, scenario.rounds.count, limit)

    @classmethod
    def of(cls, scenario: Scenario) -> "Budget | None":
        """The budget of a scenario, if it has one."""
        return cls(scenario) if scenario.privacy.stop_at is not None else None

    def add(self, accepted_device_ids: NDArray[np.uint64]) -> None:
        """Takes a round that was committed, with its accepted devices [A]."""
        self._running.add(accepted_device_ids)

    def refusal(self, accepted_device_ids: NDArray[np.uint64]) -> str:
        """Why the next round, with these accepted devices [A], may not be committed; empty if it
        may, and then it is taken as committed."""
        self._running.add(accepted_device_ids)
        beyond = self._running.beyond()
        if beyond is None:
            return ""
        release = Gaussian(noise_multiplier=self._z, sensitivity=beyond)
        reached = [
            f"{what}={up(figure, 6)}, above privacy.stop_at.{what}={most:g}"
            for what, figure, most in (
                ("rho", rho_of(release), self._stop_at.rho),
                ("epsilon", gdp_epsilon(release, self._delta), self._stop_at.epsilon),
            )
            if most is not None and figure > most
        ]
        return (
            f"round {self._running.rounds - 1} would have brought a device to {', '.join(reached)}"
        )
