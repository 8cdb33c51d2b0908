"""Pictures of mechanisms: coefficients, and how the noise of rounds cancels."""

import numpy as np

from fedray.base.arrays import Float64Array
from fedray.mechanisms.figures import Figures, Mechanisms
from fedray.mechanisms.registry import Identity
from fedray.mechanisms.toeplitz import ToeplitzStrategy
from fedray.mechanisms.triangular import TriangularStrategy
from fedray.report.figure import Axis, Figure, Series, needs_log
from fedray.report.mechanisms import mechanism_tables
from fedray.report.page import render_study


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
    title = "Mechanisms" if len(several.by_name) > 1 else first.name or first.strategy.kind
    tables = [*mechanism_tables(several)]
    figures, results = mechanism_figures(several), several.to_json()
    return render_study(title, note, figures, tables, results, verdict=several.headline)


def mechanism_figures(found: Mechanisms | Figures) -> list[Figure]:
    """Returns the noise of the workload's rows, and the coefficients of C and C^-1."""
    several = _several(found)
    figures: list[Figure] = [_noise(several)]
    rounds = several.first.participation.rounds
    columns, inverses = [], []
    for given, each in several.by_name.items():
        name = each.name or given
        strategy, kind = each.strategy, each.strategy.kind
        if isinstance(strategy, ToeplitzStrategy):
            column, inverse = strategy.first_column(rounds), strategy.inverse_first_column(rounds)
        elif isinstance(strategy, TriangularStrategy):
            _, block = next(iter(strategy.noise_blocks(rounds)))
            column, inverse = strategy.matrix[:rounds, 0], block[:, 0].copy()
        else:
            # A tree has a row per node, so its columns have no lags.
            continue
        columns.append(_coefficients(name, kind, column[1:]))
        inverses.append(_coefficients(name, kind, -inverse[1:]))
    if columns and rounds > 1:
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
    return figures


def _several(found: Mechanisms | Figures) -> Mechanisms:
    return found if isinstance(found, Mechanisms) else Mechanisms({found.strategy.kind: found})


def _noise(several: Mechanisms) -> Figure:
    """Returns the standard deviation of the noise of each row of the workload, at equal privacy."""
    first = several.first
    setting, rows = first.participation, first.workload.rows
    strategies = {each.name or name: each.strategy for name, each in several.by_name.items()}
    if not any(isinstance(each, Identity) for each in strategies.values()):
        strategies["independent noise"] = Identity()
    rounds, series = np.arange(1.0, setting.rounds + 1), []
    for name, strategy in strategies.items():
        deviations = np.sqrt(strategy.error_variances(setting.rounds, first.workload))
        deviations *= strategy.participation_sensitivity(setting).value
        series.append(Series(name, "line", rounds, deviations, mechanism=strategy.kind))
    return Figure(
        "noise",
        f"Noise of the {rows} at equal privacy",
        "Standard deviation at clip norm 1 and mu = 1, computed: what is below independent noise "
        "has cancelled.",
        Axis("Rounds", is_log=setting.rounds > 1),
        Axis(f"Noise of the {rows}", needs_log([each.y for each in series])),
        tuple(series),
    )


def _coefficients(name: str, kind: str, values: Float64Array) -> Series:
    # Beyond the bands all are zero, which a logarithmic axis has no place for.
    chosen = np.flatnonzero(values)
    lags = (chosen + 1).astype(np.float64)
    return Series(name, "line", lags, values[chosen], mechanism=kind)


def _lags(name: str, title: str, note: str, series: list[Series]) -> Figure:
    drawn = [each for each in series if each.x.size]
    y = Axis("Coefficient", needs_log([each.y for each in drawn]), starts_at_zero=False)
    return Figure(name, title, note, Axis("Rounds later", is_log=bool(drawn)), y, tuple(drawn))
