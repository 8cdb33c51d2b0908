"""Scenarios with a privacy target in place of a noise multiplier: the least noise that meets it.

Before a run only rules in rounds or in numbers of participations are known to hold: a separation, a
cap, and for a timer the number of times that it lets a device come in the days of the run. After a
run the times of its rounds are known too. In both cases every device may use its limits to the
full, so the enforced guarantee of the audit meets the target.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np

from fedray.audit.calibration import calibrate_trace
from fedray.audit.guarantees import described, fitting, limits_at
from fedray.audit.questions import vocabulary_cost
from fedray.audit.rules import rules_of
from fedray.base.arrays import Float64Array
from fedray.base.errors import InputError
from fedray.base.rounding import given, significant
from fedray.mechanisms.accounting.calibration import noise_multiplier_for
from fedray.mechanisms.participation import MinSep
from fedray.runs.sustainable import contributions_of_a_device
from fedray.scenario import Scenario, SeveralTasks
from fedray.scenario.uploads import MinSepSchedule
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace

_Kind = TypeVar("_Kind", bound=Scenario | SeveralTasks)


def calibrated(
    scenario: _Kind,
    trace: Trace | ImportedTrace | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> _Kind:
    """Returns a scenario with the noise multiplier in place of its target, or as it is without one.

    Args:
        scenario: scenario of one task or several; each task is calibrated to its own target.
        trace: trace to train on; None before a run.
        say: called with a line about each calibration.

    Raises:
        InputError: the rules ensure nothing, no theorem covers them, or no noise meets the target.
    """
    if isinstance(scenario, SeveralTasks):
        tasks = (
            replace(task, scenario=calibrated(task.scenario, trace, say)) for task in scenario.tasks
        )
        return replace(scenario, tasks=tuple(tasks))
    if scenario.privacy.target is None:
        return scenario
    key, most = scenario.privacy.target
    exact, participation = _before(scenario) if trace is None else _on(scenario, trace)
    # Rounded up to few digits, so that a record of the run is easy to read and to set again.
    z = significant(exact)
    figure = key.removeprefix("target_")
    say(
        f"noise multiplier {z}: {figure} {given(most)} for {described(participation)}, which the "
        f"rules ensure {'before the run' if trace is None else 'at the times of the trace'}"
    )
    return scenario.with_overrides(f"privacy.noise_multiplier={z}")


def ensures(participation: MinSep | None) -> bool:
    """Whether limits exclude anything: a device that takes part in every round."""
    return participation is not None and (
        participation.min_sep > 1 or participation.max_participations < participation.rounds
    )


def worst_participation(scenario: Scenario) -> MinSep:
    """Returns the tightest participation that the rules ensure in every run of a scenario.

    Upload windows end at known times, so that what an audit will enforce is known. The times of
    other rounds are not, so a timer only limits how often a device comes in the days of a run.
    """
    n, uploads = scenario.rounds.count, scenario.rounds.uploads
    if uploads is not None:
        ends = uploads.seconds * np.arange(1, uploads.windows + 1, dtype=np.float64)
        opened: Float64Array = np.repeat(ends, uploads.rounds_of_windows(n))
        permitted = limits_at(scenario, opened, opened, opened).participation
        assert permitted is not None, "stored uploads always have limits"
        return permitted
    rules = [each for each in rules_of(scenario.participation) if not each.unkept]
    b = max(1, *(each.separation for each in rules)) if rules else 1
    k = min((each.most for each in contributions_of_a_device(scenario)), default=n)
    return fitting(n, min(b, n), k)


def check_only_models(scenario: Scenario, name: str) -> None:
    """Raises InputError if a run releases more than updates of a model; `name` counts these."""
    if scenario.analytics is not None or vocabulary_cost(scenario) is not None:
        raise InputError(
            f"{name} counts updates of models only, and the scenario has a question (analytics) or "
            f"a private vocabulary; leave {name} out"
        )


def _before(scenario: Scenario) -> tuple[float, MinSep]:
    """Returns the least noise multiplier of a run to come, and the participation it is for."""
    privacy, uploads = scenario.privacy, scenario.rounds.uploads
    assert privacy.target is not None
    key, most = privacy.target
    name = f"privacy.{key}"
    check_only_models(scenario, name)
    schedule = None if uploads is None else uploads.schedule
    if scenario.rounds.sampling_probability is not None or isinstance(schedule, MinSepSchedule):
        raise InputError.of(
            name,
            most,
            "does not count the privacy of rounds that are random samples",
            "set privacy.noise_multiplier to that of `fedray mechanism --sampling`",
        )
    permitted = worst_participation(scenario)
    if scenario.rounds.buffer is not None:
        # Buffers overlap in time, and an audit of their times may allow more than the timer does.
        permitted = fitting(
            permitted.rounds,
            permitted.min_sep,
            scenario.participation.max_participations or permitted.rounds,
        )
    if not ensures(permitted):
        rules = rules_of(scenario.participation)
        reasons = [f"; {each.name} ensures nothing: {each.unkept}" for each in rules if each.unkept]
        raise InputError.of(
            name,
            most,
            "needs a rule that keeps every device out of some rounds in any run" + "".join(reasons),
            "set participation.max_participations",
        )
    try:
        sensitivity = privacy.needed_strategy().participation_sensitivity(permitted).value
    except ValueError as error:  # nothing is proven
        raise InputError.caused_by(error) from None
    targets = {"epsilon": privacy.target_epsilon, "rho": privacy.target_rho}
    return noise_multiplier_for(sensitivity, privacy.delta, **targets), permitted


def _on(scenario: Scenario, trace: Trace | ImportedTrace) -> tuple[float, MinSep]:
    """Returns the least noise multiplier by the rules at the times of a trace, and the
    participation that it is for."""
    privacy = scenario.privacy
    assert privacy.target is not None
    key, most = privacy.target
    found = calibrate_trace(
        trace,
        epsilon=privacy.target_epsilon,
        rho=privacy.target_rho,
        delta=privacy.delta,
        mechanism=privacy.needed_strategy(),
    ).enforced
    z, participation = found.noise_multiplier, found.guarantee.participation
    if z is None or participation is None or not ensures(participation):
        reason = f"needs rules that ensure something; here {found.guarantee.reason}"
        raise InputError.of(f"privacy.{key}", most, reason, "set privacy.noise_multiplier")
    return z, participation
