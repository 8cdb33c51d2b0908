"""Privacy that units spent in one window, added up over releases by their keys.

A unit's spending has a component for each kind of release: rho of Gaussian noise, rho of other
noise, epsilon at delta 0, and the number of answers with each stated guarantee (epsilon, delta).
Components add up over
releases with independent noise, and epsilon is that of their composition, as in an audit.

Units whose names share a key are one unit with the sum of their spending. Only the releases of logs
whose ids were stated to be distinct are added up by name; then a key spent the sum of its other
releases, which may be of any of these names, and the largest sum of a name.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from fedray.audit.ledger_lines import Release
from fedray.base.arrays import Float64Array, Int64Array
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import (
    MOST_COUNT,
    MOST_STATED_EPSILON,
    ApproximateDP,
    Composed,
    DiscreteGaussianSum,
    Event,
    EventRefused,
    Gaussian,
    GaussianEvent,
    Repeated,
    read_event,
)
from fedray.mechanisms.accounting.pld import parts_of
from fedray.mechanisms.accounting.zcdp import rho_of, zcdp_epsilon

MOST_CANDIDATES = 32
"""Largest number of units whose epsilon is computed; of more, none of which exceeds another in all
components, a unit with the largest of each is taken, an upper bound."""
MOST_COMPARED = 1 << 12
"""Largest number of different units that are compared with each other."""
_Component = str | tuple[float, float]
"""Kind of noise whose rho adds up, "pure" for epsilons that do, or the epsilon and delta of a
stated guarantee."""


class Charge(NamedTuple):
    """Amounts that units spent on one part of a version of a release."""

    place: tuple[int, int]
    """Number of the release, and of the part in it; versions of a release share both."""
    release: Release
    """Meaning of the amounts."""
    names: pa.Array
    """Name of each unit, [U], as text."""
    keys: pa.Array
    """Key of each unit, [U]; the same object if names are keys."""
    amounts: Float64Array
    """Amount of each unit, [U]."""
    by_name: bool
    """Whether names that share a key are distinct units, in all versions of the release."""


@dataclass(frozen=True, slots=True)
class Spending:
    """Components of the spending of some units."""

    components: tuple[_Component, ...]
    """Their names, K of them."""
    rows: Float64Array
    """Spending of each unit, [U, K]."""
    units: int = 0
    """Number of units."""
    respelled: int = 0
    """Number of them whose charges have several names."""

    @property
    def rho(self) -> float:
        """Largest rho of a unit, besides the deltas of stated guarantees (`rho_of`)."""
        of_one = [1.0 if isinstance(c, str) else c[0] ** 2 / 2 for c in self.components]
        pure = self.components.index("pure")
        of_one[pure] = 0.0
        rho = self.rows @ np.array(of_one) + self.rows[:, pure] ** 2 / 2
        return float(rho.max(initial=0.0))

    def plus(self, everyone: Float64Array) -> "Spending":
        """Returns the spending with `everyone` [K] added to each unit, one without charges too."""
        rows = np.concatenate([np.zeros((1, everyone.size)), self.rows]) + everyone
        return Spending(self.components, rows, self.units, self.respelled)

    def beside(self, other: "Spending") -> "Spending":
        """Returns the same units with other bounds on their spending; the larger one counts."""
        rows = np.concatenate([self.rows, other.rows])
        return Spending(self.components, rows, self.units, self.respelled)

    def epsilon(self, delta: float) -> float:
        """Returns the largest epsilon of a unit at `delta`; infinite if the deltas of the stated
        guarantees use it up."""
        return max(_epsilon(each, delta) for each in self._candidates())

    def _candidates(self) -> list["_Candidate"]:
        """Returns the units that no other exceeds in every component."""
        gaussian, other = self.rows[:, 0], self.rows[:, 1]
        # Once a unit has other noise, the bound of zCDP holds, and only its total rho matters.
        counts = np.column_stack([other > 0.0, self.rows[:, 2:]])
        kinds, rows = np.unique(counts, axis=0, return_inverse=True)
        total = np.zeros(len(kinds))
        np.maximum.at(total, rows.ravel(), gaussian + other)
        if len(kinds) <= MOST_COMPARED:
            whole = np.column_stack([total, kinds])
            # Kinds differ, so no other row is equal.
            kept = (whole[:, None] <= whole).all(axis=-1).sum(axis=-1) == 1
            kinds, total = kinds[kept], total[kept]
        if len(kinds) > MOST_CANDIDATES:
            kinds, total = kinds.max(axis=0, keepdims=True), total.max(keepdims=True)
        stated = [each for each in self.components if not isinstance(each, str)]
        return [
            _Candidate(
                rho, bool(kind[0]), kind[1], tuple(zip(stated, kind[2:].tolist(), strict=True))
            )
            for rho, kind in zip(total.tolist(), kinds, strict=True)
        ]


class _Candidate(NamedTuple):
    rho: float
    """rho of the releases without stated guarantees."""
    has_other_noise: bool
    """Whether some of it is of noise other than Gaussian."""
    pure: float
    """Epsilon at delta 0 of the releases that are counted by it."""
    answers: tuple[tuple[tuple[float, float], float], ...]
    """Number of answers with each stated guarantee."""


def _epsilon(unit: _Candidate, delta: float) -> float:
    # Gaussian releases of rho_1, rho_2, .. are together one with mu^2 = 2 (rho_1 + rho_2 + ..)
    # (Dong, Roth and Su 2022, Corollary 3.3), so epsilon is exact for their sum. Other noise has
    # only the bound that zCDP implies, which is larger.
    events: list[Event] = []
    if unit.rho > 0.0:
        events.append(Gaussian(noise_multiplier=1.0, sensitivity=math.sqrt(2.0 * unit.rho)))
    for (epsilon, own), times in unit.answers:
        if times >= MOST_COUNT:
            return math.inf
        if times:
            guarantee = ApproximateDP(epsilon=epsilon, delta=own, theorem="")
            events.append(Repeated(event=guarantee, count=math.ceil(times)))
    # Epsilons at delta 0 add to any other (Dwork and Roth 2014, Theorem 3.16). Beside Gaussian
    # noise a closed form is smaller; of zCDP their rho would be larger.
    apart = unit.pure
    if events and 0 < apart < MOST_STATED_EPSILON and not unit.has_other_noise:
        events.append(ApproximateDP(epsilon=apart, theorem=""))
        apart = 0.0
    if not events:
        return apart
    event: Any = Composed(events=tuple[Any, ...](events))
    try:
        return apart + (
            zcdp_epsilon(event, delta) if unit.has_other_noise else epsilon_of(event, delta).epsilon
        )
    except EventRefused:
        return math.inf


def components_of(releases: Iterable[str | dict[str, Any]]) -> tuple[_Component, ...]:
    """Returns the components of releases: both kinds of rho, epsilon at delta 0, then the stated
    guarantees."""
    found = {each for release in releases for each in _weights(release)}
    return (
        "gaussian",
        "zcdp",
        "pure",
        *sorted(each for each in found if not isinstance(each, str)),
    )


def total_of(
    amounts: Iterable[tuple[Release, float]], components: Sequence[_Component]
) -> Float64Array:
    """Returns the spending [K] of amounts of releases together. Raises InputError."""
    known = [(_weights(release), amount) for release, amount in amounts]
    # Exact sums do not depend on the order of lines.
    return np.array([math.fsum(a * w.get(each, 0.0) for w, a in known) for each in components])


def _weights(release: str | dict[str, Any]) -> dict[_Component, float]:
    """Returns the spending of one unit of amount."""
    if isinstance(release, str):
        return {release: 1.0}
    return _weights_of_event(json.dumps(release, sort_keys=True))


@lru_cache(maxsize=1024)
def _weights_of_event(text: str) -> dict[_Component, float]:
    found = defaultdict[_Component, float](float)
    for part, times in parts_of(read_event(json.loads(text))).items():
        match part:
            case ApproximateDP():
                found[part.epsilon, part.delta] += times
            case GaussianEvent():
                found["gaussian"] += times * rho_of(part)
            case DiscreteGaussianSum():
                found["zcdp"] += times * rho_of(part)
            case _:
                raise EventRefused(
                    f"event {part.kind!r} depends on how devices are sampled, so a ledger cannot "
                    "add it up; charge releases without sampling"
                )
    return found


def summed(charges: Sequence[Charge], components: tuple[_Component, ...]) -> Spending:
    """Returns the spending of every unit: the sum over places of the largest amount of a version.

    Args:
        charges: charges of one window, in order of their place.
        components: components of their releases, from `components_of`.
    """
    if not charges:
        return Spending(components, np.zeros((0, len(components))))
    name, names = key, keys = _codes([each.names for each in charges])
    if any(each.keys is not each.names for each in charges):
        key, keys = _codes([each.keys for each in charges])
    sizes = [len(each.names) for each in charges]
    by_name = np.repeat([each.by_name for each in charges], sizes)
    places = {each: number for number, each in enumerate(dict.fromkeys(c.place for c in charges))}
    place = np.repeat([places[each.place] for each in charges], sizes)
    # A unit is a key, or a name under it; the first code of each key is that of the key itself.
    codes = key * (names + 1) + np.where(by_name, name + 1, 0)
    units, unit = np.unique(codes, return_inverse=True)
    pairs, pair = np.unique(place * units.size + unit, return_inverse=True)
    largest = np.zeros(pairs.size)
    np.maximum.at(largest, pair, np.concatenate([each.amounts for each in charges]))
    rows = np.zeros((units.size, len(components)))
    kinds = [json.dumps(each.release, sort_keys=True) for each in charges]
    of_place = np.array(
        [*{each.place: kind for each, kind in zip(charges, kinds, strict=True)}.values()]
    )
    for text in dict.fromkeys(kinds):
        here = of_place[pairs // units.size] == text
        total = np.bincount(pairs[here] % units.size, largest[here], units.size)
        rows += total[:, None] * total_of([(json.loads(text), 1.0)], components)
    # Whose name a key's other releases have is unknown, so each name may have spent them too.
    owner, is_key = units // (names + 1), units % (names + 1) == 0
    of_key = np.zeros((keys, len(components)))
    of_key[owner[is_key]] = rows[is_key]
    rows[~is_key] += of_key[owner[~is_key]]
    apart = np.bincount(owner[~is_key], minlength=keys)
    spelled = np.bincount(np.unique(key * (names + 1) + name) // (names + 1), minlength=keys)
    is_one = np.zeros(keys, np.bool_)
    is_one[owner[is_key]] = True
    count = int(np.maximum(apart, 1).sum())
    return Spending(components, rows, count, int((is_one & (spelled > 1)).sum()))


def _codes(columns: Sequence[pa.Array]) -> tuple[Int64Array, int]:
    """Returns a number for each text, equal for equal ones, and the number of texts."""
    # Offsets of the type string end at 2 GiB.
    if sum(each.nbytes for each in columns) >= 1 << 31:
        columns = [each.cast(pa.large_string()) for each in columns]
    found: Any = pa.concat_arrays(columns).dictionary_encode()
    return found.indices.to_numpy().astype(np.int64), len(found.dictionary)
