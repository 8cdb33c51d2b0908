"""Forecasts: a continuation starts from the observed state, keeps the rules, and its intervals
contain what simulated deployments then did."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import tomli_w

import fedray
from fedray.audit.live.in_force import RulesInForce
from fedray.audit.live.promise import Promise
from fedray.audit.noise import ServerNoise
from fedray.audit.participation import Patterns
from fedray.audit.sensitivity import trace_sensitivity
from fedray.base.errors import InputError
from fedray.mechanisms.registry import Identity
from fedray.mechanisms.tree import Tree
from fedray.runs.simulation import simulate
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.studies.forecast import continuation, privacy
from fedray.studies.forecast.activity import Activity
from fedray.studies.forecast.continuation import continued
from fedray.studies.forecast.devices import Devices, Known
from fedray.studies.forecast.forecast import Interval, continuations, forecast
from fedray.studies.forecast.history import DAY, History, Ruling, history_of
from fedray.studies.forecast.pace import Pace
from fedray.studies.forecast.privacy import Privacy, Spent

HERE = Placement(1, "in-process")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Scenario, fedray.Trace]:
    """240 rounds of 15 devices in 30 days; a quarter is a week."""
    tables = {
        "name": "run",
        "seed": 5,
        "population": {"devices": 3000},
        "participation": {"timer_hours": 24.0},
        "rounds": {"count": 240, "report_goal": 15, "min_minutes_between": 180.0},
        "training": {"enabled": False},
    }
    scenario = Scenario.from_tables(tables)
    return scenario, simulate(scenario, HERE, tmp_path_factory.mktemp("run") / "trace")


SMALL = {
    "name": "small",
    "population": {"devices": 100},
    "rounds": {"count": 60, "report_goal": 4},
    "training": {"enabled": False},
}


@pytest.fixture
def log(tmp_path: Path) -> fedray.ImportedTrace:
    """Every device comes each fifth of 30 rounds, six hours apart."""
    rows = ["device_id,round,time"]
    rows += [f"d{t % 5}-{d},{t},{t * 6 * 3600}" for t in range(30) for d in range(4)]
    (tmp_path / "log.csv").write_text("\n".join(rows) + "\n")
    return fedray.import_log(
        *(tmp_path / "log.csv", "device_id", "round", 30, tmp_path / "trace"),
        time_column="time",
        time_unit="seconds",
    )


@pytest.mark.slow
@pytest.mark.parametrize("cut", [0.25, 0.5])
def test_intervals_contain_the_end_of_a_simulated_deployment(run, cut: float) -> None:
    """One deployment at each cut; the benchmark counts many. An interval that is open to anything
    would fail the second half."""
    scenario, trace = run
    history = history_of(trace, scenario, None)
    _, paths = continuations(history.until(int(cut * 240)), None, 240, 40)
    min_seps = [each.min_seps[-1] for each in paths]
    most = [each.most[-1] for each in paths]
    for values, true in (
        (min_seps, history.patterns.min_sep),
        (most, history.patterns.max_participations),
    ):
        assert min(values) <= true <= max(values)
        assert max(values) - min(values) <= true


@pytest.mark.slow
def test_a_continuation_keeps_the_timer_the_state_and_its_seed(run) -> None:
    scenario, trace = run
    half = history_of(trace, scenario, None).until(120)
    (_, devices), paths = continuations(half, None, 240, 2)
    again = continuations(half, None, 240, 2)[1]
    assert all(np.array_equal(a.most, b.most) for a, b in zip(paths, again, strict=True))
    assert not np.array_equal(paths[0].starts, paths[1].starts)
    for each in paths:
        assert each.by_count @ np.arange(each.by_count.size) == devices.sizes.sum() + 15 * 120
        # No device returns sooner than its timer lets it, at the times of the rounds.
        assert each.min_seps[-1] >= min(each.enforced.min_sep, half.patterns.min_sep)
        assert each.most[-1] <= each.enforced.max_participations
        assert (np.diff(each.starts) > 0).all()


@dataclass(frozen=True)
class Kept:
    """Stands for the privacy of a mechanism, and keeps the patterns that it is given."""

    seen: list[Patterns]

    def of_patterns(self, patterns: Patterns, released: int) -> Spent:
        self.seen.append(patterns)
        return Spent(float(released), ())


@pytest.mark.slow
@pytest.mark.parametrize("part", [1 << 16, 400])
def test_figures_of_a_continuation_are_those_of_its_patterns(run, part: int, monkeypatch) -> None:
    """In one part, whose rounds are as large as given, and in several, which vary."""
    monkeypatch.setattr(continuation, "PART", part)
    scenario, trace = run
    half = history_of(trace, scenario, None).until(120)
    pace, devices, kept = Pace(half.starts), Devices(half, None), Kept([])
    path = continued(half, pace, devices, 240, 1, cast("Privacy", kept))
    (found,) = kept.seen
    past = {
        tuple(half.patterns.rounds[start : start + count])
        for start, count in zip(half.patterns.starts, half.patterns.counts, strict=True)
    }
    begun = set()
    for start, count in zip(found.starts, found.counts, strict=True):
        rounds = found.rounds[start : start + count]
        assert (np.diff(rounds.astype(np.int64)) > 0).all()
        begun.add(tuple(rounds[rounds < 120]))
    assert begun - {()} == past
    assert path.end == found.participation
    assert np.array_equal(path.by_count, np.bincount(found.counts))
    sizes = np.bincount(found.rounds, minlength=240)[120:]
    if part == 400:
        assert sizes.mean() == pytest.approx(15, rel=0.1)
    else:
        assert sizes.tolist() == [15] * 120
    apart = np.diff(np.append(half.starts, path.starts)[found.rounds])
    apart[found.starts[1:] - 1] = np.inf
    assert apart.min() >= 24 * 3600.0
    for r in (130, 200):
        (early,) = found.so_far([r])
        assert path.min_seps[r - 121] == early.min_sep
        assert path.most[r - 121] == early.counts.max()


@pytest.mark.slow
def test_parts_change_a_forecast_no_more_than_its_seed(run, monkeypatch) -> None:
    """The other parts come back by themselves. Means of 30 continuations; five standard errors are
    not by chance."""
    scenario, trace = run
    half = history_of(trace, scenario, None).until(120)
    whole = [each.by_count for each in continuations(half, None, 240, 30)[1]]
    monkeypatch.setattr(continuation, "PART", 400)
    parts = [each.by_count for each in continuations(half, None, 240, 30)[1]]
    for least in (1, 3, 5):
        a, b = (np.array([e[least:].sum() for e in paths]) for paths in (whole, parts))
        assert abs(a.mean() - b.mean()) < 5 * np.sqrt((a.var() + b.var()) / 30)


def test_the_most_active_devices_are_not_drawn_towards_the_others() -> None:
    """990 devices come once in 200 rounds, 10 in each fourth; one Gamma has no such tail. The
    chance of a first round is that of not having none, but for devices that come in almost each
    round: there half a round is coarse."""
    later = np.append(np.zeros(990, np.int64), np.full(10, 40))
    first = np.append(np.arange(990) % 200, np.zeros(10, np.int64))
    activity = Activity(first, 199 - first, later, 200)
    rng = np.random.default_rng(1)
    drawn = [activity.of_seen(activity.drawn(rng), slice(990, None), rng) for _ in range(40)]
    assert np.mean(drawn) == pytest.approx(41 / 200, rel=0.1)
    missed = 1.0 - activity.chance(np.arange(200)).sum(axis=0)
    assert missed == pytest.approx(activity.never(np.array([200.0]))[0], abs=0.05)


def test_known_devices_bound_the_estimated_ones(run) -> None:
    scenario, trace = run
    half = history_of(trace, scenario, None).until(120)
    rng = np.random.default_rng(1)
    few = Devices(half, Known(half.patterns.counts.size, 0.0)).drawn(rng)
    many = Devices(half, Known(1e9, 0.0)).drawn(rng)
    assert few.devices == half.patterns.counts.size
    assert few.devices < many.devices < 10_000
    growing = Devices(half, Known(1e9, 1e7)).drawn(rng)
    assert growing.joins == pytest.approx(growing.devices / 100)


def test_the_pace_continues_a_daily_pattern_and_a_slower_server() -> None:
    """Rounds only from 0:00 to 11:00, and from day 10 on every second one."""
    starts = np.array(
        [day * DAY + 3600.0 * h for day in range(20) for h in range(0, 12, 1 if day < 10 else 2)],
        np.float64,
    )
    pace = Pace(starts)
    assert "step" in pace.drift
    found = pace.continued(60, np.random.default_rng(1))
    assert 8.5 < (found[-1] - starts[-1]) / DAY < 12.0
    assert ((found % DAY) / 3600.0 < 13.0).mean() > 0.9


def test_a_server_that_stops_each_day_begins_again_at_its_hour() -> None:
    """From day 3 on, rounds each two hours from 14:00 to 4:00, up to two minutes late."""
    late = np.random.default_rng(3).uniform(0.0, 120.0, 8 * 20)
    hours = np.array([24.0 * day + 14.0 + 2.0 * h for day in range(3, 23) for h in range(8)])
    before = np.arange(0.0, 72.0, 2.0)
    pace = Pace(np.concatenate([before * 3600.0, hours * 3600.0 + late]))
    assert "no rounds from 4.0 h to 14.0 h" in pace.drift
    for seed in range(5):
        found = pace.continued(80, np.random.default_rng(seed))
        hour = found % DAY / 3600.0
        assert not ((hour > 5.5) & (hour < 13.9)).any()
        assert 9.5 < (found[-1] - found[0]) / DAY < 10.5
        first = hour[(hour > 13.9) & (hour < 15.0)]
        assert ((first >= 14.0) & (first < 14.0 + 2.0 / 60)).all()


def test_a_weekend_is_found_after_two_of_them() -> None:
    hours = [24 * day + h for day in range(21) for h in range(0, 24, 6 if day % 7 > 4 else 2)]
    assert "weekends" in Pace(3600.0 * np.array(hours, np.float64)).drift


def test_a_weekend_is_found_after_an_unsettled_start() -> None:
    """Days of 12 rounds, 6 at weekends; at first, devices come at once and then wait."""
    first = [24, 3, 18, 6, 14]
    per_day = first + [6 if day % 7 > 4 else 12 for day in range(len(first), 18)]
    hours = [24.0 * day + 24.0 * h / n for day, n in enumerate(per_day) for h in range(n)]
    pace = Pace(3600.0 * np.array(hours))
    assert "weekends after an unsettled start" in pace.drift
    found = pace.continued(240, np.random.default_rng(1))
    days = np.bincount((found // DAY).astype(int))[18:]
    weekend = (np.arange(18, 18 + days.size) % 7 > 4)[1:-1]
    assert days[1:-1][weekend].mean() == pytest.approx(6, abs=2)
    assert days[1:-1][~weekend].mean() == pytest.approx(12, abs=2)


def test_a_pace_that_returns_to_its_level_does_so_in_its_continuation() -> None:
    """Each second day has 9 rounds, each other day 7, at random hours. Rounds of two days vary by
    less than sums of independent distances would."""
    draws = np.random.default_rng(2)
    hours = [24 * day + np.sort(draws.uniform(0, 24, 9 - 2 * (day % 2))) for day in range(40)]
    pace = Pace(3600.0 * np.concatenate(hours))
    days = []
    for seed in range(8):
        found = pace.continued(300, np.random.default_rng(seed))
        two = np.bincount(((found - found[0]) // (2 * DAY)).astype(int))[:-1]
        days.append(two.std())
    assert np.mean(days) < 2.8


def test_history_until_a_round_is_that_of_a_shorter_trace() -> None:
    patterns = Patterns(
        4,
        np.array([1, 2, 5], np.uint64),
        np.array([2, 1, 2]),
        np.array([0, 2, 3, 1, 3], np.uint32),
    )
    history = History(
        3600.0 * np.arange(4, dtype=np.float64), patterns, Ruling(7200.0, "the claim")
    )
    early = history.until(3)
    assert early.patterns.device_ids.tolist() == [1, 5]
    assert early.patterns.rounds.tolist() == [0, 2, 1]
    assert early.patterns.counts.tolist() == [2, 1]
    assert history.reopened().tolist() == [2, 3, 4, 4]
    separated = replace(history, rules=Ruling(0.0, "the scenario", separation=3))
    assert separated.reopened().tolist() == [3, 4, 4, 4]


def test_a_log_is_forecast_with_its_least_wait_and_a_broken_claim_is_named(
    log, tmp_path: Path
) -> None:
    """k of 60 rounds is 12."""
    text = 'mechanism = "tree"\nnoise_multiplier = 9.0\nmin_sep = 5\nmax_participations = 8\n'
    (tmp_path / "claim.toml").write_text(text)
    claim = fedray.read_claim(tmp_path / "claim.toml")
    found = forecast(log, 60, claim=claim, seeds=20)
    assert found.timer_source == "the least observed wait"
    assert found.row("max participations").end.contains(12)
    broken = {each.claimed: each for each in found.breaks}
    assert broken["participations <= 8"].probability == 1.0
    day = broken["participations <= 8"].day
    assert day is not None
    assert 9.0 < day.median < 13.0
    with pytest.raises(InputError, match="must be more than the 30 observed rounds"):
        forecast(log, 30)


def test_claimed_rho_epsilon_and_rounds_break_when_the_continued_trace_exceeds_them(
    log, tmp_path: Path
) -> None:
    """Without correlated noise, rho is participations / (2 z^2): 6 / 162 after 30 rounds, and 12 /
    162 after 60. The ninth one of a device is in the 41st round, on day 10."""
    text = (
        'mechanism = "identity"\nnoise_multiplier = 9.0\ntimer_hours = 29.0\nrounds = 40\n'
        "rho = 0.05\nepsilon = 0.01\n"
    )
    (tmp_path / "claim.toml").write_text(text)
    found = forecast(log, 60, claim=fedray.read_claim(tmp_path / "claim.toml"), seeds=20)
    rho, rounds = (
        next(each for each in found.breaks if each.claimed == words)
        for words in ("rho <= 0.05", "rounds <= 40")
    )
    assert found.row("rho").now == pytest.approx(6 / 162)
    assert found.row("rho").end.median == pytest.approx(12 / 162)
    assert found.row("epsilon").end.low > 0.01
    assert rho.probability == rounds.probability == 1.0
    assert rho.day is not None
    assert rounds.day is not None
    assert 9.0 < rounds.day.median < 11.0
    assert 9.0 < rho.day.median < 11.0
    assert "epsilon <= 0.01, broken already" in {each.claimed for each in found.breaks}


def test_noise_of_devices_is_refused_for_a_claimed_epsilon(log, tmp_path: Path) -> None:
    text = (
        'mechanism = "identity"\nnoise_multiplier = 9.0\ntimer_hours = 29.0\n'
        'trust = {kind = "devices", parameters = 1000}\n'
    )
    (tmp_path / "claim.toml").write_text(text)
    found = forecast(log, 60, claim=fedray.read_claim(tmp_path / "claim.toml"), seeds=20)
    assert "epsilon" not in {each.name for each in found.rows}
    (tmp_path / "claim.toml").write_text(text + "epsilon = 4.0\n")
    with pytest.raises(InputError, match="epsilon=4.0 is not forecast if devices add the noise"):
        forecast(log, 60, claim=fedray.read_claim(tmp_path / "claim.toml"), seeds=20)


@pytest.mark.parametrize("mechanism", [Tree(), Identity()])
def test_the_round_in_which_a_limit_breaks_is_that_of_a_search_over_all_rounds(
    mechanism, monkeypatch
) -> None:
    """40 devices in 60 rounds, also when bounds first leave out devices with few."""
    rng = np.random.default_rng(7)
    rounds = [np.sort(rng.choice(60, rng.integers(1, 9), replace=False)) for _ in range(40)]
    counts = np.array([each.size for each in rounds])
    patterns = Patterns(
        60, np.arange(40, dtype=np.uint64), counts, np.concatenate(rounds).astype(np.uint32)
    )
    curve = [trace_sensitivity(mechanism, each).value for each in patterns.so_far(range(1, 61))]
    promise = Promise(ServerNoise(1.0), 1e-10, None, None, None, None, 1)
    for worth in (1 << 20, 1):
        monkeypatch.setattr(privacy, "WORTH_BOUNDS", worth)
        for share in (0.6, 0.8, 0.95, 1.0):
            limit = privacy.Limit("", share * curve[-1])
            found = privacy.Privacy(mechanism, promise, (limit,)).of_patterns(patterns, 5)
            over = [n for n in range(5, 61) if curve[n - 1] > limit.sensitivity]
            assert found.sensitivity == curve[-1]
            assert found.broken_after == (over[0] if over else None,)


def test_the_headline_warns_if_a_backtest_missed(log) -> None:
    found = forecast(log, 60, seeds=20)
    assert "Warning" not in found.headline
    missed = replace(found.backtests[0], happened=1e6)
    said = replace(found, backtests=(missed, *found.backtests[1:])).headline
    assert "the backtest missed 1 of 2 figures (min-sep was 1,000,000, forecast from 15" in said


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"later": {"round_separation": 9}, "from_round": 20}, "later"),
        ({"hold": "hold.csv", "from_round": 20}, "hold"),
        (
            {"policies": [{"kind": "most_per_period", "participations": 2, "hours": 48.0}]},
            "policies",
        ),
        (
            {"policies": [{"kind": "most_per_period", "participations": 1, "period": "local_day"}]},
            "policies",
        ),
    ],
)
def test_a_rule_that_is_not_continued_is_refused(log, tmp_path: Path, changed, key) -> None:
    (tmp_path / "hold.csv").write_text("device_id,first_round\n7,\n")
    file = tmp_path / "scenario.toml"
    file.write_text(tomli_w.dumps({**SMALL, "participation": changed}))
    scenario = Scenario.from_toml(file)
    with pytest.raises(InputError, match=rf"participation\.{key}=.* is not continued .*; give"):
        forecast(log, 60, scenario=scenario)


def test_rules_in_force_hold_in_every_round_to_come(log, tmp_path: Path) -> None:
    """Devices of residue 0 may never return, and the others at most three times more."""
    listed = "".join(f"d0-{d},\n" for d in range(4)) + "d1-0,50\n"
    (tmp_path / "hold.csv").write_text(f"device_id,first_round\n{listed}")
    file = tmp_path / "in-force.toml"
    rules = "{ max_participations = 9, round_separation = 7 }"
    file.write_text(f'from_round = 30\nhold = "hold.csv"\nlater = {rules}\n')
    found = forecast(log, 60, in_force=file, seeds=20)
    assert found.row("max participations").end == Interval(9.0, 9.0, 9.0)
    assert forecast(log, 60, seeds=20).row("max participations").end.low > 9.0
    assert "at most 9 participations" in found.in_force
    history = found.history
    assert history.waits is not None
    names = log.ids_of("device").take(history.patterns.device_ids.astype(np.int64)).to_pylist()
    waits = dict(zip(names, history.waits.tolist(), strict=True))
    assert waits["d0-2"] > 60
    assert waits["d1-0"] == 50
    assert waits["d2-3"] == 0
    kept = Kept([])
    continued(history, Pace(history.starts), Devices(history, None), 60, 1, cast("Privacy", kept))
    (patterns,) = kept.seen
    for at, first in enumerate(history.waits.tolist()):
        rounds = patterns.rounds[patterns.starts[at] :][: patterns.counts[at]].astype(int)
        later = rounds[rounds >= 30]
        assert (later >= first).all()
        assert (np.diff(rounds)[rounds[1:] >= 30] >= 7).all()


def test_rules_in_force_stand_beside_those_of_a_scenario(log) -> None:
    rules = {"round_separation": 9, "max_participations": 8, "timer_hours": 30.0}
    scenario = Scenario.from_tables({**SMALL, "participation": rules})
    given = RulesInForce(round_separation=4, timer_hours=20.0, max_participations=40)
    history, _ = history_of(log, scenario, None).under(log, 60, given)
    assert history.ahead is not None
    assert (history.ahead.separation, history.ahead.most) == (9, 8)
    assert (history.ahead.timer_seconds, history.ahead.source) == (30 * 3600.0, "the scenario")


def test_rules_in_force_of_a_simulated_trace_are_refused(trace_of, small) -> None:
    trace = trace_of([[at, at + 8] for at in range(8)], 16, small())
    given = RulesInForce(round_separation=4)
    with pytest.raises(InputError, match="in_force: rules of a simulated trace"):
        history_of(trace, small(), None).under(trace, 30, given)


def test_a_list_in_force_by_time_is_not_continued(log, tmp_path: Path) -> None:
    (tmp_path / "hold.csv").write_text("device_id,first_time\nd0-0,900000\n")
    file = tmp_path / "in-force.toml"
    file.write_text('from_round = 30\nhold = "hold.csv"\n')
    with pytest.raises(InputError, match=r"in_force\.hold=.* names times"):
        forecast(log, 60, in_force=file, seeds=20)


def test_devices_that_are_not_members_are_not_expected() -> None:
    population = {"devices": 1000, "joins_per_day": 10.0, "unreachable": 0.2}
    tables = {**SMALL, "population": population, "participation": {"members": [0.25, 0.75]}}
    assert Known.of(Scenario.from_tables(tables)) == Known(400.0, 4.0)


def test_one_participation_within_hours_is_continued_as_a_timer(log) -> None:
    once = {"kind": "most_per_period", "participations": 1, "hours": 30.0}
    scenario = Scenario.from_tables({**SMALL, "participation": {"policies": [once]}})
    assert history_of(log, scenario, None).rules.timer_seconds == 30 * 3600.0


def test_stress_names_the_timer_of_a_forecast_and_takes_that_of_a_claim(
    log, tmp_path: Path
) -> None:
    """The least observed wait is 30 h, less the 6 h to which times seem to be rounded."""
    file = tmp_path / "claim.toml"
    file.write_text('mechanism = "tree"\nnoise_multiplier = 9.0\ntimer_hours = 18.0\n')
    claim = fedray.read_claim(file)
    of = partial(fedray.stress, log, rounds=60, estimated=[5], mechanisms=["tree"])
    assert "timer 18 h, from the claim" in of(forecast=True, claim=claim).subject
    assert "timer 24 h, from the least observed wait" in of(forecast=True).subject
    with pytest.raises(InputError, match="applies to the forecast of a log"):
        of(claim=claim)


@pytest.mark.slow
def test_stress_takes_a_forecast_as_its_truths(run) -> None:
    _, trace = run
    found = fedray.stress(trace, rounds=300, estimated=[9], mechanisms=["tree"], forecast=True)
    assert {row.rounds for row in found.rows} == {300}
    assert "timer 24 h, from the scenario" in found.subject
    with pytest.raises(InputError, match="rounds=None must be given"):
        fedray.stress(trace, estimated=[9], forecast=True)
