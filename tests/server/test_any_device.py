"""Noise, the aggregator and its optimizers stay on their device, shown on torch's device "meta" (tests/clients/tasks/on_device.py)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from example_mechanisms import MECHANISMS, ROUNDS
from numpy.typing import NDArray
from on_device import META, OnDevice

from fedray.mechanisms.strategy import Strategy
from fedray.runtime import devices
from fedray.server.learning.aggregator import ModelAggregator
from fedray.server.learning.draws import NormalDraws
from fedray.server.learning.noise import noise_stream
from fedray.wire.messages import TrainReport

DIMENSION = 40


@pytest.fixture(autouse=True)
def drawn_on_meta(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Draws of the device, and the shapes of all that leaves it."""
    left: list[tuple[int, ...]] = []

    def on_host(tensor: torch.Tensor) -> NDArray:
        assert tensor.device == META
        left.append(tuple(tensor.shape))
        return np.zeros(tensor.shape, str(tensor.dtype).removeprefix("torch."))

    monkeypatch.setattr(NormalDraws, "fill", lambda self, out_D, *given: out_D.normal_())
    monkeypatch.setattr(devices, "on_host", on_host)
    return left


@pytest.mark.parametrize("strategy", MECHANISMS.values(), ids=MECHANISMS)
def test_every_stream_stays_on_its_device(
    strategy: Strategy, drawn_on_meta: list[tuple[int, ...]]
) -> None:
    with OnDevice():
        stream = noise_stream(strategy, 3, DIMENSION, META, ROUNDS)
        for _ in range(ROUNDS):
            assert stream.next().device == META
    assert not drawn_on_meta


OWN = Path(__file__).parents[1] / "clients/tasks/server_optimizer.py"
SERVERS = {
    **{name: f"{{kind='{name}'}}" for name in ("sgd", "adam", "adagrad", "yogi")},
    "custom": f"{{kind='custom', file='{OWN}'}}",
}


@pytest.mark.parametrize("mechanism", ["blt-100", "tree", "identity"])
@pytest.mark.parametrize("server", SERVERS)
def test_an_aggregator_only_gives_out_the_parameters_of_a_round(
    small: Any, server: str, mechanism: str, drawn_on_meta: list[tuple[int, ...]]
) -> None:
    scenario = small(
        "training.enabled=true",
        f"training.server={SERVERS[server]}",
        f"privacy.mechanism='{mechanism}'",
    )
    aggregator = ModelAggregator(scenario, "meta")
    with OnDevice():
        aggregator.start(np.zeros(DIMENSION, np.float32))
        for round_index in range(4):
            aggregator.add(np.ones(DIMENSION, np.int64))
            aggregator.commit(TrainReport(round_index=round_index, devices=3, accepted=3))
    assert drawn_on_meta == 5 * [(DIMENSION,)]


def test_an_aggregator_of_device_noise_stays_on_its_device(
    small: Any, drawn_on_meta: list[tuple[int, ...]]
) -> None:
    scenario = small(
        "training.enabled=true",
        "privacy.mechanism={kind='toeplitz', coefficients=[1.0, 0.5, 0.25]}",
        f"privacy.trust={{kind='devices', parameters={DIMENSION}, scale=65536}}",
    )
    aggregator = ModelAggregator(scenario, "meta")
    with OnDevice():
        aggregator.start(np.zeros(DIMENSION, np.float32))
        for round_index in range(4):
            aggregator.add(np.ones(aggregator._total_P.size, np.int64))
            aggregator.commit(TrainReport(round_index=round_index, devices=3, accepted=3))
    assert drawn_on_meta == 5 * [(DIMENSION,)]


def test_a_planted_cpu_tensor_is_found(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    aggregator = ModelAggregator(small("training.enabled=true"), "meta")
    aggregator.start(np.zeros(DIMENSION, np.float32))
    monkeypatch.setattr(aggregator._optimizer, "_step", lambda *given: torch.ones(3).mul_(2.0))
    with OnDevice(), pytest.raises(AssertionError, match=r"on cpu, \[3\]"):
        aggregator.commit(TrainReport(round_index=0, devices=3, accepted=3))
