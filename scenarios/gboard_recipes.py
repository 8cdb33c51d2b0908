"""Recipes of Gboard's private models (Xu et al. 2023, section 2), on models of 37,000 parameters.

Fixed and adaptive clip norms, a start from public text, and tied embeddings share the rounds of one
trace. Server rates are tuned at a small report goal, and compared with those of a larger one at the
same noise on the mean update.

    OUT/trace-GOAL/         simulated rounds
    OUT/runs-GOAL/NAME/     a training of each recipe

An interrupted study continues from the files that are there.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import fedray
from .reproduction import (
    Document,
    Progress,
    Reach,
    Reproduced,
    Reproduction,
    Table,
    comparison_of,
)

GOAL, SMALL, LARGE = 1000, 10, 130
"""Report goal of the recipes; goal at which the server rate is tuned; goal of the larger run."""
REACH = 0.40
"""Accuracy to reach."""
NOISE_PER_REPORT = 0.0087
"""Noise multiplier over the report goal: noise on the mean update of 1.67 clip norms, as that of 7
at 6,500 reports and 2.4 million parameters."""
SETTING = (
    "training.task={kind='keyboard_lstm',hidden=48,embedding=32}",
    # A tenth of the paper's rounds 128 and 1,152.
    "privacy.mechanism={kind='tree',restarts=[13,115]}",
)
PUBLIC_TEXT = Path(__file__).with_name("public_text.py")
PUBLIC = (f"data={{kind='custom',file='{PUBLIC_TEXT}'}}", "privacy.mechanism=none")
RATES = (0.3, 1.0, 3.0)
"""Server learning rates that are tuned."""


@dataclass(frozen=True, slots=True)
class TunedRate(Document):
    """Held-out accuracy with a server learning rate."""

    learning_rate: float
    """Server learning rate."""
    small: float
    """Accuracy at the small report goal."""
    large: float
    """Accuracy at the large one."""


@dataclass(frozen=True, slots=True)
class Recipes(Document):
    """`fedray reproduce gboard-recipes`."""

    recipes: Reach
    """Rounds that each recipe needed."""
    rates: list[TunedRate]
    """Server learning rates."""


def run(
    placement: "fedray.Placement | None" = None,
    out: Path | None = None,
    on_progress: Progress = lambda _: None,
) -> Iterator[Reproduced]:
    """Trains every recipe, then every server rate at both goals."""
    with tempfile.TemporaryDirectory(prefix="fedray-recipes-") as temporary:
        folder = (out or Path(temporary)).absolute()

        def compared(goal: int, recipes: Mapping[str, Sequence[str]]) -> "fedray.Comparison":
            return _compared(folder, goal, recipes, placement, on_progress)

        public = compared(GOAL, {"public": PUBLIC}).groups[0].runs
        model = next(iter(public.values())).path / "model.safetensors"
        recipes = compared(
            GOAL,
            {
                "fixed": (),
                "adaptive": ("privacy.clipping.kind=adaptive",),
                "pretrained": (f"training.initial.file={model}",),
                "tied": ("training.task.tied=true",),
            },
        )
        rates = {f"rate {rate:g}": (f"training.server.learning_rate={rate}",) for rate in RATES}
        tuned = [compared(goal, rates) for goal in (SMALL, LARGE)]
        yield _reproduced(recipes, *tuned)


def _compared(
    folder: Path,
    goal: int,
    recipes: Mapping[str, Sequence[str]],
    placement: "fedray.Placement | None",
    on_progress: Progress,
) -> "fedray.Comparison":
    """Trains recipes on the rounds of one trace."""
    file = Path(__file__).parent / "learning" / "language.toml"
    z = f"privacy.noise_multiplier={NOISE_PER_REPORT * goal}"
    base = fedray.Scenario.from_toml(file, [*SETTING, f"rounds.report_goal={goal}", z])
    if goal != GOAL:
        base = base.with_overrides(f"training.cohort_sample={goal}")
    trace = folder / f"trace-{goal}"
    if not trace.exists():
        fedray.simulate(base.with_overrides("training.enabled=false"), placement, trace)
    opened = fedray.Trace.open(trace)
    wanted = {
        name: (base.with_overrides(*keys), folder / f"runs-{goal}" / name)
        for name, keys in recipes.items()
    }
    runs = fedray.train_many(opened, wanted, placement, on_progress)
    return comparison_of([*runs.values()], opened, None, [*runs], REACH)


def _reproduced(
    recipes: "fedray.Comparison", small: "fedray.Comparison", large: "fedray.Comparison"
) -> Reproduced:
    reach = recipes.reach
    assert reach is not None
    print(reach)
    rates = [
        TunedRate(rate, *(each.mean(group, "accuracy").mean for each in (small, large) for group in each.groups if group.label == f"rate {rate:g}"))
        for rate in RATES
    ]
    print(rates)
    tables = recipes.tables()
    return Reproduced("Recipes", Recipes(reach, rates).to_json(), tables, [], "x.", True, recipes.figures()[:1])


REPRODUCTION = Reproduction(
    "Recipes of Gboard's models: clip norms, a start from public text, tuning on small runs.",
    run,
    has_figures=True,
    is_resumable=True,
)
