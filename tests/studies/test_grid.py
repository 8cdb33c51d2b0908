"""Training grids: real trainings on one trace, resumed to the same result, and the cost of tuning."""

import json
import math
import re
from pathlib import Path

import pytest

import fedray
from fedray.audit.assumptions import TUNING
from fedray.base.errors import FedrayError, InputError, TraceCorrupt
from fedray.mechanisms.accounting.events import Gaussian
from fedray.mechanisms.accounting.renyi import best_of_epsilon
from fedray.report.plotly_json import plotly_figure
from fedray.runtime.placement import Placement
from fedray.studies.compare import Comparison
from fedray.studies.grid import read_tuning, run_grid
from fedray.studies.paired import paired_difference
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun

HERE = Placement(backend="in-process")
RATE, NOISE = "training.server.learning_rate", "privacy.noise_multiplier"
SMALL = (
    "population.devices=1500",
    "participation.timer_hours=8",
    "rounds.count=6",
    "rounds.report_goal=40",
    "training.enabled=false",
    "training.cohort_sample=6",
    "training.evaluation_devices=8",
)
VARY = {RATE: (0.1, 1.0), NOISE: (1.0, 4.0)}


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Trace:
    scenario = fedray.Scenario.from_toml("scenarios/small.toml", SMALL)
    return fedray.simulate(scenario, HERE, tmp_path_factory.mktemp("grid") / "trace")


def grid_of(trace: Trace, **keys) -> fedray.Sweep:
    table = {"name": "rate and noise", "vary": VARY, "x": RATE, "plane": NOISE} | keys
    return fedray.Sweep(trace=str(trace.path), **table)


@pytest.fixture(scope="module")
def finished(trace: Trace, tmp_path_factory) -> tuple[Comparison, Path]:
    """Two rates and two noise multipliers, two seeds."""
    out = tmp_path_factory.mktemp("grid") / "out"
    return run_grid(grid_of(trace, seeds=2), out, HERE), out


def without_times(value):
    """A document without what depends on the place and the speed of the trainings."""
    if isinstance(value, dict):
        left_out = ("seconds_per_round", "path")
        return {key: without_times(each) for key, each in value.items() if key not in left_out}
    return [without_times(each) for each in value] if isinstance(value, list) else value


@pytest.mark.slow
def test_every_cell_trains_with_its_values_and_every_seed(finished, trace: Trace) -> None:
    result, out = finished
    runs = [TrainedRun.open(path) for path in (out / "runs").iterdir()]
    tables = [run.document["scenario"] for run in runs]
    found = sorted(
        (
            each["training"]["server"]["learning_rate"],
            each["privacy"]["noise_multiplier"],
            run.document["seed"],
        )
        for each, run in zip(tables, runs, strict=True)
    )
    assert found == [(rate, z, seed) for rate in (0.1, 1.0) for z in (1.0, 4.0) for seed in (1, 2)]
    assert {run.trace_digest for run in runs} == {trace.digest}
    means = [result.mean(each, "accuracy").mean for each in result.groups]
    assert means == sorted(means, reverse=True), (
        "the metric of the answer, and the best comes first"
    )
    assert result.answer.startswith(result.groups[0].name)
    table = result.to_arrow().to_pylist()
    names = ("training.server.learning_rate", "privacy.noise_multiplier")
    assert sorted((*(row[f"cell.{name}"] for name in names), row["seed"]) for row in table) == found
    (_, best), (_, following) = result.tables()[0].rows[1:3]
    assert best == result.groups[0].label
    assert following.startswith(f"{result.groups[1].label}: -")
    # Of six pairs together: of each 99.2 %.
    second, first = (each.finals("accuracy") for each in (result.groups[1], result.groups[0]))
    is_clear = paired_difference(second, first, 1 - 0.05 / 6).is_from_zero
    assert following.endswith("; can be distinguished" if is_clear else "; cannot be distinguished")


@pytest.mark.slow
def test_rho_of_all_trainings_is_the_sum_and_epsilon_is_its_own(finished, trace: Trace) -> None:
    """rho = s^2 / (2 z^2) of each of the cells, of one sensitivity s, twice for two seeds."""
    result, _ = finished
    of_one = fedray.audit_trace(trace, 1.0).mechanisms[0]
    for name in ("observed", "enforced"):
        s = getattr(of_one, name).sensitivity.value
        total = 2 * 2 * (s**2 / 2 + s**2 / 32)
        cost = result.tuning.costs[name]
        assert cost.rho == pytest.approx(total, rel=1e-12)
        # All noise is Gaussian, so all trainings are one Gaussian with that rho.
        one = fedray.audit_trace(trace, s / math.sqrt(2 * total)).mechanisms[0]
        assert cost.epsilon == pytest.approx(getattr(one, name).epsilon, rel=1e-9)


@pytest.mark.slow
def test_an_interrupted_grid_continues_to_the_same_result(
    finished, trace: Trace, tmp_path: Path
) -> None:
    class Stopped(Exception):
        pass

    told = []

    def stop(line) -> None:
        told.append(str(line))
        if len(told) == 4:
            raise Stopped

    grid, out = grid_of(trace, seeds=2), tmp_path / "out"
    with pytest.raises(Stopped):
        run_grid(grid, out, HERE, stop)
    kept = {path.name: path.stat().st_mtime_ns for path in (out / "runs").iterdir()}
    assert 0 < len(kept) < 8
    with pytest.raises(InputError, match="lacks trainings"):
        read_tuning(out, trace)
    again = run_grid(grid, out, HERE)
    assert without_times(again.to_json()) == without_times(finished[0].to_json())
    assert {name: (out / "runs" / name).stat().st_mtime_ns for name in kept} == kept


@pytest.mark.slow
def test_a_damaged_training_or_another_grid_in_the_directory_is_refused(
    finished, trace: Trace, tmp_path: Path
) -> None:
    _, out = finished
    with pytest.raises(InputError, match="holds something else than trainings of"):
        run_grid(grid_of(trace, seeds=1), out, HERE)
    file = out / "runs" / "1-1" / "model.safetensors"
    content = file.read_bytes()
    try:
        file.write_bytes(content[:-1] + b"\0" if content[-1] else content[:-1] + b"\1")
        with pytest.raises(TraceCorrupt, match="does not have the digest"):
            run_grid(grid_of(trace, seeds=2), out, HERE)
    finally:
        file.write_bytes(content)


@pytest.mark.slow
def test_the_surface_is_a_plane_of_means_and_the_page_has_it(finished) -> None:
    result, out = finished
    plane, *others = result.figures()
    assert plane.values == {
        (group.settings[RATE], group.settings[NOISE]): result.mean(group, "accuracy").mean
        for group in result.groups
    }
    assert len(plane.values) == 4
    of_metric = [
        f"{name}{of}" for of in ("-differences", "", "-epsilon") for name in ("loss", "accuracy")
    ]
    assert sorted(each.name for each in others) == sorted(of_metric)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert plane.title in page
    assert "Cost of tuning" in page
    assert json.loads((out / "results.json").read_text()) == json.loads(
        json.dumps(result.to_json())
    )
    assert result.to_arrow().num_rows == 8
    assert result.tables()[0].rows[0] == ("trainings", "8 trainings of 4 cells")


@pytest.mark.slow
def test_one_axis_is_a_curve_with_intervals(trace: Trace, tmp_path: Path) -> None:
    grid = grid_of(trace, vary={NOISE: (4.0, 1.0)}, x=NOISE, plane=None, seeds=2)
    result = run_grid(grid, tmp_path / "out", HERE)
    curve = result.figures()[0]
    for series, group in zip(curve.series, result.groups, strict=True):
        mean = result.mean(group, "accuracy")
        assert list(series.x) == [group.noise_multiplier]
        assert [*series.y, *series.low, *series.high] == [mean.mean, mean.low, mean.high]
    assert plotly_figure(curve)


@pytest.mark.slow
def test_random_runs_draw_number_cells_and_seeds_and_cost_what_the_theorem_says(
    trace: Trace, tmp_path: Path
) -> None:
    grids = (grid_of(trace, runs=fedray.RandomRuns(mean=3.0, seed=seed)) for seed in range(99))
    grid = next(each for each in grids if len(each.draws()) == 5)
    result = run_grid(grid, tmp_path / "out", HERE)
    drawn = {f"{cell + 1}-{seed}" for cell, seed in grid.draws()}
    assert {path.name for path in (tmp_path / "out" / "runs").iterdir()} == drawn
    assert len({seed for _, seed in grid.draws()}) == len(grid.draws())
    # The largest rho of all cells, also if that cell was not drawn.
    s = fedray.audit_trace(trace, 1.0).mechanisms[0].observed.sensitivity.value
    event = Gaussian(noise_multiplier=1.0, sensitivity=s)
    cost = result.tuning.costs["observed"]
    assert cost.rho is None
    assert cost.epsilon == pytest.approx(best_of_epsilon(event, 3.0, 1.0, 1e-10), rel=1e-9)
    best = [max(group.finals("accuracy").values()) for group in result.groups]
    assert best == sorted(best, reverse=True)
    stated = fedray.privacy_statement(fedray.audit_trace(trace), result.tuning).to_markdown()
    assert "a random number of trainings (mean 3, shape 1.0; 4 cells)" in stated
    assert "Theorem 2" in stated
    assert not re.search(r"\b(5|five) (trainings|runs)", stated), "the number stays secret"


def test_a_sweep_with_a_trace_is_for_run_grid_and_one_without_is_not(tmp_path: Path) -> None:
    with_trace = fedray.Sweep(name="g", trace="t", vary=VARY, x=RATE)
    with pytest.raises(InputError, match="use run_grid"):
        fedray.run_sweep(with_trace)
    mechanisms = (fedray.MechanismSpec(kind="tree"),)
    settings = {"rounds": (9,), "min_sep": (3,)}
    without = fedray.Sweep(name="s", vary=settings, x="min_sep", mechanisms=mechanisms)
    with pytest.raises(InputError, match="has no trace"):
        run_grid(without, tmp_path)
    with pytest.raises(InputError, match="mechanisms are missing"):
        fedray.Sweep(name="s", vary=settings, x="min_sep")


def test_draws_follow_from_the_seed_and_have_the_mean() -> None:
    def draws(seed: int) -> list[tuple[int, int]]:
        runs = fedray.RandomRuns(mean=3.0, seed=seed)
        return fedray.Sweep(name="g", trace="t", vary=VARY, x=RATE, runs=runs).draws()

    assert draws(1) == draws(1)
    of_seeds = [draws(seed) for seed in range(200)]
    # A geometric number of mean 3 has the standard deviation 2.45: four of the mean of 200.
    assert sum(map(len, of_seeds)) / 200 == pytest.approx(3.0, abs=4 * 2.45 / 200**0.5)
    cells = [cell for each in of_seeds for cell, _ in each]
    assert min(cells.count(cell) for cell in range(4)) > 0.7 * len(cells) / 4


@pytest.mark.slow
def test_the_statement_names_the_cost_of_a_grid_and_else_says_not_accounted_for(
    finished, trace: Trace
) -> None:
    _, out = finished
    audit = fedray.audit_trace(trace)
    without = {line.what: line for line in fedray.privacy_statement(audit).lines}
    assert without["Tuning"].says.startswith("not accounted for")
    found = fedray.privacy_statement(audit, read_tuning(out, trace))
    line = next(each for each in found.lines if each.what == "Tuning")
    assert line.says.startswith("8 trainings of 4 cells: rho ")
    assert TUNING not in found.to_markdown()
    assert TUNING in fedray.privacy_statement(audit).to_markdown()
    # The stated run comes on top: its rho is added.
    stated = (
        audit.mechanisms[0].enforced if "(enforced)" in line.says else audit.mechanisms[0].observed
    )
    costs = read_tuning(out, trace).cost(stated.name, 1e-10, stated.event)
    assert costs.rho == pytest.approx(read_tuning(out, trace).costs[stated.name].rho + stated.rho)
    assert f"stated above: {costs}" in line.says


@pytest.mark.slow
def test_a_grid_of_another_trace_or_without_noise_has_no_cost(
    finished, trace: Trace, trace_of, tmp_path: Path
) -> None:
    _, out = finished
    other = trace_of([[0, 2], [1]], 3)
    with pytest.raises(InputError, match="another scenario or trace"):
        read_tuning(out, other)
    with pytest.raises(InputError, match="trained on another trace"):
        fedray.privacy_statement(fedray.audit_trace(other), read_tuning(out, trace))
    with pytest.raises(InputError, match=r"no sweep\.json"):
        read_tuning(tmp_path, trace)
    silent = grid_of(
        trace, vary={"privacy.mechanism": ("none", "tree"), RATE: (0.1,)}, plane=None, seeds=1
    )
    result = run_grid(silent, tmp_path / "out", HERE)
    assert result.tuning.costs == {"observed": None, "enforced": None}
    with pytest.raises(InputError, match="a cell has no .* guarantee"):
        fedray.privacy_statement(fedray.audit_trace(trace), result.tuning)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"vary": {"rounds.count": (5, 6)}, "x": "rounds.count"},
            "rounds.count: may change who takes part",
        ),
        ({"vary": {"seed": (5, 6)}, "x": "seed"}, "seed: may change who takes part"),
        ({"vary": {"training.seed": (5, 6)}, "x": "training.seed"}, "vary.training.seed: "),
        ({"seeds": 2, "runs": {"mean": 3.0}}, "seeds: has no use"),
        ({"vary": {RATE: (0.1, 0.1)}}, "a value stands twice"),
        ({"x": "privacy.delta"}, "is not varied"),
        ({"noise_multiplier": 2.0}, "noise_multiplier: has no use"),
    ],
)
def test_axes_that_change_the_trace_are_refused_in_one_line(keys, told: str) -> None:
    table = {"name": "g", "trace": "t", "vary": VARY, "x": RATE} | keys
    with pytest.raises(InputError, match=told) as error:
        fedray.Sweep(**table)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_cells_that_a_training_cannot_have_are_refused_before_the_first(
    trace: Trace, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for vary, told in (
        ({"privacy.at_limit": ("stop", "exclude"), RATE: (0.1,)}, "privacy.at_limit"),
        ({RATE: (0.1, -1.0)}, "cell .*-1"),
    ):
        with pytest.raises(FedrayError, match=told):
            run_grid(grid_of(trace, vary=vary, plane=None), out, HERE)
    # Poisson draws 0 runs at some seed.
    zero = next(
        seed
        for seed in range(1000)
        if not grid_of(trace, runs={"mean": 1.5, "shape": "poisson", "seed": seed}).draws()
    )
    with pytest.raises(InputError, match="the number drawn is 0"):
        run_grid(grid_of(trace, runs={"mean": 1.5, "shape": "poisson", "seed": zero}), out, HERE)
    assert not out.exists()


@pytest.mark.slow
def test_the_command_trains_a_grid_beside_its_file_and_the_audit_states_it(
    trace: Trace, tmp_path: Path, fedray_command
) -> None:
    file = tmp_path / "grid.toml"
    file.write_text(
        f'name = "g"\ntrace = "{trace.path}"\nx = "{NOISE}"\nseeds = 1\n[vary]\n"{NOISE}" = [2.0, 3.0]\n'
    )
    code, _, told = fedray_command("sweep", str(file))
    assert code == 2
    assert "--out is missing" in told
    out = tmp_path / "out"
    trained = ("sweep", str(file), "--out", str(out), "--place", "backend=in-process", "--json")
    code, shown, _ = fedray_command(*trained)
    assert code == 0
    assert json.loads(shown)["tuning"]["trainings"] == "2 trainings of 2 cells"
    # A second time nothing is trained, and the result is the same.
    assert fedray_command(*trained)[1] == shown
    folder = tmp_path / "statement"
    audit = ("audit", str(trace.path), "--tuning", str(out))
    assert fedray_command(*audit, "--statement", str(folder))[0] == 0
    assert "2 trainings of 2 cells" in (folder / "statement.md").read_text()
    code, _, told = fedray_command(*audit)
    assert code == 2
    assert "give --statement DIR" in told


@pytest.mark.slow
def test_other_keys_have_a_plane_each_and_diverged_cells_none(trace: Trace, tmp_path: Path) -> None:
    vary = {RATE: (0.1, 3e38), NOISE: (1.0, 4.0), "privacy.mechanism": ("tree", "identity")}
    result = run_grid(grid_of(trace, vary=vary, seeds=1), tmp_path / "out", HERE)
    tree, identity = (each for each in result.figures() if each.name.startswith("surface"))
    assert {each.title.split()[-1] for each in (tree, identity)} == {"tree", "identity"}
    for plane in (tree, identity):
        assert set(plane.values) == {(0.1, 1.0), (0.1, 4.0)}
    last = [math.isfinite(result.mean(group, "loss").mean) for group in result.groups]
    assert last == sorted(last, reverse=True), "diverged cells come last"
