"""Lower bounds of privacy beside the upper bound, as a table."""

from collections.abc import Sequence

from fedray.audit.one_run import CONFIDENCE, LowerBound
from fedray.base.rounding import given, up
from fedray.report.table import Table

Row = tuple[str, float, LowerBound]
"""Name of what is seen, the exact or largest epsilon of it, and a lower bound."""


def lower_bounds_table(rows: Sequence[Row], upper: float, delta: float) -> Table:
    """Returns a row per lower bound.

    Args:
        rows: the bounds.
        upper: upper bound of epsilon, against an adversary who sees every model.
        delta: delta of every epsilon.
    """
    cells = {
        "seen": lambda row: row[0],
        "method": lambda row: row[2].method,
        "at least": lambda row: f"{row[2].epsilon:.4f}",
        "if all is right": lambda row: f"{row[1]:.4f}",
        "right guesses": lambda row: _guesses(row[2]),
        "assumes": lambda row: row[2].assumption,
        "theorem": lambda row: row[2].theorem,
    }
    return Table.of(
        f"Lower bounds of epsilon at delta {given(delta)}; the upper bound is {up(upper)}",
        rows,
        cells,
        f"Each is a lower bound at {100 * CONFIDENCE:g} %: of 100 right runs, at most "
        f"{100 - 100 * CONFIDENCE:g} are expected above the true epsilon. 0 means no evidence.",
        details=("right guesses", "assumes", "theorem"),
    )


def _guesses(bound: LowerBound) -> str:
    return "" if bound.guesses is None else f"{bound.correct:,} of {bound.guesses:,}"
