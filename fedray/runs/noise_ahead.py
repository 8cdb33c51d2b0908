"""Effect of a training's noise on its model, known before it begins.

No clipped update is longer than the clip norm S, and so neither is their mean. Independent noise on
the mean of m devices has about the norm z S sqrt(d) / m for d parameters. Correlated noise has that
times the norm of a row of C^-1, but later rounds cancel a part. Its effect is that of independent
noise times the ratio of their errors by the workload of the server (fedray/runs/workloads.py). That
a model learns where this is at most LEARNABLE times S is a rule of thumb, not a theorem.
"""

import math

from fedray.base.rounding import counted
from fedray.encoding.tables import DeviceNoiseTable
from fedray.mechanisms.identity import Identity
from fedray.mechanisms.loss import errors
from fedray.mechanisms.workload import Workload
from fedray.runs.workloads import workload_of_server
from fedray.scenario import Scenario
from fedray.server.learning.estimator import estimator_of
from fedray.wire.messages import TrainReport

LEARNABLE, MOST_LOST, ABOVE = 1.0, 3.5, 45
"""Noise in effect, in clip norms, up to which models lost at most MOST_LOST points of
accuracy to no noise, and beyond it up to ABOVE, on three data sets (docs/published.md)."""
LEAST_SHARE = 100
"""Factor by which a model is made smaller at most before another remedy is named instead."""
NO_SIZE = "a model of about this size is not trainable so; lower privacy.noise_multiplier"
ROUNDS = 200
"""Rounds over which errors are compared, as in the studies: later ones hardly change them."""
EACH_MEAN = Workload(decay=1e-300)
"""Workload whose model is forgotten at once, so that its errors are those of single updates."""


def noise_ahead(scenario: Scenario, parameters: int, workload: Workload | None = None) -> float:
    """Returns the norm of independent noise on each mean update that would disturb a model as much
    as the noise of a scenario does, in clip norms; 0 without noise.

    Args:
        scenario: scenario of the training.
        parameters: number of the model's parameters.
        workload: workload by which the disturbances are compared, in place of the server's. By
            EACH_MEAN it is the norm of the noise on a mean update itself (RMS over rounds).
    """
    strategy, goal = scenario.privacy.strategy, scenario.rounds.report_goal
    if strategy is None:
        return 0.0
    rounds = min(strategy.most_rounds or ROUNDS, ROUNDS)
    if workload is None:
        workload = workload_of_server(scenario.training, rounds)
    error = errors(strategy, rounds, workload)[1] / errors(Identity(), rounds, workload)[1]
    whole = TrainReport(round_index=0, devices=goal, accepted=goal)
    estimator = estimator_of(scenario)
    share = estimator.noise_share(whole) / estimator.divisor(whole)
    sent = scenario.privacy.sent
    if isinstance(sent, DeviceNoiseTable):
        # With local trust each device adds all the noise, so the sum has it `goal` times.
        share *= math.sqrt(goal / sent.sharing(goal))
    return scenario.update_noise_multiplier * math.sqrt(parameters) * share * error


def beside_deployment(scenario: Scenario) -> str:
    """Returns the noise beside that of the deployment for which a small population stands, as a
    sentence after a space; empty if that is not known."""
    real, devices = scenario.training.stands_for, scenario.population.devices
    if real is None:
        return ""
    return (
        f" That is {real / devices:.3g} times the noise of the deployment of {real:,} devices for "
        f"which these {devices:,} stand, if its report goal is larger by the same factor."
    )


def told_ahead(ratio: float, parameters: int, scenario: Scenario) -> str:
    """Returns this noise in a sentence, with remedies in figures if it is too much for learning: a
    goal of fewer than all devices, or a model of fewer parameters. Another sentence compares it
    with the deployment for which a small population stands.

    Args:
        ratio: result of `noise_ahead`.
        parameters: number of the model's parameters.
        scenario: scenario of the training.
    """
    goal, devices = scenario.rounds.report_goal, scenario.population.devices
    text = f"The noise on a mean update is {ratio:.2g} times the clip norm"
    itself = noise_ahead(scenario, parameters, EACH_MEAN)
    if not math.isclose(itself, ratio, rel_tol=0.01):
        size = f"{itself:.3g}" if itself < 1000 else f"{itself:,.0f}"
        text = (
            f"The noise on a mean update is {size} times the clip norm; correlated as it is, it "
            f"acts on the model like independent noise of {ratio:.2g} times"
        )
    twin = beside_deployment(scenario)
    if ratio <= LEARNABLE:
        return f"{text}. Longer updates are scaled down to it.{twin}"
    needed = goal * ratio / LEARNABLE
    step = 10 ** max(0, math.floor(math.log10(needed)) - 1)
    larger, fewer = math.ceil(needed / step) * step, int(parameters / ratio**2)
    remedies = [f"raise rounds.report_goal to {larger:,}"] if larger < devices else []
    if fewer * LEAST_SHARE >= parameters:
        remedies.append(f"train at most {counted(fewer, 'parameter')} instead of {parameters:,}")
    return (
        f"{text}; up to {LEARNABLE:g}, models lost at most {MOST_LOST} points of accuracy to no "
        f"noise in three studies, and beyond it up to {ABOVE}: "
        f"{', or '.join(remedies) or NO_SIZE}.{twin}"
    )
