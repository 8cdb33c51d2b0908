"""The trace on disk: readable with pyarrow alone, whole or not there, and refused when anything is wrong with it."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedray.base.blocks import BLOCK_DEVICES, MAX_PARTS, part_devices, part_ranges
from fedray.base.errors import InputError, RunFailed, TraceCorrupt, TraceError, TraceVersion
from fedray.encoding.tables import FIXED_POINT_BITS
from fedray.imports.importer import import_log
from fedray.trace.columns import ROUND_SCHEMA
from fedray.trace.files import read_columns
from fedray.trace.learned_from import open_trained
from fedray.trace.learned_from import trace_of as learned_from
from fedray.trace.reader import Trace
from fedray.trace.trained import (
    TrainedRun,
    TrainedRunWriter,
)
from fedray.trace.unfinished import read_unfinished
from fedray.trace.writer import TraceWriter
from fedray.wire.messages import (
    Evaluated,
    Evaluation,
    Measured,
    Metric,
    TaskDescription,
    TrainingMetrics,
    TrainReport,
)

PATTERNS = [[0, 3], [1], [2, 4], [0, 1, 2, 3, 4]]


def part_path(trace: Trace) -> Path:
    return trace.path / trace.run["parts"][0]["file"]


def replace_column(trace: Trace, name: str, values: list) -> None:
    table = pq.read_table(part_path(trace))
    place = table.schema.get_field_index(name)
    changed = table.set_column(
        place, table.schema.field(name), pa.array(values, table.schema.field(name).type)
    )
    pq.write_table(changed, part_path(trace))


def test_what_was_written_is_read(trace_of) -> None:
    trace = trace_of(PATTERNS, 5)
    trace.verify()
    (part,) = trace.accepted()
    assert part.device_ids.tolist() == [0, 0, 1, 2, 2, 3, 3, 3, 3, 3]
    assert part.rounds.tolist() == [0, 3, 1, 2, 4, 0, 1, 2, 3, 4]
    assert trace.committed_rounds == 5
    assert trace.outcome_counts() == {
        "accepted": 10,
        "late": 0,
        "dropped": 0,
        "failed": 0,
        "abandoned": 0,
        "excluded": 0,
    }


def test_pyarrow_alone_reads_it(trace_of) -> None:
    trace = trace_of(PATTERNS, 5)
    table = pq.read_table(trace.path / "participations").to_pydict()
    assert set(table["outcome"]) == {"accepted"}
    assert table["round"] == [0, 3, 1, 2, 4, 0, 1, 2, 3, 4]
    assert pq.read_table(trace.path / "rounds.parquet").to_pydict()["state"] == ["committed"] * 5


def test_the_same_content_has_the_same_digest_and_any_change_another(trace_of) -> None:
    first = trace_of(PATTERNS, 5)
    assert trace_of(PATTERNS, 5).digest == first.digest
    assert trace_of([[0, 3], [1], [2, 4], [0, 1, 2, 3]], 5).digest != first.digest


def test_an_existing_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "mine.txt").write_text("keep")
    with pytest.raises(InputError, match="exists already"):
        TraceWriter(tmp_path / "t")
    assert [file.name for file in (tmp_path / "t").iterdir()] == ["mine.txt"]


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), TraceWriter(tmp_path / "t") as writer:
        writer.save_content("a", b"content")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "kind", ["files", "link", "file", "finished trace", "named trace", "marked file"]
)
def test_a_partial_that_is_not_ours_is_refused_and_left_alone(
    trace_of, tmp_path: Path, kind: str
) -> None:
    """By a run and by an import alike; what a link points to is left alone too."""
    partial, elsewhere = tmp_path / "t.partial", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.txt").write_text("keep")
    if kind == "files":
        partial.mkdir()
        (partial / "participations").mkdir()
        (partial / "participations" / "mine.txt").write_text("keep")
    elif kind == "link":
        partial.symlink_to(elsewhere)
    elif kind == "file":
        partial.write_text("keep")
    elif kind == "marked file":
        partial.mkdir()
        (partial / "token").write_text("something of mine")
    else:
        shutil.move(trace_of(PATTERNS, 5).path, partial)
        if kind == "finished trace":  # that could not be named: it bears our mark
            (partial / "token").write_text("fedray-partial 0")
    (tmp_path / "log.csv").write_text("dev,round\na,0\na,one\n")
    before = {path: path.is_file() and path.read_bytes() for path in sorted(tmp_path.rglob("*"))}
    with pytest.raises(
        InputError, match=r"needs '.*t\.partial', which .*; (rename it or )?move it away"
    ):
        TraceWriter(tmp_path / "t")
    with pytest.raises(InputError, match=r"t\.partial"):
        import_log(tmp_path / "log.csv", "dev", "round", 1, tmp_path / "t")
    assert {
        path: path.is_file() and path.read_bytes() for path in sorted(tmp_path.rglob("*"))
    } == before


@pytest.mark.parametrize("left", [[], ["lock"], ["lock", "token", "rounds.parquet"]])
def test_what_a_writer_of_ours_left_is_cleared(tmp_path: Path, left: list) -> None:
    (tmp_path / "t.partial").mkdir()
    for name in left:
        (tmp_path / "t.partial" / name).write_text(
            {"token": "fedray-partial 0", "lock": ""}.get(name, "old")
        )
    with TraceWriter(tmp_path / "t") as writer:
        assert sorted(path.name for path in writer.partial.iterdir()) == [
            "lock",
            "participations",
            "token",
        ]
        writer.finish([], {"ended": "completed", "seed": 0, "scenario": {}, "written": ""})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t"]
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == [
        "participations",
        "rounds.parquet",
        "run.json",
    ]


def test_links_within_a_directory_of_ours_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("keep")
    (tmp_path / "t.partial").mkdir()
    (tmp_path / "t.partial" / "token").write_text("fedray-partial 0")
    (tmp_path / "t.partial" / "participations").symlink_to(tmp_path / "mine")
    with TraceWriter(tmp_path / "t"):
        pass
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["mine", "file"]


@pytest.mark.parametrize("name", ["/", "//", "/.."])
def test_the_root_is_no_output(name: str) -> None:
    with pytest.raises(InputError, match="has no name"):
        TraceWriter(name)
    with pytest.raises(InputError, match="has no name"):
        read_unfinished(Path(os.path.abspath(name)))


def test_an_unwritable_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made"):
        TraceWriter(tmp_path / "file" / "t")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def damage(name: str, trace: Trace) -> None:
    run = json.loads((trace.path / "run.json").read_text())
    part = part_path(trace)
    match name:
        case "missing run":
            (trace.path / "run.json").unlink()
        case "run is no json":
            (trace.path / "run.json").write_text("{")
        case "another format":
            (trace.path / "run.json").write_text(json.dumps({**run, "format": "diary"}))
        case "another version":
            (trace.path / "run.json").write_text(json.dumps({**run, "schema_version": 99}))
        case "run without parts":
            del run["parts"]
            (trace.path / "run.json").write_text(json.dumps(run))
        case "a stray file":
            (part.parent / "zzz.parquet").write_bytes(part.read_bytes())
        case "odd numbers":
            run["parts"][0]["first_device"] = "0"
            (trace.path / "run.json").write_text(json.dumps(run))
        case "overlapping parts":
            run["parts"] *= 2
            (trace.path / "run.json").write_text(json.dumps(run))
        case "nested beyond reason":
            (trace.path / "run.json").write_text("[" * 100_000)
        case "a part elsewhere":
            run["parts"][0]["file"] = "../../etc/passwd"
            (trace.path / "run.json").write_text(json.dumps(run))
        case "missing part":
            part.unlink()
        case "truncated part":
            part.write_bytes(part.read_bytes()[:-40])
        case "empty rounds":
            (trace.path / "rounds.parquet").write_bytes(b"")
        case "fewer rows":
            pq.write_table(pq.read_table(part).slice(1), part)
        case "other columns":
            pq.write_table(pq.read_table(part).rename_columns(["a", "b", "c", "d", "e", "f"]), part)


@pytest.mark.parametrize(
    ("name", "error", "remedy"),
    [
        ("missing run", TraceError, "has no run.json; give the directory"),
        ("run is no json", TraceCorrupt, "copy the trace from its source"),
        ("another format", TraceError, "give the directory"),
        ("another version", TraceVersion, "schema_version=99, this release reads 6"),
        ("run without parts", TraceCorrupt, "lacks parts"),
        ("a stray file", TraceCorrupt, "has 'zzz.parquet', which is not part"),
        ("odd numbers", TraceCorrupt, "with the numbers"),
        ("overlapping parts", TraceCorrupt, "overlap or are out of order"),
        ("nested beyond reason", TraceCorrupt, "cannot be read"),
        ("a part elsewhere", TraceCorrupt, "not the name of its part"),
        ("missing part", TraceCorrupt, "is missing"),
        ("truncated part", TraceCorrupt, "truncated"),
        ("empty rounds", TraceCorrupt, "truncated"),
        ("fewer rows", TraceCorrupt, "has 9 rows, but run.json records 10"),
        ("other columns", TraceCorrupt, "has columns"),
    ],
)
def test_a_damaged_trace_is_refused_on_opening(
    trace_of, name: str, error: type, remedy: str
) -> None:
    trace = trace_of(PATTERNS, 5)
    damage(name, trace)
    with pytest.raises(error, match=remedy) as caught:
        Trace.open(trace.path, verify=False)
    assert "\n" not in str(caught.value)
    with pytest.raises(error):
        Trace.open(trace.path)


def test_no_directory_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is not a directory"):
        Trace.open(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("column", "values", "problem"),
    [
        ("device_id", [3, 0, 1, 2, 2, 3, 3, 3, 3, 3], "not sorted"),
        ("device_id", [0, 0, 1, 2, 2, 3, 3, 3, 3, 20_000], "outside"),
        ("round", [0, 3, 1, 2, 4, 0, 1, 2, 3, 5], "names round 5, but 5 were committed"),
        ("round", [0, 3, 1, 2, 4, 0, 1, 2, 2, 4], "do not increase"),
        ("round", [0, 2, 1, 2, 4, 0, 1, 2, 3, 4], "accepted rows, rounds.parquet says"),
    ],
)
def test_rows_that_break_an_invariant_are_refused_on_reading(
    trace_of, column: str, values: list, problem: str
) -> None:
    trace = trace_of(PATTERNS, 5)
    replace_column(trace, column, values)
    with pytest.raises(TraceCorrupt, match=problem):
        list(Trace.open(trace.path, verify=False).accepted())
    with pytest.raises(TraceCorrupt, match="does not have the digest that run.json records"):
        list(Trace.open(trace.path).accepted())


def test_nulls_where_none_may_be_are_refused(trace_of) -> None:
    trace = trace_of(PATTERNS, 5)
    table = pq.read_table(part_path(trace))
    nulls = pa.array([None] * 10, pa.uint32())
    pq.write_table(table.set_column(0, pa.field("round", pa.uint32()), nulls), part_path(trace))
    with pytest.raises(TraceCorrupt, match="nulls in its column 'round'"):
        list(Trace.open(trace.path).accepted())


def test_a_committed_round_without_participations_is_refused(trace_of) -> None:
    with pytest.raises(TraceCorrupt, match="accepts no device"):
        trace_of([[0], [2]], 3)


@pytest.mark.parametrize("kind", ["link", "file"])
def test_only_a_plain_empty_directory_may_be_there(tmp_path: Path, kind: str) -> None:
    (tmp_path / "real").mkdir()
    if kind == "link":
        (tmp_path / "t").symlink_to(tmp_path / "real")
    else:
        (tmp_path / "t").write_text("")
    with pytest.raises(InputError, match="exists already"):
        TraceWriter(tmp_path / "t")


def test_a_finished_trace_that_cannot_be_named_is_kept(tmp_path: Path) -> None:
    with (
        pytest.raises(RunFailed, match="which is complete") as caught,
        TraceWriter(tmp_path / "t") as writer,
    ):
        (tmp_path / "t").mkdir()
        (tmp_path / "t" / "another.txt").write_text("")
        writer.finish([], {"ended": "completed", "seed": 0, "scenario": {}, "written": ""})
    kept = next(tmp_path.glob("*.partial"))
    assert str(kept) in str(caught.value)
    assert Trace.open(kept).committed_rounds == 0


def test_verify_notices_what_no_invariant_does(trace_of) -> None:
    trace = trace_of(PATTERNS, 5)
    replace_column(trace, "examples", [2] * 10)
    with pytest.raises(TraceCorrupt, match="digest"):
        Trace.open(trace.path).verify()


def test_a_flipped_byte_is_noticed_or_changes_nothing(trace_of) -> None:
    """`verify` passes only if all columns have the recorded digest; anything else is TraceCorrupt and no other error."""
    trace = trace_of([[t] for t in range(5)] * 400, 5)
    whole, noticed = part_path(trace).read_bytes(), 0
    for place in range(4, len(whole), len(whole) // 40):
        content = bytearray(whole)
        content[place] ^= 0xFF
        part_path(trace).write_bytes(content)
        try:
            Trace.open(trace.path).verify()
        except TraceCorrupt:
            noticed += 1
    assert noticed > 10


def rewrite_run(trace: Trace, **changes: object) -> None:
    (trace.path / "run.json").write_text(json.dumps({**trace.run, **changes}))


@pytest.mark.parametrize(
    "change", [{"ended": "starved"}, {"digest": "0" * 64}, {"seed": 8}, {"rounds_digest": "0" * 64}]
)
def test_a_changed_run_json_is_refused(trace_of, change: dict) -> None:
    trace = trace_of(PATTERNS, 5)
    rewrite_run(trace, **change)
    with pytest.raises(
        TraceCorrupt, match=r"run.json does not have the digest that it records of itself"
    ):
        Trace.open(trace.path)
    assert Trace.open(trace.path, verify=False).integrity.startswith("Digests were not checked")


def test_another_layout_of_the_same_run_json_is_the_same(trace_of) -> None:
    trace = trace_of(PATTERNS, 5)
    (trace.path / "run.json").write_text(json.dumps(dict(reversed(trace.run.items()))))
    Trace.open(trace.path).verify()


def test_the_part_of_another_trace_is_refused(trace_of) -> None:
    """Same rows and rounds, another device: no invariant is broken, and only a digest can tell."""
    mine, other = trace_of([[0, 3], [1, 2], [4]], 5), trace_of([[1, 3], [0, 2], [4]], 5)
    shutil.copy(part_path(other), part_path(mine))
    with pytest.raises(TraceCorrupt, match="belongs to another trace"):
        list(Trace.open(mine.path).accepted())
    assert sum(part.rounds.size for part in Trace.open(mine.path, verify=False).accepted()) == 5


@pytest.mark.parametrize("version", [5, True, None, "6"])
def test_a_trace_of_another_version_is_refused(trace_of, version: object) -> None:
    trace = trace_of(PATTERNS, 5)
    rewrite_run(trace, schema_version=version)
    with pytest.raises(TraceVersion, match=r"this release reads 6; use the fedray release"):
        Trace.open(trace.path)


def test_each_reader_checks_the_columns_that_it_reads_and_no_other(trace_of) -> None:
    trace = trace_of(PATTERNS, 5)
    replace_column(trace, "examples", [2] * 10)
    opened = Trace.open(trace.path)
    list(opened.accepted())
    opened.outcome_counts()
    with pytest.raises(TraceCorrupt, match="column examples"):
        opened.columns(0)


@pytest.mark.parametrize(
    ("codes", "names"),
    [([9] * 5, ["committed"]), ([-2] * 5, ["committed"]), ([0] * 5, ["x" * 9999])],
)
def test_a_code_beyond_its_names_is_damage(trace_of, monkeypatch, codes: list, names: list) -> None:
    """Which a flipped bit makes, and which numpy would take for an index, from the end where it is negative."""
    file = trace_of(PATTERNS, 5).path / "rounds.parquet"
    whole = pq.read_table(file)
    place = whole.schema.get_field_index("state")
    damaged = pa.DictionaryArray.from_arrays(
        pa.array(codes, pa.int8()), pa.array(names), safe=False
    )
    monkeypatch.setattr(
        pq.ParquetFile,
        "read",
        lambda *_, **__: whole.set_column(place, whole.schema.field(place), damaged),
    )
    with pytest.raises(TraceCorrupt) as caught:
        read_columns(file, ROUND_SCHEMA)
    assert str(file) in str(caught.value)
    assert len(str(caught.value)) < 400


METRICS = (Metric("loss", "nats per word", "lower"), Metric("accuracy", "share", "higher"))


def write_trained(directory: Path, small, trace_digest: str = "0") -> Path:
    """A trained run of two rounds, of which the second was evaluated."""
    document = {
        "trace_digest": trace_digest,
        "trace": "..",
        "update_noise": 0.0,
        "noise_warning": "",
        "start": {},
        "start_errors": {},
        "evaluated": {"examples": 36, "available": 36, "devices": 9, "held_out_devices": 9},
        "rounds": 2,
        "seed": 0,
        "scenario": small().to_tables(),
        "encoding": {"kind": "fixed_point", "bits_per_parameter": 64.0, "inflation": 1.0},
        "notes": [],
    }
    description = TaskDescription({"b": (2,), "a": (1, 1)}, METRICS, {"accuracy": 0.75})
    steps = 2**FIXED_POINT_BITS
    evaluation = Evaluation(
        {"loss": Measured(3.0, 0.5), "accuracy": Measured(0.5, 0.25)}, Evaluated(36, 36, 9, 9)
    )
    rows = [
        TrainingMetrics(
            TrainReport(round_index=0, devices=4, trained=2, damaged=2, loss_sum=steps)
        ),
        TrainingMetrics(
            TrainReport(round_index=1, devices=4, not_finite=3, without_examples=1), evaluation
        ),
    ]
    with TrainedRunWriter(directory) as writer:
        return writer.finish(rows, description, np.arange(3, dtype=np.float32), document)


def test_a_trained_run_reads_back_and_names_what_was_left_out(
    tmp_path: Path, small, numbers_in
) -> None:
    run = TrainedRun.open(write_trained(tmp_path / "t", small))
    named = run.named_parameters()
    assert {name: part.tolist() for name, part in named.items()} == {"b": [0, 1], "a": [[2]]}
    assert run.parameters().tolist() == [0, 1, 2]
    assert run.task_metrics == METRICS
    assert run.last_evaluation() == {"loss": (3.0, 0.5), "accuracy": (0.5, 0.25)}
    np.testing.assert_array_equal(run.metrics["train_loss"], [0.5, np.nan])
    rows = dict(run.rows())
    assert numbers_in(rows["left out"]) == [1, 2, 3]  # without examples, damaged, not finite
    # The value, its error, the data, and the optimum.
    assert numbers_in(rows["held-out accuracy"]) == [0.5, 0.25, 36, 36, 9, 0.75]


def test_metrics_are_checked_when_they_are_read(trace_of, small) -> None:
    trace = trace_of(PATTERNS, 5)
    file = trace.path / "training" / "metrics.parquet"
    write_trained(trace.path / "training", small, trace.digest)
    metrics = Trace.open(trace.path).metrics
    assert metrics is not None
    assert metrics["clipped_share"][0] == 0.0
    Trace.open(trace.path).verify()
    table = pq.read_table(file)
    pq.write_table(
        table.set_column(1, table.schema.field(1), pa.array([2.0] * table.num_rows)), file
    )
    with pytest.raises(TraceCorrupt, match="does not have the digest"):
        _ = Trace.open(trace.path).metrics
    file.unlink()
    with pytest.raises(TraceCorrupt, match="is missing"):
        _ = Trace.open(trace.path).metrics


def test_the_training_of_another_trace_is_refused(trace_of, small) -> None:
    """Its files agree with one another, so that no digest of a file tells."""
    trace = trace_of(PATTERNS, 5)
    write_trained(trace.path / "training", small, "1" * 64)
    with pytest.raises(TraceCorrupt, match="was trained on the trace 111111111111, not on this"):
        _ = Trace.open(trace.path).metrics


def test_a_training_found_by_its_trace_is_refused_where_it_is_of_another(trace_of, small) -> None:
    trace = trace_of(PATTERNS, 5)
    write_trained(trace.path / "training", small, "1" * 64)
    with pytest.raises(TraceCorrupt, match="was trained on the trace 111111111111, not on this"):
        open_trained(trace.path)


def test_files_of_two_runs_in_one_directory_are_refused(trace_of, small, tmp_path: Path) -> None:
    trained = write_trained(tmp_path / "t", small)
    shutil.copy(trace_of(PATTERNS, 5).path / "run.json", trained / "run.json")
    for opens in (TrainedRun.open, open_trained):
        with pytest.raises(TraceCorrupt, match=r"has run\.json and training\.json, so it has"):
            opens(trained)


@pytest.mark.parametrize("content", ['{"format": "fedray-import"}', '{"digest": "x"}'])
def test_a_run_json_around_a_training_counts_only_with_its_digest(
    small, tmp_path: Path, content: str
) -> None:
    trained = TrainedRun.open(write_trained(tmp_path / "t", small))
    (tmp_path / "run.json").write_text(content)
    assert learned_from(trained) is None


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("training.json", lambda content: content.replace(b'"seed": 0', b'"seed": 1'), "of itself"),
        ("training.json", lambda content: content[:-9], "cannot be read"),
        (
            "training.json",
            lambda content: content.replace(b"fedray-training", b"fedray-else"),
            "has no format",
        ),
        (
            "training.json",
            lambda content: content.replace(b'"version": 4', b'"version": 9'),
            "version=9, this",
        ),
        ("model.safetensors", lambda content: content[:-9], "does not have the digest"),
        ("model.safetensors", lambda content: None, "cannot be read"),
    ],
)
def test_a_damaged_trained_run_is_refused_with_one_line(
    tmp_path: Path, small, name: str, change, message: str
) -> None:
    path = write_trained(tmp_path / "t", small)
    assert TrainedRun.open(path).parameters().tolist() == [0.0, 1.0, 2.0]
    changed = change((path / name).read_bytes())
    (path / name).unlink()
    if changed is not None:
        (path / name).write_bytes(changed)
    with pytest.raises(TraceError, match=message) as caught:
        TrainedRun.open(path).verify()
    assert "\n" not in str(caught.value)


def test_a_moved_trace_is_the_same_trace(trace_of, tmp_path: Path) -> None:
    trace = trace_of(PATTERNS, 5)
    moved = Path(shutil.move(trace.path, tmp_path / "elsewhere"))
    Trace.open(moved).verify()


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, BLOCK_DEVICES, BLOCK_DEVICES + 1, 2_380_000, 10**9, 10**11])
def test_parts_hold_every_device_once_and_are_not_too_many(devices: int) -> None:
    ranges = part_ranges(devices, 0, devices)
    assert len(ranges) <= MAX_PARTS
    assert ranges[0][0] == 0
    assert ranges[-1][1] == devices
    assert all(end == first for (_, end), (first, _) in zip(ranges, ranges[1:], strict=False))
    assert part_devices(devices) % BLOCK_DEVICES == 0
