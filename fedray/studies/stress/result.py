"""The result of a stress test: its rows, the answer under each condition and over all of them,
and the verdict in sentences."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar

import pyarrow as pa

from fedray.base.document import IfAny, InJson, NotInJson, json_of
from fedray.base.result import DrawnResult
from fedray.base.rounding import counted
from fedray.mechanisms.loss import LOSS_NAMES, Objective
from fedray.mechanisms.participation import MinSep
from fedray.report.subject import Subject, condition_of, shared_subject
from fedray.report.subjects import condition_in_words, scenario_subject, setting_of
from fedray.scenario import Scenario
from fedray.studies.compare import Comparison, shown_unit
from fedray.studies.stress.condition import Condition, unjudged, worst_case
from fedray.studies.stress.judged import StressRow, design_of
from fedray.studies.stress.outcome import MOST_EXCEEDING, chance_text, runs_to_support, span

PUBLISHED = "Table 4 of McMahan, Xu and Zhang (2024)"
"""Source of the settings that are judged without arguments."""


@dataclass(frozen=True)
class StressResult(DrawnResult):
    """What a misestimated min-sep costs, mechanism by mechanism."""

    TABLES: ClassVar[str] = "fedray.studies.stress.page:stress_tables"
    SUBJECT: ClassVar[str] = "fedray.studies.stress.page:stress_subject"
    FIGURES: ClassVar[str] = "fedray.studies.stress.page:stress_figures"
    PAGE: ClassVar[str] = "fedray.studies.stress.page:stress_page"

    subject: str
    """Trace, scenario or PUBLISHED; empty for given settings."""
    epsilon: float
    """Target E, under the estimate."""
    delta: float
    """delta of every epsilon."""
    estimates: NotInJson[tuple[MinSep, ...]]
    """Given estimates; rows of simulated runs also have candidates."""
    rows: tuple[StressRow, ...]
    """A row for each truth, mechanism and estimate. The rows of a what-if are those of a stress
    test of the changed scenario."""
    comparison: IfAny[Comparison] = None
    """Models trained at equal epsilon; absent without a training."""
    warnings: NotInJson[tuple[str, ...]] = ()
    """Damaged cache entries, which were computed again."""
    planned: NotInJson[tuple[MinSep, ...]] = ()
    """The estimate that a plan makes from the simulated runs, if it makes one."""
    scenario: NotInJson[Scenario | None] = None
    """The simulated scenario; None for another subject."""
    overrides: IfAny[tuple[str, ...]] = None
    """Keys of the scenario that the command set, "table.key=value"; absent without any."""
    loss: Objective = "rms"
    """Loss for which mechanisms are made, and of errors and costs: "rms" or "max"."""
    trace: NotInJson[Subject | None] = None
    """Subject of the trace; None for another subject."""
    shared_rows: NotInJson[tuple[StressRow, ...]] = ()
    """Rows of the estimates that are judged under all conditions; empty with one condition."""

    left_out: IfAny[Mapping[Annotated[str, "mechanism"], str]] = None
    """Reason for each mechanism whose noise devices cannot add, by its name; absent without any."""

    def __repr__(self) -> str:
        return f"<StressResult: {self.verdict}>"

    @property
    def setting(self) -> InJson[str]:
        """Size, rounds, timer and pace of the simulated scenario; empty for another subject."""
        if (own := self.scenario) is None:
            return ""
        return f"{counted(own.population.devices, 'device')}, {setting_of([own])}"

    def to_arrow(self) -> pa.Table:
        """The rows, with a column per key."""
        return pa.Table.from_pylist(json_of(self.rows))

    @cached_property
    def conditions(self) -> InJson[list[Condition]]:
        """The simulated runs of the scenario as it is, then of each what-if; empty for other
        subjects."""
        names = dict.fromkeys(row.what_if for row in self.rows if row.seed is not None)
        return [self._condition(each) for each in names]

    def _condition(self, what_if: str | None) -> Condition:
        rows = tuple(row for row in self.rows if row.what_if == what_if)
        keys = [*(self.overrides or ()), *filter(None, [what_if])]
        of, own = Subject(self.subject, condition_of(keys)), self.scenario
        if own is not None:
            base, own = own, own if what_if is None else own.with_overrides(what_if)
            named = condition_in_words(keys, own, base)
            of = replace(scenario_subject(own), condition=named, setting=setting_of([own]))
        of = replace(of, runs=_runs(rows), loss=LOSS_NAMES[self.loss])
        judged = self.epsilon, self.estimates, self.planned
        return Condition(of, what_if, rows, *judged, scenario=own)

    @cached_property
    def robust(self) -> IfAny[Condition]:
        """All runs of all conditions together; absent with one condition."""
        if len(self.conditions) < 2:
            return None
        shared = self.shared_rows
        of = replace(
            shared_subject(each.of for each in self.conditions),
            population=self.population,
            condition=f"robust over all {len(self.conditions)} conditions",
            setting=self._shared_setting,
            runs=_runs([row for each in self.conditions for row in each.rows]),
        )
        parts = tuple(
            replace(each, rows=tuple(row for row in shared if row.what_if == each.what_if))
            for each in self.conditions
        )
        judged = self.epsilon, self.estimates, self.planned
        return Condition(of, None, shared, *judged, parts=parts)

    @property
    def _shared_setting(self) -> str:
        """Settings that all conditions have."""
        known = [each.scenario for each in self.conditions if each.scenario is not None]
        return setting_of(known) if known else ""

    @property
    def population(self) -> str:
        """Population of all conditions: with its size, unless what-ifs change it."""
        found = {each.of.population for each in self.conditions}
        return found.pop() if len(found) == 1 else self.subject

    @property
    def verdict(self) -> InJson[str]:
        """The answer in sentences: of the scenario itself, then over all conditions; with a
        training, and what it showed."""
        found, said = unjudged((*self.rows, *self.shared_rows)), ""
        if found and any(row.epsilon is not None for row in self.rows):
            said = f"Not judged: {'; '.join(f'{name} ({why})' for name, why in found.items())}. "
        if self.left_out:
            names = ", ".join(self.left_out)
            said += f"Left out, because devices cannot add the noise: {names}. "
        if not self.conditions:
            said += worst_case(self.rows, self.epsilon)
        elif self.robust is None:
            said += self.conditions[0].answer
        else:
            parts = {each.of.condition: each.answer for each in (self.conditions[0], self.robust)}
            said += " ".join(f"{name[0].upper()}{name[1:]}: {each}" for name, each in parts.items())
        return said if self.comparison is None else f"{said} {self._of_trained(self.comparison)}"

    @property
    def doubts(self) -> tuple[str, ...]:
        """Reasons to doubt the verdict, in sentences: those of a training, and runs that are too
        few for the share that may exceed the target."""
        found = () if self.comparison is None else self.comparison.warnings
        if (few := self._few_runs) is None:
            return found
        share, enough = f"{100 * MOST_EXCEEDING:g} %", runs_to_support(MOST_EXCEEDING)
        return (
            *found,
            f"{counted(few, 'run')} of a condition cannot show that at most {share} of the runs "
            f"exceed the target: if none does, up to {chance_text(few)} may; give {enough} seeds.",
        )

    @property
    def _few_runs(self) -> int | None:
        """Number of runs of a condition, if it is too small for MOST_EXCEEDING, and no rule gives
        all runs the same min-sep; else None."""
        counts = [len(each.runs) - each.starved for each in self.conditions if not each.binding]
        least = min(filter(None, counts), default=None)
        return least if least and least < runs_to_support(MOST_EXCEEDING) else None

    def _of_trained(self, comparison: Comparison) -> str:
        """Returns what a training showed: which kinds and estimates differ from the best in
        accuracy, how many seeds would tell the nearest, and what the best has."""
        best, metric = comparison.ranked[0], comparison.metric
        if comparison.none_is_best or comparison.ended:
            return comparison.answer
        scale, unit = shown_unit(metric)
        others = [each for each in comparison.groups if each is not best]
        said: dict[bool, dict[str, list[float]]] = {}
        for each in others:
            name = "no noise" if each.noise_multiplier is None else design_of(each.label)[0]
            found = scale * comparison.deciding(each).mean
            said.setdefault(comparison.may_be_chance(each), {}).setdefault(name, []).append(found)
        parts = []
        for is_open, kinds in sorted(said.items()):
            named = [f"{name} ({_span_of(kinds[name])})" for name in kinds]
            verb = "cannot be told from" if is_open else "differs from"
            parts.append(f"{verb} {', '.join(named)}")
        seeds = max(len(each.runs) for each in comparison.groups)
        enough = comparison.seeds_that_tell
        few = ""
        if True in said and enough is not None:
            few = f" {seeds} seeds are too few; {enough} would do for the two best (estimate)."
        unit = f", differences in {unit}" if unit else ""
        return (
            f"Trained, {_named(best.label)} has {comparison.mean_text(best)} at "
            f"{comparison.privacy or 'its epsilon'} and {' and '.join(parts)}{unit}.{few}"
            f" Evaluated on {comparison.sample}."
        )


def _span_of(values: Sequence[float]) -> str:
    """Returns differences with their signs, the least and the largest of several."""
    if not all(map(math.isfinite, values)):
        return "diverged"
    return span(values, lambda each: f"{each:+.1f}" if round(each, 1) else "0.0")


def _named(label: str) -> str:
    """Returns the label of a trained mechanism in words."""
    kind, estimate, k = design_of(label)
    return f"{kind} for {estimate} (k {k})" if k else kind


def _runs(rows: Sequence[StressRow]) -> str:
    """Returns the number of runs of rows, and their seeds."""
    seeds = sorted({row.seed for row in rows if row.seed is not None})
    runs = counted(len({(row.seed, row.what_if) for row in rows}), "run")
    named = f"seeds {seeds[0]} to {seeds[-1]}" if seeds[1:] else f"seed {seeds[0]}"
    return f"{runs} ({named})"
