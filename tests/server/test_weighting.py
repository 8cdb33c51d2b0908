"""Weights and denominators of Poisson cohorts: McMahan, Ramage, Talwar and Zhang 2018, Algorithm 1."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from fedray.audit.auditing import audit_trace
from fedray.base.errors import ScenarioError
from fedray.clients.trainer import LocalTrainer
from fedray.encoding.tables import FIXED_POINT_BITS
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import Gaussian, PoissonSampled, Repeated
from fedray.runs.learning import cohorts, train
from fedray.runs.pipeline import run_scenario
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.scenario.weighting import AnyWeighting
from fedray.server.learning.aggregator import ModelAggregator
from fedray.server.learning.estimator import ClippedBelow, estimator_of
from fedray.wire.messages import TrainOrder, TrainReport

HERE = Placement(1, "in-process")
ROUNDS, GOAL, PROBABILITY = 6, 20, 0.02
WEIGHTINGS = ({"kind": "mean"}, {"kind": "fixed"}, {"kind": "clipped"})
FIXED = "training.weighting={kind='fixed', example_cap=60, mean_weight=0.8}"
CLIPPED = "training.weighting={kind='clipped', example_cap=60, least_mean_weight=0.5}"
DIMENSION = 3
TABLES = TypeAdapter(AnyWeighting)


def scenario(*overrides: str) -> Scenario:
    return Scenario.from_tables(
        {
            "seed": 5,
            "population": {"devices": 1500},
            "availability": {"model": "always_on"},
            "participation": {"policies": [{"kind": "swor", "period_hours": 48.0}]},
            "rounds": {
                "mode": "upload-then-train",
                "count": ROUNDS,
                "report_goal": GOAL,
                "uploads": {
                    "window_hours": 2.0,
                    "schedule": {"kind": "poisson", "probability": PROBABILITY},
                },
            },
            "data": {"kind": "points", "dimension": DIMENSION},
            "training": {
                "task": {"kind": "quadratic"},
                "weighting": {"kind": "fixed"},
                "evaluation_devices": 8,
                "server": {"momentum": 0.0},
            },
            "privacy": {
                "mechanism": {"kind": "identity"},
                "noise_multiplier": 1.0,
                "delta": 1e-5,
                "clip_norm": 0.5,
            },
        }
    ).with_overrides(*overrides)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_scenario(scenario(FIXED), HERE, tmp_path_factory.mktemp("run") / "t")


def sum_of(trainer: LocalTrainer, groups: list[list[int]]) -> tuple[TrainReport, np.ndarray]:
    order = TrainOrder(0, [np.array(group, np.uint64) for group in groups])
    report, total = trainer.train(order, trainer.initial_parameters())
    return report, total * (0.5 / 2.0**FIXED_POINT_BITS)


def test_a_sum_has_every_clipped_update_with_the_weight_of_its_examples() -> None:
    """Against the updates of each device alone, without weights."""
    devices = list(range(12))
    weighted, plain = (
        LocalTrainer(scenario(f"training.weighting={{kind='fixed'{cap}}}"))
        for cap in (", example_cap=60", "")
    )
    held = plain._source.examples_on(np.array(devices, np.uint64))
    weights = np.minimum(held / 60.0, 1.0)
    assert weights.min() < 1.0
    assert weights.max() == 1.0
    alone = np.array([sum_of(plain, [[device]])[1] for device in devices])
    assert (np.linalg.norm(alone, axis=1) <= 0.5).all()
    expected = (weights[:, None] * alone).sum(axis=0)
    report, total = sum_of(weighted, [devices[:5], devices[5:]])
    np.testing.assert_allclose(total, expected, rtol=1e-6, atol=1e-9)
    assert report.weights == pytest.approx(weights.sum(), rel=1e-9)
    assert sum_of(plain, [devices])[0].weights == 12.0


def released(value: Scenario, total: np.ndarray, weights: float) -> np.ndarray:
    """The step of one round, with a sum and weights; without momentum it is the estimate."""
    aggregator = ModelAggregator(value)
    aggregator.start(np.zeros(DIMENSION, np.float32))
    aggregator.add(np.trunc(total * 2.0**FIXED_POINT_BITS / 0.5).astype(np.int64))
    weight_sum = round(weights * 2.0**FIXED_POINT_BITS)
    report = TrainReport(round_index=0, devices=7, weight_sum=weight_sum)
    return aggregator.commit(report)[1].astype(np.float64)


@pytest.mark.parametrize(
    ("weighting", "weights", "denominator", "noise_scale"),
    [
        (FIXED, 3.0, 0.8 * GOAL, 1.0),
        (FIXED, 300.0, 0.8 * GOAL, 1.0),
        (CLIPPED, 3.0, 0.5 * GOAL, 2.0),
        (CLIPPED, 14.0, 14.0, 2.0),
    ],
)
def test_estimates_have_their_denominator_and_noise_for_their_sensitivity(
    weighting: str, weights: float, denominator: float, noise_scale: float
) -> None:
    """The noise has the deviation z S / (q W), or 2 z S / (q W_min): that of a unit sum, times it."""
    total = np.array([1.5, -2.0, 0.25])
    value = scenario(weighting)
    unit = ModelAggregator(scenario("training.weighting={kind='fixed'}"))
    unit.start(np.zeros(DIMENSION, np.float32))
    noise = unit.release().numpy().astype(np.float64)
    least = 0.8 * GOAL if weighting is FIXED else 0.5 * GOAL
    expected = total / denominator + noise_scale * noise / least
    np.testing.assert_allclose(released(value, total, weights), expected, rtol=1e-5)


@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(-1.0, 1.0)), min_size=1, max_size=8),
    st.floats(0.1, 6.0),
)
@settings(max_examples=50, deadline=None)
def test_no_device_changes_a_clipped_estimate_by_more_than_its_sensitivity(
    devices: list[tuple[float, float]], least: float
) -> None:
    """McMahan et al. 2018, Lemma 1, in one dimension with S = 1: 2 / (q W_min)."""
    estimator = ClippedBelow(least)

    def estimate(cohort: list[tuple[float, float]]) -> float:
        weights = sum(weight for weight, _ in cohort)
        report = TrainReport(round_index=0, weight_sum=round(weights * 2.0**FIXED_POINT_BITS))
        total = sum(weight * update for weight, update in cohort)
        return estimator.scale(report) * total / estimator.divisor(report)

    for left_out in range(len(devices)):
        others = [each for place, each in enumerate(devices) if place != left_out]
        change = abs(estimate(devices) - estimate(others))
        assert change <= estimator.noise_factor / least * (1 + 1e-9)


@pytest.mark.parametrize("table", WEIGHTINGS, ids=lambda table: table["kind"])
def test_a_cohort_of_equal_weights_has_the_same_estimate_by_all_weightings(table: dict) -> None:
    """Of as many devices as were expected: the mean, before noise."""
    value = scenario()
    weighting = value.training.model_copy(update={"weighting": TABLES.validate_python(table)})
    rounds = value.rounds.model_copy(update={"uploads": None, "mode": "on-device"})
    estimator = estimator_of(value.model_copy(update={"training": weighting, "rounds": rounds}))
    report = TrainReport(round_index=0, devices=GOAL, weight_sum=GOAL << FIXED_POINT_BITS)
    assert estimator.scale(report) / estimator.divisor(report) == pytest.approx(1.0 / GOAL)


def test_all_that_were_drawn_train_and_empty_samples_are_noise_alone(tmp_path: Path) -> None:
    value = scenario(CLIPPED, "rounds.uploads.schedule.probability=0.0008")
    trace = run_scenario(value, HERE, tmp_path / "t")
    accepted = trace.rounds["accepted"].tolist()
    assert min(accepted) == 0
    found = dict(cohorts(trace, value))
    assert [found[index].device_ids.size for index in range(ROUNDS)] == accepted
    assert trace.trained is not None
    assert trace.trained.metrics["trained"].tolist() == accepted
    assert np.isfinite(trace.trained.parameters()).all()


def test_a_run_and_a_training_of_its_trace_are_the_same(run, tmp_path: Path) -> None:
    again = train(run, placement=HERE, out=tmp_path / "again")
    assert (run.trained.parameters() == again.parameters()).all()
    assert "all devices that were drawn" in again.rows()[0][1]
    other = train(run, scenario(CLIPPED), HERE, tmp_path / "other")
    assert not (other.parameters() == again.parameters()).all()


def test_the_audit_of_such_a_run_composes_poisson_sampled_gaussians(run) -> None:
    event = PoissonSampled(probability=PROBABILITY, event=Gaussian(noise_multiplier=1.0))
    expected = epsilon_of(Repeated(event=event, count=ROUNDS), 1e-5).epsilon
    found = audit_trace(run).mechanisms[0].sampled
    assert found is not None
    assert found.epsilon == expected


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("training.weighting={kind='mean'}",), "divides by the number of devices in a round"),
        (("privacy.encoding={kind='secagg', scale=4096}",), "a Poisson sample may have more"),
        (("privacy.clipping={kind='adaptive'}",), "divides a count by the number of devices"),
        (
            ("rounds.uploads.schedule={kind='cyclic', min_sep=3}", "training.cohort_sample=20"),
            "meant for Poisson samples, which these rounds are not",
        ),
        (("rounds.mode='on-device'",), "devices choose when they take part"),
    ],
)
def test_what_would_tell_who_was_drawn_is_refused(overrides: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ScenarioError, match=reason) as refused:
        scenario(*overrides)
    assert "\n" not in str(refused.value)


def test_layers_are_clipped_before_they_are_weighted() -> None:
    """Per-layer norms are S / sqrt(layers), so the whole update is no longer than S."""
    value = scenario(FIXED, "privacy.clipping={kind='per_layer'}", "privacy.clip_norm=0.01")
    order = TrainOrder(0, [np.arange(1, dtype=np.uint64)])
    trainer = LocalTrainer(value)
    report, total = trainer.train(order, trainer.initial_parameters())
    assert report.clipped == 1
    norm = np.linalg.norm(total * (0.01 / 2.0**FIXED_POINT_BITS))
    assert norm == pytest.approx(0.01 * report.weights, rel=1e-5)


@pytest.mark.parametrize("accepted", [200, 260])
def test_a_mean_over_a_sample_has_noise_for_the_devices_that_its_round_accepted(
    small, accepted: int
) -> None:
    """A round that keeps more than its goal divides by more: full noise takes as much less."""
    value = small("training.enabled=true", "training.server.momentum=0.0")
    steps = []
    for devices, of in ((64, accepted), (64, 64)):
        aggregator = ModelAggregator(value)
        aggregator.start(np.zeros(DIMENSION, np.float32))
        report = TrainReport(round_index=0, devices=devices, accepted=of)
        steps.append(aggregator.commit(report)[1].copy())
    np.testing.assert_allclose(steps[0], 64 / accepted * steps[1], rtol=1e-6)
