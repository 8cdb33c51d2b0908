"""Printed cells: what counts as agreement, what a reason explains, and how tables show it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedray.base.errors import InputError
from fedray.scenarios import cells
from fedray.scenarios.cells import CUT, OPTIMUM, ROUNDED, ROUNDED_UP, PrintedResult, PrintedTable
from fedray.scenarios.reproduction import Reproduced, Subject


@pytest.mark.parametrize(
    ("rule", "printed", "obtained", "agrees"),
    [
        (ROUNDED, "1.97", 1.9749, True),
        (ROUNDED, "1.97", 1.9751, False),
        (ROUNDED, "1.97", 1.9649, False),
        (ROUNDED, "64", 64.0, True),
        (ROUNDED, "64", 32.0, False),
        (ROUNDED, "1.97", float("inf"), False),
        (CUT, "1.97", 1.9799, True),
        (CUT, "1.97", 1.9801, False),
        (CUT, "1.97", 1.9649, False),
        (ROUNDED_UP, "0.16", 0.1534, True),
        (ROUNDED_UP, "0.16", 0.1601, False),
        (ROUNDED_UP, "0.16", 0.1499, False),
        (ROUNDED_UP, "0.0223", 0.02228, True),
        (ROUNDED_UP, "0.0223", 0.02218, False),
        (OPTIMUM, "10.81", 10.7, True),
        (OPTIMUM, "10.81", 10.8149, True),
        (OPTIMUM, "10.81", 10.8152, False),
    ],
)
def test_a_figure_agrees_with_the_printed_digits_by_its_rule(
    rule: cells.Rule, printed: str, obtained: float, agrees: bool
) -> None:
    assert rule.holds(printed, obtained) == agrees


SQUARES = PrintedTable(
    "squares",
    "squares of numbers",
    ("number", "unit"),
    ("square",),
    lambda row, request: {"square": float(row["number"]) ** 2, "cube": float(row["number"]) ** 3},
    reason=lambda row, column, obtained: "a typo" if row["number"] == "3" else "",
    cost=lambda row: -float(row["number"]),
)
RESULT = PrintedResult("Squares", (SQUARES,), ("A note.",), Subject("numbers"))


@pytest.fixture
def printed(monkeypatch, tmp_path: Path) -> Iterator[Any]:
    """Writes the printed cells of the squares."""

    def write(*lines: str) -> None:
        text = "\n".join(["# Nobody 1900, table 1", "number,unit,square", *lines, ""])
        (tmp_path / "squares.csv").write_text(text)

    monkeypatch.setattr(cells, "FOLDER", tmp_path)
    cells.read_cells.cache_clear()
    yield write
    cells.read_cells.cache_clear()


def last(result: PrintedResult, cheapest: int | None = None) -> Reproduced:
    return [*result.run(cells.Request(), cheapest=cheapest)][-1]


def test_a_difference_counts_unless_its_reason_is_known(printed) -> None:
    printed("2,m,4", "3,m,8", "4,m,16")
    found = last(RESULT)
    assert found.agrees
    assert found.verdict == "2 of 3 printed cells agree; 1 not, for a stated reason."
    assert any(
        "this reason: a typo (number 3, unit m)." in note for note in found.tables()[0].notes
    )
    cells.read_cells.cache_clear()
    printed("2,m,5", "3,m,8", "4,m,16")
    found = last(RESULT)
    assert not found.agrees
    assert (
        found.verdict
        == "1 of 3 printed cells agree; 1 not, for a stated reason; 1 not, for no known reason."
    )
    document = found.document["tables"][0]["rows"][0]
    assert document["cells"][0]["difference"] == pytest.approx(4 / 5 - 1)
    assert document["others"] == {"cube": 8.0}


def test_a_row_says_what_is_printed_what_is_obtained_and_by_how_much_they_differ(printed) -> None:
    printed("2,m,4.0", "3,km,8.00", "4,m,")
    (table,) = last(RESULT).tables()
    assert table.columns == ("number", "unit", "printed square", "square", "cube", "agrees")
    assert [row[2:4] for row in table.rows] == [
        ("4.0", "4.000"),
        ("8.00", "9.0000"),
        ("-", "16"),
    ]
    assert [row[-1] for row in table.rows] == ["yes", "NO: square +12 %", "yes"]
    # A cell that is not printed is no cell.
    assert last(RESULT).document["compared"] == 2


def test_a_setting_across_the_columns_makes_the_table_of_the_paper(printed) -> None:
    printed("2,m,4", "10,m,100", "2,km,5")
    grid = replace(RESULT, tables=(replace(SQUARES, across="number"),))
    table, cubes = last(grid).tables()
    assert table.columns == ("unit", "2", "10")
    assert table.rows == (("m", "4", "100"), ("km", "5 (4)", "-"))
    assert cubes.title.endswith("squares of numbers: cube")
    assert cubes.rows[1] == ("km", "8", "-")


def test_the_cheap_rows_come_first_and_can_be_all(printed) -> None:
    printed("2,m,4", "3,m,8", "4,m,16")
    shown = [len(each.tables()[0].rows) for each in RESULT.run(cells.Request(), cheapest=2)]
    assert shown == [1, 2]
    assert [row[0] for row in last(RESULT, 2).tables()[0].rows] == ["3", "4"]
    with pytest.raises(InputError, match="cheapest=0 must be at least 1"):
        last(RESULT, 0)
