"""Scenarios with a privacy target in place of a noise multiplier: the least noise that meets it.

Before a run, a separation in rounds and a cap on participations are known to hold, and for a timer
how often it lets a device come in the days of the run. After it, the times of its rounds are known.
In both cases a device may use its limits to the full, as in the enforced guarantee of an audit.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeVar

from fedray.audit.any_run import worst_participation
from fedray.audit.calibration import calibrate_trace, check_only_models, limit_of_scale
from fedray.audit.guarantees import described
from fedray.audit.noise import ServerNoise, least_multiplier, most_changed, permitted_noise
from fedray.audit.rules import rules_of
from fedray.base.errors import InputError
from fedray.base.rounding import at_least, decimals_of, given
from fedray.mechanisms.participation import MinSep
from fedray.scenario import Scenario, SeveralTasks
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace

CAP_OVER_MEAN = 2.0
"""Proposed cap over the mean participations of a device, since devices differ in how often they
come."""
_Kind = TypeVar("_Kind", bound=Scenario | SeveralTasks)
Basis = Literal["enforced", "observed"]
"""Guarantee of a trace that a target limits."""


def calibrated(
    scenario: _Kind,
    trace: Trace | ImportedTrace | None = None,
    say: Callable[[str], None] = lambda _: None,
    basis: Basis = "enforced",
) -> _Kind:
    """Returns a scenario with the noise multiplier in place of its target, or as it is without one.

    Args:
        scenario: scenario of one task or several; each task has its own target.
        trace: trace to train on; None before a run.
        say: called with a line about each calibration.
        basis: guarantee of the trace that meets the target.

    Raises:
        InputError: the rules ensure nothing, no theorem covers them, or no noise meets the target.
    """
    if isinstance(scenario, SeveralTasks):
        tasks = (
            replace(each, scenario=calibrated(each.scenario, trace, say, basis))
            for each in scenario.tasks
        )
        return replace(scenario, tasks=tuple(tasks))
    if scenario.privacy.target is None:
        return scenario
    if trace is None:
        return calibrated_for(scenario, worst_participation(scenario), say)
    key, most = scenario.privacy.target
    check_only_models(scenario, f"privacy.{key}")
    both = calibrate_trace(
        trace,
        delta=scenario.privacy.delta,
        mechanism=scenario.privacy.needed_strategy(),
        claim=None,
        scenario=scenario,
        **{key.removeprefix("target_"): most},
    )
    found = getattr(both, basis)
    permitted, z = found.guarantee.participation, found.noise_multiplier
    if basis == "enforced" or z is None:
        _demand_rules(scenario, z and permitted)
    assert z is not None, "rules without a noise multiplier are refused"
    return _with_noise(scenario, z, f"{described(permitted)} of the trace ({basis})", basis, say)


def calibrated_for(scenario: Scenario, worst: MinSep, say: Callable[[str], None]) -> Scenario:
    """Returns a scenario of one task as `calibrated` does before a run.

    Args:
        scenario: scenario, with or without a target.
        worst: its `worst_participation`.
        say: called with a line about the calibration.

    Raises:
        InputError: see `calibrated`.
    """
    if scenario.privacy.target is None:
        return scenario
    key, most = scenario.privacy.target
    strategy = scenario.privacy.needed_strategy()
    check_only_models(scenario, f"privacy.{key}")
    _demand_rules(scenario, worst)
    try:
        sensitivity = strategy.participation_sensitivity(worst).value
    except ValueError as error:  # nothing is proven
        raise InputError.caused_by(error) from None
    z = least_multiplier(
        lambda z: permitted_noise(ServerNoise(z), scenario, strategy),
        sensitivity,
        lambda noise: most_changed(noise, [worst]),
        scenario.privacy.delta,
        **{key.removeprefix("target_"): most},
    )
    return _with_noise(scenario, z, f"{described(worst)} in any run", "enforced", say)


def _with_noise(
    scenario: Scenario, z: float, limits: str, basis: Basis, say: Callable[[str], None]
) -> Scenario:
    """Returns the scenario with noise multiplier `z`, and says for which limits it was chosen."""
    assert scenario.privacy.target is not None
    key, most = scenario.privacy.target
    # Rounded up to few digits, so that the record of a run is easy to read and to set again.
    shown = at_least(z, decimals_of(z))
    say(f"noise multiplier {shown}: {key} {given(most)} for {limits}")
    if of_scale := limit_of_scale(scenario, z):
        say(of_scale)
    keys = [f"privacy.noise_multiplier={shown}"]
    if basis == "enforced" and key == "target_epsilon":
        keys.append(f"privacy.wanted_epsilon={most!r}")
    return scenario.with_overrides(*keys)


def ensures(participation: MinSep | None) -> bool:
    """Whether limits exclude anything: a device that takes part in every round."""
    return participation is not None and (
        participation.min_sep > 1 or participation.max_participations < participation.rounds
    )


def _demand_rules(scenario: Scenario, permitted: MinSep | None) -> None:
    if ensures(permitted):
        return
    assert scenario.privacy.target is not None
    key, most = scenario.privacy.target
    rules = rules_of(scenario.participation)
    unkept = (f"; {each.name} ensures nothing: {each.unkept}" for each in rules if each.unkept)
    rule = "needs a rule that keeps every device out of some rounds, whenever they run" + "".join(
        unkept
    )
    raise InputError.of(f"privacy.{key}", most, rule, _cap_to_choose(scenario))


def _cap_to_choose(scenario: Scenario) -> str:
    """Returns the remedy for rules that ensure nothing: a cap that a run has room for."""
    if scenario.participation.history_loss_per_day is not None:
        return "leave participation.history_loss_per_day out and set a cap, or the noise itself"
    n, usable = scenario.rounds.count, scenario.device_ids * scenario.serving_share
    mean = n * scenario.rounds.report_goal / usable
    cap = min(n - 1, math.ceil(CAP_OVER_MEAN * mean))
    if cap <= mean:
        return "set privacy.noise_multiplier, since each device is in nearly every round"
    return (
        f"set participation.max_participations={cap}, where the mean is {mean:.2g} (the smaller "
        "the cap, the less noise)"
    )
