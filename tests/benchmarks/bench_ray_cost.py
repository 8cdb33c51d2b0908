"""What Ray costs: the quickstart in this process and on Ray, by all processes; and the driver's part of a run with 64 hosts.

    python tests/benchmarks/bench_ray_cost.py [--pairs 2] [--hosts 1 8 64] [--set KEY=VALUE]

Pairs alternate, and their digests are compared. CPU seconds are those of the command and all its descendants, Ray's daemons among them, read
until they end. Hosts are threads of two actors on one node: their messages go through Ray as those of nodes do.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench_scale import GOAL, counted, of

from fedray.runs.simulation import simulate
from fedray.runtime import reservation, workers
from fedray.runtime.gauges import Gauges
from fedray.runtime.nodes import Node, cluster_nodes
from fedray.runtime.placement import Placement
from fedray.runtime.session import session
from fedray.scenario import Scenario
from fedray.trace.reader import Trace
from fedray.wire.messages import Progress

TICKS = os.sysconf("SC_CLK_TCK")
ACTORS = 2
"""Actors that share the hosts."""
QUICKSTART = Path(__file__).parents[2] / "scenarios" / "quickstart.toml"
KINDS = ("driver", "workers", "daemons")


class Clock:
    """CPU seconds of a process and its descendants by kind, read ten times a second until they end."""

    def __init__(self, root: int) -> None:
        self._root, self._known = root, {root}
        self._read: dict[tuple[int, str], tuple[str, float]] = {}
        self._is_open = True
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> dict[str, float]:
        self._is_open = False
        self._thread.join()
        return self.seconds

    def _watch(self) -> None:
        while self._is_open:
            self._look()
            time.sleep(0.1)

    def _look(self) -> None:
        found: dict[int, tuple[int, int, str, str]] = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                # After the name, which may hold blanks: state, parent, group, ..., ticks, ..., start.
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:  # it has ended
                continue
            ticks = int(fields[11]) + int(fields[12])
            found[int(folder.name)] = int(fields[1]), ticks, fields[19], words
        before = 0
        # A descendant that was seen stays one, whatever becomes of its parent.
        while before < len(self._known):
            before = len(self._known)
            self._known |= {each for each, (parent, *_) in found.items() if parent in self._known}
        for each in self._known & found.keys():
            _, ticks, start, words = found[each]
            kind = self._kind_of(each, words)
            # One that has ended has no words.
            before, _ = self._read.get((each, start), (kind, 0.0))
            self._read[each, start] = kind if words else before, ticks / TICKS

    def _kind_of(self, process: int, words: str) -> str:
        if process == self._root:
            return "driver"
        return "workers" if words.startswith("ray::") else "daemons"

    @property
    def seconds(self) -> dict[str, float]:
        return {
            name: sum(each for kind, each in list(self._read.values()) if kind == name)
            for name in KINDS
        }


class Spent(NamedTuple):
    """What one run of the command took."""

    phases: dict[str, tuple[float, float]]
    """Wall and CPU seconds until the first round is formed, until the trace is complete, and until the end."""
    kinds: dict[str, float]
    """CPU seconds of the command's own process, of Ray's workers, and of its daemons."""
    digests: tuple[str, str]
    """Of the trace and the model."""

    @property
    def wall(self) -> float:
        return sum(wall for wall, _ in self.phases.values())

    @property
    def cpu(self) -> float:
        return sum(self.kinds.values())


def spent(backend: str, overrides: list[str]) -> Spent:
    """One run of the quickstart: simulation, training, audit and page."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        command = [
            sys.executable,
            "-m",
            "fedray",
            "--quiet",
            "run",
            str(QUICKSTART),
            "--out",
            str(out),
        ]
        options = [f"--set={each}" for each in overrides]
        begun = time.perf_counter()
        process = subprocess.Popen(
            [*command, *options, "--place", f"backend={backend}"], stdout=subprocess.DEVNULL
        )
        clock = Clock(process.pid)
        # A run that has begun keeps a first checkpoint.
        moments = [
            _when(
                lambda: any(out.with_name("run.partial").glob("checkpoints/*.npz")),
                process,
                clock,
                begun,
            ),
            _when((out / "run.json").exists, process, clock, begun),
            _when(lambda: False, process, clock, begun),
        ]
        kinds = clock.close()
        if process.returncode:
            raise SystemExit(f"the run on {backend} failed with exit code {process.returncode}")
        model = out / "training" / "training.json"
        digests = (
            json.loads((out / "run.json").read_text())["digest"],
            json.loads(model.read_text())["model_sha256"] if model.exists() else "",
        )
    before = [(0.0, 0.0), *moments]
    phases = {
        name: (now[0] - then[0], now[1] - then[1])
        for name, then, now in zip(("start", "simulation", "rest"), before, moments, strict=False)
    }
    return Spent(phases, kinds, digests)


def _when(
    has_come: Callable[[], bool], process: subprocess.Popen[bytes], clock: Clock, begun: float
) -> tuple[float, float]:
    """Wall and CPU seconds at which something has come, or the process ends."""
    while process.poll() is None and not has_come():
        time.sleep(0.05)
    return time.perf_counter() - begun, sum(clock.seconds.values())


def pairs(count: int, overrides: list[str]) -> None:
    """Runs in this process and on Ray take turns; each pair begins with the other one."""
    done: dict[str, list[Spent]] = {"in-process": [], "ray": []}
    for number in range(count):
        for backend in sorted(done, reverse=number % 2 == 1):
            done[backend].append(run := spent(backend, overrides))
            parts = "  ".join(
                f"{name} {wall:.1f} s, {cpu:.1f}" for name, (wall, cpu) in run.phases.items()
            )
            kinds = "  ".join(f"{name} {seconds:.1f}" for name, seconds in run.kinds.items())
            print(
                f"  {backend:10}  wall {run.wall:6.1f} s  CPU {run.cpu:6.1f} s: {kinds}; {parts}",
                flush=True,
            )
    here, there = (done[each] for each in ("in-process", "ray"))
    for name in ("wall", "cpu"):
        ratios = [getattr(b, name) / getattr(a, name) for a, b in zip(here, there, strict=True)]
        print(f"Ray over in process, {name}: {'  '.join(f'{each:.2f}' for each in ratios)}")
    print(f"same digests: {len({run.digests for run in [*here, *there]}) == 1}")


class Hosts(NamedTuple):
    """A run with so many hosts; CPU seconds."""

    hosts: int
    windows: int
    rows: int
    driver: float
    messages: float
    """Per window, both ways."""
    kibibytes: float
    digest: str


def hosts_of(value: Scenario, hosts: int, *, counts: bool, profile: str = "") -> Hosts:
    """A run with hosts, from a process of its own."""
    options = [*(["--count"] if counts else []), *(["--profile", profile] if profile else [])]
    done = subprocess.run(
        [sys.executable, __file__, "--one", str(hosts), *options],
        input=value.to_toml(), cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return Hosts(*json.loads(done.stdout.splitlines()[-1]))


def one(hosts: int, counts: bool, profile: str) -> None:
    """What `hosts_of` runs."""
    value = Scenario.from_tables(tomllib.loads(sys.stdin.read()))
    placement = Placement(hosts, "ray")
    with tempfile.TemporaryDirectory() as folder, session(placement):
        # Loads the driver's code. Hosts load theirs before the first attempt closes.
        small = value.with_overrides("population.devices=300000", "rounds.report_goal=20")
        simulate(
            small.with_overrides("rounds.count=3"), Placement(2, "in-process"), f"{folder}/warm"
        )
        reservation._RESERVED.set(_reservation(hosts))
        _share_processes(hosts)
        sizes = counted() if counts else []
        before: list[float] = []

        def tell(progress: Progress) -> None:
            if not before:
                before.append(time.process_time())

        def run() -> Trace:
            return simulate(value, placement, f"{folder}/run", tell)

        trace = _profiled(run, profile) if profile else run()
        driver = time.process_time() - before[0]
    use, samplers = trace.run["shard_use"], trace.run["samplers"]
    windows = samplers["thinned_windows"] + samplers["enumerated_windows"]
    rows = sum(each["rows"] for each in use)
    print(json.dumps(Hosts(
        len(use), windows, rows, driver, len(sizes) / windows, sum(sizes) / windows / 1024, trace.digest,
    )))  # fmt: skip


def _profiled(run: Callable[[], Trace], out: str) -> Trace:
    import cProfile

    profile = cProfile.Profile(time.thread_time)
    trace = profile.runcall(run)
    profile.dump_stats(out)
    return trace


def _reservation(hosts: int) -> reservation.Reservation:
    """As many nodes as hosts, all of them this machine."""
    from fedray.runtime.claims import Claim

    node = Node(cluster_nodes()[0].name, 1.0)
    # Whoever holds CPUs has no group, and is placed by the node's name.
    claim = Claim((node,) * hosts, held=(None,))  # pyright: ignore[reportArgumentType]
    return reservation.Reservation(
        claim, 0, 0, f"hosts-{hosts}", Gauges("hosts", {}), set(), [claim]
    )


def _share_processes(hosts: int) -> None:
    """Puts hosts on threads of a few actors, because a process of each would need 20 GB."""
    each = -(-hosts // ACTORS)
    made: dict[int, Any] = {}

    def process_of(spec: workers.ActorSpec) -> Any:
        place = spec.bundle // each
        if place not in made:
            made[place] = workers._Process(spec, "Shard", f"hosts-{place}", each)
        return made[place]

    workers._process_of = process_of


def hosts(counts: list[int], overrides: list[str]) -> None:
    """One run with each number of hosts, without and with messages counted, which costs the driver time."""
    value = of(20_000_000, GOAL).with_overrides(*overrides)
    print(
        f"hosts: {value.population.devices:,} devices, {value.rounds.count} rounds of {value.rounds.report_goal}"
    )
    digests: set[str] = set()
    for count in counts:
        run, few = hosts_of(value, count, counts=False), hosts_of(value, count, counts=True)
        digests |= {run.digest, few.digest}
        print(
            f"  {run.hosts:3} hosts  {run.rows:>10,} rows  {run.windows:4} windows  driver {run.driver:6.2f} CPU s"
            f"  a window: {few.messages:.0f} messages, {few.kibibytes:.0f} KiB",
            flush=True,
        )
    print(f"same bytes with all of them: {len(digests) == 1}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--hosts", type=int, nargs="*", default=[])
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--one", type=int)
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--profile", default="")
    arguments = parser.parse_args()
    if arguments.one:
        one(arguments.one, arguments.count, arguments.profile)
        return
    if arguments.pairs:
        pairs(arguments.pairs, arguments.overrides)
    if arguments.hosts:
        hosts(arguments.hosts, arguments.overrides)


if __name__ == "__main__":
    main()
