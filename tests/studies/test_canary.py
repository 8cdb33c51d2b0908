"""Canaries: the real aggregator is let through, and each planted bug is caught.

`make canary` runs 100 seeds, the suite 4. Coverage: intervals of 99 %; fewer than 95 hits of 100 (3 of 4) have a probability of
5e-4 (6e-4) if intervals are right, and seeds are fixed. Power: each bug is planted in every seeded run and must be caught in all, by the
test that is for it; of 100, one that is caught with probability 0.97 would be missed somewhere with a probability of 0.95.
False alarms: `make canary` runs right code 1,000 times, the suite 20 times. A run has a p-value below 0.05 / 10 with a probability of at
most 0.05; more than 80 of 1,000 (5 of 20) have a probability of 2e-5 (3e-4).
"""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import slow_twins as reference
import torch

from fedray.base.errors import InputError, RunFailed
from fedray.clients.canaries import Canaries, CanaryTrainer
from fedray.clients.clipping import Clipped, ClippedGroup, clip_whole
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import (
    BISR,
    BLT,
    Banded,
    BandFHU,
    Dense,
    Identity,
    Matrix,
    Toeplitz,
    Tree,
    TreeFull,
)
from fedray.mechanisms.strategy import Strategy
from fedray.mechanisms.triangular import lower_factor
from fedray.scenario import Scenario
from fedray.scenario.clipping import Clip
from fedray.server.learning.aggregator import ModelAggregator
from fedray.studies.canary import CanaryResult, Recorded, canary_tables, check_training, run_canary
from fedray.studies.noise_tests import ALARM
from fedray.trace.reader import Trace

SEEDS = 100 if os.environ.get("FEDRAY_ALL_SEEDS") else 4
ROUNDS, PATTERN, COORDINATES = 24, (1, 9, 17), 2048
LAGS = np.abs(np.subtract.outer(np.arange(ROUNDS), np.arange(ROUNDS)))
GRAM = np.where(LAGS < 8, 0.85**LAGS * (1 - LAGS / 8), 0.0)
BANDED = Banded.from_matrix(lower_factor(GRAM), "banded.npy")
LOWER = np.tril(np.random.default_rng(5).random((ROUNDS, ROUNDS))) / 4 + np.eye(ROUNDS)
BUFFERED = BLT(theta=(0.95, 0.6), omega=(0.2, 0.3))
STRATEGIES: list[Strategy] = [
    Identity(),
    BUFFERED,
    Toeplitz(coefficients=(1.0, 0.4, 0.3)),
    BandFHU(bands=8),
    BISR(bands=3),
    BANDED,
    Dense.from_matrix(LOWER, "dense.npy"),
    Matrix.from_matrix(LOWER + np.tril(np.ones((ROUNDS, ROUNDS)), -1) * 0.1, "user.npy"),
    Tree(),
    Tree(restarts=(11,), completion=True, rounds=ROUNDS),
    TreeFull(rounds=ROUNDS),
]


def with_mechanism(scenario: Scenario, strategy: Strategy, seed: int = 0) -> Scenario:
    privacy = scenario.privacy.model_copy(update={"mechanism": strategy})
    return scenario.model_copy(update={"privacy": privacy, "seed": seed})


@pytest.fixture(scope="module")
def scenario(small) -> Scenario:
    return small(
        "training.enabled=true",
        "privacy.noise_multiplier=2.0",
        "privacy.clip_norm=0.5",
        f"rounds.count={ROUNDS}",
    )


def check(scenario: Scenario, strategy: Strategy, seed: int, **planted) -> CanaryResult:
    return check_training(
        with_mechanism(scenario, strategy, seed), Recorded(PATTERN, ROUNDS), COORDINATES, **planted
    )


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.kind)
def test_the_interval_covers_mu_and_nothing_is_called_wrong(
    scenario: Scenario, strategy: Strategy
) -> None:
    results = [check(scenario, strategy, seed) for seed in range(SEEDS)]
    assert sum(result.covers for result in results) >= (95 if SEEDS == 100 else 3)
    assert [result.problems for result in results if result.problems] == []  # expected: 0.05
    claimed = reference.pattern_sensitivity(strategy, PATTERN, ROUNDS) / 2.0
    assert results[0].claimed_mu == pytest.approx(claimed)
    if isinstance(strategy, Tree):
        assert results[0].expected_mu < claimed * 0.999  # nodes are not released, only prefix sums
    else:
        assert results[0].expected_mu == pytest.approx(claimed)


class TooLittleNoise(ModelAggregator):
    """10 % below what is claimed."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._noise_multiplier *= 0.9


class StaleBuffer(ModelAggregator):
    """The buffers' update of one round is lost."""

    def draw_noise(self):
        """Nothing is drawn ahead, so that the buffers before the round can be seen."""

    def release(self, scale=1.0, noise_share=1.0):
        before = self._noise.state()
        released = super().release(scale, noise_share).clone()
        if int(before["next_round"]) == 12:
            self._noise.load({**before, "next_round": np.array(13)})
        return released


def drawing(change: Callable[[Callable, torch.Tensor, int, int], None]) -> dict:
    """An aggregator whose draws are changed.

    Args:
        change: fills a row of a round and a level, given the right function that does so.
    """

    class Changed(ModelAggregator):
        def start(self, parameters):
            started = super().start(parameters)
            fill = self._noise._draws.fill

            def changed(out_D, round_index: int, level: int = 0) -> None:
                change(fill, out_D, round_index, level)

            self._noise._draws.fill = changed
            return started

    return {"aggregator": Changed}


def repeated_row(fill, out_D, round_index, level):
    """Round 20 draws what round 6 drew."""
    fill(out_D, 6 if round_index == 20 else round_index, level)


def shifted_row(fill, out_D, round_index, level):
    """Round 20 draws what round 6 drew, one coordinate further."""
    repeated_row(fill, out_D, round_index, level)
    if round_index == 20:
        out_D.copy_(out_D.roll(1))


def shared_halves(fill, out_D, round_index, level):
    fill(out_D, round_index, level)
    out_D[out_D.numel() // 2 :] = out_D[: out_D.numel() // 2]


def shared_halves_of_one_round(fill, out_D, round_index, level):
    fill(out_D, round_index, level)
    if round_index == 12:
        shared_halves(fill, out_D, round_index, level)


def odd_as_even(fill, out_D, round_index, level):
    fill(out_D, round_index, level)
    out_D[1::2] = out_D[::2]


def one_pair_shared(fill, out_D, round_index, level):
    fill(out_D, round_index, level)
    out_D[-7] = out_D[3]


def one_coordinate_silent(fill, out_D, round_index, level):
    fill(out_D, round_index, level)
    out_D[3] = 0.0


def signs(fill, out_D, round_index, level):
    fill(out_D, round_index, level)
    out_D.sign_()


def uniform(fill, out_D, round_index, level):
    fill(out_D, round_index, level)
    out_D.copy_(12**0.5 * (torch.special.ndtr(out_D) - 0.5))


def clipping_too_long(times: float) -> dict:
    class TooLong(CanaryTrainer):
        def __init__(self, scenario: Scenario, canaries: Canaries) -> None:
            super().__init__(scenario, canaries)
            right = self._clipper.clip

            def shortened(updates_GD, clip):
                group = right(updates_GD, clip)
                return replace(group, factors=group.factors * times)

            self._clipper.clip = shortened

    return {"trainer": TooLong}


class Unclipped(CanaryTrainer):
    def __init__(self, scenario: Scenario, canaries: Canaries) -> None:
        super().__init__(scenario, canaries)
        self._clipper.clip = no_clipping


def no_clipping(updates_GD, clip):
    kept = np.full(len(updates_GD), Clipped.KEPT, np.int8)
    return ClippedGroup(np.ones(len(updates_GD)), kept, np.ones(len(updates_GD)))


def normalised_by_rows(scenario: Scenario) -> ModelAggregator:
    """The factor of the Gram matrix that has unit rows instead of unit columns."""
    wrong = Banded.from_matrix(np.ascontiguousarray(np.linalg.cholesky(GRAM)), "rows.npy")
    return ModelAggregator(with_mechanism(scenario, wrong, scenario.seed))


BUGS = {
    "noise 10 % low": (BUFFERED, {"aggregator": TooLittleNoise}, "size"),
    "stale buffer": (BUFFERED, {"aggregator": StaleBuffer}, "size of rounds"),
    "stale buffer of a banded matrix": (BANDED, {"aggregator": StaleBuffer}, "size of rounds"),
    "clip not applied": (BUFFERED, {"trainer": Unclipped}, "contribution"),
    "clip 5 % too long": (BUFFERED, clipping_too_long(1.05), "contribution"),
    "clip 0.1 % too long": (BUFFERED, clipping_too_long(1.001), "contribution"),
    "noise row repeated": (BUFFERED, drawing(repeated_row), "independence of rounds"),
    "noise row repeated without a recurrence": (
        *(Identity(), drawing(repeated_row)),
        "independence of rounds",
    ),
    "noise row repeated and shifted": (BUFFERED, drawing(shifted_row), "independence at shifts"),
    "halves share noise": (BUFFERED, drawing(shared_halves), "independence of coordinates"),
    "halves share noise in one round": (
        *(BUFFERED, drawing(shared_halves_of_one_round)),
        "independence at shifts",
    ),
    "odd coordinates as even ones": (BUFFERED, drawing(odd_as_even), "independence at shifts"),
    "two coordinates share noise": (
        *(BUFFERED, drawing(one_pair_shared)),
        "independence of coordinates",
    ),
    "one coordinate without noise": (
        *(BUFFERED, drawing(one_coordinate_silent)),
        "size of coordinates",
    ),
    "signs for normals": (BUFFERED, drawing(signs), "law"),
    "uniform noise": (BUFFERED, drawing(uniform), "law"),
    "rows instead of columns": (BANDED, {"aggregator": normalised_by_rows}, "size of rounds"),
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_caught(scenario: Scenario, bug: str) -> None:
    """At one seed, and at a hundred by `make canary`."""
    strategy, planted, name = BUGS[bug]
    seeds = range(SEEDS if SEEDS == 100 else 1)
    caught = [names_of_problems(check(scenario, strategy, seed, **planted)) for seed in seeds]
    assert [seed for seed, names in enumerate(caught) if name not in names] == []


def names_of_problems(result: CanaryResult) -> list[str]:
    return [test.name for test in result.tests if test.p < ALARM]


@pytest.mark.slow
def test_all_tests_together_have_the_stated_false_alarm_rate(scenario: Scenario) -> None:
    runs = 1000 if SEEDS == 100 else 20
    results = [
        check_training(with_mechanism(scenario, BUFFERED, seed), Recorded(PATTERN, ROUNDS), 256)
        for seed in range(runs)
    ]
    least = np.array([min(test.p for test in result.tests) for result in results])
    assert len(results[0].tests) == 10
    assert (10 * least < 0.05).sum() <= (80 if runs == 1000 else 5)
    assert sum(bool(result.problems) for result in results) <= (3 if runs == 1000 else 0)


def test_a_matrix_with_unit_rows_is_more_sensitive_than_is_charged() -> None:
    """What the bug costs: the first columns of the wrong factor are longer than 1."""
    wrong, participation = (
        Banded.from_matrix(np.ascontiguousarray(np.linalg.cholesky(GRAM)), "rows.npy"),
        MinSep(ROUNDS, 8, 3),
    )
    assert reference.participation_sensitivity(BANDED, participation) == pytest.approx(3**0.5)
    assert reference.participation_sensitivity(wrong, participation) > 1.15 * 3**0.5


def test_the_command_runs_canaries(small, tmp_path: Path, fedray_command) -> None:
    value = small("training.enabled=true", "training.cohort_sample=32")
    (tmp_path / "s.toml").write_text(value.to_toml())
    code, stdout, _ = fedray_command("canary", str(tmp_path / "s.toml"), "--json")
    document = json.loads(stdout)
    assert (code, document["problems"], document["rounds"]) == (0, [], 12)
    assert document["mu_low"] < document["claimed_mu"] < document["mu_high"]
    assert max(document["pattern"]) < 12
    assert not document["counts_untested"]
    adaptive = run_canary(
        value.with_overrides(
            "privacy.mechanism={kind='identity'}", "privacy.clipping={kind='adaptive'}"
        )
    )
    assert adaptive.counts_untested
    assert "not tested" in [row[0] for row in canary_tables(adaptive)[0].rows]
    with pytest.raises(InputError, match="coordinates=10 must be from 256"):
        run_canary(value, coordinates=10)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_canaries_find_the_same_where_the_scenario_is_simulated_on_ray(
    small, tmp_path: Path, fedray_command
) -> None:
    (tmp_path / "s.toml").write_text(small("training.enabled=true").to_toml())
    command = ["canary", str(tmp_path / "s.toml"), "--json", "--place"]
    there, here = (fedray_command(*command, f"backend={each}") for each in ("ray", "in-process"))
    assert there[0] == 0, there[2]
    assert there[:2] == here[:2]


def test_canaries_take_a_recorded_pattern(small, trace_of) -> None:
    trace = trace_of([[0, 4, 9], [1, 6], [2], [3], [5], [7], [8], [10], [11]], 12)
    value = small("training.enabled=true")
    assert run_canary(value, trace.path, 1024).pattern == (0, 4, 9)
    with pytest.raises(InputError, match="has 12 rounds, the scenario"):
        run_canary(value.with_overrides("rounds.count=5"), trace.path, 1024)


def test_the_digests_of_the_trace_may_be_left_unchecked(
    small, trace_of, tmp_path: Path, fedray_command
) -> None:
    (tmp_path / "s.toml").write_text(small("training.enabled=true").to_toml())
    trace = trace_of([[0, 4, 9], [1, 6], [2], [3], [5], [7], [8], [10], [11]], 12)
    document = json.loads((trace.path / "run.json").read_text())
    document["parts"][0]["digest"] = "0" * 64
    (trace.path / "run.json").write_text(json.dumps(document))
    arguments = ["canary", str(tmp_path / "s.toml"), "--json"]
    code, _, err = fedray_command(*arguments, "--trace", str(trace.path))
    assert (code, "digest" in err) == (2, True)
    unchecked = Trace.open(trace.path, verify=False)
    assert run_canary(small("training.enabled=true"), unchecked, 1024).pattern == (0, 4, 9)


def test_no_noise_at_all_is_told(scenario: Scenario) -> None:
    class Silent(ModelAggregator):
        def __init__(self, scenario: Scenario) -> None:
            super().__init__(scenario)
            self._noise_multiplier = 0.0

    with pytest.raises(RunFailed, match="no noise at all"):
        check(scenario, Identity(), 0, aggregator=Silent)


def test_canaries_of_ten_times_the_clip_norm_are_clipped() -> None:
    update = np.zeros((1, 4), np.float32)
    update[0, 2] = 10.0
    group = clip_whole(update, Clip(1.0))
    assert group.done == [Clipped.SHORTENED]
    assert 0.0999 < group.factors[0] <= 0.1


def test_a_canary_shows_its_pattern_and_every_problem(small) -> None:
    found = check_training(small(), Recorded((1, 5), 8), 256)
    rows = found.tables()[0].rows
    assert rows[1] == ("pattern", "rounds 1, 5")
    assert [text for name, text in rows if name == "WRONG"] == found.problems
