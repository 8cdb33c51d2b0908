"""What is said of the supply before a run."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedray.clients.availability.factory import availability_of
from fedray.clients.availability.supply import eligible_at_once
from fedray.commands.frame.run_start import say_supply


@pytest.mark.slow
def test_the_supply_of_a_recording_is_that_of_its_sessions(small, tmp_path: Path) -> None:
    """24 records of five hours, each an hour later than the one before: 5 in 24 devices are eligible at any time."""
    start = 3600 * np.arange(24)
    sessions = {"device": np.arange(24), "start": start, "end": start + 5 * 3600}
    pq.write_table(pa.table(sessions), tmp_path / "r.parquet")
    replay = f'availability={{model="replay",file="{tmp_path}/r.parquet",period_days=2}}'
    first_day = eligible_at_once(small("population.devices=2400", replay))
    assert first_day.most == 500
    assert first_day.least == 0  # the second day is empty from its sixth hour on
    # Four of the week's seven days are the recording's first, three its second.
    later = [100 * max(0, 4 - hour) for hour in range(24)]
    first = [100 * min(hour + 1, 5) for hour in range(24)]
    by_hour = [round((4 * a + 3 * b) / 7) for a, b in zip(first, later, strict=True)]
    assert first_day.by_hour == tuple(by_hour)
    assert eligible_at_once(small('availability={model="always_on"}')) == (
        20_000,
        20_000,
        20_000,
        (20_000,) * 24,
    )


def test_devices_that_are_always_on_are_all_eligible_though_samples_do_not_divide_them(
    small,
) -> None:
    """Every second of 20,001 devices are 10,001."""
    keys = ("population.devices=20001", 'availability={model="always_on"}')
    assert eligible_at_once(small(*keys)) == (20_001, 20_001, 20_001, (20_001,) * 24)


def test_the_supply_is_an_estimate_from_a_sample_of_the_usable(small) -> None:
    """Every 30th of 300,000 devices is looked at: the mean over the week is within 5 deviations of one hour's count of all,
    where habits are the same every day, for devices that are usable and there at the start."""
    scenario = small(
        "population.devices=300000",
        "population.reach=0.5",
        "population.joins_per_day=1000",
        'availability={model="poisson"}',
    )
    devices = np.arange(300_000, dtype=np.uint64)
    exact = (
        0.5
        * (
            availability_of(scenario).interval_ends(devices, np.full(devices.size, 86_400.0)) > 0
        ).sum()
    )
    assert eligible_at_once(scenario).mean == pytest.approx(exact, abs=5 * np.sqrt(30 * exact))


def test_the_command_says_before_a_run_how_many_are_eligible(small, capsys) -> None:
    always = (
        'availability={model="always_on"}',
        "population.reach=0.02",
        "rounds.over_selection=2.0",
    )
    say_supply(small(*always))
    said = capsys.readouterr().err
    assert said.startswith("supply  ")
    assert "of 20,000 devices are eligible at once" in said
    assert said.endswith("a round selects 400\n")
    say_supply(small("population.reach=0.02"))
    assert capsys.readouterr().err.endswith(
        "a round selects 260; that many are never there at once\n"
    )


def test_uploads_of_a_window_need_not_be_there_at_once(small, capsys) -> None:
    uploads = "{window_hours=6.0, windows=2, schedule={kind='all'}}"
    stored = ("rounds.mode=upload-then-train", "rounds.count=2", f"rounds.uploads={uploads}")
    say_supply(small("population.reach=0.02", *stored))
    said = capsys.readouterr().err
    assert "a window of 6 hours stores the uploads of all that come in it" in said
    assert "at once\n" not in said
