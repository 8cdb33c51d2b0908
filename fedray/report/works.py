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


FEDRAY = """@software{fedray,
  author = {{The fedray authors}},
  title = {fedray: simulation and exact audit of private cross-device federated learning},
  version = {0.2.0},
  year = {2026}
}
"""
"""Entry of fedray itself, as CITATION.cff has it."""


@cache
def papers() -> Mapping[str, str]:
    """Returns the words that cite the paper of each kind of mechanism."""
    found = {
        each.model_fields["kind"].default: each.paper
        for each in classes_in(AnyStrategy)
        if issubclass(each, Strategy)
    }
    return {**found, "banded-toeplitz": Toeplitz.paper}


def of_kind(name: str, kind: str | None) -> str:
    """Returns the note on the kind of a mechanism with a name of its own, and its paper; empty if
    the name says the kind."""
    named = _MECHANISM.fullmatch(name)
    if kind is None or (named is not None and named[1] == kind):
        return ""
    paper = f" ({papers()[kind]})" if papers().get(kind) else ""
    return f"{name} is of the kind {kind}{paper}."


def keys_of_kinds(tables: Iterable[Table]) -> dict[str, str]:
    """Returns the keys of the works that each kind of mechanism in the cells of tables is from, as
    LaTeX cites them."""
    cells = dict.fromkeys(cell for table in tables for cell in _cells(table))
    found = dict.fromkeys(named[1] for named in map(_MECHANISM.fullmatch, cells) if named)
    cited = {kind: papers()[kind] for kind in found if papers().get(kind)}
    keys = {kind: ",".join(_entries_in(paper)) for kind, paper in cited.items()}
    return {kind: each for kind, each in keys.items() if each}


def _entries_in(text: str) -> dict[str, str]:
    """Returns the entries of the works that a text cites, by their keys."""
    # "Canonne, Kamath and Steinke 2020" is cited without "and" too.
    said = text.replace(" and ", ", ")
    return dict(found for name, found in works().items() if name in said)


def _cells(table: Table) -> list[str]:
    return [cell.removesuffix(" *") for row in table.rows for cell in row]


def works_named(tables: Iterable[Table]) -> dict[str, str]:
    """Returns the entries of BibTeX of the works that tables name in captions, notes or cells, by
    their keys; a kind of mechanism in a cell names its paper."""
    texts: list[str] = []
    for table in tables:
        cells = _cells(table)
        kinds = (found[1] for found in map(_MECHANISM.fullmatch, cells) if found)
        texts += [table.caption, *table.notes, *cells, *(papers().get(each, "") for each in kinds)]
    return _entries_in("\n".join(texts))
