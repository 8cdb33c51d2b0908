"""What the noise of a training is said to do before it begins, and that healthy trainings are not warned of."""

from pathlib import Path

import numpy as np
import pytest

import fedray
from fedray.clients.data.factory import source_of
from fedray.clients.tasks.factory import task_of
from fedray.clients.tasks.layout import size_of
from fedray.mechanisms import Tree
from fedray.runs.noise_ahead import EACH_MEAN, noise_ahead, told_ahead
from fedray.scenario import Scenario
from fedray.scenario.several_tasks import read_scenario, tasks_of
from fedray.scenario.shipped import find_scenario, shipped_scenario_files

STUDIES = ("language", "source_code")
HERE = ("--place", "backend=in-process")


def ratio_of(scenario: Scenario, *overrides: str) -> float:
    shapes = task_of(scenario, source_of(scenario).fields).shapes
    return noise_ahead(scenario.with_overrides(*overrides), size_of(shapes))


def test_independent_noise_on_a_mean_has_its_norm(small) -> None:
    """z sqrt(d) / goal, in clip norms."""
    scenario = small("privacy.noise_multiplier=5", 'privacy.mechanism={kind="identity"}')
    expected = 5 * 100 / scenario.rounds.report_goal
    assert noise_ahead(scenario, 10_000) == pytest.approx(expected)
    assert noise_ahead(small("privacy.mechanism=none"), 10_000) == 0


def test_correlated_noise_counts_by_what_the_server_makes_of_it(small) -> None:
    """The model's noise by the matrix of the tree's noise and the server's steps, beside that of independent draws."""
    rounds, momentum = 200, small().training.server.momentum
    found, plain = (
        noise_ahead(small(f'privacy.mechanism={{kind="{kind}"}}'), 10_000)
        for kind in ("tree", "identity")
    )
    A = np.zeros((rounds, rounds))
    for start in range(rounds):
        velocity = model = 0.0
        for t in range(start, rounds):
            velocity = momentum * velocity + (1 - momentum) * (t == start)
            model = 0.95 * model + velocity
            A[t, start] = model
    _, noise = next(Tree().noise_blocks(rounds))
    ratio = np.linalg.norm(A @ noise) / np.linalg.norm(A)
    assert found / plain == pytest.approx(ratio, rel=1e-9)


def test_the_noise_on_a_mean_itself_is_told_beside_its_effect(small, numbers_in) -> None:
    """z sqrt(d) / goal times the norm of a row of C^-1, which a BLT's effect on the model is far below."""
    scenario = small(
        "privacy.mechanism=blt-100", "privacy.noise_multiplier=1", "rounds.report_goal=100"
    )
    parameters, rounds = 8709, 200
    _, noise = next(scenario.privacy.strategy.noise_blocks(rounds))
    rows = np.linalg.norm(noise, axis=1)  # of C^-1
    itself = parameters**0.5 / 100 * (rows**2).mean() ** 0.5
    assert noise_ahead(scenario, parameters, EACH_MEAN) == pytest.approx(itself, rel=1e-9)
    effect = noise_ahead(scenario, parameters)
    assert effect < 0.5 * itself
    assert itself > 0.93
    told = told_ahead(effect, parameters, scenario)
    assert numbers_in(told) == pytest.approx([itself, effect], rel=0.06)
    # Independent noise has one figure.
    alone = small('privacy.mechanism={kind="identity"}')
    told = told_ahead(noise_ahead(alone, 100), 100, alone)
    assert len(numbers_in(told)) == 1


def test_too_much_noise_is_told_with_remedies_that_suffice(small, numbers_in) -> None:
    """A goal of 40 with noise of 8 clip norms: 320 devices, or 1 / 8^2 of the parameters."""
    scenario = small("rounds.report_goal=40")
    itself = pytest.approx(noise_ahead(scenario, 541_696, EACH_MEAN), rel=0.005)
    told = told_ahead(8.0, 541_696, scenario)
    # Noise in clip norms; what models lost up to 1 and beyond, in points; goal, or parameters.
    assert numbers_in(told) == [itself, 8, 1, 3.5, 45, 320, 8464, 541_696]


def test_a_small_population_is_told_the_noise_of_the_one_that_it_stands_for(small) -> None:
    """16,000 for 800,000, each with a goal in proportion: 50 times the noise, as of two runs."""
    keys = 'privacy.mechanism={kind="identity"}', "rounds.report_goal=130"
    twin = small(*keys, "population.devices=16_000", "training.stands_for=800_000")
    whole = small(*keys[:1], "population.devices=800_000", "rounds.report_goal=6500")
    ratios = [noise_ahead(each, 10_000) for each in (twin, whole)]
    assert ratios[0] / ratios[1] == pytest.approx(50)
    said = " That is 50 times the noise of the deployment of 800,000 devices for which these 16,000"
    for ratio in (0.5, 2.0):
        assert said in told_ahead(ratio, 10_000, twin)
        assert "deployment" not in told_ahead(ratio, 10_000, whole)
    # The key says something, and changes nothing.
    assert noise_ahead(twin, 10_000) == noise_ahead(
        small(*keys, "population.devices=16_000"), 10_000
    )


@pytest.mark.parametrize(
    ("name", "ratios"), [("language", (2.44, 1.82)), ("source_code", (1.672, 1.25))]
)
def test_the_studies_behind_the_threshold_have_the_figures_of_their_page(name, ratios) -> None:
    """docs/published.md: of independent noise, and of the tree with the noise for the same rho, which is 47.818 beside 14 on both traces."""
    own = Scenario.from_toml(find_scenario(name))
    z = 47.818 / 14 * own.privacy.noise_multiplier
    tree = ratio_of(own, 'privacy.mechanism={kind="tree"}', f"privacy.noise_multiplier={z}")
    assert (ratio_of(own), tree) == pytest.approx(ratios, abs=0.01)


@pytest.mark.parametrize("name", sorted({*shipped_scenario_files()} - {*STUDIES}))
def test_no_scenario_that_ships_with_a_training_is_warned_of(name: str) -> None:
    for task in tasks_of(read_scenario(find_scenario(name))):
        if task.scenario.training.enabled:
            assert ratio_of(task.scenario) <= 1


@pytest.mark.slow  # 5 s: two trainings
def test_run_and_train_tell_it_once_at_the_start(tmp_path: Path, fedray_command) -> None:
    options = ("--set", "rounds.count=2", "--out", str(tmp_path / "t"), *HERE)
    code, _, told = fedray_command("run", "small", *options)
    assert code == 0
    assert told.count("noise   The noise on a mean update is ") == 1
    assert "warning" not in told
    more = ("--set", "privacy.noise_multiplier=500", "--out", str(tmp_path / "m"), *HERE)
    code, _, told = fedray_command("train", str(tmp_path / "t"), *more)
    assert code == 0
    assert told.count("fedray: warning: The noise on a mean update is ") == 1
    trained = fedray.TrainedRun.open(tmp_path / "m")
    assert trained.warnings[0] == trained.document["noise_warning"] != ""
    assert sum("raise rounds.report_goal to" in each for each in trained.to_json()["notes"]) == 1


def test_a_model_of_a_few_parameters_is_no_remedy(small) -> None:
    """Of 541,696 parameters 64 would learn, which is no smaller model of the same kind."""
    told = told_ahead(92.0, 541_696, small("rounds.report_goal=40"))
    assert "parameters instead of" not in told
    few = small("rounds.report_goal=40", "population.devices=100")
    assert "not trainable so; lower privacy.noise_multiplier" in told_ahead(92.0, 541_696, few)
    assert "train at most 54,168 parameters instead of" in told_ahead(3.1623, 541_696, few)
