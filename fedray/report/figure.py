"""A figure as a value. The page, an SVG file and a CSV file are all made from it, so they cannot
differ."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Literal, Self

import numpy as np

from fedray.base.arrays import BoolArray, Float64Array, Int64Array
from fedray.base.rounding import up
from fedray.report.subject import UNKNOWN, Subject

LOG_LINES = 5.0
"""Ratio of the largest to the smallest value above which lines get a logarithmic axis: on a linear
one, the lower half of a geometric range would lie in the lowest fifth."""
LOG_BARS = 100.0
"""The same ratio for bars, above which the smallest would no longer be visible; the smallest bars
show min-sep and max participations."""

COLORS = [
    *("#2a78d6", "#d6642a", "#2a9d72", "#8a5cc2", "#b98a00"),
    *("#c43d6b", "#747a80", "#0e8f9e", "#7a8f1f", "#9a6a4a"),
]
DASHES = ("solid", "dash", "dot", "dashdot")
MARKERS = {
    **{"o": "circle", "s": "square", "^": "triangle-up", "D": "diamond"},
    **{"v": "triangle-down", "P": "cross", "X": "x", "p": "pentagon", "<": "triangle-left"},
    "h": "hexagon",
}
"""Shapes of points by place, by their names in matplotlib, with those in plotly.js."""
KINDS = {
    **{"blt": 0, "banded-toeplitz": 1, "toeplitz": 1, "banded": 2, "tree": 3, "band-fhu": 4},
    **{"bisr": 5, "identity": 6, "dense": 7, "tree-full": 8, "matrix": 9},
    "integer-toeplitz": 1,
}
"""Place of the colour and dash of each kind of mechanism, the same in every figure. Only
Toeplitz kinds share one."""
MOST_MARKED = 20
"""Points of a line up to which they are marked."""
DRAWN_PARTS = 1000
"""Parts of the x axis, in each of which a long series is drawn by its extremes."""
GREY, RED = "#8a8f94", "#c4362c"
BAND_OPACITY, ZONE_OPACITY = 0.2, 0.15
"""Opacity of areas; on pages they have an outline too, because they hardly differ from paper."""
LETTER = 0.022
"""Width of a letter of a tick, as a share of the narrowest plot."""
LETTER_OF_PANEL = 0.04
"""The same share of a panel."""
LEGEND_CHARACTERS = 38
"""Largest number of characters in a line of the legend, so that it fits a telephone's screen."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis with a title, and how its values are shown, in plots and in words."""

    title: str
    """Measured quantity, with its unit."""
    is_log: bool = False
    """Whether the axis is logarithmic."""
    starts_at_zero: bool = True
    """Whether a linear axis starts at zero."""
    decimals: int | None = None
    """Decimals to which values are rounded up, as for privacy losses and errors; None shows them
    unrounded."""
    at_points: bool = False
    """Whether the ticks of an x axis are `Figure.ticks`."""
    ends: tuple[float, float] | None = None
    """Least and largest value that it shows; None for those of the points."""

    def scaled(self, values: Float64Array) -> Float64Array:
        """Returns values in units in which equal distances are equal in the plot."""
        return np.log(values) if self.is_log else values

    def text(self, value: float) -> str:
        """Returns a value as this axis shows it: whole numbers in full, others to six digits, or
        rounded up to the axis's decimals."""
        if self.decimals is not None:
            return up(value, self.decimals)
        if float(value).is_integer():
            return f"{value:,.0f}"
        return f"{value:,.6g}"


@dataclass(frozen=True, slots=True)
class Series:
    """Named points (x, y) [m]: a line, steps, bars or single points of a figure."""

    name: str
    """Name in the legend."""
    kind: Literal["line", "steps", "bars", "points", "stars", "misses", "rows"]
    """`line` joins the points; `steps` holds each y from its x to its `until` and leaves a gap if
    the next x is later; `bars` counts the whole numbers from x to until - 1; `points` are separate,
    `stars` are points that stand out, and `misses` red stars. `rows` are points at y = 0, -1, ..,
    or beside that if several series share the rows, whose labels stand on the y axis and whose
    ranges lie along x."""
    x: Float64Array
    """Horizontal positions of the points, [m]."""
    y: Float64Array
    """Vertical positions, [m]; NaN if unknown."""
    until: Float64Array | None = None
    """[m], for steps and bars: where each ends on the x axis."""
    labels: tuple[str, ...] = ()
    """Names of points, [m]."""
    is_reference: bool = False
    """Whether it is a line to compare with, and not data."""
    low: Float64Array | None = None
    """[m]: lower end of the range around y (of rows: around x), a band beside a line or a bar at a
    point; NaN if unknown."""
    high: Float64Array | None = None
    """[m]: upper end of that range."""
    mechanism: str | None = None
    """Kind of the mechanism that it shows, which has one colour and dash everywhere; None if it
    shows none."""

    @property
    def has_markers(self) -> bool:
        """Whether the points are marked: those of a line if there are few, and of steps if one is
        isolated and too short to see."""
        if self.kind == "line":
            return self.x.size <= MOST_MARKED
        if self.kind != "steps" or self.until is None:
            return self.kind != "bars"
        if not self.x.size:
            return False
        is_joined = self._are_joined(self.until)
        joins_next = np.append(is_joined, False)
        joins_previous = np.insert(is_joined, 0, False)
        is_alone = ~(joins_next | joins_previous)
        # On a telephone a 300th of the plot is about a pixel.
        whole = float(self.until.max() - self.x.min())
        is_short = self.until - self.x <= whole / 300
        return bool((is_alone & is_short).any())

    def _are_joined(self, until: Float64Array) -> BoolArray:
        """Returns whether each step but the last ends where the next one begins, [m - 1]."""
        # Times that were computed in different ways may differ by rounding.
        slack = 1e-9 * np.abs(until[:-1])
        return self.x[1:] <= until[:-1] + slack

    @property
    def is_long(self) -> bool:
        """Whether a line or steps have more points than a screen shows."""
        return self.kind in ("line", "steps") and self.x.size > 4 * DRAWN_PARTS

    def thinned(self, axis: Axis) -> "Series":
        """Returns a long series, whose x increase, by the points with the least and the largest y
        in each of DRAWN_PARTS equal parts of the x `axis`; other series as they are.

        A range around y covers those of its part. Steps of a part join, so a gap is kept if it is
        longer than two parts.
        """
        if not self.is_long:
            return self
        at = axis.scaled(self.x)
        at = (at - at[0]) / ((at[-1] - at[0]) or 1.0)
        parts = np.minimum(at * DRAWN_PARTS, DRAWN_PARTS - 1).astype(np.int64)
        begins = np.flatnonzero(np.diff(parts, prepend=-1))
        # Sorted by y within each part; of equal ones, the first is kept.
        is_known = np.isfinite(self.y)
        least = np.lexsort((np.where(is_known, self.y, np.inf), parts))[begins]
        most = np.lexsort((np.where(is_known, -self.y, np.inf), parts))[begins]
        kept = np.unique(np.concatenate([least, most]))
        place = np.searchsorted(begins, kept, side="right") - 1
        x, until = self.x[kept], self.until
        if until is not None:
            is_first = np.diff(place, prepend=-1) > 0
            x = np.where(is_first, self.x[begins[place]], x)
            ends = until[np.append(begins[1:], self.x.size) - 1][place]
            until = np.where(np.append(is_first[1:], True), ends, np.append(x[1:], np.nan))
        low = None if self.low is None else np.fmin.reduceat(self.low, begins)[place]
        high = None if self.high is None else np.fmax.reduceat(self.high, begins)[place]
        return replace(self, x=x, y=self.y[kept], until=until, low=low, high=high)

    def bars(self) -> tuple[Float64Array, Float64Array]:
        """Returns (middles [m], widths [m]) of the bars. A bar counts whole numbers up to until -
        1, and is a little narrower than its bin, so that neighbours can be distinguished."""
        assert self.until is not None
        return (self.x + self.until - 1) / 2, 0.92 * (self.until - self.x)

    def path(self) -> tuple[Float64Array, Float64Array, Int64Array]:
        """Returns (x [p], y [p], place [p]), the corners of a line through the steps. y is NaN at a
        gap; place is the position of the corner's point in x."""
        assert self.until is not None
        breaks = np.flatnonzero(~self._are_joined(self.until)) + 1
        # Each step has two corners; one more corner, without y, breaks the line at a gap.
        corners = 2 * breaks
        place = np.repeat(np.arange(self.x.size), 2)
        x = np.stack([self.x, self.until], axis=1).ravel()
        y = np.repeat(self.y, 2).astype(np.float64)
        x = np.insert(x, corners, x[corners])
        y = np.insert(y, corners, np.nan)
        place = np.insert(place, corners, breaks)
        return x, y, place


@dataclass(frozen=True, slots=True)
class Mark:
    """A line across the figure at `at` on an axis, or a zone from there up to `until`."""

    at: float
    """Position on its axis."""
    text: str
    """Text beside it."""
    axis: Literal["x", "y"] = "x"
    """Axis on which `at` lies; the line is at right angles to it."""
    until: float | None = None
    """End of a zone; None for a line."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A plot: series over two axes, with marks.

    It is a value, from which the page's plot, the SVG file and the CSV file are made.
    """

    name: str
    """Name of its files, and its id on the page."""
    title: str
    """Title above the figure."""
    note: str
    """Explanation for readers."""
    x: Axis
    """The horizontal axis."""
    y: Axis
    """The vertical axis."""
    series: tuple[Series, ...]
    """Series in the order of drawing."""
    marks: tuple[Mark, ...] = ()
    """Lines and zones across the figure."""
    subject: Subject = UNKNOWN
    """Subject of all points; a series of another one says so in its name."""
    ends: tuple[str, str] = ("from", "to")
    """Names of the ends of ranges, as columns of the CSV."""
    panels: tuple["Figure", ...] = ()
    """Plots of the same axes beside one another, each with its title, in place of `series`."""

    @classmethod
    def of_panels(cls, name: str, title: str, panels: Sequence["Figure"], subject: Subject) -> Self:
        """Returns a figure of several plots, which share the range of their axes.

        Args:
            name: name of its files.
            title: title above all.
            panels: the plots, of the same quantities; each has a title and a name of its own.
            subject: subject of all.
        """
        first = panels[0]
        axes = []
        for axis, keys in ((first.x, ("x",)), (first.y, ("y", "low", "high"))):
            every = (each for panel in panels for each in panel.series)
            found = [v for each in every for key in keys if (v := getattr(each, key)) is not None]
            marks = [each for panel in panels for each in panel.marks if each.axis == keys[0]]
            ends = [end for each in marks for end in (each.at, each.until) if end is not None]
            is_log = needs_log([*found, np.array(ends)])
            axes.append(
                replace(axis, is_log=is_log, ends=_ends_of([*found, np.array(ends)], is_log))
            )
        x, y = axes
        shared = tuple(replace(each, x=x, y=y) for each in panels)
        return cls(name, title, first.note, x, y, (), (), subject, first.ends, shared)

    @property
    def caption(self) -> str:
        """The title and the subject."""
        return ", ".join(filter(None, (self.title, str(self.subject))))

    def under(self, whole: Subject) -> "Figure":
        """Returns the figure with the facets of `whole` where its subject has none."""
        panels = tuple(each.under(whole) for each in self.panels)
        return replace(self, subject=self.subject.under(whole), panels=panels)

    def drawn(self) -> "Figure":
        """Returns the figure as it is drawn: long series thinned, as its note then says."""
        longest = max((each.x.size for each in self.series if each.is_long), default=0)
        if self.panels:
            return replace(self, panels=tuple(each.drawn() for each in self.panels))
        if not longest:
            return self
        note = (
            f"{self.note} Of {longest:,} points, the least and the largest value in each "
            f"{DRAWN_PARTS:,}th part of the axis are drawn, and are in the data here; only a CSV "
            "file of the figure has all points."
        )
        return replace(self, note=note, series=tuple(each.thinned(self.x) for each in self.series))

    def side_by_side(self, wide: float, high: float) -> "Figure":
        """Returns the figure with points of several series that would cover one another at one x
        side by side around it.

        Args:
            wide: number of markers that fit side by side into the plot.
            high: number of markers that fit above one another.
        """
        points = [place for place, each in enumerate(self.series) if each.kind == "points"]
        if len(points) < 2:
            return self
        ys = [self.y.scaled(each.y) for each in self.series]
        height = _span(ys) / high
        width = _span([self.x.scaled(each.x) for each in self.series]) / wide
        groups: list[list[tuple[float, float, int, int]]] = []
        # From left to right and upwards, so that neighbours in the list are neighbours in the plot.
        for point in sorted(
            (float(x), float(y), place, at)
            for place in points
            for at, (x, y) in enumerate(zip(self.series[place].x, ys[place], strict=True))
            if np.isfinite(y)
        ):
            before = groups[-1][-1] if groups else (math.nan, math.nan)
            if point[0] == before[0] and point[1] - before[1] < height:
                groups[-1].append(point)
            else:
                groups.append([point])
        moved = [each.x.astype(np.float64) for each in self.series]
        for group in groups:
            owners = sorted({place for _, _, place, _ in group})
            for x, _, place, at in group:
                aside = (owners.index(place) - (len(owners) - 1) / 2) * width
                moved[place][at] = x * math.exp(aside) if self.x.is_log else x + aside
        series = zip(self.series, moved, strict=True)
        return replace(self, series=tuple(replace(each, x=x) for each, x in series))

    @property
    def ticks(self) -> list[float]:
        """The x of the points, each as far beyond the last as both numbers need."""
        scale = np.log if self.x.is_log else np.asarray
        points = np.unique([x for each in self.series for x in each.x])
        of_marks = (each.at for each in self.marks if each.axis == "x")
        ends = scale([*points, *of_marks, *(self.x.ends or ())])
        letter = LETTER if self.x.ends is None else LETTER_OF_PANEL
        found: list[float] = []
        for each in points.tolist():
            letters = len(self.x.text(each))
            letters += len(self.x.text(found[-1])) if found else 0
            room = (letters / 2 + 1) * letter * np.ptp(ends)
            if not found or scale(each) - scale(found[-1]) >= room:
                found.append(each)
        return found

    @property
    def looks(self) -> list[tuple[Series, int]]:
        """Each series with the place of its look: that of the kind of its mechanism, with the next
        dash for each further one of the kind; others have the places that are left."""
        places = [KINDS.get(re.sub(r"-\d+$", "", each.mechanism or "")) for each in self.series]
        counts = Counter(place for place in places if place is not None)
        # Many series of one kind are not told apart by dashes.
        data = sum(not each.is_reference for each in self.series)
        if len(counts) == 1 < data or max(counts.values(), default=0) > len(DASHES):
            places = [None] * len(places)
        taken: dict[int, int] = {}
        for position in sorted(range(len(places)), key=lambda each: places[each] is None):
            own = places[position]
            place, step = (0, 1) if own is None else (own, len(COLORS))
            while place in taken.values():
                place += step
            taken[position] = place
        return [(each, taken[position]) for position, each in enumerate(self.series)]


def _span(values: Sequence[Float64Array]) -> float:
    """Returns the largest finite value less the smallest, or the value itself if all are equal."""
    together = np.concatenate(values)
    finite = together[np.isfinite(together)]
    return float(np.ptp(finite) or abs(finite[0]) or 1.0) if finite.size else 1.0


def _ends_of(values: Sequence[Float64Array], is_log: bool) -> tuple[float, float]:
    """Returns the ends of an axis that shows all finite values, with some room."""
    together = np.concatenate(values)
    scaled = together[np.isfinite(together)]
    scaled = np.log(scaled) if is_log else scaled
    room = 0.06 * _span([scaled])
    low, high = float(scaled.min() - room), float(scaled.max() + room)
    return (math.exp(low), math.exp(high)) if is_log else (low, high)


def file_name(text: str) -> str:
    """Returns a name of files: the letters and digits of a text."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def look(place: int) -> tuple[str, str]:
    """Returns (colour, dash) of the series at a `place`. Neighbours differ in both; once all
    colours are used, they come again with other dashes."""
    dash = place + place // len(COLORS)
    return COLORS[place % len(COLORS)], DASHES[dash % len(DASHES)]


def legend_lines(series: Series) -> list[str]:
    """Returns the name of a `series` in lines that fit a telephone's screen."""
    return wrap(series.name, LEGEND_CHARACTERS)


def needs_log(values: Iterable[Float64Array] | Sequence[float], factor: float = LOG_LINES) -> bool:
    """Returns whether all finite `values` are positive and the largest is more than `factor` times
    the smallest, so that a linear axis would hide differences between small ones."""
    parts = [np.ravel(np.asarray(each, np.float64)) for each in values]
    together = np.concatenate(parts) if parts else np.empty(0)
    finite = together[np.isfinite(together)]
    if not finite.size or not finite.min() > 0:
        return False
    return bool(finite.max() > factor * finite.min())
