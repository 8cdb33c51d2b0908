"""An empirical check of the whole path of a run's noise: canaries in the real aggregator.

Canary devices take part in the rounds of one device's recorded pattern. Each sends the same update,
a unit vector of its own coordinate, ten times the clip norm long; it goes through the real
clipping, the encoding and the aggregator. Half of the coordinates have a canary, half are
silent. What is released is whitened by the mechanism as `mechanisms/reference.py` writes it down,
in float64 and apart from the aggregator's code: W = L^-1 R / (z norm), L L' = M M' with M the noise
map and `norm` what a device can contribute, the clip norm where encoding makes nothing longer. If
all is right the entries of W are independent standard normals, and with a canary they are shifted
by L^-1 u / z, u the pattern times clip / norm.

Four figures come out of it: the distinguishability mu of the best linear test (of the released
rounds; for square strategies it is the mechanism's s / z, for trees less, since nodes are not
released), the size of the signal, that of the noise, and whether the rounds' noise is independent.
A deviation of any of them is a bug in one of the two codes.
"""

import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, stats

from fedray.audit.participation import read_patterns
from fedray.audit.sensitivity import trace_sensitivity
from fedray.encoding.encoding import ClippedUpdates, Encoding
from fedray.encoding.registry import encoding_of
from fedray.errors import InputError, RunFailed
from fedray.placement import Placement
from fedray.scenario import Scenario
from fedray.scenario.weighting import MeanWeighting
from fedray.simulation import simulate
from fedray.trace.imported import ImportedTrace, open_trace
from fedray.trace.reader import Trace
from mechanisms import reference
from mechanisms.sensitivity import pattern_sensitivity

CONFIDENCE = 0.99
ALARM = 1e-4
"""A p-value below which noise is called wrong, after Bonferroni's correction."""
NO_NOISE = 1e-6
"""Times what is expected: below, there is none but rounding."""
MOST_VALUES = 1 << 26
"""Most values of the released rounds, which are held in memory as float64."""
MOST_ROUNDS = 5000
"""Whitening takes a few matrices of so many rounds squared, 200 MB each."""
_GROUP = 64
_TOO_LONG = 10.0


class Aggregates(Protocol):
    """What is tested: an object with what `server.aggregator.ModelAggregator` does in a round."""

    def start(self, parameters: NDArray[np.float32]) -> Any:
        """Takes the initial `parameters` [D], once, before the first round."""
        ...

    def add(self, total: NDArray[np.int64]) -> None:
        """Adds a sum of encoded updates to that of the round.

        Args:
            total: integers [P], as the encoding lays them out.
        """
        ...

    def release(self) -> Any:
        """The noised sum of the round, [D], as a tensor on any device; the next `add` belongs to
        the next round."""
        ...


Clips = Callable[[NDArray[np.float32], float], tuple[NDArray[np.float64], Any]]
"""By which factors [G] updates [G, D] are scaled down: `clients.clipping.clip_factors`."""


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """What canaries showed of an aggregator, beside what theory says.

    p-values of one round among many, or of one pair, have Bonferroni's correction.
    """

    mechanism: str
    """Kind of the mechanism."""
    rounds: int
    """n, rounds that were released."""
    coordinates: int
    """Coordinates of the model, half of which have a canary."""
    pattern: tuple[int, ...]
    """Rounds in which the canaries took part."""
    noise_multiplier: float
    """z of the run's sums of updates."""
    claimed_mu: float
    """s / z of the pattern, s its sensitivity."""
    expected_mu: float
    """What the released rounds can show of it."""
    mu: float
    """Measured: the distinguishability of the best linear test."""
    mu_low: float
    """Lower end of mu's confidence interval (normal approximation, thousands of degrees of
    freedom)."""
    mu_high: float
    """Upper end of it."""
    mu_p: float
    """p-value of the expected mu, two-sided."""
    signal: float
    """The size of the signal, measured over expected."""
    noise: float
    """The size of the noise, measured over expected."""
    noise_p: float
    """p-value of the round whose noise is least like it should be."""
    worst_round: int
    """The round of noise_p."""
    independence_p: float
    """p-value of the two rounds that are most alike."""
    worst_pair: tuple[int, int]
    """The rounds of independence_p."""

    def __repr__(self) -> str:
        found = f"{len(self.problems)} problems" if self.problems else "no problem"
        return (
            f"<CanaryResult of {self.mechanism}, {self.rounds:,} rounds: mu {self.mu:.4f} "
            f"[{self.mu_low:.4f}, {self.mu_high:.4f}], expected {self.expected_mu:.4f}; {found}>"
        )

    @property
    def covers(self) -> bool:
        """Whether the confidence interval of mu holds the expected mu; one in a hundred does not
        although nothing is wrong."""
        return self.mu_low <= self.expected_mu <= self.mu_high

    @property
    def problems(self) -> list[str]:
        """What is wrong, in words; empty when nothing is.

        A figure counts as wrong when its p-value is below ALARM.
        """
        problems = []
        if self.mu_p < ALARM:
            much = "more" if self.mu > self.expected_mu else "less"
            problems.append(
                f"mu is {self.mu:.4f} [{self.mu_low:.4f}, {self.mu_high:.4f}], {much} than "
                f"{self.expected_mu:.4f}: "
                f"the signal is {self.signal:.3f} and the noise {self.noise:.3f} of what they "
                "should be"
            )
        if self.noise_p < ALARM:
            problems.append(
                f"the noise of round {self.worst_round} has the wrong size (p = {self.noise_p:.1e})"
            )
        if self.independence_p < ALARM:
            first, second = self.worst_pair
            problems.append(
                f"the noise of rounds {first} and {second} is not independent (p = "
                f"{self.independence_p:.1e})"
            )
        return problems

    def to_json(self) -> dict[str, Any]:
        """One JSON object: a key per field, the confidence of the interval, whether it covers, and
        the problems."""
        return {
            **asdict(self),
            "confidence": CONFIDENCE,
            "covers": self.covers,
            "problems": self.problems,
        }


def run_canary(
    scenario: Scenario,
    trace: Trace | ImportedTrace | str | Path | None = None,
    coordinates: int = 8192,
    aggregator: Callable[[Scenario], Aggregates] | None = None,
    clip: Clips | None = None,
) -> CanaryResult:
    """Sends canaries through the aggregator of a scenario, and compares what comes out with theory.

    Args:
        scenario: names mechanism, noise multiplier and clip norm.
        trace: the canaries take part in the rounds of the device that binds it; None simulates the
            scenario for one.
        coordinates: parameters D of the model, from 256; half of them have a canary. More of them
            narrow the interval.
        aggregator: what is tested; the real one unless given.
        clip: clips updates; the real one unless given.

    Raises:
        InputError: if there are more rounds or values than fit in memory.
        RunFailed: if the aggregator adds no noise at all.
    """
    if not 256 <= coordinates <= 1 << 20:
        raise InputError(
            f"coordinates={coordinates} must be from 256 to {1 << 20}; more narrow the interval"
        )
    pattern, rounds = _binding_pattern(scenario, trace)
    if rounds > MOST_ROUNDS:
        raise InputError(
            f"the run has {rounds} rounds, canaries take {MOST_ROUNDS} at most; check a shorter "
            "run of the same mechanism"
        )
    if rounds * coordinates > MOST_VALUES:
        raise InputError(
            f"{rounds} rounds of coordinates={coordinates} are more than {MOST_VALUES:,} values; "
            f"take coordinates={MOST_VALUES // rounds} or fewer"
        )
    return check_aggregator(scenario, pattern, rounds, coordinates, aggregator, clip)


def check_aggregator(
    scenario: Scenario,
    pattern: tuple[int, ...],
    rounds: int,
    coordinates: int,
    aggregator: Callable[[Scenario], Aggregates] | None = None,
    clip: Clips | None = None,
) -> CanaryResult:
    """Does what `run_canary` does, for a given pattern.

    Args:
        scenario: names mechanism, noise multiplier and clip norm.
        pattern: the rounds, in order, in which the canaries take part.
        rounds: n, rounds that are released.
        coordinates: parameters D of the model; half of them have a canary.
        aggregator: what is tested; the real one unless given.
        clip: clips updates; the real one unless given.

    Raises:
        InputError: if devices add the noise.
        RunFailed: if the aggregator adds no noise at all.
    """
    if scenario.privacy.encoding.adds_noise:
        raise InputError(
            f"privacy.encoding.kind={scenario.privacy.encoding.kind!r}: devices add the noise, and "
            "canaries check that of the server; take secagg or fixed_point"
        )
    tested = aggregator or _real_aggregator
    clips = clip or _real_clip()
    released = _released(scenario, pattern, rounds, coordinates, tested, clips)
    strategy = scenario.privacy.mechanism
    z = scenario.update_noise_multiplier
    # Whitening: the released noise is z norm M Z, of covariance proportional to M M' = L L'.
    M = reference.noise_map(strategy, rounds)
    L = np.linalg.cholesky(M @ M.T)
    clip_norm = scenario.privacy.clip_norm
    encoding = _encoding_of(_with_room(scenario, coordinates), coordinates)
    norm = encoding.contribution_norm(clip_norm)
    W = linalg.solve_triangular(L, released / (z * norm), lower=True, overwrite_b=True)
    u = np.zeros(rounds)
    u[list(pattern)] = clip_norm / norm
    shift = linalg.solve_triangular(L, u, lower=True) / z
    expected_mu = float(np.linalg.norm(shift))
    # Each answer is N(mu, 1) where there is a canary, and N(0, 1) where there is none.
    answers = shift @ W / expected_mu
    with_canary = answers[: coordinates // 2]
    without = answers[coordinates // 2 :]
    # Student's pooled variance: both halves have the same noise.
    freedom = with_canary.size + without.size - 2
    squares_with = with_canary.var(ddof=1) * (with_canary.size - 1)
    squares_without = without.var(ddof=1) * (without.size - 1)
    spread = math.sqrt((squares_with + squares_without) / freedom)
    # Checked before mu, which would be divided by it.
    if spread < NO_NOISE:
        raise RunFailed(
            f"the aggregator adds no noise at all: {coordinates} coordinates gave the same answer "
            "to the best test; find out why "
            "before anything is trained"
        )
    difference = float(with_canary.mean() - without.mean())
    mu = difference / spread
    # The error of a standardised difference: that of the two means, and that of the spread.
    error = math.sqrt(1 / with_canary.size + 1 / without.size + mu**2 / (2 * freedom))
    # Two-sided: too much noise is as much of a bug as too little.
    mu_p = 2.0 * float(stats.norm.sf(abs(mu - expected_mu) / error))
    reach = float(stats.norm.ppf((1 + CONFIDENCE) / 2)) * error
    silent = W[:, coordinates // 2 :]
    noise_p, worst_round = _least_alike(silent)
    independence_p, worst_pair = _most_alike(silent)
    claimed = pattern_sensitivity(strategy, np.array(pattern), rounds)
    return CanaryResult(
        mechanism=strategy.kind,
        rounds=rounds,
        coordinates=coordinates,
        pattern=pattern,
        noise_multiplier=z,
        claimed_mu=claimed.value / z,
        expected_mu=expected_mu,
        mu=mu,
        mu_low=mu - reach,
        mu_high=mu + reach,
        mu_p=mu_p,
        signal=difference / expected_mu,
        noise=float(np.sqrt((silent**2).mean())),
        noise_p=noise_p,
        worst_round=worst_round,
        independence_p=independence_p,
        worst_pair=worst_pair,
    )


def _released(
    scenario: Scenario,
    pattern: tuple[int, ...],
    rounds: int,
    coordinates: int,
    aggregator: Callable[[Scenario], Aggregates],
    clip: Clips,
) -> NDArray[np.float64]:
    """[rounds, coordinates]: what the aggregator releases; canaries sit in the first half of the
    coordinates."""
    full = _with_room(scenario, coordinates)
    tested = aggregator(full)
    tested.start(np.zeros(coordinates, np.float32))
    encoding = _encoding_of(full, coordinates)
    rows = np.empty((rounds, coordinates))
    for index in range(rounds):
        total = encoding.zero_sum()
        if index in pattern:
            for updates in _canaries(index, coordinates, scenario.privacy.clip_norm, clip):
                encoding.encode_into(total, updates, scenario.privacy.clip_norm)
        tested.add(total)
        rows[index] = tested.release().cpu().double().numpy()
    return rows


def _with_room(scenario: Scenario, coordinates: int) -> Scenario:
    """The scenario with full noise, and with a report goal that no sum of canaries exceeds."""
    # Integer sums are sized by the goal, and all canaries of a round come at once. A sampled
    # cohort would get its share of the noise alone.
    goal = max(scenario.rounds.report_goal, coordinates // 2)
    # The canaries are told what the noise is to a sum, before any weighting.
    training = {"cohort_sample": goal, "weighting": MeanWeighting()}
    tables = {
        "training": scenario.training.model_copy(update=training),
        "rounds": scenario.rounds.model_copy(update={"report_goal": goal, "uploads": None}),
    }
    return scenario.model_copy(update=tables)


def _encoding_of(scenario: Scenario, coordinates: int) -> Encoding:
    return encoding_of(scenario.privacy.encoding, scenario.sum_setting(coordinates))


def _canaries(
    round_index: int, coordinates: int, clip_norm: float, clip: Clips
) -> Iterator[ClippedUpdates]:
    """The updates of one canary per coordinate of the first half, group by group."""
    for start in range(0, coordinates // 2, _GROUP):
        places = np.arange(start, min(start + _GROUP, coordinates // 2))
        updates = np.zeros((places.size, coordinates), np.float32)
        # Too long, so that the clipping is tested as well.
        updates[np.arange(places.size), places] = _TOO_LONG * clip_norm
        factors, _ = clip(updates, clip_norm)
        yield ClippedUpdates(round_index, places.astype(np.uint64), updates, factors)


def _least_alike(silent: NDArray[np.float64]) -> tuple[float, int]:
    """(p-value, round) of the round whose sum of squares is least like a chi-square."""
    squares = (silent**2).sum(axis=1)
    law = stats.chi2(silent.shape[1])
    p = 2.0 * np.minimum(law.cdf(squares), law.sf(squares))
    worst = int(p.argmin())
    # Bonferroni: the least of n p-values, times n.
    return min(1.0, float(p[worst]) * p.size), worst


def _most_alike(silent: NDArray[np.float64]) -> tuple[float, tuple[int, int]]:
    """(p-value, rounds) of the two rounds with the largest correlation; 1 for a single round."""
    if len(silent) < 2:
        return 1.0, (0, 0)
    # Their means are known to be zero, so nothing is subtracted.
    unit = silent / np.linalg.norm(silent, axis=1, keepdims=True)
    correlations = unit @ unit.T
    np.fill_diagonal(correlations, 0.0)
    place = int(np.abs(correlations).argmax())
    first, second = sorted(divmod(place, len(silent)))
    r = min(abs(float(correlations[first, second])), 1.0 - 1e-15)
    size = silent.shape[1]
    # Student's t has size - 1 degrees of freedom, and not size - 2, because the means are known.
    statistic = r * math.sqrt((size - 1) / (1.0 - r * r))
    p = 2.0 * float(stats.t.sf(statistic, size - 1))
    pairs = len(silent) * (len(silent) - 1) / 2
    return min(1.0, p * pairs), (first, second)


def _binding_pattern(
    scenario: Scenario, trace: Trace | ImportedTrace | str | Path | None
) -> tuple[tuple[int, ...], int]:
    """Rounds of the device that attains the sensitivity, and how many rounds there are."""
    with tempfile.TemporaryDirectory(prefix="fedray-canary-") as folder:
        if trace is None:
            untrained = scenario.with_overrides("training.enabled=false")
            trace = simulate(untrained, Placement(1, "in-process"), Path(folder, "trace"))
        opened = open_trace(trace) if isinstance(trace, str | Path) else trace
        patterns = read_patterns(opened)
    if scenario.rounds.count < patterns.committed_rounds:
        raise InputError(
            f"trace {str(opened.path)!r} has {patterns.committed_rounds} rounds, the scenario "
            "rounds.count="
            f"{scenario.rounds.count}; give the scenario that was run"
        )
    binding = trace_sensitivity(scenario.privacy.mechanism, patterns)
    return binding.rounds, patterns.committed_rounds


def _real_aggregator(scenario: Scenario) -> Aggregates:
    from server.aggregator import ModelAggregator

    return ModelAggregator(scenario)


def _real_clip() -> Clips:
    from clients.clipping import clip_factors

    return clip_factors
