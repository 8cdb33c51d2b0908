"""Pictures of mechanisms: coefficients, heat maps, and how the noise of rounds cancels."""

from collections.abc import Iterable

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array
from fedray.mechanisms.figures import Figures, Mechanisms
from fedray.mechanisms.registry import Identity
from fedray.mechanisms.strategy import Strategy
from fedray.report.figure import Axis, Figure, HeatMap, Series, Shown, file_names, needs_log
from fedray.report.mechanisms import mechanism_tables
from fedray.report.page import render_study

DRAWN_ROUNDS = 2048
"""Largest number of rounds of a heat map; C is then built by its slow definition in seconds."""
CELLS = 64
"""Largest number of rows and columns of a heat map."""
POINTS = 120
"""Largest number of points of a line, at equal ratios."""


def mechanism_page(found: Mechanisms | Figures) -> str:
    """Returns the page of mechanisms at one setting."""
    several = _several(found)
    first = several.first
    setting = first.participation
    order = " in a fixed order" if setting.is_fixed_order else ""
    note = (
        f"{setting.rounds:,} rounds, min-sep {setting.min_sep:,}, at most "
        f"{setting.max_participations:,} participations{order}. A mechanism releases C X + Z; the "
        "noise of its rounds is C^-1 Z, and that of their sums B Z."
    )
    title = "Mechanisms" if len(several.by_name) > 1 else next(iter(several.by_name))
    tables = [*mechanism_tables(several)]
    figures, results = mechanism_figures(several), several.to_json()
    return render_study(title, note, figures, tables, results, verdict=several.headline)


def mechanism_figures(found: Mechanisms | Figures) -> list[Shown]:
    """Returns the noise of the workload's rows, the coefficients of C and C^-1, and heat maps of C
    and of B = A C^-1 for each mechanism."""
    several = _several(found)
    figures: list[Shown] = [_noise(several)]
    rounds = min(several.first.participation.rounds, DRAWN_ROUNDS)
    maps: list[Shown] = []
    columns, inverses = [], []
    files = file_names("", several.by_name)
    for name, each in several.by_name.items():
        C = each.strategy.definition(rounds)
        maps.append(_map(f"c-{files[name]}", f"C of {name}", "row of C", rounds, [(0, C)]))
        noise = (
            (first, each.workload.applied(block, first)) for first, block in _copies(each, rounds)
        )
        title = f"B = A C^-1 of {name}"
        maps.append(_map(f"b-{files[name]}", title, "round", rounds, noise))
        # A tree has a row per node, so its columns have no lags.
        if C.shape == (rounds, rounds) and rounds > 1:
            kind = each.strategy.kind
            columns.append(_coefficients(name, kind, C[1:, 0]))
            inverse = -_first_column(each.strategy, rounds)[1:]
            inverses.append(_coefficients(name, kind, inverse))
    if columns:
        figures += [
            _lags(
                "coefficients", "Coefficients of C", "The first column of C, after the 1.", columns
            ),
            _lags(
                "inverse",
                "Coefficients of C^-1",
                "The first column of C^-1, after the 1, with the sign changed: the share of the "
                "noise of a round that is taken back so many rounds later.",
                inverses,
            ),
        ]
    return [*figures, *maps]


def _several(found: Mechanisms | Figures) -> Mechanisms:
    return found if isinstance(found, Mechanisms) else Mechanisms({found.strategy.kind: found})


def _copies(figures: Figures, rounds: int) -> Iterable[tuple[int, Float64Array]]:
    # The workload is applied in place, and blocks may be views.
    return ((first, block.copy()) for first, block in figures.strategy.noise_blocks(rounds))


def _first_column(strategy: Strategy, rounds: int) -> Float64Array:
    _, block = next(iter(strategy.noise_blocks(rounds)))
    return block[:, 0].copy()


def _noise(several: Mechanisms) -> Figure:
    """Returns the standard deviation of the noise of each row of the workload, at equal privacy."""
    first = several.first
    setting, rows = first.participation, first.workload.rows
    strategies = {name: each.strategy for name, each in several.by_name.items()}
    if not any(isinstance(each, Identity) for each in strategies.values()):
        strategies["independent noise"] = Identity()
    x = _thinned(setting.rounds)
    series = []
    for name, strategy in strategies.items():
        deviations = np.sqrt(strategy.error_variances(setting.rounds, first.workload))
        deviations *= strategy.participation_sensitivity(setting).value
        rounds = (x + 1).astype(np.float64)
        series.append(Series(name, "line", rounds, deviations[x], mechanism=strategy.kind))
    return Figure(
        "noise",
        f"Noise of the {rows} at equal privacy",
        "Standard deviation at clip norm 1 and mu = 1, computed: what is below independent noise "
        "has cancelled.",
        Axis("Rounds", is_log=setting.rounds > 1),
        Axis(f"Noise of the {rows}", needs_log([each.y for each in series])),
        tuple(series),
    )


def _thinned(count: int) -> Int64Array:
    return np.unique(np.geomspace(1, count, POINTS).round().astype(int)) - 1


def _coefficients(name: str, kind: str, values: Float64Array) -> Series:
    chosen = _thinned(values.size)
    # Beyond the bands all are zero, which a logarithmic axis has no place for.
    chosen = chosen[values[chosen] != 0]
    lags = (chosen + 1).astype(np.float64)
    return Series(name, "line", lags, values[chosen], mechanism=kind)


def _lags(name: str, title: str, note: str, series: list[Series]) -> Figure:
    drawn = [each for each in series if each.x.size]
    y = Axis("Coefficient", needs_log([each.y for each in drawn]), starts_at_zero=False)
    return Figure(name, title, note, Axis("Rounds later", is_log=bool(drawn)), y, tuple(drawn))


def _map(
    name: str,
    title: str,
    row: str,
    rounds: int,
    blocks: Iterable[tuple[int, Float64Array]],
) -> HeatMap:
    """Returns the root mean squares of the cells of a matrix, given by blocks of columns [rows -
    first, columns]."""
    parts = []
    bins = np.zeros((0, 0))
    for first, block in blocks:
        if not parts:
            bins = _bins(first + len(block))
        parts.append(bins[:, first:] @ block**2)
    by_row = np.concatenate(parts, axis=1)
    across = _bins(by_row.shape[1])
    cells = np.sqrt(by_row @ across.T)
    note = (
        f"Root mean square of the entries of each cell, over {rounds:,} rounds: the darker, the "
        "larger, over four powers of ten; cells of zeros are empty."
    )
    ends = (float(bins.shape[1]), float(across.shape[1]))
    return HeatMap(
        name, title, note, Axis("column"), Axis(row), Axis("root mean square"), cells, ends
    )


def _bins(count: int) -> Float64Array:
    """Returns the matrix that averages `count` values in at most CELLS bins, [bins, count]."""
    bins = min(count, CELLS)
    place = np.arange(count) * bins // count
    is_in = place == np.arange(bins)[:, None]
    return is_in / is_in.sum(axis=1, keepdims=True)
