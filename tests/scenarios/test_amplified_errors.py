"""Errors over epsilon and epochs: statements about their order and shape that can fail."""

from dataclasses import replace

import pytest

from fedray.scenarios import amplified_errors
from fedray.scenarios.amplified_errors import EPOCHS, EPSILONS, Errors


def errors(place: int, row: int) -> Errors:
    """Made-up errors of the paper's shape."""
    epochs, epsilon = EPOCHS[row], EPSILONS[place]
    error = (row + 2.0) / (place + 1.0)
    bands = max(1, 4 ** (place + 1) >> (2 * row))
    corner = place == 0 and row == len(EPOCHS) - 1, place == len(EPSILONS) - 1 and row == 0
    most = 1.2 if place == row else 1.1
    others = error * (1.0 if corner[0] else most), error * (1.0 if corner[1] else 1.3)
    return Errors(epsilon, epochs, 1024 if corner[1] else 1 if corner[0] else bands, error, *others)


ROWS = [errors(place, row) for row in range(len(EPOCHS)) for place in range(len(EPSILONS))]
LAST = len(ROWS) - 1
FIRST_OF_LAST = LAST - len(EPSILONS) + 1


@pytest.mark.parametrize(
    ("place", "changed", "wrong"),
    [
        (0, {}, []),
        (FIRST_OF_LAST, {"bands": 2}, [0, 6]),
        (len(EPSILONS) - 1, {"bands": 512}, [1]),
        (1, {"banded": 9.0}, [4, 5]),
        (LAST, {"banded": 0.1}, [5]),
        (FIRST_OF_LAST + 1, {"one_band": 9.0}, [3]),
        (LAST, {"bands": 2048}, [6]),
    ],
)
def test_each_statement_can_fail(place: int, changed: dict[str, float], wrong: list[int]) -> None:
    rows = list(ROWS)
    rows[place] = replace(rows[place], **changed)
    found = amplified_errors._reproduced(rows)
    said = [holds for _, holds in found.shown[-1].rows]
    assert [each for each, holds in enumerate(said) if holds == "NO"] == wrong
    assert found.agrees == (not wrong)


@pytest.mark.parametrize("row", range(len(EPOCHS)))
def test_epochs_without_a_gain_are_seen(row: int) -> None:
    rows = [
        replace(each, one_band=each.banded) if each.epochs == EPOCHS[row] else each for each in ROWS
    ]
    found = amplified_errors._reproduced(rows)
    assert found.shown[-1].rows[2][1] == "NO"
    # Two corners have none, whichever row it is.
    gains = sum(each.gain > amplified_errors.GAIN for each in rows)
    assert gains < len(ROWS) - 4
    assert f"in {gains} of 20 cells" in found.verdict
