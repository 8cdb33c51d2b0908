"""Reproductions of published results, which `fedray reproduce` lists and runs.

A reproduction is a module of this folder with a `REPRODUCTION`; its name is that of the module. It
uses public names and the names below only: it shows that the public interface suffices for a
study, and how such a study is written.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedray.base.document import Document as Document
from fedray.base.document import InJson as InJson
from fedray.base.errors import CheckpointError as CheckpointError
from fedray.base.input_files import input_files as input_files
from fedray.base.parsing import decode_text as decode_text
from fedray.base.part_done import PartDone as PartDone
from fedray.base.regular_file import read_regular_file as read_regular_file
from fedray.base.result import DrawnResult
from fedray.base.rounding import exact as exact
from fedray.base.rounding import given as given
from fedray.base.rounding import up as up
from fedray.clients.data.language import Language as Language
from fedray.clients.sessions import population_sessions as population_sessions
from fedray.report.figure import Axis as Axis
from fedray.report.figure import Figure as Figure
from fedray.report.figure import Series as Series
from fedray.report.figures import MetricLine as MetricLine
from fedray.report.figures import metric_curve as metric_curve
from fedray.report.page import render_study
from fedray.report.table import Table as Table
from fedray.studies import reach_and_pace as reach_and_pace
from fedray.studies.compare import comparison_of as comparison_of
from fedray.studies.habits.observed import on_grid as on_grid
from fedray.studies.habits.observed import runs_of as runs_of
from fedray.studies.paired import MeanInterval as MeanInterval
from fedray.studies.simulated import StudyCache as StudyCache

Progress = Callable[[str], None]
"""Listener for lines of progress; a `PartDone` also says how much is done."""


@dataclass(frozen=True)
class Reproduced(DrawnResult):
    """Results of a reproduction so far, as they are printed, written, and shown in notebooks."""

    title: str
    """Title of the page."""
    document: Any
    """JSON that `--json` prints and results.json has; a later one includes the earlier ones."""
    shown: Sequence[Table]
    """Tables: obtained figures beside the printed ones."""
    notes: Sequence[str]
    """Conventions of the tables, a paragraph each."""
    verdict: str
    """Sentence on how well obtained and printed figures agree."""
    agrees: bool = True
    """False if a figure contradicts the publication, which the exit code reports."""
    drawn: Sequence[Figure] = ()
    """Figures of the page."""

    def __repr__(self) -> str:
        return f"<Reproduced {self.title}: {self.verdict}>"

    def to_json(self) -> Any:
        """JSON content of results.json."""
        return self.document

    def tables(self) -> list[Table]:
        """Returns the tables, as pages show them."""
        return list(self.shown)

    def figures(self) -> list[Figure]:
        """Returns the figures."""
        return list(self.drawn)

    def page(self) -> str:
        """Returns the page: tables, their conventions, and the verdict."""
        own = self.title, " ".join(self.notes), self.drawn, self.shown, self.to_json()
        return render_study(*own, verdict=self.verdict)


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A published result that can be reproduced."""

    description: str
    """Line for the list of reproductions."""
    run: Callable[..., Iterator[Reproduced]]
    """Yields results as soon as there are some; the last one counts.

    Its parameters are keyword arguments with defaults. The command fills in `overrides`,
    `placement`, `out` and `on_progress`; any other is an option of the reproduction, annotated with
    its type and its help: `Annotated[int, "Runs of each case."]`.
    """
    has_figures: bool = False
    """Whether its results have figures, which `--figures` writes to files."""
    is_resumable: bool = False
    """Whether `out` may be the directory of an interrupted run, whose results are read."""


def figure_text(value: float, style: str = ".4f") -> str:
    """Returns a figure for a table; "-" if it is unknown, as of a run that diverged."""
    return "-" if math.isnan(value) else f"{value:{style}}"


def agreement_figure(
    name: str, title: str, note: str, points: Sequence[tuple[str, float | None, float | None]]
) -> Figure:
    """Draws obtained over printed values on logarithmic axes, with the line of agreement.

    Args:
        name: name of the figure's files.
        title: heading of the figure.
        note: explanation below the heading.
        points: label, printed and obtained value of each; one without both values has no point.
    """
    known = [(label, a, b) for label, a, b in points if a is not None and b is not None]
    labels, printed, obtained = zip(*known, strict=True) if known else ((), (), ())
    both = np.array([*printed, *obtained] or [1.0], np.float64)
    # A label is an eighth of a phone's plot on either side of its point; less would cut it.
    margin = max(1.1, (both.max() / both.min()) ** 0.17)
    ends = np.array([both.min() / margin, both.max() * margin])
    x, y = np.array(printed, np.float64), np.array(obtained, np.float64)
    return Figure(
        name,
        title,
        f"{note} Labels that would overlap are left out; point at a run to see its name.",
        Axis("Published", is_log=True),
        Axis("Obtained", is_log=True),
        (
            Series("agreement", "line", ends, ends, is_reference=True),
            Series("runs", "points", x, y, labels=tuple(labels)),
        ),
    )
