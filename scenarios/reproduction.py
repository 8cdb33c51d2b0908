"""Reproductions of published results, which `fedray reproduce` lists and runs.

A reproduction is a module of this folder with a `REPRODUCTION`. It uses public names and the names
below only: it shows that the public interface suffices for a study, and how such a study is
written.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import fedray
from fedray.audit.observers import MODELS as MODELS
from fedray.audit.observers import NETWORK as NETWORK
from fedray.audit.observers import OBSERVERS as OBSERVERS
from fedray.audit.observers import OPERATOR as OPERATOR
from fedray.audit.observers import Observer as Observer
from fedray.base.document import Document as Document
from fedray.base.document import InJson as InJson
from fedray.base.errors import CheckpointError as CheckpointError
from fedray.base.input_files import input_files as input_files
from fedray.base.parsing import decode_text as decode_text
from fedray.base.part_done import Announcement as Announcement
from fedray.base.part_done import PartDone as PartDone
from fedray.base.regular_file import read_regular_file as read_regular_file
from fedray.base.result import DrawnResult
from fedray.base.rounding import counted as counted
from fedray.base.rounding import decimals_of as decimals_of
from fedray.base.rounding import exact as exact
from fedray.base.rounding import given as given
from fedray.base.rounding import up as up
from fedray.clients.data.language import Language as Language
from fedray.clients.sessions import population_sessions as population_sessions
from fedray.mechanisms.accounting.calibration import (
    least_noise_multiplier as least_noise_multiplier,
)
from fedray.report.audits import observed_epsilon as observed_epsilon
from fedray.report.figure import Axis as Axis
from fedray.report.figure import Figure as Figure
from fedray.report.figure import Series as Series
from fedray.report.figures import MetricLine as MetricLine
from fedray.report.figures import metric_curve as metric_curve
from fedray.report.page import render_study
from fedray.report.subject import UNKNOWN
from fedray.report.subject import Subject as Subject
from fedray.report.table import Table as Table
from fedray.runtime.placement import Placement
from fedray.studies import reach_and_pace as reach_and_pace
from fedray.studies.compare import comparison_of as comparison_of
from fedray.studies.habits.observed import on_grid as on_grid
from fedray.studies.habits.observed import runs_of as runs_of
from fedray.studies.paired import MeanInterval as MeanInterval
from fedray.studies.paired import interval_text as interval_text
from fedray.studies.paired import mean_interval as mean_interval
from fedray.studies.paired import paired_difference as paired_difference
from fedray.studies.paired import with_error as with_error
from fedray.studies.simulated import StudyCache as StudyCache

_Step = TypeVar("_Step")
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
    subject: Subject = UNKNOWN
    """Subject of the obtained figures; a table of another one has its own."""

    @property
    def of(self) -> Subject:
        """The subject, or the title."""
        return self.subject or Subject(self.title)

    def __repr__(self) -> str:
        return f"<Reproduced {self.title}: {self.verdict}>"

    def to_json(self) -> Any:
        """JSON content of results.json."""
        return self.document

    def tables(self) -> list[Table]:
        """Returns the tables, as pages show them."""
        return [each.under(self.of) for each in self.shown]

    def figures(self) -> list[Figure]:
        """Returns the figures."""
        return [each.under(self.of) for each in self.drawn]

    def page(self) -> str:
        """Returns the page: tables, their conventions, and the verdict."""
        own = self.title, " ".join(self.notes), self.figures(), self.tables(), self.to_json()
        return render_study(*own, verdict=self.verdict)


@dataclass(frozen=True, slots=True)
class Option:
    """An option of one reproduction: a row of its table."""

    name: str
    """Keyword argument of the function; in the command, underscores become dashes."""
    kind: Any
    """Type of its values: `int`, `float`, `str` or `Path`, with `| None` if None is the default."""
    default: Any
    """Value if the option is not given."""
    help: str
    """Line of the command's help."""


@dataclass(frozen=True, slots=True)
class Request:
    """A user's request for a reproduction, apart from the options of its own."""

    out: Path | None = None
    """Directory for files that a reproduction keeps; None to keep none."""
    overrides: Sequence[str] = ()
    """Keys to set in every scenario, as "table.key=value"."""
    placement: Placement = field(default_factory=Placement)
    """Workers and cluster."""
    on_progress: Progress = lambda _: None
    """Listener."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A published result that can be reproduced."""

    name: str
    """Name in the command; that of its module, with dashes."""
    description: str
    """Line for the list of reproductions."""
    source: str
    """Publication, with the tables or the section that are reproduced."""
    time: str
    """Time on two cores, such as "2 min"."""
    run: Callable[..., Iterator[Reproduced]]
    """Yields results as soon as there are some; the last one counts. Its parameters are a `Request`
    and, as keywords, the `options`."""
    options: tuple[Option, ...] = ()
    """Options of its own, in the order of the command's help."""
    has_overrides: bool = False
    """Whether it uses `Request.overrides`, which `--set` gives."""
    has_placement: bool = False
    """Whether it uses `Request.placement`, which `--place` gives."""
    has_figures: bool = False
    """Whether its results have figures, which `--figures` writes to files."""
    is_resumable: bool = False
    """Whether `out` may be the directory of an interrupted run, whose results are read."""

    def results(self, **given: Any) -> Iterator[Reproduced]:
        """Yields results as soon as there are some; the last one counts.

        Args:
            **given: fields of the `Request` and options of its own, by name; the others have their
                defaults.

        Raises:
            InputError: an option has a value that cannot be used.
            FedrayError: see the functions that the reproduction calls.
        """
        own = {each.name: given.pop(each.name, each.default) for each in self.options}
        yield from self.run(Request(**given), **own)


@dataclass(frozen=True, slots=True)
class StepProgress:
    """Listener of one step of a reproduction."""

    on_progress: Progress
    """Listener of the reproduction."""
    text: str
    """Line of the step."""
    begun: float
    """Cost of the steps before it."""
    cost: float
    """Cost of the step."""
    total: float
    """Cost of all steps."""

    def __call__(self, share: float, detail: str = "") -> None:
        """Reports the `share` of the step that is done, from 0 to 1, with a detail."""
        # A log has a line for the first and the last share of all, which steps have already.
        inside = min(max(share, 1e-6), 1.0 - 1e-6)
        line = f"{self.text}: {detail}" if detail else self.text
        self.on_progress(PartDone(line, self.begun + inside * self.cost, self.total))

    def of_rounds(self, done: int, count: int) -> None:
        """Reports the number of rounds that are done."""
        self(done / count, f"{done:,} of {count:,} rounds")


def in_steps(
    request: Request,
    steps: Sequence[_Step],
    name: Callable[[_Step], str],
    cost: Callable[[_Step], float],
) -> Iterator[tuple[_Step, StepProgress]]:
    """Yields the steps of a reproduction with their listeners, the cheap ones first, so that an
    early end has the most results; progress names each, and the time left is by their costs.

    Args:
        request: request whose listener is called.
        steps: the steps.
        name: function that returns the name of a step.
        cost: function that returns its time, in any unit.
    """
    # A step that is done may cost nothing from then on, so each is asked once.
    ordered = sorted(((cost(each), each) for each in steps), key=lambda pair: pair[0])
    # Steps that were done before may all cost nothing.
    total = sum(each for each, _ in ordered) or 1.0
    begun = 0.0
    for number, (own, step) in enumerate(ordered, 1):
        text = f"step {number} of {len(steps)}, {name(step)}"
        tell = StepProgress(request.on_progress, text, begun, own, total)
        request.on_progress(Announcement(text))
        tell(0.0)
        yield step, tell
        begun += own
    request.on_progress(PartDone("all steps done", total, total))


def trace_in(folder: Path, scenario: "fedray.Scenario", request: Request) -> "fedray.Trace":
    """Opens the trace of a study, or simulates it without a training.

    Args:
        folder: directory of the trace, which an earlier run of the study may have written.
        scenario: scenario of the trainings.
        request: request, whose workers simulate.
    """
    if not folder.exists():
        quiet = scenario.with_overrides("training.enabled=false")
        fedray.simulate(quiet, request.placement, folder)
    return fedray.Trace.open(folder)


def statements_table(statements: Sequence[tuple[str, bool]]) -> Table:
    """Returns the statements of a publication, and whether they hold here."""
    return Table.headed(
        "Statements",
        [("statement", "holds"), *((text, "yes" if h else "NO") for text, h in statements)],
    )


def keyboard_parameters(words: int) -> int:
    """Returns the number of parameters of Gboard's next-word model at a vocabulary of so many
    words."""
    # These load torch, which a reproduction without a model does not need.
    from fedray.clients.data.source import Field
    from fedray.clients.tasks.keyboard_lstm import KeyboardLstm
    from fedray.clients.tasks.layout import size_of
    from fedray.scenario.tasks import KeyboardLstmTask

    tokens = Field((2,), "whole", words, padding=0, unknown=1)
    return size_of(KeyboardLstm(KeyboardLstmTask(), 1, {"tokens": tokens}).shapes)


def share_of(line: str) -> float:
    """Returns the share that a line of progress says is done; 0 if it says none."""
    return line.share if isinstance(line, PartDone) else 0.0


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
