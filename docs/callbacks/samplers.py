"""Samplers of other software for `fedray audit --sampler samplers:NAME --assume claim.toml`.

Copy the function that you need, with the numbers of your training. Each returns the rounds of the
software's own sampler, and needs only that software.
"""

import itertools
import random


def jax_privacy_batches(num_examples=2000, iterations=100, sampling_prob=0.05):
    """Poisson batches of jax_privacy."""
    from jax_privacy.batch_selection import CyclicPoissonSampling

    sampling = CyclicPoissonSampling(sampling_prob=sampling_prob, iterations=iterations)
    return sampling.batch_iterator(num_examples)


def pfl_cohorts(users=600, cohort=30, kind="minimize_reuse"):
    """Cohorts of pfl-research, which draws one user after the other ("random" may repeat one)."""
    from pfl.data.sampling import get_user_sampler

    sampler = get_user_sampler(kind, list(range(users)))
    while True:
        yield [sampler() for _ in range(cohort)]


def flower_cohorts(clients=400, cohort=20):
    """Cohorts of Flower's client manager, which draws them without replacement."""
    from flwr.server.client_manager import SimpleClientManager

    manager = SimpleClientManager()
    # It needs only the name of a client to draw it.
    manager.clients = {str(each): str(each) for each in range(clients)}
    while True:
        yield manager.sample(cohort)


def min_sep_source(examples=1200, cohort=10, min_sep=40):
    """Stored uploads in equal groups that take turns: each comes again after `min_sep` rounds."""
    order = random.sample(range(examples), examples)
    groups = [order[place::min_sep] for place in range(min_sep)]
    for turn in itertools.count():
        group = groups[turn % min_sep]
        # The upload that waited longest comes first, so that none is dropped.
        yield group[:cohort]
        groups[turn % min_sep] = group[cohort:] + group[:cohort]
