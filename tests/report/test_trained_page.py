"""The page of one trained run: what it draws, and which options it has."""

import html
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest

import fedray
from fedray.base.rounding import up
from fedray.mechanisms import Tree
from fedray.report.files import drawn_figure
from fedray.report.plotly_json import BESIDE_PLOT, plotly_figure
from fedray.report.terminal import training_text
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


@pytest.mark.parametrize(
    ("held_out_devices", "said"),
    [(5, "9 of 40 examples of 5 devices"), (2**40, "9 of 40 examples of 5 devices"),
     (1000, "9 of 40 examples of 5 of 1,000 devices")],
)  # fmt: skip
def test_every_accuracy_says_its_examples_and_devices(
    made, script, held_out_devices: int, said: str
) -> None:
    """On the terminal, in the page's verdict, tile and figures, and as counts in JSON."""
    made.document["evaluated"] |= {"available": 40, "held_out_devices": held_out_devices}
    assert made.sample == said
    rows = dict(made.rows())
    trained = sum(math.prod(each) for each in made.document["parameters"].values())
    assert rows["parameters"] == f"{trained:,} trained; {made.bytes_per_upload:,} bytes up"
    made.document["frozen_parameters"] = 32_512
    assert dict(made.rows())["parameters"].startswith(f"{trained:,} trained, 32,512 frozen; ")
    assert rows["held-out accuracy"] == f"0.4000 share of words, standard error 0.0100, on {said}"
    page = trained_page(made)
    assert f"Accuracy 0.4000 on {said}, after 4 rounds." in page
    assert f"<b>0.4000</b><span>held-out accuracy, on {said}</span>" in page
    drawn = {each.name: each.caption for each in made.figures()}
    assert drawn["accuracy"].endswith(f"on {said}")
    # The loss on the devices is not of held-out data.
    assert "examples" not in drawn["train-loss"]
    counts = script(page, "results-data")["evaluated"]
    assert counts == {"examples": 9, "available": 40, "devices": 5} | {
        "held_out_devices": held_out_devices
    }


def test_the_norm_of_a_training_without_clipping_is_not_called_a_clip_norm(
    made, monkeypatch
) -> None:
    monkeypatch.setitem(made.metrics, "clip_norm", np.full(4, 512.0, np.float32))
    assert dict(made.rows())["clip norm"] == "512"
    privacy = made.document["scenario"]["privacy"]
    monkeypatch.setitem(privacy, "clipping", {"kind": "none"})
    assert dict(made.rows())["clip norm"] == "none; an update longer than 512 counts as zero"


def test_the_axis_of_an_accuracy_begins_near_the_data(made) -> None:
    """Accuracies of 0.2 and 0.4: on the page and in a file no axis begins at zero."""
    figure = next(each for each in trained_figures(made) if each.name == "accuracy")
    assert "rangemode" not in plotly_figure(figure)["layout"]["yaxis"]
    low, high = drawn_figure(figure, "wide").axes[0].get_ylim()
    assert 0.15 < low < 0.2 < 0.4 < high < 0.45


def test_a_long_title_of_the_y_axis_is_wrapped_to_the_height_of_its_plot(made) -> None:
    figure = next(each for each in trained_figures(made) if each.name == "accuracy")
    words = "Held-out distance of the outputs & targets (in units of <standard> deviations)"
    long = replace(figure, y=replace(figure.y, title=words))
    title = plotly_figure(long)["layout"]["yaxis"]["title"]["text"]
    lines = title.split("<br>")
    assert len(lines) == 3
    assert max(len(html.unescape(each)) for each in lines) <= BESIDE_PLOT
    assert html.unescape(" ".join(lines)) == words


def test_the_page_has_the_mechanism_the_scenario_and_the_figures_as_json(made, script) -> None:
    page = trained_page(made)
    assert "Mechanism: blt" in page
    assert "&lt;i&gt;x&lt;/i&gt;" in page
    assert "<i>x</i>" not in page
    assert "8 without examples" in page
    assert script(page, "results-data")["last_metrics"]["evaluation_accuracy"] == 0.4


def test_the_page_begins_with_the_epsilon_of_the_audit_and_the_last_metrics(
    trace_of, trained_of, small, tmp_path
) -> None:
    """With the mechanism and noise of the training, which are not those of the trace."""
    patterns = [[0, 2], [1, 3], [0], [1, 2], [3]]
    trace = trace_of(patterns, 4, small("participation.timer_hours=0.02"))
    noise = ('privacy.mechanism={kind="tree"}', "privacy.noise_multiplier=9.0")
    made = trained_of("model", trace, {"accuracy": 0.4}, *noise, knows_trace=True)
    used = fedray.audit_trace(trace, 9.0, mechanism=Tree()).mechanisms[0].enforced
    tile = f"<b>{up(used.epsilon)}</b><span>epsilon at delta 1e-10: enforced, "
    assert used.may_rest_on
    page = trained_page(made)
    assert page.index(tile) < page.index("<b>0.4000</b><span>held-out accuracy")
    assert "Guarantees of tree, noise multiplier 9" in page
    silent = trained_page(
        trained_of("s", trace, {"accuracy": 0.4}, "privacy.mechanism='none'", knows_trace=True)
    )
    assert "<span>epsilon" not in silent
    assert "No guarantee: no noise was added." in silent
    broken = trained_page(
        trained_of("b", trace_of(patterns, 4), {"accuracy": 0.4}, *noise, knows_trace=True)
    )
    assert ": observed, exact; not for publication; of a deployment whose rounds" in broken
    moved = tmp_path / "far" / "away" / "model"
    shutil.copytree(made.path, moved)
    lost = trained_page(fedray.TrainedRun.open(moved))
    assert "Epsilon is not known, because the trace of this training is not where it was." in lost


@pytest.mark.parametrize(
    ("clipped", "overrides", "words"),
    [
        (0, (), "Less than 0.1 % of the updates were clipped to privacy.clip_norm=1, to which"),
        (8, (), "100.0 % of the updates were clipped to privacy.clip_norm=1, so the model"),
        (4, (), ""),
        (0, ("privacy.mechanism='none'",), ""),
        (8, ("privacy.clipping={kind='per_layer'}",), ""),
    ],
)
def test_a_clip_norm_that_is_far_off_is_said_to_be(
    trace_of, trained_of, clipped: int, overrides: tuple[str, ...], words: str
) -> None:
    """Of the 8 updates of a round; its 2 devices without examples have none."""
    trace = trace_of([[0, 2], [1, 3]], 4)
    made = trained_of("model", trace, {"accuracy": 0.4}, *overrides, clipped=clipped)
    assert made.clipped_share == pytest.approx(clipped / 8)
    assert made.clipping.startswith(words)
    assert bool(made.clipping) == bool(words)
    assert made.clipping in "".join(str(each) for each in training_text("", made))
    assert made.clipping in trained_page(made)


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
