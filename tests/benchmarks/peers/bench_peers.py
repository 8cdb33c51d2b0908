"""Federated averaging by fedray and by other simulators, side by side: `make bench-peers`.

    python bench_peers.py --settings mlp --who fedray pfl flwr
    python bench_peers.py --settings mlp --who "fedray, 10^9 devices" "fedray, 10^3 devices"

The same models, data, local steps, clipping and noise (settings.py). Every simulator runs in an
environment of its own, which is made here from its locked requirements. A run is done twice, with
few and with many rounds: their difference has no start-up in it. Runs take turns, and medians of
the pairs are printed: device updates per CPU second of all processes, and per second of wall time;
beside them the limit, what the setting's matrix products alone take in the same run (limit.py).
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from limit import seconds_per_device

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
ENVIRONMENTS = Path(os.environ.get("FEDRAY_PEERS", ROOT / ".venv" / "peers"))
ROUNDS = {"mlp": (2, 52), "lstm": (1, 6), "cnn": (1, 6)}
"""Few and many: enough for their difference to be far above the noise of a start. A peer's loop of
100 devices takes about 0.3, 1 and 5 CPU s, and fedray's 0.01 s of the MLP: it runs 20 times more."""


def environment_of(peer: str) -> Path:
    """The interpreter of a peer's environment, which is made if it is not there."""
    folder = ENVIRONMENTS / peer
    python = folder / "bin" / "python"
    if not (folder / "made").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        requirements = str(HERE / f"requirements-{peer}.txt")
        # The lists are whole. Flower asks for a certifi of the day after the newest one that was
        # there; without --no-deps its list could not be installed.
        install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "-r", requirements]
        subprocess.run(install, check=True)
        (folder / "made").touch()
    return python


def command_of(who: str, setting: str, rounds: int) -> list[str]:
    """What runs a setting: one process, or as many as the name says.

    who: "fedray", "fedray, 2 trainers", "fedray, 10^9 devices" (most of which are idle), "pfl",
        "pfl, 2 processes", "flwr" (one actor) or "flwr, 2 actors".
    """
    simulator, _, more = who.partition(", ")
    if simulator == "fedray":
        trainers = more.partition(" trainers")[0] if more.endswith("trainers") else "1"
        devices = f"1e{more[3:].partition(' ')[0]}" if more.startswith("10^") else "1000"
        script = [str(HERE / "fedray_run.py"), setting, str(rounds), trainers, devices]
        return [sys.executable, *script]
    python = environment_of(simulator)
    script = [str(HERE / f"{simulator}_run.py"), setting, str(rounds)]
    if simulator == "flwr":
        return [str(python), *script, more.partition(" actors")[0] or "1"]
    if more == "2 processes":
        return [str(python), "-m", "torch.distributed.run", "--nproc-per-node=2", *script]
    return [str(python), *script]


def run(who: str, setting: str, rounds: int) -> tuple[float, float, int]:
    """CPU seconds of all processes, seconds of the training loop, device updates."""
    # Making a peer's environment is none of its work.
    command = command_of(who, setting, rounds)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{who}, {setting}: {done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return cpu, found["seconds"], found["devices"]


def rates(who: str, setting: str) -> tuple[float, float]:
    """Device updates per CPU second and per second, without the start."""
    few, many = ROUNDS[setting]
    many *= 20 if setting == "mlp" and who.startswith("fedray") else 1
    cpu_few, seconds_few, devices_few = run(who, setting, few)
    cpu_many, seconds_many, devices_many = run(who, setting, many)
    devices = devices_many - devices_few
    return devices / (cpu_many - cpu_few), devices / (seconds_many - seconds_few)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", nargs="+", default=list(ROUNDS))
    parser.add_argument("--who", nargs="+", default=["fedray", "flwr", "pfl"])
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    for who in chosen.who:
        command_of(who, chosen.settings[0], 1)  # makes its environment
    for setting in chosen.settings:
        print(f"{setting}: load {os.getloadavg()[0]:.1f}", flush=True)
        measured: dict[str, list[tuple[float, float]]] = {who: [] for who in chosen.who}
        started = time.monotonic()
        limits: list[float] = []
        for _ in range(chosen.repeats):
            limits.append(1 / seconds_per_device(setting))
            for who in chosen.who:
                measured[who].append(rates(who, setting))
        limit = statistics.median(limits)
        print(f"  {'products alone (limit)':28} {limit:9.1f} per CPU s", flush=True)
        for who, pairs in measured.items():
            cpu, wall = (statistics.median(column) for column in zip(*pairs, strict=True))
            first = measured[chosen.who[-1]]
            ratio = statistics.median(
                mine[0] / other[0] for mine, other in zip(pairs, first, strict=True)
            )
            share = statistics.median(
                mine[0] / alone for mine, alone in zip(pairs, limits, strict=True)
            )
            print(
                f"  {who:28} {cpu:9.1f} per CPU s {wall:9.1f} per s"
                f"   {ratio:5.2f} times {chosen.who[-1]}   {share:4.2f} of the limit",
                flush=True,
            )
        print(f"  ({time.monotonic() - started:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
