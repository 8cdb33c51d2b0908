"""Times of logs: each text has its reading or its own reason, and no rounding hides a broken timer."""

import datetime
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedray.audit.assumptions import assumptions_of_import
from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim
from fedray.audit.participation import read_patterns
from fedray.audit.waits import waits_between
from fedray.base.errors import InputError
from fedray.imports.importer import import_log
from fedray.imports.log_times import TimeReader
from fedray.imports.time_steps import Steps
from fedray.mechanisms.registry import Tree

NOON = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC).timestamp()
START = int(NOON)
ZONE = "a time in a zone without a certain offset from UTC"
READ = {
    "2026-03-01T12:00:00Z": NOON,
    "2026-03-01T12:00:00": NOON,
    "2026-03-01 12:00": NOON,
    "2026-03-01T12": NOON,
    "2026-03-01t12:00:00z": NOON,
    "20260301T120000Z": NOON,
    "20260301 1200": NOON,
    "20260301T12+00": NOON,
    "2026-03-01T12:00:00,5Z": NOON + 0.5,
    "2026-03-01T12:00:00.123456789Z": NOON + 0.123456789,
    "2026-03-01T12:00:00.250000000001Z": NOON + 0.25,
    "2026-03-01T24:00:00Z": NOON + 43_200,
    "2026-03-01T24:00+01:00": NOON + 39_600,
    "2026-03-01 12:00:00 UTC": NOON,
    "2026-03-01 12:00:00 GMT": NOON,
    "2026-03-01T12:00:00gmt": NOON,
    "2026-03-01T12:00:00[UTC]": NOON,
    "2026-03-01T12:00:00Z[Etc/UTC]": NOON,
    "2026-03-01T13:00:00+01:00[Europe/Berlin]": NOON,
    "2026-03-01 12:00:00 +0000 UTC": NOON,
    "2026-03-01 13:00:00 +0100 CET": NOON,
    "2026-03-01 07:00:00-05": NOON,
    "2026-03-01T17:30:00+0530": NOON,
    "2026-03-01T12:00:00-00:00": NOON,
    "1772366400": NOON,
    "1772366400.5": NOON + 0.5,
    "1.772366401E9": NOON + 1,
    "1.772366400001e12": NOON + 0.001,
}
REFUSED = {
    "2026-03-01": "not ISO 8601 with a time of day: a date may be a day away",
    "2026-W09-7T12:00:00Z": "a week date",
    "2026W097T120000Z": "a week date",
    "2026-060T12:00:00Z": "a day of the year",
    "2026-03-01T12:00:60Z": "a leap second",
    "20161231T235960Z": "a leap second",
    "2026-03-01T24:00:01Z": "not a time: hour must be in 0..23",
    "2026-02-30T12:00:00Z": "not a time: day is out of range for month",
    "2026-03-01T12:61:00Z": "not a time: minute must be in 0..59",
    "2026-03-01T12:00:00+25:00": "not a time: offset must be",
    "2026-03-01T12:00.5Z": "a fraction of an hour or a minute",
    "2026-03-01T12,5Z": "a fraction of an hour or a minute",
    "2026-03-01T12:00:00+01:00:30": "a time with seconds in its offset",
    "2026-3-1 12:00:00": "a date with a number of one digit",
    "2026-03-01 9:00:00": "a time with an hour of one digit",
    "2026-03-01 12:00:00 PM": "a time of 12 hours; give its format",
    "2026-03-01 12:00:00 EST": ZONE,
    "2026-03-01T12:00:00 MEZ": ZONE,
    "2026-03-01T12:00:00[Europe/Berlin]": ZONE,
    "2026-03-01T12:00:00 GMT+0100": ZONE,
    "9999-12-31T23:59:59Z": "not a time from 2000 to 2100",
    "1970-01-01T00:00:00Z": "before 2000 or after 2100",
    "Sun, 01 Mar 2026 12:00:00 GMT": "not ISO 8601 with a time of day",
    "+002026-03-01T12:00:00Z": "not ISO 8601 with a time of day",
    "12:00:00": "not ISO 8601 with a time of day",
    "1.7724e9": "digits are too few: they stand for all times within 100,000 s",
    "1.772366e12": "digits are too few: they stand for all times within 1,000 s",
    "20260301": "not a Unix time from 2000 to 2100 in any unit",
}


def read(values: Any, **form) -> tuple[np.ndarray, TimeReader]:
    reader = TimeReader("at", **form)
    return reader.seconds(values if isinstance(values, pa.Array) else pa.array(values)), reader


@pytest.mark.parametrize("text", READ)
def test_text_whose_meaning_is_certain_is_read(text: str) -> None:
    assert read([text])[0].tolist() == [pytest.approx(READ[text], abs=1e-6)]


@pytest.mark.parametrize("text", REFUSED)
def test_other_text_is_refused_with_the_reason_that_is_true_of_it(text: str) -> None:
    with pytest.raises(InputError) as refused:
        read([text])
    message = str(refused.value)
    assert f"{text} (row 1)" in message.replace("'", "")
    assert REFUSED[text] in message
    # Every reason is that of its text only.
    others = {each for each in REFUSED.values() if each not in REFUSED[text]}
    assert [each for each in others if each in message.split(". Accepted")[0]] == []


@pytest.mark.parametrize("after", ["2026-03-01T12:00:00Z", "2026-03-01T12:00:00.5+01:00"])
def test_a_zone_among_offsets_is_refused_for_its_own_reason(after: str) -> None:
    with pytest.raises(
        InputError, match=r"1 value such as .* EST' \(row 3\), which is a time in a"
    ):
        read([after, after, "2026-03-01 12:00:00 EST"])


def test_text_is_read_as_python_reads_it() -> None:
    """Python's own reader is the slow twin, for forms drawn at random that it knows."""
    rng = np.random.default_rng(5)
    texts, expected = [], []
    for _ in range(2000):
        zone = datetime.timezone(datetime.timedelta(minutes=15 * int(rng.integers(-48, 57))))
        at = datetime.datetime(2026, 1, 1, tzinfo=zone) + datetime.timedelta(
            days=int(rng.integers(0, 9000)), microseconds=int(rng.integers(0, 86_400_000_000))
        )
        date, clock = rng.choice(["%Y-%m-%d", "%Y%m%d"]), rng.choice(["%H:%M:%S", "%H%M%S"])
        fraction = rng.choice(["", ".%f", ",%f"])
        offset = at.strftime("%z")
        offset = rng.choice([offset, f"{offset[:3]}:{offset[3:]}"])
        text = at.strftime(f"{date}{rng.choice(['T', ' '])}{clock}{fraction}") + offset
        texts.append(text)
        expected.append(datetime.datetime.fromisoformat(text).timestamp())
    assert read(texts)[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32()])
def test_a_type_that_holds_no_seconds_is_refused(kind: Any) -> None:
    values = np.array([12.0, 500.0])
    with pytest.raises(InputError, match=f"at is of type {kind}, which holds times of today only"):
        read(pa.array(values.astype(kind.to_pandas_dtype())), unit="seconds")


def timer_log(folder: Path, kind: pa.DataType) -> Path:
    """Device x comes back a minute before 24 hours have passed."""
    rows = [("x", 0, START), ("y", 0, START), ("x", 1, START + 86_340), ("z", 1, START + 86_340)]
    devices, rounds, times = zip(*rows, strict=True)
    at = pa.array([float(each) for each in times]).cast(kind, safe=False)
    pq.write_table(
        pa.table({"device": devices, "round": rounds, "time": at}), folder / "log.parquet"
    )
    return folder / "log.parquet"


CLAIM = Claim(mechanism=Tree(), noise_multiplier=4.0, rounds=2, timer_hours=24, delta=1e-8)


def test_a_broken_timer_is_not_hidden_by_the_type_of_the_times(tmp_path: Path) -> None:
    """As float32, both times of the device are 86,400 s apart."""
    with pytest.raises(InputError, match="of type float, which holds times of today only"):
        import_log(
            timer_log(tmp_path, pa.float32()), "device", "round", 2, tmp_path / "t", time_column="time"
        )  # fmt: skip
    log = timer_log(tmp_path, pa.float64())
    trace = import_log(log, "device", "round", 2, tmp_path / "t", time_column="time")
    audit = audit_trace(trace, claim=CLAIM)
    assert not audit.claim_holds
    assert audit.findings[-1].should_say == "timer_hours = 23.9833"


@pytest.mark.parametrize("step", [60, 300, 900, 3600, 86_400, 128, 100_000])
def test_waits_of_rounded_times_are_never_longer_than_the_true_ones(
    tmp_path: Path, step: int
) -> None:
    """Times are cut to a step, as queries and floats do; the import has to find it."""
    rng = np.random.default_rng(step)
    true = np.sort(rng.integers(START, START + 400 * 86_400, (30, 8)), axis=1)
    rows = [(f"d{d}", r, int(true[d, r]) // step * step) for d in range(30) for r in range(8)]
    lines = [f"{device},{number},{at}" for device, number, at in rows]
    (tmp_path / "log.csv").write_text("\n".join(["device,round,at", *lines]) + "\n")
    trace = import_log(tmp_path / "log.csv", "device", "round", 8, tmp_path / "t", time_column="at")
    assert trace.time_step == step
    said = [
        each
        for each in assumptions_of_import(trace)
        if each.text.startswith("All times are multiples of")
    ]
    assert f"multiples of {step:,} s: they are taken as rounded" in said[0].text
    counted = waits_between(trace, read_patterns(trace))
    assert counted is not None
    waits = np.concatenate([seconds for seconds, _, _ in counted]).reshape(30, 7)
    of_names = [int(name[1:]) for name in trace.names_of(range(30))]
    assert (waits <= np.diff(true, axis=1)[of_names]).all()
    assert (waits >= np.diff(true, axis=1)[of_names] - 2 * step).all()


def test_exact_times_have_no_step_and_few_times_only_an_assumption(numbers_in) -> None:
    rng = np.random.default_rng(1)
    exact = rng.integers(START, START + 10**6, 1000)
    assert [read(exact * unit)[1].doubts for unit in (1, 1000, 10**9)] == [[], [], []]
    assert read((exact + 0.25).tolist())[1].doubts == []
    # Two times on a full minute are a chance of 1 in 3600, and two on a full hour of 1 in 13 million.
    assert read([NOON, NOON + 86_340])[1].doubts == []
    _, reader = read(["2026-03-01T12:00:00Z", "2026-03-02T11:00:00Z"])
    assert reader.step == 0
    (doubt,) = reader.doubts
    assert "if they were rounded" in doubt
    assert numbers_in(doubt) == [3600, 3600]  # the step, and how much shorter a wait may be


@pytest.mark.parametrize("scale", [1, 1000, 10**6, 10**9])
def test_times_that_were_float32_once_are_found_in_any_unit(scale: int) -> None:
    exact = np.random.default_rng(2).integers(START, START + 10**6, 1000)
    held = (exact * scale).astype(np.float32)
    _, reader = read(held.astype(np.int64))
    assert reader.step == pytest.approx(float(np.spacing(held).min()) / scale)


@pytest.mark.parametrize("hours", ["+05:30", "+05:45", "-03:30"])
def test_hours_of_any_zone_are_hours(hours: str) -> None:
    at = [f"2026-03-{d:02d}T{h:02d}:00:00{hours}" for d in range(1, 6) for h in (3, 8, 14, 21, 23)]
    assert read(at)[1].step == 3600
    moments = pa.array([datetime.datetime.fromisoformat(each) for each in at])
    assert read(moments.cast(pa.timestamp("us", "UTC")))[1].step == 3600


def test_dates_of_a_zone_with_summer_time_are_days() -> None:
    at = [f"2026-{month:02d}-{day:02d} 00:00:00" for month in range(1, 13) for day in (1, 17)]
    assert read(at, zone="Europe/Berlin")[1].step == 86_400
    is_summer = [4 <= int(each[5:7]) <= 10 for each in at]
    offsets = [f"{each}+0{1 + is_it}:00" for each, is_it in zip(at, is_summer, strict=True)]
    assert read(offsets)[1].step == 86_400


def test_numbers_of_any_size_have_steps_or_none() -> None:
    steps = Steps()
    steps.add(np.array([0, 2**62]), 1.0)
    assert not steps.is_open
    assert read(pa.array([1e300, -1e300]), unit="seconds")[1].doubts == []
    assert read(pa.array([0] * 30), unit="seconds")[1].doubts == []


def test_decimals_are_times() -> None:
    at = pa.array([decimal.Decimal("1772366400.250"), decimal.Decimal("1772366401.000")])
    assert read(at)[0].tolist() == [NOON + 0.25, NOON + 1]


@pytest.mark.parametrize(
    ("text_format", "values", "is_doubtful"),
    [
        ("%d.%m.%Y %H:%M:%S", ["01.03.2026 10:00:01", "12.03.2026 10:00:02"], True),
        ("%m/%d/%Y %H:%M:%S", ["01/03/2026 10:00:01", "12/03/2026 10:00:02"], True),
        ("%-d.%-m.%y %H:%M:%S", ["1.3.26 10:00:01"], True),
        ("%d.%m.%Y %H:%M:%S", ["01.03.2026 10:00:01", "13.03.2026 10:00:02"], False),
        ("%d.%m.%Y %H:%M:%S", ["03.03.2026 10:00:01", "04.04.2026 10:00:02"], False),
        ("%d.%b.%Y %H:%M:%S", ["01.Mar.2026 10:00:01"], False),
    ],
)
def test_a_day_and_a_month_that_may_be_swapped_are_noted(
    tmp_path: Path, text_format: str, values: list[str], is_doubtful: bool
) -> None:
    _, reader = read(values, text_format=text_format)
    assert [f"{text_format!r} reads is above 12" in each for each in reader.doubts] == [
        True
    ] * is_doubtful
    lines = "".join(f"a,{place},{value}\n" for place, value in enumerate(values))
    (tmp_path / "log.csv").write_text("device,round,at\n" + lines)
    trace = import_log(
        tmp_path / "log.csv",
        "device",
        "round",
        len(values),
        tmp_path / "t",
        time_column="at",
        time_format=text_format,
    )
    assert reader.doubts == [
        each.text for each in assumptions_of_import(trace) if each.text.startswith("No day of")
    ]


def test_a_swap_is_ruled_out_by_any_row(monkeypatch) -> None:
    monkeypatch.setattr("fedray.imports.log_times._PARTS", (slice(1), slice(1, None)))
    reader = TimeReader("at", text_format="%d.%m.%Y %H:%M:%S")
    reader.seconds(pa.array(["01.03.2026 10:00:07"] * 3))
    assert "'%m.%d.%Y %H:%M:%S' reads them all too" in reader.doubts[0]
    reader.seconds(pa.array(["01.03.2026 10:00:07", "02.03.2026 10:00:07", "31.03.2026 10:01:07"]))
    assert reader.doubts == []
    reader.seconds(pa.array(["01.03.2026 10:00:07"]))
    assert reader.doubts == []


def test_rounds_that_a_float_may_have_merged_are_refused(tmp_path: Path) -> None:
    """Rounds 16,777,216 and 16,777,217 are one number as float32."""
    table = {"device": ["a", "a"], "round": pa.array([1.0, 2.0**24 + 1], pa.float32())}
    pq.write_table(pa.table(table), tmp_path / "log.parquet")
    with pytest.raises(InputError, match="1 row with a round that float does not hold exactly"):
        import_log(tmp_path / "log.parquet", "device", "round", None, tmp_path / "t", renumber=True)
    table["round"] = pa.array([1.0, 2.0**24 - 1], pa.float32())
    pq.write_table(pa.table(table), tmp_path / "log.parquet")
    pq.write_table(pa.table({"round": table["round"]}), tmp_path / "r.parquet")
    trace = import_log(
        tmp_path / "log.parquet", "device", "round", None, tmp_path / "t",
        rounds_file=tmp_path / "r.parquet",
    )  # fmt: skip
    assert trace.round_label(1) == "16777215"
    pq.write_table(
        pa.table({"round": pa.array([1.0, 2.0**24], pa.float32())}), tmp_path / "r.parquet"
    )
    with pytest.raises(InputError, match="has rounds that float does not hold exactly"):
        import_log(
            tmp_path / "log.parquet", "device", "round", None, tmp_path / "u",
            rounds_file=tmp_path / "r.parquet",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("batches", "wrong"),
    [
        ([["1772370000", "1772370107"], ["1772456607", "1.77246e+09"]], "1.77246e+09"),
        ([["1772370000"] * 2000 + ["1.77246E9"]], "1.77246E9"),
    ],
)
def test_a_number_of_few_digits_is_refused_wherever_it_is(
    batches: list[list[str]], wrong: str
) -> None:
    reader = TimeReader("at")
    with pytest.raises(InputError) as refused:
        for each in batches:
            reader.seconds(pa.array(each))
    assert f"{wrong!r} (row {len(batches[-1])}), whose digits are too few" in str(refused.value)
    assert "within 10,000 s" in str(refused.value)


@pytest.mark.parametrize(
    ("values", "form", "step"),
    [
        (["2026-03-01T12Z", "2026-03-01T12:30:11Z"], {}, 3600),
        (["2026-03-01T12:30:11Z", "20260301T12+01"], {}, 3600),
        (["2026-03-01 12:30", "2026-03-01 12:30:11"], {}, 60),
        (["2026-03-01 12:30:11", "2026-03-01 12:30:00"], {}, 0),
        (["01.13.26 12:30"], {"text_format": "%m.%d.%y %H:%M"}, 60),
        (["01.13.26 12"], {"text_format": ["%m.%d.%y %H:%M", "%m.%d.%y %H"]}, 3600),
        (["01.13.26 12:30:11"], {"text_format": ["%m.%d.%y %H:%M:%S", "%m.%d.%y %H"]}, 0),
    ],
)
def test_waits_are_known_to_the_coarsest_time_that_is_written(
    values: list[str], form: dict[str, Any], step: float
) -> None:
    _, reader = read(values, **form)
    assert reader.step == step
    said = f"Some times are written to {step:,} s: they are taken as rounded"
    assert any(said in each for each in reader.doubts) == bool(step)


@pytest.mark.parametrize(
    ("values", "told", "fits"),
    [
        ([1772366400000, 1772366520000], "seconds", "milliseconds"),
        ([1772366400, 1772366520], "milliseconds", "seconds"),
        (["1772366400000000"], "nanoseconds", "microseconds"),
        ([1772366400000, 0], "seconds", "milliseconds"),
    ],
)
def test_a_told_unit_that_another_one_contradicts_is_refused(
    values: list[Any], told: str, fits: str
) -> None:
    with pytest.raises(InputError, match=rf"a Unix time in {fits}, but {told} are told; give"):
        read(values, unit=told)
    if 0 not in values:
        assert read(values, unit=fits)[0][0] == NOON
    # Some of many such numbers are times since a start.
    assert read([0, 5, 1772366400], unit="nanoseconds")[0][2] == 1.7723664


def test_dates_in_digits_are_no_unix_times() -> None:
    """As Unix seconds, hours of one day are a second apart, in 2034."""
    for values, text_format in (
        (["2026030112", "2026030212"], "%Y%m%d%H"),
        ([2603011200, 2603021205], "%y%m%d%H%M"),
    ):
        with pytest.raises(
            InputError, match=rf"a date in digits, .*; give `time_format='{text_format}"
        ):
            read(values)
        assert read(values, unit="seconds")[0].tolist() == [float(each) for each in values]
    assert read(["2026030112"], text_format="%Y%m%d%H")[0].tolist() == [NOON]
    for values in ([2026030112, 2026030172], [2026030112, 2026043212], [START, START + 1]):
        assert read(values)[0].tolist() == values


@pytest.mark.parametrize(
    ("text_format", "values", "other"),
    [
        ("%d/%m/%y %H:%M", ["26/03/05 12:00", "26/03/16 11:00"], "%y/%m/%d %H:%M"),
        ("%d %b %y %H:%M", ["26 Mar 05 12:00", "26 Mar 06 11:00"], "%y %b %d %H:%M"),
        ("%m/%d/%y %H:%M", ["05/16/26 12:00", "05/17/26 11:00"], ""),
        ("%y/%m/%d %H:%M", ["26/03/15 12:00", "26/03/16 11:00"], ""),
        ("%d/%m/%y %H:%M", ["15/03/26 12:00", "16/03/26 11:00"], ""),
    ],
)
def test_a_day_and_a_year_that_may_be_swapped_are_noted(
    text_format: str, values: list[str], other: str
) -> None:
    _, reader = read(values, text_format=text_format)
    said = [each for each in reader.doubts if "which number is the year" in each]
    assert [each.startswith(repr(other)) for each in said] == [True] * bool(other)
