"""The claim `frontier`: pairs (min-sep, participations), of which each device keeps at least one.

The least gap and the most participations of a log seldom meet in one device, so its frontier
allows less than its limits do. Every allowed pattern lies under one of the pairs, so the
sensitivity is the largest of theirs, and exact if that is.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from fedray.audit.distribution import frontier_of
from fedray.audit.findings import Finding, verdict_of
from fedray.audit.guarantees import fitting, shown_pairs
from fedray.audit.participation import Patterns
from fedray.audit.statements.statement import (
    MOST_EVIDENCE,
    Breaches,
    Statement,
    Subject,
    of_devices,
)
from fedray.base.arrays import BoolArray
from fedray.base.rounding import counted
from fedray.mechanisms.participation import MinSep
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace

Pairs = Sequence[tuple[int, int]]


class FrontierStatement(Statement):
    """Holds if each device keeps at least one of the claimed pairs."""

    key = "frontier"

    def check(self, claimed: Pairs, subject: Subject) -> Finding:
        patterns = subject.patterns
        beyond = np.flatnonzero(self._is_beyond(claimed, patterns))
        gaps, evidence = patterns.least_gaps, []
        for place in beyond[np.argsort(gaps[beyond], kind="stable")][:MOST_EVIDENCE].tolist():
            start, count = patterns.starts[place], int(patterns.counts[place])
            rounds = patterns.rounds[start : start + count].tolist()
            apart = counted(int(gaps[place]), "round")
            said = f"{counted(count, 'participation')}, the closest {apart} apart"
            evidence.append(subject.evidence(int(patterns.device_ids[place]), rounds, said))
        own = shown_pairs(frontier_of(patterns)) if patterns.min_sep else ""
        text = "each device keeps at least one of the claimed pairs"
        if beyond.size:
            text = f"{counted(beyond.size, 'device')} kept none of the claimed pairs"
        return Finding(
            statement=self.key,
            verdict=verdict_of(not beyond.size),
            claimed=shown_pairs(claimed),
            found=own or None,
            should_say=f"frontier = {own}" if own else "",
            explanation=text,
            broken_by=beyond.size,
            evidence=tuple(evidence),
        )

    def breaches(self, claimed: Pairs, subject: Subject) -> Iterator[Breaches]:
        yield from of_devices(subject.patterns, self._is_beyond(claimed, subject.patterns))

    def _is_beyond(self, claimed: Pairs, patterns: Patterns) -> BoolArray:
        beyond = np.ones(patterns.counts.size, np.bool_)
        for min_sep, most in claimed:
            # A single participation obeys any gap.
            is_close = (patterns.least_gaps < min_sep) & (patterns.counts > 1)
            beyond &= (patterns.counts > most) | is_close
        return beyond

    def words(self, claimed: Pairs, rounds: int, trace: Trace | ImportedTrace) -> str:
        return f"frontier = {shown_pairs(claimed)}"

    def implied(self, claimed: Pairs, rounds: int, trace: Trace | ImportedTrace) -> MinSep:
        """Limits that every pair keeps: looser than the frontier."""
        b, k = min(b for b, _ in claimed), max(k for _, k in claimed)
        return fitting(rounds, min(b, rounds), k)


def tightened(pairs: Pairs, limits: MinSep) -> tuple[MinSep, ...]:
    """Returns the pairs of a frontier within limits that hold for every device too, without pairs
    that allow nothing more than another."""
    n, b, k = limits.rounds, limits.min_sep, limits.max_participations
    found = {fitting(n, min(n, max(b, each)), min(k, most)) for each, most in pairs}
    kept: list[MinSep] = []
    for each in sorted(found, key=lambda each: (each.min_sep, -each.max_participations)):
        if not kept or each.max_participations > kept[0].max_participations:
            kept.insert(0, each)
    return tuple(kept)
