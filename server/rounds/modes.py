"""Choice of the coordinator that forms the rounds of a scenario."""

from collections.abc import Sequence

from fedray.scenario import Scenario, SeveralTasks
from fedray.wire.protocols import Shard
from .buffered import BufferedCoordinator
from .coordinator import Coordinator, RoundLoop
from .stored import StoredCoordinator


def coordinator_of(scenario: Scenario | SeveralTasks, shards: Sequence[Shard]) -> RoundLoop:
    """Returns the coordinator for `rounds.mode`.

    Args:
        scenario: rounds and their rules, of one task or several.
        shards: shards of the population, in order of their devices.
    """
    # Several tasks share devices only if rounds select their devices together.
    if isinstance(scenario, SeveralTasks):
        return Coordinator(scenario, shards)
    match scenario.rounds.mode:
        case "buffered":
            return BufferedCoordinator(scenario, shards)
        case "upload-then-train":
            return StoredCoordinator(scenario, shards)
        case "on-device":
            return Coordinator(scenario, shards)
