"""The verdict on a trace: what an audit says in words.

The verdict is a tuple of remarks. A remark is made by a function of the audit, and `REMARKS` has
these functions in the order of the page. They read the figures of an `Audit`.
"""

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedray.audit.assumptions import CHOSEN_BY, UNSEEN, other_tasks
from fedray.audit.audit import Audit
from fedray.audit.basis import SECRET_DRAWS, weak_text
from fedray.audit.claimed import claimed_limits
from fedray.audit.distribution import frontier_of
from fedray.audit.evidence import breaches
from fedray.audit.findings import Verdict, standing, verdict_sentences
from fedray.audit.guarantees import Guarantee, Limits, observed, of_limits, shown_pairs, strongest
from fedray.audit.left_out import worst_case
from fedray.audit.noise import ServerNoise, released
from fedray.audit.participation import Patterns
from fedray.audit.persons import owner_text
from fedray.audit.questions import AnswerPrivacy, vocabulary_cost
from fedray.audit.rules import rules_of, strictest
from fedray.audit.sensitivity import trace_sensitivity
from fedray.audit.statements.frontier import tightened
from fedray.base.errors import shown
from fedray.base.rounding import counted, given, given_delta, up
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.participation import MinSep, most_of_device
from fedray.mechanisms.triangular import TriangularStrategy
from fedray.trace.imported import BY_RANK, ImportedTrace
from fedray.trace.reader import Trace

WORTH_A_CLAIM = 0.01
"""Relative gain in epsilon from which on a claim of the frontier is proposed."""
SPENT = 0.95
"""Share of a target from which on it counts as spent."""
MORE_DAYS = 1.05
"""Factor on the days of a run for those of one like it."""


@dataclass(frozen=True, slots=True)
class Remark:
    """A part of the verdict."""

    text: str
    """A sentence, or several."""
    is_about_epsilon: bool = False
    """Whether every text that states the epsilon has it too, such as a privacy statement."""
    is_doubt: bool = False
    """Whether it leaves a claim open that holds otherwise."""


@dataclass(frozen=True)
class AuditVerdict:
    """The words of an audit, computed when they are read."""

    audit: Audit
    """The audit, with the figures behind the words."""

    @cached_property
    def remarks(self) -> tuple[Remark, ...]:
        """Remarks in the order of the page."""
        made = (make(self.audit) for make in REMARKS)
        return tuple(each for each in made if each is not None)

    @property
    def text(self) -> str:
        """All remarks."""
        return " ".join(each.text for each in self.remarks)

    @property
    def text_about_epsilon(self) -> str:
        """Remarks that every text has which states the epsilon; may be empty."""
        return " ".join(each.text for each in self.remarks if each.is_about_epsilon)

    @property
    def line(self) -> str:
        """The trace, its size and the known epsilons of the first mechanism, on one line."""
        audit = self.audit
        seen = f"{audit.rounds:,} rounds, {audit.devices:,} devices"
        spent = [
            f"{each.name} {guarantee.name} epsilon {up(guarantee.epsilon)}"
            for each in audit.mechanisms[:1]
            for guarantee in each.guarantees
            if guarantee.epsilon is not None
        ]
        return f"<Audit of {shown(str(audit.path))}: {', '.join([seen, *spent])}>"

    @property
    def standing(self) -> str:
        """Whether the claim "holds", is "broken", or is in doubt ("open"), as a log without a claim
        is; for a run without one, whether its target is met, and empty without a target."""
        audit = self.audit
        if audit.findings:
            is_doubted = any(each.is_doubt for each in self.remarks)
            return "open" if is_doubted and audit.claim_holds else standing(audit.findings)
        if audit.scenario is None:
            return "open"
        return {None: "", True: "holds", False: "broken"}[audit.meets_target]

    @property
    def supported_by(self) -> str:
        """`Audit.supported_by`."""
        audit = self.audit
        if audit.corrected is None:
            return ""
        if noise := audit.other_noise:
            return noise[0].explanation.removeprefix("no guarantee: ")
        found, limits = audit.basis.guarantee, audit.basis.condition
        if found is None:
            return audit.corrected.reason
        if found.may_rest_on:
            return f"by the rules of the run: {limits}"
        noise = "only if the claimed noise was added and this was enforced"
        return f"{noise}{self.extent_of_limits}, which the trace cannot show: {limits}"

    @property
    def meets_target(self) -> bool | None:
        """`Audit.meets_target`."""
        audit, found = self.audit, self.audit.basis.guarantee
        own = None if audit.scenario is None else audit.scenario.privacy
        is_run = isinstance(audit.trace, Trace) and not audit.findings and audit.is_of_run
        if own is None or own.wanted_epsilon is None or not is_run:
            return None
        if found is None or found.epsilon is None:
            return False
        # Epsilon falls as delta rises, so one that misses at a larger delta misses at its own.
        is_met = found.epsilon <= own.wanted_epsilon
        is_sure = found.delta == own.delta or (found.delta > own.delta and not is_met)
        return is_met if is_sure else None

    @property
    def extent_of_limits(self) -> str:
        """Words after limits that must hold for rows of a log without a device too; empty for a
        complete log."""
        return ", for the rows left out too" if self.audit.incompleteness else ""

    @property
    def tighter_claim(self) -> str | None:
        """`Audit.would_do`."""
        audit = self.audit
        if audit.corrected is None or audit.scenario is not None:
            return None
        used, most = audit.mechanisms[0], audit.supported_epsilon
        pairs = frontier_of(audit.patterns)
        limits = f"frontier = {shown_pairs(pairs)}"
        if most is None:
            pairs = ((audit.patterns.min_sep, audit.max_participations),)
            limits = "min_sep = {} and max_participations = {}".format(*pairs[0])
        # Each pair of a matrix takes as long as the audit, and none covers a repeated round.
        elif isinstance(used.strategy, TriangularStrategy):
            return None
        claimed = 0 if audit.claim is None else audit.claim.rounds or 0
        n, delta = max(audit.rounds, claimed), used.observed.delta
        kept = Limits(MinSep(n, 1, n), "", pairs=tightened(pairs, MinSep(n, 1, n)))
        found = of_limits("claimed", kept, used.strategy, used.permitted, delta, False).epsilon
        most = math.inf if most is None else (1 - WORTH_A_CLAIM) * most
        if found is None or found > most or audit.patterns.min_sep == 0:
            return None
        extent = self.extent_of_limits
        return f"A claim of {limits}, if enforced{extent}, would give epsilon {up(found)}."

    @property
    def left_out_bound(self) -> str:
        """`Audit.left_out_bound`."""
        audit, trace = self.audit, self.audit.trace
        rows = sum(each.rows for each in audit.left_out if each.may_be_participation)
        if not rows:
            return ""
        is_once = isinstance(trace, ImportedTrace) and trace.repeats == "once"
        # A round that only these rows name has no number, and may lie between the others.
        is_whole = not isinstance(trace, ImportedTrace) or trace.run["numbering"] != BY_RANK
        most = audit.max_participations + rows
        if is_once and is_whole:
            most = min(most, audit.rounds)
        text = (
            f"If each of the {counted(rows, 'row')} were of the worst device, it would have at "
            f"most {counted(most, 'participation')}"
        )
        if not is_whole:
            return (
                f"{text}. The epsilon is unknown, because a round that no other row has is not "
                "numbered: import with a file of all rounds."
            )
        noise, devices = audit.noise, audit.device_privacy
        if noise is None or devices is None:
            return f"{text}."
        used, values = audit.mechanisms[0], devices.sensitivities
        # The trace's own value may be a certified one, below the bounds of its devices.
        known = replace(values, values=np.minimum(values.values, used.trace.value))
        of_all, of_one = (
            up(epsilon_of(released(noise, found.value, audit.rounds), used.observed.delta).epsilon)
            for count in (rows, 1)
            for found in (worst_case(used.strategy, audit.patterns, known, count, is_once),)
        )
        if rows == 1:
            return f"{text} and epsilon at most {of_all}."
        return (
            f"{text} and epsilon at most {of_all}. If no device had two of them, epsilon would be "
            f"at most {of_one}."
        )

    @property
    def without_breakers(self) -> Guarantee | None:
        """`Audit.without_breakers`."""
        audit, of_all = self.audit, self.audit.patterns
        kept = np.ones(audit.devices, np.bool_)
        for _, each in () if audit.scenario or audit.incompleteness else breaches(audit):
            if each.device_ids is not None:
                kept &= ~np.isin(of_all.device_ids, each.device_ids)
        if kept.all() or not kept.any():
            return None
        rounds, used = of_all.rounds[np.repeat(kept, of_all.counts)], audit.mechanisms[0]
        rest = Patterns(audit.rounds, of_all.device_ids[kept], of_all.counts[kept], rounds)
        worst = trace_sensitivity(used.strategy, rest)
        found = observed(worst, rest, used.strategy, used.noise, used.observed.delta)
        if found.epsilon is None:
            return None
        broken = counted(audit.devices - rest.device_ids.size, "breaking device")
        limits = found.limits if rest.min_sep else "repeated rounds"
        said = (
            f"Without {broken}: {limits}; the other devices spent epsilon {up(found.epsilon)}. "
            "That is no guarantee of this run, whose models have their updates."
        )
        return replace(found, name="without breakers", reason=said)

    @property
    def short_run_note(self) -> str:
        """`Audit.short_run_note`."""
        audit = self.audit
        enforced = audit.mechanisms[0].enforced.participation if audit.mechanisms else None
        if enforced is None or enforced.max_participations > 1 or audit.rounds == 1:
            return ""
        # A cap of one participation holds in longer runs too.
        if audit.scenario is not None and audit.scenario.participation.max_participations == 1:
            return ""
        rules = "the claimed timer" if audit.scenario is None else "the rules of participation"
        return (
            f"No device could take part twice, because the {audit.rounds:,} rounds were over "
            f"before {rules} let one come back; the observed min-sep and participations are no "
            "evidence for a longer run."
        )


def on_claim(audit: Audit) -> Remark | None:
    """Returns a remark on whether the claim holds, and which figures would hold."""
    if not audit.findings:
        return None
    return Remark(verdict_sentences(audit.findings, has_noise=not audit.other_noise))


def on_unchecked_claim(audit: Audit) -> Remark | None:
    """Returns a remark on the arguments for which a claim that the run had to ensure is left out;
    None without."""
    if not audit.given_instead:
        return None
    names = " and ".join(audit.given_instead)
    why = f"{names} {'was' if len(audit.given_instead) == 1 else 'were'} given"
    return Remark(f"The claim that the run had to ensure is not checked, because {why}.")


def on_guarantee(audit: Audit) -> Remark | None:
    """Returns a remark with the epsilon that may be published, or the reason why none may; None
    with a claim."""
    if audit.findings:
        return None
    found = audit.basis.guarantee
    if audit.no_guarantee and found is None:
        return Remark(f"No guarantee: {audit.no_guarantee.removeprefix('no guarantee: ')}.")
    if found is not None and found.epsilon is not None:
        return Remark(_published(audit, found))
    if audit.noise is None:
        return Remark("No epsilon: no mechanism and noise multiplier are known.")
    spent = audit.basis.by_name.get("observed")
    epsilon = None if spent is None else up(spent.epsilon or 0)
    so_much = "" if epsilon is None else f"; the devices of this trace spent epsilon {epsilon}"
    if audit.scenario is None:
        return Remark(f"No claim was given, and a log alone supports no guarantee{so_much}.")
    return Remark(f"No epsilon of this trace may be published{so_much}.")


def _beside(audit: Audit) -> str:
    """Returns the releases beside a model in words."""
    scenario = audit.scenario
    asks = scenario is not None and scenario.analytics is not None
    words = vocabulary_cost(scenario) is not None
    named = [
        *(["the answers to its question"] if asks else []),
        *(["its vocabulary"] if words else []),
    ]
    return " and ".join(named)


def _published(audit: Audit, found: Guarantee) -> str:
    may_be = "may be published"
    if not audit.is_of_run:
        may_be = "could be published if the run had had this mechanism and noise"
    task = ", for this task only" if other_tasks(audit.trace) else ""
    if audit.basis.answers:
        epsilons = answers_text(audit.basis.answers)
        of = f"the model with {_beside(audit)}" if audit.mechanisms else "answers"
        return f"Epsilon {epsilons} of {of} {may_be} (enforced{task})."
    secret = f", {SECRET_DRAWS}" if found.name == "sampled" else ""
    return (
        f"Epsilon {up(found.epsilon or 0.0)} at delta {given(found.delta)} {may_be} "
        f"({found.name}{secret}{task})."
    )


def on_person(audit: Audit) -> Remark | None:
    """Returns a remark with the epsilon of a person beside that of a device; None without owners,
    and if the verdict has no epsilon of a device."""
    if audit.persons is None or audit.basis.stated is None:
        return None
    # A claim that supports no figure is answered without the observed ones.
    if audit.findings and audit.basis.guarantee is None:
        return None
    found, most = guarantee_of_person(audit), audit.persons.most_devices
    has = "not known"
    if found is not None:
        own = None if audit.scenario is None else audit.scenario.privacy
        # A target is that of a delta.
        target = own.wanted_epsilon if own and own.delta == found.delta else None
        has = owner_text(found, most, f"({found.name})", target)
    if audit.basis.answers:
        rows, stated = audit.basis.of_person, audit.basis.stated.name
        unknown = (each for each in audit.answers or () if each.unit == "person" and not each.event)
        has = f"not known: {next((each.reason for each in unknown), UNSEEN)}"
        if rows:
            has = f"{answers_text(rows)}, by group privacy ({stated})"
    text = f"Epsilon is that of a device. For a person with up to {counted(most, 'device')} it is"
    return Remark(f"{text} {has}.", is_about_epsilon=True)


def answers_text(rows: Sequence[AnswerPrivacy]) -> str:
    """Returns the epsilon of each trust model, with its delta, in words."""
    epsilons = [
        f"{up(each.epsilon or 0.0)} at delta {given_delta(each.delta)} ({each.trust})"
        for each in rows
    ]
    return ", ".join(epsilons)


def on_target(audit: Audit) -> Remark | None:
    """Returns a remark on whether the epsilon meets the scenario's target; None without one."""
    if audit.meets_target is None or audit.scenario is None:
        return None
    wanted = audit.scenario.privacy.wanted_epsilon or 0.0
    subject = "The epsilon of a device"
    if not audit.meets_target:
        return Remark(f"{subject} misses the target epsilon {given(wanted)}.")
    found, meets = audit.basis.guarantee, f"{subject} meets the target epsilon {given(wanted)}"
    spent = 0.0 if found is None or found.epsilon is None else found.epsilon / wanted
    if audit.persons is not None:
        person = guarantee_of_person(audit)
        # Less noise for a device would move a person further away, so no command has it.
        if person is None or person.epsilon is None or person.epsilon > wanted:
            return Remark(f"{meets}, and that of a person misses it.")
        share = f"{100 * person.epsilon / wanted:.0f}"
        return Remark(f"{meets}, and so does that of a person, which spends {share} % of it.")
    said = f"{meets}, and spends {100 * spent:.0f} % of it."
    # The noise of devices and of samples is not calibrated.
    is_calibrated = isinstance(audit.noise, ServerNoise) and found and found.name == "enforced"
    return Remark(said + (_to_spend_it(audit) if is_calibrated and spent < SPENT else ""))


def _to_spend_it(audit: Audit) -> str:
    """Returns the commands that spend a target: noise for the trace, and days of a new run."""
    assert audit.scenario is not None
    own, path = audit.scenario.privacy, shlex.quote(str(audit.path))
    target, delta = given(own.wanted_epsilon or 0.0), given(own.delta)
    said = (
        f" Its noise is more than the recorded rounds need. To spend all of it, `fedray calibrate "
        f"{path} --epsilon {target} --delta {delta}` has the noise for this trace."
    )
    days = _days_that_do(audit)
    if days is None:
        return said
    return (
        f"{said} A timer needs noise for all days that a run may take, and this run took "
        f"{audit.days:.1f} of {audit.scenario.rounds.max_days:g}. A new run needs less: `fedray "
        f"run SCENARIO --set privacy.target_epsilon={target} --set rounds.max_days={days:g}`."
    )


def _days_that_do(audit: Audit) -> float | None:
    """Returns the days of the run with a margin, if a timer permits fewer participations in them
    than all rules do in `rounds.max_days`; else None."""
    scenario, took = audit.scenario, audit.days
    assert scenario is not None
    rules = [each for each in rules_of(scenario.participation) if not each.unkept]
    wait, separation, cap = strictest(rules)
    if not wait or took is None or scenario.rounds.mode != "on-device":
        return None
    days = math.ceil(10.0 * MORE_DAYS * took) / 10.0
    permitted = [] if cap is None else [cap]
    permitted.append(most_of_device(scenario.rounds.count, max(1, separation)))
    permitted.append(_most_within(scenario.rounds.max_days, wait))
    return days if _most_within(days, wait) < min(permitted) else None


def _most_within(days: float, wait_seconds: float) -> int:
    return math.floor(86_400.0 * days / wait_seconds) + 1


def on_stopped(audit: Audit) -> Remark | None:
    """Returns a remark on a run that its training stopped: the epsilon of all planned rounds, on
    which a guarantee may rest, beside that of the rounds done; None for other runs."""
    stopped, scenario = audit.stopped, audit.scenario
    if stopped is None or scenario is None:
        return None
    of = counted(scenario.rounds.count, "planned round")
    said = f"The training stopped after {audit.rounds:,} of {of}: {stopped['reason']}."
    used = audit.mechanisms[0] if audit.mechanisms else None
    planned = None if used is None else used.planned
    if used is not None and planned is not None and planned.epsilon is not None:
        done = used.enforced.epsilon
        said += (
            f" Epsilon of the rounds done is {'unknown' if done is None else up(done)} (enforced), "
            "if their number was fixed before; that of all planned rounds is "
            f"{up(planned.epsilon)} (planned), wherever it stops."
        )
        limits = planned.participation
        is_free = limits is not None and limits.min_sep == 1 < limits.max_participations
        if is_free and scenario.rounds.uploads is None:
            said += (
                " The rules ensure no min-sep for it; participation.round_separation would, and "
                "may lower it."
            )
    chosen = CHOSEN_BY[stopped["chosen_by"]].format(metric=stopped.get("metric", "a metric"))
    text = f"{said} {chosen}"
    # A claim about the rounds done holds for a number of rounds that no model decides.
    return Remark(text, is_about_epsilon=True, is_doubt=_claims_fewer(audit))


def _claims_fewer(audit: Audit) -> bool:
    """Whether a claim is about fewer rounds than were planned."""
    claim, scenario = audit.claim, audit.scenario
    if claim is None or scenario is None:
        return False
    return (claim.rounds or audit.rounds) < scenario.rounds.count


def on_trained_sample(audit: Audit) -> Remark | None:
    """Returns a remark that a model trained on a sample of each round lacks the guarantee."""
    run = audit.scenario
    if audit.basis.guarantee is None or run is None or not run.trains_a_sample:
        return None
    goal = f"{run.rounds.least_accepted:,}"
    if run.rounds.keeps_surplus:
        goal += " or more"
    return Remark(
        "Epsilon is that of the deployment simulated; the model of this simulation, trained on "
        f"{run.training.cohort_sample:,} of {goal} devices a round, has none."
    )


def on_clients(audit: Audit) -> Remark | None:
    """Returns a remark with the epsilon of people whose data is on several devices."""
    return Remark(audit.clients.text, is_about_epsilon=True) if audit.clients else None


def on_weak_epsilon(audit: Audit) -> Remark | None:
    """Returns a remark that an epsilon of a device or a person is weak."""
    text = weak_text(*named_epsilons(audit))
    return Remark(text, is_about_epsilon=True) if text else None


def guarantee_of_person(audit: Audit) -> Guarantee | None:
    """Returns the guarantee of a person under the first mechanism beside the stated one of a
    device: the strongest that may be published, or else the one of the same name; None if it is
    unknown."""
    stated = audit.basis.stated
    if not audit.mechanisms or stated is None or audit.basis.answers:
        return None
    used = audit.mechanisms[0]
    if stated.may_rest_on or used.person is None:
        return strongest(used.resting("person"))
    named = (each for each in used.person.guarantees if each.name == stated.name)
    return next((each for each in named if each.epsilon is not None), None)


def named_epsilons(audit: Audit) -> list[float]:
    """Returns the epsilons of a device, and of persons on several, as far as they are known."""
    of_client = None if audit.clients is None else strongest(audit.clients.guarantees)
    of_device = audit.basis.guarantee
    # Beside an observed epsilon, which the verdict does not call a guarantee, nothing is graded.
    of_person = None if of_device is None else guarantee_of_person(audit)
    of_answers = audit.basis.of_person if of_device is not None else ()
    found = (of_device, of_client, of_person, *of_answers)
    return [each.epsilon for each in found if each and each.epsilon is not None]


def on_joined_ids(audit: Audit) -> Remark | None:
    """Returns a remark on whether ids that differ only in writing were taken as one device or as
    distinct ones; None if the import was not asked."""
    if (ids := audit.joined_ids) is None:
        return None
    taken = "one device" if ids else "distinct devices"
    text = (
        f"Ids that differ only in writing were taken as {taken}: {ids or audit.devices:,} ids, "
        f"{counted(audit.devices, 'device')}."
    )
    return Remark(text, is_about_epsilon=True)


def on_limits_of_log(audit: Audit) -> Remark | None:
    """Returns a remark that the limits of a claim about a log are the log's own, so that the log is
    no evidence for them."""
    keys = ("min_sep", "max_participations", "frontier", "timer_hours")
    claim, stated = audit.claim, [each for each in audit.findings if each.statement in keys]
    is_broken = any(each.verdict is Verdict.BROKEN for each in stated)
    if audit.scenario is not None or claim is None or is_broken:
        return None

    def allowed(**changed: Any) -> set[MinSep | None]:
        changed_claim = claim.model_copy(update={"rounds": None, **changed})
        limits = claimed_limits(changed_claim, audit.trace)
        return {*(limits.pairs or (limits.participation,))}

    # Further pairs, and limits that exclude nothing in the log's rounds, change nothing.
    claimed, own = allowed(), {"frontier": frontier_of(audit.patterns)}
    shown = [
        each
        for each in stated
        if each.found == each.claimed or (each.statement in own and allowed(**own) <= claimed)
    ]
    rest = [each for each in stated if each not in shown]
    if not shown or any(allowed(**{each.statement: None}) != claimed for each in rest):
        return None
    return Remark(
        "Its limits are what the log shows, so the log is no evidence that they were enforced.",
        is_doubt=True,
    )


REMARKS: tuple[Callable[[Audit], Remark | None], ...] = (
    on_claim,
    on_unchecked_claim,
    on_guarantee,
    on_person,
    on_stopped,
    on_target,
    on_trained_sample,
    on_clients,
    on_weak_epsilon,
    on_joined_ids,
    on_limits_of_log,
)
"""Functions that make the remarks of a verdict, in its order; each returns None if it does not
apply to an audit."""
