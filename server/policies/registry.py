"""The policies that a scenario names."""

from fedray.scenario import Scenario
from server.policies.cap import Cap
from server.policies.min_sep import MinSep
from server.policies.policy import ParticipationPolicy, Policies
from server.policies.timer import Timer


def policies_of(scenario: Scenario) -> Policies:
    """The policies of a scenario's table `participation`, joined."""
    table = scenario.participation
    each: list[ParticipationPolicy] = [Timer(table.timer_resets_on)]
    if table.round_separation:
        each.append(MinSep(table.round_separation))
    if table.max_participations is not None:
        each.append(Cap(table.max_participations))
    return Policies(tuple(each))
