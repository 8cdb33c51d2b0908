"""Privacy of Gboard's published runs, from their printed rounds, min-sep, participations and noise
multiplier; nothing is simulated."""

import math
from collections.abc import Iterator

import fedray
from fedray.mechanisms import Identity, Tree
from .cells import Figures, PrintedResult, PrintedTable, Row
from .gboard_rows import ROWS, published_runs, select
from .reproduction import Reproduced, Reproduction, Request, Subject

DELTA = 1e-10
"""delta of the printed epsilons."""


def privacy_of(row: Row, request: Request) -> Figures:
    """Computes rho and epsilon of tree aggregation for a published row.

    Returns:
        rho of the row's setting; epsilon of the printed rho, because the printed epsilons belong to
        rounded rhos; the min-sep, and the squared sensitivity at clip norm 1.
    """
    del request
    gap = int(row["rounds_between"]) + 1
    setting = fedray.MinSep(int(row["rounds"]), gap, int(row["max_participations"]))
    tree = fedray.mechanism_figures(Tree(), setting, float(row["noise_multiplier"]), DELTA)
    # One release of one Gaussian with rho = 1 / (2 z^2).
    z = 1.0 / math.sqrt(2.0 * float(row["zcdp"]))
    epsilon = fedray.mechanism_figures(Identity(), fedray.MinSep(1, 1, 1), z, DELTA).epsilon
    assert tree.rho is not None  # a noise multiplier is given
    assert epsilon is not None
    square = tree.loss.sensitivity.value**2
    figures = {"min-sep": float(gap), "squared sensitivity": square, "zcdp": tree.rho}
    return figures | ({"epsilon_at_delta_1e-10": epsilon} if row["epsilon_at_delta_1e-10"] else {})


TABLE = PrintedTable(
    "gboard/published",
    "rho and epsilon of runs",
    (
        *("task", "locale", "rounds", "rounds_between", "max_participations"),
        "noise_multiplier",
    ),
    ("zcdp", "epsilon_at_delta_1e-10"),
    privacy_of,
)
RESULT = PrintedResult(
    "Privacy of published runs, recomputed",
    (TABLE,),
    (
        "Published min-seps count the rounds strictly between two participations, so the gap is "
        "one more; fedray's min-sep is the gap.",
        "Tree aggregation without completion or restarts; epsilon is that of the printed rho.",
    ),
    Subject("the published runs of Xu et al. 2023", unit="device"),
)


def run(request: Request, *, rows: str | None) -> Iterator[Reproduced]:
    """Recomputes published rows.

    Args:
        request: the request.
        rows: comma-separated locales or names; None for all.

    Raises:
        InputError: a row is unknown, or the list is empty.
    """
    wanted = {(each.task, each.locale) for each in select(rows, published_runs())}
    chosen = [row for row in TABLE.rows if (row["task"], row["locale"]) in wanted]
    yield from RESULT.of_rows(request, {TABLE.file: chosen})


REPRODUCTION = Reproduction(
    "gboard-privacy",
    "rho and epsilon of Xu et al. 2023, recomputed to the digit.",
    "Xu et al. 2023, tables 1 and 2",
    "3 s",
    run,
    (ROWS,),
    has_figures=True,
)
