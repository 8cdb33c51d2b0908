"""Studies that count only noise of a server, or make a BLT, refuse noise that devices cannot add."""

from typing import Any

import pytest

from fedray.base.errors import InputError
from fedray.studies.plan import PlanTarget, make_plan
from fedray.studies.stress.run import stress
from fedray.studies.sweep.run import run_sweep
from fedray.studies.sweep.sweep import MechanismSpec, Sweep

TRUSTS = {
    "devices": "{kind='toeplitz', coefficients=[1.0, 0.5]}",
    "local": "{kind='identity'}",
}


@pytest.mark.parametrize("kind", TRUSTS)
def test_studies_of_mechanisms_refuse_noise_of_devices(small, kind: str) -> None:
    scenario = small(
        f"privacy.mechanism={TRUSTS[kind]}",
        f"privacy.trust={{kind='{kind}', parameters=1000}}",
        "training.enabled=false",
    )
    sweep = Sweep(
        name="goals",
        scenario="small.toml",
        vary={"rounds.report_goal": (50, 100)},
        mechanisms=(MechanismSpec(kind="identity"),),
        x="rounds.report_goal",
    )
    calls: dict[str, Any] = {
        # Without trust.coefficients a BLT has no last one.
        r"mechanism\.kind='blt'": lambda: make_plan(scenario, PlanTarget(5.0, 1e-10, 0.01), [24.0]),
        "mechanisms='tree'": lambda: stress(scenario, mechanisms=["tree"]),
        rf"privacy\.trust\.kind='{kind}'": lambda: run_sweep(sweep, scenario),
    }
    for said, call in calls.items():
        with pytest.raises(InputError, match=said) as caught:
            call()
        assert "\n" not in str(caught.value)
