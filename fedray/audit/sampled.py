"""The guarantee that Poisson sampling of stored uploads gives."""

import numpy as np

from fedray.audit.guarantees import Guarantee
from fedray.audit.noise import Noise, ServerNoise
from fedray.base.errors import InputError
from fedray.mechanisms.accounting.monte_carlo import BY_DRAWS
from fedray.mechanisms.accounting.sampled import (
    PoissonSampling,
    largest_column,
    sampled_in_turn,
    sampled_release,
)
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.strategy import Sensitivity, Strategy
from fedray.scenario import Scenario
from fedray.scenario.uploads import (
    CyclicPoissonSchedule,
    MinSepSchedule,
    Uploads,
)
from fedray.trace.reader import Trace
from fedray.wire.messages import Outcome

LEAST_PROBABILITY = 1e-12
"""Least probability of a round's number of drawn uploads, or of a more extreme number. Below it,
the stated sampling is rejected."""
SECRET = "Nobody but the server's trusted program learns who was drawn for a round, or how many."
_REPEATED = (
    "rounds with too many unresolved uploads were repeated, so that uploads are not drawn "
    "independently of one another in the rounds that were committed"
)
APART = (
    "every round drew each stored upload with probability {:g}, independently and in secret, "
    "unless one of the {:,} rounds before had it"
)
ZERO_OUT = (
    "One device's upload is replaced by an empty one (zero-out). Removing it instead would move "
    "others between partitions of equal size."
)


def sampled(
    trace: Trace,
    scenario: Scenario,
    strategy: Strategy,
    noise: Noise | None,
    delta: float,
    enforced: MinSep | None = None,
) -> Guarantee | None:
    """Returns the guarantee of a trace with amplification by Poisson sampling of stored uploads.

    A device has at most one upload per window, and every round draws from one window. So a device
    is drawn with the stated probability in each round in which its partition has its turn, and in
    no other. With as few bands as its turns are apart, every turn releases a Poisson-sampled
    Gaussian, and these compose (`sampled_in_turn`; by the accountant of the event).

    Args:
        trace: trace of a run.
        scenario: its scenario.
        strategy: the mechanism.
        noise: noise of the run.
        delta: delta of epsilon.
        enforced: turns that the schedule and the rules ensure, in the rounds to account for; None
            for any of the recorded rounds.

    Returns:
        None for a trace without draws of stored uploads. If nothing is proven, a guarantee without
        sensitivity and event, with the reason.
    """
    uploads = scenario.rounds.uploads
    # If all uploads take part, nothing is drawn that could amplify.
    if uploads is None or uploads.takes_all:
        return None
    n = trace.committed_rounds
    turns = enforced or (MinSep(n, 1, n) if n else None)
    return _by_draws(scenario, strategy, noise, delta, turns, _refusal(trace, scenario, noise))


def sampled_in_any_run(
    scenario: Scenario, strategy: Strategy, noise: Noise, delta: float, turns: MinSep
) -> Guarantee | None:
    """Returns the guarantee of `sampled` that the schedule gives every run of a scenario.

    Args:
        scenario: the scenario.
        strategy: the mechanism.
        noise: noise of its runs.
        delta: delta of epsilon.
        turns: turns that the schedule and the rules ensure.
    """
    uploads = scenario.rounds.uploads
    if uploads is None or uploads.takes_all:
        return None
    reason = _refusal_of_rules(scenario, noise)
    return _by_draws(scenario, strategy, noise, delta, turns, reason)


def _by_draws(
    scenario: Scenario,
    strategy: Strategy,
    noise: Noise | None,
    delta: float,
    turns: MinSep | None,
    reason: str,
) -> Guarantee:
    """Returns the guarantee of Poisson draws, unless there is a reason against it."""
    uploads = scenario.rounds.uploads
    assert uploads is not None
    sensitivity, event = None, None
    # Uploads that are assigned independently stay where they are when another one is removed.
    is_equal = isinstance(uploads.schedule, CyclicPoissonSchedule) and not uploads.keeps_groups
    assumptions = (SECRET, ZERO_OUT) if is_equal else (SECRET,)
    # Without a round nothing was released, so there is nothing to state.
    if not reason and turns is not None:
        assert isinstance(noise, ServerNoise)
        rounds = turns.rounds
        try:
            strategy.check_rounds(rounds)
            if isinstance(uploads.schedule, MinSepSchedule):
                b, p = uploads.schedule.min_sep, uploads.schedule.probability
                sensitivity = strategy.participation_sensitivity(turns)
                sampling = PoissonSampling(rounds, p, min_sep=b)
                event = sampled_release(strategy, sampling, noise.multiplier)
                reason = APART.format(p, b - 1)
                assumptions = (SECRET, BY_DRAWS) if b > 1 else (SECRET,)
            else:
                probability = uploads.sampling_probability
                assert probability is not None
                event = sampled_in_turn(strategy, turns, probability, noise.multiplier)
                norm, largest = largest_column(strategy, rounds)
                # Each turn is an event of its own, in which a device has one contribution.
                theorem = "one contribution to a Poisson sample, in each " + (
                    "round" if turns.max_participations == rounds else "turn of its device"
                )
                sensitivity = Sensitivity(norm, True, theorem, norm, (largest,))
                reason = _drawn(turns, probability)
        except InputError as refused:
            sensitivity, event, reason = None, None, str(refused)
    return Guarantee(
        "sampled",
        turns,
        sensitivity,
        event,
        delta,
        event is not None,
        reason,
        () if event is None else assumptions,
    )


def _drawn(turns: MinSep, probability: float) -> str:
    """Returns a clause on how rounds were drawn."""
    how = f"with probability {probability:g}, independently and in secret"
    if turns.max_participations == turns.rounds:
        return (
            f"each of {turns.rounds:,} rounds drew every stored upload {how}, and a device has one "
            "upload in each"
        )
    return (
        f"each of {turns.rounds:,} rounds drew every upload whose turn it was {how}, and a device "
        f"has at most {turns.max_participations:,} turns, {turns.min_sep:,} or more rounds apart"
    )


def _refusal(trace: Trace, scenario: Scenario, noise: Noise | None) -> str:
    """Returns the reason why sampling does not amplify the privacy of a trace; empty if it may."""
    uploads = scenario.rounds.uploads
    assert uploads is not None
    stated, probability = trace.run.get("sampling"), uploads.sampling_probability
    if stated != uploads.schedule.model_dump(mode="json"):
        return (
            f"run.json states the sampling {stated}, and the scenario has the schedule "
            f"{uploads.schedule.model_dump(mode='json')}, so nobody knows how rounds were drawn"
        )
    if reason := _refusal_of_rules(scenario, noise):
        return reason
    if (trace.rounds["state"] != 0).any():
        return _REPEATED
    assert probability is not None, "rules without one are refused"
    return _wrong_counts(trace, probability) or _wrong_uploads(trace, uploads)


def _refusal_of_rules(scenario: Scenario, noise: Noise | None) -> str:
    """Returns the reason why no run of a scenario is amplified by sampling; empty if one may be."""
    uploads = scenario.rounds.uploads
    assert uploads is not None
    # Amplification has conditions; any that fails is a reason.
    if isinstance(uploads.schedule, MinSepSchedule) and uploads.windows > 1:
        return (
            "each of several upload windows draws its uploads in its own way, and a device may be "
            "in all; use one window"
        )
    if uploads.sampling_probability is None:
        return (
            "a round draws a fixed number of uploads of its group without replacement, and for "
            "groups amplification is proven with Poisson samples only; use the schedule "
            "cyclic_poisson"
        )
    if not isinstance(noise, ServerNoise) or noise.count_noise is not None:
        return "amplification is accounted for where the server adds noise to sums of updates alone"
    if scenario.privacy.stop_at is not None:
        return "privacy.stop_at may end the run by who was drawn, which amplification keeps secret"
    return _REPEATED if uploads.unresolved_share else ""


def _wrong_counts(trace: Trace, probability: float) -> str:
    """Returns in words which round drew a number of uploads that the probability hardly ever gives;
    empty if none did."""
    from scipy.special import betainc

    is_committed = trace.rounds["state"] == 0
    drawn = trace.rounds["selected"][is_committed].astype(np.float64)
    # With stored uploads this column is the number of uploads that could be drawn.
    held = trace.rounds["eligible_estimate"][is_committed].astype(np.float64)
    # Many rounds are tested, and an honest trace must pass all tests (Bonferroni).
    least = LEAST_PROBABILITY / max(1, drawn.size)
    # Tails of the binomial law: P(X >= k) = I_q(k, m - k + 1), P(X <= k) = I_(1-q)(m - k, k + 1).
    some, others = np.maximum(drawn, 1.0), np.maximum(held - drawn, 1.0)
    as_many = np.where(drawn > 0, betainc(some, held - drawn + 1.0, probability), 1.0)
    as_few = np.where(drawn < held, betainc(others, drawn + 1.0, 1.0 - probability), 1.0)
    is_wrong = (drawn > held) | (as_many < least) | (as_few < least)
    wrong = np.flatnonzero(is_wrong)
    if not wrong.size:
        return ""
    first = int(wrong[0])
    return (
        f"round {first} drew {drawn[first]:,.0f} of {held[first]:,.0f} uploads, which the stated "
        f"probability {probability:g} does not give, so rounds were drawn in another way"
    )


def _wrong_uploads(trace: Trace, uploads: Uploads) -> str:
    """Returns a sentence that names a device drawn with two uploads of one window, with an upload
    from outside the round's window, or in turns of two groups; empty without one. Such a
    device was not drawn with the stated probability."""
    ends = trace.rounds["opened"][trace.rounds["state"] == 0]
    for part in range(len(trace.run["parts"])):
        columns = trace.columns(part)
        rows = np.flatnonzero(columns["outcome"] == Outcome.ACCEPTED)
        devices, uploaded = columns["device_id"][rows], columns["checkin_time"][rows]
        rounds = columns["round"][rows]
        end, group = ends[rounds], rounds % uploads.groups
        is_outside = (uploaded < end - uploads.seconds) | (uploaded >= end)
        # A device may be in several rounds of a window, but with the same upload.
        is_same = (devices[1:] == devices[:-1]) & (end[1:] == end[:-1])
        is_outside[1:] |= is_same & (uploaded[1:] != uploaded[:-1])
        has_group = devices[1:] == devices[:-1] if uploads.keeps_groups else is_same
        is_early = (
            np.diff(rounds) < uploads.groups
            if isinstance(uploads.schedule, MinSepSchedule)
            else group[1:] != group[:-1]
        )
        is_elsewhere = np.append(False, has_group & is_early)
        wrong = np.flatnonzero(is_outside | is_elsewhere)
        if wrong.size:
            device, index = int(devices[wrong[0]]), int(rounds[wrong[0]])
            what = (
                f"round {index} with an upload that is not its only one of the round's window"
                if is_outside[wrong[0]]
                else f"round {index}, in which the schedule does not let it be drawn"
            )
            return f"device {device} is in {what}, so it was drawn with another probability"
    return ""
