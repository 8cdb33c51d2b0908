"""What-ifs of a plan: results of its mechanism and rules if the devices are not as assumed.

A simulated row has the exact sensitivity of its trace. So its epsilon holds for that trace, whether
or not a rule would ensure it. All rows have the mechanism and the noise of the plan. If the devices
are fewer, a row has the noise or the rounds that would do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from fedray.audit.noise import PlannedNoise, PlannedRelease
from fedray.audit.sensitivity import trace_sensitivity
from fedray.base.errors import ScenarioError
from fedray.mechanisms.accounting.calibration import (
    least_noise_multiplier,
    noise_multiplier_for,
)
from fedray.mechanisms.accounting.events import Gaussian
from fedray.mechanisms.accounting.gdp import gdp_epsilon
from fedray.mechanisms.accounting.zcdp import zcdp_epsilon
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.strategy import Strategy
from fedray.runs.sustainable import why_unsustainable
from fedray.scenario import Scenario
from fedray.scenario.literals import literal
from fedray.scenario.population import DeviceClass
from fedray.studies.simulated import Truth

FEWER = "population -10 %"
"""Name of the row by which robustness is judged."""
SLOW_SHARE, TIMES_SLOWER = 0.2, 5.0
"""Share of the devices in a class that is slower, and factor on their times."""


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
    """Epsilon of the target's unit in the run; None if it starves, or without a guarantee."""
    is_exact: bool = True
    """Whether epsilon rests on an exact sensitivity; False: on an upper bound."""
    starves_at: int | None = None
    """Number of the round that the run could not commit; 0 also if no run is possible; None if it
    does not starve."""
    note: str = ""
    """Why no run is possible; empty otherwise."""
    needed_noise_multiplier: float | None = None
    """Noise multiplier that meets the target without the plan's rules if devices are fewer, with
    a mechanism made for the run's min-sep less the plan's margin; None for other rows."""
    max_participations: int | None = None
    """Most participations of a device in the run; None if it starves."""
    rounds: int | None = None
    """Rounds that the devices suffice for, with the plan's rules and noise, if they are fewer and
    the run starves; None for other rows, and without a round."""


def what_ifs(
    planned: Scenario,
    strategy: Strategy,
    scale: float,
    simulate_all: Callable[[Sequence[Scenario]], Sequence[Truth]],
    noise_for: Callable[[MinSep], float],
    devices: int = 1,
) -> tuple[WhatIf, ...]:
    """Returns the plan as simulated, then a row for each what-if.

    Args:
        planned: scenario of the plan, with its limits as rules.
        strategy: mechanism made for the limits.
        scale: size of the simulated runs; 1: the whole population.
        simulate_all: returns the outcomes of scenarios.
        noise_for: returns the noise multiplier that meets the plan's target in runs like one with
            this participation.
        devices: devices of the unit whose epsilon a row has, by group privacy.
    """
    runs: dict[str, Scenario | str] = {}
    for name, change in (changes := _changes(planned)).items():
        try:
            run = planned.with_overrides(*change.keys)
            runs[name] = why_unsustainable(run) or run.scaled(scale)
        # A round may need more devices than are left, at full size or after rounding.
        except ScenarioError as error:
            runs[name] = str(error)
    truths = iter(simulate_all([run for run in runs.values() if isinstance(run, Scenario)]))
    found = []
    for name, run in runs.items():
        if isinstance(run, str):
            found.append(WhatIf(name, starves_at=0, note=run))
            continue
        change, truth = changes[name], next(truths)
        row = _of_trace(name, planned, strategy, truth, devices)
        if change.needs == "noise" and truth.participation is not None:
            row = replace(row, needed_noise_multiplier=noise_for(truth.participation))
        elif change.needs:
            # Rounds are the same, however many would follow.
            row = replace(row, rounds=row.starves_at or None)
        found.append(row)
    return tuple(found)


class _Change(NamedTuple):
    """A change of the plan's scenario."""

    keys: tuple[str, ...] = ()
    """Overrides of the scenario."""
    needs: Literal["", "noise", "rounds"] = ""
    """Figure that fewer devices need, without the plan's rules and with them; else empty."""


def _changes(planned: Scenario) -> dict[str, _Change]:
    devices, participation = planned.population.devices, planned.participation
    changes = {"as planned": _Change()}
    # No device takes part more often than there are rounds.
    no_rules = (
        "participation.round_separation=0",
        f"participation.max_participations={planned.rounds.count}",
    )
    for percent in (10, 30):
        fewer = round(devices * (1 - percent / 100))
        name, key = f"population -{percent} %", f"population.devices={fewer}"
        changes[name] = _Change((key,), "rounds")
        changes[f"{name}, no separation or cap"] = _Change((key, *no_rules), "noise")
    name = f"{100 * SLOW_SHARE:g} % of the devices {TIMES_SLOWER:g} times as slow"
    changes[name] = _Change((_with_slower_class(planned),))
    # Without a timer there is none to ignore.
    for percent in (1, 5) if participation.timer_hours else ():
        key = f"participation.timer_violators={percent / 100}"
        name = f"{percent} % ignore the timer"
        changes[name] = _Change((key,))
        if participation.round_separation:
            name = f"{name}, no separation rule"
            changes[name] = _Change((key, "participation.round_separation=0"))
    first, *others = planned.population.time_zones
    own = max((first, *others), key=lambda zone: zone.share).utc_offset_hours
    # Zones wrap around, so that they stay among those in use.
    shares = {own: 1.0} if others else {(own + each + 12) % 24 - 12: 1 / 3 for each in (-8, 0, 8)}
    tables = [f"{{utc_offset_hours={hours}, share={share}}}" for hours, share in shares.items()]
    name = "all devices in one time zone" if others else "spread over three time zones"
    changes[name] = _Change((f"population.time_zones=[{', '.join(tables)}]",))
    return changes


def _with_slower_class(planned: Scenario) -> str:
    """Returns the override that adds a class whose devices train, download and upload slowly. The
    other classes keep their proportions."""
    classes = planned.population.classes or (DeviceClass(name="others", share=1.0),)
    names = {each.name for each in classes}
    slower = DeviceClass(
        name=next(name for name in ("slower", "slower-2", "slower-3") if name not in names),
        share=SLOW_SHARE,
        train_time_factor=TIMES_SLOWER,
        downlink_factor=1.0 / TIMES_SLOWER,
        uplink_factor=1.0 / TIMES_SLOWER,
    )
    rest = [each.model_copy(update={"share": (1 - SLOW_SHARE) * each.share}) for each in classes]
    return f"population.classes={literal((*rest, slower))}"


def _of_trace(
    name: str, planned: Scenario, strategy: Strategy, truth: Truth, devices: int
) -> WhatIf:
    if truth.participation is None or truth.patterns is None:
        return WhatIf(name, starves_at=truth.committed)
    noise, privacy = PlannedNoise.of(planned), planned.privacy
    added = noise.as_added(strategy)
    found = trace_sensitivity(added, truth.patterns)
    # Small simulations have fewer devices in a round than the plan.
    release = replace(noise.release_of(added, truth.patterns, found.value), source=noise)
    of_unit = release.of_group(devices)
    epsilon = known_epsilon(of_unit, privacy.noise_multiplier, privacy.delta)
    most = truth.participation.max_participations
    # The devices of a person need not all be the worst one.
    is_exact = found.is_exact and devices == 1
    row = WhatIf(name, truth.days, truth.min_sep, epsilon, is_exact)
    return replace(row, max_participations=most)


def known_epsilon(release: PlannedRelease, z: float, delta: float) -> float | None:
    """Returns epsilon, or None if the noise is too small for a guarantee."""
    try:
        return release.epsilon(z, delta)
    except ValueError:
        return None


def most_mu(epsilon: float, delta: float, *, by_zcdp: bool) -> float:
    """Returns the largest mu with an epsilon; see `epsilon_at`. Raises InputError."""
    if not by_zcdp:
        return 1.0 / noise_multiplier_for(1.0, delta, epsilon=epsilon)
    return 1.0 / least_noise_multiplier(
        lambda z: zcdp_epsilon(Gaussian(noise_multiplier=z, sensitivity=1.0), delta), epsilon
    )


def epsilon_at(mu: float, delta: float, *, by_zcdp: bool) -> float | None:
    """Returns epsilon of a release with rho = mu^2 / 2; None if the noise is too small for a
    guarantee.

    Args:
        mu: sensitivity over noise.
        delta: delta of epsilon.
        by_zcdp: whether only rho is proven, as for noise of devices, and not the curve of Gaussian
            noise.
    """
    accountant = zcdp_epsilon if by_zcdp else gdp_epsilon
    try:
        return accountant(Gaussian(noise_multiplier=1.0, sensitivity=mu), delta)
    except ValueError:
        return None
