"""The page: self-contained, its numbers those of the audit, its bins those of the trace."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedray.audit.audit import audit_trace
from fedray.audit.claims import Claim
from fedray.errors import InputError
from fedray.placement import Placement
from fedray.report.figures import gap_bins, round_durations
from fedray.report.page import render, write_report
from fedray.simulation import simulate
from fedray.stress.page import sweep_page
from fedray.stress.run import run_sweep
from fedray.stress.sweep import Sweep
from fedray.trace.importer import import_log
from fedray.trace.reader import Trace


@pytest.fixture(scope="module")
def trace(small, tmp_path_factory) -> Trace:
    scenario = small(
        "training.enabled=true", "training.evaluate_every=3", "description='<b>a & b</b>'", "participation.timer_hours=1.0"
    )
    return simulate(scenario, Placement(1, "in-process"), tmp_path_factory.mktemp("report") / "t")


@pytest.fixture(scope="module")
def page(trace: Trace) -> str:
    return render(trace, audit_trace(trace))


def script(page: str, name: str) -> dict:
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, flags=re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


def test_the_numbers_on_the_page_are_those_of_the_audit(page: str, trace: Trace) -> None:
    audit = json.loads(json.dumps(audit_trace(trace).to_json_in_full()))
    assert script(page, "audit-data") == audit
    cards = dict(re.findall(r'<b data-key="(\w+)">([\d,]+)</b>', page))
    assert set(cards) == {"rounds", "devices", "participations", "min_sep", "max_participations"}
    assert all(int(text.replace(",", "")) == audit[key] for key, text in cards.items())
    for mechanism in audit["mechanisms"]:
        assert f"<td>{mechanism['sensitivity']['trace_exact']:.6f}</td>" in page
        assert f"<td>{mechanism['epsilon']:.4f}</td>" in page


def test_the_page_needs_no_network_and_escapes_what_it_is_given(page: str) -> None:
    class Links(HTMLParser):
        found: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.found += [value or "" for name, value in attrs if name in ("src", "href")]

    parser = Links()
    parser.feed(page)
    assert parser.found == ["data:,"]
    assert "<b>a & b</b>" not in page
    assert "&lt;b&gt;a &amp; b&lt;/b&gt;" in page


def test_every_figure_is_there_with_its_data(page: str, trace: Trace) -> None:
    figures = script(page, "figure-data")
    assert list(figures) == ["eligible", "diurnal", "durations", "accuracy", "participations", "gaps", "privacy", "devices"]
    audit = audit_trace(trace)
    assert sum(figures["participations"]["data"][0]["y"]) == audit.devices
    bars = figures["gaps"]["data"][0]["y"]
    assert sum(bars if isinstance(bars, list) else _decode(bars)) == audit.patterns.gaps.size
    assert figures["privacy"]["data"][0]["y"][-1] == pytest.approx(audit.mechanisms[0].epsilon)


def _decode(encoded: dict) -> list[float]:
    import base64

    return np.frombuffer(base64.b64decode(encoded["bdata"]), np.dtype(encoded["dtype"])).tolist()


def test_a_page_without_training_says_nothing_of_a_model(small, tmp_path: Path) -> None:
    trace = simulate(small(), Placement(1, "in-process"), tmp_path / "t")
    page = render(trace, audit_trace(trace))
    assert "accuracy" not in script(page, "figure-data")
    assert "really trained" not in page


def test_the_note_on_scaled_noise_is_there(page: str) -> None:
    assert "64 of the 200 accepted devices really trained" in page


@given(st.lists(st.integers(1, 5000), max_size=60))
def test_gap_bins_hold_every_gap_once(values: list[int]) -> None:
    edges, counts = gap_bins(np.array(values, np.int64))
    assert counts.sum() == len(values)
    assert len(counts) <= 120
    assert len(edges) == len(counts) + 1
    assert len(set(np.diff(edges).tolist())) == 1


def test_round_durations_add_up_to_the_run(trace: Trace) -> None:
    minutes = round_durations(trace).data[0].y
    assert 60 * sum(minutes) == pytest.approx(trace.rounds["closed"][trace.rounds["state"] == 0].max())


def test_an_unwritable_page_is_refused_and_leaves_nothing(trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_report(trace, audit_trace(trace), tmp_path / "missing" / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_a_page_of_an_imported_log_with_a_broken_claim(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("dev,round\na<b>,0\na<b>,3\na<b>,3\nc,1\nc,2\n")
    trace = import_log(tmp_path / "log.csv", "dev", "round", 4, tmp_path / "t", repeats="once")
    claim = Claim.model_validate({"mechanism": {"kind": "tree"}, "noise_multiplier": 2.0, "min_sep": 2, "rho": 0.1})
    audit = audit_trace(trace, claim=claim)
    page = render(trace, audit)
    assert script(page, "audit-data") == json.loads(json.dumps(audit.to_json_in_full()))
    assert list(script(page, "figure-data")) == ["participations", "gaps", "privacy", "devices"]
    assert "The claim does not hold: " in page
    for finding in audit.findings:
        assert f"<td>{finding.statement}</td><td><strong>{finding.verdict}</strong></td>" in page
    assert "<td>c</td>" in page
    assert audit.findings[0].verdict == "unchecked"
    assert "a<b>" not in page
    assert "1 rows: the same device in the same round again" in page
    assert "Scenario</summary>" not in page


def sweep_document(tmp_path: Path) -> tuple[str, dict]:
    (tmp_path / "s.toml").write_text(
        'name = "small <i>"\nestimate = {rounds = 60, min_sep = 12, max_participations = 5}\nx = "min_sep"\n'
        "vary = {rounds = [60], max_participations = [3], min_sep = [6, 9, 12, 20, 29]}\n"
        '[[mechanisms]]\nkind = "banded"\nbands = 12\n'
        '[[mechanisms]]\nkind = "blt"\nbuffers = 2\nobjective = "rms"\n'
    )
    result = run_sweep(*Sweep.from_toml(tmp_path / "s.toml"), Placement(backend="in-process"), has_cache=False)
    return sweep_page(result), json.loads(json.dumps(result.to_json()))


def test_a_sweep_s_page_has_its_rows_and_crossings(tmp_path: Path) -> None:
    page, document = sweep_document(tmp_path)
    assert script(page, "results-data") == document
    assert "small &lt;i&gt;" in page
    figure = script(page, "figure-data")["lines"]
    assert [line["name"] for line in figure["data"]] == [
        "banded 12 bands for the estimate",
        "blt 2 buffers, rms for the estimate",
    ]
    assert len(figure["layout"]["shapes"]) == len(document["crossings"]) >= 1
    for crossing in document["crossings"]:
        assert f"<td>{crossing['at']:.1f}</td>" in page
    for row in document["rows"]:
        assert f"<td>{row['rms_loss']:.5g}</td>" in page


PAGES = {"trace": 8, "sweep": 1}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium, which draws the page")
@pytest.mark.parametrize("kind", PAGES)
def test_a_browser_draws_every_figure_without_an_error(kind: str, request, tmp_path: Path) -> None:
    content = request.getfixturevalue("page") if kind == "trace" else sweep_document(tmp_path)[0]
    (tmp_path / "page.html").write_text(content)
    quiet = ["--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        *quiet,
        "--virtual-time-budget=8000",
        "--enable-logging=stderr",
    ]
    done = subprocess.run(
        [*command, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", f"file://{tmp_path / 'page.html'}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert f'data-drawn="{PAGES[kind]}"' in done.stdout
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count('class="main-svg"') >= PAGES[kind]
