"""Checks every release of a run against the claim that the run must ensure, before it is made.

The rules ensured the claim when the run started, so a release outside it shows that a rule was not
kept: a policy with a mistake, a device that lies, a round with too few devices. The guard reads who
is in the round, and when, which are not protected; no update is read.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedray.audit.claims import Claim
from fedray.audit.statements.most_per_period import MostPerPeriod
from fedray.audit.zones import DAY, zone_hours_on
from fedray.base.arrays import BoolArray, Float64Array, UInt64Array
from fedray.base.rounding import counted, down, up
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.running import DeviceRounds, with_room
from fedray.scenario import Scenario
from fedray.wire.messages import Outcome, Settlement


class ClaimGuard:
    """The rounds of every device so far, and whether the next release is within a claim.

    Args:
        claim: claim whose statements the rules of the scenario ensure.
        scenario: scenario of the run.
        worst: participation that its rules permit. A claimed rho or epsilon rests on it, so that a
            device beyond it is outside the claim too.

    document: the claim with its digest, for run.json.
    """

    def __init__(self, claim: Claim, scenario: Scenario, worst: MinSep) -> None:
        self.document: Mapping[str, Any] = {"ensured": claim.to_document()}
        self._claim, rounds = claim, scenario.rounds
        self._stores_uploads = rounds.uploads is not None
        self._selects_together = not self._stores_uploads and rounds.buffer is None
        self._min_sep, self._most = claim.min_sep or 1, claim.max_participations
        # The noise that devices add is that of the fewest that the rules permit.
        has_shares = scenario.privacy.sent.adds_noise
        rests_on_noise = has_shares or claim.rho is not None or claim.epsilon is not None
        self._least_accepted = rounds.least_accepted if rests_on_noise else 0
        if claim.rho is not None or claim.epsilon is not None:
            k = worst.max_participations
            self._most = k if self._most is None else min(self._most, k)
            # A single participation has no separation.
            self._min_sep = max(self._min_sep, worst.min_sep if k > 1 else 1)
        self._scenario = scenario
        self._rounds = 0
        self._devices = DeviceRounds()
        self._columns = [np.zeros(1) for _ in range(4)]
        """Round, time, check-in and report of each participation, seconds since start, with spare
        capacity. Participations are numbered from 1, as `DeviceRounds` does."""
        self._count = 1

    def refusal(self, settlement: Settlement, started: float) -> str:
        """See `ReleaseGuard`."""
        if reason := next(self._breaches(settlement, started), ""):
            return f"round {self._rounds} is outside the claim: {reason}"
        self.add(settlement, started)
        return ""

    def add(self, settlement: Settlement, started: float) -> None:
        """See `ReleaseGuard`."""
        new = self._new(settlement, started)
        self._devices.add(self._devices.places_of(settlement.accepted_device_ids), self._rounds)
        begin, self._count = self._count, self._count + new[0].size
        self._columns = [with_room(each, self._count) for each in self._columns]
        for column, values in zip(self._columns, new, strict=True):
            column[begin : self._count] = values
        self._rounds += 1

    def _new(self, settlement: Settlement, started: float) -> list[Float64Array]:
        """Returns the columns of the accepted devices, [A] each."""
        is_accepted = settlement.outcomes == Outcome.ACCEPTED
        check_ins = settlement.check_in_times[is_accepted]
        # As in the claim `most_per_period`.
        times = np.full(check_ins.size, started) if self._selects_together else check_ins
        rounds = np.full(check_ins.size, float(self._rounds))
        return [rounds, times, check_ins, settlement.report_times[is_accepted]]

    def _are_within(
        self,
        period: MostPerPeriod,
        device_ids: UInt64Array,
        first: Float64Array,
        last: Float64Array,
    ) -> BoolArray:
        """Returns whether two participations of devices [B] lie in one period."""
        if period.hours is not None:
            return last - first < 3600.0 * period.hours
        offsets = 3600.0 * zone_hours_on(self._scenario, device_ids)
        return np.floor((first + offsets) / DAY) == np.floor((last + offsets) / DAY)

    def _breaches(self, settlement: Settlement, started: float) -> Iterator[str]:
        claim, ids = self._claim, settlement.accepted_device_ids
        new = self._new(settlement, started)
        places = self._devices.places_of(ids)
        if claim.rounds is not None and self._rounds >= claim.rounds:
            yield f"rounds={claim.rounds} is claimed"
        if ids.size < self._least_accepted:
            least = counted(self._least_accepted, "device")
            yield f"it has {counted(ids.size, 'device')}, and the noise is that of {least}"
        counts = self._devices.counts_of(places)
        if self._most is not None:
            for one in np.flatnonzero(counts >= self._most)[:1]:
                yield f"device {ids[one]} took part in {counted(int(counts[one]), 'round')} before"
        if claim.keep_days is not None and self._stores_uploads:
            days = (started - new[3]) / 86_400.0
            for one in np.flatnonzero(days > claim.keep_days)[:1]:
                yield f"device {ids[one]} uploaded {up(float(days[one]))} days before it"
        least_gaps = np.full(ids.size, math.inf)
        later, period = new[0], claim.most_per_period
        # A frontier needs every gap of a device, the other statements its last participations.
        deepest = self._rounds if claim.frontier else period.participations if period else 1
        earlier = self._devices.links_back(places)
        for step, (whose, links) in zip(range(1, deepest + 1), earlier, strict=False):
            rounds, times, check_ins, reports = (each[links] for each in self._columns)
            gaps = later[whose] - rounds
            least_gaps[whose] = np.minimum(least_gaps[whose], gaps)
            later = later.copy()
            later[whose] = rounds
            if step == 1:
                for one in np.flatnonzero(gaps < self._min_sep)[:1]:
                    apart = counted(int(gaps[one]), "round")
                    yield f"device {ids[whose[one]]} took part {apart} before"
                waits = (new[2][whose] - reports) / 3600.0
                # Rounds on one upload have no wait between them.
                is_short = (waits < (claim.timer_hours or 0.0)) & (new[2][whose] != check_ins)
                for one in np.flatnonzero(is_short)[:1]:
                    yield f"device {ids[whose[one]]} came back after {down(float(waits[one]))} h"
            if period is not None and step == period.participations:
                is_within = self._are_within(period, ids[whose], times, new[1][whose])
                for one in np.flatnonzero(is_within)[:1]:
                    yield f"device {ids[whose[one]]} took part {period.text} before"
        if claim.frontier is not None:
            beyond = [(least_gaps < b) | (counts >= k) for b, k in claim.frontier]
            for one in np.flatnonzero(np.all(beyond, axis=0))[:1]:
                yield f"device {ids[one]} would keep no pair of the frontier"
