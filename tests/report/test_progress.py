"""The progress bar never cuts a number, however narrow the terminal is."""

import io
import re
import sys
import time
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from rich.console import Console

from fedray.audit.so_far import RoundsSoFar, bound_so_far
from fedray.base.part_done import Announcement, PartDone
from fedray.base.rounding import up
from fedray.commands.frame import progress as commands_progress
from fedray.commands.frame.progress import _SpentSoFar
from fedray.report.progress import estimate_text, run_progress, show_progress, study_progress
from fedray.runs.simulation import simulate
from fedray.wire.messages import (
    DataProgress,
    Evaluation,
    Measured,
    RunProgress,
    TrainingEstimate,
    TrainingMetrics,
    TrainingProgress,
)

PARTS = ["day 123 21:05", "eligible 12,345,678", "train loss 5.824", "accuracy 0.015"]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
def test_every_part_is_whole_or_not_there(width: int, monkeypatch) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, color_system=None)
    monkeypatch.setattr("fedray.report.progress.Console", lambda stderr: console)
    metrics, evaluation = (
        Mock(spec=TrainingMetrics, train_loss=5.824),
        Mock(spec=Evaluation, metrics={"accuracy": Measured(0.015, 0.001)}),
    )
    seconds = 123 * 86_400 + 21 * 3600 + 5 * 60
    with run_progress(is_shown=True) as on_progress:
        on_progress(RunProgress(12_345, 100_000, seconds, 12_345_678))
        told = (cast(Any, metrics), cast(Any, evaluation), 12_340)
        on_progress(TrainingProgress(12_345, 100_000, *told))
    lines = [
        re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line).strip()
        for line in re.split(r"[\r\n]", out.getvalue())
    ]
    last = [line for line in lines if line][-1]
    assert len(last) <= width
    assert "12345/100000" in last
    assert "…" not in last
    shown = [part for part in PARTS if part in last]
    assert shown[:1] == ["day 123 21:05"] or width < 60
    for part in PARTS:
        assert part in shown or part.split()[0] not in last
    if width >= 140:
        assert shown == PARTS


def test_the_bar_of_a_run_stays_and_results_begin_a_line_below_it(monkeypatch) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=60, color_system=None)
    monkeypatch.setattr("fedray.report.progress.Console", lambda stderr: console)
    with run_progress(is_shown=True) as show:
        show(RunProgress(3, 3, 3600.0, 50))
    assert re.search(r"3/3 day 0 01:00  eligible 50 0:00:0\d\n(\x1b\[\?25h)?$", out.getvalue())


def test_the_line_of_a_study_is_erased_so_that_its_results_begin_a_line(monkeypatch) -> None:
    """Standard output and standard error may be one terminal."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=60, color_system=None)
    monkeypatch.setattr("fedray.report.progress.Console", lambda stderr: console)
    with study_progress("reproducing", is_shown=True) as show:
        show(Announcement("step 1 of 1, a row"))
        show(PartDone("step 1 of 1, a row", 1, 2))
    assert "\x1b[2Kstep 1 of 1, a row\n" in out.getvalue()
    # Up to the line of progress, which is erased.
    assert out.getvalue().endswith("\r\x1b[1A\x1b[2K")


def test_what_is_left_follows_the_slower_of_simulation_and_training(monkeypatch) -> None:
    out, clock = io.StringIO(), [100.0]
    console = Console(file=out, force_terminal=True, width=140, color_system=None)
    monkeypatch.setattr("fedray.report.progress.Console", lambda stderr: console)
    monkeypatch.setattr("fedray.report.progress.time", SimpleNamespace(monotonic=lambda: clock[0]))
    metrics = cast(Any, Mock(spec=TrainingMetrics, train_loss=5.824))
    with run_progress(is_shown=True) as on_progress:
        on_progress(TrainingEstimate(1000, 64, 95.0, 6500, 36_000.0))
        for seconds in range(3):
            clock[0] = 100.0 + 10.0 * seconds
            on_progress(RunProgress(10 + 100 * seconds, 1000, 0.0, 5))
            on_progress(TrainingProgress(10 + 10 * seconds, 1000, metrics, None, 0))
    lines = re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue()))
    estimate = (
        "training: 1,000 rounds of 64 devices take about 95 s on an idle machine; with "
        "all 6,500 devices of a round"
    )
    assert any(line.startswith(estimate) for line in lines)
    # 20 rounds are trained in 20 s, and 970 are left; the simulation is ten times as fast.
    last = [line for line in lines if line][-1]
    assert " 30/1000 " in last
    assert "16 min left  simulated 210  day 0 00:00  eligible 5  train loss 5.824" in last


def test_the_line_shows_the_slower_of_simulation_and_training(capsys, monkeypatch) -> None:
    """Also before the first round is trained; a task that is trained after the simulation counts by its own rounds."""
    clock = [0.0]
    monkeypatch.setattr("fedray.report.progress.time", SimpleNamespace(monotonic=lambda: clock[0]))
    metrics = cast(Any, Mock(spec=TrainingMetrics, train_loss=5.824))
    tell = show_progress()
    for progress, expected in [
        (TrainingEstimate(980, 10, 60.0, 10, 60.0), "training: 980 rounds of 10 devices"),
        (RunProgress(980, 980, 3600.0, 50, 7), "round 0/980  simulated 980  day 0 01:00"),
        (TrainingProgress(430, 980, metrics, None, 0), "round 430/980  simulated 980"),
        (
            TrainingProgress(980, 980, metrics, None, 0),
            "round 980/980  day 0 01:00  eligible 50, 7",
        ),
        (TrainingEstimate(15, 10, 60.0, 10, 60.0), "training: 15 rounds"),
        (TrainingProgress(5, 15, metrics, None, 0), "round 5/15  simulated 980"),
    ]:
        clock[0] += 20.0
        tell(progress)
        line = re.sub(r"[0-9]+ \w+ left  ", "", capsys.readouterr().err)
        assert line.startswith(expected), line


def test_a_run_that_starves_says_so_once_and_keeps_the_word(capsys, monkeypatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("fedray.report.progress.time", SimpleNamespace(monotonic=lambda: clock[0]))
    tell = show_progress()
    for starving, expected in [("", ""), ("no round", "starving, no round\n"), ("no round", "")]:
        clock[0] += 1.0
        tell(RunProgress(3, 9, 0.0, 50, 7, starving))
        assert capsys.readouterr().err == expected
    clock[0] += 20.0
    tell(RunProgress(3, 9, 0.0, 50, 7, "no round"))
    shown = "round 3/9  starving  day 0 00:00  eligible 50, 7 free to take part\n"
    assert capsys.readouterr().err == shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.02, "1 s"), (119.0, "119 s"), (200.0, "3 min"), (9000.0, "2 h"), (600_000.0, "7 d")],
)
def test_lengths_of_time_have_the_unit_that_suits_them(seconds: float, text: str) -> None:
    whole = estimate_text(TrainingEstimate(8, 20, seconds, 20, seconds))
    assert whole == f"training: 8 rounds of 20 devices take about {text} on an idle machine"


def test_data_that_is_read_as_a_whole_is_shown(monkeypatch) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr("fedray.report.progress.Console", lambda stderr: console)
    with run_progress(is_shown=True) as on_progress:
        on_progress(DataProgress(1234, 56_789))
    assert "reading the data: 1,234 of 56,789 clients" in out.getvalue()


def test_a_study_tells_the_time_left_by_the_time_that_its_parts_took(capsys, monkeypatch) -> None:
    """Parts that were there before do not count; what begins anew is measured anew."""
    clock = [0.0]
    monkeypatch.setattr("fedray.report.progress.time", SimpleNamespace(monotonic=lambda: clock[0]))
    with study_progress("sweeping", is_shown=True) as tell:
        for seconds, line, expected in [
            (20.0, "begun", "sweeping: begun"),
            (40.0, PartDone("1 of 5", 1, 5), "sweeping: 1 of 5"),
            (80.0, PartDone("3 of 5", 3, 5, is_least=True), "sweeping: 3 of 5  at most 40 s left"),
            (140.0, PartDone("0 of 4 judged", 0, 4), "sweeping: 0 of 4 judged"),
            (160.0, PartDone("1 of 4 judged", 1, 4), "sweeping: 1 of 4 judged  about 60 s left"),
            (220.0, PartDone("4 of 4 judged", 4, 4), "sweeping: 4 of 4 judged"),
        ]:
            clock[0] = seconds
            tell(line)
            assert capsys.readouterr().err == f"{expected}\n"


def test_what_was_there_before_tells_nothing_of_the_pace(capsys, monkeypatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("fedray.report.progress.time", SimpleNamespace(monotonic=lambda: clock[0]))
    with study_progress("sweeping", is_shown=True) as tell:
        tell(PartDone("50 of 100", 50, 100))
        clock[0] = 20.0
        tell(PartDone("60 of 100", 60, 100))
    assert capsys.readouterr().err == "sweeping: 60 of 100  about 80 s left\n"


def test_in_a_notebook_one_line_is_kept_up_to_date(monkeypatch) -> None:
    """At most four times a second, and at the end."""
    shown: list[str] = []
    clock = [0.0]

    def show(data: dict[str, str], raw: bool, display_id: bool = False) -> SimpleNamespace:
        assert raw
        shown.append(("new: " if display_id else "") + data["text/plain"])
        return SimpleNamespace(update=show)

    monkeypatch.setattr("fedray.report.progress.time", SimpleNamespace(monotonic=lambda: clock[0]))
    shell = SimpleNamespace(kernel=None)
    display = SimpleNamespace(display=show)
    ipython = SimpleNamespace(get_ipython=lambda: shell, display=display)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    tell = show_progress("run")
    for seconds, committed in [(0.0, 1), (0.1, 2), (0.3, 3), (0.4, 4)]:
        clock[0] = seconds
        tell(RunProgress(committed, 4, 3600.0, 500))
    assert shown == [
        "new: run: round 1/4  day 0 01:00  eligible 500",
        "run: round 3/4  1 s left  day 0 01:00  eligible 500",
        "run: round 4/4  day 0 01:00  eligible 500",
    ]


def test_progress_outside_of_notebooks_is_a_line_now_and_then(capsys, monkeypatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("fedray.report.progress.time", SimpleNamespace(monotonic=lambda: clock[0]))
    tell = show_progress()
    for seconds, line in [
        (1.0, "begun"),
        (20.0, PartDone("1 of 3", 1, 3)),
        (21.0, PartDone("2 of 3", 2, 3)),
        (22.0, PartDone("3 of 3", 3, 3)),
    ]:
        clock[0] = seconds
        tell(line)
    assert capsys.readouterr().err == "1 of 3\n3 of 3\n"


def test_in_a_terminal_the_line_of_a_study_is_text_and_not_markup(monkeypatch) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr("fedray.report.progress.Console", lambda stderr: console)
    with study_progress("fitting", is_shown=True) as tell:
        tell("[/red] 0.5")
    assert "fitting: [/red] 0.5" in out.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_an_announcement_stays_while_later_lines_replace_each_other(
    is_terminal: bool, monkeypatch, capsys
) -> None:
    """In a terminal above the line that disappears; elsewhere at once, between two lines."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, color_system=None)
    if is_terminal:
        monkeypatch.setattr("fedray.report.progress.Console", lambda stderr: console)
    with study_progress("stressing", is_shown=True) as tell:
        tell("a line")
        tell(Announcement("[3] trainings take about 9 min"))
        tell("another")
    told = out.getvalue() if is_terminal else capsys.readouterr().err
    assert "[3] trainings take about 9 min\n" in told
    if is_terminal:
        assert "stressing: [3]" not in told
    else:
        assert told == "stressing: [3] trainings take about 9 min\n"


@pytest.mark.parametrize(
    ("is_shown", "lines"), [(True, ["fitting: b", "fitting: d  about 3 s left"]), (False, [])]
)
def test_without_a_terminal_a_study_prints_a_line_now_and_then(
    is_shown: bool, lines: list[str], capsys, monkeypatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("fedray.report.progress.time", SimpleNamespace(monotonic=lambda: clock[0]))
    with study_progress("fitting", is_shown) as tell:
        for seconds, line in [
            (1, "a"),
            (16, "b"),
            (30, PartDone("c", 1, 2)),
            (42, PartDone("d", 9, 10)),
        ]:
            clock[0] = float(seconds)
            tell(line)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == lines


def test_the_line_of_a_run_has_the_bound_that_a_listing_reads_from_its_files(
    small, tmp_path
) -> None:
    scenario = small("training.enabled=false")
    reports: list[RunProgress] = []
    trace = simulate(scenario, out=tmp_path / "t", on_progress=reports.append)
    committed = {name: column[trace.rounds["state"] == 0] for name, column in trace.rounds.items()}
    names = ("opened", "started", "closed")
    bound = bound_so_far(scenario, RoundsSoFar(*(committed[name] for name in names)))
    assert bound.epsilon is not None
    text = _SpentSoFar()(reports[-1])
    assert text.startswith(f"at most epsilon {up(bound.epsilon)}")
    assert text.endswith(f"after {len(committed['opened'])} rounds")


def test_the_last_line_has_the_privacy_of_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound before took so long that the next one is not due."""
    spent, monotonic = _SpentSoFar(), iter(range(0, 1_000, 100))
    monkeypatch.setattr(time, "monotonic", lambda: next(monotonic))
    monkeypatch.setattr(commands_progress, "_bound_text", lambda committed: f"after {committed}")
    texts = [
        spent(SimpleNamespace(committed=done, count=9, so_far=lambda done=done: (done,)))
        for done in (1, 5, 9, 9)
    ]
    assert texts == ["after 1", "after 1", "after 9", "after 9"]
