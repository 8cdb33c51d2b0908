"""Metrics by group: beside plain PyTorch on the same held-out examples, for six tasks; their intervals; and where they are shown."""

import json
import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import fedray
from fedray.audit.zones import zone_hours_on
from fedray.base.errors import InputError
from fedray.base.intervals import mean_interval, quantile_interval, share_interval
from fedray.clients.data.factory import source_of
from fedray.clients.data.source import FIRST_HELD_OUT
from fedray.clients.tasks.factory import task_of
from fedray.report.groups import groups_tables
from fedray.report.terminal import training_text
from fedray.runs.pipeline import run_scenario
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.trace.groups import Group, GroupMetric, Groups, WorstTenth, groups_of
from fedray.trace.trained import TrainedRun
from fedray.wire.messages import Evaluated, GroupSums, Metric

HERE = Placement(1, "in-process")
SIZE = (
    "rounds.count=2",
    "rounds.report_goal=20",
    "population.devices=3000",
    "training.enabled=true",
    "training.cohort_sample=5",
    "training.evaluation_devices=15",
    "training.client.learning_rate=0.1",
    "privacy.mechanism=none",
)
ZONES = (
    "population.time_zones=[{share=0.5, utc_offset_hours=-5.0}, {share=0.5, utc_offset_hours=1.0}]"
)
CLASSES = "data={kind='classes', shape=[6], classes=4}"
IMAGES = "data={kind='classes', shape=[8, 8], classes=3}"
OWN = """
import torch
from torch import nn
from fedray import Metric
from fedray.clients.tasks.module import ModuleTask

def top2(scores, targets):
    return (scores.topk(2, dim=1).indices == targets[:, None]).any(dim=1).float()

def task(seed):
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    further = {Metric("top2", "share of examples", "higher"): top2}
    return ModuleTask(model, None, nn.functional.cross_entropy, further=further)
"""
Parameters = dict[str, Tensor]


def logistic(of: Parameters, batch: dict[str, Tensor]) -> Tensor:
    return batch["inputs"] @ of["weight"] + of["bias"]


def mlp(of: Parameters, batch: dict[str, Tensor]) -> Tensor:
    units = torch.relu(batch["inputs"] @ of["weight_0"] + of["bias_0"])
    return units @ of["weight_1"] + of["bias_1"]


def image_cnn(of: Parameters, batch: dict[str, Tensor]) -> Tensor:
    units = batch["inputs"][:, None]
    for layer in ("convolution_1", "convolution_2"):
        units = torch.relu(functional.conv2d(units, of[layer], of[f"{layer}_bias"]))
    units = functional.max_pool2d(units, 2).flatten(1)
    return torch.relu(units @ of["dense"] + of["dense_bias"]) @ of["classes"] + of["classes_bias"]


def own(of: Parameters, batch: dict[str, Tensor]) -> Tensor:
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    model.load_state_dict(of)
    return model(batch["inputs"])


def lstm_states(of: Parameters, embedded: Tensor) -> Tensor:
    """States of torch's own LSTM, whose gates are in another order than ours."""
    hidden = of["recurrent"].shape[0]
    lstm = nn.LSTM(embedded.shape[2], hidden, batch_first=True)

    def in_order(part: Tensor) -> Tensor:
        output, into, forget, candidate = part.split(hidden, dim=-1)
        return torch.cat([into, forget, candidate, output], dim=-1)

    lstm.load_state_dict(
        {
            "weight_ih_l0": in_order(of["input"]).T,
            "weight_hh_l0": in_order(of["recurrent"]).T,
            "bias_ih_l0": in_order(of["gate_bias"]),
            "bias_hh_l0": torch.zeros(4 * hidden),
        }
    )
    return lstm(embedded)[0]


def next_word(of: Parameters, batch: dict[str, Tensor]) -> Tensor:
    words = of["word_bias"].numel()
    states = lstm_states(of, of["embedding"][batch["tokens"][:, :-1]])
    return states @ of["projection"] @ of["embedding"][:words].T + of["word_bias"]


def keyboard_lstm(of: Parameters, batch: dict[str, Tensor]) -> Tensor:
    states = lstm_states(of, of["embedding"][batch["tokens"][:, :-1]])
    return states @ of["output"].T + of["output_bias"]


def metrics_of(scores: Tensor, batch: dict[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """Numerators and weights of each example [B], as a textbook has them."""
    if "targets" in batch:
        right = scores.argmax(1) == batch["targets"]
        near = (scores.topk(2, dim=1).indices == batch["targets"][:, None]).any(1)
        nats = functional.cross_entropy(scores, batch["targets"], reduction="none")
        return {
            name: (each.double(), torch.ones(len(right)))
            for name, each in {"loss": nats, "accuracy": right, "top2": near}.items()
        }
    targets = batch["tokens"][:, 1:]
    is_word = (
        targets != 0 if scores.shape[2] != WORDS else torch.ones_like(targets, dtype=torch.bool)
    )
    is_known = is_word & (targets != 1)
    right = scores.argmax(2) == targets
    nats = functional.cross_entropy(scores.movedim(2, 1), targets, reduction="none")
    words = is_word.sum(1)
    return {
        "loss": ((nats * is_word).sum(1).double(), words),
        "perplexity": ((nats * is_word).sum(1).double(), words),
        "accuracy": ((right & is_word).sum(1), words),
        "in_vocabulary_accuracy": ((right & is_known).sum(1), is_known.sum(1)),
    }


WORDS = 400
"""Words of the synthetic language, whose texts have no padding and no unknown word."""
TASKS: dict[str, tuple[tuple[str, ...], Callable[[Parameters, dict[str, Tensor]], Tensor]]] = {
    "logistic": ((CLASSES, "training.task={kind='logistic'}"), logistic),
    "mlp": ((CLASSES, "training.task={kind='mlp', hidden=[7]}"), mlp),
    "image_cnn": ((IMAGES, "training.task={kind='image_cnn'}"), image_cnn),
    "own": ((CLASSES, "training.task={kind='custom', file='own.py'}"), own),
    "next_word": ((), next_word),
    "keyboard_lstm": (
        (
            "training.task={kind='keyboard_lstm', cell='lstm', hidden=9, embedding=5, projected=false}",
            "data={kind='parquet', file='texts.parquet', client='user', tokens='text', vocabulary=20, length=6}",
        ),
        keyboard_lstm,
    ),
}


def scenario_of(small: Callable[..., Scenario], name: str, folder: Path) -> Scenario:
    (folder / "own.py").write_text(OWN)
    draws = np.random.default_rng(1)
    texts = [" ".join(f"w{w}" for w in draws.integers(0, 30, n)) for n in draws.integers(1, 6, 400)]
    table = {"user": [f"u{place // 10}" for place in range(400)], "text": texts}
    pq.write_table(pa.table(table), folder / "texts.parquet")
    tables = small().to_tables()
    where = [each.replace("='own.py'", f"='{folder / 'own.py'}'") for each in TASKS[name][0]]
    where = [each.replace("'texts.parquet'", f"'{folder / 'texts.parquet'}'") for each in where]
    return Scenario.from_tables(tables).with_overrides(*SIZE, ZONES, *where)


def parity(device: int, example: dict[str, Any]) -> str | None:
    """By device, without every fifth example."""
    values = next(iter(example.values()))
    return None if int(7 * np.abs(values).sum()) % 5 == 0 else f"device {device % 3}"


def by_plain_torch(
    run: TrainedRun, scenario: Scenario, name: str, label: Callable[[int, dict[str, Any]], Any], ids
) -> dict[str, dict[str, float]]:
    """Metrics by label, one device after the other, and examples and devices of each."""
    source = source_of(scenario)
    own = {each: torch.tensor(part) for each, part in run.named_parameters().items()}
    totals: dict[Any, Any] = defaultdict(lambda: defaultdict(lambda: np.zeros(2)))
    for device in ids:
        asked = np.array([device], np.uint64)
        positions = np.arange(source.examples_on(asked)[0])[None]
        arrays = {each: part[0] for each, part in source.examples(asked, positions).items()}
        batch = {each: torch.from_numpy(part) for each, part in arrays.items()}
        with torch.no_grad():
            found = metrics_of(TASKS[name][1](own, batch), batch)
        for place in range(positions.size):
            group = label(device, {each: part[place] for each, part in arrays.items()})
            if group is None:
                continue
            for metric, (numerators, weights) in found.items():
                totals[str(group)][metric] += [float(numerators[place]), float(weights[place])]
            totals[str(group)]["examples"] += [1, 1]
            totals[str(group)][f"device {device}"] += 1
    return {
        group: {
            **{each: sums[0] / sums[1] for each, sums in of.items() if sums[1]},
            "examples": of["examples"][0],
            "devices": sum(each.startswith("device ") for each in of),
        }
        for group, of in totals.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_metrics_and_groups_are_those_of_plain_torch(name: str, small, tmp_path: Path) -> None:
    scenario = scenario_of(small, name, tmp_path)
    run = run_scenario(scenario, HERE, tmp_path / "run").trained
    assert run is not None
    held_out = min(15, source_of(scenario).held_out_devices)
    ids = [int(FIRST_HELD_OUT) + each for each in range(held_out)]
    kinds: list[tuple[Any, Any, Any]] = [(parity, parity, ids)]
    if name not in ("next_word", "keyboard_lstm"):
        kinds.append(("class", lambda device, example: int(example["targets"]), ids))
    # The audit draws the zones of devices by a code of its own.
    zones = dict(enumerate(zone_hours_on(scenario, np.arange(15, dtype=np.uint64)).tolist()))
    kinds.append(("zone", lambda device, example: f"UTC{zones[device]:+g} h", range(15)))
    for by, label, devices in kinds:
        found = fedray.evaluate(run, by)
        expected = by_plain_torch(run, scenario, name, label, devices)
        assert {each.name for each in found.groups} == expected.keys()
        assert len(found.groups) > 1
        for group in found.groups:
            plain = expected[group.name]
            assert (group.examples, group.devices) == (plain["examples"], plain["devices"])
            assert len(group.metrics) == len(run.task_metrics)
            for metric in run.task_metrics:
                value = plain[metric.name]
                value = math.exp(value) if metric.is_exponential else value
                measured = group.metrics[metric.name]
                assert measured.value == pytest.approx(value, rel=2e-4, abs=1e-6)
                assert not measured.low > value + 1e-6
                assert not measured.high < value - 1e-6
        # All of the examples together are those of the evaluation.
        if by == "class":
            assert sum(each.examples for each in found.groups) == run.evaluated.examples
    everything = by_plain_torch(run, scenario, name, lambda device, example: "all", ids)["all"]
    for metric in run.task_metrics:
        value = everything[metric.name]
        value = math.exp(value) if metric.is_exponential else value
        assert run.last_evaluation()[metric.name].value == pytest.approx(value, rel=2e-4)


@pytest.mark.slow
def test_the_worst_tenth_is_that_of_the_devices_own_metrics(small, tmp_path: Path) -> None:
    scenario = scenario_of(small, "mlp", tmp_path).with_overrides("training.evaluation_devices=45")
    run = run_scenario(scenario, HERE, tmp_path / "run").trained
    assert run is not None
    ids = [int(FIRST_HELD_OUT) + each for each in range(45)]
    found = fedray.evaluate(run, "class")
    own = by_plain_torch(run, scenario, "mlp", lambda device, example: device, ids)
    for name, sign in (("accuracy", 1), ("loss", -1)):
        values = sorted((each[name] for each in own.values()), key=lambda each: sign * each)
        worst = found.worst_tenth[name]
        assert (worst.devices, worst.of) == (math.ceil(0.1 * len(values)), len(values))
        assert worst.mean == pytest.approx(np.mean(values[: worst.devices]), rel=1e-4, abs=1e-6)
        assert worst.mean_of_all == pytest.approx(np.mean(values), rel=1e-4)
        assert worst.quantile == pytest.approx(values[worst.devices - 1], rel=1e-4, abs=1e-6)
        ends = (worst.low, worst.high)
        assert not ends[0] > worst.quantile + 1e-6
        assert not ends[1] < worst.quantile - 1e-6


def test_tables_name_the_function_the_mean_and_an_end_that_is_not_known() -> None:
    metric = Metric("accuracy", "share", "higher")
    found = Groups(
        "small", "by", "last", 2, "held-out devices", Evaluated(9, 9, 3, 3), (metric,),
        (Group("a", 3, 9, {"accuracy": GroupMetric(0.5, 0.25, 0.75)}),),
        {"accuracy": WorstTenth(1, 3, 0.1, 0.5, 0.1, math.nan, 0.2)},
    )  # fmt: skip
    by_group, worst = groups_tables(found)
    assert by_group.title.startswith("By the function by: ")
    assert "mean of all devices" in worst.columns
    assert worst.rows[0][-1] == "0.1000 (low end not known to 0.2000)"


def sums_of(hits: np.ndarray, sizes: np.ndarray) -> GroupSums:
    """Devices with so many examples and hits, in one group."""
    devices = hits.size
    return GroupSums(
        Evaluated(int(sizes.sum()), int(sizes.sum()), devices, devices),
        ("all",),
        np.zeros(devices, np.int64),
        np.arange(devices),
        sizes,
        {"accuracy": np.stack([hits, sizes], axis=1).astype(float)},
    )


ACCURACY = Metric("accuracy", "share of examples", "higher")


@pytest.mark.parametrize(
    ("devices", "spread"), [(3, 0.0), (8, 0.0), (8, 0.3), (30, 0.3), (30, 0.0)]
)
def test_intervals_of_shares_of_small_groups_hold_the_truth_and_normal_ones_do_not(
    devices: int, spread: float
) -> None:
    """Each true share in 400 samples; 95 % intervals miss it in at most 8 % of them, which happens by chance with a probability below 0.5 % if they are exact. Two standard errors around an accuracy of 0.95 miss it in more than 10 %."""
    draws = np.random.default_rng([devices, int(10 * spread)])
    missed = dict.fromkeys((0.5, 0.8, 0.95), 0)
    normal = dict(missed)
    for share in missed:
        for _ in range(400):
            own = np.full(devices, share)
            if spread:
                own = draws.beta(share / spread, (1 - share) / spread, devices)
            sizes = draws.integers(2, 8, devices)
            hits = draws.binomial(sizes, own)
            ((group,), _) = groups_of(sums_of(hits, sizes), [ACCURACY])
            found = group.metrics["accuracy"]
            missed[share] += not found.low <= share <= found.high
            ratio = hits.sum() / sizes.sum()
            residuals = ((hits - ratio * sizes) ** 2).sum()
            error = math.sqrt(residuals * devices / (devices - 1)) / sizes.sum()
            normal[share] += not abs(ratio - share) <= 1.96 * error
    assert max(missed.values()) <= 32
    if devices < 30:
        assert normal[0.95] > 40


def test_groups_of_few_examples_have_wide_intervals_and_no_false_certainty() -> None:
    # Three of three right, on one device: anything from 2.5 % on.
    low, high = share_interval(1.0, math.nan, 1, 3.0)
    assert (low, high) == (pytest.approx(0.025), 1.0)
    # On three devices, as three examples: Clopper and Pearson's for 3 of 3.
    low, high = share_interval(1.0, 0.0, 3, 9.0)
    assert (low, high) == (pytest.approx(0.025 ** (1 / 3)), 1.0)
    assert share_interval(0.0, 0.0, 3, 9.0) == (0.0, pytest.approx(1 - 0.025 ** (1 / 3)))
    # Of many devices with independent examples it is that of the examples.
    error = math.sqrt(0.8 * 0.2 / 1000)
    low, high = share_interval(0.8, error, 500, 1000.0)
    assert (low, high) == (pytest.approx(0.774, abs=2e-3), pytest.approx(0.824, abs=2e-3))
    assert np.isnan(share_interval(math.nan, 0.0, 0, 0.0)).all()
    assert np.isnan(mean_interval(2.0, math.nan, 1)).all()
    # Student's quantile of one degree of freedom.
    assert mean_interval(2.0, 1.0, 2) == pytest.approx((2 - 12.7062, 2 + 12.7062), abs=1e-4)


def test_the_interval_of_a_quantile_holds_it_and_is_open_if_the_sample_is_small() -> None:
    """In 2,000 samples of 60; missed in at most 6.5 %, which happens by chance with a probability below 0.2 %."""
    draws = np.random.default_rng(4)
    missed = 0
    for _ in range(2000):
        low, high = quantile_interval(np.sort(draws.random(60)), 0.1)
        assert low < high
        missed += not low <= 0.1 <= high
    assert missed <= 130
    low, high = quantile_interval(np.arange(10.0), 0.1)
    assert math.isnan(low)
    assert high < 9
    assert np.isnan(quantile_interval(np.arange(1.0), 0.1)).all()


@pytest.fixture(scope="module")
def reported(small, tmp_path_factory) -> TrainedRun:
    """A training that reports by class and zone."""
    folder = tmp_path_factory.mktemp("reported")
    scenario = scenario_of(small, "logistic", folder)
    scenario = scenario.with_overrides("training.report_by=['class','zone']")
    trained = run_scenario(scenario, HERE, folder / "run").trained
    assert trained is not None
    return trained


def test_a_training_reports_by_group_on_its_page_in_json_and_in_python(
    reported: TrainedRun,
) -> None:
    by_class, by_zone = reported.groups
    for found, by in ((by_class, "class"), (by_zone, "zone")):
        again = fedray.evaluate(reported, by)
        # NaN is no value in JSON, so both are compared there.
        assert found.to_json() == again.to_json()
        document = json.loads(json.dumps(again.to_json()))
        assert Groups.of_document(document).to_json() == document
    page = reported.page()
    told = " ".join(str(each) for each in training_text("Training", reported))
    for text in (page, told):
        assert "By class: the last model, after 2 rounds" in text
        assert "UTC-5 h" in text
        assert "The worst tenth of devices" in text
    assert by_class.evaluated_on == "held-out devices"
    assert by_zone.evaluated_on == "devices of the population"
    assert "which may have trained" in " ".join(by_zone.tables()[0].notes)
    group = reported.to_json()["groups"][0]["groups"][0]
    assert group["name"] == "0"
    assert group["metrics"]["accuracy"].keys() == {"value", "low", "high"}


def test_a_function_may_leave_examples_out_and_says_what_is_wrong(
    reported: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = fedray.evaluate(reported, lambda device, example: 1.0 if example["targets"] else None)
    assert [each.name for each in only.groups] == ["1.0"]
    assert only.by == "group"
    zeros = fedray.evaluate(reported, "class").groups[0]
    assert only.groups[0].examples == reported.evaluated.examples - zeros.examples
    # Numbers come in their order, before texts.
    mixed = [10, 9, "a"]
    found = fedray.evaluate(reported, lambda device, example: mixed[int(example["targets"]) % 3])
    assert [each.name for each in found.groups] == ["9", "10", "a"]
    with pytest.raises(InputError, match="returned None for every example"):
        fedray.evaluate(reported, lambda device, example: None)
    with pytest.raises(InputError, match="the function failed at device .*KeyError: 'text'"):
        fedray.evaluate(reported, lambda device, example: example["text"])
    with pytest.raises(InputError, match="must return a text, a number or None, and returned"):
        fedray.evaluate(reported, lambda device, example: [1])
    monkeypatch.setattr("fedray.clients.groups.MOST_GROUPS", 50)
    with pytest.raises(InputError, match="gives more than 50 groups; return the name"):
        fedray.evaluate(reported, lambda device, example: float(example["inputs"][0]))
    with pytest.raises(InputError, match="by='age' is no kind of groups; use class, zone or"):
        fedray.evaluate(reported, "age")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="no best model"):
        fedray.evaluate(reported, "class", "best")


def test_data_without_classes_has_no_report_by_class(small, tmp_path: Path) -> None:
    scenario = small("training.enabled=true", "training.report_by=['class']")
    with pytest.raises(InputError, match="training.report_by='class' needs data with one class"):
        run_scenario(scenario, HERE, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    assert {each.name for each in task_of(scenario, source_of(scenario).fields).metrics}
