"""Answers to a question of a person with several devices: in audits, statements and ledgers, as brute force over the trace finds."""

import datetime
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedray.audit.auditing import audit_trace
from fedray.audit.ledger import Ledger
from fedray.audit.privacy_statement import privacy_statement
from fedray.audit.questions import OfPersons
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import ApproximateDP, Composed, Gaussian
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.report.audits import audit_tables
from fedray.runs.budgeted import charge_run, reserved
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.trace.reader import Trace
from fedray.wire.owners import OwnersOfDevices, owners_on

HERE = Placement(1, "in-process")
OCTOBER = datetime.date(2026, 10, 1)
LEAST, DELTA, EPSILON = 64, 1e-8, 0.8
SERVER, DEVICES = {"kind": "server"}, {"kind": "devices", "least_devices": LEAST}


def asking(*trust: Any, question: Any = None, delta: float = DELTA, **more: Any) -> Scenario:
    values = {"kind": "words", "words": 16, "per_device": 1.0}
    asked = {"question": question or {"kind": "histogram", "size": 16, "most_keys": 2}}
    table = {**asked, "values": values, "trust": list(trust), "epsilon": EPSILON, "delta": delta}
    return Scenario.from_tables(
        {
            "seed": 3,
            "population": {
                "devices": 400,
                "owners": {"mean_devices": 1.6, "most_devices": 3},
            },
            "availability": {"model": "always_on"},
            "participation": {"timer_hours": 14.0},
            "rounds": {
                "mode": "upload-then-train",
                "count": 3,
                "report_goal": LEAST,
                "uploads": {"window_hours": 8.0, "windows": 3, "schedule": {"kind": "all"}},
            },
            "analytics": table,
            **more,
        }
    )


MODEL = {
    "training": {"enabled": True, "cohort_sample": 20, "task": {"kind": "quadratic"}},
    "privacy": {"mechanism": {"kind": "identity"}, "noise_multiplier": 9.0, "delta": 1e-7},
    "data": {"kind": "points", "dimension": 3},
}


def together(trace: Trace) -> list[list[int]]:
    """Devices of each person in each window with an answer, by looking at every row."""
    counts: Counter[tuple[int, int]] = Counter()
    value = Scenario.from_tables(trace.scenario, directory=trace.path)
    owners = OwnersOfDevices.of(value)
    assert owners is not None
    for part in trace.accepted():
        ids = np.asarray(part.device_ids)
        for owner, index in zip(
            owners_on(owners, ids).tolist(),
            part.rounds,
            strict=True,  # pyright: ignore[reportArgumentType]
        ):
            counts[owner, int(index)] += 1
    persons: dict[int, list[int]] = {}
    for (owner, _), devices in counts.items():
        persons.setdefault(owner, []).append(devices)
    return list(persons.values())


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Trace:
    value = asking(SERVER, DEVICES)
    return simulate(value, HERE, tmp_path_factory.mktemp("persons") / "t")


def rows_of(audit: Any, unit: str, trust: str) -> dict[str, Any]:
    found = [each for each in audit.answers if (each.unit, each.trust) == (unit, trust)]
    return {each.basis: each for each in found}


def test_a_person_spends_the_sum_of_epsilons_or_the_squares_of_rho(trace: Trace) -> None:
    """Observed is the worst person of the trace, enforced three devices in every permitted window."""
    audit, shapes = audit_trace(trace), together(trace)
    answers = max(sum(each) for each in shapes)
    squares = max(sum(devices**2 for devices in each) for each in shapes)
    assert answers > 3
    for trust in ("server", "devices"):
        device, person = (rows_of(audit, unit, trust) for unit in ("device", "person"))
        k = device["enforced"].windows
        counts = {"window": 3, "observed": answers, "enforced": 3 * k}
        assert {basis: each.windows for basis, each in person.items()} == counts
        assert {each.delta for each in person.values()} == {each.delta for each in device.values()}
        assert [each.may_rest_on for each in person.values()] == [True, False, True]
        if trust == "server":
            epsilons = {basis: count * EPSILON for basis, count in counts.items()}
            found = {basis: each.epsilon for basis, each in person.items()}
            assert found == pytest.approx(epsilons, rel=1e-9)
        else:
            one = rho_of(device["window"].event)
            rhos = {"window": 9 * one, "observed": squares * one, "enforced": 9 * k * one}
            found = {basis: rho_of(each.event) for basis, each in person.items()}
            assert found == pytest.approx(rhos, rel=1e-9)


def test_verdict_table_and_statement_have_the_epsilon_of_a_person(trace: Trace) -> None:
    audit = audit_trace(trace)
    person = rows_of(audit, "person", "server")["enforced"]
    said = f"For a person with up to 3 devices it is {person.epsilon:.4f} at delta"
    assert said in audit.verdict
    assert "not known" not in audit.verdict
    table = next(each for each in audit_tables(audit) if each.title.startswith("Privacy of the"))
    units = table.columns.index("unit")
    assert {row[units] for row in table.rows} == {"device", "person"}
    lines = {line.what: line for line in privacy_statement(audit).lines}
    line = lines["A person instead of a device"]
    assert f"epsilon {person.epsilon:.4f}" in line.says
    assert "group privacy" in line.evidence
    # Nothing was trained, so nothing is said of a model.
    assert "model" not in line.says
    document = audit.to_json()["answers"]
    assert [each["epsilon"] for each in document if each["unit"] == "person"]


@pytest.mark.slow
def test_a_persons_model_and_answers_compose(tmp_path: Path) -> None:
    import fedray

    trace = fedray.run_scenario(
        asking(SERVER, DEVICES, **MODEL),  # pyright: ignore[reportArgumentType]
        HERE,
        tmp_path / "t",
    )
    assert isinstance(trace, Trace)
    audit = audit_trace(trace)
    of_model = audit.mechanisms[0].person
    assert of_model is not None
    for trust in ("server", "devices"):
        rows = rows_of(audit, "person", trust)
        for name in ("observed", "enforced"):
            own, both = rows[name], rows[f"{name}, with the model"]
            model = of_model.named(name)
            composed = Composed(events=(own.event, model.event))  # pyright: ignore[reportArgumentType]
            assert both.event == composed
            assert both.delta == own.delta + model.delta
            assert both.epsilon == epsilon_of(composed, both.delta).epsilon
            assert both.epsilon > model.epsilon
    table = next(each for each in audit_tables(audit) if each.title.startswith("A person"))
    assert table.title == "A person instead of a device, the model only"
    assert table.rows[-1][-1] == "the model only"
    assert table.rows[0][-1] == "no"
    assert any("Not observed: it would hold only if" in note for note in table.notes)
    assert "the model with the answers to its question" in audit.verdict
    assert "vocabulary" not in audit.verdict


@pytest.mark.parametrize(
    ("trust", "delta", "question"),
    [
        (SERVER, 0.0, None),
        (DEVICES, DELTA, None),
        (SERVER, DELTA, {"kind": "open_histogram", "most_keys": 2}),
    ],
    ids=["laplace", "gaussian", "threshold"],
)
def test_a_ledger_of_persons_charges_each_what_its_devices_spent(
    tmp_path: Path, trust: Any, delta: float, question: Any
) -> None:
    """The reservation is the worst case of three devices, and each person is charged its own."""
    budget = 1e-5
    ledger = Ledger.create(tmp_path / "ledger", 50.0, budget, "quarter", "person")
    value = asking(trust, delta=delta, question=question)
    with reserved(ledger.path, value, OCTOBER) as begun:
        begun()
        trace = simulate(value, HERE, tmp_path / "t")
    (held,) = Ledger.open(ledger.path).windows
    ledger = charge_run(ledger.path, trace, OCTOBER)
    (window,) = ledger.windows
    shapes, audit = together(trace), audit_trace(trace)
    assert window.units == len(shapes)
    assert window.may_rest_on
    row = rows_of(audit, "person", trust["kind"])["enforced"]
    assert window.epsilon == pytest.approx(epsilon_of(row.event, budget).epsilon, rel=1e-6)
    assert window.epsilon <= held.epsilon * (1 + 1e-9)
    most = max(sum(each) for each in shapes)
    squares = max(sum(devices**2 for devices in each) for each in shapes)
    if trust is SERVER:
        assert window.recorded == pytest.approx((EPSILON * most) ** 2 / 2, rel=1e-9)
    else:
        one = rho_of(rows_of(audit, "device", trust["kind"])["window"].event)
        assert window.recorded == pytest.approx(squares * one, rel=1e-9)


def test_a_person_has_no_figure_that_is_not_proven_or_means_nothing(trace: Trace) -> None:
    audit = audit_trace(trace)
    assert audit.persons is not None
    persons = OfPersons(audit.persons, None)
    device = rows_of(audit, "device", "server")["enforced"]
    for event, reason in (
        (Gaussian(noise_multiplier=1.0), "group privacy is known here for stated"),
        (ApproximateDP(epsilon=40.0, theorem="t"), "100 or more"),
    ):
        row = persons.row(replace(device, event=event))
        assert (row.event, row.epsilon, row.may_rest_on) == (None, None, False)
        assert reason in row.reason


def test_a_vocabulary_counts_for_all_devices_of_a_person(tmp_path: Path) -> None:
    """Two windows of (1, 1e-8) each: (6, 2e-8 (1 + e + e^2)) for three devices, and its model."""
    from test_basis import paid  # pyright: ignore[reportMissingImports]

    owners = {"owners": {"mean_devices": 1.3, "most_devices": 3}}
    _, trace = paid(tmp_path, population=owners)
    audit = audit_trace(trace)
    person = rows_of(audit, "person", "server")
    device = rows_of(audit, "device", "server")
    of_one = device["vocabulary"].epsilon / 2
    assert person["vocabulary"].epsilon == pytest.approx(6 * of_one)
    factor = 1 + math.exp(of_one) + math.exp(2 * of_one)
    failure = 2 * 8.191944783181514e-9
    assert person["vocabulary"].delta == pytest.approx(2e-8 - failure + factor * failure)
    assert "the model with its vocabulary" in audit.verdict
    assert "For a person with up to 3 devices it is" in audit.verdict
    assert "not known" not in audit.verdict
