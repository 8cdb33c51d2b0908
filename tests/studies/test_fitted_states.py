"""Fits of logs of states, which a grid samples and gaps interrupt, and of models other than habit."""

from pathlib import Path

import numpy as np
import pytest

from fedray.base.errors import InputError
from fedray.imports.log_records import RecordColumns, read_log_records
from fedray.scenario.availability import (
    ConditionsAvailability,
    HabitAvailability,
    PoissonAvailability,
)
from fedray.studies.habits.fit import HabitFit, fit_habits
from fedray.studies.habits.observed import Layout, ObservedLog, Simulator, on_grid, runs_of
from fedray.studies.habits.parameters import parameters_of, start_values, table_of
from fedray.studies.habits.read import read_observed_log

COLUMNS = RecordColumns(state="on", time_unit="seconds")
RARE = HabitAvailability(
    night_propensity=(0.5, 1.6),
    night_length_hours=6.0,
    night_center_hours=3.5,
    day_sessions=0.7,
    day_length_minutes=55.0,
)
"""Habits with which a third of the devices is never seen in a week."""


def observed(table, devices: int, days: int, known: np.ndarray, seed: int = 5) -> ObservedLog:
    """A log of states that a table makes, of which `known` is seen."""
    layout = Layout("intervals", days, 0, known=known)
    return ObservedLog(Simulator(layout, devices, seed).records(table), layout)


def gaps(devices: int, days: int, seed: int = 7) -> np.ndarray:
    """Each device is known from some moment of the first half of the days to the end."""
    steps = 48 * days
    since = np.random.default_rng(seed).integers(0, steps // 2, devices)
    return np.arange(steps) >= since[:, None]


def covered(fit: HabitFit, truth) -> list[bool]:
    true = start_values(truth)
    return [each.low <= true[each.name] <= each.high for each in fit.estimates]


def test_a_device_is_seen_at_the_steps_of_the_grid_that_its_intervals_hold() -> None:
    draws = np.random.default_rng(1)
    device = np.sort(draws.integers(0, 6, 40))
    starts = draws.integers(-20, 480, 40) / 10
    ends = starts + draws.integers(1, 60, 40) / 10
    found = on_grid(device, starts, ends, (6, 96), 2)
    for place in range(6):
        for step in range(96):
            moment = step / 2
            inside = (device == place) & (starts <= moment) & (moment < ends)
            assert found[place, step] == inside.any(), (place, step)
    runs = runs_of(found, 2)
    again = np.repeat(np.arange(6), np.diff(runs.first))
    assert (on_grid(again, runs.starts, runs.ends, (6, 96), 2) == found).all()
    # Runs are apart, so that none of them could be joined.
    assert (np.diff(runs.starts)[np.diff(again) == 0] > 0).all()
    assert runs.starts.size == (np.diff(np.pad(found.astype(int), ((0, 0), (1, 0)))) == 1).sum()


def test_a_log_of_states_has_devices_that_were_never_eligible_and_gaps(tmp_path: Path) -> None:
    file = tmp_path / "states.csv"
    hour = 3600
    rows = [
        ("a", 0, 20 * hour, "false"),
        ("a", 20 * hour, 26 * hour, "true"),
        # Unknown from 26 h to 30 h.
        ("a", 30 * hour, 72 * hour, "false"),
        ("never", 10 * hour, 72 * hour, "false"),
    ]
    text = "\n".join(",".join(map(str, row)) for row in rows)
    file.write_text(f"device,start,end,on\n{text}\n")
    records, layout, *_ = read_observed_log(file, COLUMNS, step_minutes=60)
    assert (records.devices, layout.days) == (2, 3)
    assert (records.first.tolist(), records.starts.tolist()) == ([0, 1, 1], [20.0])
    assert records.ends.tolist() == [26.0]
    assert layout.known is not None
    assert layout.known.sum(axis=1).tolist() == [72 - 4, 72 - 10]
    assert not layout.known[0, 26:30].any()


@pytest.mark.parametrize(
    ("columns", "step", "problem"),
    [
        (COLUMNS, None, "go together"),
        (RecordColumns(time_unit="seconds"), 30.0, "go together"),
        (RecordColumns(time="start", state="on"), 30.0, "go together"),
        (COLUMNS, 7.0, "and divide a day"),
        (RecordColumns(state="start", time_unit="seconds"), 30.0, "given twice"),
        (RecordColumns(state="end2", time_unit="seconds"), 30.0, "true or false"),
        (RecordColumns(state="of", time_unit="seconds"), 30.0, "state_column='of' is not a column"),
    ],
)
def test_a_log_of_states_that_is_incomplete_is_refused(
    tmp_path: Path, columns: RecordColumns, step: float | None, problem: str
) -> None:
    file = tmp_path / "log.csv"
    file.write_text("device,start,end,end2,on\na,0,86400,x,1\n")
    with pytest.raises(InputError, match=problem) as caught:
        read_observed_log(file, columns, step_minutes=step)
    assert "\n" not in str(caught.value)


def test_states_are_read_from_words_and_numbers(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text("device,start,end,on\na,0,1,true\na,1,2,0\na,2,3,1\na,3,4,false\n")
    found = read_log_records(file, COLUMNS).is_eligible
    assert found is not None
    assert found.tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    "table", [HabitAvailability(), ConditionsAvailability(), PoissonAvailability()]
)
def test_parameters_of_a_model_lead_to_its_keys_and_back(table) -> None:
    start = start_values(table)
    assert table_of(start, table) == table
    for each in parameters_of(table):
        if each.name not in start or not each.of:
            continue
        # Another value inside the bounds moves this parameter only.
        moved = min(1.01 * start[each.name] + 0.01, each.high)
        assert start_values(table_of({each.name: moved}, table)) == start | {each.name: moved}


@pytest.mark.slow
@pytest.mark.usefixtures("quick_fits")
def test_unknown_times_do_not_count_as_times_without_eligibility() -> None:
    """At least 8 of 10 and more intervals hold what made the log; without its gaps they miss."""
    known = gaps(300, 7)
    log = observed(RARE, 300, 7, known)
    fit = fit_habits(log)
    held = covered(fit, RARE)
    assert len(held) >= 10
    assert sum(held) >= 0.8 * len(held)
    assert fit.p_value > 1e-4
    everywhere = Layout("intervals", 7, 0, known=np.ones_like(known))
    naive = fit_habits(ObservedLog(log.records, everywhere))
    mean = {"night_propensity.alpha", "night_propensity.beta", "day_sessions"}
    value = {each.name: each.value for each in naive.estimates if each.name in mean}
    # A quarter of the time is unknown, and the day sessions of that time are lost.
    assert value["day_sessions"] < 0.85 * RARE.day_sessions
    assert naive.p_value < fit.p_value


@pytest.mark.slow
@pytest.mark.usefixtures("quick_fits")
def test_the_poisson_model_is_found_and_is_not_taken_for_habits() -> None:
    truth = PoissonAvailability(sessions_per_day=0.8, session_minutes=150.0)
    log = observed(truth, 400, 4, gaps(400, 4))
    fit = fit_habits(log, PoissonAvailability())
    assert covered(fit, truth) == [True, True]
    assert fit.p_value > 1e-4
    assert fit.to_tables()["availability"]["model"] == "poisson"
    other = fit_habits(observed(RARE, 400, 4, gaps(400, 4)), PoissonAvailability())
    assert other.p_value < 1e-12


@pytest.mark.slow
@pytest.mark.usefixtures("quick_fits")
def test_the_conditions_model_is_found_where_a_log_of_eligibility_can_tell() -> None:
    """Most of its parameters are held, and the report says so; those that are left are near."""
    truth = table_of(
        {"charging.day_sessions": 1.0, "charging.night_center_hours": 3.5}, ConditionsAvailability()
    )
    log = observed(truth, 300, 5, gaps(300, 5))
    fit = fit_habits(log, ConditionsAvailability())
    names = {each.name for each in (*fit.estimates, *fit.held)}
    assert names == start_values(truth).keys()
    assert len(fit.estimates) >= 3
    true = start_values(truth)
    for each in fit.estimates:
        assert abs(each.value - true[each.name]) < 2.6 * (each.high - each.low) / 2, each
    assert fit.p_value > 1e-4


@pytest.mark.slow
@pytest.mark.usefixtures("quick_fits")
def test_the_command_fits_another_model_to_a_log_of_states(tmp_path: Path, fedray_command) -> None:
    log = observed(PoissonAvailability(), 150, 3, gaps(150, 3))
    assert log.layout.known is not None
    rows = []
    for is_on, states in (("1", log.records), ("0", runs_of(log.layout.known, 3))):
        device = np.repeat(np.arange(150), np.diff(states.first))
        times = zip(device, states.starts * 3600, states.ends * 3600, strict=True)
        # Where rows overlap the device was eligible.
        rows += [f"{name},{start:.0f},{end:.0f},{is_on}" for name, start, end in times]
    (tmp_path / "log.csv").write_text("device,start,end,on\n" + "\n".join(rows) + "\n")
    form = ["--column", "state=on", "--time-format", "seconds", "--step-minutes", "30"]
    model = ["--set", "availability.model=poisson"]
    code, out, _ = fedray_command("fit-log", str(tmp_path / "log.csv"), *form, *model)
    assert code == 0
    assert "sessions_per_day" in out
    assert 'model = "poisson"' in out
    code, out, err = fedray_command("fit-log", str(tmp_path / "log.csv"), *form[:-2])
    assert (code, out) == (2, "")
    assert "--step-minutes" in err
