"""The claim `timer_hours`: the least time before a device takes part again.

A wait is the time between a device's accepted report and the check-in of its next participation; in
a log, between the times of the two participations.
"""

from collections.abc import Iterator

from fedray.audit.findings import Finding, Verdict, verdict_of
from fedray.audit.guarantees import allowed, described, round_times
from fedray.audit.statements.statement import (
    MOST_EVIDENCE,
    Breaches,
    Statement,
    Subject,
    in_parts,
    worst_pairs,
)
from fedray.audit.waits import are_known, is_too_short, waits_between
from fedray.base.rounding import counted, down
from fedray.mechanisms.participation import MinSep
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace


class TimerStatement(Statement):
    """Holds if no device came back sooner than claimed."""

    key = "timer_hours"

    def check(self, claimed: float, subject: Subject) -> Finding:
        waits = waits_between(subject.trace, subject.patterns)
        if waits is None:
            text = "the log was imported without times, so a timer cannot be checked"
            return Finding(
                statement=self.key, verdict=Verdict.UNCHECKED, claimed=claimed, explanation=text
            )
        broken = breakers = 0
        shortest: list[tuple[float, int, tuple[int, ...], int]] = []
        for seconds, devices, rounds in waits:
            is_short = is_too_short(seconds, claimed)
            of_part, worst = worst_pairs(seconds, is_short, devices.__getitem__)
            broken, breakers = broken + int(is_short.sum()), breakers + of_part
            # A part has all pairs of its devices, so the worst of all are among its worst.
            for place, count in worst:
                pair = tuple(rounds[place].tolist())
                shortest.append((float(seconds[place]), int(devices[place]), pair, count))
        if not shortest:
            return self.without_pairs(claimed, "any timer")
        shortest.sort()
        step = subject.trace.time_step if isinstance(subject.trace, ImportedTrace) else 0.0
        # Waits count as a step shorter than the log's times say.
        apart = "hours apart at least" if step else "hours apart"
        # If the claim holds, the shortest wait binds it; else only breaches are shown.
        most = min(breakers, MOST_EVIDENCE) or 1
        evidence = tuple(
            subject.evidence(device, pair, f"{down(seconds / 3600.0)} {apart}", count)
            for seconds, device, pair, count in shortest[:most]
        )
        text = "no device took part again sooner"
        if broken:
            text = f"{counted(broken, 'consecutive pair')} had less time between them"
            if step:
                text += f", or may have had, as times are multiples of {step:,g} s"
        hours = shortest[0][0] / 3600.0
        # Rounded down, so that a claim of the advised figure holds.
        should_say = f"timer_hours = {down(hours)}"
        verdict = verdict_of(not broken)
        return Finding(
            statement=self.key,
            verdict=verdict,
            claimed=claimed,
            found=hours,
            should_say=should_say,
            explanation=text,
            broken_by=broken,
            evidence=evidence,
            broken_by_devices=breakers,
        )

    def breaches(self, claimed: float, subject: Subject) -> Iterator[Breaches]:
        # A timer is only broken if the trace has times.
        for seconds, device_ids, rounds in waits_between(subject.trace, subject.patterns) or ():
            for chosen in in_parts(is_too_short(seconds, claimed)):
                yield Breaches(device_ids[chosen], rounds[chosen], seconds[chosen] / 3600.0)

    def words(self, claimed: float, rounds: int, trace: Trace | ImportedTrace) -> str:
        text = f"{self.key} = {claimed:,}"
        if not claimed:
            return text
        times = round_times(trace)
        if not are_known(trace):
            unused = "" if times is not None else " and not used, as no times are known"
            text += f" (claimed, not checked{unused})"
        if times is not None and times[0].size == rounds:
            permitted = allowed(*times, 3600.0 * claimed)
            text += (
                f" (that timer alone ensures {described(permitted)} at these times of the rounds)"
            )
        return text

    def implied(self, claimed: float, rounds: int, trace: Trace | ImportedTrace) -> MinSep | None:
        times = round_times(trace) if claimed else None
        if times is None:
            return None
        # Limits that follow from recorded times say nothing about another number of rounds.
        if times[0].size != rounds:
            return MinSep(rounds, 1, rounds)
        return allowed(*times, 3600.0 * claimed)
