"""Gauges among the metrics of a cluster, which Ray exports to Prometheus as `ray_` and their name.

The driver sets the gauges of a run, and a worker's process the gauges of its object.
deploy/grafana.json is a dashboard of all of them.
"""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

RUN = "fedray_run"
OF_A_RUN = {
    "round": "Committed rounds",
    "rounds": "Rounds wanted",
    "simulated_seconds": "Simulated time since the start of the run, seconds",
    "eligible": "Eligible devices at the start of the present look-ahead window, estimated",
    "trained_round": "Rounds that the model was trained on",
    "train_loss": "Training loss of the last round",
    "epsilon": "Upper bound on the privacy spent, which the line of progress shows",
    "restarts": "Restarts of workers that died or did not answer",
    "waiting_cpus": "CPUs that the run waits for",
}
"""Descriptions of a run's gauges, by name."""
SECONDS_KEPT = 5.0
"""Seconds between repetitions of a gauge; Ray forgets one that is not set for some export
intervals, of ten seconds by default."""


class Gauges:
    """Gauges of one run or worker; each is made when it is first set.

    Args:
        prefix: beginning of their names.
        tags: their labels.
    """

    def __init__(self, prefix: str, tags: Mapping[str, str]) -> None:
        self._prefix, self._tags = prefix, dict(tags)
        self._made: dict[str, tuple[Any, float]] = {}

    def show(self, values: Mapping[str, tuple[str, float]]) -> None:
        """Sets gauges to descriptions and values by name."""
        for name, (description, value) in values.items():
            if name in self._made:
                gauge = self._made[name][0]
            else:
                from ray.util.metrics import Gauge

                gauge = Gauge(f"{self._prefix}_{name}", description, tuple(self._tags))
                gauge.set_default_tags(self._tags)
            gauge.set(float(value))
            self._made[name] = gauge, float(value)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Within: Ray does not forget the gauges."""
        is_over = threading.Event()

        def repeat() -> None:
            while not is_over.wait(SECONDS_KEPT):
                for gauge, value in list(self._made.values()):
                    gauge.set(value)

        thread = threading.Thread(target=repeat, name="gauges", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
