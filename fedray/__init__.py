"""fedray: simulate private cross-device federated learning on Ray, and audit what really happened.

    import fedray

    trace = fedray.run_scenario(fedray.Scenario.from_toml("scenarios/quickstart.toml"))
    print(fedray.audit_trace(trace))

Names are loaded when first used, so that importing fedray loads neither Ray nor torch nor jax.

Everything that these functions take or return is here too: scenarios are built from their tables
(`Scenario(population=Population(devices=1000), rounds=Rounds(count=20, report_goal=50))`), noise
mechanisms are strategies such as `BLT` and `Tree`. Paths may be strings. What is refused is a
`FedrayError`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedray.audit.audit import Audit, audit_trace
    from fedray.audit.claims import Claim, read_claim
    from fedray.audit.guarantees import Guarantee
    from fedray.audit.released import ReleasedEvent, read_events
    from fedray.audit.statement import Statement, privacy_statement
    from fedray.encoding.tables import DiscreteGaussian, FixedPoint, SecAgg
    from fedray.errors import (
        AggregatorLost,
        CheckpointError,
        FedrayError,
        FitFailed,
        InputError,
        OptimizationFailed,
        RunFailed,
        ScenarioError,
        ShardLost,
        Starved,
        TraceCorrupt,
        TraceError,
        TraceVersion,
        TrainerLost,
    )
    from fedray.learning import train
    from fedray.messages import DataProgress, RunProgress, TrainingEstimate, TrainingProgress
    from fedray.pipeline import resume_run, run_scenario
    from fedray.placement import Placement
    from fedray.pretraining import Pretrained, pretrain
    from fedray.report.files import write_figures
    from fedray.report.page import write_report
    from fedray.report.trained_page import write_training_report
    from fedray.scenario import (
        AdaptiveClipping,
        CustomTask,
        FedAvg,
        FedProx,
        FedSGD,
        FixedClipping,
        ImageCnnTask,
        InitialModel,
        KeyboardLstmTask,
        LanguageData,
        Latency,
        LogisticTask,
        MlpTask,
        NextWordTask,
        Outage,
        Participation,
        PerLayerClipping,
        Population,
        Privacy,
        QuadraticTask,
        Rounds,
        Scenario,
        Schedule,
        ServerAdagrad,
        ServerAdam,
        ServerSGD,
        ServerYogi,
        StopAt,
        TimeZone,
        Training,
        TransformerLmTask,
    )
    from fedray.scenario.availability import (
        AlwaysOn,
        CustomAvailability,
        HabitAvailability,
        PoissonAvailability,
        ReplayAvailability,
    )
    from fedray.scenario.data import (
        ClassesData,
        CustomData,
        LeafData,
        ParquetData,
        PflHdf5Data,
        PointsData,
        SourceCodeData,
        TffSqliteData,
    )
    from fedray.scenario.participation import (
        DataAvailablePolicy,
        MinSepPolicy,
        TimerPolicy,
        WithoutReplacementPolicy,
    )
    from fedray.scenario.pretraining import Pretraining
    from fedray.scenario.rounds import AtLeastClosing, GoalClosing
    from fedray.scenario.uploads import CyclicSchedule, PoissonSchedule, Uploads
    from fedray.scenario.weighting import ClippedDenominator, FixedDenominator, MeanWeighting
    from fedray.simulation import resume, simulate
    from fedray.studies.canary import Aggregates, CanaryResult, run_canary
    from fedray.studies.compare import Comparison, compare_runs
    from fedray.studies.fit import Fit, FittedRun, fit_min_sep
    from fedray.studies.learning_curves import LearningCurves, study_learning
    from fedray.studies.on_devices import OnDevices, evaluate_on_devices
    from fedray.studies.plan import Plan, PlanTarget, make_plan
    from fedray.studies.sweep.run import SweepResult, run_sweep
    from fedray.studies.sweep.sweep import Estimate, MechanismSpec, Sweep
    from fedray.trace.imported import ImportedTrace, open_trace
    from fedray.trace.importer import import_log
    from fedray.trace.reader import Trace
    from fedray.trace.trained import TrainedRun
    from mechanisms.accounting.events import Event, EventRefused
    from mechanisms.accounting.sampled import PoissonSampling
    from mechanisms.comparison import Utility, utility
    from mechanisms.figures import Figures, calibrated_figures, mechanism_figures
    from mechanisms.files import read_strategy, write_strategy
    from mechanisms.optimize.design import MechanismRequest, optimize_mechanism
    from mechanisms.optimize.objective import Target
    from mechanisms.participation import MinSep
    from mechanisms.registry import (
        BISR,
        BLT,
        Banded,
        BandFHU,
        Dense,
        Identity,
        Matrix,
        Restarted,
        Toeplitz,
        Tree,
        TreeFull,
    )
    from mechanisms.strategy import SensitivityUnknown, Strategy

__version__ = "0.1.0"

_NAMES = {
    "fedray.audit.audit": "Audit audit_trace",
    "fedray.audit.claims": "Claim read_claim",
    "fedray.audit.guarantees": "Guarantee",
    "fedray.audit.released": "ReleasedEvent read_events",
    "fedray.audit.statement": "Statement privacy_statement",
    "fedray.scenario.availability": (
        "AlwaysOn CustomAvailability HabitAvailability PoissonAvailability ReplayAvailability"
    ),
    "fedray.scenario.data": (
        "ClassesData CustomData LeafData ParquetData PflHdf5Data PointsData "
        "SourceCodeData TffSqliteData"
    ),
    "fedray.studies.canary": "Aggregates CanaryResult run_canary",
    "fedray.studies.compare": "Comparison compare_runs",
    "fedray.errors": (
        "AggregatorLost CheckpointError FedrayError FitFailed InputError OptimizationFailed "
        "RunFailed ScenarioError ShardLost Starved TraceCorrupt TraceError "
        "TraceVersion TrainerLost"
    ),
    "fedray.studies.fit": "Fit FittedRun fit_min_sep",
    "fedray.studies.learning_curves": "LearningCurves study_learning",
    "fedray.encoding.tables": "DiscreteGaussian FixedPoint SecAgg",
    "fedray.learning": "train",
    "fedray.messages": "DataProgress RunProgress TrainingEstimate TrainingProgress",
    "fedray.pipeline": "resume_run run_scenario",
    "fedray.placement": "Placement",
    "fedray.pretraining": "Pretrained pretrain",
    "fedray.report.files": "write_figures",
    "fedray.report.page": "write_report",
    "fedray.report.trained_page": "write_training_report",
    "fedray.scenario": (
        "AdaptiveClipping CustomTask FedAvg FedProx FedSGD FixedClipping ImageCnnTask "
        "InitialModel KeyboardLstmTask LanguageData Latency LogisticTask MlpTask NextWordTask "
        "Outage Participation PerLayerClipping Population "
        "Privacy QuadraticTask Rounds Scenario Schedule ServerAdagrad ServerAdam ServerSGD "
        "ServerYogi StopAt TimeZone Training TransformerLmTask"
    ),
    "fedray.scenario.pretraining": "Pretraining",
    "fedray.scenario.participation": (
        "DataAvailablePolicy MinSepPolicy TimerPolicy WithoutReplacementPolicy"
    ),
    "fedray.scenario.rounds": "AtLeastClosing GoalClosing",
    "fedray.scenario.uploads": "CyclicSchedule PoissonSchedule Uploads",
    "fedray.scenario.weighting": "ClippedDenominator FixedDenominator MeanWeighting",
    "fedray.simulation": "resume simulate",
    "fedray.studies.on_devices": "OnDevices evaluate_on_devices",
    "fedray.studies.plan": "Plan PlanTarget make_plan",
    "fedray.studies.sweep.run": "SweepResult run_sweep",
    "fedray.studies.sweep.sweep": "Estimate MechanismSpec Sweep",
    "fedray.trace.imported": "ImportedTrace open_trace",
    "fedray.trace.importer": "import_log",
    "fedray.trace.reader": "Trace",
    "fedray.trace.trained": "TrainedRun",
    "mechanisms.accounting.events": "Event EventRefused",
    "mechanisms.accounting.sampled": "PoissonSampling",
    "mechanisms.comparison": "Utility utility",
    "mechanisms.figures": "Figures calibrated_figures mechanism_figures",
    "mechanisms.files": "read_strategy write_strategy",
    "mechanisms.optimize.design": "MechanismRequest optimize_mechanism",
    "mechanisms.optimize.objective": "Target",
    "mechanisms.participation": "MinSep",
    "mechanisms.registry": (
        "BISR BLT BandFHU Banded Dense Identity Matrix Restarted Toeplitz Tree TreeFull"
    ),
    "mechanisms.strategy": "SensitivityUnknown Strategy",
}
"""The names that each module gives."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "BISR",
    "BLT",
    "AdaptiveClipping",
    "Aggregates",
    "AggregatorLost",
    "AlwaysOn",
    "AtLeastClosing",
    "Audit",
    "BandFHU",
    "Banded",
    "CanaryResult",
    "CheckpointError",
    "Claim",
    "ClassesData",
    "ClippedDenominator",
    "Comparison",
    "CustomAvailability",
    "CustomData",
    "CustomTask",
    "CyclicSchedule",
    "DataAvailablePolicy",
    "DataProgress",
    "Dense",
    "DiscreteGaussian",
    "Estimate",
    "Event",
    "EventRefused",
    "FedAvg",
    "FedProx",
    "FedSGD",
    "FedrayError",
    "Figures",
    "Fit",
    "FitFailed",
    "FittedRun",
    "FixedClipping",
    "FixedDenominator",
    "FixedPoint",
    "GoalClosing",
    "Guarantee",
    "HabitAvailability",
    "Identity",
    "ImageCnnTask",
    "ImportedTrace",
    "InitialModel",
    "InputError",
    "KeyboardLstmTask",
    "LanguageData",
    "Latency",
    "LeafData",
    "LearningCurves",
    "LogisticTask",
    "Matrix",
    "MeanWeighting",
    "MechanismRequest",
    "MechanismSpec",
    "MinSep",
    "MinSepPolicy",
    "MlpTask",
    "NextWordTask",
    "OnDevices",
    "OptimizationFailed",
    "Outage",
    "ParquetData",
    "Participation",
    "PerLayerClipping",
    "PflHdf5Data",
    "Placement",
    "Plan",
    "PlanTarget",
    "PointsData",
    "PoissonAvailability",
    "PoissonSampling",
    "PoissonSchedule",
    "Population",
    "Pretrained",
    "Pretraining",
    "Privacy",
    "QuadraticTask",
    "ReleasedEvent",
    "ReplayAvailability",
    "Restarted",
    "Rounds",
    "RunFailed",
    "RunProgress",
    "Scenario",
    "ScenarioError",
    "Schedule",
    "SecAgg",
    "SensitivityUnknown",
    "ServerAdagrad",
    "ServerAdam",
    "ServerSGD",
    "ServerYogi",
    "ShardLost",
    "SourceCodeData",
    "Starved",
    "Statement",
    "StopAt",
    "Strategy",
    "Sweep",
    "SweepResult",
    "Target",
    "TffSqliteData",
    "TimeZone",
    "TimerPolicy",
    "Toeplitz",
    "Trace",
    "TraceCorrupt",
    "TraceError",
    "TraceVersion",
    "TrainedRun",
    "TrainerLost",
    "Training",
    "TrainingEstimate",
    "TrainingProgress",
    "TransformerLmTask",
    "Tree",
    "TreeFull",
    "Uploads",
    "Utility",
    "WithoutReplacementPolicy",
    "audit_trace",
    "calibrated_figures",
    "compare_runs",
    "evaluate_on_devices",
    "fit_min_sep",
    "import_log",
    "make_plan",
    "mechanism_figures",
    "open_trace",
    "optimize_mechanism",
    "pretrain",
    "privacy_statement",
    "read_claim",
    "read_events",
    "read_strategy",
    "resume",
    "resume_run",
    "run_canary",
    "run_scenario",
    "run_sweep",
    "simulate",
    "study_learning",
    "train",
    "utility",
    "write_figures",
    "write_report",
    "write_strategy",
    "write_training_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(
            f"module 'fedray' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
