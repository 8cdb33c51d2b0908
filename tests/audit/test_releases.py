"""Charges of a ledger are releases: nothing is counted once that was released twice, noise is never shared, and files or lines of any content are
refused in one line."""

import contextlib
import copy
import datetime
import hashlib
import json
import math
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fedray.audit import ledger as ledger_module
from fedray.audit.audit import Audit
from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim
from fedray.audit.ledger import CHAIN_FILE, Ledger
from fedray.audit.ledger_charges import noise_of
from fedray.audit.ledger_lines import Promise
from fedray.audit.several_tasks import audit_tasks
from fedray.base.chain import append_to_chain, read_chain
from fedray.base.errors import FedrayError, InputError
from fedray.imports.importer import import_log
from fedray.mechanisms.accounting.events import Gaussian
from fedray.mechanisms.accounting.gdp import gdp_epsilon
from fedray.mechanisms.registry import Tree
from fedray.runs.budgeted import charge_run, reserved, worst_rho
from fedray.runs.calibrated import worst_participation
from fedray.runs.pipeline import run_scenario
from fedray.runs.simulation import simulate, simulate_checked
from fedray.runtime.placement import Placement
from fedray.scenario import SeveralTasks
from fedray.trace.partial import Lock
from fedray.trace.reader import Trace
from fedray.wire.messages import RunProgress

HERE = Placement(1, "in-process")
CLAIM = Claim(mechanism=Tree(), noise_multiplier=3.0)
OCTOBER = datetime.date(2026, 10, 1)
DAY = datetime.timedelta(days=1)


def log_of(
    folder: Path,
    name: str,
    rows: list[tuple[str, int]],
    rounds: int,
    first: datetime.date | None = OCTOBER,
    owners: dict[str, str] | None = None,
) -> Audit:
    """The audit of a log of (device, round), a round a day from a first day on, or without times."""
    lines = ["device,round" + (",time" if first else "") + (",owner" if owners else "")]
    for device, number in rows:
        time = f",{(first + number * DAY).isoformat()}T00:00:00Z" if first else ""
        lines.append(f"{device},{number}{time}" + (f",{owners[device]}" if owners else ""))
    file = folder / f"{name}.csv"
    file.write_text("\n".join(lines) + "\n")
    more: Any = {"time_column": "time" if first else None}
    more["owner_column"] = "owner" if owners else None
    return audit_trace(
        import_log(file, "device", "round", rounds, folder / name, **more), claim=CLAIM
    )


def rho_of_rounds(rounds: list[int], n: int) -> float:
    """Brute force: the squared norm of the sum of columns of C, over 2 z^2."""
    column = Tree().definition(n)[:, rounds].sum(axis=1)
    return float(column @ column) / (2 * CLAIM.noise_multiplier**2)


def epsilon_of_rho(rho: float, delta: float) -> float:
    return gdp_epsilon(Gaussian(noise_multiplier=1.0, sensitivity=math.sqrt(2 * rho)), delta)


CYCLE = [(f"d{number % 7}", number) for number in range(21)]
"""Seven devices that take turns in 21 rounds."""


def test_four_quarters_of_a_fixed_cycle_are_four_releases(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger", 90.0, 1e-6, "year")
    quarters = [
        log_of(tmp_path, f"q{i}", CYCLE, 21, datetime.date(2026, 3 * i + 1, 1)) for i in range(4)
    ]
    assert len({each.digest for each in quarters}) == 1
    for each in quarters:
        ledger = ledger.charge([each])
    one = max(rho_of_rounds([i, i + 7, i + 14], 21) for i in range(7))
    (window,) = ledger.windows
    assert window.recorded == pytest.approx(4 * one, rel=1e-12)
    assert window.epsilon == pytest.approx(epsilon_of_rho(4 * one, 1e-6), rel=1e-9)
    # Each of them again is none.
    assert ledger.charge(quarters[2:3]).entries == ledger.entries
    # At times that overlap nothing shows whether it is one of them.
    with pytest.raises(
        InputError, match="line 2 of the ledger has the same .* but not the same times.*`release="
    ):
        ledger.charge([log_of(tmp_path, "late", CYCLE, 21, datetime.date(2026, 1, 9))])


def test_a_log_without_times_is_charged_again_only_by_a_name(
    tmp_path: Path, fedray_command, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Ledger.create("ledger", 90.0, 1e-6, "year")
    log_of(tmp_path, "log", CYCLE, 21, None)
    Path("claim.toml").write_text('mechanism = "tree"\nnoise_multiplier = 3.0\n')

    def add(*more: str) -> tuple[int, str]:
        given = ("--add", "log", "--claim", "claim.toml", *more)
        code, _, error = fedray_command("--quiet", "budget", "ledger", *given)
        return code, error

    assert "--start must be given" in add()[1]
    assert add("--start", "2026-01-01", "--release", "first")[0] == 0
    for start in ("2026-01-01", "2026-04-01"):
        code, error = add("--start", start)
        assert code == 2
        assert "at times that overlap or are unknown" in error
        assert error.count("\n") == 1
    one = Ledger.open("ledger").windows[0].recorded
    assert add("--start", "2026-01-01", "--release", "first")[0] == 0
    assert Ledger.open("ledger").windows[0].recorded == one
    assert add("--start", "2026-04-01", "--release", "second")[0] == 0
    assert Ledger.open("ledger").windows[0].recorded == pytest.approx(2 * one)
    head = Ledger.open("ledger").head
    assert "--release='no name' must be" in add("--start", "2026-04-01", "--release", "no name")[1]
    assert Ledger.open("ledger").head == head


WRONG = {f"d{i}": f"p{i}" for i in range(7)}
RIGHT = {**WRONG, **dict.fromkeys(("d0", "d1", "d2"), "p0")}


@pytest.mark.parametrize("is_larger_last", [True, False])
def test_a_corrected_owner_column_counts_the_larger_of_both(
    tmp_path: Path, is_larger_last: bool
) -> None:
    ledger = Ledger.create(tmp_path / "ledger", 90.0, 1e-6, "year", "person")
    versions = [
        log_of(tmp_path, name, CYCLE, 21, owners=each)
        for name, each in (("w", WRONG), ("r", RIGHT))
    ]
    first, second = versions if is_larger_last else versions[::-1]
    ledger = ledger.charge([first])
    name = ledger.charges[2].name
    with pytest.raises(
        InputError, match=f"devices and owners; `release={name}` makes this a correction"
    ):
        ledger.charge([second])
    corrected = ledger.charge([second], release=name)
    of_person = rho_of_rounds(sorted(n for d, n in CYCLE if d in ("d0", "d1", "d2")), 21)
    (window,) = corrected.windows
    assert window.recorded == pytest.approx(of_person, rel=1e-12)
    assert window.epsilon == pytest.approx(epsilon_of_rho(of_person, 1e-6), rel=1e-9)
    assert window.units == 7
    assert "Over 1 release, " in corrected.statement()
    assert corrected.charge([second], release=name).entries == corrected.entries
    assert corrected.charge([second]).entries == corrected.entries
    # As another release, both add up for every person.
    both = ledger.charge([second], release="other")
    more = of_person if is_larger_last else rho_of_rounds([0, 7, 14], 21)
    assert both.windows[0].recorded == pytest.approx(of_person + more, rel=1e-12)
    other = log_of(tmp_path, "other", CYCLE[:14], 14, owners=WRONG)
    with pytest.raises(InputError, match="is line 2, of another mechanism, participations or time"):
        corrected.charge([other], release=name)


def test_random_releases_and_corrections_are_what_brute_force_says(tmp_path: Path) -> None:
    """Per unit: the sum over releases of the largest rho of a version."""
    draw = random.Random(5)
    ledger = Ledger.create(tmp_path / "ledger", 1e5, 1e-6, "year", "person")
    expected: dict[tuple[int, str], float] = {}
    n = 9
    for release in range(5):
        rows = sorted({(f"d{draw.randrange(6)}", number) for number in range(n) for _ in range(2)})
        for version in range(draw.randint(1, 3)):
            owners = {f"d{i}": f"p{draw.randrange(4)}" for i in range(6)}
            audit = log_of(
                tmp_path, f"{release}-{version}", rows, n, OCTOBER + release * 12 * DAY, owners
            )
            ledger = ledger.charge([audit], release=f"r{release}")
            for person in set(owners.values()):
                theirs = [number for device, number in rows if owners[device] == person]
                if theirs:
                    key = release, person
                    expected[key] = max(expected.get(key, 0.0), rho_of_rounds(theirs, n))
    of_persons = {
        p: sum(rho for (_, person), rho in expected.items() if person == p) for _, p in expected
    }
    (window,) = ledger.windows
    assert window.recorded == pytest.approx(max(of_persons.values()), rel=1e-12)
    assert window.units == len(of_persons)


TRAINED = (
    "rounds.count=3",
    "participation.max_participations=1",
    "population.devices=3000",
    "rounds.report_goal=20",
    "training.cohort_sample=10",
)


@pytest.fixture(scope="module")
def run(small, tmp_path_factory) -> Trace:
    return simulate(small(*TRAINED), HERE, tmp_path_factory.mktemp("run") / "run")


def test_a_run_and_two_trainings_are_three_charges_and_one_with_its_seed_is_refused(
    run: Trace, trained_of, tmp_path: Path, fedray_command
) -> None:
    path = str(Ledger.create(tmp_path / "ledger", 90.0, 1e-6, "quarter").path)
    ledger = charge_run(path, run, OCTOBER)
    one = ledger.windows[0].recorded
    for seed in (101, 102):
        trained = trained_of(f"t{seed}", run, {}, f"training.seed={seed}", knows_trace=True)
        for is_known in (False, True):
            code, _, error = fedray_command("--quiet", "budget", path, "--add", str(trained.path))
            assert code == 0, error
            assert ("has this release already, so nothing was charged" in error) == is_known
    ledger = Ledger.open(path)
    assert len(ledger.charges) == 3
    audit = audit_trace(run)
    assert one == pytest.approx(audit.mechanisms[0].rho, rel=1e-12)
    assert ledger.windows[0].recorded == pytest.approx(3 * one, rel=1e-12)
    same = trained_of("same", run, {}, "privacy.noise_multiplier=50", knows_trace=True)
    code, _, error = fedray_command("--quiet", "budget", path, "--add", str(same.path))
    assert code == 2
    assert "line 2 has the same noise (seed 7 on cpu)" in error
    assert error.count("\n") == 1
    # By Python too: an audit with another scenario is of a training, not of the run.
    with pytest.raises(InputError, match="has the same noise"):
        ledger.charge(
            [
                audit_trace(
                    run,
                    scenario=audit_scenario(run, "training.seed=7", "privacy.noise_multiplier=9"),
                )
            ]
        )
    more = ledger.charge([audit_trace(run, scenario=audit_scenario(run, "training.seed=103"))])
    assert more.windows[0].recorded == pytest.approx(4 * one, rel=1e-12)
    with pytest.raises(InputError, match="release='x' names releases of logs"):
        more.charge([audit], release="x")


def audit_scenario(run: Trace, *overrides: str) -> Any:
    scenario = audit_trace(run).scenario
    assert scenario is not None
    return scenario.with_overrides("training.enabled=true", *overrides)


def test_noise_on_a_gpu_is_another_release(run: Trace, trained_of, small, tmp_path: Path) -> None:
    path = Ledger.create(tmp_path / "ledger", 90.0, 1e-6, "quarter").path
    trainings = [
        trained_of(f"t{i}", run, {}, "training.seed=9", knows_trace=True) for i in range(3)
    ]
    for training, device in zip(
        trainings, ("cpu", "cuda NVIDIA H100", "cuda NVIDIA H200"), strict=True
    ):
        training.document["aggregator_device"] = device
    charge_run(path, trainings[0], OCTOBER)
    assert len(charge_run(path, trainings[1]).charges) == 2
    # Another model of GPU trains another model, and may draw the same numbers.
    with pytest.raises(InputError, match="line 3 has the same noise"):
        charge_run(path, trainings[2])
    counted = small("privacy.mechanism={kind='identity'}", "privacy.clipping={kind='adaptive'}")
    assert noise_of(counted, "cuda NVIDIA H100") == ("7 on cpu", "7 on cuda")
    assert noise_of(small(), "cuda NVIDIA H100") == ("7 on cuda",)


def test_runs_that_share_noise_are_refused_before_they_start(
    run: Trace, small, tmp_path: Path
) -> None:
    path = Ledger.create(tmp_path / "ledger", 90.0, 1e-6, "year").path
    charge_run(path, run, OCTOBER)
    other = small(*TRAINED, "seed=8", "training.seed=7")
    for scenario, start in ((other, OCTOBER), (small(*TRAINED), OCTOBER + 9 * DAY)):
        with pytest.raises(InputError, match="has the same noise"), reserved(path, scenario, start):
            pytest.fail("the run started")
    # An open reservation counts too, and its own run may be charged.
    with (
        contextlib.suppress(KeyboardInterrupt),
        reserved(path, small(*TRAINED, "training.seed=9"), OCTOBER),
    ):
        raise KeyboardInterrupt
    with (
        pytest.raises(InputError, match="has the same noise"),
        reserved(path, small("training.seed=9"), OCTOBER),
    ):
        pytest.fail("the run started")
    with pytest.raises(InputError, match="has the same noise"):
        Ledger.open(path).charge(
            [audit_trace(run, scenario=audit_scenario(run, "training.seed=9"))], OCTOBER
        )
    gpu = Placement(1, aggregator_gpus=1.0)
    with reserved(path, small("training.seed=9"), OCTOBER, gpu) as begun:
        begun()


@pytest.mark.slow
def test_a_resumed_run_starts_only_within_the_budget(small, tmp_path: Path, fedray_command) -> None:
    scenario = small(*TRAINED, "rounds.look_ahead_minutes=1")
    often = Placement(1, "in-process", checkpoint_seconds=0.0)

    for name in ("a", "b"):

        def stop(progress: Any, out: Path = tmp_path / f"{name}.partial") -> None:
            if isinstance(progress, RunProgress) and (out / "checkpoints").exists():
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_scenario(scenario, often, tmp_path / name, stop)
    rho = worst_rho(scenario, worst_participation(scenario))
    poor = Ledger.create(tmp_path / "poor", epsilon_of_rho(rho / 2, 1e-6), 1e-6, "year")
    before = sorted((tmp_path / "a.partial").iterdir())

    def resume(name: str, ledger: Ledger) -> tuple[int, str]:
        given = (
            "--resume",
            str(tmp_path / name),
            "--ledger",
            str(ledger.path),
            "--start",
            "2026-10-01",
        )
        code, _, error = fedray_command("--quiet", "run", *given)
        return code, error

    code, error = resume("a", poor)
    assert code == 2
    assert "above the budget" in error
    assert "nothing was started" in error
    assert sorted((tmp_path / "a.partial").iterdir()) == before
    assert len(Ledger.open(poor.path).entries) == 1
    rich = Ledger.create(tmp_path / "rich", epsilon_of_rho(2 * rho, 1e-6), 1e-6, "year")
    assert resume("a", rich)[0] == 0
    assert [each["kind"] for each in Ledger.open(rich.path).entries] == [
        "budget",
        "reserved",
        "charged",
    ]
    # The open reservation of a run is that of its continuation.
    exact = Ledger.create(tmp_path / "exact", epsilon_of_rho(rho * (1 + 1e-9), 1e-6), 1e-6, "year")
    with contextlib.suppress(KeyboardInterrupt), reserved(exact.path, scenario, OCTOBER):
        raise KeyboardInterrupt
    assert resume("b", exact)[0] == 0
    assert [each["kind"] for each in Ledger.open(exact.path).entries] == [
        "budget",
        "reserved",
        "charged",
    ]
    # A complete run is refused as before, and reserves nothing.
    code, error = resume("b", exact)
    assert code == 2
    assert not Ledger.open(exact.path).reservations


def test_a_held_lock_is_waited_for(run: Trace, tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger", 90.0, 1e-6, "year")
    lock = Lock(ledger.path)
    threading.Timer(0.5, lock.release).start()
    assert len(charge_run(ledger.path, run, OCTOBER).charges) == 1


@pytest.mark.slow
def test_a_run_that_cannot_be_charged_prints_its_audit_and_the_command_that_charges_it(
    tmp_path: Path, fedray_command, monkeypatch
) -> None:
    ledger = Ledger.create(tmp_path / "ledger", 90.0, 1e-6, "year")
    monkeypatch.setattr(ledger_module, "LOCK_SECONDS", 0.3)
    held: list[Lock] = []
    original = simulate_checked

    def holding(*given: Any, **named: Any) -> Trace:
        trace = original(*given, **named)
        held.append(Lock(ledger.path))
        return trace

    monkeypatch.setattr("fedray.runs.pipeline.simulate_checked", holding)
    keys = [part for key in (*TRAINED, "training.enabled=false") for part in ("--set", key)]
    out = str(tmp_path / "out")
    given = ("small", *keys, "--ledger", str(ledger.path), "--start", "2026-10-01", "--out", out)
    code, printed, error = fedray_command("--quiet", "run", *given)
    assert code == 1
    assert "may be published (enforced)" in printed
    assert (tmp_path / "out" / "report.html").exists()
    again = f"fedray budget {ledger.path} --add {out} --start 2026-10-01"
    assert f"charge it by `{again}`" in error
    assert Ledger.open(ledger.path).reservations
    held[0].release()
    code, _, error = fedray_command("--quiet", *again.split()[1:])
    assert code == 0, error
    charged = Ledger.open(ledger.path)
    assert not charged.reservations
    assert len(charged.charges) == 1


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """Raises an error if the block takes longer, such as one that waits for a pipe."""

    def late(*_: Any) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", [CHAIN_FILE, "lock", "file"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "device", "folder"])
def test_a_file_of_a_ledger_that_is_no_regular_file_is_refused_at_once(
    run: Trace, tmp_path: Path, name: str, kind: str
) -> None:
    ledger = charge_run(Ledger.create(tmp_path / "ledger", 90.0, 1e-6, "year").path, run, OCTOBER)
    ((spent,),) = ledger.charges[2].windows.values()
    file = ledger.path / (f"{spent.file}.arrow" if name == "file" else name)
    elsewhere = tmp_path / "elsewhere"
    file.rename(elsewhere)
    content = elsewhere.read_bytes()
    make: dict[str, Callable[[], None]] = {
        "link": lambda: file.symlink_to(elsewhere),
        "dangling link": lambda: file.symlink_to(tmp_path / "nowhere"),
        "pipe": lambda: os.mkfifo(file),
        "device": lambda: file.symlink_to("/dev/zero"),
        "folder": file.mkdir,
    }
    make[kind]()
    trained = audit_trace(run, scenario=audit_scenario(run, "training.seed=50"))
    # A file that is named by its content is the same through a link.
    is_harmless = (name, kind) == ("file", "link")
    with within(20):
        if is_harmless:
            assert Ledger.open(ledger.path).windows == ledger.windows
            return
        with pytest.raises(
            FedrayError,
            match="is not a ledger|cannot be written|is missing or was changed|is not a regular file",
        ):
            _ = Ledger.open(ledger.path).windows
            ledger.charge([trained])
        with pytest.raises(FedrayError):
            Ledger.create(ledger.path, 1.0, 1e-6, "year")
    assert elsewhere.read_bytes() == content
    assert not (tmp_path / "nowhere").exists()


VALUES = (
    None, True, 0, -1, 1e308, -0.5, math.nan, math.inf, 10**400, "", "x", "\ud800", "../../x", "2026-10-01", "9999-12-31T00:00:00",
    "0" * 64, [], [[]], {}, {"kind": "charged"}, "budget", "reserved", "cancelled", "2026-W99",
)  # fmt: skip


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    for key in (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    ):
        yield from places_in(value[key], (*path, key))


def mutated(draw: random.Random, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines with one value replaced, removed, renamed or moved, or a line copied or removed."""
    found = copy.deepcopy(entries)
    line = draw.randrange(len(found))
    *path, last = draw.choice(list(places_in(found[line])))
    owner: Any = found[line]
    for step in path:
        owner = owner[step]
    match draw.randrange(6):
        case 0:
            del owner[last]
        case 1 if isinstance(owner, dict):
            owner[draw.choice(["x", "kind", "closes", "", "2026-Q9"])] = owner.pop(last)
        case 2:
            found.insert(draw.randrange(len(found) + 1), copy.deepcopy(draw.choice(found)))
        case 3 if len(found) > 1:
            del found[line]
        case _:
            owner[last] = copy.deepcopy(draw.choice(VALUES))
    return found


def used(path: Path) -> None:
    """All that a command may do with a ledger."""
    opened = Ledger.open(path)
    str(opened)
    opened.to_json()
    # The last line may be one of any budget, so these are refused or not.
    for step in (
        opened.statement,
        lambda: opened.cancel(2),
        lambda: opened.reserve("c" * 64, [Promise(amount=0.1)], OCTOBER, 400.0, ["3 on cpu"]),
    ):
        with contextlib.suppress(InputError):
            step()


@pytest.mark.slow
def test_lines_with_right_digests_and_wrong_values_are_refused_without_a_traceback(
    run: Trace, tmp_path: Path
) -> None:
    ledger = Ledger.create(tmp_path / "ledger", 90.0, 1e-6, "quarter")
    ledger = charge_run(ledger.path, run, OCTOBER)
    for seed in ("1", "2"):
        ledger = ledger.reserve(
            seed * 64, [Promise(amount=0.1)], OCTOBER, 100.0, [f"{seed}00 on cpu"]
        )
    ledger = ledger.cancel(3)
    file = ledger.path / CHAIN_FILE
    whole = file.read_bytes()
    lines = [
        {k: v for k, v in each.items() if k not in ("digest", "previous")}
        for each in read_chain(file)
    ]
    draw, refusals = random.Random(504), 0
    for _ in range(504):
        changed = mutated(draw, lines)
        with contextlib.suppress(ValueError):
            append_to_chain(file, [], changed)
        try:
            with within(20):
                used(ledger.path)
        except InputError:
            refusals += 1
        file.write_bytes(whole)
    assert refusals > 300
    assert Ledger.open(ledger.path).entries == ledger.entries


@pytest.mark.parametrize(
    "table",
    [
        {"device": [1, 2], "rho": [0.1, math.nan]},
        {"device": [1, 2], "rho": [0.1, -0.1]},
        {"device": [1, 2], "rho": [1e308, 1e308]},
        {"device": [1, None], "rho": [0.1, 0.1]},
        {"device": [1], "rho": ["0.1"]},
        {"device": [[1]], "rho": [0.1]},
        {"person": [1], "rho": [0.1]},
        {"device": [1], "rho": [0.1], "key": [1]},
        {"device": [1], "rho": [0.1], "key": ["1"], "more": [1]},
        {"device": [1], "answers": [1.0]},
        {"device": [b"\xff"], "rho": [0.1]},
        None,
    ],
)
def test_files_with_right_digests_and_wrong_values_are_refused(
    run: Trace, tmp_path: Path, table: dict[str, Any] | None
) -> None:
    ledger = charge_run(Ledger.create(tmp_path / "ledger", 90.0, 1e-6, "year").path, run, OCTOBER)
    ledger = ledger.charge([audit_trace(run, scenario=audit_scenario(run, "training.seed=50"))])
    made = tmp_path / "made"
    if table is None:
        made.write_bytes(b"ARROW1")
    else:
        with pa.ipc.new_file(made, pa.table(table).schema) as writer:
            writer.write_table(pa.table(table))
    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    made.rename(ledger.path / f"{digest}.arrow")
    lines = json.loads(
        json.dumps(
            [
                {k: v for k, v in e.items() if k not in ("digest", "previous")}
                for e in ledger.entries
            ]
        )
    )
    ((spent,),) = lines[2]["windows"].values()
    spent["file"] = digest
    append_to_chain(ledger.path / CHAIN_FILE, [], lines)
    with pytest.raises(InputError, match="is missing or was changed"):
        _ = Ledger.open(ledger.path).windows


def test_a_ledger_of_an_older_format_is_refused_in_one_sentence(tmp_path: Path) -> None:
    old = {
        "kind": "budget",
        "epsilon": 1.0,
        "delta": 1e-6,
        "period": "week",
        "unit": "device",
        "written": "2026-01-01T00:00:00+00:00",
    }
    (tmp_path / "old").mkdir()
    append_to_chain(tmp_path / "old" / CHAIN_FILE, [], [old])
    with pytest.raises(
        InputError,
        match="format is missing.*charge the runs of a ledger of another form to a new ledger",
    ):
        Ledger.open(tmp_path / "old")


@pytest.mark.slow
def test_tasks_are_charged_together_and_none_by_itself(small, tmp_path: Path) -> None:
    """One task would end the reservation of all of them."""
    tables = small(*TRAINED).to_tables()
    own = {
        "rounds": tables.pop("rounds"),
        "privacy": tables.pop("privacy"),
        "training": tables.pop("training"),
    }
    several = SeveralTasks.from_tables({**tables, "tasks": {"a": own, "b": own}})
    path = Ledger.create(tmp_path / "ledger", 90.0, 1e-6, "year").path
    with reserved(path, several, OCTOBER):
        found = simulate(several, HERE, tmp_path / "run")
    with pytest.raises(
        InputError, match="one of several tasks; charge the directory of the whole run"
    ):
        charge_run(path, found.traces["a"].path)
    assert Ledger.open(path).reservations
    charged = charge_run(path, tmp_path / "run")
    assert not charged.reservations
    assert len(charged.charges) == 2
    of_tasks = audit_tasks(found)
    assert charged.windows[0].recorded == pytest.approx(of_tasks.composition.rho, rel=1e-9)


def test_a_training_closes_no_reservation(run: Trace, trained_of, tmp_path: Path) -> None:
    """The reservation is of the run's own noise, which is not charged yet."""
    ledger = Ledger.create(tmp_path / "ledger", 90.0, 1e-6, "year")
    audit = audit_trace(run)
    assert audit.scenario is not None
    with reserved(ledger.path, audit.scenario, OCTOBER) as begun:
        begun()
    trained = trained_of("t50", run, {}, "training.seed=50", knows_trace=True)
    charged = ledger.charge([audit], OCTOBER, "", trained)
    assert len(charged.charges) == len(charged.reservations) == 1


def test_an_incomplete_log_cannot_be_charged(tmp_path: Path) -> None:
    """Rows without a device may be participations of any device."""
    rows = "".join(f"d{i},{r},2026-10-{1 + r:02}T00:00:00Z\n" for i in range(5) for r in range(2))
    (tmp_path / "log.csv").write_text(f"device,round,time\n{rows},1,2026-10-02T00:00:00Z\n")
    log = import_log(
        tmp_path / "log.csv",
        "device",
        "round",
        2,
        tmp_path / "log",
        time_column="time",
        leave_out_invalid=True,
    )
    ledger = Ledger.create(tmp_path / "ledger", 90.0, 1e-6, "year")
    with pytest.raises(InputError, match="cannot be charged"):
        ledger.charge([audit_trace(log, noise_multiplier=4.0, mechanism=Tree())])
    assert not Ledger.open(ledger.path).charges
