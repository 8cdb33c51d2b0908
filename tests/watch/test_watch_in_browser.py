"""A browser shows the page of `fedray status --watch` without an error: a real run from its start to its end, and a new server."""

import html
import json
import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from fedray.report.page import render_watch, write_page
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.watch.entries import Runs
from fedray.watch.server import WatchServer
from fedray.watch.shown import shown_listing

pytestmark = [
    pytest.mark.outside,
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("chromium") is None, reason="needs chromium, which shows the page"
    ),
]
HERE = Placement(1, "in-process", checkpoint_seconds=0.0)


def shown(address: str, profile: Path, width: int = 1280, is_quiet: bool = True) -> str:
    """What a browser makes of a page; unless `is_quiet` is false, asserts that it complains of
    nothing, such as of a policy."""
    done = subprocess.run(
        [
            "chromium",
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--virtual-time-budget=6000",
            "--enable-logging=stderr",
            f"--window-size={width},900",
            f"--user-data-dir={profile}",
            "--dump-dom",
            address,
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert not is_quiet or "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


def texts(page: str) -> str:
    """What a page says, without its scripts."""
    body = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", "\n", body))


def test_a_run_is_followed_to_its_end_and_its_page_is_opened(
    tmp_path: Path, small, monkeypatch, trace_of
) -> None:
    monkeypatch.setattr("fedray.trace.progress.SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr("fedray.trace.progress.MOST_SHARE", 1e9)
    runs = tmp_path / "runs"
    is_watched, may_go_on = threading.Event(), threading.Event()

    def hold(progress: Any) -> None:
        if progress.committed == 9:
            is_watched.set()
            may_go_on.wait(300)

    # A name that would end a script, or begin an element.
    name = "a </script><img src=x onerror=alert(1)>"
    directory = runs / name.replace("/", "_")
    run = threading.Thread(target=lambda: simulate(small(), HERE, directory, hold))
    runs.mkdir()
    with WatchServer(Runs(runs)) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            run.start()
            assert is_watched.wait(120)
            told = texts(shown(server.address, tmp_path / "profile"))
        finally:
            may_go_on.set()
            run.join()
        for text in (directory.name, "running", "8/12", "rho at most", "1 under way, 1 in all."):
            assert text in told
        write_page("<!doctype html><title>t</title><p>the page", directory / "report.html")
        page = shown(server.address, tmp_path / "profile", 500)
        assert "Nothing is under way; 1 in all." in texts(page)
        link = re.search(r'href="(/report/[^"]+)"', page)
        assert link is not None
        port = server.server_port
        server.shutdown()
    # A new server at the same place knows as much.
    with WatchServer(Runs(runs), port) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        opened = shown(f"{server.address.rstrip('/')}{html.unescape(link[1])}", tmp_path / "p")
        assert "the page" in texts(opened)
        server.shutdown()


def test_a_comparison_is_drawn_in_its_sandbox(tmp_path: Path, trace_of, trained_of) -> None:
    trace = trace_of([[0, 2], [1, 3], [0], [1, 2], [3]], 4)
    for name, override in (("one", "training.seed=1"), ("two", "training.seed=2")):
        trained_of(name, trace, {"accuracy": 0.5}, override)
    with WatchServer(Runs(tmp_path)) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        page = shown(f"{server.address}compare?run=one&run=two", tmp_path / "profile")
        server.shutdown()
    assert "Trained runs compared" in texts(page)
    assert 'data-drawn="' in page


CHOOSE = """
const box = name => document.getElementById("run-" + name), found = [];
const look = () => found.push([box("one").checked, box("other").disabled, document.getElementById("compare").disabled]);
look();
box("one").focus();
box("one").click();
look();
box("two").click();
look();
const listing = JSON.parse(document.getElementById("first").textContent);
listing.entries.push({ ...listing.entries[0], path: "new", model: "new" });
show(listing);
look();
found.push(document.activeElement.id);
document.body.dataset.found = JSON.stringify(found);
"""


def test_runs_of_one_trace_are_chosen_and_the_page_says_so_when_nobody_answers(
    tmp_path: Path, trace_of, trained_of
) -> None:
    """On a copy of the page, at which no server is."""
    (tmp_path / "runs").mkdir()
    for names, patterns in ((("one", "two"), [[0], [1]]), (("other",), [[1], [0]])):
        trace = trace_of(patterns, 2)
        for seed, name in enumerate(names):
            run = trained_of(name, trace, {"accuracy": 0.5}, f"training.seed={seed}")
            run.path.rename(tmp_path / "runs" / name)
    listing = shown_listing(Runs(tmp_path / "runs").list())
    page = tmp_path / "page.html"
    page.write_text(f"{render_watch(listing, 'nonce')}<script>{CHOOSE}</script>")
    done = shown(f"file://{page}", tmp_path / "profile", is_quiet=False)
    assert "No answer from fedray: start it again on the same port" in texts(done)
    found = re.search(r'data-found="([^"]*)"', done)
    assert found is not None
    # Whether one is checked, another trace's run is disabled, and nothing can be compared; what
    # was chosen, and where the keyboard is, outlast a new row.
    assert json.loads(html.unescape(found[1])) == [
        [False, False, True],
        [True, True, True],
        [True, True, False],
        [True, True, False],
        "run-one",
    ]


CURVES = """
const listing = JSON.parse(document.getElementById("first").textContent);
const running = { ...listing.entries[0], path: "new", state: "running", count: 9, evaluation: {} };
for (const [done, eligible] of [[1, 30], [2, 10], [2, 99], [3, 20]]) show({ ...listing, entries: [{ ...running, done, eligible }] });
const first = document.querySelectorAll(".curve");
document.body.dataset.curves = JSON.stringify([...first].map(each => [each.textContent, each.querySelector("polyline").getAttribute("points")]));
document.body.dataset.names = JSON.stringify([["a/t", "b/t", "c/u"], ["a/t", "c/u"]].map(paths => {
  byId("filter").value = "";
  show({ ...listing, entries: paths.map(path => ({ ...listing.entries[0], name: "small", path })) });
  return [...document.querySelectorAll("#finished tbody td.first")].map(each => each.textContent);
}));
byId("filter").value = "no such run";
show(listing);
document.body.dataset.left = document.querySelectorAll("#finished tbody tr").length;
"""


def test_a_run_in_progress_has_curves_and_the_filter_hides_what_it_does_not_match(
    tmp_path: Path, trace_of
) -> None:
    """A round is one point, however often the page asks."""
    trace_of([[0], [1]], 2).path.rename(tmp_path / "runs")
    listing = shown_listing(Runs(tmp_path).list())
    page = tmp_path / "page.html"
    page.write_text(f"{render_watch(listing, 'nonce')}<script>{CURVES}</script>")
    done = shown(f"file://{page}", tmp_path / "profile", is_quiet=False)
    found = re.search(r'data-curves="([^"]*)"', done)
    assert found is not None
    assert json.loads(html.unescape(found[1])) == [
        ["eligible 20.00; 10.0 to 30.0", "0,0 100,50 200,25"]
    ]
    assert 'data-left="0"' in done
    # Runs of one scenario in folders of one name have their whole paths.
    names = re.search(r'data-names="([^"]*)"', done)
    assert names is not None
    assert json.loads(html.unescape(names[1])) == [
        ["a/t", "b/t", "small (u)"],
        ["small (t)", "small (u)"],
    ]
