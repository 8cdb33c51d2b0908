"""The privacy budget of a run: whether the next round may be committed."""

import numpy as np
from numpy.typing import NDArray

from fedray.mechanisms.accounting.calibration import largest_sensitivity
from fedray.mechanisms.running import RunningSensitivity
from fedray.rounding import up
from fedray.scenario import Scenario


class Budget:
    """Decides from who was accepted so far, and in the next round, whether that round may be
    committed: whether the worst device stays within `privacy.stop_at`.

    It is a decision on participation alone, which is not protected; no update is looked at.
    """

    def __init__(self, scenario: Scenario) -> None:
        privacy = scenario.privacy
        stop_at = privacy.stop_at
        assert stop_at is not None
        self._privacy = privacy
        # One limit for rho and epsilon: both grow with the sensitivity alone, so the stricter one
        # decides.
        limit = largest_sensitivity(
            privacy.noise_multiplier,
            privacy.budget_delta,
            rho=stop_at.rho,
            epsilon=stop_at.epsilon,
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
        reached = [
            f"{what}={up(spent, 6)}, above privacy.stop_at.{what}={most:g}"
            for what, most, spent in self._privacy.beyond_budget(beyond)
        ]
        return (
            f"round {self._running.rounds - 1} would have brought a device to {', '.join(reached)}"
        )
