"""Lower bounds of privacy beside the upper bound, as a table."""

import math
from collections.abc import Sequence

from fedray.audit.one_run import LowerBound
from fedray.base.rounding import given, up
from fedray.report.table import Table


def lower_bounds_table(
    what: str, rows: Sequence[tuple[str, float, LowerBound]], upper: float, delta: float
) -> Table:
    """Returns a row per lower bound.

    Args:
        what: heading of the names.
        rows: name, exact epsilon or an upper bound of it, and lower bound.
        upper: upper bound of epsilon if every model is seen; infinite without one.
        delta: delta of every epsilon.
    """
    cells = {
        what: lambda row: row[0],
        "method": lambda row: row[2].method,
        "at least": lambda row: f"{row[2].epsilon:.4f}",
        "at most": lambda row: up(row[1]) if math.isfinite(row[1]) else "-",
        "right guesses": lambda row: _guesses(row[2]),
        "assumes": lambda row: row[2].assumption,
        "theorem": lambda row: row[2].theorem,
    }
    claim = f"the upper bound is {up(upper)}" if math.isfinite(upper) else "no upper bound"
    note = (
        "Each is a lower bound at 95 %: of 100 right runs, at most 5 are expected above the true "
        "epsilon. 0 means no evidence."
    )
    title = f"Lower bounds of epsilon at delta {given(delta)}; {claim}"
    return Table.of(title, rows, cells, note, details=("right guesses", "assumes", "theorem"))


def _guesses(bound: LowerBound) -> str:
    return "" if bound.guesses is None else f"{bound.correct:,} of {bound.guesses:,}"
