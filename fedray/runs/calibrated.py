"""Scenarios with a privacy target in place of a noise multiplier: the least noise that meets it.

Before a run, a separation in rounds and a cap on participations are known to hold, and for a timer
how often it lets a device come in the days of the run. After it, the times of its rounds are known.
In both cases a device may use its limits to the full, as in the enforced guarantee of an audit.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeVar

from fedray.audit.calibration import calibrate_trace, check_only_models
from fedray.audit.guarantees import described, fitting, limits_of_schedule
from fedray.audit.rules import rules_of
from fedray.base.errors import InputError
from fedray.base.rounding import down, given, significant
from fedray.mechanisms.accounting.calibration import noise_multiplier_for
from fedray.mechanisms.participation import MinSep
from fedray.runs.sustainable import contributions_of_a_device, last_report
from fedray.scenario import Scenario, SeveralTasks
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace

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
    key, most = scenario.privacy.target
    target, strategy = {key.removeprefix("target_"): most}, scenario.privacy.needed_strategy()
    delta = scenario.privacy.delta
    check_only_models(scenario, f"privacy.{key}")
    if trace is None:
        permitted = worst_participation(scenario)
        _demand_rules(scenario, permitted)
        try:
            sensitivity = strategy.participation_sensitivity(permitted).value
        except ValueError as error:  # nothing is proven
            raise InputError.caused_by(error) from None
        z = noise_multiplier_for(sensitivity, delta, **target)
    else:
        both = calibrate_trace(
            trace, delta=delta, mechanism=strategy, claim=None, scenario=scenario, **target
        )
        found = getattr(both, basis)
        permitted, z = found.guarantee.participation, found.noise_multiplier
        if basis == "enforced" or z is None:
            _demand_rules(scenario, z and permitted)
    # Rounded up to few digits, so that the record of a run is easy to read and to set again.
    shown, at = significant(z), "in any run" if trace is None else f"of the trace ({basis})"
    say(f"noise multiplier {shown}: {key} {given(most)} for {described(permitted)} {at}")
    is_enforced = trace is None or basis == "enforced"
    wanted = [f"privacy.wanted_epsilon={most!r}"] * (is_enforced and key == "target_epsilon")
    return scenario.with_overrides(f"privacy.noise_multiplier={shown}", *wanted)


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
    n = scenario.rounds.count
    if scenario.rounds.uploads is not None:
        permitted = limits_of_schedule(scenario, n).participation
        assert permitted is not None, "stored uploads always have limits"
        return permitted
    rules = [each for each in rules_of(scenario.participation) if not each.unkept]
    caps = [each.most for each in rules if each.most is not None]
    if scenario.rounds.buffer is None:
        # Buffers overlap, so an audit of their times may allow more than a timer does.
        caps += [each.most for each in contributions_of_a_device(scenario)]
    b = max((each.separation for each in rules), default=1)
    return fitting(n, min(max(1, b), n), min(caps, default=n))


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
    remedy = "set privacy.noise_multiplier, participation.max_participations or round_separation, "
    # In fewer days than these, a timer keeps every device out of a round.
    late = last_report(scenario) - 86_400.0 * scenario.rounds.max_days
    days = ((scenario.rounds.count - 1) * scenario.participation.wait_seconds - late) / 86_400.0
    is_kept = any("max_days" in each.rule for each in contributions_of_a_device(scenario))
    below = f" below {down(days, 2)}" if is_kept and days > 0.0 else ""
    remedy += f"or rounds.max_days{below} beside a timer (the fewer days, the less noise)"
    raise InputError.of(f"privacy.{key}", most, rule, remedy)
