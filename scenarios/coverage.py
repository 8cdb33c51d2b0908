"""Which devices a run reaches: by the length of a window, and by the policy for rounds.

Devices that come early are unlike the others, and only waiting removes this bias from an answer.
How many devices ever take part in a training depends on the policy that keeps them away after a
participation. Both are known here, because the devices are simulated.

    OUT/HOURS/    the trace of a window of that length, with answer.json
    OUT/POLICY/   the trace of the rounds under a policy
"""

import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

import fedray
from fedray import InputError
from .reproduction import (
    Axis,
    Document,
    Figure,
    Option,
    Reproduced,
    Reproduction,
    Request,
    Series,
    Subject,
    Table,
    in_steps,
)

HERE = Path(__file__).parent
SEPARATION = 200
"""Rounds between two of a device, under the policy that counts rounds."""
NO_TIMER = "participation.timer_hours=0"
POLICIES = {
    "no timer": (NO_TIMER,),
    "timer of 24 h": ("participation.timer_hours=24",),
    "timer of 72 h": ("participation.timer_hours=72",),
    f"{SEPARATION} rounds apart": (NO_TIMER, f"participation.round_separation={SEPARATION}"),
    "at most once": (NO_TIMER, "participation.max_participations=1"),
}
"""Keys of each policy, the timers first."""
NOTES = (
    "A window is the time for which a question waits for answers. The bias is the exact answer of "
    "the devices that came less that of all devices.",
    "Uniform draws are the expected number of different devices if every report were of a device "
    "drawn from all devices: N (1 - (1 - 1 / N)^reports).",
)


@dataclass(frozen=True, slots=True)
class PolicyCoverage(Document):
    """How many devices had taken part by a round, under a policy."""

    policy: str
    """Name of the policy."""
    rounds: int
    """Number of rounds."""
    reports: int
    """Number of reports in these rounds."""
    reached: int
    """Number of different devices among them."""


class Coverages(TypedDict):
    """`fedray reproduce coverage`."""

    windows: "fedray.Answers"
    """Answers after windows of each length."""
    policies: list[PolicyCoverage]
    """Devices that took part, by policy and rounds."""


def run(request: Request, *, hours: str) -> Iterator[Reproduced]:
    """Asks the question after windows of every length, then simulates rounds under every policy.

    Args:
        request: the request.
        hours: lengths of the windows, comma-separated.

    Raises:
        InputError: a length is not a number, or the simulation refuses it.
    """
    lengths = [each.strip() for each in hours.split(",")]
    if not all(each.replace(".", "", 1).isdigit() for each in lengths):
        raise InputError.of("hours", hours, "must be numbers with commas between", "such as 6,24")
    asked: dict[str, fedray.Answers] = {}
    found: dict[str, list[PolicyCoverage]] = {}
    with tempfile.TemporaryDirectory(prefix="fedray-coverage-") as temporary:
        folder = request.out or Path(temporary)
        steps = [*((each, ()) for each in lengths), *POLICIES.items()]
        for (name, keys), _ in in_steps(
            request,
            steps,
            lambda step: step[0] if step[1] else f"window of {step[0]} h",
            lambda step: 2.0 if step[1] else 1.0,
        ):
            if not keys:
                asked[name] = _asked(name, request, folder / name)
            else:
                found[name] = _covered(name, keys, request, folder / name.replace(" ", "-"))
    yield _reproduced([asked[each] for each in lengths], [*found.values()])


def _asked(hours: str, request: Request, path: Path) -> "fedray.Answers":
    keys = [*request.overrides, f"rounds.uploads.window_hours={hours}"]
    scenario = fedray.Scenario.from_toml(HERE / "coverage.toml", keys)
    answers = fedray.answer(fedray.simulate(scenario, request.placement, path))
    answers.write()
    return answers


def _covered(
    name: str, keys: tuple[str, ...], request: Request, path: Path
) -> list[PolicyCoverage]:
    scenario = fedray.Scenario.from_toml(HERE / "small.toml", ["training.enabled=false", *keys])
    trace = fedray.simulate(scenario, request.placement, path)
    parts = [*trace.accepted()]
    devices, rounds = (
        np.concatenate([getattr(part, field) for part in parts])
        for field in ("device_ids", "rounds")
    )
    # Rows are sorted by device and round, so the first row of a device is its first round.
    first = rounds[np.unique(devices, return_index=True)[1]]
    quarters = [trace.committed_rounds * each // 4 for each in range(1, 5)]
    return [
        PolicyCoverage(name, each, int((rounds < each).sum()), int((first < each).sum()))
        for each in quarters
    ]


def _reproduced(asked: "list[fedray.Answers]", found: list[list[PolicyCoverage]]) -> Reproduced:
    # Each run has one window, and all begin at 0 h.
    together = replace(asked[0], windows=tuple(each.windows[0] for each in asked))
    shares = [each.came / each.devices for each in together.windows]
    statements = {
        "more devices come in a longer window": shares == sorted(shares),
        "a longer timer reaches more": all(
            a.reached <= b.reached
            for one, other in itertools.pairwise(found[:3])
            for a, b in zip(one, other, strict=True)
        ),
        "devices without a timer are fewer than uniform draws": all(
            each.reached < _uniform(each) for each in found[0]
        ),
        f"all devices differ within {SEPARATION} rounds if they are as far apart": all(
            each.reached == each.reports for each in found[3] if each.rounds <= SEPARATION
        ),
        "all devices differ if each takes part at most once": all(
            each.reached == each.reports for each in found[4]
        ),
    }
    wrong = [text for text, holds in statements.items() if not holds]
    biases = ", ".join(
        f"{_bias(each):+.3g} after {each.end_hours:g} h" for each in together.windows
    )
    return Reproduced(
        "Which devices a run reaches",
        {
            "windows": together.to_json(),
            "policies": [each.to_json() for rows in found for each in rows],
        },
        [_windows_table(together), _table(found)],
        NOTES,
        f"Bias of the answers: {biases}. "
        + (f"Not so: {'; '.join(wrong)}." if wrong else f"So it is: {'; '.join(statements)}."),
        not wrong,
        [*together.figures(), _figure(found)],
        Subject("the devices of the shipped scenarios", runs="one run each"),
    )


def _bias(window: Any) -> float:
    (row,) = window.answers[0].rows
    return row.of_came - row.of_all


def _windows_table(answers: "fedray.Answers") -> Table:
    cells = {
        "window": lambda each: f"{each.end_hours:g} h",
        "came": lambda each: f"{each.came:,}",
        "mean of these": lambda each: f"{each.answers[0].rows[0].of_came:.3f}",
        "bias": lambda each: f"{_bias(each):+.3f}",
    }
    for place, trust in enumerate(answers.analytics.trust):
        cells[trust.kind] = lambda each, place=place: _interval(each.answers[place].rows[0])
    (row,) = answers.windows[0].answers[0].rows
    title = f"Means of devices that came, and intervals; the mean of all is {row.of_all:.3f}"
    return Table.of(title, answers.windows, cells, subject=replace(answers.of, sample=""))


def _interval(row: Any) -> str:
    return f"{row.low:.2f} to {row.high:.2f}"


def _uniform(each: PolicyCoverage) -> float:
    return DEVICES * -np.expm1(each.reports * np.log1p(-1.0 / DEVICES))


DEVICES = fedray.Scenario.from_toml(HERE / "small.toml").population.devices
"""Devices of the rounds."""


def _table(found: list[list[PolicyCoverage]]) -> Table:
    quarters = found[0]
    heads = ("policy", *(f"{each.rounds} rounds" for each in quarters))
    uniform = ("uniform draws", *(f"{_uniform(each):,.0f}" for each in quarters))
    rows = ((rows[0].policy, *(f"{each.reached:,}" for each in rows)) for rows in found)
    subject = Subject(f"small.toml ({DEVICES:,} devices)", runs="one run each")
    return Table("Devices that took part", heads, (*rows, uniform), subject=subject)


def _figure(found: list[list[PolicyCoverage]]) -> Figure:
    series = (
        Series(
            rows[0].policy,
            "line",
            np.array([each.rounds for each in rows], np.float64),
            np.array([each.reached for each in rows], np.float64),
        )
        for rows in found
    )
    note = f"Different devices among the reports, of {DEVICES:,}."
    return Figure(
        "reached", "Devices that took part", note, Axis("Rounds"), Axis("Devices"), tuple(series)
    )


REPRODUCTION = Reproduction(
    "coverage",
    "Devices that a run reaches: bias of a mean after 6 to 72 h, and devices that ever take part.",
    "no publication",
    "1 min",
    run,
    (Option("hours", str, "6,24,72", "Lengths of the windows in hours, with commas between."),),
    has_overrides=True,
    has_placement=True,
    has_figures=True,
)
