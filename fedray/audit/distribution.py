"""Privacy of each device: the sensitivity, and so rho, of every device's own pattern; and a
frontier tighter than one (b, k) pair."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from fedray.audit.noise import Noise, changed_rounds, released, rhos_of
from fedray.audit.participation import ROWS, Patterns
from fedray.audit.sensitivity import values_of
from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.document import Document, InJson, Keys, NotInJson
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.sensitivity import PatternSensitivities, PatternValues
from fedray.mechanisms.strategy import Sensitivity, Strategy
from fedray.mechanisms.triangular import TriangularStrategy

SHARES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
CURVE_STEPS = 200
"""Number of points on the curve of rho over devices."""
MOST_ENTRIES = 16
"""Largest number of pairs of the frontier; of more distinct counts of participations, neighbours
share a pair."""
MOST_DEVICES = 10
"""Largest number of devices that are listed as the worst."""
MOST_BOUND = 2e8
"""Largest cost of a frontier with a matrix: squared rounds, summed over the entries. An entry takes
10 s at 10,000 rounds."""


def device_sensitivities(
    strategy: Strategy, patterns: Patterns, sensitivities: PatternSensitivities | None = None
) -> PatternValues:
    """Returns the sensitivity of every device's own pattern, in order of device [P]. Values are
    exact, or upper bounds if the strategy has negative Gram entries.

    Args:
        strategy: the mechanism.
        patterns: patterns of the devices.
        sensitivities: existing sensitivities of this strategy over the patterns' rounds, if any.
    """
    sensitivities = sensitivities or PatternSensitivities(strategy, patterns.committed_rounds)
    values = np.empty(patterns.counts.size)
    is_exact = np.empty(patterns.counts.size, np.bool_)
    # Devices with equal counts form one array of patterns without padding.
    for count in np.flatnonzero(np.bincount(patterns.counts)).tolist():
        for chosen, found in values_of(sensitivities, patterns.with_count(count)):
            values[chosen.places], is_exact[chosen.places] = found.values, found.is_exact
    return PatternValues(values, is_exact)


@dataclass(frozen=True, slots=True)
class Quantile:
    """Bounds for a share of the devices that took part: their sensitivity and its rho."""

    share: float
    """Share of the devices whose privacy is at least this good, from 0 to 1."""
    sensitivity: float
    """Largest sensitivity among these devices, at clip norm 1."""
    rho: float
    """Largest rho (zCDP) among these devices."""


@dataclass(frozen=True, slots=True)
class DevicePrivacy(Document):
    """rho over the devices that took part. A device's rho protects that device as long as its
    pattern is not its secret."""

    quantiles: tuple[Quantile, ...]
    """Quantiles at a few shares of the devices, in increasing order."""
    curve: NotInJson[tuple[float, ...]]
    """rho that the share i / CURVE_STEPS of the devices do not exceed, for i = 1 .. CURVE_STEPS."""
    mean_rho: float
    """Mean rho over the devices that took part."""
    is_exact: bool
    """False if some devices' values are upper bounds."""
    sensitivities: NotInJson[PatternValues] = field(repr=False, compare=False)
    """Sensitivity of every device's own pattern, in order of device."""

    @classmethod
    def of(cls, values: PatternValues, patterns: Patterns, noise: Noise) -> "DevicePrivacy":
        """Returns the distribution of rho, from the devices' sensitivities and rounds.

        Each quantile is the rho of some device: the least that at least this share does not exceed.
        """
        of_devices = rhos_of(noise, values.values, changed_rounds(noise, patterns))
        curve_shares = np.arange(1, CURVE_STEPS + 1) / CURVE_STEPS
        shares = np.concatenate([SHARES, curve_shares])
        chosen = at_shares(values.values, shares)
        rhos = at_shares(of_devices, shares)
        # The first values are the quantiles, the rest is the curve.
        found = zip(SHARES, chosen, rhos, strict=False)
        quantiles = [Quantile(share, sensitivity, rho) for share, sensitivity, rho in found]
        curve = tuple(rhos[len(SHARES) :])
        # The mean describes the devices. It is not a bound, and no guarantee rests on it.
        mean = float(of_devices.mean())
        return cls(tuple(quantiles), curve, mean, bool(values.is_exact.all()), values)


@dataclass(frozen=True, slots=True)
class SpentByDevice:
    """Privacy that one device spent, by the rounds in which it took part."""

    device: str
    """Name of the device."""
    participations: int
    """Number of its rounds."""
    least_gap: int | None
    """Least difference between two of its rounds; None for one round."""
    sensitivity: float
    """Sensitivity of its pattern, at clip norm 1."""
    is_exact: bool
    """False if the sensitivity is an upper bound."""
    rho: float
    """zCDP of that sensitivity."""
    epsilon: float
    """Epsilon at the audit's delta."""


def worst_devices(
    values: PatternValues,
    patterns: Patterns,
    noise: Noise,
    delta: float,
    names_of: Callable[[list[int]], list[str]],
) -> tuple[SpentByDevice, ...]:
    """Returns the devices that spent most, worst first, at most `MOST_DEVICES`; of equal ones those
    of the smallest ids.

    Args:
        values: sensitivity of every device's pattern.
        patterns: patterns of the devices.
        noise: noise of the run.
        delta: delta of epsilon.
        names_of: function that returns the shown names of device ids.
    """
    places = largest_first(values.values, MOST_DEVICES).tolist()
    names = names_of(patterns.device_ids[places].tolist())
    found = []
    changed = changed_rounds(noise, patterns)
    for place, name in zip(places, names, strict=True):
        start, count = int(patterns.starts[place]), int(patterns.counts[place])
        gaps = np.diff(patterns.rounds[start : start + count].astype(np.int64))
        event = released(noise, float(values.values[place]), int(changed[place]))
        found.append(
            SpentByDevice(
                name,
                count,
                int(gaps.min()) if gaps.size else None,
                float(values.values[place]),
                bool(values.is_exact[place]),
                rho_of(event),
                epsilon_of(event, delta).epsilon,
            )
        )
    return tuple(found)


def largest_first(values: Float64Array | Int64Array, most: int) -> Int64Array:
    """Returns the places of at most `most` of the largest values, largest first; of equal ones the
    first."""
    found = np.empty(0, np.int64)
    for start in range(0, values.size, ROWS):
        part = values[start : start + ROWS]
        # Later values that only equal one of the places found do not replace it.
        is_candidate = part > values[found[-1]] if found.size == most else np.isfinite(part)
        found = np.concatenate([found, start + np.flatnonzero(is_candidate)])
        found = found[np.argsort(-values[found], kind="stable")[:most]]
    return found


def at_shares(values: Float64Array, shares: Float64Array) -> list[float]:
    """Returns, for each share, the least of the values that at least this share does not exceed."""
    places = np.maximum(np.ceil(shares * values.size).astype(int) - 1, 0)
    # A partition suffices; sorting millions of devices would take longer.
    return np.partition(values, np.unique(places))[places].tolist()


@dataclass(frozen=True, slots=True)
class FrontierEntry:
    """Limits that some devices keep, and no other entry allows."""

    min_sep: int
    """b: least gap, in rounds."""
    max_participations: int
    """k: most participations."""
    sensitivity: Annotated[Sensitivity, Keys("sensitivity=value is_exact")]
    """Sensitivity for participation (b, k)."""


@dataclass(frozen=True, slots=True)
class Frontier(Document):
    """Pairs of limits of which each device keeps one, so the largest sensitivity of a pair bounds
    the trace's. It is never above that of the single (b, k) pair, whose b may come from one device
    and k from another."""

    entries: tuple[FrontierEntry, ...]
    """Entries from the most participations to the fewest."""

    @property
    def sensitivity(self) -> InJson[float]:
        """Upper bound on the trace's sensitivity: the largest over the entries, since every device
        keeps one of them."""
        return max(entry.sensitivity.value for entry in self.entries)


def frontier(strategy: Strategy, patterns: Patterns) -> Frontier:
    """Returns the frontier of a trace with the sensitivities of its pairs.

    Args:
        strategy: the mechanism.
        patterns: every device's rounds; none may repeat a round.
    """
    n, most = patterns.committed_rounds, MOST_ENTRIES
    if isinstance(strategy, TriangularStrategy):
        # No fast theorem covers a matrix: each entry costs n^2 products and more.
        most = max(1, min(most, int(MOST_BOUND / n**2)))
    return Frontier(
        tuple(
            FrontierEntry(b, k, strategy.participation_sensitivity(MinSep(n, b, k)))
            for b, k in frontier_of(patterns, most)
        )
    )


def frontier_of(patterns: Patterns, most: int = MOST_ENTRIES) -> tuple[tuple[int, int], ...]:
    """Returns at most `most` pairs (min-sep, participations), of which each device keeps one, the
    most participations first."""
    counts, pairs = np.flatnonzero(np.bincount(patterns.counts)), []
    # Groups split the counts evenly, not the devices: the few devices with many participations
    # bind.
    for group in reversed(np.array_split(counts, min(most, counts.size))):
        is_in_group = (patterns.counts >= group[0]) & (patterns.counts <= group[-1])
        least = int(patterns.least_gaps[is_in_group].min())
        # A pair of no smaller gap and no more participations adds nothing.
        if not pairs or least < pairs[-1][0]:
            pairs.append((least, int(group[-1])))
    return tuple(pairs)
