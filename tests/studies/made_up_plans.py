"""Plans that no simulation made: one that meets its target, and one that does not."""

from fedray.studies.plan import Candidate, Plan, PlanTarget
from fedray.studies.remedies import DEVICES, HALF_TRADE, NOISE, TIMER, TRADE, Remedy
from fedray.studies.what_ifs import WhatIf

TARGET = PlanTarget(epsilon=3.0, noise_per_report=0.001)


def candidate(goal: int, epsilon: float | None, hours: float = 24.0, **others) -> Candidate:
    given = {
        "min_seps": (7, 8),
        "max_participations": (2, 2),
        "planned_min_sep": 6,
        "planned_max_participations": 2,
        "days": 2.0 + goal / 1000,
    }
    if epsilon is None:
        given = {"min_seps": (), "max_participations": (), "note": "no devices"}
    keys = {"scale": 0.1, **given, **others}
    return Candidate(TARGET, 12, goal, hours, population_over_goal=9, epsilon=epsilon, **keys)


def met(small) -> Plan:
    """Goals from 700 to 1,150 of two timers; 2,000 starves at 48 h, where 24 h meets the target at 2,200."""
    best = candidate(1100, 2.95, 48.0, scale=1.0, min_seps=(7,), enforced_days=3.5)
    candidates = (
        *(candidate(700, 4.4), candidate(1150, 3.5), candidate(2200, 2.1)),
        *(candidate(700, 4.0, 48.0), candidate(1100, 2.9, 48.0), best),
        *(candidate(2000, None, 48.0), candidate(4400, None), candidate(5000, None, 48.0)),
    )
    rows = (
        WhatIf("as planned", 3.0, 7, 2.9),
        WhatIf("population -10 %, no separation or cap", 3.0, 6, 3.3, needed_noise_multiplier=1.21),
        WhatIf("population -30 %", starves_at=9, rounds=9),
    )
    return Plan(TARGET, small(), 2, 0.1, best, candidates, what_ifs=rows)


def failed(small) -> Plan:
    """Remedies of goals from 1,000 to 1,900, of which two have the same goal and noise."""
    near = candidate(1000, 5.0)
    remedies = (
        Remedy(NOISE, 3.0, 0.1, 3.0, noise_multiplier=1.8),
        Remedy(HALF_TRADE, 2.9, 0.1, 2.0, 1.4, 6, 1400),
        Remedy(TRADE, 2.9, 0.1, 2.5, 1.9, 5, 1900),
        Remedy(TIMER, 2.9, 0.1, 9.0, timer_hours=96.0),
        Remedy(DEVICES, 2.9, 0.05, 2.2, devices=60_000),
    )
    return Plan(TARGET, small(), 2, 0.1, None, (near, candidate(500, 8.0)), remedies=remedies)
