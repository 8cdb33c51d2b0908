"""One mechanism on a trace: its noise, sensitivity and guarantees, and what withdraws them."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

from fedray.audit.guarantees import OBSERVED_LIMITS, Guarantee
from fedray.audit.names import DeviceNames
from fedray.audit.noise import Noise
from fedray.audit.persons import PersonAudit, Persons, audited_person
from fedray.audit.questions import OF_A_MODEL
from fedray.audit.sensitivity import TraceSensitivity
from fedray.base.document import Document, IfAny, InJson, Keys, NotInJson
from fedray.mechanisms.accounting.events import Composed
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.comparison import Utility, utility
from fedray.mechanisms.named import name_of
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Identity, Tree
from fedray.mechanisms.strategy import Strategy
from fedray.trace.imported import ImportedTrace


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
    """One mechanism on this trace.

    is_own: whether it is the run's own mechanism, or the claimed one.
    noise_multiplier: z; None if neither the trace nor the caller states the noise.
    noise: the same, or the least noise that devices added in a round of this trace.
    permitted: the same, or the least noise that the rules permit devices to add in a round.
    trace: sensitivity of this trace, with its device; exact or an upper bound, as it says.
    binding_device: name of that device.
    observed_limits: guarantee of every pattern with the min-sep and participations of this trace.
    observed, enforced, claimed: the three guarantees.
    """

    strategy: Annotated[Strategy, Keys("parameters")]
    """The mechanism."""
    is_own: bool
    noise_multiplier: float | None
    noise: NotInJson[Noise | None]
    permitted: NotInJson[Noise | None]
    trace: Annotated[TraceSensitivity, Keys("binding_rounds=rounds")]
    binding_device: str
    observed: NotInJson[Guarantee]
    observed_limits: Guarantee
    enforced: NotInJson[Guarantee]
    claimed: NotInJson[Guarantee]
    sampled: Guarantee | None = None
    """The guarantee with amplification by Poisson sampling of stored uploads; None for other
    traces."""
    filtered: Guarantee | None = None
    """The guarantee that a filter gives by excluding devices at their budget; None for a run
    without one."""
    person: IfAny[PersonAudit] = None
    """Privacy of a person instead of a device. Absent if owners are unknown."""

    @property
    def name(self) -> InJson[str]:
        """Kind of the mechanism."""
        return self.strategy.kind

    @property
    def of_server(self) -> list[Guarantee]:
        """Guarantees by the server's sampling and by its filter, if any."""
        return [each for each in (self.sampled, self.filtered) if each is not None]

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
    def releases(self) -> list[Release]:
        """The separate releases of each round, at the observed sensitivity; empty if only sums of
        updates are released."""
        event = self.observed.event
        if not isinstance(event, Composed):
            return []
        keys = {"query", "noise_multiplier"}
        return [Release(**each.model_dump(include=keys), rho=rho_of(each)) for each in event.events]

    @property
    def guarantees(self) -> InJson[tuple[Guarantee, Guarantee, Guarantee]]:
        """Observed, enforced, claimed."""
        return self.observed, self.enforced, self.claimed


def with_person(
    mechanism: MechanismAudit,
    persons: Persons,
    names: DeviceNames,
    corrected: Guarantee | None,
    has_answers: bool,
) -> MechanismAudit:
    """Adds the privacy of a person."""
    # Amplification by sampling has no figure here: a person's uploads are drawn one by one.
    of_rules = (mechanism.enforced, mechanism.claimed, mechanism.filtered, corrected)
    # A claim that limits nothing is corrected to a guarantee of its own name.
    found = {each.name: each for each in of_rules if each is not None and each.name != "sampled"}
    known = list(found.values())
    if has_answers:
        known = [replace(each, may_rest_on=False, reason=OF_A_MODEL) for each in known]
    person = audited_person(persons, names.owner, mechanism.strategy, mechanism.noise, known)
    return replace(mechanism, person=person)


def refuted(mechanism: MechanismAudit, broken: Sequence[str]) -> MechanismAudit:
    """Withdraws the claimed guarantee, since the trace breaks the limits behind it."""
    reason = f"this trace breaks the claimed {', '.join(broken)}"
    return replace(mechanism, claimed=mechanism.claimed.withdrawn(reason))


def conditional(mechanism: MechanismAudit, log: ImportedTrace) -> MechanismAudit:
    """Makes the guarantees of a log conditional on its claimed timer and on complete rows."""
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


def not_of_this_run(mechanism: MechanismAudit) -> MechanismAudit:
    """Withdraws the guarantees of a claim whose mechanism or noise the run did not use."""
    said = "the run did not add the noise that is claimed, so this is no statement about it"
    named = ("enforced", "claimed", "sampled", "filtered")
    guarantees = {name: getattr(mechanism, name) for name in named}
    refuted = {
        name: replace(each, may_rest_on=False, reason=said)
        for name, each in guarantees.items()
        if each is not None
    }
    return replace(mechanism, is_own=False, **refuted)


def compared(strategies: Sequence[Strategy], participation: MinSep, rho: float) -> list[Utility]:
    """Returns mechanisms, and independent noise and the tree, by their error at equal privacy;
    least error first. Mechanisms without a proven sensitivity are left out.

    Args:
        strategies: the mechanisms.
        participation: participation that all of them have.
        rho: rho that all of them have; positive.
    """
    kinds = {each.kind for each in strategies}
    # These two are widely known, so they are the yardstick of each comparison.
    yardsticks = (each for each in (Identity(), Tree()) if each.kind not in kinds)
    rows = []
    for strategy in (*strategies, *yardsticks):
        # An unproven case has no place in the comparison.
        with suppress(ValueError):
            sensitivity = strategy.participation_sensitivity(participation).value
            rows.append(utility(strategy, participation.rounds, sensitivity, rho))
    return sorted(rows, key=lambda each: each.rms_prefix_error)
