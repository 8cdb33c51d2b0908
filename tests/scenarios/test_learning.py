"""The learning study: equal privacy, paired models, honest verdicts, and what is done is kept."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from document_schema import found_keys
from small_roles import written_roles
from small_study import SMALL, small

import fedray
from fedray.audit.audit import audit_trace
from fedray.base.errors import InputError
from fedray.mechanisms.workload import Workload
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.scenarios.learning import (
    ORDER,
    WORKLOADS,
    Study,
    _baselines,
    _compared,
    _of_plays,
    _predictors,
    shipped_recipes,
    study_learning,
)
from fedray.scenarios.learning_page import learning_figures, reproduced
from fedray.scenarios.learning_results import (
    NO_NOISE,
    Comparison,
    LearningCurves,
    TrainedMechanism,
)
from fedray.scenarios.reproduction import MeanInterval, mean_interval
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun
from fedray.wire.messages import Metric

pytestmark = pytest.mark.slow  # nearly all read one study, which trains models for seconds
HERE = Placement(backend="in-process")
KINDS = ("blt", "identity")
ACCURACY = Metric("accuracy", "", "higher")
MOMENTUM = Workload.parse("momentum=0.9")


MADE = ["blt", "identity", "blt for min-sep 3", "blt for momentum=0.9"]


def optimized(requests):
    return {name: fedray.optimize_mechanism(request) for name, request in requests.items()}


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> tuple[LearningCurves, Path]:
    """A study, and its folder."""
    out = tmp_path_factory.mktemp("learning") / "study"
    return study_learning(small(), out, (1, 2), (3,), HERE, order=KINDS, workload=MOMENTUM), out


def test_all_mechanisms_have_the_rho_of_the_scenarios_own(kept) -> None:
    """As the audit computes it, apart from the study; never more, and as good as equal."""
    study, out = kept
    scenario, trace = small(), Trace.open(out / "trace")
    privacy = scenario.privacy
    own = audit_trace(trace, privacy.noise_multiplier, privacy.delta, privacy.mechanism)
    assert study.rho == own.mechanisms[0].observed.rho
    assert study.epsilon == pytest.approx(own.mechanisms[0].observed.epsilon, rel=1e-6)
    noised = [each for each in study.mechanisms if each.name != NO_NOISE]
    assert [each.name for each in noised] == MADE
    for each in noised:
        run = TrainedRun.open(out / "runs" / f"{each.name.replace(' ', '-')}-1")
        kept_privacy = Scenario.from_tables(run.document["scenario"]).privacy
        assert kept_privacy.noise_multiplier == each.noise_multiplier
        found = audit_trace(trace, each.noise_multiplier, privacy.delta, kept_privacy.mechanism)
        rho = found.mechanisms[0].observed.rho
        assert rho is not None
        assert study.rho * (1 - 1e-9) <= rho <= study.rho


def test_models_of_a_seed_are_paired_and_seeds_are_not(kept) -> None:
    """Cohort, data and initial model of a seed are the same under every mechanism."""
    study, out = kept
    first = {
        (each.name, seed): TrainedRun.open(
            out / "runs" / f"{each.name.replace(' ', '-')}-{seed}"
        ).metrics["train_loss"][0]
        for each in study.mechanisms
        for seed in study.seeds
    }
    for seed in study.seeds:
        assert len({first[each.name, seed] for each in study.mechanisms}) == 1
    assert first["blt", 1] != first["blt", 2]


def test_final_values_are_means_of_the_last_evaluations(kept) -> None:
    study, out = kept
    loss = study.metrics[0]
    assert loss.metric.name == "loss"
    column = TrainedRun.open(out / "runs" / "blt-2").metrics["evaluation_loss"]
    assert loss.values["blt"][2] == pytest.approx(np.mean(column[10:]))  # a fifth of 12 rounds
    gains = [loss.values["identity"][seed] - loss.values["blt"][seed] for seed in (1, 2)]
    assert loss.order[0].gain.mean == pytest.approx(np.mean(gains))
    guess = loss.guesses[0]
    assert (guess.first, guess.second) == ("blt", "blt for min-sep 3")


def test_of_one_guess_the_kind_of_lesser_predicted_error_is_expected_to_be_better(kept) -> None:
    """The study trains nothing: only which pairs there are is asked."""
    trace = Trace.open(kept[1] / "trace")
    study = Study(small(), trace, ("banded-toeplitz", "blt"), (3,), optimized)
    *made_for, (first, second) = study._wrong_guesses()
    assert made_for == [(kind, f"{kind} for min-sep 3") for kind in ("banded-toeplitz", "blt")]
    assert {first, second} == {"blt for min-sep 3", "banded-toeplitz for min-sep 3"}
    assert study._predicted(first) < study._predicted(second)


def test_what_is_there_is_read_and_what_is_missing_is_trained(kept, tmp_path: Path) -> None:
    study, out = kept
    shutil.copytree(out, tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / "runs" / "identity-2")
    told: list[str] = []
    again = study_learning(
        small(), tmp_path / "again", (1, 2), (3,), HERE, told.append, KINDS, MOMENTUM
    )
    assert again.to_json() == study.to_json()
    found_keys(json.loads(json.dumps(again.to_json())), type(again))
    models = [line for line in told if "models" in line]
    assert models == ["9 of 10 models trained", "10 of 10 models trained"]


def test_runs_of_another_study_are_refused(kept) -> None:
    other = small().with_overrides("privacy.clip_norm=0.5")
    with pytest.raises(InputError, match="holds a training of another scenario or trace"):
        study_learning(other, kept[1], (1, 2), placement=HERE, order=KINDS)


@pytest.mark.parametrize(("better", "verdict"), [("higher", "confirmed"), ("lower", "reversed")])
def test_a_gain_is_positive_where_the_first_is_better(better: str, verdict: str) -> None:
    values = {"a": {1: 0.5, 2: 0.6, 3: 0.7}, "b": {1: 0.41, 2: 0.5, 3: 0.6}}
    found = _compared("a", "b", values, Metric("m", "", better))  # pyright: ignore[reportArgumentType]
    assert found.verdict == verdict
    assert abs(found.gain.mean) == pytest.approx(0.29 / 3)


def test_an_interval_with_zero_in_it_decides_nothing() -> None:
    assert Comparison("a", "b", MeanInterval(0.1, 5, -0.01, 0.21)).verdict == "not decided"
    assert Comparison("a", "b", MeanInterval(0.1, 1, np.nan, np.nan)).verdict == "not decided"


def test_a_mechanism_made_for_a_workload_has_less_of_its_error_and_is_compared(kept) -> None:
    study, out = kept
    by_name = {each.name: each for each in study.mechanisms}
    made, prefix = by_name[MADE[-1]], by_name["blt"]
    assert made.made_for_workload == "momentum=0.9"
    assert made.errors["momentum=0.9"] < prefix.errors["momentum=0.9"]
    assert made.errors["prefix"] > prefix.errors["prefix"]
    # The error is that of the noise on the rows of the workload, by its matrix.
    strategy = fedray.read_strategy(out / "mechanisms" / "blt-for-momentum=0.9.json")
    rounds = study.participation.rounds
    rows = MOMENTUM.matrix(rounds) @ np.linalg.inv(strategy.definition(rounds))
    sigma = made.sensitivity / np.sqrt(2 * study.rho)
    expected = sigma * np.sqrt((rows**2).sum() / rounds)
    assert made.errors["momentum=0.9"] == pytest.approx(expected, rel=1e-6)
    loss = study.metrics[0]
    kind, mean = loss.workloads
    assert (kind.first, kind.second) == (MADE[-1], "blt")
    assert mean.gain == kind.gain  # there is a single kind


def test_predictors_are_rank_correlations_of_each_seed_and_distances_from_a_line() -> None:
    errors = {"a": 1.0, "b": 2.0, "c": 4.0}
    mechanisms = [
        TrainedMechanism(name, "blt", None, 1.0, True, 1.0, dict.fromkeys(WORKLOADS, error))
        for name, error in errors.items()
    ]
    mechanisms[0].errors["momentum=0.9"] = 8.0
    # Seed 1 agrees with the errors, seed 2 exchanges the last two.
    values = {"a": {1: 0.9, 2: 0.9}, "b": {1: 0.8, 2: 0.7}, "c": {1: 0.7, 2: 0.8}}
    found = {each.workload: each for each in _predictors(mechanisms, values, ACCURACY)}
    assert found["prefix"].rank_correlation.mean == pytest.approx((1.0 + 0.5) / 2)
    assert found["prefix"].over_prefix.mean == 0.0
    other = found["momentum=0.9"]
    assert other.rank_correlation.mean == pytest.approx((-0.5 - 1.0) / 2)
    assert other.over_prefix.mean == pytest.approx(-1.5)
    # Means 0.9, 0.75, 0.75 over equally spaced logarithms: the line leaves 0.025, -0.05, 0.025.
    assert found["prefix"].residual == pytest.approx(np.sqrt((2 * 0.025**2 + 0.05**2) / 3))
    # For a loss, the least is the best.
    loss = next(iter(_predictors(mechanisms, values, Metric("loss", "", "lower"))))
    assert loss.rank_correlation.mean == pytest.approx(-0.75)


def test_plays_are_split_for_the_recipe_that_needs_them(tmp_path: Path) -> None:
    scenario = _of_plays(written_roles(tmp_path), tmp_path, ["seed=2"])
    assert (scenario.name, scenario.seed) == ("shakespeare", 2)
    assert scenario.privacy.mechanism.kind == "identity"
    assert scenario.trains_a_sample
    (ngrams,) = _baselines(scenario, tmp_path / "roles.parquet")
    assert len(ngrams.rows) == 6
    assert _baselines(small(), tmp_path / "roles.parquet") == []
    files = sorted(each.name for each in (tmp_path / "shakespeare" / "data").iterdir())
    assert files == ["test-00000-of-00001.parquet", "train-00000-of-00001.parquet"]


def test_the_shipped_recipes_ask_for_every_mechanism_at_one_privacy() -> None:
    recipes = {path.stem: Scenario.from_toml(path) for path in shipped_recipes()}
    assert set(recipes) == {"language", "source_code"}
    assert ORDER[0] == "banded-toeplitz"
    assert ORDER[-1] == "identity"
    for recipe in recipes.values():
        assert recipe.privacy.mechanism.kind == "identity"
        assert recipe.trains_a_sample


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "1"], "--seeds=1 must be from 2"),
        (["--guesses", "x"], "--guesses='x' must be comma-separated min-seps"),
        (["--guesses", "0"], "--guesses=[0] must be min-seps from 1 to rounds.count=12"),
        (["--scenario", "none.toml"], "does not exist"),
    ],
)
def test_bad_usage_is_refused_before_anything_runs(fedray_command, arguments, message) -> None:
    given = [word for key in SMALL for word in ("--set", key)]
    code, _, err = fedray_command(
        "reproduce", "learning", "--place", "backend=in-process", *given, *arguments
    )
    assert code == 2
    assert message in err


def test_figures_have_the_curves_the_finals_and_the_guesses(kept) -> None:
    study, _ = kept
    figures = {each.name: each for each in learning_figures(study)}
    assert list(figures) == [
        *("loss", "loss-error", "loss-guess"),
        *("accuracy", "accuracy-error", "accuracy-guess"),
    ]
    curves = figures["loss"].series
    assert [each.name for each in curves] == ["blt", "identity", MADE[-1], NO_NOISE]
    runs = [study.runs["identity", seed].metrics["evaluation_loss"] for seed in (1, 2)]
    np.testing.assert_allclose(curves[1].y, np.mean(runs, axis=0))
    np.testing.assert_allclose(curves[1].low, np.min(runs, axis=0))
    np.testing.assert_allclose(curves[1].high, np.max(runs, axis=0))
    result = study.metrics[0]
    finals = {each.name: each for each in figures["loss-error"].series}
    errors = {each.name: each.errors.get("prefix") for each in study.mechanisms}
    assert list(finals) == ["blt", "identity", MADE[-1], NO_NOISE]
    for name in ("blt", "identity"):
        mean = mean_interval(result.values[name].values())
        found = finals[name]
        assert [found.x[0], found.y[0]] == [errors[name], mean.mean]
        assert (found.low[0], found.high[0]) == (mean.low, mean.high)
    assert finals[NO_NOISE].is_reference
    (guesses,) = figures["loss-guess"].series
    truth = study.participation.min_sep
    expected = {truth: "blt", 3: "blt for min-sep 3"}
    assert guesses.x.tolist() == sorted(expected)
    means = [np.mean(list(result.values[expected[each]].values())) for each in sorted(expected)]
    np.testing.assert_allclose(guesses.y, means)
    assert figures["loss-guess"].marks[0].at == truth


def test_without_guesses_there_is_no_figure_of_them(kept) -> None:
    study, _ = kept
    own = tuple(each for each in study.mechanisms if each.made_for_min_sep != 3)
    figures = learning_figures(dataclasses.replace(study, mechanisms=own))
    assert [each.name for each in figures] == ["loss", "loss-error", "accuracy", "accuracy-error"]


def test_a_notebook_shows_the_values_the_verdicts_and_the_figures(kept) -> None:
    study, _ = kept
    result = reproduced(study, [study.to_json()])
    shown = result._repr_html_()
    loss = study.metrics[0]
    assert f"{mean_interval(loss.values['blt'].values()).mean:.4f}" in shown
    assert loss.order[0].verdict in shown
    assert list(result.plot("loss").svgs) == ["loss"]
    assert f"min-sep {study.participation.min_sep}" in result.notes[0]


def test_the_command_prints_what_it_keeps(kept, fedray_command, script, tmp_path: Path) -> None:
    """What is there is read, and the other mechanisms are trained; text and JSON have the same
    figures."""
    shutil.copytree(kept[1], tmp_path / "quickstart")
    (tmp_path / "s.toml").write_text(small().to_toml())
    given = [
        "reproduce",
        "learning",
        "--place",
        "backend=in-process",
        "--scenario",
        str(tmp_path / "s.toml"),
    ]
    given += ["--seeds", "2", "--out", str(tmp_path)]
    code, out, _ = fedray_command(*given, "--json")
    assert code == 0
    (study,) = json.loads(out)["studies"]
    assert study == json.loads((tmp_path / "quickstart" / "results.json").read_text())
    assert [each["name"] for each in study["mechanisms"]] == [*ORDER, NO_NOISE]
    code, out, _ = fedray_command(*given, "--figures", str(tmp_path / "figures"))
    assert code == 0
    assert str(tmp_path / "quickstart" / "report.html") in out
    page = (tmp_path / "quickstart" / "report.html").read_text()
    assert script(page, "results-data") == study
    names = {each.name for each in (tmp_path / "figures" / "quickstart").iterdir()}
    assert {"loss.svg", "loss.csv", "accuracy-error.svg"} <= names
    loss = study["metrics"][0]
    assert "banded-toeplitz >= blt" in out
    assert f"{loss['mechanisms']['blt']['mean']:.4f}" in out
    assert loss["order"][0]["verdict"] in out
