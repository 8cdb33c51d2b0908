"""The search of a plan: as few simulations as decide the answer, estimated before the first of them."""

import math
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fedray.audit.noise import PlannedNoise, PlannedRelease
from fedray.base.part_done import Announcement
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Identity
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.studies import plan as planning
from fedray.studies.goal_search import MEETS, MISSES, GoalSearch
from fedray.studies.plan import Plan, PlanTarget, make_plan
from fedray.studies.plan_page import plan_tables
from fedray.studies.plan_time import PlanClock
from fedray.studies.simulated import Truth

HERE = Placement(backend="in-process")


def chance(scenario: Scenario) -> float:
    """A normal draw that differs between seeds, goals and timers."""
    goal, hours = scenario.rounds.report_goal, round(scenario.participation.timer_hours * 1000)
    return float(np.random.default_rng((scenario.seed, goal, hours)).normal())


def population(rng: np.random.Generator) -> Callable[[Scenario], Truth]:
    """Made-up outcomes of runs in a random population: devices come round after their timer or later, min-seps of seeds differ by about a
    per cent, and large goals or long timers starve."""
    wait = rng.uniform(0.3, 1.0)
    most = rng.uniform(0.02, 0.3)
    spread = rng.uniform(0.002, 0.015)

    def truth(scenario: Scenario) -> Truth:
        n, goal = scenario.rounds.count, scenario.rounds.report_goal
        hours, devices = scenario.participation.timer_hours, scenario.population.devices
        if goal > most * devices * (12.0 / (12.0 + hours)):
            return Truth(None, note="no devices", committed=n // 2)
        turns = devices / goal * wait * (hours / 48.0) ** 0.3
        b = max(1, min(n, round(turns * (1.0 + spread * chance(scenario)))))
        return Truth(MinSep(n, b, -(-n // b)), days=hours / 24.0 * n / b)

    return truth


def simulated_by(monkeypatch, truth: Callable[[Scenario], Truth]) -> list[Scenario]:
    """Plans take these outcomes, and a sensitivity of 2 sqrt(k); what is asked for is listed."""
    asked: list[Scenario] = []

    def simulated_limits(scenario: Scenario) -> Truth:
        asked.append(scenario)
        return truth(scenario)

    monkeypatch.setattr(planning, "simulated_limits", simulated_limits)
    monkeypatch.setattr(
        planning._Runs,
        "release_of",
        lambda _, limits, __: PlannedRelease(
            PlannedNoise(), Identity(), 2.0 * limits.max_participations**0.5, 1
        ),
    )
    monkeypatch.setattr(planning._Planner, "what_ifs", lambda *_: ())
    return asked


def exhaustively(monkeypatch, *arguments, **options) -> Plan:
    """The plan if every timer is searched to its end, every goal is simulated, and with all of its seeds."""
    with monkeypatch.context() as patched:
        patched.setattr(planning._Planner, "_most_to_win", lambda *_: math.inf)
        patched.setattr(GoalSearch, "bound", lambda *_: None)
        patched.setattr(GoalSearch, "may_starve", lambda *_: False)
        return make_plan(*arguments, **options)


@pytest.mark.slow  # some three thousand outcomes, and a scenario for each
@pytest.mark.parametrize("least", ["updates", "days"])
def test_answers_equal_those_of_an_exhaustive_search_with_fewer_runs(
    small, monkeypatch, other_cache, least: str
) -> None:
    """30 random populations, of which some meet their target and some do not; if none does, what is nearest and what would do are equal too."""
    rng = np.random.default_rng(64)
    counts, found = np.zeros(2, int), []
    for number in range(30):
        truth = population(rng)
        scenario = small(
            f"rounds.count={int(rng.integers(100, 1500))}",
            f"population.devices={int(rng.integers(20_000, 200_000))}",
            f"seed={1000 * number}",
        )
        target = PlanTarget(
            float(rng.uniform(1.0, 12.0)), 1e-6, float(rng.uniform(0.002, 0.02)), buffers=1
        )
        arguments = (scenario, target, [24.0, 48.0, 72.0, 96.0], 3, 0.5, HERE)
        asked = simulated_by(monkeypatch, truth)
        other_cache()
        whole = exhaustively(monkeypatch, *arguments, least=least)
        counts[0] += len(asked)
        asked.clear()
        other_cache()
        plan = make_plan(*arguments, least=least)
        counts[1] += len(asked)
        assert plan.best == whole.best
        if whole.best is None:
            assert (plan.nearest, plan.remedies) == (whole.nearest, whole.remedies)
        found.append(whole.best is not None)
    assert 5 < sum(found) < 30
    assert counts[1] < (0.65 if least == "updates" else 0.9) * counts[0]


@pytest.mark.slow  # two searches with designs
@pytest.mark.parametrize(("epsilon", "noise"), [(20.0, 0.005), (8.0, 0.01)])
def test_answers_of_real_simulations_equal_those_of_an_exhaustive_search(
    small, monkeypatch, other_cache, epsilon: float, noise: float
) -> None:
    scenario = small("rounds.count=40", "rounds.max_days=6.0")
    target = PlanTarget(epsilon=epsilon, noise_per_report=noise, buffers=1)
    arguments = (scenario, target, [6.0, 12.0, 18.0], 2, 0.5, HERE)
    whole = exhaustively(monkeypatch, *arguments)
    other_cache()
    plan = make_plan(*arguments)
    assert plan.best == whole.best
    assert plan.what_ifs == whole.what_ifs
    assert len(plan.candidates) < len(whole.candidates)


def test_candidates_and_time_are_estimated_before_the_first_simulation(small, monkeypatch) -> None:
    """The time left is said with every batch from then on."""
    events: list[str] = []
    truth = population(np.random.default_rng(1))

    def simulated(scenario: Scenario) -> Truth:
        events.append("run")
        return truth(scenario)

    simulated_by(monkeypatch, simulated)
    target = PlanTarget(8.0, 1e-6, 0.01, buffers=1)
    arguments = (small("rounds.count=400"), target, [24.0, 48.0], 2, 0.5, HERE)
    plan = make_plan(*arguments, on_progress=events.append)
    assert plan.best is not None
    estimated = re.fullmatch(
        r"about (\d+) candidates of 2 runs each: \d+ (s|min|h) of 1 free CPU, or \d+ (s|min|h) if none "
        "meets the target; longer if others use them, and measured once the first is simulated",
        events[0],
    )
    assert estimated is not None
    # Within a factor of two of what it came to.
    assert 0.5 < int(estimated[1]) / len(plan.candidates) < 2.0
    # Once the first is simulated, the time is announced again, at its pace.
    (measured,) = [each for each in events if each.startswith("measured on the first: ")]
    assert isinstance(measured, Announcement)
    assert 2 <= events[: events.index(measured)].count("run") <= 4 < events.count("run")
    steps = [each for each in events if "step " in each]
    assert steps
    assert all(re.search(r"step \d of 3, .* so far, about \d+ (s|min|h) left\)", e) for e in steps)
    assert "about 1 to do" in " ".join(steps)


def test_an_estimate_follows_the_pace_of_the_first_candidate() -> None:
    """Work of one estimated second that took ten makes five more about 13 s."""
    clock = PlanClock(2, 3)
    assert clock.left(5.0) == "5 s"
    clock.took(1.0, 10.0)
    assert 11 <= int(clock.left(5.0).removesuffix(" s")) <= 14


def test_a_single_candidate_is_no_candidates(small, monkeypatch) -> None:
    events: list[str] = []
    simulated_by(monkeypatch, population(np.random.default_rng(1)))
    target = PlanTarget(8.0, 1e-6, 0.01, buffers=1, report_goal=200)
    make_plan(small("rounds.count=400"), target, [24.0], 2, 0.5, HERE, events.append)
    assert events[0].startswith("about 1 candidate of 2 runs each: ")


def test_a_plan_without_noise_has_a_row_of_the_goal_and_timer_of_the_file(
    small, monkeypatch
) -> None:
    """The search begins elsewhere; another timer has no such row."""
    simulated_by(monkeypatch, population(np.random.default_rng(1)))
    scenario = small("rounds.count=400")
    scenario = scenario.with_overrides("rounds.report_goal=77", "participation.timer_hours=24")
    target = PlanTarget(8.0, 1e-6, 0.01, buffers=1)
    own = Scenario.model_validate({**scenario.to_tables(), "privacy": {"delta": 1e-6}})
    plan = make_plan(scenario, target, [24.0, 48.0], 2, 0.5, HERE, own=own)
    assert plan.own is None
    tried = [(each.report_goal, each.timer_hours) for each in plan.candidates]
    assert tried.count((77, 24.0)) == 1
    without = make_plan(scenario, target, [24.0, 48.0], 2, 0.5, HERE)
    assert (77, 24.0) not in [(each.report_goal, each.timer_hours) for each in without.candidates]
    assert (plan.best is None) == (without.best is None)


def test_a_goal_that_starves_costs_one_run(small, monkeypatch) -> None:
    def truth(scenario: Scenario) -> Truth:
        n, goal = scenario.rounds.count, scenario.rounds.report_goal
        if goal > scenario.population.devices / 30:
            return Truth(None, note="no devices")
        return Truth(MinSep(n, 5, -(-n // 5)), days=2.0)

    asked = simulated_by(monkeypatch, truth)
    target = PlanTarget(4.0, 1e-6, 0.005, buffers=1)
    plan = make_plan(small("rounds.count=400"), target, [12.0], 3, 1.0, HERE)
    starved = [each.report_goal for each in plan.candidates if each.starves]
    assert starved
    goals = [each.rounds.report_goal for each in asked if each.rounds.count == 400]
    assert all(goals.count(goal) == 1 for goal in starved)


def test_a_timer_that_cannot_be_the_best_is_not_searched_to_its_end(small, monkeypatch) -> None:
    """Min-sep grows with the timer, so that the shortest needs the largest goal; the table says above which one."""

    def truth(scenario: Scenario) -> Truth:
        n, hours = scenario.rounds.count, scenario.participation.timer_hours
        b = min(n, max(1, round(4000 / scenario.rounds.report_goal * hours)))
        return Truth(MinSep(n, b, -(-n // b)), days=hours)

    simulated_by(monkeypatch, truth)
    target = PlanTarget(8.0, 1e-6, 0.005, buffers=1)
    arguments = (small("rounds.count=2000"), target, [6.0, 24.0], 2, 1.0, HERE)
    plan = make_plan(*arguments)
    whole = exhaustively(monkeypatch, *arguments)
    assert plan.best == whole.best
    assert plan.cut_short == (6.0,)
    assert whole.cut_short == ()
    (short, long), (least, _) = plan.timers, whole.timers
    assert short.least is None
    assert long.least == plan.best
    assert 1.05 * plan.best.report_goal <= short.above < least.least.report_goal
    (table,) = [each for each in plan_tables(plan) if each.title == "What a longer timer costs"]
    assert [row[1] for row in table.rows] == [
        f"above {short.above:,}",
        f"{plan.best.report_goal:,}",
    ]


def test_a_timer_that_was_cut_short_is_searched_further_if_the_better_one_fails_at_full_size(
    small, monkeypatch
) -> None:
    """The longer timer starves at full size only, so that the shorter one has the plan after all."""

    def truth(scenario: Scenario) -> Truth:
        n, hours = scenario.rounds.count, scenario.participation.timer_hours
        if hours > 20.0 and scenario.population.devices == 20_000:
            return Truth(None, note="no devices")
        scale = scenario.population.devices / 20_000
        b = min(n, max(1, round(4000 * scale / scenario.rounds.report_goal * hours)))
        return Truth(MinSep(n, b, -(-n // b)), days=hours)

    simulated_by(monkeypatch, truth)
    target = PlanTarget(8.0, 1e-6, 0.005, buffers=1)
    arguments = (small("rounds.count=2000"), target, [6.0, 24.0], 2, 0.5, HERE)
    plan = make_plan(*arguments)
    assert plan.best is not None
    assert plan.best.timer_hours == 6.0
    assert plan.best == exhaustively(monkeypatch, *arguments).best


def test_a_bound_that_a_simulation_contradicts_counts_no_longer() -> None:
    """The search then ends as one without bounds does, whatever was skipped."""

    def ended(bounds: tuple) -> tuple[int, int]:
        search, tried = GoalSearch(1, 10_000, 1000), {}
        while (goal := search.next_goal()) is not None:
            assert goal not in tried
            tried[goal] = MEETS if goal >= 640 else MISSES
            search.learn(goal, tried[goal])
            for each in bounds:
                search.bound(*each)
        met = min(goal for goal, outcome in tried.items() if outcome == MEETS)
        return met, len(tried)

    met, count = ended(())
    assert met == pytest.approx(640, rel=0.02)
    # A correct bound saves simulations, and a wrong one is found when its answer is simulated.
    assert ended(((1, 600, MISSES), (700, 1000, MEETS)))[0] == met
    assert ended(((1, 600, MISSES), (700, 1000, MEETS)))[1] < count
    assert ended(((400, 1000, MEETS),))[0] == met


def test_goals_alike_are_those_whose_noise_cannot_make_up_for_it() -> None:
    """At one participation the sensitivity is 2 at any goal, so that the goal needed is known to the margin for chance."""
    target = PlanTarget(4.0, 1e-6, 0.01, buffers=1)
    mu = 1.0 / planning.noise_multiplier_for(1.0, 1e-6, epsilon=4.0)
    needed = 2.0 / (0.01 * mu)
    for goal in (round(needed / 3), round(3 * needed)):
        one = planning.Candidate(
            target, 100, goal, 24.0, 1.0, 1000, (None, None), (1, 1), None, 1,
            rho=0.5 * (2.0 / (0.01 * goal)) ** 2,
            epsilon=1.0 if goal > needed else 10.0,
        )  # fmt: skip
        low, high = planning._alike(one)
        if goal > needed:
            assert high == goal
            assert needed <= low < goal
        else:
            assert low == goal
            assert goal < high <= 1.001 * needed
            assert high == pytest.approx(needed, rel=0.05)
        assert planning._alike(replace(one, target=replace(target, epsilon=1e4))) == (goal, goal)
