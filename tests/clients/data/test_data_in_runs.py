"""What a run makes of recorded data: the trace's examples, the latency, and the digest of the data."""

import json
import os
import pickle
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedray.audit.assumptions import COUNTED
from fedray.audit.auditing import audit_trace
from fedray.audit.privacy_statement import privacy_statement
from fedray.base.errors import InputError, ScenarioError
from fedray.base.rounding import up
from fedray.clients.data import cache as data_cache
from fedray.clients.data import factory
from fedray.clients.data.factory import source_of
from fedray.clients.data.source import DamagedExamples
from fedray.clients.latency import LatencyModel, work_seconds
from fedray.report.page import trace_page
from fedray.runs.pipeline import run_scenario
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario, data_file
from fedray.wire.members import are_members
from fedray.wire.messages import DataProgress, Progress

HERE = Placement(1, "in-process")
COUNTS = [1, 5, 9, 60, 200]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Five clients of 1 to 200 examples, with one number each, and one that is held out."""
    number = feature(b"pixels", bytes.fromhex("1206 0a04 0000803f"))
    path = tmp_path / "d.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)"
    )
    for client, count in enumerate(COUNTS):
        row = ("train", f"c{client}", number)
        connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", [row] * count)
    connection.execute("INSERT INTO examples VALUES ('test', 't', ?)", (number,))
    connection.commit()
    connection.close()
    return path


def feature(name: bytes, value: bytes) -> bytes:
    """A tf.Example of one feature, of fewer than 128 bytes."""

    def field(tag: int, content: bytes) -> bytes:
        return bytes([tag, len(content)]) + content

    return field(0x0A, field(0x0A, field(0x0A, name) + field(0x12, value)))


TABLE = {"kind": "tff_sqlite", "file": "d.sqlite", "targets": ""}


def written(path: Path, inputs: Callable[[int, int], Any], clients: int = 40) -> dict[str, Any]:
    """A Parquet file of clients with three examples each, and its table."""
    draws = np.random.default_rng(0)
    rows = [
        {
            "client": f"c{client:02}",
            "inputs": inputs(client, example),
            "targets": int(draws.integers(2)),
        }
        for client in range(clients)
        for example in range(3)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return {"kind": "parquet", "file": path.name, "client": "client"}


TRAINED = {
    "training": {"enabled": True, "task": {"kind": "logistic"}, "cohort_sample": 4},
    "privacy": {"mechanism": {"kind": "identity"}, "noise_multiplier": 0.01},
}


def test_a_number_for_each_example_is_a_vector_of_one(tmp_path: Path, scenario_of) -> None:
    table = written(tmp_path / "d.parquet", lambda client, example: float(client - example))
    scenario = scenario_of(table, **TRAINED)
    source = source_of(scenario)
    assert source.fields["inputs"].shape == (1,)
    found = source.examples(np.arange(5, dtype=np.uint64), np.tile([0, 1, 2], (5, 1)))["inputs"]
    assert found.shape == (5, 3, 1)
    np.testing.assert_array_equal(np.diff(found, axis=1), -1.0)
    trained = run_scenario(scenario, HERE, out=tmp_path / "t").trained
    assert trained is not None
    assert np.isfinite(trained.last_evaluation()["loss"].value)


@pytest.mark.parametrize(
    ("inputs", "keys", "says"),
    [
        (lambda client, _: [1.0] * (4 + client % 2), {}, "'c01': column 'inputs' has shape (5,)"),
        (lambda client, _: [1.0] * (4 + (client == 37)), {}, "'c37': column 'inputs' has shape"),
        (lambda _, example: [1.0] * (4 + example % 2), {}, "has examples of different shapes"),
        (lambda *_: [], {}, "'c00': column 'inputs' has examples without a number"),
        # With the number of classes given, only the first client is read at once.
        (lambda client, _: [1.0] * (4 + client % 2), {"values": 2}, "the held-out data cannot be"),
    ],
    ids=["uneven clients", "one client", "uneven examples", "no numbers", "held out"],
)
def test_uneven_inputs_are_found_before_the_training(
    tmp_path: Path, scenario_of, inputs, keys: dict, says: str
) -> None:
    table = {**written(tmp_path / "d.parquet", inputs), **keys}
    told: list[Any] = []
    with pytest.raises(InputError) as refused:
        run_scenario(
            scenario_of(table, **TRAINED), HERE, out=tmp_path / "t", on_progress=told.append
        )
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    # No round was trained.
    assert not [each for each in told if getattr(each, "training", None)]


def test_damage_of_many_devices_is_shown_by_three_of_them() -> None:
    error = DamagedExamples(dict.fromkeys(range(5000), "it has no client"))
    assert str(error).endswith("device 2: it has no client; 5,000 devices in all")
    assert str(error).count("it has no client") == 3
    assert len(error.problems) == 5000


def test_the_traces_examples_are_those_of_the_data(
    database: Path, tmp_path: Path, scenario_of
) -> None:
    scenario = scenario_of(TABLE)
    trace = simulate(scenario, HERE, tmp_path / "t")
    rows = pq.read_table(sorted((trace.path / "participations").glob("*.parquet"))[0])
    devices = rows.column("device_id").to_numpy()
    found = rows.column("examples").to_numpy()
    assert devices.size
    assert set(found) <= set(COUNTS)
    assert (found == source_of(scenario).examples_on(devices)).all()
    recorded = trace.run["scenario"]["data"]
    assert recorded["sha256"] == data_file.content_digest(database)
    assert Path(recorded["file"]) == database


def test_a_run_tells_how_far_data_is_that_is_read_as_a_whole(
    tmp_path: Path, scenario_of, monkeypatch
) -> None:
    """To count its words, once: what was counted is kept."""
    monkeypatch.setattr(factory, "TOLD_EVERY_SECONDS", 0.0)
    words = {f"u{number:02}": {"text": ["a word", f"and {number}"]} for number in range(20)}
    rows = [{"client": name, "text": text} for name, each in words.items() for text in each["text"]]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "d.parquet")
    scenario = scenario_of({"kind": "parquet", "file": "d.parquet", "tokens": "text"})
    told: list[Progress] = []
    run_scenario(scenario, HERE, tmp_path / "t", told.append)
    counted = [each for each in told if isinstance(each, DataProgress)]
    assert counted == told[: len(counted)]
    # Those that are held out may have words of their own, which are not counted.
    assert counted == [DataProgress(number, 20) for number in range(len(counted))]
    assert len(counted) >= 18
    told.clear()
    run_scenario(scenario, HERE, tmp_path / "again", told.append)
    assert told
    assert not [each for each in told if isinstance(each, DataProgress)]


@pytest.mark.slow  # 10 s: actors start
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_actors_find_the_index_and_give_the_same_trace(
    database: Path, tmp_path: Path, scenario_of, monkeypatch
) -> None:
    scenario = scenario_of(TABLE)
    here = simulate(scenario, HERE, tmp_path / "here")
    opened = []
    monkeypatch.setattr(
        factory, "source_of", lambda value, tell: opened.append(value) or source_of(value, tell)
    )
    there = simulate(scenario, Placement(1, "ray"), tmp_path / "there")
    assert there.digest == here.digest
    assert len(opened) == 1  # the driver; the actors have processes of their own


def test_training_takes_longer_on_devices_with_more_data(database: Path, scenario_of) -> None:
    """Half of it is fixed, half grows with the examples: a device of the median takes the table's time."""
    scenario = scenario_of(TABLE, latency={"speed_between": 0.0, "train_seconds": 100.0})
    source = source_of(scenario)
    devices = np.arange(50, dtype=np.uint64)
    examples = source.examples_on(devices)
    model = LatencyModel.of(scenario, source)
    _, training = work_seconds(model, devices, examples)
    assert training == pytest.approx(50.0 * (1 + examples / np.median(COUNTS)))


def test_a_scenario_is_known_by_its_data_and_not_by_the_datas_place(
    database: Path, tmp_path: Path, scenario_of
) -> None:
    scenario = scenario_of(TABLE)
    shutil.copy(database, tmp_path / "elsewhere.sqlite")
    same = scenario_of({**TABLE, "file": "elsewhere.sqlite"})
    assert (same.digest, same) == (scenario.digest, scenario)
    assert hash(same.data) == hash(scenario.data)
    with sqlite3.connect(tmp_path / "elsewhere.sqlite") as connection:
        connection.execute("DELETE FROM examples WHERE rowid = 7")
    connection.close()
    other = scenario_of({**TABLE, "file": "elsewhere.sqlite"})
    assert other.digest != scenario.digest
    assert other != scenario
    moved = scenario.with_overrides(f"data.file={tmp_path / 'elsewhere.sqlite'}")
    assert moved == other
    tied = scenario.with_overrides("data.tie=zone")
    assert tied.digest != scenario.digest
    with pytest.raises(ScenarioError, match=r"data: file=.* has the sha256"):
        scenario_of({**TABLE, "file": "elsewhere.sqlite", "sha256": scenario.data.sha256})
    with pytest.raises(ScenarioError, match=r"data: file='none' cannot be read"):
        scenario_of({**TABLE, "file": "none"})


def test_a_trace_is_audited_where_its_data_is_not_and_opened_with_none_other(
    database: Path, tmp_path: Path, scenario_of
) -> None:
    scenario = scenario_of(TABLE)
    trace = simulate(scenario, HERE, tmp_path / "t")
    recorded = trace.run["scenario"]
    sent = pickle.loads(pickle.dumps(scenario.for_shards()))
    assert source_of(sent).held_out_devices == 1
    with database.open("ab") as file:
        file.write(b"more")
    known = Scenario.from_tables(recorded, directory=trace.path, is_recorded=True)
    assert known.digest == scenario.digest
    with pytest.raises(InputError, match="is not the file of this run"):
        source_of(known)
    database.unlink()
    assert audit_trace(trace.path).rounds == 2
    again = Scenario.from_tables(recorded, directory=trace.path, is_recorded=True)
    with pytest.raises(InputError, match="cannot be read"):
        source_of(again)


def test_a_file_is_digested_once(database: Path, monkeypatch) -> None:
    monkeypatch.setattr(data_file, "_CLOCK_TICK", 0)
    digest = data_file.content_digest(database)
    monkeypatch.setattr(data_file.hashlib, "file_digest", None)  # no file can be digested now
    assert data_file.content_digest(database) == digest
    before = database.stat()
    content = database.read_bytes()
    database.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    # A program can set this time, but not that of the change of the inode.
    os.utime(database, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(TypeError):
        data_file.content_digest(database)


def test_a_cache_that_cannot_be_written_is_one_line(
    database: Path, tmp_path: Path, source, monkeypatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(data_cache, "cache_folder", lambda name: tmp_path / "file" / name)
    with pytest.raises(InputError, match="XDG_CACHE_HOME"):
        source(TABLE)


def test_ones_own_data_travels_with_the_trace_and_needs_trust(
    tmp_path: Path, scenario_of, monkeypatch
) -> None:
    code = (
        "class Twelve:\n    num_partitions = 12\n\n    def load_partition(self, number):\n"
        "        return {'inputs': [[1.0]] * (number + 1), 'targets': [0] * (number + 1)}\n\n\n"
        f"def data(seed):\n    return Twelve()  # {'x' * 50_000}\n"
    )
    (tmp_path / "own.py").write_text(code)
    scenario = scenario_of({"kind": "custom", "file": "own.py"})
    trace = simulate(scenario, HERE, tmp_path / "t")
    assert (trace.path / f"{scenario.data.sha256}.py").read_text() == code
    known = Scenario.from_tables(trace.run["scenario"], directory=trace.path, is_recorded=True)
    # Another user has not run this code before.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "stranger"))
    with pytest.raises(InputError, match=r"data\.file.*trust_code=True"):
        known.demand_trust()
    assert len(pickle.dumps(scenario.for_shards().data)) > len(code)
    assert len(pickle.dumps(scenario.for_aggregator().data)) < 5_000


def test_clients_on_several_devices_are_told_with_the_figure_of_all_their_devices(
    tmp_path: Path, scenario_of, fedray_command
) -> None:
    """Of 40 clients 36 train; 1,000 devices are 27 or 28 of each. mu of 28 devices is 28 times that of one."""
    table = written(tmp_path / "d.parquet", lambda client, example: float(client - example))
    scenario = scenario_of(table, **TRAINED)
    trace = run_scenario(scenario, HERE, out=tmp_path / "t")
    people = {"clients": 36, "most_devices": 28}
    assert trace.trained is not None
    assert trace.trained.document["people"] == people
    audit = audit_trace(trace)
    enforced = audit.mechanisms[0].enforced
    assert audit.clients is not None
    of_client = next(each for each in audit.clients.guarantees if each.name == "enforced")
    assert of_client.mu == pytest.approx(28 * enforced.mu, rel=1e-12)
    assert of_client.sensitivity is not None
    # A bound: no round need have 28 reports. What one device attains is attained.
    assert not of_client.sensitivity.is_exact
    assert of_client.sensitivity.lower_bound == enforced.sensitivity.lower_bound
    told = f"on up to 28 devices each; for a client with all of these, epsilon is at most {up(of_client.epsilon)} (enforced), which 28 times the noise would lower to the enforced one of a device. An epsilon above 20 protects nobody"
    assert f"36 clients of the data are {told}" in audit.verdict
    assert audit.to_json()["clients"]["most_devices"] == 28
    # Beside the device's epsilon in every place: run's page, train with its page, and the audit of it.
    out = tmp_path / "again"
    texts = [trace_page(trace)]
    for arguments in (
        ["audit", str(trace.path)],
        ["train", str(trace.path), "--set", "training.seed=5", "--out", str(out)],
        ["audit", str(out)],
        ["compare", str(trace.path / "training"), str(out)],
    ):
        texts.append(fedray_command(*arguments)[1])
    texts.append((out / "report.html").read_text())
    assert all("28 devices each; for a client" in " ".join(each.split()) for each in texts)
    # Once, except for the page, whose statement stands by itself.
    verbose = fedray_command("audit", str(trace.path), "--verbose")[1]
    assert [each.count("28 devices") for each in (*texts[1:5], verbose)] == [1] * 5
    statement = privacy_statement(audit)
    assert "28 devices each" in statement.summary


def test_a_trained_run_has_its_counted_words_which_its_audit_calls_uncovered(
    tmp_path: Path, scenario_of
) -> None:
    rows = [{"client": f"u{n:02}", "text": f"b a {'c' * (n % 2)}"} for n in range(40)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "d.parquet")
    table = {"kind": "parquet", "file": "d.parquet", "tokens": "text", "length": 4}
    task = {"kind": "keyboard_lstm", "hidden": 4, "embedding": 3}
    scenario = scenario_of(table, **{**TRAINED, "training": {**TRAINED["training"], "task": task}})
    trace = run_scenario(scenario, HERE, out=tmp_path / "t")
    words = json.loads((trace.path / "training" / "vocabulary.json").read_text())
    # Equally frequent words are in alphabetical order.
    assert words == ["a", "b", "c"]
    assert "counted over the data of the training clients without noise" in COUNTED
    assert COUNTED in audit_trace(trace).assumptions
    (tmp_path / "words.txt").write_text("b\na\n")
    given = scenario.with_overrides(f"data.vocabulary_file={tmp_path / 'words.txt'}")
    trace = run_scenario(given, HERE, out=tmp_path / "given")
    assert json.loads((trace.path / "training" / "vocabulary.json").read_text()) == ["b", "a"]
    assert COUNTED not in audit_trace(trace).assumptions


@pytest.mark.parametrize(
    ("keys", "clients", "devices"), [({}, 1200, 1000), ({"kind": "source_code"}, 0, 1000)], ids=["enough clients", "no people"]
)  # fmt: skip
def test_of_a_healthy_use_of_data_nothing_is_told(
    tmp_path: Path, scenario_of, keys: dict, clients: int, devices: int
) -> None:
    """A device for each client at most; and modules of source code, who are no people."""
    made = written(tmp_path / "d.parquet", lambda client, example: float(client), clients or 1)
    table = keys or made
    task = {"training": {**TRAINED["training"], "task": {"kind": "keyboard_lstm"}}} if keys else {}
    scenario = scenario_of(table, **{**TRAINED, **task}, population={"devices": devices})
    trace = run_scenario(scenario, HERE, out=tmp_path / "t")
    audit = audit_trace(trace)
    assert audit.clients is None
    assert "clients" not in audit.to_json()
    assert "client" not in audit.verdict


def test_devices_of_a_client_that_are_too_many_to_count_are_unknown_and_not_absent(
    tmp_path: Path, scenario_of, monkeypatch
) -> None:
    """A tie makes the number of devices depend on traits, so that only counting shows it."""
    table = written(tmp_path / "d.parquet", lambda client, example: float(client - example))
    scenario = scenario_of({**table, "tie": "speed"}, **TRAINED)
    trace = run_scenario(scenario, HERE, out=tmp_path / "t")
    assert trace.trained is not None
    counted = trace.trained.document["people"]
    assert counted["most_devices"] > 28
    monkeypatch.setattr("fedray.clients.data.recorded.MOST_COUNTED", 999)
    unknown = source_of(scenario).people(scenario)
    assert unknown == {"clients": 36}
    # Trainers are other processes, which count with the limit as it is.
    monkeypatch.setitem(trace.trained.document, "people", unknown)
    audit = audit_trace(trace)
    assert audit.clients is not None
    assert audit.to_json()["clients"]["most_devices"] is None
    said = "Unknown: on how many devices the data of one of the 36 clients is"
    for text in (audit.verdict, privacy_statement(audit).summary, trace_page(trace)):
        assert said in text
        assert "the epsilon of a person is unknown" in text
    untied = scenario.with_overrides("data.tie=none")
    assert source_of(untied).people(untied) == {"clients": 36, "most_devices": 28}


@pytest.mark.parametrize("tie", ["none", "speed"])
def test_the_most_devices_of_a_client_are_counted_as_the_data_is_assigned(
    tmp_path: Path, scenario_of, tie: str
) -> None:
    table = written(tmp_path / "d.parquet", lambda client, example: float(client))
    members = {"participation": {"members": [0.0, 0.5]}}
    scenario = scenario_of({**table, "tie": tie, "scale": 1.0}, **members)
    source: Any = source_of(scenario)
    ids = np.arange(1000, dtype=np.uint64)
    ids = ids[are_members(scenario, ids)]
    # Every client's examples are its number, by which devices are counted here.
    held = source.examples(ids, np.zeros((ids.size, 1), np.int64))["inputs"].ravel()
    found = source.people(scenario)
    most = int(np.unique(held, return_counts=True)[1].max())
    assert found == {"clients": 36, "most_devices": most}
