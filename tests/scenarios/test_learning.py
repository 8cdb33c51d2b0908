"""The order of mechanisms by models: equal privacy, gains of paired runs, verdicts, kept runs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from small_study import SMALL_STUDY, refused, studied

import fedray
from fedray.scenarios import learning
from fedray.scenarios.learning import ORDER, LearningStudies, Neighbours
from fedray.studies.paired import MeanInterval


def results(folder: Path, **given: Any) -> Any:
    return studied(learning.REPRODUCTION, folder, **given)


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> tuple[Any, Path]:
    """The document of a study, and the folder of its files."""
    folder = tmp_path_factory.mktemp("learning")
    (study,) = results(folder).document["studies"]
    return study, folder / "language"


@pytest.mark.slow
def test_all_mechanisms_have_the_rho_of_the_scenarios_own(kept) -> None:
    study, folder = kept
    trace = fedray.Trace.open(folder / "trace")
    own = fedray.Scenario.from_toml(learning.RECIPES / "language.toml", SMALL_STUDY)
    (audited,) = fedray.audit_trace(trace, scenario=own).mechanisms
    assert study["rho"] == audited.enforced.rho
    for kind in ORDER:
        run = fedray.TrainedRun.open(folder / "runs" / f"{kind}-1")
        scenario = fedray.Scenario.from_tables(run.document["scenario"], directory=run.path)
        assert scenario.privacy.mechanism.kind in (kind, "toeplitz")
        (spent,) = fedray.audit_trace(trace, scenario=scenario).mechanisms
        assert spent.enforced.rho is not None
        # Sums over a BLT with almost equal decays have a margin for rounding, on the safe side.
        assert study["rho"] * (1 - 1e-4) <= spent.enforced.rho <= study["rho"]


@pytest.mark.slow
def test_gains_are_those_of_paired_runs(kept) -> None:
    study, folder = kept
    pair = study["neighbours"][1]
    assert (pair["first"], pair["second"]) == ("blt", "tree-full")

    def accuracy(kind: str, seed: int) -> float:
        run = fedray.TrainedRun.open(folder / "runs" / f"{kind}-{seed}")
        return run.last_evaluation()["accuracy"].value

    gains = [accuracy("blt", seed) - accuracy("tree-full", seed) for seed in (1, 2)]
    assert pair["gain"]["mean"] == pytest.approx(np.mean(gains))


@pytest.mark.slow
def test_a_second_request_trains_nothing_and_finds_the_same(kept, monkeypatch) -> None:
    study, folder = kept
    monkeypatch.setattr("fedray.runs.learning._train_one", refused)
    assert [study] == results(folder.parent).document["studies"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seeds": 1}, "seeds=1 must be at least 2"),
        ({"scenarios": "chess"}, "must name some of language, source_code"),
        ({"scenarios": "language,language"}, "each once"),
    ],
)
def test_impossible_requests_are_refused_before_anything_is_simulated(
    given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(fedray.InputError, match=message):
        results(tmp_path / "o", **given)
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.01, 0.05, "confirmed"), (-0.01, 0.03, "not decided"), (-0.05, -0.01, "reversed")],
)
def test_an_interval_off_zero_decides(low: float, high: float, verdict: str) -> None:
    pair = Neighbours("blt", "tree", MeanInterval((low + high) / 2, 3, low, high))
    assert pair.verdict == verdict
    study: Any = SimpleNamespace(neighbours=(pair,))
    assert LearningStudies((study, study)).verdicts == [verdict, verdict]


def test_only_a_reversed_pair_contradicts_the_literature(monkeypatch) -> None:
    monkeypatch.setattr(learning, "_order_table", lambda study: study)
    comparison: Any = SimpleNamespace(figures=list, of=learning.Subject("any"))
    for high, agrees in ((0.01, True), (-0.01, False)):
        pair = Neighbours("blt", "tree", MeanInterval(-0.02, 3, -0.03, high))
        study: Any = SimpleNamespace(neighbours=(pair,), comparison=comparison)
        monkeypatch.setattr(LearningStudies, "to_json", lambda self: {})
        found = learning._reproduced(LearningStudies((study,)))
        assert found.agrees == agrees
