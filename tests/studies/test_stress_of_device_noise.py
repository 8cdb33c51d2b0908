"""A stress test and a plan of noise that devices add have the figures of the audit of such a run."""

import numpy as np
import pytest

from fedray.audit.auditing import audit_trace
from fedray.mechanisms.loss import errors
from fedray.mechanisms.optimize.design import MechanismRequest, made_mechanism
from fedray.mechanisms.participation import MinSep
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.scenario.literals import literal
from fedray.studies.plan import PlanTarget, make_plan, planned_scenario
from fedray.studies.stress.run import stress

HERE = Placement(1, "in-process")
KINDS = ("identity", "banded-toeplitz", "band-fhu", "blt", "bisr")


def scenario_of(seed: int) -> Scenario:
    rng = np.random.default_rng(seed)
    trust = {
        "kind": "devices",
        "parameters": int(rng.integers(10, 5000)),
        "coefficients": int(rng.integers(2, 12)),
        # Coarse steps make tau count.
        "scale": int(rng.choice([16, 64, 4096])),
    }
    return Scenario.from_tables(
        {
            "name": "random",
            "seed": seed,
            "population": {"devices": 600},
            "rounds": {"count": int(rng.integers(12, 40)), "report_goal": 20, "max_days": 90.0},
            "participation": {
                "timer_hours": 0.0,
                "round_separation": int(rng.integers(2, 9)),
                "max_participations": int(rng.integers(2, 5)),
            },
            "privacy": {"trust": trust, "mechanism": {"kind": "identity"}},
            "training": {"enabled": False},
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_a_stress_test_has_the_figures_of_the_audit(seed: int, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    scenario, kind = scenario_of(seed), KINDS[seed % len(KINDS)]
    result = stress(
        scenario, estimated=[4], mechanisms=["tree", kind], seeds=1, epsilon=5.0, placement=HERE
    )
    assert list(result.left_out or ()) == ["tree"]
    assert "tree" in result.verdict
    (row,) = (each for each in result.rows if each.estimated_min_sep == 4)
    limits = MinSep(row.rounds, 4, row.estimated_participations)
    design = made_mechanism(MechanismRequest(kind, limits), tmp_path / "designs")
    run = scenario.with_overrides(
        f"privacy.mechanism={literal(design)}", f"privacy.noise_multiplier={row.noise_multiplier!r}"
    )
    trace = simulate(run, HERE, tmp_path / "run")
    audit = audit_trace(trace)
    (audited,) = audit.mechanisms
    assert audited.enforced.epsilon == pytest.approx(row.epsilon, rel=1e-12)
    assert audited.observed.epsilon == pytest.approx(row.observed_epsilon, rel=1e-12)
    assert row.rms_error is not None
    assert row.noise_multiplier is not None
    _, error = errors(audited.strategy, row.rounds)
    assert row.rms_error == pytest.approx(row.noise_multiplier * error, rel=1e-12)


@pytest.mark.slow
def test_the_verdict_of_a_plan_is_that_of_the_audit_of_its_run(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    scenario = scenario_of(3).with_overrides(
        "privacy.trust={kind='devices', parameters=1000, coefficients=24}",
        "participation.round_separation=0",
        "population.devices=1000",
    )
    plan = make_plan(scenario, PlanTarget(8.0, 1e-10, 0.1), [24.0], 2, 0.5, HERE)
    best = plan.best
    assert best is not None
    planned, _ = planned_scenario(plan.scenario, best)
    audit = audit_trace(simulate(planned, HERE, tmp_path / "run"))
    (audited,) = audit.mechanisms
    assert audited.enforced.epsilon == pytest.approx(best.epsilon, rel=1e-12)
