"""Which device has which client: balanced without a tie, in step with zone, hour or speed with one."""

import numpy as np
import pytest
from scipy import stats

from fedray.base.errors import ScenarioError
from fedray.clients.availability.habit import HabitAvailabilityModel
from fedray.clients.data.assignment import Assignment, held_out_places
from fedray.clients.data.source import FIRST_HELD_OUT
from fedray.clients.population import DeviceModel, speed_of
from fedray.scenario import Scenario
from fedray.scenario.data import AssignedData
from fedray.wire.zones import Zones, zone_of

DEVICES = np.arange(20_000, dtype=np.uint64)
COUNTS = np.random.default_rng(0).integers(1, 50, 1000)
ZONES = [
    {"utc_offset_hours": -8.0, "share": 0.5},
    {"utc_offset_hours": 0.0, "share": 0.2},
    {"utc_offset_hours": 5.5, "share": 0.3},
]


@pytest.fixture
def scenario() -> Scenario:
    tables = {
        "seed": 5,
        "population": {"devices": DEVICES.size, "time_zones": ZONES},
        "rounds": {"count": 1, "report_goal": 64},
    }
    return Scenario.from_tables(tables)


def places_of(scenario: Scenario, devices=DEVICES, **keys) -> np.ndarray:
    return Assignment(scenario, AssignedData(**keys), COUNTS, 100).places(devices)


def test_without_a_tie_every_client_is_held_equally_often(scenario: Scenario) -> None:
    places = places_of(scenario)
    assert (np.bincount(places, minlength=1000) == 20).all()
    assert np.unique(places_of(scenario, DEVICES[:700])).size == 700
    zone = zones_on(scenario)
    assert stats.spearmanr(zone, places).pvalue > 1e-4
    assert (places_of(scenario, np.array([7, 2**39], np.uint64))[:1] == places[7]).all()


def test_a_small_sample_leaves_no_client_out() -> None:
    rounds = {"count": 1, "report_goal": 2}
    training = {"cohort_sample": 2}
    few = Scenario.from_tables(
        {"population": {"devices": 20}, "rounds": rounds, "training": training}
    )
    devices = np.arange(20, 100_020, dtype=np.uint64)
    for tie in ("zone", "speed"):
        places = Assignment(few, AssignedData(tie=tie), COUNTS[:50], 10).places(devices)
        held = np.bincount(places, minlength=50)
        # All have one zone. The gaps of twenty speeds differ in width, so only the zone is even.
        assert held.min() > (1800 if tie == "zone" else 0)


def test_held_out_devices_have_the_clients_behind_the_others(scenario: Scenario) -> None:
    held_out = FIRST_HELD_OUT + np.arange(100, dtype=np.uint64)
    for tie in ("none", "zone"):
        assert (places_of(scenario, held_out, tie=tie) == 1000 + np.arange(100)).all()
    with pytest.raises(IndexError, match="100 devices"):
        places_of(scenario, FIRST_HELD_OUT + np.array([100], np.uint64))
    for clients, share, size in ((2, 0.001, 1), (2, 0.99, 1), (1000, 0.25, 250)):
        places = held_out_places(clients, share)
        assert np.unique(places).size == size
        assert places.max() < clients


def zones_on(scenario: Scenario) -> np.ndarray:
    zones = Zones.of(scenario.population.time_zones, scenario.seed)
    return np.array([zone_of(zones.key, zones.edges, device) for device in DEVICES])


def test_zones_have_blocks_as_large_as_their_shares(scenario: Scenario) -> None:
    """Blocks are apart but for the two clients at an edge, and their clients are held alike."""
    places, zone = places_of(scenario, tie="zone"), zones_on(scenario)
    for number, (low, high) in enumerate(((0, 500), (500, 700), (700, 1000))):
        inside = places[zone == number]
        assert low - 15 <= inside.min() <= inside.max() <= high + 15  # the shares of the sample
        held = np.bincount(inside, minlength=1000)[low + 15 : high - 15]
        assert stats.chisquare(held).pvalue > 1e-4
    blocks = [set(places[zone == number]) for number in range(3)]
    assert sum(map(len, blocks)) <= 1002


@pytest.mark.slow
def test_hours_and_speeds_are_followed_in_order(scenario: Scenario) -> None:
    habits = HabitAvailabilityModel(
        scenario.availability,
        scenario.seed,
        Zones.of(scenario.population.time_zones, scenario.seed),
    ).known_of(DEVICES)  # pyright: ignore[reportArgumentType]
    offsets = np.array([zone["utc_offset_hours"] for zone in ZONES])
    hours = (habits.center - offsets[habits.zone]) % 24
    assert stats.spearmanr(hours, places_of(scenario, tie="hour")).statistic > 0.999
    speeds = [speed_of(DeviceModel.of(scenario), device)[0] for device in DEVICES[:2000]]
    places = places_of(scenario, DEVICES[:2000], tie="speed")
    assert stats.spearmanr(speeds, places).statistic > 0.999
    by_count = places_of(scenario, DEVICES[:2000], tie="speed", tie_order="examples")
    assert stats.spearmanr(speeds, COUNTS[by_count]).statistic > 0.99


def test_the_strength_is_the_share_that_follows(scenario: Scenario) -> None:
    free, tied = places_of(scenario), places_of(scenario, tie="zone")
    half = places_of(scenario, tie="zone", tie_strength=0.3)
    follows = (half == tied) & (half != free)
    assert ((half == tied) | (half == free)).all()
    assert stats.binomtest(int(follows.sum()), int((tied != free).sum()), 0.3).pvalue > 1e-4


def test_hours_need_the_habit_model(scenario: Scenario) -> None:
    other = scenario.with_overrides("availability={model='always_on'}")
    with pytest.raises(ScenarioError, match="tie='hour'"):
        places_of(other, tie="hour")
