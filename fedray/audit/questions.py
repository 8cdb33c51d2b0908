"""Privacy of the answers to a question: one event per window in which a device answered.

A device answers at most once in a window, so its loss over a run is that of k equal events, where k
is its number of windows: the largest of the trace (observed), or the largest that the rules ensure
(enforced). If a model is trained on the same devices, its event is composed with them. Each trust
model is accounted for by itself, as if it were the only one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedray.audit.assumptions import ASSUMED, Assumption
from fedray.audit.guarantees import Guarantee, Limits
from fedray.base.document import Document, InJson, NotInJson
from fedray.base.errors import InputError
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import Composed, Event, Repeated, read_event
from fedray.mechanisms.questions.question import Plan
from fedray.scenario import Scenario
from fedray.scenario.data import FormedData, VocabularyCost

ONLY_ANSWERS = "no model was trained; the answers of the windows are accounted for by themselves"
EMPTIED = "A device's contribution to a window is replaced by an empty one."
OF_A_MODEL = (
    "it is about the model only: what a person spends on a question or a private vocabulary too is "
    "not known"
)
"""Reason why no guarantee of a person may rest on figures of a model."""
TOO_MANY = "the deltas of its parts add up to 1 or more, at which nothing is private"
VOCABULARY = (
    "The vocabulary was found by a private question. Only the rows on vocabulary and model, or on "
    "a question with the model, include what it cost; they are for a device that answered as often "
    "as the rules permit and trained."
)
"""Assumption of a training with a private vocabulary."""
TRUSTED = {
    "server": "the server sees what devices hold, bounds it and adds the noise, so it is trusted",
    "enclave": "an enclave of the server sees what devices hold, bounds it and adds the noise; its "
    "hardware and its attested code are trusted, the operator is not",
    "devices": "devices add the noise, and the server sees their sum only (secure "
    "aggregation); {least:,} or more of a window's devices are taken to add their share",
    "shuffled": "a shuffler that is trusted hides who sent which randomized report; {least:,} or "
    "more of a window's devices are taken to report honestly",
    "local": "devices randomize what they send, so no other party is trusted",
}
"""Assumption of each trust model."""


@dataclass(frozen=True, slots=True)
class AnswerPrivacy(Document):
    """Privacy that a device spends on the answers of one trust model."""

    trust: str
    """Kind of the trust model."""
    mechanism: str
    """Mechanism that answers."""
    theorem: str
    """Theorem behind the event of a window."""
    basis: str
    """Meaning of `windows`: "window" for a single one, "observed" for the most of a device of this
    trace, "enforced" for the most that the rules permit, "vocabulary" for all windows of another
    run; with "model" if the training of the run is included."""
    windows: int | None
    """Number of windows in which one device answers; None if the rules ensure nothing."""
    event: NotInJson[Event | None]
    """Spending of the device; None if unknown."""
    delta: float
    """Delta of epsilon: that of the budget for each window, and that of the model."""
    may_rest_on: bool
    """Whether a guarantee may rest on it if participation depends on the released answers."""
    reason: str
    """Why it holds, or why it is unknown."""

    @property
    def epsilon(self) -> InJson[float | None]:
        """Epsilon at delta, by the first accountant that takes the event; None if unknown."""
        return None if self.event is None else epsilon_of(self.event, self.delta).epsilon


def privacy_of_answers(
    scenario: Scenario,
    windows: int,
    enforced: Limits,
    model: tuple[Guarantee, Guarantee] | None,
) -> tuple[AnswerPrivacy, ...]:
    """Returns the privacy of every trust model: of a window, observed and enforced.

    Args:
        scenario: scenario of the run.
        windows: largest number of windows of a device of the trace.
        enforced: limits of the rules in force, in windows.
        model: observed and enforced guarantee of the model's training, without its vocabulary; None
            if none was trained.
    """
    analytics = scenario.analytics
    assert analytics is not None
    if (told := vocabulary_cost(scenario)) is not None and model is not None:
        model = (_paid(model[0], told), _paid(model[1], told))
    limit = enforced.participation
    most = limit.max_participations if limit is not None else None
    seen = "the most windows of a device of this trace; it bounds this run only"
    rows = [
        ("window", 1, True, "a device answers once in a window", None),
        ("observed", windows, False, seen, None if model is None else model[0]),
        ("enforced", most, most is not None, enforced.reason, None if model is None else model[1]),
    ]
    # A delta of every window: k windows of (epsilon, delta) have no guarantee at delta itself,
    # since each may fail with probability delta. Their sum is safe, though not always tight.
    own = analytics.delta or scenario.privacy.delta
    plans = analytics.plans(scenario.rounds.least_accepted)
    return tuple(
        _below_1(
            AnswerPrivacy(trust.kind, plan.mechanism, plan.theorem, name, count, event, delta, *why)
        )
        for trust, plan in zip(analytics.trust, plans, strict=True)
        for basis, count, *why, training in rows
        for name, event, delta in _spent(
            basis, _repeated(plan.event, count), own * (count or 1), training
        )
    )


def privacy_of_vocabulary(
    cost: VocabularyCost, model: tuple[Guarantee, Guarantee]
) -> tuple[AnswerPrivacy, ...]:
    """Returns the privacy of a private vocabulary, and together with the model trained on it.

    Args:
        cost: spending of a device on the vocabulary; the device may also train.
        model: observed and enforced guarantee of the training.
    """
    told = read_event(cost.event)
    rows: list[Any] = [
        ("vocabulary", told, cost.delta, True, "the rules of the run that found the words")
    ]
    for each in (_paid(of, cost) for of in model):
        basis = f"vocabulary and model, {each.name}"
        rows.append((basis, each.event, each.delta, each.may_rest_on, each.reason))
    return tuple(
        _below_1(AnswerPrivacy(cost.trust, cost.mechanism, cost.theorem, basis, cost.windows, *row))
        for basis, *row in rows
    )


def _paid(model: Guarantee, cost: VocabularyCost) -> Guarantee:
    """Returns the guarantee of a model and the private vocabulary that it was trained with."""
    *_, (_, event, delta) = _spent("", read_event(cost.event), cost.delta, model)
    return replace(model, event=event, delta=delta)


def _spent(
    basis: str, answers: Event | None, delta: float, training: Guarantee | None
) -> Iterator[tuple[str, Event | None, float]]:
    """Yields (basis, event, delta) of answers, and of answers together with the training."""
    yield basis, answers, delta
    if training is not None:
        parts: Any = (answers, training.event)
        together = None if None in parts else Composed(events=parts)
        yield f"{basis}, with the model", together, delta + training.delta


def _below_1(row: AnswerPrivacy) -> AnswerPrivacy:
    """Returns a row, without an event if its delta is 1 or more."""
    return row if row.delta < 1 else replace(row, event=None, may_rest_on=False, reason=TOO_MANY)


def _repeated(of_window: Any, windows: int | None) -> Event | None:
    return None if windows is None else Repeated(event=of_window, count=windows)


def charged_plan(scenario: Scenario) -> Plan:
    """Returns the plan by which a run answers its question. Raises InputError if it has several
    trust models, of which a deployment has one."""
    analytics = scenario.analytics
    assert analytics is not None
    if len(analytics.trust) > 1:
        kinds = ", ".join(each.kind for each in analytics.trust)
        rule = "are several, of which a deployment has one, whose answers a ledger counts"
        raise InputError.of("analytics.trust", kinds, rule, "keep one")
    return analytics.plans(scenario.rounds.least_accepted)[0]


def vocabulary_cost(scenario: Scenario | None) -> VocabularyCost | None:
    """Returns the cost of the vocabulary of a scenario's data; None unless it is a private one."""
    data = scenario.data if scenario is not None else None
    return data.vocabulary_cost if isinstance(data, FormedData) else None


def assumptions_of_answers(scenario: Scenario | None) -> Sequence[Assumption]:
    """Returns the assumptions behind the privacy of answers and of a private vocabulary."""
    found, source = list[Assumption](), "the scenario (data.vocabulary_cost)"
    if (cost := vocabulary_cost(scenario)) is not None:
        trust = f"The question that found the vocabulary had the trust model {cost.trust}."
        found.append(Assumption(VOCABULARY, source))
        found.append(Assumption(trust, source, f"trust {cost.trust}"))
    if scenario is None or scenario.analytics is None:
        return found
    plans = scenario.analytics.plans(scenario.rounds.least_accepted)
    trusted = [
        Assumption(
            f"Trust model {trust.kind}: {TRUSTED[trust.kind].format(least=plan.least_devices)}.",
            ASSUMED,
            f"trust {trust.kind}",
        )
        for trust, plan in zip(scenario.analytics.trust, plans, strict=True)
    ]
    unit = (
        "The unit of the answers' privacy is one device, whose contribution to a window is "
        "replaced by an empty one. That it came, and when, is not protected. Of the trust models "
        "one is used: figures of several do not add up."
    )
    return [*found, Assumption(unit, ASSUMED, "unit of answers"), *trusted]
