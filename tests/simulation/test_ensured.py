"""A run starts only if its rules ensure a claim, and no release outside the claim is made."""

import itertools
import json
import math
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.stats import norm

from fedray.audit.auditing import audit_trace
from fedray.audit.check import check_participation
from fedray.audit.claims import Claim, read_claim
from fedray.audit.findings import Verdict
from fedray.audit.ledger import Ledger
from fedray.audit.participation import read_patterns
from fedray.audit.statements.statement import Subject
from fedray.base.errors import CheckpointError, InputError, Refused
from fedray.imports.importer import import_log
from fedray.mechanisms.registry import Identity, Toeplitz, Tree
from fedray.runs import pipeline
from fedray.runs.budgeted import charge_run, reserved
from fedray.runs.calibrated import worst_participation
from fedray.runs.ensured import unensured
from fedray.runs.learning import scenario_of
from fedray.runs.pipeline import resume_run, run_scenario, train
from fedray.runs.release_guard import ClaimGuard
from fedray.runs.simulation import simulate, simulate_checked
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario, SeveralTasks
from fedray.scenario.uploads import Uploads
from fedray.server.policies.policy import Attempt
from fedray.server.policies.round_separation import RoundSeparation
from fedray.trace.reader import Trace

HERE = Placement(1, "in-process")
DAY, DELTA = 86_400.0, 1e-6
BANDED = Toeplitz(kind="toeplitz", coefficients=(1.0, 0.5, 0.25))

MECHANISMS = {
    "identity": "{kind='identity'}",
    "toeplitz": "{kind='toeplitz', coefficients=[1.0, 0.5, 0.25]}",
}


class Worst(NamedTuple):
    """What devices of a scenario can do at worst, by enumeration."""

    min_sep: float
    participations: int
    per_period: int
    """Largest number of participations with less than the period between them."""
    sensitivity: float
    exact: frozenset[str]
    """Statements for which the rules are read exactly, so that a claim that is true must start."""


def spent_at(mu: float, delta: float) -> float:
    """Epsilon of a Gaussian mechanism by bisection of its delta (Balle and Wang 2018)."""

    def delta_of(epsilon: float) -> float:
        shift = epsilon / mu
        below, above = norm.cdf(mu / 2 - shift), norm.cdf(-mu / 2 - shift)
        return float(below - math.exp(epsilon) * above)

    low, high = 0.0, 700.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
    return high


def norm_of(kind: Any, rounds: int, pattern: tuple[int, ...]) -> float:
    """Norm of the sum of columns of C."""
    coefficients = getattr(kind, "coefficients", (1.0,))
    C = np.zeros((rounds, rounds))
    for shift, coefficient in enumerate(coefficients):
        C += coefficient * np.eye(rounds, k=-shift)
    return float(np.linalg.norm(C[:, list(pattern)].sum(axis=1)))


def worst_of(patterns: Iterator[tuple[tuple[int, ...], tuple[float, ...]]], world: Any) -> Worst:
    """The worst of all patterns of rounds with the times of their participations, in days."""
    least, most, within, sensitivity = math.inf, 1, 1, 0.0
    for pattern, times in patterns:
        gaps = [b - a for a, b in itertools.pairwise(pattern)]
        least, most = min([least, *gaps]), max(most, len(pattern))
        for place, begin in enumerate(times):
            within = max(within, sum(each - begin < world.period for each in times[place:]))
        if pattern:
            sensitivity = max(sensitivity, norm_of(world.mechanism, world.rounds, pattern))
    return Worst(least, most, within, sensitivity, world.exact)


class Cohorts(NamedTuple):
    """Rounds that select together, in days: rounds start on days 0 to `days`, `pace` apart."""

    rounds: int
    days: int
    timer: int
    separation: int
    cap: int | None
    pace: int
    unkept: str
    """Stress by which devices do not keep the timer, or nothing that they remember."""
    mechanism: Any
    period: int

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> "Cohorts":
        rounds, pace = int(rng.integers(1, 5)), int(rng.integers(0, 3))
        days = int(rng.integers(max(1, (rounds - 1) * pace), 7 + pace))
        timer, separation = int(rng.integers(0, 5)), int(rng.integers(0, 4))
        cap = None if rng.random() < 0.5 else int(rng.integers(1, 4))
        mechanism = (Identity(), BANDED)[int(rng.integers(2))]
        unkept = str(rng.choice(["", "", "", "timer_violators=0.1", "history_loss_per_day=0.1"]))
        period = int(rng.integers(1, 6))
        return cls(rounds, days, timer, separation, cap, pace, unkept, mechanism, period)

    @property
    def exact(self) -> frozenset[str]:
        exact = {"rounds", "min_sep", "max_participations", "most_per_period"}
        # At no permitted times may a device have every pattern of (b, k) under a timer or a pace.
        is_free = isinstance(self.mechanism, Identity) or not (self.timer or self.pace)
        return frozenset(exact | ({"epsilon"} if is_free else set()))

    def scenario(self, small: Callable[..., Scenario], z: float) -> Scenario:
        given = [
            f"rounds.count={self.rounds}",
            f"rounds.max_days={float(self.days)}",
            f"participation.timer_hours={24.0 * self.timer}",
            f"participation.round_separation={self.separation}",
            f"privacy.mechanism={MECHANISMS[self.mechanism.kind]}",
            f"privacy.noise_multiplier={z}",
        ]
        given += [f"participation.max_participations={self.cap}"] if self.cap else []
        given += [f"rounds.min_minutes_between={1440.0 * self.pace}"] if self.pace else []
        given += [f"participation.{self.unkept}"] if self.unkept else []
        return small(*given)

    def patterns(self) -> Iterator[tuple[tuple[int, ...], tuple[float, ...]]]:
        days = range(self.days + 1)
        forgets = self.unkept.startswith("history")
        timer = 0 if self.unkept else self.timer
        separation, cap = (0, None) if forgets else (self.separation, self.cap)
        # A run may end before its last round, so that later ones need not fit into the days.
        for count in range(1, self.rounds + 1):
            for starts in itertools.combinations_with_replacement(days, count):
                if any(b - a < self.pace for a, b in itertools.pairwise(starts)):
                    continue
                for size in range(1, (cap or count) + 1):
                    for pattern in itertools.combinations(range(count), size):
                        times = tuple(starts[each] for each in pattern)
                        apart = [b - a for a, b in itertools.pairwise(pattern)]
                        waits = [b - a for a, b in itertools.pairwise(times)]
                        if min(apart, default=99) >= separation and (
                            min(waits, default=99) >= timer
                        ):
                            yield pattern, times


class Stored(NamedTuple):
    """Uploads of windows of a day, in groups that take turns."""

    windows: int
    rounds: int
    groups: int
    cap: int | None
    keep: float | None
    minutes: float
    wait: float
    mechanism: Any
    period: int

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> "Stored":
        windows = int(rng.integers(1, 4))
        rounds = windows + int(rng.integers(0, 4))
        cap = None if rng.random() < 0.5 else int(rng.integers(1, 3))
        keep = None if rng.random() < 0.5 else float(rng.choice([0.5, 1.5]))
        return cls(
            windows,
            rounds,
            int(rng.integers(1, 4)),
            cap,
            keep,
            float(rng.choice([1.0, 700.0])),
            float(rng.choice([0.0, 0.0, 1.5])),
            (Identity(), BANDED)[int(rng.integers(2))],
            int(rng.integers(1, 4)),
        )

    @property
    def exact(self) -> frozenset[str]:
        exact = {"rounds", "keep_days"}
        # Pairs of rounds of several windows are bounded one by one.
        return frozenset(exact | ({"max_participations"} if self.windows == 1 else set()))

    def scenario(self, small: Callable[..., Scenario], z: float) -> Scenario:
        keep = "" if self.keep is None else f", keep_days={self.keep}"
        given = [
            "rounds.mode=upload-then-train",
            f"rounds.count={self.rounds}",
            f"rounds.uploads={{window_hours=24.0, windows={self.windows}, round_minutes="
            f"{self.minutes}, schedule={{kind='cyclic', min_sep={self.groups}}}{keep}}}",
            f"participation.timer_hours={24.0 * self.wait}",
            f"privacy.mechanism={MECHANISMS[self.mechanism.kind]}",
            f"privacy.noise_multiplier={z}",
        ]
        given += [f"participation.max_participations={self.cap}"] if self.cap else []
        return small(*given)

    @property
    def drawn_at(self) -> list[tuple[int, float]]:
        """Window of each round, and the day on which it draws."""
        found, closed = [], 0.0
        least, more = divmod(self.rounds, self.windows)
        for window in range(self.windows):
            for _ in range(least + (window < more)):
                start = max(closed, window + 1.0)
                found.append((window, start))
                closed = start + self.minutes / 1440
        return found

    @property
    def oldest(self) -> float:
        """Least upper bound of the ages: an upload may come as its window begins."""
        oldest = max(start - window for window, start in self.drawn_at)
        return min(oldest, math.inf if self.keep is None else self.keep)

    def patterns(self) -> Iterator[tuple[tuple[int, ...], tuple[float, ...]]]:
        draws = self.drawn_at
        for uploaded in itertools.product((None, 0.0, 0.999), repeat=self.windows):
            times = {w: w + each for w, each in enumerate(uploaded) if each is not None}
            days = [*times.values()]
            if len(days) > (self.cap or self.windows):
                continue
            if any(b - a < self.wait for a, b in itertools.pairwise(days)):
                continue
            rounds = [index for index, (window, _) in enumerate(draws) if window in times]
            for size in range(1, len(rounds) + 1):
                for pattern in itertools.combinations(rounds, size):
                    pairs = itertools.pairwise(pattern)
                    if all(
                        draws[a][0] != draws[b][0] or (b - a) % self.groups == 0 for a, b in pairs
                    ):
                        yield pattern, tuple(times[draws[t][0]] for t in pattern)


def drawn_claim(rng: np.random.Generator, world: Any, worst: Worst, z: float) -> dict[str, Any]:
    """Statements at the worst case or beside it; in half of the claims some do not hold."""
    steps = (0, 1) if rng.random() < 0.5 else (-1, 0, 1)

    def near(value: float) -> int:
        return max(1, int(value) + int(rng.choice(steps)))

    epsilon = spent_at(worst.sensitivity / z, DELTA)
    period = {"participations": near(worst.per_period), "hours": 24.0 * world.period}
    oldest = max(getattr(world, "oldest", 0.0), 0.1)
    stated: dict[str, Any] = {
        "rounds": near(world.rounds),
        "max_participations": near(worst.participations),
        "min_sep": max(1, int(min(worst.min_sep, 9)) - int(rng.choice(steps))),
        "most_per_period": period,
        "epsilon": epsilon * (1 + 0.03 * float(rng.choice([each or 1 for each in steps]))),
        "keep_days": oldest * (1 + 0.1 * float(rng.choice(steps))),
    }
    kept = [key for key in stated if rng.random() < 0.6]
    # These three may contradict each other.
    if "min_sep" in kept:
        kept = [key for key in kept if key not in ("rounds", "max_participations")]
    return {key: stated[key] for key in kept}


def is_true(key: str, value: Any, world: Any, worst: Worst, z: float) -> bool:
    match key:
        case "rounds":
            return world.rounds <= value
        case "max_participations":
            return worst.participations <= value
        case "min_sep":
            return worst.min_sep >= value
        case "most_per_period":
            return worst.per_period <= value["participations"]
        case "epsilon":
            return spent_at(worst.sensitivity / z, DELTA) <= value
    return getattr(world, "oldest", 0.0) <= value


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_a_run_starts_only_if_its_rules_ensure_the_claim_and_always_where_they_are_exact(
    small, monkeypatch, part: int
) -> None:
    """Random scenarios and claims, 200 in all, against all permitted times and patterns of a device."""
    monkeypatch.setattr(pipeline, "run_checked", lambda *_: "started")
    rng = np.random.default_rng([65, part])
    decisions = []
    for number in range(20):
        world = (Cohorts if number % 2 else Stored).drawn(rng)
        worst, z = worst_of(world.patterns(), world), float(rng.choice([1.0, 3.0]))
        scenario = world.scenario(small, z)
        stated = drawn_claim(rng, world, worst, z)
        noise = z * float(rng.choice([0.5, 1.0, 1.0, 1.0, 1.5]))
        claim = Claim(mechanism=world.mechanism, noise_multiplier=noise, delta=DELTA, **stated)
        wrong = [key for key, value in stated.items() if not is_true(key, value, world, worst, z)]
        wrong += ["noise_multiplier"] if noise > z else []
        try:
            started = run_scenario(scenario, HERE, ensure=claim) == "started"
            refused = set[str]()
        except InputError as error:
            started = False
            refused = {each.split(": ")[1].split("=")[0] for each in error.problems}
        assert set(wrong) <= refused, (world, claim, worst)
        assert started is not bool(refused)
        exact = world.exact | {"noise_multiplier"}
        assert refused & exact == set(wrong) & exact, (world, claim, worst)
        decisions.append(started)
    # Both decisions are made, or nothing would be shown.
    assert 4 <= sum(decisions) <= 18


CROWD = (
    "population.devices=2500",
    "rounds.count=24",
    "rounds.report_goal=300",
    "participation.timer_hours=0.0",
    "privacy.mechanism={kind='tree'}",
    "privacy.noise_multiplier=3.0",
)


APART = ("population.devices=12000", "participation.round_separation=4")


def forgets(self: RoundSeparation, attempt: Attempt) -> np.ndarray:
    """The lie of a policy that says it keeps the rounds of every device apart."""
    return attempt.has_arrived & (attempt.device_ids % np.uint64(701) != 0)


def claim_of(**statements: Any) -> Claim:
    return Claim(mechanism=Tree(), noise_multiplier=3.0, delta=1e-8, **statements)


@pytest.fixture(scope="module")
def free(small, tmp_path_factory) -> Trace:
    """A run without rules, whose devices come again and again."""
    return simulate(small(*CROWD), HERE, tmp_path_factory.mktemp("free") / "t")


def planted(scenario: Scenario, claim: Claim, folder: Path) -> Trace:
    """A run under a claim that its rules do not ensure, as if they had seemed to."""
    guard = ClaimGuard(claim, scenario, worst_participation(scenario))
    return simulate_checked(scenario, HERE, folder, None, None, guard=guard)


def is_within(trace: Trace, claim: Claim, rounds: int) -> bool:
    """Whether the first rounds of a trace keep a claim, device by device, if epsilon is left out."""
    rows = trace.columns(0)
    starts = trace.rounds["started"][trace.rounds["state"] == 0]
    chosen = (rows["outcome"] == 0) & (rows["round"] < rounds)
    columns = (rows[name][chosen] for name in ("device_id", "round", "checkin_time", "report_time"))
    of_device: dict[int, list[tuple[int, float, float]]] = {}
    for device, index, check_in, report in zip(*(each.tolist() for each in columns), strict=True):
        of_device.setdefault(device, []).append((index, check_in, report))
    period = claim.most_per_period
    for each in of_device.values():
        each.sort()
        indices = [index for index, *_ in each]
        gap = min((b - a for a, b in itertools.pairwise(indices)), default=999)
        waits = [b[1] - a[2] for a, b in itertools.pairwise(each)]
        pairs = claim.frontier or ((1, 999),)
        if (
            gap < (claim.min_sep or 1)
            or len(each) > (claim.max_participations or 999)
            or min(waits, default=1e9) < 3600 * (claim.timer_hours or 0)
            or not any(len(each) <= k and gap >= b for b, k in pairs)
        ):
            return False
        times = [check_in if trace.is_buffered else starts[index] for index, check_in, _ in each]
        for place, begin in enumerate(times if period else ()):
            assert period is not None
            later = times[place + period.participations :]
            if any(time - begin < 3600 * period.hours for time in later):
                return False
    return rounds <= (claim.rounds or 999)


OUTSIDE = {
    "rounds": {"rounds": 5},
    "min_sep": {"min_sep": 4},
    "max_participations": {"max_participations": 2},
    "timer_hours": {"timer_hours": 0.2},
    "most_per_period": {"most_per_period": {"participations": 2, "hours": 0.6}},
    "frontier": {"frontier": [[4, 4], [2, 2]]},
}


BUFFERED = (
    *CROWD,
    "rounds.mode=buffered",
    "rounds.over_selection=1.3",
    "rounds.buffer={concurrency=600, max_staleness=4}",
)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["min_sep", "timer_hours", "most_per_period"])
def test_the_first_buffer_outside_the_claim_is_not_released(
    small, tmp_path: Path, key: str
) -> None:
    """Devices of a buffer start at times of their own."""
    stated = {**OUTSIDE[key], **({"min_sep": 6} if key == "min_sep" else {})}
    claim, scenario = claim_of(**stated), small(*BUFFERED)
    everything = simulate(scenario, HERE, tmp_path / "all")
    last = everything.committed_rounds
    kept = next(n for n in range(1, last + 1) if not is_within(everything, claim, n)) - 1
    assert 0 < kept < last
    trace = planted(scenario, claim, tmp_path / "t")
    assert trace.committed_rounds == kept
    assert audit_trace(trace).claim_holds


@pytest.mark.slow
@pytest.mark.parametrize("key", OUTSIDE)
def test_the_first_release_outside_the_claim_is_not_made_and_earlier_ones_stand(
    small, free: Trace, tmp_path: Path, key: str
) -> None:
    """Against the same run without a claim, each of whose beginnings is checked by hand."""
    claim = claim_of(**OUTSIDE[key])
    last = free.committed_rounds
    kept = next(n for n in range(1, last + 1) if not is_within(free, claim, n)) - 1
    assert 0 < kept < last
    trace = planted(small(*CROWD), claim, tmp_path / "t")
    assert trace.committed_rounds == kept
    assert trace.run["ended"].startswith(f"refused: round {kept} is outside the claim: ")
    # The refused round is in the trace as an attempt that was abandoned.
    assert (trace.rounds["state"][-1], trace.rounds["accepted"][-1]) == (1, 0)
    audit = audit_trace(trace)
    assert {each.verdict for each in audit.findings} == {Verdict.HOLDS}
    # The figures are at the claim's delta, not at the scenario's.
    assert (audit.mechanisms[0].enforced.delta, small().privacy.delta) == (1e-8, 1e-10)
    found = check_participation(claim, Subject(free, read_patterns(free), str))
    assert [each.verdict for each in found] == [Verdict.BROKEN]


@pytest.mark.slow
@pytest.mark.parametrize("stated", [{"min_sep": 4}, {"epsilon": 30.0}])
def test_a_policy_that_lies_is_found_at_its_first_release(
    small, tmp_path: Path, monkeypatch, fedray_command, stated: dict[str, Any]
) -> None:
    """The rules ensure a separation of 4, on which a claimed epsilon rests too; devices do not keep it."""
    (tmp_path / "claim.toml").write_text(
        'mechanism = "tree"\nnoise_multiplier = 3.0\ndelta = 1e-8\n'
        + "".join(f"{key} = {value}\n" for key, value in stated.items())
    )
    scenario = small(*CROWD, *APART)
    honest = run_scenario(scenario, HERE, tmp_path / "honest", ensure=claim_of(**stated))
    assert honest.run["ended"] == "completed"
    monkeypatch.setattr(RoundSeparation, "remembers_round", forgets)
    lies = run_scenario(scenario, HERE, tmp_path / "lies")
    kept = next(n for n in range(1, 25) if not is_within(lies, claim_of(min_sep=4), n)) - 1
    (tmp_path / "s.toml").write_text(scenario.to_toml())
    run = ("--quiet", "run", str(tmp_path / "s.toml"), "--place", "backend=in-process")
    ensure = ("--ensure", str(tmp_path / "claim.toml"))
    code, _, err = fedray_command(*run, "--out", str(tmp_path / "t"), *ensure)
    trace = Trace.open(tmp_path / "t")
    assert (code, trace.committed_rounds) == (1, kept)
    assert f"fedray: refused: round {kept} is outside the claim: device " in err
    assert kept > 2
    assert (read_patterns(lies).min_sep, read_patterns(trace).max_participations) == (1, 1)
    # Whoever audits it later needs no other file.
    code, out, _ = fedray_command("--quiet", "audit", str(tmp_path / "t"), "--json")
    assert (code, json.loads(out)["claim_holds"]) == (0, True)


def test_a_first_release_outside_the_claim_leaves_nothing(small, tmp_path: Path) -> None:
    scenario = small(*CROWD)
    claim = claim_of(epsilon=50.0)
    guard = ClaimGuard(claim, scenario, worst_participation(scenario))
    guard._least_accepted = 301
    with pytest.raises(Refused, match=r"it has 300 devices, .* 301 devices; nothing was released"):
        simulate_checked(scenario, HERE, tmp_path / "t", None, None, guard=guard)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("moment", [4, 8])
def test_a_run_that_continues_refuses_the_same_release(small, tmp_path: Path, moment: int) -> None:
    """Interrupted after two and after all earlier rounds; another claim is refused."""
    scenario = small(*CROWD, *APART, "rounds.look_ahead_minutes=5.0")
    claim = claim_of(min_sep=4)
    seen = 0

    def interrupt(_) -> None:
        nonlocal seen
        seen += 1
        if seen == moment:
            raise KeyboardInterrupt

    often = Placement(1, "in-process", checkpoint_seconds=0.0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RoundSeparation, "remembers_round", forgets)
        with pytest.raises(KeyboardInterrupt):
            run_scenario(scenario, often, tmp_path / "t", interrupt, ensure=claim)
        whole = run_scenario(scenario, often, tmp_path / "whole", ensure=claim)
        for other in (claim_of(min_sep=3), claim_of(epsilon=40.0)):
            with pytest.raises(CheckpointError, match="was started with another claim"):
                resume_run(tmp_path / "t", often, ensure=other)
        trace = resume_run(tmp_path / "t", often)
    assert isinstance(trace, Trace)
    assert whole.run["ended"].startswith("refused")
    assert (trace.digest, trace.run["ended"]) == (whole.digest, whole.run["ended"])
    assert trace.run["ensured"] == claim.to_document()


def test_a_run_without_the_claim_cannot_continue_with_it(small, tmp_path: Path) -> None:
    def interrupt(_) -> None:
        raise KeyboardInterrupt

    often = Placement(1, "in-process", checkpoint_seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        run_scenario(small(), often, tmp_path / "t", interrupt)
    with pytest.raises(CheckpointError, match="was started without a claim"):
        resume_run(tmp_path / "t", often, ensure=claim_of(rounds=12))


def test_a_refusal_before_the_start_has_a_line_for_each_statement(
    small, tmp_path: Path, fedray_command
) -> None:
    scenario = small("privacy.mechanism={kind='tree'}", "participation.round_separation=4")
    (tmp_path / "s.toml").write_text(scenario.to_toml())
    (tmp_path / "claim.toml").write_text(
        'mechanism = "identity"\nnoise_multiplier = 9\nrounds = 12\nmin_sep = 5\ntimer_hours = 13\n'
        "most_per_period = {participations = 1, hours = 24}\nepsilon = 0.5\ndelta = 1e-8\n"
    )
    ensure = ("--ensure", str(tmp_path / "claim.toml"), "--out", str(tmp_path / "t"))
    code, _, err = fedray_command("--quiet", "run", str(tmp_path / "s.toml"), *ensure)
    assert code == 2
    assert [each.partition(" is not")[0] for each in err.splitlines()] == [
        "fedray: claim: mechanism=identity",
        "fedray: claim: noise_multiplier=9",
        "fedray: claim: min_sep=5",
        "fedray: claim: timer_hours=13.0",
        "fedray: claim: most_per_period=1 within 24 h",
        "fedray: claim: epsilon=0.5",
    ]
    assert "; the rules ensure 4\n" in err
    assert "; the rules ensure 2 within 24 h\n" in err
    assert not (tmp_path / "t").exists()


def test_a_changed_claim_in_a_trace_is_not_read(small, tmp_path: Path) -> None:
    claim = claim_of(rounds=12)
    tree = ("privacy.mechanism={kind='tree'}", "privacy.noise_multiplier=3.0")
    trace = run_scenario(small(*tree), HERE, tmp_path / "t", ensure=claim)
    trace.run["ensured"]["claim"]["rounds"] = 40
    with pytest.raises(InputError, match="its claim was changed"):
        audit_trace(trace)


def test_trainings_on_a_trace_ensure_a_claim_by_the_recorded_times(
    small, free: Trace, tmp_path: Path, fedray_command
) -> None:
    claim, out = tmp_path / "claim.toml", str(tmp_path / "m")
    claim.write_text('mechanism = "tree"\nnoise_multiplier = 3.0\nmin_sep = 2\nrounds = 23\n')
    code, _, err = fedray_command(
        "--quiet", "train", str(free.path), "--ensure", str(claim), "--out", out
    )
    assert code == 2
    lines = [each.removeprefix("fedray: claim: ") for each in err.splitlines()]
    assert lines == [
        "rounds=23 is not ensured; the rules ensure 24",
        "min_sep=2 is not ensured; the rules ensure 1",
        "rounds=23 is not ensured; the trace has 24",
        "min_sep=2 is not ensured; the trace has 1",
    ]
    assert not Path(out).exists()


TRAINED = ("training.enabled=true", "training.cohort_sample=20", "training.evaluate_every=3")


@pytest.mark.slow
def test_a_training_records_its_claim_and_a_live_one_stops_before_the_refused_round(
    small, tmp_path: Path, monkeypatch, fedray_command
) -> None:
    scenario = small(*CROWD, *APART, *TRAINED)
    (tmp_path / "claim.toml").write_text(
        'mechanism = "tree"\nnoise_multiplier = 3.0\nmin_sep = 4\nepsilon = 30.0\ndelta = 1e-8\n'
    )
    claim = read_claim(tmp_path / "claim.toml")
    monkeypatch.setattr(RoundSeparation, "remembers_round", forgets)
    trace = run_scenario(scenario, HERE, tmp_path / "t", ensure=claim)
    assert trace.run["ended"].startswith(f"refused: round {trace.committed_rounds}")
    assert trace.trained is not None
    assert trace.trained.document["rounds"] == trace.committed_rounds
    ensure = ("--ensure", str(tmp_path / "claim.toml"), "--place", "backend=in-process")
    out = str(tmp_path / "m")
    code, _, err = fedray_command(
        "--quiet", "train", str(trace.path), "--set", "training.seed=3", *ensure, "--out", out
    )
    assert code == 0, err
    found = json.loads((tmp_path / "m" / "training.json").read_text())
    assert found["ensured"] == claim.to_document()
    code, shown, _ = fedray_command("--quiet", "audit", out, "--json")
    assert (code, json.loads(shown)["claim_holds"]) == (0, True)
    code, _, err = fedray_command(
        "--quiet", "train", str(trace.path), "--set", "privacy.noise_multiplier=1.0", *ensure
    )
    assert code == 2
    assert "noise_multiplier=3 is not ensured; the scenario has 1" in err


@pytest.mark.slow
def test_a_training_that_continues_keeps_its_claim_and_refuses_another(
    small, tmp_path: Path, fedray_command
) -> None:
    tree = ('mechanism = "tree"', "noise_multiplier = 3.0", "delta = 1e-8")
    files = {}
    for rounds in (24, 30):
        files[rounds] = tmp_path / f"{rounds}.toml"
        files[rounds].write_text("\n".join((*tree, f"rounds = {rounds}")))
    trace = simulate(small(*CROWD, *TRAINED), HERE, tmp_path / "t")
    with pytest.raises(InputError, match="rounds=23 is not ensured; the rules ensure 24"):
        train(trace, None, HERE, tmp_path / "m", ensure=claim_of(rounds=23))
    assert not (tmp_path / "m").exists()

    def interrupt(progress: object) -> None:
        if getattr(progress, "trained", 0) == 5:
            raise KeyboardInterrupt

    for name, ensured in (("m", read_claim(files[24])), ("without", None)):
        with pytest.raises(KeyboardInterrupt):
            train(trace, None, HERE, tmp_path / name, interrupt, ensure=ensured)
    place = ("--place", "backend=in-process")
    for name, said in (("m", "with another claim"), ("without", "without a claim")):
        resumed = ("--quiet", "train", "--resume", str(tmp_path / name), *place)
        code, _, err = fedray_command(*resumed, "--ensure", str(files[30]))
        assert code == 2
        assert f"was started {said} to ensure; leave the claim out" in err
        assert not (tmp_path / name / "training.json").exists()
    # With its own claim, and without --ensure, it continues under the same one.
    resumed = ("--quiet", "train", "--resume", str(tmp_path / "m"), *place)
    code, _, err = fedray_command(*resumed, "--ensure", str(files[24]))
    assert code == 0, err
    with pytest.raises(KeyboardInterrupt):
        train(trace, None, HERE, tmp_path / "n", interrupt, ensure=claim_of(rounds=24))
    again = train(trace, None, HERE, tmp_path / "n", is_resumed=True)
    own = json.loads((tmp_path / "m" / "training.json").read_text())
    for document in (own, again.document):
        assert document["ensured"] == claim_of(rounds=24).to_document()
    # The claim is checked again, against a trace that may have been exchanged.
    assert audit_trace(tmp_path / "t", scenario=scenario_of(trace), trained=again).claim_holds


def test_a_run_that_released_nothing_leaves_no_reservation(small, tmp_path: Path) -> None:
    tree = ("privacy.mechanism={kind='tree'}", "privacy.noise_multiplier=30.0")
    ledger = Ledger.create(tmp_path / "l", 9.0, 1e-6, "quarter")
    refused = reserved(ledger.path, small(*tree), date(2026, 10, 1), HERE)
    with pytest.raises(Refused), refused as begun:
        begun()
        raise Refused("refused: round 0 is outside the claim; nothing was released")
    assert not Ledger.open(ledger.path).reservations


def test_a_ledger_with_a_claim_takes_only_runs_under_it(
    small, tmp_path: Path, fedray_command
) -> None:
    tree = ("privacy.mechanism={kind='tree'}", "privacy.noise_multiplier=30.0")
    scenario, day = small(*tree), date(2026, 10, 1)
    claim = tmp_path / "claim.toml"
    claim.write_text('mechanism = "tree"\nnoise_multiplier = 30.0\nrounds = 12\n')
    make = ("budget", str(tmp_path / "l"), "--epsilon", "9", "--delta", "1e-6")
    code, out, _ = fedray_command("--quiet", *make, "--ensure", str(claim), "--json")
    own = Claim(mechanism=Tree(), noise_multiplier=30.0, rounds=12)
    assert (code, json.loads(out)["ensured"]) == (0, own.digest)
    ledger = tmp_path / "l"
    for other, reason in ((None, "has no claim that it ensures"), (claim_of(rounds=12), "another")):
        with (
            pytest.raises(InputError, match=reason),
            reserved(ledger, scenario, day, HERE, claim=other),
        ):
            pass
    assert not Ledger.open(ledger).reservations
    (tmp_path / "s.toml").write_text(scenario.to_toml())
    run = ("--quiet", "run", str(tmp_path / "s.toml"), "--place", "backend=in-process")
    run = (*run, "--ledger", str(ledger), "--start", day.isoformat())
    code, _, err = fedray_command(*run, "--out", str(tmp_path / "t"))
    assert (code, "has no claim that it ensures" in err) == (2, True)
    code, _, err = fedray_command(*run, "--out", str(tmp_path / "t"), "--ensure", str(claim))
    assert (code, len(Ledger.open(ledger).charges)) == (0, 1)
    without = run_scenario(small(*tree, "seed=8"), HERE, tmp_path / "without")
    with pytest.raises(InputError, match="has no claim that it ensures"):
        charge_run(ledger, without, day)
    code, out, _ = fedray_command("budget", str(ledger))
    shown = f"mechanism tree, noise multiplier 30, rounds 12 (claim {own.digest[:12]})"
    assert f"every run ensures {shown}" in " ".join(out.split())
    # A log has no rules, so there is no --ensure for it.
    (tmp_path / "log.csv").write_text("device,round\na,0\nb,1\n")
    log = import_log(tmp_path / "log.csv", "device", "round", 2, tmp_path / "log")
    with pytest.raises(
        InputError, match="a log cannot ensure a claim; charge it to another ledger"
    ):
        charge_run(ledger, log.path, day, "", own)


def test_a_ledger_shows_every_statement_of_its_claim(tmp_path: Path) -> None:
    claim = Claim.model_validate(
        {
            "mechanism": {"kind": "toeplitz", "coefficients": [1.0, 0.5]},
            "noise_multiplier": 4.5,
            "min_sep": 2,
            "max_participations": 3,
            "most_per_period": {"participations": 1, "hours": 13.0},
            "frontier": [[4, 1], [2, 3]],
            "trust": {"kind": "enclave"},
            "epsilon": 8.0,
            "delta": 1e-8,
        }
    )
    ledger = Ledger.create(tmp_path / "l", 9.0, 1e-6, "quarter", ensure=claim)
    shown = dict(ledger.tables()[1].rows)["every run ensures"]
    statements = (
        "mechanism toeplitz, noise multiplier 4.5, min-sep 2, max participations 3, "
        "most per period 1 within 13 h, "
    )
    assert shown.startswith(statements)
    assert "trust enclave, epsilon 8, delta 1e-08 (claim " in shown
    plain = Ledger.create(tmp_path / "p", 9.0, 1e-6, "quarter")
    assert "every run ensures" not in dict(plain.tables()[1].rows)


# Uploads that expire.
STORED = (
    "population.devices=3000",
    "availability={model='poisson', sessions_per_day=6.0}",
    "participation={policies=[{kind='swor', period_hours=6.0}]}",
    "rounds.mode=upload-then-train",
    "rounds.count=22",
    "rounds.report_goal=40",
    "rounds.uploads={window_hours=4.0, round_minutes=30.0, schedule={kind='cyclic', min_sep=5}}",
)


def ages_of(trace: Trace) -> np.ndarray:
    """Days between an upload and the round that drew it."""
    rows = trace.columns(0)
    return (trace.rounds["started"][rows["round"]] - rows["report_time"]) / DAY


@pytest.mark.slow
@pytest.mark.parametrize(
    "schedule",
    [
        "{kind='cyclic', min_sep=5}",
        "{kind='poisson', probability=0.05}",
        "{kind='min_sep', min_sep=5, probability=0.3}",
    ],
)
def test_an_expired_upload_is_never_drawn(
    small, tmp_path: Path, monkeypatch, schedule: str
) -> None:
    """Nor released under a claim, if the server keeps uploads that have expired."""
    scenario = small(*STORED, f"rounds.uploads.schedule={schedule}")
    keeps = scenario.with_overrides("rounds.uploads.keep_days=0.35")
    plain = simulate(scenario, HERE, tmp_path / "plain")
    kept = simulate(keeps, HERE, tmp_path / "kept")
    assert ages_of(plain).max() > 0.5
    assert 0.3 < ages_of(kept).max() <= 0.35
    # Where none has expired yet, the rounds are the same.
    young = int(np.count_nonzero(plain.rounds["started"] < 0.35 * DAY))
    assert young > 2
    assert (kept.rounds["accepted"][:young] == plain.rounds["accepted"][:young]).all()
    assert not audit_trace(kept).findings
    # A server that forgets to expire them.
    monkeypatch.setattr(Uploads, "keep_seconds", math.inf)
    forgets = simulate(keeps, HERE, tmp_path / "forgets")
    audit = audit_trace(forgets)
    (finding,) = audit.findings
    assert audit.verdict.startswith("The claim does not hold: keep days is 0.")
    assert "keep days" in audit.page()
    assert audit.to_json_in_full()["claim_holds"] is False
    assert (finding.statement, finding.verdict) == ("keep_days", Verdict.BROKEN)
    assert finding.found == pytest.approx(ages_of(forgets).max())
    rows = forgets.columns(0)
    assert finding.broken_by == np.unique(rows["device_id"][ages_of(forgets) > 0.35]).size
    trace = planted(keeps, claim_of(keep_days=0.35), tmp_path / "planted")
    assert trace.run["ended"].startswith(f"refused: round {trace.committed_rounds} is outside")
    assert 0 < trace.committed_rounds < 22
    accepted = trace.columns(0)["outcome"] == 0
    assert ages_of(trace)[accepted].max() <= 0.35


def test_a_window_whose_uploads_have_expired_ends_the_run(small, tmp_path: Path) -> None:
    scenario = small(*STORED, "rounds.uploads.keep_days=0.2")
    trace = simulate(scenario, HERE, tmp_path / "t")
    assert "have expired, fewer than rounds.report_goal=40" in trace.run["ended"]
    assert "raise rounds.uploads.keep_days" in trace.run["ended"]


def test_the_age_of_uploads_is_known_before_the_run(small, tmp_path: Path) -> None:
    """Rounds on the server start at known times, so the oldest draw is almost as old as stated."""
    scenario = small(*STORED)
    trace = simulate(scenario, HERE, tmp_path / "t")
    last = float(trace.rounds["started"][-1]) / DAY
    for days, starts in ((last, True), (last - 1e-6, False)):
        claim = Claim(
            mechanism=scenario.privacy.needed_strategy(),
            noise_multiplier=scenario.privacy.noise_multiplier,
            keep_days=days,
        )
        problems = unensured(claim, scenario, worst_participation(scenario))
        assert bool(problems) is not starts
    assert ages_of(trace).max() <= last


ASK = {
    "seed": 5,
    "population": {"devices": 3000},
    "participation": {"timer_hours": 20.0, "timer_resets_on": "upload"},
    "rounds": {
        "mode": "upload-then-train",
        "count": 3,
        "report_goal": 500,
        "uploads": {"window_hours": 24.0, "windows": 3, "schedule": {"kind": "all"}},
    },
    "analytics": {
        "question": {"kind": "histogram", "size": 16, "most_keys": 2},
        "values": {"kind": "words", "words": 16},
        "trust": [{"kind": "server"}],
        "epsilon": 1.0,
        "delta": 1e-8,
    },
    "training": {"enabled": False},
}


def test_answers_to_a_question_ensure_a_claim(tmp_path: Path, fedray_command) -> None:
    """Three windows of epsilon 1; mechanism and noise are those of a model, and none is trained."""
    scenario, folder = Scenario.from_tables(ASK), str(tmp_path / "t")
    (tmp_path / "s.toml").write_text(scenario.to_toml())
    claim = tmp_path / "claim.toml"
    text = 'mechanism = "tree"\nnoise_multiplier = 3.0\nrounds = 3\nmax_participations = 3\n'
    run = ("--quiet", "run", str(tmp_path / "s.toml"), "--place", "backend=in-process")
    run = (*run, "--out", folder, "--ensure", str(claim))
    for epsilon, expected in ((1.5, 2), (3.1, 0)):
        claim.write_text(f"{text}epsilon = {epsilon}\ndelta = 3.1e-8\n")
        code, _, err = fedray_command(*run)
        assert code == expected, err
        assert ("claim: epsilon=1.5 is not ensured; the rules ensure " in err) == (code == 2)
    audit = audit_trace(Path(folder))
    assert [each.statement for each in audit.findings] == [
        "rounds",
        "max_participations",
        "epsilon",
    ]
    assert audit.findings[-1].found == pytest.approx(3.0, rel=1e-4)
    assert audit.claim_holds
    assert audit.verdict.startswith("The claim holds.")
    assert "The claim holds." in audit.page()
    assert audit.to_json_in_full()["claim_holds"] is True
    answer = ("--quiet", "answer", folder, "--json", "--ensure", str(claim))
    run_page = (tmp_path / "t" / "answer.html").read_text()
    assert f"The claim {read_claim(claim).digest[:12]} had to be ensured." in run_page
    # Another claim than that of the run.
    claim.write_text(f"{text}epsilon = 3.2\ndelta = 3.1e-8\n")
    digest = read_claim(claim).digest
    code, out, err = fedray_command(*answer, "--page", str(tmp_path / "a.html"))
    assert code == 0, err
    assert json.loads(out)["ensured"] == digest
    assert json.loads((tmp_path / "t" / "answer.json").read_text())["ensured"] == digest
    assert f"The claim {digest[:12]} had to be ensured." in (tmp_path / "a.html").read_text()
    code, out, _ = fedray_command(*answer[:-2], "--set", "analytics.epsilon=2.0")
    assert (code, "ensured" in json.loads(out)) == (0, False)
    claim.write_text(f"{text}epsilon = 3.1\ndelta = 3.1e-8\n")
    code, out, err = fedray_command(*answer[:-2])
    assert json.loads(out)["ensured"] == read_claim(claim).digest
    code, out, err = fedray_command(*answer, "--set", "analytics.epsilon=2.0")
    assert (code, out) == (2, "")
    assert err.startswith("fedray: claim: epsilon=3.1 is not ensured; the rules ensure ")


@pytest.mark.parametrize(
    ("question", "trust", "own"),
    [
        ({"kind": "histogram", "size": 16}, {"kind": "shuffled", "least_devices": 500}, "3e-08"),
        ({"kind": "open_histogram", "most_keys": 2}, {"kind": "server"}, "2.09"),
    ],
)
def test_without_a_figure_a_claim_is_refused_with_the_reason(
    question: Any, trust: Any, own: str
) -> None:
    """Three windows whose answers have a delta each, of 1e-8 or a part of it."""
    asked = {**ASK["analytics"], "question": question, "trust": [trust]}
    scenario = Scenario.from_tables({**ASK, "analytics": asked})
    for key in ("epsilon", "rho"):
        (problem,) = unensured(claim_of(**{key: 9.0}), scenario, worst_participation(scenario))
        at = " at delta 1e-08" if key == "epsilon" else ""
        said = f"the rules ensure no {key}{at}, since the deltas of its answers add up to {own}"
        assert said in problem
        assert "inf" not in problem


@pytest.mark.parametrize("own", ["server", "enclave"])
def test_a_claimed_trust_must_be_that_of_the_scenario(
    small, tmp_path: Path, fedray_command, own: str
) -> None:
    """Before a run, and before a training on its trace."""
    other = {"server": "enclave", "enclave": "server"}[own]
    keys = (*CROWD, *APART, "rounds.count=6", f"privacy.trust={{kind='{own}'}}")
    scenario, folder, claim = small(*keys), str(tmp_path / "t"), tmp_path / "claim.toml"
    (tmp_path / "s.toml").write_text(scenario.to_toml())
    run = ("--quiet", "run", str(tmp_path / "s.toml"), "--place", "backend=in-process")
    run = (*run, "--out", folder, "--ensure", str(claim))
    train = ("--quiet", "train", folder, "--place", "backend=in-process")
    train = (*train, "--ensure", str(claim), "--out", str(tmp_path / "m"))
    for command in (run, train):
        for kind, expected in ((other, 2), (own, 0)):
            text = 'mechanism = "tree"\nnoise_multiplier = 3.0\n'
            claim.write_text(f'{text}trust = {{ kind = "{kind}" }}\n')
            code, _, err = fedray_command(*command)
            assert code == expected, err
            refused = f"claim: trust={other} is not ensured; the scenario has {own}"
            assert (refused in err) == (kind == other)
    audit = audit_trace(Path(folder))
    assert audit.claim_holds
    # Arguments in place of the claim's leave it unchecked, and the verdict says so.
    claimed = claim_of(rounds=6)
    of_mechanism = {"mechanism": Tree(), "noise_multiplier": 3.0}
    instead: list[tuple[dict[str, Any], str]] = [
        ({"delta": 1e-5}, "delta was given"),
        (of_mechanism, "mechanism and noise multiplier were given"),
        ({"claim": claimed}, "another claim was given"),
    ]
    for given, said in instead:
        verdict = audit_trace(Path(folder), **given).verdict
        assert f"had to ensure is not checked, because {said}." in verdict
    same = Claim(mechanism=Tree(), noise_multiplier=3.0, trust=scenario.privacy.trust)
    assert "is not checked" not in audit.verdict + audit_trace(Path(folder), claim=same).verdict


def test_a_claim_is_about_one_task(small, tmp_path: Path) -> None:
    several = SeveralTasks.from_tables({**small().to_tables(), "tasks": {"a": {}, "b": {}}})
    with pytest.raises(InputError, match="the scenario has several tasks"):
        run_scenario(several, HERE, tmp_path / "t", ensure=claim_of(rounds=12))
    assert not list(tmp_path.iterdir())
