"""Runs whose output is in a bucket: a real S3 protocol, by moto's server on the loopback interface."""

import json
import logging
import os
import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest
from moto.server import ThreadedMotoServer

from fedray.audit.ledger import Ledger
from fedray.base.errors import InputError, RunFailed, StopTraining
from fedray.base.storage import Bucket
from fedray.runs.learning import _Training
from fedray.runs.pipeline import resume_run, run_scenario
from fedray.runtime.placement import Placement
from fedray.trace.reader import Trace
from fedray.trace.stored import StoredRun
from fedray.wire.messages import Progress, TrainingProgress

pytestmark = pytest.mark.xdist_group("bucket")
IN_PROCESS = ["--place", "backend=in-process"]
KEYS = (
    "rounds.count=60",
    "training.enabled=true",
    "training.cohort_sample=8",
    "training.evaluate_every=15",
)
MOMENTS = 10 if os.environ.get("FEDRAY_ALL_MOMENTS") else 1


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    yield "{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def bucket(server: str, monkeypatch) -> Callable[[str], str]:
    """Makes the URI of a name in an empty bucket; the client is told the server by the environment."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL": f"http://{server}",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    files, _ = pyarrow.fs.FileSystem.from_uri("s3://runs?allow_bucket_creation=true")
    files.create_dir("runs")
    files.delete_dir_contents("runs")
    return lambda name: f"s3://runs/{name}"


def objects() -> list[str]:
    selector = pyarrow.fs.FileSelector("runs", recursive=True)
    found = pyarrow.fs.FileSystem.from_uri("s3://runs")[0].get_file_info(selector)
    return sorted(each.path for each in found if each.type == pyarrow.fs.FileType.File)


def can_be_resumed() -> bool:
    begin = ("runs/x.partial/checkpoints/", "runs/x.partial/run.json")
    return any(each.startswith(begin) for each in objects())


@pytest.fixture(scope="module")
def scenario(small, tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("scenario") / "s.toml"
    file.write_text(small(*KEYS).to_toml())
    return file


@pytest.fixture(scope="module")
def whole(small, tmp_path_factory) -> Trace:
    """The same run on this machine."""
    out = tmp_path_factory.mktemp("whole") / "run"
    return run_scenario(small(*KEYS), Placement(1, "in-process"), out)


def digests(trace: Trace) -> tuple[str, str, str]:
    trained = trace.trained
    assert trained is not None
    trace.verify()
    return trace.digest, trained.document["metrics_digest"], trained.document["model_sha256"]


@pytest.mark.slow
def test_a_run_that_its_training_stops_has_only_its_rounds_in_a_bucket(
    bucket, small, tmp_path: Path
) -> None:
    """Its trace is replaced by a shorter one after parts of it may have been copied."""

    def stop(progress: Progress) -> None:
        if isinstance(progress, TrainingProgress) and progress.trained == 20:
            # Until then the whole trace is copied.
            time.sleep(5.0)
            raise StopTraining("enough")

    here = Placement(1, "in-process")
    stored = run_scenario(small(*KEYS), here, bucket("x"), stop)
    assert stored.committed_rounds == 20
    assert digests(stored) == digests(run_scenario(small(*KEYS), here, tmp_path / "run", stop))
    assert not [each for each in objects() if ".partial" in each]


@pytest.mark.slow
def test_a_run_goes_to_a_bucket_and_is_read_there(
    fedray_command, bucket, scenario: Path, whole: Trace, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    uri = bucket("x")
    code, out, err = fedray_command("run", str(scenario), "--out", uri, *IN_PROCESS)
    assert code == 0, err
    assert f"trace   {uri}\n" in out
    assert f"fedray run --resume {uri}\n" in err
    assert str(tmp_path) not in out + err
    # Nothing of the unfinished run stays, neither there nor here.
    assert {each.split("/")[1] for each in objects()} == {"x"}
    assert {"runs/x/run.json", "runs/x/report.html", "runs/x/training/training.json"} <= {
        *objects()
    }
    assert not list(tmp_path.iterdir())
    assert digests(Trace.open(uri)) == digests(whole)
    code, out, err = fedray_command("audit", uri, "--verify", "--json")
    assert (code, json.loads(out)["digest"]) == (0, whole.digest), err
    code, out, err = fedray_command("report", uri, "--out", str(tmp_path / "page.html"))
    assert (code, out) == (0, f"{tmp_path / 'page.html'}\n"), err
    code, out, err = fedray_command("status", bucket(""), "--json")
    assert [each["path"] for each in json.loads(out)["entries"]] == ["x"], err
    code, out, err = fedray_command("status", uri, "--json")
    listed = json.loads(out)
    assert (listed["directory"], [each["path"] for each in listed["entries"]]) == (uri, ["x"]), err
    code, out, err = fedray_command("verify", uri, *IN_PROCESS)
    assert code == 0, err
    code, out, err = fedray_command("run", str(scenario), "--resume", uri, "--json")
    opened = json.loads(out)
    assert (code, opened["trace"], opened["report"]) == (0, uri, f"{uri}/report.html"), err
    assert str(tmp_path) not in out + err
    for arguments, problem in (
        (["run", str(scenario), "--out", uri], "exists already"),
        (["run", "--resume", uri], "is complete"),
        (["run", "--resume", bucket("y")], "has no unfinished run"),
        (["run", str(scenario), "--out", "s3://runs"], "is a whole bucket"),
        (["run", str(scenario), "--out", "s3://nobody/x"], "cannot be written"),
        (["audit", "s3://nobody/x"], "has no such files"),
        (["audit", bucket("x?region=a&nonsense=1")], "cannot be used"),
        (["audit", bucket("y")], "has no such files"),
        (["report", uri], "give --out FILE"),
        (["budget", bucket("ledger"), "--epsilon", "1", "--delta", "1e-6"], "not on this machine"),
        (
            ["run", str(scenario), "--out", bucket("z"), "--ledger", bucket("l")],
            "not on this machine",
        ),
    ):
        code, out, err = fedray_command(*arguments)
        assert (code, out) == (2, "")
        assert problem in err
        assert err.count("\n") == 1
    assert {each.split("/")[1] for each in objects()} == {"x"}


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(MOMENTS))
def test_a_killed_run_goes_on_elsewhere_to_the_same_digests(
    moment: int,
    fedray_command,
    bucket,
    start,
    scenario: Path,
    whole: Trace,
    tmp_path: Path,
    monkeypatch,
) -> None:
    uri = bucket("x")
    often = [*IN_PROCESS, "--place", "checkpoint_seconds=0.05"]
    here = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "fedray", "run", str(scenario), "--resume", uri, *often]
    process = start(command, env=here)
    while not can_be_resumed():
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(random.Random(moment).uniform(0.0, 2.0))
    is_over = process.poll() is not None
    process.send_signal(signal.SIGKILL)
    process.wait()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    if "runs/x/run.json" not in objects():
        assert not is_over
        with pytest.raises(InputError):
            Trace.open(uri)
    # The command that started it continues it, and opens it once it is complete.
    for _ in range(2):
        code, _, err = fedray_command("run", str(scenario), "--resume", uri, *IN_PROCESS)
        assert code == 0, err
    assert digests(Trace.open(uri)) == digests(whole)


def test_a_run_of_which_any_object_is_missing_is_not_readable(
    bucket, whole: Trace, monkeypatch
) -> None:
    """The copying of the finished run ends at every object in turn."""
    written = 0
    write = Bucket.write

    def limited(self: Bucket, name: str, content: bytes, *error: Any) -> None:
        nonlocal written
        if written == most:
            raise RunFailed("the network is down")
        written += 1
        write(self, name, content, *error)

    count = sum(each.is_file() for each in whole.path.rglob("*"))
    assert count > 5
    # One is written at a time, so that a number says which are there.
    monkeypatch.setattr("fedray.base.storage._AT_ONCE", 1)
    monkeypatch.setattr(Bucket, "write", limited)
    for most in range(count + 1):
        uri, written = bucket(f"x{most}"), -1  # the first object is no part of the run
        with suppress(RunFailed), StoredRun(Bucket(uri), is_resumed=False) as stored:
            shutil.copytree(whole.path, stored.directory)
            stored.publish()
        if most == count:
            assert digests(Trace.open(uri)) == digests(whole)
        else:
            with pytest.raises(InputError, match=r"has no run\.json|has no such files"):
                Trace.open(uri)
            assert digests(Trace.open(stored.directory)) == digests(whole)
            shutil.rmtree(stored.directory.parent)
            # Without a checkpoint it starts again, and a run that is refused leaves nothing.
            written = -100
            with StoredRun(Bucket(uri), is_resumed=False):
                pass
            assert not [each for each in objects() if each.startswith(f"{uri[5:]}/")]


@pytest.mark.slow
def test_a_run_without_its_network_keeps_its_files_and_says_where(
    fedray_command, bucket, scenario: Path, whole: Trace, server: str, monkeypatch
) -> None:
    uri = bucket("x")
    own = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    own.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*own.get_host_and_port()))
    keep = StoredRun._copy_changed

    def once(self: StoredRun) -> None:
        keep(self)
        own.stop()

    monkeypatch.setattr(StoredRun, "_copy_changed", once)
    # The run may take less than the two seconds between copies.
    monkeypatch.setattr("fedray.trace.stored.SECONDS_BETWEEN", 0.1)
    often = [*IN_PROCESS, "--place", "checkpoint_seconds=0.05"]
    code, out, err = fedray_command("run", str(scenario), "--out", uri, *often)
    assert code == 1
    assert f"trace   {uri}\n" in out
    *_, line = err.splitlines()
    found = re.fullmatch(r"fedray: the run is complete in '(.+)' but not in the bucket: (.+)", line)
    assert found is not None, err
    assert found[2].endswith("its run.json or tasks.json last")
    assert digests(Trace.open(found[1])) == digests(whole)
    shutil.rmtree(Path(found[1]).parent)
    # The objects are moto's, whichever of its servers is asked.
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{server}")
    assert "runs/x/run.json" not in objects()


@pytest.mark.slow
def test_a_run_that_ends_before_it_is_in_the_bucket_is_not_charged_and_later_once(
    fedray_command, bucket, scenario: Path, tmp_path: Path, monkeypatch
) -> None:
    ledger = Ledger.create(tmp_path / "ledger", 900.0, 1e-6, "year")
    command = ["run", str(scenario), "--resume", bucket("x"), *IN_PROCESS]
    command += ["--ledger", str(ledger.path), "--start"]

    def interrupted(self: StoredRun) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StoredRun, "publish", interrupted)
        code, _, err = fedray_command(*command, "2026-10-01")
        assert code == 130, err
    assert [each["kind"] for each in Ledger.open(ledger.path).entries] == ["budget", "reserved"]
    for _ in range(2):
        code, _, err = fedray_command(*command, "2026-10-01")
        assert code == 0, err
        entries = Ledger.open(ledger.path).entries
        assert [each["kind"] for each in entries] == ["budget", "reserved", "charged"]


@pytest.mark.slow
def test_tasks_are_resumed_from_a_bucket_while_their_models_are_trained(
    fedray_command, bucket, small, tmp_path: Path, monkeypatch
) -> None:
    from fedray.scenario import SeveralTasks
    from fedray.trace.several_tasks import TasksRun

    keys = ("rounds.count=12", *KEYS[1:], "training.evaluate_every=12")
    tables = {**small(*keys).to_tables(), "tasks": {"one": {}, "two": {"weight": 2}}}
    scenario = SeveralTasks.from_tables(tables)
    uri = bucket("x")
    whole = run_scenario(scenario, Placement(1, "in-process"), tmp_path / "whole")

    def train(self: _Training, round_index: int, cohort: Any) -> None:
        own(self, round_index, cohort)
        name = self.writer.directory.parent.name
        if name == "two" and round_index == 6 and not stopped:
            stopped.append(name)
            raise KeyboardInterrupt

    stopped: list[str] = []
    own = _Training.train
    monkeypatch.setattr(_Training, "train", train)
    # The same in Python.
    placement = Placement(1, "in-process", checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt, match=re.escape(uri)):
        run_scenario(scenario, placement, uri)
    assert stopped == ["two"]
    assert {"runs/x.partial/tasks.json", "runs/x.partial/two/run.json"} <= {*objects()}
    for name in ("x", "x/one", "x/two"):
        with pytest.raises(InputError):
            TasksRun.open(bucket(name)) if name == "x" else Trace.open(bucket(name))
    again = resume_run(uri, placement)
    assert isinstance(again, TasksRun)
    assert again.digest == whole.digest
    for name, trace in TasksRun.open(uri).traces.items():
        assert digests(trace) == digests(whole.traces[name])
    assert {each.split("/")[1] for each in objects()} == {"x"}
    code, out, err = fedray_command("audit", uri, "--json")
    assert (code, json.loads(out)["digest"]) == (0, whole.digest), err


@pytest.mark.slow
def test_a_sweep_goes_to_a_bucket_and_another_machine_finds_its_cells_there(
    fedray_command, bucket, small, tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "small.toml").write_text(small().to_toml())
    (tmp_path / "sweep.toml").write_text(
        'name = "seeds"\nscenario = "small.toml"\nx = "seed"\nvary = {seed = [1, 2]}\n'
        '[[mechanisms]]\nkind = "identity"\n'
    )

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    command = ["sweep", str(tmp_path / "sweep.toml"), "--out", bucket("x"), *IN_PROCESS]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "first"))
    with monkeypatch.context() as patch:
        patch.setattr("fedray.studies.sweep.run.result_files", interrupted)
        code, _, err = fedray_command(*command)
        assert code == 130, err
    kept = [each for each in objects() if each.startswith("runs/x/cells/")]
    assert len(kept) == 4
    assert objects() == kept
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "second"))
    (tmp_path / "second").mkdir()
    code, out, err = fedray_command(*command)
    assert code == 0, err
    assert "2 of 2 runs simulated, 2 of them earlier" in err
    assert f"report  {bucket('x')}/report.html\n" in out
    results = {f"runs/x/{each}" for each in ("results.parquet", "results.json", "report.html")}
    assert {*objects()} == {*kept, *results}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "third"))
    code, here, _ = fedray_command(*command[:2], "--json", *IN_PROCESS)
    files, _ = pyarrow.fs.FileSystem.from_uri("s3://runs")
    assert code == 0
    assert json.loads(files.open_input_stream("runs/x/results.json").read()) == json.loads(here)
    code, _, err = fedray_command(*command)
    assert (code, "exists already; name a new one" in err) == (2, True)
