"""A privacy statement for publication: a paragraph, then line by line, each with its evidence.

The order of the lines follows the reporting checklist of Ponomareva et al. 2023 ("How to DP-fy
ML", section 5.3.3): the setting, the protected unit, the accounting, the guarantee, and its limits.
A line that a trace cannot support says so.
"""

import itertools
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import ClassVar

from fedray.audit.assumptions import TUNING, UNSEEN
from fedray.audit.audit import Audit, MechanismAudit
from fedray.audit.findings import broken_noise, headline
from fedray.audit.guarantees import Guarantee, described, true_positive_rate
from fedray.audit.rules import rules_of
from fedray.audit.tuning import Tuning
from fedray.base.errors import InputError, shown
from fedray.base.escaped import markdown_text
from fedray.base.result import Result
from fedray.base.rounding import counted, given, in_words, up
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import Composed
from fedray.scenario import Scenario
from fedray.scenario.data import AssignedData, CustomData, FileData
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace

CAVEAT = "Not covered, and assumed"
"""Name of the lines that limit the statement."""
FALSE_POSITIVE_RATE = 1e-3
MOST_SHOWN = 8
"""Largest number of values of a parameter that are shown, since a long list would fill the line."""
_THEOREMS = {
    "gdp": "the Gaussian mechanism, Balle and Wang 2018, Theorem 8",
    "zcdp": "rho alone, Canonne, Kamath and Steinke 2020, Corollary 13",
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


def privacy_statement(audit: Audit, tuning: Tuning | None = None) -> Statement:
    """Returns the statement of an audited trace, for the first mechanism of the audit.

    The figures are the enforced guarantee's, if a guarantee may rest on it. Else they belong to the
    claimed guarantee, to limits that follow from only a claimed timer, or to the observed
    guarantee, whichever is known first, and the lines say which.

    Args:
        audit: audit of the trace.
        tuning: the grid of trainings on this trace that preceded the run, whose cost is stated.

    Raises:
        InputError: the grid has another trace, or a cell without noise; or no statement is
            possible: mechanism or noise multiplier is unknown, no noise was added, the log is not
            complete and no limits are claimed, or the claim has another mechanism or more noise
            than the run had.
    """
    trace = audit.trace
    if audit.no_guarantee:
        remedy = "publish the audit" if audit.answers else "add noise (privacy.mechanism)"
        raise InputError(
            f"trace {str(trace.path)!r}: {audit.no_guarantee}, so there is no privacy to state "
            f"here; {remedy}"
        )
    if not audit.mechanisms or audit.mechanisms[0].noise_multiplier is None:
        raise InputError(
            f"trace {str(trace.path)!r} has no mechanism with a noise multiplier, so there is no "
            "privacy to state; give "
            "a claim, or a mechanism and a noise multiplier"
        )
    if broken := broken_noise(audit.findings):
        raise InputError(
            f"the claim's {broken[0].statement} is not that of the run ({broken[0].explanation}), "
            "so there is no such statement "
            f"to make; it should say {broken[0].should_say}"
        )
    # The observed guarantee comes last, since it only covers this run.
    mechanism = audit.mechanisms[0]
    stated = mechanism.enforced
    if not stated.may_rest_on:
        put_right = audit.corrected_claim or mechanism.claimed
        by_strength = (put_right, mechanism.enforced, mechanism.observed)
        # The observed sensitivity is always known, so a guarantee is found.
        stated = next(each for each in by_strength if each.sensitivity is not None)
    # Claimed limits hold for rows without a device too; what was observed does not.
    if audit.incompleteness and stated.name == "observed":
        raise InputError(
            f"trace {str(trace.path)!r} cannot support a statement: {audit.incompleteness} To "
            "get one, claim limits that were enforced and that no row breaks (min_sep, "
            "max_participations or timer_hours)"
        )
    # A file name of a log is for its owner; readers of the statement know the release.
    named = isinstance(trace, Trace)
    title = trace.scenario["name"] if named else f"{audit.rounds:,} rounds with {mechanism.title}"
    lines = (
        *_setting(trace, audit, mechanism),
        *_mechanism(trace, audit, mechanism),
        *_participation(audit, mechanism, stated),
        *_guarantee(audit, mechanism, stated),
        *_person(audit, mechanism, stated),
        *_claim(audit),
        _tuning(audit, stated, tuning),
        *_limits(audit, tuning),
        *_provenance(trace, audit),
    )
    return Statement(title, trace.run["written"][:10], _summary(audit, mechanism, stated), lines)


def _summary(audit: Audit, mechanism: MechanismAudit, stated: Guarantee) -> str:
    assert stated.rho is not None
    assert stated.epsilon is not None
    unit = _after_colon(audit.rests_on[0].text).rstrip(".")
    says = (
        f"({up(stated.epsilon)}, {given(stated.delta)})-differential privacy, with rho "
        f"{up(stated.rho, 6)} of zCDP, for {unit}, under zero-out adjacency, by the noise of "
        f"{mechanism.title} ({mechanism.strategy.paper}) with noise multiplier "
        f"{given(mechanism.noise_multiplier or 0.0)}."
    )
    limits = described(stated.participation) if stated.participation else "unlimited"
    about = f" Participation is {stated.name}: {limits}. The figures are about {stated.scope}."
    of = "" if audit.scenario is None else " of this simulation"
    models = f"The models after {counted(audit.rounds, 'round')}{of}"
    if not audit.is_of_run:
        return f"The run had another mechanism or noise. {models} would have {says}{about}"
    if stated.may_rest_on:
        return f"{models} have {says}{about}"
    if audit.scenario is None and stated.name != "observed":
        condition = f"If {limits} were enforced{audit.for_all_rows}, which this log cannot show"
        return f"{condition}, {models[0].lower()}{models[1:]} have {says}"
    return f"No guarantee may rest on this: {stated.reason}. {models} would have {says}{about}"


def _setting(trace: Trace | ImportedTrace, audit: Audit, mechanism: MechanismAudit) -> list[Line]:
    # `assumptions_of` returns these three first; the others end the statement.
    unit, adjacency, trust = audit.rests_on[:3]
    released = f"the model after each of {counted(audit.rounds, 'round')}"
    if isinstance(mechanism.observed.event, Composed):
        released += ", and the noised count of short updates of each"
    elif audit.scenario is not None and audit.scenario.count_noise is not None:
        released += "; also the noised counts of short updates, which these figures do not cover"
    return [
        Line("Unit of privacy", _after_colon(unit.text), unit.source),
        Line("Adjacency", _after_colon(adjacency.text), adjacency.source),
        Line("What is released", released, _rounds_source(trace)),
        Line("Who is trusted", trust.text, trust.source),
    ]


def _rounds_source(trace: Trace | ImportedTrace) -> str:
    if isinstance(trace, ImportedTrace):
        return trace.rounds_source
    return "counted in the trace: its committed rounds"


def _mechanism(trace: Trace | ImportedTrace, audit: Audit, mechanism: MechanismAudit) -> list[Line]:
    scenario = audit.scenario
    source = "given to the audit"
    if scenario is not None and mechanism.is_own:
        source = "the scenario that was run"
    # With a claim the audit computes with the claimed figures, whatever was run.
    if audit.claim is not None:
        checked = "compared with the scenario below" if scenario is not None else UNSEEN
        source = f"the claim; {checked}"
    noise = mechanism.noise_multiplier
    # `privacy_statement` has refused audits without noise.
    assert noise is not None
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
    relative_to = scenario.privacy.encoding.noise_is_relative_to if scenario else "the clip norm"
    return [
        Line("Mechanism", _described(mechanism), source),
        Line("Clip norm", clip, "the scenario that was run" if scenario is not None else UNSEEN),
        Line("Noise multiplier", f"{given(noise)}, times {relative_to}", noise_source),
        Line("Rounds", f"{audit.rounds:,}", _rounds_source(trace)),
    ]


def _participation(audit: Audit, mechanism: MechanismAudit, stated: Guarantee) -> list[Line]:
    limits = _limits_text(stated)
    others = [
        f"{each.name}: {_limits_text(each) if each.participation else 'unknown'}"
        for each in mechanism.guarantees
        # Without a claim the line has no claimed participation.
        if each is not stated and (each.name != "claimed" or audit.claim is not None)
    ]
    rests = {
        "enforced": stated.reason,
        "claimed": "claimed; whether it was enforced " + UNSEEN,
        "corrected": "the claim, its broken limits corrected; whether they were enforced " + UNSEEN,
        "observed": "counted in the trace; nothing says that it was enforced",
    }[stated.name]
    return [
        Line(f"Participation ({stated.name})", limits, rests),
        Line("Other participation", "; ".join(others), "the trace, the rules and the claim"),
        _sampling(audit),
        *_filter(mechanism),
    ]


def _filter(mechanism: MechanismAudit) -> list[Line]:
    filtered = mechanism.filtered
    if filtered is None:
        return []
    said = filtered.reason
    if filtered.rho is not None and filtered.epsilon is not None:
        said += (
            f"; that gives rho {up(filtered.rho, 6)}, epsilon {up(filtered.epsilon)} at delta "
            f"{given(filtered.delta)}, in every run"
        )
    return [Line("Filter", said, "the scenario's budget, and every device's rounds")]


def _sampling(audit: Audit) -> Line:
    if audit.scenario is None:
        said = "none is assumed, so nothing is amplified"
        return Line("Sampling", said, f"how devices were chosen {UNSEEN}")
    sampled = audit.mechanisms[0].sampled
    if sampled is not None and sampled.epsilon is not None:
        said = (
            f"{sampled.reason}; where nobody learns who was drawn, that gives epsilon "
            f"{up(sampled.epsilon)} at delta {given(sampled.delta)}"
        )
        return Line("Sampling", said, "run.json, the schedule, and the number drawn in every round")
    if sampled is not None:
        said = f"nothing is amplified: {sampled.reason}"
        return Line("Sampling", said, "the schedule of stored uploads")
    said = "none is used: devices choose when they come, so nothing is amplified"
    return Line("Sampling", said, "the simulation's rules")


def _guarantee(audit: Audit, mechanism: MechanismAudit, stated: Guarantee) -> list[Line]:
    sensitivity = stated.sensitivity
    rho = stated.rho
    mu = stated.mu
    epsilon = stated.epsilon
    # `privacy_statement` chose a guarantee that is known, of a mechanism with noise.
    assert sensitivity is not None
    assert rho is not None
    assert stated.event is not None
    assert epsilon is not None
    kind = "exact" if sensitivity.is_exact else "an upper bound"
    basis = f"{stated.name} sensitivity {up(sensitivity.value, 6)} ({kind}): {sensitivity.theorem}"
    others = [
        f"{each.name}: rho {up(each.rho, 6)}, epsilon {up(each.epsilon)}"
        for each in mechanism.guarantees
        if each is not stated and each.rho is not None and each.epsilon is not None
    ]
    # Enforced figures are a guarantee; others say what they are wherever they stand.
    of = "" if stated.name == "enforced" else f" ({stated.name})"
    lines = [Line("rho (zCDP)", up(rho, 6) + of, basis)]
    if mu is not None:
        # Only Gaussian noise has a mu.
        lines.append(Line("mu (Gaussian DP)", up(mu, 6) + of, "sensitivity / noise multiplier"))
    # The accountant that gave epsilon decides which theorem is cited.
    theorem = _THEOREMS[epsilon_of(stated.event, stated.delta).accountant]
    spent = f"({up(epsilon)}, {given(stated.delta)}){of}"
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
        lines.append(
            Line("The other guarantees", "; ".join(others), "the same mechanism and noise")
        )
    return lines


def _person(audit: Audit, mechanism: MechanismAudit, stated: Guarantee) -> list[Line]:
    if audit.persons is None or mechanism.person is None:
        return []
    person = mechanism.person.named(stated.name)
    shown = [person]
    if stated.name != "observed":
        shown.append(mechanism.person.named("observed"))
    figures = [
        f"{each.name}: rho {up(each.rho, 6)}, epsilon {up(each.epsilon)} at delta "
        f"{given(each.delta)}"
        for each in shown
        if each.rho is not None and each.epsilon is not None
    ]
    assert person.sensitivity is not None
    says = f"{audit.persons.assumption.text} {'; '.join(figures)}"
    evidence = f"{audit.persons.source}; {person.sensitivity.theorem}"
    return [Line("A person instead of a device", says, evidence)]


def _claim(audit: Audit) -> list[Line]:
    if not audit.findings:
        return []
    return [
        Line("The claim", headline(audit.findings), "the statements below, one by one"),
        *(
            Line(f"Claimed {each.name}", f"{each.claimed_text}: {each.verdict}", each.explanation)
            for each in audit.findings
        ),
    ]


def _tuning(audit: Audit, stated: Guarantee, tuning: Tuning | None) -> Line:
    if tuning is None:
        return Line("Tuning", "not accounted for, nor are other runs on the same devices", UNSEEN)
    if tuning.trace_digest != audit.digest:
        raise InputError("tuning: the grid was trained on another trace; name a grid of this one")
    # A claim is about the run, so the grid then has observed figures.
    name = "enforced" if stated.name == "enforced" else "observed"
    assert stated.event is not None
    cost = tuning.cost(name, stated.delta)
    with_this = tuning.cost(name, stated.delta, stated.event)
    if cost is None:
        raise InputError(f"tuning: a cell has no {name} guarantee, so the cost is unknown")
    says = (
        f"{tuning.trainings}: {cost} ({name}); together with the release stated above: {with_this}"
    )
    return Line("Tuning", says, tuning.basis)


def _limits(audit: Audit, tuning: Tuning | None) -> list[Line]:
    assumed = [each for each in audit.rests_on[3:] if tuning is None or each.text != TUNING]
    return [
        _evaluation(audit.scenario),
        *_left_out(audit),
        # The setting has the first three assumptions.
        *(Line(CAVEAT, each.text, each.source) for each in assumed),
    ]


def _evaluation(scenario: Scenario | None) -> Line:
    name = "Evaluation data"
    if scenario is None:
        return Line(name, "not known", UNSEEN)
    data = scenario.data
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
    return Line(name, says, f"the scenario (data.kind = {data.kind!r})")


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
    return f"{mechanism.title} ({mechanism.strategy.paper})" + (f"; {said}" if said else "")


def _limits_text(guarantee: Guarantee) -> str:
    participation = guarantee.participation
    if participation is None:
        return "a unit may contribute more than once to a round, so no min-sep describes it"
    text = described(participation)
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
