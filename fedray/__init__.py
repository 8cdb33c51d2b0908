"""fedray: simulate private cross-device federated learning on Ray, and audit what really happened.

    import fedray

    trace = fedray.run_scenario(fedray.Scenario.from_toml("scenarios/quickstart.toml"))
    print(fedray.audit_trace(trace))

Names are loaded when first used, so that importing fedray loads neither Ray nor torch nor jax.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedray.audit.audit import Audit, audit_trace
    from fedray.audit.claims import Claim, read_claim
    from fedray.audit.guarantees import Guarantee
    from fedray.audit.statement import privacy_statement
    from fedray.canary import run_canary
    from fedray.errors import (
        CheckpointError,
        FedrayError,
        InputError,
        RunFailed,
        ScenarioError,
        Starved,
        TraceCorrupt,
        TraceError,
    )
    from fedray.fit import fit_min_sep
    from fedray.learning import train
    from fedray.messages import RunProgress, TrainingProgress
    from fedray.pipeline import resume_run, run_scenario
    from fedray.placement import Placement
    from fedray.report.files import write_figures
    from fedray.report.page import write_report
    from fedray.scenario import Scenario
    from fedray.simulation import resume, simulate
    from fedray.stress.plan import make_plan
    from fedray.stress.run import run_sweep
    from fedray.trace.imported import open_trace
    from fedray.trace.importer import import_log
    from fedray.trace.reader import Trace
    from fedray.trace.trained import TrainedRun
    from mechanisms.accounting.sampled import PoissonSampling
    from mechanisms.comparison import Utility, utility
    from mechanisms.figures import calibrated_figures, mechanism_figures
    from mechanisms.files import read_strategy, write_strategy
    from mechanisms.optimize.design import MechanismRequest, optimize_mechanism
    from mechanisms.participation import MinSep

__version__ = "0.1.0"

_HOMES = {
    "Audit": "fedray.audit.audit",
    "CheckpointError": "fedray.errors",
    "Claim": "fedray.audit.claims",
    "FedrayError": "fedray.errors",
    "Guarantee": "fedray.audit.guarantees",
    "InputError": "fedray.errors",
    "MechanismRequest": "mechanisms.optimize.design",
    "MinSep": "mechanisms.participation",
    "Placement": "fedray.placement",
    "PoissonSampling": "mechanisms.accounting.sampled",
    "RunFailed": "fedray.errors",
    "RunProgress": "fedray.messages",
    "Scenario": "fedray.scenario",
    "ScenarioError": "fedray.errors",
    "Starved": "fedray.errors",
    "Trace": "fedray.trace.reader",
    "TraceCorrupt": "fedray.errors",
    "TraceError": "fedray.errors",
    "TrainedRun": "fedray.trace.trained",
    "TrainingProgress": "fedray.messages",
    "Utility": "mechanisms.comparison",
    "audit_trace": "fedray.audit.audit",
    "calibrated_figures": "mechanisms.figures",
    "fit_min_sep": "fedray.fit",
    "import_log": "fedray.trace.importer",
    "make_plan": "fedray.stress.plan",
    "mechanism_figures": "mechanisms.figures",
    "open_trace": "fedray.trace.imported",
    "optimize_mechanism": "mechanisms.optimize.design",
    "privacy_statement": "fedray.audit.statement",
    "read_claim": "fedray.audit.claims",
    "read_strategy": "mechanisms.files",
    "resume": "fedray.simulation",
    "resume_run": "fedray.pipeline",
    "run_canary": "fedray.canary",
    "run_scenario": "fedray.pipeline",
    "run_sweep": "fedray.stress.run",
    "simulate": "fedray.simulation",
    "train": "fedray.learning",
    "utility": "mechanisms.comparison",
    "write_figures": "fedray.report.files",
    "write_report": "fedray.report.page",
    "write_strategy": "mechanisms.files",
}

__all__ = [
    "Audit",
    "CheckpointError",
    "Claim",
    "FedrayError",
    "Guarantee",
    "InputError",
    "MechanismRequest",
    "MinSep",
    "Placement",
    "PoissonSampling",
    "RunFailed",
    "RunProgress",
    "Scenario",
    "ScenarioError",
    "Starved",
    "Trace",
    "TraceCorrupt",
    "TraceError",
    "TrainedRun",
    "TrainingProgress",
    "Utility",
    "audit_trace",
    "calibrated_figures",
    "fit_min_sep",
    "import_log",
    "make_plan",
    "mechanism_figures",
    "open_trace",
    "optimize_mechanism",
    "privacy_statement",
    "read_claim",
    "read_strategy",
    "resume",
    "resume_run",
    "run_canary",
    "run_scenario",
    "run_sweep",
    "simulate",
    "train",
    "utility",
    "write_figures",
    "write_report",
    "write_strategy",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(
            f"module 'fedray' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
