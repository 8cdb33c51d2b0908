"""Modules that people bring: each trains to the same bits however it is run, learns, and loads into plain PyTorch."""

import copy
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import own_modules
import pytest
import torch
from own_modules import MODELS, WIDTH
from torch import nn

import fedray
from fedray.base.errors import InputError, ScenarioError
from fedray.clients.data.source import FIRST_HELD_OUT
from fedray.clients.evaluation import evaluate
from fedray.clients.tasks.custom import CustomTask
from fedray.clients.tasks.gradients import gradients_of
from fedray.clients.tasks.module import FunctionSource, ModuleTask, is_correct
from fedray.clients.trainer import LocalTrainer
from fedray.clients.work.local import LocalTraining
from fedray.clients.work.work import WorkOrder
from fedray.runs.learning import train
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.scenario.tasks import CustomTask as CustomTable
from fedray.scenario.training import FedAvg, Training
from fedray.server.learning.evaluation import evaluation_of
from fedray.trace.reader import Trace
from fedray.wire.messages import Progress, TrainOrder

HERE = Placement(backend="in-process")
OFTEN = replace(HERE, checkpoint_seconds=0.0)
ALONE = {
    "Attention": "",
    "Encoder": "",
    "Recurrent": "torch.func.vmap does not take it (Batching rule not implemented for aten::lstm.input)",
    "FrozenNorm": "",
    "Tied": "its buffer 'calls' changes",
    "Branches": "torch.func.vmap does not take it (vmap: It looks like you're attempting to use a Tensor in some "
    "data-dependent control flow)",
}
BASE = (
    "name='own'\nseed=3\n[population]\ndevices=2_000\n[rounds]\ncount=20\nreport_goal=8\n[training]\ncohort_sample=8\n"
    "devices_at_once=4\nevaluation_devices=100\nevaluation_examples=20\ntask='custom'\nfile='own.py'\n[training.client]\n"
    "local_steps=3\nbatch_size=10\n"
)


def scenario_of(folder: Path, model: str, more: str = "") -> Scenario:
    code = Path(own_modules.__file__).read_text()
    (folder / "own.py").write_text(f"MODEL = {model!r}\n{code}{more}")
    (folder / "s.toml").write_text(BASE)
    rate = 1.0 if model == "Recurrent" else 0.1
    overrides = ["privacy.mechanism={kind='none'}", f"training.client.learning_rate={rate}"]
    return Scenario.from_toml(folder / "s.toml", overrides)


class Masked(nn.Module):
    """Minus the mean of its inputs after dropout, times its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return -self.scale * nn.functional.dropout(inputs, 0.5, self.training)


class Scores(nn.Module):
    """The scores of a model of `transformers`, as cross-entropy takes them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=inputs).logits.transpose(1, 2)


ONES = FunctionSource(lambda device: (np.ones((20, 500)), np.zeros(20)))


def texts(device: int) -> tuple[np.ndarray, np.ndarray]:
    words = np.random.default_rng(device).integers(0, 20, (8, 7))
    return words[:, :-1], words[:, 1:]


TEXTS = FunctionSource(texts)


def own_task(module: nn.Module, source: FunctionSource | None = None) -> ModuleTask:
    loss = (
        nn.functional.cross_entropy if source is TEXTS else lambda outputs, targets: outputs.mean()
    )
    return ModuleTask(
        module, source, loss, accuracy=lambda outputs, targets: torch.ones(len(targets))
    )


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Trace:
    folder = tmp_path_factory.mktemp("own")
    return simulate(scenario_of(folder, "Branches"), HERE, folder / "t")


def test_the_whole_test_set_for_every_held_out_device_is_told_and_kept(
    trace: Trace, tmp_path: Path, caplog
) -> None:
    same = "\nof = examples\n\n\ndef examples(device):\n    return of(min(device, 2**40))\n"
    scenario = scenario_of(tmp_path, "Attention", same)
    trained = train(trace, scenario, HERE, tmp_path / "t", trust_code=True)
    said = (
        "the 100 held-out devices have only 1 set of examples, so standard errors are too small; "
        "give each id from 2^40 on its own share, or set training.evaluation_devices=1"
    )
    assert trained.document["notes"] == [said]
    assert [each.message for each in caplog.records].count(f"fedray: {said}") == 1
    assert trained.last_evaluation()["accuracy"].standard_error == 0.0


@pytest.mark.parametrize("model", MODELS)
def test_a_module_trains_to_the_same_bits_interrupted_or_not_learns_and_is_loaded(
    model: str, trace: Trace, tmp_path: Path
) -> None:
    scenario = scenario_of(tmp_path, model)
    first = LocalTrainer(scenario).describe()
    how = "devices train one at a time, which takes longer with a small model: "
    assert first.notes == ((how + ALONE[model],) if ALONE[model] else ())

    def interrupt(progress: Progress) -> None:
        if getattr(progress, "trained", 0) == 4:
            raise KeyboardInterrupt

    whole = train(trace, scenario, HERE, tmp_path / "a", trust_code=True)
    with pytest.raises(KeyboardInterrupt):
        train(trace, scenario, OFTEN, tmp_path / "b", interrupt, trust_code=True)
    resumed = train(trace, scenario, HERE, tmp_path / "b", is_resumed=True, trust_code=True)
    assert (resumed.parameters() == whole.parameters()).all()
    notes = [how + ALONE[model]]
    assert whole.document["notes"] == notes * bool(ALONE[model])
    trainer = LocalTrainer(scenario)
    part = trainer.evaluate(trainer.initial_parameters())
    before = evaluation_of([part]).metrics["loss"]
    after = whole.last_evaluation()["loss"]
    assert before.value - after.value > 10 * np.hypot(before.standard_error, after.standard_error)
    # The same loss of held-out devices by the module itself, filled by name.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = MODELS[model]()
    fedray.load_model(tmp_path / "a", module).eval()
    inputs, targets = zip(*(own_modules.examples(2**40 + each) for each in range(100)), strict=True)
    loss = nn.functional.cross_entropy(module(torch.cat(inputs)), torch.cat(targets))
    if model != "Branches":  # whose outputs depend on the batch that it is given
        assert float(loss.detach()) == pytest.approx(after.value, rel=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_no_bit_depends_on_trainers_groups_or_other_devices(model: str, tmp_path: Path) -> None:
    scenario = scenario_of(tmp_path, model)
    devices = np.arange(9, dtype=np.uint64)
    groups = [devices[:4], devices[4:7], devices[7:]]
    one, first, second = (LocalTrainer(scenario) for _ in range(3))
    order = TrainOrder(2, groups)
    start = one.initial_parameters()
    torch.manual_seed(5)
    state = torch.default_generator.get_state()
    report, total = one.train(order, start)
    assert (torch.default_generator.get_state() == state).all()
    assert report.trained == 9
    parts = [first.train(replace(order, groups=groups[:1]), start)]
    parts += [second.train(replace(order, groups=[each]), start) for each in reversed(groups[1:])]
    assert (sum(part for _, part in parts) == total).all()
    assert sum(part.loss_sum for part, _ in parts) == report.loss_sum
    if ALONE[model]:
        regrouped = TrainOrder(2, [devices[[8, 0, 3]], devices[[1, 2, 7, 6, 5, 4]]])
        assert (first.train(regrouped, start)[1] == total).all()


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (nn.BatchNorm1d(WIDTH), "'the module' is a BatchNorm1d in training mode"),
        (nn.Sequential(nn.BatchNorm1d(WIDTH)), "'0' is a BatchNorm1d in training mode.*GroupNorm"),
    ],
)
def test_statistics_of_clients_are_refused(module: nn.Module, says: str) -> None:
    with pytest.raises(InputError, match=says):
        own_task(module)


def test_a_module_in_evaluation_mode_trains_but_its_norms_stay_fixed() -> None:
    """As pretrained models come; a layer alone in evaluation mode stays so."""
    norm, dropout = nn.BatchNorm1d(WIDTH), nn.Dropout(0.5)
    own_task(nn.Sequential(norm, dropout, nn.Linear(WIDTH, 2)).eval())
    assert (norm.training, dropout.training) == (False, True)
    own_task(nn.Sequential(norm, dropout.eval(), nn.Linear(WIDTH, 2).train()))
    assert (norm.training, dropout.training) == (False, False)


def test_draws_are_of_device_round_step_and_seed_and_none_are_made_in_evaluation() -> None:
    """The module's one parameter moves by the mean of what its dropout lets through."""
    updates = {}
    task = own_task(Masked())
    assert not task.draws  # known once it has seen examples
    for place, (seed, device, round_index) in enumerate(
        [(7, 0, 1), (8, 0, 1), (7, 1, 1), (7, 0, 2), (7, 0, 1)]
    ):
        work = LocalTraining(FedAvg(local_steps=2, batch_size=20), task, ONES, seed)
        order = WorkOrder(
            round_index, np.array([device], np.uint64), np.array([20]), torch.zeros(1)
        )
        updates[place] = float(work.compute(order).updates)
    assert (task.alone, task.draws) == ("", True)
    *others, again = updates.values()
    assert len(set(others)) == 4
    assert again == updates[0]
    batch = {"inputs": torch.ones(1, 20, 500), "targets": torch.zeros(1, 20)}
    nats, _ = task.measure({"scale": torch.ones(1, 1)}, batch)["loss"]
    assert (nats == -1.0).all()


class Drawing(nn.Module):
    """Draws in all ways that a group of devices can."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.body = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.3, batch_first=True)
        self.drops = nn.Sequential(nn.Dropout(0.3), nn.Dropout1d(0.2), nn.AlphaDropout(0.2))
        self.out = nn.Linear(WIDTH, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        states = self.drops(self.body(self.first(inputs)))
        states = states + 0.1 * torch.randn_like(states) + 0.1 * torch.rand(WIDTH)
        states = nn.functional.gumbel_softmax(states, dim=-1) + torch.rand_like(inputs)
        states = states * torch.bernoulli(torch.sigmoid(states)) * torch.randn(5, WIDTH).exp()
        return self.out(states.mean(dim=1))


HELD = np.array([20, 7, 13, 20, 4, 20], np.int64)
ALL = np.arange(HELD.size)


def drawn(task: ModuleTask, places: np.ndarray, seed: int = 7) -> torch.Tensor:
    """The updates of devices at these places, as one group, with uneven numbers of steps."""
    source = FunctionSource(own_modules.examples)
    work = LocalTraining(FedAvg(epochs=2, batch_size=4, learning_rate=0.1), task, source, seed)
    start = torch.from_numpy(task.initial_parameters())
    order = WorkOrder(3, places.astype(np.uint64), HELD[places], start)
    return work.compute(order).updates


def test_a_device_draws_the_same_in_any_group_and_by_itself() -> None:
    """By itself the module is called as it is, without vmap; torch's own generators stay as they are."""
    torch.manual_seed(0)
    task = ModuleTask(Drawing(), None, nn.functional.cross_entropy)
    state = torch.default_generator.get_state()
    expected = torch.cat([drawn(task, ALL[place : place + 1]) for place in ALL])
    assert (task.alone, task.draws) == ("", True)
    for places in (ALL, ALL[::-1].copy(), ALL[1:4]):
        torch.testing.assert_close(drawn(task, places), expected[places], rtol=1e-4, atol=1e-5)
    assert (torch.default_generator.get_state() == state).all()
    # Other draws are apart by far more than rounding.
    others = drawn(task, ALL, seed=8)
    assert (others - expected).abs().max() > 0.01


def test_dropout_in_a_group_is_that_of_devices_one_at_a_time(monkeypatch) -> None:
    """Which draw from torch's own generators, seeded for each."""
    torch.manual_seed(0)
    layers = (
        nn.Flatten(),
        nn.Linear(5 * WIDTH, 9),
        nn.Dropout(0.4),
        nn.Linear(9, 2),
        nn.Dropout(0.1),
    )
    module = nn.Sequential(*layers)
    together, slow = (
        ModuleTask(copy.deepcopy(module), None, nn.functional.cross_entropy) for _ in range(2)
    )
    monkeypatch.setattr(slow, "_why_alone", lambda *given: "it is the slow twin")
    torch.testing.assert_close(drawn(together, ALL), drawn(slow, ALL), rtol=1e-4, atol=1e-6)
    assert (together.alone, slow.alone) == ("", "it is the slow twin")


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda: torch.rand((), generator=torch.Generator()), "from a generator of its own"),
        (lambda: torch.randperm(3).float().sum(), "by aten.randperm"),
        (lambda: torch.empty(3).uniform_().sum(), "Cannot ask for different inplace randomness"),
    ],
)
def test_devices_whose_draws_cannot_be_told_apart_train_one_at_a_time(draw: Any, says: str) -> None:
    linear = nn.Linear(WIDTH, 2)
    linear.register_forward_hook(lambda part, given, output: output + draw())
    task = ModuleTask(linear, None, nn.functional.cross_entropy)
    task.choose({"inputs": torch.randn(1, 9, WIDTH), "targets": torch.arange(9)[None] % 2})
    assert says in task.alone
    assert not task.draws


class Ridge(ModuleTask):
    def losses(self, parameters, batch):
        return super().losses(parameters, batch) + parameters["weight"].square().sum(dim=(1, 2))


class AroundRidge:
    def __init__(self, task: ModuleTask) -> None:
        self.task = task

    def losses(self, parameters, batch):
        norms = parameters["weight"].square().sum(dim=(1, 2))
        return self.task.losses(parameters, batch) + norms


def test_a_task_may_add_to_the_losses_of_devices_that_train_one_at_a_time() -> None:
    torch.manual_seed(1)
    linear = nn.Linear(WIDTH, 2)
    batch = {"inputs": torch.randn(1, 9, WIDTH), "targets": torch.arange(9)[None] % 2}
    parameters = {name: part.detach()[None] for name, part in linear.named_parameters()}
    # A draw that changes nothing, by a generator that is no device's.
    own = torch.Generator()
    linear.register_forward_hook(lambda *_: torch.rand((), generator=own) and None)
    plain = ModuleTask(linear, None, nn.functional.cross_entropy)
    ridge = Ridge(linear, None, nn.functional.cross_entropy)
    for task in (plain, ridge):
        task.choose(batch)
        assert task.alone == "it draws random numbers from a generator of its own"
    loss, slopes = gradients_of(plain, parameters, batch)
    weight = parameters["weight"]
    for task in (ridge, AroundRidge(plain)):
        losses, gradients = gradients_of(task, parameters, batch)
        assert torch.allclose(losses, loss + weight.square().sum())
        assert torch.allclose(gradients["weight"], slopes["weight"] + 2.0 * weight)
        assert torch.equal(gradients["bias"], slopes["bias"])


def test_losses_of_another_shape_are_refused_where_devices_train_one_at_a_time(
    tmp_path: Path,
) -> None:
    (tmp_path / "own.py").write_text(OF_ONE)
    task = CustomTask(CustomTable(file=str(tmp_path / "own.py")), 0, {})
    batch = {"inputs": torch.ones(1, 4, 3), "targets": torch.ones(1, 4, 1)}
    task.choose(batch)
    assert task.alone
    parameters = {"1.weight": torch.ones(1, 1, 3), "1.bias": torch.ones(1, 1)}
    with pytest.raises(
        ScenarioError, match=r"losses\(\) gave a tensor \[1, 1\]; it must be a tensor \[1\]"
    ):
        gradients_of(task, parameters, batch)


OF_ONE = """
import torch
from fedray.clients.tasks.module import ModuleTask, is_correct

def task(seed):
    module = torch.nn.Sequential(torch.nn.RReLU(), torch.nn.Linear(3, 1))
    loss = lambda outputs, targets: (outputs - targets).mean()[None]
    return ModuleTask(module, None, loss, lambda outputs, targets: outputs[:, 0])
"""


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_module_from_transformers_and_its_adapters_train() -> None:
    """Of a model with adapters, the adapters alone train and travel."""
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    sizes = {"vocab_size": 20, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    )
    whole = own_task(Scores(copy.deepcopy(model)), TEXTS)
    assert sum(map(math.prod, whole.shapes.values())) == sum(
        each.numel() for each in model.parameters()
    )
    adapters = peft.get_peft_model(
        model, peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True)
    )
    small = own_task(Scores(adapters), TEXTS)
    assert all("lora_" in name for name in small.shapes)
    before = {name: part.clone() for name, part in model.named_parameters()}
    for task in (whole, small):
        updates = []
        for devices in ([0, 1, 2], [2, 0, 1]):
            work = LocalTraining(FedAvg(local_steps=2, batch_size=4), task, TEXTS, 7)
            order = WorkOrder(
                1,
                np.array(devices, np.uint64),
                np.full(3, 8),
                torch.from_numpy(task.initial_parameters()),
            )
            updates.append(work.compute(order).updates[np.argsort(devices)])
        assert (task.alone, task.draws) == ("", True)
        assert torch.equal(*updates)
        assert updates[0].any(dim=1).all()
    assert all(torch.equal(part, before[name]) for name, part in model.named_parameters())


def test_a_model_of_other_names_or_shapes_is_not_loaded(trace: Trace, tmp_path: Path) -> None:
    train(trace, scenario_of(tmp_path, "Branches"), HERE, tmp_path / "a", trust_code=True)
    for module, says in (
        (nn.Linear(WIDTH, 2), "parameter 'bias' of the module has the shape [2], and .* has none"),
        (own_modules.FrozenNorm(), "parameter 'norm.bias' of the module has the shape"),
    ):
        with pytest.raises(InputError, match=re.escape(says).replace(r"\.\*", ".*")):
            fedray.load_model(tmp_path / "a", module)


@pytest.mark.parametrize("model", MODELS)
def test_a_check_of_a_module_is_without_dropout(model: str) -> None:
    def make(seed: int) -> tuple[ModuleTask, FunctionSource]:
        task = ModuleTask(MODELS[model](), own_modules.examples, nn.functional.cross_entropy)
        return task, FunctionSource(own_modules.examples)

    if model == "Branches":
        with pytest.raises(AssertionError, match="must depend on only this example"):
            fedray.check_task(make)
    else:
        fedray.check_task(make)


@pytest.mark.parametrize("length", [1, 4])
def test_classes_may_lie_on_the_last_axis(length: int) -> None:
    draws = torch.Generator().manual_seed(1)
    scores = torch.randn(6, 5, length, generator=draws)
    targets = torch.randint(0, 5, (6, length), generator=draws)
    assert is_correct(scores.movedim(1, -1), targets).equal(is_correct(scores, targets))


@pytest.mark.parametrize(
    ("outputs", "targets"), [((6, 5, 5), (6, 5)), ((6, 5), (6, 1)), ((6,), (6,)), ((6, 5, 4), (6,))]
)
def test_an_unclear_axis_of_classes_is_refused(outputs: tuple, targets: tuple) -> None:
    with pytest.raises(InputError, match=re.escape(f"unclear: outputs float32 {[*outputs]} must")):
        is_correct(torch.zeros(outputs), torch.zeros(targets, dtype=torch.int64))


@pytest.mark.parametrize("is_even", [True, False])
def test_a_loss_that_weighs_long_texts_more_is_warned_of(is_even: bool) -> None:
    def loss(scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        losses, is_word = nn.functional.cross_entropy(scores, tokens, reduction="none"), tokens != 0
        if is_even:
            return ((losses * is_word).sum(dim=1) / is_word.sum(dim=1)).mean()
        return (losses * is_word).sum() / is_word.sum()

    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Embedding(5, 3), nn.Flatten(1), nn.Linear(9, 15), nn.Unflatten(1, (5, 3))
    )
    tokens = torch.tensor([[[1, 2, 3, 4], [2, 4, 0, 0], [1, 1, 1, 0], [4, 3, 0, 0]]])
    task = ModuleTask(model, None, loss)
    task.choose({"tokens": tokens})
    assert task.uneven == "" if is_even else "weighs long texts more" in task.uneven


def test_a_clip_norm_that_is_far_off_has_the_mean_norm_beside_it(
    trace: Trace, tmp_path: Path
) -> None:
    """The mean of all norms before clipping, which another clip norm does not change in the first round."""
    scenario = scenario_of(tmp_path, "Attention")
    norms = {}
    for clip in (1e-4, 100.0):
        made = scenario.with_overrides(f"privacy.clip_norm={clip}", "rounds.count=1")
        trainer = LocalTrainer(made)
        report, _ = trainer.train(TrainOrder(0, [np.arange(8)]), trainer.initial_parameters())
        norms[clip] = report.mean_norm
    assert norms[1e-4] == norms[100.0] > 0
    run = train(
        trace,
        scenario.with_overrides("privacy.clip_norm=1e-4"),
        HERE,
        tmp_path / "c",
        trust_code=True,
    )
    norm = run.document["mean_norm"]
    assert run.clipping.endswith(f"only; try a higher one near their mean norm {norm:.2g} too.")


def top3(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (scores.topk(3, dim=1).indices == targets[:, None]).any(dim=1).float()


def entropy(scores: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A ratio: of examples whose target is not class 0."""
    del targets
    chances = scores.softmax(dim=1)
    return -(chances * chances.log()).sum(dim=1), (scores.argmax(dim=1) != 0).float()


FURTHER = {
    fedray.Metric("top3", "share of targets", "higher"): top3,
    fedray.Metric("entropy", "nats", "lower"): entropy,
}


def classes(device: int) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(device)
    count = 3 + device % 5
    return draws.standard_normal((count, 6), np.float32), draws.integers(0, 5, count)


def halves(scores: Any, targets: Any) -> Any:
    """Correct classes and weights of examples; those of class 0 count half."""
    weights = torch.where(targets == 0, 0.5, 1.0)
    return (scores.argmax(dim=1) == targets) * weights, weights


def _ratio(score: Any) -> Any:
    numerators, weights = score if isinstance(score, tuple) else (score, torch.ones_like(score))
    return numerators.sum() / weights.sum()


@pytest.mark.parametrize("accuracy", [is_correct, halves])
def test_any_number_of_metrics_are_those_of_plain_torch_on_the_same_examples(
    accuracy: Any,
) -> None:
    torch.manual_seed(0)
    module = nn.Linear(6, 5)
    source: Any = FunctionSource(classes)
    loss = nn.functional.cross_entropy
    task = ModuleTask(module, source, loss, accuracy, further=FURTHER)
    part = evaluate(task, source, Training(evaluation_devices=30), task.initial_parameters())
    found = evaluation_of([part])
    examples = [classes(int(FIRST_HELD_OUT) + device) for device in range(30)]
    inputs, targets = (
        torch.from_numpy(np.concatenate(part)) for part in zip(*examples, strict=True)
    )
    with torch.no_grad():
        scores = module(inputs)
    numerators, weights = entropy(scores, targets)
    expected = {
        "loss": nn.functional.cross_entropy(scores, targets),
        "accuracy": _ratio(accuracy(scores, targets)),
        "top3": top3(scores, targets).mean(),
        # Numerators are added up as they are given.
        "entropy": numerators.sum() / weights.sum(),
    }
    assert list(found.metrics) == list(expected)
    for name, value in expected.items():
        assert found.metrics[name].value == pytest.approx(float(value), rel=1e-6)


@pytest.mark.parametrize(
    ("further", "words"),
    [
        (
            {fedray.Metric("loss", "", "lower"): top3},
            "^further='loss' names two metrics; rename one",
        ),
        (
            {fedray.Metric("mean", "", "lower"): lambda scores, targets: scores.mean()},
            r"^metric='mean' gave float32 \[\] for \d+ examples; give a tensor with a value for each",
        ),
        (
            {fedray.Metric("list", "", "lower"): lambda scores, targets: [1.0] * len(targets)},
            "^metric='list' gave list for",
        ),
        ({"top3": top3}, "^further: its keys must be of fedray.Metric"),
    ],
)
def test_a_further_metric_that_cannot_be_one_is_refused(further: Any, words: str) -> None:
    source: Any = FunctionSource(classes)
    with pytest.raises(fedray.InputError, match=words):
        task = ModuleTask(nn.Linear(6, 5), source, nn.functional.cross_entropy, further=further)
        evaluate(task, source, Training(evaluation_devices=3), task.initial_parameters())


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (("", "", "lower"), "^name='' is not a name; give a metric a text"),
        (("mine", 1, "lower"), "^unit=1 is not a text"),
        (("mine", "", "bigger"), '^better=\'bigger\' is not "lower" or "higher"; give one'),
    ],
)
def test_a_metric_of_another_form_is_refused_where_it_is_made(parts: Any, words: str) -> None:
    with pytest.raises(fedray.InputError, match=words):
        fedray.Metric(*parts)
