"""Every document, by its name, and its keys as the rows of a reference."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from fedray.audit.statement import Line, Statement
from fedray.documents.audits import audit_command_keys, audit_keys, report_keys
from fedray.documents.files import import_keys
from fedray.documents.keys import JsonKey, Keys, keys_of
from fedray.documents.mechanisms import figures_keys, optimize_keys
from fedray.documents.studies import canary_keys, plan_keys, sweep_keys
from fedray.documents.trainings import comparison_keys, run_keys, train_keys, trained_keys


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


AUDIT, TRAINED = "An audit", "A trained run"


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
            "`fedray report --json`, of a run of one task or of an imported log.", report_keys()
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
        "fedray mechanism": Document(
            "`fedray mechanism --json` and `fedray calibrate --json`.", figures_keys()
        ),
        "fedray optimize": Document(
            "`fedray optimize --json`.", optimize_keys(), "fedray mechanism"
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
