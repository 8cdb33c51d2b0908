"""Training grids: real trainings on one trace, resumed to the same result."""

import json
import math
from pathlib import Path

import pytest

import fedray
from fedray.base.errors import FedrayError, InputError, TraceCorrupt
from fedray.report.plotly_json import plotly_figure
from fedray.runtime.placement import Placement
from fedray.studies.compare import Comparison
from fedray.studies.grid import run_grid
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
    table = {"name": "rate and noise", "vary": VARY, "x": RATE} | keys
    return fedray.Sweep(trace=str(trace.path), **table)


@pytest.fixture(scope="module")
def finished(trace: Trace, tmp_path_factory) -> tuple[Comparison, Path]:
    """Two rates and two noise multipliers, two seeds, and a setting of all cells."""
    out = tmp_path_factory.mktemp("grid") / "out"
    vary = VARY | {"training.devices_at_once": 4}
    return run_grid(grid_of(trace, seeds=2, vary=vary), out, HERE), out


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
    assert {each["training"]["devices_at_once"] for each in tables} == {4}
    assert {run.trace_digest for run in runs} == {trace.digest}
    means = [result.mean(each, "accuracy").mean for each in result.groups]
    assert means == sorted(means, reverse=True), (
        "the metric of the answer, and the best comes first"
    )
    assert result.answer.startswith(result.groups[0].name)
    table = result.to_arrow().to_pylist()
    names = ("training.server.learning_rate", "privacy.noise_multiplier")
    assert sorted((*(row[f"cell.{name}"] for name in names), row["seed"]) for row in table) == found


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
def test_the_first_figure_has_a_series_for_each_other_value_and_the_page_has_it(finished) -> None:
    result, out = finished
    figure, *others = result.figures()
    found = {
        (x, each.name): y for each in figure.series for x, y in zip(each.x, each.y, strict=True)
    }
    name = NOISE.split(".")[-1]
    assert found == {
        (group.settings[RATE], f"{name} {group.settings[NOISE]}"): result.mean(
            group, "accuracy"
        ).mean
        for group in result.groups
    }
    assert len(found) == 4
    assert len(figure.series) == 2
    of_metric = [
        f"{name}{of}" for of in ("-differences", "", "-epsilon") for name in ("loss", "accuracy")
    ]
    assert sorted(each.name for each in others) == sorted(of_metric)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert figure.title in page
    assert json.loads((out / "results.json").read_text()) == json.loads(
        json.dumps(result.to_json())
    )
    assert result.to_arrow().num_rows == 8


@pytest.mark.slow
def test_tables_of_a_grid_have_a_column_for_each_varied_key(finished, trace: Trace) -> None:
    result, _ = finished
    means, *_, settings = result.tables()
    privacy = next(each for each in result.tables() if each.title.startswith("Privacy"))
    for table in (means, privacy):
        assert table.columns[:2] == ("learning_rate", "noise_multiplier")
        for row, subject, group in zip(table.rows, table.row_subjects, result.groups, strict=True):
            assert [float(each) for each in row[:2]] == [group.cell[RATE], group.cell[NOISE]]
            assert subject.condition == f"if learning_rate={row[0]} and noise_multiplier={row[1]}"
    assert means.subject.trace == trace.digest[:12]
    assert means.subject.runs == "2 trainings each (seeds 1 to 2)"
    assert settings.columns[0] == "key"


@pytest.mark.slow
def test_one_axis_is_a_curve_with_intervals(trace: Trace, tmp_path: Path) -> None:
    grid = grid_of(trace, vary={NOISE: (4.0, 1.0)}, x=NOISE, seeds=2)
    result = run_grid(grid, tmp_path / "out", HERE)
    curve = result.figures()[0]
    for series, group in zip(curve.series, result.groups, strict=True):
        mean = result.mean(group, "accuracy")
        assert list(series.x) == [group.noise_multiplier]
        assert [*series.y, *series.low, *series.high] == [mean.mean, mean.low, mean.high]
    assert plotly_figure(curve)


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


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"vary": {"rounds.count": (5, 6)}, "x": "rounds.count"},
            "rounds.count: may change who takes part",
        ),
        ({"vary": {"seed": (5, 6)}, "x": "seed"}, "seed: may change who takes part"),
        ({"vary": {"training.seed": (5, 6)}, "x": "training.seed"}, "vary.training.seed: "),
        ({"vary": {RATE: (0.1, 0.1)}}, "a value stands twice"),
        (
            {"vary": {RATE: (0.1,), "training.server": {"kind": "adam"}}},
            'a value of training.server is a table; vary its keys, "training.server.kind"$',
        ),
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
            run_grid(grid_of(trace, vary=vary), out, HERE)
    assert not out.exists()


@pytest.mark.slow
def test_the_command_trains_a_grid_beside_its_file(
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
    assert len(json.loads(shown)["groups"]) == 2
    # A second time nothing is trained, and the result is the same.
    assert fedray_command(*trained)[1] == shown


@pytest.mark.slow
def test_other_keys_have_a_series_each_and_diverged_cells_none(
    trace: Trace, tmp_path: Path
) -> None:
    vary = {RATE: (0.1, 3e38), NOISE: (1.0, 4.0), "privacy.mechanism": ("tree", "identity")}
    result = run_grid(grid_of(trace, vary=vary, seeds=1), tmp_path / "out", HERE)
    series = result.figures()[0].series
    named = {
        f"noise_multiplier {z}, mechanism {kind}"
        for z in (1.0, 4.0)
        for kind in ("tree", "identity")
    }
    assert {each.name for each in series} == named
    assert all(each.x.tolist() == [0.1] for each in series)
    last = [math.isfinite(result.mean(group, "loss").mean) for group in result.groups]
    assert last == sorted(last, reverse=True), "diverged cells come last"


@pytest.mark.slow
def test_booleans_are_values_of_cells_and_no_axis(trace: Trace, tmp_path: Path) -> None:
    nesterov = "training.client.nesterov"
    vary = {RATE: (0.1, 1.0), nesterov: (True, False), "training.client.momentum": 0.9}
    with pytest.raises(InputError, match="'training.client.nesterov' can be no axis"):
        grid_of(trace, vary=vary, x=nesterov)
    result = run_grid(grid_of(trace, vary=vary, seeds=1), tmp_path / "out", HERE)
    own = {
        TrainedRun.open(each).document["scenario"]["training"]["client"].get("nesterov", False)
        for each in (tmp_path / "out" / "runs").iterdir()
    }
    assert own == {True, False}
    (table, *_) = result.tables()
    column = table.columns.index("nesterov")
    assert {row[column] for row in table.rows} == {"true", "false"}
    assert {each.name for each in result.figures()[0].series} == {"nesterov true", "nesterov false"}
    assert set(result.to_arrow().column(f"cell.{nesterov}").to_pylist()) == {True, False}
    told = json.dumps(result.to_json())
    assert all(f'"{nesterov}": {each}' in told for each in ("true", "false"))
