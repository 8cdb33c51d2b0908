"""The length of a window: bias and interval of a private mean after 6, 24 and 72 hours.

Devices that come early are unlike the others, and only waiting removes that bias. The mean of all
devices is known here, because the devices are simulated.

    OUT/HOURS/    the trace of a window of that length, with answer.json
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import fedray
from .reproduction import Progress, Reproduced, Reproduction

SCENARIO = Path(__file__).with_name("coverage.toml")


def run(
    scenario: Path = SCENARIO,
    hours: Annotated[str, "Lengths of the window in hours, comma-separated."] = "6,24,72",
    overrides: Sequence[str] = (),
    placement: "fedray.Placement | None" = None,
    out: Path | None = None,
    on_progress: Progress = lambda _: None,
) -> Iterator[Reproduced]:
    """Asks the question of a scenario with one window of every length, in order."""
    lengths = [each.strip() for each in hours.split(",")]
    keys = [[*overrides, f"rounds.uploads.window_hours={each}"] for each in lengths]
    asked = [fedray.Scenario.from_toml(scenario, each) for each in keys]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for length, each in zip(lengths, asked, strict=True):
            on_progress(f"window of {length} h")
            place = Path(folder if out is None else out) / length
            found.append(fedray.answer(fedray.simulate(each, placement, place)))
            found[-1].write()
    # Each run has one window, and all begin at 0 h.
    together = replace(found[0], windows=tuple(each.windows[0] for each in found))
    biases = ", ".join(
        f"{each.coverage_bias:+.3g} after {each.end_hours:g} h" for each in together.windows
    )
    yield Reproduced(
        title="How long to ask: bias and interval by the length of the window",
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
