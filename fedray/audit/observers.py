"""Observers of a run, and the privacy of a device from each of them.

A guarantee is about an observer. The verdict of an audit is about whoever gets the models. Other
parties see more: a device knows its own draws and noise, the operator of the server sees what
reaches it. The figure of an observer is that of the verdict's event with the noise and the
amplification that remain against the observer, and never below the verdict. Neighbours differ in
the updates of one device, which are zero in one of them (zero-out).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from fedray.audit.assumptions import ENCRYPTED, HARDWARE, HONEST, POLICY, SHUFFLED, STORE
from fedray.audit.basis import Basis
from fedray.audit.mechanism_audit import MechanismAudit
from fedray.audit.noise import DeviceNoise, Noise, ServerNoise
from fedray.audit.participation import Patterns
from fedray.audit.questions import ONLY_ANSWERS, AnswerPrivacy, repeated, vocabulary_cost
from fedray.base.document import Document
from fedray.base.errors import InputError, shown
from fedray.base.rounding import given
from fedray.encoding.tables import MALICIOUS_SHARE, DeviceNoiseTable, DevicesTrust, ModularTable
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import (
    Composed,
    DiscreteGaussianSum,
    Event,
    FixedSizeSampled,
    MinSepSampled,
    PoissonSampled,
    PostProcessed,
    Repeated,
    StrategyRelease,
    read_event,
)
from fedray.mechanisms.participation import MinSep, most_of_device
from fedray.mechanisms.questions.local import ShuffledReports
from fedray.mechanisms.questions.question import Plan
from fedray.mechanisms.registry import Identity
from fedray.scenario import Scenario
from fedray.scenario.trust import AnyTrust

MODELS = "whoever gets the models"
DEVICE = "a device of the cohort"
OPERATOR = "the operator of the server"
SYBILS = "the operator with a share of malicious devices"
NETWORK = "the network"
SHUFFLER = "the shuffler"
"""An observer that only shuffled reports have."""
OBSERVERS = (MODELS, DEVICE, OPERATOR, SYBILS, NETWORK)
"""The observers, in the order of the table. A row of the first is named by what was released."""
NOISE, ENCRYPTION, NOTHING, UNKNOWN = "noise", "encryption", "nothing", "unknown"
"""Values of `Observer.protected_by`."""
NOT_PROTECTED = (
    "Against the operator and the network nothing hides who takes part, when, and who drops out. "
    "A neighbour has zeros in place of one device's updates (zero-out)."
)
"""Limits of every row."""
_CONTENTS = {"model": "models", "question": "answers", "vocabulary": "vocabulary"}
_SENT = {
    "server": "what every device sends",
    "devices": "sums with the noise of all their devices",
    "enclave": "what the enclave releases",
    "shuffled": "every report, without its sender",
    "local": "what every device sends, with its own noise",
}
"""Data that reaches the operator, by the kind of trust."""
_ASSUMED = {
    ("enclave", OPERATOR): (HARDWARE, POLICY),
    ("enclave", SYBILS): (HARDWARE,),
    ("devices", OPERATOR): (STORE,),
    ("devices", SYBILS): (STORE, HONEST),
    ("shuffled", OPERATOR): (SHUFFLED,),
    ("shuffled", SYBILS): (SHUFFLED,),
}
"""Assumptions by the kind of trust and the observer."""


@dataclass(frozen=True, slots=True)
class Observer(Document):
    """A party, and the privacy of a device from it."""

    name: str
    """Name of the party: whoever gets the models, or the answers, or both; a device of the cohort;
    the operator of the server; the same with a share of malicious devices; the network; or the
    shuffler of reports."""
    trust: str
    """Kind of trust: server, devices, enclave, shuffled or local; with a question or a private
    vocabulary, that of each release. Two trust models of one kind have the parameters in which they
    differ, too."""
    sees: str
    """Data that the party sees."""
    protected_by: str
    """Protection of a device from the party: "noise", "encryption", "nothing"; "unknown" if the
    audit knows no privacy of the releases."""
    epsilon: float | None
    """Epsilon at `delta`; None unless noise protects."""
    delta: float | None
    """Delta of epsilon; None without epsilon."""
    reason: str
    """Basis of the protection, or the reason for having none."""
    assumptions: tuple[str, ...] = ()
    """Assumptions about the party, in sentences. The assumptions of the audit include them."""


class NotProtected(Exception):
    """Nothing protects a device from an observer. The message is a clause."""


class Part(NamedTuple):
    """A release of a run: its model, the answers to its question, or its private vocabulary."""

    name: str
    """model, question or vocabulary."""
    trust: str
    """Kind of trust: server, devices, enclave, shuffled or local."""
    event: Event | None
    """Spending of a device against whoever gets the release; None if unknown."""
    sent: str
    """Data that reaches the operator."""
    is_correlated: bool = False
    """Whether rounds without the device count, because their noise protects its earlier updates
    too."""
    shuffled: ShuffledReports | None = None
    """Reports of the release, if it is of shuffled ones."""
    windows: int = 1
    """Number of windows in which the device sent one."""
    differs: str = ""
    """Parameters in which it differs from other trust models of its kind, such as
    " (least_devices=100)"; empty without such models."""

    @property
    def devices(self) -> int:
        """f, the devices of the sum with the least noise, or of a shuffle; 0 if they protect no one
        else."""
        if self.shuffled is not None:
            return self.shuffled.least_devices // self.shuffled.groups
        sums = (each for each in _within(self.event) if isinstance(each, DiscreteGaussianSum))
        return min((each.devices for each in sums), default=0)

    @property
    def is_sampled(self) -> bool:
        """Whether privacy rests on secret draws."""
        drawn = PoissonSampled | FixedSizeSampled | MinSepSampled
        return any(isinstance(each, drawn) for each in _within(self.event))

    def honest(self, observer: str, malicious: float) -> int:
        """Returns the devices of that sum whose noise the observer does not know.

        Args:
            observer: one of `OBSERVERS`.
            malicious: share of the devices of a sum that help the operator, 0 to 1.
        """
        f = self.devices
        # The decimal that was written: 0.1 as a float is slightly more than a tenth.
        of_operator = math.ceil(Fraction(repr(malicious)) * f)
        known = {DEVICE: 1, SYBILS: of_operator}.get(observer, 0)
        # With independent noise only sums with the device itself count, whose noise is its own.
        return max(f - known, 0 if self.is_correlated else min(1, f))

    def against(self, observer: str, malicious: float) -> Event | None:
        """Returns the spending of a device against an observer; None if unknown.

        Args:
            observer: one of `OBSERVERS`, except the network.
            malicious: share of malicious devices, as in `honest`.

        Raises:
            NotProtected: nothing protects from the observer.
        """
        is_operator = observer in (OPERATOR, SYBILS)
        if self.trust == "server" and is_operator:
            raise NotProtected("it adds the noise, so it is trusted")
        if self.event is None or observer == MODELS:
            return self.event
        if self.trust in ("server", "enclave"):
            return self.event if observer == OPERATOR else without_sampling(self.event)
        if self.trust == "local" and is_operator:
            return with_noise_of(self.event, 1)
        if observer == OPERATOR:
            return self.event
        if self.trust == "shuffled":
            if (
                self.shuffled is None
            ):  # a vocabulary of another run, of which only the event is known
                return None
            report = self.shuffled.event_of(self.honest(observer, malicious))
            return repeated(self.shuffled.report if observer == SHUFFLER else report, self.windows)
        if observer == SHUFFLER:
            return self.event
        honest = self.honest(observer, malicious)
        if self.devices and not honest:
            raise NotProtected("it may know all noise of a sum that protects the device")
        return with_noise_of(self.event, honest)

    def reason(self, observer: str, malicious: float, recipients: str) -> str:
        """Returns the noise that protects from an observer, in words.

        Args:
            observer: one of `OBSERVERS`, as in `against`.
            malicious: share of malicious devices, as in `honest`.
            recipients: name of whoever gets all releases of the run.
        """
        f, as_recipients = f"{self.devices:,}", f"as for {recipients}"
        if self.shuffled is not None:
            if observer == SHUFFLER:
                return "the noise of the device's own report"
            return f"{self.honest(observer, malicious):,} of {f} reports in a random order"
        if self.trust in ("server", "enclave"):
            if not self.is_sampled:
                return as_recipients
            if observer == OPERATOR:
                return (
                    f"{as_recipients}, if the enclave makes the draws; else without amplification"
                )
            return f"{as_recipients}, but without amplification: it knows its own draws"
        if observer == OPERATOR and self.trust == "devices":
            return f"{as_recipients}: noise of {f} devices in a sum"
        if observer != DEVICE and self.trust == "local":
            return "the noise that a device adds to what it sends"
        if not self.devices:
            return "the noise of the device's own report"
        text = f"noise of {self.honest(observer, malicious):,} of {f} devices in a sum"
        return text if observer == DEVICE else f"{text}, {_percent(malicious)} malicious"


@dataclass(frozen=True, slots=True)
class Releases:
    """All that a run released, under one choice of trust models."""

    parts: tuple[Part, ...]
    """The releases."""
    epsilon: float | None
    """Epsilon of the verdict: against whoever gets all releases. None if unknown."""
    delta: float
    """Delta of every epsilon."""
    rests_on: str
    """Guarantee behind that epsilon, in words, or the reason for having none."""
    is_silent: bool
    """Whether a model was released without noise."""
    most_malicious: float
    """Largest share of malicious devices under which a store keeps its secrets."""
    is_stated: bool = True
    """Whether the verdict is about these trust models, of which a question may have several."""
    ensured: str | None = None
    """Digest of the claim that the run had to ensure; None without one."""

    @property
    def trust(self) -> str:
        """Kind of trust, with the parameters in which those of one kind differ; of each release, if
        there are several."""
        kinds = [f"{each.trust}{each.differs}" for each in self.parts]
        if len(self.parts) == 1:
            return kinds[0]
        return ", ".join(
            f"{part.name} {kind}" for part, kind in zip(self.parts, kinds, strict=True)
        )

    @property
    def contents(self) -> str:
        """The releases in words."""
        *others, last = (_CONTENTS[each.name] for each in self.parts)
        return f"the {', '.join(others)} and {last}" if others else f"the {last}"

    @property
    def recipients(self) -> str:
        """Name of the observer against whom the verdict is: whoever gets all releases."""
        return f"whoever gets {self.contents}"

    @property
    def of_devices(self) -> tuple[Part, ...]:
        """Releases whose noise the devices of a sum share; empty if nothing protects from the
        operator anyway."""
        if any(each.trust == "server" for each in self.parts):
            return ()
        return tuple(each for each in self.parts if each.trust == "devices" and each.devices)

    def epsilon_against(self, observer: str, malicious: float = 0.0) -> float | None:
        """Returns epsilon against an observer; None if unknown. Arguments and errors as in
        `Part.against`."""
        if self.is_silent:
            raise NotProtected(self.rests_on)
        found = [each.against(observer, malicious) for each in self.parts]
        if self.epsilon is None or any(each is None for each in found):
            return None
        if all(new is each.event for new, each in zip(found, self.parts, strict=True)):
            return self.epsilon
        events: Any = tuple(found)
        # An accountant may know a single event better than a composition.
        event = events[0] if len(events) == 1 else Composed(events=events)
        # The models follow from all that others see, but bounds need not fall with them.
        return max(self.epsilon, epsilon_of(event, self.delta).epsilon)

    def observers(self) -> Iterator[Observer]:
        """Yields a row for each observer."""
        yield from map(self._row, (MODELS, DEVICE, OPERATOR, SYBILS))
        party = (NETWORK, self.trust, "times and sizes of messages")
        yield Observer(*party, ENCRYPTION, None, None, "encryption is assumed", (ENCRYPTED,))
        if any(each.shuffled for each in self.parts):
            yield self._row(SHUFFLER)

    def _row(self, name: str) -> Observer:
        malicious = self.most_malicious if name == SYBILS else 0.0
        party = (self.recipients if name == MODELS else name, self.trust, self._seen_by(name))
        try:
            epsilon = self.epsilon_against(name, malicious)
        except NotProtected as nothing:
            return Observer(*party, NOTHING, None, None, str(nothing))
        if epsilon is None:
            return Observer(*party, UNKNOWN, None, None, self.rests_on)
        reason = self.rests_on if name == MODELS else self._reason(name, malicious)
        kinds = [each.trust for each in self.parts]
        assumed = assumed_about(kinds, self.most_malicious, (name,))
        return Observer(*party, NOISE, epsilon, self.delta, reason, assumed)

    def _seen_by(self, name: str) -> str:
        contents = self.contents
        if name == MODELS:
            return contents
        if name == DEVICE:
            has_noise = any(each.trust in ("devices", "local") for each in self.parts)
            return f"{contents}, and its own {'updates and noise' if has_noise else 'updates'}"
        if name == SHUFFLER:
            return f"{contents}, and every report with its sender"
        sent = "; ".join(dict.fromkeys(each.sent for each in self.parts))
        if name == OPERATOR:
            return sent
        return f"{sent}, and all that {_percent(self.most_malicious)} of the devices know"

    def _reason(self, name: str, malicious: float) -> str:
        recipients = self.recipients
        reasons = {each.name: each.reason(name, malicious, recipients) for each in self.parts}
        text = "; ".join(f"{part}: {text}" for part, text in reasons.items())
        if len({*reasons.values()}) == 1:
            text = next(iter(reasons.values()))
        # An enclave keeps the policy by which it was started.
        if name in (OPERATOR, SYBILS) and any(each.trust == "enclave" for each in self.parts):
            claim = f"the claim {self.ensured[:12]}" if self.ensured else "no claim"
            text += f"; {claim} was ensured"
        return text


def releases_of(
    basis: Basis,
    trust: AnyTrust | None,
    used: MechanismAudit | None,
    answers: Sequence[AnswerPrivacy],
    scenario: Scenario | None,
    no_guarantee: str | None,
    ensured: str | None,
) -> tuple[Releases, ...]:
    """Returns the releases of a run: one for each trust model of its question, in the order of the
    scenario, or one without a question. Empty without a trust.

    Args:
        basis: basis of the verdict.
        trust: trust of the model; None for a log whose claim states none.
        used: first mechanism of the audit; None without one.
        answers: privacy of the answers and of a private vocabulary.
        scenario: scenario of the run; None for a log.
        no_guarantee: reason for having no privacy figures of a model, or None.
        ensured: digest of the claim that the run had to ensure, or None.
    """
    if trust is None:
        return ()
    has_model = no_guarantee != ONLY_ANSWERS
    plans = () if scenario is None else _plans(scenario)
    is_summed = scenario is not None and isinstance(scenario.privacy.sent, ModularTable)
    vocabulary = vocabulary_cost(scenario)
    kind = trust_of_model(trust, None if used is None else used.noise)
    is_correlated = used is not None and not isinstance(used.strategy, Identity)
    sent = "sums of what devices send" if kind == "server" and is_summed else _SENT[kind]
    share = malicious_share(trust)

    def of_model(event: Event | None) -> Part:
        return Part("model", kind, event, sent, kind == "devices" and is_correlated)

    stated = basis.stated
    if stated is None:
        # The answers have no figure either, if a model beside them had no noise.
        is_silent = has_model and no_guarantee is not None
        why = no_guarantee if is_silent else "the audit knows no privacy of this run"
        parts = (
            (of_model(None),)
            if has_model
            else tuple(_of_answers(*each) for each in zip(answers, plans[:1], strict=False))
        )
        return (Releases(parts, None, 0.0, why or "", is_silent, share, ensured=ensured),)
    rests_on = f"{stated.name}: {basis.condition}"
    if not basis.answers:
        parts = (of_model(stated.event),)
        of_model_only = (stated.epsilon, stated.delta, rests_on, False, share)
        return (Releases(parts, *of_model_only, ensured=ensured),)
    found, own = list[Releases](), list[Part]()
    left = zip(plans, _differences(scenario), strict=True)
    for row in answers:
        # The answers of a trust model, and then the same with the model.
        if (row.basis, row.unit) == (stated.name, "device"):
            plan, differs = next(left)
            own = [_of_answers(row, plan)._replace(differs=differs)]
        if not any(row is each for each in basis.answers):
            continue
        parts = [*own]
        if has_model and used is not None:
            model = used.enforced if stated.name == "enforced" else used.observed
            parts.insert(0, of_model(model.event))
            if vocabulary is not None:
                parts.append(_part("vocabulary", vocabulary.trust, read_event(vocabulary.event)))
        of_row = (row.epsilon, row.delta, rests_on, False, share, row is basis.answers[0], ensured)
        found.append(Releases(tuple(parts), *of_row))
    return tuple(found)


def trust_of_model(trust: AnyTrust, noise: Noise | None) -> str:
    """Returns the kind of trust under which a model has some noise. Devices add only the noise of
    the run's own mechanism; that of any other is taken to be the server's."""
    if isinstance(trust, DeviceNoiseTable) and not isinstance(noise, DeviceNoise):
        return "server"
    return trust.kind


def _of_answers(row: AnswerPrivacy, plan: Plan) -> Part:
    part = _part("question", row.trust, row.event)
    if not isinstance(plan.sums, ShuffledReports):
        return part
    return part._replace(shuffled=plan.sums, windows=row.windows or 1)


def _plans(scenario: Scenario) -> Sequence[Plan]:
    """Returns the mechanisms of a run's question, one for each trust model."""
    analytics = scenario.analytics
    return () if analytics is None else analytics.plans(scenario.rounds.least_accepted)


def _differences(scenario: Scenario | None) -> list[str]:
    """Returns, for each trust model of a run's question, the parameters in which it differs from
    others of its kind, in parentheses; an empty string without others."""
    analytics = None if scenario is None else scenario.analytics
    models = () if analytics is None else analytics.trust
    found = list[str]()
    for each in models:
        own = each.model_dump()
        alike = [other.model_dump() for other in models if other.kind == each.kind]
        names = [key for key in own if any(other[key] != own[key] for other in alike)]
        values = ", ".join(f"{key}={shown(own[key])}" for key in names)
        found.append(f" ({values})" if values else "")
    return found


def _part(name: str, trust: str, event: Event | None) -> Part:
    return Part(name, trust, event, _SENT[trust])


def assumed_about(
    kinds: Iterable[str], most_malicious: float, observers: Sequence[str] = OBSERVERS
) -> tuple[str, ...]:
    """Returns the assumptions about observers, in sentences.

    Args:
        kinds: kinds of trust of the releases.
        most_malicious: largest share of malicious devices under which a store keeps its secrets.
        observers: names of the observers.
    """
    texts = [
        text.format(share=_percent(most_malicious))
        for kind in kinds
        for name in observers
        for text in _ASSUMED.get((kind, name), ())
    ]
    if NETWORK in observers:
        texts.append(ENCRYPTED)
    return tuple(dict.fromkeys(texts))


def malicious_share(trust: AnyTrust) -> float:
    """Returns the largest share of malicious devices against which a run is stated."""
    return trust.malicious_share if isinstance(trust, DevicesTrust) else MALICIOUS_SHARE


def _percent(share: float) -> str:
    return f"{given(round(100 * share, 1))} %"


def without_sampling(event: Event) -> Event:
    """Returns the event of a device whose draws are known, and which was drawn in every turn."""
    match event:
        case PoissonSampled() | FixedSizeSampled():
            return without_sampling(event.event)
        case MinSepSampled():
            n, b = event.rounds, event.min_sep
            most = MinSep(n, b, most_of_device(n, b))
            return StrategyRelease.under(event.strategy, most, event.noise_multiplier)
        case Repeated() | PostProcessed() | Composed():
            return _with_parts(event, [without_sampling(each) for each in _parts_of(event)])
        case _:
            return event


def with_noise_of(event: Event, devices: int) -> Event:
    """Returns an event whose sums have the noise of a number of devices, at most their own."""
    match event:
        case DiscreteGaussianSum():
            kept = min(devices, event.devices)
            return event if kept == event.devices else event.model_copy(update={"devices": kept})
        case Repeated() | PostProcessed() | Composed():
            return _with_parts(event, [with_noise_of(each, devices) for each in _parts_of(event)])
        case _:
            return event


def _within(event: Event | None) -> Iterator[Event]:
    """Yields an event and all events within it."""
    if event is not None:
        yield event
        for each in _parts_of(event):
            yield from _within(each)


def _parts_of(event: Event) -> tuple[Event, ...]:
    match event:
        case Composed():
            return event.events
        case Repeated() | PostProcessed() | PoissonSampled() | FixedSizeSampled():
            return (event.event,)
        case _:
            return ()


def _with_parts(event: Repeated | PostProcessed | Composed, parts: Sequence[Event]) -> Event:
    # An event without a changed part stays the same object, with the epsilon of the verdict.
    if all(new is old for new, old in zip(parts, _parts_of(event), strict=True)):
        return event
    changed = {"events": tuple(parts)} if isinstance(event, Composed) else {"event": parts[0]}
    return event.model_copy(update=changed)


def against_operator(trust: str) -> Callable[[Event], Event]:
    """Returns a function from the spending of a device on a release to its spending against the
    operator of the server, under a kind of trust.

    Raises:
        InputError: nothing protects from the operator.
    """
    if trust == "server":
        raise InputError(
            "the operator of the server adds the noise, so nothing protects from it, and the "
            "budget is of this observer; charge a budget of the observer models"
        )
    return lambda event: with_noise_of(event, 1) if trust == "local" else event


def noise_against_operator(trust: AnyTrust, noise: Noise) -> Noise:
    """Returns the noise of a model against the operator of the server. Raises InputError, as
    `against_operator`."""
    found = against_operator(trust_of_model(trust, noise))
    if not isinstance(noise, DeviceNoise):
        return noise
    event = found(noise.event)
    assert isinstance(event, DiscreteGaussianSum)
    return replace(noise, event=event)


def noise_of_log(
    table: DeviceNoiseTable, strategy: Identity, noise: ServerNoise, patterns: Patterns
) -> DeviceNoise:
    """Returns the noise that devices of a log add in the round with the fewest, if a claim's noise
    multiplier is that of this round.

    Args:
        table: trust that the claim states.
        strategy: mechanism of the claim.
        noise: noise at the claimed multiplier.
        patterns: rounds of every device.

    Raises:
        InputError: nothing is proven for so little noise.
    """
    accepted = np.bincount(patterns.rounds, minlength=patterns.committed_rounds)
    # A round without devices says nothing of the rounds in which a device takes part.
    accepted = np.where(accepted > 0, accepted, accepted.max())
    fewest = int(accepted.argmin())
    devices = int(accepted[fewest])
    return DeviceNoise.of(table, strategy, noise.multiplier, devices, devices, fewest)
