"""Tables of audits, calibrations and statements. Privacy figures are rounded to the safe side:
losses up; min-sep, time spans and given noise down."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedray.audit.audit import Audit
from fedray.audit.calibration import TraceCalibration
from fedray.audit.distribution import (
    DevicePrivacy,
    Frontier,
    SpentByDevice,
)
from fedray.audit.findings import Evidence, Finding, Verdict
from fedray.audit.guarantees import (
    OBSERVED_CANNOT_BE_RESTED_ON,
    Guarantee,
    shown_pairs,
)
from fedray.audit.ledger import WORDS_OF, Ledger
from fedray.audit.mechanism_audit import MechanismAudit, Release, was_used
from fedray.audit.observers import NOT_PROTECTED, NOTHING, Observer, trust_of_model
from fedray.audit.privacy_statement import Statement
from fedray.audit.questions import AnswerPrivacy
from fedray.audit.several_tasks import Composition, TasksAudit, TaskSpending
from fedray.audit.statements.most_per_period import MostPerPeriod
from fedray.base.rounding import (
    counted,
    fine,
    given,
    given_delta,
    shown_min_sep,
    shown_noise,
    simulated_time,
    up,
)
from fedray.mechanisms.accounting.events import ApproximateDP, Event
from fedray.mechanisms.accounting.pld import parts_of
from fedray.mechanisms.accounting.zcdp import failure_of, rho_of
from fedray.mechanisms.comparison import NOT_COMPARABLE
from fedray.report.subject import Subject
from fedray.report.table import Table

FIGURES_ARE = "figures are"
"""Heading of the column that says whether figures are exact or a bound."""
MOST_SHOWN = 12
"""Largest number of rounds or spans in one cell; the page's JSON has all of them."""
PUBLISHABLE = "Publishable: true even if models change who takes part."
ROWS_NOTE = (
    "Observed: the rounds of this trace. Observed limits: all rounds with its min-sep and "
    "participations. Enforced: all rounds that the rules allow at the recorded times. A timer may "
    f"enforce a larger min-sep than a configured separation. {PUBLISHABLE}"
)
LIMITS_NOTE = (
    f"{ROWS_NOTE} Sensitivities are at clip norm 1; a bound may be larger than the truth, never "
    "smaller."
)
CLASSES_NOTE = (
    "Eligible at once is the mean of the first week, whatever timers say, as estimated from a "
    "sample. Min-sep is the least between two participations of one device of the class."
)
NOT_OF_A_TRACE = (
    "it would hold only if no device's answers depended on what was released before, which a trace "
    "cannot show"
)
"""Reason why no guarantee may rest on the observed windows."""
LEDGER_NOTE = (
    "Recorded: of the unit that spent most. Spent at most: for each run what its rules enforce, or "
    "what is recorded if they enforce nothing; only the former is publishable. Epsilon is that of "
    "all that is spent and reserved. Keep the head elsewhere: without it, nothing shows that the "
    "last lines were removed."
)
RESPELLED_NOTE = (
    "Respelled: units whose charges have their ids in several spellings, summed as one. If they "
    "are distinct, import their logs again as distinct ids, and charge them to a new ledger."
)
CHECKLIST_NOTE = "In the order of the checklist of Ponomareva et al. 2023, ready to be published."


def audit_tables(audit: Audit) -> list[Table]:
    """Returns the tables of an `audit`: participation, classes, guarantees, observers, releases,
    findings."""
    tables = [participation_table(audit)]
    if audit.classes:
        tables.append(classes_table(audit.classes))
    if audit.mechanisms or audit.no_guarantee:
        tables.append(guarantees_table(audit))
    if (observers := observers_table(audit)) is not None:
        tables.append(observers)
    if audit.answers is not None:
        tables.append(answers_table(audit.answers))
    tables += persons_tables(audit)
    if audit.releases:
        tables.append(releases_table(audit))
    if audit.findings:
        tables.append(findings_table(audit))
    return tables


def answers_table(answers: Sequence[AnswerPrivacy], is_instead: bool = False) -> Table:
    """Returns the privacy of `answers` to a question, by trust model; `is_instead` of the run's
    own."""
    has_model = any("model" in each.basis for each in answers)
    has_persons = any(each.unit == "person" for each in answers)
    most = max((each.windows or 0 for each in answers if each.unit == "device"), default=0)

    def published(each: AnswerPrivacy) -> str:
        is_whole = "model" in each.basis or not has_model
        if not is_whole or (each.basis == "window" and most > 1):
            return "a part only"
        return "yes" if each.may_rest_on and each.event is not None else "no"

    cells = {
        "trust": lambda each: each.trust,
        **({"unit": lambda each: each.unit} if has_persons else {}),
        "spent on": lambda each: each.basis,
        "answers": lambda each: "-" if each.windows is None else f"{each.windows:,}",
        "epsilon": lambda each: epsilon_text(each.epsilon),
        "delta": lambda each: given_delta(each.delta),
        "may be published": published,
        "mechanism": lambda each: each.mechanism,
        "theorem": lambda each: each.theorem,
    }
    kinds = dict.fromkeys((each.trust, each.mechanism) for each in answers)
    # Of a vocabulary, the mechanism of another run.
    noises = "; ".join(f"{trust}: {mechanism}" for trust, mechanism in kinds)
    shown = {published(each) for each in answers}
    reasons = {
        NOT_OF_A_TRACE if "observed" in each.basis and each.event else each.reason
        for each in answers
        if published(each) == "no"
    }
    parts = " and ".join(
        [*(["other windows"] if most > 1 else []), *(["the model"] if has_model else [])]
    )
    notes = [
        f"Noise by trust model: {noises}. {_why_they_differ(answers)}".rstrip(),
        "Window: answers of one window. Observed: the most of this trace. Enforced: the most that "
        "the rules permit. A device answers once in a window. A deployment has one of "
        "the trust models.",
        "Person: all devices of a person together, by group privacy." if has_persons else "",
        f"A part only: {parts} were released too." if "a part only" in shown else "",
        *(f"No: {each}." for each in sorted(reasons)),
    ]
    of_window = [e.event for e in answers if e.event and (e.unit, e.basis) == ("device", "window")]
    if any(failure_of(each) > 0 and not _is_stated(each) for each in of_window):
        notes.append(
            "A window may spend less than the epsilon asked for: a threshold is a whole number and "
            "leaves some of delta, with which epsilon is lower."
        )
    if is_instead:
        notes.append("Instead of the run's question: asking both is not accounted for.")
    units = "a device, and a person with several, spend" if has_persons else "a device spends"
    return Table.of(
        f"Privacy of the answers: what {units}",
        answers,
        cells,
        *notes,
        details=("mechanism", "theorem"),
        subject=lambda each: Subject(condition=each.trust, unit=each.unit),
    )


def _why_they_differ(answers: Sequence[AnswerPrivacy]) -> str:
    """Returns why trust models with one epsilon for a window have several for the run; empty if
    they have one."""
    rows = [each for each in answers if (each.unit, each.basis) == ("device", "enforced")]
    adds = {each.trust for each in rows if each.event is not None and _is_stated(each.event)}
    others = {each.trust for each in rows} - adds
    if not adds or not others or len({epsilon_text(each.epsilon) for each in rows}) == 1:
        return ""
    return (
        "Over windows the epsilons of mechanisms with a stated epsilon "
        f"({', '.join(sorted(adds))}) nearly add up; of discrete Gaussian noise "
        f"({', '.join(sorted(others))}) rho does, so its epsilon grows more slowly."
    )


def _is_stated(event: Event) -> bool:
    """Whether an event consists of stated guarantees, which have no rho of their own."""
    return all(isinstance(each, ApproximateDP) for each in parts_of(event))


def participation_table(audit: Audit) -> Table:
    """Returns the participation that the trace of an `audit` shows."""
    facts = [
        ("rounds (committed)", f"{audit.rounds:,}"),
        *([] if audit.days is None else [("last round at", simulated_time(86_400 * audit.days))]),
        ("devices (took part)", f"{audit.devices:,}"),
        ("participations (accepted)", f"{audit.participations:,}"),
        ("min-sep b (rounds)", shown_min_sep(audit.min_sep)),
        ("max participations k", f"{audit.max_participations:,}"),
        *_person_facts(audit),
        *rule_facts(audit),
    ]
    return Table.facts(f"Audit of {audit.path}", facts, audit.short_run_note)


def _person_facts(audit: Audit) -> list[tuple[str, str]]:
    found = audit.persons
    if found is None:
        return []
    persons = ", ".join(f"{each:,}" for each in found.persons_by_devices)
    return [
        ("persons (took part)", f"{found.persons:,}"),
        ("of them with 1, 2, ... devices", persons),
        ("max participations of a person", f"{found.max_participations:,}"),
    ]


def rule_facts(audit: Audit) -> list[tuple[str, str]]:
    """Returns names and values about devices that broke the rules of an `audit`'s run, or that its
    filter excluded."""
    return [*_violation_facts(audit), *_exclusion_facts(audit)]


def _violation_facts(audit: Audit) -> list[tuple[str, str]]:
    found = audit.violations
    if found is None:
        return []
    devices = counted(found.devices, "device")
    return [
        ("breaking the rules", f"{counted(found.participations, 'participation')}, of {devices}"),
        (
            "of them after a lost history",
            f"{found.after_loss:,} (of {found.losses:,} losses recorded)",
        ),
    ]


def _exclusion_facts(audit: Audit) -> list[tuple[str, str]]:
    found = audit.exclusions
    if found is None:
        return []
    facts = [("excluded at their budget", counted(found.devices, "device"))]
    if not found.devices:
        return facts
    rounds = f"{int(found.rounds[0]):,}, {int(np.median(found.rounds)):,}"
    means = f"{found.participations:.2f}, others {found.of_others:.2f}"
    return [*facts, ("from round (first, median)", rounds), ("mean participations of them", means)]


def guarantees_table(audit: Audit) -> Table:
    """Returns the guarantees of every mechanism of an `audit` (limits, sensitivity and privacy), or
    a table with the reason for having none."""
    if audit.no_guarantee:
        return Table.facts("Guarantees", [("privacy", audit.no_guarantee)])
    first, *others = audit.mechanisms
    noise = first.noise_multiplier
    known = "without noise multiplier" if noise is None else f"noise multiplier {given(noise)}"
    note = _of_each_device(audit)
    known += " of each device" if note else ""
    of_one = f" of {first.name}" if not others else ""
    of_one += ", the model only" if audit.answers else ""
    rows = [
        (mechanism, name, guarantee)
        for mechanism in audit.mechanisms
        for name, guarantee in mechanism.named
        if name != "claimed" or audit.findings
    ]
    if audit.corrected_claim is not None:
        rows.append((first, "corrected", audit.corrected_claim))
    cells = {
        "guarantee": lambda row: row[1],
        # With one mechanism the title has its name.
        **({"mechanism": lambda row: row[0].name} if others else {}),
        "min-sep": lambda row: limit_cells(row[2], audit.findings)[0],
        "part.": lambda row: limit_cells(row[2], audit.findings)[1],
        **_privacy_cells(lambda row: row[2]),
        "publishable": lambda row: rests_on(row[2], audit, row[0]),
    }
    return Table.of(
        f"Guarantees{of_one}, {known}, delta {given(first.observed.delta)}",
        rows,
        cells,
        f"{LIMITS_NOTE} {_binding(first)}",
        note,
        row_styles=["used" if row[0] is first and others else "" for row in rows],
        subject=lambda row: Subject(unit="device", estimand=sensitivity_kind(row[2])),
    )


def short_guarantees_table(audit: Audit) -> Table:
    """Returns `guarantees_table` without sensitivities, which fits a terminal of 80 columns."""
    notes = (ROWS_NOTE, *filter(None, (_of_each_device(audit),)))
    return replace(guarantees_table(audit), notes=notes, details=("sensitivity",)).brief()


def _of_each_device(audit: Audit) -> str:
    """Returns whose noise the noise multiplier and the figures of a model with trust `local` have;
    empty for others."""
    if audit.trust is None or not audit.mechanisms:
        return ""
    if trust_of_model(audit.trust, audit.mechanisms[0].noise) != "local":
        return ""
    return (
        "Of each device: every message has this noise, and a sum has the noise of all its n "
        "devices, sqrt(n) times as much. The figures are those of sums."
    )


def observers_table(audit: Audit) -> Table | None:
    """Returns the observers of an `audit`, with the epsilon of a device against each; None
    for a log without a claimed trust, and for a run without noise."""
    # Without noise the verdict has said that nothing protects.
    if audit.observers is None or all(each.is_silent for each in audit.released):
        return None
    cells = {
        "observer": lambda each: each.name,
        "trust": lambda each: each.trust,
        "epsilon": observed_epsilon,
        "rests on": lambda each: each.reason,
        "sees": lambda each: each.sees,
    }
    delta = audit.observers_of_verdict[0].delta
    at = "No epsilon" if delta is None else f"At delta {given_delta(delta)}"
    is_one = len(audit.released) == 1
    return Table.of(
        f"Who is it private from? {at}",
        audit.observers,
        cells,
        f"None: nothing protects. {NOT_PROTECTED}",
        details=("sees",),
        # A deployment has one trust model of its question.
        subject=lambda each: Subject(condition="" if is_one else each.trust, unit="device"),
    ).varied("trust")


def observed_epsilon(observer: Observer) -> str:
    """Returns the epsilon of an `observer`; "none" if nothing protects from it, "-" if epsilon is
    unknown or means nothing."""
    return "none" if observer.protected_by == NOTHING else epsilon_text(observer.epsilon)


def persons_tables(audit: Audit) -> list[Table]:
    """Returns the guarantees of a person instead of a device, as a list of one table; empty if
    owners are unknown."""
    rows = [
        (mechanism, guarantee)
        for mechanism in audit.mechanisms
        if mechanism.person is not None
        for guarantee in mechanism.person.guarantees
        if guarantee.name != "claimed" or audit.findings
    ]
    if audit.persons is None or not rows:
        return []
    cells = {
        "guarantee": lambda row: row[1].name,
        "mechanism": lambda row: row[0].name,
        **_privacy_cells(lambda row: row[1]),
        "publishable": lambda row: _rests_on_person(row[1], audit, row[0]),
    }
    person = audit.mechanisms[0].person
    assert person is not None
    rounds = ", ".join(map(str, person.trace.rounds))
    note = (
        f"Observed: all rounds of a person's devices together; the worst is person "
        f"{person.binding_person}, of rounds {rounds}. Others: {audit.persons.assumption.text} "
        f"Source: {audit.persons.source}."
    )
    # A reason that several rows share is given once.
    reasons: dict[str, list[str]] = {}
    for _, each in rows:
        if not each.may_rest_on:
            reasons.setdefault(each.reason.rstrip("."), []).append(each.name)
    why = "; ".join(f"not {' and '.join(dict.fromkeys(of))}: {r}" for r, of in reasons.items())
    title = "A person instead of a device"
    if audit.answers:
        title += ", the model only"
        note += " With the answers: the rows of a person in the privacy of the answers."
    return [
        Table.of(
            title,
            rows,
            cells,
            note,
            f"{PUBLISHABLE} {why[:1].upper()}{why[1:]}{'.' * bool(why)}",
            subject=lambda row: Subject(unit="person", estimand=sensitivity_kind(row[1])),
        )
    ]


def _rests_on_person(guarantee: Guarantee, audit: Audit, mechanism: MechanismAudit) -> str:
    return rests_on(guarantee, audit, mechanism) if guarantee.may_rest_on else "no"


def _privacy_cells(guarantee_of: Any) -> dict[str, Any]:
    """Cells of sensitivity, kind, rho and epsilon."""

    def sensitivity(row: Any) -> str:
        found = guarantee_of(row).sensitivity
        return fine(None if found is None else found.value)

    return {
        "sensitivity": sensitivity,
        FIGURES_ARE: lambda row: sensitivity_kind(guarantee_of(row)),
        "rho": lambda row: fine(guarantee_of(row).rho),
        "epsilon": lambda row: epsilon_text(guarantee_of(row).epsilon),
    }


def sensitivity_kind(guarantee: Guarantee) -> str:
    """Returns the state of a `guarantee`'s sensitivity: exact, bound, not proven or not known."""
    if guarantee.sensitivity is None:
        return "not known" if guarantee.participation is None else "not proven"
    return "exact" if guarantee.sensitivity.is_exact else "bound"


def limit_cells(guarantee: Guarantee, findings: Sequence[Finding] = ()) -> tuple[str, str]:
    """Returns min-sep and participations of a `guarantee`; dashes if they are unknown.

    Limits that a claim states take precedence over tighter ones that follow from it, such as those
    of a timer.
    """
    if guarantee.participation is None:
        return "-", "-"
    limits = {
        "min_sep": shown_min_sep(guarantee.min_sep),
        "max_participations": f"{guarantee.participation.max_participations:,}",
    }
    if guarantee.name == "claimed":
        for each in findings:
            limit = limits.get(each.statement)
            if limit is not None and f"{each.claimed:,}" != limit:
                limits[each.statement] = f"{each.claimed:,} (follows: {limit})"
    return limits["min_sep"], limits["max_participations"]


def _binding(mechanism: MechanismAudit) -> str:
    how = "is that" if mechanism.trace.is_exact else "is bounded by the bound"
    rounds = ", ".join(map(str, mechanism.trace.rounds))
    return (
        f"The observed sensitivity of {mechanism.name} {how} of device "
        f"{mechanism.binding_device}, of rounds {rounds}."
    )


def releases_table(audit: Audit) -> Table:
    """Returns the releases of a run in each round, singly and together."""
    rows = [*audit.releases]
    # The noise multiplier of an audit is that of all releases together.
    rho = math.fsum(each.rho for each in rows)
    together = audit.mechanisms[0].noise_multiplier
    assert together is not None
    rows.append(Release("together", together, rho))
    cells = {
        "release": lambda row: row.query,
        "noise multiplier": lambda row: shown_noise(row.noise_multiplier),
        "rho": lambda row: fine(row.rho),
    }
    return Table.of("What was released (observed)", rows, cells)


def utility_table(audit: Audit) -> Table:
    """Returns the mechanisms of an `audit`, by the error of their prefix sums at equal rho."""
    basis = audit.utility_basis
    assert basis is not None
    # The mechanism of the run is highlighted among the compared ones.
    used = audit.mechanisms[0].name
    note = (
        f"{NOT_COMPARABLE} Here every mechanism has rho = {fine(basis.rho)} "
        f"({audit.utility_basis_name}); the errors are of prefix sums at clip norm 1, and the best "
        "comes first."
    )
    cells = {
        "mechanism": lambda each: each.name,
        "rms error": lambda each: fine(each.rms_prefix_error),
        "max error": lambda each: fine(each.max_prefix_error),
        "noise needed": lambda each: fine(each.noise_multiplier),
        "RmsLoss": lambda each: fine(each.rms_loss),
        "MaxLoss": lambda each: fine(each.max_loss),
        "sensitivity": lambda each: fine(each.sensitivity),
    }
    styles = ["used" if each.name == used else "" for each in audit.utility]
    title = "Mechanisms at equal privacy"
    return Table.of(title, audit.utility, cells, note, row_styles=styles)


def findings_table(audit: Audit) -> Table:
    """Returns the verdict on every statement of the claim of an `audit`, with claimed and found
    figures."""
    cells = {
        "statement": lambda each: each.statement,
        "verdict": lambda each: str(each.verdict),
        "claimed": lambda each: each.claimed_text,
        "found": lambda each: each.found_text,
        "should say": lambda each: each.should_say or "-",
        "because": lambda each: each.explanation,
    }
    styles = [style_of(each.verdict) for each in audit.findings]
    return Table.of("The claim", audit.findings, cells, row_styles=styles)


def style_of(verdict: str) -> str:
    """Returns the style class of a `verdict` on the page: `holds`, `broken`, or else `open`."""
    return verdict if verdict in ("holds", "broken") else "open"


def evidence_table(findings: Sequence[Finding], most_rounds: int | None = None) -> Table:
    """Returns the devices and rounds on which the verdicts rest.

    Args:
        findings: findings of an audit.
        most_rounds: largest number of rounds in one cell; None for all.
    """
    ordered = sorted(findings, key=lambda each: each.verdict is not Verdict.BROKEN)
    rows = [(each, shown) for each in ordered for shown in each.evidence]
    notes = [
        f"Of {each.statement} {each.evidence_note}." for each in findings if each.evidence_note
    ]
    cells = {
        "statement": lambda row: row[0].statement,
        "device": lambda row: row[1].device,
        "rounds": lambda row: evidence_rounds(row[1], most_rounds),
        "shows": lambda row: row[1].shows,
    }
    styles = [style_of(row[0].verdict) for row in rows]
    return Table.of("Evidence", rows, cells, " ".join(notes), row_styles=styles)


def evidence_rounds(evidence: Evidence, most: int | None) -> str:
    """Returns the rounds of an `evidence`, at most `most`, in the log's own numbers if it has
    others."""
    rounds = evidence.log_rounds or evidence.rounds
    text = listed(rounds, len(rounds) if most is None else most)
    return f"{text} of the log" if evidence.log_rounds else text


def listed(values: Sequence[int], most: int) -> str:
    """Returns the first `most` values as text."""
    return ", ".join([*map(str, values[:most]), *(["..."] if len(values) > most else [])])


def rests_on(
    guarantee: Guarantee, audit: Audit | None = None, mechanism: MechanismAudit | None = None
) -> str:
    """Returns whether the figures of a `guarantee` may be published, of a `mechanism` in an `audit`
    or of a calibration: "yes", "no", "if enforced", or "if added" at noise that the run did not
    add; of a run that also answered a question, "the model only"."""
    if guarantee.may_rest_on:
        if audit is not None and mechanism is not None and not was_used(mechanism, audit.scenario):
            return "if added"
        return "the model only" if audit is not None and audit.answers else "yes"
    conditional = {"claimed", "corrected"}
    # A log does not show whether its limits were enforced.
    if audit is not None:
        conditional = {*conditional, "enforced"} if audit.scenario is None else set()
    return "if enforced" if guarantee.name in conditional and guarantee.is_known else "no"


def statement_tables(statement: Statement) -> list[Table]:
    """Returns the lines of a privacy `statement`, each with its evidence."""
    cells = {
        "what": lambda line: line.what,
        "says": lambda line: line.says,
        "evidence": lambda line: line.evidence,
    }
    note = f"{statement.summary} {CHECKLIST_NOTE}"
    return [Table.of("Privacy statement", statement.lines, cells, note)]


def devices_table(privacy: DevicePrivacy) -> Table:
    """Returns the rho that a few shares of the devices that took part do not exceed, by their
    `privacy`."""
    cells = {
        "share of devices": lambda each: f"{100 * each.share:g} %",
        "sensitivity at most": lambda each: fine(each.sensitivity),
        "rho at most": lambda each: fine(each.rho),
    }
    bounds = "" if privacy.is_exact else " Some are upper bounds."
    note = f"rho of the devices that took part; the mean is {fine(privacy.mean_rho)}.{bounds}"
    return Table.of("What each device got", privacy.quantiles, cells, note)


def worst_devices_table(devices: Sequence[SpentByDevice]) -> Table:
    """Returns the `devices` that spent most, worst first."""
    cells = {
        "device": lambda each: each.device,
        "participations": lambda each: f"{each.participations:,}",
        "least gap": lambda each: "-" if each.least_gap is None else f"{each.least_gap:,}",
        "sensitivity": lambda each: fine(each.sensitivity),
        FIGURES_ARE: lambda each: "exact" if each.is_exact else "bound",
        "rho": lambda each: fine(each.rho),
        "epsilon": lambda each: up(each.epsilon),
    }
    return Table.of("The devices that spent most", devices, cells)


def frontier_table(frontier: Frontier) -> Table:
    """Returns the pairs of limits of a `frontier`, of which each device keeps one."""
    cells = {
        "participations": lambda each: f"{each.max_participations:,}",
        "min-sep": lambda each: shown_min_sep(
            None if each.max_participations == 1 else each.min_sep
        ),
        "sensitivity": lambda each: fine(each.sensitivity.value),
        FIGURES_ARE: lambda each: "exact" if each.sensitivity.is_exact else "bound",
    }
    note = (
        "Each device keeps the limits of a row, so the sensitivity of the trace is at most "
        f"{fine(frontier.sensitivity)}. A claim may state them as its frontier."
    )
    return Table.of("Frontier of min-sep and participations", frontier.entries, cells, note)


def classes_table(classes: Sequence[Mapping[str, Any]]) -> Table:
    """Returns the participation of each class of devices, from the `classes` of run.json."""
    selected = max(1, sum(each["selected"] for each in classes))
    cells = {
        "class": lambda each: each["name"],
        "share": lambda each: f"{100 * each['share']:.1f} %",
        "eligible at once": lambda each: f"{100 * each['eligible_share']:.1f} %",
        "of the selected": lambda each: f"{100 * each['selected'] / selected:.1f} %",
        "participations": lambda each: f"{each['participations']:,}",
        "devices": lambda each: f"{each['devices']:,}",
        "min-sep": lambda each: f"{each['least_gap']:,}" if each["least_gap"] else "-",
        "most of a device": lambda each: f"{each['most']:,}",
    }
    return Table.of("Classes of devices", classes, cells, CLASSES_NOTE)


def calibration_tables(calibration: TraceCalibration) -> list[Table]:
    """Returns the noise multipliers with which a trace would have met a target, for each guarantee
    that has one."""
    epsilon, delta = calibration.target_epsilon, given(calibration.delta)
    target = f"rho {given(calibration.target_rho or 0.0)}"
    if epsilon is not None:
        target = f"epsilon {given(epsilon)} at delta {delta}"
    cells = {
        "guarantee": lambda each: each.guarantee.name,
        "min-sep": lambda each: limit_cells(each.guarantee)[0],
        "part.": lambda each: limit_cells(each.guarantee)[1],
        **_privacy_cells(lambda each: each.guarantee),
        "noise multiplier": lambda each: fine(each.noise_multiplier),
        "publishable": lambda each: rests_on(each.guarantee),
    }
    title = f"Noise of {calibration.strategy.kind} for {target}, by the participation of"
    rows = [each for each in calibration.guarantees if each.noise_multiplier is not None]
    had = calibration.run_noise_multiplier
    whose = "The run had" if calibration.claimed is None else "The claim has"
    note = "" if had is None else f"{whose} the noise multiplier {given(had)}."
    return [Table.of(f"{title} {calibration.path}", rows, cells, note)]


def ledger_tables(ledger: Ledger) -> list[Table]:
    """Returns the windows of a ledger, its open reservations, and its head."""
    budget = ledger.entries[0]
    cells = {
        "window": lambda each: each.window,
        f"{ledger.unit}s": lambda each: f"{each.units:,}",
        "respelled": lambda each: f"{each.respelled:,}",
        "rho recorded": lambda each: fine(each.recorded),
        "spent at most": lambda each: fine(each.spent),
        "reserved": lambda each: fine(each.reserved),
        "epsilon": lambda each: up(each.epsilon),
        "budget": lambda each: "kept" if each.is_within else "EXCEEDED",
        "publishable": lambda each: "yes" if each.may_rest_on else "no",
    }
    notes = [LEDGER_NOTE]
    if any(each.respelled for each in ledger.windows):
        notes.append(RESPELLED_NOTE)
    else:
        del cells["respelled"]
    title = f"Budget: epsilon {budget['epsilon']:g} at delta {given(budget['delta'])} of a "
    title += f"{ledger.unit} in a {budget['period']}, against {WORDS_OF[ledger.observer]}"
    windows = Table.of(title, ledger.windows, cells, *notes)
    reserved = [
        (f"line {number} reserved", f"run {each.run[:12]} from {each.start}")
        for number, each in ledger.reservations.items()
    ]
    ensured = ledger.budget.ensured
    demanded = [] if ensured is None else [("every run ensures", _claim_text(ensured))]
    lines = ("lines", f"{len(ledger.entries):,}")
    rows = (*demanded, *reserved, lines, ("head", ledger.head))
    return [windows, Table("", ("", ""), rows)]


def _claim_text(document: Mapping[str, Any]) -> str:
    """Returns the statements of a recorded claim (`Claim.to_document`), with its digest. The claim
    itself may need a matrix that is not in the ledger."""

    def shown(value: Any) -> str:
        if isinstance(value, list):
            return shown_pairs(value)
        if isinstance(value, Mapping):
            return value.get("kind") or MostPerPeriod.model_validate(value).text
        return f"{value:,}" if isinstance(value, int) else given(value)

    claim = document["claim"]
    stated = (
        f"{key.replace('_', ' ').replace('min sep', 'min-sep')} {shown(value)}"
        for key, value in claim.items()
        if key != "delta" or "epsilon" in claim
    )
    return f"{', '.join(stated)} (claim {document['digest'][:12]})"


def tasks_tables(audit: TasksAudit) -> list[Table]:
    """Returns the composition over all tasks, and the tasks side by side."""
    return [*composition_tables(audit.composition), tasks_table(audit)]


def tasks_table(audit: TasksAudit) -> Table:
    """Returns the tasks of an `audit` side by side."""
    cells = {
        "task": lambda each: each[0],
        "rounds": lambda each: f"{each[1].rounds:,}",
        "devices": lambda each: f"{each[1].devices:,}",
        "min-sep": lambda each: shown_min_sep(each[1].min_sep),
        "part.": lambda each: f"{each[1].max_participations:,}",
        "rho observed": lambda each: fine(audit.composition.largest[each[0]]),
        "rho enforced": lambda each: _enforced_rho(each[1]),
    }
    short = [
        f"Task {name}: {each.short_run_note}"
        for name, each in audit.audits.items()
        if each.short_run_note
    ]
    return Table.of("The tasks", audit.audits.items(), cells, *short)


def _enforced_rho(audit: Audit) -> str:
    if audit.mechanisms:
        return fine(audit.mechanisms[0].enforced.rho)
    # A task that evaluates a model: the last row of a device is of its rules.
    rows = [each for each in audit.answers or () if each.unit == "device"]
    event = rows[-1].event if rows else None
    return fine(None if event is None else rho_of(event))


def composition_tables(composition: Composition) -> list[Table]:
    """Returns the privacy that devices spent over all tasks: one device, the worst one, and all of
    them."""
    return [_bounds_table(composition), _worst_table(composition), _spending_table(composition)]


def _bounds_table(composition: Composition) -> Table:
    found, delta = composition, given(composition.delta)
    # The sum is known only if every task has an enforced guarantee.
    enforced = "unknown" if found.enforced_rho is None else "bound"
    rows = [
        (
            "observed, the device that spent most",
            "exact" if found.is_exact else "bound",
            found.rho,
            found.epsilon,
        ),
        ("sum of each task's largest", "bound", found.bound_rho, found.bound_epsilon),
        (
            "sum of each task's enforced limits",
            enforced,
            found.enforced_rho,
            found.enforced_epsilon,
        ),
    ]
    cells = {
        "what": lambda row: row[0],
        FIGURES_ARE: lambda row: row[1],
        "rho": lambda row: fine(row[2]),
        "epsilon": lambda row: epsilon_text(row[3]),
    }
    return Table.of(
        f"Over all tasks, for one device, delta {delta}",
        rows,
        cells,
        f"Observed: {OBSERVED_CANNOT_BE_RESTED_ON}.",
        f"Enforced: {composition.enforced_reason}.",
    )


def _worst_table(composition: Composition) -> Table:
    def largest(spent: TaskSpending) -> str:
        return fine(composition.largest[spent.task])

    cells = {
        "task": lambda each: each.task,
        "participations": lambda each: f"{len(each.rounds):,}",
        "sensitivity": lambda each: fine(each.sensitivity),
        "rho": lambda each: fine(each.rho),
        "largest rho in the task": largest,
    }
    title = f"Device {composition.worst_device}, which spent most"
    return Table.of(title, composition.spent, cells)


def _spending_table(composition: Composition) -> Table:
    facts = [
        (f"in {counted(tasks, 'task')}", f"{devices:,}")
        for tasks, devices in enumerate(composition.devices_by_tasks, 1)
    ]
    facts += [
        (f"{100 * share:g} % spent at most rho", fine(rho))
        for share, rho in composition.quantiles
        # The JSON has more shares than a reader needs.
        if share in (0.5, 0.95, 0.99)
    ]
    facts.append(("mean rho", fine(composition.mean_rho)))
    return Table.facts("Devices by what they spent over all tasks", facts)


def epsilon_text(value: float | None) -> str:
    """Returns an epsilon rounded up; "-" if it is not known."""
    return "-" if value is None else up(value)
