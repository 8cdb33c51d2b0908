"""Every document, by its name, and its keys as the rows of a reference."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from fedray.audit.statement import Line, Statement
from fedray.documents.audits import (
    audit_command_keys,
    audit_keys,
    audit_of_tasks_command_keys,
    audit_of_tasks_keys,
    calibration_keys,
    report_keys,
)
from fedray.documents.files import (
    cache_keys,
    import_keys,
    init_keys,
    population_keys,
    scenario_keys,
    schema_keys,
    session_keys,
    status_keys,
)
from fedray.documents.keys import JsonKey, Keys, keys_of
from fedray.documents.mechanisms import compared_keys, figures_keys, optimize_keys
from fedray.documents.reproductions import (
    learning_keys,
    prediction_keys,
    published_privacy_keys,
    reproduction_keys,
    variation_keys,
)
from fedray.documents.studies import (
    canary_keys,
    fit_keys,
    habit_fit_keys,
    plan_keys,
    shipped_sweep_keys,
    sweep_keys,
)
from fedray.documents.trainings import (
    comparison_keys,
    evaluation_keys,
    pretraining_keys,
    run_keys,
    run_of_tasks_keys,
    train_keys,
    trained_keys,
)


@dataclass(frozen=True, slots=True)
class Document:
    """What a command prints or a file has, or what several of them have in common."""

    where: str
    """The commands and files, as a sentence."""
    keys: Keys
    """Its keys in order, without those of `base`."""
    base: str = ""
    """The document whose keys it has too; empty for none."""

    @property
    def all_keys(self) -> Keys:
        """Its keys and those of `base`."""
        return {**documents()[self.base].all_keys, **self.keys} if self.base else self.keys


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """A key of a document with its whole path, as references show it."""

    path: str
    """Such as "mechanisms[].guarantees[].rho": [] stands for each of a list, and a word in capitals
    for a name."""
    type: str
    """As `JsonKey.type`."""
    meaning: str
    """As `JsonKey.meaning`, and where the keys of the object are listed if not below."""


AUDIT, AUDIT_OF_TASKS, TRAINED = "An audit", "An audit of several tasks", "A trained run"


@cache
def documents() -> Mapping[str, Document]:
    """Every document that has a reference, by its name."""
    return {
        AUDIT: Document("What is said of every audited trace.", audit_keys()),
        "fedray audit": Document(
            "`fedray audit --json`, of a run of one task or of an imported log.",
            audit_command_keys(),
            AUDIT,
        ),
        "fedray statement": Document(
            "`fedray statement --json`, and statement.json.",
            keys_of(Statement, lines=JsonKey("list of objects", "", keys_of(Line))),
        ),
        "fedray report": Document(
            "`fedray report --json`, of a run, an imported log or a trained run.", report_keys()
        ),
        AUDIT_OF_TASKS: Document(
            "What is said of every audited run of several tasks.", audit_of_tasks_keys()
        ),
        "fedray audit, of several tasks": Document(
            "`fedray audit --json`, of a run of several tasks.",
            audit_of_tasks_command_keys(),
            AUDIT_OF_TASKS,
        ),
        "fedray run, of several tasks": Document(
            "`fedray run --json`, of several tasks.", run_of_tasks_keys(), AUDIT_OF_TASKS
        ),
        "fedray canary": Document("`fedray canary --json`.", canary_keys()),
        "fedray run": Document("`fedray run --json`, of one task.", run_keys(), AUDIT),
        TRAINED: Document(
            "What is said of every training. The file training.json has these keys without `path` "
            "and `last_metrics`.",
            trained_keys(),
        ),
        "fedray train": Document("`fedray train --json`.", train_keys(), TRAINED),
        "fedray compare": Document("`fedray compare --json`.", comparison_keys()),
        "fedray evaluate": Document("`fedray evaluate --json`.", evaluation_keys()),
        "fedray pretrain": Document("`fedray pretrain --json`.", pretraining_keys()),
        "fedray import": Document(
            "`fedray import --json`. The file run.json of an imported log has these keys and "
            "`parts`.",
            import_keys(),
        ),
        "fedray plan": Document(
            "`fedray plan --json`. The file plan.json has these keys and `command`, how it was "
            "made.",
            plan_keys(),
        ),
        "fedray stress": Document(
            "`fedray stress --json` of a sweep, and its results.json.", sweep_keys()
        ),
        "fedray stress, without a sweep": Document(
            "`fedray stress --json` without a sweep.", shipped_sweep_keys()
        ),
        "fedray reproduce gboard": Document(
            "`fedray reproduce gboard --json`. The file results.json has the list alone.",
            reproduction_keys(),
        ),
        "fedray reproduce gboard-privacy": Document(
            "`fedray reproduce gboard-privacy --json`, and its results.json.",
            published_privacy_keys(),
        ),
        "fedray reproduce gboard-predict": Document(
            "`fedray reproduce gboard-predict --json`, and its results.json.", prediction_keys()
        ),
        "fedray reproduce gboard-sensitivity": Document(
            "`fedray reproduce gboard-sensitivity --json`, and its results.json.",
            variation_keys(),
        ),
        "fedray reproduce learning": Document(
            "`fedray reproduce learning --json`. The file results.json of a scenario has what "
            "stands below `studies[]`.",
            learning_keys(),
        ),
        "fedray fit, of a log": Document("`fedray fit LOG --json`.", habit_fit_keys()),
        "fedray fit, of a min-sep": Document(
            "`fedray fit --json` with `--min-sep` or `--rounds-between`.", fit_keys()
        ),
        "fedray population": Document("`fedray population --json`.", population_keys()),
        "fedray sessions": Document("`fedray sessions --json`.", session_keys()),
        "fedray mechanism": Document(
            "`fedray mechanism --json`, and `fedray calibrate --json` without `--trace`.",
            figures_keys(),
        ),
        "fedray calibrate, of a trace": Document(
            "`fedray calibrate --trace TRACE --json`.", calibration_keys()
        ),
        "fedray mechanism, of several": Document(
            "`fedray mechanism --json` of several mechanisms.", compared_keys()
        ),
        "fedray optimize": Document(
            "`fedray optimize --json`.", optimize_keys(), "fedray mechanism"
        ),
        "fedray status": Document("`fedray status --json`.", status_keys()),
        "fedray cache": Document("`fedray cache --json`.", cache_keys()),
        "fedray scenarios": Document("`fedray scenarios --json`.", scenario_keys()),
        "fedray init": Document("`fedray init --json`.", init_keys()),
        "fedray schema": Document(
            "`fedray schema TABLE --json`. Without a table, `fedray schema` prints the JSON schema "
            "of scenario files.",
            schema_keys(),
        ),
    }


def rows_of(name: str) -> list[DocumentRow]:
    """The rows of a document, in order, without those of its `base`.

    Args:
        name: of the document.
    """
    shown = {id(each.keys): f'"{other}"' for other, each in documents().items()}
    return list(_rows(documents()[name].keys, "", shown))


def _rows(keys: Keys, above: str, shown: dict[int, str]) -> Iterator[DocumentRow]:
    """Rows of keys below a path; objects that were shown before are not shown again."""
    for name, key in keys.items():
        path = f"{above}{name}"
        where = shown.get(id(key.within))
        if key.within is None:
            yield DocumentRow(path, key.type, key.meaning)
        elif where is not None:
            yield DocumentRow(path, key.type, f"{key.meaning} The keys are those of {where}.")
        else:
            yield DocumentRow(path, key.type, key.meaning)
            step = _step(key.type)
            shown[id(key.within)] = f"`{path}{step}`"
            yield from _rows(key.within, f"{path}{step}.", shown)


def _step(kind: str) -> str:
    """What stands between a key and those within it."""
    if kind.startswith("list"):
        return "[]"
    _, by, name = kind.removesuffix(" or null").partition("object by ")
    return f".{name.upper()}" if by else ""
