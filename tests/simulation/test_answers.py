"""Answers to questions: coverage, noise, privacy, and the commands around them."""

import dataclasses
import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pytest
from scipy.stats import binom

import fedray
from fedray.audit.auditing import audit_trace
from fedray.audit.guarantees import Limits
from fedray.audit.questions import privacy_of_answers
from fedray.base.errors import InputError, ScenarioError
from fedray.base.mistakes import classes_in
from fedray.base.rng import Stream, stream_generator
from fedray.base.rounding import up
from fedray.clients.data.form import read_vocabulary
from fedray.clients.population import habits_on
from fedray.clients.values.values import held_by, of_rows, values_of
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import Composed, Repeated
from fedray.mechanisms.accounting.zcdp import zcdp_epsilon
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.questions.added_noise import DiscreteGaussian
from fedray.mechanisms.questions.registry import AnyQuestion
from fedray.report.audits import answers_table, guarantees_table
from fedray.report.files import drawn_figure, figure_csv
from fedray.runs.answers import Answers, answer
from fedray.runs.coverage import CoverageGroup
from fedray.runs.simulation import resume, simulate
from fedray.runs.window_answers import Row, TrustAnswer, WindowAnswer, pooled
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.scenario.analytics import Analytics, needed_by_question
from fedray.scenario.data import ParquetData
from fedray.trace.reader import Trace
from fedray.wire.messages import RunProgress
from fedray.wire.zones import zone_offsets_on

HERE = Placement(1, "in-process")
MEAN = {"kind": "mean", "low": -20.0, "high": 20.0}
NUMBERS = {"kind": "numbers", "mean": 1.0, "per_zone_hour": 0.5, "by_habit": 4.0}
WORDS = {"kind": "words", "words": 64, "per_device": 2.0}
LEAST = 150
TRUSTS = (
    {"kind": "server"},
    {"kind": "enclave"},
    {"kind": "devices", "least_devices": LEAST},
    {"kind": "shuffled", "least_devices": LEAST},
    {"kind": "local"},
)
"""Every trust model."""
KINDS = tuple(each["kind"] for each in TRUSTS)
QUESTIONS = (
    {"kind": "count"},
    {"kind": "sum", "low": -20.0, "high": 20.0},
    MEAN,
    {"kind": "quantiles", "low": -20.0, "high": 20.0, "shares": [0.5]},
    {"kind": "histogram", "size": 64, "most_keys": 2},
    {"kind": "prefix_tree", "branching": 8, "levels": 2},
    {"kind": "open_histogram", "most_keys": 2},
    {"kind": "distinct", "most_keys": 2},
)
"""Every question."""
ONE_NOISE = ("open_histogram", "distinct")


def tables(question: dict = MEAN, values: dict = NUMBERS, **more: object) -> dict:
    return {
        "seed": 5,
        "population": {
            "devices": 3000,
            "unreachable": 0.1,
            "joins_per_day": 600.0,
            "lifetime_days": 4.0,
            "time_zones": [
                {"utc_offset_hours": -6.0, "share": 0.5},
                {"utc_offset_hours": 8.0, "share": 0.5},
            ],
            "classes": [{"name": "old", "share": 0.3}, {"name": "new", "share": 0.7}],
        },
        "participation": {"timer_hours": 13.0},
        "rounds": {
            "mode": "upload-then-train",
            "count": 3,
            "report_goal": LEAST,
            "max_days": 2.0,
            "uploads": {"window_hours": 8.0, "windows": 3, "schedule": {"kind": "all"}},
        },
        "analytics": {
            "question": question,
            "values": values,
            "trust": list(TRUSTS if question["kind"] not in ONE_NOISE else TRUSTS[:2]),
            "epsilon": 2.0,
            "delta": 1e-6,
        },
        **more,
    }


def scenario(*given: dict, **more: object) -> Scenario:
    return Scenario.from_tables(tables(*given, **more))


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Trace:
    return simulate(scenario(), HERE, tmp_path_factory.mktemp("answers") / "t")


@pytest.fixture(scope="module")
def answers(trace: Trace) -> Answers:
    return answer(trace)


def came_in(trace: Trace, window: int) -> list[int]:
    """Devices of a round, by looking at every row."""
    found = [
        int(device)
        for part in trace.accepted()
        for device, index in zip(part.device_ids, part.rounds, strict=True)
        if index == window
    ]
    return sorted(found)


def test_an_untrained_scenario_needs_no_table_training() -> None:
    assert not scenario().training.enabled
    assert scenario(training={}).training.enabled


def test_the_trace_does_not_depend_on_the_question_or_on_shards(
    trace: Trace, answers: Answers, tmp_path: Path
) -> None:
    """Nor do the answers on shards: with 140,000 devices there are three."""
    other = scenario({"kind": "count"}, {"kind": "words"})
    assert simulate(other, HERE, tmp_path / "other").digest == trace.digest
    value = scenario().with_overrides(
        "population.devices=140000", "rounds.uploads.window_hours=1.0"
    )
    one, three = (
        simulate(value, Placement(shards, "in-process"), tmp_path / str(shards))
        for shards in (1, 3)
    )
    assert one.digest == three.digest
    documents = [json.dumps({**answer(each).to_json(), "trace": ""}) for each in (one, three)]
    assert documents[0] == documents[1]


def test_a_run_that_was_interrupted_has_the_same_answers(answers: Answers, tmp_path: Path) -> None:
    def stop(progress: RunProgress) -> None:
        if progress.committed == 2:
            raise KeyboardInterrupt

    often = Placement(1, "in-process", checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        simulate(scenario(), often, tmp_path / "t", stop)
    again = answer(resume(tmp_path / "t", HERE))
    assert {**again.to_json(), "trace": ""} == {**answers.to_json(), "trace": ""}


def test_coverage_is_what_looking_at_every_device_finds(trace: Trace, answers: Answers) -> None:
    """The slow twin asks the population for one device after the other."""
    from fedray.clients.population import DeviceModel, Presence, are_usable, present_between
    from fedray.wire.device_classes import DeviceClasses, classes_on

    value = scenario()
    presence, classes = Presence.of(value), DeviceClasses.of(value)
    for window, found in enumerate(answers.windows):
        start, end = 8.0 * 3600 * window, 8.0 * 3600 * (window + 1)
        came = set(came_in(trace, window))
        expected: dict[tuple[str, str], list[int]] = {}
        for device in range(value.device_ids):
            one = np.array([device], np.uint64)
            joins, leaves = present_between(presence, one)
            if not (joins[0] < end and leaves[0] > start):
                assert device not in came
                continue
            quarter = int(4 * habits_on(value, one)[0])
            names = {
                "all": "all",
                "zone": f"UTC{zone_offsets_on(value, one)[0]:+g}",
                "class": ("old", "new")[classes_on(classes, one)[0]],
                "habit": f"{25 * quarter} to {25 * quarter + 25} %",
                "use": "eligible"
                if are_usable(DeviceModel.of(value), one)[0]
                else "never eligible",
            }
            for group in names.items():
                counts = expected.setdefault(group, [0, 0])
                counts[0] += 1
                counts[1] += device in came
        rows = {(each.by, each.label): [each.devices, each.came] for each in found.coverage}
        assert rows == expected
        assert rows["use", "never eligible"][1] == 0
        assert (found.devices, found.came) == tuple(expected["all", "all"])
        assert (found.start_hours, found.end_hours) == (8.0 * window, 8.0 * (window + 1))


def test_exact_answers_and_biases_are_those_of_the_devices(trace: Trace, answers: Answers) -> None:
    value = scenario()
    ids = np.arange(value.device_ids, dtype=np.uint64)
    numbers = held_by(values_of(value), ids).values
    for window, found in enumerate(answers.windows):
        came = came_in(trace, window)
        clipped = np.clip(numbers[came], -20.0, 20.0).mean()
        for each in found.answers:
            (row,) = each.rows
            assert row.of_came == pytest.approx(numbers[came].mean(), rel=1e-12)
            assert row.bounded == pytest.approx(clipped, rel=1e-12)
            assert each.bounding == pytest.approx(clipped - row.of_came, abs=1e-12)
            assert each.coverage == pytest.approx(row.of_came - row.of_all, rel=1e-9)
            # Devices that come early have other numbers: those of zones at night, and of frequent habits.
            assert abs(each.coverage) > 0.1
            assert each.error == pytest.approx(abs(row.estimate - clipped), rel=1e-9)
            assert each.inside == (row.low <= clipped <= row.high)
            assert each.half_interval == pytest.approx((row.high - row.low) / 2, rel=1e-12)


def test_an_additive_answer_is_compared_with_all_devices_at_their_number(trace: Trace) -> None:
    """The number of devices that hold a word, from those that came times all over those."""
    found = answer(
        trace, scenario=asking({"kind": "histogram", "size": 64, "most_keys": 64}, WORDS)
    )
    value = asking({"kind": "count"}, WORDS)
    ids = np.arange(value.device_ids, dtype=np.uint64)
    held = held_by(values_of(value), ids)
    first = found.windows[0]
    assert first.scale == first.devices / first.came
    of_came = of_rows(held, np.array(came_in(trace, 0)))
    counts = np.bincount(of_came.keys, minlength=64)
    row = first.answers[0].rows[0]
    key = next(key for key in range(64) if values_of(value).label(key) == row.label)
    assert row.of_came == counts[key]
    assert row.label == "word0"


def asking(question: dict, values: dict) -> Scenario:
    """The scenario of the trace, with another question."""
    return scenario(question, values)


MANY = {"kind": "words", "words": 64, "per_device": 6.0}
"""More words of a device than a question counts."""


def test_who_came_and_holds_a_word_is_counted_before_bounding_as_device_after_device_finds(
    trace: Trace,
) -> None:
    """The slow twin asks one device of the trace after the other what it holds. Sums over windows
    count a device once in each, and are those of the windows below."""
    value = asking({"kind": "histogram", "size": 64}, MANY)
    values, found = values_of(value), answer(trace, scenario=value)
    assert found.pooled is not None
    together = dict.fromkeys(range(64), 0)
    for window, each in enumerate(found.windows):
        counts = dict.fromkeys(range(64), 0)
        for device in came_in(trace, window):
            for key in set(values.on(np.array([device], np.uint64)).keys.tolist()):
                counts[key] += 1
        together = {key: together[key] + counts[key] for key in together}
        for by in each.answers:
            assert {row.label: row.of_came for row in by.rows} == {
                values.label(key): count for key, count in counts.items()
            }
            # A device counts at one key, and one that holds none at none.
            assert sum(row.bounded for row in by.rows) <= each.came < sum(counts.values())
    pooled = found.pooled
    assert pooled.came == sum(each.came for each in found.windows)
    for place, by in enumerate(pooled.answers):
        below = [{row.label: row for row in e.answers[place].rows} for e in found.windows]
        for row in by.rows:
            for name in ("estimate", "bounded", "of_came", "of_all"):
                parts = sum(getattr(each[row.label], name) for each in below)
                assert getattr(row, name) == pytest.approx(parts, rel=1e-12)
            variance = sum(each[row.label].standard_error ** 2 for each in below)
            assert row.standard_error == pytest.approx(math.sqrt(variance), rel=1e-12)
        assert {row.label: row.of_came for row in by.rows} == {
            values.label(key): count for key, count in together.items()
        }
    rows, windows, errors, coverage, _ = found.tables()
    largest = pooled.answers[0].rows[0]
    cells = [f"{largest.of_all:,.0f}", f"{largest.of_came:,.0f}", f"{largest.bounded:,.0f}"]
    held = "hold it (device-windows)"
    assert rows.columns[:5] == ("row", "trust", held, "hold it and came", "after bounding")
    share = rows.rows[0][rows.columns.index("share of answers")]
    assert share == f"{100 * largest.estimate / pooled.came:.1f} %"
    # Every interval is that of bounded contributions, as the headline withholds it.
    assert rows.shared == ("interval",)
    assert "In all rows: interval each row, after bounding only." in rows.notes
    assert any(note.startswith("After bounding only: ") for note in rows.notes)
    said = f"{pooled.came:,} answers of {found.devices:,} devices in 3 windows"
    assert said in found.headline
    came = {device for window in range(3) for device in came_in(trace, window)}
    assert found.devices == len(came)
    assert (
        "Asked at epsilon 2, delta 1e-06 per device and window, with most_keys 1." in found.headline
    )
    assert "share of all" not in errors.columns
    least = int(binom.ppf(1e-3, 64, 0.95)) / 64
    assert any(f"chance leaves {100 * least:.1f} % or more inside" in each for each in errors.notes)
    assert list(rows.rows[0][:5]) == [largest.label, "server", *cells]
    # Every trust model has its rows, and each window a line.
    assert [row[1] for row in rows.rows] == [kind for kind in KINDS for _ in range(12)]
    assert [row[0] for row in windows.rows[:: len(KINDS)]] == [
        *(f"hours {8 * each} to {8 * each + 8}" for each in range(3)),
        "the sum of 3 windows",
    ]
    assert list(windows.rows[-len(KINDS)][2:5]) == cells
    assert [row[0] for row in coverage.rows][:3] == ["all", "zone UTC-6", "zone UTC+8"]


def test_a_mean_of_windows_is_weighted_by_who_came(answers: Answers) -> None:
    pooled = answers.pooled
    assert pooled is not None
    weights = np.array([each.came for each in answers.windows]) / pooled.came
    for place, by in enumerate(pooled.answers):
        below = [each.answers[place].rows[0] for each in answers.windows]
        (row,) = by.rows
        for name in ("estimate", "bounded", "of_came", "of_all"):
            parts = [getattr(each, name) for each in below]
            assert getattr(row, name) == pytest.approx(weights @ parts, rel=1e-12)
        errors = weights * [each.standard_error for each in below]
        assert row.standard_error == pytest.approx(math.sqrt(errors @ errors), rel=1e-12)


@pytest.mark.parametrize("kind", ["histogram", "prefix_tree", "open_histogram"])
def test_the_headline_names_the_least_key_that_bounds_less_than_noise(
    trace: Trace, kind: str
) -> None:
    question = {
        "histogram": {"size": 64},
        "prefix_tree": {"branching": 8, "levels": 2},
        "open_histogram": {},
    }[kind]
    question = {"kind": kind, **question}
    found = answer(trace, scenario=asking(question, MANY))
    assert found.pooled is not None
    first = found.pooled.answers[0]
    assert first.is_mostly_bounded
    largest = first.rows[0]
    # An interval around a bounded count would be taken for one of what devices hold.
    said = f"{largest.label} {largest.estimate:,.4g} after bounding ({largest.of_came:,.0f} before)"
    assert said.replace(",", "") in found.headline.replace(",", "")
    told = re.search(
        r"so no interval is given: analytics\.question\.(most_keys=(\d+)) would", found.headline
    )
    assert told is not None
    assert told[1] == found.remedy
    most, keys = int(told[2]), set(first.labels)

    def errors_at(most_keys: int) -> tuple[float, float]:
        """Bounding and noise of the same rows, by asking again."""
        asked = answer(trace, scenario=asking({**question, "most_keys": most_keys}, MANY)).pooled
        assert asked is not None
        rows = [row for row in asked.answers[0].rows if row.label in keys]
        changes = np.array([row.bounded - row.of_came for row in rows])
        noise = np.array([row.standard_error for row in rows])
        return math.sqrt(np.mean(changes**2)), math.sqrt(np.mean(noise**2))

    bounding, noise = errors_at(most)
    # Another sample of keys is drawn for the question that is asked again.
    assert bounding <= 1.3 * noise
    bounding, noise = errors_at(most - 1)
    assert bounding > noise / 1.3
    wide = answer(trace, scenario=asking({**question, "most_keys": 64}, MANY))
    assert (wide.remedy, "after bounding" in wide.headline) == ("", False)
    assert re.search(r"largest word0 [\d.,]+ \([\d.,]+ to [\d.,]+\)", wide.headline)


def test_a_bound_that_the_scenario_refuses_is_no_remedy(trace: Trace, monkeypatch) -> None:
    """A refused bound is none that is enough: a larger one is not proposed, and a needed one neither."""
    asked = asking({"kind": "histogram", "size": 64}, MANY)
    found = answer(trace, scenario=asked).remedy
    needed = int(found.removeprefix("most_keys="))
    plans = Analytics.plans
    for most, remedy in ((needed, found), (needed - 1, "")):

        def refused(self: Analytics, *devices: int, most: int = most) -> tuple:
            if getattr(self.question, "most_keys", 0) > most:
                raise InputError("its noise is too large")
            return plans(self, *devices)

        with monkeypatch.context() as patched:
            patched.setattr(Analytics, "plans", refused)
            again = answer(trace, scenario=asked)
        assert again.remedy == remedy
        assert ("would change it no more" in again.headline) == bool(remedy)


def test_a_range_that_clips_is_loosened_to_what_devices_hold(trace: Trace) -> None:
    found = answer(trace, scenario=asking({"kind": "mean", "low": 0.5, "high": 1.5}, NUMBERS))
    value = scenario()
    numbers = held_by(values_of(value), np.arange(value.device_ids, dtype=np.uint64)).values
    came = numbers[sorted({device for window in range(3) for device in came_in(trace, window)})]
    told = dict(each.split("=") for each in found.remedy.split(" and "))
    assert 0 <= came.min() - float(told["low"]) < 0.01 * abs(came.min())
    assert 0 <= float(told["high"]) - came.max() < 0.01 * came.max()
    again = {"kind": "mean", **{key: float(each) for key, each in told.items()}}
    assert answer(trace, scenario=asking(again, NUMBERS)).remedy == ""


def test_a_first_histogram_is_refused_once_with_all_that_it_needs() -> None:
    """From the question's kind on its own to an answer, by the examples of one refusal."""
    own = {"population": {"devices": 3000}, "analytics": {"question": {"kind": "histogram"}}}
    for rounds in ({}, {"rounds": {"count": 2, "report_goal": LEAST}}):
        mine = {**own, **rounds}
        with pytest.raises(ScenarioError) as refused:
            Scenario.from_tables(mine)
        lines = [each for each in refused.value.problems if " is missing; add it, such as " in each]
        text = ""
        for line in lines:
            key, example = re.search(
                r"scenario: (\S+) is missing; add it, such as ([^()]*)", line
            ).groups()  # pyright: ignore
            text += f"{key.rpartition('.')[0]}{'.' if '.' in key else ''}{example.strip()}\n"
        given = tomllib.loads(text)
        assert {"question", "values", "trust", "epsilon"} <= set(given["analytics"])
        value = Scenario.from_tables(merged(mine, given))
        assert value.rounds.uploads is not None
        assert (value.rounds.uploads.windows, value.rounds.mode) == (
            value.rounds.count,
            "upload-then-train",
        )
        assert value.analytics is not None
        value.analytics.plans(value.rounds.least_accepted)


def merged(tables: dict, given: dict) -> dict:
    """Tables with further keys, of tables within them too."""
    found = dict(tables)
    for key, value in given.items():
        own = found.get(key)
        found[key] = (
            merged(own, value) if isinstance(own, dict) and isinstance(value, dict) else value
        )
    return found


@pytest.mark.parametrize("asks", classes_in(AnyQuestion), ids=lambda each: each.__name__)
@pytest.mark.parametrize("trust", [[{"kind": "server"}], [{"kind": "devices"}]])
def test_each_question_has_examples_of_its_keys_that_fit_each_other(asks: Any, trust: Any) -> None:
    kind = asks.model_fields["kind"].default
    trust = [dict(each) for each in (TRUSTS[:2] if kind in ONE_NOISE else trust)]
    asked = {"question": {"kind": kind}, "trust": trust}
    own: dict[str, Any] = {"population": {"devices": 3000}, "analytics": asked}
    for key, example in needed_by_question(own).items():
        *path, _ = key.split(".")
        place: Any = own
        for part in path:
            place = place[int(part)] if part.isdigit() else place[part]
        place |= tomllib.loads(example)
    value = Scenario.from_tables(own)
    assert needed_by_question(own) == {}
    assert value.analytics is not None
    assert value.analytics.plans(value.rounds.least_accepted)


def test_a_misspelt_key_is_one_problem_and_a_number_is_no_key() -> None:
    own = tables({"kind": "histogram", "sise": 64}, WORDS)
    with pytest.raises(ScenarioError, match=r"did you mean 'size'\?") as refused:
        Scenario.from_tables(own)
    assert len(refused.value.problems) == 1
    with pytest.raises(ScenarioError, match="values.kind='numbers' is a number at key 0"):
        scenario({"kind": "histogram", "size": 64}, NUMBERS)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda each: each["kind"])
def test_every_question_is_answered_under_every_trust_model_that_has_a_theorem(
    trace: Trace, question: dict
) -> None:
    values = NUMBERS if question in QUESTIONS[:4] else WORDS
    value = asking(question, values)
    found = answer(trace, scenario=value)
    assert value.analytics is not None
    for window in found.windows:
        assert [each.trust for each in window.answers] == [t.kind for t in value.analytics.trust]
        for each in window.answers:
            assert each.released == len(each.rows)
            assert each.rows or question["kind"] in ("open_histogram", "prefix_tree")
    assert found.tables()
    assert "<html" in found.page()
    has_rows = any(each.rows for each in found.whole.answers)
    assert [figure.name for figure in found.figures()] == ["answers"] * has_rows + ["coverage"]
    if question["kind"] in ("quantiles", "distinct"):
        assert found.headline.startswith("By server, hours 16 to 24, the last of 3 windows: ")
    else:
        pooling = "mean" if question == MEAN else "sum"
        assert found.headline.startswith(
            f"By server, the {pooling} of 3 windows in hours 0 to 24: "
        )
    json.dumps(found.to_json(), allow_nan=False)
    for refused in TRUSTS[2:] if question["kind"] in ONE_NOISE else ():
        other = tables(question, values)
        other["analytics"]["trust"] = [refused]
        with pytest.raises(InputError, match="has no theorem"):
            simulate(Scenario.from_tables(other), HERE)


def test_intervals_hold_the_answers_of_those_who_came_as_often_as_stated(trace: Trace) -> None:
    """Counts of 64 words in 3 windows under every trust model, at 80 %: binomial, false alarms 1e-6
    each. Intervals of nine tenths of their width would be found for noise of a server."""
    value = asking({"kind": "histogram", "size": 64, "most_keys": 2}, WORDS)
    found = answer(trace, 0.8, value)
    for place, trust in enumerate(KINDS):
        rows = [row for window in found.windows for row in window.answers[place].rows]
        inside = sum(row.low <= row.bounded <= row.high for row in rows)
        assert inside >= binom.ppf(1e-6, len(rows), 0.8), trust
        # Sums of three noises, by the normal law: of discrete Laplace noise it covers 79 %.
        assert found.pooled is not None
        rows = found.pooled.answers[place].rows
        inside = sum(row.low <= row.bounded <= row.high for row in rows)
        assert binom.ppf(1e-6, 64, 0.78) <= inside <= binom.ppf(1 - 1e-6, 64, 0.82), trust
        answers_ = [window.answers[place] for window in found.windows]
        assert {each.confidence for each in answers_} == {0.8}
        # Errors are those stated: a mean of 192 squares, and of dependent ones in a local report.
        ratio = math.sqrt(
            sum(each.error**2 for each in answers_) / sum(each.stated_error**2 for each in answers_)
        )
        assert 0.6 < ratio < 1.5, trust
    half = [row for window in found.windows for row in window.answers[0].rows]
    narrow = sum(abs(row.estimate - row.bounded) <= 0.25 * (row.high - row.low) for row in half)
    assert narrow < binom.ppf(1e-6, len(half), 0.8)


def test_answers_are_draws_at_the_seed_and_window(trace: Trace, answers: Answers) -> None:
    """The same as the plan's own answer from the devices of the trace."""
    value = scenario()
    assert value.analytics is not None
    held = held_by(values_of(value), np.arange(value.device_ids, dtype=np.uint64))
    for window, found in enumerate(answers.windows):
        items = of_rows(held, np.array(came_in(trace, window)))
        for plan, each in zip(value.analytics.plans(LEAST), found.answers, strict=True):
            expected = plan.answer(items, stream_generator(5, Stream.ANSWER, window))
            assert each.rows[0].estimate == expected.estimates[0]
            assert each.mechanism == plan.mechanism


def test_privacy_is_the_event_of_a_window_as_often_as_a_device_came(
    trace: Trace, answers: Answers
) -> None:
    """By hand: the windows of the most frequent device, and those that may follow each other."""
    windows = [set(came_in(trace, window)) for window in range(3)]
    every = set.union(*windows)
    most = max(sum(device in window for window in windows) for device in every)
    assert most == 2
    value = scenario()
    assert value.analytics is not None
    plans = value.analytics.plans(LEAST)
    audit = audit_trace(trace)
    assert audit.answers == answers.privacy
    assert audit.max_participations == most
    for trust, plan in zip(KINDS, plans, strict=True):
        own = {each.basis: each for each in audit.answers or () if each.trust == trust}
        # An upload at the start of a window permits one in the next, 8 to 16 h later; two at least
        # 13 h apart are all that fit into 24 h, but pairs of windows are bounded one by one.
        counts = {"window": 1, "observed": most, "enforced": 3}
        assert {basis: each.windows for basis, each in own.items()} == counts
        for basis, count in counts.items():
            event = Repeated(event=plan.event, count=count)  # pyright: ignore[reportArgumentType]
            assert own[basis].event == event
            assert own[basis].delta == pytest.approx(count * 1e-6)
            assert own[basis].epsilon == epsilon_of(event, count * 1e-6).epsilon
        assert own["window"].epsilon <= 2.0 * (1 + 1e-9)
        assert [each.may_rest_on for each in own.values()] == [True, False, True]
    assert audit.no_guarantee
    assert "accounted for by themselves" in audit.no_guarantee
    assert not audit.mechanisms
    assert any("secure aggregation" in text for text in audit.assumptions)


def test_a_cap_and_a_longer_timer_are_enforced(tmp_path: Path) -> None:
    for rule in ({"timer_hours": 168.0}, {"timer_hours": 0.0, "max_participations": 1}):
        value = scenario(participation=rule).with_overrides("rounds.report_goal=160")
        found = audit_trace(simulate(value, HERE, tmp_path / str(len(rule)))).answers or ()
        assert {each.windows for each in found} == {1}
        assert {each.epsilon for each in found if each.trust == "server"} == {
            each.epsilon for each in found if each.trust == "server" and each.basis == "window"
        }


@pytest.mark.slow
def test_the_model_and_the_answers_of_a_device_compose(tmp_path: Path) -> None:
    """By hand: both events in one composition, at the sum of their deltas."""
    training = {"enabled": True, "cohort_sample": 20, "task": {"kind": "quadratic"}}
    privacy = {"mechanism": {"kind": "identity"}, "noise_multiplier": 3.0, "delta": 1e-7}
    data = {"kind": "points", "dimension": 3}
    value = scenario(training=training, privacy=privacy, data=data)
    trace = fedray.run_scenario(value, HERE, tmp_path / "t")
    assert trace.trained is not None
    audit = audit_trace(trace)
    (mechanism,) = audit.mechanisms
    by_basis = {(each.trust, each.basis): each for each in audit.answers or ()}
    assert {basis for _, basis in by_basis} == {
        "window",
        "observed",
        "observed, with the model",
        "enforced",
        "enforced, with the model",
    }
    for name in ("observed", "enforced"):
        guarantee = getattr(mechanism, name)
        own = by_basis["devices", name]
        both = by_basis["devices", f"{name}, with the model"]
        together = Composed(events=(own.event, guarantee.event))  # pyright: ignore[reportArgumentType]
        assert both.delta == own.delta + 1e-7
        assert both.epsilon == zcdp_epsilon(together, both.delta)
        assert max(own.epsilon or 0.0, guarantee.epsilon) < (both.epsilon or 0.0)
    assert any("of several do not add up" in text for text in audit.assumptions)
    page = fedray.write_report(audit, tmp_path / "report.html").read_text()
    assert "observed, with the model" in page
    # The cards are of everything, so that none shows less than the headline.
    largest = {
        name: max(each.epsilon or 0.0 for (_, basis), each in by_basis.items() if basis == name)
        for name in ("observed, with the model", "enforced, with the model")
    }
    cards = re.findall(
        r'<article class="guarantee (\w+)( may)?">(.*?)</article>', page, flags=re.DOTALL
    )
    assert [(name, bool(may)) for name, may, _ in cards] == [
        ("observed", False),
        ("enforced", True),
        ("claimed", False),
    ]
    for name, _, card in cards[:2]:
        own = up(getattr(mechanism, name).epsilon)
        assert re.findall(r"&epsilon; = ([\d.]+)", card) == [up(largest[f"{name}, with the model"])]
        assert f"<dt>of the model only, not for publication</dt><dd>{own}</dd>" in card
    # Nothing is claimed.
    assert "Not for publication as a DP guarantee." in cards[2][2]
    assert page.count("It is of the model only, without the answers.") == 2
    assert up(largest["enforced, with the model"]) in audit.verdict
    publishable = {row[0]: row[-1] for row in guarantees_table(audit).rows}
    assert publishable["enforced"] == "the model only"
    assert publishable["observed"] == "no"
    said = {(row[0], row[1]): row[5] for row in answers_table(audit.answers or ()).rows}
    assert said == {
        (trust, basis): {"observed, with the model": "no", "enforced, with the model": "yes"}.get(
            basis, "a part only"
        )
        for trust, basis in by_basis
    }


def test_deltas_that_add_up_to_1_are_no_privacy(trace: Trace, tmp_path: Path) -> None:
    loose = tables({"kind": "prefix_tree", "branching": 8, "levels": 2}, WORDS)
    loose["analytics"]["delta"] = 0.1
    value = Scenario.from_tables(loose)
    limits = Limits(MinSep(12, 1, 12), "a rule")  # at 0.1 each
    window, observed, enforced = privacy_of_answers(value, 9, limits, None)[:3]
    assert window.epsilon is not None
    assert observed.epsilon is not None
    assert (enforced.epsilon, enforced.may_rest_on) == (None, False)
    assert "add up to 1 or more" in enforced.reason
    rows = (dataclasses.replace(window, basis="enforced", event=None, reason=enforced.reason),)
    found = dataclasses.replace(answer(trace, scenario=value), privacy=rows)
    with pytest.raises(InputError, match="add up to 1 or more"):
        found.write_vocabulary(tmp_path / "words.txt")


def test_the_headline_names_the_error_that_dominates_and_who_came_least(answers: Answers) -> None:
    window = answers.pooled
    assert window is not None
    first = window.answers[0]
    errors = [first.error, abs(first.bounding), abs(first.coverage)]
    said = re.findall(r"by (noise|bounding|devices)[a-z ]* ([\d.]+)", answers.headline)
    assert [name for name, _ in said] == ["devices", "noise", "bounding"]
    assert [float(each) for _, each in said] == pytest.approx(sorted(errors)[::-1], rel=1e-3)
    least = min(window.coverage[1:], key=lambda each: each.share)
    # None of the devices comes that are never eligible, which says nothing of the others.
    assert (least.by, least.share) == ("use", 0.0)
    least = min((e for e in window.coverage[1:] if e.by != "use"), key=lambda each: each.share)
    assert least.label == "0 to 25 %"
    said = f"least often eligible (habit 0 to 25 %): {100 * least.share:.1f} %."
    assert f"Fewest came of the quarter that is {said}" in answers.headline
    rows = answers.to_arrow().to_pylist()
    # Those of all windows together too.
    assert len(rows) == (len(answers.windows) + 1) * len(TRUSTS)
    assert {row["epsilon"] for row in rows} == {2.0}
    (row,) = first.rows
    assert f": {row.estimate:.4g} ({row.low:.4g} to {row.high:.4g})." in answers.headline
    (shares,) = answers.figures()[1].series
    assert shares.x.tolist() == [100 * each.share for each in window.coverage]


def test_the_figure_has_the_largest_rows_with_intervals_under_each_trust_model(
    trace: Trace,
) -> None:
    wide = asking({"kind": "histogram", "size": 64, "most_keys": 64}, MANY)
    found = answer(trace, scenario=wide)
    assert found.pooled is not None
    figure = found.figures()[0]
    assert (figure.name, str(figure.subject)) == (
        "answers",
        "of scenario (3,000 devices), in one run, per device, on the sum of 3 windows",
    )
    *estimates, exact = figure.series
    labels = found.pooled.answers[0].labels[:12]
    assert [each.name for each in estimates] == [f"estimate, {kind}" for kind in KINDS]
    for series, of in zip(estimates, found.pooled.answers, strict=True):
        rows = {row.label: row for row in of.rows}
        assert series.labels == labels
        assert series.x.tolist() == [rows[label].estimate for label in labels]
        assert series.low is not None
        assert series.low.tolist() == [rows[label].low for label in labels]
        # Trust models share a row of the plot, beside each other.
        assert np.round(series.y).tolist() == [-float(place) for place in range(12)]
    assert len({float(each.y[0]) for each in figure.series}) == len(KINDS) + 1
    assert exact.x.tolist() == [row.of_came for row in found.pooled.answers[0].rows[:12]]
    lines = figure_csv(figure).splitlines()
    assert lines[0] == "series,name,x,from,to,of".replace("x", "Answers that hold it")
    assert "Group" not in figure_csv(found.figures()[1]).splitlines()[0]
    assert len(drawn_figure(figure).axes[0].get_yticks()) == 12
    # As in the headline, no interval that says little about what devices hold.
    bounded = answer(trace, scenario=asking({"kind": "histogram", "size": 64}, MANY))
    assert all(each.low is None for each in bounded.figures()[0].series)
    assert "moved by bounding more than by noise" in bounded.figures()[0].note


def test_windows_that_ask_the_same_say_what_one_would_cost(trace: Trace, answers: Answers) -> None:
    """Only figures that are computed: the enforced epsilon of three windows, and that of one."""
    one, most = (
        [f"{up(e.epsilon or 0)} ({e.trust})" for e in answers.privacy if e.basis == basis]
        for basis in ("window", "enforced")
    )
    said = f"the 3 windows ask the same thing, at epsilon {', '.join(most)} together."
    assert answers.headline.count("A device holds the same in every window here") == 1
    assert said in answers.headline
    last = f"One window of 24 hours would cost {', '.join(one)}: {answers.devices:,} devices came"
    assert last in answers.headline
    assert [e for e in one if e not in most]


def test_joint_intervals_are_told_from_those_of_each_row(trace: Trace) -> None:
    tree = {"kind": "prefix_tree", "branching": 8, "levels": 2, "most_keys": 64}
    found = answer(trace, scenario=asking(tree, MANY))
    _, windows, *_ = found.tables()
    kinds = [row[windows.columns.index("interval")] for row in windows.rows]
    assert kinds == ["all rows"] * 3 * len(KINDS) + ["each row"] * len(KINDS)
    rows = found.to_arrow().to_pylist()
    assert {each["interval"] for each in rows if each["window"] == "0"} == {"all rows"}


def test_a_threshold_that_leaves_some_of_delta_is_said(trace: Trace) -> None:
    found = answer(trace, scenario=asking({"kind": "open_histogram", "most_keys": 64}, WORDS))
    window = found.privacy[0]
    assert (window.basis, "Gaussian" in window.mechanism) == ("window", True)
    assert 1.9 < (window.epsilon or 0) < 2.0
    assert any("a threshold is a whole number" in note for note in found.tables()[-1].notes)
    closed = answer(trace, scenario=asking({"kind": "histogram", "size": 64}, WORDS))
    assert not any("whole number" in note for note in closed.tables()[-1].notes)


def test_the_words_found_are_a_vocabulary_with_its_cost(trace: Trace, tmp_path: Path) -> None:
    found = answer(trace, scenario=asking({"kind": "open_histogram", "most_keys": 2}, WORDS))
    file = found.write_vocabulary(tmp_path / "words.txt")
    rows = found.windows[-1].answers[0].rows
    assert read_vocabulary(file) == tuple(row.label for row in rows)
    assert len(rows) > 3
    assert [row.estimate for row in rows] == sorted((row.estimate for row in rows), reverse=True)
    document = json.loads((tmp_path / "words.txt.json").read_text())
    assert (document["words"], document["trace_digest"]) == (len(rows), trace.digest)
    enforced = next(each for each in found.privacy if each.basis == "enforced")
    assert document["epsilon"] == enforced.epsilon
    assert document["cost"]["windows"] == 3
    assert document["cost"]["event"] == enforced.event.to_json()  # pyright: ignore[reportOptionalMemberAccess]
    # Two trust models of one kind: the cost is that of the one whose words they are.
    tree = tables({"kind": "prefix_tree", "branching": 8, "levels": 2}, WORDS)
    tree["analytics"]["trust"] = [
        {"kind": "devices", "least_devices": least} for least in (LEAST, LEAST // 2)
    ]
    found = answer(trace, scenario=Scenario.from_tables(tree))
    found.write_vocabulary(file)
    document = json.loads((tmp_path / "words.txt.json").read_text())
    assert document["cost"]["mechanism"] == found.windows[-1].answers[0].mechanism
    assert document["cost"]["mechanism"] != found.windows[-1].answers[1].mechanism
    with pytest.raises(InputError, match=r"analytics.question.kind='mean' finds no words"):
        answer(trace).write_vocabulary(tmp_path / "other.txt")


def test_a_training_pays_for_its_private_vocabulary_too(
    trace: Trace, small, tmp_path: Path
) -> None:
    """By hand: the events of words and model in one composition, at the sum of their deltas."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = answer(trace, scenario=asking({"kind": "open_histogram", "most_keys": 2}, WORDS))
    file = found.write_vocabulary(tmp_path / "words.txt")
    rows = [{"client": f"c{n}", "text": "word0 word1"} for n in range(30)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "d.parquet")
    data = (
        f"{{kind='parquet', file='{tmp_path}/d.parquet', tokens='text', vocabulary_file='{file}'}}"
    )
    private = ("privacy.mechanism={kind='identity'}", "privacy.noise_multiplier=4.0")
    value = small("rounds.count=3", f"data={data}", *private)
    audit = audit_trace(simulate(value, HERE, tmp_path / "t"))
    told = found.privacy[-1]
    alone, observed, enforced = audit.answers or ()
    assert (alone.event, alone.epsilon, alone.windows) == (told.event, told.epsilon, 3)
    for row, guarantee in (
        (observed, audit.mechanisms[0].observed),
        (enforced, audit.mechanisms[0].enforced),
    ):
        together = Composed(events=(told.event, guarantee.event))  # pyright: ignore[reportArgumentType]
        assert row.delta == told.delta + guarantee.delta
        assert row.epsilon == epsilon_of(together, row.delta).epsilon
        assert row.epsilon > guarantee.epsilon
    assert [each.may_rest_on for each in (alone, observed, enforced)] == [True, False, True]
    assert any("found by a private question" in text for text in audit.assumptions)
    # A vocabulary that was changed has another cost, or none that is known.
    other = tmp_path / "other.txt"
    other.write_text("word0\nword9\n")
    moved = value.with_overrides(f"data.vocabulary_file={other}")
    assert isinstance(moved.data, ParquetData)
    assert moved.data.vocabulary_cost is None
    assert moved.with_overrides(f"data.vocabulary_file={file}") == value
    cost = value.to_tables()["data"]["vocabulary_cost"]
    claimed = {**moved.to_tables()["data"], "vocabulary_cost": cost}
    with pytest.raises(ScenarioError, match="is about a file with sha256"):
        Scenario.from_tables({**moved.to_tables(), "data": claimed})
    file.write_text("word0\nword9\n")
    with pytest.raises(ScenarioError, match="is about a file with sha256"):
        small(f"data={data}")
    (tmp_path / "words.txt.json").write_text("{}")
    with pytest.raises(ScenarioError, match="does not say what it cost"):
        small(f"data={data}")
    (tmp_path / "words.txt.json").unlink()
    assert small(f"data={data}").data.vocabulary_cost is None


@pytest.mark.parametrize(
    ("override", "rule"),
    [
        ("rounds.uploads.schedule={kind='poisson', probability=0.5}", "schedule.kind='all'"),
        ("privacy.stop_at.rho=1.0", "privacy.stop_at: the budget counts updates of a model"),
        ("availability.model=always_on", r"analytics.values.by_habit=4: .*has no habits"),
        ("analytics.trust=[{kind='server'}, {kind='server'}]", "a trust model is given twice"),
        ("analytics.trust=[]", "analytics.trust"),
        ("analytics.epsilon=0.0", "analytics.epsilon"),
        ("analytics.question.kind=median", "analytics.question"),
        ("analytics.question.high=-30.0", r"high=-30.*above low"),
        ("analytics.values={kind='custom', file='none.py'}", "none.py"),
        (
            "analytics={question={kind='prefix_tree', branching=8, levels=2}, epsilon=1.0, "
            "values={kind='words', words=65}, trust=[{kind='server'}]}",
            "values.words=65 is more than the 64 keys of the question",
        ),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused_in_one_line(override: str, rule: str) -> None:
    with pytest.raises(ScenarioError, match=rule) as refused:
        scenario().with_overrides(override)
    assert "\n" not in str(refused.value)


def test_a_domain_is_not_counted_from_the_data_of_all_devices(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"client": f"c{n}", "text": "word0 word1", "label": [n]} for n in range(30)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "d.parquet")
    (tmp_path / "words.txt").write_text("word0\n")
    data = {"kind": "parquet", "file": str(tmp_path / "d.parquet"), "tokens": "text"}

    def asked(**more: object) -> Scenario:
        return scenario(
            {"kind": "open_histogram"},
            {"kind": "examples"},
            data={**data, "held_out_share": 0.1, **more},
        )

    for left_out in ({}, {"tokens": "label"}):
        with pytest.raises(ScenarioError, match=r"counted over all devices .*vocabulary_file"):
            asked(**left_out)
    # That the text has words, which no number of values makes public, is known once it is read.
    with pytest.raises(InputError, match="data.vocabulary_file='' must name the words"):
        values_of(asked(values=5))
    for given in (
        {"vocabulary_file": str(tmp_path / "words.txt")},
        {"tokens": "label", "values": 30},
    ):
        found = values_of(asked(**given)).on(np.arange(20, dtype=np.uint64))
        assert found.keys.size > 0


def test_noise_that_all_devices_would_make_too_large_is_refused_when_it_is_planned() -> None:
    value = scenario({"kind": "sum", "high": 1.0}).with_overrides(
        "analytics.trust=[{kind='devices', least_devices=150}]", "analytics.epsilon=0.06"
    )
    assert value.analytics is not None
    (plan,) = value.analytics.plans(LEAST, 150)
    assert isinstance(plan.sums, DiscreteGaussian)
    with pytest.raises(InputError, match=r"if 3,000 devices come, .*; raise least_devices, eps"):
        value.analytics.plans(LEAST, 3000)


def test_a_window_must_have_the_devices_that_a_trust_model_counts_on(tmp_path: Path) -> None:
    value = scenario().with_overrides("rounds.report_goal=149")
    with pytest.raises(InputError, match=r"devices: least_devices=150 is more than the 149"):
        simulate(value, HERE, tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_answers_need_a_question_and_the_trace_of_its_scenario(
    trace: Trace, small, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"confidence=1\.0 must be above 0 and below 1"):
        answer(trace, 1.0)
    with pytest.raises(InputError, match="differ in more than the table analytics"):
        answer(trace, scenario=scenario().with_overrides("seed=6"))
    plain = simulate(small("rounds.count=2"), HERE, tmp_path / "plain")
    with pytest.raises(InputError, match="without the table analytics"):
        answer(plain)


def test_claims_do_not_pass_over_a_question(trace: Trace) -> None:
    claim = fedray.Claim(mechanism=fedray.mechanisms.Identity(), noise_multiplier=1.0)
    with pytest.raises(InputError, match="this trace has a question"):
        audit_trace(trace, claim=claim)


def test_code_that_came_with_a_trace_is_not_run_untrusted(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "values.py").write_text(
        "import numpy as np\ndef values(device_ids, seed):\n"
        "    return np.ones(device_ids.size, int), np.zeros(device_ids.size, int), device_ids * 1.0\n"
    )
    own = tables(MEAN, {"kind": "custom", "file": "values.py"})
    value = Scenario.from_tables(own, directory=tmp_path)
    trace = simulate(value, HERE, tmp_path / "t")
    (tmp_path / "values.py").unlink()
    # Another user has not run this code before.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "stranger"))
    with pytest.raises(InputError, match="Python code that came with a trace"):
        answer(trace)
    window = answer(trace, trust_code=True).windows[0]
    # The devices that joined in the first window have the next ids, and each holds its own.
    assert window.answers[0].rows[0].of_all == np.arange(window.devices).mean()


def test_the_commands_print_and_write_the_answers(fedray_command, tmp_path: Path) -> None:
    file, out = tmp_path / "ask.toml", tmp_path / "t"
    file.write_text(scenario().to_toml())
    place = ("--place", "backend=in-process")
    code, text, err = fedray_command("run", str(file), *place, "--out", str(out))
    assert code == 0, err
    assert "Answers to the question mean" in text
    assert text.count("Privacy of the answers") == 1
    assert "never there at once" not in err
    assert '<a href="report.html">' in (out / "answer.html").read_text()
    assert '<a href="answer.html">' in (out / "report.html").read_text()
    written = json.loads((out / "answer.json").read_text())
    code, text, err = fedray_command("answer", str(out), "--json", "--page", str(tmp_path / "p"))
    assert code == 0, err
    document = json.loads(text)
    assert document.pop("page") == str(tmp_path / "p")
    assert document.pop("answer") == str(out / "answer.json")
    assert document == written
    words = ("--set", 'analytics.question={kind="open_histogram", most_keys=2}')
    words = (*words, "--set", 'analytics.values={kind="words", words=64}')
    words = (*words, "--set", 'analytics.trust=[{kind="server"}]')
    vocabulary = ("--vocabulary", str(tmp_path / "v.txt"))
    code, text, err = fedray_command("answer", str(out), *words, *vocabulary)
    assert code == 0, err
    assert re.search(r"^vocabulary +/", text, re.MULTILINE)
    assert "word0" in (tmp_path / "v.txt").read_text()
    # The words come first, as many as are asked for, and all of them are in the file of rows.
    rows = ("--top", "2", "--rows", str(tmp_path / "rows.csv"))
    code, text, err = fedray_command("answer", str(out), *words, *rows)
    assert code == 0, err
    lines = text.split("\n\n")
    assert re.match(r"By server, the sum .*: [\d,]+ rows, largest word0 [\d.,]+ ", lines[0])
    assert "Error by " in " ".join(lines[0].split())
    assert (
        "\nAnswers to the question open_histogram, the largest rows, server, on the sum of 3 windows\n"
        in lines[1]
    )
    assert len(re.findall(r"^  word\d+ ", lines[1], re.MULTILINE)) == 2
    table = pyarrow.csv.read_csv(tmp_path / "rows.csv")
    # Under the headings of the tables, and with the setting.
    figures = {"row", "hold it", "hold it and came", "after bounding", "estimate", "95 % low"}
    setting = {
        "window",
        "start hours",
        "end hours",
        "answers",
        "population",
        "most_keys",
        "epsilon",
    }
    assert {"trust", "95 % high", "interval", *figures, *setting} <= set(table.column_names)
    written_rows = table.to_pylist()
    pooled_rows = [each for each in written_rows if each["window"] == "the sum of 3 windows"]
    assert len(pooled_rows) > 2
    assert {each["end hours"] for each in written_rows} == {8, 16, 24}
    assert {each["most_keys"] for each in written_rows} == {2}
    code, _, err = fedray_command("answer", str(out), "--top", "0")
    assert (code, "--top=0 must be at least 1" in err) == (2, True)
    # The record is that of the run's own question.
    assert json.loads((out / "answer.json").read_text()) == written
    code, _, err = fedray_command("answer", str(out), "--set", "seed=9")
    assert (code, err.count("\n")) == (2, 1)
    assert "table analytics" in err


def window_of(rows: list[Row], released: int) -> WindowAnswer:
    """A window with rows that are kept of those that were released."""
    labels = tuple(f"word{key}" for key in range(released))
    answer = TrustAnswer(
        *("server", "gaussian", tuple(range(released)), labels, tuple(rows), 0.0, 1.0, "exact"),
        *(1.0, 0.95, 1.0, math.nan, 0.0, 0.0),
    )
    group = CoverageGroup("all", "all", 10, 5)
    return WindowAnswer(0, 1, "", 0.0, 24.0, (group,), 2.0, (answer,))


def test_windows_are_not_pooled_over_the_rows_of_largest_noise_or_without_an_error() -> None:
    """The largest of many noisy rows are too large on average, and so is their sum."""
    row = Row("word0", 5.0, 1.0, 3.0, 7.0, 5.0, 5.0, 9.0)
    whole = window_of([row], 1)
    assert pooled([whole, whole], "histogram") is not None
    assert pooled([whole, window_of([row], 2)], "histogram") is None
    unknown = window_of([row._replace(standard_error=math.nan)], 1)
    assert pooled([whole, whole], "mean") is not None
    assert pooled([whole, unknown], "mean") is None
