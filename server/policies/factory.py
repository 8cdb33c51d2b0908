"""Joins the participation policies of a scenario."""

from pkgutil import resolve_name

from fedray.scenario import Scenario
from fedray.scenario.participation import Participation, TimerPolicy
from fedray.wire.history import HistoryLosses
from .cap import Cap
from .policy import ParticipationPolicy, Policies
from .round_separation import RoundSeparation


def policies_of(scenario: Scenario) -> Policies:
    """Returns the policies of a scenario's table `participation`, joined.

    Raises:
        ValueError: a policy needs a record that the shards do not keep for this table.
    """
    table = scenario.participation
    tables = (TimerPolicy(),) if table.policies is None else table.policies
    each: list[ParticipationPolicy] = [
        resolve_name(one.implementation)(one, scenario) for one in tables
    ]
    if table.round_separation:
        each.append(RoundSeparation(table.round_separation, "arrived"))
    if table.max_participations is not None:
        each.append(Cap(table.max_participations))
    # The last look-ahead window may extend beyond the last day, by hours at most.
    end_seconds = 86_400.0 * (scenario.rounds.max_days + 1.0)
    joined = Policies(tuple(each), HistoryLosses.of(scenario), end_seconds)
    _check_that_shards_keep(joined, table)
    return joined


def _check_that_shards_keep(policies: Policies, table: Participation) -> None:
    # Shards keep last rounds and count contributions as the table says, since they never see a
    # policy. A policy that needs more would be broken silently.
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
