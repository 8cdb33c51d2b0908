"""Server optimisers against their recurrences written out with scalars, and schedules."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fedray.base.errors import ScenarioError
from fedray.scenario.training import Schedule
from fedray.server.learning.aggregator import ModelAggregator
from fedray.server.learning.optimizers import optimizer_of
from fedray.server.learning.training import greedy_shares

OWN = Path(__file__).parents[1] / "clients/tasks/server_optimizer.py"
UPDATES = [0.5, -0.25, 0.125, 0.0, -1.0]


def by_hand(server: dict, updates: list[float]) -> list[float]:
    """Parameters after every step, from 0: McMahan, Hsu, Reddi et al. with plain floats."""
    w = m = v = velocity = 0.0
    path = []
    for update in updates:
        w *= 1.0 - server["learning_rate"] * server.get("weight_decay", 0.0)
        if server["kind"] == "sgd":
            velocity = server["momentum"] * velocity + update
            step = velocity
            if server.get("nesterov"):
                step = server["momentum"] * velocity + update
            w += server["learning_rate"] * step
        elif server["kind"] == "custom":
            m = 0.9 * m + 0.1 * update
            w += server["learning_rate"] * m / math.sqrt(len(path) + 1)
        else:
            m = 0.9 * m + 0.1 * update
            if server["kind"] == "adagrad":
                v = v + update**2
            elif server["kind"] == "adam":
                v = 0.99 * v + 0.01 * update**2
            elif server["kind"] == "yogi":
                v = v - 0.01 * update**2 * np.sign(v - update**2)
            w += server["learning_rate"] * m / (math.sqrt(v) + 1e-3)
        path.append(w)
    return path


def with_server(small, server: dict, *overrides: str):
    keys = ", ".join(f"{name}={json.dumps(value)}" for name, value in server.items())
    return small("training.enabled=true", f"training.server={{{keys}}}", *overrides)


SERVERS = [
    {"kind": "sgd", "momentum": 0.0, "learning_rate": 0.5},
    {"kind": "sgd", "momentum": 0.9, "learning_rate": 1.0},
    {"kind": "sgd", "momentum": 0.9, "learning_rate": 1.0, "nesterov": True},
    {"kind": "sgd", "momentum": 0.9, "learning_rate": 0.5, "weight_decay": 0.2},
    {"kind": "custom", "file": str(OWN), "learning_rate": 0.5, "weight_decay": 0.2},
    {"kind": "adagrad", "learning_rate": 0.1},
    {"kind": "adam", "learning_rate": 0.1},
    {"kind": "yogi", "learning_rate": 0.1},
]
"""`training.server`; `by_hand` has the recurrence of each kind."""


@pytest.mark.parametrize(
    "server",
    SERVERS,
    ids=lambda table: " ".join(str(value).rpartition("/")[2] for value in table.values()),
)
def test_steps_are_those_of_the_papers_and_go_on_from_a_state(small, server: dict) -> None:
    scenario = with_server(small, server)
    one, other = (optimizer_of(scenario, 2, torch.device("cpu")) for _ in range(2))
    parameters = torch.zeros(2)
    for index, (update, expected) in enumerate(zip(UPDATES, by_hand(server, UPDATES), strict=True)):
        if index == 3:
            other.load(one.state())
            one = other
        one.apply(parameters, torch.full((2,), update), index)
        assert parameters.tolist() == pytest.approx([expected] * 2, rel=1e-5, abs=1e-7)


def own(tmp_path: Path, step: str, init: str = "") -> dict:
    """The table of an optimizer with this body of its step."""
    (tmp_path / "own.py").write_text(
        "import torch\n\nclass Own(torch.optim.Optimizer):\n"
        "    def __init__(self, parameters, rate):\n"
        "        super().__init__(parameters, {'lr': rate})\n"
        f"        {init}\n\n    @torch.no_grad()\n    def step(self):\n"
        "        (part,) = self.param_groups[0]['params']\n        own = self.state[part]\n"
        f"        {step}\n\noptimizer = Own\n"
    )
    return {"kind": "custom", "file": str(tmp_path / "own.py"), "learning_rate": 1.0}


@pytest.mark.parametrize(
    ("step", "init", "says"),
    [
        ("own['seen'] = [part.clone()]", "", "'seen' in its state is a list, which no checkpoint"),
        ("own['seen'] = part.bfloat16()", "", "'seen' in its state is a Tensor, which no"),
        ("own['seen'] = 2**70", "", "'seen' in its state is a int, which no checkpoint"),
        ("self.seen = part.clone()", "", "its 'seen' holds a Tensor, which no checkpoint has"),
        ("self.taken += 1", "self.taken = 0", "its 'taken' changes in a step"),
        ("self.sums['a'] += 1", "self.sums = {'a': 0}", "its 'sums' changes in a step"),
        ("self.slow[0] += 1", "self.slow = [torch.ones(1)]", "its 'slow' holds a Tensor"),
        ("pass", "self.draws = torch.Generator()", "its 'draws' holds a Generator, which no"),
        ("raise KeyError('m')", "", "step() failed: KeyError: 'm'; correct line 12"),
        ("print(__file__)", "", "'__file__' is not defined; a copy runs, which has no path"),
        ("import no_such_thing", "", "imports no_such_thing in line 12, which is not installed"),
    ],
)
def test_an_optimizer_that_no_checkpoint_restores_is_refused_at_its_first_step(
    small, tmp_path: Path, step: str, init: str, says: str
) -> None:
    server = own(tmp_path, step, init or "self.rate = 0.5")
    optimizer = optimizer_of(with_server(small, server), 2, torch.device("cpu"))
    with pytest.raises(ScenarioError, match=re.escape(says)) as raised:
        optimizer.apply(torch.zeros(2), torch.ones(2), 0)
    assert "own.py'" in str(raised.value)


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("SUM.append(1); part.sub_(part.grad, alpha=len(SUM))", "'SUM' of its module changes"),
        ("Own.sum += 1", "'Own.sum' of its module changes"),
        ("own['n'] = own.get('n', 0) + 1; own['n'] < 6 or SUM.append(1)", "'SUM' of its module"),
        ("part.sub_(HIDDEN())", "a training that was resumed goes on otherwise"),
        ("own['n'] = own.get('n', 0) + 1; part.sub_(part.grad, alpha=own['n'])", ""),
    ],
)
def test_an_optimizer_with_state_in_its_module_is_refused_before_the_training(
    small, tmp_path: Path, step: str, says: str
) -> None:
    """What cannot be read, as a counter within a function, is found by its results."""
    server, file = own(tmp_path, step), tmp_path / "own.py"
    hidden = "import itertools\nHIDDEN = (lambda n: lambda: next(n))(itertools.count())\n"
    text = file.read_text().replace("    def __init__", "    sum = 0\n\n    def __init__", 1)
    file.write_text(f"{hidden}SUM = []\n{text}Own.kind = Own\n")
    aggregator = ModelAggregator(with_server(small, server), "cpu")
    if not says:
        aggregator.rehearse(2)
    else:
        with pytest.raises(ScenarioError, match=re.escape(says)):
            aggregator.rehearse(2)


def test_everything_that_torch_s_own_optimizers_keep_is_restored(small, tmp_path: Path) -> None:
    """Bit for bit; with draws of torch, and with a state shared by all parameters."""
    kinds = {name: f"torch.optim.{name}" for name in ("Adam", "NAdam", "RAdam", "Adamax", "Rprop")}
    for name, made in kinds.items():
        (tmp_path / "own.py").write_text(f"import torch\noptimizer = {made}\n")
        both_agree(small, {"kind": "custom", "file": str(tmp_path / "own.py")}, name)
    shared = "self.state['all'] = self.state.get('all', 0) + 1; part.sub_(part.grad * self.state['all'] * torch.rand(2))"
    both_agree(small, own(tmp_path, shared), "draws")


def both_agree(small, server: dict, name: str) -> None:
    """One optimizer, and one that continues from its state after every round."""
    scenario = with_server(small, server, "training.server.schedule.warmup_rounds=3")
    one = optimizer_of(scenario, 2, torch.device("cpu"))
    expected, found = torch.zeros(2), torch.zeros(2)
    state: dict = {}
    for index, update in enumerate(UPDATES):
        one.apply(expected, torch.full((2,), update), index)
        torch.rand(3)  # others draw meanwhile
        next_one = optimizer_of(scenario, 2, torch.device("cpu"))
        next_one.load(state)
        next_one.apply(found, torch.full((2,), update), index)
        state = next_one.state()
        assert {array.dtype.kind for array in state.values()} <= set("biuf"), name
        assert torch.equal(found, expected), name
    assert expected.any(), name


def test_a_schedule_rises_follows_its_shape_and_falls() -> None:
    factor = [Schedule(warmup_rounds=4).factor(index, 10) for index in range(10)]
    assert factor == [0.25, 0.5, 0.75] + [1.0] * 7
    factor = [Schedule(cooldown_rounds=3).factor(index, 10) for index in range(10)]
    assert factor == [1.0] * 7 + [0.75, 0.5, 0.25]
    cosine = Schedule(shape="cosine", final=0.2)
    assert cosine.factor(0, 11) == pytest.approx(1.0)
    assert cosine.factor(5, 11) == pytest.approx(0.6)
    assert cosine.factor(10, 11) == pytest.approx(0.2)
    assert Schedule(shape="cosine", warmup_rounds=9).factor(0, 1) > 0
    assert Schedule().factor(3, 4) == 1.0


def test_the_schedule_scales_the_step(small) -> None:
    scenario = small(
        "training.enabled=true",
        "training.server.momentum=0.0",
        "training.server.schedule.warmup_rounds=2",
    )
    optimizer, parameters = optimizer_of(scenario, 1, torch.device("cpu")), torch.zeros(1)
    optimizer.apply(parameters, torch.ones(1), 0)
    assert parameters.item() == 0.5
    optimizer.apply(parameters, torch.ones(1), 1)
    assert parameters.item() == 1.5


def test_greedy_shares_hold_every_job_once_and_are_near_the_best() -> None:
    """Graham's bound: 4/3 of the best, which is at least the mean and the largest job."""
    rng = np.random.default_rng(0)
    for workers in (1, 2, 5):
        costs = rng.exponential(size=40).tolist()
        shares = greedy_shares(costs, workers)
        assert sorted(job for share in shares for job in share) == list(range(40))
        longest = max(sum(costs[job] for job in share) for share in shares)
        assert longest <= 4 / 3 * max(sum(costs) / workers, max(costs))
