"""Which coordinator forms the rounds of a scenario."""

from collections.abc import Sequence

from fedray.scenario import Scenario
from fedray.server.rounds.buffered import BufferedCoordinator
from fedray.server.rounds.coordinator import Coordinator
from fedray.server.rounds.stored import StoredCoordinator
from fedray.wire.protocols import Shard

AnyCoordinator = Coordinator | BufferedCoordinator | StoredCoordinator
"""What forms rounds, as `rounds.mode` says."""


def coordinator_of(scenario: Scenario, shards: Sequence[Shard]) -> AnyCoordinator:
    """The coordinator that `rounds.mode` names.

    Args:
        scenario: says the rounds and their rules.
        shards: of the population, in order of their devices.
    """
    match scenario.rounds.mode:
        case "buffered":
            return BufferedCoordinator(scenario, shards)
        case "upload-then-train":
            return StoredCoordinator(scenario, shards)
        case "on-device":
            return Coordinator(scenario, shards)
