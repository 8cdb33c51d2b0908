"""The claim `min_sep`: the least difference between two rounds of a device."""

from collections.abc import Iterator

import numpy as np

from fedray.audit.findings import Finding, verdict_of
from fedray.audit.statements.statement import (
    MOST_EVIDENCE,
    Breaches,
    Statement,
    Subject,
    in_parts,
    worst_pairs,
)
from fedray.base.rounding import counted
from fedray.mechanisms.participation import MinSep, most_of_device
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace


class MinSepStatement(Statement):
    """Holds if no gap between consecutive participations of a device is smaller than claimed."""

    key = "min_sep"

    def check(self, claimed: int, subject: Subject) -> Finding:
        patterns = subject.patterns
        if patterns.max_participations == 1:
            return self.without_pairs(claimed, "any min_sep")
        pairs = broken = breakers = 0
        closest: list[tuple[int, int, int]] = []
        for gaps, later in patterns.pairs():
            is_close = gaps < claimed
            of_block, worst = worst_pairs(
                gaps, is_close, lambda at, later=later: patterns.devices_at(later[at])
            )
            pairs, broken = pairs + gaps.size, broken + int(is_close.sum())
            breakers += of_block
            # A block has all pairs of its devices, so the worst of all are among its worst.
            closest += [(int(gaps[place]), -count, int(later[place])) for place, count in worst]
        closest.sort()
        # If the claim holds, the closest pair binds it; else only broken pairs are shown.
        most = min(breakers, MOST_EVIDENCE) or 1
        evidence = []
        for gap, count, place in closest[:most]:
            (device,), (pair,) = patterns.pairs_at(np.array([place]))
            shows = f"{counted(gap, 'round')} apart"
            evidence.append(subject.evidence(int(device), pair.tolist(), shows, -count))
        text = "every two participations of a device are at least as far apart as claimed"
        if broken:
            text = (
                f"{broken:,} of {counted(pairs, 'pair')} of consecutive participations "
                f"{'is' if broken == 1 else 'are'} closer than claimed"
            )
        b = patterns.min_sep
        # No min-sep covers a device that contributed twice to a round.
        should_say = f"min_sep = {b}" if b else ""
        verdict = verdict_of(not broken)
        return Finding(
            statement=self.key,
            verdict=verdict,
            claimed=claimed,
            found=b,
            should_say=should_say,
            explanation=text,
            broken_by=broken,
            evidence=tuple(evidence),
            broken_by_devices=breakers,
        )

    def breaches(self, claimed: int, subject: Subject) -> Iterator[Breaches]:
        for gaps, later in subject.patterns.pairs():
            for chosen in in_parts(gaps < claimed):
                yield Breaches(*subject.patterns.pairs_at(later[chosen]), gaps[chosen])

    def implied(self, claimed: int, rounds: int, trace: Trace | ImportedTrace) -> MinSep:
        b = min(claimed, rounds)
        return MinSep(rounds, b, most_of_device(rounds, b))
