"""Workloads of scenarios: the step sizes of a server's learning-rate schedule."""

from fedray.mechanisms.workload import Workload
from fedray.scenario import Scenario


def read_workload(text: str, rounds: int) -> Workload:
    """Reads a workload for a number of rounds, such as "momentum=0.9,schedule=run.toml".

    Args:
        text: text of `Workload.parse`; `schedule=FILE` names the scenario of the schedule.
        rounds: number of rounds of the schedule.

    Raises:
        InputError: the text is not a workload, or the file is not a scenario.
    """
    parts = text.split(",")
    rates: tuple[float, ...] = ()
    for place, part in enumerate(parts):
        name, _, file = part.partition("=")
        if name == "schedule" and file:
            rates = schedule_rates(Scenario.from_toml(file), rounds)
            parts[place] = name
    return Workload.parse(",".join(parts), rates)


def schedule_rates(scenario: Scenario, rounds: int) -> tuple[float, ...]:
    """Returns the step size of each round, relative to the server's learning rate."""
    schedule = scenario.training.server.schedule
    return tuple(schedule.factor(index, rounds) for index in range(rounds))
