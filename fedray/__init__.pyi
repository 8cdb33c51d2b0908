"""What `fedray` offers, for type checkers and for `fedray/__init__.py`: a line a name; `*` is what
a module lists in `__all__`, where kinds are added."""

from fedray.audit.audit import Audit as Audit
from fedray.audit.audit import audit_trace as audit_trace
from fedray.audit.calibration import CalibratedGuarantee as CalibratedGuarantee
from fedray.audit.calibration import TraceCalibration as TraceCalibration
from fedray.audit.calibration import calibrate_trace as calibrate_trace
from fedray.audit.claims import Claim as Claim
from fedray.audit.claims import read_claim as read_claim
from fedray.audit.evidence import write_evidence as write_evidence
from fedray.audit.guarantees import Guarantee as Guarantee
from fedray.audit.released import ReleasedEvent as ReleasedEvent
from fedray.audit.released import read_events as read_events
from fedray.audit.several_tasks import TasksAudit as TasksAudit
from fedray.audit.several_tasks import audit_tasks as audit_tasks
from fedray.audit.statement import Statement as Statement
from fedray.audit.statement import privacy_statement as privacy_statement
from fedray.base.errors import AggregatorLost as AggregatorLost
from fedray.base.errors import CheckpointError as CheckpointError
from fedray.base.errors import FedrayError as FedrayError
from fedray.base.errors import FitFailed as FitFailed
from fedray.base.errors import InputError as InputError
from fedray.base.errors import MissingExtra as MissingExtra
from fedray.base.errors import OptimizationFailed as OptimizationFailed
from fedray.base.errors import RunFailed as RunFailed
from fedray.base.errors import ScenarioError as ScenarioError
from fedray.base.errors import ShardLost as ShardLost
from fedray.base.errors import Starved as Starved
from fedray.base.errors import TraceCorrupt as TraceCorrupt
from fedray.base.errors import TraceError as TraceError
from fedray.base.errors import TraceVersion as TraceVersion
from fedray.base.errors import TrainerLost as TrainerLost
from fedray.base.errors import Unsustainable as Unsustainable
from fedray.base.result import Drawing as Drawing
from fedray.encoding.tables import *
from fedray.imports.importer import import_log as import_log
from fedray.imports.log_records import RecordColumns as RecordColumns
from fedray.mechanisms.accounting.events import Event as Event
from fedray.mechanisms.accounting.events import EventRefused as EventRefused
from fedray.mechanisms.accounting.sampled import PoissonSampling as PoissonSampling
from fedray.mechanisms.comparison import Utility as Utility
from fedray.mechanisms.comparison import utility as utility
from fedray.mechanisms.figures import Figures as Figures
from fedray.mechanisms.figures import calibrated_figures as calibrated_figures
from fedray.mechanisms.figures import mechanism_figures as mechanism_figures
from fedray.mechanisms.files import read_strategy as read_strategy
from fedray.mechanisms.files import write_strategy as write_strategy
from fedray.mechanisms.optimize.design import MechanismRequest as MechanismRequest
from fedray.mechanisms.optimize.design import optimize_mechanism as optimize_mechanism
from fedray.mechanisms.optimize.objective import Target as Target
from fedray.mechanisms.participation import MinSep as MinSep
from fedray.mechanisms.registry import *
from fedray.mechanisms.strategy import SensitivityUnknown as SensitivityUnknown
from fedray.mechanisms.strategy import Strategy as Strategy
from fedray.noise import CorrelatedNoise as CorrelatedNoise
from fedray.report.files import write_figures as write_figures
from fedray.report.page import write_report as write_report
from fedray.report.progress import show_progress as show_progress
from fedray.report.several_tasks import write_tasks_report as write_tasks_report
from fedray.report.trained_page import write_training_report as write_training_report
from fedray.runs.learning import train as train
from fedray.runs.pipeline import resume_run as resume_run
from fedray.runs.pipeline import resume_tasks as resume_tasks
from fedray.runs.pipeline import run_scenario as run_scenario
from fedray.runs.pipeline import run_tasks as run_tasks
from fedray.runs.pretraining import Pretrained as Pretrained
from fedray.runs.pretraining import pretrain as pretrain
from fedray.runs.simulation import resume as resume
from fedray.runs.simulation import simulate as simulate
from fedray.runs.simulation import simulate_tasks as simulate_tasks
from fedray.runtime.cluster import run_jobs as run_jobs
from fedray.runtime.placement import Placement as Placement
from fedray.scenario.availability import *
from fedray.scenario.buffer import *
from fedray.scenario.clipping import *
from fedray.scenario.data import *
from fedray.scenario.latency import Latency as Latency
from fedray.scenario.participation import *
from fedray.scenario.population import Correlation as Correlation
from fedray.scenario.population import DeviceClass as DeviceClass
from fedray.scenario.population import Population as Population
from fedray.scenario.population import TimeZone as TimeZone
from fedray.scenario.pretraining import Pretraining as Pretraining
from fedray.scenario.privacy import NoNoise as NoNoise
from fedray.scenario.privacy import Privacy as Privacy
from fedray.scenario.privacy import StopAt as StopAt
from fedray.scenario.rounds import *
from fedray.scenario.scenario import Scenario as Scenario
from fedray.scenario.several_tasks import FederatedTask as FederatedTask
from fedray.scenario.several_tasks import SeveralTasks as SeveralTasks
from fedray.scenario.several_tasks import read_scenario as read_scenario
from fedray.scenario.tasks import *
from fedray.scenario.training import *
from fedray.scenario.uploads import *
from fedray.scenario.weighting import *
from fedray.studies.canary import Aggregates as Aggregates
from fedray.studies.canary import CanaryResult as CanaryResult
from fedray.studies.canary import Trains as Trains
from fedray.studies.canary import run_canary as run_canary
from fedray.studies.compare import Comparison as Comparison
from fedray.studies.compare import compare_runs as compare_runs
from fedray.studies.fit import Fit as Fit
from fedray.studies.fit import FittedRun as FittedRun
from fedray.studies.fit import fit_min_sep as fit_min_sep
from fedray.studies.habits.fit import HabitFit as HabitFit
from fedray.studies.habits.fit import fit_habits as fit_habits
from fedray.studies.habits.observed import ObservedLog as ObservedLog
from fedray.studies.habits.read import read_observed_log as read_observed_log
from fedray.studies.noise_tests import CanaryTest as CanaryTest
from fedray.studies.on_devices import OnDevices as OnDevices
from fedray.studies.on_devices import evaluate_on_devices as evaluate_on_devices
from fedray.studies.plan import Plan as Plan
from fedray.studies.plan import PlanTarget as PlanTarget
from fedray.studies.plan import make_plan as make_plan
from fedray.studies.sweep.run import SweepResult as SweepResult
from fedray.studies.sweep.run import run_sweep as run_sweep
from fedray.studies.sweep.sweep import Estimate as Estimate
from fedray.studies.sweep.sweep import MechanismSpec as MechanismSpec
from fedray.studies.sweep.sweep import Sweep as Sweep
from fedray.trace.imported import ImportedTrace as ImportedTrace
from fedray.trace.imported import open_trace as open_trace
from fedray.trace.reader import Trace as Trace
from fedray.trace.several_tasks import TasksRun as TasksRun
from fedray.trace.trained import TrainedRun as TrainedRun
from fedray.wire.messages import DataProgress as DataProgress
from fedray.wire.messages import RunProgress as RunProgress
from fedray.wire.messages import TrainingEstimate as TrainingEstimate
from fedray.wire.messages import TrainingProgress as TrainingProgress

__version__: str
