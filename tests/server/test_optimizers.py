"""Server optimisers against their recurrences written out with scalars, and schedules."""

import math

import numpy as np
import pytest
import torch

from fedray.scenario.training import Schedule
from fedray.server.learning.optimizers import optimizer_of
from fedray.server.learning.training import greedy_shares

UPDATES = [0.5, -0.25, 0.125, 0.0, -1.0]


def by_hand(server: dict, updates: list[float]) -> list[float]:
    """Parameters after every step, from 0: McMahan, Hsu, Reddi et al. with plain floats."""
    w = m = v = velocity = 0.0
    path = []
    for update in updates:
        if server["kind"] == "sgd":
            velocity = server["momentum"] * velocity + update
            step = velocity
            if server.get("nesterov"):
                step = server["momentum"] * velocity + update
            w += server["learning_rate"] * step
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


SERVERS = [
    {"kind": "sgd", "momentum": 0.0, "learning_rate": 0.5},
    {"kind": "sgd", "momentum": 0.9, "learning_rate": 1.0},
    {"kind": "sgd", "momentum": 0.9, "learning_rate": 1.0, "nesterov": True},
    {"kind": "adagrad", "learning_rate": 0.1},
    {"kind": "adam", "learning_rate": 0.1},
    {"kind": "yogi", "learning_rate": 0.1},
]
"""`training.server`; `by_hand` has the recurrence of each kind."""


@pytest.mark.parametrize(
    "server", SERVERS, ids=lambda table: " ".join(str(value) for value in table.values())
)
def test_steps_are_those_of_the_papers_and_go_on_from_a_state(small, server: dict) -> None:
    keys = [f"training.server.{name}={value}".lower() for name, value in server.items()]
    scenario = small("training.enabled=true", *keys)
    one, other = (optimizer_of(scenario, 2, torch.device("cpu")) for _ in range(2))
    parameters = torch.zeros(2)
    for index, (update, expected) in enumerate(zip(UPDATES, by_hand(server, UPDATES), strict=True)):
        if index == 3:
            other.load(one.state())
            one = other
        one.apply(parameters, torch.full((2,), update), index)
        assert parameters.tolist() == pytest.approx([expected] * 2, rel=1e-5, abs=1e-7)


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
