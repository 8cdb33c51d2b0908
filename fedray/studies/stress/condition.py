"""One condition of a stress test: its simulated runs, the estimate to design for, and the answer in
sentences. All conditions together are one too."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from fedray.audit.rules import rules_of
from fedray.base.document import Document, InJson, NotInJson
from fedray.base.rounding import counted, down, given, in_words, significant, up
from fedray.mechanisms.participation import MinSep, most_of_device
from fedray.report.subject import Subject
from fedray.scenario import Scenario
from fedray.studies.stress.judged import StressRow
from fedray.studies.stress.outcome import (
    ERRORS,
    Outcome,
    beyond,
    case_of,
    estimate_of,
    grouped,
    known,
    limits,
    outcomes_of,
    risk,
    share,
    span,
    true_limits,
)

_SHORT = "This rests on"
MOST_ESTIMATES = 5
"""Estimates that a sentence names one by one."""
LEAST_DIFFERENCE = 0.0005
"""Least relative difference of two errors that orders them: smaller ones are within rounding."""
ALONE = "No device took part twice, which is no evidence for a longer run."


@dataclass(frozen=True)
class Condition(Document):
    """Every mechanism made for every estimate, over the simulated runs of one condition, or of all
    conditions together."""

    of: Subject
    """Population, condition and number of runs."""
    what_if: str | None
    """Key of the scenario that the condition changes, with its value; None for the scenario itself
    and for all conditions together."""
    rows: NotInJson[tuple[StressRow, ...]]
    """Rows of its runs."""
    epsilon: NotInJson[float]
    """Target E, under the estimate."""
    estimates: NotInJson[tuple[MinSep, ...]]
    """Given estimates; rows also have candidates."""
    planned: NotInJson[tuple[MinSep, ...]] = ()
    """The estimate that a plan makes, if it makes one."""
    scenario: NotInJson[Scenario | None] = None
    """Scenario of its runs; None for all conditions together, or if it is unknown."""
    parts: NotInJson[tuple["Condition", ...]] = ()
    """The conditions, if this is all of them together; empty for one."""

    @cached_property
    def outcomes(self) -> InJson[list[Outcome]]:
        """Every mechanism made for every estimate, without mechanisms that cannot run in all of the
        runs."""
        return outcomes_of(self.rows, self.epsilon)

    @cached_property
    def recommended(self) -> InJson[list[Outcome]]:
        """The estimate to design for, of each mechanism: of those with which at most 5 % of the
        runs of each condition exceed the target, the one of least `mean_excess`; if all are
        riskier, the one with which the fewest runs do; of equal ones the smallest. Observed runs
        support no min-sep above all that occurred, and do not show that no device of another run
        takes part more often: k is the most that may happen at that min-sep. Enforced ones support
        the least b and the largest k of a run."""

        def cost(outcome: Outcome) -> tuple[float, float, int]:
            # Equal excesses may differ by rounding.
            excess = round(outcome.mean_excess or 0.0, 9)
            return self.risk(outcome), excess, outcome.estimated_min_sep

        true = [row for row in self.rows if row.min_sep is not None]
        enforced = [row for row in true if row.is_enforced]
        least = min(known(enforced, "min_sep"), default=math.inf)
        # Runs of which one enforces nothing support no k.
        counts = known(enforced, "max_participations") if enforced == true else ()
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

    def outcomes_in(self, outcome: Outcome) -> "list[tuple[Condition, Outcome]]":
        """Returns the outcome of the same mechanism and estimate in each condition whose runs
        commit their rounds; in one condition, the outcome itself."""
        if not self.parts:
            return [(self, outcome)]
        return [
            (part, each)
            for part in self.parts
            for each in part.outcomes
            if (each.mechanism, estimate_of(each)) == (outcome.mechanism, estimate_of(outcome))
        ]

    def worst(self, outcome: Outcome) -> "tuple[Condition, Outcome]":
        """Returns the condition in which a mechanism made for an estimate spends most, and its
        outcome there. Runs of several conditions have no common median."""
        return max(self.outcomes_in(outcome), key=lambda pair: pair[1].epsilons[1])

    def risk(self, outcome: Outcome) -> float:
        """Returns the largest share of runs of a condition beyond the target, 0 if so few are
        acceptable."""
        return max(risk(each) for _, each in self.outcomes_in(outcome))

    @property
    def starved(self) -> InJson[int]:
        """Number of runs that starved, which do not count."""
        return sum(row.max_participations is None for row in self.runs)

    @property
    def runs(self) -> list[StressRow]:
        """A row of each run."""
        return list({(row.seed, row.what_if): row for row in self.rows}.values())

    @property
    def best(self) -> Outcome | None:
        """The recommended mechanism and estimate of least risk and error; None without any."""
        return min(self.recommended, key=lambda e: (self.risk(e), e.error), default=None)

    def is_given(self, outcome: Outcome | StressRow) -> bool:
        """Whether the estimate of an outcome was given, and is not only a candidate."""
        given_ones = {(each.min_sep, each.max_participations) for each in self.estimates}
        return (outcome.estimated_min_sep, outcome.estimated_participations) in given_ones

    @property
    def answer(self) -> InJson[str]:
        """The answer in sentences: the given estimates that keep the target, the one to design for,
        the truth of the runs, and what it rests on."""
        if self.starved == len(self.runs):
            return f"No run commits its rounds: {self.rows[0].note}."
        if (best := self.best) is None:
            return worst_case(self.rows, self.epsilon)
        design = f"Design for {self._design(best)} with {best.mechanism}: {self._figure(best)}."
        # Conditions have no common error at the noise that each needs.
        order = "" if self.parts else order_of_kinds(self.order_by_estimate, self.epsilon)
        said = design, self._of_given(), self._cost(best), order, *self._truths()
        return " ".join(filter(None, (*said, self._rests_on(best), self.binding)))

    @property
    def others(self) -> list[tuple[Outcome, float]]:
        """The recommended outcomes of the other mechanisms, of those with as little risk as the
        best, each with its error over that of the best, minus 1; the least error first."""
        if (best := self.best) is None:
            return []
        safe = [each for each in self.recommended if self.risk(each) <= self.risk(best)]
        found = [(each, each.error / best.error - 1.0) for each in safe if each is not best]
        return sorted(found, key=lambda pair: pair[1])

    @property
    def order_by_estimate(self) -> dict[str, dict[str, float]]:
        """Error of each mechanism at the noise for the target, median over the runs, by the
        estimates that are given or recommended, in order; upper bounds are left out."""
        best = {estimate_of(each) for each in self.recommended}
        shown = [e for e in self.outcomes if self.is_given(e) or estimate_of(e) in best]
        exact = sorted((each for each in shown if each.is_exact), key=estimate_of)
        return {
            f"{own[0].estimated_min_sep:,}": {each.mechanism: each.needed_error for each in own}
            for own in grouped(exact, estimate_of)
        }

    def _figure(self, best: Outcome) -> str:
        """Returns the error of the best mechanism, and how much larger those of the others are;
        how many runs exceed the target, if those are many: it is less noise that they have."""
        target = given(self.epsilon)
        if self.risk(best) > 0:
            part, worst = max(self.outcomes_in(best), key=lambda pair: pair[1].epsilons[2])
            most = f"{'' if worst.is_exact else 'at most '}{up(worst.epsilons[2])}"
            where = f" {part.of.named}" if self.parts else ""
            over = f"exceeds epsilon {target} in {beyond(best)} runs"
            return f"{over} (95 % quantile {most}{where})"
        said = f"{self.error_name} {significant(best.error)} at epsilon {target}"
        others = [f"{each.mechanism} {share(more)}" for each, more in self.others]
        others += [
            f"{each.mechanism} exceeds epsilon {target} in {beyond(each)} runs"
            for each in self.recommended
            if self.risk(each) > 0
        ]
        return f"{said}; {', '.join(others)}" if others else said

    @property
    def error_name(self) -> str:
        """Name of the errors: "RMS error" or "max error"."""
        return ERRORS[self.rows[0].loss]

    def _of_given(self) -> str:
        """Returns the given estimates that keep the target, whatever the mechanism; if none does,
        the noise that the nearest needs."""
        groups = grouped(filter(self.is_given, self.outcomes), estimate_of)
        kept = [own for own in groups if not any(map(self.risk, own))]
        target = given(self.epsilon)
        if not groups:
            return ""
        if kept:
            broken = [self._design(own[0]) for own in groups if own not in kept]
            but = f", not with {' or '.join(broken)}" if broken else ""
            is_sure = not any(each.exceeding for own in kept for each in own)
            runs = "all runs" if is_sure else "at least 95 % of the runs"
            names = " and ".join(self._design(own[0]) for own in kept)
            return f"Epsilon {target} holds in {runs} with {names}{but}."
        nearest = min(groups, key=lambda own: max(map(self._most_noise, own)))
        short = [each for each in nearest if self.risk(each)]
        bound = "" if all(each.is_exact for each in short) else "at most "
        factors = span(list(map(self._most_noise, short)), lambda each: up(each, 2))
        well = "".join(f"; {each.mechanism} keeps it" for each in nearest if not self.risk(each))
        every = " with every mechanism" if well else ""
        found = (part for each in short for part, own in self.outcomes_in(each) if risk(own))
        failing = " and ".join(dict.fromkeys(part.of.named for part in found))
        inside = f" {failing}" if self.parts else ""
        return (
            f"No given estimate keeps epsilon {target}{every}"
            f"{' in every condition' if self.parts else ''}: the nearest, "
            f"{self._design(nearest[0])}, needs {bound}{factors} times the noise{inside} "
            f"(95 % quantile{well})."
        )

    def _most_noise(self, outcome: Outcome) -> float:
        """Returns the largest noise factor of a condition that all but 5 % of its runs need."""
        return max(each.noise_factors[2] for _, each in self.outcomes_in(outcome))

    def _design(self, outcome: Outcome) -> str:
        n, b, k = estimate_of(outcome)
        by_plan = ", the estimate of `fedray plan`" if MinSep(n, b, k) in self.planned else ""
        above = f", more than the {n:,} rounds" if b > n else ""
        return f"{limits(b, k)}{by_plan}{above}"

    def _cost(self, outcome: Outcome) -> str:
        """Returns the extra error of the design and the runs beyond the target, in a sentence;
        empty if those are many."""
        if self.risk(outcome) > 0:
            return ""
        said = f"With that design {beyond(outcome)} runs exceed epsilon {given(self.epsilon)}"
        more = share(outcome.mean_excess).removeprefix("+")
        if more == "0.0 %":
            return f"{said}."
        return (
            f"{said}, and its error exceeds that of the best of the kind for each run by {more} "
            "(extra error at its z, mean over the runs)."
        )

    def _truths(self) -> list[str]:
        """Returns what rules enforce in the runs, and what was observed in those without."""
        runs, said = self.runs, []
        groups = grouped((row for row in runs if row.min_sep), lambda row: row.is_enforced)
        for own in groups:
            true = true_limits(own)
            count = f"in {len(own)} of {counted(len(runs), 'run')}"
            if own[0].is_enforced:
                observed = span(known(own, "observed_min_sep"), "{:,}".format)
                rules = f"Rules enforce {true} at the times of their rounds {count}"
                said.append(f"{rules}; observed was {observed}.")
            elif max(known(own, "max_participations")) == 1:
                said.append(f"{ALONE.rstrip('.')} {count}.")
            else:
                without = " without such rules" if len(groups) > 1 else ""
                said.append(f"It was {true} {count}{without}.")
        return said

    def _rests_on(self, best: Outcome) -> str:
        """Returns why the design is more optimistic than (n, b) permits: the runs are shorter than
        the timer, or have fewer participations than their rounds have room for; empty if it is
        not, or a cap ensures k."""
        n, b, k = estimate_of(best)
        if self.parts:
            return self._short_parts(best)
        if self.scenario is None or self.scenario.participation.max_participations is not None:
            return ""
        hours = [24.0 * days for days in known(self.runs, "days")]
        timer, name = self._timer
        if hours and max(hours) < timer:
            length = span(hours, lambda each: down(each, 0 if each >= 10 else 1))
            return (
                f"{_SHORT} {n:,} rounds in {length} h, less than the {name} of {timer:g} h: "
                "devices come back in a run that takes longer, so set its pace "
                "(rounds.min_minutes_between)."
            )
        if k < (room := most_of_device(n, b)):
            return (
                f"That k is {k} and not {room}, for which {n:,} rounds have room, rests on the "
                f"times of the simulated rounds; participation.max_participations={k} secures it."
            )
        return ""

    def _short_parts(self, best: Outcome) -> str:
        """Returns the conditions whose runs are shorter than the timer, as `_rests_on` does."""
        said: dict[str, list[str]] = {}
        for part in self.parts:
            sentence = part._rests_on(best)
            if sentence.startswith(_SHORT):
                said.setdefault(sentence, []).append(part.of.condition)
        return " ".join(
            f"{', '.join(names)[0].upper()}{', '.join(names)[1:]}: {sentence}"
            for sentence, names in said.items()
        )

    @property
    def binding(self) -> str:
        """Returns which rule sets the min-sep of all runs, if they have the same; empty if they
        differ, or no single rule sets it."""
        min_seps = {(row.min_sep, row.is_enforced) for row in self.runs if row.min_sep}
        if self.scenario is None or len(min_seps) != 1:
            return ""
        ((b, is_enforced),) = min_seps
        rules = rules_of(self.scenario.participation)
        for rule in rules:
            if is_enforced and not rule.unkept and rule.separation == b:
                return f"Min-sep is {rule.name}; the population does not matter here."
        pace, (timer, name) = self.scenario.rounds.min_minutes_between, self._timer
        # No more rounds start in that time, so with that many each starts at the pace. Rounding
        # keeps float noise out.
        if is_enforced and pace and timer and b == math.ceil(round(60.0 * timer / pace, 9)):
            quotient = f"{timer:g} h / {pace:g} minutes = {b:,}"
            over = f"Min-sep is the {name} over the pace ({quotient})"
            return f"{over}: rounds start at that pace, and the population does not matter here."
        return ""

    @property
    def _timer(self) -> tuple[float, str]:
        """The longest wait of a rule that all devices keep, in hours, and the rule's name; 0
        without any."""
        assert self.scenario is not None
        rules = rules_of(self.scenario.participation)
        waits = [(each.seconds / 3600.0, each.name) for each in rules if not each.unkept]
        hours, name = max(waits, default=(0.0, ""))
        return hours, "timer" if "timer" in name else "period"


def order_of_kinds(errors: Mapping[str, Mapping[str, float]], target: float) -> str:
    """Returns which of two mechanisms has the smaller error, if that changes with the estimate, in
    a sentence; empty if no order changes.

    Args:
        errors: error at the noise for the target of each mechanism, by the estimated b as text.
        target: epsilon of the noise.
    """
    names = list(dict.fromkeys(name for own in errors.values() for name in own))
    said = []
    for first, second in combinations(names, 2):
        better: dict[str, list[str]] = {}
        for estimate, own in errors.items():
            if first not in own or second not in own:
                continue
            low, high = sorted((first, second), key=own.__getitem__)
            if own[high] > (1 + LEAST_DIFFERENCE) * own[low]:
                better.setdefault(low, []).append(estimate)
        if len(better) > 1:
            parts = []
            for low, estimates in better.items():
                (high,) = {first, second} - {low}
                own = errors[estimates[0]]
                at = f" at {estimates[0]}" if estimates[1:] else ""
                figures = f"{significant(own[low])} < {significant(own[high])}{at}"
                made_for = in_words(estimates, MOST_ESTIMATES)
                parts.append(f"{low} beats {high} if made for {made_for} ({figures})")
            said.append(", ".join(parts))
    lead = f"The order of kinds at epsilon {given(target)} changes with the estimate"
    return f"{lead}: {'; '.join(said)}." if said else ""


def worst_case(rows: Sequence[StressRow], target: float) -> str:
    """Returns what to do if mechanisms made for one estimate meet one truth, and their cost, in a
    sentence on the case of the largest epsilon.

    Args:
        rows: rows of any estimates and truths.
        target: epsilon of the noise.
    """
    cases = grouped(rows, case_of)
    worst = max(cases, key=lambda case: max(known(case, "epsilon"), default=0.0))
    first = worst[0]
    rounds, *estimate = estimate_of(first)
    which = f" (the worst of {len(cases)} cases)" if len(cases) > 1 else ""
    most = first.max_participations
    planned, true = limits(*estimate), limits(None if most == 1 else first.min_sep, most)
    # Simulated runs may have one truth with several seeds.
    judged = list({row.mechanism: row for row in worst if row.epsilon is not None}.values())
    if not judged:
        return f"It was {true} instead of {planned}: no mechanism can run ({first.note})."
    factors = known(judged, "noise_factor")
    needed = f"{span(factors, lambda each: up(each, 3))} times the noise"
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
    costly = max(judged, key=lambda row: row.regret or 0.0)
    if costly.regret is not None and costly.regret > 0:
        cost = f"{share(costly.regret)} of error ({costly.mechanism})"
        text += f"; at equal epsilon the wrong design costs up to {cost}"
    return f"{text}."


def _spent(rows: Sequence[StressRow]) -> str:
    return ", ".join(
        f"{'at most ' if row.is_exact is False else ''}{up(row.epsilon)} ({row.mechanism})"
        for row in rows
        if row.epsilon is not None
    )


def unjudged(rows: Sequence[StressRow]) -> dict[str, str]:
    """Returns the reason for each mechanism that has no epsilon under a truth or, in simulated
    runs, no excess; with the estimate if others of the mechanism have.

    Args:
        rows: rows of any estimates and truths.
    """

    def lacks(row: StressRow) -> bool:
        return row.epsilon is None or (row.seed is not None and row.excess is None)

    with_truth = [row for row in rows if row.max_participations is not None]
    some = {row.mechanism for row in with_truth if not lacks(row)}
    found: dict[str, str] = {}
    for row in filter(lacks, with_truth):
        made = f" for {limits(*estimate_of(row)[1:])}" if row.mechanism in some else ""
        reason = row.note or "no exact loss is known of one made for the truth"
        found.setdefault(f"{row.mechanism}{made}", reason)
    return found
