"""Upper bound on the privacy that a run has spent so far, from its rules and the times of its
rounds.

Participation is unknown until the run ends, when the audit of the trace is exact. A bound is known
at any time: the enforced guarantee (fedray/audit/guarantees.py) of the rounds so far. After n
rounds the first n rows of the mechanism's matrix are released, and no participation under the rules
spends more on these.
"""

from typing import NamedTuple

from fedray.audit.guarantees import Guarantee, limits_at, of_limits
from fedray.audit.noise import ServerNoise, permitted_noise
from fedray.base.arrays import Float64Array
from fedray.scenario import Scenario
from fedray.scenario.privacy import NO_GUARANTEE


class RoundsSoFar(NamedTuple):
    """Committed rounds of a run so far, with times as in `RoundRecord`; each [n], in order."""

    opened: Float64Array
    """Start of selection, seconds since start of the run."""
    started: Float64Array
    """Start of the round, seconds since start of the run."""
    closed: Float64Array
    """Time of the commit, seconds since start of the run."""


def bound_so_far(scenario: Scenario, rounds: RoundsSoFar) -> Guarantee:
    """Returns an upper bound of the privacy spent in the rounds so far, if every device kept the
    rules.

    Args:
        scenario: scenario of the run.
        rounds: at least one.

    Returns:
        The enforced guarantee. Without a proof, its sensitivity is None, and it has the reason.
    """
    privacy = scenario.privacy
    if privacy.strategy is None:
        return Guarantee("enforced", None, None, None, privacy.delta, False, NO_GUARANTEE)
    limits = limits_at(scenario, rounds.opened, rounds.started, rounds.closed)
    server = ServerNoise(privacy.noise_multiplier, scenario.count_noise)
    noise = permitted_noise(server, scenario)
    return of_limits("enforced", limits, privacy.strategy, noise, privacy.delta, may_rest_on=True)
