"""Runs that are interrupted at a random round while their claim is in danger, and continued with and
without the list and the rule that an outlook advises.

A continuation is a run of the same scenario and seed whose list and later rule begin with the round of
the interruption (`participation.from_round`): its earlier rounds are those of the interrupted run to
the bit, which `continued` checks. So the hold file is tried as a user would, and nothing is simulated
that is not a run of fedray.

`python tests/audit/interrupted_runs.py 200` prints the figures of 200 runs in danger.
"""

import math
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim
from fedray.audit.live.outlook import Outlook, State, look_ahead
from fedray.audit.participation import Patterns
from fedray.mechanisms.band_fhu import BandFHU
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import AnyStrategy, Identity, Tree
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
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


def interrupted(number: int, folder: Path) -> Interrupted:
    """Interrupts run `number`, and continues it with and without the advice."""
    rng = np.random.default_rng(number)
    text, strategy = MECHANISMS[number % len(MECHANISMS)]
    # What was announced, and what the rules enforce: the designer's min-sep was too large.
    rule = int(rng.integers(1, 4))
    announced = int(rng.integers(rule + 1, 10))
    designed = MinSep(ROUNDS, announced, math.ceil(ROUNDS / announced))
    limit = strategy.participation_sensitivity(designed).value
    claim = Claim(mechanism=strategy, noise_multiplier=NOISE, rho=limit**2 / (2 * NOISE**2))
    scenario = Scenario.from_tables({**TABLES, "seed": number}).with_overrides(
        f"privacy.mechanism={text}",
        f"privacy.noise_multiplier={NOISE}",
        "participation.timer_hours=0",
        f"participation.round_separation={rule}",
    )
    whole = simulate(scenario, HERE, folder / "whole")
    released = int(rng.integers(4, ROUNDS - 4))
    begun = simulate(scenario.with_overrides(f"rounds.count={released}"), HERE, folder / "begun")
    outlook = look_ahead(audit_trace(begun, claim=claim), ROUNDS)
    without = keeps(whole, claim)
    change = advised(outlook)
    if change is None:
        return Interrupted(outlook.state, False, math.nan, None, without)
    outlook.write_hold(folder / "hold.csv")
    later = "" if change.separation is None else f"round_separation = {change.separation}"
    tables = scenario.to_tables()
    tables["participation"] |= {"hold": "hold.csv", "from_round": released}
    value = Scenario.from_tables(tables, directory=folder)
    if later:
        value = value.with_overrides(f"participation.later={{{later}}}")
    ended = simulate(value, HERE, folder / "ended")
    assert before(ended, released) == before(begun, released)
    share = change.share_held
    assert share is not None
    return Interrupted(outlook.state, True, share, keeps(ended, claim), without)


def advised(outlook: Outlook):
    """Returns the change whose list and rule in rounds are followed; None without one."""
    kinds = {("list",), ("list", "separation")}
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
    of_kept = [run for run in runs if run.state is State.KEPT]
    no_list = states["in danger"] - len(helped)
    with_both = sum(bool(run.kept_with) for run in helped)
    without = sum(not run.kept_without for run in helped)
    wrong = sum(not run.kept_without for run in of_kept)
    shares = np.array([run.share_held for run in helped])
    low, middle, high = np.quantile(shares, [0.1, 0.5, 0.9])
    return (
        f"{len(runs)} runs: {dict(states)}\n"
        f"in danger, and no list and rule in rounds can keep: {no_list}\n"
        f"kept with list and rule: {with_both} of {len(helped)}; broken without: {without}\n"
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
