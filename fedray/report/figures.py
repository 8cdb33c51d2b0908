"""The report's figures, as plotly figures. Data are counted here, so that a page holds bins, never rows."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from fedray.audit.audit import Audit
from fedray.trace.reader import Trace

HOUR, DAY = 3600.0, 86_400.0
COLORS = ("#2a78d6", "#d6642a", "#2a9d72")
PALETTE = (*COLORS, "#8a5cc2", "#b98a00", "#c43d6b")
DASHES = ("solid", "dash", "dot")


def eligible_devices(trace: Trace) -> go.Figure:
    """Eligible devices over simulated time, one point per attempt at a round."""
    rounds = trace.rounds
    line = go.Scatter(
        x=rounds["started"] / DAY,
        y=rounds["eligible_estimate"],
        mode="lines",
        name="eligible",
        line={"color": COLORS[0]},
    )
    return _figure([line], "Day of the run", "Devices (estimate)")


def eligible_by_hour(trace: Trace) -> go.Figure:
    """Mean number of eligible devices by hour of the day, UTC; each hour of each day weighs the same."""
    rounds = trace.rounds
    hours = (rounds["started"] // HOUR).astype(np.int64)
    each_hour, place = np.unique(hours, return_inverse=True)
    eligible = rounds["eligible_estimate"].astype(np.float64)
    mean = np.bincount(place, weights=eligible) / np.bincount(place)
    of_day = each_hour % 24
    count = np.bincount(of_day, minlength=24)
    by_hour = np.bincount(of_day, weights=mean, minlength=24) / np.maximum(count, 1)
    line = go.Scatter(
        x=np.flatnonzero(count), y=by_hour[count > 0], mode="lines+markers", name="eligible", line={"color": COLORS[0]}
    )
    return _figure([line], "Hour of the day (UTC)", "Devices (mean of the estimates)")


def round_durations(trace: Trace) -> go.Figure:
    """Minutes from one commit to the next, over time: what sets the pace, and so the min-sep."""
    rounds = trace.rounds
    closed = rounds["closed"][rounds["state"] == 0]
    minutes = np.diff(closed, prepend=0.0) / 60.0
    line = go.Scatter(x=closed / DAY, y=minutes, mode="lines", name="minutes", line={"color": COLORS[1], "width": 1})
    return _figure([line], "Day of the run", "Minutes per committed round")


def participations_per_device(audit: Audit) -> go.Figure:
    """Devices by number of participations."""
    histogram = audit.participation_histogram()
    bars = go.Bar(x=list(histogram), y=list(histogram.values()), name="devices", marker={"color": COLORS[0]})
    figure = _figure([bars], "Participations", "Devices")
    figure.update_xaxes(dtick=1 if len(histogram) <= 20 else None)
    return figure


def gaps(audit: Audit) -> go.Figure:
    """Gaps between consecutive participations of a device, in at most 120 bins of whole rounds, with min-sep marked."""
    edges, counts = gap_bins(audit.patterns.gaps)
    bars = go.Bar(x=edges[:-1] + np.diff(edges) / 2, y=counts, width=np.diff(edges), name="gaps", marker={"color": COLORS[0]})
    figure = _figure([bars], "Rounds between two participations", "Pairs")
    if audit.patterns.gaps.size:
        figure.add_vline(x=audit.min_sep, line={"color": COLORS[1], "dash": "dash"}, annotation_text=f"min-sep {audit.min_sep}")
    return figure


def gap_bins(values: NDArray[np.int64], most: int = 120) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(edges [m + 1], counts [m]): bins [edge, next edge) of equal whole width, the first starting at the least value."""
    if not values.size:
        return np.array([0, 1]), np.array([0])
    low, high = int(values.min()), int(values.max())
    width = -(-(high - low + 1) // most)
    edges = np.arange(low, high + width + 1, width)
    return edges, np.histogram(values, bins=edges)[0]


def accuracy(trace: Trace) -> go.Figure | None:
    """Held-out accuracy and loss over rounds; None if no model was trained."""
    metrics = trace.metrics
    if metrics is None:
        return None
    evaluated = ~np.isnan(metrics["evaluation_accuracy"])
    x = metrics["round"][evaluated] + 1
    lines = [
        go.Scatter(x=x, y=metrics["evaluation_accuracy"][evaluated], name="accuracy", line={"color": COLORS[0]}),
        go.Scatter(x=x, y=metrics["evaluation_loss"][evaluated], name="loss", yaxis="y2", line={"color": COLORS[1]}),
    ]
    figure = _figure(lines, "Rounds", "Held-out accuracy")
    figure.update_layout(
        showlegend=True,
        yaxis2={
            "title": "Held-out loss (nats per word)",
            "overlaying": "y",
            "side": "right",
            "showgrid": False,
            "tickmode": "auto",
            "automargin": True,
        },
    )
    return figure


def privacy(audit: Audit) -> go.Figure:
    """Epsilon and rho of the run's own mechanism after so many rounds, exact for the trace."""
    rounds = [entry.rounds for entry in audit.ledger]
    lines = [
        go.Scatter(
            x=rounds,
            y=[entry.epsilon for entry in audit.ledger],
            name="epsilon",
            line={"color": COLORS[0]},
        ),
        go.Scatter(
            x=rounds,
            y=[entry.rho for entry in audit.ledger],
            name="rho",
            yaxis="y2",
            line={"color": COLORS[1]},
        ),
    ]
    figure = _figure(lines, "Rounds", f"epsilon at delta = {audit.mechanisms[0].delta:g}")
    figure.update_yaxes(rangemode="tozero")
    figure.update_layout(
        showlegend=True,
        yaxis2={
            "title": "rho (zCDP)",
            "overlaying": "y",
            "side": "right",
            "showgrid": False,
            "tickmode": "auto",
            "automargin": True,
            "rangemode": "tozero",
        },
    )
    return figure


def device_privacy(audit: Audit) -> go.Figure:
    """Share of the devices that took part by their rho, at the quantiles that are reported."""
    quantiles = audit.device_privacy.quantiles
    line = go.Scatter(
        x=[each.rho for each in quantiles],
        y=[100.0 * each.share for each in quantiles],
        mode="lines+markers",
        line={"color": COLORS[0], "shape": "hv"},
    )
    return _figure([line], "rho (zCDP) of a device", "Share of devices (%)")


def observed_beside_published(results: list[dict[str, Any]], figure_name: str) -> go.Figure:
    """One point per reproduced run, with the line of agreement; logarithmic axes."""
    points = [(each["name"], each[figure_name]["published"], each[figure_name]["observed"]) for each in results]
    points = [point for point in points if None not in point]
    if not points:
        return _figure([], "Published", "Simulated")
    names, published, observed = zip(*points, strict=True)
    ends = [0.9 * min(*published, *observed), 1.1 * max(*published, *observed)]
    traces = [
        go.Scatter(x=ends, y=ends, mode="lines", line={"color": COLORS[1], "dash": "dash"}, hoverinfo="skip"),
        go.Scatter(
            x=published, y=observed, text=names, mode="markers+text", textposition="top center", marker={"color": COLORS[0]}
        ),
    ]
    figure = _figure(traces, "Published", "Simulated")
    figure.update_xaxes(type="log")
    figure.update_yaxes(type="log")
    return figure


def lines(points: dict[str, list[tuple[float, float]]], marks: list[tuple[float, str]], x_title: str, y_title: str) -> go.Figure:
    """A line per name, and vertical marks (place, what is there)."""
    traces = [
        go.Scatter(
            x=[x for x, _ in each],
            y=[y for _, y in each],
            name=name,
            mode="lines+markers",
            marker={"size": 4},
            line={"color": PALETTE[place % len(PALETTE)], "dash": DASHES[place // len(PALETTE) % len(DASHES)]},
        )
        for place, (name, each) in enumerate(points.items())
    ]
    figure = _figure(traces, x_title, y_title)
    figure.update_layout(showlegend=True, height=460, legend={"orientation": "h", "y": -0.2, "yanchor": "top"})
    figure.update_yaxes(rangemode="normal")  # lines that cross are near each other
    for place, (at, text) in enumerate(marks):
        figure.add_vline(
            x=at, line={"dash": "dot", "color": "gray", "width": 1}, annotation_text=text, annotation_yshift=-14 * (place % 3)
        )
    return figure


def plane(points: list[tuple[float, float, float]], x_title: str, y_title: str, z_title: str) -> go.Figure:
    """A heat map of (x, y, value), with the values written in it."""
    xs, ys = sorted({x for x, _, _ in points}), sorted({y for _, y, _ in points})
    value = {(x, y): z for x, y, z in points}
    grid = [[value.get((x, y)) for x in xs] for y in ys]
    heat = go.Heatmap(
        x=[f"{x:g}" for x in xs],
        y=[f"{y:g}" for y in ys],
        z=grid,
        text=[["" if z is None else f"{z:.3g}" for z in row] for row in grid],
        texttemplate="%{text}",
        colorscale="Blues",
        reversescale=True,
        colorbar={"title": {"text": z_title}},
    )
    figure = _figure([heat], x_title, y_title)
    figure.update_xaxes(type="category")
    figure.update_yaxes(type="category")
    return figure


def _figure(traces: list, x_title: str, y_title: str) -> go.Figure:
    figure = go.Figure(traces)
    figure.update_layout(
        template="none",
        xaxis_title=x_title,
        yaxis_title=y_title,
        showlegend=False,
        margin={"l": 64, "r": 56, "t": 16, "b": 48},
        height=320,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "y": 1.12},
        bargap=0.1,
    )
    figure.update_yaxes(rangemode="tozero", automargin=True)
    return figure
