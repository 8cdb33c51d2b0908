"""A trained model on the population's devices: who is drawn, and what is measured."""

import json
import shutil

import numpy as np
import pytest
import torch
from document_schema import found_keys

import fedray
from fedray.clients.data.factory import source_of
from fedray.clients.tasks.factory import task_of
from fedray.clients.tasks.layout import named
from fedray.clients.trainer import LocalTrainer
from fedray.runtime.placement import Placement
from fedray.studies.on_devices import QUANTILES, _bins
from fedray.studies.on_devices_page import on_devices_figures, on_devices_page
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun

PATTERNS = [[0, 1, 2, 3]] * 3 + [[0, 2]] * 30 + [[1]] * 40 + [[3]] * 50
"""Rounds of the devices 0 to 122; 20,000 are in the population."""
OVERRIDES = (
    "population.time_zones=[{utc_offset_hours=-5, share=0.5}, {utc_offset_hours=1, share=0.5}]",
    "data.kind=points",
    "training.task.kind=quadratic",
    "training.enabled=true",
    "training.cohort_sample=20",
)


@pytest.fixture
def trace(trace_of, small) -> Trace:
    return trace_of(PATTERNS, 4, small("rounds.count=4", *OVERRIDES))


@pytest.fixture
def trained(trace: Trace, tmp_path) -> TrainedRun:
    return fedray.train(trace, None, Placement(1, "in-process"), tmp_path / "model")


@pytest.mark.slow
def test_groups_are_the_devices_that_took_part_so_often(trained, trace) -> None:
    found = fedray.evaluate_on_devices(trained, trace, devices=64)
    sizes = {(group.by, group.label): group.devices for group in found.groups}
    assert sizes["all", "all"] == 64
    assert sizes["participations", "0"] == 64
    assert sizes["participations", "1"] == 64  # of 90
    assert sizes["participations", "2"] == 30
    assert sizes["participations", "4"] == 3
    assert ("participations", "3") not in sizes
    assert sizes["zone", "UTC-5"] + sizes["zone", "UTC+1"] == 64
    # 80 places in 4 rounds of 20 devices each.
    own = {label: size for (by, label), size in sizes.items() if by == "trained" and label != "0"}
    whole = fedray.evaluate_on_devices(trained, trace, devices=10_000)
    exact = {group.low: group.devices for group in whole.groups if group.by == "trained"}
    assert sum(count * size for count, size in exact.items()) == 80
    assert own.keys() == {f"{count:g}" for count in exact if count}
    assert exact[0] == 10_000


def test_measures_are_those_of_each_device_alone(trained, trace) -> None:
    """Against a twin that looks at one device after the other."""
    scenario = fedray.Scenario.from_tables(trained.document["scenario"])
    source = source_of(scenario)
    task = task_of(scenario, source.fields)
    parameters = trained.parameters()
    start = named(torch.tensor(parameters)[None, :], task.shapes)
    alone = []
    for device in range(3):  # the group of four participations
        ids = np.array([device], np.uint64)
        count = min(5, int(source.examples_on(ids)[0]))
        examples = source.examples(ids, np.arange(count)[None, :])
        batch = {name: torch.from_numpy(part) for name, part in examples.items()}
        alone.append(
            {
                name: float(numerators.double().sum() / weights.double().sum())
                for name, (numerators, weights) in task.measure(start, batch).items()
            }
        )
    found = fedray.evaluate_on_devices(trained, trace, devices=40, examples=5)
    group = next(each for each in found.groups if (each.by, each.low) == ("participations", 4))
    for metric in found.metrics:
        values = np.array([each[metric.name] for each in alone])
        mean, error, quantiles = group.metrics[metric.name]
        assert mean == pytest.approx(values.mean(), rel=1e-6)
        assert error == pytest.approx(values.std(ddof=1) / np.sqrt(3), rel=1e-6)
        assert quantiles == pytest.approx(np.quantile(values, QUANTILES), rel=1e-6)


def test_samples_are_addressed(trained, trace) -> None:
    """The same devices every time, and others for another seed of the population."""
    first, again = (fedray.evaluate_on_devices(trained, trace, devices=16) for _ in range(2))
    assert first.to_json() == again.to_json()
    found_keys(json.loads(json.dumps(first.to_json())), type(first))


def test_devices_without_data_are_counted_and_left_out(trained) -> None:
    """A source in which every second device has nothing."""
    trainer = LocalTrainer(fedray.Scenario.from_tables(trained.document["scenario"]))
    source = trainer._source
    counts = source.examples_on
    source.examples_on = lambda ids: np.where(ids % np.uint64(2) == 0, counts(ids), 0)  # pyright: ignore[reportAttributeAccessIssue]
    found = trainer.measure_devices(trained.parameters(), np.arange(10, dtype=np.uint64), 4)
    assert found.device_ids.tolist() == [0, 2, 4, 6, 8]
    assert all(len(sums) == 5 for sums in found.sums.values())


def test_a_uniform_sample_leaves_out_those_that_took_part(trained, trace) -> None:
    """Where most devices took part, the rest is found: 123 - 100 of 123 ids."""
    from fedray.studies.on_devices import DeviceDraws

    scenario = fedray.Scenario.from_tables(trained.document["scenario"])
    draws = DeviceDraws(scenario, trace, 32)
    draws._joined = 123
    without = np.arange(100, dtype=np.uint64)
    assert draws.of_population("participations", without).tolist() == list(range(100, 123))


@pytest.mark.parametrize("most", [1, 8, 9, 16, 17, 1000])
def test_groups_of_counts_cover_every_count_once(most: int) -> None:
    counts = [count for low, high in _bins(most) for count in range(low, high + 1)]
    assert counts[:most] == list(range(1, most + 1))
    assert len(list(_bins(most))) <= 8 + max(0, int(np.ceil(np.log2(most / 8))))


def test_the_page_is_that_of_the_trained_run_with_the_groups(
    trained, trace, tmp_path, script
) -> None:
    found = fedray.evaluate_on_devices(trained.path, trace.path, devices=32)
    page = fedray.write_report(found, tmp_path / "page.html")
    shown = script(page.read_text(), "results-data")
    assert shown["on_devices"] == json.loads(json.dumps(found.to_json()))
    assert shown["trace_digest"] == trace.digest
    fedray.write_figures(found, tmp_path / "figures")
    assert (tmp_path / "figures" / "loss-by-zone.csv").exists()
    (table, *_) = found.tables()
    assert ["took part", "2", "30"] in [list(row[:3]) for row in table.rows]


def test_figures_show_spread_and_mean(trained, trace) -> None:
    found = fedray.evaluate_on_devices(trained, trace, devices=32)
    figure = next(
        each for each in on_devices_figures(found) if each.name == "loss-by-participations"
    )
    median, mean = figure.series
    assert median.x.tolist() == [0.0, 1.0, 2.0, 4.0]
    assert (median.low <= median.y).all()
    assert (median.y <= median.high).all()
    assert ((mean.low < mean.y) & (mean.y < mean.high)).all()
    assert "on devices" in on_devices_page(found)
    assert list(found.plot("loss-by-participations").svgs) == ["loss-by-participations"]
    assert "took part" in found._repr_html_()


def test_what_cannot_be_evaluated_is_refused_in_one_line(
    trained, trace, trace_of, tmp_path
) -> None:
    other = trace_of([[0]], 1)
    moved = shutil.copytree(trained.path, tmp_path / "far" / "away" / "m")
    for arguments, words in [
        ((moved,), "which is not at '.*'; move it there, or give it as `trace`"),
        ((trained.path, other.path), "trace='.*' has digest"),
        ((trained.path, trace.path, 0), "devices=0 must be at least 1"),
        ((trained.path, trace.path, 32, 0), "examples=0 must be"),
        ((trace.path,), "has no trained run"),
        ((tmp_path / "none",), "has no training.json"),
    ]:
        with pytest.raises(fedray.FedrayError, match=words) as found:
            fedray.evaluate_on_devices(*arguments)
        assert "\n" not in str(found.value)
