"""Figures as files: an SVG and a CSV of each."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedray.base.atomic import write_whole
from fedray.base.errors import InputError
from fedray.base.escaped import html_text
from fedray.base.result import DrawnResult
from fedray.base.storage import local_path
from fedray.report.figure import (
    BAND_OPACITY,
    GREY,
    ZONE_OPACITY,
    Axis,
    Figure,
    HeatMap,
    Mark,
    Plane,
    Series,
    Shown,
    legend_lines,
    look,
)

MOST_POINTS_TO_AVOID = 5_000
"""Number of points in a figure up to which its legend is placed where it hides the fewest."""
OPTIONAL_COLUMNS = {"name", "until", "low", "high"}
"""Columns of a figure's CSV that are left out if no row has them."""


def write_figures(result: DrawnResult, directory: str | Path) -> list[Path]:
    """Writes NAME.svg and NAME.csv of every figure of a result's page.

    Args:
        result: a trace, an audit, a trained run, or a result of a study.
        directory: folder of the files, made if it is missing.

    Returns:
        Paths of the files.

    Raises:
        InputError: a file cannot be written.
        MissingExtra: matplotlib is not installed.
    """
    place = local_path(directory)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = error.strerror or error
        raise InputError(
            f"figures {str(directory)!r} cannot be made a directory ({problem}); name another"
        ) from None
    written = []
    for figure in result.figures():
        for suffix, content in ((".svg", figure_svg(figure)), (".csv", figure_csv(figure))):
            path = place / f"{figure.name}{suffix}"
            write_whole(path, content.encode(), f"figure {str(path)!r}", InputError)
            written.append(path)
    return written


def figure_csv(figure: Shown) -> str:
    """Returns a figure's data as CSV, unrounded.

    A figure has a row per point (series, x, until if any, y, and the ends of its range), then a row
    per mark, for each of its panels. A plane has a row per cell (x, y, value). Numbers are read
    back as the same float64; unknown ones are empty.
    """
    headings = {"x": figure.x.title, "y": figure.y.title}
    if isinstance(figure, Figure):
        until = {"until": f"{figure.x.title}, until"}
        headings = {"series": "series", "name": "name", "x": figure.x.title, **until}
        headings |= {"y": figure.y.title, "low": "from", "high": "to"}
        if figure.beside:
            headings = {"panel": "panel", **headings, "y": "value"}
        rows = [{**row, "panel": each.title} for each in figure.panels for row in _point_rows(each)]
    else:
        headings["z"] = figure.z.title
        rows = list(_cell_rows(figure))
    # A column that no row has is left out; if only some rows have it, the others are empty.
    used = set(headings) - OPTIONAL_COLUMNS | {key for row in rows for key in row}
    columns = [key for key in headings if key in used]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    writer.writerows([headings, *rows])
    return out.getvalue()


def _cell_rows(figure: Plane | HeatMap) -> Iterator[dict[str, str]]:
    if isinstance(figure, Plane):
        shown = {place: _plain(z) for place, z in figure.values.items()} | figure.marks
        cells = sorted(shown.items())
    else:
        steps = np.array(figure.ends) / figure.cells.shape
        cells = [
            ((column * steps[1], row * steps[0]), _plain(value))
            for (row, column), value in np.ndenumerate(figure.cells)
        ]
    for (x, y), text in cells:
        yield {"x": _plain(x), "y": _plain(y), "z": text}


def _point_rows(figure: Figure) -> Iterator[dict[str, str]]:
    data = [each for each in figure.series if not each.is_reference]
    for each in data:
        columns = {
            "x": each.x,
            "until": each.until,
            "y": each.y,
            "low": each.low,
            "high": each.high,
        }
        known = {key: values for key, values in columns.items() if values is not None}
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


def figure_svg(figure: Shown) -> str:
    """Returns a drawing of a figure, in black on white, for papers.

    Its words are text, so that they can be found and edited; the same figure gives the same bytes.
    """
    if isinstance(figure, Plane):
        return plane_svg(figure)
    if isinstance(figure, HeatMap):
        return heat_svg(figure, has_title=True)
    # Only drawings need matplotlib, which may not be installed.
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        # Without a fixed salt, ids in the file would differ from run to run.
        "svg.hashsalt": "fedray",
        # Users' names may contain dollars, which do not mean formulas here.
        "text.parse_math": False,
        "font.size": 9,
        "font.family": "sans-serif",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(settings):
        count = len(figure.panels)
        width = 7.2 if count == 1 else 4.4 * count
        canvas = Canvas(figsize=(width, 4.0), layout="constrained")
        drawn = canvas.subplots(1, count, squeeze=False)[0]
        for axes, each in zip(drawn, figure.panels, strict=True):
            # Panels share their series.
            _draw(axes, each, has_legend=each is figure)
            axes.set_title(each.title, loc="left", fontsize=10, pad=16)
        out = io.StringIO()
        # With a date in it, the file of the same figure would differ each time.
        canvas.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def _draw(axes: Any, figure: Figure, has_legend: bool) -> None:
    for series, place in figure.looks:
        _draw_series(axes, figure, series, place)
    _dress(axes.xaxis, axes.set_xscale, figure.x)
    _dress(axes.yaxis, axes.set_yscale, figure.y)
    if any(each.kind == "bars" for each in figure.series):
        # Bars count whole numbers, so no number of the axis may stand between two.
        axes.xaxis.get_major_locator().set_params(integer=True)
        # The axis begins at a half, so that a bar of height one is visible on a logarithmic scale.
        axes.set_ylim(bottom=0.5 if figure.y.is_log else 0)
    elif not figure.y.is_log and figure.y.starts_at_zero:
        axes.set_ylim(bottom=0)
    for mark in figure.marks:
        _draw_mark(axes, mark)
    if has_legend and sum(not each.is_reference for each in figure.series) > 1:
        points = sum(series.x.size for series in figure.series)
        # The best place takes seconds to find among many points, and matplotlib warns of it.
        corner = "best" if points <= MOST_POINTS_TO_AVOID else "upper right"
        axes.legend(frameon=False, fontsize=8, loc=corner)


def _draw_mark(axes: Any, mark: Mark) -> None:
    # These transforms take one coordinate from the data and the other from the plot (0 to 1).
    if mark.axis == "x":
        line, zone = axes.axvline, axes.axvspan
        across = axes.get_xaxis_transform()
        at = (mark.at, 1.0)
        side = "left"
    else:
        line, zone = axes.axhline, axes.axhspan
        across = axes.get_yaxis_transform()
        at = (1.0, mark.at)
        side = "right"
    if mark.until is None:
        line(mark.at, color=GREY, linestyle=":", linewidth=1)
    else:
        outlined = {"facecolor": (GREY, ZONE_OPACITY), "edgecolor": GREY, "linewidth": 0.6}
        zone(mark.at, mark.until, **outlined)
    axes.text(*at, mark.text, transform=across, fontsize=8, va="bottom", ha=side)


def _dress(drawn: Any, set_scale: Any, axis: Axis) -> None:
    drawn.set_label_text(axis.title + (", log scale" if axis.is_log else ""))
    if axis.is_log:
        from matplotlib.ticker import LogLocator, NullLocator

        set_scale("log")
        drawn.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=8))
        # By default numbers are formulas, which `text.parse_math` leaves as they are written.
        drawn.set_major_formatter("{x:,g}")
        drawn.set_minor_locator(NullLocator())


def _draw_series(axes: Any, figure: Figure, series: Series, place: int) -> None:
    color, dash_name = look(place)
    dash = {"solid": "-", "dash": "--", "dot": ":"}[dash_name]
    # matplotlib leaves a label that starts with an underscore out of the legend.
    label = "\n".join(legend_lines(series)) or "_"
    if series.is_reference:
        axes.plot(series.x, series.y, color=GREY, linestyle="--", linewidth=1)
    elif series.kind == "bars":
        middles, widths = series.bars()
        axes.bar(middles, series.y, width=widths, color=color, label=label)
    elif series.kind == "steps":
        x, y, _ = series.path()
        style = {
            "color": color,
            "linestyle": dash,
            "marker": "." if series.has_markers else None,
            "markersize": 3,
        }
        axes.plot(x, y, linewidth=1.2, solid_joinstyle="miter", label=label, **style)
    elif series.kind == "stars":
        axes.plot(series.x, series.y, "*", markersize=13, color=color, label=label)
    elif series.kind == "points":
        axes.plot(series.x, series.y, "o", color=color, label=label)
        if series.low is not None and series.high is not None:
            axes.vlines(series.x, series.low, series.high, color=color, linewidth=1)
        places = figure.label_places(series) if series.labels else []
        across = {1: "left", -1: "right", 0: "center"}
        along = {1: "bottom", -1: "top", 0: "center"}
        for x, y, name, stands in zip(series.x, series.y, series.labels, places, strict=False):
            if stands is None:
                continue
            right, above = stands
            style = {"ha": across[right], "va": along[above], "fontsize": 7}
            offset = (5 * right, 4 * above)
            axes.annotate(name, (x, y), xytext=offset, textcoords="offset points", **style)
    else:
        if series.low is not None and series.high is not None:
            band = {"facecolor": (color, BAND_OPACITY), "edgecolor": color, "linewidth": 0.6}
            axes.fill_between(series.x, series.low, series.high, **band)
        style = {"color": color, "linestyle": dash, "marker": "o", "markersize": 3}
        axes.plot(series.x, series.y, label=label, **style)


def heat_svg(heat: HeatMap, has_title: bool) -> str:
    """Returns a heat map as SVG: with its title on white for a file, or without both for a page,
    which has a title and colours of its own."""
    size, left, top = 320, 52, 44 if has_title else 8
    width, height = left + size + 24, top + size + 40
    parts = [
        f'<svg class="heat" xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11" '
        f'text-anchor="middle" role="img" aria-label="{html_text(heat.title)}">'
    ]
    if has_title:
        parts.append(f'<rect width="{width}" height="{height}" fill="#ffffff"/>')
        parts.append(
            f'<text x="12" y="22" font-size="14" text-anchor="start">{html_text(heat.title)}</text>'
        )
    rows, columns = heat.cells.shape
    wide, high = size / columns, size / rows
    levels = np.round(16 * heat.shades())
    # A path per shade, because an element per cell would take ten times the space.
    for level in np.unique(levels[levels > 0]).tolist():
        path = "".join(
            f"M{left + wide * column:g} {top + high * row:g}h{wide:g}v{high:g}h-{wide:g}z"
            for row, column in np.argwhere(levels == level).tolist()
        )
        parts.append(
            f'<path d="{path}" fill="#1f66b8" fill-opacity="{level / 16:g}" '
            'shape-rendering="crispEdges"/>'
        )
    below = top + size
    parts += [
        f'<path d="M{left} {top}h{size}v{size}h-{size}z" fill="none" stroke="#8a8f94"/>',
        f'<text x="{left}" y="{below + 16}">0</text>',
        f'<text x="{left + size}" y="{below + 16}">{heat.x.text(heat.ends[1])}</text>',
        f'<text x="{left + size / 2}" y="{below + 32}">{html_text(heat.x.title)}</text>',
        f'<text x="{left - 6}" y="{top + 10}" text-anchor="end">0</text>',
        f'<text x="{left - 6}" y="{below}" text-anchor="end">{heat.y.text(heat.ends[0])}</text>',
        f'<text transform="translate(14 {top + size / 2}) rotate(-90)">'
        f"{html_text(heat.y.title)}</text>",
    ]
    return "\n".join([*parts, "</svg>\n"])


def plane_svg(plane: Plane) -> str:
    """Returns a plane as a grid of shaded cells with their values, like the page's table.

    Cells that were not computed are left white.
    """
    # Pixels: the size of a cell, and the space left of the grid and above it.
    xs = plane.xs
    ys = plane.ys
    wide = 74
    high = 26
    left = 96
    top = 64
    width = left + wide * len(xs) + 16
    height = top + high * len(ys) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11" text-anchor="middle">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="22" font-size="14" text-anchor="start">{html_text(plane.title)}</text>',
        f'<text x="12" y="40" text-anchor="start">{html_text(plane.sentence)}</text>',
    ]
    middle = left + wide * len(xs) / 2
    parts.append(f'<text x="{middle}" y="{height - 10}">{html_text(plane.x.title)}</text>')
    for column, x in enumerate(xs):
        center = left + wide * (column + 0.5)
        parts.append(f'<text x="{center}" y="{height - 28}">{html_text(plane.x.text(x))}</text>')
    for row, y in enumerate(ys):
        at = top + high * row
        parts.append(
            f'<text x="{left - 8}" y="{at + 17}" text-anchor="end">'
            f"{html_text(plane.y.text(y))}</text>"
        )
        for column, x in enumerate(xs):
            text, shade = plane.cell(x, y)
            if not text:
                continue
            place = left + wide * column
            # At most 0.6 of the colour, so that the black number on it is readable.
            shade *= 0.6
            parts.append(
                f'<rect x="{place}" y="{at}" width="{wide}" height="{high}" '
                f'fill="#1f66b8" fill-opacity="{shade:.3f}"/>'
            )
            parts.append(f'<text x="{place + wide / 2}" y="{at + 17}">{html_text(text)}</text>')
    return "\n".join([*parts, "</svg>\n"])
