"""Reproductions that are tables of printed cells, each with the obtained figure and a verdict.

The printed cells of a table are a CSV file of this folder, whose first line is the source. A line
has the settings of a row and its cells with their printed digits; a cell that is not printed is
empty. A `PrintedTable` adds the function that computes the figures of a row, and a `PrintedResult`
is the whole reproduction.
"""

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_HALF_UP, Decimal
from functools import cache
from operator import attrgetter, methodcaller
from pathlib import Path

from fedray import InputError
from .reproduction import (
    Document,
    InJson,
    Option,
    PartDone,
    Reproduced,
    Request,
    Subject,
    Table,
    agreement_figure,
    counted,
    decimals_of,
    up,
)

Row = Mapping[str, str]
"""Line of a CSV file: texts by column."""
Figures = Mapping[str, float]
"""Obtained figures of a row by printed column, and other figures by the names to show them
under."""
FOLDER = Path(__file__).resolve().parent
CHEAPEST = Option(
    "cheapest", int | None, None, "Number of rows of each table to compute, the cheap ones first."
)
"""Option of every reproduction of printed cells."""


@cache
def read_cells(name: str) -> tuple[str, tuple[Row, ...]]:
    """Reads the printed cells of a table.

    Args:
        name: file below this folder, without its ending.

    Returns:
        The source in the first line, such as "Xu et al. 2023, table 1"; the lines by column.
    """
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        source = next(file).removeprefix("# ").strip()
        return source, tuple(csv.DictReader(file))


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule by which an obtained figure agrees with the printed digits."""

    words: str
    """Second half of "A cell agrees if the obtained figure ..."."""
    roundings: tuple[str, ...]
    """Modes of `decimal`, one of which gives the printed digits."""
    is_optimum: bool = False
    """Whether a smaller figure agrees too, because the printed one is of an optimiser."""

    def holds(self, printed: str, obtained: float) -> bool:
        """Returns whether an obtained figure agrees with the printed digits."""
        if not math.isfinite(obtained):
            return False
        last, value = Decimal(printed), Decimal(obtained)
        step = Decimal(1).scaleb(int(last.as_tuple().exponent))
        rounded = {value.quantize(step, rounding=mode) for mode in self.roundings}
        return last in rounded or (self.is_optimum and min(rounded) < last)


ROUNDED = Rule("has the printed digits when it is rounded", (ROUND_HALF_UP,))
CUT = Rule("has the printed digits when it is rounded or cut off", (ROUND_HALF_UP, ROUND_DOWN))
ROUNDED_UP = Rule("has the printed digits when it is rounded up", (ROUND_CEILING,))
OPTIMUM = Rule("has the printed digits when it is rounded, or is less", (ROUND_HALF_UP,), True)


@dataclass(frozen=True, slots=True)
class Cell(Document):
    """A printed cell beside the obtained figure."""

    column: str
    """Column of the cell."""
    printed: str
    """The cell, with its printed digits."""
    obtained: float
    """Computed figure."""
    agrees: bool
    """Whether the computed figure agrees with the printed digits, by the rule of the table."""
    reason: str
    """Reason of a difference; empty if the cell agrees, or no reason is known."""

    @property
    def difference(self) -> InJson[float]:
        """obtained / printed - 1."""
        return self.obtained / float(self.printed) - 1.0

    @property
    def shown(self) -> str:
        """The obtained figure with two digits more than the printed one, rounded up."""
        exponent = int(Decimal(self.printed).as_tuple().exponent)
        # Whole numbers are counts.
        return up(self.obtained, 2 - exponent if exponent else 0)


@dataclass(frozen=True, slots=True)
class ComputedRow(Document):
    """A row of a table, computed."""

    settings: Mapping[str, str]
    """Settings of the row by column, as printed."""
    cells: tuple[Cell, ...]
    """Printed cells of the row."""
    others: Mapping[str, float]
    """Figures that are not printed, by name."""

    @property
    def name(self) -> str:
        """The settings in a phrase."""
        first, *others = (name for name, text in self.settings.items() if text)
        is_name = not self.settings[first][0].isdigit()
        begin = self.setting(first) if is_name else f"{_heading(first)} {self.setting(first)}"
        return ", ".join([begin, *(f"{_heading(each)} {self.setting(each)}" for each in others)])

    def setting(self, name: str) -> str:
        """Returns a setting, with commas in large whole numbers."""
        text = self.settings[name]
        return f"{int(text):,}" if text.isdecimal() else text

    def as_printed(self, column: str) -> str:
        """Returns a printed cell; "-" if it is not printed."""
        return next((each.printed for each in self.cells if each.column == column), "-")

    def as_obtained(self, column: str) -> str:
        """Returns the obtained figure of a printed column; "-" if there is none."""
        shown = (each.shown for each in self.cells if each.column == column)
        return next(shown, self.other(column))

    def other(self, name: str) -> str:
        """Returns a figure that is not printed; "-" if there is none."""
        value = self.others.get(name)
        if value is None:
            return "-"
        # Whole numbers are counts.
        return f"{value:,.0f}" if value.is_integer() else up(value, decimals_of(value))

    @property
    def verdict(self) -> str:
        """ "yes", or the relative differences of the cells that do not agree."""
        found = [each for each in self.cells if not each.agrees]
        return "; ".join(f"NO: {e.column} {100 * e.difference:+.2g} %" for e in found) or "yes"


@dataclass(frozen=True, slots=True)
class ComputedTable(Document):
    """A table, as far as it is computed."""

    source: str
    """Paper and table."""
    rows: tuple[ComputedRow, ...]
    """Computed rows, in the order of the paper."""


@dataclass(frozen=True, slots=True)
class PrintedCells(Document):
    """A reproduction of printed cells."""

    tables: tuple[ComputedTable, ...]
    """Tables with their computed rows."""

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells."""
        return tuple(each for table in self.tables for row in table.rows for each in row.cells)

    @property
    def compared(self) -> InJson[int]:
        """Number of printed cells with an obtained figure."""
        return len(self.cells)

    @property
    def agreeing(self) -> InJson[int]:
        """Number of cells that agree."""
        return sum(each.agrees for each in self.cells)

    @property
    def explained(self) -> InJson[int]:
        """Number of cells that differ for a known reason."""
        return sum(bool(each.reason) for each in self.cells)

    @property
    def agrees(self) -> InJson[bool]:
        """Whether every difference has a known reason."""
        return self.agreeing + self.explained == self.compared

    @property
    def verdict(self) -> str:
        """The numbers of cells in a sentence."""
        parts = [f"{self.agreeing} of {counted(self.compared, 'printed cell')} agree"]
        if self.explained:
            parts.append(f"{self.explained} not, for a stated reason")
        if unknown := self.compared - self.agreeing - self.explained:
            parts.append(f"{unknown} not, for no known reason")
        return f"{'; '.join(parts)}."


def _no_reason(row: Row, column: str, obtained: float) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class PrintedTable:
    """A table of printed cells, and the function that computes them."""

    file: str
    """File of the printed cells, below this folder and without its ending."""
    title: str
    """Title of the shown table; its source is added."""
    settings: tuple[str, ...]
    """Columns of the file that say what a row is."""
    printed: tuple[str, ...]
    """Columns of the file whose cells are reproduced."""
    figures: Callable[[Row, Request], Figures]
    """Function that computes a row. A figure under the name of a printed column gets a verdict; the
    others are shown beside."""
    rule: Rule = ROUNDED
    """Rule by which a figure agrees with a cell."""
    reason: Callable[[Row, str, float], str] = _no_reason
    """Function that returns the reason why an obtained figure differs from the cell of a row and
    column; empty if the reason does not explain this difference."""
    across: str = ""
    """Setting that has a column for each value, if a single column is printed; the table is then as
    compact as that of the paper."""
    cost: Callable[[Row], float] = lambda _: 1.0
    """Function that returns the time of a row, in any unit that the tables of a result share."""

    @property
    def source(self) -> str:
        """Paper and table."""
        return read_cells(self.file)[0]

    @property
    def rows(self) -> tuple[Row, ...]:
        """Printed rows, in the order of the paper."""
        return read_cells(self.file)[1]

    def computed(self, row: Row, request: Request) -> ComputedRow:
        """Computes a row."""
        found = dict(self.figures(row, request))
        cells = []
        for column in self.printed:
            # A figure without a printed cell is shown beside the others.
            if row[column] and column in found:
                printed, obtained = row[column], found.pop(column)
                agrees = self.rule.holds(printed, obtained)
                reason = "" if agrees else self.reason(row, column, obtained)
                cells.append(Cell(column, printed, obtained, agrees, reason))
        settings = {name: row[name] for name in self.settings}
        return ComputedRow(settings, tuple(cells), found)

    def shown(self, rows: Sequence[ComputedRow]) -> list[Table]:
        """Returns computed rows as tables."""
        title, notes = f"{self.source}: {self.title}", self._notes(rows)
        names = dict.fromkeys(name for row in rows for name in row.others)
        others = {
            _heading(name): methodcaller("other", name)
            for name in names
            if name not in self.printed
        }
        if self.across:
            note = "A printed cell that differs has the obtained figure in brackets."
            further = (self._grid(f"{title}: {name}", rows, each) for name, each in others.items())
            return [self._grid(title, rows, _in_grid, note, *notes), *further]
        heads = {_heading(name): methodcaller("setting", name) for name in self.settings}
        for name in self.printed:
            heads[f"printed {_heading(name)}"] = methodcaller("as_printed", name)
            heads[_heading(name)] = methodcaller("as_obtained", name)
        heads |= {**others, "agrees": attrgetter("verdict")}
        table = Table.of(title, rows, heads, *notes)
        return [table.varied(*map(_heading, self.settings[1:]))]

    def _grid(
        self,
        title: str,
        rows: Sequence[ComputedRow],
        cell: Callable[[ComputedRow], str],
        *notes: str,
    ) -> Table:
        """Returns a table with a column for each value of the setting `across`."""
        kept = [name for name in self.settings if name != self.across]
        lines: dict[tuple[str, ...], dict[str, str]] = {}
        for row in rows:
            line = lines.setdefault(tuple(map(row.setting, kept)), {})
            line[row.settings[self.across]] = cell(row)
        # Columns are those of the computed rows, in the order of the paper.
        computed = {row.settings[self.across]: row.setting(self.across) for row in rows}
        ordered = [
            each for each in dict.fromkeys(e[self.across] for e in self.rows) if each in computed
        ]
        cells = ((*head, *(line.get(e, "-") for e in ordered)) for head, line in lines.items())
        heads = (*map(_heading, kept), *(computed[each] for each in ordered))
        return Table(title, heads, tuple(cells), (*notes, f"Columns: {_heading(self.across)}."))

    def _notes(self, rows: Sequence[ComputedRow]) -> list[str]:
        """Returns the rule, and each reason with the rows that differ for it."""
        by_reason: dict[str, list[str]] = {}
        for row in rows:
            for cell in row.cells:
                if not cell.agrees:
                    reason = f"this reason: {cell.reason}" if cell.reason else "no known reason"
                    by_reason.setdefault(reason, []).append(row.name)
        reasons = [
            f"Different for {reason} ({'; '.join(dict.fromkeys(names))})."
            for reason, names in by_reason.items()
        ]
        return [f"A cell agrees if the obtained figure {self.rule.words}.", *reasons]


def _in_grid(row: ComputedRow) -> str:
    """Returns the only printed cell of a row, and the obtained figure if it differs."""
    shown = (
        cell.printed if cell.agrees else f"{cell.printed} ({cell.shown})" for cell in row.cells
    )
    return next(shown, "-")


def _heading(column: str) -> str:
    return column.replace("_", " ")


@dataclass(frozen=True, slots=True)
class PrintedResult:
    """A reproduction of printed cells."""

    title: str
    """Title of the page."""
    tables: tuple[PrintedTable, ...]
    """The tables."""
    notes: tuple[str, ...]
    """Conventions of the tables, a paragraph each."""
    subject: Subject
    """Subject of the obtained figures."""

    def run(self, request: Request, *, cheapest: int | None) -> Iterator[Reproduced]:
        """Computes the tables, the cheap rows first; yields all results so far after every row.

        Args:
            request: request, with which each row is computed.
            cheapest: number of rows of each table to compute; None for all.

        Raises:
            InputError: `cheapest` is below 1.
        """
        if cheapest is not None and cheapest < 1:
            raise InputError.of("cheapest", cheapest, "must be at least 1", "leave it out for all")
        rows = {each.file: sorted(each.rows, key=each.cost)[:cheapest] for each in self.tables}
        yield from self.of_rows(request, rows)

    def of_rows(
        self, request: Request, chosen: Mapping[str, Sequence[Row]]
    ) -> Iterator[Reproduced]:
        """Computes chosen rows of the tables.

        Args:
            request: request, with which each row is computed.
            chosen: rows to compute, by the file of their table.
        """
        steps = [(table, row) for table in self.tables for row in chosen[table.file]]
        steps.sort(key=lambda step: step[0].cost(step[1]))
        total, done = sum(table.cost(row) for table, row in steps), 0.0
        found: dict[tuple[str, int], ComputedRow] = {}
        for table, row in steps:
            request.on_progress(PartDone(f"{table.source}: {table.title}", done, total))
            found[table.file, table.rows.index(row)] = table.computed(row, request)
            done += table.cost(row)
            yield self._reproduced(found)

    def _reproduced(self, found: Mapping[tuple[str, int], ComputedRow]) -> Reproduced:
        rows = {
            table: [found[key] for key in sorted(found) if key[0] == table.file]
            for table in self.tables
        }
        result = PrintedCells(
            tuple(ComputedTable(table.source, tuple(each)) for table, each in rows.items())
        )
        points = [
            (f"{row.name}, {_heading(cell.column)}", float(cell.printed), cell.obtained)
            for each in rows.values()
            for row in each
            for cell in row.cells
        ]
        return Reproduced(
            self.title,
            result.to_json(),
            [shown for table, each in rows.items() if each for shown in table.shown(each)],
            self.notes,
            result.verdict,
            result.agrees,
            [agreement_figure("cells", "Cells", "Each printed cell.", points)],
            self.subject,
        )
