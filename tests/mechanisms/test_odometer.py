"""The odometer against the audit of the participations so far, after every round, and its budget against every pattern."""

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedray
from fedray.audit.participation import Patterns
from fedray.audit.sensitivity import trace_sensitivity
from fedray.base.errors import InputError
from fedray.mechanisms import running
from fedray.mechanisms.accounting.events import Gaussian
from fedray.mechanisms.accounting.gdp import gdp_epsilon
from fedray.mechanisms.registry import BLT, BandFHU, Dense, Identity, Toeplitz, Tree
from fedray.mechanisms.strategy import Strategy

ROUNDS, DELTA, Z = 12, 1e-6, 3.0
CALLBACKS = Path(__file__).parents[2] / "docs" / "callbacks"


def dense(rng: np.random.Generator, low: float) -> Dense:
    """A dense lower triangular matrix with entries from `low` to 1 below the diagonal."""
    C = np.tril(rng.uniform(low, 1.0, (ROUNDS, ROUNDS)), -1) + np.eye(ROUNDS)
    return Dense.from_matrix(C, "c.npy")


def strategy_of(rng: np.random.Generator) -> Strategy:
    return [
        Identity(),
        Tree(),
        BLT(theta=(0.95, 0.6), omega=(0.2, 0.3)),
        BandFHU(bands=4),
        dense(rng, 0.0),
        Toeplitz(coefficients=(1.0, -0.5, 0.3)),
        dense(rng, -1.0),
    ][int(rng.integers(0, 7))]


def patterns_of(cohorts: dict[int, list[int]], rounds: int) -> Patterns:
    """Patterns of the devices in the cohorts by round."""
    rows = sorted((device, index) for index, of in cohorts.items() for device in of)
    devices, counts = np.unique([device for device, _ in rows], return_counts=True)
    indices = np.array([index for _, index in rows], np.uint32)
    return Patterns(rounds, devices.astype(np.uint64), counts, indices)


@pytest.mark.parametrize("seed", range(60))
def test_after_every_round_the_reading_is_the_audit_of_the_rounds_so_far(
    seed: int, monkeypatch
) -> None:
    rng = np.random.default_rng(seed)
    # Horizons and chunks of the running check are as small as they can be.
    monkeypatch.setattr(running, "LEAST_AHEAD", int(rng.integers(1, 6)))
    monkeypatch.setattr(running, "MANY", int(rng.integers(1, 6)))
    monkeypatch.setattr(running, "CHUNK", 2)
    strategy = strategy_of(rng)
    odometer = fedray.Odometer(strategy, ROUNDS, noise_multiplier=Z, delta=DELTA)
    assert odometer.reading() == fedray.OdometerReading(0, None, 0.0, True, 0.0, 0.0)
    names = {device: f"phone {device}" for device in range(6)}
    cohorts: dict[int, list[int]] = {}
    index = 0
    while index < ROUNDS:
        cohort = np.flatnonzero(rng.random(6) < 0.4).tolist()
        odometer.add(index, [names[each] for each in cohort])
        cohorts[index] = cohort
        # Not every round is read, and not every round has a call.
        if any(cohorts.values()) and rng.random() < 0.8:
            expected = trace_sensitivity(strategy, patterns_of(cohorts, index + 1))
            found = odometer.reading()
            assert (found.rounds, found.is_exact) == (index + 1, expected.is_exact)
            assert found.sensitivity == pytest.approx(expected.value, rel=1e-9)
            assert found.rho == pytest.approx(found.sensitivity**2 / (2 * Z**2), rel=1e-12)
            release = Gaussian(noise_multiplier=Z, sensitivity=found.sensitivity)
            assert found.epsilon == gdp_epsilon(release, DELTA)
            (device,) = (each for each in names if names[each] == found.device)
            own = {t: [device] for t, of in cohorts.items() if device in of}
            of_device = trace_sensitivity(strategy, patterns_of(own, index + 1))
            assert of_device.value == pytest.approx(expected.value, rel=1e-9)
        index += int(rng.integers(1, 3))


@pytest.mark.parametrize("seed", range(40))
def test_a_device_would_exceed_exactly_if_its_norm_over_all_planned_rounds_does(
    seed: int,
) -> None:
    """By the columns of C, for participations that are chosen at random round by round."""
    rng = np.random.default_rng(seed)
    strategy = dense(rng, 0.0)
    columns = strategy.matrix
    largest = float(np.linalg.norm(columns, axis=0).max())
    limit = largest * float(rng.uniform(1.0, 2.0))
    odometer = fedray.Odometer(
        strategy, ROUNDS, noise_multiplier=Z, delta=DELTA, rho=limit**2 / (2 * Z**2)
    )
    own: dict[int, list[int]] = {device: [] for device in range(6)}
    refused = 0
    for index in np.flatnonzero(rng.random(ROUNDS) < 0.9).tolist():
        beyond = [
            device
            for device, rounds in own.items()
            if np.linalg.norm(columns[:, [*rounds, index]].sum(axis=1)) > limit * (1 + 1e-9)
        ]
        assert odometer.would_exceed(index, range(6)) == beyond
        refused += len(beyond)
        # Whoever may take part does with some probability, as a release might decide.
        chosen = [each for each in own if each not in beyond and rng.random() < 0.8]
        odometer.add(index, chosen)
        for each in chosen:
            own[each].append(index)
    assert refused
    assert odometer.reading().sensitivity <= limit * (1 + 1e-9)


def test_a_query_changes_nothing_and_new_devices_may_always_take_part() -> None:
    odometer = fedray.Odometer(Identity(), 5, noise_multiplier=1.0, delta=DELTA, rho=1.0)
    assert odometer.would_exceed(4, ["a", "b"]) == []
    odometer.add(0, ["b"])
    odometer.add(1, np.array([7, 9], np.uint64))
    odometer.add(2, ["b", 7])
    assert odometer.would_exceed(3, ["a", "b", 7, np.uint64(9)]) == ["b", 7]
    assert odometer.rounds == 3
    assert odometer.reading().device in ("b", 7)
    assert odometer.reading().rho == pytest.approx(1.0)
    assert "3 of 5 rounds, 3 devices" in repr(odometer)


def test_an_epsilon_budget_is_one_of_rho_at_that_epsilon() -> None:
    """A device takes part as often as n, the largest with epsilon of sqrt(n) / z within it."""
    odometer = fedray.Odometer(Identity(), 50, noise_multiplier=Z, delta=DELTA, epsilon=5.0)
    while not odometer.would_exceed(odometer.rounds, ["a"]):
        odometer.add(odometer.rounds, ["a"])
    taken = odometer.rounds

    def epsilon(participations: int) -> float:
        return gdp_epsilon(
            Gaussian(noise_multiplier=Z, sensitivity=math.sqrt(participations)), DELTA
        )

    assert epsilon(taken) <= 5.0 < epsilon(taken + 1)
    assert odometer.reading().epsilon == pytest.approx(epsilon(taken), rel=1e-12)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda o: o.add(1, ["a"]), "round_index=1 must be from 2, the next round, to 4"),
        (lambda o: o.add(5, ["a"]), "round_index=5 must be from 2"),
        (lambda o: o.would_exceed(0, ["a"]), "round_index=0 must be from 2"),
        (lambda o: o.add(3, ["a", "c", "a"]), "device_ids='a' occurs twice"),
    ],
)
def test_rounds_out_of_order_and_repeated_devices_are_refused_and_change_nothing(
    call, said: str
) -> None:
    odometer = fedray.Odometer(Tree(), 5, noise_multiplier=2.0, delta=DELTA, rho=9.0)
    odometer.add(1, ["a", "b"])
    before = odometer.reading()
    with pytest.raises(InputError, match=said):
        call(odometer)
    assert odometer.reading() == before
    odometer.add(3, ["c"])
    assert odometer.rounds == 4


@pytest.mark.parametrize(
    ("strategy", "changed", "said"),
    [
        (Tree(), {"noise_multiplier": 0.0}, "noise_multiplier"),
        (Tree(), {"delta": 1.0}, "delta"),
        (Tree(), {"rho": -1.0}, "rho=-1"),
        (Tree(), {"rho": 1e-9}, "no device could take part"),
        (Toeplitz(coefficients=(1.0, -0.5)), {"rho": 9.0}, "negative entries"),
        ("no-such-file.json", {}, "no-such-file"),
    ],
)
def test_impossible_odometers_are_refused(strategy, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        fedray.Odometer(strategy, 8, **{"noise_multiplier": 2.0, "delta": DELTA} | changed)


def test_without_a_budget_nothing_can_be_exceeded() -> None:
    odometer = fedray.Odometer(Tree(), 8, noise_multiplier=2.0, delta=DELTA)
    with pytest.raises(InputError, match="has no budget"):
        odometer.would_exceed(0, ["a"])


def callback(name: str) -> Any:
    """A module of docs/callbacks."""
    spec = importlib.util.spec_from_file_location(name, CALLBACKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class FlowerStrategy:
    """Selects all of four nodes; node 3 always fails, and round 2 releases nothing."""

    def configure_train(self, server_round, arrays, config, grid):
        return [SimpleNamespace(metadata=SimpleNamespace(dst_node_id=each)) for each in range(4)]

    def aggregate_train(self, server_round, replies):
        return (None if server_round == 2 else "model"), {}


def test_the_flower_callback_keeps_nodes_within_the_budget(capsys) -> None:
    odometer = fedray.Odometer(Identity(), 9, noise_multiplier=1.0, delta=DELTA, rho=1.0)
    strategy = callback("flower_odometer").metered(FlowerStrategy(), odometer)
    selected = []
    for server_round in (1, 2, 3, 4):
        messages = strategy.configure_train(server_round, None, None, None)
        nodes = [each.metadata.dst_node_id for each in messages]
        selected.append(nodes)
        replies = [
            SimpleNamespace(
                metadata=SimpleNamespace(src_node_id=node), has_error=lambda node=node: node == 3
            )
            for node in nodes
        ]
        strategy.aggregate_train(server_round, replies)
    # Two participations cost rho 1. Round 2 released nothing, and node 3 never contributed.
    assert selected == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], [3]]
    assert odometer.rounds == 3
    assert odometer.reading().rho == pytest.approx(1.0)
    assert "3 of 9 rounds" in capsys.readouterr().out


class Statistics:
    """Statistics of pfl-research, as far as the callback uses them."""

    def __init__(self, value: float) -> None:
        self.value = value

    def apply_elementwise(self, function):
        return Statistics(function(self.value))


def test_the_pfl_callback_replaces_contributions_beyond_the_budget_by_zeros(monkeypatch) -> None:
    names = ("pfl", "pfl.metrics", "pfl.postprocessor", "pfl.postprocessor.base")
    modules = {name: ModuleType(name) for name in names}
    vars(modules["pfl.metrics"])["Metrics"] = dict
    vars(modules["pfl.postprocessor.base"])["Postprocessor"] = object
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    odometer = fedray.Odometer(Identity(), 9, noise_multiplier=1.0, delta=DELTA, rho=1.0)
    metered = callback("pfl_odometer").Metered(odometer)

    def contributed(*users: str) -> list[float]:
        sent = []
        for user in users:
            context = SimpleNamespace(user_id=user)
            stats, _ = metered.postprocess_one_user(stats=Statistics(1.0), user_context=context)
            sent.append(stats.value)
        metered.postprocess_server(stats=None, central_context=None, aggregate_metrics=None)
        return sent

    assert contributed("a", "b", "a") == [1.0, 1.0, 0.0]
    assert contributed("a") == [1.0]
    assert contributed("a", "b") == [0.0, 1.0]
    assert odometer.reading().rho == pytest.approx(1.0)
    with pytest.raises(ValueError, match="no user_id"):
        metered.postprocess_one_user(stats=None, user_context=SimpleNamespace(user_id=None))
