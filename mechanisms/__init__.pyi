"""Public strategies, and errors of their mathematics."""

from fedray.mechanisms.accounting.draws import *
from fedray.mechanisms.accounting.events import EventRefused as EventRefused
from fedray.mechanisms.loss import Purpose as Purpose
from fedray.mechanisms.questions.registry import *
from fedray.mechanisms.registry import *
from fedray.mechanisms.strategy import SensitivityUnknown as SensitivityUnknown
from fedray.mechanisms.workload import Workload as Workload
