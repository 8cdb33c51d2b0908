"""What-ifs of a plan: what its mechanism and rules give if the devices are not as assumed.

A simulated row has the exact sensitivity of its trace. So its epsilon holds for that trace, whether
or not a rule would ensure it. All rows have the mechanism and the noise of the plan.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedray.audit.sensitivity import trace_sensitivity
from fedray.base.errors import ScenarioError
from fedray.mechanisms.accounting.events import Gaussian
from fedray.mechanisms.accounting.gdp import gdp_epsilon
from fedray.mechanisms.strategy import Strategy
from fedray.runs.sustainable import why_unsustainable
from fedray.scenario import Scenario
from fedray.studies.simulated import Truth


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Outcome of a plan under another assumption."""

    name: str
    """What differs from the plan."""
    days: float | None = None
    """Days of the run; None if it starves."""
    min_sep: int | None = None
    """Min-sep of the run; None also if no device took part twice."""
    epsilon: float | None = None
    """Epsilon of the run; None if it starves, or without a guarantee."""
    is_exact: bool = True
    """Whether epsilon rests on an exact sensitivity; False: on an upper bound."""
    starves_at: int | None = None
    """Number of the round that the run could not commit; 0 also if no run is possible; None if it
    does not starve."""
    note: str = ""
    """Why no run is possible; empty otherwise."""


def what_ifs(
    planned: Scenario,
    strategy: Strategy,
    scale: float,
    simulate_all: Callable[[Sequence[Scenario]], Sequence[Truth]],
) -> tuple[WhatIf, ...]:
    """Returns the plan as simulated, then a row for each what-if.

    Args:
        planned: scenario of the plan, with its limits as rules.
        strategy: mechanism made for the limits.
        scale: size of the simulated runs; 1: the whole population.
        simulate_all: returns the outcomes of scenarios.
    """
    runs: dict[str, Scenario | str] = {}
    for name, keys in _changes(planned).items():
        try:
            run = planned.with_overrides(*keys)
            runs[name] = why_unsustainable(run) or run.scaled(scale)
        # A round may need more devices than are left, at full size or after rounding.
        except ScenarioError as error:
            runs[name] = str(error)
    truths = iter(simulate_all([run for run in runs.values() if isinstance(run, Scenario)]))
    return tuple(
        WhatIf(name, starves_at=0, note=run)
        if isinstance(run, str)
        else _of_trace(name, planned, strategy, next(truths))
        for name, run in runs.items()
    )


def _changes(planned: Scenario) -> dict[str, tuple[str, ...]]:
    devices, participation = planned.population.devices, planned.participation
    changes: dict[str, tuple[str, ...]] = {"as planned": ()}
    # No device takes part more often than there are rounds.
    no_rules = (
        "participation.round_separation=0",
        f"participation.max_participations={planned.rounds.count}",
    )
    for percent in (10, 30):
        fewer = round(devices * (1 - percent / 100))
        name, key = f"population -{percent} %", f"population.devices={fewer}"
        changes[name] = (key,)
        changes[f"{name}, no separation or cap"] = (key, *no_rules)
    # Without a timer there is none to ignore.
    for percent in (1, 5) if participation.timer_hours else ():
        key = f"participation.timer_violators={percent / 100}"
        name = f"{percent} % ignore the timer"
        changes[name] = (key,)
        if participation.round_separation:
            changes[f"{name}, no separation rule"] = (key, "participation.round_separation=0")
    first, *others = planned.population.time_zones
    own = max((first, *others), key=lambda zone: zone.share).utc_offset_hours
    # Zones wrap around, so that they stay among those in use.
    shares = {own: 1.0} if others else {(own + each + 12) % 24 - 12: 1 / 3 for each in (-8, 0, 8)}
    tables = [f"{{utc_offset_hours={hours}, share={share}}}" for hours, share in shares.items()]
    name = "all devices in one time zone" if others else "spread over three time zones"
    changes[name] = (f"population.time_zones=[{', '.join(tables)}]",)
    return changes


def _of_trace(name: str, planned: Scenario, strategy: Strategy, truth: Truth) -> WhatIf:
    if truth.participation is None or truth.patterns is None:
        return WhatIf(name, starves_at=truth.committed)
    found, privacy = trace_sensitivity(strategy, truth.patterns), planned.privacy
    epsilon = epsilon_of(found.value, privacy.noise_multiplier, privacy.delta)
    return WhatIf(name, truth.days, truth.min_sep, epsilon, found.is_exact)


def epsilon_of(sensitivity: float, z: float, delta: float) -> float | None:
    """Returns epsilon, or None if the noise is too small for a guarantee."""
    try:
        return gdp_epsilon(Gaussian(noise_multiplier=z, sensitivity=sensitivity), delta)
    except ValueError:
        return None
