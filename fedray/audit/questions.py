"""Privacy of the answers to a question: one event per window in which a device answered.

A device answers at most once in a window, so its loss over a run is that of k equal events, where k
is its number of windows: the largest of the trace (observed), or the largest that the rules ensure
(enforced). If a model is trained on the same devices, its event is composed with them. Each trust
model is accounted for by itself, as if it were the only one. If owners of devices are known, a
person has rows too, by group privacy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fedray.audit.assumptions import ASSUMED, Assumption
from fedray.audit.guarantees import Guarantee, Limits
from fedray.audit.persons import Persons, joint_answers
from fedray.base.arrays import Int64Array
from fedray.base.document import Document, InJson, NotInJson
from fedray.base.errors import InputError
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import Composed, Event, EventRefused, Repeated, read_event
from fedray.mechanisms.accounting.group import GROUP_THEOREM, WindowLoss, of_group
from fedray.mechanisms.accounting.zcdp import failure_of
from fedray.mechanisms.questions.question import Plan
from fedray.scenario import Scenario
from fedray.scenario.data import FormedData, VocabularyCost

ONLY_ANSWERS = "no model was trained; the answers of the windows are accounted for by themselves"
EMPTIED = "A device's contribution to a window is replaced by an empty one."
NO_GROUP = "epsilon of all devices of a person together is 100 or more, at which nothing is private"
"""Reason why a person has no figure."""
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
    """Privacy that a device, or a person with several, spends on the answers of one trust model."""

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
    """Number of windows in which one device answers, added up over the devices of a person; None if
    the rules ensure nothing."""
    event: NotInJson[Event | None]
    """Spending of the unit; None if unknown."""
    delta: float
    """Delta of epsilon: that of the budget for each window, and that of the model."""
    may_rest_on: bool
    """Whether a guarantee may rest on it if participation depends on the released answers."""
    reason: str
    """Why it holds, or why it is unknown."""
    unit: str = "device"
    """Unit of the figures: "device", or "person" for all devices of a person together."""

    @property
    def epsilon(self) -> InJson[float | None]:
        """Epsilon at delta, by the first accountant that takes the event; None if unknown."""
        return None if self.event is None else epsilon_of(self.event, self.delta).epsilon


class OfPersons(NamedTuple):
    """Persons who own the devices of a trace, and their part in its model."""

    persons: Persons
    """The persons."""
    model: tuple[Guarantee, Guarantee] | None
    """Observed and enforced guarantee of a person of the model's training, without its vocabulary;
    None if none was trained."""

    def row(self, of_device: AnswerPrivacy) -> AnswerPrivacy:
        """Returns the row of a person beside that of a device on answers only."""
        theorem = f"{of_device.theorem}; {GROUP_THEOREM}"
        found, count = replace(of_device, unit="person", theorem=theorem), of_device.windows
        if of_device.event is None or count is None:
            return found
        answers = None
        if found.basis == "observed":
            answers = joint_answers(self.persons.patterns)
            count = self.persons.max_participations
        else:
            count *= self.persons.most_devices
        of_one = _Cost(of_device.event, of_device.delta)
        spent = of_one.of_group(self.persons.most_devices, answers)
        if spent.event is None:
            found = replace(found, may_rest_on=False, reason=spent.reason)
        return replace(found, windows=count, event=spent.event, delta=spent.delta)


class _Cost(NamedTuple):
    """Spending on answers in a number of windows."""

    event: Any
    """Event of all windows; None if it is unknown, or means nothing."""
    delta: float
    """Delta of its epsilon."""
    reason: str = ""
    """Reason for an unknown event."""

    @classmethod
    def of(cls, cost: VocabularyCost) -> "_Cost":
        return cls(read_event(cost.event), cost.delta)

    def of_group(
        self, devices: int, answers: tuple[Int64Array, Int64Array] | None = None
    ) -> "_Cost":
        """Returns the spending of a person with several devices, given that of a device.

        Args:
            devices: number of devices of the person.
            answers: `joint_answers`; None if all devices answer in the same windows.
        """
        event, windows = (
            (self.event.event, self.event.count)
            if isinstance(self.event, Repeated)
            else (self.event, 1)
        )
        try:
            loss = WindowLoss.of(event, self.delta / windows)
        except EventRefused as error:
            return _Cost(None, self.delta, str(error))
        together = np.full(windows, devices)
        found = of_group(loss, *(answers or (np.zeros_like(together), together)))
        if found is None:
            return _Cost(None, self.delta, NO_GROUP)
        # Beside the failures of the windows, epsilon is at the same delta as that of a device.
        rest = max(0.0, self.delta - loss.delta * windows)
        return _Cost(found, rest + failure_of(found))

    def with_model(self, model: Guarantee) -> Guarantee:
        """Returns the guarantee of a model and the vocabulary that it was trained with."""
        event = _together(self.event, model.event)
        return replace(model, event=event, delta=self.delta + model.delta)


def privacy_of_answers(
    scenario: Scenario,
    windows: int,
    enforced: Limits,
    model: tuple[Guarantee, Guarantee] | None,
    of_persons: OfPersons | None = None,
) -> tuple[AnswerPrivacy, ...]:
    """Returns the privacy of every trust model: of a window, observed and enforced, of a device and
    then of a person.

    Args:
        scenario: scenario of the run.
        windows: largest number of windows of a device of the trace.
        enforced: limits of the rules in force, in windows.
        model: observed and enforced guarantee of the model's training, without its vocabulary; None
            if none was trained.
        of_persons: persons who own the devices; None if owners are unknown.
    """
    analytics = scenario.analytics
    assert analytics is not None
    of_person = None if of_persons is None else of_persons.model
    if (told := vocabulary_cost(scenario)) is not None and model is not None:
        cost = _Cost.of(told)
        model = (cost.with_model(model[0]), cost.with_model(model[1]))
        if of_persons is not None and of_person is not None:
            cost = cost.of_group(of_persons.persons.most_devices)
            of_person = (cost.with_model(of_person[0]), cost.with_model(of_person[1]))
    limit = enforced.participation
    most = limit.max_participations if limit is not None else None
    seen = "the most windows of a device of this trace; it bounds this run only"
    rows = [
        ("window", 1, True, "a device answers once in a window"),
        ("observed", windows, False, seen),
        ("enforced", most, most is not None, enforced.reason),
    ]
    # A delta of every window: k windows of (epsilon, delta) have no guarantee at delta itself,
    # since each may fail with probability delta. Their sum is safe, though not always tight.
    own = analytics.delta or scenario.privacy.delta
    plans = analytics.plans(scenario.rounds.least_accepted)
    found = list[AnswerPrivacy]()
    for trust, plan in zip(analytics.trust, plans, strict=True):
        head, of_persons_too = (trust.kind, plan.mechanism, plan.theorem), list[AnswerPrivacy]()
        for place, (basis, count, may_rest, reason) in enumerate(rows):
            event, delta = repeated(plan.event, count), own * (count or 1)
            row = AnswerPrivacy(*head, basis, count, event, delta, may_rest, reason)
            found += _with_model(row, model, place)
            if of_persons is not None:
                row = of_persons.row(row)
                of_persons_too += _with_model(row, of_person, place)
        found += of_persons_too
    return tuple(_below_1(each) for each in found)


def _with_model(
    row: AnswerPrivacy, model: tuple[Guarantee, Guarantee] | None, place: int
) -> Iterator[AnswerPrivacy]:
    """Yields the row of answers, and that of answers and the model, of which a window has none."""
    yield row
    if model is not None and place > 0:
        training = model[place - 1]
        delta, event = row.delta + training.delta, _together(row.event, training.event)
        yield replace(row, basis=f"{row.basis}, with the model", event=event, delta=delta)


def privacy_of_vocabulary(
    cost: VocabularyCost,
    model: tuple[Guarantee, Guarantee],
    of_persons: OfPersons | None = None,
) -> tuple[AnswerPrivacy, ...]:
    """Returns the privacy of a private vocabulary, and together with the model trained on it, of a
    device and then of a person.

    Args:
        cost: spending of a device on the vocabulary; the device may also train.
        model: observed and enforced guarantee of the training.
        of_persons: persons who own the devices; None if owners are unknown.
    """
    own, found = _Cost.of(cost), list[AnswerPrivacy]()
    of_units = [("device", own, model, cost.windows)]
    if of_persons is not None and of_persons.model is not None:
        most = of_persons.persons.most_devices * cost.windows
        spent = own.of_group(of_persons.persons.most_devices)
        of_units.append(("person", spent, of_persons.model, most))
    for unit, spent, guarantees, windows in of_units:
        theorem = cost.theorem if unit == "device" else f"{cost.theorem}; {GROUP_THEOREM}"
        rules, is_known = "the rules of the run that found the words", spent.event is not None
        why = (is_known, spent.reason or rules)
        rows: list[Any] = [("vocabulary", spent.event, spent.delta, *why)]
        for each in map(spent.with_model, guarantees):
            basis, rests = f"vocabulary and model, {each.name}", each.may_rest_on and is_known
            rows.append((basis, each.event, each.delta, rests, spent.reason or each.reason))
        head = (cost.trust, cost.mechanism, theorem)
        found += [AnswerPrivacy(*head, basis, windows, *row, unit=unit) for basis, *row in rows]
    return tuple(_below_1(each) for each in found)


def vocabulary_event(cost: VocabularyCost, most_devices: int) -> Event:
    """Returns the most that a device spent on a private vocabulary, or a person with several.

    Raises:
        InputError: it is too much to mean anything.
    """
    spent = _Cost.of(cost)
    spent = spent if most_devices == 1 else spent.of_group(most_devices)
    if spent.event is None:
        raise InputError(f"data.vocabulary_cost: {spent.reason}; charge it to a budget of devices")
    return spent.event


def _together(*parts: Event | None) -> Event | None:
    return None if None in parts else Composed(events=parts)  # pyright: ignore[reportArgumentType]


def _below_1(row: AnswerPrivacy) -> AnswerPrivacy:
    """Returns a row, without an event if its delta is 1 or more."""
    return row if row.delta < 1 else replace(row, event=None, may_rest_on=False, reason=TOO_MANY)


def repeated(of_window: Any, windows: int | None) -> Event | None:
    """Returns the spending of a device in a number of windows; None if that is unknown."""
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
