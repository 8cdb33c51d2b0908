"""What devices spend over several tasks, against brute force over all devices."""

import math
from pathlib import Path

import numpy as np
import pytest

from fedray.audit.noise import released
from fedray.audit.several_tasks import audit_tasks
from fedray.base.rounding import up
from fedray.mechanisms.accounting.accountants import epsilon_of
from fedray.mechanisms.accounting.gdp import gaussian_epsilon
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.report.several_tasks import tasks_page
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario, SeveralTasks
from fedray.trace.evaluated import devices_of_rounds
from fedray.trace.several_tasks import TasksRun

ROUNDS = 12
SETTINGS = {
    "words": ("privacy.noise_multiplier=3.0",),
    "emoji": ('privacy.mechanism={kind="tree"}', "privacy.noise_multiplier=5.0"),
    "plain": ('privacy.mechanism={kind="identity"}', "privacy.delta=1e-9"),
}
DEVICES = 70_000
"""Two parts of a trace."""


def random_patterns(generator: np.random.Generator) -> list[list[int]]:
    """Of devices 0 .. 39, of which some take no part."""
    sizes = generator.integers(0, 5, 40)
    return [sorted(generator.choice(ROUNDS, size, replace=False).tolist()) for size in sizes]


def spent(scenario: Scenario, pattern: list[int]) -> float:
    """rho of a device, from the matrix of the mechanism."""
    matrix = scenario.privacy.mechanism.definition(ROUNDS)
    sensitivity = np.linalg.norm(matrix[:, pattern].sum(axis=1))
    return float(sensitivity / scenario.privacy.noise_multiplier) ** 2 / 2


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))]
)
def test_the_composition_is_that_of_brute_force(small, trace_of, seed: int) -> None:
    generator = np.random.default_rng(seed)
    traces, rhos, own = {}, np.zeros(DEVICES), {}
    for name, overrides in SETTINGS.items():
        scenario = small(f"population.devices={DEVICES}", *overrides)
        # Devices of the second part too: they take no part in the first task.
        few = random_patterns(generator)
        far = [] if name == "words" else random_patterns(generator)
        patterns = [*few, *([[]] * (DEVICES - len(few) - len(far))), *far]
        traces[name] = trace_of(patterns, ROUNDS, scenario)
        of_task = np.array([spent(scenario, each) if each else 0.0 for each in patterns])
        own[name] = of_task.max()
        rhos += of_task
    audit = audit_tasks(TasksRun(Path("run"), {"digest": ""}, traces))
    found = audit.composition
    took_part = np.sort(rhos[rhos > 0])
    assert found.is_exact
    assert found.rho == pytest.approx(rhos.max(), rel=1e-12)
    assert found.worst_device == int(rhos.argmax())
    assert found.epsilon == gaussian_epsilon(math.sqrt(2 * found.rho), 1e-10) or (
        found.epsilon == pytest.approx(gaussian_epsilon(math.sqrt(2 * rhos.max()), 1e-10), rel=1e-9)
    )
    assert found.delta == 1e-10
    assert found.devices == took_part.size
    assert sum(found.devices_by_tasks) == took_part.size
    assert found.bound_rho == pytest.approx(sum(own.values()), rel=1e-12)
    assert found.rho <= found.bound_rho
    assert dict(found.largest) == pytest.approx(own, rel=1e-12)
    assert found.mean_rho == pytest.approx(took_part.mean(), rel=1e-12)
    assert dict(found.quantiles)[0.5] == pytest.approx(took_part[math.ceil(took_part.size / 2) - 1])
    assert sum(each.rho for each in found.spent) == pytest.approx(found.rho, rel=1e-12)
    # These devices kept no rules, so that nothing is ensured.
    assert found.enforced_rho is None
    assert "over all tasks: unknown at delta 1e-10; task " in tasks_page(audit)


def test_enforced_limits_add_up(small, trace_of) -> None:
    """Nobody takes part twice, as a timer that outlasts the run ensures."""
    patterns = [[0], [1], [], [2]]
    traces = {name: trace_of(patterns, 3, small(*SETTINGS[name])) for name in ("words", "plain")}
    audit = audit_tasks(TasksRun(Path("run"), {"digest": ""}, traces), delta=1e-6)
    enforced = [each.mechanisms[0].enforced for each in audit.audits.values()]
    found = audit.composition
    assert found.enforced_rho == pytest.approx(sum(each.rho or 0.0 for each in enforced))
    assert found.enforced_epsilon == pytest.approx(
        gaussian_epsilon(math.hypot(*(each.mu or 0.0 for each in enforced)), 1e-6)
    )
    assert found.rho <= found.bound_rho <= found.enforced_rho
    assert found.delta == 1e-6
    assert f"over all tasks: {up(found.enforced_epsilon)} at delta 1e-06" in tasks_page(audit)


def test_a_task_that_released_nothing_costs_nothing(small, trace_of, tmp_path) -> None:
    traces = {"some": trace_of([[0], [1]], 2, small()), "none": trace_of([[], []], 0, small())}
    audit = audit_tasks(TasksRun(Path("run"), {"digest": ""}, traces))
    assert audit.without_rounds == ("none",)
    assert list(audit.audits) == ["some"]
    assert audit.composition.rho == audit.audits["some"].mechanisms[0].observed.rho


def test_a_task_that_ended_before_its_timer_says_so_on_the_page(small, trace_of) -> None:
    """Rounds are 100 s apart, so that three are over before a timer of an hour lets anybody come
    back."""
    scenario = small("participation.timer_hours=1")
    traces = {
        "short": trace_of([[0], [1], [2]], 3, scenario),
        "free": trace_of([[0], [1], [2]], 3, small("participation.timer_hours=0")),
    }
    page = tasks_page(audit_tasks(TasksRun(Path("run"), {"digest": ""}, traces)))
    assert "Task short: No device could take part twice" in page
    assert "Task free:" not in page


def test_the_worst_device_is_that_of_brute_force_with_noise_of_devices(tmp_path: Path) -> None:
    """Noise of devices is bounded by zCDP alone, so that a device with a smaller rho may have the
    larger epsilon. No device is in both tasks."""
    table = {"kind": "devices", "parameters": 4, "scale": 100}
    several = SeveralTasks.from_tables({
        "population": {"devices": 600},
        "participation": {"timer_hours": 500.0},
        "rounds": {"count": 3, "report_goal": 30, "max_days": 4.0},
        "training": {"cohort_sample": 10, "task": {"kind": "quadratic"}},
        "data": {"kind": "points", "dimension": 4},
        "privacy": {"mechanism": {"kind": "identity"}, "delta": 1e-6},
        "tasks": {
            "server": {
                "privacy": {"noise_multiplier": 4.0},
                "participation": {"members": [0.0, 0.5]},
            },
            "devices": {
                "privacy": {"noise_multiplier": 4.05, "trust": table},
                "participation": {"members": [0.5, 1.0]},
            },
        },
    })  # fmt: skip
    run = simulate(several, Placement(1, "in-process"), tmp_path / "run")
    audit = audit_tasks(run)
    own = {}
    for name, trace in run.traces.items():
        noise = audit.audits[name].mechanisms[0].noise
        for device in np.concatenate(devices_of_rounds(trace)).tolist():
            own.setdefault(device, []).append(released(noise, 1.0, 1))
    rhos = {device: sum(map(rho_of, events)) for device, events in own.items()}
    epsilons = {device: epsilon_of(*events, 1e-6).epsilon for device, events in own.items()}
    found = audit.composition
    assert found.epsilon == max(epsilons.values())
    assert epsilons[found.worst_device] == found.epsilon
    # The device with the largest epsilon does not have the largest rho.
    assert found.rho == rhos[found.worst_device] < max(rhos.values())
    assert dict(found.quantiles)[1.0] == max(rhos.values())
