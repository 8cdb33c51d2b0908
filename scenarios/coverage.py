"""How long to ask: bias and interval of a private mean after 6, 24 and 72 hours.

Devices that come early are unlike the others. An interval states the noise, and no noise hides
that the night has not reached half of the devices: only waiting removes the bias. Here the mean of
all devices is known, because the devices are simulated.

    OUT/HOURS/    the trace of a window of that length, with answer.json
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import fedray
from fedray import InputError
from fedray.scenarios.reproduction import Progress, Reproduced, Reproduction

SCENARIO = Path(__file__).with_name("coverage.toml")


def run(
    scenario: Path = SCENARIO,
    hours: Annotated[str, "Lengths of the window in hours, comma-separated."] = "6,24,72",
    overrides: Sequence[str] = (),
    placement: "fedray.Placement | None" = None,
    out: Path | None = None,
    on_progress: Progress = lambda _: None,
) -> Iterator[Reproduced]:
    """Asks the question of a scenario once for windows of every length.

    Raises InputError for impossible hours.
    """
    lengths = _lengths_of(hours)
    asked = [
        fedray.Scenario.from_toml(
            scenario, [*overrides, f"rounds.uploads.window_hours={length}", "rounds.count=1"]
        )
        for length in lengths
    ]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) if out is None else out
        found = []
        for length, each in zip(lengths, asked, strict=True):
            on_progress(f"window of {length:g} h")
            found.append(fedray.answer(fedray.simulate(each, placement, place / f"{length:g}")))
            found[-1].write()
    yield _reproduced(found)


def _lengths_of(hours: str) -> list[float]:
    try:
        lengths = [float(each) for each in hours.split(",")]
    except ValueError:
        lengths = []
    if not lengths or lengths != sorted(set(lengths)) or lengths[0] <= 0:
        rule = "must be ascending numbers above 0"
        raise InputError.of("hours", hours, rule, "correct it, such as 6,24,72")
    return lengths


def _reproduced(found: "Sequence[fedray.Answers]") -> Reproduced:
    # The windows are those of one run each, and all begin at 0 h.
    together = replace(found[0], windows=tuple(each.windows[0] for each in found))
    biases = ", ".join(
        f"{each.coverage_bias:+.3g} after {each.end_hours:g} h" for each in together.windows
    )
    title = "How long to ask: bias and interval by the length of the window"
    return Reproduced(
        title=title,
        document=together.to_json(),
        shown=together.tables(),
        notes=[together.note],
        verdict=f"Bias of the exact answer of those that came, from that of all devices: {biases}.",
        drawn=together.figures(),
    )


REPRODUCTION = Reproduction(
    "A private mean asked for 6, 24 and 72 hours: what the devices that did not come change",
    run,
    has_figures=True,
)
