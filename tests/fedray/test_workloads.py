"""Workloads of scenarios."""

from pathlib import Path

import pytest

from fedray.base.errors import InputError
from fedray.mechanisms.workload import PREFIX, Workload
from fedray.runs.workloads import CONTRACTION, read_workload, schedule_rates

SCENARIO = """
[population]
devices = 1000
[rounds]
count = 11
report_goal = 100
[training.server.schedule]
shape = "cosine"
final = 0.2
"""


def test_a_schedule_of_a_scenario_file_becomes_the_step_sizes(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(SCENARIO)
    found = read_workload(f"momentum=0.9,schedule={file}", 11)
    assert (found.momentum, found.decay) == (0.9, 1.0)
    assert found.rates[0] == pytest.approx(1.0)
    assert found.rates[5] == pytest.approx(0.6)
    assert found.rates[10] == pytest.approx(0.2)
    assert len(found.rates) == 11


def test_a_constant_schedule_is_a_toeplitz_workload(small) -> None:
    rates = schedule_rates(small().training, 5)
    assert rates == (1.0,) * 5
    assert Workload(rates=rates).is_toeplitz


def test_other_texts_need_no_scenario() -> None:
    assert read_workload("prefix", 5) == PREFIX
    assert read_workload("momentum=0.9,decay=0.95", 5) == Workload(0.9, 0.95)
    with pytest.raises(InputError, match="needs the rates of a scenario"):
        read_workload("schedule", 5)


def test_a_schedule_without_a_file_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none.toml") as refused:
        read_workload(f"schedule={tmp_path / 'none.toml'}", 5)
    assert "\n" not in str(refused.value)


def test_a_scenario_file_stands_for_its_server_with_the_contraction(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(SCENARIO)
    found = read_workload(str(file), 11)
    assert (found.momentum, found.decay) == (0.9, CONTRACTION)
    assert found.rates == read_workload(f"schedule={file}", 11).rates
    kind = '[training.server]\nkind = "adam"\nbeta1 = 0.8\n'
    file.write_text(SCENARIO.partition("[training.server")[0] + kind)
    # Constant steps only scale the error.
    assert read_workload(str(file), 11) == Workload(0.8, CONTRACTION)
