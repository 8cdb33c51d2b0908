"""Runs whose output is in a bucket: a real S3 protocol, by moto's server on the loopback interface."""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow.fs
import pytest
from moto.server import ThreadedMotoServer

from fedray.base.errors import FedrayError, InputError
from fedray.runs.pipeline import run_scenario
from fedray.runtime.placement import Placement
from fedray.trace.reader import Trace
from fedray.trace.several_tasks import TasksRun
from fedray.trace.stored import StoredRun

pytestmark = pytest.mark.xdist_group("bucket")
IN_PROCESS = ["--place", "backend=in-process"]
KEYS = (
    "rounds.count=24",
    "training.enabled=true",
    "training.cohort_sample=8",
    "training.evaluate_every=4",
)
MOMENTS = 10 if os.environ.get("FEDRAY_ALL_MOMENTS") else 2


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
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
    assert {"runs/x/run.json", "runs/x/report.html", "runs/x/training/training.json"} <= {*objects()}
    assert not list(tmp_path.iterdir())
    assert digests(Trace.open(uri)) == digests(whole)
    code, out, err = fedray_command("audit", uri, "--verify", "--json")
    assert (code, json.loads(out)["digest"]) == (0, whole.digest), err
    code, out, err = fedray_command("report", uri, "--out", str(tmp_path / "page.html"))
    assert (code, out) == (0, f"{tmp_path / 'page.html'}\n"), err
    code, out, err = fedray_command("status", bucket(""), "--json")
    assert [each["path"] for each in json.loads(out)["entries"]] == ["x"], err
    code, out, err = fedray_command("verify", uri, *IN_PROCESS)
    assert code == 0, err
    for arguments, problem in (
        (["run", str(scenario), "--out", uri], "exists already"),
        (["run", "--resume", uri], "is complete"),
        (["run", "--resume", bucket("y")], "has no unfinished run"),
        (["run", str(scenario), "--out", "s3://runs"], "is a whole bucket"),
        (["audit", bucket("y")], "has no such files"),
        (["report", uri], "give --out FILE"),
        (["budget", bucket("ledger"), "--epsilon", "1", "--delta", "1e-6"], "not on this machine"),
        (["run", str(scenario), "--out", bucket("z"), "--ledger", bucket("l")], "not on this machine"),
    ):
        code, out, err = fedray_command(*arguments)
        assert (code, out) == (2, "")
        assert problem in err
        assert err.count("\n") == 1
    assert {each.split("/")[1] for each in objects()} == {"x"}
