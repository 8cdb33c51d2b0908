"""Trainers on GPUs: how they are placed, what a record holds, and, where torch sees a GPU, that it computes what a CPU does.

Where no GPU is needed, one is made up: a trainer that was given a GPU's name computes on the CPU.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedray.base.errors import CheckpointError, InputError, RunFailed
from fedray.clients import workers
from fedray.clients.clipping import Clipper
from fedray.clients.tasks.module import ModuleTask
from fedray.clients.trainer import LocalTrainer
from fedray.encoding.factory import encoding_of
from fedray.runs.learning import train
from fedray.runs.simulation import simulate
from fedray.runtime import devices
from fedray.runtime.placement import Placement
from fedray.server.learning.evaluation import evaluation_of
from fedray.trace.reader import Trace
from fedray.wire.messages import TrainOrder

HERE = Placement(backend="in-process", checkpoint_seconds=0)
ON_A_GPU = Placement(backend="in-process", checkpoint_seconds=0, trainer_gpus=1.0)
TRAINED = ("training.enabled=true", "training.cohort_sample=20", "rounds.count=6")
H200 = "cuda NVIDIA H200"


@pytest.fixture(scope="module")
def trace(small, tmp_path_factory) -> Trace:
    return simulate(small(*TRAINED), HERE, tmp_path_factory.mktemp("gpus") / "t")


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """One GPU, on which trainers compute as on a CPU."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    # Its numbers tell such a CPU from another.
    monkeypatch.setattr(
        devices, "device_of", lambda name, key: torch.device(name.replace("cuda", "cpu"))
    )
    monkeypatch.setattr(
        devices, "kind_of_device", lambda device: "cpu" if device.index is None else H200
    )
    return monkeypatch


def interrupt(progress: Any) -> None:
    if getattr(progress, "trained", 0) == 4:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("gpus", "share", "aggregator", "room"),
    [
        (0.0, 1.0, 0.0, 0),
        (1.0, 1.0, 0.0, 1),
        (1.0, 1.0, 0.5, 0),
        (1.0, 0.1, 0.0, 10),
        (1.0, 0.1, 0.7, 3),
        # A share lies on one GPU.
        (2.0, 0.4, 0.0, 4),
        (2.0, 0.4, 0.3, 3),
    ],
)
def test_gpus_have_room_for_whole_shares(
    gpus: float, share: float, aggregator: float, room: int
) -> None:
    placement = Placement(trainer_gpus=share, aggregator_gpus=aggregator)
    assert placement.trainers_on(gpus) == room


def test_the_parameters_of_a_round_are_pinned_and_copied_once(
    small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the number of groups. The copies stay on the CPU here."""
    trainer = LocalTrainer(small(*TRAINED))
    start, order = trainer.initial_parameters(), TrainOrder(0, np.split(np.arange(12), 4))
    expected = trainer.train(order, start)
    pinned: list[tuple[int, ...]] = []
    copied: list[tuple[int, ...]] = []
    empty, to = torch.empty, torch.Tensor.to

    def made(*shape: Any, pin_memory: bool = False, **more: Any) -> torch.Tensor:
        found = empty(*shape, **more)
        if pin_memory:
            pinned.append(tuple(found.shape))
        return found

    def moved(tensor: torch.Tensor, *target: Any, non_blocking: bool = False, **more: Any) -> Any:
        if target and target[0] == torch.device("cuda:0"):
            assert non_blocking
            copied.append(tuple(tensor.shape))
            return tensor.clone()
        return to(tensor, *target, **more)

    monkeypatch.setattr(torch, "empty", made)
    monkeypatch.setattr(torch.Tensor, "to", moved)
    monkeypatch.setattr(trainer, "_device", torch.device("cuda:0"))
    found = trainer.train(order, start)
    assert pinned == copied == [(start.size,)]
    assert (found[1] == expected[1]).all()


def test_threads_fill_the_last_gpu_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    placement = Placement(backend="in-process", trainer_gpus=0.5, aggregator_gpus=0.5)
    assert workers._gpus_here(placement, 3) == ["cuda:1", "cuda:1", "cuda:0"]
    with pytest.raises(InputError, match=r"^trainer_gpus=0.5 leaves room for 3 of 4 trainers on 2"):
        workers._gpus_here(placement, 4)


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_trainer_has_no_more_than_one_gpu(share: float) -> None:
    with pytest.raises(InputError, match=r"^trainer_gpus=.* must be from 0 to 1; 0 is the CPU"):
        Placement(trainer_gpus=share)


def test_a_trainer_without_a_gpu_is_refused_in_one_line(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(InputError, match="leaves room for 0 of 1 trainers on 0 GPUs; .* the CPU"):
        train(trace, None, ON_A_GPU, tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_that_torch_does_not_see_is_refused(small, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="^trainer_gpus is not 0, but torch sees no GPU; install"):
        LocalTrainer(small("training.enabled=true"), "cuda:0")


def test_a_gpu_computes_deterministically_and_without_tf32(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    try:
        assert devices.device_of("cuda:1", "trainer_gpus") == torch.device("cuda:1")
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cuda.matmul.allow_tf32
        assert not torch.backends.cudnn.allow_tf32
    finally:
        torch.use_deterministic_algorithms(False)


def refuse(error: Exception) -> Callable[..., Any]:
    def refused(*given: Any, **keys: Any) -> Any:
        raise error

    return refused


FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ..")
NO_KERNEL = RuntimeError(
    "adaptive_avg_pool2d_backward_cuda does not have a deterministic implementation, but you set "
    "'torch.use_deterministic_algorithms(True)'."
)
OPERATION = "^training.task: its operation adaptive_avg_pool2d_backward_cuda has no deterministic"


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (FULL, RunFailed, "than its GPU has; set training.devices_at_once to a smaller number$"),
        (NO_KERNEL, InputError, OPERATION),
    ],
)
@pytest.mark.parametrize("place", ["forward", "backward", "loss of a module"])
def test_a_device_that_cannot_do_the_work_is_named_in_one_line(
    small, monkeypatch: pytest.MonkeyPatch, place: str, error: Exception, kind: Any, words: str
) -> None:
    """Not as a fault of the task, which `RuntimeError` is elsewhere. With momentum no step is compiled
    for CPUs."""
    momentum = "training.client={momentum=0.5}"
    trainer = LocalTrainer(small("training.enabled=true", TASKS["next_word"], momentum))
    monkeypatch.setattr(devices, "native", lambda tensor: tensor)
    task: Any = trainer._task
    match place:
        case "forward":
            monkeypatch.setattr(task, "losses", refuse(error))
        case "backward":
            monkeypatch.setattr(torch.autograd, "grad", refuse(error))
        case _:
            module = ModuleTask(torch.nn.Linear(1, 1), None, refuse(error))
            ones = torch.ones(1, 1)
            monkeypatch.setattr(task, "losses", lambda *given: module._loss_value(ones, ones))
    monkeypatch.setattr(task, "gradients", lambda *given: None, raising=False)
    order = TrainOrder(0, [np.arange(3, dtype=np.uint64)])
    with pytest.raises(kind, match=words):
        trainer.train(order, trainer.initial_parameters())


@pytest.mark.parametrize("room", [1, 3, 100])
def test_an_evaluation_has_the_same_figures_however_few_examples_fit(
    small, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    trainer = LocalTrainer(small("training.enabled=true"))
    start = trainer.initial_parameters()
    whole = evaluation_of([trainer.evaluate(start)])
    task: Any = trainer._task
    measure, asked = task.measure, []

    def full(parameters: Any, batch: Any) -> Any:
        asked.append(next(iter(batch.values())).shape[1])
        if asked[-1] > room:
            raise FULL
        return measure(parameters, batch)

    monkeypatch.setattr(task, "measure", full)
    parts = evaluation_of([trainer.evaluate(start)])
    assert min(asked) <= room < max(asked)
    # The room is looked for once.
    assert sum(size > room for size in asked) <= 12
    assert parts.data == whole.data
    for name, found in whole.metrics.items():
        assert parts.metrics[name].value == pytest.approx(found.value, rel=1e-6)
        assert parts.metrics[name].standard_error == pytest.approx(found.standard_error, rel=1e-5)


def test_a_model_that_is_too_large_to_evaluate_is_refused_in_one_line(
    small, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = LocalTrainer(small("training.enabled=true"))
    start = trainer.initial_parameters()
    monkeypatch.setattr(trainer._task, "measure", refuse(FULL))
    held = np.arange(3, dtype=np.uint64)
    for evaluated in (
        lambda: trainer.evaluate(start),
        lambda: trainer.measure_devices(start, held, 5),
    ):
        with pytest.raises(RunFailed, match="a model with one example needs more memory than its"):
            evaluated()


def test_a_training_leaves_torch_as_it_was(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook goes on with its own settings, also after a training that failed."""

    def settings() -> tuple[Any, ...]:
        return (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,  # pyright: ignore[reportAttributeAccessIssue]
            torch.backends.cuda.matmul.allow_tf32,
            torch.backends.cudnn.allow_tf32,
            torch.backends.cudnn.benchmark,
            torch.get_num_threads(),
        )

    def set_up(name: str, key: str) -> torch.device:
        real("cuda:0", key)
        assert settings() != before
        return torch.device("cpu")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for library in (torch.backends.cuda.matmul, torch.backends.cudnn):
        monkeypatch.setattr(library, "allow_tf32", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    real, before = devices.device_of, settings()
    # First, because the aggregator's module keeps the function that it finds when it is imported.
    monkeypatch.setattr("fedray.server.learning.aggregator.device_of", set_up)
    monkeypatch.setattr(devices, "device_of", set_up)
    here = Placement(backend="in-process", checkpoint_seconds=0)
    train(trace, None, here, tmp_path / "m")
    assert settings() == before
    with pytest.raises(KeyboardInterrupt):
        train(trace, None, here, tmp_path / "n", interrupt)
    assert settings() == before


def test_a_group_on_a_gpu_is_not_bounded_by_the_cache_of_a_cpu(
    trace: Trace, tmp_path: Path, made_up: pytest.MonkeyPatch
) -> None:
    made_up.setattr("fedray.server.learning.training.MOST_PARAMETERS", 1)
    there = train(trace, None, ON_A_GPU, tmp_path / "g")
    here = train(trace, None, HERE, tmp_path / "c")
    assert (there.document["devices_at_once"], here.document["devices_at_once"]) == (16, 1)


def test_a_training_continues_only_on_the_kind_of_its_trainers(
    trace: Trace, tmp_path: Path, made_up: pytest.MonkeyPatch
) -> None:
    whole = train(trace, None, ON_A_GPU, tmp_path / "w")
    with pytest.raises(KeyboardInterrupt):
        train(trace, None, ON_A_GPU, tmp_path / "m", interrupt)
    with pytest.raises(
        CheckpointError,
        match=f"trained on '{H200}', .* those of 'cpu', .* give trainer_gpus as before",
    ):
        train(trace, None, HERE, tmp_path / "m", is_resumed=True)
    resumed = train(trace, None, ON_A_GPU, tmp_path / "m", is_resumed=True)
    assert resumed.document["trainer_device"] == H200
    assert resumed.document["aggregator_device"] == "cpu"
    assert np.array_equal(resumed.parameters(), whole.parameters())
    assert train(trace, None, HERE, tmp_path / "c").document["trainer_device"] == "cpu"


def test_trainers_on_several_kinds_of_gpu_are_refused(
    trace: Trace, tmp_path: Path, made_up: pytest.MonkeyPatch
) -> None:
    kinds = iter([H200, "cuda NVIDIA A100"])
    made_up.setattr(devices, "kind_of_device", lambda device: next(kinds))
    two = Placement(backend="in-process", trainer_gpus=0.5, trainers=2)
    with pytest.raises(InputError, match="on GPUs of several models, .*; use nodes with one model"):
        train(trace, None, two, tmp_path / "m")


WITHOUT_RAY = """
import sys
sys.modules["ray"] = None  # its import now fails
import numpy as np
from fedray import Placement, Scenario, simulate, train
from fedray.clients.tasks.module import ModuleTask
from fedray.clients.trainer import LocalTrainer
from fedray.server.learning.aggregator import ModelAggregator
from fedray.wire.messages import TrainOrder

scenario = Scenario.from_toml(sys.argv[1])
trainer, aggregator = LocalTrainer(scenario), ModelAggregator(scenario)
aggregator.start(trainer.initial_parameters())
report, total = trainer.train(TrainOrder(0, [np.arange(5, dtype=np.uint64)]), trainer.initial_parameters())
aggregator.add(total)
_, parameters = aggregator.commit(report)
assert parameters.any()
here = Placement(backend="in-process")
trained = train(simulate(scenario, here, sys.argv[2]), None, here, sys.argv[2] + "-trained")
print(trained.document["rounds"])
"""


@pytest.mark.slow
def test_a_model_is_trained_without_ray(small, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(small(*TRAINED, "rounds.count=2").to_toml())
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RAY, tmp_path / "s.toml", tmp_path / "t"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "2"), done.stderr


# The code for GPUs, in torch on a CPU everywhere, and on a GPU where torch sees one.

GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]
IN_TORCH = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])


@pytest.fixture
def in_torch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Tensors on a CPU stay tensors within it."""
    monkeypatch.setattr(devices, "native", lambda tensor: tensor)
    return monkeypatch


@IN_TORCH
@pytest.mark.parametrize("kind", ["fixed", "per_layer"])
def test_updates_in_torch_are_clipped_as_arrays_are(small, kind: str, device: str) -> None:
    shapes = {"a": (300,), "b": (7, 10)}
    clipper = Clipper(small(f"privacy.clipping={{kind='{kind}', zero_above=30.0}}").privacy, shapes)
    rng = np.random.default_rng(1)
    here = (rng.normal(size=(40, 370)) * np.logspace(-4, 2, 40)[:, None]).astype(np.float32)
    here[3, 5], here[4, 0] = np.nan, np.inf
    there = torch.from_numpy(here.copy()).to(device)
    group, other = clipper.clip(here, clipper.first), clipper.clip(there, clipper.first)
    assert other.done.tolist() == group.done.tolist()
    np.testing.assert_allclose(other.factors.cpu(), group.factors, rtol=1e-14)
    np.testing.assert_allclose(there.cpu(), here, rtol=1e-6)


TASKS = {
    "next_word": "training.task={kind='next_word'}",
    "keyboard_lstm": "training.task={kind='keyboard_lstm', hidden=20}",
}


ENCODINGS = ("{kind='fixed_point'}", "{kind='secagg', scale=1048576}")


@pytest.mark.slow
@IN_TORCH
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("task", TASKS)
def test_a_trainer_in_torch_computes_the_sum_of_the_compiled_code_and_the_same_bits_again(
    small, task: str, encoding: str, device: str, in_torch: pytest.MonkeyPatch
) -> None:
    scenario = small("training.enabled=true", TASKS[task], f"privacy.encoding={encoding}")
    order = TrainOrder(0, [np.arange(0, 9, dtype=np.uint64), np.arange(9, 12, dtype=np.uint64)])
    start = LocalTrainer(scenario).initial_parameters()
    there = LocalTrainer(scenario, device)
    report, total = there.train(order, start)
    _, again = LocalTrainer(scenario, device).train(order, start)
    assert np.array_equal(again, total)
    evaluation = evaluation_of([there.evaluate(start)])
    in_torch.undo()
    here = LocalTrainer(scenario)
    expected, sum_here = here.train(order, start)
    assert (report.trained, report.examples) == (expected.trained, expected.examples)
    assert (report.clipped, report.devices) == (expected.clipped, expected.devices)
    assert report.loss_sum == pytest.approx(expected.loss_sum, rel=1e-4)
    decode = [
        encoding_of(scenario.privacy.encoding, scenario.sum_setting(start.size)).decode(
            each, 1.0, 0
        )
        for each in (total, sum_here)
    ]
    # Rounding at random turns last bits into whole steps of 2^-20, seldom.
    assert np.linalg.norm(decode[0] - decode[1]) < 1e-3 * np.linalg.norm(decode[1])
    for name, measured in evaluation_of([here.evaluate(start)]).metrics.items():
        assert evaluation.metrics[name].value == pytest.approx(measured.value, rel=1e-3)


@pytest.mark.gpu
@GPU[1]
def test_a_training_on_a_gpu_resumes_to_the_same_bits_and_learns_what_a_cpu_learns(
    trace: Trace, tmp_path: Path
) -> None:
    whole = train(trace, None, ON_A_GPU, tmp_path / "w")
    with pytest.raises(KeyboardInterrupt):
        train(trace, None, ON_A_GPU, tmp_path / "m", interrupt)
    resumed = train(trace, None, ON_A_GPU, tmp_path / "m", is_resumed=True)
    assert np.array_equal(resumed.parameters(), whole.parameters())
    here = train(trace, None, HERE, tmp_path / "c")
    assert np.allclose(whole.parameters(), here.parameters(), atol=1e-3)
    assert whole.document["trainer_device"].startswith("cuda ")
