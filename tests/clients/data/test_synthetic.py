"""Synthetic data: the contract, and the optima that classes and points claim."""

import math

import numpy as np
import pytest
from data_contract import CHECKS
from scipy import stats

from fedray.clients.data.classes import Classes, best_accuracy
from fedray.clients.data.factory import source_of
from fedray.clients.data.points import Points

pytestmark = pytest.mark.xdist_group("synthetic data")  # compiled by one process

DEVICES = np.arange(300, dtype=np.uint64)
FEW = np.broadcast_to(np.arange(20), (300, 20))
TABLES = {
    "classes": {"kind": "classes"},
    "skewed": {"kind": "classes", "shape": [1, 4, 4], "skew": 0.1, "classes": 7},
    "more classes": {"kind": "classes", "shape": [3], "classes": 9},
    "nearly one class": {"kind": "classes", "skew": 1e-5},
    "language": {"kind": "language"},
    "points": {"kind": "points", "dimension": 7},
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("kind", TABLES)
def test_synthetic_data_keeps_the_contract(kind: str, check, scenario_of) -> None:
    scenario = scenario_of(TABLES[kind])
    check(lambda: source_of(scenario))


def test_the_best_accuracy_is_that_of_the_nearest_mean(source) -> None:
    """Two classes: Phi(separation / 2). Else within four standard errors of 6,000 examples."""
    assert best_accuracy(3.0, 2) == pytest.approx(stats.norm.cdf(1.5), abs=1e-10)
    assert best_accuracy(0.0, 10) == pytest.approx(0.1, abs=1e-10)
    for skew in ({}, {"skew": 0.5}):
        found = source({"kind": "classes", "separation": 2.5, **skew})
        assert isinstance(found, Classes)
        examples = found.examples(DEVICES, FEW)
        distances = ((examples["inputs"][..., None, :] - found.means) ** 2).sum(axis=-1)
        accuracy = (distances.argmin(axis=-1) == examples["targets"]).mean()
        best = found.optimum["accuracy"]
        # With skew the examples of a device are not independent.
        error = math.sqrt(best * (1 - best) / FEW.size) * (3 if skew else 1)
        assert abs(accuracy - best) < 4 * error
    assert source(TABLES["more classes"]).optimum == {}


def test_any_two_means_are_as_far_apart_as_the_table_says(source) -> None:
    found = source({"kind": "classes", "separation": 2.5, "shape": [2, 8], "classes": 16})
    gaps = np.linalg.norm(found.means[:, None] - found.means[None], axis=-1)
    assert gaps[~np.eye(16, dtype=bool)] == pytest.approx(2.5, abs=1e-5)


def test_skew_makes_devices_differ_and_leaves_classes_alike(source) -> None:
    counts = {}
    for name, skew in (("alike", {}), ("skewed", {"skew": 0.2})):
        targets = source({"kind": "classes", **skew}).examples(DEVICES, FEW)["targets"]
        counts[name] = np.stack([np.bincount(row, minlength=10) for row in targets])
    assert stats.chisquare(counts["alike"].sum(axis=0)).pvalue > 1e-4
    largest = counts["skewed"].max(axis=1).mean() / 20
    assert largest > 0.5 > 2 * counts["alike"].max(axis=1).mean() / 20 - 0.2
    assert np.abs(counts["skewed"].mean(axis=0) / 20 - 0.1).max() < 0.06


def test_points_lie_around_their_centers_and_those_around_the_mean(source) -> None:
    table = {"kind": "points", "dimension": 40, "between": 2.0, "within": 0.5}
    assert source(table).optimum == {}, "other tasks have other losses"
    found = source(table, training={"enabled": False, "task": {"kind": "quadratic"}})
    assert isinstance(found, Points)
    points, centers = found.examples(DEVICES, FEW)["inputs"], found.centers(DEVICES)
    noise = (points - centers[:, None]) / 0.5
    assert stats.kstest(noise.ravel(), stats.norm.cdf).pvalue > 1e-4
    assert stats.kstest(((centers - found.mean) / 2.0).ravel(), stats.norm.cdf).pvalue > 1e-4
    loss = 0.5 * ((points - found.mean) ** 2).sum(axis=-1).mean()
    assert loss == pytest.approx(found.optimum["loss"], rel=0.03)  # 4 standard errors: 2.6 %
    average = centers.mean(axis=0)
    gradient = (average - points).mean(axis=(0, 1))
    assert np.abs(gradient).max() < 4.5 * 0.5 / math.sqrt(FEW.size)
