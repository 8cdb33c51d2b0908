"""An empirical check of the whole path of a run's noise: canaries in the real training.

Canary devices take part in the rounds of one device's recorded pattern. Each sends an update in a
coordinate of its own (with layers: in one coordinate of each), several clip norms long. It passes
through the real clipping, weights, encoding, noise of devices, training loop, aggregator and
estimator. A fair coin decides whether a coordinate has a canary or is silent.

The releases are whitened by the mechanism as its `definition` says, in float64 and
independently of the aggregator's code: W = L^-1 R / (z norm), where L L' = M M', M is the noise map
and `norm` the change that one device can make to the estimate (the clip norm, unless encoding or
estimator ask for more). In correct code the entries of W are independent standard normals; with a
canary they are shifted by L^-1 u / z, where u is the pattern times clip / norm and the canary's
weights.

The main figure is the distinguishability mu of the best linear test (of the released rounds; for
square strategies it is the mechanism's s / z, for trees less, since nodes are not released). Ten
tests of the signal, of the contributions before noise is added, and of W without the signal
(`noise_tests.py`) each look for one kind of fault; a deviation is a bug in one of the two codes.
Lower bounds of epsilon (`fedray.audit.one_run`) stand beside the claimed one. They follow from the
best linear test of what is seen: every release, or the last model of plain SGD, which is the sum of
all releases. For these the exact mu of right code is known too.

Limits: the counts of short updates, by which adaptive clipping chooses norms, are not tested. For
a clipped denominator, canaries show half of the claimed mu. The other half is the change that a
device makes to the sum of the others by its weight, and a canary's coordinate has no others.
"""

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from scipy import linalg, stats

from fedray.audit.one_run import LowerBound, bounds_of_scores, gaussian_bound
from fedray.audit.participation import Patterns, read_patterns
from fedray.audit.sensitivity import trace_sensitivity
from fedray.base.arrays import BoolArray, Float32Array, Float64Array, Int64Array
from fedray.base.document import Document, InJson, NotInJson
from fedray.base.errors import InputError, RunFailed
from fedray.base.part_done import PartDone
from fedray.base.result import Result
from fedray.base.rng import Stream, stream_generator
from fedray.base.rounding import given, up
from fedray.encoding.encoding import Encoding
from fedray.encoding.factory import encoding_of
from fedray.encoding.norms import padded
from fedray.encoding.tables import DeviceNoiseTable, ModularTable
from fedray.mechanisms import reference
from fedray.mechanisms.accounting.gdp import gaussian_epsilon
from fedray.mechanisms.sensitivity import PatternSensitivities
from fedray.mechanisms.strategy import Strategy
from fedray.report.lower_bounds import lower_bounds_table
from fedray.report.subject import Subject
from fedray.report.table import Table
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.scenario.buffer import PolynomialWeighting
from fedray.scenario.clipping import Clip
from fedray.scenario.training import ServerSGD
from fedray.scenario.weighting import ClippedDenominator, FixedDenominator
from fedray.studies.noise_tests import CanaryTest, examine_noise, worst_square
from fedray.trace.imported import ImportedTrace, open_trace
from fedray.trace.reader import Trace
from fedray.wire.messages import TrainReport

if TYPE_CHECKING:  # loads torch, which only a run needs
    from fedray.clients.canaries import Canaries
    from fedray.server.learning.aggregator import ModelAggregator

CONFIDENCE = 0.99
NO_NOISE = 1e-6
"""Noise below this multiple of its expected size is only rounding."""
MOST_VALUES = 1 << 26
"""Most values of the released rounds, which are held in memory as float64."""
MOST_DRAWS = 1 << 28
"""Most draws of devices that add noise, of all rounds: a quarter of an hour."""
MOST_ROUNDS = 5000
"""Whitening takes a few [rounds, rounds] matrices, 200 MB each."""
COORDINATES, COORDINATES_OF_DEVICES_NOISE = 8192, 256
"""Default numbers of model parameters; fewer if every device draws noise for each."""
LAYERS = 4
"""Layers of the model if a scenario clips layers, and does not say how many there are."""
_GROUP = 64
_PRECISION = 1e-5
"""Relative error that float32 and the margin of clipping may cause in a contribution."""


Aggregator = Callable[[Scenario], Any]
"""Makes an aggregator of a scenario, with the methods that a round calls on
`fedray.server.learning.aggregator.ModelAggregator`."""
Trainer = Callable[[Scenario, Any], Any]
"""Makes a trainer of a scenario and of its devices, `fedray.clients.canaries.Canaries`."""


@dataclass(frozen=True, slots=True)
class Seen(Document):
    """Privacy against an adversary who sees every release, or only the last model."""

    what: str
    """The seen releases: "every model" or "only the last"."""
    mu: float
    """The exact mu of the adversary's view, in right code."""
    epsilon: float
    """The exact epsilon of it at the scenario's delta, rounded up."""
    lower: tuple[LowerBound, ...]
    """Lower bounds from this run."""


@dataclass(frozen=True, slots=True)
class CanaryResult(Result):
    """Findings of canaries, beside the theory."""

    TABLES: ClassVar[str] = "fedray.studies.canary:canary_tables"
    SUBJECT: ClassVar[str] = "fedray.studies.canary:canary_subject"

    mechanism: str
    """Kind of the mechanism."""
    rounds: int
    """n, number of released rounds."""
    coordinates: int
    """Coordinates of the model; a fair coin decides which of them have a canary."""
    pattern: tuple[int, ...]
    """Rounds in which the canaries took part."""
    noise_multiplier: float
    """z of the run's sums of updates."""
    claimed_mu: float
    """s / z of the pattern, s its sensitivity; where devices add noise, that of normal noise with
    the variance of the round with the fewest."""
    expected_mu: float
    """The mu that the released rounds can show."""
    mu: float
    """Measured: the distinguishability of the best linear test."""
    mu_low: float
    """Lower end of mu's confidence interval, by a normal approximation."""
    mu_high: float
    """Upper end of that interval."""
    signal: float
    """The size of the signal, measured over expected."""
    noise: float
    """The size of the noise, measured over expected."""
    tests: tuple[CanaryTest, ...]
    """The tests, each for one kind of fault."""
    delta: float
    """Delta of every epsilon: `privacy.delta`."""
    seen: tuple[Seen, ...] = ()
    """Lower bounds of epsilon if every model is seen, and if only the last is, of plain SGD with
    equal denominators."""
    confidence: ClassVar[InJson[float]] = CONFIDENCE
    """Confidence of the interval of mu, from 0 to 1."""
    counts_untested: bool = False
    """Whether rounds also release counts (adaptive clipping), which canaries do not test."""
    devices_add_noise: NotInJson[bool] = False
    """Whether devices add the noise, so that it is discrete."""

    def __repr__(self) -> str:
        found = f"{len(self.problems)} problems" if self.problems else "no problem"
        return (
            f"<CanaryResult of {self.mechanism}, {self.rounds:,} rounds: mu {self.mu:.4f} "
            f"[{self.mu_low:.4f}, {self.mu_high:.4f}], expected {self.expected_mu:.4f}; {found}>"
        )

    @property
    def claimed_epsilon(self) -> InJson[float]:
        """Upper bound of epsilon at delta, which follows from `claimed_mu`; infinite where devices
        add the noise, of which only zCDP is proven."""
        return math.inf if self.devices_add_noise else gaussian_epsilon(self.claimed_mu, self.delta)

    @property
    def covers(self) -> InJson[bool]:
        """Whether the interval of mu holds the expected mu; one in a hundred does not."""
        return self.mu_low <= self.expected_mu <= self.mu_high

    @property
    def problems(self) -> InJson[list[str]]:
        """Problems in words; empty if nothing is wrong.

        Right code has any with a probability below 1e-3.
        """
        return [test.problem for test in self.tests if test.problem is not None]


def canary_subject(canary: CanaryResult) -> Subject:
    """Returns the subject of canaries: the coordinates with and without one."""
    return Subject(canary.mechanism, sample=f"{canary.coordinates:,} coordinates")


def canary_tables(canary: CanaryResult) -> list[Table]:
    """Mechanism, pattern, mu, signal, noise, p-values and problems."""
    p_values = [f"{test.name} {test.p:.3g}" for test in canary.tests]
    facts = [
        (
            "mechanism",
            f"{canary.mechanism}, noise multiplier {given(canary.noise_multiplier)}, "
            f"{canary.rounds:,} rounds",
        ),
        ("pattern", f"rounds {', '.join(map(str, canary.pattern))}"),
        (
            "mu",
            f"claimed {up(canary.claimed_mu)}, expected of the released rounds "
            f"{canary.expected_mu:.4f}",
        ),
        ("", f"measured {_interval(canary)} ({100 * CONFIDENCE:g} %)"),
        ("signal", f"{canary.signal:.4f} of what it should be; noise {canary.noise:.4f}"),
        ("p-values", ", ".join(p_values)),
    ]
    if canary.counts_untested:
        facts.append(("not tested", "the counts of short updates, released too"))
    problems = [("WRONG", problem) for problem in canary.problems]
    rows = [(each.what, each.epsilon, bound) for each in canary.seen for bound in each.lower]
    bounds = lower_bounds_table("seen", rows, canary.claimed_epsilon, canary.delta)
    return [Table.facts("", [*facts, *problems]), bounds]


def _interval(canary: CanaryResult) -> str:
    return f"{canary.mu:.4f} [{canary.mu_low:.4f}, {canary.mu_high:.4f}]"


def run_canary(
    scenario: Scenario,
    trace: Trace | ImportedTrace | str | Path | None = None,
    coordinates: int | None = None,
    aggregator: Aggregator | None = None,
    trainer: Trainer | None = None,
    on_progress: Callable[[str], None] | None = None,
    placement: Placement | None = None,
) -> CanaryResult:
    """Sends canaries through the training of a scenario, and compares the releases with theory.

    Args:
        scenario: source of mechanism, noise multiplier, clipping, encoding and weighting.
        trace: the canaries take part in the rounds of its binding device, with that device's
            staleness; None simulates the scenario.
        coordinates: parameters D of the model, from 256; about half of them have a canary, fewer
            with layers. More narrow the interval. None: 8,192, or 256 if devices add noise.
        aggregator: the tested aggregator; the real one by default.
        trainer: the tested trainer; the real one by default.
        on_progress: called with progress of the training.
        placement: where the scenario is simulated; canaries train in this process.

    Raises:
        InputError: more rounds, values or draws than a machine can take.
        RunFailed: no noise is added at all.
    """
    scenario.privacy.needed_strategy()  # refuses a scenario without noise
    adds_noise = scenario.privacy.sent.adds_noise
    if coordinates is None:
        coordinates = COORDINATES_OF_DEVICES_NOISE if adds_noise else COORDINATES
    if not 256 <= coordinates <= 1 << 20:
        rule = f"must be from 256 to {1 << 20}"
        raise InputError.of("coordinates", coordinates, rule, "more narrow the interval")
    recorded = _recorded(scenario, trace, placement)
    rounds = recorded.rounds
    if rounds > MOST_ROUNDS:
        raise InputError(
            f"the run has {rounds} rounds, canaries take {MOST_ROUNDS} at most; check a shorter "
            "run of the same mechanism"
        )
    most = MOST_VALUES // rounds
    # D / 2 devices draw noise for D coordinates in every round.
    if adds_noise:
        most = min(most, math.isqrt(2 * MOST_DRAWS // rounds))
    if coordinates > most:
        remedy = f"take {most} or fewer" if most >= 256 else "check a shorter run"
        rule = f"is too large for {rounds} rounds"
        raise InputError.of("coordinates", coordinates, rule, remedy)
    return check_training(scenario, recorded, coordinates, aggregator, trainer, on_progress)


class Recorded(NamedTuple):
    """The part of a trace that canaries need."""

    pattern: tuple[int, ...]
    """Rounds of the canaries, in order."""
    rounds: int
    """Number of released rounds n."""
    staleness: tuple[int, ...] = ()
    """Versions by which their models were older than the newest, one per round of the pattern;
    empty if all are 0."""
    shares: tuple[float, ...] = ()
    """Accepted devices over the report goal, by round [n]; empty if all are 1."""

    @property
    def least_share(self) -> float:
        """The smallest share of a round."""
        return min(self.shares or [1.0])


def check_training(
    scenario: Scenario,
    recorded: Recorded,
    coordinates: int,
    aggregator: Aggregator | None = None,
    trainer: Trainer | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> CanaryResult:
    """Runs `run_canary` for a recorded pattern; `coordinates` is rounded down to whole canaries.

    Raises:
        InputError: canaries would take rounding for noise.
        RunFailed: no noise is added at all.
    """
    # These load torch, which only a training needs.
    from fedray.clients.canaries import CanaryTrainer
    from fedray.server.learning.aggregator import ModelAggregator

    aggregator = aggregator or ModelAggregator
    setup = _Setup.of(scenario, recorded, coordinates)
    setup.demand_fine_steps(recorded)
    tell = on_progress or (lambda text: None)
    released, clips, contributions = _released(
        setup, recorded, aggregator, trainer or CanaryTrainer, tell
    )
    # Theory follows: the unit of each round, and the shift of a canary in it.
    z = scenario.update_noise_multiplier
    strategy = scenario.privacy.needed_strategy()
    encoding = setup.encoding
    # The ratio is the same for every clip norm.
    inflation = encoding.contribution_norm(1.0)
    # The unit of a round is the change that one device may make to its estimate.
    unit = np.array([encoding.contribution_norm(each.norm) for each in clips])
    unit *= setup.effect
    pattern = np.array(recorded.pattern)
    weights = _reference_weights(scenario, recorded)
    u = np.zeros(recorded.rounds)
    u[pattern] = setup.scales(recorded) * weights
    u *= setup.longest / (inflation * setup.effect)
    # Noise of devices grows with the root of how many came.
    came = [setup.devices(share) / setup.goal for share in recorded.shares]
    shares = np.sqrt(np.array(came or [1.0] * recorded.rounds))
    L = _noise_factor(strategy, shares)
    W, shift = _whitened(L, released / unit[:, None], u, z)
    delta = scenario.privacy.delta
    # The sum of the releases is `unit` times the whole noise and signal, L W and L shift.
    tests = {"every model": shift, "only the last": L.T @ unit}
    tests = {what: test / np.linalg.norm(test) for what, test in tests.items()}
    answers = {what: test @ W for what, test in tests.items()}
    measured = _measured(
        W,
        shift,
        _contribution(setup, recorded, contributions[pattern], weights, L),
        setup.has_canary,
        setup.grain() / (z * shares.min()),
    )
    claimed = PatternSensitivities(strategy, recorded.rounds).exact(
        pattern, None if (weights == 1.0).all() else weights
    )
    seen = [
        _seen(what, answers[what], float(test @ shift), setup.has_canary, delta)
        for what, test in tests.items()
    ]
    return CanaryResult(
        mechanism=strategy.kind,
        rounds=recorded.rounds,
        coordinates=setup.has_canary.size * len(setup.layer_norms),
        pattern=recorded.pattern,
        noise_multiplier=z,
        # Rounds with fewer devices have less noise, so the emptiest round has the largest mu.
        claimed_mu=claimed.value / (z * math.sqrt(recorded.least_share)),
        devices_add_noise=encoding.adds_noise,
        counts_untested=scenario.count_noise is not None,
        delta=delta,
        seen=tuple(seen),
        **measured,
    )


def _seen(what: str, answers: Float64Array, mu: float, has_canary: BoolArray, delta: float) -> Seen:
    """Returns the bounds from answers of a test [coordinates], which are N(mu, 1) with a canary and
    N(0, 1) without."""
    of_normals = gaussian_bound(answers[has_canary], answers[~has_canary], delta)
    lower = (*bounds_of_scores(answers, has_canary, delta), of_normals)
    return Seen(what, mu, gaussian_epsilon(mu, delta), lower)


def _noise_factor(strategy: Strategy, shares: Float64Array) -> Float64Array:
    """L [n, n] with L L' = M M': the released noise is z norm M Z, M the noise map. The draws Z of
    round t have the deviation shares[t], other than 1 only if devices add the noise."""
    M = reference.noise_map(strategy, shares.size)
    # A tree has further draws, and a server adds it.
    M[:, : shares.size] *= shares
    return np.linalg.cholesky(M @ M.T).astype(np.float64)


def _whitened(
    L: Float64Array, released: Float64Array, u: Float64Array, z: float
) -> tuple[Float64Array, Float64Array]:
    """Returns whitened releases W [n, coordinates], and the shift of a canary in each row [n].

    L is the factor of the noise covariance, z the noise multiplier; releases [n, coordinates] and
    the shift u of a canary in each round [n] are in units of the noise's norm.
    """
    # Whitening undoes what correlates the rounds, so that each can be judged by itself.
    W = linalg.solve_triangular(L, released / z, lower=True, overwrite_b=True)
    return W, linalg.solve_triangular(L, u, lower=True) / z


def _measured(
    W: Float64Array,
    shift: Float64Array,
    contribution: CanaryTest,
    has_canary: BoolArray,
    grain: float,
) -> dict[str, Any]:
    """Returns the measured figures of a `CanaryResult`, and the expected mu.

    Args:
        W: whitened releases [n, coordinates]; the signal is subtracted from it.
        shift: shift of a canary in each row of W, [n].
        contribution: test of the contributions.
        has_canary: coordinates that have a canary.
        grain: distance between the values of whitened noise; 0 for continuous noise.
    """
    expected_mu = float(np.linalg.norm(shift))
    answers = shift @ W / expected_mu
    with_canary, without = answers[has_canary], answers[~has_canary]
    # Student's pooled variance: both kinds have the same noise.
    freedom = with_canary.size + without.size - 2
    squares_with = with_canary.var(ddof=1) * (with_canary.size - 1)
    squares_without = without.var(ddof=1) * (without.size - 1)
    spread = math.sqrt((squares_with + squares_without) / freedom)
    # Checked before mu, which would be divided by it.
    if spread < NO_NOISE:
        raise RunFailed(
            f"the aggregator adds no noise at all: {W.shape[1]} coordinates gave the same answer "
            "to the best test; find out why before anything is trained"
        )
    difference = float(with_canary.mean() - without.mean())
    mu = difference / spread
    # The error of a standardised difference: that of the two means, and that of the spread.
    of_means = 1 / with_canary.size + 1 / without.size
    error = math.sqrt(of_means + mu**2 / (2 * freedom))
    reach = float(stats.norm.ppf((1 + CONFIDENCE) / 2)) * error
    signal = difference / expected_mu
    of_signal = _test_of_rounds(W, shift, has_canary)
    # The noise of canaries counts too, once the signal is subtracted.
    W[:, has_canary] -= signal * shift[:, None]
    # Sizes and law are judged by silent coordinates, which hold no signal, wrong or right.
    silent = W[:, ~has_canary]
    # The two parts of mu are independent, so each has half of the false alarms.
    away = (difference - expected_mu) / math.sqrt(of_means)
    by_signal = 2.0 * float(stats.norm.sf(abs(away)))
    by_noise, _ = worst_square(np.array([freedom * spread**2]), freedom)
    mu_low, mu_high = mu - reach, mu + reach
    of_mu = CanaryTest(
        "mu",
        min(1.0, 2.0 * min(by_signal, by_noise)),
        f"mu is {mu:.4f} [{mu_low:.4f}, {mu_high:.4f}], "
        f"{'more' if mu > expected_mu else 'less'} than {expected_mu:.4f}; the signal is "
        f"{signal:.3f} and the noise in its direction {spread:.3f} of what they should be",
        "clipping, noise multiplier and the mechanism's matrix",
    )
    return {
        "expected_mu": expected_mu,
        "mu": mu,
        "mu_low": mu_low,
        "mu_high": mu_high,
        "signal": signal,
        "noise": float(np.sqrt((silent**2).mean())),
        "tests": (of_mu, of_signal, contribution, *examine_noise(silent, W, grain)),
    }


def _test_of_rounds(W: Float64Array, shift: Float64Array, has_canary: BoolArray) -> CanaryTest:
    """Tests the mean of each round [n], with a canary less without."""
    away = W[:, has_canary].mean(axis=1) - W[:, ~has_canary].mean(axis=1) - shift
    variance = 1.0 / has_canary.sum() + 1.0 / (~has_canary).sum()
    # If all is right, whitened rounds are independent, so their squares add to a chi-square.
    square = float((away**2).sum() / variance)
    measured = f"the signal of the rounds has a chi-square of {square:.1f} instead of {away.size}"
    p = float(stats.chi2.sf(square, away.size))
    check = "weights, denominators and the mechanism's matrix"
    return CanaryTest("signal of rounds", p, measured, check)


def _contribution(
    setup: "_Setup",
    recorded: Recorded,
    contributions: Float64Array,
    weights: Float64Array,
    L: Float64Array,
) -> CanaryTest:
    """Tests the mean contribution of a canary to the sum of a round before the server adds noise.

    Args:
        setup: the experiment.
        recorded: the recorded participation.
        contributions: mean contributions in the pattern's rounds, in clip norms, [c].
        weights: expected weights of updates, [c].
        L: factor of the noise covariance, [n, n].
    """
    expected = setup.longest * weights
    variance = (_PRECISION * expected) ** 2
    table = setup.scenario.privacy.sent
    # Each canary rounds every coordinate after the rotation, by a variance of 1/4 step^2 at most.
    if isinstance(table, ModularTable):
        variance += 0.25 / table.scale**2
    if setup.encoding.adds_noise:
        inflated = setup.encoding.contribution_norm(setup.scenario.update_noise_multiplier)
        rows = np.linalg.norm(L[list(recorded.pattern)], axis=1)
        variance += (inflated * rows) ** 2 / setup.canaries
    away = (contributions - expected) / np.sqrt(variance)
    worst = int(np.abs(away).argmax())
    p = min(1.0, 2.0 * away.size * float(stats.norm.sf(abs(away[worst]))))
    measured = (
        f"a canary contributes {contributions[worst]:.4f} clip norms in round "
        f"{recorded.pattern[worst]}, and {expected[worst]:.4f} is right"
    )
    return CanaryTest("contribution", p, measured, "the devices' clipping, weights and encoding")


class _Setup(NamedTuple):
    """The experiment: a scenario whose rounds have room for all canaries at once, and its theory.
    The rules of estimators and weights are written down here a second time."""

    scenario: Scenario
    """The trained scenario."""
    has_canary: BoolArray
    """Coordinates of a layer that have a canary, each by a fair coin, [m]."""
    silent: int
    """Devices with examples that send zero, in every other round of the pattern."""
    layer_norms: tuple[float, ...]
    """First clip norm of each layer."""
    goal: int
    """Devices of a round."""
    denominator: float | None
    """Divisor of a noised sum; None for the number of devices."""
    least: float
    """Sum of weights above which a sum is scaled down; infinite if sums are never scaled."""
    effect: float
    """Largest change of the estimate by one device, over its largest change of the sum."""
    encoding: Encoding
    """Encoding of the sums."""
    longest: float
    """Length of the longest clipped update, in clip norms."""

    @classmethod
    def of(cls, scenario: Scenario, recorded: Recorded, coordinates: int) -> "_Setup":
        """Returns the experiment for a scenario and a trace, with at most this many coordinates."""
        privacy, weighting = scenario.privacy, scenario.training.weighting
        table = privacy.clipping
        layers = len(getattr(table, "norms", None) or range(LAYERS))
        names = [f"layer{place}" for place in range(layers)]
        # Clipping of whole updates is clipping of a single layer.
        layer_norms = table.layer_norms(names, privacy.clip_norm) or (privacy.clip_norm,)
        # Bounds of epsilon need independent coins, not a fixed number of canaries.
        coins = stream_generator(scenario.training_seed, Stream.CANARY)
        has_canary = coins.random(coordinates // len(layer_norms)) < 0.5
        canaries = int(has_canary.sum())
        if not 2 <= canaries <= has_canary.size - 2:
            rule = f"is too small for {len(layer_norms)} layers"
            raise InputError.of("coordinates", coordinates, rule, "take more")
        # Integer sums are sized by the goal, and all canaries of a round come at once. Where
        # devices add noise, every device of the goal must be there.
        goal = math.ceil(canaries / recorded.least_share)
        if not privacy.sent.adds_noise:
            goal = max(goal, scenario.rounds.report_goal)
        silent, denominator, least, effect = 0, None, math.inf, 1.0
        if isinstance(weighting, FixedDenominator):
            denominator = goal * weighting.mean_weight
        if isinstance(weighting, ClippedDenominator):
            # Rounds with half of the least denominator, and with twice as much.
            goal = math.ceil(2 * canaries / weighting.least_mean_weight)
            denominator = least = goal * weighting.least_mean_weight
            silent, effect = 3 * canaries, 2.0
        dimension = has_canary.size * len(layer_norms)
        trained = _with_room(scenario, goal, dimension)
        encoding = encoding_of(trained.privacy.sent, trained.sum_setting(dimension))
        # An update that is at the norm of every layer is as long as the root of their squares.
        longest = math.hypot(*layer_norms) / privacy.clip_norm
        return cls(
            *(trained, has_canary, silent, layer_norms, goal),
            *(denominator, least, effect, encoding, longest),
        )

    @property
    def canaries(self) -> int:
        """Number of canaries."""
        return int(self.has_canary.sum())

    def devices(self, share: float) -> int:
        """Devices of a round in which such a share of the goal was accepted."""
        return round(self.goal * share)

    def has_silent(self, pattern: Sequence[int], round_index: int) -> bool:
        """Whether silent devices with examples take part in a round of the pattern."""
        return bool(self.silent) and pattern.index(round_index) % 2 == 1

    def scales(self, recorded: Recorded) -> Float64Array:
        """Factors on the sums of the pattern's rounds before noise is added, [c]."""
        weights = [
            self.canaries + self.silent * self.has_silent(recorded.pattern, index)
            for index in recorded.pattern
        ]
        return np.minimum(1.0, self.least / np.array(weights))

    def grain(self) -> float:
        """Distance of a coordinate's noise values, in contribution norms; 0 if continuous."""
        table = self.scenario.privacy.sent
        if not isinstance(table, DeviceNoiseTable):
            return 0.0
        # A rotated coordinate is a signed sum of whole steps, whose parity is the same for all.
        steps = 2.0 / math.sqrt(padded(table.parameters))
        # Whitening gives W / c_0.
        steps /= self.scenario.privacy.coefficients[0]
        return steps / table.scale / self.encoding.contribution_norm(1.0)

    def demand_fine_steps(self, recorded: Recorded) -> None:
        """Raises InputError if rounding by all canaries together may add so much variance that a
        right training would be called wrong.

        A coordinate of an update is rounded with a variance of 1/4 step^2 at most. That may be a
        quarter of the standard deviation of a measured variance: of a round, of all rounds and of
        the best test's answers. So it hardly adds to false alarms.
        """
        table, z = self.scenario.privacy.sent, self.scenario.update_noise_multiplier
        if not isinstance(table, ModularTable):
            return
        # The mean over n rounds scatters less by sqrt(n), and only the pattern's rounds round.
        pattern = np.array(recorded.pattern)
        often = max(1.0, pattern.size / math.sqrt(recorded.rounds))
        # The best test adds up the pattern's rounds, and takes the answers of all coordinates.
        strategy = self.scenario.privacy.needed_strategy()
        sensitivity = PatternSensitivities(strategy, recorded.rounds).exact(pattern).value
        often = max(often, math.sqrt(2.0) * sensitivity**2 / pattern.size)
        added = often * self.canaries / 4.0
        # The variance measured on this many coordinates scatters by sqrt(2 / canaries).
        least_square = 4.0 * added / math.sqrt(2.0 / self.canaries) / z**2
        if (table.scale * self.encoding.contribution_norm(1.0)) ** 2 < least_square:
            raise InputError.of(
                f"{table.place}.scale",
                table.scale,
                f"is too coarse: the rounding of {self.canaries:,} canaries would be taken for "
                "noise",
                "take fewer coordinates, or a scale of at least "
                f"{math.ceil(math.sqrt(least_square)):,}",
            )


def _with_room(scenario: Scenario, goal: int, dimension: int) -> Scenario:
    """The scenario with full noise, rounds of `goal` devices, a model of D parameters, and a server
    that adds the mean to the model as it is."""
    after_the_last = scenario.rounds.count + 1
    encoding = scenario.privacy.sent
    # Else the noise on counts would follow from the goal here.
    privacy: dict[str, Any] = {
        "clipping": scenario.privacy.clipping.counting_as(scenario.rounds.report_goal)
    }
    if isinstance(encoding, DeviceNoiseTable):
        privacy["trust"] = encoding.model_copy(update={"parameters": dimension})
    rounds = {"report_goal": goal, "uploads": None}
    if scenario.rounds.uploads is not None:
        rounds["mode"] = "on-device"
    return _updated(
        scenario,
        privacy=privacy,
        rounds=rounds,
        training={
            # A sampled cohort would get only its share of the noise.
            "cohort_sample": goal,
            "server": ServerSGD(momentum=0.0, learning_rate=1.0),
            "devices_at_once": _GROUP,
            # Nothing is evaluated or kept before the last round.
            "evaluate_every": after_the_last,
            "checkpoint_every": after_the_last,
        },
    )


def _updated(scenario: Scenario, **tables: dict[str, Any]) -> Scenario:
    """The scenario with other values in some of its tables, which are not checked again."""
    changed = {name: getattr(scenario, name).model_copy(update=tables[name]) for name in tables}
    return scenario.model_copy(update=changed)


def _reference_weights(scenario: Scenario, recorded: Recorded) -> Float64Array:
    """Weights of the pattern's contributions, [c]: (1 + staleness)^-exponent."""
    buffer = scenario.rounds.buffer
    if recorded.staleness and buffer and isinstance(buffer.weighting, PolynomialWeighting):
        return (1.0 + np.array(recorded.staleness)) ** -buffer.weighting.exponent
    return np.ones(len(recorded.pattern))


def _released(
    setup: _Setup,
    recorded: Recorded,
    aggregator: Aggregator,
    trainer: Trainer,
    tell: Callable[[str], None],
) -> tuple[Float64Array, list[Clip], Float64Array]:
    """Trains with canaries.

    Returns:
        Noised sums that the training releases [n, m], clips of the rounds, and mean
        contributions of canaries before the server adds noise, in clip norms [n]. With several
        layers, a coordinate is the sum over layers in a canary's direction.
    """
    from fedray.clients.canaries import Canaries
    from fedray.clients.workers import TrainerWorker
    from fedray.runtime.workers import InProcessWorker
    from fedray.server.learning.store import SumStore
    from fedray.server.learning.training import TrainingLoop
    from fedray.server.learning.workers import AggregatorWorker, StoreWorker

    full, layers = setup.scenario, setup.layer_norms
    first = full.privacy.clipping.clip(full.privacy.clip_norm)
    canaries = Canaries(setup.has_canary, setup.silent, layers, first)
    watched = _Watched(aggregator(full), canaries, setup.encoding)
    adds_noise = setup.encoding.adds_noise
    # A recorded round may have fewer devices than the goal, which here is the number of canaries.
    store = StoreWorker(InProcessWorker(SumStore, full, 1)) if adds_noise else None
    loop = TrainingLoop(
        full,
        [TrainerWorker(InProcessWorker(lambda: trainer(full, canaries)))],
        AggregatorWorker(InProcessWorker(lambda: watched)),
        store=store,
    )
    # Each canary sends in all layers at once; this is the direction of its update.
    direction = np.array(layers) / math.hypot(*layers)
    rows = np.empty((recorded.rounds, setup.has_canary.size))
    contributions = np.empty(recorded.rounds)
    clips: list[Clip] = []
    for index in range(recorded.rounds):
        tell(PartDone(f"{index:,} of {recorded.rounds:,} rounds", index, recorded.rounds))
        cohort = _cohort(setup, recorded, index)
        clip = loop.train(index, cohort).clip
        assert clip is not None
        clips.append(clip)
        # The server added the mean, so the noised sum is the step times the denominator.
        divisor = setup.denominator or cohort.device_ids.size
        step = watched.step.reshape(len(layers), -1)
        rows[index] = divisor * (direction @ step)
        if adds_noise:
            # No one has a sum without noise.
            contributions[index] = rows[index, setup.has_canary].mean() / clip.norm
        else:
            sent = watched.sum.reshape(len(layers), -1)[:, setup.has_canary]
            contributions[index] = (direction @ sent).mean()
    return rows, clips, contributions


class _Watched:
    """An aggregator that shows its last step and, if the server adds the noise, the sum without it;
    and gives canaries their clips."""

    step: Float64Array
    """Change of the parameters in the last round, [D]."""
    sum: Float64Array
    """Decoded sum of updates of the last round, in clip norms, [D]."""

    def __init__(
        self, aggregator: "ModelAggregator", canaries: "Canaries", encoding: Encoding
    ) -> None:
        self._aggregator, self._canaries, self._encoding = aggregator, canaries, encoding
        self._before = np.empty(0)
        self._total = encoding.zero_sum()
        self.draw_noise = aggregator.draw_noise

    def start(self, parameters: Float32Array) -> tuple[Clip, Float32Array]:
        return self._seen(*self._aggregator.start(parameters))

    def add(self, total: Int64Array) -> None:
        self._encoding.add(self._total, total)
        self._aggregator.add(total)

    def commit(
        self, report: TrainReport, last: Int64Array | None = None
    ) -> tuple[Clip, Float32Array]:
        before = self._before
        if not self._encoding.adds_noise:
            # The tested aggregator gets every sum by `add`.
            if last is not None:
                self.add(last)
            decoded = self._encoding.decode(self._total, 1.0, report.round_index)
            self.sum = decoded.astype(np.float64)
            self._total = self._encoding.zero_sum()
            last = None
        committed = self._seen(*self._aggregator.commit(report, last))
        # With learning rate 1 and no momentum, a step is the estimate itself.
        self.step = self._before - before
        return committed

    def _seen(self, clip: Clip, parameters: Float32Array) -> tuple[Clip, Float32Array]:
        self._canaries.clip = clip
        self._before = parameters.astype(np.float64)
        return clip, parameters


def _cohort(setup: _Setup, recorded: Recorded, round_index: int) -> Any:
    """Returns the accepted devices of a round, canaries first; the others have no examples."""
    from fedray.server.learning.training import Cohort

    # Devices that send nothing are only needed if they add noise or are counted.
    devices = 1 if setup.scenario.count_noise is None else setup.canaries
    if setup.encoding.adds_noise:
        devices = setup.devices(recorded.shares[round_index] if recorded.shares else 1.0)
    sending = 0
    if round_index in recorded.pattern:
        sending = setup.canaries
        sending += setup.silent * setup.has_silent(recorded.pattern, round_index)
    holding = setup.canaries + setup.silent
    # Ids beyond canaries and silent devices have no examples.
    empty = np.arange(holding, holding + max(0, devices - sending))
    device_ids = np.concatenate([np.arange(sending), empty]).astype(np.uint64)
    if setup.scenario.rounds.buffer is None:
        return Cohort(device_ids)
    # All have the newest model, except those whose staleness was recorded.
    versions = np.full(device_ids.size, round_index, np.uint32)
    if recorded.staleness and sending:
        versions[:sending] -= recorded.staleness[recorded.pattern.index(round_index)]
    return Cohort(device_ids, versions)


def _recorded(
    scenario: Scenario,
    trace: Trace | ImportedTrace | str | Path | None,
    placement: Placement | None,
) -> Recorded:
    """Reads the rounds of the device with the largest sensitivity, and its circumstances."""
    with tempfile.TemporaryDirectory(prefix="fedray-canary-") as folder:
        if trace is None:
            untrained = scenario.with_overrides("training.enabled=false")
            trace = simulate(untrained, placement, Path(folder, "trace"))
        opened = open_trace(trace) if isinstance(trace, str | Path) else trace
        patterns = read_patterns(opened)
        if not patterns.device_ids.size:
            raise InputError(
                f"trace {str(opened.path)!r}: no device took part in any of its rounds, so there "
                "is no pattern for canaries; give another trace"
            )
        rounds = patterns.committed_rounds
        if scenario.rounds.count < rounds:
            raise InputError(
                f"trace {str(opened.path)!r} has {rounds} rounds, the scenario rounds.count="
                f"{scenario.rounds.count}; give the scenario that was run"
            )
        return _binding(scenario, opened, patterns)


def _binding(scenario: Scenario, trace: Trace | ImportedTrace, patterns: Patterns) -> Recorded:
    binding = trace_sensitivity(scenario.privacy.needed_strategy(), patterns)
    rounds = patterns.committed_rounds
    if isinstance(trace, ImportedTrace):
        return Recorded(binding.rounds, rounds)
    staleness: dict[int, int] = {}
    for part in trace.accepted() if trace.is_buffered else ():
        assert part.versions is not None
        is_own = part.device_ids == binding.device_id
        own = part.rounds[is_own].tolist(), part.versions[is_own].tolist()
        # A model's age is its round less the version that the device was sent.
        staleness |= {index: index - version for index, version in zip(*own, strict=True)}
    shares: tuple[float, ...] = ()
    if scenario.privacy.sent.adds_noise:
        # State 0 is committed: an abandoned attempt released nothing.
        accepted = trace.rounds["accepted"][trace.rounds["state"] == 0]
        # Devices beyond the goal add noise that no privacy rests on here.
        of_goal = np.minimum(1.0, accepted / scenario.rounds.report_goal)
        shares = tuple(of_goal.tolist()) if (of_goal < 1.0).any() else ()
    stale = tuple(staleness[index] for index in binding.rounds) if staleness else ()
    return Recorded(binding.rounds, rounds, stale, shares)
