"""What devices may still do: bounds are never below brute force, and exact values equal it."""

from typing import NamedTuple

import numpy as np
import pytest
from example_mechanisms import MECHANISMS
from slow_twins import largest_continued as slow_largest_continued

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError
from fedray.mechanisms import open_nodes, recent_rounds
from fedray.mechanisms.band_fhu import BandFHU
from fedray.mechanisms.continuation import (
    Continued,
    Future,
    Window,
    largest_continued,
    least_growth,
)
from fedray.mechanisms.strategy import Strategy
from fedray.mechanisms.toeplitz import Toeplitz

HOUR = 3600.0


class Group(NamedTuple):
    """Devices with equally many participations."""

    places: Int64Array
    rounds: Int64Array


def groups(pasts: list[tuple[int, ...]]) -> list[Group]:
    counts = {len(past) for past in pasts}
    places = [[i for i, past in enumerate(pasts) if len(past) == count] for count in sorted(counts)]
    return [
        Group(np.array(each), np.array([pasts[i] for i in each], np.int64).reshape(len(each), -1))
        for each in places
    ]


def random_setting(rng: np.random.Generator) -> tuple[list[tuple[int, ...]], Future]:
    """Pasts that may have broken rules, and rules in rounds, hours, windows and local days."""
    n = int(rng.integers(6, 13))
    released = int(rng.integers(0, n))
    gaps = rng.choice([1.0, 2.0, 3.0, 10.0], n)
    starts = np.cumsum(gaps) * HOUR
    windows = []
    if rng.random() < 0.5:
        windows.append((float(rng.integers(2, 16)) * HOUR, int(rng.integers(1, 4))))
    timer = float(rng.integers(0, 12)) * HOUR if rng.random() < 0.5 else 0.0
    pasts = []
    for _ in range(int(rng.integers(0, 5))):
        size = int(rng.integers(1, released + 1)) if released else 0
        if size:
            pasts.append(tuple(sorted(rng.choice(released, min(size, 4), replace=False).tolist())))
    has_hold = rng.random() < 0.25
    first = rng.integers(0, n + 1, len(pasts)) if has_hold else None
    future = Future.of_times(
        released,
        starts,
        timer_seconds=timer,
        separation=int(rng.integers(1, 6)) if rng.random() < 0.6 else 1,
        most=int(rng.integers(1, 6)) if rng.random() < 0.4 else None,
        windows=windows,
        first=first,
    )
    if rng.random() < 0.25:
        most = int(rng.integers(1, 4))
        days = tuple(Window.of_days(starts, zone * HOUR, most, zone) for zone in (-8, 0, 5))
        future = Future(released, n, future.following, future.most, (*future.windows, *days), first)
    return pasts, future


def check(found: Continued, slow: float) -> float:
    """Checks a result against the slow one, and returns their ratio."""
    assert found.value >= slow * (1 - 1e-9)
    assert found.reached <= found.value * (1 + 1e-12)
    if found.is_exact:
        assert found.value == pytest.approx(slow, rel=1e-9)
        assert found.reached == found.value
    return found.value / slow if slow else 1.0


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("count", [12, pytest.param(500, marks=pytest.mark.slow)])
def test_continuations_are_never_above_the_bound_and_attain_exact_values(
    name: str, count: int
) -> None:
    strategy = MECHANISMS[name]
    rng = np.random.default_rng([count, *name.encode()])
    ratios, exact = [], 0

    for _ in range(count):
        pasts, future = random_setting(rng)
        slow = slow_largest_continued(strategy, pasts, future)
        found = largest_continued(strategy, groups(pasts), future)
        ratio = check(found, slow)
        exact += found.is_exact
        if not found.is_exact:
            ratios.append(ratio)
    if ratios:
        print(
            f"{name}: exact {exact} of {count}; bounds: largest ratio {max(ratios):.3f}, "
            f"median {np.median(ratios):.3f}"
        )
    else:
        print(f"{name}: exact {exact} of {count}")


def norm_of(strategy: Strategy, pattern: list[int], rounds: int) -> float:
    return float(np.linalg.norm(strategy.definition(rounds)[:, pattern].sum(axis=1)))


def test_earliest_rounds_are_not_the_worst_at_an_uneven_pace() -> None:
    starts = np.array([0, 1, 2, 3, *(27 + i for i in range(16))]) * HOUR
    future = Future.of_times(0, starts, timer_seconds=24 * HOUR, most=2)
    strategy = BandFHU(bands=20)
    early = future.rules[0].earliest(())
    assert early == [0, 4]
    found = largest_continued(strategy, [], future)
    assert found.future == (3, 4)
    assert found.is_exact
    assert found.value > 1.06 * norm_of(strategy, early, 20)


def test_earliest_rounds_are_not_the_worst_under_two_per_window() -> None:
    strategy = Toeplitz(coefficients=(1.0, 0.6, 0.6, 0.6, 0.0, 0.0))
    rounds = np.arange(6)
    window = Window(np.maximum(rounds - 4, 0), 2)
    future = Future(0, 6, rounds + 1, windows=(window,))
    early = future.rules[0].earliest(())
    assert early == [0, 1, 5]
    found = largest_continued(strategy, [], future)
    assert found.future == (0, 2, 5)
    assert found.is_exact
    assert found.value > 1.02 * norm_of(strategy, early, 6)


def growing_noise(rng: np.random.Generator, future: Future) -> Float64Array:
    later = np.sort(rng.uniform(1.0, 4.0, future.rounds - future.released))
    return np.concatenate([np.ones(future.released), later])


@pytest.mark.parametrize("count", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_noise_that_grows_lowers_what_devices_may_still_reach(count: int) -> None:
    rng = np.random.default_rng(count)
    names = [name for name in MECHANISMS if not name.startswith("tree,") and name != "tree"]
    ratios = []
    for _ in range(count):
        strategy = MECHANISMS[names[int(rng.integers(len(names)))]]
        pasts, future = random_setting(rng)
        scales = growing_noise(rng, future)
        found = largest_continued(strategy, groups(pasts), future, scales)
        ratios.append(check(found, slow_largest_continued(strategy, pasts, future, scales)))
        constant = largest_continued(strategy, groups(pasts), future)
        assert found.value <= constant.value * (1 + 1e-12)
    print(f"growing noise: {count} settings, largest ratio {max(ratios):.6f}")


def test_noise_of_a_tree_cannot_grow() -> None:
    future = Future(2, 6, np.arange(1, 7))
    with pytest.raises(InputError, match="keep its noise, or use a mechanism with one row"):
        largest_continued(MECHANISMS["tree"], [], future, np.array([1, 1, 2, 2, 2, 2.0]))


@pytest.mark.parametrize("count", [5, pytest.param(60, marks=pytest.mark.slow)])
def test_least_growth_of_noise_keeps_the_limit_and_less_growth_does_not(count: int) -> None:
    rng = np.random.default_rng(count)
    names = ["identity", "blt", "band-fhu", "banded", "toeplitz, not monotone", "dense"]
    tried = 0
    while tried < count:
        strategy = MECHANISMS[names[tried % len(names)]]
        pasts, future = random_setting(rng)
        most = slow_largest_continued(strategy, pasts, future)
        spent = (
            slow_largest_continued(
                strategy,
                pasts,
                Future(future.released, future.released, np.arange(1, future.released + 1)),
            )
            if future.released
            else 0.0
        )
        if most <= spent * 1.01:
            continue
        limit = float(rng.uniform(spent * 1.001, most))
        found = least_growth(strategy, groups(pasts), future, limit)
        assert found is not None
        factor, continued = found
        assert continued.value <= limit

        def with_noise(growth: float) -> float:
            scales = np.where(np.arange(future.rounds) < future.released, 1.0, growth)  # noqa: B023
            return slow_largest_continued(strategy, pasts, future, scales)  # noqa: B023

        assert with_noise(factor) <= limit * (1 + 1e-9)
        if continued.is_exact:
            assert with_noise(factor * (1 - 1e-6)) > limit
        if spent > 0:
            assert least_growth(strategy, groups(pasts), future, spent * 0.999) is None
        tried += 1


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.slow
def test_bounds_of_long_memories_are_never_below(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the programs, as in runs that have too many states for them.
    monkeypatch.setattr(recent_rounds, "MOST_STATES", 0)
    monkeypatch.setattr(open_nodes.OpenNodes, "can", lambda rules: False)
    rng = np.random.default_rng([7, *name.encode()])
    ratios, exact = [], 0
    for _ in range(200):
        pasts, future = random_setting(rng)
        found = largest_continued(MECHANISMS[name], groups(pasts), future)
        ratio = check(found, slow_largest_continued(MECHANISMS[name], pasts, future))
        exact += found.is_exact
        ratios += [] if found.is_exact else [ratio]
    told = f"largest ratio {max(ratios):.3f}, median {np.median(ratios):.3f}" if ratios else ""
    print(f"{name}, without programs: exact {exact} of 200; {told}")
