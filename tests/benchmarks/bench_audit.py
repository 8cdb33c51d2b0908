"""Benchmarks of import and audit of large logs, and of a sweep of 200 cells.

    python tests/benchmarks/bench_audit.py [import] [sweep] [--rows 100000000] [--cells 200]

The log's devices are hashed 64-bit numbers in no order, five participations each; its round numbers have gaps. Each step runs in a process of its own; its peak
memory is that process's.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROUNDS, EACH, BATCH = 3000, 5, 1 << 20


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
from fedray.imports.importer import import_log
start = time.perf_counter()
time_column = sys.argv[2] or None
trace = import_log(f"{sys.argv[1]}/log.parquet", "device", "round", None, f"{sys.argv[1]}/trace{sys.argv[2]}", renumber=True,
                   repeats="once", time_column=time_column)
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"seconds": time.perf_counter() - start, "rows": trace.run["rows"], "devices": trace.run["devices"],
                  "cpu": usage.ru_utime + usage.ru_stime, "peak": usage.ru_maxrss / 1024}))
"""
READ = """
import json, sys, time
from pathlib import Path
import pyarrow.parquet as pq
start = time.perf_counter()
for file in sorted(Path(sys.argv[1], "trace", "participations").glob("*.parquet")):
    pq.read_table(file)
print(json.dumps({"seconds": time.perf_counter() - start}))
"""
AUDIT = """
import json, resource, sys, time
from fedray.audit.audit import audit_trace
from fedray.mechanisms.registry import BLT
start = time.perf_counter()
audit = audit_trace(f"{sys.argv[1]}/trace", 7.0, 1e-10, BLT(theta=(0.9953348970002772, 0.8122920858683399),
                                                           omega=(0.12828660029532482, 0.32904048602262866)))
print(json.dumps({"seconds": time.perf_counter() - start, "min_sep": audit.min_sep, "rho": audit.mechanisms[0].rho,
                  "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""
SWEEP = """
import json, sys, time
from fedray.runtime.placement import Placement
from fedray.studies.sweep.run import run_sweep
from fedray.studies.sweep.sweep import Sweep
from pathlib import Path
sweep, _ = Sweep.from_toml(Path(sys.argv[1], "sweep.toml"))
start = time.perf_counter()
result = run_sweep(sweep, None, Placement(), has_cache=False)
print(json.dumps({"seconds": time.perf_counter() - start, "cells": len(result.cells), "rows": len(result.table())}))
"""


def own_process(program: str, *arguments: str) -> dict[str, Any]:
    """What a program prints last, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def bench_import(rows: int) -> None:
    """A Parquet log of hashed ids, imported, then audited."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        write_log(Path(folder, "log.parquet"), rows)
        print(f"log of {rows:,} rows written in {time.perf_counter() - start:.0f} s", flush=True)
        for time_column in ("", "time"):
            found = own_process(IMPORT, folder, time_column)
            print(
                f"  import with{' times' if time_column else 'out times'} {found['seconds']:.1f} s, CPU {found['cpu']:.1f} s, "
                f"{1e9 * found['cpu'] / rows:.0f} ns a row, peak {found['peak']:.0f} MiB: {found['rows']:,} participations of "
                f"{found['devices']:,} devices",
                flush=True,
            )
        read = own_process(READ, folder)
        audit = own_process(AUDIT, folder)
        print(
            f"  audit {audit['seconds']:.1f} s, peak {audit['peak']:.0f} MiB; {audit['seconds'] / read['seconds']:.1f} x the "
            f"{read['seconds']:.2f} s in which pyarrow reads the same columns"
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
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sweep.toml").write_text(text)
        for state in ("designs cold", "designs warm"):
            found = own_process(SWEEP, folder)
            print(
                f"sweep of {found['cells']} cells, {found['rows']} rows, {state}: {found['seconds']:.0f} s",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", choices=["import", "sweep", []], default=[])
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--cells", type=int, default=200)
    arguments = parser.parse_args()
    for name in arguments.names or ("import", "sweep"):
        (bench_import if name == "import" else bench_sweep)(
            arguments.rows if name == "import" else arguments.cells
        )


if __name__ == "__main__":
    main()
