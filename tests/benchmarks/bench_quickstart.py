"""Times and memory of the quickstart, paired in one run: population and rounds alone, with training, and the audit.

    make bench                                    three repeats of the population, one of the whole
    python tests/benchmarks/bench_quickstart.py --repeats 1 --set population.devices=200000 --set rounds.report_goal=500

Prints medians and ratios; asserts nothing. Memory is the largest sum of proportional set sizes (PSS, shared pages counted
once) of the driver and the shards, read from /proc twice a second.
"""

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from fedray.audit.auditing import audit_trace
from fedray.runs.pipeline import run_scenario
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.trace.reader import Trace

SCENARIO = Path(__file__).parents[2] / "scenarios" / "quickstart.toml"


class Memory:
    """Samples PSS of this process and of Ray's shard actors until closed."""

    def __init__(self) -> None:
        self.peak_mebibytes = 0.0
        self._is_open = True
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def close(self) -> float:
        self._is_open = False
        self._thread.join()
        return self.peak_mebibytes

    def _sample(self) -> None:
        while self._is_open:
            shards = [
                entry
                for entry in Path("/proc").iterdir()
                if entry.name.isdigit() and _is_shard(entry)
            ]
            total = sum(_pss(entry) for entry in [Path("/proc/self"), *shards])
            self.peak_mebibytes = max(self.peak_mebibytes, total / 1024)
            time.sleep(0.5)


def _is_shard(entry: Path) -> bool:
    try:
        return (entry / "cmdline").read_bytes().startswith(b"ray::_ShardBody")
    except OSError:
        return False


def _pss(entry: Path) -> int:
    try:
        lines = (entry / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def timed(call: Callable[[], Trace]) -> tuple[float, Trace]:
    start = time.perf_counter()
    trace = call()
    return time.perf_counter() - start, trace


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    arguments = parser.parse_args()
    trained = Scenario.from_toml(SCENARIO, arguments.overrides)
    alone = trained.with_overrides("training.enabled=false")
    with tempfile.TemporaryDirectory() as folder:
        memory = Memory()
        runs = [
            timed(lambda i=i: simulate(alone, Placement(), f"{folder}/alone-{i}"))
            for i in range(arguments.repeats)
        ]
        alone_peak = memory.close()
        memory = Memory()
        whole_seconds, trace = timed(lambda: run_scenario(trained, Placement(), f"{folder}/whole"))
        whole_peak = memory.close()
        audits = []
        for _ in range(arguments.repeats):
            start = time.perf_counter()
            audit_trace(trace.path)
            audits.append(time.perf_counter() - start)
        size = sum(file.stat().st_size for file in trace.path.rglob("*.parquet")) / 2**20
    alone_seconds = statistics.median(seconds for seconds, _ in runs)
    print(
        f"population and rounds, Ray's start included   {alone_seconds:8.1f} s   peak {alone_peak:6.0f} MiB (driver and shards)"
    )
    print(
        f"the same with training                        {whole_seconds:8.1f} s   peak {whole_peak:6.0f} MiB (driver and shards)"
    )
    print(f"training / population                         {whole_seconds / alone_seconds:8.2f} x")
    print(
        f"audit                                         {statistics.median(audits):8.1f} s   trace {size:.0f} MiB"
    )
    print(
        f"same digest in all runs                       {len({t.digest for _, t in [*runs, (0, trace)]}) == 1!s:>8}"
    )


if __name__ == "__main__":
    main()
