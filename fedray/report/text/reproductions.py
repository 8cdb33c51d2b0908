"""Reproduced and recomputed published runs in the terminal and on their page."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedray.base.rounding import up

Document = Mapping[str, Any]


def reproduction_rows(runs: Sequence[Document]) -> list[list[str]]:
    """A heading, then a row per published run; each figure observed / published, and their relative
    difference.

    Args:
        runs: as `ReproducedRun.to_json` gives them.
    """
    heading = [
        "run",
        "reach",
        "min-sep is",
        "min-sep (gap)",
        "",
        "max part.",
        "rho, (b, k)",
        "",
        "epsilon, (b, k)",
        "",
        "rho, trace",
        "days",
        "pace",
    ]
    return [heading, *map(_reproduced_cells, runs)]


def published_privacy_rows(runs: Sequence[Document]) -> list[list[str]]:
    """A heading, then a row per published run: its privacy, recomputed beside what is printed.

    Args:
        runs: as `PublishedPrivacy.to_json` gives them.
    """
    heading = [
        "run",
        "rounds",
        "min-sep (gap)",
        "max part.",
        "sensitivity^2",
        "rho",
        "printed",
        "epsilon",
        "printed",
        "agrees",
    ]
    return [heading, *map(_published_cells, runs)]


def _reproduced_cells(run: Document) -> list[str]:
    def loss(value: float) -> str:
        return up(value, 2)

    return [
        run["name"],
        f"{run['reach']:g}",
        "fitted" if run["is_fitted"] else "predicted",
        _beside_published(run["min_sep"]),
        _difference(run["min_sep"]),
        _beside_published(run["max_participations"]),
        _beside_published(run["rho"], loss),
        _difference(run["rho"]),
        _beside_published(run["epsilon"], loss),
        _difference(run["epsilon"]),
        up(run["trace_rho"], 3),
        _beside_range(run["days"], run["published_days"], 1),
        _beside_range(run["relative_pace"], run["published_relative_pace"], 2),
    ]


def _beside_range(observed: float | None, published: Sequence[float], digits: int) -> str:
    seen = "-" if observed is None else f"{observed:.{digits}f}"
    low, high = published
    return f"{seen} / {low:.{digits}f} to {high:.{digits}f}"


def _beside_published(figure: Document, shown: Any = "{:.0f}".format) -> str:
    observed = figure["observed"]
    published = figure["published"]
    seen = "none (k = 1)" if observed is None else shown(observed)
    return f"{seen} / {'-' if published is None else f'{published:g}'}"


def _difference(figure: Document) -> str:
    relative = figure["relative_difference"]
    return "" if relative is None else f"{100 * relative:+.1f} %"


def _published_cells(run: Document) -> list[str]:
    epsilon = ["-", "-"]
    # Some publications print rho alone.
    if run["epsilon"] is not None:
        epsilon = [up(run["epsilon"]), f"{run['published_epsilon']:.2f}"]
    return [
        run["name"],
        str(run["rounds"]),
        str(run["min_sep"]),
        str(run["max_participations"]),
        f"{run['squared_sensitivity']:.0f}",
        up(run["exact_rho"]),
        f"{run['published_rho']:.2f}",
        *epsilon,
        "yes" if run["agrees"] else "NO",
    ]
