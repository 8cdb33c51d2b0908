"""A privacy odometer for a pfl-research training: users at their budget contribute zeros.

    odometer = fedray.Odometer("blt.json", 100, noise_multiplier=7.0, delta=1e-8, epsilon=6.0)
    SimulatedBackend(..., postprocessors=[Metered(odometer), mechanism])

For one process: each of several would count only its own users.
"""

from pfl.metrics import Metrics
from pfl.postprocessor.base import Postprocessor


class Metered(Postprocessor):
    """Replaces contributions beyond the budget, and second ones in an iteration, by zeros, and
    counts the others. The datasets must have a `user_id`."""

    def __init__(self, odometer):
        self.odometer, self._users = odometer, set()

    def postprocess_one_user(self, *, stats, user_context):
        user = user_context.user_id
        if user is None:
            raise ValueError("a user has no user_id; give it to the user's Dataset")
        if user in self._users or self.odometer.would_exceed(self.odometer.rounds, [user]):
            return stats.apply_elementwise(lambda each: 0 * each), Metrics()
        self._users.add(user)
        return stats, Metrics()

    def postprocess_server(self, *, stats, central_context, aggregate_metrics):
        self.odometer.add(self.odometer.rounds, self._users)
        self._users.clear()
        return stats, Metrics()
