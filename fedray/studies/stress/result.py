"""The result of a stress test: its rows, their distribution over simulated truths, the recommended
estimate, and the verdict in a sentence."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median
from typing import ClassVar, TypeVar

import numpy as np
import pyarrow as pa

from fedray.base.document import Document, IfAny, InJson, NotInJson, json_of
from fedray.base.result import DrawnResult
from fedray.base.rounding import counted, given, up
from fedray.mechanisms.loss import Objective
from fedray.mechanisms.participation import MinSep, most_of_device
from fedray.scenario import Scenario
from fedray.studies.compare import Comparison
from fedray.studies.stress.judged import StressRow

MOST_EXCEEDING = 0.05
"""Largest share of runs beyond the target with which an estimate is recommended."""
QUANTILES = (0.05, 0.5, 0.95)
PUBLISHED = "Table 4 of McMahan, Xu and Zhang (2024)"
"""Source of the settings that are judged without arguments."""
ALONE = "No device took part twice, which is no evidence for a longer run."
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Outcome(Document):
    """A mechanism made for one estimate, over simulated truths."""

    mechanism: str
    """Kind or file, as it was named."""
    rounds: int
    """n of the estimate."""
    estimated_min_sep: int
    """b of the estimate."""
    estimated_participations: int
    """k of the estimate."""
    what_if: str | None
    """Key of the scenario that the truths change; None for all runs."""
    runs: int
    """Number of truths; runs that starved are left out."""
    noise_multiplier: float
    """z, the least for the target under the estimate."""
    quantile: float
    """Share of runs whose min-sep is below the estimate."""
    exceeding: float
    """Share of runs that spend more than the target."""
    is_exact: bool
    """Whether the sensitivity is exact in every run; else epsilons, factors, `exceeding` and costs
    are upper bounds."""
    epsilons: tuple[float, float, float]
    """Quantiles 0.05, 0.5 and 0.95 of epsilon."""
    observed_epsilon: float | None
    """Median of the observed epsilon; None if it is unknown."""
    noise_factors: tuple[float, float, float]
    """The same quantiles of the factor on the noise that keeps the target."""
    regrets: tuple[float, float, float] | None
    """The same quantiles of `regret`, at equal epsilon; None if it is unknown in a truth."""
    mean_regret: float | None
    """Mean of `regret`."""
    mean_excess: float | None
    """Mean of `excess`, at the noise that was chosen."""
    error: float
    """Mean over the runs of the noise of the prefix sums at that noise: root mean square over the
    rounds or, with the loss "max", of the worst round."""


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
    """Given estimates; rows of simulated truths also have candidates."""
    rows: tuple[StressRow, ...]
    """A row for each truth, mechanism and estimate."""
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
    """Loss for which mechanisms are made, and of errors and regrets: "rms" or "max"."""

    def __repr__(self) -> str:
        return f"<StressResult: {self.verdict}>"

    @property
    def setting(self) -> InJson[str]:
        """Size and timer of the simulated scenario; empty for another subject."""
        if (own := self.scenario) is None:
            return ""
        goal, timer = own.rounds.report_goal, own.participation.timer_hours
        size = f"{own.population.devices:,} devices, {counted(own.rounds.count, 'round')}"
        return f"{size} of {goal:,} reports, timer {timer:g} h"

    def to_arrow(self) -> pa.Table:
        """The rows, with a column per key."""
        return pa.Table.from_pylist(json_of(self.rows))

    @cached_property
    def outcomes(self) -> InJson[list[Outcome]]:
        """Every mechanism made for every estimate, over all simulated runs; empty for other truths,
        and without mechanisms that cannot run in all of them."""
        return _outcomes((row for row in self.rows if row.seed is not None), self.epsilon)

    @property
    def outcomes_by_what_if(self) -> InJson[list[Outcome]]:
        """The same for the given estimates, over the runs of each what-if."""
        names = dict.fromkeys(row.what_if for row in self.rows if row.seed is not None)
        return [
            each
            for name in filter(None, names)
            for each in _outcomes((row for row in self.rows if row.what_if == name), self.epsilon)
            if self.is_given(each)
        ]

    @cached_property
    def recommended(self) -> InJson[list[Outcome]]:
        """The estimate to design for, of each mechanism: of those with which at most 5 % of the
        runs exceed the target, the one of least `mean_excess`; if all are riskier, the one with
        which the fewest runs do; of equal ones the smallest. Observed runs support no min-sep above
        all that occurred, and do not show that no device of another run takes part more often: k is
        the most that may happen at that min-sep. Enforced ones support the least b and the largest
        k of a run."""

        def cost(outcome: Outcome) -> tuple[float, float, int]:
            # Equal excesses may differ by rounding.
            excess = round(outcome.mean_excess or 0.0, 9)
            return risk(outcome), excess, outcome.estimated_min_sep

        known = [row for row in self.rows if row.min_sep is not None]
        enforced = [row for row in known if row.is_enforced]
        least = min(_known(enforced, "min_sep"), default=math.inf)
        # Runs of which one enforces nothing support no k.
        counts = _known(enforced, "max_participations") if enforced == known else ()
        most = max(counts, default=math.inf)
        comparable = [
            each
            for each in self.outcomes
            if each.mean_excess is not None
            and each.quantile < 1
            and each.estimated_min_sep <= least
            and each.estimated_participations
            >= min(most_of_device(each.rounds, each.estimated_min_sep), most)
        ]
        return [min(each, key=cost) for each in grouped(comparable, lambda each: each.mechanism)]

    def is_given(self, outcome: Outcome) -> bool:
        """Whether the estimate of an outcome was given, and is not only a candidate."""
        given_ones = {(each.min_sep, each.max_participations) for each in self.estimates}
        return (outcome.estimated_min_sep, outcome.estimated_participations) in given_ones

    @cached_property
    def unjudged(self) -> dict[str, str]:
        """The reason for each mechanism that has no epsilon under a truth or, in simulated runs, no
        excess; with the estimate if others of the mechanism have."""
        known = [row for row in self.rows if row.max_participations is not None]

        def lacks(row: StressRow) -> bool:
            return row.epsilon is None or (row.seed is not None and row.excess is None)

        some = {row.mechanism for row in known if not lacks(row)}
        found: dict[str, str] = {}
        for row in filter(lacks, known):
            made = f" for {_limits(*estimate_of(row)[1:])}" if row.mechanism in some else ""
            reason = row.note or "no exact loss is known of one made for the truth"
            found.setdefault(f"{row.mechanism}{made}", reason)
        return found

    @property
    def verdict(self) -> InJson[str]:
        """The answer in a sentence; with a training, and what it showed."""
        said = self._said()
        if self.unjudged and any(row.epsilon is not None for row in self.rows):
            reasons = "; ".join(f"{name} ({why})" for name, why in self.unjudged.items())
            said = f"Not judged: {reasons}. {said}"
        return said if self.comparison is None else f"{said} {self.comparison.answer}"

    def _said(self) -> str:
        best = min(self.recommended, key=lambda each: (risk(each), each.error), default=None)
        if best is None:
            return _sentence(_worst(self.rows), self.epsilon, len(grouped(self.rows, case_of)))
        which = f", best as {best.mechanism}" if len(self.recommended) > 1 else ""
        design = f"Design for {self._made_for(best)}{which}: {self._cost(best)}."
        return f"{self._of_given()}{design}{_truths(self.rows)}"

    def _of_given(self) -> str:
        """Returns the given estimates that keep the target, whatever the mechanism; if none does,
        the noise that the nearest needs."""
        groups = grouped(filter(self.is_given, self.outcomes), estimate_of)
        kept = [own for own in groups if not any(map(risk, own))]
        target = given(self.epsilon)
        if not groups:
            return ""
        if kept:
            broken = [self._made_for(own[0]) for own in groups if own not in kept]
            but = f", not with {' or '.join(broken)}" if broken else ""
            is_sure = not any(each.exceeding for own in kept for each in own)
            runs = "all runs" if is_sure else "at least 95 % of the runs"
            names = " and ".join(self._made_for(own[0]) for own in kept)
            return f"Epsilon {target} holds in {runs} with {names}{but}. "
        nearest = min(groups, key=lambda own: max(each.noise_factors[2] for each in own))
        short = [each for each in nearest if risk(each)]
        bound = "" if all(each.is_exact for each in short) else "at most "
        factors = _span([each.noise_factors[2] for each in short], lambda each: up(each, 2))
        well = "".join(f"; {each.mechanism} keeps it" for each in nearest if not risk(each))
        every = " with every mechanism" if well else ""
        return (
            f"No given estimate keeps epsilon {target}{every}: the "
            f"nearest, {self._made_for(nearest[0])}, needs {bound}{factors} times the noise "
            f"(95 % quantile{well}). "
        )

    def _made_for(self, outcome: Outcome) -> str:
        n, b, k = estimate_of(outcome)
        planner = "the planner's " if MinSep(n, b, k) in self.planned else ""
        beyond = f", more than the {n:,} rounds" if b > n else ""
        return f"{planner}{_limits(b, k)}{beyond}"

    def _cost(self, outcome: Outcome) -> str:
        """Returns the excess and the runs beyond the target; without an excess if those are many,
        because it is less noise that they have."""
        target, count = given(self.epsilon), beyond(outcome)
        if risk(outcome) > 0:
            most = f"{'' if outcome.is_exact else 'at most '}{up(outcome.epsilons[2])}"
            return f"exceeds epsilon {target} in {count} runs (95 % quantile {most})"
        excess = share(outcome.mean_excess).removeprefix("+")
        said = f"its error exceeds that of the best of the kind for each truth by {excess}"
        return f"{said}, and {count} runs exceed epsilon {target}"


def _worst(rows: Sequence[StressRow]) -> list[StressRow]:
    cases = grouped(rows, case_of)
    return max(cases, key=lambda case: max(_known(case, "epsilon"), default=0.0))


def _spent(rows: Sequence[StressRow]) -> str:
    return ", ".join(
        f"{'at most ' if row.is_exact is False else ''}{up(row.epsilon)} ({row.mechanism})"
        for row in rows
        if row.epsilon is not None
    )


def _truths(rows: Sequence[StressRow]) -> str:
    """Returns what rules enforce in simulated runs, and what was observed in those without."""
    runs = {(row.seed, row.what_if): row for row in rows}.values()
    groups, said = grouped(filter(lambda row: row.min_sep, runs), lambda row: row.is_enforced), ""
    for own in groups:
        true = true_limits(own)
        count = f"in {len(own)} of {counted(len(runs), 'run')}"
        if own[0].is_enforced:
            observed = _span(_known(own, "observed_min_sep"), "{:,}".format)
            said += f" Rules enforce {true} at the times of their rounds {count}; "
            said += f"observed was {observed}."
        elif max(_known(own, "max_participations")) == 1:
            said += f" {ALONE.rstrip('.')} {count}."
        else:
            without = " without such rules" if len(groups) > 1 else ""
            said += f" It was {true} {count}{without}."
    return said


def true_limits(rows: Sequence[StressRow]) -> str:
    """Returns b and k of the truths that have a b."""
    min_seps, most = _known(rows, "min_sep"), _known(rows, "max_participations")
    return f"min-sep {_span(min_seps, '{:,}'.format)} (k {_span(most, str)})"


def risk(outcome: Outcome) -> float:
    """Returns the share of runs beyond the target, 0 if so few are acceptable."""
    return outcome.exceeding if outcome.exceeding > MOST_EXCEEDING else 0.0


def _outcomes(rows: Iterable[StressRow], target: float) -> list[Outcome]:
    # A run that starved has no truth, whatever the mechanism.
    known = [row for row in rows if row.max_participations is not None]
    groups = grouped(known, lambda row: (row.mechanism, estimate_of(row)))
    # A mechanism that cannot run in some truths has no distribution.
    whole = [each for each in groups if all(row.epsilon is not None for row in each)]
    return [_outcome(each, target) for each in whole]


def _outcome(rows: Sequence[StressRow], target: float) -> Outcome:
    first, (rounds, min_sep, most) = rows[0], estimate_of(rows[0])
    what_ifs = {row.what_if for row in rows}
    epsilons = _known(rows, "epsilon")
    observed = _known(rows, "observed_epsilon")
    regrets, excesses = _known(rows, "regret"), _known(rows, "excess")
    return Outcome(
        *(first.mechanism, rounds, min_sep, most),
        what_if=first.what_if if len(what_ifs) == 1 else None,
        runs=len(rows),
        noise_multiplier=_known(rows, "noise_multiplier")[0],
        quantile=sum(each < min_sep for each in _known(rows, "min_sep")) / len(rows),
        exceeding=sum(each > target for each in epsilons) / len(rows),
        is_exact=all(row.is_exact for row in rows),
        epsilons=_quantiles(epsilons),
        observed_epsilon=median(observed) if observed else None,
        noise_factors=_quantiles(_known(rows, "noise_factor")),
        regrets=_quantiles(regrets) if len(regrets) == len(rows) else None,
        mean_regret=fmean(regrets) if len(regrets) == len(rows) else None,
        mean_excess=fmean(excesses) if len(excesses) == len(rows) else None,
        error=fmean(_known(rows, "error")),
    )


def _known(rows: Iterable[StressRow], name: str) -> list[float]:
    return [value for row in rows if (value := getattr(row, name)) is not None]


def _quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = np.quantile(values, QUANTILES).tolist()
    return low, middle, high


def estimate_of(row: StressRow | Outcome) -> tuple[int, int, int]:
    """Returns (n, b, k) of the estimate."""
    return row.rounds, row.estimated_min_sep, row.estimated_participations


def case_of(row: StressRow) -> tuple[object, ...]:
    """Returns the estimate and the truth of a row."""
    return (*estimate_of(row), row.min_sep, row.max_participations)


def _sentence(rows: Sequence[StressRow], target: float, cases: int) -> str:
    """Returns what to do if mechanisms made for one estimate meet one truth, and their cost."""
    first = rows[0]
    rounds, *estimate = estimate_of(first)
    which = f" (the worst of {cases} cases)" if cases > 1 else ""
    most = first.max_participations
    planned, true = _limits(*estimate), _limits(None if most == 1 else first.min_sep, most)
    # Simulated runs may have one truth with several seeds.
    judged = list({row.mechanism: row for row in rows if row.epsilon is not None}.values())
    if not judged:
        return f"It was {true} instead of {planned}: no mechanism can run ({first.note})."
    factors = _known(judged, "noise_factor")
    needed = f"{_span(factors, lambda each: up(each, 3))} times the noise"
    lead, more = f"Keep the design for {planned}", f"; {needed} keeps {given(target)}"
    if most == 1 and first.is_enforced is False:
        lead, more = "Keep the noise", f"; {ALONE[0].lower()}{ALONE[1:-1]}"
    elif max(factors) > 1:
        lead, more = f"Design for {true}, or take {needed}", ""
    was = "the rules enforce" if first.is_enforced else "it was"
    text = (
        f"{lead}: in {rounds:,} rounds{which} {was} {true}, and what is made for {planned} spends "
        f"{_spent(judged)} instead of epsilon {given(target)}{more}"
    )
    worst = max(judged, key=lambda row: row.regret or 0.0)
    if worst.regret is not None and worst.regret > 0:
        cost = f"{share(worst.regret)} of error ({worst.mechanism})"
        text += f"; at equal epsilon the wrong design costs up to {cost}"
    return f"{text}."


def _limits(min_sep: int | None, most: int | None) -> str:
    return f"min-sep {'none' if min_sep is None else f'{min_sep:,}'} (k {most})"


def _span(values: Sequence[float], text: Callable[[float], str]) -> str:
    return " to ".join(dict.fromkeys((text(min(values)), text(max(values)))))


def share(value: float | None) -> str:
    """Returns a cost as a percentage with a sign, to the nearest with one decimal; "-" if
    unknown."""
    if value is None:
        return "-"
    rounded = round(100.0 * value, 1)
    return f"{rounded:+.1f} %" if rounded else "0.0 %"


def beyond(outcome: Outcome) -> str:
    """Returns how many of the runs exceed the target, such as "1 of 20"."""
    return f"{round(outcome.exceeding * outcome.runs):,} of {outcome.runs:,}"


def grouped(items: Iterable[_Item], key: Callable[[_Item], object]) -> list[list[_Item]]:
    """Returns items of equal keys together, in the order of their first ones."""
    groups: dict[object, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())
