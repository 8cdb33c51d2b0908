"""The claim `sampling`: how a sampler chooses the devices of each round.

Rules that hold in every run are checked as such. A distribution is tested, with a false-alarm rate
over all tests together (Bonferroni). Each test is exact at that rate, or conservative: counts of a
known discrete distribution become standard normal scores by a randomised probability integral
transform, which are independent, so their squares sum to chi-square and their sum is normal.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedray.audit.findings import Finding, verdict_of
from fedray.audit.participation import Patterns
from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.rounding import counted
from fedray.mechanisms.accounting.draws import FixedSizeDraws, InTurn, PoissonDraws


def check_sampling(claimed: Any, patterns: Patterns) -> Finding:
    """Returns the finding on a claimed sampling.

    Args:
        claimed: a table of `AnySampling`.
        patterns: rounds of every device.
    """
    if problem := next(_contradictions(claimed, patterns), ""):
        return Finding(
            statement="sampling",
            verdict=verdict_of(False),
            claimed=claimed.kind,
            explanation=problem,
        )
    tests = {PoissonDraws: _poisson_tests, FixedSizeDraws: _fixed_size_tests}.get(type(claimed))
    if tests is None:
        text = "every device came once before any came again"
        return Finding(
            statement="sampling", verdict=verdict_of(True), claimed=claimed.kind, explanation=text
        )
    found = dict(tests(claimed, patterns))
    worst, p_value = min(found.items(), key=lambda each: each[1])
    least = claimed.false_alarm_rate / len(found)
    text = (
        f"of {len(found)} tests of false-alarm rate {claimed.false_alarm_rate:g} together, the "
        f"one of {worst} has the least p-value, {p_value:.2g}; below {least:.2g} it rejects"
    )
    return Finding(
        statement="sampling",
        verdict=verdict_of(p_value >= least),
        claimed=claimed.kind,
        found=p_value,
        explanation=text,
    )


def _contradictions(claimed: Any, patterns: Patterns) -> Iterator[str]:
    """Yields sentences on facts that no sampler as claimed can produce."""
    if patterns.min_sep == 0:
        yield "a device was drawn twice in a round"
    if patterns.device_ids.size > claimed.devices:
        yield f"{counted(patterns.device_ids.size, 'device')} came, more than are claimed"
    sizes = np.bincount(patterns.rounds, minlength=patterns.committed_rounds)
    if isinstance(claimed, FixedSizeDraws):
        other = np.flatnonzero(sizes != claimed.size)
        if other.size:
            yield (
                f"{counted(other.size, 'round')} of another size, the first is round {other[0]} "
                f"with {counted(int(sizes[other[0]]), 'device')}"
            )
    if isinstance(claimed, InTurn):
        yield from _out_of_turn(claimed, patterns)


def _out_of_turn(claimed: InTurn, patterns: Patterns) -> Iterator[str]:
    places = np.arange(patterns.rounds.size) - np.repeat(patterns.starts, patterns.counts)
    # The last round of each pass, over all devices; n if a device has not come in that pass.
    for number in range(1, patterns.max_participations):
        before = patterns.rounds[places == number - 1]
        missing = claimed.devices - before.size
        again = int(patterns.rounds[places == number].min())
        if missing or int(before.max()) > again:
            late = missing + int((before > again).sum())
            yield (
                f"in round {again} a device came for the {number + 1}. time, when "
                f"{counted(late, 'device')} had not come for the {number}."
                + (f" and {missing:,} never did" if missing else "")
            )


def _poisson_tests(claimed: PoissonDraws, patterns: Patterns) -> Iterator[tuple[str, float]]:
    from scipy.stats import binom, binomtest, hypergeom

    n, q, devices = patterns.committed_rounds, claimed.probability, claimed.devices
    draw = _generator_of(patterns)
    total = binomtest(patterns.participations, n * devices, q)
    yield "the number of participations", float(total.pvalue)
    sizes = np.bincount(patterns.rounds, minlength=n)
    law: Any = binom(devices, q)
    yield "the spread of the rounds' sizes", _spread(_scores(law, sizes, draw))
    yield "the largest rounds", _edge(sizes.max(), sizes, law.cdf, law.pmf)
    yield "the smallest rounds", _edge(sizes.min(), sizes, lambda each: law.sf(each - 1), law.pmf)
    counts = np.zeros(devices, np.int64)
    counts[: patterns.counts.size] = patterns.counts
    yield "the spread of the devices' participations", _spread(_scores(binom(n, q), counts, draw))
    # A device's rounds are a uniform subset, in which the number of neighbours is hypergeometric.
    often = np.flatnonzero(patterns.counts > 1)
    if often.size:
        k = patterns.counts[often]
        near = np.add.reduceat(_is_next(patterns), patterns.starts)[often]
        scores = _scores(hypergeom(n, k - 1, k), near, draw)
        yield "participations in consecutive rounds", _sum(scores)


def _edge(edge: int, sizes: Int64Array, within: Any, mass: Any) -> float:
    """Returns the p-value of a test for batches that were cut, or filled up, to one size: no round
    is beyond `edge`, and many are at it. Given the first, the number at it is binomial, so the two
    p-values are independent, and Fisher's method joins them.

    `within` and `mass` give the probabilities of a size up to the edge, and at it.
    """
    from scipy.stats import binom

    probability = float(within(edge))
    # A size that is so unlikely that its probability is 0 as a float needs no second test.
    if not (none_beyond := probability**sizes.size):
        return 0.0
    at_it = binom(sizes.size, min(1.0, float(mass(edge)) / probability))
    as_many = float(at_it.sf(np.count_nonzero(sizes == edge) - 1) / at_it.sf(0))
    both = max(none_beyond * as_many, float(np.finfo(float).tiny))
    return both * (1.0 - float(np.log(both)))


def _fixed_size_tests(claimed: FixedSizeDraws, patterns: Patterns) -> Iterator[tuple[str, float]]:
    from scipy.stats import hypergeom

    n, size, devices = patterns.committed_rounds, claimed.size, claimed.devices
    draw = _generator_of(patterns)
    # Whether devices ever came is negatively associated over devices, so that Chernoff's bound for
    # independent ones holds (Dubhashi and Ranjan 1998).
    yield (
        "devices that never came",
        _chernoff(1.0 - patterns.device_ids.size / devices, (1.0 - size / devices) ** n, devices),
    )
    if n > 1:
        # Given a round, the next one's overlap with it is hypergeometric.
        again = patterns.rounds[_is_next(patterns).astype(bool)]
        overlaps = np.bincount(again, minlength=n)[1:]
        scores = _scores(hypergeom(devices, size, size), overlaps, draw)
        yield "devices in consecutive rounds", _sum(scores)
        # The half of the devices that came most by mid-run has no advantage after it.
        is_early = patterns.rounds < n // 2
        early = np.add.reduceat(is_early.astype(np.int64), patterns.starts)
        chosen = np.sort(np.argsort(-early, kind="stable")[: devices // 2])
        is_chosen = np.isin(np.arange(early.size), chosen) & (early > 0)
        owners = np.repeat(is_chosen, patterns.counts) & ~is_early
        seen = np.bincount(patterns.rounds[owners], minlength=n)[n // 2 :]
        late = _scores(hypergeom(devices, int(is_chosen.sum()), size), seen, draw)
        yield "devices that came often before", _sum(late)


def _generator_of(patterns: Patterns) -> np.random.Generator:
    """Returns a generator for the transform, seeded by a digest of the trace.

    The same trace gives the same verdict. A constant seed would not do: the stated rate is a mean
    over the generator's numbers too, so each run of a sampler must have its own.
    """
    content = patterns.counts.tobytes() + patterns.rounds.tobytes()
    return np.random.default_rng(int.from_bytes(hashlib.sha256(content).digest()))


def _is_next(patterns: Patterns) -> Int64Array:
    """Returns for each participation whether the device was in the round before, [A]."""
    found = np.zeros(patterns.rounds.size, np.int64)
    for gaps, later in patterns.pairs():
        found[later] = gaps == 1
    return found


def _scores(law: Any, counts: NDArray[Any], draw: np.random.Generator) -> Float64Array:
    """Returns standard normal scores of independent counts, exact for the frozen distribution."""
    from scipy.special import ndtri

    share = draw.random(counts.shape)
    mass = law.pmf(counts) * share
    below, above = law.cdf(counts - 1) + mass, np.maximum(law.sf(counts - 1) - mass, 0.0)
    # The smaller tail is accurate where the other one rounds to 1.
    return np.where(below < above, ndtri(np.minimum(below, 0.5)), -ndtri(np.minimum(above, 0.5)))


def _spread(scores: Float64Array) -> float:
    from scipy.stats import chi2

    square, count = float((scores**2).sum()), scores.size
    return min(1.0, 2.0 * float(min(chi2.cdf(square, count), chi2.sf(square, count))))


def _sum(scores: Float64Array) -> float:
    from scipy.special import ndtr

    return 2.0 * float(ndtr(-abs(scores.sum()) / np.sqrt(scores.size)))


def _chernoff(share: float, expected: float, count: int) -> float:
    """Returns a bound on the probability of a share of `count` at least as large as observed."""
    from scipy.special import rel_entr

    if share <= expected:
        return 1.0
    entropy = rel_entr(share, expected) + rel_entr(1.0 - share, 1.0 - expected)
    return float(np.exp(-count * entropy))
