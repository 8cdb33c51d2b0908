"""Workloads of scenarios: the server's use of its rounds' updates."""

from fedray.base.errors import InputError
from fedray.mechanisms.workload import Workload
from fedray.scenario import Scenario
from fedray.scenario.training import CustomServer, ServerSGD, Training

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
        training = Scenario.from_toml(text).training
        if isinstance(training.server, CustomServer):
            raise InputError.of(
                "workload", text, "has an optimizer whose momentum is not known", "give momentum="
            )
        return workload_of_server(training, rounds)
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
    """Returns the workload of a server's optimiser, with CONTRACTION; a user's optimizer counts as
    one without momentum."""
    server = training.server
    if isinstance(server, ServerSGD):
        momentum = server.momentum
    else:
        # The steps of adaptive servers also have a size by coordinate, which no workload has.
        momentum = 0.0 if isinstance(server, CustomServer) else server.beta1
    rates = schedule_rates(training, rounds)
    # Equal rates only scale the error.
    return Workload(momentum, CONTRACTION, rates if len(set(rates)) > 1 else ())
