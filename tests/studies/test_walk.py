"""A walk through every kind of result: each table says what it is of, and rows of other settings stand apart."""

import json
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name, walk_packages
from typing import Any

import pytest

import fedray
import fedray.audit
import fedray.runs
import fedray.studies
from fedray.base.result import DrawnResult, Result
from fedray.mechanisms.registry import Tree
from fedray.report.subject import FACETS
from fedray.runtime.placement import Placement
from fedray.scenario.availability import HabitAvailability
from fedray.scenarios.gboard_privacy import REPRODUCTION
from fedray.studies.habits.observed import Layout, ObservedLog, Simulator
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
        return fedray.run_sweep(
            fedray.Sweep(scenario="small", mechanisms=mechanisms, **table), self.untrained, HERE
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
        tables = {
            "name": "asks",
            "population": {"devices": 3_000},
            "participation": {"timer_hours": 20.0, "timer_resets_on": "upload"},
            "rounds": {
                **{"mode": "upload-then-train", "count": 2, "report_goal": 200},
                "uploads": {"window_hours": 24.0, "windows": 2, "schedule": {"kind": "all"}},
            },
            "analytics": {
                "question": {"kind": "histogram", "size": 4, "most_keys": 1},
                "values": {"kind": "words", "words": 4},
                "trust": [{"kind": "server"}, {"kind": "devices", "least_devices": 200}],
                **{"epsilon": 1.0, "delta": 1e-6},
            },
        }
        scenario = fedray.Scenario.from_tables(tables)
        return fedray.answer(fedray.simulate(scenario, HERE, self.folder / "asked"))

    def fit_log(self) -> Result:
        layout, table = Layout("intervals", 7, 0), HabitAvailability()
        return fedray.fit_habits(ObservedLog(Simulator(layout, 150, 0).records(table), layout))

    def fit_min_sep(self) -> Result:
        run = fedray.ObservedRun(
            rounds=6, goal=40, timer_hours=8.0, min_sep=3, max_participations=2
        )
        return fedray.fit_min_sep(self.untrained, [run], "reach", 1.0, HERE)

    def mechanism(self) -> Result:
        return fedray.mechanism_figures(Tree(), fedray.MinSep(60, 12, 3), 2.0, 1e-6)

    def reproduce(self) -> Result:
        *_, last = REPRODUCTION.results()
        return last


KINDS = [name for name in vars(Walk) if not name.startswith("_")]


@pytest.fixture(scope="module")
def walk(tmp_path_factory) -> Walk:
    return Walk(tmp_path_factory.mktemp("walk"))


@pytest.mark.slow
@pytest.mark.xdist_group("walk")
@pytest.mark.parametrize("kind", KINDS)
def test_every_table_and_figure_says_what_it_is_of(walk: Walk, kind: str) -> None:
    result = getattr(walk, kind)()
    assert result.of.population
    for table in result.tables():
        assert not table.rows or table.subject.population, table.title
        for shown in (table, table.brief()):
            assert not shown.mixed, table.title
            assert str(shown.subject) in shown.caption
        assert f"{table.subject}" in table.rendered("md")
    for figure in result.figures() if isinstance(result, DrawnResult) else ():
        assert figure.subject.population, figure.title
    if "of" in (document := json.loads(json.dumps(result.to_json()))):
        assert set(FACETS) - {"setting", "loss", "trace"} <= set(document["of"]) <= set(FACETS)
    else:
        # The document of a reproduction is the content of its own file.
        assert kind in ("reproduce", "train")


for package in (fedray.audit, fedray.runs, fedray.studies):
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        import_module(module.name)


def all_results(base: type = Result) -> list[type]:
    return [each for one in base.__subclasses__() for each in [one, *all_results(one)]]


@pytest.mark.parametrize(
    "kind", [each for each in all_results() if hasattr(each, "TABLES")], ids=lambda e: e.__name__
)
def test_every_result_says_what_it_is_of(kind):
    assert callable(resolve_name(kind.SUBJECT))
