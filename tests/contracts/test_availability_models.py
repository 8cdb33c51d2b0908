"""What every availability model must do, and what each of them says: one suite, then each against its own oracle."""

import contextlib
import io
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from scipy import stats

from fedray.base.errors import ScenarioError
from fedray.clients.availability.factory import availability_of
from fedray.clients.availability.intervals import DAY
from fedray.clients.availability.model import Listing
from fedray.scenario import Scenario

RECORDING = """device,start,end
always,0,86400
always,86400,345600
wraps,340000,345600
wraps,0,5000
wraps,5000.5,9000
wraps,100000,200000
once,50000,51000
late,345000,345599
"""
"""Four days; one device is on throughout, one across the wrap (its first two sessions nearly touch), one ends just before it."""

PAGE = Path(__file__).parents[2] / "docs" / "populations.md"
CUSTOM = PAGE.read_text(encoding="utf-8").partition('title="own_hours.py"\n')[2].partition("```")[0]
"""The function that the documentation shows."""

ZONES = "population.time_zones=[{utc_offset_hours=-8.0,share=0.5},{utc_offset_hours=5.5,share=0.5}]"
MODELS = {
    "habit": ["availability.weekend_factor=1.5", ZONES],
    "habit, wide": [
        "availability.night_center_between_hours=6.0",
        "availability.night_center_within_hours=3.0",
        "availability.session_max_hours=24.0",
        "availability.night_length_hours=14.0",
        ZONES,
    ],
    "habit, by class": [
        "population.classes=[{name='old',share=0.3,availability={night_length_hours=2.0}},"
        "{name='far',share=0.7,time_zones=[{utc_offset_hours=9.0}]}]"
    ],
    "conditions": ['availability={model="conditions"}', ZONES],
    "conditions, no wifi": ['availability={model="conditions",needs_wifi=false}', ZONES],
    "conditions, wifi alone": [
        'availability={model="conditions",needs_charging=false,needs_idle=false}',
        ZONES,
    ],
    "conditions, idle alone": [
        'availability={model="conditions",needs_charging=false,needs_wifi=false}',
        ZONES,
    ],
    "always_on": ['availability={model="always_on"}'],
    "poisson": ['availability={model="poisson",sessions_per_day=3.0,session_minutes=200.0}'],
    "replay": ['availability={model="replay",file="recording.parquet"}'],
    "replay, shifted": [
        'availability={model="replay",file="recording.parquet",day_shift="uniform",period_days=5}',
        ZONES,
    ],
    "replay, jittered": [
        'availability={model="replay",file="recording.parquet",jitter_minutes=90.0}',
        ZONES,
    ],
    "custom": ['availability={model="custom",file="mine.py",parameters={hours=5.0}}'],
}
DEVICES = np.arange(120, dtype=np.uint64) * 1013 + 5
TIMES = (0.0, 0.4 * DAY, 3.9 * DAY, 6.5 * DAY, 20.0 * DAY)


@pytest.fixture(autouse=True)
def _inside(tmp_path, monkeypatch) -> None:
    """Paths in overrides are relative to the working directory."""
    monkeypatch.chdir(tmp_path)


def as_parameter(model: str):
    # The kernel of conditions takes as long to compile as all tests here do: one process does it.
    group = [pytest.mark.xdist_group("conditions")] if model.startswith("conditions") else []
    return pytest.param(model, marks=group)


@pytest.fixture(params=map(as_parameter, MODELS), scope="module")
def scenario(request, tmp_path_factory) -> Scenario:
    return build(MODELS[request.param], tmp_path_factory.mktemp("files"))


def write_recording(file: Path, text: str) -> None:
    pq.write_table(pyarrow.csv.read_csv(io.BytesIO(text.encode())), file)


def build(overrides: list[str], folder: Path) -> Scenario:
    write_recording(folder / "recording.parquet", RECORDING)
    (folder / "mine.py").write_text(CUSTOM)
    (folder / "s.toml").write_text(
        "seed = 3\n[population]\ndevices = 200_000\n[rounds]\ncount = 2\nreport_goal = 10\n[training]\nenabled = false\n"
    )
    with contextlib.chdir(folder):
        return Scenario.from_toml("s.toml", overrides)


def rows_of(runs) -> list[list[tuple[float, float]]]:
    """Runs by device."""
    rows: list[list[tuple[float, float]]] = [[] for _ in DEVICES]
    for which, start, end in zip(
        runs.local.tolist(), runs.start_times.tolist(), runs.end_times.tolist(), strict=True
    ):
        rows[which].append((start, end))
    return rows


def test_runs_are_sorted_apart_and_touch_the_time_asked_for(scenario: Scenario) -> None:
    model = availability_of(scenario)
    for low in TIMES:
        runs = model.list_intervals(Listing(DEVICES, np.zeros(DEVICES.size), low, low + DAY))
        assert runs.local.size
        assert (
            (runs.end_times > low)
            & (runs.start_times < low + DAY)
            & (runs.start_times < runs.end_times)
        ).all()
        same = runs.local[1:] == runs.local[:-1]
        assert (np.diff(runs.local.astype(np.int64)) >= 0).all()
        assert (runs.start_times[1:][same] > runs.end_times[:-1][same] + 1.0).all()


def test_a_device_has_the_same_runs_in_any_company_and_from_any_moment(scenario: Scenario) -> None:
    """Alone, backwards, in halves of the time: every end and every start inside is the same."""
    model = availability_of(scenario)
    everyone = np.zeros(DEVICES.size)
    for low in TIMES:
        whole = rows_of(model.list_intervals(Listing(DEVICES, everyone, low, low + DAY)))
        backwards = rows_of(
            model.list_intervals(Listing(DEVICES[::-1].copy(), everyone, low, low + DAY))
        )[::-1]
        assert backwards == whole
        assert (
            rows_of(
                model.list_intervals(
                    Listing(DEVICES, everyone, low, low + DAY, model.known_of(DEVICES))
                )
            )
            == whole
        )
        halves = [
            rows_of(model.list_intervals(Listing(DEVICES, everyone, a, a + DAY / 2)))
            for a in (low, low + DAY / 2)
        ]
        for device in range(DEVICES.size):
            assert {end for _, end in whole[device]} == {
                end for half in halves for _, end in half[device]
            }
            starts = {start for start, _ in whole[device] if start > low}
            assert starts <= {start for half in halves for start, _ in half[device]}
    alone = model.list_intervals(Listing(DEVICES[7:8], np.zeros(1), TIMES[2], TIMES[2] + DAY))
    assert (
        list(zip(alone.start_times, alone.end_times, strict=True))
        == rows_of(model.list_intervals(Listing(DEVICES, everyone, TIMES[2], TIMES[2] + DAY)))[7]
    )


def test_closed_timers_leave_out_what_ends_before_they_open(scenario: Scenario) -> None:
    model = availability_of(scenario)
    low = TIMES[3]
    opens = low + DAY * np.linspace(-0.2, 1.2, DEVICES.size)
    everything = rows_of(
        model.list_intervals(Listing(DEVICES, np.zeros(DEVICES.size), low, low + DAY))
    )
    some = rows_of(model.list_intervals(Listing(DEVICES, opens, low, low + DAY)))
    for device in range(DEVICES.size):
        expected = [
            end
            for _, end in everything[device]
            if end > opens[device] and opens[device] < low + DAY
        ]
        kept = [end for start, end in some[device] if end > opens[device]]
        assert [end for end in expected if end in kept] == kept
        late = [start for start, end in everything[device] if end in expected and start < low + DAY]
        assert len(kept) == len(late)


def test_moments_and_runs_agree(scenario: Scenario) -> None:
    model = availability_of(scenario)
    if not scenario.availability.can_be_thinned:
        assert scenario.availability.model == "custom"
        return
    generator = np.random.default_rng(0)
    for low in TIMES:
        runs = rows_of(
            model.list_intervals(Listing(DEVICES, np.zeros(DEVICES.size), low, low + DAY))
        )
        for _ in range(20):
            times = low + DAY * generator.uniform(size=DEVICES.size)
            ends = model.interval_ends(DEVICES, times)
            for device, (time, end) in enumerate(zip(times, ends, strict=True)):
                held = [b for a, b in runs[device] if a <= time < b]
                assert held == ([end] if end > -np.inf else [])


class TestReplay:
    """The recording of four devices, against a brute-force expansion, over five periods."""

    @staticmethod
    def oracle(device: int, low: float, high: float) -> list[tuple[float, float]]:
        """Every session repeated, then joined where they nearly touch."""
        names = sorted({line.split(",")[0] for line in RECORDING.splitlines()[1:]})
        lines = [line.split(",") for line in RECORDING.splitlines()[1:]]
        mine = [(float(a), float(b)) for name, a, b in lines if name == names[device % len(names)]]
        joined: list[list[float]] = []
        for start, end in sorted(
            (a + 4 * DAY * k, b + 4 * DAY * k) for k in range(-3, 9) for a, b in mine
        ):
            if joined and start <= joined[-1][1] + 1.0:
                joined[-1][1] = max(joined[-1][1], end)
            else:
                joined.append([start, end])
        return [(max(a, low), b) for a, b in joined if b > low and a < high]

    def test_no_device_is_lost_where_the_recording_wraps(self, tmp_path: Path) -> None:
        model = availability_of(build(MODELS["replay"], tmp_path))
        devices = np.arange(8, dtype=np.uint64)
        for low in np.arange(0.0, 20 * DAY, DAY / 2):
            runs = model.list_intervals(Listing(devices, np.zeros(8), low, low + DAY / 2))
            for device in range(8):
                mine = runs.local == device
                found = [
                    (max(a, low), min(b, 30 * DAY))
                    for a, b in zip(runs.start_times[mine], runs.end_times[mine], strict=True)
                ]
                expected = [
                    (a, min(b, 30 * DAY)) for a, b in self.oracle(device, low, low + DAY / 2)
                ]
                np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)

    def test_shifted_records_start_on_other_days(self, tmp_path: Path) -> None:
        model = availability_of(build([*MODELS["replay, shifted"][:1]], tmp_path))
        once = np.arange(2, 400, 4, dtype=np.uint64)  # they replay the third record, "once"
        runs = model.list_intervals(Listing(once, np.zeros(once.size), 0.0, 5 * DAY))
        days, counts = np.unique(runs.start_times // DAY, return_counts=True)
        assert days.tolist() == [0, 1, 2, 3, 4]
        assert counts.min() > 5

    def test_devices_that_share_a_record_do_not_move_in_step(self, tmp_path: Path) -> None:
        """Each is later by a time of its own below 90 minutes: as a whole uniform (Kolmogorov-Smirnov, p > 1e-4; not below 80)."""
        model = availability_of(
            build(
                ['availability={model="replay",file="recording.parquet",jitter_minutes=90.0}'],
                tmp_path,
            )
        )
        once = np.arange(
            2, 4000, 4, dtype=np.uint64
        )  # they replay the third record, "once", which starts at second 50,000
        runs = model.list_intervals(Listing(once, np.zeros(once.size), 0.0, DAY))
        assert runs.local.size == once.size
        late = (runs.start_times - 50_000.0) / 60.0
        np.testing.assert_allclose(runs.end_times - runs.start_times, 1000.0)
        assert stats.kstest(late / 90.0, stats.uniform.cdf).pvalue > 1e-4
        assert stats.kstest(late / 80.0, stats.uniform.cdf).pvalue < 1e-4

    @pytest.mark.parametrize("zone", ["", "Z"])
    def test_times_count_from_the_midnight_before_the_first_session(
        self, tmp_path: Path, zone: str
    ) -> None:
        """Monday 2024-03-04 is day 0: the same recording, in seconds since then or as timestamps."""
        build(MODELS["replay"], tmp_path)
        midnight = np.datetime64("2024-03-04T00:00:00", "s")
        sessions = [("a", 4000, 7000), ("b", 50_000, 90_000), ("a", 90_000, 170_000)]
        rows = [(name, f"{midnight + a}{zone}", f"{midnight + b}{zone}") for name, a, b in sessions]
        for file, written in (("t.parquet", rows), ("plain.parquet", sessions)):
            lines = ["device,start,end", *(",".join(map(str, row)) for row in written)]
            write_recording(tmp_path / file, "\n".join(lines))
        read, plain = (
            Scenario.from_toml(
                tmp_path / "s.toml", [f'availability={{model="replay",file="{file}"}}']
            )
            for file in ("t.parquet", "plain.parquet")
        )
        assert read.availability == plain.availability
        assert read.availability.period_seconds == 2 * DAY

    def test_a_csv_file_is_refused_with_its_conversion(self, tmp_path: Path) -> None:
        build(MODELS["replay"], tmp_path)
        (tmp_path / "r.csv").write_text(RECORDING)
        with pytest.raises(ScenarioError, match=r"is CSV; convert it to Parquet: pyarrow\.parquet"):
            Scenario.from_toml(tmp_path / "s.toml", ['availability={model="replay",file="r.csv"}'])

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("device,start,end\n", "no sessions"),
            ("device,start,end\na,5,3\n", "row 0 runs from 5 to 3"),
            ("device,start,end\na,-5,3\n", "row 0 runs from -5 to 3"),
            ("device,start,end\na,x,3\n", "must both be timestamps"),
            ("device,start,end\na,2024-03-04 01:00:00,3\n", "must both be timestamps"),
            (
                "device,start,end\na,200000,200001\nb,190000,190001\n",
                "starts 2.2 days in, at 190000 s; subtract 172800 from all",
            ),
            (
                "device,start,end\na,1.7e12,1.8e12\n",
                "or convert Unix times to timestamps",
            ),
            ("device,start\na,5\n", "with columns device, start, end"),
            ("device,start,end\na,,3\n", "empty cells"),
        ],
    )
    def test_what_is_no_recording_is_refused(
        self, tmp_path: Path, text: str, expected: str
    ) -> None:
        build(MODELS["replay"], tmp_path)
        write_recording(tmp_path / "recording.parquet", text)
        with pytest.raises(ScenarioError, match=expected) as error:
            Scenario.from_toml(tmp_path / "s.toml", MODELS["replay"])
        assert "\n" not in str(error.value)

    def test_a_period_shorter_than_the_recording_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ScenarioError, match="ends on day 4.00; raise the period"):
            build(
                ['availability={model="replay",file="recording.parquet",period_days=3}'], tmp_path
            )


@pytest.mark.parametrize(
    "overrides",
    [
        ["availability.day_habit_shape=0.01", "availability.day_length_minutes=1440.0"],
        ["availability.night_length_hours=24.0", "availability.session_max_hours=24.0", "availability.interruption_off_hours=0.0",
         "availability.night_propensity=[1000.0,0.01]", "availability.night_center_within_hours=0.0",
         "availability.night_length_within=0.0", "availability.night_length_between=0.0"],
    ],
)  # fmt: skip
def test_habits_under_which_a_device_is_eligible_for_months_are_refused(
    tmp_path: Path, overrides: list[str]
) -> None:
    """Rather than that the end of its interval is looked for without end."""
    model = availability_of(build(overrides, tmp_path))
    with pytest.raises(
        ScenarioError,
        match="too many sessions|more than 60 days on end; lower availability.day_sessions",
    ):
        model.list_intervals(
            Listing(np.arange(20_000, dtype=np.uint64), np.zeros(20_000), 0.0, DAY)
        )


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "rounds.max_checkins_per_hour=1e-300",
            "max_checkins_per_hour = 1e-300: input should be greater than or equal to 0.01",
        ),
        (
            "participation.max_participations=0",
            "max_participations = 0: .* never takes part again",
        ),
    ],
)
def test_a_rate_at_which_nobody_would_ever_come_and_a_cap_of_none_are_refused_in_one_line(
    tmp_path: Path, override: str, expected: str
) -> None:
    with pytest.raises(ScenarioError, match=expected) as error:
        build([override], tmp_path)
    assert "\n" not in str(error.value)


def test_poisson_sessions_fill_the_share_of_time_that_theory_says(tmp_path: Path) -> None:
    """M/G/infinity: a moment is free of sessions with probability exp(-rate x mean length); joins of a second aside."""
    model = availability_of(build(MODELS["poisson"], tmp_path))
    devices = np.arange(20_000, dtype=np.uint64)
    ends = model.interval_ends(devices, np.full(devices.size, 3.3 * DAY))
    mean_hours = 200 / 60 * -np.expm1(-12 / (200 / 60))
    expected = -np.expm1(-3 / 24 * mean_hours)
    assert (ends > 0).mean() == pytest.approx(
        expected, abs=4 * np.sqrt(expected * (1 - expected) / 20_000)
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "def runs(device_ids, low, high, seed, hours):\n    return [0], [low], [low]",
            "ends before it starts",
        ),
        (
            "def runs(device_ids, low, high, seed, hours):\n    return [0], [high], [high + 1]",
            "does not touch",
        ),
        (
            "def runs(device_ids, low, high, seed, hours):\n    return [999], [low], [high]",
            "outside 0 to 119",
        ),
        (
            "def runs(device_ids, low, high, seed, hours):\n    return [1, 0], [low, low], [high, high]",
            "must be sorted",
        ),
        (
            "def runs(device_ids, low, high, seed, hours):\n    return [0, 0], [low, low], [high, high]",
            "must be sorted",
        ),
        (
            "def runs(device_ids, low, high, seed, hours):\n    return [0, 1], [low], [high]",
            "three arrays of one length",
        ),
        (
            "def runs(device_ids, low, high, seed):\n    return [0], [low], [high]",
            "failed: TypeError",
        ),
        ("runs = 3", "has no function 'runs'"),
        ("import nowhere", "imports nowhere in line 1, which is not installed: pip install"),
    ],
)
def test_a_function_that_breaks_its_contract_is_refused(
    tmp_path: Path, source: str, expected: str
) -> None:
    build(MODELS["custom"], tmp_path)
    (tmp_path / "mine.py").write_text(source)
    scenario = Scenario.from_toml(tmp_path / "s.toml", MODELS["custom"])
    with pytest.raises(ScenarioError, match=expected):
        availability_of(scenario).list_intervals(Listing(DEVICES, np.zeros(DEVICES.size), 0.0, DAY))


def test_sessions_that_never_leave_a_gap_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="overlap 20.0 times on average, more than 3"):
        build(
            [
                'availability={model="poisson",sessions_per_day=20.0,session_minutes=1440.0,session_max_hours=48.0}'
            ],
            tmp_path,
        )
