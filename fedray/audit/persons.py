"""Privacy of a person instead of a device, for traces that know the owners of devices.

* Observed: the patterns of a person's devices are joined, with multiplicity: two devices in one
  round are two contributions, clipped separately. The sensitivity of a joined pattern is that of
  any pattern (mechanisms/sensitivity.py): exact if no entry of C'C on it is negative.
* Under rules: the rules limit each device and not the person, so m devices of sensitivity s are at
  most m s by the triangle inequality. That is group privacy: mu grows by m, rho by m^2 (Dong, Roth
  and Su 2022, Theorem 2.14; Bun and Steinke 2016, Proposition 1.9). All m devices may be in the
  rounds of the worst pattern, so m s is exact if s is.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import numpy as np

from fedray.audit.assumptions import Assumption
from fedray.audit.guarantees import Guarantee, observed, strongest
from fedray.audit.noise import Noise
from fedray.audit.participation import Patterns
from fedray.audit.sensitivity import TraceSensitivity, trace_sensitivity
from fedray.base.arrays import Int64Array
from fedray.base.document import Document, InJson, Keys, NotInJson
from fedray.base.errors import TraceCorrupt
from fedray.base.rounding import counted, given, up
from fedray.mechanisms.accounting.events import Composed, DiscreteGaussianSum
from fedray.mechanisms.strategy import Sensitivity, Strategy
from fedray.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Persons(Document):
    """Persons who own the devices of a trace."""

    patterns: NotInJson[Patterns]
    """Rounds of every person, with owners as `device_ids`."""
    persons_by_devices: tuple[int, ...]
    """Number of persons of whom 1, 2, .. devices took part."""
    most_devices: int
    """Largest number of devices of a person, on which figures under rules rest."""
    source: NotInJson[str]
    """Source of that number."""

    @property
    def persons(self) -> InJson[int]:
        """Number of persons of whom a device took part."""
        return int(self.patterns.device_ids.size)

    @property
    def max_participations(self) -> InJson[int]:
        """Largest number of participations of a person, over all devices."""
        return self.patterns.max_participations

    @property
    def assumption(self) -> Assumption:
        """The assumption behind figures per person under rules."""
        text = f"A person has at most {counted(self.most_devices, 'device')}, which may take part "
        return Assumption(text + "in the same rounds.", self.source)

    @classmethod
    def of(cls, patterns: Patterns, scenario: Scenario | None) -> "Persons | None":
        """Returns the persons of a trace; None if its owners are unknown.

        Args:
            patterns: rounds of every device.
            scenario: scenario of the run; None for a log.

        Raises:
            TraceCorrupt: a person has more devices than the scenario permits.
        """
        if patterns.owner_ids is None:
            return None
        _, devices = np.unique(patterns.owner_ids, return_counts=True)
        most, source = int(devices.max()), "counted in the log: the most of a person that took part"
        owners = scenario.population.owners if scenario is not None else None
        if owners is not None:
            permitted = owners.most_devices
            if most > permitted:
                raise TraceCorrupt(
                    f"a person has {most} devices, but population.owners permits {permitted}, so "
                    "the trace was changed; copy it from its source again"
                )
            most, source = permitted, "the scenario (population.owners)"
        by_devices = tuple(np.bincount(devices)[1:].tolist())
        return cls(joined_by_owner(patterns), by_devices, most, source)


def joined_by_owner(patterns: Patterns) -> Patterns:
    """Returns patterns with owners in place of devices. A round in which several devices of an
    owner took part is repeated."""
    assert patterns.owner_ids is not None
    # A pattern that has round i twice sums G[i, i] four times, which is right: two equal
    # contributions of norm 1 are one of norm 2.
    owner_of_row = np.repeat(patterns.owner_ids, patterns.counts)
    order = np.lexsort((patterns.rounds, owner_of_row))
    owner_ids, counts = np.unique(owner_of_row, return_counts=True)
    weights = None if patterns.weights is None else patterns.weights[order]
    rounds = patterns.rounds[order]
    return Patterns(patterns.committed_rounds, owner_ids, counts, rounds, weights)


def joint_answers(patterns: Patterns) -> tuple[Int64Array, Int64Array]:
    """Returns the row of a person [W] in patterns joined by owner, for each window in which any of
    its devices answered, and the number of these devices [W]."""
    persons = np.repeat(np.arange(patterns.counts.size), patterns.counts)
    pairs = np.stack([persons, patterns.rounds.astype(np.int64)])
    is_first = np.ones(persons.size, np.bool_)
    # Rounds of a person are sorted, so that equal ones stand together.
    is_first[1:] = (np.diff(pairs) != 0).any(axis=0)
    starts = np.flatnonzero(is_first)
    return persons[starts], np.diff(np.append(starts, persons.size))


@dataclass(frozen=True, slots=True)
class PersonAudit(Document):
    """Privacy of a person under one mechanism."""

    trace: Annotated[TraceSensitivity, Keys("binding_rounds=rounds")]
    """Sensitivity of the worst person of this trace."""
    binding_person: str
    """Name of that person."""
    guarantees: tuple[Guarantee, ...]
    """Observed, then the guarantees under rules, whose min-sep and participations are limits of
    each device."""

    def named(self, name: str) -> Guarantee:
        """Returns the guarantee with a name."""
        return next(each for each in self.guarantees if each.name == name)


def audited_person(
    persons: Persons,
    name_of: Callable[[int], str],
    strategy: Strategy,
    noise: Noise | None,
    of_rules: Sequence[Guarantee],
) -> PersonAudit:
    """Returns the privacy of a person under a mechanism.

    Args:
        persons: the persons of the trace.
        name_of: function from an owner to the shown name.
        strategy: the mechanism.
        noise: least noise of the trace; None if unknown.
        of_rules: guarantees of a device under rules.
    """
    patterns = persons.patterns
    found = trace_sensitivity(strategy, patterns)
    own = observed(found, patterns, strategy, noise, of_rules[0].delta, "person")
    most, said = persons.most_devices, persons.assumption.text
    guarantees = (own, *(_of_group(each, most, most, "person", said) for each in of_rules))
    return PersonAudit(found, name_of(found.device_id), guarantees)


def owner_text(guarantee: Guarantee, devices: int, of: str, target: float | None = None) -> str:
    """Returns the epsilon of an owner of some devices and whether it meets a target, if there is
    one; else the noise for the enforced one of a device, which may also have a smaller one by
    sampling."""
    epsilon = guarantee.epsilon or 0.0
    if target is not None and epsilon <= target:
        return f"{up(epsilon)} {of}, which meets the target epsilon {given(target)}"
    has = f"{up(epsilon)} {of}"
    if target is not None:
        has += f", which misses the target epsilon {given(target)}"
    # A filter spends its budget, whatever the noise.
    if guarantee.name != "enforced" or devices == 1:
        return has
    return (
        f"{has}{', and' if target is not None else ', which'} {devices:,} times the noise would "
        f"lower{' it' if target is not None else ''} to the enforced one of a device"
    )


def _of_group(guarantee: Guarantee, m: int, together: int, unit: str, assumption: str) -> Guarantee:
    """Returns the guarantee of a unit with m devices from the guarantee of each device; `together`
    is the number of devices that can share the rounds of the worst pattern."""
    one = guarantee.sensitivity
    if one is None:
        return guarantee
    sensitivity = replace(
        one,
        value=m * one.value,
        # Attained if these devices have the worst pattern, with the same contributions.
        is_exact=one.is_exact and together == m,
        lower_bound=together * one.lower_bound,
        theorem=f"{counted(m, 'device')} of a {unit} (group privacy), each: {one.theorem}",
    )
    event = None if guarantee.event is None else _scaled(guarantee.event, sensitivity, m)
    assumptions = (*guarantee.assumptions, assumption)
    return replace(guarantee, sensitivity=sensitivity, event=event, assumptions=assumptions)


def _scaled(event: Any, sensitivity: Sensitivity, devices: int) -> Any:
    """Scales the release of one device to a person with a number of devices."""
    match event:
        case Composed():
            parts = [_scaled(each, sensitivity, devices) for each in event.events]
            return Composed(events=tuple(parts))
        case DiscreteGaussianSum():
            # The devices may change different sums, by `sensitivity` together.
            scaled = {"sensitivity": devices * event.sensitivity, "rounds": devices * event.rounds}
            return event.model_copy(update=scaled)
        case _:
            # The participation is that of one device.
            return event.model_copy(update={"sensitivity": sensitivity, "participation": None})


@dataclass(frozen=True, slots=True)
class Clients(Document):
    """People whose data trained a model, of whom some are on several devices each."""

    clients: int
    """Number of clients of the data, held-out ones aside."""
    most_devices: int | None
    """Largest number of devices that hold the data of one client; None if it is unknown."""
    guarantees: tuple[Guarantee, ...]
    """Guarantees of a client with that many devices, by the rules, under the first mechanism; empty
    if the number is unknown."""

    @classmethod
    def of(cls, people: Mapping[str, int], by_rules: Sequence[Guarantee]) -> Self | None:
        """Returns them, given what training.json records of people, and guarantees of a device
        under the first mechanism; None if each is on one device, and for data of no people."""
        if not people:
            return None
        most = people.get("most_devices")
        if most is None:
            return cls(people["clients"], None, ())
        if most < 2:
            return None
        text = f"A client of the data is on at most {most:,} devices."
        # A round may have fewer reports than a client has devices.
        guarantees = (_of_group(each, most, 1, "client", text) for each in by_rules)
        return cls(people["clients"], most, tuple(guarantees))

    @property
    def text(self) -> InJson[str]:
        """Whose the epsilon of a device is not, and the epsilon of a client, in sentences."""
        whose = "Epsilon is that of a device of the deployment imagined"
        if self.most_devices is None:
            return (
                f"{whose}. Unknown: on how many devices the data of one of the "
                f"{counted(self.clients, 'client')} is, since there are too many ids to count with "
                "data.tie. So the epsilon of a person is unknown."
            )
        has, found = "no epsilon may be published", strongest(self.guarantees)
        if found is not None:
            has = f"epsilon is at most {owner_text(found, self.most_devices, f'({found.name})')}"
        return (
            f"{whose}, and not of a person whose data is on several. "
            f"{counted(self.clients, 'client')} of the data are on up to {self.most_devices:,} "
            f"devices each; for a client with all of these, {has}."
        )
