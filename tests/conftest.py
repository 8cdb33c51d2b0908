"""Fixtures that many tests share: a small scenario, hand-made traces, and one Ray cluster for the session."""

import base64
import contextlib
import gc
import gzip
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

# Before NumPy is loaded. BLAS would start a thread per core in every one of the processes, each of
# which waits for the others by spinning: the tests of optimisers took 2.5 times the CPU time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# pytest-xdist sets a width, which tables of commands follow.
os.environ.pop("COLUMNS", None)

import numpy as np
import pytest

from fedray.base.blocks import part_ranges
from fedray.base.result import Result
from fedray.scenario import Scenario
from fedray.trace.reader import Trace
from fedray.trace.trained import TrainedRun, TrainedRunWriter
from fedray.trace.writer import TraceWriter, encode_part
from fedray.wire.messages import (
    Evaluated,
    Evaluation,
    Measured,
    Metric,
    Outcome,
    RoundRecord,
    TaskDescription,
    TrainingMetrics,
    TrainReport,
)

# A shell starts its background jobs with SIGINT ignored. The processes that tests start would
# inherit that, and never hear the interruption that a test sends them.
signal.signal(signal.SIGINT, signal.default_int_handler)

SMALL = {
    "name": "small",
    "seed": 7,
    "population": {"devices": 20_000},
    "participation": {"timer_hours": 12.0},
    "rounds": {"count": 12, "report_goal": 200, "look_ahead_minutes": 30.0},
    "training": {"enabled": False},
}


@pytest.fixture(autouse=True, scope="session")
def _no_table_mixes_subjects() -> Iterator[None]:
    """Every table of a result that any test shows has a subject, and its rows differ from each other in no facet that their cells do not say."""
    tables = Result.tables

    def checked(self: Result) -> list[Any]:
        found = tables(self)
        for each in found:
            for shown in (each, each.brief()):
                assert not shown.mixed, f"{shown.title!r} mixes {shown.mixed}"
            assert not each.rows or each.subject.population, f"{each.title!r} says no population"
        return found

    Result.tables = checked  # pyright: ignore[reportAttributeAccessIssue]
    yield
    Result.tables = tables


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that share the session's cluster run in one process, and so do those that share a fixture, which is then made once.

    Processes take them in this order: first the cluster's, since they are the largest group; beside
    them tests that compile, and those of mechanisms, so that after a checkout one process compiles
    what simulations need, another what only a few tests need, the third nothing, and no process
    compiles what another one has begun; then the groups, the slow tests, and at the end quick ones,
    with which all processes end together.
    """
    groups = {item: group_of(item) for item in items}
    for item, group in groups.items():
        if group is not None and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group))
    # What is imported by now stays, and is not searched for garbage again and again.
    gc.freeze()
    if hasattr(config, "workerinput"):  # one process alone has each module's tests together
        items.sort(
            key=lambda item: (
                groups[item] != "ray",
                item.get_closest_marker("compiles") is None,
                item.path.parent.name != "mechanisms",
                groups[item] is None,
                groups[item] is None and item.get_closest_marker("slow") is None,
            )
        )


def group_of(item: pytest.Item) -> str | None:
    """`ray`, the group that is given, `compiles`, or the module or folder of a fixture that outlives its test."""
    if item.get_closest_marker("ray") is not None:
        return "ray"
    given = item.get_closest_marker("xdist_group")
    if given is not None:
        return given.args[0]
    if item.get_closest_marker("compiles") is not None:
        return "compiles"
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    homes = {each[-1].baseid for each in fixtures if each[-1].scope != "function"}
    # Fixtures of this file and of plugins are everybody's.
    return min(homes - {"", "tests"}, key=len, default=None)


def pytest_make_parametrize_id(val: object) -> str | None:
    """The beginning of a long text: a test whose name has 100,000 characters is sent by that name."""
    return ascii(val[:60])[1:-1] + "..." if isinstance(val, str) and len(val) > 80 else None


def small_scenario(*overrides: str) -> Scenario:
    """20,000 devices, 12 rounds of 200, no training; with overrides."""
    return Scenario.from_tables(SMALL).with_overrides(*overrides)


@pytest.fixture(scope="session")
def small() -> Callable[..., Scenario]:
    """Builds the small scenario with overrides."""
    return small_scenario


def write_trace(
    directory: Path,
    patterns: list[list[int]],
    rounds: int,
    scenario: Scenario | None = None,
    owners: Sequence[int] | None = None,
) -> Path:
    """A trace in which device i took part in exactly the rounds patterns[i], and belongs to owners[i]; times are made up but in order."""
    scenario = scenario or small_scenario()
    pairs = [
        (device, index) for device, pattern in enumerate(patterns) for index in sorted(pattern)
    ]
    devices = np.array([device for device, _ in pairs], np.uint64)
    indices = np.array([index for _, index in pairs], np.uint32)
    with TraceWriter(directory) as writer:
        for first, end in part_ranges(scenario.population.devices, 0, scenario.population.devices):
            inside = (devices >= first) & (devices < end)
            times = 100.0 * indices[inside]
            columns = {
                "round": indices[inside],
                "device_id": devices[inside],
                "checkin_time": times + 1.0,
                "report_time": times + 50.0,
                "outcome": np.full(int(inside.sum()), Outcome.ACCEPTED, np.uint8),
                "examples": np.ones(int(inside.sum()), np.uint32),
            }
            if owners is not None:
                columns["owner_id"] = np.array(owners, np.uint64)[devices[inside].astype(int)]
            writer.add_part(encode_part(first, end, columns))
        accepted = np.bincount(indices, minlength=rounds)
        records = [
            RoundRecord(
                t,
                100.0 * t,
                100.0 * t + 10.0,
                100.0 * t + 60.0,
                *(3 * [int(accepted[t])]),
                True,
                1000,
            )
            for t in range(rounds)
        ]
        document = {
            "ended": "completed",
            "seed": scenario.seed,
            "scenario_digest": scenario.digest,
            "scenario": scenario.to_tables(),
            "written": "2026-01-01T00:00:00+00:00",
            "wall_seconds": 0.0,
            "shards": 1,
        }
        return writer.finish(records, document)


@pytest.fixture
def trace_of(tmp_path: Path) -> Callable[..., Trace]:
    """Writes and opens a hand-made trace."""
    made = iter(range(10_000))
    return lambda patterns, rounds, scenario=None, owners=None: Trace.open(
        write_trace(tmp_path / f"trace-{next(made)}", patterns, rounds, scenario, owners)
    )


@pytest.fixture(scope="session")
def shared_trace_of(tmp_path_factory) -> Callable[..., Trace]:
    """The same for fixtures of a whole module."""
    return lambda patterns, rounds, scenario=None: Trace.open(
        write_trace(tmp_path_factory.mktemp("shared") / "trace", patterns, rounds, scenario)
    )


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """One local Ray cluster for all tests that need one; everything is shut down at the end."""
    from fedray.runtime import session
    from fedray.runtime.placement import Placement

    with session.session(Placement(object_store_megabytes=200)):
        # As one of several machines, whose shards are never in the driver.
        session._joined.clear()
        yield


@pytest.fixture
def gauges(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], list[float]]:
    """Values that this process gives to Ray's gauges, by run and name."""
    from ray.util.metrics import Gauge

    values: dict[tuple[str, str], list[float]] = {}
    real = Gauge.set

    def set_and_note(gauge: Gauge, value: float, tags: Any = None) -> None:
        key = gauge.info["default_tags"]["run"], gauge.info["name"]
        values.setdefault(key, []).append(value)
        real(gauge, value, tags)

    monkeypatch.setattr(Gauge, "set", set_and_note)
    return values


@pytest.fixture
def start() -> Iterator[Callable[..., "subprocess.Popen[Any]"]]:
    """Starts a process as `subprocess.Popen` does; kills it after the test if it still runs."""
    with contextlib.ExitStack() as stack:

        def started(command: list[str], **options: Any) -> "subprocess.Popen[Any]":
            process = stack.enter_context(subprocess.Popen(command, **options))
            # Called before the process's own exit, which would wait for it.
            stack.callback(process.kill)
            return process

        yield started


@pytest.fixture
def fedray_command(capsys) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in this process: (exit code, stdout, stderr)."""
    from fedray.cli import command

    def run(*arguments: str) -> tuple[int, str, str]:
        before, sys.argv = sys.argv, ["fedray", *arguments]
        try:
            code = command()
        finally:
            sys.argv = before
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def quick_fits(monkeypatch) -> None:
    """Fits simulate 1,200 devices at least and not 10,000: three times those of most logs here, where
    fits of large logs have four times. The noise of the simulation is in every standard error and in
    J, whatever their number. `make fits` has the 10,000."""
    if "FEDRAY_ALL_SEEDS" not in os.environ:
        monkeypatch.setattr("fedray.studies.habits.fit.LEAST_SIMULATED", 1_200)


EVALUATED = {"devices": 5, "examples": 9, "available": 9, "held_out_devices": 5}
"""The data of the evaluations of made-up trained runs."""


def write_trained(
    directory: Path,
    trace: Trace,
    finals: dict[str, float],
    *overrides: str,
    rounds: int = 4,
    error: float = 0.01,
    clipped: int | None = None,
    knows_trace: bool = False,
    start: dict[str, float] | None = None,
    planned: int | None = None,
    optimum: dict[str, float] | None = None,
) -> TrainedRun:
    """A trained run of a trace whose metrics rise evenly to `finals`, evaluated in every second round with a standard `error`; nothing is
    trained. Of a round's 8 updates `clipped` are clipped, or as many as its number. `start` are the metrics before the training, with that error too, and `planned`
    the rounds of its scenario; all are trained by default."""
    scenario = Scenario.from_tables(trace.scenario).with_overrides(
        "training.enabled=true", f"rounds.count={planned or rounds}", *overrides
    )
    metrics = tuple(
        Metric(name, "share of words", "lower" if name == "loss" else "higher") for name in finals
    )
    description = TaskDescription({"w": (2,)}, metrics, optimum or {})
    rows = [
        TrainingMetrics(
            TrainReport(
                round_index=t,
                devices=10,
                trained=8,
                without_examples=2,
                clipped=t if clipped is None else clipped,
            ),
            Evaluation(
                {name: Measured((t + 1) / rounds * end, error) for name, end in finals.items()},
                Evaluated(**EVALUATED),
            )
            if t % 2
            else None,
        )
        for t in range(rounds)
    ]
    document = {
        "trace_digest": trace.digest,
        # By default the run does not know where its trace is, as after a move.
        "trace": os.path.relpath(trace.path, directory) if knows_trace else "nowhere",
        "rounds": rounds,
        "seed": scenario.training_seed,
        **scenario.to_document(),
        "aggregator_device": "cpu",
        "encoding": {"kind": "fixed_point", "bits_per_parameter": 64.0, "inflation": 1.0},
        "notes": [],
        "update_noise": 0.0,
        "noise_warning": "",
        "start": start or {},
        "start_errors": dict.fromkeys(start or {}, error),
        "evaluated": EVALUATED,
        "written": "2026-01-02T00:00:00+00:00",
    }
    with TrainedRunWriter(directory) as writer:
        path = writer.finish(rows, description, np.zeros(2, np.float32), document)
    return TrainedRun.open(path)


@pytest.fixture
def trained_of(tmp_path: Path) -> Callable[..., TrainedRun]:
    """Writes and opens a made-up trained run, under a name."""
    return lambda name, *arguments, **more: write_trained(tmp_path / name, *arguments, **more)


NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?")


@pytest.fixture(scope="session")
def numbers_in() -> Callable[[str], list[float]]:
    """The numbers of a text in order, so that a test holds what a sentence says, however it says it."""
    return lambda text: [float(each.replace(",", "")) for each in NUMBER.findall(text)]


@pytest.fixture(scope="session")
def script() -> Callable[[str, str], Any]:
    """What a page's script element holds, by the page and the element's id."""

    def content(page: str, name: str) -> Any:
        found = re.search(
            rf'<script type="([^"]+)" id="{name}">(.*?)</script>', page, flags=re.DOTALL
        )
        assert found is not None
        is_packed = found.group(1) == "text/plain"
        return json.loads(
            gzip.decompress(base64.b64decode(found.group(2))) if is_packed else found.group(2)
        )

    return content


@pytest.fixture(scope="session")
def on_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Runs a program on nodes that it adds to a cluster (`nodes.py` says how), and gives its `result`."""
    folder = tmp_path_factory.mktemp("nodes")
    command = [sys.executable, str(Path(__file__).parent / "simulation" / "nodes.py")]
    pipe: Any = subprocess.PIPE
    with (
        (folder / "stderr").open("w") as log,
        subprocess.Popen(
            command, cwd=folder, stdin=pipe, stdout=pipe, stderr=log, text=True
        ) as host,
    ):
        asked: Any = host.stdin

        def run(program: str, *arguments: Any, is_connected: bool = True) -> Any:
            try:
                asked.write(json.dumps([program, [*map(str, arguments)], is_connected]) + "\n")
                asked.flush()
                for line in host.stdout or ():
                    kind, _, text = line.partition(" ")
                    if kind in ("RESULT", "FAILED"):
                        break
                else:
                    kind, text = "FAILED", json.dumps((folder / "stderr").read_text()[-5000:])
            except BaseException:
                host.kill()  # what it answers later is no answer to the next test
                raise
            assert kind == "RESULT", json.loads(text)
            return json.loads(text)

        yield run
        asked.close()
