"""The page of one trained run: what it draws, and which options it has."""

import pytest

import fedray
from fedray.report.trained_page import trained_figures, trained_page


@pytest.fixture
def made(trace_of, trained_of):
    trace = trace_of([[0, 2], [1, 3], [0], [1, 2], [3]], 4)
    return trained_of("model", trace, {"accuracy": 0.4}, "description='<i>x</i>'")


def test_it_draws_metrics_clipped_updates_and_devices_left_out(made) -> None:
    figures = {figure.name: figure for figure in trained_figures(made)}
    assert list(figures) == ["accuracy", "train-loss", "clipped", "left-out"]
    assert figures["accuracy"].series[0].y.tolist() == pytest.approx([0.2, 0.4])
    assert figures["clipped"].series[0].y.tolist() == [0.0, 0.1, 0.2, 0.3]
    (left_out,) = figures["left-out"].series  # kinds that did not occur are not drawn
    assert (left_out.name, left_out.y.tolist()) == ("without examples", [2.0] * 4)


def test_the_page_has_the_mechanism_the_scenario_and_the_figures_as_json(made, script) -> None:
    page = trained_page(made)
    assert "Mechanism: blt" in page
    assert "&lt;i&gt;x&lt;/i&gt;" in page
    assert "<i>x</i>" not in page
    assert "8 without examples" in page
    assert script(page, "results-data")["last_metrics"]["evaluation_accuracy"] == 0.4


def test_report_of_a_trained_run_writes_its_page(made, fedray_command, tmp_path) -> None:
    code, out, _ = fedray_command("report", str(made.path), "--figures", str(tmp_path / "f"))
    assert code == 0
    assert out.split()[0] == str(made.path / "report.html")
    assert (tmp_path / "f" / "clipped.csv").read_text().startswith("series,Rounds,")
    assert fedray.TrainedRun.open(made.path).verify() is None  # the page harms nothing


def test_a_metric_that_is_not_finite_is_null_in_json(trace_of, trained_of) -> None:
    diverged = trained_of("model", trace_of([[0, 2], [1, 3]], 4), {"accuracy": float("nan")})
    assert diverged.to_json()["last_metrics"]["evaluation_accuracy"] is None
    assert "held-out accuracy" in trained_page(diverged)
