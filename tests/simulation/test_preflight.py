"""The checks before a run: made once, and handed to everything that needs them."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import fedray
from fedray.audit.ledger import Ledger
from fedray.base.errors import Unsustainable
from fedray.runs import budgeted, preflight, simulation
from fedray.runs.calibrated import calibrated, worst_participation
from fedray.scenario import SeveralTasks

RULES = "participation={timer_hours=0, round_separation=3, max_participations=2}"
TARGET = "privacy.target_epsilon=8.0"


def test_a_preflight_has_the_calibrated_noise_and_the_worst_case_of_each_task(small) -> None:
    one = small(RULES, TARGET)
    told: list[str] = []
    found = preflight.preflight(one, told.append)
    assert found.scenario == calibrated(one) != one
    assert found.worst == (worst_participation(one),)
    assert len(told) == 1
    tasks = {"a": {}, "b": {"participation": {"max_participations": 4}}}
    several = SeveralTasks.from_tables({**one.to_tables(), "tasks": tasks})
    both = preflight.preflight(several)
    assert both.scenario == calibrated(several) != several
    assert [each.max_participations for each in both.worst] == [2, 4]


def test_a_run_that_cannot_finish_is_refused_before_its_noise_is_searched(small) -> None:
    told: list[str] = []
    with pytest.raises(Unsustainable, match="max_participations"):
        preflight.preflight(small(RULES, TARGET, "rounds.count=5000"), told.append)
    assert not told


@pytest.mark.slow
def test_a_run_within_a_ledger_s_budget_is_checked_once(
    small, fedray_command, tmp_path: Path, monkeypatch
) -> None:
    calls: Counter[str] = Counter()

    def counted(module: Any, name: str) -> None:
        original = getattr(module, name)

        def count(*given: Any) -> Any:
            calls[name] += 1
            return original(*given)

        monkeypatch.setattr(module, name, count)

    for module in (preflight, simulation):
        counted(module, "check_sustainable")
    for module in (preflight, budgeted):
        counted(module, "worst_participation")
    (tmp_path / "s.toml").write_text(small(RULES, TARGET, "training.enabled=false").to_toml())
    ledger = Ledger.create(tmp_path / "ledger", 90.0, 1e-6, "year").path
    given = ("run", str(tmp_path / "s.toml"), "--ledger", str(ledger), "--out", str(tmp_path / "t"))
    code, _, error = fedray_command("--quiet", *given)
    assert code == 0, error
    assert calls == {"check_sustainable": 1, "worst_participation": 1}
    # A simulation without a run checks for itself.
    with pytest.raises(Unsustainable):
        fedray.simulate(small(RULES, "rounds.count=5000"), fedray.Placement(1, "in-process"))
    assert calls["check_sustainable"] == 2
