"""The slow, readable twin of fedray/mechanisms: builds C and the noise map from their definitions, in float64.

Every fast path in the mechanisms, the aggregator's noise and the audit is tested against this file
and the `definition` of each strategy.
"""

from collections.abc import Iterator
from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext

import numpy as np

from fedray.base.arrays import Float64Array
from fedray.mechanisms.continuation import Future
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.reference import noise_map
from fedray.mechanisms.strategy import Strategy
from fedray.mechanisms.workload import PREFIX, Workload


def pattern_sensitivity(strategy: Strategy, pattern: tuple[int, ...], rounds: int) -> float:
    """Returns the norm of the sum of C's columns in the pattern: the contribution of one device to
    C X if its contributions are equal.

    Exact if C'C has no negative entry on the pattern.
    """
    C = strategy.definition(rounds)
    return _aligned_norm(C, pattern)


def participation_sensitivity(strategy: Strategy, participation: MinSep) -> float:
    """Returns the largest pattern sensitivity, by enumerating all permitted patterns. Their number
    is exponential, so only for runs of a dozen rounds."""
    C = strategy.definition(participation.rounds)
    return max(_aligned_norm(C, pattern) for pattern in patterns_of(participation))


def patterns_of(participation: MinSep) -> Iterator[tuple[int, ...]]:
    """Yields every permitted pattern, including the empty one, as a tuple of increasing rounds."""
    stack: list[tuple[int, ...]] = [()]
    while stack:
        pattern = stack.pop()
        yield pattern
        if len(pattern) < participation.max_participations:
            # Only later rounds are appended, so every pattern occurs once.
            first = pattern[-1] + participation.min_sep if pattern else 0
            is_bound = pattern and participation.is_fixed_order
            end = first + 1 if is_bound else participation.rounds
            later = range(first, min(end, participation.rounds))
            stack.extend((*pattern, each) for each in later)


def largest_continued(
    strategy: Strategy,
    pasts: list[tuple[int, ...]],
    future: Future,
    scales: Float64Array | None = None,
) -> float:
    """Returns the largest sensitivity of any pattern, or of none, and any of its allowed continuations; with |G| where
    entries are negative. By enumeration, so only for a dozen rounds."""
    C = strategy.definition(future.rounds)
    if scales is not None:
        C = C / scales[:, None]
    G = np.abs(C.T @ C)
    first = [0] * len(pasts) if future.first is None else future.first.tolist()
    return max(
        float(G[np.ix_(pattern, pattern)].sum()) ** 0.5
        for past, since in [((), 0), *zip(pasts, first, strict=True)]
        for pattern in continuations_of(past, future, since)
    )


def continuations_of(
    past: tuple[int, ...], future: Future, since: int = 0
) -> Iterator[tuple[int, ...]]:
    """Yields the past with every allowed continuation from round `since` on, including none: the rules as `Future`
    states them, for devices of every zone."""
    zones = {window.zone for window in future.windows if window.zone is not None} or {None}

    def may_take_part(pattern: tuple[int, ...], at: int, zone: int | None) -> bool:
        if any(at < future.following[each] for each in pattern):
            return False
        if future.most is not None and len(pattern) >= future.most:
            return False
        return all(
            sum(window.begins[at] <= each <= at for each in (*pattern, at)) <= window.most
            for window in future.windows
            if window.zone in (None, zone)
        )

    for zone in zones:
        stack = [past]
        while stack:
            pattern = stack.pop()
            yield pattern
            is_new = len(pattern) > len(past)
            begin = pattern[-1] + 1 if is_new else max(since, future.released)
            later = range(begin, future.rounds)
            stack.extend((*pattern, at) for at in later if may_take_part(pattern, at, zone))


def _aligned_norm(C: Float64Array, pattern: tuple[int, ...]) -> float:
    columns = C[:, list(pattern)]
    return float(np.linalg.norm(columns.sum(axis=1)))


def workload_matrix(workload: Workload, rounds: int) -> Float64Array:
    """Returns A, [rounds, rounds]: column s has the models after one update of 1, in round s."""
    A = np.zeros((rounds, rounds))
    for s in range(rounds):
        velocity = 0.0
        model = 0.0
        for t in range(s, rounds):
            update = 1.0 if t == s else 0.0
            rate = workload.rates[t] if workload.rates else 1.0
            velocity = workload.momentum * velocity + (1 - workload.momentum) * update
            model = workload.decay * model + rate * velocity
            A[t, s] = model
    return A


def error_variances(strategy: Strategy, rounds: int, workload: Workload = PREFIX) -> Float64Array:
    """Returns the variance of each row of a workload at noise of unit scale, [rounds]: squared row
    norms of A M, with the `workload_matrix` A and the `noise_map` M."""
    B = workload_matrix(workload, rounds) @ noise_map(strategy, rounds)
    return (B**2).sum(axis=1)


def gaussian_delta(mu: float, epsilon: float) -> Decimal:
    """Returns delta(epsilon) of a Gaussian mechanism with mu = sensitivity / standard deviation
    (Balle and Wang 2018, Theorem 8).

    Phi(-a) - e^epsilon Phi(-b), a and b = epsilon / mu -+ mu / 2, with enough digits to avoid
    overflow and cancellation.
    """
    # The exponent of the terms that cancel grows with mu^2.
    exact_mu = Decimal(mu)
    exact_epsilon = Decimal(epsilon)
    with localcontext(prec=80 + int(mu * mu), Emax=MAX_EMAX, Emin=MIN_EMIN):
        a = exact_epsilon / exact_mu - exact_mu / 2
        b = exact_epsilon / exact_mu + exact_mu / 2
        return _normal_tail(a) - exact_epsilon.exp() * _normal_tail(b)


def _normal_tail(x: Decimal) -> Decimal:
    """Returns 1 - Phi(x), to 60 relative digits, by its series (Marsaglia 2004), or above 6 by
    Laplace's continued fraction."""
    density = (-x * x / 2).exp() / (2 * _PI).sqrt()
    # For large x the sum of the series is nearly 1/2, so the difference would lose digits, while
    # the fraction converges faster.
    if x > 6:
        tail = Decimal(0)
        for term in range(300, 0, -1):
            tail = term / (x + tail)
        return density / (x + tail)
    power = x
    total = x
    odd = 1
    # Marsaglia: Phi(x) = 1/2 + density (x + x^3 / 3 + x^5 / (3 5) + ...).
    while abs(power) > Decimal(10) ** -110:
        odd += 2
        power = power * x * x / odd
        total += power
    return Decimal("0.5") - density * total


_PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798214808651"
)
