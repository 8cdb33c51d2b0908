"""The claim `rounds`: the largest number of released rounds."""

from collections.abc import Iterator

import numpy as np

from fedray.audit.findings import Finding, verdict_of
from fedray.audit.statements.statement import Breaches, Statement, Subject
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace


class RoundsStatement(Statement):
    """Holds if no more rounds were released than claimed."""

    key = "rounds"

    def check(self, claimed: int, subject: Subject) -> Finding:
        n = subject.patterns.committed_rounds
        more = max(0, n - claimed)
        text = "no more rounds were released than claimed"
        if more:
            text = f"{more:,} more rounds were released than claimed"
        return Finding(
            statement=self.key,
            verdict=verdict_of(not more),
            claimed=claimed,
            found=n,
            should_say=f"rounds = {n}",
            explanation=text,
            broken_by=more,
        )

    def breaches(self, claimed: int, subject: Subject) -> Iterator[Breaches]:
        n = subject.patterns.committed_rounds
        yield Breaches(None, np.array([[claimed, n - 1]]), np.array([n]))

    def words(self, claimed: int, rounds: int, trace: Trace | ImportedTrace) -> str:
        return ""
