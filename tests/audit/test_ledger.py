"""The ledger of budgets over time: exact sums per device and window, every edit noticed, and crashes that lose and duplicate nothing."""

import builtins
import datetime
import math
import os
import random
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import norm

from fedray.audit.audit import Audit
from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim
from fedray.audit.ledger import CHAIN_FILE, Ledger
from fedray.audit.ledger_lines import Promise
from fedray.base.errors import InputError, RunFailed
from fedray.base.rounding import up
from fedray.imports.importer import import_log
from fedray.mechanisms.registry import Tree
from fedray.runs.budgeted import charge_run, reserved, worst_rho
from fedray.runs.calibrated import worst_participation
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.trace.reader import Trace

HERE = Placement(1, "in-process")
CLAIM = Claim(mechanism=Tree(), noise_multiplier=3.0)
OCTOBER = datetime.date(2026, 10, 1)


def log_of(folder: Path, seed: int, rounds: int = 24, days: float = 1.0) -> Audit:
    """The audit of a random log with a round each day, and some devices that come often."""
    draw = random.Random(seed)
    first = datetime.datetime(2026, 10, 1 + seed, tzinfo=datetime.UTC)
    rows = [
        f"d{device},{number},{(first + datetime.timedelta(days=days * number)).isoformat()}"
        for number in range(rounds)
        for device in draw.sample(range(12), 5)
    ]
    file = folder / f"log-{seed}.csv"
    file.write_text("\n".join(["device,round,time", *rows]) + "\n")
    out = folder / f"trace-{seed}"
    return audit_trace(
        import_log(file, "device", "round", rounds, out, time_column="time"), claim=CLAIM
    )


def brute_force(folder: Path, *seeds: int, rounds: int = 24) -> dict[tuple[str, str], float]:
    """rho by (window, device): squared norms of sums of columns of C, over 2 z^2."""
    matrix = Tree().definition(rounds)
    columns: dict[tuple[int, str, str], np.ndarray] = defaultdict(lambda: np.zeros(len(matrix)))
    for seed in seeds:
        for row in (folder / f"log-{seed}.csv").read_text().splitlines()[1:]:
            device, number, time = row.split(",")
            year, week, _ = datetime.date.fromisoformat(time[:10]).isocalendar()
            columns[seed, f"{year}-W{week:02}", device] += matrix[:, int(number)]
    spent: dict[tuple[str, str], float] = defaultdict(float)
    for (_, window, device), column in columns.items():
        spent[window, device] += float(column @ column) / (2 * CLAIM.noise_multiplier**2)
    return spent


def table_of(ledger: Ledger, spent: dict[str, Any]) -> list[dict[str, Any]]:
    """The units of a charge, as any reader of Arrow files has them."""
    return pa.ipc.open_file(ledger.path / f"{spent['file']}.arrow").read_all().to_pylist()


@pytest.fixture
def weekly(tmp_path: Path) -> Ledger:
    return Ledger.create(tmp_path / "ledger", 5.0, 1e-6, "week")


def test_every_device_and_window_is_charged_as_brute_force_says(
    weekly: Ledger, tmp_path: Path
) -> None:
    for seed in (0, 3):
        weekly = weekly.charge([log_of(tmp_path, seed)])
    expected = brute_force(tmp_path, 0, 3)
    windows = {each.window: each for each in weekly.windows}
    assert set(windows) == {window for window, _ in expected}
    for name, found in windows.items():
        of_window = [rho for (window, _), rho in expected.items() if window == name]
        assert found.units == len(of_window)
        assert found.recorded == pytest.approx(max(of_window), rel=1e-12)
        # The epsilon of a Gaussian mechanism (Balle and Wang 2018, Theorem 8), on the safe side.
        mu, epsilon = math.sqrt(2 * max(of_window)), found.epsilon
        delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(
            -mu / 2 - epsilon / mu
        )
        assert delta == pytest.approx(1e-6, rel=1e-3)
    tables = [table_of(weekly, each) for (each,) in weekly.entries[1]["windows"].values()]
    for name, rows in zip(weekly.entries[1]["windows"], tables, strict=True):
        one = brute_force(tmp_path, 0)
        assert {row["device"]: pytest.approx(row["rho"]) for row in rows} == {
            device: rho for (window, device), rho in one.items() if window == name
        }


def test_a_run_is_charged_once_however_often_it_is_added(weekly: Ledger, tmp_path: Path) -> None:
    audit = log_of(tmp_path, 0)
    once = weekly.charge([audit])
    assert once.charge([audit]).entries == once.entries
    # Other noise on the same participation is another release.
    other = audit_trace(audit.path, claim=CLAIM.model_copy(update={"noise_multiplier": 6.0}))
    twice = once.charge([other])
    assert twice.windows[0].recorded == pytest.approx(1.25 * once.windows[0].recorded)


def edited(draw: random.Random, content: bytes) -> bytes:
    """The content with one random edit: a byte, a piece, a line moved or removed, the end cut."""
    lines = content.splitlines(keepends=True)
    place = draw.randrange(len(content))
    match draw.randrange(6):
        case 0:
            return content[:place] + bytes([draw.randrange(256)]) + content[place + 1 :]
        case 1:
            return content[:place] + content[place + 1 :]
        case 2:
            return content[:place] + bytes([draw.randrange(256)]) + content[place:]
        case 3:
            draw.shuffle(lines)
            return b"".join(lines)
        case 4:
            lines.pop(draw.randrange(len(lines)))
            return b"".join(lines)
        case _:
            return content[:place]


@pytest.mark.slow
def test_random_edits_are_noticed(weekly: Ledger, tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        weekly = weekly.charge([log_of(tmp_path, seed)])
    head = weekly.head
    assert Ledger.open(weekly.path, head).entries == weekly.entries
    files = sorted(each for each in weekly.path.iterdir() if each.name != "lock")
    draw, done = random.Random(34), 0
    while done < 300:
        # Half of the edits are in the chain, the others in files of devices.
        file = weekly.path / CHAIN_FILE if draw.random() < 0.5 else draw.choice(files)
        content = file.read_bytes()
        changed = edited(draw, content)
        if changed == content:
            continue
        file.write_bytes(changed)
        with pytest.raises(InputError, match=r"line \d|which the ledger names|head=|is empty"):
            _ = Ledger.open(weekly.path, head).windows
        file.write_bytes(content)
        done += 1
    assert Ledger.open(weekly.path, head).entries == weekly.entries


def test_removed_last_lines_are_noticed_by_the_head_and_by_nothing_else(
    weekly: Ledger, tmp_path: Path
) -> None:
    whole = weekly.charge([log_of(tmp_path, 0)])
    file = whole.path / CHAIN_FILE
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))
    assert Ledger.open(whole.path).entries == weekly.entries
    assert Ledger.open(whole.path, weekly.head).entries == weekly.entries
    with pytest.raises(InputError, match="head=.*lines were removed"):
        Ledger.open(whole.path, whole.head)


class Killed(BaseException):
    """The end of a process: nothing after it runs, not even what cleans up."""


def killing(monkeypatch: pytest.MonkeyPatch, after: int) -> Callable[[], int]:
    """Every operation on files fails from the one numbered `after` on, as in a process that was
    killed there; returns how many there were."""
    count = 0

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count > after:
                raise Killed
            return call(*given, **named)

        return wrapped

    for name in ("open", "fsync", "replace", "rename", "unlink", "close", "mkdir"):
        monkeypatch.setattr(os, name, dying(getattr(os, name)))
    monkeypatch.setattr(builtins, "open", dying(open))
    return lambda: count


@pytest.mark.slow
def test_a_crash_between_any_two_operations_loses_and_duplicates_nothing(
    weekly: Ledger, tmp_path: Path
) -> None:
    first, second = log_of(tmp_path, 0), log_of(tmp_path, 1)
    before = weekly.charge([first])
    untouched = tmp_path / "untouched"
    shutil.copytree(before.path, untouched)
    expected = before.charge([second]).windows
    outcomes, is_killed = [], True
    for after in range(200):
        folder = tmp_path / f"crash-{after}"
        shutil.copytree(untouched, folder)
        ledger = Ledger.open(folder)
        with pytest.MonkeyPatch.context() as monkeypatch:
            killing(monkeypatch, after)
            try:
                ledger.charge([second])
                is_killed = False
            except Killed:
                is_killed = True
        # Whatever happened, the ledger is the one before or the one after, and both go on.
        found = Ledger.open(folder, before.head)
        assert found.windows in (before.windows, expected)
        outcomes.append(found.windows == expected)
        assert found.charge([second]).windows == expected
        assert len(found.charge([second]).entries) == 3
        shutil.rmtree(folder)
        if not is_killed:
            break
    assert not is_killed
    # Enough operations were cut, before the charge counts and after.
    assert outcomes.count(False) > 10
    assert outcomes.count(True) >= 2


def test_a_full_disk_is_reported_in_one_line_and_changes_nothing(
    weekly: Ledger, tmp_path: Path, monkeypatch
) -> None:
    audit = log_of(tmp_path, 0)

    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFailed, match="No space left on device.*as it was"):
        weekly.charge([audit])
    monkeypatch.undo()
    assert Ledger.open(weekly.path).entries == weekly.entries


def test_a_second_process_is_refused_while_the_ledger_is_written(
    weekly: Ledger, monkeypatch
) -> None:
    monkeypatch.setattr("fedray.audit.ledger.LOCK_SECONDS", 0.2)
    with weekly._locked(), pytest.raises(InputError, match="being written by another process"):
        weekly.reserve("a" * 64, [Promise(amount=0.01)], OCTOBER, 3.0, ())


def test_runs_at_the_same_time_cannot_exceed_the_budget_together(weekly: Ledger) -> None:
    """Each would fit by itself: the first one's reservation counts as spent."""
    one = weekly.reserve("a" * 64, [Promise(amount=0.4)], OCTOBER, 3.0, ())
    with pytest.raises(InputError, match=r"0\.40000\d reserved.*nothing was started"):
        one.reserve("b" * 64, [Promise(amount=0.4)], OCTOBER, 3.0, ())
    assert Ledger.open(weekly.path).entries == one.entries
    # In another week there is room, and so there is after a cancellation.
    one.reserve("b" * 64, [Promise(amount=0.4)], OCTOBER + datetime.timedelta(days=21), 3.0, ())
    one.cancel(2).reserve("b" * 64, [Promise(amount=0.4)], OCTOBER, 3.0, ())
    with pytest.raises(InputError, match="cancel=2 is not the line of an open reservation"):
        one.cancel(2)


@pytest.mark.slow
def test_a_run_within_the_budget_is_charged_and_one_beyond_it_starts_nothing(
    tmp_path: Path, fedray_command, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scenario = ("small", "--set", "rounds.count=4", "--set", "training.enabled=false")
    scenario += ("--set", "population.devices=3000", "--set", "participation.max_participations=1")
    ledger = ("--ledger", "ledger", "--start", "2026-10-01")
    assert fedray_command("budget", "ledger", "--epsilon", "0.9", "--delta", "1e-6")[0] == 0
    code, _, error = fedray_command("--quiet", "run", *scenario, *ledger, "--out", "one")
    assert code == 0, error
    found = Ledger.open("ledger")
    assert [each["kind"] for each in found.entries] == ["budget", "reserved", "charged"]
    assert not found.reservations
    audit = audit_trace("one")
    (window,) = found.windows
    assert window.window == "2026-Q4"
    assert window.recorded == pytest.approx(audit.mechanisms[0].rho, rel=1e-12)
    before = sorted(Path("ledger").iterdir())
    code, _, error = fedray_command(
        "--quiet", "run", *scenario, *ledger, "--set", "seed=2", "--out", "two"
    )
    assert code == 2
    assert "above the budget of 0.9; nothing was started" in error
    assert error.count("\n") == 1
    assert not list(tmp_path.glob("two*"))
    assert sorted(Path("ledger").iterdir()) == before
    assert Ledger.open("ledger").entries == found.entries
    # The same run again releases the same models, so it spends nothing more, and its reservation
    # does not remain.
    more = ("--set", "privacy.noise_multiplier=100", "--set", "training.seed=7")
    for is_known in (False, True):
        code, _, said = fedray_command("--quiet", "run", *scenario, *more, *ledger)
        assert code == 0
        assert ("nothing was charged" in said) == is_known
        assert not Ledger.open("ledger").reservations
    kinds = [each["kind"] for each in Ledger.open("ledger").entries]
    assert kinds.count("charged") == 2


@pytest.mark.slow
def test_a_run_that_was_cut_off_before_its_charge_stays_reserved_and_is_charged_later(
    small, tmp_path: Path
) -> None:
    scenario = small("rounds.count=3", "participation.max_participations=1")
    Ledger.create(tmp_path / "ledger", 9.0, 1e-6, "quarter")
    with pytest.raises(KeyboardInterrupt), reserved(tmp_path / "ledger", scenario, OCTOBER):
        simulate(scenario, HERE, tmp_path / "run")
        raise KeyboardInterrupt
    trace = Trace.open(tmp_path / "run")
    rho = worst_rho(scenario, worst_participation(scenario))
    (open_one,) = Ledger.open(tmp_path / "ledger").reservations.values()
    assert set(open_one.windows) == {"2026-Q4", "2027-Q1", "2027-Q2", "2027-Q3", "2027-Q4"}
    charged = charge_run(tmp_path / "ledger", trace)
    assert not charged.reservations
    (window,) = charged.windows
    assert 0.0 < window.recorded <= rho
    with (
        pytest.raises(InputError, match="out is wrong"),
        reserved(tmp_path / "ledger", scenario, OCTOBER),
    ):
        raise InputError("out is wrong")
    assert not Ledger.open(tmp_path / "ledger").reservations


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("participation.max_participations=2",),
        ("participation.round_separation=3",),
        ("participation.timer_hours=10", "rounds.max_days=2"),
        ("privacy.stop_at={rho=0.08}", "privacy.at_limit=exclude"),
        ("participation.timer_violators=0.3",),
        (
            "rounds.mode=upload-then-train",
            "rounds.uploads={window_hours=24.0, windows=2, schedule={kind='cyclic', min_sep=3}}",
        ),
    ],
)
def test_no_device_spends_more_than_the_worst_case_that_is_reserved(
    small, tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    scenario = small("privacy.mechanism={kind='tree'}", "population.devices=3000", *overrides)
    trace = simulate(scenario, HERE, tmp_path / "run")
    spent = audit_trace(trace).mechanisms[0].rho
    assert spent is not None
    assert spent <= worst_rho(scenario, worst_participation(scenario)) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("none",), "is not a ledger"),
        (
            ("new", "--epsilon", "-1", "--delta", "1e-6"),
            "epsilon = -1.0: input should be greater than 0",
        ),
        (("new", "--epsilon", "1"), "--delta must be given"),
        (("new", "--epsilon", "1", "--delta", "2"), "delta"),
        (
            ("new", "--epsilon", "1", "--delta", "1e-6", "--period", "moon"),
            "should be 'day', 'week'",
        ),
        (("ledger", "--epsilon", "1", "--delta", "1e-6"), "is a ledger already"),
        (("ledger", "--head", "abc"), "lines were removed"),
        (("ledger", "--cancel", "1"), "is not the line of an open reservation"),
        (("ledger", "--add", "trace-0"), "give its claim"),
        (("ledger", "--add", "trace-0", "--start", "tomorrow"), "must be a day"),
        (("ledger", "--add", "nowhere"), "nowhere"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    weekly: Ledger,
    tmp_path: Path,
    fedray_command,
    monkeypatch,
    arguments: tuple[str, ...],
    reason: str,
) -> None:
    log_of(tmp_path, 0)
    monkeypatch.chdir(tmp_path)
    code, _, error = fedray_command("--quiet", "budget", *arguments)
    assert code == 2
    assert reason in error
    assert error.count("\n") == 1
    assert not Path("new").exists()
    assert Ledger.open(weekly.path).entries == weekly.entries


def test_a_budget_of_persons_charges_all_devices_of_each_together(tmp_path: Path) -> None:
    """By hand: the columns of all rounds of a person's devices are added before the norm is taken."""
    rows = ["d0,p,0", "d1,p,0", "d1,p,2", "d2,q,1", "d3,q,3", "d4,r,2"]
    file = tmp_path / "log.csv"
    file.write_text(
        "\n".join(["device,owner,round,time"])
        + "\n"
        + "\n".join(f"{row},2026-10-0{1 + int(row[-1])}T00:00:00Z" for row in rows)
        + "\n"
    )
    read = {"time_column": "time", "owner_column": "owner"}
    trace = import_log(file, "device", "round", 4, tmp_path / "t", **read)
    ledger = Ledger.create(tmp_path / "ledger", 5.0, 1e-6, "quarter", "person")
    charged = ledger.charge([audit_trace(trace, claim=CLAIM)])
    matrix = Tree().definition(4)
    rounds = {"p": [0, 0, 2], "q": [1, 3], "r": [2]}
    expected = {
        name: float((matrix[:, each].sum(axis=1) ** 2).sum()) / 18.0
        for name, each in rounds.items()
    }
    ((charge,),) = charged.entries[1]["windows"].values()
    table = table_of(charged, charge)
    assert {row["person"]: pytest.approx(row["rho"]) for row in table} == expected
    (window,) = charged.windows
    assert (charged.unit, window.units) == ("person", 3)
    assert window.recorded == pytest.approx(max(expected.values()))
    # A log enforces nothing by itself.
    assert not window.may_rest_on
    file.write_text(file.read_text() + "d5,r,3,2026-10-04T00:00:00Z\n")
    bare = import_log(file, "device", "round", 4, tmp_path / "bare", time_column="time")
    with pytest.raises(InputError, match="does not say who owns its devices"):
        ledger.charge([audit_trace(bare, claim=CLAIM)])
    with pytest.raises(InputError, match="'device' or 'person'"):
        Ledger.create(tmp_path / "other", 5.0, 1e-6, "quarter", "household")


TURNS = (
    "rounds.mode=upload-then-train",
    "rounds.count=8",
    "rounds.uploads={window_hours=24.0, windows=2, schedule={kind='cyclic_poisson', partitions=4, "
    "probability=0.5, assignment='independent'}}",
)


@pytest.mark.slow
def test_the_reservation_of_uploads_is_what_an_audit_enforces(small, tmp_path: Path) -> None:
    owners = "population.owners={mean_devices=1.4, most_devices=2}"
    scenario = small(*TURNS, owners, "privacy.mechanism={kind='tree'}", "population.devices=3000")
    path = tmp_path / "ledger"
    ledger = Ledger.create(path, 30.0, 1e-6, "quarter", "person")
    with reserved(path, scenario, OCTOBER):
        (line,) = Ledger.open(path).reservations.values()
        trace = simulate(scenario, HERE, tmp_path / "run")
    charged = charge_run(path, trace)
    audit = audit_trace(trace)
    of_device, of_person = audit.mechanisms[0].enforced, audit.mechanisms[0].person
    assert of_person is not None
    assert worst_rho(scenario, worst_participation(scenario)) == pytest.approx(
        of_device.rho, rel=1e-12
    )
    # Two days of uploads and eight minutes of rounds are in one quarter.
    assert set(line.windows) == {"2026-Q4"}
    (promise,) = line.windows["2026-Q4"]
    assert promise.amount == pytest.approx(4 * worst_rho(scenario, worst_participation(scenario)))
    assert promise.release == "gaussian"
    (window,) = charged.windows
    enforced = of_person.named("enforced").rho
    assert window.may_rest_on
    assert window.spent == pytest.approx(enforced, rel=1e-12)
    assert window.recorded == pytest.approx(of_person.named("observed").rho, rel=1e-12)
    assert window.recorded <= window.spent
    assert "For a person with up to 2 devices it is" in audit.verdict
    statement = charged.statement()
    assert (
        f"every person is protected at (epsilon, delta) = ({up(window.epsilon)}, 1e-06)"
        in statement
    )
    assert "Over 1 release, " in statement
    assert "by the rules of every run" in statement
    other = scenario.with_overrides("seed=2", "training.seed=2")
    with reserved(path, other, OCTOBER) as begun:
        with pytest.raises(InputError, match="is a reservation of a run that is not charged"):
            Ledger.open(path).statement()
        begun()
    without = small(*TURNS, "population.devices=3000")
    with pytest.raises(InputError, match="must be given for a budget of persons"), reserved(path, without, OCTOBER):  # fmt: skip
        pass
    assert ledger.unit == "person"


def test_a_charge_without_rules_never_lowers_what_is_spent(tmp_path: Path) -> None:
    """Enforced rho of one run and recorded rho of another add up."""
    ledger = Ledger.create(tmp_path / "ledger", 30.0, 1e-6, "quarter")
    one = log_of(tmp_path, 0)
    ledger = ledger.charge([one])
    (alone,) = ledger.windows
    path = ledger.path
    charge = ledger.charges[2]
    (spent,) = charge.windows[alone.window]
    spent = spent.model_copy(update={"enforced": 50.0})
    enforced = {"name": "other", "windows": {alone.window: (spent,)}}
    both = ledger._with([charge.model_copy(update=enforced)])
    (together,) = Ledger.open(path).windows
    assert together.recorded == pytest.approx(2 * alone.recorded)
    assert together.spent == pytest.approx(50.0 + alone.recorded)
    assert together.epsilon > alone.epsilon
    assert not together.may_rest_on
    assert both.head == Ledger.open(path).head


def test_a_run_is_charged_with_its_own_noise_only(small, tmp_path: Path) -> None:
    scenario = small("rounds.count=3", "participation.max_participations=1")
    trace = simulate(scenario, HERE, tmp_path / "run")
    ledger = Ledger.create(tmp_path / "ledger", 30.0, 1e-6, "quarter")
    with pytest.raises(InputError, match="charged with its own noise only"):
        ledger.charge([audit_trace(trace, noise_multiplier=700.0)], OCTOBER)
    assert not ledger.charge([audit_trace(trace)], OCTOBER).reservations
    hypothetical = audit_trace(trace, noise_multiplier=700.0)
    assert "could be published if the run had had this mechanism and noise" in hypothetical.verdict
    assert hypothetical.supported_epsilon is None


@pytest.mark.slow
def test_a_reservation_stays_once_devices_take_part(small, tmp_path: Path) -> None:
    scenario = small("rounds.count=3", "participation.max_participations=1")
    path = tmp_path / "ledger"
    Ledger.create(path, 9.0, 1e-6, "quarter")
    with pytest.raises(InputError, match="damaged"), reserved(path, scenario, OCTOBER) as begun:
        begun()
        raise InputError("examples are damaged")
    assert Ledger.open(path).reservations
    with pytest.raises(InputError, match="is too late"):
        Ledger.open(path).reserve("x", [Promise(amount=0.1)], datetime.date(9999, 12, 30), 30.0, ())
