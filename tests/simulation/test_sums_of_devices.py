"""Trainings in which devices add correlated noise and a store opens their sums: the same bits whatever happens, and what the server gets."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.linalg import hadamard

from fedray.base.errors import AggregatorLost, StoreLost
from fedray.encoding.rotation import signs_of
from fedray.runs.learning import train
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.runtime.workers import InProcessWorker
from fedray.server.learning import workers
from fedray.server.learning.store import SumStore
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun
from fedray.wire.messages import Progress, TrainReport

HERE = Placement(1, "in-process", checkpoint_seconds=0.0)
COEFFICIENTS = [1.0, 0.5, 0.25]
KEYS = (
    "training.enabled=true",
    "training.task.kind=quadratic",
    "data={kind='points', dimension=6}",
    "rounds={count=10, report_goal=30, look_ahead_minutes=30.0}",
    "training.cohort_sample=20",
    "training.evaluation_devices=8",
    "training.checkpoint_every=4",
    "training.devices_at_once=8",
    "privacy.noise_multiplier=0.3",
)
CORRELATED = f"privacy.mechanism={{kind='toeplitz', coefficients={COEFFICIENTS}}}"
DEVICES = "privacy.trust={kind='devices', parameters=6, scale=4096}"


@pytest.fixture(scope="module")
def trace(small, tmp_path_factory) -> Trace:
    return simulate(small(*KEYS, CORRELATED, DEVICES), HERE, tmp_path_factory.mktemp("sums") / "t")


@pytest.fixture(scope="module")
def reference(trace: Trace, tmp_path_factory) -> TrainedRun:
    return train(trace, None, HERE, tmp_path_factory.mktemp("trained") / "m")


def assert_same(found: TrainedRun, reference: TrainedRun) -> None:
    assert (found.parameters() == reference.parameters()).all()
    for name, column in reference.metrics.items():
        np.testing.assert_array_equal(found.metrics[name], column)
    assert found.document["encoding"] == reference.document["encoding"]


def test_two_trainers_and_other_groups_give_the_same_bits(
    trace: Trace, reference: TrainedRun, tmp_path: Path
) -> None:
    two = Placement(1, "in-process", trainers=2)
    assert_same(train(trace, None, two, tmp_path / "m"), reference)


def test_an_interrupted_training_continues_to_the_same_bits(
    trace: Trace, reference: TrainedRun, tmp_path: Path
) -> None:
    def interrupt(progress: Progress) -> None:
        if getattr(progress, "trained", 0) == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(trace, None, HERE, tmp_path / "m", interrupt)
    assert_same(train(trace, None, HERE, tmp_path / "m", is_resumed=True), reference)


class Dying(InProcessWorker):
    """A worker that is lost before or after some call of a method, if it is the named one."""

    lost: dict[str, Any] = {}  # noqa: RUF012  (set by each test)

    def __init__(self, make: Any, *arguments: Any) -> None:
        super().__init__(make, *arguments)
        self._is_store = make is workers._make_store

    def call(self, method: str, *arguments: Any) -> Any:
        plan = Dying.lost
        if (method, self._is_store) != (plan["method"], plan["is_store"]):
            return super().call(method, *arguments)
        plan["calls"] += 1
        if plan["calls"] not in plan["at"]:
            return super().call(method, *arguments)
        if plan["after"]:
            super().call(method, *arguments).result()
        error = StoreLost if self._is_store else AggregatorLost
        raise error("it died (killed)")

    def restart(self) -> None:
        self.restarts += 1
        super().restart()


LOSSES = [
    ("commit", False, False),
    ("commit", False, True),
    ("state", False, False),
    ("open", True, False),
    ("open", True, True),
    ("add", True, True),
    ("close", True, False),
    ("state", True, False),
    ("state", True, True),
]


@pytest.mark.parametrize(("method", "is_store", "after"), LOSSES)
def test_a_lost_aggregator_or_store_comes_back_to_the_same_bits(
    trace: Trace,
    reference: TrainedRun,
    tmp_path: Path,
    monkeypatch,
    method: str,
    is_store: bool,
    after: bool,
) -> None:
    """Lost twice, before or after a call, in rounds between two states; also after W was opened and before it was used."""
    at = (2, 3) if method == "state" else (3, 10)
    plan = {"method": method, "is_store": is_store, "at": at, "after": after, "calls": 0}
    monkeypatch.setattr(Dying, "lost", plan)
    monkeypatch.setattr(workers, "InProcessWorker", Dying)
    found = train(trace, None, Placement(1, "in-process"), tmp_path / "m")
    assert plan["calls"] > max(at)
    assert found.document["restarts"] == 2
    assert_same(found, reference)


def test_a_lost_aggregator_gets_stored_sums_and_nothing_is_opened_again(
    trace: Trace, tmp_path: Path, monkeypatch
) -> None:
    opened: list[int] = []
    weigh = SumStore.open

    def counting(self: SumStore) -> tuple[int, np.ndarray]:
        before = self.next_round
        found = weigh(self)
        opened.extend(range(before, self.next_round))
        return found

    monkeypatch.setattr(SumStore, "open", counting)
    plan = {"method": "commit", "is_store": False, "at": (3, 10), "after": True, "calls": 0}
    monkeypatch.setattr(Dying, "lost", plan)
    monkeypatch.setattr(workers, "InProcessWorker", Dying)
    train(trace, None, Placement(1, "in-process"), tmp_path / "m")
    assert plan["calls"] > 10
    assert opened == list(range(10))


class Watching(InProcessWorker):
    """Keeps all calls of the aggregator with their arguments, and its state after each commit."""

    seen: list[tuple[str, tuple[Any, ...]]] = []  # noqa: RUF012  (emptied by the test)
    opened: list[tuple[int, np.ndarray]] = []  # noqa: RUF012

    def __init__(self, make: Any, *arguments: Any) -> None:
        super().__init__(make, *arguments)
        self._is_store = make is workers._make_store

    def call(self, method: str, *arguments: Any) -> Any:
        answer = super().call(method, *arguments)
        if not self._is_store:
            self.seen.append((method, arguments))
            if method == "commit":
                self.seen.append(("kept", (super().call("state").result(),)))
        elif method == "open":
            self.opened.append(answer.result())
        return answer


def test_the_server_gets_opened_sums_and_counts_only_and_keeps_nothing_else(
    trace: Trace, reference: TrainedRun, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(Watching, "seen", [])
    monkeypatch.setattr(Watching, "opened", [])
    monkeypatch.setattr(workers, "InProcessWorker", Watching)
    found = train(trace, None, Placement(1, "in-process"), tmp_path / "m")
    assert_same(found, reference)
    methods = {method for method, _ in Watching.seen}
    assert methods == {"start", "draw_noise", "commit", "state", "kept"}
    commits = [arguments for method, arguments in Watching.seen if method == "commit"]
    states = [arguments[0] for method, arguments in Watching.seen if method == "kept"]
    assert len(commits) == len(Watching.opened) == 10
    for index, ((report, W), (devices, opened)) in enumerate(
        zip(commits, Watching.opened, strict=True)
    ):
        # No loss, norm or count of what devices did.
        assert report == TrainReport(round_index=index, devices=20, accepted=30)
        assert (devices, W.tolist()) == (20, opened.tolist())
    for state in states:
        names = {"parameters", "device", "noise.next_round", "noise.buffers"}
        others = {name for name in state if name not in names}
        assert all(name.startswith(("optimizer.", "clip.")) for name in others), others
        # Y of the last two rounds, and not a row of W or of a sum.
        assert (state["noise.buffers"].shape, state["noise.buffers"].dtype) == ((2, 6), np.float64)
    # By hand, with C' = 4, 2, 1: each W centred, rotated back, and less the earlier Y.
    M = reference.document["encoding"]["noise_of_devices"]["modulus"]
    signs = signs_of(reference.document["seed"], 0, 8)
    Y = [np.zeros(6), np.zeros(6)]
    for index, ((_, W), state) in enumerate(zip(commits, states, strict=True)):
        centred = np.where(W <= M // 2, W, W - M)
        steps = (hadamard(8) @ centred * signs / 8**0.5)[:6]
        Y.append((steps - 2 * Y[-1] - Y[-2]) / 4)
        np.testing.assert_allclose(state["noise.buffers"][index % 2], Y[-1], rtol=1e-12, atol=1e-9)


def test_training_json_has_the_figures_of_the_sums(reference: TrainedRun) -> None:
    encoding = reference.document["encoding"]
    noise = encoding["noise_of_devices"]
    assert encoding["kind"] == "devices"
    # 256 : 128 : 64 without their common divisor.
    assert noise["coefficients"] == [4, 2, 1]
    assert encoding["bits_per_parameter"] == 2 * (noise["modulus"] - 1).bit_length() * 8 / 6
    assert noise["device_variance"] == pytest.approx((4 * 0.3 * 4096) ** 2 / 30, rel=1e-3)
    assert 0 < noise["wrap_probability"] < 1e-14
    assert noise["clipped_coordinates"] == 0
    assert any(row[0] == "noise of devices" for row in reference.rows())


def test_a_model_trains_as_with_the_noise_of_the_server(
    trace: Trace, small, tmp_path: Path
) -> None:
    """With hardly any noise the trained models are the same but for rounding, for each trust."""
    common = (*KEYS, "privacy.noise_multiplier=0.01")
    scale = ", scale=65536}"
    found = [
        train(trace, small(*common, *own), HERE, tmp_path / str(place)).parameters()
        for place, own in enumerate(
            [
                (CORRELATED,),
                (CORRELATED, DEVICES.replace(", scale=4096}", scale)),
                ("privacy.mechanism={kind='identity'}", DEVICES.replace(", scale=4096}", scale)),
                (
                    "privacy.mechanism={kind='identity'}",
                    DEVICES.replace("devices", "local").replace(", scale=4096}", scale),
                ),
            ]
        )
    ]
    moved = float(np.linalg.norm(found[0]))
    for other in found[1:]:
        assert 0 < np.linalg.norm(other - found[0]) < 0.05 * moved


def test_local_noise_is_that_of_every_device(small, tmp_path: Path, trace: Trace) -> None:
    """As recorded, and as said before the training: of thirty devices, thirty times the variance of the server's noise."""
    local = small(
        *KEYS, "privacy.mechanism={kind='identity'}", "privacy.trust={kind='local', parameters=6}"
    )
    document = train(trace, local, HERE, tmp_path / "m").document
    variance = document["encoding"]["noise_of_devices"]["device_variance"]
    assert variance == pytest.approx((0.3 * 65536) ** 2, rel=1e-3)
    assert document["update_noise"] == pytest.approx(0.3 * 6**0.5 / 30 * 30**0.5)
