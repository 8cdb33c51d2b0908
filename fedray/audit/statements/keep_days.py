"""The claim `keep_days`: the largest age of a stored upload when a round draws it."""

from collections.abc import Iterator

import numpy as np

from fedray.audit.findings import Finding, Verdict, verdict_of
from fedray.audit.participation import CHUNK
from fedray.audit.statements.statement import MOST_EVIDENCE, Breaches, Statement, Subject
from fedray.base.arrays import Float64Array, Int64Array, UInt32Array, UInt64Array
from fedray.base.rounding import counted, up
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace
from fedray.wire.messages import Outcome


class KeepDaysStatement(Statement):
    """Holds if no round drew an upload that was older."""

    key = "keep_days"

    def check(self, claimed: float, subject: Subject) -> Finding:
        trace = subject.trace
        if isinstance(trace, ImportedTrace):
            text = "a log does not say when contributions were uploaded"
            return Finding(
                statement=self.key, verdict=Verdict.UNCHECKED, claimed=claimed, explanation=text
            )
        oldest, broken, worst = 0.0, 0, list[tuple[float, int, int]]()
        for days, device_ids, rounds in _draws(trace):
            oldest = max(oldest, float(days.max(initial=0.0)))
            places = _oldest(days, device_ids, claimed)
            broken += places.size
            for place in places[np.argsort(-days[places], kind="stable")][:MOST_EVIDENCE]:
                worst.append((float(days[place]), int(device_ids[place]), int(rounds[place])))
        worst.sort(key=lambda each: (-each[0], each[1]))
        text = "no round drew an older upload"
        if broken:
            text = f"rounds drew older uploads of {counted(broken, 'device')}"
        if not trace.stores_uploads:
            text = "no upload was stored"
        return Finding(
            statement=self.key,
            verdict=verdict_of(not broken),
            claimed=claimed,
            found=oldest,
            should_say=f"{self.key} = {up(oldest)}",
            explanation=text,
            broken_by=broken,
            evidence=tuple(
                subject.evidence(device, [index], f"drawn {up(days)} days after its upload")
                for days, device, index in worst[:MOST_EVIDENCE]
            ),
        )

    def breaches(self, claimed: float, subject: Subject) -> Iterator[Breaches]:
        if isinstance(subject.trace, Trace):
            for days, device_ids, rounds in _draws(subject.trace):
                places = _oldest(days, device_ids, claimed)
                for start in range(0, places.size, CHUNK):
                    chosen = places[start : start + CHUNK]
                    pairs = np.column_stack([rounds[chosen], rounds[chosen]])
                    yield Breaches(device_ids[chosen], pairs, days[chosen])

    def words(self, claimed: float, rounds: int, trace: Trace | ImportedTrace) -> str:
        return ""


def _oldest(days: Float64Array, device_ids: UInt64Array, claimed: float) -> Int64Array:
    """Returns the place of the oldest upload of each device that breaks the claim, in order of
    device."""
    beyond = np.flatnonzero(days > claimed)
    # The oldest first, so that the first row of a device is its oldest.
    beyond = beyond[np.argsort(-days[beyond], kind="stable")]
    _, first = np.unique(device_ids[beyond], return_index=True)
    return beyond[first]


def _draws(trace: Trace) -> Iterator[tuple[Float64Array, UInt64Array, UInt32Array]]:
    """Yields every draw of a stored upload: days since it was complete, device and round, [A]
    each."""
    if not trace.stores_uploads:
        return
    # A failed attempt draws too. A row does not say which attempt it belongs to, so rows that were
    # not accepted count from the first attempt at their round.
    numbers, started = trace.rounds["round"], trace.rounds["started"]
    is_committed = trace.rounds["state"] == 0
    tried, first = np.unique(numbers, return_index=True)
    for part in range(len(trace.run["parts"])):
        columns = trace.columns(part)
        rounds = columns["round"]
        drawn = started[first][np.searchsorted(tried, rounds)]
        is_accepted = columns["outcome"] == Outcome.ACCEPTED
        drawn[is_accepted] = started[is_committed][rounds[is_accepted]]
        days = (drawn - columns["report_time"]) / 86_400.0
        yield days, columns["device_id"], rounds
