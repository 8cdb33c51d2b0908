"""Classes of devices: shares, laws, and that nothing else changes."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedray.audit.audit import audit_trace
from fedray.base.errors import ScenarioError
from fedray.clients.availability.factory import availability_of
from fedray.clients.availability.habit import HabitAvailabilityModel
from fedray.clients.availability.intervals import DAY
from fedray.clients.availability.model import Listing
from fedray.clients.availability.supply import eligible_share_by_class
from fedray.clients.data.factory import source_of
from fedray.clients.latency import LatencyModel, work_seconds
from fedray.report.audits import audit_tables
from fedray.report.page import audit_page
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.server.rounds.rounds import FateModel, Selected, draw_fates
from fedray.trace.schema import OUTCOMES
from fedray.wire.device_classes import DeviceClasses, classes_on
from fedray.wire.zones import zone_offsets_on

DEVICES = np.arange(20_000, dtype=np.uint64)
CLASSES = (
    "population.classes=[{name='old',share=0.25,train_time_factor=3.0,downlink_factor=0.5,"
    "uplink_factor=0.25,setup_seconds=50.0,failure_probability=0.2,examples_factor=0.5,"
    "availability={night_length_hours=2.0}},"
    "{name='new',share=0.75,time_zones=[{utc_offset_hours=9.0}]}]"
)
FALSE_ALARM = 1e-4
"""Probability with which a test of a true law fails."""


def class_places(scenario: Scenario) -> np.ndarray:
    return classes_on(DeviceClasses.of(scenario), DEVICES)


def works_of(scenario: Scenario) -> tuple[np.ndarray, np.ndarray]:
    source = source_of(scenario)
    model = LatencyModel.of(scenario, source)
    return work_seconds(model, DEVICES, source.examples_on(DEVICES))


def test_a_class_has_its_share_of_the_devices(small) -> None:
    is_old = class_places(small(CLASSES)) == 0
    test = stats.binomtest(int(is_old.sum()), DEVICES.size, 0.25)
    assert test.pvalue > FALSE_ALARM


def test_devices_of_a_class_have_its_factors_and_the_others_are_as_before(small) -> None:
    plain, mixed = small(), small(CLASSES)
    is_old = class_places(mixed) == 0
    fixed, training = works_of(mixed)
    fixed_before, training_before = works_of(plain)
    assert (fixed[~is_old] == fixed_before[~is_old]).all()
    assert (training[~is_old] == training_before[~is_old]).all()
    assert (fixed[is_old] > fixed_before[is_old] + 30.0).all()
    # Half of the training time grows with the examples, of which there are half as many.
    examples, before = (source_of(each).examples_on(DEVICES) for each in (mixed, plain))
    assert (examples[~is_old] == before[~is_old]).all()
    uncut = is_old & (before < 400)
    assert (np.abs(examples[uncut] - before[uncut] / 2) <= 1).all()
    expected = 3.0 * (60 + examples) / (60 + before) * training_before
    assert training[is_old] == pytest.approx(expected[is_old], rel=1e-5)


def test_devices_of_a_class_are_eligible_as_if_all_were_of_it(small) -> None:
    mixed = small(CLASSES)
    places = class_places(mixed)
    opens = np.zeros(DEVICES.size)
    both = availability_of(mixed).list_intervals(Listing(DEVICES, opens, 3.0 * DAY, 4.0 * DAY))
    assert (np.diff(both.local.astype(np.int64)) >= 0).all()
    for place, overrides in enumerate(
        (
            ["availability.night_length_hours=2.0"],
            ["population.time_zones=[{utc_offset_hours=9.0,share=1.0}]"],
        )
    ):
        alone = availability_of(small(*overrides))
        found = alone.list_intervals(Listing(DEVICES, opens, 3.0 * DAY, 4.0 * DAY))
        mine, own = (each.take(places[each.local] == place) for each in (both, found))
        assert all((a == b).all() for a, b in zip(mine, own, strict=True))
    assert (zone_offsets_on(mixed, DEVICES) == 9.0 * places).all()
    by_class = eligible_share_by_class(mixed)
    assert by_class[0] < 0.8 * by_class[1]


def test_devices_of_a_class_fail_as_often_as_it_says(small) -> None:
    mixed = small(CLASSES)
    size = DEVICES.size
    seconds, times = np.ones(size, np.float32), np.ones(size)
    none = np.zeros(size, np.uint32)
    selected = Selected(
        DEVICES, times, times, seconds, seconds, seconds, times, none, np.zeros(size, np.int64)
    )
    fails = np.isfinite(draw_fates(selected, 1, FateModel.of(mixed)).failure_seconds)
    for place, probability in enumerate((0.2, 0.03)):
        own = fails[class_places(mixed) == place]
        assert stats.binomtest(int(own.sum()), own.size, probability).pvalue > FALSE_ALARM


def attributes_of(scenario: Scenario) -> dict[str, np.ndarray]:
    """Attributes of devices as they come out: habit, speed and both rates."""
    source = source_of(scenario)
    none = np.zeros(DEVICES.size, np.int64)
    of_speed = LatencyModel.of(scenario, source)
    download = of_speed._replace(setup_seconds=np.zeros(1), upload_seconds=np.zeros(1))
    upload = of_speed._replace(setup_seconds=np.zeros(1), download_seconds=np.zeros(1))
    model = availability_of(scenario)
    assert isinstance(model, HabitAvailabilityModel)
    return {
        "habit": model.known_of(DEVICES).propensity,
        "speed": 1.0 / work_seconds(of_speed, DEVICES, none)[1],
        "downlink": 1.0 / work_seconds(download, DEVICES, none)[0],
        "uplink": 1.0 / work_seconds(upload, DEVICES, none)[0],
    }


def test_every_attribute_has_its_law(small) -> None:
    """By Kolmogorov and Smirnov, false alarm 1e-4 each."""
    found = attributes_of(small())
    laws = {
        "habit": stats.beta(0.78, 1.85),
        "speed": stats.lognorm(0.6, scale=1 / 45.0),
        "downlink": stats.lognorm(0.47, scale=0.43),
        "uplink": stats.lognorm(0.68, scale=0.33),
    }
    for name, law in laws.items():
        assert stats.kstest(found[name], law.cdf)[1] > FALSE_ALARM


def test_one_class_that_says_nothing_changes_no_bit(small, tmp_path: Path) -> None:
    digests = {
        simulate(small(*more), Placement(1, "in-process"), tmp_path / str(place)).digest
        for place, more in enumerate(
            (
                (),
                ("population.classes=[{name='all',share=1.0}]",),
            )
        )
    }
    assert len(digests) == 1
    # Scenarios that were written before there were classes keep their digest.
    assert "classes" not in small().to_tables()["population"]


def test_a_run_counts_by_class_who_took_part_for_any_number_of_shards(
    small, tmp_path: Path
) -> None:
    mixed = small(
        CLASSES,
        "population.devices=140000",
        "population.reach=0.1",
        "participation.timer_hours=1.0",
    )
    traces = [
        simulate(mixed, Placement(shards, "in-process"), tmp_path / str(shards))
        for shards in (1, 3)
    ]
    assert traces[0].digest == traces[1].digest
    assert traces[0].run["classes"] == traces[1].run["classes"]
    parts = [traces[0].columns(part) for part in range(len(traces[0].run["parts"]))]
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    own_class = classes_on(DeviceClasses.of(mixed), rows["device_id"])
    for place, row in enumerate(traces[0].run["classes"]):
        is_own = own_class == place
        accepted = is_own & (rows["outcome"] == OUTCOMES.index("accepted"))
        by_device: dict[int, list[int]] = {}
        for device, number in zip(
            rows["device_id"][accepted].tolist(), rows["round"][accepted].tolist(), strict=True
        ):
            by_device.setdefault(device, []).append(number)
        gaps = [b - a for each in by_device.values() for a, b in zip(each, each[1:], strict=False)]
        assert row["selected"] == is_own.sum() > 100
        assert row["participations"] == accepted.sum()
        assert row["devices"] == len(by_device)
        assert row["least_gap"] == min(gaps, default=0)
        assert row["most"] == max(map(len, by_device.values()))
    assert traces[0].run["classes"][0]["name"] == "old"
    audit = audit_trace(traces[0])
    document = audit.to_json()
    assert document["classes"] == traces[0].run["classes"]
    (table,) = [each for each in audit_tables(audit) if each.title == "Classes of devices"]
    assert [row[0] for row in table.rows] == [row["name"] for row in document["classes"]]
    page = audit_page(audit)
    assert "Classes of devices" in page
    assert "eligible at once" in page


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("population.classes=[{name='a',share=0.4}]", "classes: the shares sum to 0.4"),
        (
            "population.classes=[{name='a',share=0.4},{name='a',share=0.6}]",
            "classes: 2 have the name 'a'",
        ),
        (
            "population.classes=[{name='a',share=1.0,availability={night_length=3.0}}]",
            "class 'a': availability: unknown key night_length",
        ),
        (
            "population.classes=[{name='a',share=1.0,availability={model='poisson'}}]",
            "class 'a': availability: a class may override only keys of availability.model=",
        ),
        (
            "population.classes=[{name='a',share=1.0,time_zones=[{share=0.5}]}]",
            "time_zones: the shares sum to 0.5",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(small, override: str, expected: str) -> None:
    with pytest.raises(ScenarioError) as error:
        small(override)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)
