"""What a cluster buys: the driver's share, which is serial, the nodes' share, and messages; a prediction fitted on small runs, and its check on others.

    python tests/benchmarks/bench_scale.py [nodes] [check] [--divide 1]

Shares are CPU seconds of processes, so that other work on the machine matters little. Nodes are simulated on this machine.
"""

import argparse
import faulthandler
import json
import logging
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray
from bench_population import scenario
from ray.cluster_utils import Cluster
from scipy.optimize import nnls

from fedray.base.arrays import Float64Array as FloatArray
from fedray.base.blocks import BLOCK_DEVICES
from fedray.base.source import ROOT
from fedray.runs.simulation import simulate
from fedray.runtime import workers
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.wire.messages import RunProgress

ROUNDS = 980
"""Rounds of en-GB, over days and nights: the cost of a row depends on the hour, since candidates on ineligible devices are lost."""
GOAL = 6500
MEBI = 2**20
SECONDS_TO_DUMP = 120.0
"""Seconds after which a run's process writes its stacks to standard error, again and again."""
FITTED = [
    (4, 400, 1),
    (20, 400, 4),
    (20, 1300, 1),
    (20, 1300, 2),
    (20, 1300, 4),
    (20, 1300, 16),
    (200, 800, 1),
]
"""Millions of devices, report goal and nodes of the runs that the costs are fitted to."""
HELD_OUT = [(100, 3000, 2), (1_000, GOAL, 1), (1_000, GOAL, 4), (10_000, GOAL, 4)]
"""Runs that are predicted, and then measured."""


class Share(NamedTuple):
    """One run on simulated nodes of one core: what it did, and CPU seconds."""

    nodes: int
    devices: int
    windows: int
    rows: int
    """Devices selected."""
    driver: float
    hosts: float
    """Of all nodes together."""
    peak: float
    """Peak MiB of driver and nodes together."""
    messages: float
    """Per window, both ways; 0 if not counted, which costs the driver time."""
    kibibytes: float
    """Their size, pickled, per window."""


def share(value: Scenario, nodes: int, *, counts: bool = False) -> Share:
    """The share of a run, from a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", str(nodes), *(["--count"] if counts else [])],
        input=value.to_toml(), cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return Share(*json.loads(done.stdout.splitlines()[-1]))


def one(nodes: int, counts: bool) -> None:
    """What `share` runs."""
    # A run that hangs says where, whoever ends it.
    faulthandler.dump_traceback_later(SECONDS_TO_DUMP, repeat=True)
    os.environ["PYTHONPATH"] = str(ROOT)
    value = Scenario.from_tables(tomllib.loads(sys.stdin.read()))
    node = {"num_cpus": 1, "object_store_memory": 80 * MEBI}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    for _ in range(nodes - 1):
        cluster.add_node(**node)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    sizes = counted() if counts else []
    small = ["population.devices=4000000", "rounds.count=3", "rounds.report_goal=400"]
    with tempfile.TemporaryDirectory() as folder:
        # Loads the driver's code. Hosts load theirs before the first attempt closes.
        simulate(value.with_overrides(*small), Placement(nodes), f"{folder}/warm")
        sizes.clear()
        clock = HostClock()
        before: list[float] = []

        def tell(progress: RunProgress) -> None:
            if not before:
                before.extend((time.process_time(), clock.seconds()))

        run = simulate(value, Placement(nodes), f"{folder}/run", tell).run
        driver, hosts = time.process_time() - before[0], clock.latest - before[1]
    use, samplers = run["shard_use"], run["samplers"]
    windows = samplers["thinned_windows"] + samplers["enumerated_windows"]
    rows, peak = (sum(each[key] for each in use) for key in ("rows", "peak_mebibytes"))
    print(json.dumps(Share(
        nodes, value.population.devices, windows, rows, driver, hosts,
        peak + run["driver_peak_mebibytes"], len(sizes) / windows, sum(sizes) / windows / 1024,
    )))  # fmt: skip
    ray.shutdown()
    cluster.shutdown()


class HostClock:
    """CPU seconds of this machine's shard hosts, read until they end."""

    def __init__(self) -> None:
        self._read: dict[str, float] = {}
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.seconds()
            time.sleep(0.1)

    def seconds(self) -> float:
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and b"ray::Shard" in (folder / "cmdline").read_bytes():
                    # The 14th and 15th field, ticks of user and system; the second may hold blanks.
                    fields = (folder / "stat").read_text().rpartition(")")[2].split()
                    self._read[folder.name] = int(fields[11]) + int(fields[12])
            except OSError:  # it has ended
                continue
        return self.latest

    @property
    def latest(self) -> float:
        return sum(self._read.values()) / os.sysconf("SC_CLK_TCK")


def counted() -> list[int]:
    """Sizes of all messages between driver and hosts from now on."""
    sizes: list[int] = []
    inner = workers.RayWorker.call

    def call(worker: workers.RayWorker, method: str, *arguments: Any) -> Any:
        sizes.append(len(pickle.dumps(arguments)))
        pending = inner(worker, method, *arguments)
        if method != "check_ins":
            return pending
        answer = pending.result()
        sizes.append(len(pickle.dumps(answer)))
        return workers.Ready(answer)

    workers.RayWorker.call = call  # pyright: ignore[reportAttributeAccessIssue]
    return sizes


def features(run: Share) -> tuple[list[float], list[float]]:
    """What the CPU seconds of the driver, and those of the hosts, are in proportion to."""
    blocks = run.devices / BLOCK_DEVICES
    driver = [1.0, run.windows * run.nodes, run.rows]
    return driver, [run.nodes, run.windows * run.nodes, run.rows, run.windows * blocks]


def fitted(runs: Sequence[Share]) -> tuple[FloatArray, FloatArray]:
    """Costs in seconds, none negative, by least squares of relative errors."""
    costs = []
    for place, name in enumerate(("driver", "hosts")):
        spent = np.array([getattr(run, name) for run in runs])
        matrix = np.array([features(run)[place] for run in runs]) / spent[:, None]
        costs.append(nnls(matrix, np.ones(spent.size))[0])
    return costs[0], costs[1]


def predicted(costs: tuple[FloatArray, FloatArray], run: Share) -> Share:
    driver, hosts = (float(np.dot(each, of)) for each, of in zip(costs, features(run), strict=True))
    return run._replace(driver=driver, hosts=hosts)


def line(run: Share) -> str:
    return (
        f"  {run.nodes:3} nodes  {run.devices:>14,} devices  {run.rows:>10,} rows  {run.windows:4} windows"
        f"  driver {run.driver:6.2f} s  nodes {run.hosts:7.2f} s  peak {run.peak:6.0f} MiB"
    )


def nodes(divide: int, most: int) -> None:
    """One run on 1, 2, 4 and 16 nodes."""
    # A divided run only shows that the benchmark works, for which few rounds are enough.
    value = of(20_000_000 // divide, 1300 // divide, max(20, ROUNDS // divide))
    print(
        f"nodes: {value.population.devices:,} devices, {value.rounds.count} rounds of {value.rounds.report_goal}"
    )
    for count in (each for each in (1, 2, 4, 16) if each <= most):
        run = share(value, count)
        few = share(value, count, counts=True)
        serial = run.driver / (run.driver + run.hosts)
        print(
            f"{line(run)}  serial share {serial:.3f}  a window: {few.messages:.0f} messages, {few.kibibytes:.0f} KiB"
        )


def check(divide: int, most: int) -> None:
    """Costs fitted on small runs, and runs of other sizes beside their prediction. All take turns, and medians of three count."""
    asked = [each for each in (*FITTED, *HELD_OUT) if each[2] <= most]
    done: dict[tuple[int, int, int], list[Share]] = {each: [] for each in asked}
    for _ in range(3):
        for millions, goal, count in asked:
            value = of(millions * 10**6 // divide, goal // divide)
            done[millions, goal, count].append(share(value, count))
    middle = {each: medians(runs) for each, runs in done.items()}
    costs = fitted([run for each, run in middle.items() if each in FITTED])
    print(
        "fitted: seconds of the driver per run, per node and window, per row; of the nodes per node, per node and window, per row, per block and window"
    )
    print("  " + "  ".join(f"{cost:.3g}" for each in costs for cost in each))
    worst = 1.0
    for each, run in middle.items():
        guess = predicted(costs, run)
        ratios = guess.driver / run.driver, guess.hosts / run.hosts
        kind = "fitted" if each in FITTED else "held out"
        print(
            f"{line(run)}  {kind}; predicted over measured: driver {ratios[0]:.2f}  nodes {ratios[1]:.2f}"
        )
        if each in HELD_OUT:
            worst = max(worst, *(max(ratio, 1 / ratio) for ratio in ratios))
    print(f"predicted: {ROUNDS} rounds of {GOAL}, seconds on N nodes of 4 cores")
    for devices in (10**8, 10**9, 10**10):
        times = []
        for count in (1, 4, 16, 64):
            guess = predicted(
                costs, Share(count, devices, 58, ROUNDS * GOAL * 13 // 10, *([0.0] * 5))
            )
            times.append(f"{count} nodes {guess.driver + guess.hosts / (4 * count):.1f}")
        print(f"  {devices:>14,} devices  {'  '.join(times)}")
    print(f"largest ratio of measured and predicted: {worst:.2f}")


def medians(runs: Sequence[Share]) -> Share:
    names = ("driver", "hosts", "peak")
    return runs[0]._replace(
        **{name: statistics.median(getattr(run, name) for run in runs) for name in names}
    )


def of(devices: int, goal: int, rounds: int = ROUNDS) -> Scenario:
    return scenario(devices, rounds, goal, 72.0)


BENCHMARKS = {each.__name__: each for each in (nodes, check)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], default=[])
    parser.add_argument("--divide", type=int, default=1)
    parser.add_argument("--most-nodes", type=int, default=16)
    parser.add_argument("--one", type=int)
    parser.add_argument("--count", action="store_true")
    arguments = parser.parse_args()
    if arguments.one:
        one(arguments.one, arguments.count)
        return
    for name in arguments.names or BENCHMARKS:
        BENCHMARKS[name](arguments.divide, arguments.most_nodes)


if __name__ == "__main__":
    main()
