"""Limits on participation that follow from a claim, with or without enforced rules."""

from fedray.audit.claims import STATEMENTS, Claim
from fedray.audit.guarantees import Limits, fitting
from fedray.audit.statements.frontier import tightened
from fedray.mechanisms.participation import MinSep
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace


def claimed_limits(claim: Claim, trace: Trace | ImportedTrace) -> Limits:
    """Returns the participation that a claim permits.

    A claimed timer limits the recorded rounds if their times are known. Without a claimed min-sep,
    b follows from the timer, or else is 1; without claimed participations, k is ceil(rounds / b) or
    follows from the timer.
    """
    n = claim.rounds or trace.committed_rounds
    stated = [(each, getattr(claim, each.key)) for each in STATEMENTS]
    stated = [(each, value) for each, value in stated if value is not None]
    words = ", ".join(filter(None, (each.words(value, n, trace) for each, value in stated)))
    is_of_more_rounds = n > trace.committed_rounds
    if not words and not is_of_more_rounds:
        return Limits(None, "the claim says nothing of participation")
    implied = [each.implied(value, n, trace) for each, value in stated]
    limits = [each for each in implied if each is not None]
    if not limits and not is_of_more_rounds:
        return Limits(None, _why_a_timer_says_nothing(trace))
    b = max((each.min_sep for each in limits), default=1)
    k = min((each.max_participations for each in limits), default=n)
    reason = f"it is claimed that {words}" if words else f"{n:,} rounds are claimed"
    participation = fitting(n, b, k)
    return Limits(participation, reason, pairs=tightened(claim.frontier or (), participation))


def _why_a_timer_says_nothing(trace: Trace | ImportedTrace) -> str:
    if isinstance(trace, Trace):
        return "a timer keeps uploads apart, and one upload takes part in several rounds"
    return "a timer says nothing about rounds unless the times of the rounds are known"


def joined(enforced: Limits, claimed: Limits, rounds: int) -> Limits:
    """Returns the limits that hold if both limits hold.

    Enforced limits cover the recorded rounds only, so they do not support a claim about more
    rounds.

    Args:
        enforced: limits of the rules in force.
        claimed: limits of a claim.
        rounds: number of recorded rounds; without any limits a device may take part in each.
    """
    participation = claimed.participation
    if participation is None:
        return (
            enforced
            if enforced.participation is not None
            else Limits(
                MinSep(rounds, 1, rounds),
                "neither the rules nor any claim that this trace leaves unbroken limits "
                "participation",
            )
        )
    if enforced.participation is None or enforced.participation.rounds != participation.rounds:
        return claimed
    # Both hold, so the tighter of each pair counts.
    b = max(participation.min_sep, enforced.participation.min_sep)
    k = min(participation.max_participations, enforced.participation.max_participations)
    both = fitting(participation.rounds, b, k)
    pairs = [(each.min_sep, each.max_participations) for each in claimed.pairs]
    reason = f"{claimed.reason}; enforced: {enforced.reason}"
    return Limits(both, reason, pairs=tightened(pairs, both), rules=enforced.rules)
