"""One model under every kind of trust: epsilon of each observer, and the statements about them."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_trust import SMALL_TRUST

import fedray
from fedray.audit.observers import DEVICE, MODELS, OPERATOR, SYBILS, Observer
from fedray.runtime.placement import Placement
from fedray.scenarios import trust
from fedray.scenarios.trust import TrustRow
from fedray.studies.paired import MeanInterval

NAMES = [each.name for each in trust.SETTINGS]
OTHERS = NAMES[1:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("trust")


def results(folder: Path, **given: Any) -> Any:
    (found,) = trust.REPRODUCTION.results(
        **{
            "out": folder,
            "seeds": 2,
            "overrides": SMALL_TRUST,
            "placement": Placement(backend="in-process"),
            **given,
        }
    )
    return found


@pytest.fixture(scope="module")
def rows(folder: Path) -> dict[str, Any]:
    """Rows of the document by setting; the files of the runs are in `folder`."""
    return {each["setting"]: each for each in results(folder).document["rows"]}


def epsilon(row: Any, observer: str) -> Any:
    """Epsilon against an observer; None if nothing protects from it."""
    (found,) = (each["epsilon"] for each in row["observers"] if each["name"] == observer)
    return found


@pytest.mark.slow
def test_the_operator_of_a_server_is_trusted_and_every_other_has_the_epsilon(rows) -> None:
    assert [*rows] == NAMES
    assert epsilon(rows["server"], OPERATOR) is None
    assert 3.99 < epsilon(rows["server"], MODELS) <= 4.0
    for name in OTHERS:
        assert 3.99 < epsilon(rows[name], OPERATOR) <= 4.0, name
        # An observer who sees more has no smaller epsilon.
        assert epsilon(rows[name], OPERATOR) <= epsilon(rows[name], SYBILS)
        assert epsilon(rows[name], MODELS) <= epsilon(rows[name], DEVICE)


@pytest.mark.slow
def test_models_of_local_noise_have_less_epsilon_than_their_operator(rows) -> None:
    local = rows["local, identity"]
    assert epsilon(local, MODELS) < 0.5 * epsilon(local, OPERATOR)
    for name in ("devices", "enclave"):
        assert epsilon(rows[name], MODELS) == epsilon(rows[name], OPERATOR)


@pytest.mark.slow
def test_trained_runs_have_the_noise_of_their_row_and_less_is_too_little(rows, folder) -> None:
    trace = fedray.Trace.open(folder / "trace")
    observers = {each.name: each.observer for each in trust.SETTINGS}
    for each in trust.SETTINGS:
        run = fedray.TrainedRun.open(folder / "runs" / f"{each.folder}-2")
        tables = run.document["scenario"]
        assert tables["privacy"]["noise_multiplier"] == rows[each.name]["noise_multiplier"]
        scenario = fedray.Scenario.from_tables(tables, directory=run.path)
        assert scenario.privacy.trust.kind == each.name.partition(",")[0]
        for factor, is_enough in ((1.0, True), (0.999, False)):
            z = factor * rows[each.name]["noise_multiplier"]
            own = scenario.with_overrides(f"privacy.noise_multiplier={z!r}")
            audit = fedray.audit_trace(trace, scenario=own).to_json()
            assert (epsilon(audit, observers[each.name]) <= 4.0) == is_enough, each.name


@pytest.mark.slow
def test_an_enclave_trains_the_models_of_a_server(rows, folder) -> None:
    for seed in (1, 2):
        models = [
            fedray.TrainedRun.open(folder / "runs" / f"{kind}-{seed}").parameters()
            for kind in ("server", "enclave", "devices")
        ]
        assert (models[0] == models[1]).all()
        assert (models[0] != models[2]).any()
    assert rows["enclave"]["beyond_server"]["mean"] == 0.0


@pytest.mark.slow
def test_a_second_request_trains_nothing_and_finds_the_same(rows, folder, monkeypatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("a finished training was started")

    monkeypatch.setattr("fedray.runs.learning._train_one", refused)
    assert [*rows.values()] == results(folder).document["rows"]


def test_one_seed_is_refused_before_anything_is_simulated(tmp_path: Path) -> None:
    with pytest.raises(fedray.InputError, match=r"seeds=1 must be at least 2"):
        results(tmp_path / "o", seeds=1)
    assert not (tmp_path / "o").exists()


def row(name: str, models: float, operator: float | None, beyond: float) -> TrustRow:
    spent = {MODELS: models, DEVICE: 4.1, OPERATOR: operator, SYBILS: operator}
    observers = tuple(
        Observer(each, "", "", "nothing" if figure is None else "noise", figure, 1e-10, "")
        for each, figure in spent.items()
    )
    interval = MeanInterval(beyond, 5, beyond - 0.01, beyond + 0.01)
    return TrustRow(name, 4.0, observers, 0.2, replace(interval, mean=0.68), interval)


ROWS = {
    "server": row("server", 4.0, None, 0.0),
    "enclave": row("enclave", 4.0, 4.0, 0.0),
    "devices": row("devices", 4.0, 4.0, -0.002),
    "devices, identity": row("devices, identity", 4.0, 4.0, -0.02),
    "local, identity": row("local, identity", 0.47, 4.0, -0.17),
}


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ([], []),
        ([row("server", 4.0, 4.0, 0.0)], [0]),
        ([row("devices", 4.0, 4.001, 0.0)], [1]),
        ([row("devices", 4.0, None, 0.0)], [1]),
        ([row("local, identity", 4.0, 4.0, -0.17)], [2]),
        ([row("devices", 4.0, 4.0, -0.021)], [3]),
        ([row("enclave", 4.0, 4.0, -0.021)], [3]),
        ([row("local, identity", 0.47, 4.0, -0.009)], [4]),
        ([row("local, identity", 0.47, 4.0, -0.019)], [4]),
    ],
)
def test_each_statement_can_fail(changed: list[TrustRow], wrong: list[int]) -> None:
    comparison: Any = SimpleNamespace(
        delta=1e-10, sample="", figures=list, of=trust.Subject("any"), to_json=dict
    )
    rows = ROWS | {each.setting: each for each in changed}
    found = trust._reproduced(comparison, [*rows.values()], 4.0)
    assert found.agrees == (not wrong)
    said = [holds for _, holds in found.shown[-1].rows]
    assert [place for place, holds in enumerate(said) if holds == "NO"] == wrong
