"""Sweeps: figures are those of the parts they are made of, kept in the cache, the same from Ray tasks."""

import csv
import io
import itertools
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import fedray
from fedray.base.errors import InputError, RunFailed, Unsustainable
from fedray.mechanisms.loss import loss
from fedray.mechanisms.optimize.design import MechanismRequest, optimize_mechanism
from fedray.mechanisms.optimize.objective import Target as Outcome
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Identity, TreeFull
from fedray.mechanisms.workload import Workload
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.studies import simulated as simulated_runs
from fedray.studies.sweep import run as stress_run
from fedray.studies.sweep.cells import Judgement, Row
from fedray.studies.sweep.page import sweep_figures, sweep_page
from fedray.studies.sweep.run import CellResult, SweepResult, run_sweep
from fedray.studies.sweep.sweep import (
    Cell,
    MechanismSpec,
    Sweep,
    find_sweep,
    shipped_sweeps,
    short_names,
)

HERE = Placement(backend="in-process")
SETTINGS = """
name = "settings"
estimate = {rounds = 60, min_sep = 12, max_participations = 5}
x = "min_sep"
noise_multiplier = 2.0
vary = {rounds = [60], max_participations = [3, "most"], min_sep = [6, 20]}
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
QUICK = """
name = "quick"
x = "min_sep"
vary = {rounds = [60], max_participations = [3], min_sep = [12, 20]}
[[mechanisms]]
kind = "tree-full"
[[mechanisms]]
kind = "identity"
"""
FOR_THE_ESTIMATE = SETTINGS.replace(', "truth", "distribution"', "").replace(
    "[6, 20]", "[6, 12, 20, 29]"
)
BANDED = "banded 12 bands, least RmsLoss for the estimate"
BLT_ = "blt 2 buffers, least RmsLoss for the estimate"
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


@pytest.fixture
def without_ray(monkeypatch) -> None:
    """Commands that sweep do so in this process."""
    monkeypatch.setattr(
        simulated_runs,
        "run_jobs",
        lambda work, jobs, *_: ((place, work(job)) for place, job in enumerate(jobs)),
    )


def read(tmp_path: Path, text: str, small=None) -> tuple[Sweep, Scenario | None]:
    if small is not None:
        (tmp_path / "small.toml").write_text(small().to_toml())
    (tmp_path / "sweep.toml").write_text(text)
    return Sweep.from_toml(tmp_path / "sweep.toml")


@pytest.mark.slow
def test_a_row_is_what_its_mechanism_costs_there(tmp_path: Path) -> None:
    result = run_sweep(*read(tmp_path, SETTINGS), HERE)
    assert len(result.cells) == 4
    estimate = MinSep(60, 12, 5)
    truths = [
        MinSep(60, b, k if k != "most" else -(-60 // b))
        for k, b in itertools.product([3, "most"], [6, 20])
    ]
    weights = {participation: float(truths.count(participation)) for participation in truths}
    made = {
        ("banded", "estimate"): optimize_mechanism(MechanismRequest("banded", estimate, bands=12)),
        ("blt", "estimate"): optimize_mechanism(MechanismRequest("blt", estimate, 2, None, "rms")),
        ("tree-full", "anything"): optimize_mechanism(MechanismRequest("tree-full", estimate)),
        ("blt", "distribution"): optimize_mechanism(
            MechanismRequest(
                "blt",
                truths[0],
                2,
                None,
                "rms",
                tuple(Outcome(s, w) for s, w in sorted(weights.items(), key=str)),
            )
        ),
    }
    for cell, truth in zip(result.cells, truths, strict=True):
        assert [row.made_for for row in cell.rows] == [
            "estimate",
            "estimate",
            "truth",
            "distribution",
            "anything",
        ]
        for row in cell.rows:
            kind = row.mechanism.split()[0]
            strategy = made.get((kind, row.made_for)) or optimize_mechanism(
                MechanismRequest("blt", truth, 2, None, "rms")
            )
            expected = loss(strategy, truth)
            tolerance = 1e-3 if row.made_for == "distribution" else 1e-9
            assert row.rms_loss == pytest.approx(expected.rms_loss, rel=tolerance)
            assert row.max_loss == pytest.approx(expected.max_loss, rel=tolerance)
            assert row.sensitivity_is_exact == expected.sensitivity.is_exact
            assert (row.sensitivity, row.sensitivity_of) == (
                row.participation_sensitivity,
                "(b, k)",
            )
            assert row.rho == pytest.approx(row.sensitivity**2 / 8)
        assert min(row.regret for row in cell.rows) == 0
        assert min(row.rms_loss for row in cell.rows) * (1 + cell.rows[0].regret) == pytest.approx(
            cell.rows[0].rms_loss
        )


def test_losses_and_optima_of_a_sweep_are_of_its_workload(tmp_path: Path) -> None:
    made = '[[mechanisms]]\nkind = "blt"\nbuffers = 1\nmade_for = ["truth"]\n'
    for workload in ("prefix", "momentum=0.9,decay=0.95"):
        text = f'workload = "{workload}"\n{QUICK}{made}'
        result = run_sweep(*read(tmp_path, text), HERE)
        parsed = Workload.parse(workload)
        for cell, truth in zip(result.cells, (MinSep(60, 12, 3), MinSep(60, 20, 3)), strict=True):
            request = MechanismRequest("blt", truth, 1, None, "rms", workload=parsed)
            strategies = (TreeFull(rounds=60), Identity(), optimize_mechanism(request))
            for row, strategy in zip(cell.rows, strategies, strict=True):
                assert row.rms_loss == pytest.approx(loss(strategy, truth, parsed).rms_loss)
        assert f"errors of {parsed.rows} at mu = 1" in sweep_page(result)


def test_the_schedule_of_a_sweep_is_that_of_its_cells(tmp_path: Path, small) -> None:
    """Over the planned rounds, even if a run ended early."""
    schedule = "training.server.schedule.cooldown_rounds"
    text = SIMULATED.replace("seed = [1, 2]", f'"{schedule}" = [0, 6]')
    sweep, scenario = read(tmp_path, 'workload = "schedule"\n' + text, small)
    for cell in sweep.cells():
        own = cell.scenario_of(scenario)
        cell_schedule = own.training.server.schedule
        expected = tuple(cell_schedule.factor(index, 12) for index in range(12))
        assert sweep.workload_over(12, own) == Workload(rates=expected)
        truth = simulated_runs.Truth(MinSep(10, 3, 2))
        found = Judgement(sweep, cell, own, truth, (), None).rows()[-1].rms_loss
        whole = loss(Identity(), MinSep(10, 3, 2), Workload(rates=expected))
        assert found == pytest.approx(whole.rms_loss)


@pytest.mark.slow
def test_a_matrix_ends_where_it_ends_and_says_so(tmp_path: Path) -> None:
    text = SETTINGS.replace(
        'rounds = [60], max_participations = [3, "most"], min_sep = [6, 20]',
        "rounds = [50, 60, 70], min_sep = [12]",
    )
    text = text.replace('x = "min_sep"', 'x = "rounds"')
    rows = {
        cell.get("rounds"): rows
        for cell, rows in ((c.cell, c.rows) for c in run_sweep(*read(tmp_path, text), HERE).cells)
    }
    assert rows[70][0].rms_loss is None
    assert "was made for" in rows[70][0].note or "more than" in rows[70][0].note
    assert all(row.rms_loss is not None for row in (*rows[50], *rows[60], *rows[70][1:4]))


@pytest.mark.slow
def test_a_cell_that_fails_is_a_row_with_its_reason_until_it_is_run_again(
    tmp_path: Path, small, monkeypatch, other_cache
) -> None:
    sweep, scenario = read(tmp_path, SIMULATED, small)
    whole = run_sweep(sweep, scenario, HERE)
    other_cache()

    def fails(only: int | None, scenario: Scenario) -> simulated_runs.Truth:
        if only in (None, scenario.seed):
            raise RunFailed("no space\non device")
        return simulated_runs.simulated(scenario)

    with monkeypatch.context() as patched:
        patched.setattr(stress_run, "simulated", named(partial(fails, None)))
        with pytest.raises(RunFailed, match="no space"):
            run_sweep(sweep, scenario, HERE)
        patched.setattr(stress_run, "simulated", named(partial(fails, 2)))
        found = run_sweep(sweep, scenario, HERE)
    notes = {cell.cell.get("seed"): {row.note for row in cell.rows} for cell in found.cells}
    assert notes == {1: {""}, 2: {"failed: no space on device"}}
    assert found.warnings == ("2 of 4 cells failed: no space on device; run again to repeat them",)
    assert run_sweep(sweep, scenario, HERE).to_json() == whole.to_json()


@pytest.mark.slow
def test_a_cell_that_cannot_be_judged_is_a_row_and_not_kept(
    tmp_path: Path, monkeypatch, other_cache
) -> None:
    sweep, scenario = read(tmp_path, QUICK)
    whole = run_sweep(sweep, scenario, HERE)
    other_cache()
    judged = Judgement.rows

    def fails(job: Judgement) -> tuple[Row, ...]:
        if job.truth.min_sep == 20:
            raise RunFailed("a node was lost")
        return judged(job)

    with monkeypatch.context() as patched:
        patched.setattr(Judgement, "rows", fails)
        found = run_sweep(sweep, scenario, HERE)
    assert [row.note for row in found.cells[1].rows] == ["failed: a node was lost"] * 2
    assert found.cells[0] == whole.cells[0]
    assert run_sweep(sweep, scenario, HERE).to_json() == whole.to_json()


def named(function: partial) -> partial:
    """The name is part of the key of what is kept."""
    function.__name__ = "simulated"  # pyright: ignore[reportAttributeAccessIssue]
    return function


@pytest.mark.slow
def test_crossings_are_where_the_better_one_changes(tmp_path: Path) -> None:
    """A small form of banded 400 against a BLT at n = 2000: better from its own bands on, worse below and near n / 2."""
    text = (
        SETTINGS.replace('[3, "most"]', "[3]")
        .replace("[6, 20]", str(list(range(8, 30))))
        .replace(', "truth", "distribution"', "")
    )
    result = run_sweep(*read(tmp_path, text), HERE)
    lines = {name: dict(points) for (name, _), points in result._lines().items()}
    banded, blt = lines[BANDED], lines[BLT_]
    found = [c for c in result.crossings() if {c.before, c.after} == {BANDED, BLT_}]
    signs = [(b, banded[b] < blt[b]) for b in sorted(banded)]
    assert [(c.low, c.high) for c in found] == [
        (a, b) for (a, was), (b, now) in itertools.pairwise(signs) if was != now
    ]
    for crossing in found:
        assert crossing.low <= crossing.at <= crossing.high
    assert found[0].after.startswith("banded")
    assert found[0].high <= 12


@pytest.mark.slow
def test_what_is_known_is_not_computed_again_and_what_is_damaged_is(
    tmp_path: Path, monkeypatch
) -> None:
    sweep, scenario = read(tmp_path, SETTINGS)
    first = run_sweep(sweep, scenario, HERE)
    computed: list[object] = []
    judged = stress_run.Judgement.rows
    monkeypatch.setattr(
        stress_run.Judgement, "rows", lambda job: computed.append(job) or judged(job)
    )
    assert run_sweep(sweep, scenario, HERE).to_json() == first.to_json()
    assert computed == []
    kept = sorted((tmp_path / "cache" / "fedray" / "stress").glob("*.json"))
    assert len(kept) == 4
    kept[0].write_text("[{")
    kept[1].unlink()
    assert run_sweep(sweep, scenario, HERE).to_json() == first.to_json()
    assert len(computed) == 2
    other = sweep.model_copy(update={"noise_multiplier": 3.0})
    run_sweep(other, scenario, HERE)
    assert len(computed) == 6


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on(tmp_path: Path, monkeypatch) -> None:
    sweep, scenario = read(tmp_path, SETTINGS)
    judged, calls = stress_run.Judgement.rows, itertools.count()

    def interrupted(job):
        if next(calls) == 3:
            raise KeyboardInterrupt
        return judged(job)

    monkeypatch.setattr(stress_run.Judgement, "rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(sweep, scenario, HERE)
    again: list[object] = []
    monkeypatch.setattr(stress_run.Judgement, "rows", lambda job: again.append(job) or judged(job))
    run_sweep(sweep, scenario, HERE)
    assert len(again) == 1


def test_mechanisms_that_only_touch_do_not_cross() -> None:
    assert (
        list(stress_run._crossings("a", [(1, 5), (2, 3), (3, 5)], "b", [(1, 4), (2, 3), (3, 4)]))
        == []
    )
    (found,) = stress_run._crossings("a", [(1, 5), (2, 3), (3, 3)], "b", [(1, 4), (2, 3), (3, 4)])
    assert (found.before, found.after, found.low, found.high, found.at) == ("b", "a", 1, 3, 2.0)


@pytest.mark.slow
def test_simulated_cells_have_the_truth_of_their_traces(tmp_path: Path, small) -> None:
    sweep, scenario = read(tmp_path, SIMULATED, small)
    assert scenario is not None
    result = run_sweep(sweep, scenario, HERE)
    assert len(result.cells) == 4
    for cell in result.cells:
        for row in cell.rows:
            assert row.rounds == 12
            assert row.days > 0
            assert (row.sensitivity_of, row.sensitivity_is_exact) == ("trace", True)
            assert row.sensitivity <= row.participation_sensitivity * (1 + 1e-12)
            assert row.rho == pytest.approx(
                row.sensitivity**2 / (2 * scenario.privacy.noise_multiplier**2)
            )
    kept = sorted((tmp_path / "cache" / "fedray" / "stress").glob("*.npz.zst"))
    assert len(kept) == 4
    kept[0].write_bytes(kept[0].read_bytes()[:100])
    kept[1].write_bytes(b"")
    assert run_sweep(sweep, scenario, HERE).to_json() == result.to_json()
    hours = {
        cell.cell.get("participation.timer_hours"): cell.rows[0].max_participations
        for cell in result.cells
    }
    assert hours[0.5] >= hours[1.0]


@pytest.mark.ray
@pytest.mark.slow
def test_ray_tasks_give_what_this_process_gives(
    tmp_path: Path, small, ray_cluster, other_cache
) -> None:
    """Two cells, which go to two workers."""
    sweep, scenario = read(tmp_path, SIMULATED.replace("seed = [1, 2]", "seed = [1]"), small)
    here = run_sweep(sweep, scenario, HERE)
    other_cache()
    assert run_sweep(sweep, scenario, Placement()).to_json() == here.to_json()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('x = "min_sep"', 'x = "rho"', "'rho' is not varied"),
        ("min_sep = [6, 20]", "min_sep = []", "a list of values is empty"),
        ("min_sep = [6, 20]", "min_sep = [0]", "whole number of at least 1"),
        ('x = "min_sep"', 'x = "min_sep"\nworkload = "schedule"', "a schedule needs a scenario"),
        ('x = "min_sep"', 'x = "min_sep"\nworkload = "sgd"', "'sgd' is not a workload"),
        ("min_sep = [6, 20]", "goal = [3]", "settings are rounds"),
        (
            "estimate = {rounds = 60, min_sep = 12, max_participations = 5}",
            "",
            "estimate is missing",
        ),
        ("max_participations = 5}", "max_participations = 9}", "more than ceil"),
        ('kind = "banded"', 'kind = "bandit"', "kind"),
        ("buffers = 2", "bands = 2", "bands=2 does not apply to blt"),
        (
            'kind = "tree-full"',
            'kind = "dense"\nmade_for = ["distribution"]',
            "dense is not optimised for several outcomes",
        ),
        (
            "noise_multiplier = 2.0",
            "noise_multiplier = 2.0\nnoise_per_report = 1.0",
            "give one of them",
        ),
        ("[60]", "[60", "not valid TOML"),
        ("noise_multiplier = 2.0", "target_epsilon = 0.0", "target_epsilon"),
        ("noise_multiplier = 2.0", "target_epsilon = inf", "target_epsilon"),
        (
            "noise_multiplier = 2.0",
            "noise_multiplier = 2.0\ntarget_epsilon = 4.0",
            "noise_multiplier and target_epsilon: give one of them",
        ),
        ('x = "min_sep"', 'x = "min_sep"\ny = "rms_error"', "add target_epsilon"),
        ('x = "min_sep"', 'x = "estimate.min_sep"', "is not varied"),
        ('x = "min_sep"', 'x = "min_sep"\nseeds = 3', "seeds: are of runs; add a scenario"),
        ("min_sep = 12,", "min_sep = 12, report_goal = 5,", "estimate.report_goal: the noise"),
        ("min_sep = 12,", "min_sep = [],", "estimate.min_sep"),
        ("min_sep = 12,", "min_sep = [12, 0],", "estimate.min_sep"),
        ("min_sep = 12,", "min_sep = [12, 12],", "a value stands twice"),
        ("min_sep = 12,", 'min_sep = "most",', "estimate.min_sep = 'most'"),
        ("min_sep = 12,", "min_sep = [12, 20],", "more than ceil"),
        ("[6, 20]", "[5000000]", "neither may exceed 4,194,304"),
        ("[6, 20]", "[true, 20]", "must be a whole number of at least 1"),
        ("noise_multiplier = 2.0", "noise_multiplier = 0.001", "noise_multiplier"),
        ('x = "min_sep"', 'x = "max_participations"', "can be no axis"),
    ],
)
def test_a_sweep_that_makes_no_sense_gets_one_line(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
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


@pytest.mark.slow
@pytest.mark.usefixtures("without_ray")
def test_the_command_writes_all_its_results(tmp_path: Path, fedray_command) -> None:
    read(
        tmp_path,
        SETTINGS.replace("[6, 20]", "[12, 20]").replace(', "truth", "distribution"', ""),
    )
    out = tmp_path / "out"
    figures = tmp_path / "figures"
    code, stdout, _ = fedray_command(
        "sweep",
        str(tmp_path / "sweep.toml"),
        "--out",
        str(out),
        "--figures",
        str(figures),
        "--json",
    )
    document = json.loads(stdout)
    assert code == 0
    assert json.loads((out / "results.json").read_text()) == document
    table = pq.read_table(out / "results.parquet").to_pylist()
    assert [row["rms_loss"] for row in table] == [row["rms_loss"] for row in document["rows"]]
    assert "settings" in (out / "report.html").read_text()
    assert {file.name for file in figures.iterdir()} == {
        "rms-loss-min-sep.svg",
        "rms-loss-min-sep.csv",
    }
    assert fedray_command("sweep", str(tmp_path / "sweep.toml"), "--out", str(out))[0] == 2
    assert "min-sep-fixed" in fedray_command("sweep")[1]
    assert "is no file and none of " in fedray_command("sweep", "nothing")[2]


def test_mechanisms_of_a_cell_are_compared_at_one_rho_and_sorted_by_their_error(
    tmp_path: Path,
) -> None:
    """Every row's multiplier gives the first mechanism's rho, at the sensitivity that its losses have too; the least error is first."""
    result = run_sweep(*read(tmp_path, FOR_THE_ESTIMATE), HERE)
    for cell in result.cells:
        common = cell.rows[0].rho
        for row in cell.rows:
            assert row.common_rho == common
            assert row.needed_noise_multiplier == pytest.approx(
                row.sensitivity / (2 * common) ** 0.5
            )
            assert row.rms_prefix_error == pytest.approx(row.rms_loss / (2 * common) ** 0.5)
            assert row.max_prefix_error == pytest.approx(row.max_loss / (2 * common) ** 0.5)
    by_cell = itertools.groupby(
        result.table(), key=lambda row: (row["cell.max_participations"], row["cell.min_sep"])
    )
    errors = [[row["rms_prefix_error"] for row in rows] for _, rows in by_cell]
    assert errors == [sorted(each) for each in errors]
    assert any(
        result.table()[place]["mechanism"] != row.mechanism
        for place, row in enumerate(result.cells[0].rows)
    )
    assert "cannot be compared" in sweep_page(result)
    assert "cannot be compared" in result.page()
    assert list(result.plot().svgs) == [each.name for each in sweep_figures(result)]


def test_a_blt_is_optimised_for_the_figure_that_is_plotted_and_the_legend_says_so(
    tmp_path: Path,
) -> None:
    text = (
        SETTINGS.replace(', "truth", "distribution"', ', "truth"')
        .replace('objective = "rms"\n', "")
        .replace("[6, 20]", "[12]")
        .replace('[3, "most"]', '["most"]')
    )
    for y, objective, name in (("rms_loss", "rms", "RmsLoss"), ("max_loss", "max", "MaxLoss")):
        result = run_sweep(
            *read(tmp_path, text.replace('x = "min_sep"', f'x = "min_sep"\ny = "{y}"')), HERE
        )
        made = optimize_mechanism(MechanismRequest("blt", MinSep(60, 12, 5), 2, None, objective))
        row = next(row for row in result.cells[0].rows if row.made_for == "truth")
        assert row.mechanism == f"blt 2 buffers, least {name} for the truth"
        assert getattr(row, y) == getattr(loss(made, MinSep(60, 12, 5)), y)
        (figure,) = sweep_figures(result)
        # A loss that all mechanisms share is only in the notes.
        assert "blt 2 buffers for the truth" in [each.name for each in figure.series]
        assert row.mechanism in sweep_page(result)
        banded = next(row for row in result.cells[0].rows if row.mechanism.startswith("banded"))
        assert banded.mechanism == f"banded 12 bands, least {name} for the estimate"


@pytest.mark.slow
def test_a_loss_of_the_file_or_of_the_option_is_that_of_mechanisms_regrets_and_order(
    tmp_path: Path, fedray_command, monkeypatch
) -> None:
    """One that is made for the other loss keeps it, and says so in its name."""
    monkeypatch.chdir(tmp_path)
    text = (
        SETTINGS.replace(', "truth", "distribution"', ', "truth"')
        .replace("[6, 20]", "[12]")
        .replace('[3, "most"]', '["most"]')
    )
    given = text.replace('x = "min_sep"', 'x = "min_sep"\ny = "regret"\nloss = "max"')
    result = run_sweep(*read(tmp_path, given), HERE)
    rows = result.cells[0].rows
    names = [row.mechanism for row in rows]
    assert names == [
        "banded 12 bands, least MaxLoss for the estimate",
        "blt 2 buffers, least RmsLoss for the estimate",
        "blt 2 buffers, least RmsLoss for the truth",
        "tree-full",
    ]
    (figure,) = sweep_figures(result)
    shown = [each.name for each in figure.series]
    assert [("least" in name) for name in shown] == [True, True, True, False]
    least = min(row.max_loss for row in rows)
    assert [row.regret for row in rows] == [row.max_loss / least - 1 for row in rows]
    order = [row["max_loss"] for row in result.table()]
    assert order == sorted(order)
    # The option has the plotted figure of its loss, and the same rows.
    (tmp_path / "s.toml").write_text(text)
    code, out, _ = fedray_command("sweep", "s.toml", "--loss", "max", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["sweep"]["y"], found["sweep"]["loss"]) == ("max_loss", "max")
    by_name = {row["mechanism"]: row["max_loss"] for row in found["rows"]}
    assert by_name == {row.mechanism: row.max_loss for row in rows}
    wrong = text.replace('x = "min_sep"', 'x = "min_sep"\ny = "rms_loss"\nloss = "max"')
    with pytest.raises(InputError, match="loss: is max, and y = 'rms_loss' is of another one"):
        read(tmp_path, wrong)
    code, _, err = fedray_command("sweep", "s.toml", "--loss", "mean")
    assert code == 2
    assert "--loss='mean' must be max or rms" in err


@pytest.mark.slow
def test_lines_break_where_nothing_was_computed_and_step_where_participations_do(
    tmp_path: Path,
) -> None:
    """A matrix of 60 rounds has no figure at 70: its line has a gap there, and none is drawn across."""
    text = FOR_THE_ESTIMATE.replace(
        'rounds = [60], max_participations = [3, "most"], min_sep = [6, 12, 20, 29]',
        "rounds = [50, 60, 70], max_participations = [3], min_sep = [12]",
    ).replace('x = "min_sep"', 'x = "rounds"')
    (figure,) = sweep_figures(run_sweep(*read(tmp_path, text), HERE))
    matrix = next(each for each in figure.series if each.name.startswith("banded"))
    assert (matrix.kind, matrix.x.tolist()) == ("line", [50, 60, 70])
    assert np.isfinite(matrix.y).tolist() == [True, True, False]
    (figure,) = sweep_figures(
        run_sweep(*read(tmp_path, FOR_THE_ESTIMATE.replace('[3, "most"]', '["most"]')), HERE)
    )
    assert {each.kind for each in figure.series} == {"steps"}
    assert figure.series[0].until.tolist() == [12, 20, 29, 29]


def test_a_line_of_another_value_has_only_what_was_computed(tmp_path: Path) -> None:
    text = FOR_THE_ESTIMATE.replace(
        'rounds = [60], max_participations = [3, "most"], min_sep = [6, 12, 20, 29]',
        "rounds = [50, 70], min_sep = [6, 12]",
    )
    (figure,) = sweep_figures(run_sweep(*read(tmp_path, text), HERE))
    matrices = [each for each in figure.series if each.name.startswith("banded")]
    assert [each.name.split(", ")[-1] for each in matrices] == ["rounds 50"]
    assert matrices[0].x.tolist() == [6, 12]


@pytest.mark.usefixtures("without_ray")
def test_a_changed_digit_in_the_cache_is_computed_anew_with_a_warning(
    tmp_path: Path, fedray_command
) -> None:
    """And so is an entry that is whole, but of another cell."""
    sweep, scenario = read(tmp_path, QUICK)
    first = run_sweep(sweep, scenario, HERE)
    assert first.warnings == ()
    one, other, *_ = sorted((tmp_path / "cache" / "fedray" / "stress").glob("*.json"))
    content = one.read_bytes()
    place = content.index(b'"epsilon": ') + len(b'"epsilon": ')
    one.write_bytes(content[:place] + b"1" + content[place:])
    other.write_bytes(content)
    again = run_sweep(sweep, scenario, HERE)
    assert again.to_json() == first.to_json()
    assert len(again.warnings) == 2
    assert any(one.name in warning for warning in again.warnings)  # in order of cells, not of names
    assert run_sweep(sweep, scenario, HERE).warnings == ()
    one.write_bytes(content[:-9])
    code, out, _ = fedray_command("sweep", str(tmp_path / "sweep.toml"))
    assert code == 0
    assert f"WARNING: cache entry {one.name} is not what" in " ".join(out.split())
    one.write_bytes(content[:-9])
    code, out, stderr = fedray_command("sweep", str(tmp_path / "sweep.toml"), "--json")
    assert f"fedray: warning: cache entry {one.name} is not what was written" in stderr
    assert json.loads(out)


@pytest.mark.usefixtures("without_ray")
def test_markup_in_a_sweep_s_name_is_printed_as_it_is(tmp_path: Path, fedray_command) -> None:
    name = "[/red]bold[bold]"
    read(tmp_path, QUICK.replace('"quick"', f'"{name}"'))
    code, stdout, _ = fedray_command("sweep", str(tmp_path / "sweep.toml"))
    assert code == 0
    assert name in stdout


def test_one_participation_has_no_min_sep(tmp_path: Path) -> None:
    result = run_sweep(*read(tmp_path, QUICK.replace("[3]", "[1, 3]")), HERE)
    assert [{row.min_sep for row in cell.rows} for cell in result.cells] == [
        {None},
        {None},
        {12},
        {20},
    ]
    text = QUICK.replace(
        "min_sep = [12, 20]", "population = [1200, 2000], report_goal = [100]"
    ).replace("[3]", "[1]")
    text = text.replace('x = "min_sep"', 'x = "population"')
    table, *_ = run_sweep(*read(tmp_path, text), HERE).tables()
    assert "b" not in table.columns  # the same in all rows: none
    assert "b none (k = 1)" in table.notes[0]
    assert all("60" not in row for row in table.rows)


def test_participations_are_plotted_once_for_all_mechanisms_and_kinds_have_their_look(
    tmp_path: Path,
) -> None:
    text = QUICK.replace("[3]", '["most"]')
    of_cells = run_sweep(*read(tmp_path, f'y = "max_participations"{text}'), HERE)
    (figure,) = sweep_figures(of_cells)
    assert figure.name == "max-participations-min-sep"
    (series,) = figure.series
    assert (series.mechanism, [*series.x], [*series.y]) == (None, [12, 20], [5, 3])
    (figure,) = sweep_figures(run_sweep(*read(tmp_path, QUICK), HERE))
    assert figure.name == "rms-loss-min-sep"
    assert [each.mechanism for each in figure.series] == ["tree-full", "identity"]


SPENT = """
name = "spent"
estimate = {rounds = 60, min_sep = [12, 20]}
target_epsilon = 4.0
x = "estimate.min_sep"
y = "epsilon"
vary = {min_sep = [10, 15]}
[[mechanisms]]
kind = "blt"
made_for = ["estimate", "truth"]
[[mechanisms]]
kind = "tree"
"""


GOALS = """
name = "in use"
estimate = {rounds = 60, min_sep = 12, report_goal = 50}
target_epsilon = 4.0
x = "report_goal"
y = "epsilon"
vary = {population = [600], report_goal = [25, 50, 100]}
[[mechanisms]]
kind = "blt"
buffers = 1
made_for = ["estimate", "truth"]
[[mechanisms]]
kind = "tree"
"""


def test_the_noise_of_a_mechanism_in_use_grows_with_the_report_goal(tmp_path: Path) -> None:
    """One signal-to-noise ratio at all goals; what is made for the truth spends the target."""
    rows = run_sweep(*read(tmp_path, GOALS), HERE).to_arrow().to_pylist()
    of_estimate = {
        name: {row["cell.report_goal"]: row for row in rows if row["mechanism"] == name}
        for name in {row["mechanism"] for row in rows if row["made_for"] == "estimate"}
    }
    assert len(of_estimate) == 2
    for own in of_estimate.values():
        z = own[50]["noise_multiplier"]
        assert own[25]["noise_multiplier"] == pytest.approx(z / 2, rel=1e-12)
        assert own[100]["noise_multiplier"] == pytest.approx(2 * z, rel=1e-12)
        # Min-sep is 12 here as estimated, so the target is spent.
        assert 3.999 < own[50]["epsilon"] <= 4.0
    others = [row for row in rows if row["made_for"] == "truth"]
    assert len(others) == 3
    assert all(3.999 < row["epsilon"] <= 4.0 for row in others)
    without = read(tmp_path, GOALS.replace(", report_goal = 50}", "}"))
    multipliers = {
        row["noise_multiplier"]
        for row in run_sweep(*without, HERE).table()
        if row["mechanism"].startswith("tree")
    }
    assert len(multipliers) == 1


def test_several_estimates_at_a_target_spend_what_a_stress_test_says(tmp_path: Path) -> None:
    result = run_sweep(*read(tmp_path, SPENT), HERE)
    given = {"rounds": 60, "estimated": [12, 20], "actual": [10, 15], "epsilon": 4.0}
    said = fedray.stress(**given, mechanisms=["blt", "tree"])
    expected = {(row.mechanism, row.estimated_min_sep, row.min_sep): row for row in said.rows}
    table = result.to_arrow().to_pylist()
    assert len(table) == 12
    for row in table:
        if row["made_for"] == "truth":
            assert 3.999 < row["epsilon"] <= 4.0
            continue
        kind = row["mechanism"].split()[0].rstrip(",")
        other = expected[kind, row["cell.estimate.min_sep"], row["cell.min_sep"]]
        for name in ("noise_multiplier", "epsilon", "rms_error", "max_loss"):
            assert row[name] == pytest.approx(getattr(other, name), rel=1e-9), name
    columns = result.tables()[0].columns
    assert columns[:3] == ("min_sep", "estimated min-sep", "mechanism")
    shown = {"z", "epsilon at z", "RMS error of prefix sums"}
    assert shown <= set(result.tables()[0].brief().columns)
    (figure,) = sweep_figures(result)
    assert figure.x.title == "estimated min-sep"
    assert [(each.text, each.at) for each in figure.marks if each.axis == "y"] == [("target", 4.0)]
    assert {each.mechanism for each in figure.series} == {"blt", "tree"}
    assert len({each.name for each in figure.series}) == len(figure.series) == 6
    one = run_sweep(*read(tmp_path, SPENT.replace("[10, 15]", "[10]")), HERE)
    (figure,) = sweep_figures(one)
    assert ("truth", 10.0) in [(each.text, each.at) for each in figure.marks]


@pytest.mark.slow
def test_runs_of_several_seeds_have_means_with_student_s_interval(tmp_path: Path, small) -> None:
    text = SIMULATED.replace(", seed = [1, 2]", "").replace("\nx =", "\nseeds = 3\nx =")
    result = run_sweep(*read(tmp_path, text, small), HERE)
    table = result.to_arrow().to_pylist()
    assert sorted(row["cell.seed"] for row in table) == sorted([1, 2, 3] * 6)
    (figure,) = sweep_figures(result)
    assert len(figure.series) == 3
    first = result.tables()[0]
    heads = ("timer_hours", "mechanism", "z", "runs", "mean observed epsilon", "sd")
    assert first.columns == (*heads, "95 % low", "95 % high")
    below = first.rendered("tex").partition(r"\bottomrule")[2]
    assert "Not for publication: observed epsilons and rhos" in below
    columns = result.tables()[1].columns
    assert {each for each in columns if re.match("(observed )?(rho|epsilon)", each)} == {
        "observed rho of the cell",
        "observed rho at z",
        "observed epsilon at z",
    }
    assert len(first.rows) == 6
    for hours, name, _, runs, *shown in first.rows:
        values = [
            row["epsilon"]
            for row in table
            if row["cell.participation.timer_hours"] == float(hours)
            and row["mechanism"].replace(", least RmsLoss", "") == name
        ]
        assert (runs, len(values)) == ("3", 3)
        mean, sd = np.mean(values), np.std(values, ddof=1)
        half = 4.302653 * sd / 3**0.5  # quantile 0.975 of t with 2 degrees
        expected = (mean, sd, mean - half, mean + half)
        if sd < 1e-12:
            assert shown[1:] == ["0", "-", "-"], "equal values have no interval"
            shown[2:] = [shown[0]] * 2
        assert [float(each) for each in shown] == pytest.approx(expected, abs=2e-4)
        (line,) = (each for each in figure.series if each.name == name)
        (place,) = np.flatnonzero(line.x == float(hours))
        drawn = line.y[place], line.low[place], line.high[place]
        assert drawn == pytest.approx((mean, mean - half, mean + half), rel=1e-6)
    of_cells = run_sweep(*read(tmp_path, text.replace('"epsilon"', '"days"'), small), HERE)
    assert [row[1:4] for row in of_cells.tables()[0].rows] == [("all", "-", "3")] * 2


SMALL_TREE = """
name = "small"
seed = 2023
[population]
devices = 20_000
[rounds]
count = 300
report_goal = 60
[training]
enabled = false
[privacy]
noise_multiplier = 7.0
mechanism = { kind = "tree" }
"""
TIMER_GOAL = """
name = "timer-goal"
scenario = "small.toml"
noise_per_report = 0.1
x = "participation.timer_hours"
y = "epsilon"
[vary]
"participation.timer_hours" = [24.0, 48.0, 96.0]
"rounds.report_goal" = [60, 120]
[[mechanisms]]
kind = "blt"
buffers = 3
made_for = ["truth"]
"""


@pytest.mark.slow
def test_cells_of_two_goals_have_errors_of_the_mean_and_one_mechanism_has_no_rival(
    tmp_path: Path,
) -> None:
    """z is 0.1 times the goal, so that the error of the mean is 0.1 RmsLoss / sensitivity."""
    (tmp_path / "small.toml").write_text(SMALL_TREE)
    result = run_sweep(*read(tmp_path, TIMER_GOAL), HERE)
    (table,) = result.tables()
    assert table.columns[:2] == ("timer_hours", "report_goal")
    assert not [each for each in table.columns if re.search("rho of|common|best|cell", each)]
    assert "cannot be compared" not in str(table.method)
    at = table.columns.index("RMS error of the mean")
    assert "RMS error of the mean" in table.brief().columns
    for row, shown, subject in zip(result.table(), table.rows, table.row_subjects, strict=True):
        error = 0.1 * row["rms_loss"] / row["sensitivity"]
        assert row["mean_rms_prefix_error"] == pytest.approx(error, rel=1e-9)
        assert float(shown[at]) == pytest.approx(error, rel=1e-4)
        hours, goal = row["cell.participation.timer_hours"], row["cell.rounds.report_goal"]
        assert row["rms_prefix_error"] == pytest.approx(goal * error, rel=1e-9)
        assert subject.condition == f"if timer_hours={hours} and report_goal={goal}"
    errors = [row["mean_rms_prefix_error"] for row in result.table()]
    assert max(errors) < 1.1 * min(errors), "goals do not make errors of the mean twice as large"
    ends = re.findall(r"([\d.]+) \(timer hours ([\d.]+), report goal (\d+)\)", result.headline)
    found = {(str(row["cell.participation.timer_hours"]), str(row["cell.rounds.report_goal"])) : row["epsilon"] for row in result.table()}  # fmt: skip
    assert [float(each) for each, *_ in ends] == pytest.approx(
        [min(found.values()), max(found.values())], rel=1e-4
    )
    for each, *cell in ends:
        assert found[tuple(cell)] == pytest.approx(float(each), rel=1e-4)


def made_up(*figures: Callable[[float, int], float], seeds: int = 1, **rhos: float) -> SweepResult:
    """A sweep over populations and timers whose mechanisms have these errors at a timer and a
    population."""
    sweep = Sweep(
        name="made up",
        scenario="small.toml",
        seeds=seeds,
        vary={
            "population.devices": (1000, 2000),
            "participation.timer_hours": (12.0, 24.0),
        },
        x="participation.timer_hours",
        y="rms_prefix_error",
        mechanisms=tuple(MechanismSpec(kind=kind) for kind in ("tree", "identity")[: len(figures)]),
    )

    def row(cell: Cell, name: str, figure: Callable[[float, int], float]) -> Row:
        hours, devices = cell.get("participation.timer_hours"), cell.get("population.devices")
        error = figure(hours, devices) + 0.01 * (cell.get("seed") or 0)
        return Row(
            name,
            "anything",
            *(12, 6, 2, 7.0),
            rms_prefix_error=error,
            common_rho=rhos.get(f"of_{devices}", 0.5),
            epsilon=error,
        )

    names = [spec.kind for spec in sweep.mechanisms]
    return SweepResult(
        sweep,
        tuple(
            CellResult(cell, tuple(map(partial(row, cell), names, figures)))
            for cell in sweep.cells()
        ),
    )


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_sweep_over_populations_and_timers_has_both_in_every_row_of_every_table(
    seeds: int,
) -> None:
    result = made_up(
        lambda hours, _: hours, lambda hours, devices: 19.0 - devices / 1e3, seeds=seeds
    )
    tables = {each.title: each for each in result.tables()}
    means = ["Mean RMS error of prefix sums at common rho over seeds"] if seeds > 1 else []
    assert [*tables] == [*means, "Cells", "Crossings"]
    for title, table in tables.items():
        assert table.subject.population == f"sweep made up of small.toml ({4 * seeds} cells)"
        assert not table.subject.condition
        keys = ["devices"] if title == "Crossings" else ["devices", "timer_hours"]
        assert list(table.brief().columns[: len(keys)]) == keys
        heads, *rows = csv.reader(io.StringIO(table.rendered("csv")))
        assert len(rows) == len(table.rows)
        for cells, subject in zip(rows, table.row_subjects, strict=True):
            row = dict(zip(heads, cells, strict=True))
            seed = [f"seed={row['seed']}"] if "seed" in row else []
            named = " and ".join([*(f"{key}={row[key]}" for key in keys), *seed])
            assert subject.condition == f"if {named}"
            assert f", if {named}, in " in row["of"]
    crossings = tables["Crossings"]
    assert crossings.rows[0][:5] == ("1000", "tree", "identity", "12", "24")
    assert [each.cell for each in result.crossings()] == [
        {"cell.population.devices": devices} for devices in (1000, 2000)
    ]
    runs = {title: table.subject.runs for title, table in tables.items()}
    assert runs["Cells"] == "one run each"
    assert seeds == 1 or runs[means[0]] == "3 runs each"
    (figure,) = result.figures()
    assert {each.text for each in figure.marks} == {"18, devices 1000", "17, devices 2000"}


def test_the_rho_of_errors_is_called_common_only_if_all_cells_have_it() -> None:
    by_hours = lambda hours, _: hours  # noqa: E731
    one = made_up(by_hours, by_hours)
    (cells,) = one.tables()
    assert "RMS error of prefix sums at common rho" in cells.brief().columns
    assert "observed common rho 0.5" in cells.notes[0]
    (cells,) = made_up(by_hours, by_hours, of_2000=0.7).tables()
    assert "RMS error of prefix sums at the cell's rho" in cells.brief().columns
    place = cells.brief().columns.index("observed rho of the cell")
    assert {row[place] for row in cells.brief().rows} == {"0.50000", "0.70000"}
    assert "compare errors only within a cell" in str(cells)
    alone = made_up(by_hours).tables()[0]
    assert "RMS error of prefix sums" in alone.columns
    assert not [each for each in alone.columns if "rho" in each]


BOUND = """
name = "bound"
estimate = {rounds = 12, min_sep = 4}
target_epsilon = 4.0
x = "min_sep"
y = "epsilon"
vary = {min_sep = [3, 4]}
[[mechanisms]]
kind = "dense"
[[mechanisms]]
kind = "tree"
"""


def test_noise_for_a_target_is_a_bound_if_the_planned_sensitivity_is_one(tmp_path: Path) -> None:
    result = run_sweep(*read(tmp_path, BOUND), HERE)
    (table,) = result.tables()
    place = table.brief().columns.index("z")
    shown = [cells[place] for cells in table.brief().rows]
    rows = result.table()
    assert [each["noise_multiplier_is_exact"] for each in rows].count(False) == 2
    for row, z in zip(rows, shown, strict=True):
        is_dense = row["mechanism"].startswith("dense")
        assert row["noise_multiplier_is_exact"] == (not is_dense)
        assert z.startswith("<= ") == is_dense
        assert row["noise_multiplier"] <= float(z.removeprefix("<= ")) * (1 + 1e-12)
    assert "A sensitivity or z with <= is an upper bound" in " ".join(str(table).split())


def test_keys_have_the_shortest_names_that_tell_them_apart() -> None:
    keys = ["training.server.learning_rate", "training.client.learning_rate", "privacy.clip_norm"]
    assert list(short_names(keys).values()) == [
        "server.learning_rate",
        "client.learning_rate",
        "clip_norm",
    ]
    assert short_names(["rounds.count", "count"]) == {
        "rounds.count": "rounds.count",
        "count": "count",
    }


STARVING = """
name = "starving"
scenario = "small.toml"
x = "rounds.max_days"
y = "epsilon"
vary = {"rounds.max_days" = [0.01, 9.0], seed = [1, 2]}
[[mechanisms]]
kind = "identity"
"""


@pytest.mark.usefixtures("without_ray")
def test_a_cell_that_starves_late_has_a_mark_and_a_cause_and_no_figures(
    tmp_path: Path, small
) -> None:
    lines = run_sweep(*read(tmp_path, STARVING, small), HERE)
    late = [row for each in lines.cells[:2] for row in each.rows]
    assert all(re.search(r"^starved: .* ran out with [1-9]\d* of 12", row.note) for row in late)
    assert {row.epsilon for row in late} == {row.min_sep for row in late} == {None}
    assert all(row.epsilon > 0 for each in lines.cells[2:] for row in each.rows)
    (figure,) = sweep_figures(lines)
    (means,) = figure.series
    assert np.isfinite(means.y).tolist() == [False, True]
    assert [(each.at, each.text) for each in figure.marks] == [(0.01, "starves")]
    assert lines.tables()[0].rows[0][3:6] == ("0 of 2", "-", "-")
    assert "has no figures, because its first rounds" in sweep_page(lines)


def test_a_sweep_of_which_no_cell_can_be_run_is_refused_with_the_arithmetic(
    tmp_path: Path, small
) -> None:
    text = STARVING.replace("[0.01, 9.0]", "[1.0, 2.0]")
    sweep, scenario = read(tmp_path, text, small)
    many = scenario.with_overrides("participation.max_participations=1", "rounds.count=200")
    with pytest.raises(Unsustainable, match=r"no cell .* 200 rounds .* need 40,000 contributions"):
        run_sweep(sweep, many, HERE)


def test_a_named_mechanism_needs_no_optimiser() -> None:
    assert not MechanismSpec(kind="blt-400").needs_optimising
    assert MechanismSpec(kind="blt").needs_optimising


@pytest.mark.slow
def test_a_sweep_over_devices_of_a_person_has_their_epsilon(small) -> None:
    sweep = Sweep(
        name="owners",
        vary={
            "population.owners.mean_devices": (1.0, 3.0),
            "population.owners.most_devices": (3,),
        },
        scenario="unused",
        x="population.owners.mean_devices",
        y="person_epsilon",
        noise_multiplier=7.0,
        mechanisms=(MechanismSpec(kind="tree"),),
    )
    found = run_sweep(sweep, small("rounds.count=30"), HERE)
    one, three = (row for each in found.cells for row in each.rows)
    assert one.person_epsilon == one.epsilon
    assert three.person_epsilon is not None
    assert three.epsilon is not None
    assert three.person_epsilon > three.epsilon
    assert "person_epsilon" in found.to_arrow().column_names
