"""Answers in a ledger: charged to the devices that reported, and composed with models as dp_accounting and an audit compose them."""

import datetime
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from drawn_runs import Drawn, drawn, words

from fedray.audit.auditing import audit_trace
from fedray.audit.ledger import Ledger
from fedray.audit.ledger_charges import noise_of
from fedray.base.errors import InputError
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.events import Composed, Gaussian, Repeated, read_event
from fedray.mechanisms.accounting.pld import parts_of
from fedray.mechanisms.accounting.zcdp import ORDERS, rho_of
from fedray.runs.budgeted import charge_run, reserved, worst_case
from fedray.runs.calibrated import worst_participation
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.trace.reader import Trace

HERE = Placement(1, "in-process")
OCTOBER = datetime.date(2026, 10, 1)
DELTA = 1e-6
NOISE = 3.0
LEAST = 64
HISTOGRAM = {"kind": "histogram", "size": 16, "most_keys": 2}
SERVER, DEVICES = {"kind": "server"}, {"kind": "devices", "least_devices": LEAST}
SHUFFLED = {"kind": "shuffled", "least_devices": LEAST}


def scenario(seed: int, **more: Any) -> Scenario:
    """Three windows of stored uploads, of which a device is in any."""
    return Scenario.from_tables(
        {
            "seed": 3,
            "population": {"devices": 400},
            "availability": {"model": "always_on"},
            "participation": {"timer_hours": 0.0},
            "rounds": {
                "mode": "upload-then-train",
                "count": 3,
                "report_goal": LEAST,
                "uploads": {"window_hours": 8.0, "windows": 3, "schedule": {"kind": "all"}},
            },
            "privacy": {"mechanism": {"kind": "identity"}, "noise_multiplier": NOISE},
            "training": {"enabled": False, "seed": seed},
            **more,
        }
    )


def asking(
    seed: int, *trust: dict[str, Any], delta: float = 0.0, question: Any = None, **more: Any
) -> Scenario:
    values = {"kind": "words", "words": 16, "per_device": 1.0}
    table = {"question": question or HISTOGRAM, "values": values, "trust": list(trust)}
    return scenario(seed, analytics={**table, "epsilon": 0.8, "delta": delta}, **more)


def units_of(ledger: Ledger, line: int) -> list[tuple[Any, dict[int, float]]]:
    """The release and the amounts of every part of a charge, by device."""
    (parts,) = ledger.charges[line].windows.values()
    found = []
    for part in parts:
        table = pa.ipc.open_file(ledger.path / f"{part.file}.arrow").read_all()
        found.append((part.release, dict(zip(*map(list, table.to_pydict().values()), strict=True))))
    return found


def event_of(spent: list[tuple[Any, float]]) -> Any:
    """The composition of a device's releases, as an audit writes it."""
    events: list[Any] = []
    for release, amount in spent:
        if amount and release == "gaussian":
            events.append(Gaussian(noise_multiplier=1.0, sensitivity=math.sqrt(2 * amount)))
        elif amount:
            events.append(Repeated(event=read_event(release), count=int(amount)))  # pyright: ignore[reportArgumentType]
    return Composed(events=tuple(events))


def peer_bounds(event: Any) -> tuple[float, float]:
    """Epsilon by dp_accounting's own composition: at most the truth, and at least it."""
    from dp_accounting import ComposedDpEvent, ZCDpEvent
    from dp_accounting.pld import privacy_loss_distribution as losses
    from dp_accounting.rdp import RdpAccountant

    parts = parts_of(event)
    if any(each.kind == "discrete-gaussian-sum" for each in parts):
        rhos = [ZCDpEvent(times * rho_of(each)) for each, times in parts.items()]
        orders = (1 + ORDERS[ORDERS < 1e6]).tolist()
        renyi = RdpAccountant(orders=orders).compose(ComposedDpEvent(rhos))
        return (float(renyi.get_epsilon(DELTA)),) * 2
    found = []
    for is_pessimistic in (False, True):
        # The bracket is 1e-4 of epsilon wide at most.
        how = {"value_discretization_interval": 1e-4, "pessimistic_estimate": is_pessimistic}
        each_one = [
            losses.from_gaussian_mechanism(each.noise_at_unit_sensitivity, **how)
            if each.kind == "gaussian"
            else losses.from_randomized_response(2 / (1 + math.exp(each.epsilon)), 2, **how)
            for each in parts.elements()
        ]
        total = each_one[0]
        for each in each_one[1:]:
            total = total.compose(each)
        own = sum(times * getattr(each, "delta", 0.0) for each, times in parts.items())
        found.append(total.get_epsilon_for_delta(DELTA - own))
    return found[0], found[1]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> list[Trace]:
    folder = tmp_path_factory.mktemp("models")
    return [simulate(scenario(seed), HERE, folder / str(seed)) for seed in (11, 12)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trust", "delta"),
    [(None, 0.0), (SERVER, 0.0), (SERVER, 1e-8), (DEVICES, 1e-8), (SHUFFLED, 1e-8)],
)
def test_two_models_and_a_histogram_compose_as_dp_accounting_composes_them(
    models: list[Trace], tmp_path: Path, trust: Any, delta: float
) -> None:
    ledger = Ledger.create(tmp_path / "ledger", 50.0, DELTA, "quarter")
    traces = list(models)
    if trust is not None:
        asked = asking(13, trust, delta=delta)
        with reserved(ledger.path, asked, OCTOBER):
            traces.append(simulate(asked, HERE, tmp_path / "asked"))
    for each in traces:
        ledger = charge_run(ledger.path, each, OCTOBER)
    assert not ledger.reservations
    charges = [part for line in ledger.charges for part in units_of(ledger, line)]
    devices = {device for _, amounts in charges for device in amounts}
    spent = {tuple(amounts.get(device, 0.0) for _, amounts in charges) for device in devices}
    releases = [release for release, _ in charges]
    events = [event_of(list(zip(releases, each, strict=True))) for each in spent]
    (window,) = ledger.windows
    assert window.units == len(devices)
    bounds = [peer_bounds(each) for each in events]
    assert window.epsilon >= max(low for low, _ in bounds) * (1 - 1e-9)
    assert window.epsilon <= max(high for _, high in bounds) * 1.001
    # An audit composes the same event.
    verdicts = [epsilon_of(each, DELTA).epsilon for each in events]
    assert window.epsilon == pytest.approx(max(verdicts), rel=1e-9)
    if trust is not None:
        of_answers = audit_trace(traces[-1]).answers
        assert of_answers is not None
        most = max(charges[-1][1].values())
        assert {row.basis: row.windows for row in of_answers}["observed"] == most
        (of_question,) = ledger.charges[5].windows["2026-Q4"]
        assert of_question.enforced == 3.0


@pytest.mark.slow
def test_a_training_on_a_run_that_asked_is_charged_after_the_run(
    tmp_path: Path,
) -> None:
    """The answers are charged once, with the run, and compose with the model as in the audit of the training."""
    trace = simulate(asking(21, SERVER, delta=1e-8), HERE, tmp_path / "t")
    own = audit_trace(trace).scenario
    assert own is not None
    training = own.with_overrides("training.enabled=true")
    audit = audit_trace(trace, scenario=training)
    ledger = Ledger.create(tmp_path / "ledger", 50.0, DELTA, "quarter")
    with pytest.raises(InputError, match="released answers too, .* charge the run first"):
        ledger.charge([audit], OCTOBER)
    both = charge_run(ledger.path, trace, OCTOBER).charge([audit])
    (answers,), (model,) = units_of(both, 2), units_of(both, 3)
    assert (model[0], isinstance(answers[0], dict)) == ("gaussian", True)
    assert audit.answers is not None
    # At the ledger's delta, epsilon is that of the verdict's event.
    row = next(each for each in audit.answers if each.basis == "enforced, with the model")
    assert row.event is not None
    assert both.windows[0].epsilon == pytest.approx(epsilon_of(row.event, DELTA).epsilon, rel=1e-9)
    of_model, of_answers = worst_case(training, worst_participation(training))
    assert of_model.release == "gaussian"
    assert of_answers.amount == 3.0


def test_a_model_without_noise_is_not_charged_for_its_question(tmp_path: Path) -> None:
    silent = asking(22, SERVER, privacy={"mechanism": {"kind": "none"}})
    trace = simulate(silent, HERE, tmp_path / "t")
    own = audit_trace(trace).scenario
    assert own is not None
    audit = audit_trace(trace, scenario=own.with_overrides("training.enabled=true"))
    ledger = Ledger.create(tmp_path / "ledger", 50.0, DELTA, "quarter")
    ledger = charge_run(ledger.path, trace, OCTOBER)
    with pytest.raises(InputError, match="no known mechanism and noise"):
        ledger.charge([audit])


def test_questions_that_share_their_noise_or_have_no_one_figure_are_refused(
    tmp_path: Path,
) -> None:
    ledger = Ledger.create(tmp_path / "ledger", 50.0, DELTA, "quarter")
    with reserved(ledger.path, asking(31, SERVER), OCTOBER) as begun:
        begun()
    other = {"kind": "count"}

    def refused(ledger: Ledger, value: Scenario, reason: str) -> None:
        with pytest.raises(InputError, match=reason), reserved(ledger.path, value, OCTOBER):
            pytest.fail("the run started")

    same = asking(31, SERVER, question=other)
    refused(ledger, same, r"line 2 has the same noise \(seed 31 of answers\)")
    with reserved(ledger.path, asking(32, SERVER, question=other), OCTOBER) as begun:
        begun()
    both = asking(33, SERVER, DEVICES, delta=1e-8)
    refused(ledger, both, "of which a deployment has one.*keep one")
    owners = {"devices": 400, "owners": {"mean_devices": 1.4, "most_devices": 2}}
    of_persons = Ledger.create(tmp_path / "persons", 50.0, DELTA, "quarter", "person")
    of_owners = asking(34, SERVER, population=owners)
    with reserved(of_persons.path, of_owners, OCTOBER) as begun:
        begun()
    (window,) = Ledger.open(of_persons.path).windows
    # Three windows of 0.8, in which both devices of a person answer.
    assert window.epsilon == pytest.approx(3 * 2 * 0.8, rel=1e-12)
    both = asking(36, SERVER, DEVICES, delta=1e-8)
    refused(of_persons, both, "population.owners must be given .* and .*trust.*keep one")
    assert noise_of(asking(35, SERVER), "cpu") == ("35 of answers",)
    assert noise_of(asking(35, SERVER, training={"seed": 35}), "cpu") == ("35 on cpu", "35 of answers")  # fmt: skip
    assert noise_of(asking(35, SERVER), "cpu", is_training=True) == ("35 on cpu",)


@pytest.mark.parametrize("delta", [0.0, 1e-8])
def test_a_question_beyond_the_budget_starts_nothing(tmp_path: Path, delta: float) -> None:
    asked = asking(41, SERVER, delta=delta)
    (promise,) = worst_case(asked, worst_participation(asked))
    worst = Repeated(event=read_event(promise.release), count=3)  # pyright: ignore[reportArgumentType]
    epsilon = epsilon_of(worst, DELTA).epsilon

    def start(name: str, budget: float) -> Any:
        ledger = Ledger.create(tmp_path / name, budget, DELTA, "quarter")
        return reserved(ledger.path, asked, OCTOBER)

    with start("enough", epsilon * (1 + 1e-9)) as begun:
        begun()
    with pytest.raises(InputError, match="nothing was started"), start("short", epsilon * 0.999):
        pytest.fail("the run started")


def test_a_vocabulary_counts_once_for_every_unit_of_every_run_that_uses_it(tmp_path: Path) -> None:
    each: Drawn = drawn(0, tmp_path)
    data = words(each, 1.0)
    trace = each.run(data=data, privacy={"noise_multiplier": 4.0, "delta": 1e-8})
    ledger = Ledger.create(tmp_path / "ledger", 50.0, DELTA, "quarter")
    ledger = charge_run(ledger.path, trace, OCTOBER)
    (vocabulary,) = ledger.charges[2].vocabularies
    found = read_event(vocabulary.event)
    rhos = {release: max(amounts.values()) for release, amounts in units_of(ledger, 2)}
    model = Gaussian(noise_multiplier=1.0, sensitivity=math.sqrt(2 * rhos["gaussian"]))
    events: Any = (found, model)
    one = epsilon_of(Composed(events=events), DELTA).epsilon
    assert ledger.windows[0].epsilon == pytest.approx(one, rel=1e-12)
    # A second training on the same words: its model adds up, the words do not.
    own = audit_trace(trace).scenario
    assert own is not None
    again = own.with_overrides("training.seed=99", "training.enabled=true")
    both = ledger.charge([audit_trace(trace, scenario=again)])
    events = (found, model, model)
    two = epsilon_of(Composed(events=events), DELTA).epsilon
    assert both.windows[0].epsilon == pytest.approx(two, rel=1e-12)
    # The same words of the same cost, found by another run, were another release.
    charge = both.charges[3]
    others = (vocabulary.model_copy(update={"run": "1" * 64}),)
    made = {"name": "other", "vocabularies": others}
    windows = {"windows": dict.fromkeys(charge.windows, ())}
    third = both._with([charge.model_copy(update=made | windows)])
    events = (found, found, model, model)
    three = epsilon_of(Composed(events=events), DELTA).epsilon
    assert third.windows[0].epsilon == pytest.approx(three, rel=1e-12)
    assert np.isfinite(three)
