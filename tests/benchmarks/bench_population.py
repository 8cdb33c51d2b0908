"""Benchmarks of the population: its size, its shards, the published pt-BR run, and the two obvious alternatives.

    python tests/benchmarks/bench_population.py [growth] [shards] [published] [alternatives] [--repeats 3] [--divide 1]

Each compares what it names in one run, alternating, and prints medians and ratios. `--divide` makes everything so many times smaller.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.trace.reader import Trace

PUBLISHED = Path(__file__).resolve().parents[2] / "scenarios" / "gboard" / "nwp_pt_br.toml"


def scenario(devices: int, count: int, goal: int, timer_hours: float, **rounds: object) -> Scenario:
    return Scenario.from_tables(
        {
            "name": "bench",
            "seed": 5,
            "population": {"devices": devices},
            "participation": {"timer_hours": timer_hours},
            "rounds": {"count": count, "report_goal": goal, **rounds},
            "training": {"enabled": False},
        }
    )


def in_own_process(value: Scenario, shards: int, backend: str) -> tuple[float, float]:
    """(seconds, peak MiB of driver and shards) of one run without Ray's start, in a process of its own, everything compiled before."""
    program = (
        "import sys, tempfile, time\n"
        "from bench_population import measured\n"
        "print(*measured(sys.stdin.read(), int(sys.argv[1]), sys.argv[2]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(shards), backend],
        input=value.to_toml(), cwd=Path(__file__).parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    seconds, peak = done.stdout.split()[-2:]
    return float(seconds), float(peak)


def measured(toml: str, shards: int, backend: str) -> tuple[float, float]:
    """What `in_own_process` runs."""
    import tomllib

    from fedray.runtime.session import session

    value = Scenario.from_tables(tomllib.loads(toml))
    placement = Placement(shards, backend)  # pyright: ignore[reportArgumentType]
    warm_up = value.with_overrides(
        "population.devices=150000", "rounds.count=1", "rounds.report_goal=50"
    )
    with tempfile.TemporaryDirectory() as folder:
        if backend == "in-process":
            simulate(warm_up, placement, f"{folder}/warm")
            return timed(lambda: simulate(value, placement, f"{folder}/run"))
        with session(placement):
            simulate(warm_up, placement, f"{folder}/warm")
            return timed(lambda: simulate(value, placement, f"{folder}/run"))


def timed(run: Callable[[], Trace]) -> tuple[float, float]:
    start = time.perf_counter()
    trace = run()
    seconds = time.perf_counter() - start
    driver = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    shards = sum(each["peak_mebibytes"] for each in trace.run["shard_use"])
    in_this_process = (
        trace.run["shard_use"][0]["peak_mebibytes"] >= driver - 1
        and len(trace.run["shard_use"]) == 1
    )
    return seconds, driver if in_this_process else driver + shards


def growth(repeats: int, divide: int) -> None:
    """The same rounds, goal and timer for 10^7, 10^8 and 10^9 devices, on two shards of this process."""
    sizes = [10**7 // divide, 10**8 // divide, 10**9 // divide]
    results: dict[int, list[tuple[float, float]]] = {size: [] for size in sizes}
    for _ in range(repeats):
        for size in sizes:
            results[size].append(
                in_own_process(scenario(size, 300 // min(divide, 10), 1000, 72.0), 2, "in-process")
            )
    base = statistics.median(seconds for seconds, _ in results[sizes[0]])
    print("growth: 300 rounds of 1000, timer 72 h, two shards")
    for size, runs in results.items():
        seconds, peak = (statistics.median(column) for column in zip(*runs, strict=True))
        print(
            f"  {size:>13,} devices  {seconds:7.1f} s  {seconds / base:5.2f} x  peak {peak:6.0f} MiB"
        )


def shards(repeats: int, divide: int) -> None:
    """A population-bound run: all devices are enumerated every day, for few updates; 1 to 32 shards on the threads of one process."""
    value = bound_by_population(divide)
    results: dict[int, list[float]] = {1: [], 2: [], 8: [], 32: []}
    for _ in range(repeats):
        for count in results:
            results[count].append(in_own_process(value, count, "in-process")[0])
    print(f"shards: {value.population.devices:,} devices enumerated, 900 rounds of 50, two days")
    print_medians(results, "shards")


def bound_by_population(divide: int) -> Scenario:
    """All devices are enumerated every day, for few updates."""
    return scenario(
        10_000_000 // divide, 900, 50, 72.0, sampler="enumeration", look_ahead_minutes=60.0
    )


def print_medians(results: dict[int, list[float]], what: str) -> None:
    """A line per count: the median, and its ratio to that of the first."""
    base = statistics.median(next(iter(results.values())))
    for count, runs in results.items():
        seconds = statistics.median(runs)
        print(f"  {count:3} {what}  {seconds:7.1f} s  {seconds / base:5.2f} x")


def published(repeats: int, divide: int) -> None:
    """The pt-BR run of Xu et al. 2023: 16.6 million devices, 3600 rounds of 6500, timer 144 h; and the audit of its trace."""
    value = Scenario.from_toml(PUBLISHED)
    if divide > 1:
        value = value.with_overrides(
            f"population.devices={value.population.devices // divide}",
            f"rounds.report_goal={6500 // divide}",
            "rounds.count=200",
        )
    runs, audits = [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "run.toml").write_text(value.to_toml())
            runs.append(as_json(PUBLISHED_RUN, folder))
            audits.append(as_json(PUBLISHED_AUDIT, folder))
    seconds, audit, reading = (
        statistics.median(each)
        for each in (
            [r["seconds"] for r in runs],
            *([a[key] for a in audits] for key in ("audit", "read")),
        )
    )
    busy = statistics.median(max(use["busy_seconds"] for use in run["shard_use"]) for run in runs)
    print(
        f"published: pt-BR, {value.rounds.count} rounds, two shards; Ray's start and the trace included; each in its own process"
    )
    print(
        f"  {seconds:7.1f} s   a shard works on windows {busy:.1f} s   "
        f"peak {max(run['peak'] for run in runs):.0f} MiB (sum of the peaks of driver and shards)"
    )
    print(
        f"  audit {audit:.1f} s, peak {max(each['peak'] for each in audits):.0f} MiB; {audit / reading:.1f} x the {reading:.2f} s in which "
        f"pyarrow reads the same columns"
    )


PUBLISHED_RUN = """
import json, sys, time
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.runs.simulation import simulate
value = Scenario.from_toml(f"{sys.argv[1]}/run.toml")
start = time.perf_counter()
run = simulate(value, Placement(2), f"{sys.argv[1]}/trace").run
seconds = time.perf_counter() - start
peak = run["driver_peak_mebibytes"] + sum(use["peak_mebibytes"] for use in run["shard_use"])
print(json.dumps({"seconds": seconds, "peak": peak, "shard_use": run["shard_use"]}))
"""
PUBLISHED_AUDIT = """
import json, resource, sys, time
from pathlib import Path
import pyarrow.parquet as pq
from fedray.audit.auditing import audit_trace
files = sorted(Path(sys.argv[1], "trace", "participations").glob("*.parquet"))
start = time.perf_counter()
for file in files:
    pq.read_table(file, columns=["round", "device_id", "outcome"])
read = time.perf_counter() - start
start = time.perf_counter()
audit_trace(f"{sys.argv[1]}/trace")
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"audit": seconds, "read": read, "peak": peak}))
"""


def as_json(program: str, folder: str) -> dict[str, Any]:
    """What a program prints last, run in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program, folder], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def alternatives(repeats: int, divide: int) -> None:
    """Against one scan of all devices per round in numpy, and one Ray actor per device; the same devices and rounds."""
    devices, count, goal = 10_000_000 // divide, 40, 1000 // min(divide, 10)
    value = scenario(devices, count, goal, 24.0)
    ours, scans = [], []
    for _ in range(repeats):
        ours.append(in_own_process(value, 1, "in-process")[0])
        scans.append(numpy_scan(devices, count, goal))
    scan, mine = statistics.median(scans), statistics.median(ours)
    print(f"alternatives: {devices:,} devices, {count} rounds of {goal}; one process")
    print(f"  fedray {mine:7.2f} s   numpy scan per round {scan:7.2f} s   {scan / mine:.1f} x")
    few, rounds = 200 // min(divide, 100), 5
    actors = actor_per_device(few, rounds)
    small = in_own_process(scenario(few * 1000, rounds, 20, 0.0), 1, "in-process")[0]
    per_device = actors / few
    print(
        f"  one Ray actor per device: {few} devices, {rounds} rounds {actors:.1f} s, {1000 * per_device:.0f} ms per device;"
    )
    print(
        f"  fedray with 1000 times as many, as many rounds {small:.2f} s: {per_device / (small / (few * 1000)):,.0f} x per device"
    )


def numpy_scan(devices: int, count: int, goal: int) -> float:
    """What is commonly written: arrays of all devices, and in each round a mask, a choice, an update of the timers."""
    generator = np.random.default_rng(0)
    center, length = generator.normal(2.5, 1.75, devices) % 24, generator.uniform(1, 8, devices)
    propensity, opens = generator.beta(0.78, 1.85, devices), np.zeros(devices)
    start = time.perf_counter()
    for round_index in range(count):
        now = 0.05 * round_index
        distance = np.abs((now - center + 12) % 24 - 12)
        eligible = (
            (distance < length / 2) & (generator.random(devices) < propensity) & (opens <= now)
        )
        chosen = generator.choice(np.flatnonzero(eligible), int(1.3 * goal), replace=False)
        opens[chosen[:goal]] = now + 24
    return time.perf_counter() - start


def actor_per_device(devices: int, rounds: int) -> float:
    """One actor per device, each asked once a round whether it is eligible."""
    import ray

    from fedray.runtime.session import session

    class Device:
        def __init__(self, seed: int) -> None:
            self._generator = np.random.default_rng(seed)

        def is_eligible(self, hour: float) -> bool:
            return bool(self._generator.random() < 0.1)

    with session(Placement()):
        start = time.perf_counter()
        actors = [
            ray.remote(Device).options(num_cpus=0.001).remote(device) for device in range(devices)
        ]
        for index in range(rounds):
            ray.get([actor.is_eligible.remote(0.05 * index) for actor in actors], timeout=1200)
        return time.perf_counter() - start


BENCHMARKS = {each.__name__: each for each in (growth, shards, published, alternatives)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], default=[])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--divide", type=int, default=1)
    arguments = parser.parse_args()
    for name in arguments.names or BENCHMARKS:
        BENCHMARKS[name](arguments.repeats, arguments.divide)


if __name__ == "__main__":
    main()
