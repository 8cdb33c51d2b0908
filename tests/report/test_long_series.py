"""Pages of many rounds: long series are drawn by their extremes, files have all points, and the verdict does not wait for the page."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedray.audit.auditing import audit_trace
from fedray.base.errors import InputError, RunFailed
from fedray.commands.run import print_run, print_run_of_tasks
from fedray.commands.train import _print_trained
from fedray.report.figure import DRAWN_PARTS, Axis, Figure, Series
from fedray.report.files import figure_csv, write_figures
from fedray.report.page import render_study
from fedray.trace.several_tasks import TasksRun

ROUNDS = 100_000


def steps_of(lengths: np.ndarray, y: np.ndarray) -> Series:
    until = np.cumsum(lengths)
    return Series("a", "steps", until - lengths, y, until)


@given(st.integers(0, 2**32), st.sampled_from(["line", "steps"]), st.booleans())
@settings(max_examples=20, deadline=None)
def test_every_part_of_the_axis_keeps_its_least_and_largest_value(
    seed: int, kind: str, is_log: bool
) -> None:
    """Against a loop over the parts."""
    rng = np.random.default_rng(seed)
    until = 1.0 + np.cumsum(rng.exponential(1.0, 9_000) + 1e-6)
    x = np.concatenate([[1.0], until[:-1]])
    series = Series("a", kind, x, rng.normal(size=9_000), until)  # pyright: ignore[reportArgumentType]  (one of the kinds)
    found = series.thinned(Axis("x", is_log=is_log))
    at = np.log(series.x) if is_log else series.x
    part = np.minimum((at - at[0]) / (at[-1] - at[0]) * DRAWN_PARTS, DRAWN_PARTS - 1).astype(int)
    expected = []
    for each in np.unique(part):
        own = np.flatnonzero(part == each)
        ends = {int(own[series.y[own].argmin()]), int(own[series.y[own].argmax()])}
        expected += series.y[sorted(ends)].tolist()
    assert found.y.tolist() == expected
    assert found.x.size <= 2 * DRAWN_PARTS
    assert (np.diff(found.x) > 0).all()
    assert series.until is not None
    assert found.until is not None
    if kind == "steps":
        # Steps without a gap stay without one, from the first to the last.
        assert (found.x[0], found.until[-1]) == (series.x[0], series.until[-1])
        assert found.until[:-1] == pytest.approx(found.x[1:], rel=1e-9)


def test_a_long_gap_stays_a_gap_and_a_band_covers_that_of_its_part() -> None:
    x = np.arange(20_000.0)
    x[10_000:] += 5_000.0
    y = np.sin(x)
    steps = Series("a", "steps", x, y, x + 1.0).thinned(Axis("x"))
    assert steps.until is not None
    gap = np.flatnonzero(steps.x[1:] > steps.until[:-1])
    assert steps.until[gap].tolist() == [10_000.0]
    assert steps.x[gap + 1].tolist() == [15_000.0]
    band = Series("a", "line", x, y, low=y - 1.0, high=y + np.arange(20_000.0))
    found = band.thinned(Axis("x"))
    assert found.low is not None
    assert found.high is not None
    high = y + np.arange(20_000.0)
    assert (found.low.min(), found.high.max()) == (y.min() - 1.0, high.max())
    assert (found.low <= found.y).all()
    assert (found.y <= found.high).all()
    unknown = Series("a", "line", x, np.where(x % 7 == 0, np.nan, y)).thinned(Axis("x"))
    assert np.isfinite(unknown.y).all()


@pytest.mark.parametrize("kind", ["bars", "points"])
def test_short_series_and_other_kinds_stay_as_they_are(kind: str) -> None:
    x = np.arange(20_000.0)
    other = Series("a", kind, x, x, x + 1.0)  # pyright: ignore[reportArgumentType]  (one of the kinds)
    short = steps_of(np.ones(4 * DRAWN_PARTS), np.ones(4 * DRAWN_PARTS))
    assert other.thinned(Axis("x")) is other
    assert short.thinned(Axis("x")) is short
    figure = Figure("f", "F", "Note.", Axis("x"), Axis("y"), (other, short))
    assert figure.drawn() is figure


@pytest.mark.slow
def test_a_page_of_many_rounds_is_small_and_says_what_it_draws_and_files_have_all_points(
    script, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.exponential(0.1, ROUNDS)
    figures = [
        Figure(name, "F", "Note.", Axis("x"), Axis("y"), (steps_of(lengths, rng.random(ROUNDS)),))
        for name in "abcde"
    ]
    page = render_study("T", "n", figures, [], {})
    assert len(page) < 2_000_000
    said = f"Of {ROUNDS:,} points, the least and the largest value in each {DRAWN_PARTS:,}th part"
    assert page.count(said) == len(figures)
    data = script(page, "figure-data")["a"]["data"][0]
    assert max(len(data["x"]), len(data["hovertext"])) <= 4 * DRAWN_PARTS
    values = [each for each in data["y"] if each is not None]
    assert (min(values), max(values)) == (
        figures[0].series[0].y.min(),
        figures[0].series[0].y.max(),
    )

    class Result:
        def figures(self) -> list[Figure]:
            return figures[:1]

    write_figures(Result(), tmp_path)  # pyright: ignore[reportArgumentType]  (only its figures are read)
    rows = [*csv.reader(io.StringIO((tmp_path / "a.csv").read_text()))]
    assert len(rows) == 1 + ROUNDS
    assert (tmp_path / "a.csv").read_text() == figure_csv(figures[0])
    assert (tmp_path / "a.svg").stat().st_size < 500_000


@pytest.fixture
def page_is_made(monkeypatch) -> None:
    """Pages are not written, but their moment is printed."""

    def written(*_, **__) -> Path:
        print("page is made")
        return Path("page.html")

    monkeypatch.setattr("fedray.report.page.write_report", written)
    monkeypatch.setattr("fedray.report.page.write_own_page", written)


@pytest.mark.usefixtures("page_is_made")
def test_the_verdict_of_a_run_comes_before_its_page(trace_of, capsys) -> None:
    trace = trace_of([[0, 2], [1, 3]], 4)
    print_run(trace, as_json=False)
    verdict, page = capsys.readouterr().out.split("page is made\n")
    assert audit_trace(trace).verdict.split()[0] in verdict
    assert f"trace   {trace.path}" in verdict
    assert page == "report  page.html\n"


def test_a_page_that_cannot_be_written_loses_no_verdict(trace_of, capsys, monkeypatch) -> None:
    trace = trace_of([[0, 2], [1, 3]], 4)

    def full(*_, **__) -> Path:
        raise InputError("no space")

    monkeypatch.setattr("fedray.report.page.write_own_page", full)
    with pytest.raises(RunFailed, match="is complete but lacks a page: no space"):
        print_run(trace, as_json=False)
    said = capsys.readouterr().out
    assert "observed min-sep 2" in said
    assert said.endswith("report  -\n")


@pytest.mark.usefixtures("page_is_made")
def test_the_verdicts_of_several_tasks_come_before_their_pages(
    trace_of, small, tmp_path: Path, capsys
) -> None:
    traces = {name: trace_of([[0], [1]], 2, small()) for name in ("words", "none")}
    (tmp_path / "run").mkdir()
    print_run_of_tasks(TasksRun(tmp_path / "run", {"digest": ""}, traces), as_json=False)
    verdict, *pages = capsys.readouterr().out.split("page is made\n")
    assert "Task words" in verdict
    assert "Task none" in verdict
    assert pages == ["", "", "report  page.html\n"]


@pytest.mark.usefixtures("page_is_made")
def test_the_verdict_of_an_audit_comes_before_its_page(
    trace_of, fedray_command, tmp_path: Path
) -> None:
    trace = trace_of([[0, 2], [1, 3]], 4)
    _, out, _ = fedray_command("audit", str(trace.path), "--page", str(tmp_path / "p.html"))
    verdict, page = out.split("page is made\n")
    assert "observed min-sep 2" in verdict
    assert page.startswith("page ")


@pytest.mark.slow
@pytest.mark.usefixtures("page_is_made")
def test_the_verdict_of_a_training_comes_before_its_page(trained, capsys, monkeypatch) -> None:
    monkeypatch.setattr("fedray.report.trained_page.trained_page", lambda *_, **__: "")
    audit = audit_trace(trained)
    _print_trained(trained, audit.scenario, trained.trained, as_json=False)
    verdict, page = capsys.readouterr().out.split("page is made\n")
    assert "model   " in verdict
    assert page == "report  page.html\n"
