"""Benchmarks of import and audit of large logs, of the forward guarantee, and of sweeps of 200 cells.

    python tests/benchmarks/bench_audit.py [import] [append] [forward] [until] [sweep] [simulated] [--devices 10000000] [--rows 100000000] [--kind csv] [--cells 200] [--against TREE]

The log's devices are hashed 64-bit numbers in no order, five participations each; its round numbers have gaps. Each step runs in a process of its own; its peak
memory is that process's. With `--against`, a checkout of another commit, imports and audits of both alternate, and medians and ratios are printed. Cells of a sweep are assumed outcomes, or simulated; `--cells 24` is a quick look at the share of the CPU time inside them.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from fedray.base.source import ROOT
from fedray.scenario import Scenario

UNTIL = (
    '{ kind = "band-fhu", bands = 32 }',
    '{ kind = "tree" }',
    '{ kind = "blt", theta = [0.9953348970002772, 0.8122920858683399], omega = [0.12828660029532482, 0.32904048602262866] }',
)
"""Mechanisms of a claim in danger."""
ROUNDS, EACH, BATCH, PAIRS = 3000, 5, 1 << 20, 3
QUICKSTART = Scenario.from_toml(ROOT / "scenarios" / "quickstart.toml")
CELL = ("rounds.count=200", "training.enabled=false")
"""A cell of a simulated sweep, which takes some five seconds."""


def write_log(path: Path, rows: int) -> None:
    """Five passes over the devices, each in another order; a round in each fifth of the run."""
    devices = rows // EACH
    generator = np.random.default_rng(0)
    schema = pa.schema(
        [("device", pa.uint64()), ("round", pa.int32()), ("time", pa.timestamp("ms", "UTC"))]
    )
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for part in range(EACH):
            step = int(generator.integers(devices // 3, devices)) | 1
            while np.gcd(step, devices) != 1:
                step += 2
            for start in range(0, devices, BATCH):
                place = np.arange(start, min(start + BATCH, devices), dtype=np.uint64)
                device = place * np.uint64(step) % np.uint64(devices)
                hashed = (device + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
                hashed ^= hashed >> np.uint64(29)
                rounds = (
                    part * ROUNDS // EACH + generator.integers(0, ROUNDS // EACH - 60, device.size)
                ).astype(np.int32)
                times = pa.array(1_767_225_600_000 + 900_000 * rounds.astype(np.int64)).cast(
                    schema.field("time").type
                )
                writer.write_table(pa.table([hashed, rounds, times], schema=schema))


IMPORT = """
import json, resource, sys, time
folder, tree, trace, time_column = sys.argv[1:]
sys.path.insert(0, tree)
from fedray.imports.importer import import_log
start = time.perf_counter()
found = import_log(f"{folder}/log.parquet", "device", "round", None, f"{folder}/{trace}", renumber=True,
                   repeats="once", time_column=time_column or None)
seconds, usage = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"result": [found.run["rows"], found.run["devices"]], "seconds": seconds,
                  "cpu": usage.ru_utime + usage.ru_stime, "peak": usage.ru_maxrss / 1024}))
"""
APPEND = """
import json, os, shutil, sys, time
folder, tree, kind = sys.argv[1:]
sys.path.insert(0, tree)
import fedray.imports.appended as appended
from fedray.imports.log import Log

of_parsing = [0.0]
read_file = Log.read_file
def measured(*arguments):
    start = time.process_time()
    found = read_file(*arguments)
    of_parsing[0] += time.process_time() - start
    return found
Log.read_file = measured

def seconds(trace):
    of_parsing[0], start, begin = 0.0, time.process_time(), time.perf_counter()
    found = appended.append_log(f"{folder}/log", trace, device_column="device", round_column="round",
                                renumber=True, repeats="each", time_column="time")
    cpu, wall = time.process_time() - start, time.perf_counter() - begin
    return {"rows": found.run["rows"], "parsing": of_parsing[0], "other": cpu - of_parsing[0], "wall": wall}

os.mkdir(f"{folder}/log")
os.rename(f"{folder}/old.{kind}", f"{folder}/log/1.{kind}")
seconds(f"{folder}/steps")
os.rename(f"{folder}/new.{kind}", f"{folder}/log/2.{kind}")
kept = sum(each.stat().st_size for each in os.scandir(f"{folder}/steps/rows"))
print(json.dumps({"append": seconds(f"{folder}/steps"), "whole": seconds(f"{folder}/whole"), "kept": kept}))
"""
READ = """
import json, sys, time
from pathlib import Path
import pyarrow.parquet as pq
start = time.perf_counter()
for file in sorted(Path(sys.argv[1], "participations").glob("*.parquet")):
    pq.read_table(file)
print(json.dumps({"seconds": time.perf_counter() - start}))
"""
AUDIT = """
import json, resource, sys, time
folder, tree, trace = sys.argv[1:]
sys.path.insert(0, tree)
from fedray import audit_trace
from fedray.mechanisms.registry import BLT
start = time.perf_counter()
audit = audit_trace(f"{folder}/{trace}", 7.0, 1e-10, BLT(theta=(0.9953348970002772, 0.8122920858683399),
                                                         omega=(0.12828660029532482, 0.32904048602262866)))
seconds, usage = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"result": [audit.min_sep, audit.mechanisms[0].rho], "seconds": seconds,
                  "cpu": usage.ru_utime + usage.ru_stime, "peak": usage.ru_maxrss / 1024}))
"""
PARTICIPATIONS = """
import json, resource, sys, time
import numpy as np

def participations(devices, released, gap):
    # A device has up to nine rounds, at least a gap apart.
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 10, devices)
    starts = np.cumsum(counts) - counts
    of_all = np.empty(counts.sum(), np.uint32)
    for count in range(1, 10):
        chosen = np.flatnonzero(counts == count)
        free = np.sort(rng.integers(0, released - gap * (count - 1), (chosen.size, count), dtype=np.int32), axis=1)
        for i in range(count):
            of_all[starts[chosen] + i] = free[:, i] + gap * i
    return counts, of_all
"""
FORWARD = (
    PARTICIPATIONS
    + """
from fedray.audit.forward import forward_sensitivity
from fedray.audit.participation import Patterns
from fedray.mechanisms.continuation import Future
from fedray.mechanisms.registry import BLT, BandFHU, Banded, Identity, Toeplitz, Tree
from fedray.mechanisms.triangular import lower_factor

devices, rules, kind = int(sys.argv[1]), sys.argv[2], sys.argv[3]
rounds, released, gap = 2000, 1000, 90
counts, of_all = participations(devices, released, gap)
patterns = Patterns(released, np.arange(devices, dtype=np.uint64), counts, of_all)
# A quarter hour per round by day, and half an hour by night.
paces = np.where(np.arange(rounds) % 72 < 48, 900.0, 1800.0)
times = np.cumsum(paces)
future = {
    "separation": lambda: Future.of_times(released, times, separation=gap),
    "timer": lambda: Future.of_times(released, times, timer_seconds=86400.0),
    "capped timer": lambda: Future.of_times(released, times, timer_seconds=86400.0, most=15),
    "short timer": lambda: Future.of_times(released, times, timer_seconds=6 * 3600.0),
    "two a day": lambda: Future.of_times(released, times, windows=[(86400.0, 2)]),
}[rules]()
lags = np.abs(np.subtract.outer(np.arange(rounds), np.arange(rounds)))
strategy = {
    "identity": Identity,
    "tree": Tree,
    "band-fhu": lambda: BandFHU(bands=32),
    "toeplitz": lambda: Toeplitz(coefficients=tuple(1 / (1 + (i + 3) % 7 + i / 4) for i in range(32))),
    "blt": lambda: BLT(theta=(0.9953348970002772, 0.8122920858683399), omega=(0.12828660029532482, 0.32904048602262866)),
    "banded": lambda: Banded.from_matrix(lower_factor(np.where(lags < 32, 0.9**lags, 0.0) + 2 * np.eye(rounds)), "C.npy"),
}[kind]()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
start = time.perf_counter()
found = forward_sensitivity(strategy, patterns, future)
seconds, usage = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"value": found.value, "is_exact": found.is_exact, "theorem": found.theorem, "reached": found.reached,
                  "seconds": seconds, "peak": usage.ru_maxrss / 1024, "before": before, "rows": int(counts.sum())}))
"""
)
UNTIL_TRACE = (
    PARTICIPATIONS
    + """
import pyarrow as pa
import pyarrow.parquet as pq
from fedray.imports.importer import import_log

devices, folder = int(sys.argv[1]), sys.argv[2]
counts, of_all = participations(devices, 1000, 90)
ids = (np.arange(devices, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
with pq.ParquetWriter(f"{folder}/log.parquet", pa.schema([("device", pa.uint64()), ("round", pa.int32()), ("time", pa.timestamp("ms", "UTC"))])) as writer:
    ends = np.cumsum(counts)
    for start in range(0, devices, 1 << 20):
        stop = min(start + (1 << 20), devices)
        rows = slice(int(ends[start] - counts[start]), int(ends[stop - 1]))
        rounds = of_all[rows].astype(np.int64)
        # A round is open for five minutes, and the next one starts after a quarter hour.
        times = 1_767_225_600_000 + 900_000 * rounds + np.random.default_rng(start).integers(0, 300_000, rounds.size)
        columns = [pa.array(np.repeat(ids[start:stop], counts[start:stop])), pa.array(rounds.astype(np.int32)), pa.array(times).cast(pa.timestamp("ms", "UTC"))]
        writer.write_table(pa.table(columns, schema=writer.schema))
import_log(f"{folder}/log.parquet", "device", "round", 1000, f"{folder}/trace", time_column="time")
print(json.dumps({"rows": int(counts.sum())}))
"""
)
UNTIL_CLAIM = """
import json, sys
from pathlib import Path
from fedray import audit_trace
from fedray.audit.claims import read_claim
from fedray.audit.live.in_force import read_in_force
from fedray.audit.live.outlook import look_ahead

folder, mechanism, rule = sys.argv[1:]
claim, in_force = Path(folder, "claim.toml"), Path(folder, "in-force.toml")
text = f"noise_multiplier = 7.0\\nmechanism = {mechanism}\\n"
claim.write_text(text)
reached = []
for rules in (rule, f"{rule}\\nmax_participations = 9"):
    in_force.write_text(f"{rules}\\n")
    audit = audit_trace(f"{folder}/trace", claim=read_claim(claim))
    reached.append(look_ahead(audit, 2000, 0.25, read_in_force(in_force)).rows[1].rho)
# In danger, and above what the past costs.
in_force.write_text(f"{rule}\\n")
claim.write_text(f"{text}rho = {0.5 * sum(reached)}\\n")
print(json.dumps({"reached": reached}))
"""
SWEEP = """
import contextlib, json, os, sys, threading, time
from fedray.runtime.placement import Placement
from fedray.runtime.session import one_session
from fedray.studies import simulated
from fedray.studies.sweep.run import run_sweep
from fedray.studies.sweep.sweep import Sweep
from pathlib import Path

folder = Path(sys.argv[1])
notes = folder / "notes"
notes.mkdir()
run_jobs, of_processes, watching = simulated.run_jobs, {}, [0.0]

class Noted:
    # Work of a task, whose process writes down the CPU seconds of every call.
    def __init__(self, work):
        self.work, self.notes = work, str(notes)

    def __call__(self, job):
        begun = time.process_time()
        try:
            return self.work(job)
        finally:
            with open(f"{self.notes}/{os.getpid()}", "a") as file:
                print(time.process_time() - begun, file=file)

def look():
    import psutil  # Ray brings it
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            title = " ".join(each.cmdline()[:3])
            is_worker = "default_worker.py" in title or title.startswith("ray::") and "Agent" not in title
            # A process that is ending has no title.
            is_worker = is_worker or of_processes.get(each.pid, [False])[0]
            of_processes[each.pid] = is_worker, sum(each.cpu_times()[:2])

def watch():
    # A process that has ended can no longer be asked.
    while True:
        time.sleep(0.5)
        look()
        watching[0] = time.thread_time()

simulated.run_jobs = lambda work, *arguments: run_jobs(Noted(work), *arguments)
sweep, scenario = Sweep.from_toml(folder / "sweep.toml")
start = time.perf_counter()
with one_session():
    threading.Thread(target=watch, daemon=True).start()
    result = run_sweep(sweep, scenario, Placement())
    seconds = time.perf_counter() - start
    look()
inside = [float(line) for file in notes.iterdir() for line in file.read_text().splitlines()]
of_kind = lambda kind: sum(cpu for is_worker, cpu in of_processes.values() if is_worker is kind)
print(json.dumps({"seconds": seconds, "cells": len(result.cells), "rows": len(result.table()), "tasks": len(inside),
                  "inside": sum(inside), "workers": of_kind(True), "ray": of_kind(False), "driver": time.process_time() - watching[0]}))
"""


def own_process(program: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """What a program prints last, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def bench_import(rows: int, against: Path | None) -> None:
    """A Parquet log of hashed ids, imported, then audited, also by the code of another checkout."""
    trees = {"now": ROOT} if against is None else {"now": ROOT, "before": against}
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        write_log(Path(folder, "log.parquet"), rows)
        print(f"log of {rows:,} rows written in {time.perf_counter() - start:.0f} s", flush=True)
        for form, column in (("out times", ""), (" times", "time")):
            turns(f"import with{form}", IMPORT, folder, rows, trees, column)
        audit = turns("audit", AUDIT, folder, rows, trees)
        read = own_process(READ, f"{folder}/now")
        print(
            f"  audit {audit['seconds']:.1f} s: {audit['seconds'] / read['seconds']:.1f} x the {read['seconds']:.2f} s in which "
            "pyarrow reads the same columns"
        )


def as_csv(log: Path) -> None:
    """Puts a CSV file in the place of a Parquet one."""
    with pq.ParquetFile(log) as file:
        schema = file.schema_arrow
        with pyarrow.csv.CSVWriter(log.with_suffix(".csv"), schema) as writer:
            for batch in file.iter_batches(BATCH):
                writer.write_batch(batch)
    log.unlink()


def bench_append(rows: int, kind: str) -> None:
    """A hundredth of the rows, appended to the others, and one import of all of them."""
    with tempfile.TemporaryDirectory() as folder:
        for name, count in (("old", rows), ("new", rows // 100)):
            log = Path(folder, f"{name}.parquet")
            write_log(log, count)
            if kind == "csv":
                as_csv(log)
        found = own_process(APPEND, folder, str(ROOT), kind)
        print(
            f"{kind}: {rows // 100:,} rows onto {rows:,}, of which {found['kept'] / rows:.1f} bytes per row are kept",
            flush=True,
        )
        for name in ("append", "whole"):
            each = found[name]
            print(
                f"  {name:6s}  CPU {each['parsing']:8.2f} s parsing, {each['other']:8.2f} s digests, sort and parts; {each['wall']:.1f} s"
            )


def turns(
    step: str, program: str, folder: str, rows: int, trees: dict[str, Path], *arguments: str
) -> dict[str, float]:
    """Runs a step PAIRS times by each checkout in turns, on a trace of its own, prints the medians, and returns those of this code."""
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in trees}
    for turn in range(PAIRS):
        # Each side goes first as often, because the machine may slow down or speed up.
        for side in sorted(trees, reverse=turn % 2 == 1):
            if program == IMPORT:
                shutil.rmtree(Path(folder, side), ignore_errors=True)
            found[side].append(own_process(program, folder, str(trees[side]), side, *arguments))
    results = {tuple(each["result"]) for runs in found.values() for each in runs}
    assert len(results) == 1, results
    medians = {
        side: {key: float(np.median([run[key] for run in runs])) for key in ("cpu", "peak", "seconds")}
        for side, runs in found.items()
    }  # fmt: skip
    for side, each in medians.items():
        print(
            f"  {step} {side}: CPU {each['cpu']:.1f} s, {1e9 * each['cpu'] / rows:.0f} ns a row; peak {each['peak']:.0f} MiB, "
            f"{2**20 * each['peak'] / rows:.1f} bytes a row; {each['seconds']:.1f} s",
            flush=True,
        )
    if "before" in trees:
        ratios = [medians["now"][key] / medians["before"][key] for key in ("cpu", "peak")]
        print("  now / before: CPU {:.2f}, peak {:.2f}".format(*ratios), flush=True)
    return medians["now"]


def bench_forward(devices: int) -> None:
    """Devices of a log half way through 2,000 planned rounds: what they may still reach."""
    for rules in ("separation", "timer", "capped timer", "short timer", "two a day"):
        for kind in ("identity", "tree", "band-fhu", "toeplitz", "banded", "blt"):
            found = own_process(FORWARD, str(devices), rules, kind)
            state = (
                "exact"
                if found["is_exact"]
                else f"bound, {found['value'] / found['reached']:.3f} x reached"
            )
            print(
                f"forward, {rules}, {kind}: {found['seconds']:.1f} s for {devices:,} devices with {found['rows']:,} participations; peak "
                f"{found['peak']:.0f} MiB, {found['before']:.0f} MiB of them the log; {found['value']:.4f}, {state}: {found['theorem']}",
                flush=True,
            )


def bench_until(devices: int) -> None:
    """A claim in danger half way through 2,000 planned rounds: `fedray audit --until --in-force
    --hold`."""
    with tempfile.TemporaryDirectory() as folder:
        rows = own_process(UNTIL_TRACE, str(devices), folder)["rows"]
        for rule in ("timer_hours = 22.0", "round_separation = 90"):
            for mechanism in UNTIL:
                own_process(UNTIL_CLAIM, folder, mechanism, rule)
                start = time.perf_counter()
                command = ["audit", "trace", "--claim", "claim.toml", "--until", "2000", "--json"]
                command += ["--slowest", "0.25", "--in-force", "in-force.toml"]
                command += ["--hold", "hold.csv"]
                done = subprocess.Popen(
                    [sys.executable, "-m", "fedray", *command], cwd=folder, stdout=subprocess.PIPE
                )
                assert done.stdout is not None
                found = json.loads(done.stdout.read())
                _, status, usage = os.wait4(done.pid, 0)
                assert os.waitstatus_to_exitcode(status) == 1, status
                helping = [
                    " + ".join(each["kinds"]) for each in found["changes"] if each["is_enough"]
                ]
                held = [each["held"] for each in found["changes"] if "held" in each]
                print(
                    f"until, {rule}, {mechanism}: {time.perf_counter() - start:.0f} s, CPU {usage.ru_utime + usage.ru_stime:.0f} s, "
                    f"peak {usage.ru_maxrss / 1024:.0f} MiB for {devices:,} devices with {rows:,} participations; "
                    f"{found['state']}; {', '.join(helping)}; held {held}",
                    flush=True,
                )


def bench_sweep(cells: int) -> None:
    """Cells of n = 2000 with designs from the cache; the cells themselves are not taken from it."""
    gaps = np.unique(np.linspace(100, 999, cells // 2).astype(int)).tolist()
    text = (
        'name = "bench"\nestimate = {rounds = 2000, min_sep = 400, max_participations = 5}\nx = "min_sep"\n'
        f"vary = {{rounds = [2000], max_participations = [2, 3], min_sep = {gaps}}}\n"
        '[[mechanisms]]\nkind = "banded"\nbands = 400\n'
        '[[mechanisms]]\nkind = "blt"\nbuffers = 4\nobjective = "rms"\nmade_for = ["estimate", "truth"]\n'
        '[[mechanisms]]\nkind = "tree-full"\n'
    )
    with tempfile.TemporaryDirectory() as kept:
        for state in ("designs cold", "designs warm"):
            told(f"{state}, ", sweep_of(text, kept))
            shutil.rmtree(Path(kept, "fedray", "stress"))


def bench_simulated(cells: int) -> None:
    """Cells that are simulated, a few seconds each. First two of them, so that kernels are compiled."""
    for count in (2, cells):
        text = (
            f'name = "bench"\nscenario = "scenario.toml"\nx = "seed"\nvary = {{seed = {list(range(count))}}}\n'
            '[[mechanisms]]\nkind = "tree"\n'
        )
        with tempfile.TemporaryDirectory() as kept:
            told("simulated, ", sweep_of(text, kept))


def sweep_of(text: str, kept: str) -> dict[str, Any]:
    """Figures of a sweep, given its file and the folder of its cache."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "scenario.toml").write_text(QUICKSTART.with_overrides(*CELL).to_toml())
        Path(folder, "sweep.toml").write_text(text)
        return own_process(SWEEP, folder, XDG_CACHE_HOME=kept)


def told(state: str, found: dict[str, Any]) -> None:
    """Prints the time of a sweep, and which part of the CPU time of driver and workers was inside tasks."""
    whole = found["driver"] + found["workers"]
    print(
        f"sweep of {found['cells']} cells, {found['rows']} rows, {state}{found['seconds']:.0f} s: {found['inside'] / whole:.1%} of "
        f"{whole:.0f} s of CPU are inside {found['tasks']} tasks, {found['inside'] / found['cells']:.2f} s a cell; "
        f"driver {found['driver']:.1f} s, workers between tasks {found['workers'] - found['inside']:.1f} s; "
        f"beside these, Ray's own processes {found['ray']:.1f} s",
        flush=True,
    )


BENCHMARKS = {
    "import": bench_import,
    "append": bench_append,
    "forward": bench_forward,
    "until": bench_until,
    "sweep": bench_sweep,
    "simulated": bench_simulated,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], default=[])
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--devices", type=int, default=10_000_000)
    parser.add_argument("--cells", type=int, default=200)
    parser.add_argument(
        "--kind", choices=("parquet", "csv"), default="parquet", help="log to append to"
    )
    parser.add_argument(
        "--against", type=Path, help="checkout of another commit, run in turns with this one"
    )
    arguments = parser.parse_args()
    for name in arguments.names or BENCHMARKS:
        options = {
            "import": (arguments.rows, arguments.against),
            "append": (arguments.rows, arguments.kind),
            "forward": (arguments.devices,),
            "until": (arguments.devices,),
        }.get(name, (arguments.cells,))
        BENCHMARKS[name](*options)


if __name__ == "__main__":
    main()
