"""The guarantee of a filter: if a run excludes devices at their privacy budget
(`privacy.at_limit`), the budget holds for every device in every run."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedray.audit.guarantees import Guarantee, event_of
from fedray.audit.noise import Noise, ServerNoise
from fedray.audit.participation import Patterns
from fedray.audit.sensitivity import trace_sensitivity
from fedray.base.arrays import Int64Array, UInt64Array
from fedray.base.document import Document, InJson, NotInJson
from fedray.base.rounding import up
from fedray.mechanisms.strategy import Sensitivity, Strategy
from fedray.scenario import Scenario
from fedray.trace.reader import Trace
from fedray.wire.messages import Outcome

ROUNDING = 1e-9
"""Relative difference between sums of squares in two orders of summation."""


@dataclass(frozen=True, slots=True)
class Exclusions(Document):
    """The devices that a run excluded because they were at their privacy budget."""

    rounds: NotInJson[Int64Array]
    """The round from which each was excluded, in order [E]."""
    participations: float
    """Mean number of their participations; 0 if no device was excluded."""
    of_others: float
    """Mean number of participations of the other devices that took part."""
    came_back: int
    """Number of devices that took part in that round or a later one, which a filter prevents."""

    @property
    def devices(self) -> InJson[int]:
        """Number of excluded devices."""
        return self.rounds.size

    @property
    def first_round(self) -> InJson[int | None]:
        """Round from which the first device was excluded."""
        return int(self.rounds[0]) if self.devices else None

    @property
    def median_round(self) -> InJson[int | None]:
        """Median of the rounds from which devices were excluded."""
        return int(np.median(self.rounds)) if self.devices else None


def exclusions_of(trace: Trace, scenario: Scenario, patterns: Patterns) -> Exclusions | None:
    """Returns the devices that a run excluded, with the participations of these and of other
    devices.

    Args:
        trace: trace of the run.
        scenario: its scenario.
        patterns: patterns of the trace.

    Returns:
        None for a run without a filter.
    """
    if scenario.privacy.at_limit != "exclude":
        return None
    found = list(_excluded(trace))
    device_ids = np.concatenate([np.empty(0, np.uint64), *(ids for ids, _ in found)])
    rounds = np.concatenate([np.empty(0, np.int64), *(each for _, each in found)])
    # An excluded device had reached its budget, so it took part and is among the patterns.
    places = np.searchsorted(patterns.device_ids, device_ids)
    is_excluded = np.zeros(patterns.device_ids.size, np.bool_)
    is_excluded[places] = True
    # Rounds of a device are in order, so its last row is its last round.
    last_rounds = patterns.rounds[patterns.starts + patterns.counts - 1].astype(np.int64)

    def mean(counts: Int64Array) -> float:
        return float(counts.mean()) if counts.size else 0.0

    return Exclusions(
        rounds=np.sort(rounds),
        participations=mean(patterns.counts[is_excluded]),
        of_others=mean(patterns.counts[~is_excluded]),
        came_back=int(np.count_nonzero(last_rounds[places] >= rounds)),
    )


def _excluded(trace: Trace) -> Iterator[tuple[UInt64Array, Int64Array]]:
    """Yields the device ids and rounds of the rows of excluded devices, part by part."""
    for part in range(len(trace.run["parts"])):
        columns = trace.columns(part)
        rows = columns["outcome"] == Outcome.EXCLUDED
        yield columns["device_id"][rows], columns["round"][rows].astype(np.int64)


def filtered(
    scenario: Scenario,
    patterns: Patterns,
    exclusions: Exclusions | None,
    strategy: Strategy,
    noise: Noise | None,
    delta: float,
) -> Guarantee | None:
    """Returns the guarantee of a filter: the budget, in every run.

    A participation is charged in full when it happens, for later rounds too. So the trace is
    checked over all `rounds.count` rounds, even if fewer were committed.

    Args:
        scenario: scenario of the run.
        patterns: patterns of its trace.
        exclusions: devices that it excluded.
        strategy: the mechanism.
        noise: noise of the run.
        delta: delta of epsilon.

    Returns:
        None for a run without a filter, and for another mechanism or noise than the filter's. If
        the trace contradicts the filter, a guarantee without sensitivity and event, with the
        reason.
    """
    privacy, rounds = scenario.privacy, scenario.rounds.count
    own_noise = ServerNoise(privacy.noise_multiplier, scenario.count_noise)
    # The filter counted with the run's own mechanism and noise, and ensures nothing for others.
    if exclusions is None or (strategy, noise) != (privacy.strategy, own_noise):
        return None
    limit = privacy.largest_sensitivity
    assert limit is not None
    # With correlated noise rho does not add up over rounds: rounds i and j of a device add
    # 2 G[i, j], G = C'C, to what each spends by itself. A participation in round i reaches all
    # later rows of column i, so the filter charges it for all rounds of the run, and all count.
    found = trace_sensitivity(strategy, replace(patterns, committed_rounds=rounds))
    sensitivity, event = None, None
    if exclusions.came_back:
        reason = (
            f"{exclusions.came_back:,} devices took part after they had been excluded, so the "
            "budget was not enforced"
        )
    elif found.value > limit * (1.0 + ROUNDING):
        reason = (
            f"a device of this trace has the sensitivity {up(found.value, 6)} over {rounds:,} "
            f"rounds, above {up(limit, 6)} of privacy.stop_at, so the budget was not enforced"
        )
    else:
        # Sums in another order may exceed the limit by a rounding error.
        value = max(limit, found.value)
        theorem = "the limit of a filter, which no device goes beyond"
        sensitivity = Sensitivity(value, False, theorem, found.value, found.rounds)
        event = event_of(strategy, rounds, sensitivity, None, noise, rounds)
        reason = (
            "the server excluded every device before the round that would have brought it beyond "
            f"privacy.stop_at; {exclusions.devices:,} were excluded, and no device is beyond it"
        )
    return Guarantee(
        "filtered",
        None,
        sensitivity,
        event,
        delta,
        sensitivity is not None,
        reason,
        (
            "The server knows each device that comes again, also if the device has lost its "
            "history, and counts its participations. Who was excluded follows from these alone.",
        ),
    )
