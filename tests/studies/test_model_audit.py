"""Audits of trained models: exposure grows with copies and falls with noise; devices that trained are found; bounds stay below the upper one.

`make canary` runs 4 seeds, the suite one. Trainings are small: 60 rounds of 100 devices, of which each takes part 20 times. Intervals are of 95 %;
those that are compared are so far apart that they would touch with a probability below 1e-6 if their means were as measured.
"""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from document_schema import found_keys

import fedray
from fedray.audit.participation import read_patterns
from fedray.base.errors import InputError
from fedray.clients.tasks.layout import named
from fedray.clients.trainer import LocalTrainer
from fedray.mechanisms.accounting.gdp import gaussian_epsilon
from fedray.runs.learning import cohorts
from fedray.runtime.placement import Placement
from fedray.studies.model_audit import ModelAudit, _Draws, _Model, audit_model
from fedray.studies.model_audit_page import model_audit_figures, model_audit_page
from fedray.trace.learned_from import scenario_of_trained
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun

SEEDS = range(1, 5) if os.environ.get("FEDRAY_ALL_SEEDS") else (1,)
DEVICES, GROUPS, ROUNDS = 300, 3, 60
PATTERNS = [list(range(device % GROUPS, ROUNDS, GROUPS)) for device in range(DEVICES)]
PHRASES = (
    "training.planted=[{phrases=16, devices=8, copies=1}, {phrases=16, devices=8, copies=400}]"
)
NOISES = (0.1, 4.0)
HERE = Placement(1, "in-process")


@pytest.fixture(scope="module")
def setting(small, shared_trace_of, tmp_path_factory):
    """Makes a trace of 300 of 450 devices, and a model of it."""

    def made(*overrides: str) -> tuple[Trace, TrainedRun]:
        scenario = small(
            f"rounds.count={ROUNDS}",
            "rounds.report_goal=100",
            "population.devices=450",
            "training.enabled=true",
            "training.cohort_sample=100",
            f"training.evaluate_every={ROUNDS}",
            "privacy.mechanism.kind=identity",
            "privacy.delta=1e-6",
            *overrides,
        )
        trace = shared_trace_of(PATTERNS, ROUNDS, scenario)
        return trace, fedray.train(trace, None, HERE, tmp_path_factory.mktemp("of") / "model")

    return made


@pytest.fixture(scope="module")
def phrased(setting):
    """Traces and models of phrases, by noise multiplier and seed."""
    return {
        (noise, seed): setting(PHRASES, f"privacy.noise_multiplier={noise}", f"seed={seed}")
        for noise in NOISES
        for seed in SEEDS
    }


@pytest.fixture(scope="module")
def audited(phrased) -> dict[tuple[float, int], ModelAudit]:
    return {key: audit_model(run, trace, references=1023) for key, (trace, run) in phrased.items()}


@pytest.fixture(scope="module")
def sampled(setting):
    """A model of samples of 25 of 100 devices, with a quarter of the noise."""
    return setting("privacy.noise_multiplier=3.0", "training.cohort_sample=25")


@pytest.mark.slow
def test_exposure_grows_with_copies_and_falls_with_noise(audited) -> None:
    quiet, loud = NOISES
    for seed in SEEDS:
        once, often = audited[quiet, seed].phrases
        assert often.exposure.low > once.exposure.high
        _, often_in_noise = audited[loud, seed].phrases
        assert often.exposure.low > often_in_noise.exposure.high
        # Phrases that nobody holds are random phrases: their mean exposure is that of a uniform rank, within five standard errors.
        for noise in NOISES:
            for each in audited[noise, seed].phrases:
                left_out = each.exposure_left_out.value
                assert abs(left_out - 1.44) < 5 * 1.44 / each.left_out**0.5


@pytest.mark.slow
def test_bounds_of_phrases_stay_below_the_upper_bound_and_show_loss_without_noise(audited) -> None:
    for (noise, _), each in audited.items():
        assert each.upper_epsilon == gaussian_epsilon(20**0.5 / noise, 1e-6)
        for found in each.phrases:
            assert all(bound.epsilon <= each.upper_epsilon for bound in found.lower)
        if noise == NOISES[0]:
            assert max(bound.epsilon for bound in each.phrases[1].lower) > 0.0


@pytest.mark.slow
def test_an_audit_counts_what_the_scenario_planted(audited) -> None:
    audit = audited[NOISES[0], 1]
    for found in audit.phrases:
        assert found.planted + found.left_out == 16
        # Each of 8 devices, two thirds of which take part, trains 20 times.
        assert 60 < found.trained < 150
    # All devices that may hold a phrase are left out, and too few others are left.
    assert audit.users is None
    (figure,) = model_audit_figures(audit)
    assert [series.x.tolist() for series in figure.series] == [[1.0, 400.0]]
    page = model_audit_page(audit)
    assert "Exposure of planted phrases" in page
    assert "Steinke" in page
    found_keys(json.loads(json.dumps(audit.to_json())), ModelAudit)


@pytest.mark.slow
def test_devices_that_trained_are_found_unless_noise_hides_them(setting) -> None:
    """Labels are random, so what helps on a device's own examples was learned from them."""
    random_labels = (
        "data={kind='classes', shape=[100], separation=0.0}",
        "training.task.kind=mlp",
        "population.examples_median=8",
        "population.examples_sigma=0.1",
        "training.client.local_steps=4",
    )
    audits = []
    for noise in NOISES:
        trace, run = setting(*random_labels, f"privacy.noise_multiplier={noise}")
        audits.append(audit_model(run, trace))
    quiet, loud = (audit.users for audit in audits)
    assert quiet is not None
    assert loud is not None
    assert (quiet.members, quiet.others) == (300, 150)
    assert quiet.area.low > 0.6
    assert loud.area.high < quiet.area.low
    assert loud.area.low < 0.6


@pytest.mark.slow
def test_a_score_is_the_mean_loss_that_training_took_away(sampled) -> None:
    trace, run = sampled
    trainer = LocalTrainer(scenario_of_trained(run, trace))
    device = np.array([7], np.uint64)
    count = min(5, int(trainer.examples.examples_on(device)[0]))
    found = _Model(run, trainer).gains(device, 5)
    examples = trainer.examples.examples(device, np.arange(count)[None, :])["tokens"]
    losses = []
    for parameters in (trainer.initial_parameters(), run.parameters()):
        model = named(torch.tensor(parameters)[None], trainer._task.shapes)
        each = [
            trainer._task.losses(model, {"tokens": torch.tensor(text[None, None])}).item()
            for text in examples[0]
        ]
        # A loss is the mean over the 8 words of a text.
        losses.append(8 * np.mean(each))
    assert found[0] == pytest.approx(losses[0] - losses[1], rel=1e-4)


@pytest.mark.slow
def test_the_upper_bound_counts_the_larger_weight_of_a_sample(sampled) -> None:
    """The device that trained most, k times, has a mu of 4 sqrt(k) / z."""
    trace, run = sampled
    scenario = scenario_of_trained(run, trace)
    rows = np.concatenate([each.device_ids for _, each in cohorts(trace, scenario)])
    _, counts = np.unique(rows, return_counts=True)
    found = audit_model(run, trace, devices=110)
    assert found.upper_epsilon == pytest.approx(
        gaussian_epsilon(4 * counts.max() ** 0.5 / 3.0, 1e-6)
    )
    assert counts.max() < read_patterns(trace).counts.max()


@pytest.mark.slow
def test_the_command_audits_a_model(phrased, tmp_path, fedray_command) -> None:
    trace, run = phrased[NOISES[0], 1]
    paths = (str(run.path), "--trace", str(trace.path))
    page = tmp_path / "page.html"
    code, out, _ = fedray_command("audit-model", *paths, "--json", "--page", str(page))
    document = json.loads(out)
    assert (code, document["references"], page.exists()) == (0, 4095, True)
    assert document["phrases"][1]["copies"] == 400
    code, out, _ = fedray_command("audit-model", *paths)
    assert code == 0
    assert "8 devices, 400 copies" in out
    code, _, err = fedray_command("audit-model", *paths, "--sample", "0")
    assert (code, err.count("\n"), "--sample=0 must be from 1" in err) == (2, 1, True)
    with pytest.raises(InputError, match="references=0 must be from 1"):
        audit_model(run, trace, references=0)
    moved = shutil.copytree(run.path, tmp_path / "far" / "away" / "m")
    code, _, err = fedray_command("audit-model", str(moved))
    assert (code, "move it there, or give it as `trace`" in err) == (2, True)


def test_a_run_without_noise_has_no_upper_bound(setting) -> None:
    trace, run = setting("privacy.mechanism=none", "training.cohort_sample=4")
    audit = audit_model(run, trace, devices=4)
    assert (audit.upper_epsilon, audit.phrases, audit.users) == (None, (), None)
    with pytest.raises(InputError, match="examples=0 must be from 1"):
        audit_model(run, trace, examples=0)


def test_a_uniform_sample_leaves_out_those_that_took_part(trace_of, small) -> None:
    """Where most devices took part, the rest is found: 123 - 100 of 123 ids."""
    trace = trace_of([[0, 1, 2, 3]] * 100, 4)
    draws = _Draws(small("rounds.count=4"), trace, 32)
    draws._joined = 123
    without = np.arange(100, dtype=np.uint64)
    assert draws.others(without).tolist() == list(range(100, 123))
    assert np.isin(draws.members(without), without).all()


def test_devices_without_data_are_left_out(small) -> None:
    """A source in which every second device has nothing."""
    points = ("data.kind=points", "training.task.kind=quadratic")
    trainer = LocalTrainer(small("training.enabled=true", *points).for_trainers())
    source = trainer._source
    counts = source.examples_on
    source.examples_on = lambda ids: np.where(ids % np.uint64(2) == 0, counts(ids), 0)  # pyright: ignore[reportAttributeAccessIssue]
    start = trainer.initial_parameters()
    found = trainer.measure_devices(start, np.arange(10, dtype=np.uint64), 4)
    assert found.device_ids.tolist() == [0, 2, 4, 6, 8]
    assert all(len(sums) == 5 for sums in found.sums.values())
