"""What a run with adaptive clipping releases in each round, and what each part costs."""

from dataclasses import dataclass

from fedray.scenario import Scenario
from mechanisms.accounting.clip_count import count_noise_multiplier
from mechanisms.accounting.zcdp import gaussian_rho


@dataclass(frozen=True, slots=True)
class Release:
    """One of several releases that go through the same mechanism.

    name: what is released.
    noise_multiplier: of it alone.
    rho: of it alone (zCDP). The rho of all of them is the sum, because all are Gaussian.
    """

    name: str
    noise_multiplier: float
    rho: float


def releases_of(scenario: Scenario, sensitivity: float) -> tuple[Release, ...]:
    """The releases of a run, one by one; empty where sums of updates are the only ones.

    Args:
        scenario: of the run.
        sensitivity: of its mechanism at clip norm 1, under some participation.
    """
    if scenario.count_noise is None:
        return ()
    of_updates = scenario.update_noise_multiplier
    of_counts = count_noise_multiplier(scenario.count_noise)
    return (
        Release("sums of updates", of_updates, gaussian_rho(sensitivity, of_updates)),
        Release("counts of short updates", of_counts, gaussian_rho(sensitivity, of_counts)),
    )
