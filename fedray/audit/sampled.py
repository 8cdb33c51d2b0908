"""The guarantee that Poisson sampling of stored uploads gives."""

import numpy as np

from fedray.audit.guarantees import Guarantee
from fedray.audit.noise import Noise, ServerNoise
from fedray.mechanisms.accounting.events import Gaussian, PoissonSampled, Repeated
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Identity
from fedray.mechanisms.strategy import Sensitivity, Strategy
from fedray.scenario import Scenario
from fedray.trace.reader import Trace
from fedray.wire.messages import Outcome

LEAST_PROBABILITY = 1e-12
"""Least probability of a round's number of drawn uploads, or of a more extreme number. Below it,
the stated sampling is rejected."""


def sampled(
    trace: Trace, scenario: Scenario, strategy: Strategy, noise: Noise | None, delta: float
) -> Guarantee | None:
    """Returns the guarantee of a trace with amplification by Poisson sampling of stored uploads.

    A device has at most one upload per window, and every round draws from one window. So each of n
    rounds releases a Poisson-sampled Gaussian, and these compose (McMahan et al. 2018; by the
    accountant of the event).

    Args:
        trace: trace of a run.
        scenario: its scenario.
        strategy: the mechanism.
        noise: noise of the run.
        delta: delta of epsilon.

    Returns:
        None for a trace that was not sampled in this way. If nothing is proven, a guarantee without
        sensitivity and event, with the reason.
    """
    probability = scenario.rounds.sampling_probability
    if probability is None:
        return None
    rounds = trace.committed_rounds
    refusal = _refusal(trace, scenario, strategy, noise, probability)
    sensitivity, event, reason = None, None, refusal
    # Without a round nothing was released, so there is nothing to state.
    if not refusal and rounds:
        assert isinstance(noise, ServerNoise)
        # Each round is an event of its own, in which a device has one contribution.
        sensitivity = Sensitivity(
            1.0, True, "one contribution to a Poisson sample, in each round", 1.0, (0,)
        )
        of_round = PoissonSampled(
            probability=probability, event=Gaussian(noise_multiplier=noise.multiplier)
        )
        event = Repeated(event=of_round, count=rounds)
        reason = (
            f"each of {rounds:,} rounds drew every stored upload with probability "
            f"{probability:g}, independently, and a device has one upload in each"
        )
    return Guarantee(
        "sampled",
        MinSep(rounds, 1, rounds) if rounds else None,
        sensitivity,
        event,
        delta,
        sensitivity is not None,
        reason,
        ("Nobody but the server's trusted program learns who was drawn for a round, or how many.",),
    )


def _refusal(
    trace: Trace, scenario: Scenario, strategy: Strategy, noise: Noise | None, probability: float
) -> str:
    """Returns the reason why sampling does not amplify the privacy of a trace; empty if it does."""
    uploads = scenario.rounds.uploads
    assert uploads is not None
    # Amplification has conditions; any that fails is a reason.
    if trace.sampling_probability != probability:
        return (
            f"run.json states the sampling probability {trace.sampling_probability}, and the "
            f"scenario {probability:g}, so nobody knows how rounds were drawn"
        )
    if not isinstance(strategy, Identity):
        return (
            "amplification by Poisson samples is accounted for with independent noise alone "
            f"(identity), and this mechanism is {strategy.kind}"
        )
    if not isinstance(noise, ServerNoise) or noise.count_noise is not None:
        return "amplification is accounted for where the server adds noise to sums of updates alone"
    if uploads.unresolved_share:
        return (
            "rounds with too many unresolved uploads were repeated, so that uploads are not drawn "
            "independently of one another in the rounds that were committed"
        )
    if scenario.privacy.stop_at is not None:
        return "privacy.stop_at may end the run by who was drawn, which amplification keeps secret"
    return _wrong_counts(trace, probability) or _wrong_uploads(trace, uploads.seconds)


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


def _wrong_uploads(trace: Trace, window_seconds: float) -> str:
    """Returns a sentence that names a device drawn with two uploads of one window, or with an
    upload from outside the round's window; "" if there is none. Such a device was not drawn with
    the stated probability."""
    ends = trace.rounds["opened"][trace.rounds["state"] == 0]
    for part in range(len(trace.run["parts"])):
        columns = trace.columns(part)
        rows = np.flatnonzero(columns["outcome"] == Outcome.ACCEPTED)
        devices, uploaded = columns["device_id"][rows], columns["checkin_time"][rows]
        end = ends[columns["round"][rows]]
        is_outside = (uploaded < end - window_seconds) | (uploaded >= end)
        # A device may be in several rounds of a window, but with the same upload.
        is_same = (devices[1:] == devices[:-1]) & (end[1:] == end[:-1])
        is_outside[1:] |= is_same & (uploaded[1:] != uploaded[:-1])
        wrong = np.flatnonzero(is_outside)
        if wrong.size:
            device, index = int(devices[wrong[0]]), int(columns["round"][rows][wrong[0]])
            return (
                f"device {device} is in round {index} with an upload that is not its only one of "
                "the round's window, so it was drawn with another probability"
            )
    return ""
