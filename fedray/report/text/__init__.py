"""What is printed in the terminal, as values: every table and paragraph is made here.

A table is made of the document that `--json` prints, so that both show the same figures, and the
tables of pages are made of it too. Commands choose what is printed, and `fedray/commands/output.py`
fits it to the width of the terminal.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of the terminal.

    title: the line above it; empty for none.
    rows: cells, row by row, all rows of one length.
    has_heading: whether the first row has the names of the columns.
    """

    title: str
    rows: list[list[str]]
    has_heading: bool = True


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph of the terminal, which is wrapped to its width.

    lead: what stands in front of the first line; the others are indented by its length.
    text: the paragraph.
    """

    lead: str
    text: str


Piece = TextTable | Paragraph | str
"""What is printed at once; a string is a line that is printed as it is."""
