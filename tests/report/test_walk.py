"""A walk through every kind of result: each table says what it is of, and rows of other settings stand apart."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fedray
from fedray.base.result import Result
from fedray.clients.sessions import population_sessions
from fedray.mechanisms.registry import Tree
from fedray.report.subject import Subject
from fedray.runtime.placement import Placement
from fedray.scenarios.blt import REPRODUCTION as BLT
from fedray.studies.habits.columns import Layout
from fedray.studies.plan import PlanTarget

HERE = Placement(backend="in-process")
KEYS = (
    "population.devices=1500",
    "participation.timer_hours=8",
    "rounds.count=6",
    "rounds.report_goal=40",
    "training.cohort_sample=6",
    "training.evaluation_devices=8",
)
RATE = "training.server.learning_rate"


class Walk:
    """One small run, and each kind of result made from it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scenario = fedray.Scenario.from_toml("scenarios/small.toml", KEYS)
        untrained = self.scenario.with_overrides("training.enabled=false")
        self.untrained = untrained
        self.trace = fedray.simulate(untrained, HERE, folder / "trace")

    def audit(self) -> Result:
        return fedray.audit_trace(self.trace)

    def train(self) -> Result:
        return fedray.train(self.trace, self.scenario, HERE, self.folder / "trained")

    def stress(self) -> Result:
        return fedray.stress(
            self.untrained,
            estimated=[2, 3],
            mechanisms=["tree", "identity"],
            seeds=2,
            what_ifs=["population.devices=3000", "participation.timer_hours=4"],
            placement=HERE,
        )

    def stress_of_settings(self) -> Result:
        return fedray.stress(rounds=60, estimated=[12, 20], actual=[6, 12], mechanisms=["tree"])

    def sweep(self) -> Result:
        keys = ("population.devices", "participation.timer_hours")
        vary = {keys[0]: (1500, 3000), keys[1]: (4.0, 8.0)}
        table: dict[str, Any] = {"name": "two keys", "vary": vary, "x": keys[1]}
        mechanisms = ({"kind": "tree-full"}, {"kind": "identity"})
        scenario = str(self.trace.path / "scenario.toml")
        Path(scenario).write_text(self.untrained.to_toml())
        return fedray.run_sweep(
            fedray.Sweep(scenario=scenario, mechanisms=mechanisms, **table), HERE
        )

    def grid(self) -> Result:
        table: dict[str, Any] = {"name": "rates", "vary": {RATE: (0.1, 1.0)}, "x": RATE}
        sweep = fedray.Sweep(trace=str(self.trace.path), seeds=2, **table)
        return fedray.run_grid(sweep, self.folder / "grid", HERE)

    def plan(self) -> Result:
        target = PlanTarget(epsilon=20.0, noise_per_report=0.05, buffers=1)
        return fedray.make_plan(self.untrained, target, [4.0, 8.0], 2, 0.5, HERE)

    def compare(self) -> Result:
        runs = []
        for rate in (0.1, 1.0):
            scenario = self.scenario.with_overrides(f"{RATE}={rate}")
            runs.append(fedray.train(self.trace, scenario, HERE, self.folder / f"rate-{rate}"))
        return fedray.compare_runs(runs)

    def compare_mechanisms(self) -> Result:
        out = self.folder / "mechanisms"
        return fedray.compare_mechanisms(
            self.trace, ["tree", "identity"], out, epsilon=20.0, seeds=2, placement=HERE
        )

    def answer(self) -> Result:
        question = (
            "training.enabled=false",
            "analytics={question={kind='histogram', most_keys=1}, trust=[{kind='central'}], "
            "epsilon=1.0, delta=1e-6}",
        )
        scenario = self.scenario.with_overrides(*question)
        return fedray.answer(fedray.simulate(scenario, HERE, self.folder / "asked"))

    def fit_log(self) -> Result:
        layout = Layout("intervals", 7, 0)
        del population_sessions
        raise NotImplementedError(layout)

    def fit_min_sep(self) -> Result:
        run = fedray.ObservedRun(
            rounds=6, goal=40, timer_hours=8.0, min_sep=3, max_participations=2
        )
        return fedray.fit_min_sep(self.untrained, [run], "reach", placement=HERE)

    def mechanism(self) -> Result:
        return fedray.mechanism_figures(Tree(), fedray.MinSep(60, 12, 3), 2.0, 1e-6)

    def reproduce(self) -> Result:
        *_, last = BLT(out=self.folder / "blt")
        return last


KINDS = [name for name in vars(Walk) if not name.startswith("_")]


@pytest.fixture(scope="module")
def walk(tmp_path_factory) -> Walk:
    return Walk(tmp_path_factory.mktemp("walk"))
