"""A log of who took part in which iteration of a pfl-research training, for `fedray import`.

    SimulatedBackend(..., postprocessors=[ParticipationLog("log.csv"), mechanism])

Copy this file: it needs pfl-research alone. Of several processes each writes a log of its own, into
one folder that is imported as a whole.
"""

import csv
import time

from pfl.metrics import Metrics
from pfl.postprocessor.base import Postprocessor


class ParticipationLog(Postprocessor):
    """Writes device, iteration and time of every user whose statistics were aggregated. The
    datasets must have a `user_id`, and `path` must be new."""

    def __init__(self, path):
        self._path, self._users = path, []
        with open(path, "x", newline="") as file:
            csv.writer(file).writerow(["device", "round", "time"])

    def postprocess_one_user(self, *, stats, user_context):
        if user_context.user_id is None:
            raise ValueError("a user has no user_id; give it to the user's Dataset")
        self._users.append(user_context.user_id)
        return stats, Metrics()

    def postprocess_server(self, *, stats, central_context, aggregate_metrics):
        with open(self._path, "a", newline="") as file:
            for user in self._users:
                iteration = central_context.current_central_iteration
                csv.writer(file).writerow([user, iteration, time.time()])
        self._users.clear()
        return stats, Metrics()
