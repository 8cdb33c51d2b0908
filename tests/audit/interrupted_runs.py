"""Runs that are interrupted at a random round while their claim is in danger, and continued with and
without the list and the rule that an outlook advises.

A continuation is a run of the same scenario and seed whose list and later rule begin with the round of
the interruption (`participation.from_round`): its earlier rounds are those of the interrupted run to
the bit, which `interrupted` checks. So the hold file is tried as a user would, and nothing is simulated
that is not a run of fedray.

Every second run has a timer in hours, and its slowest pace is stated as the slowest so far. It continues
twice: *enforced*, with the separation in rounds that the outlook names for late rounds, and *conditional*,
with the timer only, though later rounds may be slower.

`python tests/audit/interrupted_runs.py 200` prints the figures of 200 runs in danger.
"""

import math
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim
from fedray.audit.guarantees import round_times
from fedray.audit.live.changes import Change
from fedray.audit.live.outlook import Outlook, State, look_ahead
from fedray.audit.live.rules_ahead import RulesAhead, paced, rules_ahead
from fedray.audit.participation import Patterns
from fedray.mechanisms.band_fhu import BandFHU
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import AnyStrategy, Identity, Tree
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.scenario.hold import write_hold
from fedray.trace.reader import Trace

HERE = Placement(1, "in-process")
ROUNDS = 30
NOISE = 4.0
MECHANISMS: tuple[tuple[str, AnyStrategy], ...] = (
    ('{kind = "band-fhu", bands = 6}', BandFHU(bands=6)),
    ('{kind = "tree"}', Tree()),
    ('{kind = "identity"}', Identity()),
)
TABLES = {
    "population": {"devices": 2_000},
    "rounds": {"count": ROUNDS, "report_goal": 60, "max_days": 30.0},
    "training": {"enabled": False},
}


@dataclass(frozen=True)
class Interrupted:
    """One interrupted run."""

    state: State
    """State of the claim at the interruption."""
    can_be_kept: bool
    """Whether a list, with a rule in rounds or without, keeps the claim."""
    share_held: float
    """Share of the devices seen so far that must wait; NaN without a list."""
    kept_with: bool | None
    """Whether the run that continued with the list and the rule keeps the claim; None without."""
    kept_without: bool
    """Whether the run that continued as before keeps it."""
    in_hours: bool
    """Whether its rule was a timer in hours."""
    kept_by_timer: bool | None = None
    """Whether the run that continued with the list and the timer, but without a separation, keeps the
    claim; None for rules in rounds, and without a list."""
    was_late: bool = False
    """Whether a round of that run started later than at the stated pace."""


def interrupted(number: int, folder: Path) -> Interrupted:
    """Interrupts run `number`, and continues it with and without the advice."""
    rng = np.random.default_rng(number)
    text, strategy = MECHANISMS[number % len(MECHANISMS)]
    in_hours = bool(number % 2)
    # What was announced, and what the rules enforce: the designer's min-sep was too large.
    rule = int(rng.integers(1, 4))
    announced = int(rng.integers(rule + 1, 10))
    designed = MinSep(ROUNDS, announced, math.ceil(ROUNDS / announced))
    limit = strategy.participation_sensitivity(designed).value
    claim = Claim(mechanism=strategy, noise_multiplier=NOISE, rho=limit**2 / (2 * NOISE**2))
    scenario = Scenario.from_tables({**TABLES, "seed": number}).with_overrides(
        f"privacy.mechanism={text}",
        f"privacy.noise_multiplier={NOISE}",
        *rule_of(rule, in_hours),
    )
    whole = simulate(scenario, HERE, folder / "whole")
    released = int(rng.integers(4, ROUNDS - 4))
    begun = simulate(scenario.with_overrides(f"rounds.count={released}"), HERE, folder / "begun")
    slowest = float(gaps_of(begun).max()) if in_hours else None
    outlook = look_ahead(audit_trace(begun, claim=claim), ROUNDS, slowest)
    without = keeps(whole, claim)
    change = advised(outlook, in_hours)
    if change is None:
        return Interrupted(outlook.state, False, math.nan, None, without, in_hours)
    hold = replace(outlook, changes=(change,)).hold()
    assert hold is not None
    write_hold(folder / "hold.csv", hold)
    tables = scenario.to_tables()
    tables["participation"] |= {"hold": "hold.csv", "from_round": released}
    value = Scenario.from_tables(tables, directory=folder)

    def continued(name: str, later: dict[str, float]) -> Trace:
        listed = ", ".join(f"{key} = {each}" for key, each in later.items())
        rules = [f"participation.later={{{listed}}}"] if later else []
        ended = simulate(value.with_overrides(*rules), HERE, folder / name)
        assert before(ended, released) == before(begun, released)
        return ended

    rules = {} if change.separation is None else {"round_separation": change.separation}
    share = change.share_held
    assert share is not None
    if slowest is None:
        kept = keeps(continued("ended", rules), claim)
        return Interrupted(outlook.state, True, share, kept, without, in_hours)
    rules = {} if change.timer_hours is None else {"timer_hours": change.timer_hours}
    paced = rules_in_hours(begun, slowest)
    in_rounds = paced.in_rounds(3600.0 * (change.timer_hours or paced.timer_seconds / 3600.0))
    assert in_rounds is not None
    enforced = continued("enforced", {**rules, "round_separation": in_rounds})
    conditional = continued("conditional", rules)
    return Interrupted(
        outlook.state,
        True,
        share,
        keeps(enforced, claim),
        without,
        in_hours,
        keeps(conditional, claim),
        bool(gaps_of(conditional)[released - 1 :].max() > slowest),
    )


def rule_of(rule: int, in_hours: bool) -> list[str]:
    """Returns overrides for a separation of a few rounds, or for a timer of a few times the hour that
    two rounds are at least apart."""
    if not in_hours:
        return ["participation.timer_hours=0", f"participation.round_separation={rule}"]
    return [f"participation.timer_hours={2 * rule}", "rounds.min_minutes_between=60"]


def rules_in_hours(trace: Trace, slowest: float) -> RulesAhead:
    """Returns the rules from now on, with their pace."""
    return paced(rules_ahead(trace, audit_trace(trace).scenario, ROUNDS), trace, slowest)


def gaps_of(trace: Trace) -> np.ndarray:
    """Returns the hours from each start of a round to the next."""
    times = round_times(trace)
    assert times is not None
    return np.diff(times[0]) / 3600.0


def advised(outlook: Outlook, in_hours: bool) -> Change | None:
    """Returns the change whose list and rule are followed; None without one."""
    kinds = {("list",), ("list", "timer" if in_hours else "separation")}
    found = (each for each in outlook.changes if each.first is not None and each.kinds in kinds)
    return next(found, None)


def keeps(trace: Trace, claim: Claim) -> bool:
    """Whether the devices of a trace spent no more than the claim."""
    rho = audit_trace(trace, claim=claim).mechanisms[0].observed.rho
    assert rho is not None
    assert claim.rho is not None
    return rho <= claim.rho * (1 + 1e-9)


def before(trace: Trace, rounds: int) -> list[tuple[int, int]]:
    """Returns the participations in the first rounds."""
    patterns: Patterns = audit_trace(trace).patterns
    devices = np.repeat(patterns.device_ids, patterns.counts)
    early = patterns.rounds < rounds
    return list(zip(devices[early].tolist(), patterns.rounds[early].tolist(), strict=True))


def runs_in_danger(count: int) -> Iterator[Interrupted]:
    """Yields interrupted runs, the others too, until `count` were in danger and could be kept."""
    number = found = 0
    while found < count:
        with tempfile.TemporaryDirectory() as folder:
            run = interrupted(number, Path(folder))
        found += run.can_be_kept
        number += 1
        yield run


def figures(runs: list[Interrupted]) -> str:
    """Returns the figures of some runs, in lines."""
    states = Counter(run.state.value for run in runs)
    helped = [run for run in runs if run.can_be_kept]
    in_rounds = [run for run in helped if not run.in_hours]
    in_hours = [run for run in helped if run.in_hours]
    on_time = [run for run in in_hours if not run.was_late]
    of_kept = [run for run in runs if run.state is State.KEPT]
    no_list = states["in danger"] - len(helped)
    by_rounds = sum(bool(run.kept_with) for run in in_rounds)
    enforced = sum(bool(run.kept_with) for run in in_hours)
    by_timer = sum(bool(run.kept_by_timer) for run in in_hours)
    by_timer_on_time = sum(bool(run.kept_by_timer) for run in on_time)
    without = sum(not run.kept_without for run in helped)
    wrong = sum(not run.kept_without for run in of_kept)
    shares = np.array([run.share_held for run in helped])
    low, middle, high = np.quantile(shares, [0.1, 0.5, 0.9])
    return (
        f"{len(runs)} runs: {dict(states)}\n"
        f"in danger, and no list and rule can keep: {no_list}\n"
        f"kept with list and rule, in rounds: {by_rounds} of {len(in_rounds)}; in hours, with the "
        f"separation enforced: {enforced} of {len(in_hours)}; with the timer only: {by_timer} of "
        f"{len(in_hours)}, and {by_timer_on_time} of {len(on_time)} without a late round\n"
        f"broken without: {without} of {len(helped)}\n"
        f"called kept, and broken: {wrong} of {len(of_kept)}\n"
        f"devices held: median {middle:.3f}, 10 to 90 % of runs {low:.3f} to {high:.3f}"
    )


def main() -> None:
    """Prints the figures, after every 20 runs too."""
    runs: list[Interrupted] = []
    for run in runs_in_danger(int(sys.argv[1])):
        runs.append(run)
        if len(runs) % 20 == 0 and any(each.can_be_kept for each in runs):
            print(figures(runs), flush=True)
    print(figures(runs), flush=True)


if __name__ == "__main__":
    main()
