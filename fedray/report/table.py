"""Tables and paragraphs: values that the terminal, pages and notebooks show."""

import csv
import io
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from textwrap import fill, wrap
from typing import Self, TypeVar

from fedray.base.escaped import printable, printable_lines
from fedray.report.subject import FACETS, UNKNOWN, Subject, shared_subject

NARROW, MEDIUM, PROSE, WHOLE = 36, 64, 100, 24
"""Numbers of characters: a row that fits a telephone's screen, a row that need not fill a page, a
cell that is prose, and one that no terminal wraps."""
COMPACT = 6
"""Columns of short cells up to which a telephone shows a table, so that rows can be compared."""
_NUMBER = re.compile(
    r"(† )?(<= |at most )?[-+]?(\d[\d,]*(\.\d+)?(e[-+]?\d+)?|inf)(?P<unit> ?%| h| days?)?"
    r"|-|none( \(k = 1\))?|"
)
_GREEK = re.compile(r"\b(epsilon|delta|rho|mu|sigma)\b", re.IGNORECASE)
_SYMBOL = re.compile(r"\b[bknz]\b")
_VALUE = re.compile(r"\$(\\?\w+)\$ (\d+(?:\.\d+)?)(?:e([-+]\d+))?(?!\w|[,.]? ?\d)")
_QUOTED = re.compile(r'"([^"]*)"')
_SPECIAL = re.compile(
    r"<=|>=|(?<!\w)[-+](?=[\d.])|[\\&%#_{}~^$<>|[█±†]|(?<=[\da-f]{20})(?=[\da-f])"
)
# A raw ± would bring a bitmap font into the paper.
_LATEX = {
    **{"": r"\allowbreak{}", "<=": r"$\leq$", ">=": r"$\geq$", "\\": r"$\backslash$", "[": "{[}"},
    **{"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "█": r"\rule{.4em}{1.5ex}"},
    **{"±": r"$\pm$", "†": r"$\dagger$"},
    **{each: f"${each}$" for each in "-+<>|"},
    **{each: f"\\{each}" for each in "&%#_{}$"},
}
_COLUMN, _LETTER, _GAP, _TIGHT = 260, 5, 12, 6
"""Points: a LaTeX table up to this width stays in a column of a two-column paper, which shrinks it
by a tenth at most; mean width of a letter; gap between columns, and between those of a table that
would else be too wide."""
_PROSE, _PROSE_POINTS = "p{14em}", 140
"""Column of LaTeX whose cells have lines, and its width."""
FORMS = ("csv", "tex", "md")
"""Forms of files of tables."""
IN_ALL_ROWS, COLUMNS, NOT_PUBLISHED = "In all rows:", "Columns:", "Not for publication:"
CONDITIONS, RECOMMENDED = "Conditions:", "* recommended:"
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a result."""

    title: str
    """Line above the table; empty for no title."""
    columns: tuple[str, ...]
    """Headings; all empty for a list of names and values."""
    rows: tuple[tuple[str, ...], ...]
    """Cells, each row as long as `columns`."""
    notes: tuple[str, ...] = ()
    """Paragraphs that a reader needs."""
    row_styles: tuple[str, ...] = ()
    """Style of each row in HTML: `used` or `marked` (bold), a verdict (coloured), or empty. No
    styles at all if empty."""
    details: tuple[str, ...] = ()
    """Headings of columns that only pages have room for."""
    method: tuple[str, ...] = ()
    """Notes that only pages have room for: how the figures came about."""
    subject: Subject = UNKNOWN
    """Subject of the figures of all rows."""
    row_subjects: tuple[Subject, ...] = ()
    """Subject of the figures of each row, if the rows differ; a facet that is empty is that of
    `subject`. Cells of a row say in these words what only it has."""
    shared: tuple[str, ...] = ()
    """Headings of columns that are a note, because their cells are equal."""
    legend: tuple[tuple[str, str], ...] = ()
    """Headings and marks of cells, such as "<=", each with its meaning. The table explains the ones
    that it has."""

    @classmethod
    def of(
        cls,
        title: str,
        items: Iterable[_Item],
        cells: Mapping[str, Callable[[_Item], str]],
        *notes: str,
        row_styles: Iterable[str] = (),
        details: tuple[str, ...] = (),
        method: Iterable[str] = (),
        subject: Subject | Callable[[_Item], Subject] = UNKNOWN,
        legend: Iterable[tuple[str, str]] = (),
    ) -> Self:
        """Makes a table with a row for each item.

        Args:
            title: line above the table.
            items: values that the rows show, in order.
            cells: text of an item's cell by the column's heading.
            notes: paragraphs that a reader needs; empty ones are left out.
            row_styles: style of each row.
            details: headings of columns that only pages have room for.
            method: notes that only pages have room for.
            subject: subject of the figures, or a function that returns it for an item.
            legend: headings and marks of cells, each with its meaning.
        """
        items = tuple(items)
        rows = tuple(tuple(cell(item) for cell in cells.values()) for item in items)
        kept = tuple(note for note in notes if note)
        said = tuple(note for note in method if note)
        table = cls(title, tuple(cells), rows, kept, tuple(row_styles), details, said)
        table = replace(table, legend=tuple(legend))
        if isinstance(subject, Subject):
            return replace(table, subject=subject)
        of_rows = tuple(map(subject, items))
        return replace(table, subject=shared_subject(of_rows), row_subjects=of_rows)

    @classmethod
    def facts(cls, title: str, pairs: Iterable[Sequence[str]], *notes: str) -> Self:
        """Makes a list of names and values.

        Args:
            title: line above the list.
            pairs: (name, value) of each row.
            notes: paragraphs that a reader needs; empty ones are left out.
        """
        rows = tuple((name, value) for name, value in pairs)
        return cls(title, ("", ""), rows, tuple(note for note in notes if note))

    @classmethod
    def headed(cls, title: str, rows: Iterable[Sequence[str]], *notes: str) -> Self:
        """Makes a table from rows of text, of which the first is the heading.

        Args:
            title: line above the table.
            rows: heading and cells.
            notes: paragraphs that a reader needs.
        """
        heading, *others = (tuple(row) for row in rows)
        return cls(title, heading, tuple(others), notes)

    @property
    def caption(self) -> str:
        """The title and the subject."""
        return ", ".join(filter(None, (self.title, str(self.subject))))

    @property
    def explained(self) -> tuple[tuple[str, str], ...]:
        """Entries of the legend for the columns and marks that the table has."""
        cells = (cell for row in self.rows for cell in row)
        used = {word for text in (*self.columns, *cells) for word in text.split()}
        return tuple(
            each
            for each in self.legend
            if each[0] in self.columns or (each[0] in used and not each[0][0].isalnum())
        )

    @property
    def legend_text(self) -> str:
        """The explanation of the columns and marks in a sentence; empty without any."""
        said = "; ".join(f"{name}, {meaning}" for name, meaning in self.explained)
        return f"{COLUMNS} {said}." if said else ""

    @property
    def paragraphs(self) -> tuple[str, ...]:
        """The notes and the legend, which stand beside the table wherever it is shown."""
        return tuple(filter(None, (*self.notes, self.legend_text)))

    def under(self, whole: Subject) -> Self:
        """Returns the table with the facets of `whole` where its subject has none, and its rows do
        not differ."""
        differ = {e: "" for e in FACETS if any(getattr(row, e) for row in self.row_subjects)}
        return replace(self, subject=self.subject.under(replace(whole, **differ)))

    def beyond(self, shared: Subject) -> Self:
        """Returns the table without the facets of its subject that `shared` has too, as it
        stands where these have been said."""
        return replace(self, subject=self.subject.beyond(shared))

    @property
    def mixed(self) -> tuple[str, ...]:
        """Facets in which rows differ though no cell says so, as a reader must not find them."""

        def is_said(facet: str, row: Sequence[str], subject: Subject) -> bool:
            # A condition of several keys may have a column for each key.
            named = {f"{head}={cell}" for head, cell in zip(self.columns, row, strict=True)}
            parts = getattr(subject, facet).removeprefix("if ").split(" and ")
            return all(each in named or any(each in cell for cell in row) for each in parts)

        pairs = list(zip(self.rows, self.row_subjects, strict=bool(self.row_subjects)))
        return tuple(
            each
            for each in FACETS
            if len({getattr(subject, each) for _, subject in pairs}) > 1
            and not all(getattr(s, each) and is_said(each, row, s) for row, s in pairs)
        )

    @property
    def has_heading(self) -> bool:
        """Whether the columns have headings."""
        return any(self.columns)

    @property
    def kinds(self) -> list[str]:
        """Kind of each column: `number`, aligned right, or `text`, aligned left, as the first
        column always is."""
        if not self.rows:
            return ["text"] * len(self.columns)
        _, *columns = zip(*self.rows, strict=True)
        numbers = [all(_NUMBER.fullmatch(cell) for cell in column) for column in columns]
        return ["text", *("number" if is_number else "text" for is_number in numbers)]

    @property
    def style(self) -> str:
        """Style classes in HTML: the width of the table, and whether its rows become cards on a
        narrow screen."""
        longest = self._widths()
        columns = len(longest)
        # A row that is short or has two cells fits a telephone as it is.
        styles = []
        if columns > 2 and sum(longest) > NARROW:
            cells = (len(cell) for row in self.rows for cell in row)
            is_short = columns <= COMPACT and max(cells, default=0) <= NARROW
            styles.append("compact" if is_short and self.has_heading else "cards")
        if columns > 9:
            styles.append("wide")
        elif sum(longest) <= MEDIUM:
            styles.append("narrow")
        elif max(longest[1:], default=0) > PROSE:
            styles.append("prose")
        return " ".join(styles)

    def brief(self) -> Self:
        """Returns the table without its details, as terminals and notebooks show it."""
        kept = [place for place, name in enumerate(self.columns) if name not in self.details]
        return replace(self._taking(kept), details=(), method=())

    def place_of(self, name: str) -> int | None:
        """Returns the place of a column by its heading, with its unit or without; None if there is
        no such column."""
        pairs = zip(self.columns, self._with_units().columns, strict=True)
        return next((place for place, pair in enumerate(pairs) if name in pair), None)

    def chosen(self, names: Iterable[str]) -> Self:
        """Returns the table with the columns of these names that it has, in the order of the names;
        details are columns like the others."""
        places = (self.place_of(each) for each in names)
        taken = self._taking([place for place in places if place is not None])
        return replace(taken, details=())

    def _taking(self, places: Collection[int]) -> Self:
        """Returns the table with the columns at these places."""

        def taken(row: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(row[place] for place in places)

        return replace(self, columns=taken(self.columns), rows=tuple(map(taken, self.rows)))

    def varied(self, *names: str) -> Self:
        """Returns the table without columns whose cells are all equal, of these names if any; a
        note has their value. The first column stays, and so does a table of one row."""
        if len(self.rows) < 2:
            return self
        cells = dict(zip(self.columns, zip(*self.rows, strict=True), strict=True))
        equal = {n: cells[n][0] for n in names or self.columns[1:] if len(set(cells[n])) == 1}
        said = {name: f"{name} {text}" for name, text in equal.items() if text not in ("-", "")}
        note = [f"{IN_ALL_ROWS} {'; '.join(said.values())}."] if said else []
        found = replace(self, details=tuple(equal)).brief()
        new = {"notes": (*note, *self.notes), "shared": (*self.shared, *said)}
        return replace(found, **new, details=self.details, method=self.method)

    def text(self, width: int) -> str:
        """Returns the table as a terminal prints it, with its notes.

        Args:
            width: columns of the terminal. Headings and words of a wider table are wrapped within
                its columns; columns that still do not fit follow in further blocks, each with the
                first column.
        """
        columns, *rows = (tuple(map(printable, row)) for row in (self.columns, *self.rows))
        cells = replace(self, columns=columns, rows=tuple(rows))
        lines = [fill(self.caption, width)] if self.caption else []
        if self.has_heading:
            grids = (["", *each._grid(width)] for each in cells._blocks(width))
            lines += list(chain.from_iterable(grids))[1:]
        else:
            lines += cells._fact_lines(width)
        return printable_lines(
            "\n".join([*lines, *(fill(each, width) for each in self.paragraphs)])
        )

    def _widths(self) -> list[int]:
        cells = (self.columns, *self.rows)
        return [max(map(len, column)) for column in zip(*cells, strict=True)]

    def _least_widths(self) -> list[int]:
        """Returns the widths below which a column would break a number, a short cell or a word."""
        least = []
        for kind, head, *cells in zip(self.kinds, self.columns, *self.rows, strict=True):
            whole = [each for each in cells if kind == "number" or len(each) <= WHOLE]
            words = " ".join([head, *cells] if kind == "text" else [head]).split()
            floor = WHOLE if len(whole) < len(cells) else 0
            least.append(max(map(len, [*whole, *words, " " * floor])))
        return least

    def _blocks(self, width: int) -> Iterator[Self]:
        """Yields tables of the first column and the next ones that a terminal of this width holds,
        but one at least."""
        # Two spaces stand before each column.
        first, *others = (2 + each for each in self._least_widths())
        blocks: list[list[int]] = [[]]
        taken = first
        for place, cost in enumerate(others, 1):
            if blocks[-1] and taken + cost > width:
                blocks.append([])
                taken = first
            blocks[-1].append(place)
            taken += cost
        return (self._taking((0, *each)) for each in blocks)

    def _fitted(self, width: int) -> list[int]:
        """Returns widths of the columns in a terminal: the widest columns are wrapped, but none
        below its least width."""
        widths, least = self._widths(), self._least_widths()
        while sum(widths) + 2 * len(widths) > width:
            slack = [
                (each - low, at) for at, (each, low) in enumerate(zip(widths, least, strict=True))
            ]
            most, place = max(slack)
            if most <= 0:
                break
            widths[place] -= 1
        return widths

    def _grid(self, width: int) -> list[str]:
        widths = self._fitted(width)
        aligned = [">" if kind == "number" else "<" for kind in self.kinds]

        def lines(row: Sequence[str]) -> Iterator[str]:
            wrapped = [wrap(*each) or [""] for each in zip(row, widths, strict=True)]
            for parts in zip_longest(*wrapped, fillvalue=""):
                cells = zip(parts, aligned, widths, strict=True)
                line = "  ".join(f"{cell:{side}{width}}" for cell, side, width in cells)
                yield f"  {line}".rstrip()

        rule = "  " + "─" * (sum(widths) + 2 * len(widths) - 2)
        return [*lines(self.columns), rule, *(line for row in self.rows for line in lines(row))]

    def _fact_lines(self, width: int) -> list[str]:
        names = max((len(name) for name, _ in self.rows), default=0)
        return [
            _wrapped(value, width, f"  {name:<{names}}  ", " " * (names + 4))
            for name, value in self.rows
        ]

    def __str__(self) -> str:
        return self.brief().text(100)

    def rendered(self, form: str, name: str = "fedray", cited: str = "") -> str:
        """Returns the table as a file of one of FORMS, with units in the headings. CSV has every
        column, and LaTeX (a float for booktabs, its label tab:NAME) and Markdown those that a
        terminal shows. `cited` is a line of LaTeX below the table."""
        table = self if form == "csv" else self.brief()
        legend, table = table.legend_text, table._with_units()
        lines = [table.columns, *table.rows] if table.has_heading else list(table.rows)
        if form == "csv":
            out = io.StringIO()
            writer = csv.writer(out, lineterminator="\n")
            writer.writerows(map(_plain, line) for line in table._with_subjects(lines))
            return out.getvalue()
        if form == "md":
            # Markdown has no table without headings.
            rule = ("---:" if kind == "number" else "---" for kind in table.kinds)
            rows = [table.columns, rule, *table.rows]
            cells = ((printable(cell).replace("|", r"\|") for cell in row) for row in rows)
            said = f"{printable(table.caption)}\n\n" if table.caption else ""
            below = f"\n{printable(legend)}\n" if legend else ""
            return said + "".join(f"| {' | '.join(row)} |\n" for row in cells) + below
        sides = ["r" if kind == "number" else "l" for kind in table.kinds]
        columns = [[row[place] for row in table.rows] for place in range(len(sides))]
        heads = [_head_lines(*each) for each in zip(table.columns, columns, strict=True)]
        rows = [" & ".join(map(_latex, line)) + r" \\" for line in lines]
        if table.has_heading:
            rows[:1] = [" & ".join(map(_latex_head, sides, heads)) + r" \\", r"\midrule"]
        # Rules separate the rows of equal first cells, if these stand together.
        first = [line[0] for line in table.rows]
        ends = [place for place in range(1, len(first)) if first[place] != first[place - 1]]
        if len(ends) + 1 == len(set(first)) <= len(first) / 2:
            for place in ends:
                rows.insert(place - len(first), r"\midrule")
        below = [e for e in table.notes if e.startswith((NOT_PUBLISHED, RECOMMENDED))]
        above = [each for each in table.notes if each.startswith((IN_ALL_ROWS, CONDITIONS))]
        notes = (" ".join(e.split()) for e in table.notes if e not in ("", *below, *above))
        said = [f"% {_in_symbols(each)}" for each in (*traces_of(table.subject), *notes)]
        caption = [replace(table, subject=replace(table.subject, trace="")).caption, *above]
        below = [_in_symbols(each) for each in (*below, *filter(None, [legend]))]
        text = latex_caption(". ".join(each.rstrip(".") for each in caption if each))
        # Prose has lines.
        lengths = [max(map(len, column), default=0) for column in columns]
        shape = [_PROSE if n > NARROW else side for n, side in zip(lengths, sides, strict=True)]
        points = 0
        for each, length, head in zip(shape, lengths, heads, strict=True):
            points += _PROSE_POINTS if each == _PROSE else _LETTER * max([length, *map(len, head)])
        gaps = len(shape) - 1
        is_column = points + _TIGHT * gaps <= _COLUMN
        # Smaller gaps keep a table in its column, or many columns on a page.
        is_tight = points + _GAP * gaps > _COLUMN if is_column else len(sides) > 8
        kind = "table" if is_column else "table*"
        label = re.sub(r"[^\w.-]", "-", name)
        float_ = [rf"\begin{{{kind}}}", rf"\caption{{{text}}}\label{{tab:{label}}}", r"\centering"]
        gap = f"@{{\\hspace{{{_TIGHT}pt}}}}" if is_tight else ""
        begin = rf"\smallskip\sbox0{{\begin{{tabular}}{{@{{}}{gap.join(shape)}@{{}}}}"
        body = [begin, r"\toprule", *rows, r"\bottomrule", r"\end{tabular}}"]
        # A table that is wider than its place is shrunk.
        body += [r"\ifdim\wd0>\linewidth\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi"]
        body += [rf"\par\smallskip\footnotesize {e}" for e in (*below, *filter(None, [cited]))]
        return "\n".join([*said, *float_, *body, rf"\end{{{kind}}}", ""])

    def _with_subjects(self, lines: Iterable[Sequence[str]]) -> Iterator[Sequence[str]]:
        """Yields the lines of a file with the subject of each row as the last cell; a list of names
        and values has a line for it."""
        of_rows = [each.under(self.subject) for each in self.row_subjects]
        said = [str(each) for each in of_rows or [self.subject] * len(self.rows)]
        if not any(said):
            yield from lines
        elif self.has_heading:
            yield from ((*line, each) for line, each in zip(lines, ["of", *said], strict=True))
        else:
            yield from (*lines, ("of", said[0]))

    def _with_units(self) -> Self:
        """Returns the table with units in the headings of columns of one unit."""
        columns = []
        for head, *cells in zip(self.columns, *self.rows, strict=True):
            found = [_NUMBER.fullmatch(each) for each in cells if each not in ("", "-")]
            units = {each["unit"] if each else None for each in found}
            unit = units.pop() if len(units) == 1 and head else None
            short = (each.removesuffix(unit) for each in cells) if unit else cells
            columns.append((f"{head} ({unit.strip()})" if unit else head, *short))
        names, *rows = zip(*columns, strict=True)
        return replace(self, columns=names, rows=tuple(rows))


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph of the terminal, which is wrapped to its width."""

    lead: str
    """Text in front of the first line; the other lines are indented by its length."""
    text: str
    """The paragraph."""

    def wrapped(self, width: int) -> str:
        """Returns the paragraph as a terminal of this width prints it."""
        return printable_lines(
            fill(
                self.text,
                width,
                initial_indent=self.lead,
                subsequent_indent=" " * len(self.lead),
                break_long_words=False,
            )
        )


Piece = Table | Paragraph | str
"""Part of a command's output; a string is a line that is not wrapped."""


def bullets(texts: Sequence[str]) -> Iterator[Paragraph]:
    """Yields a list of paragraphs.

    Args:
        texts: the paragraphs, in order.
    """
    return (Paragraph("  * ", each) for each in texts)


def traces_of(subject: Subject) -> list[str]:
    """Returns the note on the trace of a subject, which a paper has as a comment; none without a
    trace."""
    return [f"Trace: {subject.trace}"] if subject.trace else []


def with_greek(text: str) -> str:
    """Returns a text with its Greek letters as formulas of TeX."""
    letters = _GREEK.sub(lambda found: f"$\\{found[0].lower()}$", text)
    return letters.replace(r"\epsilon", r"\varepsilon")


def latex_caption(text: str) -> str:
    """Returns a caption of LaTeX: symbols and values such as "epsilon 4" are formulas."""
    return _VALUE.sub(_equation, _in_symbols(text))


def _equation(found: re.Match[str]) -> str:
    """Returns a symbol and its value as a formula of TeX."""
    power = rf" \times 10^{{{int(found[3])}}}" if found[3] else ""
    return f"${found[1]} = {found[2]}{power}$".replace(r"= 1 \times ", "= ")


def _in_symbols(text: str) -> str:
    return _SYMBOL.sub(r"$\g<0>$", with_greek(_latex(text)))


def _latex(cell: str) -> str:
    cell = _QUOTED.sub(r"``\1''", cell)
    return _SPECIAL.sub(lambda found: _LATEX[found[0]], printable(cell))


def _head_lines(head: str, cells: Iterable[str]) -> list[str]:
    """Returns a heading in lines about as long as the cells below it."""
    words = head.replace("_", " ")
    width = max([len(words) // 2 + 1, *map(len, [*cells, *words.split()])])
    return wrap(words, width, break_on_hyphens=False)


def _latex_head(side: str, head: Sequence[str]) -> str:
    """Returns the lines of a heading with its symbols as formulas."""
    lines = list(map(_in_symbols, head))
    text = r"\\".join(lines)
    stack = rf"\begin{{tabular}}[b]{{@{{}}{side}@{{}}}}{text}\end{{tabular}}"
    return stack if lines[1:] else text


def _plain(cell: str) -> str:
    """Returns a cell as programs read it: a number without commas or a dagger, nothing for an
    unknown one."""
    if cell == "-":
        return ""
    cell = cell.removeprefix("† ")
    return cell.replace(",", "") if _NUMBER.fullmatch(cell) else cell


def _wrapped(text: str, width: int, lead: str, indent: str) -> str:
    # Digests, numbers and paths stay whole even if longer than a line.
    return (
        fill(
            text,
            max(width, 40),
            initial_indent=lead,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        or lead.rstrip()
    )
