"""Participation in any run of a scenario, before the times of its rounds are known, and the
guarantee of all planned rounds of a run that ended early."""

from dataclasses import replace

from fedray.audit.guarantees import (
    Guarantee,
    Limits,
    fitting,
    limits_of_schedule,
    of_limits,
    strongest,
)
from fedray.audit.noise import Noise
from fedray.audit.rules import rules_of
from fedray.audit.sampled import sampled_in_any_run
from fedray.base.rounding import counted
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.strategy import Strategy
from fedray.scenario import Scenario
from fedray.scenario.contributions import contributions_of_a_device


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


def _recorded_before(limits: Limits) -> Limits:
    """Returns limits at recorded times of all rounds of a training that stopped, with what they
    assume."""
    assert limits.participation is not None
    rounds = f"{limits.participation.rounds:,} recorded rounds"
    return replace(
        limits,
        reason=f"{limits.reason}, at the times of all {rounds} that could have been trained",
        assumptions=(
            *limits.assumptions,
            f"All {rounds} were recorded before the training, so its models changed no times.",
        ),
    )


def planned_guarantee(
    scenario: Scenario,
    strategy: Strategy,
    noise: Noise | None,
    delta: float,
    recorded: Limits | None = None,
) -> Guarantee:
    """Returns the guarantee of all planned rounds, wherever between two of them a run stops.

    A run that stops by its released models is a function of the releases of all planned rounds, so
    it has their guarantee (post-processing). Figures of the rounds done are those of a number of
    rounds that no model decides: with several chances to stop, the loss of privacy at the end may
    be larger (Rogers, Roth, Ullman and Vadhan 2016).

    A training on a finished trace may rest on the times of all its rounds instead. Let T be these
    times, and M(T) the releases of a training over all of them: lower triangular rows C X + Z, in
    which X may depend on earlier releases. T was recorded before the first release, so no release
    changes it, and the enforced guarantee for T holds for M(T) (`of_limits`). A training that stops
    releases the first rows of M(T), and their number is a function of these rows, of held-out data
    and of chance. It is a function of M(T), and has its guarantee. Rounds that run in step with a
    training have no such T: if it stops, their later times are never known.

    Args:
        scenario: scenario of the run, with all planned rounds.
        strategy: the mechanism.
        noise: least noise that the rules permit; None if unknown.
        delta: delta of epsilon.
        recorded: limits of the rules at the times of all rounds that could have been trained, or
            the reason why they are unknown; None unless all were recorded before the training, and
            no model ended them.
    """
    worst = worst_participation(scenario)
    rounds = counted(worst.rounds, "planned round")
    limits = [Limits(worst, f"it follows from the rules in any run of all {rounds}")]
    if recorded is not None and recorded.participation is None:
        limits = [replace(limits[0], reason=f"{limits[0].reason}; {recorded.reason}")]
    elif recorded is not None:
        limits = [_recorded_before(recorded), *limits]
    found = [of_limits("planned", each, strategy, noise, delta, True) for each in limits]
    if noise is not None:
        drawn = sampled_in_any_run(scenario, strategy, noise, delta, worst)
        found += [] if drawn is None else [replace(drawn, name="planned")]
    return strongest(found) or found[0]
