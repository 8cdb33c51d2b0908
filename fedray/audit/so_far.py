"""Upper bound on the privacy that a run has spent so far, from its rules and the times of its
rounds.

Participation is unknown until the run ends, when the audit of the trace is exact. A bound is known
at any time: the enforced guarantee (fedray/audit/guarantees.py) of the rounds so far. After n
rounds the first n rows of the mechanism's matrix are released, and no participation under the rules
spends more on these.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np

from fedray.audit.guarantees import Guarantee, Limits, limits_at, of_limits
from fedray.audit.noise import ServerNoise, permitted_noise
from fedray.audit.questions import privacy_of_answers, vocabulary_cost
from fedray.base.arrays import Float64Array
from fedray.mechanisms.accounting.events import Composed, read_event
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

    @classmethod
    def of(cls, columns: Mapping[str, Any]) -> Self:
        """Returns the rounds of columns by name, which may have others beside."""
        return cls(*(np.asarray(columns[name], np.float64) for name in cls._fields))


def bound_so_far(scenario: Scenario, rounds: RoundsSoFar) -> Guarantee:
    """Returns an upper bound of the privacy spent in the rounds so far, if every device kept the
    rules: on the model, if one is trained, on a private vocabulary, and on the answers to a
    question, under the trust model that spends most.

    Args:
        scenario: scenario of the run.
        rounds: number of rounds, at least 1.

    Returns:
        The enforced guarantee, whose sensitivity is that of the model. Without a proof, its event
        is None, and it has the reason.
    """
    # The times of later rounds do not matter: C is lower triangular, and a pattern of the rounds so
    # far is a pattern of the whole run that ends here. (b, k) suffices: the smaller figure of rules
    # within periods may take seconds, and this one is wanted again and again.
    bounds = bounds_under(scenario, replace(limits_at(scenario, *rounds), rules=None))
    return max(bounds, key=lambda each: math.inf if each.epsilon is None else each.epsilon)


def bounds_under(scenario: Scenario, limits: Limits) -> list[Guarantee]:
    """Returns upper bounds as `bound_so_far` for any rounds in which devices keep some limits: one
    for each trust model of a question, of which a deployment has one."""
    privacy, asks = scenario.privacy, scenario.analytics is not None
    spent: list[tuple[Any, float]] = []
    bound = Guarantee("enforced", None, None, None, privacy.delta, True, limits.reason)
    if scenario.training.enabled or not asks:
        if privacy.strategy is None:
            return [replace(bound, may_rest_on=False, reason=NO_GUARANTEE)]
        noise = permitted_noise(
            ServerNoise(privacy.noise_multiplier, scenario.count_noise), scenario, privacy.strategy
        )
        bound = of_limits("enforced", limits, privacy.strategy, noise, privacy.delta, True)
        spent = [(bound.event, bound.delta)]
    told = vocabulary_cost(scenario)
    spent += [] if told is None else [(read_event(told.event), told.delta)]
    answers = privacy_of_answers(scenario, 1, limits, None) if asks else ()
    enforced = [[(each.event, each.delta)] for each in answers if each.basis == "enforced"]
    return [_together(bound, [*spent, *each]) for each in enforced or [[]]]


def _together(bound: Guarantee, spent: Sequence[tuple[Any, float]]) -> Guarantee:
    events, deltas = zip(*spent, strict=True)
    whole = events[0] if len(events) == 1 else Composed(events=events) if all(events) else None
    return replace(bound, event=whole, delta=sum(deltas))
