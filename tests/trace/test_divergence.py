"""That a training diverged is said of those that did, and of no healthy one; the decision by itself; and the cause that is named."""

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest

from fedray.encoding.tables import FIXED_POINT_BITS
from fedray.trace.divergence import ERRORS, Change, Trend, has_diverged, seen
from fedray.trace.trained import TrainedRun, TrainedRunWriter
from fedray.wire.messages import (
    Evaluated,
    Evaluation,
    Measured,
    Metric,
    TaskDescription,
    TrainingMetrics,
    TrainReport,
)

LOSS, ACCURACY = Metric("loss", "nats", "lower"), Metric("accuracy", "share", "higher")
COUNTS = {"examples": 36, "available": 40, "devices": 9, "held_out_devices": 12}


def trained_with(
    directory: Path,
    losses,
    not_finite: int = 0,
    held_out: tuple[tuple[Measured, Measured], ...] = (),
    noise: float = 0.0,
    **left_out: int,
) -> TrainedRun:
    """A trained run whose rounds had these losses, of 10 devices each; NaN: of none. `held_out` are loss and accuracy before it and after."""
    metrics = (LOSS, ACCURACY)[: len(held_out)]
    after = {each.name: end for each, (_, end) in zip(metrics, held_out, strict=True)}
    rows = [
        TrainingMetrics(
            TrainReport(
                round_index=place,
                devices=10,
                trained=0 if np.isnan(loss) else 10,
                not_finite=not_finite,
                **left_out,
                loss_sum=0 if np.isnan(loss) else round(10 * loss * 2.0**FIXED_POINT_BITS),
            ),
            Evaluation(after, Evaluated(**COUNTS)),
        )
        for place, loss in enumerate(losses)
    ]
    document = {
        "trace_digest": "0" * 64,
        "trace": "..",
        "update_noise": noise,
        "noise_warning": "",
        "start": {e.name: start.value for e, (start, _) in zip(metrics, held_out, strict=True)},
        "start_errors": {
            e.name: start.standard_error for e, (start, _) in zip(metrics, held_out, strict=True)
        },
        "evaluated": COUNTS,
        "rounds": len(rows),
        "seed": 0,
        "scenario": {
            "privacy": {
                "mechanism": {"kind": "tree" if noise else "none"},
                "clipping": {"kind": "fixed"},
                "clip_norm": 2.0,
            }
        },
        "encoding": {},
        "notes": [],
    }
    with TrainedRunWriter(directory) as writer:
        description = TaskDescription({"w": (2,)}, metrics, {})
        path = writer.finish(rows, description, np.zeros(2, np.float32), document)
    return TrainedRun.open(path)


ROUNDS = np.arange(120.0)
DIVERGED = {
    "at once, and stays there": np.where(ROUNDS < 4, 2.3 * (1 + 4 * ROUNDS), 38.0),
    "after it had learned": np.where(ROUNDS < 60, 2.3 / (1 + ROUNDS), 0.2 * (ROUNDS - 59)),
    "of a task whose losses are negative": -4.0 + 0.2 * ROUNDS,
    "in twenty rounds": 2.3 * (1 + np.arange(20)),
}
HEALTHY = {
    "learns": 2.3 / (1 + ROUNDS / 10),
    "learns nothing": np.full(120, 2.3),
    "forgets a little": 2.3 + 0.01 * ROUNDS,
    "starts where another training ended": np.full(120, 1e-4),
    "has negative losses": -1.0 - 0.01 * ROUNDS,
    "rises in too few rounds to tell": 2.3 * (1 + np.arange(19)),
    "has a device with examples in one round only": np.array([np.nan] * 119 + [2.3]),
}


def test_a_report_has_its_means_in_their_own_units() -> None:
    one = 1 << FIXED_POINT_BITS
    report = TrainReport(round_index=0, trained=2, loss_sum=3 * one, norm_sum=one)
    assert (report.mean_loss, report.mean_norm) == (1.5, 0.5)
    assert TrainReport(round_index=0).mean_loss is None


@pytest.mark.parametrize("name", DIVERGED)
def test_a_loss_far_above_the_initial_model_s_is_told_with_remedies(tmp_path, name: str) -> None:
    trained = trained_with(tmp_path / "t", DIVERGED[name])
    first, last = (
        DIVERGED[name][0],
        np.median(DIVERGED[name][-max(10, len(DIVERGED[name]) // 10) :]),
    )
    assert (
        f"the loss on the devices was {first:.4f} in the first round and {last:.4f} in"
        in trained.divergence
    )
    for key in ("client.learning_rate", "server.learning_rate"):
        assert key in trained.divergence
    assert trained.to_json()["notes"] == [trained.divergence]
    # Noise that is too much is named before the rates.
    trained.document["noise_warning"] = "Much noise."
    del trained.divergence
    said = trained.divergence
    assert said.find("Much noise.") < said.find("lower training.client.learning_rate")
    assert trained.to_json()["notes"] == [said]


@pytest.mark.parametrize("name", HEALTHY)
def test_of_a_healthy_training_nothing_is_told(tmp_path: Path, name: str) -> None:
    trained = trained_with(tmp_path / "t", HEALTHY[name])
    assert trained.divergence == ""
    assert trained.to_json()["notes"] == []


@pytest.mark.parametrize(
    ("left_out", "said"),
    [
        ({"without_examples": 10}, "(30 without examples)"),
        (
            {"without_examples": 4, "damaged": 6},
            "(12 without examples, 18 with damaged data)",
        ),
        ({}, "(none took part)"),
    ],
)
def test_a_model_that_no_device_changed_is_named_so(tmp_path: Path, left_out, said: str) -> None:
    trained = trained_with(tmp_path / "t", np.full(3, np.nan), **left_out)
    expected = f"The model was never trained: no device added an update {said}."
    assert trained.divergence == expected
    assert trained.to_json()["notes"] == [expected]
    assert not any("nan" in cell for pair in trained.finals for cell in pair)


def test_rounds_of_few_and_unlike_devices_are_no_divergence(tmp_path: Path) -> None:
    """Losses that do not change but differ from round to round by factors: 200 such runs."""
    rng = np.random.default_rng(5)
    drawn = (rng.lognormal(0.0, 0.4, size=rounds) for rounds in [20, 60, 120, 200] * 50)
    said = [trained_with(tmp_path / str(i), each).divergence for i, each in enumerate(drawn)]
    assert len(said) == 200
    assert not any(said)


@pytest.mark.parametrize(("not_finite", "is_told"), [(0, False), (1, True), (5, True)])
def test_updates_that_are_not_finite_are_counted(tmp_path, not_finite: int, is_told: bool) -> None:
    trained = trained_with(tmp_path / "t", np.full(4, 2.3), not_finite)
    said = f"{4 * not_finite} of {4 * (10 + not_finite)} updates were not finite"
    assert (said in trained.divergence) == is_told
    assert bool(trained.divergence) == is_told


def test_a_model_that_only_noise_changed_diverged_though_it_looks_better(tmp_path: Path) -> None:
    better = Measured(2.3, 0.01), Measured(2.0, 0.01)
    trained = trained_with(tmp_path / "t", np.full(4, np.nan), 24, held_out=(better,), noise=0.1)
    assert "The training diverged: 96 of 96 updates were not finite" in trained.divergence


def test_one_update_of_a_thousand_that_is_not_finite_is_not_many(tmp_path: Path) -> None:
    trained = trained_with(tmp_path / "t", np.full(1000, 2.3))
    trained.metrics["not_finite"] = np.arange(1000) == 7
    assert trained.divergence == ""


TRENDS: tuple[Trend, ...] = ("better", "alike", "worse", "not finite")
KNOWN = [*itertools.product(TRENDS, TRENDS)]
DECISIONS = {
    # Trends of loss and accuracy: diverged, and diverged if the loss on the devices rose far too.
    ("better", "better"): (False, False),
    ("better", "alike"): (False, False),
    ("better", "worse"): (False, False),
    ("alike", "better"): (False, False),
    ("alike", "alike"): (False, False),
    ("alike", "worse"): (False, True),
    ("worse", "better"): (False, False),
    ("worse", "alike"): (False, True),
    ("worse", "worse"): (True, True),
    ("worse",): (True, True),
    ("alike",): (False, False),
    ("better",): (False, False),
    (): (False, True),
    **{each: (True, True) for each in KNOWN if "not finite" in each},
}


@pytest.mark.parametrize("trends", DECISIONS)
def test_the_decision_is_that_of_the_table(trends: tuple[Trend, ...]) -> None:
    found = tuple(has_diverged(trends, has_risen=risen) for risen in (False, True))
    assert found == DECISIONS[trends]


@pytest.mark.parametrize("trends", [(), *((each,) for each in TRENDS), *KNOWN])
def test_more_evidence_never_takes_a_divergence_back_and_one_better_figure_always_does(
    trends: tuple[Trend, ...],
) -> None:
    """Over all trends and both further facts: whatever gets worse, a divergence stays one."""
    for risen, often in itertools.product((False, True), repeat=2):
        found = has_diverged(trends, has_risen=risen, is_often_not_finite=often)
        assert found <= has_diverged(trends, has_risen=True, is_often_not_finite=often)
        assert found <= has_diverged(trends, has_risen=risen, is_often_not_finite=True)
        for place, each in enumerate(trends):
            for worse in TRENDS[TRENDS.index(each) :]:
                changed = (*trends[:place], worse, *trends[place + 1 :])
                assert found <= has_diverged(changed, has_risen=risen, is_often_not_finite=often)
        if "not finite" in trends:
            assert found
        elif "better" in trends:
            assert not found
        assert found == has_diverged(trends[::-1], has_risen=risen, is_often_not_finite=often)


def test_a_trend_is_that_of_the_difference_in_its_errors() -> None:
    """Of 2,000 drawn pairs of evaluations: beyond 1.96 errors of independent figures, and in the direction that the metric gives."""
    rng, counts = np.random.default_rng(3), dict.fromkeys(TRENDS, 0)
    for _ in range(2000):
        before, after = (Measured(*rng.uniform((0, 0.01), (1, 0.2)).tolist()) for _ in range(2))
        gain = after.value - before.value
        error = math.sqrt(before.standard_error**2 + after.standard_error**2)
        expected = "alike" if abs(gain) <= ERRORS * error else ("worse", "better")[gain > 0]
        assert Change(ACCURACY, before, after).trend == expected
        opposite = {"worse": "better", "better": "worse"}
        assert Change(LOSS, before, after).trend == opposite.get(expected, "alike")
        counts[expected] += 1
    assert min(counts[each] for each in ("worse", "better", "alike")) > 100


@pytest.mark.parametrize(
    ("before", "after", "trend"),
    [
        ((0.5, 0.1), (math.nan, math.nan), "not finite"),
        ((0.5, 0.1), (math.inf, 0.1), "not finite"),
        ((0.5, 0.1), (0.0, 0.0), "worse"),
        # Devices with the same examples have no error, or that of rounding; one device has none.
        ((0.28, 0.0), (0.94, 0.0), "better"),
        ((0.28, 1e-9), (0.94, 1e-9), "better"),
        ((0.28, math.nan), (0.94, math.nan), "better"),
        ((0.94, 0.0), (0.28, 0.0), "worse"),
        ((0.28, 0.0), (0.30, 0.0), "alike"),
        ((0.28, 1e-9), (0.26, 1e-9), "alike"),
        ((0.28, 0.0), (0.28, 0.0), "alike"),
        ((0.0, 0.0), (0.0, 0.0), "alike"),
        # Nearly the same examples.
        ((0.28, 0.001), (0.94, 0.001), "better"),
    ],
)
def test_a_figure_without_error_shows_a_trend_only_if_it_changes_by_more_than_a_tenth(
    before, after, trend: str
) -> None:
    assert Change(ACCURACY, Measured(*before), Measured(*after)).trend == trend


@pytest.mark.parametrize("error", [0.0, 1e-9, 0.002, math.nan])
def test_one_broken_device_of_a_training_on_the_same_held_out_examples_is_no_divergence(
    tmp_path: Path, error: float
) -> None:
    """Of 150 updates 2 were not finite, while both figures got far better."""
    held_out = (
        (Measured(1.717, error), Measured(0.18, error)),
        (Measured(0.28, error), Measured(0.94, error)),
    )
    losses = np.linspace(1.717, 0.18, 15)
    trained = trained_with(tmp_path / "t", losses, held_out=held_out)
    trained.metrics["not_finite"] = 2 * (np.arange(15) == 3)
    assert trained.divergence == ""
    assert trained.seen == (
        "2 of 152 updates were not finite while the held-out loss fell from 1.7170 to 0.1800 and "
        "the held-out accuracy rose from 0.2800 to 0.9400."
    )
    assert not any("learning_rate" in each for each in trained.warnings)


def test_what_is_seen_names_what_got_worse_beside_what_did_not() -> None:
    fell = Change(LOSS, Measured(2.3, 0.01), Measured(1.1, 0.01))
    rose = Change(LOSS, Measured(2.3, 0.01), Measured(5.1, 0.2))
    more = Change(ACCURACY, Measured(0.13, 0.01), Measured(0.83, 0.01))
    same = Change(ACCURACY, Measured(0.13, 0.01), Measured(0.14, 0.01))
    assert seen([rose, more], []) == (
        "The held-out loss rose from 2.3000 to 5.1000 while the held-out accuracy rose from 0.1300 "
        "to 0.8300."
    )
    assert seen([rose, same], []).endswith(
        " while the held-out accuracy (0.1300, then 0.1400) changed by less than its errors."
    )
    assert seen([fell, more], ["3 of 40 updates were not finite"]).startswith(
        "3 of 40 updates were not finite while the held-out loss fell from 2.3000 to 1.1000 and "
    )
    assert seen([fell, more], []) == seen([fell, same], []) == seen([], []) == ""


BETTER = (Measured(2.3, 0.01), Measured(1.1, 0.02)), (Measured(0.13, 0.01), Measured(0.83, 0.01))
WORSE = (Measured(2.3, 0.01), Measured(9.1, 0.2)), (Measured(0.53, 0.01), Measured(0.11, 0.01))
CHANCE = (Measured(2.3, 0.01), Measured(38.0, 0.9)), (Measured(0.10, 0.01), Measured(0.10, 0.01))


@pytest.mark.parametrize("losses", DIVERGED)
def test_a_model_that_learned_did_not_diverge_whatever_the_loss_on_the_devices(
    tmp_path: Path, losses: str
) -> None:
    trained = trained_with(tmp_path / "t", DIVERGED[losses], held_out=BETTER)
    assert trained.divergence == ""
    assert trained.seen.startswith("The loss on the devices was ")
    assert trained.seen.endswith(
        " while the held-out loss fell from 2.3000 to 1.1000 and the held-out accuracy rose from "
        "0.1300 to 0.8300."
    )
    assert trained.warnings == trained.to_json()["notes"] == [trained.seen]


def test_a_model_at_chance_diverged_if_the_loss_on_the_devices_rose_too(tmp_path: Path) -> None:
    """Its accuracy cannot fall. A held-out loss that rises while that on the devices does not is another thing."""
    rose = trained_with(tmp_path / "r", DIVERGED["at once, and stays there"], held_out=CHANCE)
    assert rose.divergence.startswith("The training diverged: the loss on the devices was 2.3")
    assert " and the held-out loss rose from 2.3000 to 38.0000. " in rose.divergence
    # Losses that jump, whose rise no deviations of their own show, and in few rounds.
    jumps = trained_with(tmp_path / "j", [2.3, 900.0, 3.0, 5000.0, 40.0], held_out=CHANCE)
    assert jumps.divergence.startswith("The training diverged: the held-out loss rose from 2.3000 ")
    overfit = trained_with(tmp_path / "o", HEALTHY["learns"], held_out=CHANCE)
    assert overfit.divergence == ""
    assert overfit.seen.startswith("The held-out loss rose from 2.3000 to 38.0000 while ")


@pytest.mark.parametrize(
    ("noise", "warning", "mean_norm", "cause"),
    [
        (0.0, "", 4.0, ""),
        (0.032, "", 4.0, " The noise on a mean update, in effect 0.032 times the clip norm, is not the cause."),
        # Without the norms of updates nothing is known of a cause.
        (0.032, "", None, ""),
        (0.5, "", 0.01, " is 100 times the mean norm of an update: lower privacy.clip_norm to near 0.005 of it."),
        (40.0, "The noise is 40 times the clip norm: raise it.", 4.0, " The noise is 40 times"),
    ],
)  # fmt: skip
def test_the_cause_is_the_noise_only_if_the_printed_figure_says_so(
    tmp_path: Path, noise: float, warning: str, mean_norm: float | None, cause: str
) -> None:
    trained = trained_with(tmp_path / "t", HEALTHY["learns"], held_out=WORSE, noise=noise)
    trained.document |= {"noise_warning": warning, "mean_norm": mean_norm}
    said = trained.divergence
    assert said.startswith(
        "The training diverged: the held-out loss rose from 2.3000 to 9.1000 and the held-out "
        "accuracy fell from 0.5300 to 0.1100. "
    )
    assert cause in said
    assert "ower training.client.learning_rate or training.server.learning_rate." in said
    # Without noise nothing is said of it, and a share of what an update bears is no cause.
    assert ("noise" in said) == (cause != "")
    dominates = re.search(r"If it still diverges then", said) is not None
    assert dominates == (noise * 2.0 / (mean_norm or 2.0) > 1)


@pytest.mark.slow
def test_the_command_and_the_page_warn_of_a_real_one(tmp_path: Path, fedray_command) -> None:
    overrides = ("rounds.count=40", "population.devices=5_000", "rounds.report_goal=20")
    options = [part for each in overrides for part in ("--set", each)]
    for name, multiplier, is_told in (("good", 0.1, False), ("bad", 1000, True)):
        rates = ("--set", "training.server.learning_rate=1", "--set", f"name={name}")
        noise = ("--set", f"privacy.noise_multiplier={multiplier}")
        code, out, _ = fedray_command(
            *("run", "small", *options, *rates, *noise, "--out", str(tmp_path / name)),
            *("--place", "backend=in-process"),
        )
        assert code == 0
        assert ("WARNING   The training diverged: the loss" in out) == is_told
        page = (tmp_path / name / "report.html").read_text()
        assert ("The training diverged" in page) == is_told
        # An accuracy says its data wherever it stands.
        said = re.search(r"held-out accuracy +\S+ .*\n?.* on [\d,]+ of [\d,]+ examples of", out)
        assert said is not None
    _, out, _ = fedray_command("report", str(tmp_path / "bad" / "training"))
    assert "The training diverged" in Path(out.strip()).read_text()


def test_a_metric_that_is_never_a_number_is_named_beside_others_that_are(tmp_path: Path) -> None:
    number, none = Measured(0.5, 0.1), Measured(math.nan, math.nan)
    found = trained_with(tmp_path / "one", [0.5, 0.4], held_out=((number, number), (none, none)))
    assert (
        "Held-out accuracy: not a number in any evaluation; see the task's code" in found.warnings
    )
    for name, end in (("both", number), ("neither", none)):
        run = trained_with(tmp_path / name, [0.5, 0.4], held_out=((end, end), (end, end)))
        assert not [each for each in run.warnings if "not a number in any" in each]
