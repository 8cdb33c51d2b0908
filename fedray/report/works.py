"""Published works that tables name: the papers of their mechanisms, and citations such as
"Xu et al. 2023". Their entries of BibTeX are in works.bib, each with the words that cite it."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from fedray.base.mistakes import classes_in
from fedray.mechanisms.registry import AnyStrategy, Toeplitz
from fedray.mechanisms.strategy import Strategy
from fedray.report.table import Table

_ENTRY = re.compile(r"@\w+\{(?P<key>\w+),\n  cited = \{(?P<names>.*)\},\n(?:  .*\n)+\}\n")
_MECHANISM = re.compile(r"([a-z-]+?)(?:-\d+)?(?:, .*| \(.*\))?")


@cache
def works() -> Mapping[str, tuple[str, str]]:
    """Returns (key, entry of BibTeX) of every work that the project cites, by the words that cite
    it."""
    text = Path(__file__).with_name("works.bib").read_text(encoding="utf-8")
    return {
        name: (found["key"], found[0].replace(f"  cited = {{{found['names']}}},\n", ""))
        for found in _ENTRY.finditer(text)
        for name in found["names"].split("; ")
    }


def works_named(tables: Iterable[Table]) -> dict[str, str]:
    """Returns the entries of BibTeX of the works that tables name in captions, notes or cells, by
    their keys; a kind of mechanism in a cell names its paper."""
    papers = {
        each.model_fields["kind"].default: each.paper
        for each in classes_in(AnyStrategy)
        if issubclass(each, Strategy)
    }
    papers["banded-toeplitz"] = Toeplitz.paper
    texts: list[str] = []
    for table in tables:
        cells = [cell for row in table.rows for cell in row]
        kinds = (found[1] for found in map(_MECHANISM.fullmatch, cells) if found)
        texts += [table.caption, *table.notes, *cells, *(papers.get(each, "") for each in kinds)]
    # "Canonne, Kamath and Steinke 2020" is cited without "and" too.
    said = "\n".join(texts).replace(" and ", ", ")
    return dict(found for name, found in works().items() if name in said)
