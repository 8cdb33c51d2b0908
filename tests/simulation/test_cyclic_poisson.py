"""Poisson samples of partitions that take turns: who is drawn, and the privacy that it amplifies."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from scipy.linalg import toeplitz

from fedray.audit.auditing import audit_trace
from fedray.audit.mechanism_audit import MechanismAudit
from fedray.audit.noise import ServerNoise
from fedray.audit.privacy_statement import privacy_statement
from fedray.audit.sampled import SECRET, ZERO_OUT, sampled
from fedray.base.errors import InputError, ScenarioError
from fedray.mechanisms.accounting.events import Gaussian, PoissonSampled, Repeated
from fedray.mechanisms.accounting.pld import pld_epsilon
from fedray.mechanisms.accounting.sampled import PoissonSampling, sampled_release
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import BLT, BandFHU, Identity, Toeplitz
from fedray.mechanisms.strategy import Strategy
from fedray.runs.learning import train
from fedray.runs.pipeline import run_scenario
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.server.rounds import schedules
from fedray.server.rounds.schedules import Poisson
from fedray.trace.reader import Trace
from fedray.wire.messages import Outcome

HERE = Placement(1, "in-process")
PARTITIONS, TURNS, SHARE = 5, 12, 0.3
ROUNDS = PARTITIONS * TURNS
LEAST_P = 1e-4 / 5
"""Each of five tests of a trace rejects with this probability at most: 1e-4 together."""
BANDED = Toeplitz(coefficients=(1.0, 0.5, 0.375))


def scenario(assignment: str, *overrides: str, **uploads: float) -> Scenario:
    schedule = {"kind": "cyclic_poisson", "partitions": PARTITIONS, "probability": SHARE}
    return Scenario.from_tables(
        {
            "seed": 5,
            "population": {"devices": 3000},
            "availability": {"model": "always_on"},
            "participation": {"policies": [{"kind": "swor", "period_hours": 6.0}]},
            "rounds": {
                "mode": "upload-then-train",
                "count": ROUNDS,
                "report_goal": 180,
                "uploads": {
                    "window_hours": 4.0,
                    "schedule": {**schedule, "assignment": assignment},
                    **uploads,
                },
            },
            "training": {"enabled": False},
        }
    ).with_overrides(*overrides)


@pytest.fixture(scope="module")
def traces(tmp_path_factory) -> dict[str, Trace]:
    folder = tmp_path_factory.mktemp("traces")
    return {
        kind: simulate(scenario(kind), HERE, folder / kind) for kind in ("equal", "independent")
    }


@pytest.fixture(scope="module")
def windows(tmp_path_factory) -> dict[str, Trace]:
    """Three windows; in two consecutive ones a device may upload."""
    folder = tmp_path_factory.mktemp("windows")
    return {
        kind: simulate(scenario(kind, windows=3), HERE, folder / kind)
        for kind in ("equal", "independent")
    }


def draws_of(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """The device and the round of each accepted upload."""
    columns = trace.columns(0)
    is_accepted = columns["outcome"] == Outcome.ACCEPTED
    return columns["device_id"][is_accepted], columns["round"][is_accepted].astype(np.int64)


def p_values(trace: Trace) -> dict[str, float]:
    """Tests that a trace of one window was drawn as the accounting assumes.

    uniform: as many devices in each partition, or by chance; balanced: partitions do not depend on
    the device id; binomial: draws of a device; dispersed: devices are drawn independently of one
    another; memoryless: turns are drawn independently of one another.
    """
    devices, rounds = draws_of(trace)
    held = trace.rounds["eligible_estimate"].astype(float)
    selected = trace.rounds["selected"].astype(float)
    ids, places = np.unique(devices, return_inverse=True)
    is_drawn = np.zeros((ids.size, ROUNDS))
    is_drawn[places, rounds] = 1.0
    group = np.zeros(ids.size, np.int64)
    group[places] = rounds % PARTITIONS
    # No device is in a turn of another partition than its last.
    assert (group[places] == rounds % PARTITIONS).all()
    sizes = held[:PARTITIONS]
    members = int(sizes.sum())
    quarters = (4 * np.argsort(np.argsort(ids))) // ids.size
    counts = np.bincount(is_drawn.sum(axis=1).astype(int), minlength=TURNS + 1).astype(float)
    # Devices that were never drawn are seen only by their number.
    counts[0] = members - ids.size
    law = members * stats.binom.pmf(np.arange(TURNS + 1), TURNS, SHARE)
    common = law >= 5
    counts = np.append(counts[common], counts[~common].sum())
    law = np.append(law[common], law[~common].sum())
    scaled = (selected - held * SHARE) ** 2 / (held * SHARE * (1 - SHARE))
    own = np.full((members, TURNS), -SHARE)
    own[: ids.size] += np.stack([is_drawn[at, group[at] :: PARTITIONS] for at in range(ids.size)])
    deviation = SHARE * (1 - SHARE)
    lags = [
        (own[:, :-lag] * own[:, lag:]).sum() / (deviation * np.sqrt(members * (TURNS - lag)))
        for lag in range(1, TURNS)
    ]
    below = stats.chi2.cdf(scaled.sum(), ROUNDS)
    table = np.array([np.bincount(group[quarters == q], minlength=PARTITIONS) for q in range(4)])
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / ids.size
    return {
        "uniform": float(stats.chisquare(sizes).pvalue),
        "balanced": float(
            stats.chi2.sf(((table - expected) ** 2 / expected).sum(), 3 * (PARTITIONS - 1))
        ),
        "binomial": float(stats.chisquare(counts, law).pvalue),
        "dispersed": float(2 * min(below, 1 - below)),
        "memoryless": float(stats.chi2.sf(np.square(lags).sum(), TURNS - 1)),
    }


@pytest.mark.parametrize("assignment", ["equal", "independent"])
def test_a_run_draws_as_the_accounting_assumes(traces, assignment: str) -> None:
    """False alarms: 1e-4 for each assignment, by five tests."""
    trace = traces[assignment]
    assert trace.committed_rounds == ROUNDS
    sizes = trace.rounds["eligible_estimate"]
    stored = trace.run["uploads"][0]["stored"]
    assert stored > 2900
    if assignment == "equal":
        assert (sizes == stored // PARTITIONS).all()
    else:
        assert sizes[:PARTITIONS].sum() == stored
        assert np.unique(sizes).size > 1
    assert min(p_values(trace).values()) > LEAST_P


def drawing_a_fixed_number(self: Poisson, eligible: np.ndarray, attempt: int) -> np.ndarray:
    words = schedules.long_words(self._draw_key, self._device_ids[eligible], attempt)
    return np.sort(eligible[np.argsort(words)[: round(SHARE * eligible.size)]])


def drawing_the_same_again(self: Poisson, eligible: np.ndarray, attempt: int) -> np.ndarray:
    words = schedules.long_words(self._draw_key, self._device_ids[eligible], 0)
    return eligible[words < np.uint64(int(SHARE * 2.0**64))]


def drawing_households(self: Poisson, eligible: np.ndarray, attempt: int) -> np.ndarray:
    """Neighbours by id are drawn together or not at all."""
    words = schedules.long_words(self._draw_key, self._device_ids[eligible] // 32, attempt)
    return eligible[words < np.uint64(int(SHARE * 2.0**64))]


def drawing_too_few(self: Poisson, eligible: np.ndarray, attempt: int) -> np.ndarray:
    words = schedules.long_words(self._draw_key, self._device_ids[eligible], attempt)
    return eligible[words < np.uint64(int(0.28 * 2.0**64))]


@pytest.mark.parametrize(
    ("draw", "found_by"),
    [
        (drawing_a_fixed_number, "dispersed"),
        (drawing_the_same_again, "memoryless"),
        (drawing_households, "dispersed"),
        (drawing_too_few, "binomial"),
    ],
)
def test_a_run_that_draws_otherwise_is_found(tmp_path: Path, monkeypatch, draw, found_by) -> None:
    monkeypatch.setattr(Poisson, "draw", draw)
    trace = simulate(scenario("equal"), HERE, tmp_path / "t")
    assert p_values(trace)[found_by] < LEAST_P / 1000


def test_partitions_by_the_order_of_the_ids_are_found(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(schedules, "long_words", lambda key, ids, address: ids.copy())
    monkeypatch.setattr(Poisson, "draw", drawing_by_numpy)
    trace = simulate(scenario("equal"), HERE, tmp_path / "t")
    assert p_values(trace)["balanced"] < LEAST_P / 1000


def drawing_by_numpy(self: Poisson, eligible: np.ndarray, attempt: int) -> np.ndarray:
    return eligible[np.random.default_rng(attempt).random(eligible.size) < SHARE]


def audited(trace: Trace, strategy: Strategy) -> MechanismAudit:
    return audit_trace(trace, 2.0, 1e-6, strategy).mechanisms[0]


def norm_of(strategy: Strategy) -> float:
    """Largest norm of a column of C."""
    if isinstance(strategy, Identity):
        return 1.0
    assert isinstance(strategy, Toeplitz | BandFHU)
    return float(np.linalg.norm(strategy.first_column(ROUNDS)))


@pytest.mark.parametrize("assignment", ["equal", "independent"])
@pytest.mark.parametrize(
    "strategy", [Identity(), BANDED, BandFHU(bands=PARTITIONS)], ids=lambda each: each.kind
)
def test_banded_noise_is_as_many_sampled_gaussians_as_a_partition_has_turns(
    traces, assignment: str, strategy: Strategy
) -> None:
    """Choquette-Choo et al. 2023, Theorem 4."""
    mechanism = audited(traces[assignment], strategy)
    found = mechanism.sampled
    assert found is not None
    step = PoissonSampled(
        probability=SHARE, event=Gaussian(noise_multiplier=2.0 / norm_of(strategy))
    )
    assert isinstance(found.event, Repeated)
    assert found.event.count == TURNS
    assert found.epsilon == pytest.approx(
        pld_epsilon(Repeated(event=step, count=TURNS), 1e-6), rel=1e-9
    )
    assert found.participation == MinSep(ROUNDS, PARTITIONS, TURNS)
    assert mechanism.enforced.participation == found.participation
    assert mechanism.enforced.epsilon is not None
    assert found.epsilon is not None
    assert found.epsilon < 0.8 * mechanism.enforced.epsilon
    assert found.may_rest_on
    assert f"at most {TURNS} turns, {PARTITIONS} or more rounds apart" in found.reason


def test_the_guarantee_of_equal_partitions_is_for_an_empty_upload(traces) -> None:
    """Removing a device moves others; with independent partitions it does not."""
    of_equal, of_independent = (audited(traces[each], BANDED).sampled for each in traces)
    assert of_equal is not None
    assert of_independent is not None
    assert of_equal.assumptions == (SECRET, ZERO_OUT)
    assert of_independent.assumptions == (SECRET,)

    def groups(assignment: str, ids: np.ndarray) -> dict[int, int]:
        schedule = Poisson(3, SHARE, PARTITIONS, keeps_groups=assignment == "independent")
        schedule.start_window(0, ids)
        return {int(at): turn for turn in range(PARTITIONS) for at in ids[schedule.eligible(turn)]}

    ids = np.arange(1001, dtype=np.uint64)
    for assignment, is_equal in (("equal", False), ("independent", True)):
        everybody, without = groups(assignment, ids), groups(assignment, ids[1:])
        others = {at: turn for at, turn in everybody.items() if at != 0}
        assert (others == without) == is_equal


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (BLT(theta=(0.95, 0.6), omega=(0.2, 0.3)), "this blt mechanism has 60 bands, and two"),
        (BandFHU(bands=PARTITIONS + 1), "this band-fhu mechanism has 6 bands, and two turns"),
    ],
)
def test_more_bands_than_partitions_are_not_amplified(traces, strategy, reason: str) -> None:
    mechanism = audited(traces["equal"], strategy)
    found = mechanism.sampled
    assert found is not None
    assert (found.epsilon, found.event, found.may_rest_on) == (None, None, False)
    assert reason in found.reason
    assert "may be 5 rounds apart" in found.reason
    assert mechanism.enforced.epsilon is not None


def test_an_independent_partition_keeps_rounds_of_different_windows_apart(windows) -> None:
    """With equal partitions a device may be in the last round of a window and the next round."""
    of_independent, of_equal = (audited(windows[each], BANDED) for each in ("independent", "equal"))
    assert of_independent.enforced.participation == MinSep(ROUNDS, PARTITIONS, TURNS)
    assert of_independent.sampled is not None
    assert of_independent.sampled.epsilon is not None
    devices, rounds = draws_of(windows["independent"])
    # Some were drawn in several windows, and always in turns of one partition.
    several = 0
    for device in np.unique(devices):
        own = rounds[devices == device]
        assert np.unique(own % PARTITIONS).size == 1
        several += np.unique(own // (ROUNDS // 3)).size > 1
    assert several > 100
    assert of_equal.enforced.participation == MinSep(ROUNDS, 1, TURNS)
    assert of_equal.sampled is not None
    assert of_equal.sampled.epsilon is None
    assert "may be 1 round apart" in of_equal.sampled.reason
    # Independent noise has one band, for which any turns do.
    independent = audited(windows["equal"], Identity()).sampled
    other = audited(windows["independent"], Identity()).sampled
    assert independent is not None
    assert other is not None
    assert independent.epsilon == other.epsilon


def test_equal_partitions_of_windows_that_no_device_joins_in_a_row_are_amplified(
    tmp_path: Path,
) -> None:
    """A day between uploads: no device is in two of three windows of 4 h."""
    value = scenario(
        "equal", "participation.policies=[{kind='swor', period_hours=24.0}]", windows=3
    )
    mechanism = audited(simulate(value, HERE, tmp_path / "t"), BANDED)
    found, turns = mechanism.sampled, mechanism.enforced.participation
    assert found is not None
    assert turns is not None
    assert turns.min_sep == PARTITIONS
    assert TURNS // 3 <= turns.max_participations < TURNS
    assert isinstance(found.event, Repeated)
    assert found.event.count == turns.max_participations


def test_rounds_that_were_repeated_are_not_amplified(tmp_path: Path) -> None:
    trace = simulate(scenario("independent", unresolved_share=0.09), HERE, tmp_path / "t")
    assert (trace.rounds["state"] == 1).any()
    found = audited(trace, BANDED).sampled
    assert found is not None
    assert found.epsilon is None
    assert (
        "not drawn independently of one another in the rounds that were committed" in found.reason
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("partitions=6", "nobody knows how rounds were drawn"),
        ("assignment=independent", "nobody knows how rounds were drawn"),
        ("probability=0.2", "nobody knows how rounds were drawn"),
    ],
)
def test_a_trace_that_was_sampled_otherwise_is_refused(traces, change: str, reason: str) -> None:
    value = scenario("equal", f"rounds.uploads.schedule.{change}")
    found = sampled(traces["equal"], value, BANDED, ServerNoise(2.0), 1e-6)
    assert found is not None
    assert found.epsilon is None
    assert reason in found.reason


def test_a_device_in_turns_of_two_partitions_is_found(traces) -> None:
    """The same rows, said to be of six partitions."""
    value = scenario("equal", "rounds.uploads.schedule.partitions=6")
    trace = Trace(traces["equal"].path, {**traces["equal"].run})
    assert value.rounds.uploads is not None
    trace.run["sampling"] = value.rounds.uploads.schedule.model_dump(mode="json")
    found = sampled(trace, value, BANDED, ServerNoise(2.0), 1e-6)
    assert found is not None
    assert "in which the schedule does not let it be drawn" in found.reason


def patterns_of(turns: int) -> np.ndarray:
    return np.array([[at >> turn & 1 for turn in range(turns)] for at in range(1 << turns)])


def delta_of_patterns(
    coefficients: tuple[float, ...], b: int, epsilon: float
) -> tuple[float, float]:
    """delta at epsilon of one device of partition 0, by the likelihoods of all its patterns, and
    the standard error: n = 6, q = 0.3, z = 0.8, 400,000 draws."""
    n, q, z, draws = 6, 0.3, 0.8, 400_000
    C = np.tril(toeplitz(np.append(coefficients, np.zeros(n - len(coefficients)))))
    drawn = patterns_of(n // b)
    weights = q ** drawn.sum(axis=1) * (1 - q) ** (n // b - drawn.sum(axis=1))
    means = drawn @ C[:, ::b][:, : n // b].T
    rng = np.random.default_rng(7)
    y = means[rng.choice(len(weights), draws, p=weights)] + z * rng.standard_normal((draws, n))
    ratios = np.exp((y @ means.T - 0.5 * (means**2).sum(axis=1)) / z**2) @ weights
    excess = np.maximum(0.0, 1.0 - np.exp(epsilon) / ratios)
    return float(excess.mean()), float(excess.std() / np.sqrt(draws))


def test_the_epsilon_covers_all_patterns_of_a_device_and_is_tight() -> None:
    """Monte Carlo over the mixture of all its patterns, 5 standard errors: false alarms below 1e-6."""
    two, delta = (1.0, 0.6), 1e-2
    event = sampled_release(Toeplitz(coefficients=two), PoissonSampling(6, 0.3, 2), 0.8)
    found, error = delta_of_patterns(two, 2, pld_epsilon(event, delta))
    assert abs(found - delta) < 5 * error + 0.01 * delta
    # Three bands of which two partitions overlap spend more than their column norm says.
    three = (1.0, 0.6, 0.5)
    norm = Toeplitz(coefficients=(float(np.linalg.norm(three)), 0.0))
    event = sampled_release(norm, PoissonSampling(6, 0.3, 2), 0.8)
    found, error = delta_of_patterns(three, 2, pld_epsilon(event, delta))
    assert found > delta + 10 * error


@pytest.mark.slow
def test_a_model_with_banded_noise_is_learned_from_samples_in_turn(tmp_path: Path) -> None:
    value = scenario(
        "equal",
        "training.enabled=true",
        "training.task={kind='quadratic'}",
        "training.weighting={kind='fixed'}",
        "data={kind='points', dimension=3}",
        "training.evaluation_devices=8",
        "rounds.count=10",
        "privacy.mechanism={kind='band-fhu', bands=5}",
        "privacy.noise_multiplier=2.0",
    )
    trace = run_scenario(value, HERE, tmp_path / "t")
    assert trace.trained is not None
    again = train(trace, placement=HERE, out=tmp_path / "again")
    assert (trace.trained.parameters() == again.parameters()).all()
    audit = audit_trace(trace)
    found = audit.mechanisms[0].sampled
    assert found is not None
    assert found.epsilon is not None
    lines = {each.what: each.says for each in privacy_statement(audit).lines}
    assert f"at most 2 turns, {PARTITIONS} or more rounds apart" in lines["Sampling"]


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        (
            "rounds.uploads.schedule={kind='cyclic_poisson', partitions=5, probability=0.1}",
            "assign",
        ),
        ("rounds.uploads.schedule.probability=1.5", "probability"),
        ("rounds.uploads.schedule.partitions=0", "partitions"),
        ("rounds.uploads.schedule.assignment=unequal", "assignment"),
        ("training={enabled=true}", "secret in a Poisson sample; use 'fixed' or 'clipped'"),
    ],
)
def test_a_schedule_that_does_not_fit_is_refused_in_one_line(override: str, reason: str) -> None:
    with pytest.raises(ScenarioError, match=reason) as refused:
        scenario("equal", override)
    assert "\n" not in str(refused.value)


def test_noise_is_calibrated_by_the_sampling_that_the_refusal_names(traces, fedray_command) -> None:
    path = str(traces["equal"].path)
    code, _, err = fedray_command(
        "--quiet", "calibrate", path, "--mechanism", "identity", "--epsilon", "2"
    )
    assert code == 2
    assert f"sampling=fedray.PoissonSampling({ROUNDS}, {SHARE:g}, {PARTITIONS})" in err
    with pytest.raises(InputError, match="which add privacy"):
        raise InputError(err)
