"""Trained runs side by side: groups, paired differences, epsilon by the audit, and what is refused."""

import csv
import io
import json
import math
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

import fedray
from fedray.audit.calibration import calibrate_trace
from fedray.base.errors import InputError
from fedray.mechanisms import Tree
from fedray.report.plotly_json import plotly_figure
from fedray.report.trained_page import trained_page
from fedray.runs.noise_ahead import told_ahead
from fedray.scenario.privacy import NO_GUARANTEE
from fedray.studies.compare import audits_of, compare_runs, comparison_of
from fedray.studies.compare_page import comparison_figures, comparison_page
from fedray.studies.paired import MeanInterval, paired_difference, seeds_to_tell, with_error
from fedray.trace.learned_from import scenario_of_trained
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun

OF = " Evaluated on 9 of 9 examples of 5 devices."
TREE = 'privacy.mechanism={kind="tree"}'
PATTERNS = [[0, 2], [1, 3], [0], [1, 2], [3]]


@pytest.fixture
def trace(trace_of) -> Trace:
    return trace_of(PATTERNS, 4)


def keep(run: TrainedRun, *files: Path) -> None:
    """Gives a made-up run its files of code, as a trained run has them."""
    for file in files:
        code = file.read_bytes()
        (run.path / f"{sha256(code).hexdigest()}.py").write_bytes(code)


@pytest.fixture
def runs(trace: Trace, trained_of) -> list[TrainedRun]:
    """Two settings with seeds 1, 2, 3 and 2, 3, 4: tree is better by 0.1, 0.12."""
    finals = {
        "blt-1": (0.50, ["training.seed=1"]),
        "blt-2": (0.52, ["training.seed=2"]),
        "blt-3": (0.70, ["training.seed=3"]),
        "tree-2": (0.62, ["training.seed=2", TREE]),
        "tree-3": (0.82, ["training.seed=3", TREE]),
        "tree-4": (0.10, ["training.seed=4", TREE]),
    }
    return [
        trained_of(name, trace, {"accuracy": final}, *overrides)
        for name, (final, overrides) in finals.items()
    ]


def test_runs_that_differ_in_the_seed_alone_are_a_group_and_pairs_share_seeds(runs, trace) -> None:
    found = fedray.compare_runs(runs, trace)
    assert [(group.label, group.seeds) for group in found.groups] == [
        ("blt", [1, 2, 3]),
        ("tree", [2, 3, 4]),
    ]
    blt, tree = found.groups
    assert found.mean(blt, "accuracy").mean == pytest.approx((0.5 + 0.52 + 0.7) / 3)
    difference = found.difference(tree, "accuracy")
    assert difference.count == 2  # seeds 2 and 3
    assert difference.mean == pytest.approx(0.11)
    # Student's quantile with one degree of freedom, times the standard error of 0.1 and 0.12.
    assert (difference.high - difference.low) / 2 == pytest.approx(12.7062 * 0.01, rel=1e-4)
    assert found.differing_keys[0].startswith("privacy.mechanism.")
    assert "training.seed" not in found.differing_keys
    assert ("privacy.mechanism.completion", "-", "false") in found.tables()[-1].rows


def test_epsilon_is_that_of_the_audit_at_one_delta(runs, trace) -> None:
    found = fedray.compare_runs(runs, trace, delta=1e-6)
    for group in found.groups:
        privacy = fedray.Scenario.from_tables(
            next(iter(group.runs.values())).document["scenario"]
        ).privacy
        audit = fedray.audit_trace(trace, privacy.noise_multiplier, 1e-6, privacy.mechanism)
        used = audit.mechanisms[0]
        assert group.epsilon == {
            "observed": used.observed.epsilon,
            "enforced": used.enforced.epsilon,
        }
    assert found.assumptions


def test_unequal_epsilon_is_warned_of_and_equal_epsilon_is_in_the_answer(trace, trained_of) -> None:
    """Trained with the noise of the same observed epsilon, the warning is that no rule ensures it."""
    first = trained_of("blt", trace, {"accuracy": 0.5})
    other = trained_of("tree", trace, {"accuracy": 0.6}, TREE)
    found = fedray.compare_runs([first, other], trace)
    assert found.basis == ""
    assert re.match(
        r"Epsilon differs by more than 1 % \(blt [\d.]+, tree [\d.]+\)", found.warnings[0]
    )
    assert "epsilon" not in found.answer
    blt = found.groups[0].epsilon["observed"]
    z = calibrate_trace(trace, epsilon=blt, mechanism=Tree()).observed.noise_multiplier
    again = trained_of("equal", trace, {"accuracy": 0.6}, TREE, f"privacy.noise_multiplier={z}")
    found = fedray.compare_runs([first, again], trace)
    assert found.basis == "observed"
    (observed,) = found.warnings
    assert "(observed)" in observed
    assert "no guarantee for a deployment" in observed
    shown = re.search(r"at epsilon ([\d.]+) \(observed\)", found.answer)
    assert blt <= float(shown[1]) <= 1.01 * blt
    assert fedray.compare_runs([first.path, other.path]).warnings == ()


def test_runs_of_equal_enforced_epsilon_are_not_called_unequal(trace_of, small, trained_of) -> None:
    """Noise that was calibrated to what the rules enforce gives other observed rhos, as devices take part less than they may."""
    trace = trace_of(PATTERNS, 4, small("participation.timer_hours=0.02"))
    z = fedray.Scenario.from_tables(trace.scenario).privacy.noise_multiplier
    of_blt, of_tree = (
        fedray.audit_trace(trace, mechanism=each).mechanisms[0].enforced.mu
        for each in (None, Tree())
    )
    calibrated = z * of_tree / of_blt
    first = trained_of("blt", trace, {"accuracy": 0.5})
    noise = f"privacy.noise_multiplier={calibrated}"
    other = trained_of("tree", trace, {"accuracy": 0.6}, TREE, noise)
    found = fedray.compare_runs([first, other], trace)
    blt, tree = found.groups
    assert abs(tree.rho["observed"] / blt.rho["observed"] - 1) > 0.01
    assert (found.basis, found.warnings) == ("enforced", ())


def test_settings_are_shown_with_every_digit_and_a_difference_is_called_one(
    trace, trained_of
) -> None:
    """Rounded, a theta of 0.9999999999999 is 1, which no mechanism has."""
    theta = 'privacy.mechanism={{kind="blt", theta=[{}], omega=[0.1]}}'
    first = trained_of("a", trace, {"accuracy": 0.4}, theta.format("0.9999999999999"))
    other = trained_of("b", trace, {"accuracy": 0.4}, theta.format("0.99999999999"))
    means, _, settings = fedray.compare_runs([first, other]).tables()
    rows = {row[0]: row[1:] for row in settings.rows}
    assert rows["privacy.mechanism.theta"] == ("0.9999999999999", "0.99999999999")
    assert means.columns[-1] == "difference from blt"


@pytest.mark.parametrize(
    ("difference", "errors", "is_told_apart"),
    [
        (0.10, (0.05, 0.05), False),  # 1.96 x 0.0707 = 0.139
        (0.15, (0.05, 0.05), True),
        (0.15, (0.01, 0.10), False),
        (-0.15, (0.05, 0.05), True),
        (0.10, (math.nan, 0.01), False),  # a single held-out device has no error
        (0.0, (0.0, 0.0), False),
    ],
)
def test_a_difference_within_the_error_of_the_evaluation_is_warned_of(
    trace, trained_of, difference: float, errors: tuple[float, float], is_told_apart: bool
) -> None:
    """Of a single seed: 1.96 standard errors of two independent evaluations."""
    first = trained_of("a", trace, {"accuracy": 0.5}, error=errors[0])
    other = trained_of("b", trace, {"accuracy": 0.5 + difference}, TREE, error=errors[1])
    found = fedray.compare_runs([first, other])
    best, second = ("tree", "blt") if difference > 0 else ("blt", "tree")
    assert found.answer.startswith(f"{best} is better than {second} (") == is_told_apart
    assert ("cannot be told apart" in found.answer) != is_told_apart
    assert bool(found.warnings) != is_told_apart
    words = f"The held-out set is too small to tell {best} and {second} apart"
    assert is_told_apart or found.warnings[0].startswith(words)


@pytest.mark.parametrize(
    ("override", "other", "difference", "says"),
    [
        (TREE, "tree", -0.3, "blt is better than tree (30.0 ± 15.8 points)"),
        (TREE, "tree", -0.15, None),  # 2.2414 standard errors of 0.0707, for two metrics: 0.158
        (
            "privacy.mechanism=none",
            "no noise",
            0.3,
            "no noise is better than blt (30.0 ± 15.8 points)",
        ),
        (
            "privacy.mechanism=none",
            "no noise",
            -0.3,
            "blt is better than no noise (30.0 ± 15.8 points)",
        ),
    ],
)
def test_a_loss_of_one_seed_tells_apart_what_the_accuracy_does_not(
    trace, trained_of, override: str, other: str, difference: float, says: str | None
) -> None:
    """The first line has the errors of both evaluations, as one of accuracy has."""
    made = [
        trained_of("a", trace, {"accuracy": 0.51, "loss": 1.0}, error=0.05),
        trained_of("b", trace, {"accuracy": 0.5, "loss": 1.0 - difference}, override, error=0.05),
    ]
    answer = fedray.compare_runs(made).answer
    assert answer.startswith(
        f"blt cannot be told apart from {other} (which is 1.0 ± 13.9 points of accuracy worse)"
    )
    assert ("but by loss" in answer) == (says is not None)
    assert says is None or f"), but by loss {says}" in answer
    assert "of one seed, within the errors of two evaluations" in answer


def test_several_seeds_are_judged_by_their_paired_differences(
    runs, trace, trained_of, numbers_in
) -> None:
    """Tree is better by 0.1 and 0.12: Student's interval of two pairs holds zero; a third of 0.11 takes it away from zero."""
    # Tree has the smaller mean, of other seeds: pairs decide what can be told apart.
    found = fedray.compare_runs(runs)
    assert found.answer.startswith("blt cannot be told apart from tree (")
    assert "(which is 11.0 points of accuracy better; 2 seeds are too few to tell)" in found.answer
    assert numbers_in(found.answer) == [11.0, 2, 0.57, 0.27, *numbers_in(OF)]
    more = [
        trained_of("tree-1", trace, {"accuracy": 0.61}, "training.seed=1", TREE),
        trained_of("blt-4", trace, {"accuracy": -0.01}, "training.seed=4"),
    ]
    assert fedray.compare_runs([*runs, *more]).answer.startswith("tree is better than blt (")


def test_each_metric_has_a_figure_of_differences_that_tells_groups_apart(trace, trained_of) -> None:
    """Losses differ by 0.10, 0.12, 0.11 of paired seeds (t = 19), accuracies by 0.1, -0.1, 0."""
    made = []
    for name, losses, accuracies in (
        ("blt", (0.5, 0.7, 0.9), (0.5, 0.5, 0.5)),
        ("tree", (0.6, 0.82, 1.01), (0.6, 0.4, 0.5)),
    ):
        overrides = () if name == "blt" else (TREE,)
        for seed, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=True)):
            finals = {"loss": loss, "accuracy": accuracy}
            made.append(
                trained_of(f"{name}-{seed}", trace, finals, f"training.seed={seed}", *overrides)
            )
    found = fedray.compare_runs(made)
    # An accuracy of 0.5 is the mean of both, so only the loss tells them apart.
    assert "blt cannot be told apart from tree (" in found.answer
    assert "), but by loss blt is better than tree (11.0 ± 3.6 points). " in found.answer
    figures = {each.name: each for each in comparison_figures(found)}
    (loss,) = figures["loss-differences"].series
    # One pair and two metrics: Student's quantile at 97.5 % with two degrees of freedom is 6.2053.
    # In points, as the unit of both metrics is a share here.
    assert (loss.x, loss.low) == (pytest.approx([11.0]), pytest.approx([11.0 - 3.58], abs=0.01))
    (accuracy,) = figures["accuracy-differences"].series
    assert accuracy.low[0] < 0 < accuracy.high[0]


@pytest.mark.parametrize("others", [1, 2, 5])
def test_the_best_of_many_is_told_apart_by_the_quantile_of_all_pairs(
    trace, trained_of, others: int
) -> None:
    """Differences of 0.1, 0.12, 0.2 from the best: t = 4.6 is beyond 4.30 (95 %, 2 degrees), not beyond 7.65 (98.3 %)."""
    made = []
    for place, gain in enumerate([0.0] + [0.1] * others):
        noise = f"privacy.noise_multiplier={7 + place}"
        for seed, more in enumerate((0.0, 0.02, 0.1)):
            final = {"accuracy": 0.5 + (0.0 if gain == 0.0 else -gain - more)}
            made.append(trained_of(f"{place}-{seed}", trace, final, f"training.seed={seed}", noise))
    found = fedray.compare_runs(made)
    best, second = (each.finals("accuracy") for each in found.ranked[:2])
    assert paired_difference(second, best).is_from_zero
    assert ("cannot be told apart" in found.answer) == (others > 1)
    # The interval that is shown is the one that decides.
    shown = found.difference(found.ranked[1], "accuracy")
    assert shown.is_from_zero == (others == 1)
    half = (shown.high - shown.low) / 2
    assert f"14.0 ± {100 * half:.1f} points of accuracy" in found.answer
    assert with_error(-0.14, half) in str(found.tables()[0])
    notes = " ".join(note for table in found.tables() for note in table.method)
    assert notes.count("on this trace") == 1
    # Terminals and LaTeX say what the intervals of differences hold for, and so does the figure.
    pairs = math.comb(others + 1, 2)
    together = f"an interval at 95 % for {pairs} pairs of settings together"
    if pairs == 1:
        together = "of a difference, half of a 95 % interval"
    below = found.tables()[0].rendered("tex").partition(r"\bottomrule")[2]
    shown = " ".join(str(found.tables()[0]).split())
    assert together in shown
    assert together.replace("%", r"\%") in below
    assert (f"{100 - 5 / pairs:.2f} % each, Bonferroni" in shown) == (pairs > 1)
    assert (together in comparison_figures(found)[0].note) == (pairs > 1)


def test_a_single_seed_of_many_settings_has_the_quantile_of_all_pairs(
    trace, trained_of, numbers_in
) -> None:
    """Differences of 2.1 standard errors: beyond 1.96, not beyond 2.39 (three pairs)."""
    finals = (0.5, 0.5 - 2.1 * 0.05 * math.sqrt(2), 0.1)
    made = [
        trained_of(f"{z}", trace, {"accuracy": final}, f"privacy.noise_multiplier={z}", error=0.05)
        for z, final in zip((1, 2, 3), finals, strict=True)
    ]
    assert fedray.compare_runs(made[:2]).answer.startswith("blt z 1 is better than blt z 2 (14.8 ±")
    found = fedray.compare_runs(made)
    # An interval of 2.39 x 0.0707, by which z 2 cannot be told apart.
    assert "blt z 1 is better than blt z 3 (" in found.answer
    assert "blt z 1 cannot be told apart from blt z 2 (" in found.answer
    pairs = [1, 3, 40.0, 16.9], [1, 2, 14.8, 16.9]
    assert numbers_in(found.answer)[:10] == [*pairs[0], *pairs[1], 1, 0.5]
    assert "below 2.39 standard errors" in found.warnings[0]


def test_intervals_of_shares_stay_among_shares(trace, trained_of, numbers_in) -> None:
    """Differences of -0.9, 0.8, 0.7: Student's interval is ± 2.37, of which ± 1 is possible."""
    finals = {"tree": (0.05, 0.9, 0.9), "blt": (0.95, 0.1, 0.2)}
    made = [
        trained_of(f"{name}-{seed}", trace, {"accuracy": final}, f"training.seed={seed}", *keys)
        for name, keys in (("tree", (TREE,)), ("blt", ()))
        for seed, final in enumerate(finals[name])
    ]
    found = fedray.compare_runs(made)
    tree, blt = found.groups
    assert found.ranked[0] is tree
    difference = found.difference(blt, "accuracy")
    assert (difference.mean, difference.low, difference.high) == (pytest.approx(-0.2), -1.0, 1.0)
    assert found.deciding(blt) == difference
    mean = found.mean(blt, "accuracy")
    assert (mean.low, mean.high) == (0.0, 1.0)
    assert "blt (which is 20.0 [-100.0, 100.0] points of accuracy worse)" in found.answer
    rows = {row[0]: row[1:] for row in found.tables()[0].rows}
    assert rows["blt"][0] == "0.4167 [0.0000, 1.0000]"
    assert rows["blt"][-1] == "-0.2000 [-1.0000, +1.0000]"
    assert all(abs(each) <= 100 for each in numbers_in(found.warnings[0])[1:2])
    (series,) = comparison_figures(found)[0].series
    assert (*series.low, *series.high) == (-100.0, 100.0)


def test_a_comparison_says_its_trace_its_trainings_and_their_seeds(runs, trace) -> None:
    """In captions if all settings share them, else in columns."""
    same = fedray.compare_runs([runs[1], runs[2], runs[3], runs[4]], trace)
    digest = trace.digest[:12]
    population = f"small (20,000 devices), trace {digest}"
    for table in same.tables():
        assert str(table.subject).startswith(f"of {population}, ")
        assert table.subject.runs == "2 trainings each (seeds 2 to 3)"
    assert "trainings" not in same.tables()[0].columns
    assert [each.condition for each in same.tables()[0].row_subjects] == ["blt", "tree"]
    privacy = next(each for each in same.tables() if each.title.startswith("Privacy"))
    assert privacy.subject.unit == "device"
    other = fedray.compare_runs([runs[0], runs[2], runs[3], runs[4], runs[5]], trace, reach=0.3)
    means, reach, *_ = other.tables()
    assert [row[:2] for row in means.rows] == [
        ("blt", "2 trainings (seeds 1, 3)"),
        ("tree", "3 trainings (seeds 2 to 4)"),
    ]
    assert other.of.runs == "5 trainings in all"
    heads, *lines = csv.reader(io.StringIO(reach.rendered("csv")))
    assert heads[:2] == ["setting", "seed"]
    for line in lines:
        said = f"of {population}, {line[0]} and seed={line[1]}, in one training each, per device, on 9 of 9 examples of 5 devices"
        assert line[-1] == said
    for table in other.tables():
        assert digest in table.caption


def test_equal_privacy_stands_in_the_caption_of_a_metric(trace, trained_of) -> None:
    made = [
        trained_of("blt", trace, {"accuracy": 0.5}),
        trained_of("none", trace, {"accuracy": 0.7}, "privacy.mechanism=none"),
    ]
    found = fedray.compare_runs(made, trace)
    assert re.match(
        r"Accuracy \(share of words\) of the model next word on the data language, "
        r"64 of 200 reports of a round train, at epsilon [\d.]+ \(observed\) or without noise: higher is",
        found.tables()[0].title,
    )
    assert fedray.compare_runs(made).tables()[0].title.endswith("train: higher is better")


def test_a_further_metric_has_the_quantile_of_all_metrics(trace, trained_of) -> None:
    """Losses differ by 0.10, 0.14, 0.19: t = 5.5 is beyond 4.30 (95 %, 2 degrees), not beyond 6.21 (97.5 %)."""
    made = []
    for name, losses, overrides in (
        ("blt", (0.5, 0.7, 0.9), ()),
        ("tree", (0.6, 0.84, 1.09), (TREE,)),
    ):
        for seed, loss in enumerate(losses):
            finals = {"loss": loss, "accuracy": 0.5}
            made.append(
                trained_of(f"{name}-{seed}", trace, finals, f"training.seed={seed}", *overrides)
            )
    found = fedray.compare_runs(made)
    blt, tree = (each.finals("loss") for each in found.groups)
    assert paired_difference(tree, blt).is_from_zero
    assert not found.deciding(found.groups[1], metric=found.metrics[0]).is_from_zero


def test_the_cost_of_privacy_is_a_paired_difference_and_tables_compare_with_the_best(
    trace, trained_of, numbers_in
) -> None:
    """Tree is the best with noise; without noise 0.3, 0.32 more, whose Student's interval is 12.7 x 0.01."""
    silent = "privacy.mechanism=none"
    finals = {"blt": (0.4, 0.4), "tree": (0.5, 0.5), "none": (0.8, 0.82), "low": (0.7, 0.7)}
    overrides = {"blt": (), "tree": (TREE,), "none": (silent,)}
    overrides["low"] = (silent, "privacy.clip_norm=0.5")
    runs = {
        name: [
            trained_of(f"{name}-{seed}", trace, {"accuracy": final}, f"training.seed={seed}", *keys)
            for seed, final in enumerate(finals[name])
        ]
        for name, keys in overrides.items()
    }
    found = fedray.compare_runs([*runs["blt"], *runs["tree"], *runs["none"]])
    assert "tree is better than blt (" in found.answer
    assert numbers_in(found.answer)[:2] == [31.0, 12.7]
    # The figure has the same intervals, in points, and its rows have the settings' names.
    (rows,) = comparison_figures(found)[0].series
    assert rows.labels == ("blt", "none")
    assert rows.x == pytest.approx([-10.0, 31.0])
    assert rows.high[1] - rows.x[1] == pytest.approx(12.7062, rel=1e-4)
    drawn = plotly_figure(comparison_figures(found)[0])
    assert drawn["layout"]["yaxis"]["ticktext"] == ["blt", "none"]
    assert drawn["data"][0]["error_x"]["array"][1] == pytest.approx(12.7062, rel=1e-4)
    means = found.tables()[0]
    assert means.columns[-1] == "difference from tree"
    assert [row[-1] for row in means.rows] == ["-0.1000", "", "+0.31 ± 0.13"]
    assert [each.differences is None for each in found.compared] == [False, True, False]
    answer = fedray.compare_runs([run for each in runs.values() for run in each]).answer
    assert "; tree loses 20.0 to no noise clip norm 0.5; " in answer


def test_clip_norms_that_are_far_off_are_warned_of_once_for_each_setting(
    trace, trained_of, fedray_command, numbers_in
) -> None:
    made = [
        trained_of(f"{z}-{seed}", trace, {"accuracy": 0.5 + z / 10}, *keys, clipped=clipped)
        for z, clipped in ((1, 0), (2, 8), (3, 0), (4, 4))
        for seed in (1, 2)
        for keys in [(f"training.seed={seed}", f"privacy.noise_multiplier={z}")]
    ]
    found = fedray.compare_runs(made)
    # Settings, shares of clipped updates in per cent, and the clip norm.
    too_high, too_low = found.warnings[-2:]
    assert numbers_in(too_high) == [1, 3, 0.1, 1]
    assert numbers_in(too_low) == [2, 100.0, 1]
    assert ("lower" in too_high, "higher" in too_low) == (True, True)
    assert "blt z 2: 100.0 % of the updates" in comparison_page(found)
    out = fedray_command("compare", *[str(each.path) for each in made])[1]
    assert "WARNING: blt z 1, blt z 3: Less" in out


def test_settings_on_different_held_out_data_say_so_in_each_row(trace, trained_of) -> None:
    made = [
        trained_of("a", trace, {"accuracy": 0.5}),
        trained_of("b", trace, {"accuracy": 0.6}, "training.evaluation_examples=4"),
    ]
    made[1].document["evaluated"] = {**made[1].document["evaluated"], "available": 40}
    found = fedray.compare_runs(made)
    both = ["9 of 9 examples of 5 devices", "9 of 40 examples of 5 devices"]
    assert found.answer.endswith(f" Evaluated on {both[0]} or {both[1]}.")
    means = found.tables()[0]
    assert [row[means.columns.index("evaluated on")] for row in means.rows] == both
    assert [each.sample for each in means.row_subjects] == both
    assert means.mixed == ()
    runs = [run for group in found.to_json()["groups"] for run in group["runs"]]
    assert [each["evaluated"]["available"] for each in runs] == [9, 40]
    # Of one kind of data, the caption says it.
    alike = fedray.compare_runs([made[0], trained_of("c", trace, {"accuracy": 0.6}, TREE)])
    assert "on 9 of 9 examples of 5 devices" in alike.tables()[0].caption
    assert "evaluated on" not in alike.tables()[0].columns
    assert all("on 9 of 9 examples" in each.caption for each in alike.figures())


def test_noise_that_is_too_much_for_learning_is_warned_of(trace, trained_of, small) -> None:
    made = [
        trained_of(f"{z}", trace, {"accuracy": 0.5}, f"privacy.noise_multiplier={z}")
        for z in (1, 2)
    ]
    much = told_ahead(2.0, 100, small("rounds.report_goal=10"))
    made[0].document["noise_warning"], made[1].document["noise_warning"] = "", much
    warnings = fedray.compare_runs(made).warnings
    assert f"blt z 2: {much}" in warnings
    assert "blt z 1: The noise" not in " ".join(warnings)
    assert made[1].warnings[0] == made[1].to_json()["notes"][0] == much


def test_nothing_is_best_if_every_setting_diverged(trace, trained_of) -> None:
    made = [
        trained_of(f"{z}", trace, {"accuracy": math.nan}, f"privacy.noise_multiplier={z}")
        for z in (1, 2)
    ]
    found = fedray.compare_runs(made)
    assert found.answer == f"No setting converged in every training, so none is best.{OF}"
    assert not found.warnings
    ceiling = trained_of("n", trace, {"accuracy": 0.7}, "privacy.mechanism=none")
    assert fedray.compare_runs([*made, ceiling]).answer.endswith(f" none: accuracy 0.7000.{OF}")


def test_training_without_noise_that_diverged_is_said_and_is_no_loss(trace, trained_of) -> None:
    made = [
        trained_of("blt", trace, {"accuracy": 0.5}),
        trained_of("none", trace, {"accuracy": math.nan}, "privacy.mechanism=none"),
    ]
    assert fedray.compare_runs(made).answer.startswith(
        "blt is better than no noise (diverged). blt has accuracy 0.5000"
    )
    more = trained_of("tree", trace, {"accuracy": 0.2}, TREE)
    said = "blt is better than no noise (diverged), tree (30.0 ± 2.8 points of accuracy). blt has"
    assert fedray.compare_runs([*made, more]).answer.startswith(said)


def test_long_lists_are_shown_by_their_length(trace, trained_of) -> None:
    many = ", ".join(f"{0.5 + 0.005 * index:.4f}" for index in range(92))
    band = f"privacy.mechanism={{kind='toeplitz', coefficients=[1.0, {many}]}}"
    made = [
        trained_of("a", trace, {"accuracy": 0.4}),
        trained_of("b", trace, {"accuracy": 0.5}, band),
    ]
    found = fedray.compare_runs(made)
    rows = {row[0]: row[1:] for row in found.tables()[-1].rows}
    assert rows["privacy.mechanism.coefficients"] == ("-", "93 coefficients")
    assert "0.8750" not in found._repr_html_()
    assert [group.label for group in found.groups] == ["blt", "toeplitz"]


def test_without_the_trace_epsilon_is_not_known_and_the_rest_is(runs) -> None:
    found = fedray.compare_runs([run.path for run in runs])
    assert [group.epsilon for group in found.groups] == [None, None]
    names = [figure.name for figure in comparison_figures(found)]
    assert names == ["accuracy-differences", "accuracy"]
    assert len(fedray.compare_runs(runs).to_json()["groups"]) == 2


def test_a_notebook_shows_means_runs_and_figures(runs) -> None:
    found = fedray.compare_runs(runs)
    rows = found.to_arrow().to_pylist()
    assert [(row["seed"], row["accuracy"]) for row in rows[:2]] == [(1, 0.5), (2, 0.52)]
    assert {row["group"] for row in rows} == {group.label for group in found.groups}
    page = found._repr_html_()
    assert all(group.label in page for group in found.groups)
    assert "0.5133" in page  # the mean of tree
    assert list(found.plot().svgs) == [each.name for each in comparison_figures(found)]


def test_a_run_within_its_trace_brings_the_trace(trace, trained_of, tmp_path) -> None:
    inside = trained_of(f"{trace.path.name}/training", trace, {"accuracy": 0.4}, knows_trace=True)
    other = trained_of("other", trace, {"accuracy": 0.5}, TREE)
    found = fedray.compare_runs([trace.path, other])
    assert found.groups[0].runs.keys() == {inside.document["seed"]}
    assert all(group.epsilon is not None for group in found.groups)


def test_groups_with_one_kind_of_mechanism_have_labels_of_their_own(trace, trained_of) -> None:
    """Settings that only the label of a mechanism could tell apart are numbered."""
    theta = 'privacy.mechanism={{kind="blt", theta=[{}], omega=[0.1]}}'
    made = [
        trained_of("a", trace, {"accuracy": 0.4}, theta.format(0.9)),
        trained_of("b", trace, {"accuracy": 0.4}, theta.format(0.8)),
        trained_of("c", trace, {"accuracy": 0.4}, theta.format(0.8), "privacy.clip_norm=0.5"),
    ]
    assert [group.label for group in fedray.compare_runs(made[:2]).groups] == ["blt", "blt #2"]
    labels = [group.label for group in fedray.compare_runs(made).groups]
    assert labels == ["blt, clip norm 1", "blt, clip norm 1 #2", "blt, clip norm 0.5"]


def test_labels_leave_out_the_kind_of_a_table_that_a_run_does_not_have(trace, trained_of) -> None:
    secagg = ["privacy.encoding.kind=secagg", "privacy.encoding.scale=4096"]
    made = [trained_of(f"{len(each)}", trace, {"accuracy": 0.4}, *each) for each in ([], secagg)]
    labels = [group.label for group in fedray.compare_runs(made).groups]
    assert labels == ["blt", "blt, encoding secagg"]


def test_labels_tell_kinds_and_what_differs_within_a_kind_alone(trace, trained_of) -> None:
    """A kind brings keys that others do not have; as parts of a label they would say nothing."""

    def labels(*settings: list[str]) -> list[str]:
        made = [
            trained_of(f"{next(numbers)}", trace, {"accuracy": 0.4}, *each) for each in settings
        ]
        return [group.label for group in fedray.compare_runs(made).groups]

    numbers = iter(range(100))
    adam, yogi = "training.server.kind=adam", "training.server.kind=yogi"
    assert labels([], [adam], [yogi]) == ["blt, server sgd", "blt, server adam", "blt, server yogi"]
    assert labels([], [adam], [adam, "training.server.learning_rate=0.5"]) == [
        "blt, server sgd",
        "blt, server adam, server learning rate 0.01",
        "blt, server adam, server learning rate 0.5",
    ]
    assert labels([TREE], ['privacy.mechanism={kind="tree", completion=true, rounds=12}'], []) == [
        "tree, mechanism completion false",
        "tree, mechanism completion true, mechanism rounds 12",
        "blt",
    ]
    sgd = "training.client.kind=fedsgd"
    assert labels([sgd], [sgd, "privacy.clip_norm=0.5"], ["training.client.local_steps=3"]) == [
        "blt, clip norm 1, client fedsgd",
        "blt, clip norm 0.5, client fedsgd",
        "blt, client fedavg",
    ]
    cosine = "training.server.schedule.shape=cosine"
    assert labels([cosine], [], [adam]) == [
        "blt, server sgd, schedule shape cosine",
        "blt, server sgd, schedule shape constant",
        "blt, server adam",
    ]


def _other_trace(trace: Trace, trace_of: Callable, trained_of: Callable) -> TrainedRun:
    return trained_of("z", trace_of([[0, 3], [1], [2]], 4), {"accuracy": 0.4})


def _other_data(trace: Trace, trace_of: Callable, trained_of: Callable) -> TrainedRun:
    overrides = ["data.kind=classes", "training.task.kind=logistic"]
    return trained_of("z", trace, {"accuracy": 0.4}, *overrides)


def _other_metrics(trace: Trace, trace_of: Callable, trained_of: Callable) -> TrainedRun:
    return trained_of("z", trace, {"loss": 0.4}, "training.seed=9")


def _same_seed(trace: Trace, trace_of: Callable, trained_of: Callable) -> TrainedRun:
    return trained_of("z", trace, {"accuracy": 0.6}, "training.seed=1")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_other_trace, r"z' has trace \w{12}, but .*a' has"),
        (
            _other_data,
            "z' has data kind classes, .*, but .*a' has kind language \\(5 .*; compare runs of",
        ),
        (_other_metrics, r"z' has metrics loss \(.*, but .*a' has accuracy \("),
        (_same_seed, "z' has the settings and the seed 1 of .*a'.*leave one of them out"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused_in_one_line(
    make, words: str, trace, trace_of, trained_of, fedray_command
) -> None:
    first = trained_of("a", trace, {"accuracy": 0.5}, "training.seed=1")
    other = make(trace, trace_of, trained_of)
    with pytest.raises(fedray.InputError, match=words):
        fedray.compare_runs([first, other])
    code, out, err = fedray_command("compare", str(first.path), str(other.path))
    assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    ("files", "labels"),
    [
        (["wide.py", "deep.py"], ["wide.py", "deep.py"]),
        # Two files of one name are told apart by their content.
        (["old/net.py", "new/net.py"], [r"net.py \w{8}"] * 2),
    ],
)
def test_architectures_of_one_data_set_are_compared_by_the_names_of_their_files(
    files: list[str], labels: list[str], trace, trained_of, tmp_path, fedray_command
) -> None:
    runs = []
    for place, (name, final) in enumerate(zip(files, (0.5, 0.6), strict=True)):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"WIDTH = {place}\n")
        task = f"training.task={{kind='custom', file='{file}'}}"
        for seed in (1, 2):
            overrides = task, f"training.seed={seed}"
            run = trained_of(f"{place}-{seed}", trace, {"accuracy": final}, *overrides)
            keep(run, file)
            runs.append(run)
    found = fedray.compare_runs(runs, trace)
    for group, label in zip(found.groups, labels, strict=True):
        assert re.fullmatch(label, group.label)
    assert found.groups[0].label != found.groups[1].label
    assert [group.seeds for group in found.groups] == [[1, 2], [1, 2]]
    assert found.ranked[0] is found.groups[1]
    code, out, _ = fedray_command("compare", *(str(run.path) for run in runs))
    assert code == 0
    assert Path(files[0]).name in out


def test_optimizers_of_files_are_told_apart_by_the_names_of_their_files(trace, trained_of) -> None:
    tasks = Path(__file__).parents[1] / "clients/tasks"
    own = (
        f"training.client.optimizer={{kind='custom', file='{tasks / 'device_optimizer.py'}'}}",
        f"training.server={{kind='custom', file='{tasks / 'server_optimizer.py'}'}}",
    )
    runs = [
        trained_of(name, trace, {"accuracy": 0.5}, *overrides)
        for name, overrides in (("own", own), ("built-in", ()))
    ]
    keep(runs[0], tasks / "device_optimizer.py", tasks / "server_optimizer.py")
    settings = fedray.compare_runs(runs, trace).groups[0].settings
    assert settings["training.client.optimizer.file"] == "device_optimizer.py"
    assert settings["training.server.file"] == "server_optimizer.py"


def test_bad_arguments_are_refused(trace, trace_of, trained_of, fedray_command, tmp_path) -> None:
    run = trained_of("a", trace, {"accuracy": 0.5})
    another = trained_of("b", trace, {"accuracy": 0.5}, TREE)
    wrong = trace_of([[0]], 1)
    for arguments, words in [
        ([run.path], "1 trained run cannot be compared; give at least 2"),
        ([run.path, tmp_path / "none"], "has no training.json"),
        ([run.path, trace.path], "has no trained run"),
        ([run.path, another.path, "--trace", wrong.path], "--trace='.*' has digest"),
    ]:
        code, out, err = fedray_command("compare", *map(str, arguments))
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert re.search(words, err), err
    with pytest.raises(InputError, match="delta"):
        compare_runs([run.path, another.path], trace, 2.0)


def test_the_command_prints_tables_or_json_and_writes_page_and_figures(
    runs, trace, fedray_command, tmp_path, script
) -> None:
    paths = [str(run.path) for run in runs]
    page, figures = tmp_path / "page.html", tmp_path / "figures"
    told = ["--trace", str(trace.path), "--page", str(page), "--figures", str(figures)]
    code, out, _ = fedray_command("compare", *paths, *told, "--json")
    assert code == 0
    document = json.loads(out)
    tree = document["groups"][1]
    assert tree["differences"]["accuracy"]["count"] == 2
    assert tree["runs"][0]["metrics"]["accuracy"] == {"value": 0.62, "standard_error": 0.01}
    assert script(page.read_text(), "results-data") == {
        key: value for key, value in document.items() if key not in ("page", "figures")
    }
    assert {each.name for each in figures.iterdir()} == {
        f"{name}.{kind}"
        for name in ("accuracy-differences", "accuracy", "accuracy-epsilon")
        for kind in ("svg", "csv")
    }
    code, out, _ = fedray_command("compare", *paths)
    assert code == 0
    assert out.startswith(
        "blt cannot be told apart from tree (which is 11.0 points of accuracy better;"
    )
    assert "+0.1100, too few to tell" in out
    assert not any(path in out for path in paths)
    assert "Epsilon is not known: " in out
    assert "--trace" in out


def test_curves_have_a_band_from_the_least_to_the_largest_seed(runs, trace) -> None:
    _, curve, against = comparison_figures(fedray.compare_runs(runs, trace))
    blt = curve.series[0]
    assert blt.x.tolist() == [2.0, 4.0]  # rounds that were evaluated
    assert (blt.low[-1], blt.high[-1]) == (pytest.approx(0.5), pytest.approx(0.7))
    drawn = plotly_figure(curve)["data"]
    assert [each.get("fill") for each in drawn] == ["toself", None, "toself", None]
    assert len(drawn[0]["x"]) == 4
    of_blt, of_tree = (each["error_y"] for each in plotly_figure(against)["data"])
    assert of_blt["array"][0] == pytest.approx(of_blt["arrayminus"][0])
    assert np.isfinite(of_blt["array"][0])
    # 0.5133 ± 0.94 are shares from 0 to 1 at most.
    assert [of_tree[end][0] for end in ("array", "arrayminus")] == pytest.approx([0.4867, 0.5133], abs=1e-4)  # fmt: skip


def test_a_run_that_diverged_has_no_mean_and_is_still_shown(trace, trained_of) -> None:
    made = [
        trained_of("a", trace, {"accuracy": math.nan}, "training.seed=1"),
        trained_of("b", trace, {"accuracy": 0.5}, "training.seed=2"),
    ]
    found = fedray.compare_runs(made, trace)
    assert found.to_json()["groups"][0]["means"]["accuracy"]["mean"] is None
    assert "Trained runs compared" in comparison_page(found)


ENCODINGS = {
    "fixed_point": "privacy.encoding.kind=fixed_point",
    "secagg": "privacy.encoding={kind='secagg', scale=4096}",
    "devices": "privacy.trust={kind='devices', scale=4096, parameters=2}",
    "adaptive": "privacy.clipping.kind=adaptive",
}


@pytest.mark.slow
def test_one_trace_trained_under_each_encoding_is_one_table(small, tmp_path: Path) -> None:
    """What each gives and costs: the metric with its error, rho, epsilon, bits, seconds."""
    scenario = small(
        "training.enabled=true",
        "training.task.kind=quadratic",
        "data={kind='points', dimension=2}",
        "rounds={count=3, report_goal=20}",
        "training.cohort_sample=20",
        "training.evaluation_devices=8",
        "privacy.mechanism={kind='identity'}",
        "privacy.noise_multiplier=1.0",
        "privacy.clipping={kind='fixed'}",
    )
    here = fedray.Placement(1, "in-process")
    trace = fedray.simulate(scenario, here, tmp_path / "t")
    runs = [
        fedray.train(trace, scenario.with_overrides(override), here, tmp_path / name)
        for name, override in ENCODINGS.items()
    ]
    found = fedray.compare_runs(runs, trace)
    document = found.to_json()
    figures = dict(zip(ENCODINGS, document["groups"], strict=True))
    of_runs = {name: group["runs"][0] for name, group in figures.items()}
    assert of_runs["fixed_point"]["bits_per_parameter"] == 64.0
    assert of_runs["fixed_point"]["bytes_per_upload"] == 16
    # The modulus has room for 20 devices of 4096 steps, and two parameters are padded to four.
    least_bits = math.ceil(math.log2(2 * 20 * 4096 + 1))
    assert of_runs["secagg"]["bits_per_parameter"] == 2 * least_bits
    # And for nine deviations of the noise, here as long as an update.
    with_noise = math.ceil(math.log2(2 * (20 + 9) * 4096 + 1))
    assert of_runs["devices"]["bits_per_parameter"] == 2 * with_noise
    assert all(run["seconds_per_round"] > 0.0 for run in of_runs.values())
    assert all(run["metrics"]["loss"]["standard_error"] > 0.0 for run in of_runs.values())
    # Encodings that let the server add noise cost accuracy alone, and devices' noise costs more rho.
    rho = {name: group["rho"]["observed"] for name, group in figures.items()}
    # Sums and counts of adaptive clipping are two releases, whose rhos add up to the same.
    assert rho["secagg"] == rho["fixed_point"] == pytest.approx(rho["adaptive"])
    assert rho["fixed_point"] == pytest.approx(1 / 2)
    assert rho["devices"] >= rho["fixed_point"]
    table = found.tables()[-2]
    assert table.columns[-2:] == ("bytes per upload", "seconds per round")
    assert [row[-2] for row in table.rows[:2]] == ["16", "9"]
    of_one = f"Of {figures['devices']['label']}: Updates are summed"
    assert any(each.startswith(of_one) for each in document["assumptions"])


def test_a_comparison_names_the_run_without_noise_as_the_ceiling(trace_of, trained_of) -> None:
    trace = trace_of([[0, 2], [1, 3], [0], [1, 2], [3]], 4)
    runs = [
        trained_of("private", trace, {"accuracy": 0.5}),
        trained_of(
            "ceiling",
            trace,
            {"accuracy": 0.7},
            "privacy.mechanism=none",
            "privacy.noise_multiplier=3.0",
        ),
    ]
    found = fedray.compare_runs(runs, trace)
    assert [group.label for group in found.groups] == ["blt", "none"]
    private, ceiling = found.groups
    assert private.rho is not None
    assert ceiling.epsilon == ceiling.rho == {"observed": None, "enforced": None}
    assert ceiling.noise_multiplier is None
    assert found.answer.startswith("blt loses 20.0 ± 2.8 ")
    assert "blt has accuracy 0.5000 at epsilon " in found.answer
    assert [each.partition(" is that of ")[0] for each in found.warnings] == ["Epsilon"]
    assert "privacy.noise_multiplier" not in ceiling.settings
    page = comparison_page(found)
    assert "Accuracy against epsilon" not in page  # all have one
    table = next(table for table in found.tables() if table.title.startswith("Privacy"))
    shown = [place for place, name in enumerate(table.columns) if re.match("noise|epsilon", name)]
    row = next(row for row in table.rows if row[0] == "none")
    assert {row[place] for place in shown} == {"-"}
    tables = "\n".join(map(str, runs[1].tables()))
    assert NO_GUARANTEE.capitalize() in tables
    assert not re.search(r"epsilon|rho|&epsilon;|noise.multiplier", tables, re.IGNORECASE)


def test_rounds_to_reach_have_the_epsilon_of_the_released_prefix_alone(
    runs, trace, trace_of
) -> None:
    """Accuracy rises evenly and is evaluated after rounds 1 and 3, so 0.3 is first seen in round 1
    if the last value is at least 0.6."""
    reach = fedray.compare_runs(runs, trace, delta=1e-6, reach=0.3).reach
    assert [(each.label, each.seed, each.round) for each in reach.runs] == [
        ("blt", 1, 3),
        ("blt", 2, 3),
        ("blt", 3, 1),
        ("tree", 2, 1),
        ("tree", 3, 1),
        ("tree", 4, None),
    ]
    prefix = trace_of([[t for t in pattern if t < 2] for pattern in PATTERNS if pattern[0] < 2], 2)
    for each, run in zip(reach.runs, runs, strict=True):
        privacy = fedray.Scenario.from_tables(run.document["scenario"]).privacy
        if each.round is None:
            assert (each.spent, each.updates, each.days, each.best) == (None, None, None, 0.1)
            continue
        released = prefix if each.round == 1 else trace
        audit = fedray.audit_trace(released, privacy.noise_multiplier, 1e-6, privacy.mechanism)
        assert each.spent.epsilon == audit.mechanisms[0].observed.epsilon
        assert each.updates == audit.participations
        assert each.days == audit.days


def test_a_loss_is_reached_from_above(trace, trained_of) -> None:
    made = [
        trained_of(f"{end}", trace, {"loss": end}, f"training.seed={seed}")
        for seed, end in enumerate((0.4, -0.4))
    ]
    reach = fedray.compare_runs(made, reach=0.3).reach
    assert [(each.round, each.best) for each in reach.runs] == [(1, 0.2), (1, -0.4)]
    assert [(each.spent, each.updates) for each in reach.runs] == [(None, None)] * 2


def test_the_command_says_what_was_not_reached(runs, trace, fedray_command) -> None:
    paths = [str(run.path) for run in runs]
    code, out, _ = fedray_command("compare", *paths, "--trace", str(trace.path), "--reach", "0.3")
    assert code == 0
    assert "Rounds to reach accuracy 0.3, epsilon at delta" in out
    assert "not reached, best 0.1000" in out
    code, out, err = fedray_command("compare", *paths, "--reach", "nan")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--reach=nan must be finite" in err


@pytest.mark.parametrize(
    ("start", "error", "said"),
    [
        (0.41, 0.1, "No setting is better than before its training, so none is best: tree has accuracy 0.4000, and had 0.4100."),
        (0.45, 0.01, "No setting converged in every training, so none is best."),
        (0.10, 0.01, "tree is better than blt (10.0 ± 2.8 points of accuracy). tree has accuracy 0.4000; differences are of one seed, within the errors of two evaluations."),
    ],
)  # fmt: skip
def test_a_model_that_is_worse_than_its_start_is_never_best(
    trace, trained_of, start: float, error: float, said: str
) -> None:
    """Within the errors of its evaluations, or beyond them: then it diverged, and a warning says so. A healthy one has neither."""
    more = {"start": {"accuracy": start}, "error": error}
    made = [
        trained_of("blt", trace, {"accuracy": 0.3}, **more),
        trained_of("tree", trace, {"accuracy": 0.4}, TREE, **more),
    ]
    found = fedray.compare_runs(made)
    assert found.answer == f"{said}{OF}"
    worse = "tree: The training diverged: the held-out accuracy fell from 0.4500 to 0.4000."
    assert any(worse in each for each in found.warnings) == (start == 0.45)
    assert any("diverged" in each for each in found.warnings) == (start == 0.45)
    assert found.answer in comparison_page(found)
    assert [", reached within the errors" in str(each.rows()) for each in made] == [False, False]


def test_rounds_that_are_missing_stand_first_with_the_reason(
    trace_of, trained_of, monkeypatch
) -> None:
    trace = trace_of(PATTERNS, 4)
    made = [
        trained_of(name, trace, {"accuracy": final}, *keys, planned=60)
        for name, final, keys in (("blt", 0.3, ()), ("tree", 0.4, (TREE,)))
    ]
    assert fedray.compare_runs(made).answer.startswith(
        "4 of 60 rounds were trained. tree is better"
    )
    monkeypatch.setitem(trace.run, "ended", "starved: no round")
    answer = fedray.compare_runs(made, trace).answer
    assert answer.startswith("4 of 60 rounds were trained (starved). tree is better")
    assert made[0].rows()[0][1].startswith("4 of 60, ")
    page = made[0].page()
    assert "Accuracy 0.3000 on 9 of 9 examples of 5 devices, after 4 of 60 rounds. " in page
    whole = trained_of("whole", trace, {"accuracy": 0.3})
    assert (whole.short, "5 devices, after 4 rounds. " in whole.page()) == ("", True)


def test_the_ceiling_of_a_task_is_told_where_it_is_reached(trace, trained_of) -> None:
    made = [
        trained_of(f"{name}-{best}", trace, {"accuracy": final}, *keys, optimum={"accuracy": best})
        for best in (0.48, 0.6)
        for name, final, keys in (("blt", 0.3, ()), ("tree", 0.47, (TREE,)))
    ]
    reached, below = fedray.compare_runs(made[:2]), fedray.compare_runs(made[2:])
    assert "accuracy 0.4700 (within the errors its ceiling, 0.4800)" in reached.answer
    assert "ceiling" not in below.answer
    assert "the best of any model 0.4800, reached within the errors" in str(made[1].rows())
    assert "reached" not in str([made[place].rows() for place in (0, 2, 3)])


@pytest.mark.parametrize(("z", "is_void"), [(0.05, True), (9.0, False)])
def test_an_epsilon_that_protects_nobody_is_said_to_be_void(
    trace_of, trained_of, small, z: float, is_void: bool
) -> None:
    """In the verdict of run, train and audit, on the page, in JSON, and where runs are compared."""
    trace = trace_of(PATTERNS, 4, small("participation.timer_hours=0.02"))
    more = (TREE, f"privacy.noise_multiplier={z}")
    made = trained_of("model", trace, {"accuracy": 0.5}, *more, knows_trace=True)
    (audit,) = audits_of([(scenario_of_trained(made, trace), made, trace)], 1e-10)
    assert (audit.basis.guarantee.epsilon > 20) == is_void
    compared = comparison_of([made], trace, 1e-10).warnings
    for said in (audit.verdict, audit.to_json()["verdict"], trained_page(made), *compared[-1:]):
        assert ("An epsilon above 20 protects nobody in practice" in said) == is_void


@pytest.mark.parametrize("error", [0.01, 0.2])
def test_seeds_are_blamed_where_they_and_not_the_held_out_set_hide_a_difference(
    trace, trained_of, numbers_in, error: float
) -> None:
    """Differences of 0.02 and 0.06: s = 0.0283, and t(n - 1) s / sqrt(n) < 0.04 from n = 5 on."""
    made = []
    for name, finals, overrides in (("blt", (0.6, 0.6), ()), ("tree", (0.58, 0.54), (TREE,))):
        for seed, final in enumerate(finals):
            keys = (f"training.seed={seed}", *overrides)
            made.append(
                trained_of(f"{name}-{seed}", trace, {"accuracy": final}, *keys, error=error)
            )
    found = fedray.compare_runs(made)
    if error > 0.1:
        assert found.warnings[0].startswith("The held-out set is too small to tell blt and tree")
        assert "too few" not in " ".join(found.warnings)
        return
    assert "seeds are too few" in found.warnings[0]
    # Student's quantile with one degree of freedom times 0.02, and 1.96 errors of two evaluations.
    assert numbers_in(found.warnings[0])[:1] == [2]
    assert {25.4, 2.77, 5} <= {*numbers_in(found.warnings[0])}
    assert not any(each.startswith("The held-out set") for each in found.warnings)
    spread = MeanInterval(0.001, 2, 0.001 - 0.25, 0.001 + 0.25)
    assert seeds_to_tell(spread, 0.95) is None
