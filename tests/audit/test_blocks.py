"""An audit works on blocks of participations and leaves out devices and bounds that change nothing: results equal those of readable twins."""

import itertools
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedray.audit import distribution, over_rounds, participation, sensitivity
from fedray.audit.distribution import device_sensitivities, largest_first
from fedray.audit.noise import ServerNoise
from fedray.audit.over_rounds import privacy_over_rounds
from fedray.audit.participation import Patterns, read_patterns
from fedray.audit.sensitivity import trace_sensitivity
from fedray.audit.statements.max_participations import MaxParticipationsStatement
from fedray.audit.statements.min_sep import MinSepStatement
from fedray.audit.statements.statement import Subject
from fedray.audit.statements.timer_hours import TimerStatement
from fedray.audit.waits import waits_between
from fedray.imports.importer import import_log
from fedray.mechanisms.registry import BLT, BandFHU, Identity, Tree
from fedray.mechanisms.sensitivity import PatternSensitivities
from fedray.mechanisms.strategy import Strategy

GOLDEN = BLT(theta=(0.98, 0.7), omega=(0.2, 0.3))


def patterns_of(rounds: int, each: list[list[int]]) -> Patterns:
    each = [sorted(pattern) for pattern in each if pattern]
    return Patterns(
        rounds,
        np.arange(len(each), dtype=np.uint64) * np.uint64(3),
        np.array([len(pattern) for pattern in each]),
        np.array([*itertools.chain(*each)], np.uint32),
    )


def drawn(seed: int, rounds: int, devices: int, mean: float) -> Patterns:
    """Devices that differ much in how often they come, some of them twice in a round."""
    rng = np.random.default_rng(seed)
    counts = np.minimum(rng.geometric(1 / mean, devices), rounds)
    return patterns_of(rounds, [rng.integers(0, rounds, count).tolist() for count in counts])


LISTS = st.lists(st.lists(st.integers(0, 39), max_size=8), min_size=1, max_size=12).filter(any)


@given(LISTS, st.integers(1, 9))
@settings(max_examples=150, deadline=None)
def test_blocks_of_any_size_give_what_the_patterns_one_by_one_give(
    each: list[list[int]], rows: int
) -> None:
    found = patterns_of(40, each)
    each = [sorted(pattern) for pattern in each if pattern]
    gaps = [[b - a for a, b in itertools.pairwise(pattern)] for pattern in each]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(participation, "ROWS", rows)
        blocks = [*found.blocks()]
        assert [place for devices, _ in blocks for place in range(len(each))[devices]] == [
            *range(len(each))
        ]
        assert np.concatenate([found.rounds[block] for _, block in blocks]).tolist() == [
            *found.rounds
        ]
        assert found.least_gaps.tolist() == [min(own, default=40) for own in gaps]
        assert found.min_sep == min(itertools.chain(*gaps), default=40)
        pairs = [*found.pairs()]
        assert [gap for own, _ in pairs for gap in own.tolist()] == [*itertools.chain(*gaps)]
        at = np.concatenate([later for _, later in pairs])
        assert found.pairs_at(at)[1].tolist() == [
            [a, b] for pattern in each for a, b in itertools.pairwise(pattern)
        ]
        counted = [*itertools.chain(*gaps)]
        assert found.pairs_by_gap.tolist() == [counted.count(gap) for gap in range(40)]
        for number in (1, 7, 23, 40):
            (so_far,) = found.so_far([number])
            cut = [[r for r in pattern if r < number] for pattern in each]
            assert so_far.counts.tolist() == [len(pattern) for pattern in cut]
            close = [b - a for pattern in cut for a, b in itertools.pairwise(pattern)]
            assert so_far.min_sep == min(close, default=number)


@pytest.mark.parametrize("rows", [1, 7, 1 << 20])
def test_devices_are_cut_into_the_same_parts_however_they_are_searched(
    rows: int, monkeypatch
) -> None:
    """Parts of other sizes would be computed by other sums, whose last bits differ."""
    monkeypatch.setattr(participation, "ROWS", rows)
    monkeypatch.setattr(participation, "CHUNK", 16)
    found = drawn(0, 60, 500, 3.0)
    for count in np.unique(found.counts).tolist():
        parts = [part.places.tolist() for part in found.with_count(count)]
        whole = np.flatnonzero(found.counts == count).tolist()
        assert parts == [whole[at : at + 16] for at in range(0, len(whole), 16)]


@pytest.mark.parametrize("claimed", [1, 3, 30])
def test_the_evidence_does_not_depend_on_the_blocks(claimed: int, monkeypatch) -> None:
    subject = Subject(None, drawn(1, 300, 400, 4.0), str)  # pyright: ignore[reportArgumentType]  (no trace is read)
    whole = MinSepStatement().check(claimed, subject)
    most = MaxParticipationsStatement().check(claimed, subject)
    breaches = [*MinSepStatement().breaches(claimed, subject)]
    assert whole.breakers > 10 or claimed == 1
    for rows in (1, 50):
        monkeypatch.setattr(participation, "ROWS", rows)
        monkeypatch.setattr(distribution, "ROWS", rows)
        assert MinSepStatement().check(claimed, subject) == whole
        assert MaxParticipationsStatement().check(claimed, subject) == most
        again = [*MinSepStatement().breaches(claimed, subject)]
        for name in ("device_ids", "rounds", "found"):
            one, other = (
                np.concatenate([getattr(each, name) for each in found])
                for found in (breaches, again)
            )
            assert (one == other).all()


def test_the_waits_of_a_log_are_those_of_its_rows_and_need_no_second_reading(
    tmp_path: Path, monkeypatch
) -> None:
    rng = np.random.default_rng(2)
    rows = sorted({(int(d), int(r)) for d, r in rng.integers(0, (30, 90), (700, 2))})
    hours = {row: 10.0 * row[1] + float(rng.random()) for row in rows}
    table = pa.table(
        {
            "device": [f"d{device}" for device, _ in rows],
            "round": [number for _, number in rows],
            "time": pa.array(
                [1_767_225_600_000 + int(3.6e6 * hours[row]) for row in rows],
                pa.timestamp("ms", "UTC"),
            ),
        }
    )
    pq.write_table(table, tmp_path / "log.parquet")
    monkeypatch.setattr("fedray.imports.importer.PART_ROWS", 100)
    log = import_log(
        tmp_path / "log.parquet", "device", "round", 90, tmp_path / "t", time_column="time"
    )
    assert len(log.run["parts"]) > 3
    patterns = read_patterns(log)
    expected = sorted(
        (3600 * (hours[later] - hours[earlier]), earlier[1], later[1])
        for earlier, later in itertools.pairwise(rows)
        if earlier[0] == later[0]
    )
    whole = TimerStatement().check(40.0, Subject(log, patterns, str))
    monkeypatch.setattr(type(log), "accepted", None)
    for size in (7, 1 << 20):
        monkeypatch.setattr(participation, "ROWS", size)
        found = [*(waits_between(log, patterns) or ())]
        triples = [
            (seconds, *pair)
            for waits, _, pairs in found
            for seconds, pair in zip(waits.tolist(), pairs.tolist(), strict=True)
        ]
        for one, other in zip(sorted(triples), expected, strict=True):
            assert one == pytest.approx(other, abs=0.002)
        for _, devices, pairs in found:
            for device, pair in zip(devices.tolist(), pairs.tolist(), strict=True):
                place = int(np.searchsorted(patterns.device_ids, device))
                start, count = patterns.starts[place], patterns.counts[place]
                assert {*pair} <= {*patterns.rounds[start : start + count].tolist()}
        assert TimerStatement().check(40.0, Subject(log, patterns, str)) == whole


def test_temporary_arrays_are_a_fraction_of_the_patterns(monkeypatch) -> None:
    """They took 34 bytes a participation: gaps, places and pairs of all of them together."""
    monkeypatch.setattr(participation, "ROWS", 1 << 13)
    monkeypatch.setattr(distribution, "ROWS", 1 << 13)
    rng = np.random.default_rng(0)
    rounds = np.sort(rng.integers(0, 3000, (100_000, 5)), axis=1).astype(np.uint32).ravel()
    patterns = Patterns(3000, np.arange(100_000, dtype=np.uint64), np.full(100_000, 5), rounds)
    subject = Subject(None, patterns, str)  # pyright: ignore[reportArgumentType]  (no trace is read)
    assert patterns.starts.size
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        assert patterns.min_sep == 0
        assert patterns.pairs_by_gap.sum() == 400_000
        MinSepStatement().check(2, subject)
        MaxParticipationsStatement().check(4, subject)
        for _ in patterns.with_count(4):
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # A byte a participation, of which the marks of devices beyond a claim are a fifth.
    assert peak - before < rounds.size


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(1, 6), st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_the_largest_come_first_and_of_equal_ones_the_earliest(
    values: list[int], most: int, rows: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distribution, "ROWS", rows)
        found = largest_first(np.array(values, np.int64), most).tolist()
    assert found == sorted(range(len(values)), key=lambda place: -values[place])[:most]


STRATEGIES = [Identity(), GOLDEN, BandFHU(bands=9), Tree(), Tree(restarts=(50, 131))]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_privacy_over_rounds_is_the_same_without_the_devices_that_cannot_be_the_worst(
    strategy: Strategy, monkeypatch
) -> None:
    patterns = drawn(3, 300, 900, 3.0)
    entries = [1, 2, 40, 133, 250, 300]
    whole = privacy_over_rounds(strategy, patterns, ServerNoise(3.0), 1e-6, entries)
    monkeypatch.setattr(over_rounds, "MOST_UNRULED", 10)
    checked = []
    of = PatternSensitivities.of

    def noted(self, found, weights=None):
        checked.append(len(found))
        return of(self, found, weights)

    monkeypatch.setattr(PatternSensitivities, "of", noted)
    in_the_end = device_sensitivities(strategy, patterns)
    checked.clear()
    last = privacy_over_rounds(strategy, patterns, ServerNoise(3.0), 1e-6, [300], in_the_end)
    assert sum(checked) < 100  # of 900
    found = privacy_over_rounds(strategy, patterns, ServerNoise(3.0), 1e-6, entries, in_the_end)
    for one, other in zip([*found, *last], [*whole, whole[-1]], strict=True):
        assert one.rounds == other.rounds
        assert one.sensitivity == pytest.approx(other.sensitivity, rel=1e-13)


def test_a_large_trace_has_fewer_points_evenly_spaced(monkeypatch) -> None:
    patterns = drawn(4, 300, 50, 3.0)
    of_12 = privacy_over_rounds(GOLDEN, patterns, ServerNoise(3.0), 1e-6)
    assert [each.rounds for each in of_12] == [*range(25, 301, 25)]
    monkeypatch.setattr(over_rounds, "MANY", patterns.participations - 1)
    of_3 = privacy_over_rounds(GOLDEN, patterns, ServerNoise(3.0), 1e-6)
    for one, other in zip(of_3, [of_12[3], of_12[7], of_12[11]], strict=True):
        assert one.rounds == other.rounds
        assert one.sensitivity == pytest.approx(other.sensitivity, rel=1e-13)


def test_a_bound_is_computed_only_where_it_saves_more_than_it_costs(monkeypatch) -> None:
    """20,000 rounds of a tree had 75 bounds of a second each, to leave out devices that take milliseconds."""
    patterns = drawn(5, 300, 600, 4.0)
    bounds = []
    of_class = Tree.participation_sensitivity

    def noted(self, limits):
        bounds.append(limits)
        return of_class(self, limits)

    monkeypatch.setattr(Tree, "participation_sensitivity", noted)
    apart = patterns_of(
        300, [sorted({*own}) for own in np.split(patterns.rounds, patterns.starts[1:])]
    )
    found = trace_sensitivity(Tree(), apart)
    assert not bounds
    monkeypatch.setattr(sensitivity, "WORTH_A_BOUND", 1)
    assert trace_sensitivity(Tree(), apart) == found
    most = len(bounds)
    assert most > 3
    bounds.clear()
    pairs = int((apart.counts**2).sum())
    monkeypatch.setattr(sensitivity, "WORTH_A_BOUND", pairs // 3)
    assert trace_sensitivity(Tree(), apart) == found
    assert len(bounds) <= 3


@pytest.mark.parametrize(
    "tree",
    [Tree(), Tree(restarts=(1, 7, 60)), Tree(completion=True, rounds=150, restarts=(33,))],
    ids=repr,
)
@pytest.mark.parametrize("count", [1, 2, 9, 70])
def test_patterns_under_a_tree_have_the_bits_of_their_gram_entries(tree: Tree, count: int) -> None:
    for rounds in (75, 150):
        patterns = np.sort(np.random.default_rng(count).integers(0, rounds, (40, count)), axis=1)
        G = tree.gram(rounds)
        expected = [G[np.ix_(own, own)].sum() for own in patterns]
        assert tree.pattern_squares(patterns, rounds).tolist() == expected
        found = PatternSensitivities(tree, rounds).of(patterns)
        assert found.values.tolist() == np.sqrt(expected).tolist()
        assert found.is_exact.all()
