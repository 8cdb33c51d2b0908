"""Comparison of plans: their answers side by side, and the settings in which they differ."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fedray.base.document import Document, InJson
from fedray.base.dotted import flat
from fedray.base.errors import InputError
from fedray.base.parsing import read_document
from fedray.base.result import DrawnResult
from fedray.base.rounding import given, in_words, needed_noise, or_dash, shown_min_sep, up
from fedray.report.figure import Axis, Figure, Mark, Series, needs_log
from fedray.report.page import render_study
from fedray.report.subject import FACETS, Subject, shared_subject
from fedray.report.table import Table
from fedray.studies.what_ifs import FEWER

PLAN_FILE = "plan.json"
KEYS = {
    *("best", "nearest", "of", "target", "settings", "rounds", "seeds", "scale", "least"),
    *("what_ifs", "is_met", "devices_of_person", "epsilon_of_person"),
}
"""Keys of a plan that are read."""
CHOSEN = (
    *("name", "rounds.report_goal", "participation.timer_hours", "privacy.noise_multiplier"),
    *("privacy.mechanism", "privacy.wanted_epsilon", "description"),
)
"""Settings that a plan chooses itself or that are rows of the answers, and name and description."""
WORDS = {
    "target.epsilon": "target epsilon",
    "target.unit": "unit of the target",
    "target.noise_per_report": "noise on the mean",
    "target.delta": "delta",
    "target.report_goal": "report goal to keep",
    "target.buffers": "buffers of the BLT",
    "seeds": "runs of each candidate",
    "scale": "size of the search",
    "least": "least cost",
}
"""Words for settings of the plan that are no key of a scenario."""
LESS = 0.005
"""Relative difference from which on one figure is less than another."""


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
    unit: str
    """Unit whose epsilon is to meet it: "device" or "person"."""
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
    """Epsilon of a device at the planned limits."""
    devices_of_person: int
    """Most devices of a person; 1 if owners are unknown."""
    epsilon_of_person: float | None
    """Epsilon of a person with these; None if owners are unknown, or without a guarantee."""
    days: float | None
    """Days of the run, with the planned limits as rules if it was simulated so."""
    planned_min_sep: int | None
    """Planned min-sep; None also if no device takes part twice."""
    planned_max_participations: int | None
    """Most participations of the plan."""
    starves: bool | None
    """Whether its run starves with 10 % fewer devices; None if that was not simulated."""

    @property
    def noise_on_the_mean(self) -> InJson[float | None]:
        """Noise multiplier over report goal."""
        z, goal = self.noise_multiplier, self.report_goal
        return None if z is None or not goal else z / goal

    @property
    def judged_epsilon(self) -> float | None:
        """Epsilon of the unit of the target; None without a guarantee."""
        return self.epsilon_of_person if self.unit == "person" else self.epsilon

    @property
    def updates(self) -> InJson[int | None]:
        """Accepted updates of a run, of all devices together."""
        return None if self.report_goal is None else self.rounds * self.report_goal


class DifferingSetting(NamedTuple):
    """A setting in which plans differ."""

    key: str
    """Key of a scenario, or `target.`, `seeds`, `scale` or `least` of the plan."""
    values: list[Any]
    """Its value in each plan, in their order; None without one."""


@dataclass(frozen=True, slots=True)
class PlanComparison(DrawnResult):
    """Plans side by side."""

    TABLES: ClassVar[str] = "fedray.studies.plans_compared:comparison_tables"
    SUBJECT: ClassVar[str] = "fedray.studies.plans_compared:comparison_subject"
    HEADLINE: ClassVar[str] = "fedray.studies.plans_compared:comparison_headline"
    FIGURES: ClassVar[str] = "fedray.studies.plans_compared:comparison_figures"
    PAGE: ClassVar[str] = "fedray.studies.plans_compared:comparison_page"

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
        and isinstance(found["what_ifs"], list)
        and found["target"].keys() >= {"epsilon", "unit"}
        and found["of"].keys() <= {*FACETS}
    )


def _compared(path: str, document: Mapping[str, Any]) -> ComparedPlan:
    shown = document["best"] or document["nearest"] or {}
    chosen = ("report_goal", "timer_hours", "noise_multiplier", "epsilon")
    limits = ("planned_min_sep", "planned_max_participations")
    fewer = (each for each in document["what_ifs"] if each.get("name") == FEWER)
    starves = next((each.get("starves_at") is not None for each in fewer), None)
    return ComparedPlan(
        plan=path,
        subject=Subject(**document["of"]),
        is_met=document["is_met"],
        devices_of_person=document["devices_of_person"],
        epsilon_of_person=document["epsilon_of_person"],
        starves=starves,
        target_epsilon=document["target"]["epsilon"],
        unit=document["target"]["unit"],
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
    """Returns whether each plan meets its target, which is the least in what, and the settings in
    which they differ."""
    said = []
    for each in comparison.plans:
        target = _target_words(each, comparison.plans)
        if each.epsilon is None or each.days is None:
            said.append(f"{each.plan}: nothing meets epsilon {target}.")
            continue
        person = ""
        if each.epsilon_of_person is not None:
            people, epsilon = each.devices_of_person, up(each.epsilon_of_person)
            person = f", {epsilon} of a person with {people} devices"
        said.append(
            f"{each.plan}: epsilon {up(each.epsilon)} of a device{person}, for "
            f"{target}, {_met(each, 'met', 'not met')}."
        )
    met = [each for each in comparison.plans if each.is_met]
    if len(met) == 1 < len(comparison.plans):
        said.append(f"Only {met[0].plan} meets its target.")
    # What misses its target does not win.
    said += _winners(met or comparison.plans)
    said += _times_the_noise(comparison.plans)
    keys = ", ".join(WORDS.get(each.key, each.key) for each in comparison.differing)
    differ = f"The plans differ in {keys}." if keys else "The plans have the same settings."
    return " ".join([*said, differ])


def _met(plan: ComparedPlan, met: str, missed: str) -> str:
    """Returns whether a plan meets its target, and of whom if a person does not."""
    if not plan.is_met:
        return missed
    of_person, most = plan.epsilon_of_person, plan.devices_of_person
    if plan.unit == "person":
        return met
    is_for_all = most == 1 or (of_person is not None and of_person <= plan.target_epsilon)
    return met if is_for_all else f"{met} for a device and missed for a person"


def _target_words(plan: ComparedPlan, plans: Sequence[ComparedPlan]) -> str:
    """Returns the target of one of some plans, with its unit unless all are of a device."""
    is_said = any(each.unit == "person" for each in plans)
    return f"{plan.target_epsilon:g}{f' of a {plan.unit}' if is_said else ''}"


def _times_the_noise(plans: Sequence[ComparedPlan]) -> Iterator[str]:
    """Yields how many times the noise on the mean each plan has of the one with the least."""
    known = [(noise, each) for each in plans if (noise := each.noise_on_the_mean)]
    if not known:
        return
    least, base = min(known, key=lambda pair: pair[0])
    for noise, each in known:
        if noise > (1 + LESS) * least:
            times = up(round(noise / least, 6), 2)
            yield f"{each.plan} has {times} times the noise on the mean of {base.plan}."


def _winners(plans: Sequence[ComparedPlan]) -> Iterator[str]:
    """Yields which of the plans is the least in each figure in which they differ."""
    if len(plans) < 2:
        return
    figures: dict[str, tuple[Callable[[ComparedPlan], Any], Callable[[Any], str]]] = {
        "Least epsilon of a device": (lambda each: each.epsilon, up),
        "Least noise on the mean": (lambda each: each.noise_on_the_mean, needed_noise),
        "Fewest device updates": (lambda each: each.updates, "{:,}".format),
        "Fewest days": (lambda each: each.days, "{:.1f}".format),
    }
    for name, (value, text) in figures.items():
        known = [(value(each), each) for each in plans if value(each) is not None]
        if len(known) < 2:
            continue
        least, winner = min(known, key=lambda each: each[0])
        others = [each for each, of in known if of is not winner]
        if min(others) > (1 + LESS) * least:
            yield f"{name}: {winner.plan} ({text(least)}, else {text(min(others))})."
    starving = [each.plan for each in plans if each.starves]
    lasting = [each.plan for each in plans if each.starves is False]
    if starving and lasting:
        yield f"Starve with 10 % fewer devices: {in_words(starving)}, and not {in_words(lasting)}."
    elif starving:
        yield "With 10 % fewer devices each of them starves."


def comparison_figures(comparison: PlanComparison) -> list[Figure]:
    """Returns epsilon over the noise on the mean, a point for each plan, and the targets if all are
    of one unit."""
    units = {each.unit for each in comparison.plans}
    unit = units.pop() if len(units) == 1 else "device"
    points, marks = [], []
    for each in comparison.plans:
        epsilon = each.epsilon if unit == "device" else each.epsilon_of_person
        if epsilon is not None and each.noise_on_the_mean is not None:
            x, y = np.array([each.noise_on_the_mean]), np.array([epsilon])
            points.append(Series(each.plan, "points", x, y, labels=(each.plan,)))
    if not points:
        return []
    if not units:
        targets = sorted({each.target_epsilon for each in comparison.plans})
        marks = [Mark(each, f"target {given(each)}", "y") for each in targets]
    shown = [*(float(each.y[0]) for each in points), *(each.at for each in marks)]
    return [
        Figure(
            name="plans",
            title="Epsilon and noise on the mean",
            note="The nearer to the lower left corner, the better.",
            x=Axis("noise on the mean, z over goal", starts_at_zero=False, decimals=4),
            y=Axis(f"epsilon of a {unit}", needs_log(shown), decimals=4),
            series=tuple(points),
            marks=tuple(marks),
        )
    ]


def _value_words(key: str, value: Any) -> str:
    if value is not None and key == "target.noise_per_report":
        return needed_noise(value)
    return in_words(value)


def comparison_page(comparison: PlanComparison) -> str:
    """Returns the page of a comparison."""
    note = "Plans side by side, a column each."
    shown = comparison.figures(), comparison.tables(), comparison.to_json()
    return render_study("Plans compared", note, *shown, verdict=comparison.headline)


def comparison_tables(comparison: PlanComparison) -> list[Table]:
    """Returns the plans, a column each, and the settings in which they differ."""
    cells: dict[str, Callable[[ComparedPlan], str]] = {
        "population": lambda each: each.subject.population,
        "target epsilon": lambda each: _target_words(each, comparison.plans),
        "target": lambda each: _met(each, "met", "missed, nearest miss"),
        "rounds": lambda each: f"{each.rounds:,}",
        "report goal": lambda each: or_dash("{:,}".format, each.report_goal),
        "timer": lambda each: or_dash("{:g} h".format, each.timer_hours),
        "noise multiplier z": lambda each: or_dash(needed_noise, each.noise_multiplier),
        "noise on the mean, z over goal": lambda each: or_dash(
            needed_noise, each.noise_on_the_mean
        ),
        "device updates": lambda each: or_dash("{:,}".format, each.updates),
        "epsilon of a device": lambda each: or_dash(up, each.epsilon),
        "epsilon of a person": lambda each: or_dash(up, each.epsilon_of_person),
        "days": lambda each: or_dash("{:.1f}".format, each.days),
        "min-sep, planned": lambda each: or_dash(
            lambda _: shown_min_sep(each.planned_min_sep), each.planned_max_participations
        ),
        "participations, planned": lambda each: or_dash(str, each.planned_max_participations),
        "with 10 % fewer devices": lambda each: or_dash(
            lambda starves: "starves" if starves else "does not starve", each.starves
        ),
        "runs": lambda each: each.subject.runs or "-",
    }
    if all(each.devices_of_person == 1 for each in comparison.plans):
        del cells["epsilon of a person"]
    known = [noise for each in comparison.plans if (noise := each.noise_on_the_mean)]
    if known and max(known) > (1 + LESS) * min(known):
        cells["times the least noise on the mean"] = lambda each: or_dash(
            lambda noise: up(round(noise / min(known), 6), 2), each.noise_on_the_mean
        )
    names = [each.plan for each in comparison.plans]
    rows = [[name, *map(cell, comparison.plans)] for name, cell in cells.items()]
    tables = [Table.headed("Plans", [["", *names], *rows])]
    if comparison.differing:
        rows = [
            [WORDS.get(each.key, each.key), *(_value_words(each.key, it) for it in each.values)]
            for each in comparison.differing
        ]
        tables.append(Table.headed("Settings that differ", [["setting", *names], *rows]))
    return tables
