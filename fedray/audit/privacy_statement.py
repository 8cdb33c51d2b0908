"""A privacy statement for publication: a paragraph, then line by line, each with its evidence.

The order of the lines follows the reporting checklist of Ponomareva et al. 2023 ("How to DP-fy
ML", section 5.3.3): the setting, the protected unit, the accounting, the guarantee, and its limits.
A line that a trace cannot support says so.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import ClassVar

from fedray.audit.assumptions import UNSEEN, Assumption, other_tasks, rounds_source
from fedray.audit.audit import Audit
from fedray.audit.findings import FAILING, headline
from fedray.audit.guarantees import Guarantee, true_positive_rate
from fedray.audit.mechanism_audit import MechanismAudit
from fedray.audit.observers import OPERATOR
from fedray.audit.questions import EMPTIED
from fedray.audit.rules import rules_of
from fedray.audit.verdict import AuditVerdict, answers_text
from fedray.base.errors import InputError, shown
from fedray.base.escaped import markdown_text
from fedray.base.result import Result
from fedray.base.rounding import counted, given, given_delta, in_words, up
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import Composed
from fedray.mechanisms.accounting.group import GROUP_THEOREM
from fedray.scenario import Scenario
from fedray.scenario.data import AssignedData, CustomData, FileData
from fedray.scenario.tasks import CustomTask
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace

CAVEAT = "Not covered, and assumed"
"""Name of the lines that limit the statement."""
BY_SERVER = ("sampled", "filtered")
"""Names of the guarantees that rest on a rule of the server."""
FALSE_POSITIVE_RATE = 1e-3
MOST_SHOWN = 8
"""Largest number of values of a parameter that are shown, since a long list would fill the line."""
_THEOREMS = {
    "gdp": "the Gaussian mechanism, Balle and Wang 2018, Theorem 8",
    "zcdp": "rho alone, Canonne, Kamath and Steinke 2020, Corollary 13",
    "pld": "privacy loss distributions, rounded up",
    "monte-carlo": "an upper confidence bound by Monte Carlo",
    "renyi": "Renyi DP, Mironov 2017",
}
"""Basis of an audit's epsilon, by the accountant that found it."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a statement."""

    what: str
    """The item of the checklist."""
    says: str
    """The statement."""
    evidence: str
    """Evidence of the line."""


@dataclass(frozen=True, slots=True)
class Statement(Result):
    """A privacy statement."""

    TABLES: ClassVar[str] = "fedray.report.audits:statement_tables"
    SUBJECT: ClassVar[str] = "fedray.report.subjects:statement_subject"

    title: str
    """Name of the run; of a log, its rounds and mechanism."""
    date: str
    """Day on which the trace was written, in UTC."""
    summary: str
    """The statement as one paragraph."""
    lines: tuple[Line, ...]
    """The lines, in the checklist's order."""

    def __repr__(self) -> str:
        return f"<Statement of {shown(self.title)}: {len(self.lines)} lines>"

    def to_markdown(self) -> str:
        """Returns the statement as Markdown: the paragraph, a table of subject, statement and
        evidence, and what limits it."""
        table = [line for line in self.lines if line.what != CAVEAT]
        lines = [
            *(f"# Privacy statement: {markdown_text(self.title)}", "", self.date, ""),
            *(markdown_text(self.summary), "", "| | Statement | Evidence |", "|---|---|---|"),
            *(f"| {' | '.join(map(markdown_text, astuple(line)))} |" for line in table),
            *("", f"## {CAVEAT}"),
        ]
        # Caveats with the same evidence stand together.
        caveats = [line for line in self.lines if line.what == CAVEAT]
        for evidence, group in itertools.groupby(caveats, lambda line: line.evidence):
            lines += ["", f"{markdown_text(evidence[:1].upper() + evidence[1:])}:", ""]
            lines += [f"* {markdown_text(line.says)}" for line in group]
        return "\n".join(lines) + "\n"


def privacy_statement(audit: Audit) -> Statement:
    """Returns the statement of an audited trace, for the first mechanism of the audit.

    The figures equal the audit's verdict: they cover all that the run released. If no guarantee may
    rest on any, they are the strongest known ones, and the lines say that.

    Args:
        audit: audit of the trace.

    Raises:
        InputError: no statement is possible: mechanism or noise multiplier is unknown, no noise was
            added, the log is not complete and no limits are claimed, or the claim has another
            mechanism or more noise than the run had.
    """
    trace, stated = audit.trace, audit.basis.stated
    if stated is None:
        why = audit.no_guarantee or "no mechanism with a noise multiplier is known"
        remedy = (
            "add noise (privacy.mechanism)"
            if audit.no_guarantee
            else "give a claim, or a mechanism and a noise multiplier"
        )
        raise InputError(
            f"trace {str(trace.path)!r}: {why}, so there is no privacy to state here; {remedy}"
        )
    if broken := audit.other_noise:
        raise InputError(
            f"the claim's {broken[0].statement} is not that of the run ({broken[0].explanation}), "
            "so there is no such statement "
            f"to make; it should say {broken[0].should_say}"
        )
    # Claimed limits hold for rows without a device too; observed ones do not.
    if audit.incompleteness and stated.name == "observed":
        raise InputError(
            f"trace {str(trace.path)!r} cannot support a statement: {audit.incompleteness} To "
            "get one, claim limits that were enforced and that no row breaks (min_sep, "
            "max_participations or timer_hours)"
        )
    # A question may have been asked without a training.
    mechanism = audit.mechanisms[0] if audit.mechanisms else None
    # A file name of a log is for its owner; readers of the statement know the release.
    named = isinstance(trace, Trace)
    by = "" if mechanism is None else f" with {mechanism.title}"
    title = trace.scenario["name"] if named else f"{audit.rounds:,} rounds{by}"
    lines = (
        *_setting(trace, audit, mechanism),
        *([] if mechanism is None else _mechanism(trace, audit, mechanism)),
        *_participation(audit, mechanism, stated),
        *_guarantee(audit, mechanism, stated),
        *_person(audit, mechanism, stated),
        *_observers(audit),
        *_claim(audit),
        Line("Tuning", "not accounted for, nor are other runs on the same devices", UNSEEN),
        *_limits(audit),
        *_provenance(trace, audit),
    )
    return Statement(title, trace.run["written"][:10], _summary(audit, mechanism, stated), lines)


def _summary(audit: Audit, mechanism: MechanismAudit | None, stated: Guarantee) -> str:
    assert stated.epsilon is not None
    verdict, scenario = AuditVerdict(audit), audit.scenario
    models, have = _released(audit, mechanism, stated)
    spent = f"({up(stated.epsilon)}, {given_delta(stated.delta)})-differential privacy"
    by_rule = audit.basis.answers or stated.pairs or stated.name in BY_SERVER
    is_unlimited = stated.participation is None and not by_rule
    limits = "unlimited" if is_unlimited else audit.basis.condition
    what = "The guarantee" if stated.name in BY_SERVER else "Participation"
    about = [f"{what} is {stated.name}: {limits}.", f"The figures are about {stated.scope}."]
    # A claim that fails is said first: its readers may know no other figures.
    is_failing = any(each.verdict in FAILING for each in audit.findings)
    said = [f"{headline(audit.findings)}."] if is_failing else []
    if not audit.is_of_run:
        said.append("The run had another mechanism or noise.")
        said.append(f"{models} would have {spent}.")
    elif stated.may_rest_on:
        said.append(f"{models} {have} {spent}.")
    elif scenario is None and stated.name != "observed":
        condition = f"If this noise was added and {limits} were enforced{verdict.extent_of_limits}"
        said.append(f"{condition}, {models[0].lower()}{models[1:]} have {spent}.")
        said.append("This log cannot show either.")
        # The limits stand in the condition.
        about = about[1:]
    else:
        said.append(f"This may not be published as a guarantee: {stated.reason}.")
        said.append(f"{models} would have {spent}.")
    said += [] if stated.rho is None else [f"In zCDP that is rho {up(stated.rho, 6)}."]
    said += [*_terms(audit, mechanism), *_whom(audit), verdict.text_about_epsilon, *about]
    if other_tasks(audit.trace):
        said.append("They are those of one task of several.")
    return " ".join(filter(None, said))


def _whom(audit: Audit) -> list[str]:
    """Returns sentences on the observer of the figures, and on the operator of the server."""
    rows = audit.observers_of_verdict
    if not rows:
        return []
    recipients, operator = rows[0], next(each for each in rows if each.name == OPERATOR)
    said = [f"The figures are about {recipients.name}, not about other observers."]
    if operator.epsilon is None:
        return [*said, f"Nothing protects from {operator.name}: {operator.reason}."]
    if operator.epsilon == recipients.epsilon:
        both = f"The figures are about {recipients.name}, and {operator.name}."
        return [both, *operator.assumptions]
    return [*said, f"Against {operator.name} epsilon is {up(operator.epsilon)}."]


def _terms(audit: Audit, mechanism: MechanismAudit | None) -> list[str]:
    """Returns sentences on the unit of privacy and on the noise."""
    answers = audit.basis.answers[:1]
    of_model = [_after_colon(each.text).rstrip(".") for each in audit.basis.of_kind("unit")]
    unit = next(filter(None, of_model), "one device") + (", and its answers" if answers else "")
    noise = [f"{each.mechanism} of the answers (trust model {each.trust})" for each in answers]
    if mechanism is not None:
        own = mechanism.strategy.cited(mechanism.title)
        noise.insert(0, f"{own} with noise multiplier {given(mechanism.noise_multiplier or 0.0)}")
    return [
        f"The unit is {unit}, under zero-out adjacency.",
        f"The noise is that of {' and '.join(noise)}.",
    ]


def _released(audit: Audit, mechanism: MechanismAudit | None, stated: Guarantee) -> tuple[str, str]:
    """Returns the subject of the sentence on the stated privacy, and its verb."""
    scenario = audit.scenario
    of = "" if scenario is None else " of this simulation"
    if mechanism is None:
        return f"The answers of {counted(audit.rounds, 'window')}{of}", "have"
    # Such a simulation trained its model with less noise than is stated, or none.
    if scenario is not None and (scenario.trains_a_sample or not scenario.training.enabled):
        return "A deployment with these rules and full noise", "would have"
    rounds = counted(audit.rounds, "round")
    # A claim may be about more rounds than were recorded; its figure is that of all of them.
    if stated.participation is not None and stated.participation.rounds > audit.rounds:
        rounds = f"at most {counted(stated.participation.rounds, 'round')}"
    return f"The models after {rounds}{of}", "have"


def _setting(
    trace: Trace | ImportedTrace, audit: Audit, mechanism: MechanismAudit | None
) -> list[Line]:
    basis, scenario, released = audit.basis, audit.scenario, list[str]()
    if mechanism is not None:
        text = f"the model after each of {counted(audit.rounds, 'round')}"
        if isinstance(mechanism.observed.event, Composed):
            text += ", and the noised count of short updates of each"
        elif scenario is not None and scenario.count_noise is not None:
            text += "; also the noised counts of short updates, which these figures do not cover"
        released.append(text)
    if basis.answers:
        is_question = scenario is not None and scenario.analytics is not None
        released.append("the answer of each window" if is_question else "the vocabulary")
    adjacency = basis.of_kind("adjacency")
    if basis.answers:
        adjacency += (Assumption(EMPTIED, "the definition that the privacy of answers uses"),)
    of_answers = [
        Line("Answers", f"{each.mechanism}, {counted(each.windows or 0, 'window')}", each.theorem)
        for each in basis.answers[:1]
    ]
    return [
        _defined("Unit of privacy", basis.of_kind("unit", "unit of answers")),
        _defined("Adjacency", adjacency),
        Line("What is released", "; ".join(released), _rounds_source(trace)),
        _defined("Who is trusted", basis.trust),
        *of_answers,
    ]


def _defined(what: str, by: Sequence[Assumption]) -> Line:
    """Returns the line of a term that assumptions define, without the term in front of them."""
    says = " ".join(each.text.removeprefix(f"{what}: ") for each in by)
    return Line(what, says, "; ".join(dict.fromkeys(each.source for each in by)))


def _rounds_source(trace: Trace | ImportedTrace) -> str:
    if isinstance(trace, ImportedTrace):
        return rounds_source(trace)
    return "counted in the trace: its committed rounds"


def _mechanism(trace: Trace | ImportedTrace, audit: Audit, mechanism: MechanismAudit) -> list[Line]:
    scenario = audit.scenario
    source = "given to the audit"
    if scenario is not None and mechanism.is_own:
        source = "the scenario that was run"
    noise = mechanism.noise_multiplier
    # `privacy_statement` has refused audits without noise.
    assert noise is not None
    # With a published claim the audit computes with the claimed figures, whatever was run; the
    # claim that a run had to ensure may state less noise.
    if audit.claim is not None and audit.claim.noise_multiplier == noise:
        checked = "compared with the scenario below" if scenario is not None else UNSEEN
        source = f"the claim; {checked}"
    noise_source = source
    # An audit may compute with other noise than the run added.
    ran = scenario.privacy.noise_multiplier if scenario is not None else noise
    is_silent = scenario is not None and scenario.privacy.strategy is None
    if audit.claim is None and (noise != ran or is_silent):
        had = "the run added none" if is_silent else f"that of the run was {given(ran)}"
        noise_source = f"given to the audit; {had}"
    clip = f"{scenario.privacy.clip_norm:g}" if scenario is not None else "not known"
    later_norms = scenario.privacy.clipping.later_norms if scenario is not None else None
    if later_norms is not None:
        clip += f" at first; then it {later_norms}"
    relative_to = scenario.privacy.sent.noise_is_relative_to if scenario else "the clip norm"
    return [
        Line("Mechanism", _described(mechanism), source),
        Line("Clip norm", clip, "the scenario that was run" if scenario is not None else UNSEEN),
        Line("Noise multiplier", f"{given(noise)}, times {relative_to}", noise_source),
        Line("Rounds", f"{audit.rounds:,}", _rounds_source(trace)),
    ]


def _participation(audit: Audit, mechanism: MechanismAudit | None, stated: Guarantee) -> list[Line]:
    rests = {
        "claimed": "claimed; whether it was enforced " + UNSEEN,
        "corrected": "the claim, its broken limits corrected; whether they were enforced " + UNSEEN,
        "observed": "counted in the trace; nothing says that it was enforced",
    }.get(stated.name, stated.reason)
    line = Line(f"Participation ({stated.name})", _limits_text(audit, stated), rests)
    if mechanism is None:
        return [line]
    others = [
        f"{each.name}: "
        f"{_limits_text(audit, each) if each.participation or each.pairs else 'unknown'}"
        for each in mechanism.guarantees
        # Sampling and a filter have lines of their own.
        if each.name not in ("sampled", "filtered")
        # Without a claim the line has no claimed participation.
        and each.name != stated.name
        and (each.name != "claimed" or audit.claim is not None)
    ]
    return [
        line,
        Line("Other participation", "; ".join(others), "the trace, the rules and the claim"),
        _sampling(audit, mechanism),
        *(
            Line("Filter", each.reason, "the scenario's budget, and every device's rounds")
            for each in mechanism.of_server
            if each.name == "filtered"
        ),
    ]


def _sampling(audit: Audit, mechanism: MechanismAudit) -> Line:
    sampled = mechanism.sampled
    if audit.scenario is None:
        said = "none is assumed, so nothing is amplified"
        return Line("Sampling", said, f"how devices were chosen {UNSEEN}")
    if sampled is not None:
        nothing = "" if sampled.is_known else "nothing is amplified: "
        return Line("Sampling", nothing + sampled.reason, "run.json, and the draws of every round")
    said = "none is used: devices choose when they come, so nothing is amplified"
    return Line("Sampling", said, "the simulation's rules")


def _guarantee(audit: Audit, mechanism: MechanismAudit | None, stated: Guarantee) -> list[Line]:
    sensitivity, rho, mu, epsilon = stated.sensitivity, stated.rho, stated.mu, stated.epsilon
    # The basis of an audit is known, of a release with noise.
    assert stated.event is not None
    assert epsilon is not None
    basis = "all that a device contributed, in one composition"
    if sensitivity is not None:
        kind = "exact" if sensitivity.is_exact else "an upper bound"
        basis = (
            f"{stated.name} sensitivity {up(sensitivity.value, 6)} ({kind}): {sensitivity.theorem}"
        )
    only = " (the model only)" if audit.basis.answers else ""
    of_mechanism = [] if mechanism is None else mechanism.guarantees
    others = [
        f"{each.name}{only}: {of_rho}epsilon {up(each.epsilon)}"
        for each in of_mechanism
        if each.event is not stated.event and each.epsilon is not None
        for of_rho in ("" if each.rho is None else f"rho {up(each.rho, 6)}, ",)
    ]
    others += [
        f"trust model {each.trust} ({each.mechanism}): epsilon {up(each.epsilon or 0.0)} at "
        f"{given_delta(each.delta)}"
        for each in audit.basis.answers[1:]
    ]
    # A deployment has one trust model, and each has a mechanism of its own.
    of_answers = "the answers of each trust model by its mechanism, as named"
    of_model = "the same mechanism and noise"
    same = [of_model] if mechanism is not None else []
    differ = [of_answers] if audit.basis.answers[1:] else []
    # Enforced figures are a guarantee; others say what they are wherever they stand.
    of = "" if stated.name == "enforced" else f" ({stated.name})"
    lines = [] if rho is None else [Line("rho (zCDP)", up(rho, 6) + of, basis)]
    if mu is not None:
        # Only Gaussian noise has a mu.
        lines.append(Line("mu (Gaussian DP)", up(mu, 6) + of, "sensitivity / noise multiplier"))
    # The accountant that gave epsilon decides which theorem is cited.
    theorem = _THEOREMS[epsilon_of(stated.event, stated.delta).accountant]
    if rho is None:
        theorem += f", of {basis}"
    spent = f"({up(epsilon)}, {given_delta(stated.delta)}){of}"
    lines.append(Line("(epsilon, delta)", spent, theorem))
    if mu is not None:
        rate = up(true_positive_rate(mu, FALSE_POSITIVE_RATE))
        attack = Line(
            "Best attack",
            f"a test for a device that errs with probability {FALSE_POSITIVE_RATE:g} finds it with "
            f"probability at most {rate}",
            "Phi(mu - Phi^-1(1 - 0.001)), Dong, Roth and Su 2022",
        )
        lines.append(attack)
    lines += [
        Line("What the figures are a statement about", stated.scope, _rests(audit, stated)),
    ]
    if others:
        lines.append(Line("The other guarantees", "; ".join(others), "; ".join([*same, *differ])))
    return lines


def _person(audit: Audit, mechanism: MechanismAudit | None, stated: Guarantee) -> list[Line]:
    if audit.persons is None:
        return []
    what, evidence = "A person instead of a device", audit.persons.source
    if audit.basis.answers:
        return [Line(what, *_person_with_answers(audit, evidence))]
    if mechanism is None or mechanism.person is None:
        return []
    by_name = {each.name: each for each in mechanism.person.guarantees}
    shown = [by_name[name] for name in dict.fromkeys((stated.name, "observed")) if name in by_name]
    figures = [
        f"{each.name}: rho {up(each.rho, 6)}, epsilon {up(each.epsilon)} at delta "
        f"{given(each.delta)}"
        for each in shown
        if each.rho is not None and each.epsilon is not None
    ]
    if stated.name not in by_name:
        figures.insert(0, f"{stated.name}: nothing is proven for a person")
    sensitivity = shown[0].sensitivity
    assert sensitivity is not None
    says = f"{audit.persons.assumption.text} {'; '.join(figures)}"
    return [Line(what, says, f"{evidence}; {sensitivity.theorem}")]


def _observers(audit: Audit) -> list[Line]:
    """Returns a line for each observer under the trust models of the verdict."""
    return [
        Line(
            f"Private from {each.name}",
            each.protected_by
            if each.epsilon is None
            else f"({up(each.epsilon)}, {given_delta(each.delta or 0.0)})",
            each.reason,
        )
        for each in audit.observers_of_verdict
    ]


def _person_with_answers(audit: Audit, evidence: str) -> tuple[str, str]:
    """Returns the spending of a person on everything released, and its evidence."""
    assert audit.persons is not None
    assert audit.basis.stated is not None
    rows, assumed = audit.basis.of_person, audit.persons.assumption.text
    if not rows:
        unknown = [each for each in audit.answers or () if each.unit == "person" and not each.event]
        return f"not known: {unknown[0].reason if unknown else UNSEEN}", evidence
    return (
        f"{assumed} {audit.basis.stated.name}, of all that was released: epsilon "
        f"{answers_text(rows)}",
        f"{evidence}; {GROUP_THEOREM}",
    )


def _claim(audit: Audit) -> list[Line]:
    if not audit.findings:
        return []
    return [
        Line(
            "The claim",
            headline(audit.findings),
            "the statements below, one by one",
        ),
        *(
            Line(f"Claimed {each.name}", f"{each.claimed_text}: {each.verdict}", each.explanation)
            for each in audit.findings
        ),
    ]


def _limits(audit: Audit) -> list[Line]:
    return [
        _evaluation(audit.scenario),
        *_left_out(audit),
        *(Line(CAVEAT, each.text, each.source) for each in audit.basis.others),
    ]


def _evaluation(scenario: Scenario | None) -> Line:
    name = "Evaluation data"
    if scenario is None:
        return Line(name, "not known", UNSEEN)
    data, task = scenario.data, scenario.training.task
    evidence = f"data.kind = {data.kind!r}"
    if not scenario.training.enabled:
        says = "no model was trained in this simulation"
    elif isinstance(data, CustomData):
        says = f"examples that the user's code holds out; of whom they are {UNSEEN}"
    elif not isinstance(data, AssignedData):
        says = "examples of devices that are in no population"
    else:
        says = f"examples of {data.held_out_share:g} of the clients, which no device has"
        if isinstance(data, FileData):
            # Published splits often divide the examples of each client.
            split = f"the split {data.held_out_split or 'test'!r}, whose clients may also train"
            alone = "" if data.held_out_split else f"; without such a split, {says}"
            says = f"examples of {split}{alone}"
    # Only the code of a user's task, which an audit does not run, says whether it has data.
    if scenario.training.enabled and isinstance(task, CustomTask):
        says = f"the task's own examples, if it has any, of whom they are {UNSEEN}; else {says}"
        evidence = f"training.task.file = {shown(task.file)}, {evidence}"
    return Line(name, says, f"the scenario ({evidence})")


def _left_out(audit: Audit) -> list[Line]:
    says = [f"{counted(each.rows, 'row')} {each.reason}" for each in audit.left_out]
    if audit.filtered_rows:
        says.append(f"rows that do not meet the conditions of the import: {audit.filtered_rows:,}")
    return [Line("Left out of the log", each, "counted by the import") for each in says]


def _provenance(trace: Trace | ImportedTrace, audit: Audit) -> list[Line]:
    digests = [f"trace {audit.digest}"]
    if audit.scenario is not None:
        digests.append(f"scenario {audit.scenario.digest}")
    versions: Mapping[str, str] = trace.run["packages"]
    return [
        Line(
            "Digests", ", ".join(digests), "recomputed from the columns when the trace is verified"
        ),
        Line(
            "Versions",
            ", ".join(f"{name} {version}" for name, version in versions.items()),
            "run.json of the trace",
        ),
    ]


def _described(mechanism: MechanismAudit) -> str:
    parameters = mechanism.strategy.parameters.items()
    said = "; ".join(f"{name} = {in_words(value, MOST_SHOWN)}" for name, value in parameters)
    return mechanism.strategy.cited(mechanism.title) + (f"; {said}" if said else "")


def _limits_text(audit: Audit, guarantee: Guarantee) -> str:
    participation, basis = guarantee.participation, audit.basis
    by_server = guarantee.name in BY_SERVER
    if guarantee is basis.stated and (by_server or (basis.answers and participation is None)):
        return basis.condition
    if participation is None and not guarantee.pairs:
        return "a unit may contribute more than once to a round, so no min-sep describes it"
    text = guarantee.limits
    # The reason has the stated claim, from which tighter limits may follow.
    is_of_claim = guarantee.name in ("claimed", "corrected")
    return f"{text} ({guarantee.reason})" if is_of_claim else text


def _rests(audit: Audit, stated: Guarantee) -> str:
    if not stated.may_rest_on:
        return stated.reason
    says = "it holds even if participation depends on the released models"
    scenario = audit.scenario
    if scenario is not None and any(
        rule.seconds and not rule.unkept for rule in rules_of(scenario.participation)
    ):
        says += (
            ", as long as the recorded times of the rounds do not depend on what a single device "
            "holds"
        )
    return says


def _after_colon(text: str) -> str:
    return text.partition(": ")[2]
