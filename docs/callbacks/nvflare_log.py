"""A log of who took part in which round of an NVFlare training, for `fedray import`.

    job.to_server(ParticipationLog("/data/log.csv"), id="participation_log")

Copy this file into the job: it needs NVFlare alone. Workflows that tell of contributions (FedAvg,
ScatterAndGather and what derives from them) write a row for each that was accepted.
"""

import csv
import time

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType


class ParticipationLog(FLComponent):
    """Writes device, round and time of every contribution that was aggregated. `path` must be new,
    and is one of the server's."""

    def __init__(self, path):
        super().__init__()
        # NVFlare writes a job by the attributes that are named as the arguments.
        self.path, self._accepted = path, []

    def handle_event(self, event_type, fl_ctx):
        if event_type == EventType.START_RUN:
            with open(self.path, "x", newline="") as file:
                csv.writer(file).writerow(["device", "round", "time"])
        elif event_type == AppEventType.AFTER_CONTRIBUTION_ACCEPT:
            if fl_ctx.get_prop(AppConstants.AGGREGATION_ACCEPTED):
                device = fl_ctx.get_peer_context().get_identity_name()
                round_number = fl_ctx.get_prop(AppConstants.CURRENT_ROUND)
                self._accepted.append([device, round_number, time.time()])
        elif event_type == AppEventType.AFTER_AGGREGATION:
            with open(self.path, "a", newline="") as file:
                csv.writer(file).writerows(self._accepted)
            self._accepted.clear()
