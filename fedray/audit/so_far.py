"""Upper bound on the privacy that a run has spent so far, from its rules and the times of its
rounds.

Participation is unknown until the run ends, when the audit of the trace is exact. A bound is known
at any time: the enforced guarantee (fedray/audit/guarantees.py) of the rounds so far. After n
rounds the first n rows of the mechanism's matrix are released, and no participation under the rules
spends more on these.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from fedray.audit.guarantees import Guarantee, Limits, limits_at, of_limits
from fedray.audit.noise import ServerNoise, permitted_noise
from fedray.audit.questions import privacy_of_answers, vocabulary_cost
from fedray.base.arrays import Float64Array
from fedray.mechanisms.accounting.events import Composed, Event, read_event
from fedray.scenario import Scenario
from fedray.scenario.privacy import NO_GUARANTEE


class RoundsSoFar(NamedTuple):
    """Committed rounds of a run so far, with times as in `RoundRecord`; each [n], in order."""

    opened: Float64Array
    """Start of selection, seconds since start of the run."""
    started: Float64Array
    """Start of the round, seconds since start of the run."""
    closed: Float64Array
    """Time of the commit, seconds since start of the run."""


def bound_so_far(scenario: Scenario, rounds: RoundsSoFar) -> Guarantee:
    """Returns an upper bound of the privacy spent in the rounds so far, if every device kept the
    rules: on the model, if one is trained, on a private vocabulary, and on the answers to a
    question, under the trust model that spends most.

    Args:
        scenario: scenario of the run.
        rounds: at least one.

    Returns:
        The enforced guarantee, whose sensitivity is that of the model. Without a proof, its event
        is None, and it has the reason.
    """
    limits = limits_at(scenario, rounds.opened, rounds.started, rounds.closed)
    asks, told = scenario.analytics is not None, vocabulary_cost(scenario)
    model = None if asks and not scenario.training.enabled else _of_model(scenario, limits)
    bases = [] if model is None else [model]
    if told is not None:
        bases.append(_stated(read_event(told.event), told.delta, limits))
    if not asks:
        return _together(bases)
    answers = privacy_of_answers(scenario, 1, limits, None)
    bounds = [
        _together([*bases, _stated(each.event, each.delta, limits)])
        for each in answers
        if each.basis == "enforced"
    ]
    return max(bounds, key=lambda bound: math.inf if bound.epsilon is None else bound.epsilon)


def _of_model(scenario: Scenario, limits: Limits) -> Guarantee:
    privacy = scenario.privacy
    if privacy.strategy is None:
        return Guarantee("enforced", None, None, None, privacy.delta, False, NO_GUARANTEE)
    server = ServerNoise(privacy.noise_multiplier, scenario.count_noise)
    noise = permitted_noise(server, scenario)
    return of_limits("enforced", limits, privacy.strategy, noise, privacy.delta, may_rest_on=True)


def _stated(event: Event | None, delta: float, limits: Limits) -> Guarantee:
    return Guarantee("enforced", limits.participation, None, event, delta, True, limits.reason)


def _together(bases: Sequence[Guarantee]) -> Guarantee:
    """Returns the guarantee of several releases together; the reason is that of the first without a
    proof."""
    unknown = next((each for each in bases if each.event is None), None)
    if unknown is not None or len(bases) == 1:
        return unknown or bases[0]
    parts: Any = tuple(each.event for each in bases)
    composed = Composed(events=parts)
    return replace(bases[0], event=composed, delta=sum(each.delta for each in bases))
