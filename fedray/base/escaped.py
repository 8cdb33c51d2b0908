"""Text of strangers, such as names in a log or a ledger, as each form of output shows it.

Control characters could change a terminal's display, and markup the meaning of a document. The
functions that write an output call these, so that no caller can forget it.
"""

import html


def printable(text: str) -> str:
    """Returns text with a backslash escape for each character that is not printable."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def printable_lines(text: str) -> str:
    """Returns text of several lines, each as `printable` returns it."""
    return "\n".join(map(printable, text.split("\n")))


def html_text(text: str) -> str:
    """Returns text for HTML and SVG, without markup."""
    return html.escape(printable(text))


def markdown_text(text: str) -> str:
    """Returns text for a line, or a cell of a table, of Markdown, without markup."""
    line = printable(" ".join(text.split()))
    return "".join(f"\\{letter}" if letter in "\\|`*_<>[]#" else letter for letter in line)
