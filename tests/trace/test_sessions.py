"""Sessions: what is exported is replayed, published traces are read, hostile ones refused."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from fedray.base.errors import InputError
from fedray.clients.availability.model import Listing
from fedray.clients.sessions import population_sessions
from fedray.imports.foreign_sessions import read_fedscale, read_flash
from fedray.imports.sessions import Sessions, joined_sessions, write_sessions

BLOCKS = (
    Sessions(0, 3, np.array([0, 0, 2]), np.array([1.5, 10.0, 0.1]), np.array([2.0, 20.0, 0.3])),
    Sessions(3, 5, np.array([4]), np.array([5.0]), np.array([7.0])),
)
ROWS = [(0, 1.5, 2.0), (0, 10.0, 20.0), (2, 0.1, 0.3), (4, 5.0, 7.0)]


def test_columns_have_every_session(tmp_path: Path) -> None:
    file = tmp_path / "s.parquet"
    assert write_sessions(BLOCKS, file) == 4
    assert [tuple(row.values()) for row in pq.read_table(file).to_pylist()] == ROWS


PAGE = Path(__file__).parents[2] / "docs" / "populations.md"


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The functions of the page, for other tools."""
    names: dict[str, Any] = {}
    exec(PAGE.read_text().partition("```python\n")[2].partition("```")[0], names)
    return names


def test_the_program_of_the_page_knows_who_is_eligible(tmp_path: Path, page) -> None:
    write_sessions(BLOCKS, tmp_path / "s.parquet")
    sessions = page["sessions_of"](tmp_path / "s.parquet")
    assert sessions == {0: [(1.5, 2.0), (10.0, 20.0)], 2: [(0.1, 0.3)], 4: [(5.0, 7.0)]}
    assert [page["is_eligible"](sessions, 0, time) for time in (1.5, 2.0, 15.0)] == [1, 0, 1]
    assert not page["is_eligible"](sessions, 1, 5.0)


def is_active(trace: dict, time: float) -> bool:
    """FedScale's rule: some active[i] <= t mod finish_time <= inactive[i]."""
    norm = time % trace["finish_time"]
    return any(a <= norm <= b for a, b in zip(trace["active"], trace["inactive"], strict=True))


def test_the_program_of_the_page_writes_the_dict_of_fedscale(tmp_path: Path, page) -> None:
    """Which is read back as the same sessions."""
    write_sessions(BLOCKS, tmp_path / "s.parquet")
    page["write_fedscale"](tmp_path / "s.parquet", tmp_path / "trace", 1)
    traces = pickle.loads((tmp_path / "trace").read_bytes())
    assert set(traces) == {0, 2, 4}
    assert set(traces[0]) == {"duration", "inactive", "finish_time", "active", "model"}
    assert traces[0]["duration"] == 10.5
    assert [t for t in (0, 1.7, 5, 15, 86_401.7) if is_active(traces[0], t)] == [1.7, 15, 86_401.7]
    again = read_fedscale(tmp_path / "trace")
    assert again.device.tolist() == [0, 0, 1, 2]
    assert again.start.tolist() == [1.5, 10.0, 0.1, 5.0]


def test_fedscale_does_not_stay_at_a_session_that_outlasts_the_period(tmp_path: Path, page) -> None:
    """By FedScale's own rule, which goes on only after `inactive`: the second period is as the first."""
    hour = 3600.0
    block = Sessions(
        0,
        2,
        np.array([0, 0, 1]),
        np.array([1.0, 20.0, 24.0]) * hour,
        np.array([2.0, 30.0, 28.0]) * hour,
    )
    write_sessions([block], tmp_path / "s.parquet")
    page["write_fedscale"](tmp_path / "s.parquet", tmp_path / "trace", 1)
    traces = pickle.loads((tmp_path / "trace").read_bytes())
    assert set(traces) == {0}
    index, found = 0, []
    for time in range(3 * 86_400):
        norm = time % traces[0]["finish_time"]
        if norm > traces[0]["inactive"][index]:
            index += 1
        index %= len(traces[0]["active"])
        found.append(traces[0]["active"][index] <= norm <= traces[0]["inactive"][index])
    assert found[:86_400] == found[86_400:172_800] == found[172_800:]
    assert sum(found[:86_400]) == 3601 + 4 * 3600 - 1


def test_what_fails_leaves_no_file(tmp_path: Path) -> None:
    def blocks():
        yield BLOCKS[0]
        raise InputError("stop")

    with pytest.raises(InputError, match="stop"):
        write_sessions(blocks(), tmp_path / "s.parquet")
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="cannot be written"):
        write_sessions(BLOCKS, tmp_path / "none" / "s.parquet")
    with pytest.raises(InputError, match="sessions are Parquet; rename it"):
        write_sessions(BLOCKS, tmp_path / "s.csv")


def test_sessions_that_touch_are_one() -> None:
    device = np.array([1, 0, 0, 0, 1])
    start = np.array([5.0, 3.0, 0.0, 9.0, 5.5])
    end = np.array([8.0, 4.0, 2.5, 10.0, 6.0])
    joined = joined_sessions(device, start, end)
    assert [tuple(row) for row in zip(*(c.tolist() for c in joined), strict=True)] == [
        (0, 0.0, 4.0),
        (0, 9.0, 10.0),
        (1, 5.0, 8.0),
    ]


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_tasks_of_ray_write_the_same_file(
    small, tmp_path: Path, fedray_command, monkeypatch
) -> None:
    """Which end in any order."""
    monkeypatch.setattr("fedray.clients.sessions.BLOCK_DEVICE_DAYS", 2_000)
    (tmp_path / "s.toml").write_text(small().to_toml())
    said = set()
    for place in ("in-process", "ray"):
        command = ["population", str(tmp_path / "s.toml"), "--devices", "2000", "--days", "9"]
        file = ["--sessions", str(tmp_path / place), "--place", f"backend={place}"]
        code, out, err = fedray_command(*command, *file, "--json")
        assert code == 0, err
        said.add(out.replace(str(tmp_path / place), ""))
    assert len(said) == 1
    assert (tmp_path / "ray").read_bytes() == (tmp_path / "in-process").read_bytes()


def test_blocks_do_not_change_what_is_exported(small, monkeypatch) -> None:
    scenario = small(
        "population.unreachable=0.3",
        "population.joins_per_day=40.0",
        "population.lifetime_days=9.0",
    )
    whole = list(population_sessions(scenario, 300, 5))
    monkeypatch.setattr("fedray.clients.sessions.BLOCK_DEVICE_DAYS", 35)
    parts = list(population_sessions(scenario, 300, 5))
    assert len(whole) == 1
    assert len(parts) == 43
    for column in ("device", "start", "end"):
        together = np.concatenate([getattr(part, column) for part in parts])
        assert np.array_equal(together, getattr(whole[0], column))
    assert 0.2 < 1.0 - np.unique(whole[0].device).size / 300 < 0.6
    with pytest.raises(InputError, match="devices=0 must be from 1"):
        population_sessions(scenario, 0, 5)
    with pytest.raises(InputError, match="days=0 must be at least 1"):
        population_sessions(scenario, 3, 0)


@pytest.mark.parametrize(
    "table",
    [
        'availability={model="habit",night_center_hours=0.0}',
        'availability={model="poisson"}',
        'availability={model="always_on"}',
    ],
)
def test_a_long_time_is_listed_as_a_short_one(small, table: str) -> None:
    """Window by window, what one listing gives; and of times that one listing refuses."""
    from fedray.clients.availability.factory import availability_of
    from fedray.clients.sessions import long_intervals

    availability = availability_of(small(table))
    ids = np.arange(60, dtype=np.uint64)
    opens = np.linspace(0.0, 3e6, 60)
    whole = availability.list_intervals(Listing(ids, opens, 1e5, 1e5 + 30 * 86_400.0))
    parts = long_intervals(availability, Listing(ids, opens, 1e5, 1e5 + 30 * 86_400.0))
    for one, other in zip(whole, parts, strict=True):
        assert np.array_equal(one, other)
    longest = long_intervals(availability, Listing(ids, 0.0 * opens, 0.0, 2000 * 86_400.0))
    assert longest.end_times.max() >= 1990 * 86_400.0


@pytest.mark.slow
def test_what_is_exported_is_replayed_to_the_same_trace(small, tmp_path: Path) -> None:
    """Byte for byte: same devices, those without a session included, same rounds, same digest."""
    from fedray.runs.simulation import simulate
    from fedray.runtime.placement import Placement
    from fedray.scenario import Scenario

    scenario = small("population.unreachable=0.1", "rounds.max_days=6.0")
    file = tmp_path / "s.parquet"
    devices = scenario.population.devices
    write_sessions(population_sessions(scenario, devices, 8), file)
    seen = np.unique(pq.read_table(file).column("device").to_numpy()).size
    assert seen < devices
    tables = scenario.model_dump(mode="json", exclude_none=True)
    tables["availability"] = {
        "model": "replay",
        "file": str(file),
        "recorded_devices": devices,
        "period_days": 10,
    }
    replayed = Scenario.from_tables(tables)
    placement = Placement(1, "in-process")
    first = simulate(scenario, placement, tmp_path / "a")
    second = simulate(replayed, placement, tmp_path / "b")
    assert first.outcome_counts()["accepted"] > 0
    assert second.digest == first.digest


MESSAGES = """2020-01-30 22:00:00\tscreen_off
2020-01-30 22:00:00\twifi
2020-01-30 22:10:00\tbattery_charged_on
2020-01-30 22:10:01\t83.0%
2020-01-30 23:00:00\tscreen_on
2020-01-30 23:05:00\tscreen_off
2020-01-31 06:00:00\t4G
2020-01-31 06:00:00\tscreen_on
2020-01-31 07:00:00\tscreen_lock
2020-01-31 07:00:00\twifi
2020-01-31 08:00:00\tbattery_charged_off
"""


def flash(folder: Path, users: dict) -> Path:
    file = folder / "user_behavior_tiny.json"
    file.write_text(json.dumps(users))
    return file


def test_flash_devices_are_eligible_while_charging_on_wifi_and_idle(tmp_path: Path) -> None:
    never = {"messages": "2020-01-30 01:00:00\tscreen_off\n", "model": "x"}
    still_on = {"messages": MESSAGES.splitlines()[:4]}
    file = flash(tmp_path, {"a": never, "b": {"messages": MESSAGES}, "c": still_on})
    found = read_flash(file)
    assert found.end_device == 3
    hour = 3600.0
    assert found.device.tolist() == [1, 1, 2]
    assert (found.start / hour).tolist() == pytest.approx([22 + 1 / 6, 23 + 1 / 12, 22 + 1 / 6])
    assert (found.end / hour).tolist() == pytest.approx([23, 30, 22 + 1 / 6 + 1 / 3600])
    locked = read_flash(file, "locked")
    assert (locked.start / hour).tolist() == [7.0]
    assert (locked.end / hour).tolist() == [8.0]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[1]", "not an object of users"),
        ("{", "not JSON"),
        ('{"a": {"model": "x"}}', "no text 'messages'"),
        ('{"a": {"messages": "yesterday\\tscreen_off"}}', "has the line"),
        ('{"a": {"messages": "2020-01-30 22:00:00\\tpress"}}', "unknown state 'press'"),
        ('{"a": {"messages": ""}}', "ever charging"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_what_is_no_trace_of_flash_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    file = tmp_path / "f.json"
    file.write_text(content)
    with pytest.raises(InputError, match=problem):
        read_flash(file)
    with pytest.raises(InputError, match="idle='asleep' is none of"):
        read_flash(file, "asleep")


CLIENTS = {
    3834: {
        "duration": 211625,
        "inactive": [65881, 133574],
        "finish_time": 518400,
        "active": [12788, 100044],
        "model": "CPH1801",
    },
    7: {"duration": 0, "inactive": [5, 5], "finish_time": 9, "active": [5, 2], "model": ""},
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_fedscale_clients_are_read_from_pickles_of_every_protocol(
    tmp_path: Path, protocol: int
) -> None:
    (tmp_path / "t").write_bytes(pickle.dumps(CLIENTS, protocol))
    found = read_fedscale(tmp_path / "t")
    assert found.end_device == 2
    assert found.device.tolist() == [0, 1, 1]
    assert found.start.tolist() == [2.0, 12788.0, 100044.0]


def test_ids_that_are_text_come_after_ids_that_are_numbers(tmp_path: Path) -> None:
    clients = {"b": CLIENTS[3834], "10": {"active": (9.5,), "inactive": (11,)}, 10: CLIENTS[7]}
    (tmp_path / "t").write_bytes(pickle.dumps(clients))
    found = read_fedscale(tmp_path / "t")
    assert found.end_device == 3
    assert found.device.tolist() == [0, 1, 2, 2]
    assert found.start.tolist() == [2.0, 9.5, 12788.0, 100044.0]


class Calls:
    """A pickle that runs a command when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self):
        return os.mkdir, (self.mark,)


def hostile(mark: Path) -> dict[str, bytes]:
    path = str(mark).encode()
    shared = {"active": [0] * 20_000, "inactive": [1] * 20_000}
    return {
        **{f"reduce, protocol {p}": pickle.dumps({1: Calls(mark)}, p) for p in range(6)},
        "global": b"cos\nmkdir\n(V" + path + b"\ntR.",
        "inst": b"(V" + path + b"\nios\nmkdir\n.",
        "obj": b"(cos\nmkdir\nV" + path + b"\no.",
        "stack global": b"\x80\x04\x8c\x02os\x8c\x05mkdir\x93\x8c"
        + bytes([len(path)])
        + path
        + b"\x85R.",
        "extension": b"\x80\x02\x82\x01.",
        "persistent": b"Px\n.",
        "binary persistent": b"\x80\x02K\x01Q.",
        "buffer": b"\x80\x05\x97.",
        "build": b"}}b.",
        "state of a list": b"](K\x01db.",
        "newobj": b"\x80\x02K\x01)\x81.",
        "call of a number": b"K\x01)R.",
        "numpy": pickle.dumps({1: np.arange(3)}),
        "set": pickle.dumps({1: {2}}),
        "bytearray": pickle.dumps(bytearray(b"x"), 5),
        "frozenset": pickle.dumps(frozenset([1]), 4),
        "bytes": pickle.dumps({b"a": {}}),
        "unhashable key": b"}]Ns.",
        "list in itself": b"]q\x00h\x00a.",
        "dict in itself": b"}q\x00K\x01h\x00s.",
        "client that is the dict": b"}q\x00(K\x01h\x00X\x06\x00\x00\x00activeh\x00u.",
        "deep lists": b"]" * 3_000_000 + b"a" * 2_999_999 + b".",
        "deep tuples": b")" + b"\x85" * 3_000_000 + b".",
        "deep tuple as a key": b"})" + b"\x85" * 3_000_000 + b"Ns.",
        "deep dicts": b"}" + b"K\x01}" * 1_000_000 + b"s" * 1_000_000 + b".",
        "doubled tuple": b")" + b"q\x00h\x00\x86" * 60 + b".",
        "hash of a doubled tuple": b"})" + b"q\x00h\x00\x86" * 60 + b"Ns.",
        "lists that all clients share": pickle.dumps(dict.fromkeys(range(4000), shared)),
        "memo index": b"Nr\xff\xff\xff\x7f.",
        "text memo index": b"Np" + b"9" * 30 + b"\n.",
        "marks": b"(" * 2_000_000 + b".",
        "frame": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.",
        "bytes of 8 EiB": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fx.",
        "text of 4 GiB": b"X\xff\xff\xff\xffx.",
        "bytearray of 2 TiB": b"\x80\x05\x96\x00\x00\x00\x00\x00\x02\x00\x00x.",
        "number of 5000 digits": b"I" + b"9" * 5000 + b"\n.",
        "long of 2 GiB": b"\x8b\xff\xff\xff\x7f.",
        "client of 80,000 bits": pickle.dumps({1 << 80_000: {}}),
        "client of a line break": pickle.dumps({"a\nb" * 1000: {}}),
        "client of half a character": pickle.dumps({"\ud800": {}}, 0),
        "session that is true": pickle.dumps({1: {"active": [True], "inactive": [2]}}),
    }


SLOW = ("hash of a doubled tuple", "lists that all clients share", "deep lists")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name in hostile(Path("x"))
    ],
)
def test_a_hostile_pickle_is_refused_in_one_line_and_runs_nothing(
    tmp_path: Path, name: str, monkeypatch
) -> None:
    monkeypatch.setattr("fedray.imports.foreign_sessions._PICKLE_SECONDS", 1)
    mark = tmp_path / "mark"
    (tmp_path / "t").write_bytes(hostile(mark)[name])
    with pytest.raises(InputError, match="cannot be read: ") as caught:
        read_fedscale(tmp_path / "t")
    assert "\n" not in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert not mark.exists()


def test_the_first_hostile_pickle_is_one(tmp_path: Path) -> None:
    """Else the test above could not fail."""
    for name in ("reduce, protocol 4", "global", "inst", "obj", "stack global"):
        mark = tmp_path / name.replace(" ", "").replace(",", "")
        pickle.loads(hostile(mark)[name])
        assert mark.is_dir(), name


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x",
        b"\x80\x04",
        b".",
        b"]]a",
        b"(.",
        b"a.",
        b"g1\n.",
        b"]q\x00h\x00a.",
        b"(]]d.",
        b"}]Ns.",
        b"I" + b"9" * 5000 + b"\n.",
        b"\x8b\xff\xff\xff\x7f.",
        pickle.dumps(CLIENTS)[:-20],
    ],
)
def test_damaged_pickles_are_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(InputError, match="cannot be read") as caught:
        read_fedscale(tmp_path / "t")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("read", [read_flash, read_fedscale])
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path, read) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="a pipe, not a regular file"):
        read(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("clients", "problem"),
    [
        ([1], "not a dict of clients"),
        ({}, "not a dict of clients"),
        ({1.5: {}}, "not the ids"),
        ({1: {"active": [1]}}, "no list 'inactive'"),
        ({1: {"active": ["1"], "inactive": [2]}}, "no list 'active'"),
        ({1: {"active": [1], "inactive": [2, 3]}}, "do not end after"),
        ({1: {"active": [3], "inactive": [2]}}, "do not end after"),
        ({1: {"active": [float("nan")], "inactive": [2]}}, "do not end after"),
        ({1: {"active": [1], "inactive": [float("inf")]}}, "do not end after"),
        ({1: {"active": [10**400], "inactive": [2]}}, "no list"),
        ({1: {"active": [], "inactive": []}}, "ever active"),
    ],
)
def test_what_is_no_trace_of_fedscale_is_refused(tmp_path: Path, clients, problem: str) -> None:
    (tmp_path / "t").write_bytes(pickle.dumps(clients))
    with pytest.raises(InputError, match=problem):
        read_fedscale(tmp_path / "t")


def test_the_commands_write_what_they_say(tmp_path: Path, capsys) -> None:
    from fedray.cli import app

    scenario = tmp_path / "s.toml"
    scenario.write_text(
        "[population]\ndevices = 400\n[rounds]\ncount = 2\nreport_goal = 5\n"
        "[training]\nenabled = false\n"
    )
    (tmp_path / "trace").write_bytes(pickle.dumps(CLIENTS))
    file = tmp_path / "out.parquet"
    population = ["population", str(scenario), "--sessions", str(file), "--days", "3"]
    app([*population, "--devices", "50", "--json"], standalone_mode=False)
    document = json.loads(capsys.readouterr().out)
    assert document["devices"] == 400
    written = document["file"]
    assert (written["devices"], written["days"]) == (50, 3)
    assert pq.read_metadata(file).num_rows == written["sessions"] > 20
    app(population, standalone_mode=False)
    shown = capsys.readouterr().out
    replayed_by = 'replayed by availability.model = "replay", recorded_devices = 400'
    assert replayed_by in " ".join(shown.split())
    again = ["population", str(tmp_path / "trace"), "--sessions", str(tmp_path / "f.parquet")]
    app([*again, "--kind", "fedscale"], standalone_mode=False)
    assert "3 of 2 devices in 2 days" in capsys.readouterr().out
    for bad, problem in (
        ([*again, "--kind", "flower"], "none of scenario, flash, flash-locked, fedscale"),
        ([*again, "--kind", "fedscale", "--days", "2"], "--days is for a scenario"),
        ([*again, "--kind", "flash"], "not JSON"),
        ([*population, "--devices", "401"], "must be from 1 to 400"),
    ):
        with pytest.raises(InputError, match=problem):
            app(bad, standalone_mode=False)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("recorded_devices=2", "has device 4; raise recorded_devices"),
        ("recorded_devices=0", "greater than or equal to 1"),
    ],
)
def test_recorded_devices_must_hold_the_file(tmp_path: Path, small, keys, problem: str) -> None:
    write_sessions(BLOCKS, tmp_path / "s.parquet")
    with pytest.raises(InputError, match=problem):
        small(f'availability={{model="replay",file="{tmp_path}/s.parquet",{keys}}}')
    pq.write_table(pa.table({"device": ["a"], "start": [1], "end": [2]}), tmp_path / "n.parquet")
    with pytest.raises(InputError, match="does not number its devices 0, 1, 2"):
        small(f'availability={{model="replay",file="{tmp_path}/n.parquet",recorded_devices=3}}')
