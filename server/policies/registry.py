"""The policies that a scenario names."""

from fedray.history import HistoryLosses
from fedray.scenario import Scenario
from fedray.scenario.participation import (
    AnyPolicy,
    MinSepPolicy,
    Participation,
    WithoutReplacementPolicy,
)
from server.policies.cap import Cap
from server.policies.policy import ParticipationPolicy, Policies
from server.policies.round_separation import RoundSeparation
from server.policies.timer import Timer
from server.policies.without_replacement import WithoutReplacement


def policies_of(scenario: Scenario) -> Policies:
    """The policies of a scenario's table `participation`, joined.

    Raises:
        ValueError: a policy needs what the shards do not keep for this table.
    """
    table = scenario.participation
    each: list[ParticipationPolicy] = []
    if table.has_timer:
        each.append(Timer(table.timer_resets_on))
    each += [policy for one in table.policies or () for policy in _of_table(one, table)]
    if table.round_separation:
        each.append(RoundSeparation(table.round_separation, "arrived"))
    if table.max_participations is not None:
        each.append(Cap(table.max_participations))
    joined = Policies(tuple(each), HistoryLosses.of(scenario))
    _check_that_shards_keep(joined, table)
    return joined


def _check_that_shards_keep(policies: Policies, table: Participation) -> None:
    # Shards keep last rounds and count contributions as the table says, since they never meet a
    # policy. A policy of which the table says nothing would be broken without a word.
    if policies.separation != table.separation:
        raise ValueError(
            f"policies keep rounds {policies.separation} apart but Participation.separation says "
            f"{table.separation}; make both say the same"
        )
    is_counted = table.max_participations is not None
    if not is_counted and any(policy.counts_contributions for policy in policies.each):
        raise ValueError(
            "a policy reads contributions but participation.max_participations is none, so shards "
            "do not count them; let the table say that they are counted"
        )


def _of_table(policy: AnyPolicy, table: Participation) -> list[ParticipationPolicy]:
    """What devices remember for a policy: nothing, for one that the shard alone checks."""
    if isinstance(policy, WithoutReplacementPolicy):
        is_known = table.history_loss != "corrupted"
        return [WithoutReplacement(3600.0 * policy.period_hours, is_known)]
    if isinstance(policy, MinSepPolicy):
        return [RoundSeparation(policy.gap, "upload")]
    return []
