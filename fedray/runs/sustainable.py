"""Detects scenarios that cannot finish, because their rules and population do not allow their
number of rounds. A refusal holds for every run of the scenario, whatever its seed, so a scenario
that passes may still starve."""

import math
from collections.abc import Iterator

from fedray.base.errors import InputError, Unsustainable
from fedray.scenario import Scenario, SeveralTasks
from fedray.scenario.contributions import contributions_of_a_device, last_start
from fedray.scenario.several_tasks import tasks_of
from fedray.scenario.uploads import CyclicSchedule


def check_sustainable(scenario: Scenario | SeveralTasks) -> None:
    """Checks that the rules of a scenario leave enough devices for its rounds.

    Args:
        scenario: one task or several, before it is run.

    Raises:
        Unsustainable: no run of the scenario, or of one of its tasks, can commit all rounds.
        InputError: a trust model cannot answer the scenario's question.
    """
    for task in tasks_of(scenario):
        if isinstance(scenario, Scenario) and scenario.evaluation is not None:
            rule = "evaluates the model of another task, and this scenario has no tasks"
            raise InputError.of("analytics.values.of", scenario.evaluation.of, rule, "name one")
        analytics, devices = task.scenario.analytics, task.scenario.population.devices
        if analytics is not None:
            analytics.plans(task.scenario.rounds.least_accepted, devices)
        if reason := why_unsustainable(task.scenario):
            raise Unsustainable(f"{task.prefix}{reason}")


def why_unsustainable(scenario: Scenario) -> str | None:
    """Returns in one line why no run of a scenario can commit all rounds; None if one might."""
    privacy = scenario.privacy
    # A budget may end the run before its last round, which is not a failure.
    if privacy.stop_at is not None and privacy.at_limit == "stop":
        return None
    return next(_reasons(scenario), None)


def _reasons(scenario: Scenario) -> Iterator[str]:
    uploads = scenario.rounds.uploads
    if uploads is None:
        yield from _too_close_together(scenario)
        yield from _too_many_contributions(scenario, scenario.rounds.count, "rounds")
        yield from _too_slow(scenario)
    elif uploads.takes_all:
        yield from _too_many_contributions(scenario, uploads.windows, "windows")
    elif isinstance(uploads.schedule, CyclicSchedule):
        # Groups have the same size, so each window needs report_goal uploads for every group.
        groups = uploads.groups
        rule = f"rounds.uploads.schedule.min_sep={groups}: a window is split into {groups:,} groups"
        yield from _too_few_devices(scenario, groups, rule, "min_sep")
        yield from _too_many_contributions(scenario, groups * uploads.windows, "groups")


def why_tight(scenario: Scenario) -> str | None:
    """Returns in one line why later rounds may starve: the devices of the rounds within the
    separation leave a round fewer than it selects. None if they do not."""
    selected, goal = scenario.rounds.selection_target, scenario.rounds.report_goal
    devices, (apart, rule) = _most_devices(scenario), _separation(scenario)
    needed = (apart - 1) * goal + selected
    if apart < 2 or needed <= devices:
        return None
    return (
        f"{rule}, so while one of them selects {selected:,} devices, {apart - 1:,} x {goal:,} "
        f"are barred: {needed:,} in all, but at most {devices:,} are usable; lower the "
        "separation, the goal or over_selection, or raise the population"
    )


def _too_close_together(scenario: Scenario) -> Iterator[str]:
    """Yields a reason if s consecutive rounds, which need different devices, need too many."""
    apart, rule = _separation(scenario)
    if apart > 1:
        yield from _too_few_devices(scenario, apart, rule, "the separation")


def _separation(scenario: Scenario) -> tuple[int, str]:
    """Returns how many consecutive rounds need different devices, and by which rule; 1 for none."""
    participation = scenario.participation
    # A device that has lost its history may take part again at once.
    if participation.history_loss_per_day is not None:
        return 1, ""
    apart = min(participation.separation, scenario.rounds.count)
    rule = participation.keys_by_rule["rounds"]
    return apart, f"{rule}: no device takes part twice in {apart:,} consecutive rounds"


def _too_few_devices(scenario: Scenario, parts: int, rule: str, lowered: str) -> Iterator[str]:
    goal, devices = scenario.rounds.report_goal, _most_devices(scenario)
    if parts * goal > devices:
        yield (
            f"{rule}, each of which needs rounds.report_goal={goal} devices: {parts:,} x {goal:,} "
            f"= {parts * goal:,}, but population.devices={scenario.population.devices} has at most "
            f"{devices:,} usable ones; lower {lowered} to {devices // goal:,}"
            # No goal at all is no remedy.
            + (f" or the goal to {devices // parts:,}" if devices >= parts else "")
            + ", or raise the population"
        )


def _too_many_contributions(scenario: Scenario, parts: int, name: str) -> Iterator[str]:
    goal, devices = scenario.rounds.report_goal, _most_devices(scenario)
    needed = parts * goal
    for bound in contributions_of_a_device(scenario):
        if needed > devices * bound.most:
            yield (
                f"{bound.rule}: {parts:,} {name} of rounds.report_goal={goal} need {needed:,} "
                f"contributions, but population.devices={scenario.population.devices} can make at "
                f"most {devices:,} x {bound.most:,} = {devices * bound.most:,}; {bound.remedy}, "
                "lower rounds.count or the goal, or raise the population"
            )


def _too_slow(scenario: Scenario) -> Iterator[str]:
    """Yields a reason if rounds start too far apart for the days of the run."""
    rounds = scenario.rounds
    minutes = rounds.min_minutes_between
    if minutes is None:
        return
    last = (rounds.count - 1) * minutes * 60.0
    if last > last_start(scenario):
        yield (
            f"rounds.min_minutes_between={minutes:g}: the last of {rounds.count:,} rounds starts "
            f"on day {last / 86_400.0:,.1f} at the earliest, but "
            f"rounds.max_days={rounds.max_days:g}; lower it or rounds.count, or raise max_days"
        )


def _most_devices(scenario: Scenario) -> int:
    """Returns an upper bound on a population's usable devices, including those that join.

    Devices are usable independently of each other, so by Bernstein's inequality a population has
    more than this with a probability below 1e-20.
    """
    devices, share = scenario.device_ids, scenario.serving_share
    slack = 40.0 + 10.0 * math.sqrt(devices * share * (1.0 - share))
    return min(devices, math.floor(devices * share + slack))
