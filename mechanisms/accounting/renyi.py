"""Renyi DP of sampled Gaussian noise, by dp_accounting: what most other tools compute.

It is an upper bound too, and looser than `sampled.sampled_gaussian_epsilon`. It stands beside that
figure so that a reader who knows the one can place the other.
"""

from mechanisms.accounting.gdp import check_delta
from mechanisms.accounting.sampled import PoissonSampling
from mechanisms.accounting.zcdp import check_noise_multiplier


def renyi_epsilon(sampling: PoissonSampling, noise_multiplier: float, delta: float) -> float:
    """Epsilon of `sampling.compositions` sampled Gaussian releases, an upper bound.

    Moments by Mironov, Talwar, Zhang 2019; conversion by Canonne, Kamath, Steinke 2020.

    Args:
        sampling: the probability of a device, and how many releases are composed.
        noise_multiplier: standard deviation of the noise over the clip norm.
        delta: from above 0 to below 1.

    Raises InputError for a noise multiplier or a delta out of range.
    """
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    check_noise_multiplier(noise_multiplier)
    check_delta(delta)
    event = PoissonSampledDpEvent(sampling.probability, GaussianDpEvent(noise_multiplier))
    return float(RdpAccountant().compose(event, sampling.compositions).get_epsilon(delta))
