"""The claim `max_participations`: the largest number of rounds in which a device takes part."""

from collections.abc import Iterator

from fedray.audit.distribution import largest_first
from fedray.audit.findings import Finding, verdict_of
from fedray.audit.statements.statement import (
    MOST_EVIDENCE,
    Breaches,
    Statement,
    Subject,
    of_devices,
)
from fedray.base.rounding import counted
from fedray.mechanisms.participation import MinSep
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace


class MaxParticipationsStatement(Statement):
    """Holds if no device took part more often than claimed."""

    key = "max_participations"

    def check(self, claimed: int, subject: Subject) -> Finding:
        patterns = subject.patterns
        k = patterns.max_participations
        broken = int((patterns.counts > claimed).sum())
        # If the claim holds, the most frequent device binds it; else only breaches are shown.
        most = min(broken, MOST_EVIDENCE) or 1
        evidence = []
        for place in largest_first(patterns.counts, most).tolist():
            start, count = patterns.starts[place], int(patterns.counts[place])
            rounds = patterns.rounds[start : start + count].tolist()
            device_id = int(patterns.device_ids[place])
            evidence.append(subject.evidence(device_id, rounds, counted(count, "participation")))
        text = "no device took part more often"
        if broken:
            text = f"{counted(broken, 'device')} took part more often"
        verdict = verdict_of(not broken)
        should_say = f"max_participations = {k}"
        return Finding(
            statement=self.key,
            verdict=verdict,
            claimed=claimed,
            found=k,
            should_say=should_say,
            explanation=text,
            broken_by=broken,
            evidence=tuple(evidence),
        )

    def breaches(self, claimed: int, subject: Subject) -> Iterator[Breaches]:
        yield from of_devices(subject.patterns, subject.patterns.counts > claimed)

    def implied(self, claimed: int, rounds: int, trace: Trace | ImportedTrace) -> MinSep:
        return MinSep(rounds, 1, min(claimed, rounds))
