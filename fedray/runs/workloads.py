"""Workloads of scenarios: the server's use of its rounds' updates."""

from fedray.mechanisms.workload import Workload
from fedray.scenario import Scenario
from fedray.scenario.training import ServerSGD, Training

CONTRACTION = 0.95
"""Share of the model's earlier changes, and of their noise, that a round leaves: later gradients
correct the rest. Of the shares from 0.9 to 1, those from 0.9 to 0.95 order mechanisms best on three
data sets (docs/published.md)."""


def read_workload(text: str, rounds: int) -> Workload:
    """Reads a workload for a number of rounds, such as "momentum=0.9,schedule=run.toml".

    Args:
        text: text of `Workload.parse`; `schedule=FILE` names the scenario of the schedule, and
            FILE.toml a scenario whose server determines all.
        rounds: number of rounds of the schedule.

    Raises:
        InputError: the text is not a workload, or the file is not a scenario.
    """
    if text.endswith(".toml") and "=" not in text:
        return workload_of_server(Scenario.from_toml(text).training, rounds)
    parts = text.split(",")
    rates: tuple[float, ...] = ()
    for place, part in enumerate(parts):
        name, _, file = part.partition("=")
        if name == "schedule" and file:
            rates = schedule_rates(Scenario.from_toml(file).training, rounds)
            parts[place] = name
    return Workload.parse(",".join(parts), rates)


def schedule_rates(training: Training, rounds: int) -> tuple[float, ...]:
    """Returns the step size of each round, relative to the server's learning rate."""
    return tuple(training.server.schedule.factor(index, rounds) for index in range(rounds))


def workload_of_server(training: Training, rounds: int) -> Workload:
    """Returns the workload of a server's optimiser, with CONTRACTION."""
    server = training.server
    # The steps of adaptive servers also have a size by coordinate, which no workload has.
    momentum = server.momentum if isinstance(server, ServerSGD) else server.beta1
    rates = schedule_rates(training, rounds)
    # Equal rates only scale the error.
    return Workload(momentum, CONTRACTION, rates if len(set(rates)) > 1 else ())
