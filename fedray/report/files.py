"""Figures as files for papers and slides, and the data of each as CSV."""

import contextlib
import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from fedray.base.arrays import Float64Array
from fedray.base.atomic import make_directory, write_whole
from fedray.base.errors import InputError
from fedray.base.result import DrawnResult
from fedray.base.storage import local_path
from fedray.report.figure import (
    BAND_OPACITY,
    GREY,
    MARKERS,
    RED,
    ZONE_OPACITY,
    Axis,
    Figure,
    Mark,
    Series,
    legend_lines,
    look,
)
from fedray.report.table import latex_caption, traces_of, with_greek

STYLES = {"paper": (3.25, 2.3, 8.0), "wide": (6.75, 3.2, 9.0), "slides": (10.0, 5.5, 18.0)}
"""Width and height in inches and size of text in points, by style: a column of a paper, its whole
width, and a slide. The smallest text has one point less."""
FORMATS = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
}
"""Formats of files, with what is left out so that the same figure has the same bytes."""
MOST_BESIDE = 3
"""Panels of a figure beside one another; further ones stand below."""
PANEL = 2.3
"""Height of a row of panels at least, in inches."""
_DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
_MARKERS = [*MARKERS]
_AROUND = np.array([(0, 1), (1, 0), (-1, 0), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1)])
"""Sides of a point where its label may stand, right and above."""
_Label = tuple[Any, Sequence[tuple[float, float]]]
OPTIONAL_COLUMNS = {"panel", "name", "until", "low", "high", "of"}
"""Columns of a figure's CSV that are left out if no row has them."""


def write_figures(
    result: DrawnResult, directory: str | Path, style: str = "wide,svg"
) -> list[Path]:
    """Writes every figure of a result's page in each format, and its data as NAME.csv. A figure
    that LaTeX can include (pdf, png) also has NAME.tex, a float with its caption.

    Args:
        result: a trace, an audit, a trained run, or a result of a study.
        directory: folder of the files, made if it is missing.
        style: paper (3.25 inches wide), wide (6.75) or slides, and formats: pdf, svg, png. Fonts
            are embedded in PDF, and text is text in SVG.

    Returns:
        Paths of the files.

    Raises:
        InputError: a file cannot be written, or the style is unknown.
        MissingExtra: matplotlib is not installed.
    """
    kind, formats = parsed_style(style)
    place = local_path(directory)
    make_directory(place, f"figures {str(directory)!r}")
    written = []
    for figure in result.figures():
        canvas = drawn_figure(figure.drawn(), kind)
        contents = {each: saved(canvas, each) for each in formats}
        contents["csv"] = figure_csv(figure).encode()
        if {"pdf", "png"} & {*formats}:
            contents["tex"] = figure_tex(figure, kind).encode()
        for suffix, content in contents.items():
            path = place / f"{figure.name}.{suffix}"
            write_whole(path, content, f"figure {str(path)!r}", InputError)
            written.append(path)
    return written


def parsed_style(style: str) -> tuple[str, list[str]]:
    """Returns the style and the formats in a list such as "paper,pdf"; by default wide and svg.

    Raises:
        InputError: a word is unknown, or there are two styles.
    """
    words = [each.strip() for each in style.split(",")]
    kinds = [each for each in words if each not in FORMATS]
    if len(kinds) > 1 or not STYLES.keys() >= set(kinds):
        rule = f"must be one of {', '.join(STYLES)}, and formats ({', '.join(FORMATS)})"
        raise InputError.of("style", style, rule, "give for example paper,pdf")
    return kinds[0] if kinds else "wide", [each for each in words if each in FORMATS] or ["svg"]


def figure_tex(figure: Figure, style: str) -> str:
    """Returns a float of LaTeX, which includes the figure's file, with its caption. Its label is
    fig:NAME.

    Args:
        figure: the figure.
        style: one of STYLES; a wide figure, or one of panels, stands across both columns.
    """
    kind = "figure" if style == "paper" and not figure.panels else "figure*"
    drawn = replace(figure, subject=replace(figure.subject, trace=""))
    caption = latex_caption(f"{drawn.caption}. {figure.note}")
    said = "".join(f"% {each}\n" for each in traces_of(figure.subject))
    return (
        f"{said}\\begin{{{kind}}}\n\\centering\n"
        f"\\includegraphics[width=\\linewidth]{{{figure.name}}}\n"
        f"\\caption{{{caption}}}\\label{{fig:{figure.name}}}\n"
        f"\\end{{{kind}}}\n"
    )


def figure_csv(figure: Figure) -> str:
    """Returns a figure's data as CSV, unrounded.

    A figure has a row per point (series, x, until if any, y, and the ends of its range), then a row
    per mark; the first row has the subject. Numbers are read back as the same
    float64; unknown ones are empty.
    """
    until = {"until": f"{figure.x.title}, until"}
    headings = {"panel": "panel", "series": "series", "name": "name", "x": figure.x.title, **until}
    low, high = figure.ends
    headings |= {"y": figure.y.title, "low": low, "high": high, "of": "of"}
    rows = list(_point_rows(figure))
    if figure.subject and rows:
        # Once, because a figure may have a million points.
        rows[0]["of"] = str(figure.subject)
    # A column that no row has is left out; if only some rows have it, the others are empty.
    used = set(headings) - OPTIONAL_COLUMNS | {key for row in rows for key in row}
    if {each.kind for each in figure.series} == {"rows"}:
        used -= {"y"}
    columns = [key for key in headings if key in used]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    writer.writerows([headings, *rows])
    return out.getvalue()


def _point_rows(figure: Figure) -> Iterator[dict[str, str]]:
    for panel in figure.panels:
        yield from ({"panel": panel.title, **row} for row in _point_rows(panel))
    data = [each for each in figure.series if not each.is_reference]
    for each in data:
        # The y of rows is a place in the plot.
        keys = ("x", "until", "low", "high") + (("y",) if each.kind != "rows" else ())
        known = {key: found for key in keys if (found := getattr(each, key)) is not None}
        for point in range(each.x.size):
            row = {key: _plain(values[point]) for key, values in known.items()}
            name = {"name": each.labels[point]} if each.labels else {}
            yield {"series": each.name, **name, **row}
    for mark in figure.marks:
        # A mark on one axis has no value on the other.
        row = {"series": f"mark: {mark.text}", mark.axis: _plain(mark.at)}
        if mark.until is not None and mark.axis == "x":
            row["until"] = _plain(mark.until)
        yield row


def _plain(value: Any) -> str:
    """Returns a number in the fewest digits that are read back as the same float64; "" for NaN."""
    number = float(value)
    if np.isnan(number):
        return ""
    # From 2^53 on, the digits of an integer would claim more than the float64 knows.
    if number.is_integer() and abs(number) < 2**53:
        return str(int(number))
    return repr(number)


def drawn_figure(figure: Figure, style: str = "wide") -> Any:
    """Returns a figure as a `matplotlib.figure.Figure`, for print in black on white: without a
    title, with a serif font, and with a legend and labels that cover nothing.

    Args:
        figure: the figure.
        style: one of STYLES.
    """
    width, height, size = STYLES[style]
    plots = figure.panels or (figure,)
    columns = min(len(plots), MOST_BESIDE)
    rows = -(-len(plots) // columns)
    if figure.panels:
        width, height = max(width, STYLES["wide"][0]), rows * max(height, PANEL)
    settings: dict[Any, Any] = {
        "font.family": ["STIXGeneral", "DejaVu Serif"],
        "mathtext.fontset": "stix",
        "font.size": size,
        **dict.fromkeys(("legend.fontsize", "xtick.labelsize", "ytick.labelsize"), size - 1),
        **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), size / 14),
        "lines.linewidth": size / 8,
        "lines.markersize": size / 2,
        "axes.labelsize": size,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with _settings(settings):
        from matplotlib.figure import Figure as Canvas

        canvas = Canvas(figsize=(width, height), layout="constrained")
        grid = canvas.subplots(rows, columns, squeeze=False)
        for place, (axes, plot) in enumerate(zip(grid.flat, plots, strict=False)):
            if figure.panels:
                axes.set_title(_math(fill(plot.title, int(110 * width / columns / size))))
            axes.set_xlabel(fill(_words(plot.x), int(110 * width / columns / size)))
            if place % columns == 0:
                axes.set_ylabel(fill(_words(plot.y), int(90 * height / rows / size)))
            _draw(canvas, axes, plot, width / columns, has_legend=place == 0)
        for axes in grid.flat[len(plots) :]:
            axes.remove()
    return canvas


def saved(canvas: Any, form: str) -> bytes:
    """Returns a `matplotlib.figure.Figure` in a format of FORMATS: fonts are embedded in PDF, and
    words are text in SVG, so that they can be found and edited."""
    settings: dict[Any, Any] = {
        "pdf.fonttype": 42,
        "svg.fonttype": "none",
        # Without a fixed salt, ids in the file would differ from run to run.
        "svg.hashsalt": "fedray",
    }
    out = io.BytesIO()
    with _settings(settings):
        canvas.savefig(out, format=form, dpi=300, metadata=FORMATS[form])
    return out.getvalue()


@contextlib.contextmanager
def _settings(values: dict[str, Any]) -> Iterator[None]:
    """Within: matplotlib has its own defaults and these settings. A `matplotlibrc`, which may come
    with files of a stranger, could start TeX, and would change figures from place to place."""
    try:
        from matplotlib import style
    except ValueError as error:
        remedy = "correct or move the file matplotlibrc"
        raise InputError(f"matplotlib cannot start ({error}); {remedy}") from None
    with style.context(["default", values]):
        yield


def _draw(canvas: Any, axes: Any, figure: Figure, width: float, *, has_legend: bool) -> None:
    # The plot has about three quarters of the width, and two thirds of the height. A marker is half
    # as large as letters, and has an outline and some room.
    marker = 0.7 * axes.xaxis.label.get_size()
    size = np.array([width, canvas.get_size_inches()[1]])
    wide, high = size * 72.0 / marker * (0.75, 0.67)
    placed = figure.side_by_side(wide, high)
    for series, place in placed.looks:
        _draw_series(axes, series, place)
    drawn = [each for each in figure.series if each.x.size]
    _scale(axes.xaxis, axes.set_xscale, figure.x, [each.x for each in drawn])
    if figure.x.at_points:
        axes.set_xticks(figure.ticks)
        # A point whose number has no room has a tick of its own all the same.
        points = [x for each in drawn for x in each.x if float(x) not in figure.ticks]
        axes.set_xticks(sorted({*points}), minor=True, labels=[""] * len({*points}))
    if not any(each.kind == "rows" for each in drawn):
        _scale(axes.yaxis, axes.set_yscale, figure.y, [each.y for each in drawn])
    if any(each.kind == "bars" for each in figure.series):
        # The axis begins at a half, so that a bar of height one is visible on a logarithmic scale.
        axes.set_ylim(bottom=0.5 if figure.y.is_log else 0)
    elif not figure.y.is_log and figure.y.starts_at_zero:
        axes.set_ylim(bottom=0)
    if figure.x.ends is not None and figure.y.ends is not None:
        axes.set_xlim(*figure.x.ends)
        axes.set_ylim(*figure.y.ends)
    size = axes.xaxis.label.get_size() - 1.0
    _place(canvas, axes, [_draw_mark(axes, mark, size) for mark in figure.marks])
    # The legend stands beside the plot, whose layout leaves room for both.
    if has_legend and sum(not each.is_reference for each in figure.series) > 1:
        _add_legend(canvas, axes)
    shown = [each for each in placed.series if each.x.size]
    pointed = [each for each in shown if each.kind != "rows"]
    named = [label for each in pointed for label in _names(axes, each, size)]
    _place(canvas, axes, named, shown)


def _add_legend(canvas: Any, axes: Any) -> None:
    """Adds a legend above the plot, in as many columns as there is room for."""
    entries = axes.get_legend_handles_labels()
    for columns in range(len(entries[0]), 0, -1):
        shape = {"ncols": columns, "frameon": False, "columnspacing": 1.0, "handletextpad": 0.4}
        legend = canvas.legend(*entries, loc="outside upper center", **shape)
        if columns == 1 or legend.get_window_extent().width <= canvas.bbox.width:
            return
        legend.remove()


def _draw_mark(axes: Any, mark: Mark, size: float) -> _Label:
    """Draws a mark, with its text above the plot or to the right of it."""
    is_x = mark.axis == "x"
    if mark.until is None:
        (axes.axvline if is_x else axes.axhline)(mark.at, color=GREY, linestyle=":")
    else:
        style = {"facecolor": (GREY, ZONE_OPACITY), "edgecolor": GREY, "linewidth": 0.6}
        (axes.axvspan if is_x else axes.axhspan)(mark.at, mark.until, **style)
    # These transforms take one coordinate from the data and the other from the plot (0 to 1).
    across = axes.get_xaxis_transform() if is_x else axes.get_yaxis_transform()
    style = {"ha": "center", "va": "bottom"} if is_x else {"ha": "left", "va": "center"}
    style |= {"xycoords": across, "textcoords": "offset points", "annotation_clip": False}
    middle = mark.at if mark.until is None else (mark.at + mark.until) / 2.0
    at = (middle, 1.0) if is_x else (1.0, middle)
    rows = [1.2 * size * row for row in range(20)]
    offsets = [(0.0, 2.0 + row) if is_x else (3.0, row) for row in rows]
    return axes.annotate(_math(mark.text), at, offsets[0], fontsize=size, **style), offsets


def _names(axes: Any, series: Series, size: float) -> Iterator[_Label]:
    """Yields the names of points."""
    style = {"textcoords": "offset points", "fontsize": size, "ha": "center", "va": "center"}
    for x, y, name in zip(series.x, series.y, series.labels, strict=False):
        label = axes.annotate(_math(name), (x, y), (0, 0), **style)
        # Names would else move the axes, and so their own points.
        label.set_in_layout(False)
        half = label.get_window_extent().size * 36.0 / axes.figure.dpi + (4.0, 3.0)
        yield label, [tuple(half * side) for side in _AROUND]


def _place(canvas: Any, axes: Any, labels: list[_Label], drawn: Sequence[Series] = ()) -> None:
    """Moves each label to the first of its offsets, in points, where it covers no other text and no
    point of `drawn`; one without such a place is removed."""
    from matplotlib.transforms import Bbox

    canvas.draw_without_rendering()
    own = [label for label, _ in labels]
    texts = [
        axes.title,
        *axes.texts,
        *axes.get_xticklabels(),
        *axes.get_yticklabels(),
        *canvas.legends,
    ]
    taken = [each.get_window_extent() for each in texts if each not in own]
    radius = 2.5 * canvas.dpi / 72.0
    for series in drawn:
        points = axes.transData.transform(np.stack([series.x, series.y], axis=1))
        taken += [Bbox([point - radius, point + radius]) for point in points]
    for label, offsets in labels:
        for offset in offsets:
            label.xyann = offset
            # Two texts in a row have a space between them.
            box = label.get_window_extent().padded(radius, 0.0)
            # A mark's text makes room for itself, and a name has only what is there.
            is_inside = label.get_in_layout() or Bbox.intersection(box, canvas.bbox) == box
            if is_inside and not any(map(box.overlaps, taken)):
                taken.append(box)
                break
        else:
            label.remove()


def _words(axis: Axis) -> str:
    return _math(axis.title + (", log scale" if axis.is_log else ""))


def _math(text: str) -> str:
    """Returns a text with Greek letters as formulas. Users' names may contain dollars, which do
    not mean formulas here."""
    return with_greek(text.replace("$", r"\$"))


def _scale(drawn: Any, set_scale: Any, axis: Axis, values: list[Float64Array]) -> None:
    together = np.concatenate([*values, np.zeros(0)])
    together = together[np.isfinite(together)]
    if axis.is_log:
        from matplotlib.ticker import LogLocator, NullLocator

        set_scale("log")
        # Parts of decades only if these are few: every number has to fit.
        positive = together[together > 0]
        decades = np.log10(positive.max() / positive.min()) if positive.size else 0.0
        subs = (1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)
        drawn.set_major_locator(LogLocator(subs=subs, numticks=8))
        drawn.set_minor_locator(NullLocator())
    # No number of the axis may stand between two whole ones.
    elif np.array_equal(together, np.round(together)):
        drawn.get_major_locator().set_params(integer=True)
    drawn.set_major_formatter(_tick)


def _tick(value: float, _: Any = None) -> str:
    if value and not 1e-4 <= abs(value) < 1e6:
        digits, _, power = f"{value:.6e}".partition("e")
        factor = "" if float(digits) == 1.0 else rf"{float(digits):g}\times "
        return rf"${factor}10^{{{int(power)}}}$"
    return f"{value:,.10g}".replace("-", "\N{MINUS SIGN}")


def _draw_series(axes: Any, series: Series, place: int) -> None:
    color, dash = look(place)
    # matplotlib leaves a label that starts with an underscore out of the legend.
    label = _math("\n".join(legend_lines(series))) or "_"
    marker = _MARKERS[place % len(_MARKERS)]
    style: dict[str, Any] = {"color": color, "linestyle": _DASHES[dash]}
    if series.is_reference:
        axes.plot(series.x, series.y, color=GREY, linestyle="--")
    elif series.kind == "bars":
        middles, widths = series.bars()
        axes.bar(middles, series.y, width=widths, color=color, label=label)
    elif series.kind in ("stars", "misses"):
        color = color if series.kind == "stars" else RED
        axes.plot(series.x, series.y, "*", markersize=13, color=color, label=label)
    elif series.kind == "rows":
        # Small, because several series may share a row.
        axes.plot(series.x, series.y, ".", color=color, label=label)
        if series.low is not None and series.high is not None:
            axes.hlines(series.y, series.low, series.high, color=color)
        axes.set_yticks(np.round(series.y), [_math(fill(each, 24)) for each in series.labels])
        axes.set_ylim(0.5 - series.y.size, 0.5)
    elif series.kind == "points":
        style = {"color": color, "fillstyle": "none" if place < len(_MARKERS) else "full"}
        axes.plot(series.x, series.y, marker, label=label, **style)
        if series.low is not None and series.high is not None:
            # Inside of a marker, a bar would make another one of it.
            axes.plot(series.x, series.y, marker, color="white", zorder=1.5)
            axes.vlines(series.x, series.low, series.high, color=color, zorder=1.4)
    else:
        x, y = series.path()[:2] if series.kind == "steps" else (series.x, series.y)
        if series.low is not None and series.high is not None:
            # An outline would hide the dashes of a line in a thin band.
            band = {"facecolor": (color, BAND_OPACITY), "linewidth": 0}
            axes.fill_between(series.x, series.low, series.high, **band)
        style["marker"] = marker if series.has_markers else None
        axes.plot(x, y, solid_joinstyle="miter", label=label, **style)
