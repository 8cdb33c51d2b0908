"""One mechanism on a trace: its noise, sensitivity and guarantees, and reasons to withdraw them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

from fedray.audit.guarantees import OBSERVED_LIMITS, Guarantee
from fedray.audit.names import DeviceNames
from fedray.audit.noise import Noise
from fedray.audit.persons import PersonAudit, Persons, audited_person
from fedray.audit.sensitivity import TraceSensitivity
from fedray.base.document import Document, IfAny, InJson, Keys, NotInJson
from fedray.mechanisms.accounting.events import Composed
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.named import name_of
from fedray.mechanisms.strategy import Strategy
from fedray.scenario import Scenario
from fedray.trace.imported import ImportedTrace

STOPPED_BY_MODELS = (
    "it would hold for a number of rounds that was fixed before, but released models decided it"
)
"""Reason why no guarantee may rest on the rounds of a run that its training stopped."""


class Release(NamedTuple):
    """One release of a round."""

    query: str
    """The released quantity."""
    noise_multiplier: float
    """Its noise multiplier."""
    rho: float
    """rho (zCDP) of the release."""


@dataclass(frozen=True, slots=True)
class MechanismAudit(Document):
    """One mechanism on this trace."""

    strategy: Annotated[Strategy, Keys("parameters")]
    """The mechanism."""
    is_own: bool
    """Whether it is the run's own mechanism, or the claimed one."""
    noise_multiplier: float | None
    """z; None if neither the trace nor the caller states the noise."""
    noise: NotInJson[Noise | None]
    """Noise at that multiplier; of devices, the least that they added in a round of this trace."""
    permitted: NotInJson[Noise | None]
    """The same; of devices, the least that the rules permit them to add in a round."""
    trace: Annotated[TraceSensitivity, Keys("binding_rounds=rounds")]
    """Sensitivity of this trace, with its device; exact or an upper bound, as it says."""
    binding_device: str
    """Name of that device."""
    observed: NotInJson[Guarantee]
    """The guarantee of the recorded rounds."""
    observed_limits: Guarantee
    """Guarantee of every pattern with the min-sep and participations of this trace."""
    enforced: NotInJson[Guarantee]
    """The guarantee of every pattern that the rules permit."""
    claimed: NotInJson[Guarantee]
    """The guarantee of every pattern that the claim permits."""
    sampled: Guarantee | None = None
    """The guarantee with amplification by Poisson sampling of stored uploads; None for other
    traces."""
    filtered: Guarantee | None = None
    """The guarantee that a filter gives by excluding devices at their budget; None for a run
    without one."""
    planned: IfAny[Guarantee] = None
    """The guarantee of all planned rounds. Absent unless the run's training stopped early."""
    person: IfAny[PersonAudit] = None
    """Privacy of a person instead of a device. Absent if owners are unknown."""

    @property
    def name(self) -> InJson[str]:
        """Kind of the mechanism."""
        return self.strategy.kind

    @property
    def of_server(self) -> list[Guarantee]:
        """Guarantees by the server's sampling, by its filter, and of a stopped run, if any."""
        found = (self.sampled, self.filtered, self.planned)
        return [each for each in found if each is not None]

    @property
    def observed_and_enforced(self) -> tuple[Guarantee, Guarantee]:
        """Guarantees of a device, of the recorded rounds and by the rules."""
        return self.observed, self.enforced

    @property
    def named(self) -> list[tuple[str, Guarantee]]:
        """Every guarantee, by its name in tables."""
        # Observed limits stand beside the observed pattern, because a rule could enforce them.
        found = [("observed", self.observed), (OBSERVED_LIMITS, self.observed_limits)]
        found += [(each.name, each) for each in (self.enforced, *self.of_server, self.claimed)]
        return found

    def resting(self, unit: str) -> list[Guarantee]:
        """Returns the guarantees on which one may rest, of a "device" or a "person"; none are known
        of a person without owners."""
        found = [each for _, each in self.named]
        if unit == "person":
            found = [] if self.person is None else list(self.person.guarantees)
        return [each for each in found if each.may_rest_on]

    @property
    def title(self) -> str:
        """Name of a predefined mechanism, such as blt-400, or else the kind."""
        return name_of(self.strategy)

    @property
    def rho(self) -> float | None:
        """rho of this trace."""
        return self.observed.rho

    @property
    def epsilon(self) -> float | None:
        """epsilon of this trace."""
        return self.observed.epsilon

    @property
    def releases(self) -> tuple[Release, ...]:
        """The separate releases of each round, at the observed sensitivity; empty if only sums of
        updates are released."""
        event = self.observed.event
        if not isinstance(event, Composed):
            return ()
        keys = {"query", "noise_multiplier"}
        return tuple(
            Release(**each.model_dump(include=keys), rho=rho_of(each)) for each in event.events
        )

    @property
    def guarantees(self) -> InJson[tuple[Guarantee, ...]]:
        """Observed, enforced and claimed; then those by the server and of a stopped run, if any."""
        return self.observed, self.enforced, self.claimed, *self.of_server


def with_person(
    mechanism: MechanismAudit,
    persons: Persons,
    names: DeviceNames,
    corrected: Guarantee | None,
) -> MechanismAudit:
    """Returns a mechanism with the privacy of a person, of its releases only.

    Args:
        mechanism: the mechanism on a trace.
        persons: persons who own the devices of the trace.
        names: names by which persons are shown.
        corrected: the claim's guarantee with broken statements corrected; None without a claim.
    """
    # Amplification by sampling has no figure here: a person's uploads are drawn one by one.
    of_rules = [mechanism.enforced, mechanism.claimed, mechanism.filtered, mechanism.planned]
    # A claim without a broken limit is corrected to a guarantee of the same name, which rests on
    # the rules too: it stands only for a claim that limits nothing itself.
    if corrected is not None and not (corrected.name == "claimed" and mechanism.claimed.is_known):
        of_rules.append(corrected)
    found = {each.name: each for each in of_rules if each is not None and each.name != "sampled"}
    known = list(found.values())
    person = audited_person(persons, names.owner, mechanism.strategy, mechanism.noise, known)
    return replace(mechanism, person=person)


def refuted(mechanism: MechanismAudit, broken: Sequence[str]) -> MechanismAudit:
    """Returns a mechanism without its claimed guarantee, since the trace breaks some claimed
    limits."""
    reason = f"this trace breaks the claimed {', '.join(broken)}"
    return replace(mechanism, claimed=mechanism.claimed.withdrawn(reason))


def conditional(mechanism: MechanismAudit, log: ImportedTrace) -> MechanismAudit:
    """Returns a mechanism on a log, its guarantees conditional on the claimed timer and on complete
    rows."""
    enforced, claimed = mechanism.enforced, mechanism.claimed
    if enforced.sensitivity is None:
        return mechanism
    reason = f"{enforced.reason}; it holds only if that timer was enforced, which a log cannot show"
    if log.incompleteness:
        reason += f". {log.incompleteness.rstrip('.')}"
    return replace(
        mechanism,
        enforced=replace(enforced, may_rest_on=False, reason=reason),
        # A claim rests on the enforced limits, so it rests on that timer too.
        claimed=replace(claimed, may_rest_on=False),
    )


def stopped(mechanism: MechanismAudit, planned: Guarantee) -> MechanismAudit:
    """Returns a mechanism of a run that its training stopped early: a guarantee may rest on all
    planned rounds only, since released models decided how many there were."""
    named = {
        name: each
        for name in ("enforced", "claimed", "sampled")
        if (each := getattr(mechanism, name)) is not None
    }
    not_resting = {
        name: replace(each, may_rest_on=False, reason=f"{each.reason}; {STOPPED_BY_MODELS}")
        for name, each in named.items()
        if each.may_rest_on
    }
    return replace(mechanism, planned=planned, **not_resting)


def was_used(mechanism: MechanismAudit, scenario: Scenario | None) -> bool:
    """Returns whether a run used a mechanism with its noise; True for a log."""
    own = None if scenario is None else scenario.privacy
    used = mechanism.strategy, mechanism.noise_multiplier
    return own is None or used == (own.strategy, own.noise_multiplier)


def not_of_this_run(mechanism: MechanismAudit) -> MechanismAudit:
    """Returns a claimed mechanism whose guarantees are not to be rested on, since the run had
    another mechanism or noise."""
    said = "the run did not add the noise that is claimed, so this is no statement about it"
    named = ("enforced", "claimed", "sampled", "filtered", "planned")
    guarantees = {name: getattr(mechanism, name) for name in named}
    withdrawn = {
        name: replace(each, may_rest_on=False, reason=said)
        for name, each in guarantees.items()
        if each is not None
    }
    return replace(mechanism, is_own=False, **withdrawn)
