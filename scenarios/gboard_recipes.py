"""Recipes of Gboard's private models (Xu et al. 2023, section 2), on models of 37,000 parameters.

Fixed and adaptive clip norms, a start from public text, and tied embeddings share the rounds of one
trace; server rates are tuned at a small report goal, and compared at a larger one with the same
noise on the mean update. An interrupted study continues from the traces and trained runs in OUT.
"""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

import fedray
from .reproduction import (
    Language,
    Reproduced,
    Reproduction,
    Request,
    StepProgress,
    Subject,
    Table,
    comparison_of,
    in_steps,
    share_of,
    trace_in,
)

GOAL, SMALL, LARGE = 1000, 10, 130
"""Report goal of the recipes; that of tuning; 13 times that, as 6,500 is of 500."""
NOISE_PER_REPORT = 0.0087
"""z over the goal: noise of 1.67 clip norms, as 7 at 6,500 reports and 2.4 million parameters."""
ROUNDS, REACH, EQUAL = 200, 0.40, 1.0
"""Rounds of a training; accuracy to reach; points within which accuracies are equal."""
LANGUAGE = Path(__file__).parent / "learning" / "language.toml"
KEYS = (
    "training.task={kind='keyboard_lstm',hidden=48,embedding=32}",
    # A tenth of the paper's rounds 128 and 1,152.
    "privacy.mechanism={kind='tree',restarts=[13,115]}",
)
PUBLIC = f"from {__name__} import PublicText as data\n"
"""Python file of the public data."""
RATES = {f"rate {rate:g}": [f"training.server.learning_rate={rate}"] for rate in (0.3, 1.0, 3.0)}
SHOWN = ("Accuracy", "Rounds", "Privacy")
"""Beginnings of the titles of the comparison's tables that are shown."""
NOTE = (
    "One seed; printed statements are of sections 2.1 to 2.3. Public text has another grammar for "
    "every second word. Epsilon is that of one private training; choosing among several costs more."
)


class Recipes(TypedDict):
    """`fedray reproduce gboard-recipes`."""

    recipes: "fedray.Comparison"
    """Recipes on one trace."""
    small: "fedray.Comparison"
    """Server rates at the small report goal."""
    large: "fedray.Comparison"
    """Server rates at the large one."""


class PublicText(Language):
    """The synthetic language with half of its grammar, on clients that are in no population."""

    def __init__(self, seed: int) -> None:
        scenario = fedray.Scenario.from_toml(LANGUAGE, [f"seed={seed}"])
        super().__init__(scenario, scenario.data)  # pyright: ignore[reportArgumentType]
        self._successor[::2] = np.roll(self._successor[::2], 1)

    def examples(self, device_ids: NDArray, positions: NDArray) -> dict[str, NDArray]:
        return super().examples(device_ids | np.uint64(1 << 39), positions)


def run(request: Request) -> Iterator[Reproduced]:
    """Trains every recipe, then every server rate at both goals."""

    def compared(
        goal: int, recipes: Mapping[str, list[str]], tell: StepProgress
    ) -> "fedray.Comparison":
        cohort = f"training.cohort_sample={_trained_devices(goal)}"
        z = f"privacy.noise_multiplier={NOISE_PER_REPORT * goal}"
        keys = [*KEYS, f"rounds.report_goal={goal}", cohort, z]
        base = fedray.Scenario.from_toml(LANGUAGE, keys)
        runs = folder / f"runs-{goal}"
        wanted = {
            name: (base.with_overrides(*own), runs / name.replace(" ", "-"))
            for name, own in recipes.items()
        }
        trace = trace_in(folder / f"trace-{goal}", base, request)
        trained = fedray.train_many(
            trace, wanted, request.placement, lambda line: tell(share_of(line))
        )
        return comparison_of([*trained.values()], trace, None, [*trained], REACH)

    with tempfile.TemporaryDirectory(prefix="fedray-recipes-") as temporary:
        folder = (request.out or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "public.py").write_text(PUBLIC, encoding="utf-8")
        data = f"data={{kind='custom',file='{folder}/public.py'}}"
        public = {"public": [data, "privacy.mechanism=none"]}
        recipes = {
            "fixed": [],
            "adaptive": ["privacy.clipping.kind=adaptive"],
            "pretrained": [f"training.initial.file={folder}/runs-{GOAL}/public/model.safetensors"],
            "tied": ["training.task.tied=true"],
        }
        # The public model is cheaper than the recipes, which begin with it.
        steps = (
            ("public text", GOAL, public),
            ("server rates at the small goal", SMALL, RATES),
            ("recipes", GOAL, recipes),
            ("server rates at the large goal", LARGE, RATES),
        )
        found = {
            name: compared(goal, models, tell)
            for (name, goal, models), tell in in_steps(
                request,
                steps,
                name=lambda step: step[0],
                cost=lambda step: _trained_devices(step[1]) * len(step[2]),
            )
        }
        yield _reproduced(
            found["recipes"],
            found["server rates at the small goal"],
            found["server rates at the large goal"],
        )


def _trained_devices(goal: int) -> int:
    """Returns how many devices of a round train: a sample of the recipes, and all of smaller
    rounds."""
    return 24 if goal == GOAL else goal


def _reproduced(
    recipes: "fedray.Comparison", small: "fedray.Comparison", large: "fedray.Comparison"
) -> Reproduced:
    assert recipes.reach is not None
    # A recipe that does not reach the accuracy counts as all rounds.
    rounds = {run.label: ROUNDS if run.round is None else run.round for run in recipes.reach.runs}
    ends, tuned, larger = (
        {group.label: 100.0 * each.mean(group, "accuracy").mean for group in each.groups}
        for each in (recipes, small, large)
    )
    saved, tied = (rounds["fixed"] - rounds[name] for name in ("pretrained", "tied"))
    best, larger_best = (max(each, key=each.__getitem__) for each in (tuned, larger))
    lost, gain = ends["fixed"] - ends["adaptive"], larger[best] - tuned[best]
    rows = (
        ("public text", "saves about 1,000 rounds", f"saves {saved} of {ROUNDS}", saved > 0),
        ("adaptive clip norm", "1,000 rounds of no progress", f"loses {lost:.1f} points", lost > 0),
        ("larger goal", "as good, or a little better", f"{gain:+.1f} points", gain > -EQUAL),
        ("best rate", "tuned on small runs", f"{best}, {larger_best}", best == larger_best),
        ("tied embeddings", "no figure", f"{-tied:+d} rounds", True),
    )
    agrees = all(good for *_, good in rows)
    cells = tuple((*texts, "yes" if good else "NO") for *texts, good in rows)
    first = Table("Recipes", ("recipe", "printed", "obtained", "agrees"), cells)
    goals = tuple((name, f"{tuned[name]:.1f}", f"{larger[name]:.1f}") for name in tuned)
    rates = Table("Accuracy, %", ("server rate", f"goal {SMALL}", f"goal {LARGE}"), goals)
    found = [each.to_json() for each in (recipes, small, large)]
    return Reproduced(
        "Recipes of Gboard's models",
        dict(zip(Recipes.__annotations__, found, strict=True)),
        [first, rates, *(each for each in recipes.tables() if each.title.startswith(SHOWN))],
        [NOTE],
        f"The printed statements {'hold' if agrees else 'do not all hold'} for a small model.",
        agrees,
        [each for each in recipes.figures() if each.name == "accuracy"],
        Subject("the synthetic language", runs="one training each"),
    )


REPRODUCTION = Reproduction(
    "gboard-recipes",
    "Recipes of Gboard's models: clip norms, public text, tuning on small runs (Xu et al. 2023).",
    "Xu et al. 2023, section 2",
    "5 min",
    run,
    has_placement=True,
    has_figures=True,
    is_resumable=True,
)
