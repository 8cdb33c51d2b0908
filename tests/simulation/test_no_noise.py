"""Runs without noise: exact sums, no figure of privacy anywhere, and no claim that holds."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import fedray
from fedray.audit.so_far import RoundsSoFar, bound_so_far
from fedray.base.errors import InputError, ScenarioError
from fedray.mechanisms import Identity
from fedray.report.page import audit_page
from fedray.report.terminal import audit_text
from fedray.runs.learning import train
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario.privacy import NO_GUARANTEE, NoNoise
from fedray.server.learning import draws
from fedray.server.learning.aggregator import ModelAggregator
from fedray.server.learning.clip_rule import clip_rule_of
from fedray.trace.reader import Trace
from fedray.wire.messages import TrainReport

HERE = Placement(1, "in-process", checkpoint_seconds=0.0)
NONE = "privacy.mechanism=none"
CLAIM = (
    'mechanism = "tree"\nnoise_multiplier = 0.01\nrho = 1e6\nepsilon = 1e6\nmin_sep = 1\n'
    "max_participations = 4\n"
)
FIGURES = re.compile(r"epsilon|rho|&epsilon;|noise multiplier|noise_multiplier", re.IGNORECASE)


@pytest.fixture
def silent(trace_of, small) -> Trace:
    """A trace of a run without noise."""
    return trace_of([[0, 2], [1, 3], [0], [1, 2], [3]], 4, small(NONE))


def text_of(audit: fedray.Audit) -> str:
    return "\n".join(map(str, audit_text(audit)))


def test_none_is_read_as_a_text_a_kind_and_an_override(small) -> None:
    for override in (NONE, "privacy.mechanism.kind=none", "privacy.mechanism={kind='none'}"):
        scenario = small(override)
        assert scenario.privacy.mechanism == NoNoise()
        assert scenario.update_noise_multiplier == 0.0
        assert fedray.Scenario.from_tables(scenario.to_tables()) == scenario


def test_the_release_of_a_round_is_the_exact_sum_and_nothing_is_drawn(small, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("noise was drawn")

    monkeypatch.setattr(draws.NormalDraws, "fill", refuse)
    aggregator = ModelAggregator(small("training.enabled=true", NONE))
    aggregator.start(np.zeros(50, np.float32))
    update = np.linspace(-0.1, 0.1, 50)
    for _ in range(3):
        aggregator.draw_noise()
        aggregator.add(np.trunc(update * 2.0**40).astype(np.int64))
        released = aggregator.release().numpy()
        assert np.allclose(released, update, rtol=0, atol=1e-8)


def test_the_clip_norm_follows_exact_counts_in_every_round(small) -> None:
    scenario = small("training.enabled=true", NONE, "privacy.clipping.kind=adaptive")
    rule = clip_rule_of(scenario)
    norm = scenario.privacy.clip_norm
    for index in range(3):
        rule.commit(TrainReport(round_index=index, devices=10, accepted=10, short=2, long=8))
        # Three tenths fewer than the half are short, so the norm rises by exp(0.2 x 0.3).
        norm *= float(np.exp(0.2 * 0.3))
        assert rule.clip().norm == pytest.approx(norm, rel=1e-12)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("privacy.stop_at={rho=1.0}",), "without noise every round spends more"),
        (("privacy.trust={kind='devices',parameters=10}",), "devices would add no noise"),
        (
            ("privacy.clipping.kind=none", "privacy.encoding.kind=secagg"),
            "room for clipped updates only",
        ),
    ],
)
def test_what_needs_noise_or_clipping_is_refused_without(small, overrides, reason) -> None:
    with pytest.raises(ScenarioError, match=reason):
        small(NONE, *overrides)


def test_only_a_run_without_noise_may_leave_updates_unclipped(small) -> None:
    with pytest.raises(ScenarioError, match="scaled by the clip norm"):
        small("privacy.clipping.kind=none")
    clip = clip_rule_of(small(NONE, "privacy.clipping.kind=none", "privacy.clip_norm=0.5")).clip()
    assert (clip.norm, clip.zero_above) == (512.0, 512.0)


def test_tasks_that_share_devices_need_noise(small) -> None:
    tasks = {"a": {"privacy": {"mechanism": {"kind": "none"}}}, "b": {"training": {"seed": 3}}}
    tables = {**small().to_tables(), "tasks": tasks}
    with pytest.raises(ScenarioError, match="task a: privacy.mechanism='none'"):
        fedray.SeveralTasks.from_tables(tables)


def test_no_figure_of_privacy_is_shown_of_a_run_without_noise(silent, script) -> None:
    audit = fedray.audit_trace(silent)
    page, text, document = audit_page(audit), text_of(audit), audit.to_json_in_full()
    assert document["no_guarantee"] == NO_GUARANTEE
    assert (document["mechanisms"], document["guarantees"]) == ([], [])
    assert not document["over_rounds"]
    assert document["device_privacy"] is document["utility_rho"] is None
    assert NO_GUARANTEE in text
    assert not FIGURES.search(text)
    shown = re.sub(r"<script.*?</script>|<pre.*?</pre>|<style.*?</style>", "", page, flags=re.S)
    assert NO_GUARANTEE in shown
    assert not FIGURES.search(re.sub(r'data-\w+="[^"]*"', "", shown))
    assert "mechanisms" in script(page, "audit-data")
    with pytest.raises(InputError, match=NO_GUARANTEE):
        audit.write_events("events.json")
    with pytest.raises(InputError, match=NO_GUARANTEE):
        fedray.calibrate_trace(silent, epsilon=1.0)


def test_a_private_mechanism_can_still_be_calibrated_to_the_trace_of_a_run_without_noise(
    silent,
) -> None:
    found = fedray.calibrate_trace(silent, rho=0.5, mechanism=Identity())
    # A device of two rounds: sqrt(2) / z = mu, and mu^2 / 2 = rho.
    assert found.observed.noise_multiplier == pytest.approx(np.sqrt(2.0))
    assert found.run_noise_multiplier is None


def test_there_is_no_statement_of_a_run_without_noise(silent) -> None:
    with pytest.raises(InputError, match=f"{NO_GUARANTEE}, so there is no privacy to state here"):
        fedray.privacy_statement(fedray.audit_trace(silent))


def test_no_claim_holds_however_large_and_the_reason_is_the_noise(
    silent, tmp_path: Path, fedray_command
) -> None:
    (tmp_path / "claim.toml").write_text(CLAIM)
    claim = str(tmp_path / "claim.toml")
    code, out, _ = fedray_command("audit", str(silent.path), "--claim", claim, "--json")
    document = json.loads(out)
    assert code == 1
    assert document["claim_holds"] is False
    findings = {each["statement"]: each for each in document["findings"]}
    for statement in ("mechanism", "noise_multiplier", "rho", "epsilon"):
        assert findings[statement]["verdict"] == "broken"
        assert findings[statement]["explanation"] == NO_GUARANTEE
    assert findings["rho"]["found"] is None
    assert findings["min_sep"]["verdict"] == "holds"
    assert document["mechanisms"] == []
    code, out, _ = fedray_command("audit", str(silent.path), "--claim", claim, "--verbose")
    assert code == 1
    assert NO_GUARANTEE in " ".join(out.split())
    code, _, problem = fedray_command(
        "audit", str(silent.path), "--claim", claim, "--statement", str(tmp_path / "s")
    )
    assert code == 1  # the claim fails, whatever else cannot be written
    assert NO_GUARANTEE in problem


def test_a_noise_multiplier_without_a_mechanism_is_refused(silent) -> None:
    with pytest.raises(InputError, match="name a mechanism"):
        fedray.audit_trace(silent, noise_multiplier=3.0)


def test_live_progress_says_that_there_is_no_guarantee(small) -> None:
    times = np.array([0.0, 600.0])
    found = bound_so_far(small(NONE), RoundsSoFar(times, times, times))
    assert found.rho is found.epsilon is None
    assert not found.may_rest_on
    assert found.reason == NO_GUARANTEE


def test_training_without_noise_and_clipping_is_the_mean_of_what_devices_learned(
    small, tmp_path: Path
) -> None:
    """With and without clipping at a norm that no update reaches, to the last bit of the sums."""
    scenario = small(
        "population.devices=2000",
        "rounds.report_goal=20",
        "rounds.count=3",
        "training.enabled=true",
        "training.task.kind=quadratic",
        "data.kind=points",
        "training.cohort_sample=20",
        "training.evaluate_every=3",
        NONE,
    )
    trace = simulate(scenario, HERE, tmp_path / "t")
    loose = train(trace, scenario.with_overrides("privacy.clip_norm=1024"), HERE, tmp_path / "a")
    unclipped = train(
        trace, scenario.with_overrides("privacy.clipping.kind=none"), HERE, tmp_path / "b"
    )
    assert unclipped.metrics["clipped_share"].max() == 0.0
    assert unclipped.last_evaluation() == loose.last_evaluation()


def test_without_noise_devices_may_count_by_their_examples(small) -> None:
    """The step is the mean by examples, sum of n Delta over sum of n; with noise it is refused, because the number of devices is known."""
    weighting = "training.weighting={kind='clipped',example_cap=100,least_mean_weight=1e-6}"
    with pytest.raises(ScenarioError, match="meant for Poisson samples"):
        small("training.enabled=true", weighting)
    keys = ("training.enabled=true", "training.server.momentum=0.0")
    aggregator = ModelAggregator(small(*keys, NONE, weighting))
    aggregator.start(np.zeros(4, np.float32))
    examples, updates = np.array([10, 70, 100]), np.array([[0.5], [-0.2], [0.1]]) * np.ones(4)
    weighted = (examples / 100)[:, None] * updates
    aggregator.add((weighted.sum(axis=0) * 2.0**40).astype(np.int64))
    report = TrainReport(round_index=0, devices=3, weight_sum=round(1.8 * 2.0**40))
    _, parameters = aggregator.commit(report)
    expected = (examples[:, None] * updates).sum(axis=0) / examples.sum()
    assert parameters == pytest.approx(expected, rel=1e-5)
