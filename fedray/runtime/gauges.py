"""Gauges among the metrics of a cluster, which Ray exports to Prometheus as `ray_` and their name.

The driver sets the gauges of a run, and a worker's process the gauges of its object. Gauges of a
claim are a file for the textfile collector of Prometheus' node_exporter. deploy/grafana.json is a
dashboard of all of them.
"""

import contextlib
import re
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
CLAIM = "fedray_claim"
OF_A_CLAIM = {
    "round": "Released rounds",
    "rounds": "Planned rounds",
    "state": "State of the claim: 0 kept, 1 in danger, 2 lost",
    "judged_seconds": "Time of the judgement, seconds since 1970",
    "spent_epsilon": "Epsilon of the released rounds",
    "forward_epsilon": "Largest epsilon that a device can reach by the last planned round",
    "claimed_epsilon": "Claimed epsilon",
    "spent_rho": "rho of the released rounds",
    "forward_rho": "Largest rho that a device can reach by the last planned round",
    "claimed_rho": "Claimed rho",
    "spent_min_sep": "Least difference between two rounds of a device so far",
    "forward_min_sep": "Least difference between two rounds of a device by the last planned round",
    "claimed_min_sep": "Claimed min-sep",
    "spent_max_participations": "Most participations of a device so far",
    "forward_max_participations": "Most participations of a device by the last planned round",
    "claimed_max_participations": "Claimed largest number of participations",
}
"""Descriptions of a claim's gauges, by name."""
SECONDS_KEPT = 5.0
"""Seconds between repetitions of a gauge; Ray forgets one that is not set for some export
intervals, of ten seconds by default."""


def exposition(
    prefix: str, tags: Mapping[str, str], described: Mapping[str, str], values: Mapping[str, float]
) -> str:
    """Returns gauges in the text format of Prometheus, in the order of their descriptions.

    Args:
        prefix: beginning of their names.
        tags: their labels.
        described: descriptions by name.
        values: values by name; a gauge without one is left out.
    """
    escaped = {
        name: re.sub(r'[\\"]', r"\\\g<0>", value).replace("\n", r"\n")
        for name, value in tags.items()
    }
    labels = ",".join(f'{name}="{value}"' for name, value in escaped.items())
    return "".join(
        f"# HELP {prefix}_{name} {text}\n# TYPE {prefix}_{name} gauge\n"
        f"{prefix}_{name}{{{labels}}} {float(values[name])}\n"
        for name, text in described.items()
        if name in values
    )


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
