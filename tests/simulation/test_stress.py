"""Sweeps and plans: figures are those of the parts they are made of, kept in the cache, the same from Ray tasks."""

import itertools
import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fedray.errors import InputError
from fedray.placement import Placement
from fedray.scenario import Scenario
from fedray.stress import run as stress_run
from fedray.stress.page import plan_page
from fedray.stress.plan import Candidate, Plan, Target, _Search, make_plan
from fedray.stress.run import run_sweep
from fedray.stress.sweep import Sweep, find_sweep, shipped_sweeps
from mechanisms.loss import loss
from mechanisms.optimize.design import MechanismRequest, optimize_mechanism
from mechanisms.optimize.objective import Target as Outcome
from mechanisms.participation import MinSep

HERE = Placement(backend="in-process")
SETTINGS = """
name = "settings"
estimate = {rounds = 60, min_sep = 12, max_participations = 5}
x = "min_sep"
noise_multiplier = 2.0
vary = {rounds = [60], max_participations = [3, "most"], min_sep = [6, 12, 20, 29]}
[[mechanisms]]
kind = "banded"
bands = 12
[[mechanisms]]
kind = "blt"
buffers = 2
objective = "rms"
made_for = ["estimate", "truth", "distribution"]
[[mechanisms]]
kind = "tree-full"
"""
SIMULATED = """
name = "simulated"
scenario = "small.toml"
estimate = {rounds = 12, min_sep = 6, max_participations = 2}
x = "participation.timer_hours"
y = "epsilon"
vary = {"participation.timer_hours" = [0.5, 1.0], seed = [1, 2]}
[[mechanisms]]
kind = "blt"
buffers = 1
made_for = ["estimate", "distribution"]
[[mechanisms]]
kind = "identity"
"""


@pytest.fixture(scope="module")
def designs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("designs")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path: Path, designs: Path) -> None:
    """A cache of cells for each test; mechanisms are designed once for all."""
    (tmp_path / "cache" / "fedray").mkdir(parents=True)
    (tmp_path / "cache" / "fedray" / "designs").symlink_to(designs)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def read(tmp_path: Path, text: str, small=None) -> tuple[Sweep, Scenario | None]:
    if small is not None:
        (tmp_path / "small.toml").write_text(small().to_toml())
    (tmp_path / "sweep.toml").write_text(text)
    return Sweep.from_toml(tmp_path / "sweep.toml")


def test_a_row_is_what_its_mechanism_costs_there(tmp_path: Path) -> None:
    result = run_sweep(*read(tmp_path, SETTINGS), HERE, has_cache=False)
    assert len(result.cells) == 8
    estimate = MinSep(60, 12, 5)
    truths = [MinSep(60, b, k if k != "most" else -(-60 // b)) for k, b in itertools.product([3, "most"], [6, 12, 20, 29])]
    weights = {schema: float(truths.count(schema)) for schema in truths}
    made = {
        ("banded", "estimate"): optimize_mechanism(MechanismRequest("banded", estimate, bands=12)),
        ("blt", "estimate"): optimize_mechanism(MechanismRequest("blt", estimate, 2, None, "rms")),
        ("tree-full", "anything"): optimize_mechanism(MechanismRequest("tree-full", estimate)),
        ("blt", "distribution"): optimize_mechanism(
            MechanismRequest("blt", truths[0], 2, None, "rms", tuple(Outcome(s, w) for s, w in sorted(weights.items(), key=str)))
        ),
    }
    for cell, truth in zip(result.cells, truths, strict=True):
        assert [row.made_for for row in cell.rows] == ["estimate", "estimate", "truth", "distribution", "anything"]
        for row in cell.rows:
            kind = row.mechanism.split()[0]
            strategy = made.get((kind, row.made_for)) or optimize_mechanism(MechanismRequest("blt", truth, 2, None, "rms"))
            expected = loss(strategy, truth)
            tolerance = 1e-3 if row.made_for == "distribution" else 1e-9
            assert row.rms_loss == pytest.approx(expected.rms_loss, rel=tolerance)
            assert row.max_loss == pytest.approx(expected.max_loss, rel=tolerance)
            assert row.sensitivity_is_exact == expected.sensitivity.is_exact
            assert row.rho == pytest.approx(row.sensitivity**2 / 8)
        assert min(row.regret for row in cell.rows) == 0
        assert min(row.rms_loss for row in cell.rows) * (1 + cell.rows[0].regret) == pytest.approx(cell.rows[0].rms_loss)


def test_a_matrix_ends_where_it_ends_and_says_so(tmp_path: Path) -> None:
    text = SETTINGS.replace(
        'rounds = [60], max_participations = [3, "most"], min_sep = [6, 12, 20, 29]', "rounds = [50, 60, 70], min_sep = [12]"
    )
    text = text.replace('x = "min_sep"', 'x = "rounds"')
    rows = {cell.get("rounds"): rows for cell, rows in ((c.cell, c.rows) for c in run_sweep(*read(tmp_path, text), HERE).cells)}
    assert rows[70][0].rms_loss is None
    assert "was made for" in rows[70][0].note or "more than" in rows[70][0].note
    assert all(row.rms_loss is not None for row in (*rows[50], *rows[60], *rows[70][1:4]))


def test_crossings_are_where_the_better_one_changes(tmp_path: Path) -> None:
    """A small form of banded 400 against a BLT at n = 2000: better from its own bands on, worse below and near n / 2."""
    text = (
        SETTINGS.replace('[3, "most"]', "[3]")
        .replace("[6, 12, 20, 29]", str(list(range(8, 30))))
        .replace(', "truth", "distribution"', "")
    )
    result = run_sweep(*read(tmp_path, text), HERE)
    lines = result.lines()
    banded, blt = (dict(lines[name]) for name in ("banded 12 bands for the estimate", "blt 2 buffers, rms for the estimate"))
    found = [
        c
        for c in result.crossings()
        if {c.before, c.after} == {"banded 12 bands for the estimate", "blt 2 buffers, rms for the estimate"}
    ]
    signs = [(b, banded[b] < blt[b]) for b in sorted(banded)]
    assert [(c.low, c.high) for c in found] == [(a, b) for (a, was), (b, now) in itertools.pairwise(signs) if was != now]
    for crossing in found:
        assert crossing.low <= crossing.at <= crossing.high
    assert found[0].after.startswith("banded")
    assert found[0].high <= 12


def test_what_is_known_is_not_computed_again_and_what_is_damaged_is(tmp_path: Path, monkeypatch) -> None:
    sweep, scenario = read(tmp_path, SETTINGS)
    first = run_sweep(sweep, scenario, HERE)
    computed: list[object] = []
    judged = stress_run._judged
    monkeypatch.setattr(stress_run, "_judged", lambda job: computed.append(job) or judged(job))
    assert run_sweep(sweep, scenario, HERE).to_json() == first.to_json()
    assert computed == []
    kept = sorted((tmp_path / "cache" / "fedray" / "stress").glob("*.json"))
    assert len(kept) == 8
    kept[0].write_text("[{")
    kept[1].unlink()
    assert run_sweep(sweep, scenario, HERE).to_json() == first.to_json()
    assert len(computed) == 2
    other = sweep.model_copy(update={"noise_multiplier": 3.0})
    run_sweep(other, scenario, HERE)
    assert len(computed) == 10


def test_an_interrupted_sweep_goes_on(tmp_path: Path, monkeypatch) -> None:
    sweep, scenario = read(tmp_path, SETTINGS)
    judged, calls = stress_run._judged, itertools.count()

    def interrupted(job):
        if next(calls) == 5:
            raise KeyboardInterrupt
        return judged(job)

    monkeypatch.setattr(stress_run, "_judged", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(sweep, scenario, HERE)
    again: list[object] = []
    monkeypatch.setattr(stress_run, "_judged", lambda job: again.append(job) or judged(job))
    run_sweep(sweep, scenario, HERE)
    assert len(again) == 3


def test_mechanisms_that_only_touch_do_not_cross() -> None:
    assert list(stress_run._crossings("a", [(1, 5), (2, 3), (3, 5)], "b", [(1, 4), (2, 3), (3, 4)])) == []
    (found,) = stress_run._crossings("a", [(1, 5), (2, 3), (3, 3)], "b", [(1, 4), (2, 3), (3, 4)])
    assert (found.before, found.after, found.low, found.high, found.at) == ("b", "a", 1, 3, 2.0)


def test_simulated_cells_have_the_truth_of_their_traces(tmp_path: Path, small) -> None:
    sweep, scenario = read(tmp_path, SIMULATED, small)
    assert scenario is not None
    result = run_sweep(sweep, scenario, HERE)
    assert len(result.cells) == 4
    for cell in result.cells:
        for row in cell.rows:
            assert row.rounds == 12
            assert row.days > 0
            assert row.trace_is_exact
            assert row.trace_sensitivity <= row.sensitivity * (1 + 1e-12)
            assert row.rho == pytest.approx(row.trace_sensitivity**2 / (2 * scenario.privacy.noise_multiplier**2))
    kept = sorted((tmp_path / "cache" / "fedray" / "stress").glob("*.npz"))
    assert len(kept) == 4
    kept[0].write_bytes(kept[0].read_bytes()[:100])
    kept[1].write_bytes(b"")
    assert run_sweep(sweep, scenario, HERE).to_json() == result.to_json()
    hours = {cell.cell.get("participation.timer_hours"): cell.rows[0].max_participations for cell in result.cells}
    assert hours[0.5] >= hours[1.0]


@pytest.mark.ray
@pytest.mark.slow
def test_ray_tasks_give_what_this_process_gives(tmp_path: Path, small, ray_cluster) -> None:
    sweep, scenario = read(tmp_path, SIMULATED, small)
    here = run_sweep(sweep, scenario, HERE, has_cache=False)
    assert run_sweep(sweep, scenario, Placement(), has_cache=False).to_json() == here.to_json()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('x = "min_sep"', 'x = "rho"', "'rho' is not varied"),
        ("min_sep = [6, 12, 20, 29]", "min_sep = []", "a list of values is empty"),
        ("min_sep = [6, 12, 20, 29]", "min_sep = [0]", "whole number of at least 1"),
        ("min_sep = [6, 12, 20, 29]", "goal = [3]", "settings are rounds"),
        ("estimate = {rounds = 60, min_sep = 12, max_participations = 5}", "", "estimate is missing"),
        ("max_participations = 5}", "max_participations = 9}", "more than ceil"),
        ('kind = "banded"', 'kind = "bandit"', "kind"),
        ("buffers = 2", "bands = 2", "blt has no bands"),
        ('kind = "tree-full"', 'kind = "dense"\nmade_for = ["distribution"]', "only a blt is optimised for several outcomes"),
        ("noise_multiplier = 2.0", "noise_multiplier = 2.0\nnoise_per_report = 1.0", "give one of them"),
        ("[60]", "[60", "not valid TOML"),
        ("[6, 12, 20, 29]", "[5000000]", "above 4,194,304"),
        ("noise_multiplier = 2.0", "noise_multiplier = 0.001", "noise_multiplier"),
        ('x = "min_sep"', 'x = "min_sep"\nplane = "max_participations"', "can be no axis"),
    ],
)
def test_a_sweep_that_makes_no_sense_gets_one_line(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in SETTINGS
    with pytest.raises(InputError) as caught:
        read(tmp_path, SETTINGS.replace(old, new))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_shipped_sweep_can_be_read() -> None:
    assert len(shipped_sweeps()) >= 9
    for name in shipped_sweeps():
        sweep, scenario = find_sweep(name)
        assert sweep.cells()
        assert (scenario is None) == (sweep.scenario is None)


def test_the_command_writes_all_its_results(tmp_path: Path, fedray_command) -> None:
    read(tmp_path, SETTINGS.replace("[6, 12, 20, 29]", "[12, 20]").replace(', "truth", "distribution"', ""))
    out = tmp_path / "out"
    code, stdout, _ = fedray_command("stress", str(tmp_path / "sweep.toml"), "--out", str(out), "--json")
    document = json.loads(stdout)
    assert code == 0
    assert json.loads((out / "results.json").read_text()) == document
    table = pq.read_table(out / "results.parquet").to_pylist()
    assert [row["rms_loss"] for row in table] == [row["rms_loss"] for row in document["rows"]]
    assert "settings" in (out / "report.html").read_text()
    assert fedray_command("stress", str(tmp_path / "sweep.toml"), "--out", str(out))[0] == 2
    assert "min-sep-fixed" in fedray_command("stress")[1]
    assert "none of min-sep-fixed" in fedray_command("stress", "nothing")[2]


@pytest.mark.parametrize("least_that_meets", [20, 33, 100, 641, 5000])
@pytest.mark.parametrize("least_that_starves", [600, 4000, 10**9])
def test_the_search_finds_the_least_goal_within_five_percent(least_that_meets: int, least_that_starves: int) -> None:
    search, tried = _Search(20, 9000), []
    while (goal := search.next_goal()) is not None:
        tried.append(goal)
        search.learn(goal, least_that_meets <= goal < least_that_starves, goal >= least_that_starves)
    assert len(tried) < 25
    meeting = [goal for goal in tried if least_that_meets <= goal < least_that_starves]
    if least_that_meets < least_that_starves * 0.75:
        assert min(meeting) <= least_that_meets * 1.05 + 1
    if least_that_meets >= least_that_starves:
        assert not meeting


def test_the_search_ends_though_goals_starve_in_between() -> None:
    search = _Search(100, 9000)
    search.learn(100, meets=False, starves=False)
    search.learn(200, meets=True, starves=False)
    tried = []
    while (goal := search.next_goal()) is not None:
        assert goal not in tried
        tried.append(goal)
        search.learn(goal, meets=False, starves=True)
    assert tried[0] == 141


@pytest.mark.slow
def test_a_plan_is_the_cheapest_that_meets_its_target(small) -> None:
    scenario = small("rounds.count=20", "rounds.max_days=3.0")
    target = Target(epsilon=20.0, noise_per_report=0.005, buffers=1)
    plan = make_plan(scenario, target, [1.0, 12.0], seeds=2, scale=0.5, placement=HERE)
    assert plan.best is not None
    assert plan.best.epsilon <= 20.0
    assert plan.best.noise_multiplier == pytest.approx(0.005 * plan.best.report_goal)
    for each in plan.candidates:
        assert each.report_goal >= plan.best.report_goal or not each.meets(plan.target)
        if each.epsilon is not None:
            assert len(each.min_seps) == 2
            assert min(each.min_seps) <= each.optimistic_min_sep or each.optimistic_min_sep == 20
    none = make_plan(scenario, Target(epsilon=0.1, noise_per_report=1e-4, buffers=1), [12.0], 1, 0.5, HERE)
    assert none.best is None
    assert none.candidates[-1].starves


def test_a_plan_s_page_has_its_figures(small) -> None:
    def candidate(goal: int, epsilon: float | None, note: str = "") -> Candidate:
        seeds = () if note else (7, 8)
        return Candidate(goal, 24.0, 0.001 * goal, 20, seeds, seeds, 2.0, 3.0, 1.0, epsilon, 1.5, note)

    best = candidate(200, 2.5)
    plan = Plan(Target(epsilon=3.0), small(), 2, 0.5, best, (candidate(100, 9.25), best, candidate(400, None, "starved")))
    page = plan_page(plan)
    found = re.search(r'<script type="application/json" id="results-data">(.*?)</script>', page, flags=re.DOTALL)
    assert found is not None
    assert json.loads(found.group(1)) == json.loads(json.dumps(plan.to_json()))
    assert plan.to_json()["best"]["updates"] == 12 * 200
    for shown in ("<td>9.25</td>", "<td>2.5</td>", "<td>starves</td>", "<td>plan</td>", "7 to 8"):
        assert shown in page
    assert "report goal 200, timer 24 h, noise multiplier 0.2: epsilon 2.500 at min-sep 7" in page


def test_a_plan_that_makes_no_sense_gets_one_line(fedray_command) -> None:
    for arguments, expected in (
        (("--epsilon", "0", "--population", "100000", "--rounds", "10"), "epsilon=0.0 must be positive"),
        (("--epsilon", "1", "--population", "100000", "--rounds", "10", "--timers", "a,b"), "numbers of hours"),
        (("--epsilon", "1", "--rounds", "10"), "--population and --rounds must be given"),
        (("--epsilon", "1", "--population", "100000", "--rounds", "10", "--buffers", "11"), "buffers=11 must be from 1 to 10"),
        (("--epsilon", "1", "--population", "100000", "--rounds", "10", "--scale", "2"), "scale=2.0 must be"),
    ):
        code, stdout, stderr = fedray_command("plan", *arguments)
        assert (code, stdout, stderr.count("\n")) == (2, "", 1)
        assert expected in stderr
