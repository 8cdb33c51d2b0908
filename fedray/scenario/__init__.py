"""Scenario: everything that may change a result, as a frozen value.

Each table of the file has a module here; each key is a field, with its unit in its name or in its
description. `fedray schema` prints the same as a JSON schema. What may only change the wall clock
is in `fedray.placement`.
"""

from fedray.scenario.clipping import AdaptiveClipping, FixedClipping, PerLayerClipping
from fedray.scenario.data import LanguageData
from fedray.scenario.latency import Latency
from fedray.scenario.participation import Participation
from fedray.scenario.population import Population, TimeZone
from fedray.scenario.privacy import Privacy, StopAt
from fedray.scenario.rounds import Outage, Rounds
from fedray.scenario.scenario import FILE_KEYS, NAME_PATTERN, TRAINED_TABLES, Scenario
from fedray.scenario.shipped import shipped_scenarios
from fedray.scenario.tasks import (
    CustomTask,
    ImageCnnTask,
    KeyboardLstmTask,
    LogisticTask,
    MlpTask,
    NextWordTask,
    QuadraticTask,
    TransformerLmTask,
)
from fedray.scenario.training import (
    FedAvg,
    FedProx,
    FedSGD,
    InitialModel,
    Schedule,
    ServerAdagrad,
    ServerAdam,
    ServerSGD,
    ServerYogi,
    Training,
)

__all__ = [
    "FILE_KEYS",
    "NAME_PATTERN",
    "TRAINED_TABLES",
    "AdaptiveClipping",
    "CustomTask",
    "FedAvg",
    "FedProx",
    "FedSGD",
    "FixedClipping",
    "ImageCnnTask",
    "InitialModel",
    "KeyboardLstmTask",
    "LanguageData",
    "Latency",
    "LogisticTask",
    "MlpTask",
    "NextWordTask",
    "Outage",
    "Participation",
    "PerLayerClipping",
    "Population",
    "Privacy",
    "QuadraticTask",
    "Rounds",
    "Scenario",
    "Schedule",
    "ServerAdagrad",
    "ServerAdam",
    "ServerSGD",
    "ServerYogi",
    "StopAt",
    "TimeZone",
    "Training",
    "TransformerLmTask",
    "shipped_scenarios",
]
