"""The privacy budget of a run: whether the next round may be committed, or which devices may be in
it."""

from fedray.base.arrays import UInt64Array
from fedray.base.rounding import up
from fedray.mechanisms.running import RunningSensitivity, SensitivityFilter
from fedray.scenario import Scenario


class Budget:
    """Decides whether the next round may be committed: whether the worst device stays within
    `privacy.stop_at`.

    The decision depends only on participation, which is not protected; no update is read.
    """

    def __init__(self, scenario: Scenario) -> None:
        privacy = scenario.privacy
        self._privacy = privacy
        limit = privacy.largest_sensitivity
        assert limit is not None
        self._running = RunningSensitivity(privacy.needed_strategy(), scenario.rounds.count, limit)

    @classmethod
    def of(cls, scenario: Scenario) -> "Budget | None":
        """Returns the budget of a scenario, or None if none ends the run."""
        privacy = scenario.privacy
        ends_the_run = privacy.stop_at is not None and privacy.at_limit == "stop"
        return cls(scenario) if ends_the_run else None

    def add(self, accepted_device_ids: UInt64Array) -> None:
        """Adds a committed round with its accepted devices [A]."""
        self._running.add(accepted_device_ids)

    def refusal(self, accepted_device_ids: UInt64Array) -> str:
        """Returns why the next round, with these accepted devices [A], may not be committed. If it
        may, the result is empty and the round counts as committed."""
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


def filter_of(scenario: Scenario) -> SensitivityFilter | None:
    """Returns the filter of a scenario that excludes devices at their limit (`privacy.at_limit`),
    or None.

    It is a privacy filter for each device (Rogers, Roth, Ullman and Vadhan 2016; Feldman and Zrnic
    2021, individual filters). Row t of the release is sum_i C[t, i] X_i + z N(0, I) with fresh
    noise (Denisov et al. 2022), so a device with the rounds pi changes it by at most (sum_{i in pi}
    C[t, i]) clip norms, given all earlier releases. The squares of these changes sum up to
    s_N(pi)^2. The filter keeps that below the limit in every possible run. So the whole release is
    at worst a Gaussian mechanism of that sensitivity, even if participation depends on earlier
    released models (fully adaptive composition; Smith and Thakurta 2022 for Gaussian DP).

    Two things differ from the individual filters of Feldman and Zrnic. Theirs charge a step by the
    norm of the device's own gradient, which is secret, and so are the exclusions. Here a
    participation
    costs the clip norm for every device: exclusion follows only from the device's own
    participations and the round's number, and is the same if the device's updates are replaced by
    zeros. So exclusions reveal nothing about data. And noise is correlated here, so a participation
    has a cost in all later
    rounds: it is charged for all of them at once.

    The server's count decides, not the history that devices keep: the limit also holds for a
    device that has lost its history.
    """
    privacy = scenario.privacy
    if privacy.stop_at is None or privacy.at_limit != "exclude":
        return None
    limit = privacy.largest_sensitivity
    assert limit is not None
    return SensitivityFilter(privacy.needed_strategy(), scenario.rounds.count, limit)
