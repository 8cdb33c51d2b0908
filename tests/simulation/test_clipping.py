"""Adaptive clipping in whole runs: orders, metrics, pages, audits, and what a training survives."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedray.audit.auditing import audit_trace
from fedray.audit.privacy_statement import privacy_statement
from fedray.report.trained_page import _clip_norm, trained_figures, trained_page
from fedray.runs.learning import train
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun
from fedray.wire.messages import Progress

HERE = Placement(1, "in-process", checkpoint_seconds=0.0)
ADAPTIVE = (
    "rounds.count=9",
    "training.enabled=true",
    "training.cohort_sample=20",
    "privacy.clip_norm=0.05",
    "privacy.mechanism={kind='tree',restarts=[3,7]}",
    "privacy.clipping={kind='adaptive',learning_rate=1.5,count_noise=20.0,zero_above=1000.0}",
)


@pytest.fixture(scope="module")
def trace(small, tmp_path_factory) -> Trace:
    return simulate(small(*ADAPTIVE), HERE, tmp_path_factory.mktemp("clipping") / "t")


@pytest.fixture(scope="module")
def trained(trace: Trace, tmp_path_factory) -> TrainedRun:
    return train(trace, None, HERE, tmp_path_factory.mktemp("trained") / "m")


def test_devices_are_clipped_to_the_norm_that_the_last_restart_chose(trained: TrainedRun) -> None:
    """All first updates are longer than 0.05, so that the estimate rises, and with the norm fewer are clipped."""
    norms, estimates = trained.metrics["clip_norm"], trained.metrics["counted_norm"]
    assert norms.tolist() == [*[0.05] * 3, *[estimates[3]] * 4, *[estimates[7]] * 2]
    assert len(set(estimates.tolist())) == 9
    assert norms[-1] > 1.5 * norms[0]
    shares = trained.metrics["clipped_share"]
    assert shares[0] == 1.0
    assert not trained.metrics["zeroed"].any()


@pytest.mark.slow
def test_an_interrupted_training_goes_on_with_the_same_norms(
    trace: Trace, trained: TrainedRun, tmp_path: Path
) -> None:
    def interrupt(progress: Progress) -> None:
        if getattr(progress, "trained", 0) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(trace, None, HERE, tmp_path / "m", interrupt)
    resumed = train(trace, None, HERE, tmp_path / "m", is_resumed=True)
    assert (resumed.parameters() == trained.parameters()).all()
    for name in ("clip_norm", "counted_norm", "clipped_share"):
        assert (resumed.metrics[name] == trained.metrics[name]).all()


@pytest.mark.slow
def test_the_number_of_trainers_changes_no_norm(
    trace: Trace, trained: TrainedRun, tmp_path: Path
) -> None:
    other = train(trace, None, Placement(1, "in-process", trainers=3), tmp_path / "m")
    assert (other.metrics["counted_norm"] == trained.metrics["counted_norm"]).all()
    assert (other.parameters() == trained.parameters()).all()


def test_the_page_draws_the_norms_where_they_change(trained: TrainedRun) -> None:
    (figure,) = [each for each in trained_figures(trained) if each.name == "clip-norm"]
    clip_norm, estimate = figure.series
    assert clip_norm.y.tolist() == trained.metrics["clip_norm"].tolist()
    assert estimate.y.tolist() == trained.metrics["counted_norm"].tolist()
    page = trained_page(trained)
    assert "clipping learning rate" in page
    assert "Updates are clipped to the estimate" in page


def test_norms_that_change_without_counts_are_drawn_too(trained: TrainedRun) -> None:
    """Of a rule that follows no estimate; where the norm stays there is nothing to draw."""
    columns = trained.metrics
    uncounted = columns | {"counted_norm": np.full(columns["round"].size, np.nan)}
    figure = _clip_norm(uncounted)
    assert figure is not None
    (series,) = figure.series
    assert series.y.tolist() == columns["clip_norm"].tolist()
    assert _clip_norm(uncounted | {"clip_norm": np.ones(columns["round"].size)}) is None


def test_an_audit_says_what_the_counts_cost(trace: Trace, fedray_command) -> None:
    """rho is that of both releases, by the recorded patterns; the parts are told, and add up."""
    audit = audit_trace(trace)
    rho = audit.mechanisms[0].rho
    sums, counts = audit.to_json()["releases"]
    assert sums["rho"] + counts["rho"] == pytest.approx(rho, rel=1e-12)
    assert counts["noise_multiplier"] == 40.0
    assert sums["noise_multiplier"] == pytest.approx((7.0**-2 - 40.0**-2) ** -0.5, rel=1e-12)
    assert any("noise multiplier 7.1097 and counts 40;" in each for each in audit.assumptions)
    code, out, _ = fedray_command("audit", str(trace.path), "--verbose")
    assert code == 0
    assert "What was released (observed)" in out
    lines = [each.split() for each in out.splitlines()]
    # The sums have 7.10970...
    noise = {each[0]: each[-2] for each in lines if each[0:1] in (["sum"], ["count"], ["together"])}
    assert noise == {"sum": "7.1097", "count": "40", "together": "7"}
    lines = {each.what: each.says for each in privacy_statement(audit).lines}
    assert lines["Clip norm"] == "0.05 at first; then it follows a quantile of the updates' norms"


def test_figures_for_other_noise_than_the_runs_are_of_sums_alone(trace: Trace) -> None:
    """What another noise multiplier would leave for sums is not known; 60 is even more than the counts have."""
    for other in (5.0, 60.0):
        audit = audit_trace(trace, noise_multiplier=other)
        assert audit.releases == ()
        assert audit.mechanisms[0].rho == pytest.approx(
            audit.mechanisms[0].trace.value ** 2 / (2 * other**2)
        )


def test_without_adaptive_clipping_nothing_else_is_released(small, tmp_path: Path) -> None:
    plain = simulate(small("rounds.count=2"), HERE, tmp_path / "t")
    assert audit_trace(plain).to_json()["releases"] == []
    assert "clipping" not in plain.scenario["privacy"]


def test_each_layer_alone_is_trained_to_another_model(
    trace: Trace, trained: TrainedRun, small, tmp_path: Path, fedray_command
) -> None:
    per_layer = small(*ADAPTIVE[:-1], "privacy.clipping={kind='per_layer'}")
    other = train(trace, per_layer, HERE, tmp_path / "m")
    assert (other.metrics["clip_norm"] == 0.05).all()
    assert np.isnan(other.metrics["counted_norm"]).all()
    assert [each.name for each in trained_figures(other)].count("clip-norm") == 0
    assert (other.parameters() != trained.parameters()).any()
    code, out, err = fedray_command(
        "train",
        str(trace.path),
        "--set",
        "privacy.clipping={kind='per_layer',norms=[0.01]}",
        "--out",
        str(tmp_path / "n"),
    )
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "privacy.clipping.norms has 1 norms, but the model has" in err
    assert json.loads((tmp_path / "m" / "training.json").read_bytes())["version"] == 4
