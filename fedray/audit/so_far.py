"""Upper bound of the privacy that a run has spent so far, by its rules and the times of its rounds.

Participation is unknown until the run ends, when the audit of the trace is exact. A bound is known
at any time. It is the enforced guarantee (fedray/audit/guarantees.py) of the rounds so far: after n
rounds the first n rows of the mechanism's matrix are released, and no participation under the rules
spends more on these.
"""

from typing import NamedTuple

from fedray.audit.guarantees import Guarantee, limits_at, of_limits
from fedray.audit.noise import ServerNoise, permitted_noise
from fedray.base.arrays import Float64Array
from fedray.scenario import Scenario


class RoundsSoFar(NamedTuple):
    """The committed rounds of a run so far, as `RoundRecord` has them; each [n], in order."""

    opened: Float64Array
    """Time at which selection for each began, seconds since start."""
    started: Float64Array
    """Time at which each started, seconds since start."""
    closed: Float64Array
    """Time at which each was committed, seconds since start."""


def bound_so_far(scenario: Scenario, rounds: RoundsSoFar) -> Guarantee:
    """Returns an upper bound of the privacy spent in the rounds so far, if every device kept the
    rules.

    Args:
        scenario: scenario of the run.
        rounds: at least one.

    Returns:
        The enforced guarantee. Without a proof, its sensitivity is None, and it has the reason.
    """
    limits = limits_at(scenario, rounds.opened, rounds.started, rounds.closed)
    privacy = scenario.privacy
    server = ServerNoise(privacy.noise_multiplier, scenario.count_noise)
    noise = permitted_noise(server, scenario)
    return of_limits("enforced", limits, privacy.mechanism, noise, privacy.delta, may_rest_on=True)
