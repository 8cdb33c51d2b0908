"""The page of `fedray watch` is for this machine alone, and shows nothing that is not below its directory."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedray.base.errors import InputError
from fedray.watch.entries import Runs
from fedray.watch.server import WatchServer, inside

Answer = tuple[int, dict[str, str], str]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """runs/ with one study, beside a file that is nobody's business."""
    study = tmp_path / "runs" / "study"
    study.mkdir(parents=True)
    (study / "results.json").write_text("{}")
    (study / "report.html").write_text("<p>the page")
    (tmp_path / "runs" / "notes.html").write_text("private")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "report.html").write_text("private")
    return tmp_path / "runs"


@pytest.fixture
def server(directory: Path) -> Iterator[WatchServer]:
    with WatchServer(Runs(directory)) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.02,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def asks(server: WatchServer) -> Callable[..., Answer]:
    def ask(path: str, method: str = "GET", **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
        try:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.putrequest(method, path, skip_host="Host" in given)
            for name, value in given.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, dict(answer.headers), answer.read().decode()
        finally:
            connection.close()

    return ask


def test_it_listens_on_the_loopback_interface_alone(server) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"
    assert server.address == f"http://127.0.0.1:{server.server_port}/"


def test_the_page_and_its_listing(asks) -> None:
    status, headers, page = asks("/")
    assert status == 200
    nonce = page.partition('<script nonce="')[2].partition('"')[0]
    policy = headers["Content-Security-Policy"]
    assert f"script-src 'nonce-{nonce}';" in policy
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "http" not in page.replace("http-equiv", "")  # it names no other place
    assert asks("/")[2] != page  # a nonce is used once
    status, headers, text = asks("/state.json")
    listing = json.loads(text)
    assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    assert [each["path"] for each in listing["entries"]] == ["study"]
    assert listing["entries"][0]["report"] == "study/report.html"


def test_a_page_of_a_run_is_shown_in_a_sandbox(asks) -> None:
    status, headers, page = asks("/report/study/report.html")
    assert (status, page) == (200, "<p>the page")
    assert "sandbox allow-scripts" in headers["Content-Security-Policy"]
    assert "allow-same-origin" not in headers["Content-Security-Policy"]
    assert "connect-src" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/report/../outside/report.html",
        "/report/%2e%2e/outside/report.html",
        "/report/study/..%2f..%2foutside/report.html",
        "/report//etc/passwd",
        "/report/%2fetc/passwd",
        "/report/study/report.html%00",
        "/report/notes.html",
        "/report/study/results.json",
        "/report/study",
        "/report/study/",
        "/report/",
        "/report/link/report.html",
        "/report/linked/report.html",
        "/report/renamed/report.html",
        "/report/pipe/report.html",
        "/report/folder/report.html",
        "/report/%ff%fe/report.html",
        "/study/report.html",
        "/favicon.ico",
        "/compare?run=../outside",
        "/compare?run=study&run=study",
    ],
)
def test_nothing_else_is_shown(path: str, asks, directory: Path) -> None:
    (directory / "link").symlink_to(directory.parent / "outside")
    for name, target in (("linked", "../../outside/report.html"), ("renamed", "../notes.html")):
        (directory / name).mkdir()
        (directory / name / "report.html").symlink_to(target)
    (directory / "pipe").mkdir()
    os.mkfifo(directory / "pipe" / "report.html")
    (directory / "folder" / "report.html").mkdir(parents=True)
    status, _, text = asks(path)
    assert status == 404
    assert text.count("\n") == 1
    assert "private" not in text
    assert "root:" not in text


def test_a_link_that_stays_below_the_directory_is_followed(asks, directory: Path) -> None:
    (directory / "again").symlink_to("study")
    assert asks("/report/again/report.html")[0] == 200
    assert inside(directory, "again/report.html") == directory / "study" / "report.html"


@pytest.mark.parametrize(
    "host", ["example.org", "example.org:{port}", "127.0.0.1", "", "127.0.0.1:1"]
)
def test_another_name_of_this_machine_is_refused(host: str, asks, server) -> None:
    for path in ("/", "/state.json", "/report/study/report.html"):
        assert asks(path, Host=host.format(port=server.server_port))[0] == 403
    assert asks("/", Host=f"localhost:{server.server_port}")[0] == 200


@pytest.mark.parametrize("path", ["/state.json", "/compare?run=a&run=b"])
def test_a_page_of_another_site_or_in_a_sandbox_gets_no_answer(path: str, asks) -> None:
    assert asks(path, Sec_Fetch_Site="cross-site")[0] == 403
    assert asks(path, Sec_Fetch_Site="same-origin")[0] in (200, 404)


@pytest.mark.parametrize("method", ["POST", "HEAD", "PUT", "DELETE", "OPTIONS"])
def test_only_get_is_answered(method: str, asks) -> None:
    status, headers, _ = asks("/", method)
    assert (status, headers["Allow"]) == (405, "GET")


def test_two_trained_runs_of_a_trace_are_compared(
    asks, directory: Path, trace_of, trained_of
) -> None:
    trace = trace_of([[0, 2], [1, 3], [0], [1, 2], [3]], 4)
    trace.path.rename(directory / "trace")
    for name, override in (("one", "training.seed=1"), ("two", "training.seed=2")):
        trained_of(name, trace, {"accuracy": 0.5}, override).path.rename(directory / name)
    status, headers, page = asks("/compare?run=one&run=two")
    assert status == 200
    assert "sandbox allow-scripts" in headers["Content-Security-Policy"]
    assert "Trained runs compared" in page
    assert "Epsilon is not known" not in page  # the trace was found
    status, _, text = asks("/compare?run=one")
    assert (status, text) == (400, "1 trained run cannot be compared; give at least 2\n")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_says_where_the_page_is_and_ends_quietly(
    directory: Path, start, number: int
) -> None:
    command = [sys.executable, "-m", "fedray", "status", str(directory), "--watch", "0"]
    run = start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = run.stdout.readline()
    port = int(line.partition("http://127.0.0.1:")[2].partition("/")[0])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/state.json")
    assert connection.getresponse().status == 200
    connection.close()
    run.send_signal(number)
    out, err = run.communicate(timeout=120)
    assert (run.returncode, out, err) == (0, "", "")


def test_a_port_that_is_taken_is_refused_in_one_line(server, directory: Path) -> None:
    with pytest.raises(InputError, match=f"^port={server.server_port} cannot be listened on"):
        WatchServer(Runs(directory), server.server_port)


def test_a_new_server_takes_the_port_of_the_one_before(directory: Path) -> None:
    with WatchServer(Runs(directory)) as first:
        port = first.server_port
    with WatchServer(Runs(directory), port) as second:
        assert second.server_port == port
