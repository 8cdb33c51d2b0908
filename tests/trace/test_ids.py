"""Ids that differ only in writing are settled by the import; ids that mean none name no device."""

import csv
import json
import os
import random
import unicodedata
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim
from fedray.audit.findings import Verdict
from fedray.audit.privacy_statement import privacy_statement
from fedray.base.errors import InputError
from fedray.imports.importer import import_log
from fedray.imports.inspected import inspect_log
from fedray.mechanisms.registry import Tree
from fedray.trace.ids import are_missing, combined, key_of, keys_of, means_no_id, parts_of

CAFE = "caf\u00e9"
UUID = "6f9619ff-8b86-d011-b42d-00cf4fc964ff"
# Digits stand on both sides of its hyphens.
OF_DIGITS = "3f2504e0-4f89-11d3-9a06-0305e82c3301"
ALIKE = {
    "case": ("AB-12", "ab-12", "ab_12", "AB12"),
    "sharp s": ("STRASSE", "stra\u00dfe"),
    "dotless i": ("ID1", "\u0131d1", "\u0130d1"),
    "full width": ("ab1", "\uff41\uff42\uff11"),
    "digits of Arabic": ("u42", "u\u0664\u0662"),
    "spaces": ("x", " x\u00a0"),
    "a mark of the order of bytes": ("x", "\ufeffx"),
    "quotes": ("x", "'x'", '="x"', "b'x'"),
    "UUID": (UUID, f"{{{UUID.upper()}}}", UUID.replace("-", ""), f"urn:uuid:{UUID}", f"%7B{UUID}%7D"),
    "MAC address": ("00:1A:2b:3c:4d:5e", "00-1a-2b-3c-4d-5e", "001a.2b3c.4d5e", "001a2b3c4d5e"),
    "hexadecimal": ("0xAB", "ab"),
    "Unicode form": (CAFE, unicodedata.normalize("NFD", CAFE)),
    "zeros": ("007", "7", "7.0", "+7"),
    "a mark between digits": ("1-23", "1.23", "1 23"),
    "UUID after uuid:": (UUID, f"uuid:{UUID}", f"uuid:{UUID.replace('-', '')}"),
    **{f"UUID in {each}": (each.format(OF_DIGITS), each.format(OF_DIGITS.replace("-", "")), each.format(OF_DIGITS.upper()))
       for each in ("user_{}", "ios-{}", "device/{}", "{}@ios", "{}-1", "1-{}")},
    "MAC address in halves": ("001b44-113ab7", "001b44113ab7", "00:1b:44:11:3a:b7"),
    "EUI-64": ("02-1b-44-ff-fe-11-3a-b7", "021b44fffe113ab7", "021b:44ff:fe11:3ab7"),
    "bytes": ("deadbeef", "\\xDEADBEEF", "x'DEADBEEF'", "0xDEADBEEF"),
}  # fmt: skip
DISTINCT = (
    "a",
    "b-1",
    "10",
    "1",
    "0",
    "\u00e9",
    "e",
    "1-23",
    "12-3",
    "123",
    "\U0001f600",
    "\U0001f601",
    "nancy",
    "null-7",
    "n",
    "x",
    "\U00031350",
)
MISSING = ("nan", "None", "NULL", "N/A", "(null)", "undefined", "unknown", "  ", "-", "?", "\u2014",
           "00000000-0000-0000-0000-000000000000", "{" + 32 * "0" + "}",
           "\\N", "b''", "urn:uuid:", "0x", "b'\\x00'", "b'NULL'", "NaT", "__HIVE_DEFAULT_PARTITION__", "empty", "not set",
           "00:00:00:00:00:00", "desconocido", "Unbekannt", "inconnu", "sconosciuto", "desconhecido",
           "\u041d\u0435\u0438\u0437\u0432\u0435\u0441\u0442\u043d\u043e", "\u672a\u77e5", "\u4e0d\u660e",
           "\uc54c \uc218 \uc5c6\uc74c")  # fmt: skip
CLAIM = Claim(mechanism=Tree(), noise_multiplier=4.0, min_sep=2, max_participations=9)


def written(file: Path, rows: list[tuple[object, ...]], header: str = "device,round") -> Path:
    """A CSV file of rows."""
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows([header.split(","), *rows])
    return file


@pytest.mark.parametrize("kind", ALIKE)
def test_spellings_of_one_id_have_one_key(kind: str) -> None:
    assert len({key_of(each) for each in ALIKE[kind]}) == 1


def test_distinct_ids_have_keys_of_their_own() -> None:
    assert len({key_of(each) for each in DISTINCT}) == len(DISTINCT)
    assert not any(map(means_no_id, DISTINCT))


def test_ids_that_mean_none_are_known_in_every_writing() -> None:
    assert all(map(means_no_id, MISSING))


def drawn_id(drawn: random.Random) -> str:
    """An id of letters, marks, wrappers and hexadecimal digits in any order."""
    pieces = [*"abxnrABX0019-_:.|{}()'\"=% #\\", "urn:uuid:", "0x", ".0", "b'", "\ufeff", "\u00a0", "e\u0301", "\u00df", "uuid:", "uid:", "\\N", "\\x", "x'", "\\x00", UUID.replace("-", "_"), UUID.replace("-", ""),
              "-8b86-d011-b42d-00cf4fc964ff", "001b44-113ab7", "02-1b-44-ff-fe-11-3a-b7", "0" * 12, "\U00031350", "\u0130", "\u0663", "\uff11", "%7B", "%ff", "\U0001f600", "\ufe0f", "null", UUID, OF_DIGITS]  # fmt: skip
    if drawn.random() < 0.3:
        digits = "".join(
            drawn.choice("0123456789abcdefABCDEF")
            for _ in range(drawn.choice((11, 12, 16, 31, 32)))
        )
        size, mark = drawn.choice((2, 4, 6, 8)), drawn.choice("-:. ")
        groups = mark.join(digits[each : each + size] for each in range(0, len(digits), size))
        return drawn.choice((digits, groups, "{" + groups + "}"))
    return "".join(drawn.choice(pieces) for _ in range(drawn.randrange(12)))


def test_keys_of_columns_equal_the_definition() -> None:
    drawn = random.Random(7)
    texts = [drawn_id(drawn) for _ in range(4000)]
    ids = pa.array(texts)
    keys = [key_of(each) for each in texts]
    assert keys_of(ids).to_pylist() == keys
    assert keys_of(ids.slice(3, 9)).to_pylist() == keys[3:12]
    assert (
        keys_of(pa.chunked_array([ids.slice(9), ids.slice(0, 9)])).to_pylist()
        == keys[9:] + keys[:9]
    )
    kept = {"null", texts[5]}
    expected = [means_no_id(each) and each not in kept for each in texts]
    assert are_missing(ids, keys_of(ids), False, kept).tolist() == expected
    assert any(expected)
    numbers = pa.array([7, 2**64 - 1], pa.uint64())
    assert keys_of(numbers).equals(numbers)


def test_ids_of_several_columns_are_keyed_column_by_column() -> None:
    drawn = random.Random(8)
    for has_escapes in (True, False):
        texts = [(drawn_id(drawn), drawn_id(drawn), "7") for _ in range(1000)]
        if not has_escapes:
            texts = [
                tuple(each.replace("|", "").replace("\\", "") for each in row) for row in texts
            ]
        ids = combined([pa.array(column) for column in zip(*texts, strict=True)])
        assert [tuple(parts_of(each)) for each in ids.to_pylist()] == texts
        keyed = combined([keys_of(pa.array(column)) for column in zip(*texts, strict=True)])
        assert keys_of(ids, is_combined=True).equals(keyed)
        expected = [any(map(means_no_id, row)) for row in texts]
        assert are_missing(ids, keyed, True, ()).tolist() == expected
        assert True in expected
        assert False in expected


def test_null_words_and_integers_keep_devices_apart(tmp_path: Path) -> None:
    """The NULL of MySQL is no device N, and 7 of a column of integers is not -7."""
    log = written(tmp_path / "log.csv", [("\\N", 0), ("N", 1)])
    trace = import_log(log, "device", "round", None, tmp_path / "t", renumber=True, join_ids=True, leave_out_invalid=True)  # fmt: skip
    assert (trace.run["devices"], trace.run["joined_ids"]) == (1, 1)
    table = pa.table({"device": ["ab", "AB", "x", "x"], "n": [5, 5, -7, 7], "round": range(4)})
    pq.write_table(table, tmp_path / "log.parquet")
    trace = import_log(tmp_path / "log.parquet", ["device", "n"], "round", 4, tmp_path / "u", join_ids=True)  # fmt: skip
    assert [trace.name_of(each) for each in range(3)] == ["AB|5", "x|-7", "x|7"]


@pytest.mark.parametrize("other", [b"", b"\xff\x01", b"a\x00"])
def test_text_in_a_column_of_bytes_names_the_devices_that_it_names_as_text(
    tmp_path: Path, other: bytes
) -> None:
    ids = [b"NULL", b" ", b"abc", b"ABC", b"abc\t", UUID.encode(), UUID.replace("-", "").encode()]
    ids += [other] * bool(other)
    (tmp_path / "log").mkdir()
    for number, kind in enumerate((pa.binary(), pa.large_binary())):
        part = ids[:3] if number == 0 else ids[3:]
        rounds = range(3) if number == 0 else range(3, len(ids))
        table = pa.table({"device": pa.array(part, kind), "round": rounds, "owner": part})
        pq.write_table(table, tmp_path / "log" / f"{number}.parquet")
    options = {"renumber": True, "owner_column": "owner"}
    log = tmp_path / "log", "device", "round", None
    if other:
        # Bytes have one writing.
        assert import_log(*log, tmp_path / "t", **options).run["devices"] == len(ids)
        return
    with pytest.raises(InputError, match=r"5 ids of devices .* within 2 groups .*'ABC' and 'abc"):
        import_log(*log, tmp_path / "t", **options)
    assert len(inspect_log(log[0], {}).problems) == 3
    trace = import_log(*log, tmp_path / "t", **options, join_ids=True, leave_out_invalid=True)
    assert [trace.name_of(each) for each in range(2)] == [UUID, "ABC"]
    assert {each.rows for each in trace.left_out} == {2}


def test_joined_ids_are_those_of_rows_that_count(tmp_path: Path) -> None:
    rows = [("ab", 1, "o1"), ("AB", 2, "o1"), ("zz", 3, "NULL")]
    log = written(tmp_path / "log.csv", rows, "device,round,owner")
    trace = import_log(log, "device", "round", None, tmp_path / "t", renumber=True, owner_column="owner", join_ids=True, leave_out_invalid=True)  # fmt: skip
    assert (trace.run["joined_ids"], trace.run["devices"]) == (2, 1)


@pytest.mark.parametrize("role", ["device", "owner"])
def test_an_import_asks_once_about_ids_that_share_a_key(tmp_path: Path, role: str) -> None:
    ids = (*ALIKE["UUID"], *ALIKE["case"], "zebra")
    other = {"device": "owner", "owner": "device"}[role]
    rows = [(each, f"p{place * (role == 'owner')}", place) for place, each in enumerate(ids)]
    log = written(tmp_path / "log.csv", rows, f"{role},{other},round")
    question = (
        rf"9 ids of {role}s differ only in writing within 2 groups \(such as .*'AB-12' and 'ab_12'.*\): is each group "
        r"one device, or are they distinct\? Answer `join_ids=True` for one, or `join_ids=False`"
    )
    options = ("device", "round", len(ids))
    with pytest.raises(InputError, match=question) as refused:
        import_log(log, *options, tmp_path / "t", owner_column="owner")
    assert "zebra" not in str(refused.value)
    assert [each.name for each in tmp_path.iterdir()] == ["log.csv"]
    (problem,) = inspect_log(log, {}).problems
    assert f"9 ids of {role}s differ only in writing within 2 groups" in problem
    for join, distinct in ((True, 3), (False, len(ids))):
        found = inspect_log(log, {}, join_ids=join)
        assert found.is_importable
        assert ("--join-ids" if join else "--no-join-ids") in found.command
        trace = import_log(
            log, *options, tmp_path / f"t{join}", owner_column="owner", join_ids=join
        )
        count = (
            trace.run["devices"] if role == "device" else len({*trace.owner_names(range(len(ids)))})
        )
        assert count == distinct
        assert trace.run["joined_ids"] == (len(ids) if join else 0)


def test_an_import_without_alike_ids_does_not_ask(tmp_path: Path) -> None:
    log = written(tmp_path / "log.csv", [(each, place) for place, each in enumerate(DISTINCT)])
    trace = import_log(log, "device", "round", len(DISTINCT), tmp_path / "t")
    assert "joined_ids" not in trace.run
    assert trace.run["devices"] == len(DISTINCT)


@pytest.mark.parametrize("columns", [("device",), ("device", "month")])
def test_rows_whose_id_means_none_are_no_participations(
    tmp_path: Path, columns: tuple[str, ...]
) -> None:
    ids = (*MISSING, "nancy")
    rows = [(each, f"m{place}", place) for place, each in enumerate(ids)]
    log = written(tmp_path / "log.csv", rows, "device,month,round")
    options = (list(columns), "round", len(ids))
    said = f"{len(MISSING)} rows whose device means no id"
    with pytest.raises(InputError, match=said):
        import_log(log, *options, tmp_path / "t")
    assert [each.name for each in tmp_path.iterdir()] == ["log.csv"]
    (problem,) = inspect_log(log, {"device": list(columns)}).problems
    assert said in problem
    assert "--keep-id" in problem
    (tmp_path / "all.txt").write_text("\n".join(map(str, range(len(ids)))))
    of_list = (list(columns), "round", None, tmp_path / "left")
    trace = import_log(log, *of_list, rounds_file=tmp_path / "all.txt", leave_out_invalid=True)
    assert trace.run["devices"] == 1
    assert said in trace.incompleteness
    assert not audit_trace(trace, claim=CLAIM).claim_holds
    # A device may be called so.
    trace = import_log(log, *options, tmp_path / "kept", keep_ids=MISSING, join_ids=False)
    assert trace.run["devices"] == len(ids)
    assert inspect_log(
        log, {"device": list(columns)}, keep_ids=MISSING, join_ids=False
    ).is_importable


@pytest.mark.parametrize("repeats", ["once", "each"])
def test_joined_ids_have_the_figures_of_a_log_with_one_spelling(
    tmp_path: Path, repeats: str
) -> None:
    drawn = random.Random(5)
    rows = [(f"D{drawn.randrange(9)}", number) for number in range(12) for _ in range(4)]
    spelled = (str.lower, " {} ".format, "'{}'".format, str)
    options = ("device", "round", 12), {"repeats": repeats}
    clean = import_log(
        written(tmp_path / "clean.csv", rows), *options[0], tmp_path / "clean", **options[1]
    )
    dirty = written(tmp_path / "dirty.csv", [(drawn.choice(spelled)(name), i) for name, i in rows])
    joined = import_log(dirty, *options[0], tmp_path / "joined", join_ids=True, **options[1])
    distinct = import_log(dirty, *options[0], tmp_path / "distinct", join_ids=False, **options[1])
    one, other = audit_trace(clean, claim=CLAIM), audit_trace(joined, claim=CLAIM)
    assert (other.devices, other.min_sep, other.max_participations) == (
        9,
        one.min_sep,
        one.max_participations,
    )
    assert other.supported_epsilon == one.supported_epsilon
    assert other.claim_holds is one.claim_holds
    taken = f"Ids that differ only in writing were taken as one device: {joined.run['joined_ids']} ids, 9 devices."
    says = privacy_statement(other).to_markdown() if repeats == "once" else other.verdict
    assert all(
        taken in text for text in (other.verdict, json.dumps(other.to_json()), says, other.page())
    )
    assert any("once ids that differ in writing are joined." in each for each in other.assumptions)
    assert taken not in one.verdict
    apart = audit_trace(distinct, claim=CLAIM)
    assert f"distinct devices: {apart.devices} ids, {apart.devices} devices." in apart.verdict
    assert apart.to_json()["joined_ids"] == 0
    assert "joined_ids" not in one.to_json()


def test_a_timer_is_checked_between_spellings_that_the_import_joined(tmp_path: Path) -> None:
    at = "2026-03-0{}T12:00:00Z".format
    rows = [("a", 0, at(1)), ("A", 1, at(2)), ("b", 1, at(2))]
    log = written(tmp_path / "log.csv", rows, "device,round,time")
    claim = Claim(mechanism=Tree(), noise_multiplier=4.0, timer_hours=48.0, epsilon=9.0)
    verdicts = []
    for join in (True, False):
        trace = import_log(
            log, "device", "round", 2, tmp_path / f"t{join}", time_column="time", join_ids=join
        )
        found = {each.statement: each.verdict for each in audit_trace(trace, claim=claim).findings}
        verdicts.append(found["timer_hours"])
    assert verdicts == [Verdict.BROKEN, Verdict.HOLDS]


def test_a_uuid_with_and_without_hyphens_is_asked_about(
    tmp_path: Path, fedray_command: Callable
) -> None:
    """20 devices that come every 10 rounds, under two spellings in turn."""
    names = [uuid.UUID(f"3f2504e0-4f89-11d3-9a0c-0305e82c33{each:02d}") for each in range(20)]
    pairs = [(each, number) for each in range(20) for number in range(each % 10, 40, 10)]
    rows = [
        ((names[each].hex, str(names[each]))[number // 10 % 2], number) for each, number in pairs
    ]
    log = str(written(tmp_path / "log.csv", rows))
    (tmp_path / "claim.toml").write_text(
        'mechanism = {kind="blt", theta=[0.95, 0.7], omega=[0.1, 0.2]}\nnoise_multiplier = 6.0\nrounds = 40\n'
        "min_sep = 20\nmax_participations = 2\ndelta = 1e-8\n"
    )
    words = (
        "import",
        log,
        "--column",
        "device=device",
        "--column",
        "round=round",
        "--rounds",
        "40",
        "--out",
    )
    code, _, stderr = fedray_command(*words, str(tmp_path / "t"))
    assert code == 2
    assert "`--join-ids` for one, or `--no-join-ids` for distinct ones" in stderr
    assert fedray_command(*words, str(tmp_path / "t"), "--join-ids")[0] == 0
    code, out, _ = fedray_command(
        "audit", str(tmp_path / "t"), "--claim", str(tmp_path / "claim.toml"), "--json"
    )
    found = json.loads(out)
    assert (code, found["claim_holds"], found["min_sep"], found["max_participations"]) == (
        1,
        False,
        10,
        4,
    )
    assert found["supported_epsilon"] == pytest.approx(2.2801, abs=1e-4)


def test_owners_that_differ_only_in_writing_are_asked_about_before_they_contradict(
    tmp_path: Path,
) -> None:
    log = written(tmp_path / "log.csv", [("d", "Ann", 0), ("d", "ann", 1)], "device,owner,round")
    with pytest.raises(InputError, match="join_ids=True"):
        import_log(log, "device", "round", 2, tmp_path / "t", owner_column="owner")
    trace = import_log(
        log, "device", "round", 2, tmp_path / "t", owner_column="owner", join_ids=True
    )
    assert trace.owner_names([0]) == ["Ann"]
    with pytest.raises(InputError, match="owners 'Ann' and 'ann'"):
        import_log(log, "device", "round", 2, tmp_path / "u", owner_column="owner", join_ids=False)


def test_devices_of_rows_that_were_left_out_are_named_on_request(tmp_path: Path) -> None:
    rows = [("zoe", 0), ("bob", 0), ("bob", 0), ("zoe", "")]
    log, options = (
        written(tmp_path / "log.csv", rows),
        {"leave_out_invalid": True, "repeats": "each"},
    )
    trace = import_log(log, "device", "round", 1, tmp_path / "t", **options)
    hidden, shown = (audit_trace(trace, show_devices=each) for each in (False, True))
    text = json.dumps(shown.to_json())
    assert "device zoe, round" in shown.left_out[0].example
    assert "device bob, round 0" in text
    assert "device #" not in text
    assert not any(name in json.dumps(hidden.to_json()) for name in ("zoe", "bob"))


@pytest.mark.parametrize("seed", range(200 if os.environ.get("FEDRAY_ALL_SEEDS") else 8))
def test_any_spelling_of_a_log_has_the_figures_of_the_log(tmp_path: Path, seed: int) -> None:
    drawn = random.Random(seed)
    ways = (
        str,
        str.upper,
        "{{{}}}".format,
        " {}".format,
        "urn:uuid:{}".format,
        lambda each: each.replace("-", ""),
    )
    names = [str(uuid.UUID(int=drawn.getrandbits(128))) for _ in range(6)]
    rows = sorted(
        {(drawn.choice(names), drawn.randrange(8)) for _ in range(14)}
        | {("x", each) for each in range(8)}
    )
    clean = import_log(
        written(tmp_path / "clean.csv", rows), "device", "round", 8, tmp_path / "clean"
    )
    spelled = [(drawn.choice(ways)(name), number) for name, number in rows]
    log = written(tmp_path / "log.csv", spelled)
    trace = import_log(log, "device", "round", 8, tmp_path / "t", join_ids=True)
    found = [[part.rounds.tolist() for part in each.accepted()] for each in (clean, trace)]
    figures = [
        (each.min_sep, each.max_participations, each.mechanisms[0].epsilon)
        for each in (audit_trace(of, claim=CLAIM) for of in (clean, trace))
    ]
    assert figures[0] == figures[1]
    assert sorted(found[0][0]) == sorted(found[1][0])
