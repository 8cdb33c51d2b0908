"""Comparison of plans: their answers side by side, and the settings in which they differ."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from fedray.base.document import Document
from fedray.base.errors import InputError
from fedray.base.parsing import read_document
from fedray.base.result import Result
from fedray.base.rounding import in_words, needed_noise, or_dash, shown_min_sep, up
from fedray.report.subject import FACETS, Subject, shared_subject
from fedray.report.table import Table
from fedray.studies.dotted import flat

PLAN_FILE = "plan.json"
KEYS = {"best", "nearest", "of", "target", "settings", "rounds", "seeds", "scale", "least"}
"""Keys of a plan that are read."""
CHOSEN = (
    *("name", "rounds.report_goal", "participation.timer_hours", "privacy.noise_multiplier"),
    *("privacy.mechanism", "privacy.wanted_epsilon"),
)
"""Settings of a scenario that a plan chooses itself, and its name, which its population has."""


@dataclass(frozen=True, slots=True)
class ComparedPlan(Document):
    """The answer of a plan, or its nearest miss."""

    plan: str
    """File or directory of the plan."""
    subject: Subject
    """Population and runs behind the figures."""
    is_met: bool
    """Whether the plan meets its target."""
    target_epsilon: float
    """Its target."""
    rounds: int
    """Rounds of a run."""
    report_goal: int | None
    """Reports that close a round; None for this and the next if nothing was simulated to the
    end."""
    timer_hours: float | None
    """Participation timer."""
    noise_multiplier: float | None
    """Noise multiplier."""
    epsilon: float | None
    """Epsilon at the planned limits."""
    days: float | None
    """Days of the run, with the planned limits as rules if it was simulated so."""
    planned_min_sep: int | None
    """Planned min-sep; None also if no device takes part twice."""
    planned_max_participations: int | None
    """Most participations of the plan."""


class DifferingSetting(NamedTuple):
    """A setting in which plans differ."""

    key: str
    """Key of a scenario, or `target.`, `seeds`, `scale` or `least` of the plan."""
    values: list[Any]
    """Its value in each plan, in their order; None without one."""


@dataclass(frozen=True, slots=True)
class PlanComparison(Result):
    """Plans side by side."""

    TABLES: ClassVar[str] = "fedray.studies.plans_compared:comparison_tables"
    SUBJECT: ClassVar[str] = "fedray.studies.plans_compared:comparison_subject"
    HEADLINE: ClassVar[str] = "fedray.studies.plans_compared:comparison_headline"

    plans: tuple[ComparedPlan, ...]
    """The plans, in the order in which they were named."""
    differing: tuple[DifferingSetting, ...]
    """Settings in which they differ, other than those that a plan chooses."""


def is_plan(path: Path) -> bool:
    """Whether a path names a plan: a file of JSON, or a directory with plan.json."""
    return path.suffix == ".json" or (path / PLAN_FILE).exists()


def compare_plans(paths: Sequence[Path]) -> PlanComparison:
    """Compares plans.

    Args:
        paths: output of `fedray plan` as JSON, or directories of `fedray plan --out`; at least two.

    Raises:
        InputError: there is only one, or a file cannot be read or lacks a plan.
    """
    if len(paths) < 2:
        rule = "must be at least two"
        raise InputError.of("plans", [str(each) for each in paths], rule, "name another one")
    documents = [_read(each) for each in paths]
    settings = [dict(_settings(each)) for each in documents]
    keys = sorted({key for each in settings for key in each})
    every = (DifferingSetting(key, [each.get(key) for each in settings]) for key in keys)
    differing = (each for each in every if any(it != each.values[0] for it in each.values))
    return PlanComparison(tuple(map(_compared, map(str, paths), documents)), tuple(differing))


def _read(path: Path) -> Mapping[str, Any]:
    file = path / PLAN_FILE if path.is_dir() else path
    found = read_document(file, "plan", "JSON")
    if not _is_plan(found):
        raise InputError(
            f"{str(file)!r} is no plan of this version; name the output of `fedray plan` as "
            "JSON, or a directory of it"
        )
    return found


def _is_plan(found: Any) -> bool:
    """Whether a document has all that is read from a plan."""
    return (
        isinstance(found, dict)
        and found.keys() >= KEYS
        and all(isinstance(found[each], dict) for each in ("target", "settings", "of"))
        and all(isinstance(found[each], dict | None) for each in ("best", "nearest"))
        and "epsilon" in found["target"]
        and found["of"].keys() <= {*FACETS}
    )


def _compared(path: str, document: Mapping[str, Any]) -> ComparedPlan:
    shown = document["best"] or document["nearest"] or {}
    chosen = ("report_goal", "timer_hours", "noise_multiplier", "epsilon")
    limits = ("planned_min_sep", "planned_max_participations")
    return ComparedPlan(
        plan=path,
        subject=Subject(**document["of"]),
        is_met=document["best"] is not None,
        target_epsilon=document["target"]["epsilon"],
        rounds=document["rounds"],
        days=shown.get("enforced_days") or shown.get("days"),
        **{name: shown.get(name) for name in (*chosen, *limits)},
    )


def _settings(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the settings that lead to a plan, by dotted key."""
    own = {name: document[name] for name in ("seeds", "scale", "least")}
    for key, value in flat({**document["settings"], "target": document["target"], **own}):
        if not any(key == each or key.startswith(f"{each}.") for each in CHOSEN):
            yield key, value


def comparison_subject(comparison: PlanComparison) -> Subject:
    """Returns the facets that all plans share; their populations are named if they differ."""
    subjects = [each.subject for each in comparison.plans]
    populations = " and ".join(dict.fromkeys(each.population for each in subjects))
    return Subject(population=populations).under(shared_subject(subjects))


def comparison_headline(comparison: PlanComparison) -> str:
    """Returns the answer of each plan, and the settings in which they differ."""
    said = []
    for each in comparison.plans:
        if each.epsilon is None or each.days is None:
            said.append(f"{each.plan}: nothing meets epsilon {each.target_epsilon:g}.")
            continue
        said.append(
            f"{each.plan}: epsilon {up(each.epsilon)} for {each.target_epsilon:g}, "
            f"{'met' if each.is_met else 'not met'}, with goal {each.report_goal:,} and timer "
            f"{each.timer_hours:g} h in {each.days:.1f} days."
        )
    keys = ", ".join(each.key for each in comparison.differing)
    differ = f"The plans differ in {keys}." if keys else "The plans have the same settings."
    return " ".join([*said, differ])


def comparison_tables(comparison: PlanComparison) -> list[Table]:
    """Returns the plans, a column each, and the settings in which they differ."""
    cells: dict[str, Callable[[ComparedPlan], str]] = {
        "population": lambda each: each.subject.population,
        "target epsilon": lambda each: f"{each.target_epsilon:g}",
        "met": lambda each: "yes" if each.is_met else "no, nearest miss",
        "rounds": lambda each: f"{each.rounds:,}",
        "report goal": lambda each: or_dash("{:,}".format, each.report_goal),
        "timer": lambda each: or_dash("{:g} h".format, each.timer_hours),
        "noise multiplier z": lambda each: or_dash(needed_noise, each.noise_multiplier),
        "epsilon": lambda each: or_dash(up, each.epsilon),
        "days": lambda each: or_dash("{:.1f}".format, each.days),
        "min-sep, planned": lambda each: or_dash(
            lambda _: shown_min_sep(each.planned_min_sep), each.planned_max_participations
        ),
        "participations, planned": lambda each: or_dash(str, each.planned_max_participations),
        "runs": lambda each: each.subject.runs or "-",
    }
    names = [each.plan for each in comparison.plans]
    rows = [[name, *map(cell, comparison.plans)] for name, cell in cells.items()]
    tables = [Table.headed("Plans", [["", *names], *rows])]
    if comparison.differing:
        rows = [[each.key, *map(in_words, each.values)] for each in comparison.differing]
        tables.append(Table.headed("Settings that differ", [["setting", *names], *rows]))
    return tables
