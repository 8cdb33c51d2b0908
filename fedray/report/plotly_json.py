"""Figures in the form that plotly.js draws: data and layout, without the colours of text and rules,
which the page sets."""

import math
from collections.abc import Sequence
from dataclasses import replace
from textwrap import wrap
from typing import Any, Literal

import numpy as np

from fedray.base.arrays import Float64Array
from fedray.base.escaped import html_text
from fedray.base.parsing import finite_or_none
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

PLOT, CHARACTER = np.array([260.0, 200.0]), np.array([6.0, 12.0])
"""Sizes in pixels of a telephone's plot and of one character of a label, (width, height)."""
MARKER = 10.0
"""Width in pixels of an open marker, with its outline."""
ROOM = np.array([12.0, 20.0])
"""Pixels beyond the outermost points in which a name may stand."""
LINE = 14
"""Height in pixels of a line of texts above a plot."""
BESIDE = 9
"""Most characters of a text that stands beside the plot, where it covers nothing."""
BESIDE_PLOT = 36
"""Characters of a line of the title of the y axis, which is as long as a plot is high."""
LABEL = 20
"""Characters of a row's label that fit beside a telephone's plot."""
HOVER = "%{hovertext}<extra></extra>"
NAMED_HOVER = f"%{{fullData.name}}<br>{HOVER}"
"""Text beside a point. plotly.js would write the name in the line's colour, which is too bright for
text."""
_SIDES = {
    f"{high} {wide}": np.array([x, y], np.float64)
    for high, y in (("top", 1), ("bottom", -1), ("middle", 0))
    for wide, x in (("center", 0), ("right", 1), ("left", -1))
    if x or y
}
"""Sides of a point on which its name may stand, by their names in plotly.js, with the direction."""
_SYMBOLS = [*MARKERS.values()]
_SILENT = {"hoverinfo": "skip", "showlegend": False}
"""Keys of lines that carry no data."""


def plotly_figure(figure: Figure) -> dict[str, Any]:
    """Returns a figure as {data, layout} for plotly.js.

    Colours of text and rules are left out, because the page sets them for its light or dark scheme.
    """
    # A single series needs no legend, because the title describes it.
    has_legend = sum(not each.is_reference for each in figure.series) > 1
    lines = _lines(figure)
    data = []
    placed = figure.side_by_side(*(PLOT / MARKER)).series
    labels = _labels(replace(figure, series=placed))
    for (each, place), drawn, names in zip(figure.looks, placed, labels, strict=True):
        # A band comes before its line, so that the line is drawn over it.
        data += _bands(each, place)
        data.append({**_trace(figure, each, place), **_beside(each, drawn), **names})
    above = LINE * max(lines.values(), default=0)
    beside = [0, *(n for m in figure.marks if m.axis == "y" and (n := len(m.text)) <= BESIDE)]
    return {
        "data": data,
        "layout": {
            "xaxis": _axis(figure, figure.x, "x"),
            "yaxis": _axis(figure, figure.y, "y"),
            "shapes": [_shape(mark) for mark in figure.marks],
            "annotations": [
                _annotation(figure, m, lines.get(m, 0)) for m in figure.marks if m.text
            ],
            "showlegend": has_legend,
            "legend": {"orientation": "h", "y": -0.25, "yanchor": "top"},
            "margin": {"l": 56, "r": max(24, 8 + 7 * max(beside)), "t": 24 + above, "b": 48},
            "height": 320 + 20 * has_legend * len(figure.series) + above + _of_rows(figure),
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "hovermode": "closest",
        },
    }


def _lines(figure: Figure) -> dict[Mark, int]:
    """Returns each text's line above the plot: the lowest with room for it on a telephone."""
    texts = [each for each in figure.marks if each.axis == "x" and each.text]
    found = [each.x for each in figure.series] + [np.array([each.at for each in texts])]
    found.append(np.array(_axis(figure, figure.x, "x").get("range", [])))
    scale = np.log if figure.x.is_log else np.asarray
    ends: list[float] = []
    lines = {}
    for each in sorted(texts, key=lambda mark: mark.at):
        start = PLOT[0] * scale(each.at) / (np.ptp(scale(np.concatenate(found))) or 1.0)
        lines[each] = next((n for n, end in enumerate(ends) if end < start), len(ends))
        ends[lines[each] : lines[each] + 1] = [start + CHARACTER[0] * (len(each.text) + 2)]
    return lines


def _of_rows(figure: Figure) -> int:
    """Returns the pixels to add for more rows than a plot holds."""
    rows = (each.x.size for each in figure.series if each.kind == "rows")
    return 24 * max(0, max(rows, default=0) - 8)


def _bands(series: Series, place: int) -> list[dict[str, Any]]:
    """Returns the band around a line; nothing for other series."""
    if series.kind != "line" or series.low is None or series.high is None:
        return []
    is_known = np.isfinite(series.low) & np.isfinite(series.high)
    x, low, high = (each[is_known] for each in (series.x, series.low, series.high))
    color, _ = look(place)
    # One closed outline: along the upper edge, and back along the lower one.
    outline = _line(np.concatenate([x, x[::-1]]), np.concatenate([high, low[::-1]]))
    fill = {"fill": "toself", "fillcolor": _faint(color, BAND_OPACITY)}
    return [{**outline, **fill, **_SILENT, "line": {"color": color, "width": 1}}]


def _trace(figure: Figure, series: Series, place: int) -> dict[str, Any]:
    if series.is_reference:
        line = {"color": GREY, "dash": "dash", "width": 1}
        return {**_line(series.x, series.y), **_SILENT, "line": line}
    color, dash = look(place)
    common = {
        # plotly.js reads HTML in names, and users' names may contain anything.
        "name": "<br>".join(map(html_text, legend_lines(series))),
        "hovertemplate": NAMED_HOVER if len(figure.series) > 1 else HOVER,
        "hovertext": [_hover(figure, series, point) for point in range(series.x.size)],
    }
    if series.kind == "bars":
        middles, widths = series.bars()
        bars = {"x": _numbers(middles), "y": _numbers(series.y), "width": _numbers(widths)}
        return {"type": "bar", **bars, "marker": {"color": color}, **common}
    common["line"] = {"color": color, "dash": dash}
    if series.kind == "steps":
        x, y, places = series.path()
        # A step has two corners, which both show the values of the step.
        common["hovertext"] = [common["hovertext"][each] for each in places]
        mode = "lines+markers" if series.has_markers else "lines"
        return {**_line(x, y), **common, "mode": mode, "marker": {"color": color, "size": 3}}
    drawn = {**_line(series.x, series.y), **common}
    if series.kind == "line":
        mode = "lines+markers" if series.has_markers else "lines"
        return {**drawn, "mode": mode, "marker": {"color": color, "size": 5}}
    # Open markers hide no other; further series of a kind have its marker, filled.
    is_open = series.kind == "points" and place < len(_SYMBOLS)
    symbol = _SYMBOLS[place % len(_SYMBOLS)]
    if is_open:
        symbol += "-open"
    marker = {"color": color, "size": 9 if is_open else 7, "symbol": symbol}
    if series.kind in ("stars", "misses"):
        shown = color if series.kind == "stars" else RED
        marker = {"color": shown, "size": 16, "symbol": "star"}
    return {**drawn, "mode": "markers", "marker": marker, **_error_bars(series)}


def _beside(series: Series, drawn: Series) -> dict[str, Any]:
    """Returns the x of points that stand beside their place; the text of each has the true one."""
    return {} if np.array_equal(series.x, drawn.x) else {"x": _numbers(drawn.x)}


def _line(x: Float64Array, y: Float64Array) -> dict[str, Any]:
    return {"type": "scatter", "mode": "lines", "x": _numbers(x), "y": _numbers(y)}


def _labels(figure: Figure) -> list[dict[str, Any]]:
    """Returns the names beside the points of each series, at the first side where one covers no
    point, no other name and no edge of a telephone's plot. Others are left out; the hover text has
    them."""
    axes = (figure.x, figure.y)
    scaled = [
        np.stack([axis.scaled(each) for axis, each in zip(axes, (s.x, s.y), strict=True)], axis=1)
        for s in figure.series
    ]
    spanned = np.concatenate([*scaled, np.empty((0, 2))])
    low = np.fmin.reduce(spanned, axis=0, initial=np.inf)
    high = np.fmax.reduce(spanned, axis=0, initial=-np.inf)
    if figure.y.starts_at_zero and not figure.y.is_log:
        low[1] = min(low[1], 0.0)
    size = np.where(high > low, high - low, 1.0)
    places = [PLOT * (each - low) / size for each in scaled]
    taken = [(point, np.full(2, MARKER / 2)) for each in places for point in each]
    named: list[Float64Array] = []
    found = []
    for series, points in zip(figure.series, places, strict=True):
        texts, sides = [], []
        is_named = bool(series.labels) and series.kind != "rows"
        for point, label in zip(points, series.labels if is_named else (), strict=is_named):
            half = CHARACTER * (len(label), 1.0) / 2
            # Points in one spot would have names of which nobody could tell whose they are.
            is_crowded = any((abs(point - other) < MARKER).all() for other in named)
            side = None if is_crowded else _free_side(point, half, taken)
            texts.append("" if side is None else html_text(label))
            sides.append(side or "top center")
            if side is not None:
                named.append(point)
                taken.append((point + _SIDES[side] * (half + MARKER / 2), half))
        style = {"textposition": sides, "textfont": {"size": 11}, "cliponaxis": False}
        found.append({"mode": "markers+text", "text": texts, **style} if is_named else {})
    return found


def _free_side(
    point: Float64Array, half: Float64Array, taken: Sequence[tuple[Float64Array, Float64Array]]
) -> str | None:
    """Returns the first side of a point with room for a name, if there is one that is no other
    point's neighbour; None without room."""
    others = [each for each in taken if (abs(each[0] - point) >= MARKER).any()]
    # Close to another point a name might be taken for that of the other.
    for more in (MARKER / 2, 0.0):
        for side, direction in _SIDES.items():
            middle = point + direction * (half + MARKER / 2)
            is_inside = (abs(middle - PLOT / 2) + half <= PLOT / 2 + ROOM).all()
            is_free = not any((abs(middle - at) < half + o + more).all() for at, o in others)
            if is_inside and is_free:
                return side
    return None


def _error_bars(series: Series) -> dict[str, Any]:
    if series.low is None or series.high is None:
        return {}
    is_row = series.kind == "rows"
    middle = series.x if is_row else series.y
    above, below = _numbers(series.high - middle), _numbers(middle - series.low)
    bars = {"symmetric": False, "array": above, "arrayminus": below, "thickness": 1.2}
    # The ends of a short bar at a point would look like another marker.
    return {f"error_{'x' if is_row else 'y'}": {"type": "data", "width": 4 * is_row, **bars}}


def _hover(figure: Figure, series: Series, point: int) -> str:
    x = figure.x.text(float(series.x[point]))
    y = figure.y.text(float(series.y[point]))
    if series.until is not None:
        # A bar from 3 until 5 counts the whole numbers 3 and 4.
        last = float(series.until[point]) - (1 if series.kind == "bars" else 0)
        x += f" to {figure.x.text(last)}" if last > series.x[point] else ""
    if series.low is not None and series.high is not None and np.isfinite(series.low[point]):
        axis = figure.x if series.kind == "rows" else figure.y
        between = (
            f" ({axis.text(float(series.low[point]))} to {axis.text(float(series.high[point]))})"
        )
        x, y = (x + between, y) if series.kind == "rows" else (x, y + between)
    if series.kind == "rows":
        return f"{html_text(series.labels[point])}<br>{html_text(figure.x.title)}: {x}"
    label = f"{html_text(series.labels[point])}<br>" if series.labels else ""
    return f"{label}{html_text(figure.x.title)}: {x}<br>{html_text(figure.y.title)}: {y}"


def _axis(figure: Figure, axis: Axis, which: Literal["x", "y"]) -> dict[str, Any]:
    title = axis.title + (", log scale" if axis.is_log else "")
    # A plot is less high than a long title beside it.
    parts = wrap(title, BESIDE_PLOT) if which == "y" else [title]
    title = "<br>".join(map(html_text, parts))
    drawn: dict[str, Any] = {"title": {"text": title, "standoff": 10}, "automargin": True}
    drawn |= {"exponentformat": "none", "separatethousands": True}
    bars = [each for each in figure.series if each.kind == "bars"]
    rows = [each for each in figure.series if each.kind == "rows"]
    names = {"y": ("y", "low", "high"), "x": ("x", "until", *(("low", "high") if rows else ()))}
    found = [getattr(each, name) for each in figure.series for name in names[which]]
    values = np.concatenate([np.empty(0), *(each for each in found if each is not None)])
    known = values[np.isfinite(values)]
    marks = [each.at for each in figure.marks if each.axis == which]
    if rows and which == "y":
        texts = [" <br>".join(map(html_text, wrap(each, LABEL))) for each in rows[0].labels]
        drawn |= {"tickvals": _numbers(np.round(rows[0].y)), "ticktext": texts}
        # The line at zero would hide the interval of the first row.
        drawn |= {"range": [0.5 - len(texts), 0.5], "zeroline": False}
    elif axis.is_log:
        drawn |= {"type": "log", **_log_ticks(known[known > 0])}
        # The axis begins at a half, so that a bar of height one is visible on a logarithmic scale.
        if which == "y" and bars:
            drawn["range"] = [math.log10(0.5), math.log10(2.0 * known.max())]
    else:
        if bars and which == "x":
            # Bars stand on whole numbers; the range leaves room for half a bar at each end.
            drawn["range"] = [min([known.min() - 1.0, *marks]), max([*known, *marks])]
        elif axis.starts_at_zero and which == "y":
            drawn["rangemode"], known = "tozero", np.append(known, 0.0)
        # No number of the axis may stand between two whole ones.
        if known.size and np.array_equal(known, np.round(known)) and np.ptp([*known, *marks]) <= 10:
            drawn["dtick"] = 1
    if axis.ends is not None:
        drawn["range"] = [math.log10(e) if axis.is_log else e for e in axis.ends]
        drawn.pop("rangemode", None)
    if axis.at_points:
        drawn |= {"tickvals": figure.ticks, "ticktext": list(map(axis.text, figure.ticks))}
    return drawn


def _log_ticks(known: Float64Array) -> dict[str, Any]:
    """Returns whole decades, about seven, or parts of few, in plain numbers; plotly.js would
    write the parts as small single digits."""
    low, high = np.log10([known.min(), known.max()]) if known.size else (0.0, 0.0)
    parts = (1, 2, 3, 5, 7) if high - low < 1 else (1, 2, 5) if high - low < 2.5 else (1,)
    powers = range(math.floor(low), math.ceil(high) + 1, math.ceil((high - low + 1) / 7))
    ticks = [float(f"{part}e{power}") for power in powers for part in parts]
    return {"tickvals": ticks, "ticktext": [f"{each:,.15g}" for each in ticks]}


def _shape(mark: Mark) -> dict[str, Any]:
    across = "y" if mark.axis == "x" else "x"
    end = mark.at if mark.until is None else mark.until
    place = {f"{mark.axis}ref": mark.axis, f"{mark.axis}0": mark.at, f"{mark.axis}1": end}
    # A mark goes across the whole plot, whatever the other axis shows.
    whole = {f"{across}ref": "paper", f"{across}0": 0, f"{across}1": 1}
    if mark.until is None:
        line = {"color": GREY, "dash": "dot", "width": 1.5}
        return {"type": "line", **place, **whole, "line": line}
    area = {"fillcolor": _faint(GREY, ZONE_OPACITY), "line": {"color": GREY, "width": 1}}
    return {"type": "rect", **place, **whole, **area, "layer": "below"}


def _annotation(figure: Figure, mark: Mark, line: int) -> dict[str, Any]:
    """Returns the text of a mark, `line` lines above the plot. On logarithmic axes plotly places
    text by the logarithm, but shapes by the value."""
    axis = figure.x if mark.axis == "x" else figure.y
    at = math.log10(mark.at) if axis.is_log else mark.at
    text = {"text": html_text(mark.text), "showarrow": False, "yanchor": "bottom"}
    text["font"] = {"size": 11}
    if mark.axis == "x":
        place = {"x": at, "xanchor": "left", "y": 1, "yref": "paper", "yshift": LINE * line}
        return {**text, **place}
    beside = {"xanchor": "left", "yanchor": "middle"} if len(mark.text) <= BESIDE else {}
    return {**text, "x": 1, "xref": "paper", "xanchor": "right", "y": at, **beside}


def _faint(color: str, opacity: float) -> str:
    red, green, blue = bytes.fromhex(color[1:])
    return f"rgba({red},{green},{blue},{opacity})"


def _numbers(values: Any) -> list[float | None]:
    # JSON has no NaN, and plotly.js leaves a gap at null.
    return [finite_or_none(value) for value in values.tolist()]
