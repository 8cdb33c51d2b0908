"""Clip rules: the adaptive norm finds the quantile, changes where the mechanism begins anew alone, and what both releases cost together
is what is claimed."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import slow_twins as reference
import torch

from fedray.base.rng import Stream
from fedray.mechanisms.accounting.clip_count import update_noise_multiplier, with_counts
from fedray.mechanisms.accounting.events import StrategyRelease
from fedray.mechanisms.accounting.gdp import mu_of
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Identity, Tree
from fedray.mechanisms.sensitivity import PatternSensitivities
from fedray.mechanisms.strategy import Strategy
from fedray.scenario import Scenario
from fedray.scenario.clipping import Clip
from fedray.server.learning.aggregator import ModelAggregator
from fedray.server.learning.clip_rule import ClipRule, clip_rule_of
from fedray.server.learning.noise import noise_stream
from fedray.wire.messages import TrainReport

CPU = torch.device("cpu")
TREE = "privacy.mechanism={kind='tree',restarts=[8,20,30]}"
IDENTITY = "privacy.mechanism={kind='identity'}"


def adaptive(small, mechanism: str, *overrides: str) -> Scenario:
    return small(
        "training.enabled=true",
        "rounds.count=40",
        "privacy.clipping.kind=adaptive",
        mechanism,
        *overrides,
    )


def report_of(clip: Clip, round_index: int, norms: np.ndarray) -> TrainReport:
    counted = clip.norm if clip.counted_norm is None else clip.counted_norm
    short = int((norms <= counted).sum())
    return TrainReport(
        round_index=round_index,
        devices=norms.size,
        accepted=4 * norms.size,
        short=short,
        long=norms.size - short,
    )


def clips_of(rule: ClipRule, rounds: int, median: float) -> list[Clip]:
    """What a rule says of each round, where norms are log-normal around a median."""
    rng, clips = np.random.default_rng(5), []
    for t in range(rounds):
        clips.append(rule.clip())
        rule.commit(report_of(clips[-1], t, median * np.exp(0.5 * rng.normal(size=500))))
    return clips


@pytest.mark.parametrize("median", [0.02, 3.0, 50.0])
def test_the_norm_tracks_the_median_of_the_updates(small, median: float) -> None:
    """Within 5 %, from a start at 1: the mean of its logarithm over the last 300 of 500 rounds, with the noise of 2,000 reports."""
    scenario = adaptive(
        small,
        IDENTITY,
        "rounds.count=500",
        "training.cohort_sample=200",
        "privacy.clipping.count_noise=4.0",
    )
    clips = clips_of(clip_rule_of(scenario), 500, median)
    found = math.exp(np.mean([math.log(clip.norm) for clip in clips[200:]]))
    assert clips[0].norm == 1.0
    assert found == pytest.approx(median, rel=0.05)


def test_another_quantile_is_tracked_too(small) -> None:
    """The 0.9 quantile of a log-normal of deviation 0.5 is exp(0.5 x 1.2816) = 1.898 medians."""
    scenario = adaptive(
        small,
        IDENTITY,
        "rounds.count=500",
        "training.cohort_sample=200",
        "privacy.clipping.quantile=0.9",
        "privacy.clipping.count_noise=4.0",
    )
    clips = clips_of(clip_rule_of(scenario), 500, 2.0)
    found = math.exp(np.mean([math.log(clip.norm) for clip in clips[200:]]))
    assert found == pytest.approx(2.0 * 1.898, rel=0.05)


@pytest.mark.parametrize("mechanism", [TREE])
def test_between_restarts_the_norm_stays_and_the_estimate_moves(small, mechanism: str) -> None:
    """By hand: C_(t+1) = C_0 exp(-eta (b_0 + ... + b_t - (t + 1) gamma)), b_t with the noise of the mechanism's own stream."""
    scenario = adaptive(small, mechanism, "privacy.clip_norm=0.7")
    clips = clips_of(clip_rule_of(scenario), 40, 2.0)
    noise = noise_stream(
        scenario.privacy.mechanism, scenario.training_seed, 1, CPU, 40, stream=Stream.CLIP_COUNT
    )
    deviation = 200 / 20 / 4  # report goal / 20, of a sample of a quarter
    rng, shares, expected = np.random.default_rng(5), 0.0, [0.7]
    for t in range(40):
        norms = 2.0 * np.exp(0.5 * rng.normal(size=500))
        short = (norms <= expected[t]).sum()
        shares += (short + deviation * float(noise.next()[0])) / 500
        expected.append(0.7 * math.exp(-0.2 * (shares - (t + 1) * 0.5)))
    assert [clip.counted_norm for clip in clips] == pytest.approx(expected[:40], rel=1e-9)
    starts = [max(start for start in (0, 8, 20, 30) if start <= t) for t in range(40)]
    assert [clip.norm for clip in clips] == pytest.approx([expected[start] for start in starts])
    assert len({clip.norm for clip in clips}) == 4


CLIPPING = {
    "adaptive": "{kind='adaptive', quantile=0.7}",
    "fixed": "{kind='fixed', zero_above=10.0}",
    "per_layer": "{kind='per_layer'}",
    "none": "{kind='none'}",
    "schedule": "{kind='schedule', steps=[{from_round=8, norm=0.5}, {from_round=30, norm=2.0}]}",
}


@pytest.fixture(params=CLIPPING.values(), ids=CLIPPING)
def any_scenario(request, small) -> Scenario:
    """A run with a clip rule, in which the mechanism begins anew in rounds 8, 20 and 30."""
    # Only a run without noise may leave updates unclipped.
    mechanism = "privacy.mechanism=none" if request.param == CLIPPING["none"] else TREE
    keys = ("training.enabled=true", "rounds.count=40", mechanism)
    return small(*keys, f"privacy.clipping={request.param}")


@pytest.fixture
def any_rule(any_scenario: Scenario) -> Callable[[], ClipRule]:
    """Makes the clip rule of such a run."""
    return lambda: clip_rule_of(any_scenario)


def test_the_norm_changes_only_where_the_mechanism_begins_anew(any_rule, any_scenario) -> None:
    """The noise of what lies between is measured by one norm, whatever the rule and the reports. A
    table that says nothing of later norms has none."""
    rule, rng, norms = any_rule(), np.random.default_rng(2), []
    for t in range(40):
        norms.append(rule.clip().norm)
        short = int(rng.integers(0, 65))
        rule.commit(TrainReport(round_index=t, devices=64, short=short, long=64 - short))
    changes = {t for t in range(1, 40) if norms[t] != norms[t - 1]}
    assert changes <= {8, 20, 30}
    assert bool(changes) == (any_scenario.privacy.clipping.later_norms is not None)


def test_a_rule_reads_reports_only_where_noise_on_them_is_accounted_for(any_scenario) -> None:
    """Else its norms would tell of the devices what no rho counts."""
    norms = []
    for short in (0, 64):
        rule = clip_rule_of(any_scenario)
        norms.append([])
        for t in range(40):
            norms[-1].append(rule.clip())
            rule.commit(TrainReport(round_index=t, devices=64, short=short, long=64 - short))
    clipping = any_scenario.privacy.clipping
    assert (norms[0] == norms[1]) == (not clipping.counts_short)
    assert clipping.counts_short == (any_scenario.count_noise is not None)


def test_a_restored_rule_goes_on_as_it_was(any_rule) -> None:
    one, other = any_rule(), any_rule()
    for t in range(11):
        one.commit(TrainReport(round_index=t, devices=64, short=40, long=24))
    other.load(one.state())
    for t in range(11, 35):
        assert one.clip() == other.clip()
        for rule in (one, other):
            rule.commit(TrainReport(round_index=t, devices=64, short=t, long=64 - t))


def test_a_schedule_has_the_norm_of_each_phase(small) -> None:
    """Before the first step it is the scenario's norm, and no report changes it."""
    steps = "steps=[{from_round=2, norm=0.5}, {from_round=5, norm=2.0}]"
    clipping = f"privacy.clipping={{kind='schedule', {steps}, zero_above=3.0}}"
    scenario = small("rounds.count=8", "privacy.clip_norm=1.25", IDENTITY, clipping)
    clips = clips_of(clip_rule_of(scenario), 8, 1.0)
    assert [each.norm for each in clips] == [1.25, 1.25, 0.5, 0.5, 0.5, 2.0, 2.0, 2.0]
    assert [each.zero_above for each in clips] == [3.0 * each.norm for each in clips]
    assert scenario.privacy.clipping.later_norms == "is 0.5 from round 2, and is 2 from round 5"


def test_noise_follows_the_schedule(small) -> None:
    """Every step of no updates is z x norm of the round, so that a device's change per unit of noise is the same in all rounds."""
    steps = "steps=[{from_round=2, norm=0.5}, {from_round=4, norm=3.0}]"
    scenario = small(
        *("rounds.count=6", "training.enabled=true", "training.server.momentum=0.0", IDENTITY),
        *(f"privacy.clipping={{kind='schedule', {steps}}}", "privacy.noise_multiplier=2.0"),
    )
    aggregator = ModelAggregator(scenario)
    clip, before = aggregator.start(np.zeros(300, np.float32))
    before = before.copy()
    stream = noise_stream(scenario.privacy.mechanism, scenario.training_seed, 300, CPU, 6)
    norms = []
    for t in range(6):
        norms.append(clip.norm)
        row = stream.next().numpy() * 2.0 * clip.norm
        clip, after = aggregator.commit(TrainReport(round_index=t, devices=64, accepted=64))
        np.testing.assert_allclose((after - before) * 64, row, rtol=1e-3, atol=1e-3)
        before = after.copy()
    assert norms == [1.0, 1.0, 0.5, 0.5, 3.0, 3.0]


def test_devices_that_sent_nothing_count_half(small) -> None:
    """So zeroing one device out changes the count by 1/2, whichever bit it sent."""
    scenario = adaptive(small, IDENTITY)
    norms = []
    for short, long in ((5, 5), (4, 5), (5, 4)):
        rule = clip_rule_of(scenario)
        rule.commit(TrainReport(round_index=0, devices=10, short=short, long=long))
        norms.append(math.log(rule.clip().norm))
    step = 0.2 * 0.5 / 10
    assert norms[1] - norms[0] == pytest.approx(step)
    assert norms[2] - norms[0] == pytest.approx(-step)


@pytest.mark.parametrize("kind", ["fixed", "per_layer"])
def test_other_kinds_keep_the_scenarios_norm_and_count_nothing(small, kind: str) -> None:
    scenario = small(
        "training.enabled=true",
        f"privacy.clipping.kind={kind}",
        "privacy.clipping.zero_above=10.0",
        "privacy.clip_norm=0.25",
    )
    rule = clip_rule_of(scenario)
    rule.commit(TrainReport(round_index=0, devices=10))
    assert rule.clip() == Clip(0.25, zero_above=2.5, counted_norm=None)
    assert rule.state() == {}


@pytest.mark.parametrize("mechanism", [TREE, IDENTITY])
def test_noise_on_sums_is_measured_by_the_norm_of_its_segment(small, mechanism: str) -> None:
    """Every step of no updates is z_u x norm x share x the row of the stream, over the devices; and a restored aggregator takes the same."""
    scenario = adaptive(
        small, mechanism, "privacy.noise_multiplier=7.0", "training.server.momentum=0.0"
    )
    aggregator, restored = ModelAggregator(scenario), ModelAggregator(scenario)
    clip, before = aggregator.start(np.zeros(300, np.float32))
    before = before.copy()
    stream = noise_stream(scenario.privacy.mechanism, scenario.training_seed, 300, CPU, 40)
    norms = set()
    for t in range(40):
        norms.add(clip.norm)
        deviation = update_noise_multiplier(7.0, 10.0) * clip.norm * 64 / 200
        report = TrainReport(round_index=t, devices=64, accepted=200, short=9, long=55)
        clip, after = aggregator.commit(report)
        row = stream.next().numpy() * deviation
        np.testing.assert_allclose((after - before) * 64, row, rtol=1e-3, atol=1e-3 * deviation)
        before = after.copy()
        if t == 25:
            restored.load(aggregator.state())
        elif t > 25:
            again, parameters = restored.commit(report)
            assert again == clip
            assert (parameters == after).all()
    assert len(norms) == (40 if mechanism == IDENTITY else 4)


@pytest.mark.parametrize(
    ("z", "count_noise", "expected"),
    [
        (1.0, 1.0, (1 - 1 / 4) ** -0.5),
        (7.0, 325.0, (7.0**-2 - 650.0**-2) ** -0.5),
        (1e-2, 1e9, 1e-2),
    ],
)
def test_what_is_left_for_sums_is_the_theorem(z: float, count_noise: float, expected) -> None:
    """Andrew et al. 2021, Theorem 1."""
    found = update_noise_multiplier(z, count_noise)
    assert found == pytest.approx(expected, rel=1e-12)
    assert found**-2 + (2 * count_noise) ** -2 == pytest.approx(z**-2, rel=1e-12)


def composed_rho(
    strategy: Strategy, pattern: tuple[int, ...], rounds: int, z: float, count_noise: float
) -> float:
    """By hand, with everything written out: both releases of all rows of C as one Gaussian vector of unit noise. The device's updates
    are all alike and as long as the clip norm of their segment, by which the noise is measured; its bits are all 1, and count 1/2."""
    C = strategy.definition(rounds)
    begins = [strategy.recurrence(rounds).begins_anew(t) for t in range(rounds)]
    norms = 0.3 + np.cumsum(begins) ** 2
    norms_of_rows = norms[np.argmax(C != 0, axis=1)]
    took_part = np.isin(np.arange(rounds), pattern)
    of_updates = C @ (took_part * norms) / (update_noise_multiplier(z, count_noise) * norms_of_rows)
    of_counts = C @ (took_part / 2) / count_noise
    return float(of_updates @ of_updates + of_counts @ of_counts) / 2


STRATEGIES = [
    Tree(restarts=(3, 7)),
    Tree(restarts=(4,), completion=True, rounds=11),
    Identity(),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.kind)
@pytest.mark.parametrize(("min_sep", "most"), [(1, 3), (2, 4), (4, 3)])
def test_rho_of_both_releases_is_that_of_the_composition_written_out(
    strategy: Strategy, min_sep: int, most: int
) -> None:
    """Largest over every pattern, restarts included; and each release's own rho adds up to it."""
    rounds, z, count_noise = 11, 3.0, 4.0
    participation = MinSep(rounds, min_sep, most)
    brute = max(
        composed_rho(strategy, pattern, rounds, z, count_noise)
        for pattern in reference.patterns_of(participation)
    )
    release = StrategyRelease.under(strategy, participation, z)
    assert release.sensitivity.is_exact
    both = with_counts(release, count_noise)
    assert rho_of(release) == pytest.approx(brute, rel=1e-9)
    assert rho_of(both) == pytest.approx(brute, rel=1e-9)
    assert mu_of(both) == pytest.approx(math.sqrt(2 * brute), rel=1e-9)
    of_one = StrategyRelease(
        strategy=strategy,
        rounds=rounds,
        noise_multiplier=z,
        sensitivity=PatternSensitivities(strategy, rounds).exact(np.array([0, 5, 9])),
    )
    expected = composed_rho(strategy, (0, 5, 9), rounds, z, count_noise)
    assert rho_of(with_counts(of_one, count_noise)) == pytest.approx(expected, rel=1e-9)


UPDATES = (1.0, -1.0, 0.4, 0.0)
"""A device's update in one coordinate, no longer than the clip norm 1; short up to 0.5."""


def count_changes(small, updates: tuple[float, ...], zeroed: str) -> np.ndarray:
    """How the counts that a rule really releases change if a device is zeroed out in all rounds: as the code does it, or by sending
    updates of zeros. Noise cancels, because both worlds draw the same."""
    scenario = adaptive(small, IDENTITY)
    totals = []
    for own in (updates, (None if zeroed == "silent" else 0.0,) * len(updates)):
        rule, counts = clip_rule_of(scenario), [0.0]
        for t, update in enumerate(own):
            short = 20 + (update is not None and abs(update) <= 0.5)
            long = 39 + (update is not None and abs(update) > 0.5)
            rule.commit(TrainReport(round_index=t, devices=60, short=short, long=long))
            counts.append(60 * float(rule.state()["shares"]))
        totals.append(np.diff(counts))
    return totals[0] - totals[1]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.kind)
def test_rho_is_the_largest_over_all_inputs_of_a_device_that_is_zeroed_out(
    small, strategy: Strategy
) -> None:
    """Brute force over all patterns and updates of a device, with the counts that the rule releases. A device that is zeroed out
    counts one half there, so rho is theirs to the digit. If it sent updates of zeros instead, rho would be larger than is stated."""
    rounds, z, count_noise = 11, 4.0, 10.0
    participation = MinSep(rounds, 4, 3)
    C = strategy.definition(rounds)
    of_updates = update_noise_multiplier(z, count_noise)
    largest = {}
    for zeroed in ("silent", "zeros"):
        changes = {
            updates: count_changes(small, updates, zeroed)
            for most in range(1, 4)
            for updates in itertools.product(UPDATES, repeat=most)
        }
        largest[zeroed] = max(
            float(np.sum((C[:, pattern] @ updates / of_updates) ** 2))
            + float(np.sum((C[:, pattern] @ changed / count_noise) ** 2))
            for pattern in map(list, reference.patterns_of(participation))
            for updates, changed in changes.items()
            if len(updates) == len(pattern)
        )
    stated = rho_of(with_counts(StrategyRelease.under(strategy, participation, z), count_noise))
    assert stated == pytest.approx(largest["silent"] / 2, rel=1e-9)
    assert stated < 0.9 * largest["zeros"] / 2
    # Each contribution then has 1 / z_u^2 + 1 / sigma_b^2 = 0.07 in place of 1 / z^2 = 0.0625.
    assert largest["zeros"] / largest["silent"] == pytest.approx(0.07 / 0.0625)


def test_the_published_restarts_have_the_rho_of_their_segments() -> None:
    """Trees that restart at 128 + 1024 i (Xu et al. 2023, Algorithm 1), 2052 rounds, (342, 6): squares add over the trees, 72 in all;
    with z = 7 for both releases rho = 72 / 98, of which counts with deviation 325 have 72 / (2 x 650^2)."""
    strategy = Tree(restarts=tuple(range(128, 4000, 1024)))
    participation = MinSep(2052, 342, 6)
    found = strategy.participation_sensitivity(participation)
    by_segment = 0.0
    starts = [0, 128, 1152, 2052]
    for start, end in itertools.pairwise(starts):
        inside = tuple(r - start for r in found.worst_pattern if start <= r < end)
        if inside:
            by_segment += reference.pattern_sensitivity(Tree(), inside, end - start) ** 2
    assert by_segment == pytest.approx(72, abs=1e-9)
    of_updates = update_noise_multiplier(7.0, 325.0)
    rho = by_segment / (2 * of_updates**2) + by_segment / (2 * 650.0**2)
    assert rho == pytest.approx(72 / 98, rel=1e-12)
    both = with_counts(StrategyRelease.under(strategy, participation, 7.0), 325.0)
    assert rho_of(both) == pytest.approx(rho, rel=1e-12)
