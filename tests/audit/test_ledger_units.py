"""Units of a ledger: however logs spell the ids of a device or person, its charges are summed as those of one."""

import datetime
import math
import os
import random
import unicodedata
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedray.audit.audit import Audit
from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim
from fedray.audit.ledger import Ledger
from fedray.base.errors import InputError
from fedray.imports.importer import import_log
from fedray.mechanisms.registry import Identity, Tree
from fedray.trace.partial import Lock

OCTOBER = datetime.date(2026, 10, 1)
ROUNDS = 12
NOISE = 4.0
"""z, so that each participation costs rho 1 / (2 z^2) without correlated noise."""
ONE = 1 / (2 * NOISE**2)
SEEDS = range(200 if "FEDRAY_ALL_SEEDS" in os.environ else 6)


def audit_of(folder: Path, rows: list[tuple[str, ...]], **options: Any) -> Audit:
    """The audit of a log of (device, owner, round); round i is i weeks after the first of October."""
    days = [OCTOBER + datetime.timedelta(weeks=int(number)) for *_, number in rows]
    devices, owners, rounds = (list(each) for each in zip(*rows, strict=True))
    columns = {
        "device": pa.array(devices).cast(options.pop("type", pa.string())),
        "owner": owners,
        "round": [int(each) for each in rounds],
        "time": [f"{each}T12:00:00Z" for each in days],
    }
    folder.mkdir()
    pq.write_table(pa.table(columns), folder / "log.parquet")
    claim = Claim(mechanism=options.pop("mechanism", Identity()), noise_multiplier=NOISE)
    roles = {"time_column": "time", "owner_column": "owner"}
    log = (folder / "log.parquet", "device", "round", None, folder / "trace")
    trace = import_log(*log, renumber=True, **roles, **options)
    return audit_trace(trace, claim=claim)


ENDINGS = ("Stra\u00dfe", "r\u00fae", "\u0414\u043e\u043c")


def ids_of(draw: random.Random, count: int) -> list[str]:
    """Ids of one kind, as systems make them; no two are spellings of one id."""
    made = {
        "uuid": lambda i: str(uuid.UUID(int=draw.getrandbits(128), version=4)),
        "words": lambda i: f"caf\u00e9-{'abcdefghij'[i]}-{draw.choice(ENDINGS)}",
        "mac": lambda i: ":".join(f"{draw.randrange(256):02x}" for _ in range(5)) + f":{i:02x}",
        "parts": lambda i: f"{i}-{draw.randrange(1, 100)}",
        "hashed": lambda i: f"{draw.getrandbits(64):016x}"[:15] + "abcdefghij"[i],
    }
    make = made[draw.choice(sorted(made))]
    return [make(i) for i in range(count)]


def spelled(draw: random.Random, text: str) -> str:
    """Another spelling of an id."""
    is_uuid = len(text) == 36 and text.count("-") == 4
    text = draw.choice([str, str.upper, str.lower, str.title])(text)
    if is_uuid and draw.random() < 0.5:
        text = text.replace("-", "")
    elif ":" in text:
        text = draw.choice([text, text.replace(":", "-"), text.replace(":", "")])
    else:
        text = text.replace("-", draw.choice("-_. "))
    text = unicodedata.normalize(draw.choice(["NFC", "NFD", "NFKD"]), text)
    if draw.random() < 0.3:
        wide = {chr(each): chr(each + 0xFEE0) for each in range(0x30, 0x7B) if chr(each).isalnum()}
        text = "".join(wide.get(each, each) for each in text)
    elif is_uuid and draw.random() < 0.3:
        text = f"urn:uuid:{text}"
    wraps = ["{}", "'{}'", '"{}"', "{{{}}}", " {} "]
    return draw.choice(wraps).format(text)


def spelled_part(
    draw: random.Random, rows: list[tuple[str, str, int]]
) -> tuple[list[tuple[str, ...]], dict[str, Any]]:
    """A part of a log with spellings of its own, and the options of its import."""
    way = draw.choice(["one each", "several, joined", "as they are, distinct", "one each, joined"])
    if way == "as they are, distinct":
        return [(d, o, str(r)) for d, o, r in rows], {"join_ids": False}
    of_one = {name: spelled(draw, name) for row in rows for name in row[:2]}
    if way == "several, joined":
        found = [(spelled(draw, d), spelled(draw, o), str(r)) for d, o, r in rows]
        return found, {"join_ids": True}
    options = {} if way == "one each" else {"join_ids": True}
    return [(of_one[d], of_one[o], str(r)) for d, o, r in rows], options


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("unit", ["device", "person"])
def test_parts_of_a_log_with_spellings_of_their_own_are_charged_as_the_whole(
    tmp_path: Path, seed: int, unit: str
) -> None:
    draw = random.Random(seed)
    count = draw.randint(3, 8)
    devices, people = ids_of(draw, count), ids_of(draw, 3)
    owners = {device: people[i % 3] for i, device in enumerate(devices)}
    # No two devices of a person in one round: their sum is not that of two parts.
    taken: set[tuple[str, int]] = set()
    rows: list[tuple[str, str, int]] = []
    for _ in range(draw.randint(12, 30)):
        device, number = draw.choice(devices), draw.randrange(ROUNDS)
        if (owners[device], number) not in taken:
            taken.add((owners[device], number))
            rows.append((device, owners[device], number))
    whole = audit_of(tmp_path / "whole", [(d, o, str(r)) for d, o, r in rows])
    expected = Ledger.create(tmp_path / "one", 2.0, 1e-6, "month", unit).charge([whole])
    parts: list[list[tuple[str, str, int]]] = [[] for _ in range(draw.randint(2, 5))]
    for each in rows:
        draw.choice(parts).append(each)
    audits = []
    for number, part in enumerate(each for each in parts if each):
        found, options = spelled_part(draw, part)
        audits.append(audit_of(tmp_path / f"part-{number}", found, **options))
    draw.shuffle(audits)
    ledger = Ledger.create(tmp_path / "parts", 2.0, 1e-6, "month", unit)
    for number, audit in enumerate(audits):
        ledger = ledger.charge([audit], release=f"part-{number}")
    assert [each.window for each in ledger.windows] == [each.window for each in expected.windows]
    for found, right in zip(ledger.windows, expected.windows, strict=True):
        assert found.units == right.units
        assert found.recorded == pytest.approx(right.recorded, rel=1e-12)
        assert found.epsilon == pytest.approx(right.epsilon, rel=1e-12)
        assert found.is_within == right.is_within


def rows_of(*ids: str) -> list[tuple[str, ...]]:
    """A row for each id, in the round of its place."""
    return [(each, "one", str(number)) for number, each in enumerate(ids)]


def test_two_logs_that_each_join_their_spellings_are_of_one_device(tmp_path: Path) -> None:
    logs = [("abc", "q1", "q2", "ABC"), ("abc", "q1", "q2", "Abc")]
    ledger = Ledger.create(tmp_path / "ledger", 2.0, 1e-6, "quarter")
    for number, ids in enumerate(logs):
        audit = audit_of(tmp_path / str(number), rows_of(*ids), join_ids=True)
        ledger = ledger.charge([audit], release=f"r{number}")
    (window,) = ledger.windows
    assert (window.units, window.respelled) == (3, 1)
    assert window.recorded == pytest.approx(4 * ONE)
    assert window.epsilon == pytest.approx(2.2541, abs=1e-4)
    assert not window.is_within
    assert "Respelled: units whose charges" in str(ledger.tables()[0])
    assert ledger.to_json()["windows"][0]["respelled"] == 1


def test_names_of_logs_of_distinct_ids_are_apart_and_those_of_others_may_be_any_of_them(
    tmp_path: Path,
) -> None:
    """abc and ABC took part once and twice, and abc or ABC in a log that does not distinguish them."""
    ledger = Ledger.create(tmp_path / "ledger", 20.0, 1e-6, "quarter")
    distinct = audit_of(tmp_path / "distinct", rows_of("abc", "ABC", "ABC"), join_ids=False)
    ledger = ledger.charge([distinct], release="distinct")
    assert (ledger.windows[0].units, ledger.windows[0].respelled) == (2, 0)
    assert ledger.windows[0].recorded == pytest.approx(2 * ONE)
    again = audit_of(tmp_path / "again", rows_of("Abc", "abc", "ABC"), join_ids=False)
    ledger = ledger.charge([again], release="again")
    assert (ledger.windows[0].units, ledger.windows[0].respelled) == (3, 0)
    assert ledger.windows[0].recorded == pytest.approx(3 * ONE)
    other = audit_of(tmp_path / "other", rows_of("aBc"))
    ledger = ledger.charge([other], release="other")
    assert (ledger.windows[0].units, ledger.windows[0].respelled) == (3, 1)
    assert ledger.windows[0].recorded == pytest.approx(4 * ONE)


@pytest.mark.parametrize("ways", [(True, False), (False, True)])
def test_a_log_is_recognised_however_its_ids_are_written_and_settled(tmp_path: Path, ways) -> None:
    """A version of a release, of which a unit spent the largest rho; never a second release."""
    ids = ("x", "X", "y", "x", "z")
    ledger = Ledger.create(tmp_path / "ledger", 50.0, 1e-6, "quarter")
    versions = [
        audit_of(tmp_path / str(way), rows_of(*ids), join_ids=way, mechanism=Tree()) for way in ways
    ]
    respelled = rows_of("'X'", "x ", "\uff39", "X", "(z)")
    versions.append(audit_of(tmp_path / "spelled", respelled, join_ids=True, mechanism=Tree()))
    alone = []
    for number, audit in enumerate(versions):
        of_one = Ledger.create(tmp_path / f"of-{number}", 50.0, 1e-6, "quarter").charge([audit])
        alone.append(of_one.windows[0].recorded)
        name = ledger.entries[1]["name"] if number else ""
        if number:
            with pytest.raises(InputError, match=f"release={name}. makes this a correction"):
                ledger.charge([audit])
        ledger = ledger.charge([audit], release=name)
        assert ledger.charge([audit], release=name).entries == ledger.entries
    (window,) = ledger.windows
    assert len({round(each, 9) for each in alone}) == 2
    assert window.recorded == max(alone)
    # A version says that x and X are one device, so they are one unit.
    assert window.units == 3


def test_repeats_that_count_are_another_version(tmp_path: Path) -> None:
    """x took part in round 0 twice."""
    rows = [("x", "a", "0"), ("X", "a", "0"), ("y", "b", "1")]
    once, each = (
        audit_of(tmp_path / way, rows, repeats=way, join_ids=True) for way in ("once", "each")
    )
    ledger = Ledger.create(tmp_path / "ledger", 50.0, 1e-6, "quarter").charge([once])
    with pytest.raises(InputError, match=f"release={ledger.entries[1]['name']}. makes this a"):
        ledger.charge([each])
    larger = ledger.charge([each], release=ledger.entries[1]["name"]).windows[0]
    assert larger.recorded == pytest.approx(4 * ledger.windows[0].recorded)


def test_integers_and_texts_of_one_device_are_summed(tmp_path: Path) -> None:
    """One export has numbers and another has text, as soon as one id of it is no number."""
    ledger = Ledger.create(tmp_path / "ledger", 50.0, 1e-6, "quarter")
    logs = [
        (pa.int64(), "-17", "5"),
        (pa.string(), "-17", "5", "x9"),
        (pa.string(), "005", "-17.0"),
    ]
    for number, (kind, *ids) in enumerate(logs):
        audit = audit_of(tmp_path / str(number), rows_of(*ids), type=kind)
        ledger = ledger.charge([audit], release=f"r{number}")
    (window,) = ledger.windows
    assert window.units == 3
    assert window.recorded == pytest.approx(3 * ONE)
    assert window.epsilon < math.inf


def test_a_lock_that_the_file_system_does_not_have_is_named(tmp_path: Path, monkeypatch) -> None:
    ledger = Ledger.create(tmp_path / "ledger", 50.0, 1e-6, "quarter")

    def lacking(*_: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", lacking)
    for call in (lambda: ledger.cancel(2), lambda: Lock(tmp_path)):
        with pytest.raises(InputError, match=r"cannot be locked \(Operation not supported\), so"):
            call()


def audited(folder: Path, name: str, text: str, **options: Any) -> Audit:
    """The audit of a log of four rounds in October 2026, as text."""
    (folder / f"{name}.csv").write_text(text)
    options = {"device_column": "device", "time_column": "time", **options}
    device = options.pop("device_column")
    log = (folder / f"{name}.csv", device, "round", None, folder / name)
    trace = import_log(*log, renumber=True, **options)
    return audit_trace(trace, claim=Claim(mechanism=Identity(), noise_multiplier=NOISE))


ROWS = "".join(
    f"{each},{each}-site,{number},2026-10-0{number + 1}T12:00:00Z\n"
    for number, each in enumerate("abaa")
)
HEADER = "device,site,round,time\n"


def test_a_device_in_a_period_is_no_unit_of_a_ledger(tmp_path: Path) -> None:
    """The ledger would have a unit for each day of a device, and so understate what it spent."""
    audit = audited(tmp_path, "days", HEADER + ROWS, device_column=["device", "time:day"])
    ledger = Ledger.create(tmp_path / "ledger", 9.0, 1e-6, "quarter")
    with pytest.raises(InputError, match="devices in a period as units"):
        ledger.charge([audit])
    whole = ledger.charge([audited(tmp_path, "whole", HEADER + ROWS)])
    assert whole.windows[0].recorded == pytest.approx(3 * ONE)


@pytest.mark.parametrize("first", [0, 1])
def test_logs_that_name_a_device_by_other_columns_are_not_added_up(
    tmp_path: Path, first: int
) -> None:
    logs = [
        audited(tmp_path, "one", HEADER + ROWS),
        audited(tmp_path, "two", HEADER + ROWS, device_column=["device", "site"]),
    ]
    ledger = Ledger.create(tmp_path / "ledger", 9.0, 1e-6, "quarter").charge([logs[first]])
    with pytest.raises(InputError, match=r"names a device by \d columns?, but line 2"):
        ledger.charge([logs[1 - first]], release="other")
    assert len(Ledger.open(ledger.path).entries) == 2


def test_an_answer_about_devices_is_none_about_owners(tmp_path: Path) -> None:
    """Bob and bob, each in a log whose devices were asked about, are one person."""
    header = "device,owner,round,time\n"
    ledger = Ledger.create(tmp_path / "ledger", 9.0, 1e-6, "quarter", "person")
    for place, name in enumerate(("Bob", "bob")):
        at = f"2026-10-{7 * place + 1:02}T12:00:00Z"
        rows = f"x{place},{name},0,{at}\nX{place},{name}-2,1,{at}\n"
        options = {"owner_column": "owner", "join_ids": False}
        audit = audited(tmp_path, name, header + rows, **options)
        assert audit.trace.run["distinct_ids"] == ["device"]
        ledger = ledger.charge([audit])
    (window,) = ledger.windows
    assert (window.units, window.respelled) == (2, 2)
    assert window.recorded == pytest.approx(2 * ONE)
