"""Public tables of a scenario: a module's `__all__` lists its tables where kinds are added."""

from fedray.encoding.tables import *
from fedray.scenario.analytics import *
from fedray.scenario.availability import *
from fedray.scenario.buffer import *
from fedray.scenario.clipping import *
from fedray.scenario.data import *
from fedray.scenario.latency import Latency as Latency
from fedray.scenario.participation import *
from fedray.scenario.population import DeviceClass as DeviceClass
from fedray.scenario.population import Owners as Owners
from fedray.scenario.population import Population as Population
from fedray.scenario.population import TimeZone as TimeZone
from fedray.scenario.privacy import NoNoise as NoNoise
from fedray.scenario.privacy import Privacy as Privacy
from fedray.scenario.privacy import StopAt as StopAt
from fedray.scenario.rounds import *
from fedray.scenario.scenario import Scenario as Scenario
from fedray.scenario.several_tasks import FederatedTask as FederatedTask
from fedray.scenario.several_tasks import SeveralTasks as SeveralTasks
from fedray.scenario.tasks import *
from fedray.scenario.training import *
from fedray.scenario.trust import *
from fedray.scenario.uploads import *
from fedray.scenario.weighting import *
