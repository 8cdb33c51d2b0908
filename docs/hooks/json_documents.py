"""Documents that commands print with `--json` and that runs leave as JSON files: which type each
is, and its keys as the rows of a reference."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import printed
from document_keys import DocumentKey, keys_of

from fedray.audit.audit import Audit
from fedray.audit.calibration import TraceCalibration
from fedray.audit.ledger import Ledger
from fedray.audit.live.outlook import Outlook
from fedray.audit.privacy_statement import Statement
from fedray.audit.several_tasks import TasksAudit
from fedray.clients.sessions import PopulationSupply
from fedray.commands.frame.described import Schema
from fedray.commands.studies.sweep import ShippedSweeps
from fedray.mechanisms.figures import Figures, Mechanisms
from fedray.runs.answers import Answers
from fedray.runs.design import Found
from fedray.runs.verified import Verification
from fedray.scenarios import flash, shakespeare
from fedray.scenarios.amplified_errors import ErrorsOfBands
from fedray.scenarios.blt_cost import CostsOfBLTs
from fedray.scenarios.cells import PrintedCells
from fedray.scenarios.clip_schedule import ClipSchedules
from fedray.scenarios.coverage import Coverages
from fedray.scenarios.gboard import ReproducedRuns
from fedray.scenarios.gboard_predict import PredictionStudy
from fedray.scenarios.gboard_recipes import Recipes
from fedray.scenarios.learning import LearningStudies
from fedray.scenarios.signal_to_noise import RoundSizeStudies
from fedray.scenarios.trust import Trusts
from fedray.studies.canary import CanaryResult
from fedray.studies.compare import Comparison
from fedray.studies.fit import Fit
from fedray.studies.forecast.forecast import Forecast
from fedray.studies.habits.fit import HabitFit
from fedray.studies.model_audit import ModelAudit
from fedray.studies.plan import Plan
from fedray.studies.plans_compared import PlanComparison
from fedray.studies.stress.result import StressResult
from fedray.studies.sweep.run import SweepResult
from fedray.trace.groups import Groups
from fedray.trace.imported import ImportDocument
from fedray.trace.trained import TrainedDocument
from fedray.watch.entries import Listing


class Document:
    """A document, or the keys that several documents have in common.

    Args:
        types: types that have its keys, without those of `base`.
        where: commands that print it, as a sentence; by default its name with `--json`.
        files: sentence on files that have its keys; empty for none.
        base: name of the document whose keys it has too; empty for none.
    """

    def __init__(self, *types: type, where: str = "", files: str = "", base: str = "") -> None:
        self.types, self.where, self.files, self.base = types, where, files, base


@dataclass(frozen=True, slots=True)
class Row:
    """A key with its whole path."""

    path: str
    """Such as "mechanisms[].guarantees[].rho": [] stands for each of a list, and a word in capitals
    for a name."""
    key: DocumentKey
    reference: str
    """Sentence that names the place which lists the keys of its object; empty if they follow."""


AUDIT, AUDIT_OF_TASKS, TRAINED = "An audit", "An audit of several tasks", "A trained run"
CELLS = "A reproduction of printed cells"
DOCUMENTS: Mapping[str, Document] = {
    AUDIT: Document(Audit, where="Every audited trace."),
    "fedray audit": Document(printed.WithAudit, printed.Verified, printed.Written, base=AUDIT),
    "fedray audit, of rounds to come": Document(
        Outlook, printed.WithHold, printed.Written, where="`fedray audit --until N --json`."
    ),
    "fedray verify": Document(Verification),
    "fedray budget": Document(Ledger),
    "A privacy statement": Document(
        Statement, where="The file statement.json, which `fedray audit --statement DIR` writes."
    ),
    AUDIT_OF_TASKS: Document(TasksAudit, where="Every audited run of several tasks."),
    "fedray audit, of several tasks": Document(
        printed.Verified, printed.Written, base=AUDIT_OF_TASKS
    ),
    "fedray run, of several tasks": Document(
        printed.Costs, printed.WithTasksRun, base=AUDIT_OF_TASKS
    ),
    "fedray canary": Document(CanaryResult),
    "fedray run": Document(printed.Costs, printed.WithRun, base=AUDIT),
    TRAINED: Document(
        TrainedDocument,
        where="Every training.",
        files="The file training.json has these keys without `path` and `last_metrics`.",
    ),
    "fedray train": Document(printed.WithTraining, base=TRAINED),
    "Metrics by group": Document(
        Groups, where="The results of `fedray.evaluate`, and the entries of `groups` of a training."
    ),
    "fedray compare": Document(
        Comparison,
        printed.Written,
        files="The file results.json of a sweep that trains has these keys, without the files.",
    ),
    "fedray compare, of plans": Document(PlanComparison),
    "fedray compare-mechanisms": Document(Comparison, printed.Written),
    "fedray answer": Document(
        Answers,
        printed.WrittenAnswer,
        printed.Written,
        files="The file answer.json has these keys, without the files.",
    ),
    "fedray audit-model": Document(ModelAudit, printed.Written),
    "fedray import": Document(
        ImportDocument, files="The file run.json of an imported log has these keys and `parts`."
    ),
    "fedray plan": Document(
        Plan, files="The file plan.json has these keys and `command`, the command that made it."
    ),
    "fedray stress": Document(StressResult, printed.Written),
    "fedray forecast": Document(Forecast, printed.Written),
    "fedray sweep": Document(SweepResult, files="The file results.json is the same."),
    "fedray sweep, without a name": Document(ShippedSweeps),
    "fedray reproduce amplified-errors": Document(
        ErrorsOfBands, files="The file results.json is the same."
    ),
    "fedray reproduce blt-cost": Document(CostsOfBLTs, files="The file results.json is the same."),
    CELLS: Document(
        PrintedCells,
        where="Every reproduction of printed cells.",
        files="The file results.json is the same.",
    ),
    "fedray reproduce clip-schedule": Document(
        ClipSchedules, files="The file results.json is the same."
    ),
    "fedray reproduce coverage": Document(Coverages),
    "fedray reproduce flash": Document(flash.Study, files="The file results.json is the same."),
    "fedray reproduce gboard": Document(ReproducedRuns, files="The file results.json is the same."),
    "fedray reproduce gboard-predict": Document(
        PredictionStudy, files="The file results.json is the same."
    ),
    "fedray reproduce gboard-recipes": Document(Recipes),
    "fedray reproduce learning": Document(
        LearningStudies, files="The file results.json is the same."
    ),
    "fedray reproduce signal-to-noise": Document(
        RoundSizeStudies, files="The file results.json is the same."
    ),
    "fedray reproduce shakespeare": Document(
        shakespeare.Study, files="The file results.json is the same."
    ),
    "fedray reproduce trust": Document(Trusts, files="The file results.json is the same."),
    "fedray fit-log": Document(HabitFit, printed.WithHabitFit),
    "fedray fit-min-sep": Document(Fit),
    "fedray population": Document(PopulationSupply),
    "fedray mechanism": Document(Figures, printed.Written, printed.WrittenCoefficients),
    "fedray calibrate": Document(TraceCalibration),
    "fedray mechanism, of several": Document(
        Mechanisms, printed.Written, printed.WrittenCoefficients
    ),
    "fedray optimize": Document(Found, printed.WithSearch, base="fedray mechanism"),
    "fedray status": Document(Listing),
    "fedray schema TABLE": Document(Schema),
}
"""Every document that has a reference, by its name."""


def described(name: str) -> str:
    """The commands and files of a document, as sentences."""
    document = DOCUMENTS[name]
    command, comma, kind = name.partition(",")
    base = f'It has all keys of "{document.base}", and those below.' if document.base else ""
    where = document.where or f"`{command} --json`{comma}{kind}."
    return " ".join(filter(None, (where, document.files, base)))


def rows_of(name: str) -> Iterator[Row]:
    """The rows of a document, in order, without those of its `base`.

    Args:
        name: name of the document.
    """
    document = DOCUMENTS[name]
    shown = {(each.types[0], ""): f'"{other}"' for other, each in DOCUMENTS.items()}
    common = {row.path for row in rows_of(document.base)} if document.base else set()
    for each in document.types:
        yield from (row for row in _rows(keys_of(each), "", shown) if row.path not in common)


def _rows(keys: list[DocumentKey], above: str, shown: dict[tuple[type, str], str]) -> Iterator[Row]:
    """Rows of keys below a path; the keys of an object are listed once."""
    for key in keys:
        path = f"{above}{key.name}"
        listed = key.within and shown.get(key.within)
        yield Row(path, key, f" The keys are those of {listed}." if listed else "")
        if key.within and key.within not in shown:
            below = f"{path}{_step(key.type)}"
            shown[key.within] = f"`{below}`"
            yield from _rows(keys_of(*key.within), f"{below}.", shown)


def _step(kind: str) -> str:
    """The step of a path from a key to the keys of its objects."""
    if kind.startswith("list"):
        return "[]"
    _, by, name = kind.removesuffix(" or null").partition("object by ")
    return f".{name.upper()}" if by else ""
