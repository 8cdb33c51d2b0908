"""Lower bounds of privacy beside the upper bound, as a table."""

import math
from collections.abc import Sequence

from fedray.audit.one_run import CONFIDENCE, LowerBound
from fedray.base.rounding import given, up
from fedray.report.table import Table

Row = tuple[str, float, LowerBound]
"""Name of what is seen, its exact epsilon or an upper bound, and a lower bound."""


def lower_bounds_table(
    rows: Sequence[Row], upper: float, delta: float, what: str = "seen"
) -> Table:
    """Returns a row per lower bound.

    Args:
        rows: the bounds.
        upper: upper bound of epsilon, against an adversary who sees every model.
        delta: delta of every epsilon.
        what: heading of the names.
    """
    claim = f"the upper bound is {up(upper)}" if math.isfinite(upper) else "no upper bound"
    cells = {
        what: lambda row: row[0],
        "method": lambda row: row[2].method,
        "at least": lambda row: f"{row[2].epsilon:.4f}",
        "at most": lambda row: up(row[1]) if math.isfinite(row[1]) else "-",
        "right guesses": lambda row: _guesses(row[2]),
        "assumes": lambda row: row[2].assumption,
        "theorem": lambda row: row[2].theorem,
    }
    return Table.of(
        f"Lower bounds of epsilon at delta {given(delta)}; {claim}",
        rows,
        cells,
        f"Each is a lower bound at {100 * CONFIDENCE:g} %: of 100 right runs, at most "
        f"{100 - 100 * CONFIDENCE:g} are expected above the true epsilon. 0 means no evidence.",
        details=("right guesses", "assumes", "theorem"),
    )


def _guesses(bound: LowerBound) -> str:
    return "" if bound.guesses is None else f"{bound.correct:,} of {bound.guesses:,}"
