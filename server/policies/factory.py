"""Joins the participation policies of a scenario."""

from dataclasses import replace
from pkgutil import resolve_name

from fedray.scenario import Scenario
from fedray.scenario.participation import Participation, TimerPolicy
from fedray.wire.history import HistoryLosses
from .cap import Cap
from .policy import ParticipationPolicy, Policies
from .round_separation import RoundSeparation
from .timer import Timer


def policies_of(scenario: Scenario) -> Policies:
    """Returns the policies of a scenario's table `participation`, joined, for rounds before
    `from_round` (see `later_policies_of`).

    Raises:
        ValueError: a policy needs a record that the shards do not keep for this table.
    """
    return _joined(scenario, scenario.participation)


def later_policies_of(scenario: Scenario) -> Policies | None:
    """Returns the policies for rounds from `participation.from_round` on; None if they stay the
    same."""
    table = scenario.participation
    if table.later is None:
        return None
    extra = 3600.0 * (table.with_later.timer_hours - table.timer_hours)
    return _joined(scenario, table.with_later, extra)


def _joined(scenario: Scenario, table: Participation, extra_seconds: float = 0.0) -> Policies:
    tables = (TimerPolicy(),) if table.policies is None else table.policies
    each: list[ParticipationPolicy] = [
        resolve_name(one.implementation)(one, scenario) for one in tables
    ]
    if extra_seconds:
        each = [
            replace(one, extra_seconds=extra_seconds, is_new=not scenario.participation.timer_hours)
            if isinstance(one, Timer)
            else one
            for one in each
        ]
    if table.round_separation:
        each.append(RoundSeparation(table.round_separation, "arrived"))
    elif table.later is not None and table.later.round_separation:
        # Rounds are remembered for a later separation before they must be separated.
        each.append(RoundSeparation(0, "arrived"))
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
    if not table.counts_contributions and any(
        policy.counts_contributions for policy in policies.each
    ):
        raise ValueError(
            "a policy reads contributions but participation.max_participations is none, so shards "
            "do not count them; let the table say that they are counted"
        )
