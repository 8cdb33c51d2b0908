"""Figures show what was observed: steps, gaps where nothing was measured, and the same data in page, SVG and CSV."""

import csv
import io
import itertools
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedray.audit.distribution import CURVE_STEPS
from fedray.audit.over_rounds import SpentAfter
from fedray.base.errors import InputError
from fedray.base.result import DrawnResult
from fedray.report.figure import Axis, Figure, Mark, Series, needs_log
from fedray.report.figures import (
    eligible_by_hour,
    eligible_devices,
    epsilon_over_rounds,
    gap_bins,
    round_durations,
)
from fedray.report.files import drawn_figure, figure_csv, saved, write_figures
from fedray.report.plotly_json import plotly_figure

NAMES = [
    "eligible",
    "diurnal",
    "durations",
    "accuracy",
    "loss",
    "participations",
    "gaps",
    "privacy",
    "devices",
]


class Drawn(DrawnResult):
    """A result that has these figures."""

    def __init__(self, figures: list[Any]) -> None:
        self._figures = figures

    def figures(self) -> list[Any]:
        return self._figures


def trace_of_rounds(started_hours: list[float], eligible: list[int]) -> Any:
    started = 3600.0 * np.array(started_hours)
    rounds = {
        "started": started,
        "closed": started + 600.0,
        "eligible_estimate": np.array(eligible, np.uint64),
        "state": np.zeros(started.size),
    }
    return SimpleNamespace(rounds=rounds, scenario={"rounds": {"look_ahead_minutes": 60.0}})


def test_eligible_devices_are_shown_at_the_hours_of_the_count_and_nowhere_else() -> None:
    """A round at 2:30 with 3,600 devices and one at 20:15: a line between them would show 3,600 at noon."""
    figure = eligible_devices(trace_of_rounds([2.5, 2.9, 3.5, 20.25], [3600, 3600, 3700, 3650]))
    (series,) = figure.series
    assert series.until is not None
    assert series.x.tolist() == [2, 3, 20]
    assert series.until.tolist() == [3, 4, 21]
    drawn = plotly_figure(figure)["data"][0]
    assert drawn["x"] == [2, 3, 3, 4, 20, 20, 21]
    assert drawn["y"] == [3600, 3600, 3700, 3700, None, 3650, 3650]
    assert "lines" in drawn["mode"]
    by_hour = eligible_by_hour(
        trace_of_rounds([2.5, 2.9, 26.5, 3.5, 20.25], [3600, 3600, 1600, 3700, 40])
    )
    assert by_hour.series[0].x.tolist() == [2, 3, 20]
    assert by_hour.series[0].y.tolist() == [2600, 3700, 40]
    assert by_hour.y.is_log


@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=30
    )
)
def test_a_path_through_steps_has_every_value_over_its_own_span(
    steps: list[tuple[int, int, int]],
) -> None:
    """Widths, gaps after them, values: at the middle of each step the path has its value, in each gap it has none."""
    widths, gaps, values = (np.array(each, np.float64) for each in zip(*steps, strict=True))
    ends = np.cumsum(widths + gaps) - gaps
    series = Series("s", "steps", ends - widths, values, ends)
    x, y, place = series.path()
    for left, right, a, b in zip(x[:-1], x[1:], y[:-1], y[1:], strict=True):
        if left < right and np.isfinite(a) and np.isfinite(b):
            step = int(np.searchsorted(ends, (left + right) / 2))
            assert a == b == values[step]
            assert left >= ends[step] - widths[step]
    finite = np.isfinite(y)
    assert (y[finite] == values[place[finite]]).all()
    covered = sum(
        right - left
        for left, right, a, b in zip(x[:-1], x[1:], y[:-1], y[1:], strict=True)
        if np.isfinite(a) and np.isfinite(b)
    )
    assert covered == widths.sum()


def test_steps_too_short_to_be_seen_are_marked() -> None:
    alone = Series("s", "steps", np.array([0.0, 500.0]), np.ones(2), np.array([1.0, 1000.0]))
    assert alone.has_markers
    assert not replace(alone, until=np.array([500.0, 1000.0])).has_markers


def test_round_durations_add_up_to_the_run(trained) -> None:
    series = round_durations(trained).series[0]
    assert 60 * series.y.sum() == pytest.approx(
        trained.rounds["closed"][trained.rounds["state"] == 0].max()
    )
    assert series.until is not None
    assert (series.x[1:] == series.until[:-1]).all()


def test_a_metric_begins_before_the_training(trained, trained_audit) -> None:
    """So that a model that was evaluated once has a line, and not a point without a scale."""
    assert trained.trained is not None
    start = trained.trained.document["start"]
    (figure,) = [each for each in trained_audit.figures() if each.name == "loss"]
    (series,) = figure.series
    evaluated = trained.trained.metrics["evaluation_loss"]
    assert (series.x[0], series.y[0]) == (0.0, start["loss"])
    assert series.x.size == 1 + np.count_nonzero(~np.isnan(evaluated))


def test_what_devices_got_is_shown_in_200_steps_and_never_below_the_truth(
    trained, trained_audit
) -> None:
    (figure,) = [each for each in trained_audit.figures() if each.name == "devices"]
    series = figure.series[0]
    assert series.x.size == CURVE_STEPS == 200
    assert series.y[-1] == pytest.approx(trained_audit.mechanisms[0].rho)
    assert (np.diff(series.y) >= 0).all()


def test_every_figure_of_a_run_is_on_its_page_with_the_audit_s_data(
    trained, trained_audit, trained_page: str, script
) -> None:
    figures = script(trained_page, "figure-data")
    assert list(figures) == [
        name for name in NAMES if name != "gaps" or trained_audit.max_participations > 1
    ]
    assert sum(figures["participations"]["data"][0]["y"]) == trained_audit.devices
    if "gaps" in figures:
        assert sum(figures["gaps"]["data"][0]["y"]) == trained_audit.patterns.pairs_by_gap.sum()
    assert figures["privacy"]["data"][0]["y"][-1] == trained_audit.mechanisms[0].epsilon
    assert {each["csv"] for each in figures.values()} == {
        figure_csv(each) for each in trained_audit.figures()
    }


def test_epsilon_over_rounds_is_called_exact_only_if_every_entry_is() -> None:
    def figure(flags: list[bool]) -> Figure:
        over_rounds = [
            SpentAfter(rounds + 1, 1.0, flag, 0.5, 1.0 + rounds)
            for rounds, flag in enumerate(flags)
        ]
        mechanism = SimpleNamespace(observed=SimpleNamespace(delta=1e-10), sampled=None)
        audit: Any = SimpleNamespace(
            over_rounds=over_rounds, mechanisms=[mechanism], claim=None, findings=(), answers=None
        )
        return epsilon_over_rounds(audit)

    assert figure([True, True]).note.startswith("Exact for the trace")
    assert "exact" not in figure([True, False]).note.lower()
    assert "upper bound" in figure([True, False]).note


def test_values_in_labels_of_privacy_are_rounded_up() -> None:
    series = Series("epsilon", "steps", np.array([0.0]), np.array([5.21002]), np.array([980.0]))
    drawn = plotly_figure(
        Figure("f", "", "", Axis("Rounds"), Axis("Epsilon", decimals=4), (series,))
    )
    assert drawn["data"][0]["hovertext"][0] == "Rounds: 0 to 980<br>Epsilon: 5.2101"


def test_an_axis_is_logarithmic_where_values_differ_by_more_than_a_factor_of_five() -> None:
    assert needs_log([np.array([1.0, np.nan, 5.1])])
    assert not needs_log([np.array([1.0, 5.0])])
    assert not needs_log([np.array([0.0, 5.1])])


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=60), st.none() | st.integers(1, 5000))
def test_gap_bins_hold_every_gap_once_and_no_bin_is_on_both_sides_of_a_limit(
    values: list[int], limit: int | None
) -> None:
    edges, counts = gap_bins(np.bincount(values), limit)
    assert limit is None or not min(values) < limit <= max(values) or limit in edges
    assert counts.sum() == len(values)
    assert len(counts) <= 120
    assert len(edges) == len(counts) + 1
    assert len(set(np.diff(edges).tolist())) == 1


@pytest.mark.slow
def test_every_figure_is_written_as_svg_and_csv_with_the_same_data_and_the_same_bytes_again(
    trained, trained_audit, tmp_path: Path
) -> None:
    written = write_figures(trained_audit, tmp_path / "a" / "b")
    figures = trained_audit.figures()
    assert [path.name for path in written] == [
        f"{each.name}{suffix}" for each in figures for suffix in (".svg", ".csv")
    ]
    for each in figures:
        ET.parse(tmp_path / "a" / "b" / f"{each.name}.svg")
        rows = list(csv.DictReader((tmp_path / "a" / "b" / f"{each.name}.csv").open()))
        assert rows[0]["of"] == str(each.subject)
        points = [row for row in rows if not row["series"].startswith("mark")]
        values = [float(row[each.y.title]) for row in points]
        assert values == [float(y) for series in each.series for y in series.y]
    again = write_figures(Drawn(figures[:1]), tmp_path / "c")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written[:2]]


@pytest.mark.parametrize("is_log", [False, True])
def test_markers_that_would_cover_one_another_stand_side_by_side_and_the_data_stay(
    is_log: bool,
) -> None:
    """In files and on pages; the CSV, the text beside a point and the ticks have the true x."""
    x, y = np.array([60.0, 100.0, 200.0]), np.array([1.0, 5.0, 9.0])
    other = y + np.array([0.0, 3.0, 0.01])
    axis = Axis("x", is_log=is_log, at_points=True)
    names = {"a": y, "b": other, "c": np.array([np.nan, 5.0, 1.0])}
    points = [Series(name, "points", x, each) for name, each in names.items()]
    line = Series("line", "line", x, y)
    figure = Figure("f", "", "", axis, Axis("y"), (*points, line))
    canvas = drawn_figure(figure, "paper")
    (axes,) = canvas.axes
    drawn = [each.get_xdata() for each in axes.lines]
    canvas.draw_without_rendering()
    marker = axes.lines[0].get_markersize() * canvas.dpi / 72
    for first, second, at in ((0, 1, 0), (0, 2, 1), (0, 1, 2)):
        ends = [axes.transData.transform((drawn[place][at], 1.0))[0] for place in (first, second)]
        assert marker <= abs(ends[1] - ends[0]) <= 2 * marker
    # Points without a neighbour, and lines, stay at their place.
    assert (drawn[1][1], drawn[2][2]) == (100.0, 200.0)
    assert drawn[3].tolist() == x.tolist()
    assert axes.get_xticks().tolist() == figure.ticks
    one, two, *_ = plotly_figure(figure)["data"]
    assert one["x"][0] < 60.0 < two["x"][0]
    hovers = [each.partition("<br>")[0] for each in one["hovertext"]]
    assert hovers == ["x: 60", "x: 100", "x: 200"]
    assert "a,60,1\n" in figure_csv(figure)


def test_points_of_one_series_or_of_different_x_are_not_moved() -> None:
    x = np.array([1.0, 1.0, 1.0 + 1e-9])
    one = Figure("f", "", "", Axis("x"), Axis("y"), (Series("a", "points", x, x),))
    assert one.side_by_side(40, 20) is one
    other = Series("b", "points", x + 5e-9, x)
    moved = replace(one, series=(*one.series, other)).side_by_side(40, 20)
    assert [each.x.tolist() for each in moved.series] == [x.tolist(), other.x.tolist()]


def hostile() -> Figure:
    x = np.array([1.0, 10.0, 100.0])
    name = '<a href="https://example.org">$x_1$</a>'
    series = (
        Series(name, "line", x, np.array([1.0, np.nan, 2e5])),
        Series("all", "line", x[[0, 2]], x[[0, 2]], is_reference=True),
        Series("named", "points", x, x, labels=(name, "b", "c")),
    )
    marks = (Mark(20.0, name), Mark(3.0, "target", "y"), Mark(30.0, "zone", until=60.0))
    return Figure(
        "hostile", name, name, Axis(name, is_log=True), Axis("y", is_log=True), series, marks
    )


def test_numbers_of_logarithmic_axes_are_no_formulas_and_name_the_values() -> None:
    line = Series("s", "line", np.array([1.0, 9000.0]), np.array([5.2, 31.0]))
    figure = Figure("f", "", "", Axis("a", is_log=True), Axis("b", is_log=True), (line,))
    shown = [
        each.text
        for each in ET.fromstring(saved(drawn_figure(figure), "svg").decode()).iter()
        if each.text
    ]
    assert {"1", "10", "100", "1,000"} <= set(shown)
    assert {"5", "20"} <= set(shown)
    assert not [text for text in shown if "$" in text]


def test_names_are_words_in_every_rendering() -> None:
    figure = hostile()
    drawn = str(plotly_figure(figure))
    assert "<a" not in drawn
    svg = saved(drawn_figure(figure), "svg").decode()
    assert not list(ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}a"))
    assert "$x_1$" in svg
    rows = list(csv.reader(io.StringIO(figure_csv(figure))))
    assert rows[0] == ["series", "name", figure.x.title, f"{figure.x.title}, until", "y"]
    assert sum(row[0].startswith("mark: ") for row in rows) == 3
    assert {len(row) for row in rows} == {len(rows[0])}


def test_labels_that_would_cover_one_another_are_left_out_of_a_page() -> None:
    """Seven runs in one spot have one name at most; two that stand alone are named."""
    x = np.array([*[200.0] * 7, 50.0, 1000.0])
    labels = tuple(f"otf-{place}-AA" for place in range(9))
    runs = Series("runs", "points", x, x, labels=labels)
    figure = Figure("f", "", "", Axis("a", is_log=True), Axis("b", is_log=True), (runs,))
    drawn = plotly_figure(figure)["data"][0]
    assert sum(text != "" for text in drawn["text"][:7]) == 1
    assert drawn["text"][7:] == list(labels[7:])


def test_names_of_several_series_cover_no_other_and_stay_inside_a_telephone_s_plot() -> None:
    """Names at the outermost points turn inward, and none lies over that of another series."""
    at = {"noise": (200.0, 1.47), "689 rounds": (292.0, 1.0), "1.47 x devices": (293.0, 1.0)}
    at |= {"547 rounds": (200.0, 1.0), "655 rounds": (310.0, 1.02)}
    series = tuple(
        Series(name, "points", np.array([x]), np.array([y]), labels=(name,))
        for name, (x, y) in at.items()
    )
    axes = Axis("goal", starts_at_zero=False), Axis("noise")
    drawn = plotly_figure(Figure("f", "", "", *axes, series))["data"]
    named = {e["text"][0]: e["textposition"][0] for e in drawn if e["text"][0]}
    assert {"noise", "547 rounds"} <= named.keys()
    assert len({"689 rounds", "1.47 x devices"} & named.keys()) == 1
    assert named["noise"].endswith(("right", "center"))
    assert not any(each.endswith("right") for name, each in named.items() if at[name][0] > 290)
    spots = []
    for name, side in named.items():
        high, wide = side.split()
        x, y = 260.0 * (at[name][0] - 200.0) / 110.0, 200.0 * at[name][1] / 1.47
        half = 3.0 * len(name)
        middle = x + {"center": 0, "right": 1, "left": -1}[wide] * (half + 5.0)
        spots.append(
            (middle - half, middle + half, y + {"top": 11, "bottom": -11, "middle": 0}[high])
        )
        assert -15.0 < spots[-1][0] < spots[-1][1] < 275.0
    for one, other in itertools.combinations(spots, 2):
        assert one[1] <= other[0] or other[1] <= one[0] or abs(one[2] - other[2]) >= 12.0


def test_marks_stand_at_their_values_on_logarithmic_axes() -> None:
    layout = plotly_figure(hostile())["layout"]
    assert [shape["type"] for shape in layout["shapes"]] == ["line", "line", "rect"]
    assert (layout["shapes"][2]["x0"], layout["shapes"][2]["x1"]) == (30.0, 60.0)
    assert layout["annotations"][0]["x"] == pytest.approx(np.log10(20.0))
    assert layout["annotations"][1]["y"] == pytest.approx(np.log10(3.0))


def test_a_long_mark_does_not_run_into_the_next_on_a_narrow_page() -> None:
    """Each text stands in the lowest line with room for it, from the left."""
    line = Series("s", "line", np.array([2400.0, 4800.0]), np.array([1.0, 2.0]))
    marks = (Mark(3200.0, "plan 3,221"), Mark(2400.0, "misses the target", until=3100.0))
    figure = Figure("f", "", "", Axis("goal"), Axis("epsilon"), (line,), marks)
    annotations = plotly_figure(figure)["layout"]["annotations"]
    assert [each["yshift"] for each in annotations] == [14, 0]
    marks = tuple(
        map(Mark, (4800.0, 2400.0, 2400.0, 3300.0), ("150 to 1", "2 to 1", "9 to 4", "7"))
    )
    drawn = plotly_figure(replace(figure, marks=marks))["layout"]
    assert [each["yshift"] for each in drawn["annotations"]] == [0, 0, 14, 0]


def test_numbers_of_logarithmic_axes_are_whole_and_marks_stretch_a_linear_one() -> None:
    def axes(x, is_log, *marks):
        line = Series("s", "line", np.array(x), np.array([1.0] * len(x)))
        found = Figure("f", "", "", Axis("x", is_log), Axis("y"), (line,), marks)
        return plotly_figure(found)["layout"]["xaxis"]

    assert axes([4e-5, 2e-4], True)["ticktext"][:3] == ["1e-05", "2e-05", "3e-05"]
    assert axes([1.0, 5e5], True)["ticktext"][-2:] == ["100,000", "1,000,000"]
    assert len(axes([1e-9, 1e9], True)["tickvals"]) <= 8
    # A mark far from the only point would get a number at every whole one in between.
    assert axes([90.0], False)["dtick"] == 1
    assert "dtick" not in axes([90.0], False, Mark(227.0, "truth"))


def test_a_directory_that_cannot_be_made_is_refused_in_one_line(
    trained, trained_audit, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="name another") as caught:
        write_figures(trained_audit, tmp_path / "file")
    assert "\n" not in str(caught.value)


def test_what_breaks_a_claim_is_marked_and_what_keeps_it_is_not(trace_of, small) -> None:
    """Bars of whole numbers begin half a unit before them."""
    from fedray.audit.auditing import audit_trace
    from fedray.audit.claims import Claim
    from fedray.report.figures import audit_figures

    trace = trace_of([[0, 3, 6], [1, 4], [2, 5]], 7, small("privacy.mechanism={kind='tree'}"))
    tables = {"mechanism": {"kind": "tree"}, "noise_multiplier": 7.0}

    def marks(**claimed: float) -> dict[str, list[Mark]]:
        audit = audit_trace(trace, claim=Claim.model_validate({**tables, **claimed}))
        found = {each.name: list(each.marks) for each in audit_figures(audit)}
        assert audit.supported_epsilon is not None
        # It is marked whether the claim names an epsilon or not.
        assert found["privacy"].pop() == Mark(audit.supported_epsilon, "may be published", "y")
        return found

    broken = marks(min_sep=5, max_participations=2, epsilon=0.5)
    assert broken["gaps"][1] == Mark(2.5, "breaks the claimed 5", until=4.5)
    assert broken["participations"] == [Mark(2.5, "breaks the claimed 2", until=3.5)]
    assert broken["privacy"] == [Mark(0.5, "claimed 0.5", "y")]
    kept = marks(min_sep=3, max_participations=3)
    assert len(kept["gaps"]) == 1
    assert kept["participations"] == kept["privacy"] == []


def test_figures_start_from_matplotlib_s_defaults() -> None:
    """A `matplotlibrc` of the working directory could start TeX. The program's own settings come back."""
    import matplotlib

    points = np.arange(3.0)
    figure = Figure("f", "", "", Axis("a"), Axis("b"), (Series("s", "line", points, points),))
    before = saved(drawn_figure(figure), "svg")
    with matplotlib.rc_context(
        {"text.usetex": True, "savefig.facecolor": "red", "axes.grid": True}
    ):
        assert saved(drawn_figure(figure), "svg") == before
        assert matplotlib.rcParams["text.usetex"]
