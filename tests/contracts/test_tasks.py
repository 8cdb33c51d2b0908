"""What every task must do, by the suite that users have too; and what a user's own task may get wrong."""

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from data_contract import CHECKS as SOURCE_CHECKS
from small_tasks import CASES, RandomExamples, made
from task_contract import CHECKS, check_the_metric_loss_is_the_loss
from torch import nn
from torch.func import functional_call

from fedray.base.errors import InputError, ScenarioError
from fedray.clients.data.factory import source_of
from fedray.clients.tasks.custom import CustomTask
from fedray.clients.tasks.factory import task_of
from fedray.clients.tasks.gradients import gradients_of
from fedray.clients.tasks.module import ModuleTask
from fedray.clients.trainer import LocalTrainer
from fedray.encoding.tables import FIXED_POINT_BITS
from fedray.runs import pipeline, simulation
from fedray.runs.learning import scenario_of, train
from fedray.runs.pipeline import resume_run, run_scenario
from fedray.runs.simulation import read_unfinished_scenario, simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.scenario.tasks import CustomTask as CustomTable
from fedray.wire.messages import TrainOrder

HERE = Placement(1, "in-process")
MODULE = """
import numpy as np
import torch
from fedray.clients.tasks.module import ModuleTask

def task(seed):
    def examples(device):
        draws = np.random.default_rng([seed, device])
        inputs = torch.from_numpy(draws.standard_normal((50, 6), np.float32))
        return inputs, (inputs.sum(dim=1) > 0).long()

    return ModuleTask(torch.nn.Linear(6, 2), examples, torch.nn.functional.cross_entropy)
"""
FAILS = """
class Fails(torch.nn.Linear):
    def __init__(self):
        super().__init__(6, 2)

    def forward(self, inputs):
        raise ValueError(None)
"""
MINE = """
def mine(outputs, targets):
    raise ValueError("no score")
"""
PLAIN = """
import numpy as np
import torch
from fedray.clients.data.source import Field
from fedray.wire.messages import Metric

class Draws:
    fields = {"points": Field((3,), "real")}
    held_out_devices = 9
    optimum = {}

    def __init__(self, seed):
        self.seed = seed

    def examples_on(self, device_ids):
        return np.full(device_ids.size, 50)

    def examples(self, device_ids, positions):
        all = [
            np.random.default_rng([self.seed, int(each)]).standard_normal((50, 3), np.float32)
            for each in device_ids
        ]
        return {"points": np.stack([each[row] for each, row in zip(all, positions)])}

class task:
    shapes = {"mean": (3,), "scale": ()}
    metrics = (Metric("distance", "", "lower"),)

    def __init__(self, seed):
        self.source = Draws(seed)

    def initial_parameters(self):
        return np.zeros(4, np.float32)

    def losses(self, parameters, batch):
        away = batch["points"] - parameters["mean"][:, None, :]
        return away.square().mean(dim=(1, 2)) + parameters["scale"].square()

    def measure(self, parameters, batch):
        away = batch["points"] - parameters["mean"][:, None, :]
        return {"distance": (away.square().sum(dim=2), torch.ones(away.shape[:2]))}
"""


def own(folder: Path, code: str, *overrides: str) -> Scenario:
    """A small scenario that trains the task of a file."""
    (folder / "my_task.py").write_text(code)
    (folder / "s.toml").write_text(
        "seed = 3\n[population]\ndevices = 20_000\n[rounds]\ncount = 3\nreport_goal = 50\n"
        '[training]\ntask = "custom"\nfile = "my_task.py"\ncohort_sample = 5\n'
    )
    return Scenario.from_toml(folder / "s.toml", overrides)


def inputs_of(device: int, shape: tuple[int, ...]) -> torch.Tensor:
    """By numpy, since of a seed torch's generator takes the last 32 bits alone."""
    draws = np.random.default_rng(device)
    return torch.from_numpy(draws.standard_normal((5, *shape), np.float32))


def module_task(module: nn.Module, shape: tuple[int, ...]) -> ModuleTask:
    def examples(device: int) -> tuple[torch.Tensor, torch.Tensor]:
        return inputs_of(device, shape), torch.arange(5) % 2

    return ModuleTask(module, examples, nn.functional.cross_entropy)


class LastState(nn.Module):
    """A recurrent model, which vmap does not know; one of its parameters is frozen, one unused."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 2)
        self.out.bias.requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.out(self.rnn(inputs)[0][:, -1])


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))


DATA = {"next_word": "language"}
"""The kind of data of each shipped task that takes no other."""
MADE = {
    **{name: lambda seed, name=name: _registered(name, seed) for name in DATA},
    **{
        name: lambda seed, case=case: (made(*case, seed), RandomExamples(case[1]))
        for name, case in CASES.items()
    },
    "convolution": lambda seed: _with_source(module_task(convolution(), (1, 6, 6))),
    "recurrent": lambda seed: _with_source(module_task(LastState(), (3, 4))),
}
WITHOUT_CURVATURES = ("quadratic", check_the_metric_loss_is_the_loss)
"""The one task whose metric `loss` leaves out a part of its loss on purpose: the curvatures."""


def _registered(name: str, seed: int):
    tables = {"population": {"devices": 2**40 - 2}, "rounds": {"count": 1, "report_goal": 64}}
    training = {"task": name, "seed": seed}
    scenario = Scenario.from_tables({**tables, "data": {"kind": DATA[name]}, "training": training})
    source = source_of(scenario)
    return task_of(scenario, source.fields), source


def _with_source(task):
    assert task.source is not None
    return task, task.source


@pytest.mark.parametrize("name", [*MADE, "custom module", "custom class"])
@pytest.mark.parametrize("check", CHECKS)
def test_every_task_keeps_the_contract(name: str, check, tmp_path: Path) -> None:
    if name in MADE:
        if (name, check) == WITHOUT_CURVATURES:
            with pytest.raises(AssertionError, match="weigh examples in both alike"):
                check(MADE[name])
        else:
            check(MADE[name])
    else:
        table = own(tmp_path, MODULE if name == "custom module" else PLAIN).training.task
        assert isinstance(table, CustomTable)
        check(lambda seed: _with_source(CustomTask(table, seed, {})))


@pytest.mark.parametrize("check", SOURCE_CHECKS)
def test_a_function_s_examples_keep_the_contract_of_sources(check) -> None:
    check(lambda: _with_source(module_task(nn.Linear(2, 2), (2,)))[1])


@pytest.mark.parametrize(("make", "shape"), [(convolution, (1, 6, 6)), (LastState, (3, 4))])
def test_a_module_for_a_group_is_the_module_for_each_device(make, shape) -> None:
    """Losses and gradients against a loop that sets the module's own parameters."""
    module = make()
    task = module_task(module, shape)
    devices = np.arange(4, dtype=np.uint64)
    assert task.source is not None
    examples = task.source.examples(devices, np.tile(np.arange(5), (4, 1)))
    batch = {name: torch.from_numpy(part) for name, part in examples.items()}
    own = {
        name: torch.randn(4, *part, generator=torch.Generator().manual_seed(1)).requires_grad_()
        for name, part in task.shapes.items()
    }
    losses, gradients = gradients_of(task, own, batch)
    for device in range(4):
        inputs = inputs_of(device, shape)
        with torch.no_grad():
            for name, part in module.named_parameters():
                if name in own:
                    part.copy_(own[name][device])
        module.zero_grad()
        loss = nn.functional.cross_entropy(module(inputs), torch.arange(5) % 2)
        loss.backward()
        torch.testing.assert_close(losses[device], loss)
        for name, gradient in gradients.items():
            expected = module.get_parameter(name).grad
            expected = torch.zeros_like(gradient[device]) if expected is None else expected
            torch.testing.assert_close(gradient[device], expected)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (None, "(No such file or directory); put a readable file there"),
        ("def task(:", "is not a readable Python file"),
        ("x = 1", "has no function 'task'"),
        (
            "import no_such_module",
            "imports no_such_module in line 1, which is not installed: pip install no_such_module, or "
            "put no_such_module.py beside the file",
        ),
        ("raise SystemExit(0)", "SystemExit"),
        ("def task(seed):\n    raise KeyError(seed)", "task() failed: KeyError: 3"),
        (PLAIN.replace("def measure", "def other"), "lacks measure"),
        (PLAIN.replace("metrics =", "figures ="), "`metrics` must be"),
        (PLAIN.replace("shapes", "forms"), "`shapes` must have the shape"),
        (PLAIN.replace("np.zeros(4", "np.zeros(5"), "has shape (5,); it must be [4]"),
        (PLAIN.replace("dim=(1, 2)", "dim=9"), "losses() failed: IndexError"),
        (PLAIN.replace("mean(dim=(1, 2))", "mean(dim=2)"), "a loss per device"),
        (
            PLAIN.replace("return away", "return 0 * batch['points'].mean(dim=(1, 2))  #"),
            "have no gradients",
        ),
        (PLAIN.replace("sum(dim=2), torch", "sum(), torch"), "a numerator and a weight"),
        (PLAIN.replace("sum(dim=2), torch", "sum(dim=9), torch"), "measure() failed: IndexError"),
        (
            MODULE.replace("torch.nn.Linear(6, 2)", "torch.nn.BatchNorm1d(6)"),
            "'the module' is a BatchNorm1d in training mode",
        ),
        (
            MODULE.replace("torch.nn.Linear(6, 2)", "torch.nn.Linear(6, 2).requires_grad_(False)"),
            "no parameter of its module can be trained, because all are frozen",
        ),
        (
            MODULE.replace("torch.nn.Linear(6, 2)", "torch.nn.Flatten()"),
            "no parameter of its module can be trained, because it has none",
        ),
        (
            MODULE.replace("cross_entropy)", "cross_entropy, mine)") + MINE,
            "py': mine() failed: ValueError: no score; correct line",
        ),
        (
            MODULE.replace("torch.nn.Linear(6, 2)", "Fails()") + FAILS,
            "losses() failed: ValueError: None; correct line 19",
        ),
        (
            MODULE.replace(".long()", ".float()"),
            "; for classes, targets must be whole numbers from 0 to 1 (targets.long())",
        ),
        (
            MODULE.replace(".long()", ".long() + 1"),
            "from 0 to 1 (targets.long()), or give the output layer 3 outputs",
        ),
        (
            MODULE.replace("torch.nn.Linear(6, 2)", "torch.nn.Embedding(6, 2)"),
            "call inputs.long() in forward, or name the column as data.tokens",
        ),
    ],
)
def test_what_is_wrong_with_a_task_is_one_line_before_anything_is_simulated(
    tmp_path: Path, fedray_command, code: str | None, says: str
) -> None:
    path = tmp_path / "s.toml"
    own(tmp_path, PLAIN)
    (tmp_path / "my_task.py").unlink()
    if code is not None:
        (tmp_path / "my_task.py").write_text(code)
    exit_code, out, err = fedray_command(
        "run", str(path), "--place", "backend=in-process", "--out", str(tmp_path / "t")
    )
    assert exit_code == 2, err
    assert out == ""
    assert says in err.splitlines()[-1]
    assert [line for line in err.splitlines() if not line.startswith("supply ")] == [
        err.splitlines()[-1]
    ]
    assert {each.name for each in tmp_path.iterdir()} <= {"my_task.py", "s.toml"}


def test_the_digest_is_of_the_content_and_not_of_the_path(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    scenario = own(tmp_path, PLAIN)
    (tmp_path / "elsewhere.py").write_text(PLAIN)
    (tmp_path / "other.py").write_text(PLAIN + "\n")
    same = Scenario.from_toml(tmp_path / "s.toml", ["training.file=elsewhere.py"])
    other = Scenario.from_toml(tmp_path / "s.toml", ["training.file=other.py"])
    assert same.digest == scenario.digest != other.digest
    assert same == scenario
    plain = scenario.with_overrides("training.task=next_word")
    assert plain.to_tables()["training"]["task"] == {"kind": "next_word"}


def test_a_task_imports_files_beside_it_which_are_part_of_its_content(
    tmp_path: Path, fedray_command
) -> None:
    code = MODULE.replace("torch.nn.Linear(6, 2)", "beside.make()").replace(
        "(seed):", "(seed):\n    import beside"
    )
    for name, text in (
        (
            "beside.py",
            "from widths import WIDTH\nimport torch\ndef make():\n    return torch.nn.Linear(WIDTH, 2)\n",
        ),
        ("widths.py", "WIDTH = 6\n"),
        ("unused.py", "raise SystemExit"),
        ("typing.py", "raise SystemExit"),
    ):
        (tmp_path / name).write_text(text)
    scenario = own(tmp_path, f"import typing\n{code}", "rounds.count=1")
    trace = run_scenario(scenario, HERE, tmp_path / "t")
    (tmp_path / "widths.py").write_text("WIDTH = 5 + no_number\n")
    assert own(tmp_path, f"import typing\n{code}", "rounds.count=1").digest != scenario.digest
    command = (
        "run",
        str(tmp_path / "s.toml"),
        "--place",
        "backend=in-process",
        "--out",
        str(tmp_path / "u"),
    )
    assert "correct line 1 of widths.py" in fedray_command(*command)[2]
    (tmp_path / "widths.py").write_text("WIDTH =\n")
    assert "widths.py' is not a readable Python file" in fedray_command(*command)[2]
    for name in ("beside.py", "widths.py"):
        (tmp_path / name).unlink()
    assert not {"beside", "widths"} & sys.modules.keys()
    again = train(trace, None, HERE, tmp_path / "m", trust_code=True)
    assert trace.trained is not None
    assert (again.parameters() == trace.trained.parameters()).all()


def test_unknown_and_missing_keys_are_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    own(tmp_path, PLAIN)
    for override, says in (
        ("training={task='custom'}", "training.task.file is missing"),
        ("training={task='custom',file='my_task.py',sead=1}", "did you mean 'seed'"),
        ("training={file='my_task.py'}", "unknown key training.task.file"),
        ("training={task='custom',file='none.py'}", "training.task: file='none.py' cannot be read"),
    ):
        with pytest.raises(ScenarioError, match=says):
            Scenario.from_toml(tmp_path / "s.toml", [override])


def test_only_trainers_are_sent_the_file(tmp_path: Path) -> None:
    scenario = own(tmp_path, f"{PLAIN}# {'x' * 50_000}\n")
    for part in (scenario.for_shards(), scenario.for_aggregator()):
        assert len(pickle.dumps(part)) < 20_000
    sent = pickle.loads(pickle.dumps(scenario.for_trainers()))
    trainer = LocalTrainer(sent)
    start = trainer.initial_parameters()
    report, _ = trainer.train(TrainOrder(0, [np.arange(3, dtype=np.uint64)]), start)
    assert report.devices == report.trained == 3
    # A loss at zero is the mean square of a device's examples.
    assert report.loss_sum / 2.0**FIXED_POINT_BITS == pytest.approx(3.0, abs=1.5)


@pytest.mark.slow
def test_code_that_came_with_a_trace_is_not_run_unless_trusted(
    tmp_path: Path, fedray_command, monkeypatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "author"))
    scenario = own(tmp_path, PLAIN, "rounds.count=2")
    trace = run_scenario(scenario, HERE, tmp_path / "t")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "reader"))
    assert trace.trained is not None
    kept = f"{scenario.training.task.sha256}.py"  # pyright: ignore[reportAttributeAccessIssue]
    for folder in (trace.path, trace.trained.path):
        assert (folder / kept).read_text() == PLAIN
    (tmp_path / "my_task.py").unlink()
    arguments = (
        "train",
        str(trace.path),
        "--place",
        "backend=in-process",
        "--set",
        "training.evaluate_every=1",
    )
    code, out, err = fedray_command(*arguments, "--out", str(tmp_path / "m"))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "--trust-code" in err
    code, _, err = fedray_command(*arguments, "--trust-code", "--out", str(tmp_path / "m"))
    assert code == 0, err
    again = train(trace, scenario, HERE, tmp_path / "n")  # one's own value, read before
    assert (again.parameters() == trace.trained.parameters()).all()


def test_only_the_users_own_code_is_remembered_by_a_simulation(tmp_path: Path, monkeypatch) -> None:
    """A simulation without training never runs the task, so it never asks for its trust either."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "author"))
    trace = simulate(own(tmp_path, PLAIN), HERE, tmp_path / "t")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "reader"))
    foreign = scenario_of(trace)
    beside = Scenario.from_tables(foreign.to_tables(), directory=trace.path)
    for name, each in (("recorded", foreign), ("beside", beside)):
        simulate(each, HERE, tmp_path / name)
        with pytest.raises(InputError, match="trust_code=True"):
            each.demand_trust_of_training()
    assert not list((tmp_path / "reader").rglob("trusted/*"))
    simulate(own(tmp_path, PLAIN), HERE, tmp_path / "named")
    foreign.demand_trust_of_training()
    (kept,) = (tmp_path / "reader").rglob("trusted/*")
    kept.unlink()
    with pytest.raises(InputError, match="trust_code=True"):
        foreign.demand_trust_of_training()


def test_code_that_a_trace_names_by_a_path_is_not_read(tmp_path: Path) -> None:
    """Its author could leave the digest out, or name a file of another folder."""
    scenario = own(tmp_path, PLAIN)
    trace = simulate(scenario, HERE, tmp_path / "t")
    trace.run["scenario"]["training"]["task"].update(file=str(tmp_path / "my_task.py"), sha256="")
    with pytest.raises(InputError, match=r"cannot be read at '.*t/\.py' \(No such file"):
        train(trace, None, HERE, tmp_path / "m")


def test_a_resumed_run_asks_before_it_runs_a_task(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    scenario = own(tmp_path, "raise SystemExit('executed')")
    partial = tmp_path / "t.partial"
    partial.mkdir()
    document = {"scenario_digest": scenario.digest, "scenario": scenario.to_tables()}
    for module in (simulation, pipeline):
        monkeypatch.setattr(module, "read_unfinished", lambda directory: (partial, document, "run"))
    (partial / f"{scenario.training.task.sha256}.py").write_text("raise SystemExit('executed')")  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(InputError, match="trust_code=True"):
        resume_run(tmp_path / "t", HERE)
    _, kept, _ = read_unfinished_scenario(tmp_path / "t", None)
    assert kept == scenario
    whole = simulate(scenario, HERE, tmp_path / "w")  # its training was not begun
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "stranger"))
    with pytest.raises(InputError, match="trust_code=True"):
        resume_run(whole.path, HERE)


def test_functional_call_keeps_a_module_as_it_was() -> None:
    module = nn.Linear(2, 2)
    before = module.weight.clone()
    task = module_task(module, (2,))
    batch = {"inputs": torch.zeros(1, 3, 2), "targets": torch.zeros(1, 3, dtype=torch.int64)}
    task.measure({name: torch.zeros(1, *shape) for name, shape in task.shapes.items()}, batch)
    assert torch.equal(module.weight, before)
    assert torch.equal(functional_call(module, {}, (torch.ones(1, 2),)), module(torch.ones(1, 2)))
