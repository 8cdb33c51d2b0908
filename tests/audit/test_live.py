"""Whether a claim will hold after the last planned round, and what keeps it."""

import itertools
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from fedray import MostPerPeriod, import_log
from fedray.audit.audit import Audit
from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim
from fedray.audit.live.in_force import RulesInForce, read_in_force
from fedray.audit.live.outlook import Outlook, State, look_ahead
from fedray.base.errors import InputError
from fedray.mechanisms.band_fhu import BandFHU
from fedray.mechanisms.registry import Identity
from fedray.report.audits import epsilon_text
from fedray.report.outlook import outlook_page
from fedray.scenario.hold import read_hold
from fedray.scenario.participation import MostPerPeriodPolicy

UNTIL_34 = ("--claim", "claim.toml", "--until", "34")
PATTERNS = [[0, 4, 8], [1, 5], [2], [3, 7], [6], [9, 5]]


@pytest.fixture
def run(small, trace_of):
    def make(*overrides: str, patterns=PATTERNS):
        value = small(
            "privacy.noise_multiplier=3.0",
            'privacy.mechanism={kind = "identity"}',
            "participation.timer_hours=0",
            *overrides,
        )
        return trace_of(patterns, 10, value)

    return make


def audited(trace, **stated) -> Audit:
    claim = Claim(mechanism=Identity(), noise_multiplier=3.0, **stated)
    return audit_trace(trace, claim=claim)


def of(outlook: Outlook, *kinds: str):
    (found,) = [each for each in outlook.changes if each.kinds == kinds]
    return found


def test_a_cap_of_the_scenario_keeps_a_claim_until_any_round(run) -> None:
    audit = audited(run("participation.max_participations=3"), rho=3 / 18, max_participations=3)
    outlook = look_ahead(audit, 100)
    assert outlook.state is State.KEPT
    assert not outlook.changes
    spent, forward, claimed = outlook.rows
    assert forward.sensitivity == pytest.approx(np.sqrt(3.0))
    assert spent.sensitivity == pytest.approx(np.sqrt(3.0))
    assert claimed.sensitivity == pytest.approx(np.sqrt(3.0))


def test_figures_without_a_past_decide_that_a_list_needs_a_rule(run) -> None:
    """With independent noise the sensitivity is the root of the participations, here at most 5."""
    audit = audited(run("participation.round_separation=4"), rho=5 / 18)
    outlook = look_ahead(audit, 34)
    assert outlook.state is State.IN_DANGER
    # A new device may be in rounds 10, 14, .., 30, 34 is not one: 6 of them.
    assert outlook.rows[1].sensitivity == pytest.approx(np.sqrt(3 + 6))
    assert not of(outlook, "list").is_enough
    # 24 rounds and 5 participations: 10, 15, .., 30 are five at separation 5.
    assert of(outlook, "list", "separation").separation == 5
    # Under the cap no device must wait, so a list adds nothing to it.
    assert not [each for each in outlook.changes if each.kinds == ("list", "cap")]
    # Device 0 may come twice more: in rounds 8 + 9 and 8 + 18, as 8 + 27 is beyond the last.
    assert of(outlook, "separation").separation == 9
    assert of(outlook, "cap").max_participations == 5
    # Device 0 has 2 left: rounds 12 and 16, so that 20 must be beyond the last round.
    assert of(outlook, "last round").last_round == 20
    assert of(outlook, "noise").noise_factor == pytest.approx(np.sqrt(6 / 2), rel=1e-3)


def test_a_held_device_waits_until_only_its_last_participations_are_left(run) -> None:
    audit = audited(run("participation.round_separation=4"), rho=5 / 18)
    change = of(look_ahead(audit, 34), "list", "separation")
    first = change.first
    assert first is not None
    # Five rounds apart, device 0 may still have 2 participations of the 24 rounds.
    held = {int(place): int(first[place]) for place in np.flatnonzero(first)}
    assert held[0] == 24
    assert change.held == len(held)
    assert ("of them for ever" in change.text) == bool(change.never)
    assert " 0 of them" not in change.text


def test_a_claim_without_room_says_that_no_list_can_help(run) -> None:
    claim = Claim(mechanism=BandFHU(bands=8), noise_multiplier=3.0)
    trace = run('privacy.mechanism={kind = "band-fhu", bands = 8}')
    spent = audit_trace(trace, claim=claim).mechanisms[0].trace.value
    audit = audit_trace(trace, claim=claim.model_copy(update={"rho": 1.0001 * spent**2 / 18}))
    outlook = look_ahead(audit, 40)
    assert outlook.state is State.IN_DANGER
    assert "No list and no rule can help" in of(outlook, "list").text
    assert of(outlook, "last round").is_enough
    assert not any(each.held for each in outlook.changes)


def test_a_lost_claim_names_the_round_in_which_it_was_lost(run) -> None:
    trace = run()
    outlook = look_ahead(audited(trace, rho=2.5 / 18, min_sep=5, max_participations=2), 20)
    assert outlook.state is State.LOST
    found = {each.statement: each for each in outlook.statements}
    # The third participation of device 0 is in round 8, the ninth.
    assert found["rho"].lost_at == 9
    assert found["max_participations"].lost_at == 9
    # Its second is in round 4, four rounds after its first, as is that of device 5 later.
    assert found["min_sep"].lost_at == 5
    assert not outlook.changes


def test_a_timer_limits_rounds_to_come_only_at_a_stated_pace(run) -> None:
    audit = audited(run("participation.timer_hours=0.1"), rho=9 / 18)
    without = look_ahead(audit, 40)
    assert any("unless a slowest pace is stated" in each for each in without.notes)
    assert without.rows[1].min_sep == 1
    # 0.1 h are 360 s: 4 rounds of 100 s.
    with_pace = look_ahead(audit, 40, slowest_hours=100 / 3600)
    assert with_pace.rows[1].min_sep == 4
    assert (of(with_pace, "timer").timer_hours or 0.0) >= 1.0


def test_a_hold_file_is_that_of_the_change_that_costs_least(
    run, tmp_path: Path, fedray_command
) -> None:
    path = str(run("participation.round_separation=4").path)
    claim = tmp_path / "claim.toml"
    hold = tmp_path / "hold.csv"
    claim.write_text('mechanism = "identity"\nnoise_multiplier = 3.0\nrho = 0.2778\n')
    options = ("audit", path, "--claim", str(claim), "--until", "34")
    hold.write_text("device_id,first_round\n0,24\n")
    code, out, err = fedray_command(*options, "--hold", str(hold))
    assert code == 1
    # No device has five participations yet, so the cap keeps none away from the next round.
    said = "from round 10: at most 5 participations of a device, past ones included (no device"
    assert said in " ".join(out.split())
    assert "max_participations = 5" in out
    assert "the change cap needs no list; 1 device on it before may come back" in err
    assert not read_hold(hold).device_ids
    page = tmp_path / "page.html"
    assert fedray_command(*options[:-1], "10", "--page", str(page))[0] == 0
    assert "Will the claim hold" in page.read_text()


def test_a_claim_about_another_mechanism_is_not_exceeded_by_rounds(run) -> None:
    trace = run()
    claim = Claim(mechanism=BandFHU(bands=8), noise_multiplier=4.5)
    outlook = look_ahead(audit_trace(trace, claim=claim), 20)
    assert outlook.state is State.LOST
    said = outlook.headline
    assert said.startswith("The claim is lost: it is about another mechanism or other noise. ")
    assert "The claimed mechanism is band-fhu, not identity. " in said
    assert "The claimed noise_multiplier is 4.5, not 3. " in said
    assert "exceed" not in said
    # With a limit that the rounds exceed, both are said.
    exceeded = look_ahead(audit_trace(trace, claim=claim.model_copy(update={"min_sep": 5})), 20)
    assert "the released rounds exceed it already" in exceeded.headline


def test_figures_of_rounds_to_come_name_mechanism_and_noise(run) -> None:
    outlook = look_ahead(audited(run(), rho=2.5 / 18), 20)
    named = "mechanism identity, noise multiplier 3"
    assert outlook.to_json()["of"]["setting"].startswith(named)
    assert all(named in each.caption for each in outlook.figures())
    caption = outlook.tables()[0].caption
    assert caption.startswith("The claim is lost: figures after 20 rounds, of ")
    assert named in caption


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--until", "34"), "give --claim too"),
        (("--claim", "claim.toml", "--hold", "a.csv"), "give --until ROUNDS too"),
        (("--claim", "claim.toml", "--until", "3"), "must be at least the 10"),
        (("--claim", "claim.toml", "--until", "34", "--slowest", "0"), "must be a positive"),
        ((*UNTIL_34, "--gauges", "fedray.txt"), "--gauges='fedray.txt' must end with .prom"),
        ((*UNTIL_34, "--hold", "hold.txt"), "--hold='hold.txt' must end with .csv or .parquet"),
        ((*UNTIL_34, "--hold-by", "time"), "give --hold FILE too"),
        ((*UNTIL_34, "--hold", "hold.csv", "--hold-by", "time"), "give --slowest HOURS too"),
        ((*UNTIL_34, "--hold", "hold.csv", "--hold-by", "day"), "must be round or time"),
        ((*UNTIL_34, "--hold", "hold"), "must end with .csv or .parquet"),
        (("--claim", "frontier.toml", "--until", "34"), "is not judged for rounds to come"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    run, tmp_path: Path, monkeypatch, fedray_command, options: tuple[str, ...], said: str
) -> None:
    path = str(run().path)
    monkeypatch.chdir(tmp_path)
    Path("claim.toml").write_text('mechanism = "identity"\nnoise_multiplier = 3.0\nrho = 0.3\n')
    text = 'mechanism = "identity"\nnoise_multiplier = 3.0\nfrontier = [[1, 9]]\n'
    Path("frontier.toml").write_text(text)
    code, _, err = fedray_command("audit", path, *options)
    assert code == 2
    assert said in err


def continuations(past: list[int], separation: int, most: int, r: int, rounds: int):
    """The past with every allowed continuation, by listing all sets of rounds to come."""
    to_come = range(r, rounds)
    for count in range(len(to_come) + 1):
        for later in itertools.combinations(to_come, count):
            pattern = [*past, *later]
            gaps = np.diff(pattern)[max(0, len(past) - 1) :]
            if (gaps >= separation).all() and (not later or len(pattern) <= most):
                yield pattern


@pytest.mark.parametrize("seed", range(60))
def test_states_are_those_of_all_continuations(small, trace_of, seed: int) -> None:
    """With a slow enumeration of every device's continuations, and of a new device's."""
    draws = np.random.default_rng(seed)
    r, rounds = int(draws.integers(4, 8)), int(draws.integers(8, 13))
    separation, most = int(draws.integers(1, 5)), int(draws.integers(2, 5))
    bands = (1, 2, 4)[seed % 3]
    strategy = Identity() if bands == 1 else BandFHU(bands=bands)
    kind = "kind='identity'" if bands == 1 else f"kind='band-fhu', bands={bands}"
    # Half of the pasts break the rules.
    patterns = [
        sorted(draws.choice(r, int(draws.integers(1, 3)), replace=False).tolist()) for _ in range(5)
    ]
    if seed % 2:
        patterns = [
            each[:1] if np.diff(each).min(initial=9) < separation else each for each in patterns
        ]
    patterns.append(list(range(0, r, max(1, separation))))
    patterns[-1] = patterns[-1][:most]
    # A trace has a device in every round.
    patterns += [[each] for each in range(r)]
    value = small(
        "privacy.noise_multiplier=3.0",
        f"privacy.mechanism={{{kind}}}",
        "participation.timer_hours=0",
        f"participation.round_separation={separation}",
        f"participation.max_participations={most}",
    )
    C = strategy.definition(rounds)

    def rho_of(pattern: list[int], until: int) -> float:
        return float((C[:until, pattern].sum(axis=1) ** 2).sum()) / 18

    pasts = [*patterns, []]
    all_continued = [
        pattern for past in pasts for pattern in continuations(past, separation, most, r, rounds)
    ]
    spent = max(rho_of(each, r) for each in patterns)
    forward = max(rho_of(each, rounds) for each in all_continued)
    claimed = {
        "rho": float(draws.uniform(0.8 * spent, 1.2 * forward)),
        "min_sep": int(draws.integers(1, 5)),
        "max_participations": int(draws.integers(1, 5)),
    }
    claimed["max_participations"] = min(
        claimed["max_participations"], 1 + (rounds - 1) // claimed["min_sep"]
    )

    def gap(pattern: list[int]) -> int:
        return int(np.diff(pattern).min(initial=99))

    def state(is_lost: bool, is_in_danger: bool) -> State:
        return State.LOST if is_lost else State.IN_DANGER if is_in_danger else State.KEPT

    expected = {
        "rho": state(spent > claimed["rho"], forward > claimed["rho"]),
        "min_sep": state(
            min(map(gap, patterns)) < claimed["min_sep"],
            min(map(gap, all_continued)) < claimed["min_sep"],
        ),
        "max_participations": state(
            max(map(len, patterns)) > claimed["max_participations"],
            max(map(len, all_continued)) > claimed["max_participations"],
        ),
    }
    claim = Claim(mechanism=strategy, noise_multiplier=3.0, **claimed)
    outlook = look_ahead(audit_trace(trace_of(patterns, r, value), claim=claim), rounds)
    assert {
        each.statement: each.state for each in outlook.statements if each.statement in expected
    } == expected
    if outlook.rows[1].is_exact:
        assert outlook.rows[1].rho == pytest.approx(forward, rel=1e-9)


def test_a_log_with_times_is_judged_by_a_timer_in_force_and_a_stated_pace(tmp_path: Path) -> None:
    """Rounds an hour apart, of which the last is in progress: a timer of 3 h is three rounds at the pace, and nothing without."""
    rows = [f"d{each},{each % 4 + 100},{1_700_000_000 + 3600 * (each % 4)}" for each in range(12)]
    (tmp_path / "log.csv").write_text("\n".join(["d,r,t", *rows]))
    trace = import_log(
        tmp_path / "log.csv", "d", "r", None, tmp_path / "t", renumber=True, time_column="t"
    )
    claim = Claim(
        mechanism=Identity(), noise_multiplier=3.0, rho=4 / 18, timer_hours=3.0, rounds=12
    )
    audit = audit_trace(trace, claim=claim)
    given = RulesInForce(timer_hours=3.0)
    without = look_ahead(audit, 12, in_force=given)
    assert without.state is State.IN_DANGER
    assert any("unless a slowest pace is stated" in each for each in without.notes)
    # The same as a stated pace of an hour gives, but not guaranteed.
    said = "At the slowest pace so far, 1.00 h, it would be at most "
    at_pace = (
        f"{said}{epsilon_text(look_ahead(audit, 12, 1.0, given).rows[1].epsilon)}, which is not"
    )
    assert at_pace in without.headline
    assert said not in look_ahead(audit, 12, 1.0, given).headline
    # Rounds 3, 6, 9 after round 0; a timer counts from the last time that is recorded of a round.
    paced = look_ahead(audit, 12, 1.0, given)
    assert paced.rows[1].min_sep == 3
    assert paced.rows[1].rho == pytest.approx(4 / 18)
    assert paced.state is State.KEPT
    # A log shows no noise.
    assert ", and if mechanism and noise_multiplier are as claimed. " in paced.headline
    # Rounds that may be two hours apart need only two between.
    assert look_ahead(audit, 12, 2.0, given).rows[1].min_sep == 2


@pytest.mark.parametrize("is_simulated", [True, False])
def test_a_claimed_limit_for_local_days_is_kept_by_the_rules(
    run, tmp_path: Path, is_simulated: bool
) -> None:
    stated = {"most_per_period": MostPerPeriod(participations=1, period="local_day")}
    given = None
    if is_simulated:
        rule = 'participation.policies=[{kind="timer"}, {kind="most_per_period", participations=1, period="local_day"}]'
        trace = run(rule, patterns=[[each] for each in range(10)])
    else:
        rows = [f"d{each},{each},{1_700_000_000 + 3600 * each}" for each in range(10)]
        (tmp_path / "log.csv").write_text("\n".join(["d,r,t", *rows]))
        trace = import_log(tmp_path / "log.csv", "d", "r", 10, tmp_path / "t", time_column="t")
        given = RulesInForce(policies=(MostPerPeriodPolicy(participations=1, period="local_day"),))
    outlook = look_ahead(audited(trace, **stated), 12, 1.0, given)
    (found,) = [each for each in outlook.statements if each.statement == "most_per_period"]
    assert found.state is State.KEPT
    assert any("falls is unknown" in each for each in outlook.notes)


def test_local_days_to_come_count_as_twice_as_many_within_a_day(run) -> None:
    """At a faster pace midnight may fall between two other rounds: starts 24.5, 32.4, .. 55 h allow {0, 4, 5}, though one day has three rounds 8 h apart."""
    rule = 'participation.policies=[{kind="timer"}, {kind="most_per_period", participations=1, period="local_day"}]'
    trace = run(rule, patterns=[[each] for each in range(10)])
    outlook = look_ahead(audited(trace, rho=9.0), 40, slowest_hours=8.0)
    forward = outlook.rows[1]
    # Two in every three rounds from round 10 on, after one in round 9.
    assert forward.sensitivity == pytest.approx(np.sqrt(1 + 20))
    assert not forward.is_exact
    assert any("falls is unknown" in each for each in outlook.notes)


def test_a_rule_in_hours_that_could_not_be_checked_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("d,r\na,0\na,1\na,2\nb,1\n")
    trace = import_log(tmp_path / "log.csv", "d", "r", 3, tmp_path / "t")
    stated = {
        "timer_hours": 9000.0,
        "most_per_period": MostPerPeriod(participations=1, hours=9000.0),
    }
    outlook = look_ahead(audited(trace, **stated), 8, slowest_hours=24.0)
    states = {each.statement: each.state for each in outlook.statements}
    assert states["timer_hours"] is states["most_per_period"] is State.IN_DANGER
    assert outlook.state is State.IN_DANGER


def test_rounds_without_a_time_at_the_end_do_not_switch_a_timer_off(tmp_path: Path) -> None:
    rows = [f"d{each},{each},{1_700_000_000 + 3600 * each}" for each in range(4)]
    (tmp_path / "log.csv").write_text("\n".join(["d,r,t", *rows]))
    (tmp_path / "rounds.csv").write_text("\n".join(["r", *map(str, range(7))]))
    trace = import_log(
        tmp_path / "log.csv", "d", "r", None, tmp_path / "t",
        rounds_file=tmp_path / "rounds.csv", time_column="t",
    )  # fmt: skip
    claim = Claim(mechanism=Identity(), noise_multiplier=3.0, rho=5 / 18, timer_hours=3.0)
    given = RulesInForce(timer_hours=3.0)
    outlook = look_ahead(audit_trace(trace, claim=claim), 12, 1.0, given)
    assert outlook.rows[1].min_sep == 3
    assert any("have no times" in each for each in outlook.notes)


@pytest.mark.parametrize("seed", range(40))
def test_a_late_server_that_enforces_the_named_separation_keeps_the_figures(
    tmp_path: Path, seed: int
) -> None:
    """Against all patterns of devices whose timer runs by the clock, at paces of which some are slow."""
    draws = np.random.default_rng(seed)
    r, rounds, pace, timer = 6, 13, 4, int(draws.integers(5, 16))
    starts = np.cumsum(draws.integers(1, pace + 1, r))
    rows = [f"d{each},{each},{1_700_000_000 + 3600 * at}" for each, at in enumerate(starts)]
    (tmp_path / "log.csv").write_text("\n".join(["d,r,t", *rows]))
    trace = import_log(tmp_path / "log.csv", "d", "r", r, tmp_path / "t", time_column="t")
    strategy = BandFHU(bands=3)
    claim = Claim(mechanism=strategy, noise_multiplier=3.0, rho=0.1, timer_hours=float(timer))
    given = RulesInForce(timer_hours=float(timer))
    outlook = look_ahead(audit_trace(trace, claim=claim), rounds, float(pace), given)
    (note,) = [each for each in outlook.notes if "starts later" in each]
    separation = int(note.split("enforce a separation of ")[1].split()[0])
    C = strategy.definition(rounds)
    largest = 0.0
    for _ in range(10):
        gaps = draws.integers(1, 3 * pace, rounds - r)
        times = np.concatenate([starts, starts[-1] + np.cumsum(gaps)])
        late = r + int(np.argmax(gaps > pace)) if (gaps > pace).any() else rounds
        for past in range(r):
            # A device comes back whenever it may.
            patterns = [[past]]
            for pattern in patterns:
                x = pattern[-1]
                patterns += [
                    [*pattern, y]
                    for y in range(max(r, x + 1), rounds)
                    if times[y] - times[x] >= timer and (y < late or y - x >= separation)
                ]
            largest = max(largest, *(float((C[:, p].sum(axis=1) ** 2).sum()) for p in patterns))
    assert outlook.rows[1].sensitivity >= np.sqrt(largest) * (1 - 1e-12)


def test_nights_of_another_noise_say_so_in_the_table_and_the_figure(run) -> None:
    outlook = look_ahead(audited(run(), rho=20 / 18), 20)
    tonight = outlook.night_of(date(2026, 11, 3))
    others = [
        replace(tonight, night="2026-11-01", setting=""),
        replace(tonight, night="2026-11-02", setting="mechanism tree, noise multiplier 2"),
    ]
    found = replace(outlook, nights=(*others, tonight))
    said = ["mechanism not recorded", "mechanism tree, noise multiplier 2", tonight.setting]
    table = outlook_page(found).split("Every night")[1]
    assert all(each in table for each in said)
    (figure,) = [each for each in found.figures() if each.name == "nights"]
    assert ", then ".join(said) in figure.caption


def test_a_list_by_time_keeps_the_claim_at_the_stated_pace(tmp_path: Path) -> None:
    """Rounds an hour apart: a device may not come in the round before the one of its list."""
    rows = [
        f"d{device},{each},{1_700_000_000 + 3600 * each + device}"
        for device, pattern in enumerate(PATTERNS)
        for each in pattern
    ]
    (tmp_path / "log.csv").write_text("\n".join(["d,r,t", *rows]))
    trace = import_log(tmp_path / "log.csv", "d", "r", 10, tmp_path / "t", time_column="t")
    audit = audited(trace, rho=5 / 18)
    with pytest.raises(InputError, match="hold_by='first_time' needs the most hours"):
        look_ahead(audit, 34, hold_by="first_time")
    outlook = look_ahead(audit, 34, slowest_hours=1.0, hold_by="first_time")
    outlook = replace(outlook, changes=(of(outlook, "list", "separation"),))
    assert any("admit no device of the list until it is renewed" in each for each in outlook.notes)
    outlook.write_hold(tmp_path / "rounds.csv", "first_round")
    outlook.write_hold(tmp_path / "times.csv", "first_time")
    by_round, by_time = (read_hold(tmp_path / name) for name in ("rounds.csv", "times.csv"))
    assert by_round.device_ids == by_time.device_ids
    for first, seconds in zip(by_round.first, by_time.first, strict=True):
        # The last round ended 5 s after its hour, and later ones may last for 4 s too.
        end = 1_700_000_000 + 3600 * (first - 1) + 5 + 4
        assert seconds == end + 1 if np.isfinite(first) else np.isinf(seconds)
    # In force, it keeps the claim with the rule that it needs.
    text = f"from_round = 10\nlater = {{ round_separation = {outlook.changes[0].separation} }}\nhold = "
    (tmp_path / "force.toml").write_text(f'{text}"times.csv"\n')
    given = read_in_force(tmp_path / "force.toml")
    assert look_ahead(audit, 34, slowest_hours=1.0, in_force=given).state is State.KEPT
    # A list by round cannot be continued as one by time.
    (tmp_path / "force.toml").write_text(f'{text}"rounds.csv"\n')
    given = read_in_force(tmp_path / "force.toml")
    ahead = look_ahead(audit, 34, slowest_hours=1.0, in_force=given)
    with pytest.raises(InputError, match="whose devices wait by first_round"):
        ahead.write_hold(tmp_path / "next.csv", "first_time")


def test_a_list_that_is_refused_leaves_every_file_as_it_is(
    tmp_path: Path, monkeypatch, fedray_command
) -> None:
    """The list in force has times, and rounds are asked for."""
    monkeypatch.chdir(tmp_path)
    rows = [f"d{each % 2},{each},{1_700_000_000 + 3600 * each}" for each in range(6)]
    Path("log.csv").write_text("\n".join(["d,r,t", *rows]))
    import_log(Path("log.csv"), "d", "r", 6, Path("t"), time_column="t")
    Path("claim.toml").write_text('mechanism = "identity"\nnoise_multiplier = 3.0\nrho = 0.5\n')
    Path("listed.csv").write_text("device_id,first_time\nd0,1800000000\n")
    Path("force.toml").write_text('hold = "listed.csv"\nfrom_round = 6\n')
    before = sorted(Path().iterdir())
    options = ("--claim", "claim.toml", "--until", "34", "--page", "p.html", "--figures", "f")
    files = ("--history", "n.jsonl", "--gauges", "g.prom", "--hold", "h.csv", "--hold-by", "round")
    code, out, err = fedray_command("audit", "t", *options, *files, "--in-force", "force.toml")
    assert (code, "in danger" in out) == (2, True)
    assert "whose devices wait by first_time" in err
    assert sorted(Path().iterdir()) == before


def a_log(folder: Path, patterns: list[list[int]]):
    rows = [f"d{d},{each}" for d, pattern in enumerate(patterns) for each in pattern]
    (folder / "log.csv").write_text("\n".join(["d,r", *rows]))
    return import_log(folder / "log.csv", "d", "r", None, folder / "t", renumber=True)


def test_an_announced_limit_of_a_log_is_no_rule_until_it_is_in_force(tmp_path: Path) -> None:
    trace = a_log(tmp_path, PATTERNS)
    audit = audited(trace, rho=4 / 18, min_sep=4, max_participations=4)
    outlook = look_ahead(audit, 34)
    assert outlook.state is State.IN_DANGER
    assert outlook.headline.startswith(
        "The claim is in danger: nothing says that a rule is in force. Kept if the server enforces, "
        "from round 10: at most 4 participations of a device, past ones included; a separation of 4 "
        "rounds (no device must wait now)."
    )
    assert outlook.rows[1].max_participations == 3 + 24
    change, *others = outlook.changes
    assert (change.kinds, change.waits_now) == (("claimed limits",), 0)
    # Whatever keeps every statement instead follows: a separation does, if it allows four.
    assert all(each.is_enough and not each.breaks for each in others)
    assert ("separation",) in {each.kinds for each in others}
    # Device 0 came in rounds 0, 4 and 8, and may come once more, in round 12, and not in 16.
    assert change.first_noticed == 16
    (tmp_path / "force.toml").write_text(outlook.adoption or "")
    kept = look_ahead(audit, 34, in_force=read_in_force(tmp_path / "force.toml"))
    assert kept.state is State.KEPT
    assert "if the server enforces a separation of 4 rounds and at most 4" in kept.headline
    # A rule of all rounds is the same, and one that the log broke is none.
    given = RulesInForce(round_separation=4, max_participations=4)
    assert look_ahead(audit, 34, in_force=given).state is State.KEPT
    broken = look_ahead(audit, 34, in_force=RulesInForce(round_separation=5))
    assert any("broke a separation of 5 rounds" in each for each in broken.notes)
    assert not broken.rules


def test_a_change_counts_only_if_it_keeps_every_statement(tmp_path: Path) -> None:
    trace = a_log(tmp_path, PATTERNS)
    # The claimed limits allow 3 + 6 participations, and rho five.
    outlook = look_ahead(audited(trace, rho=5 / 18, min_sep=4), 34)
    offers = {each.kinds: each for each in outlook.changes}
    assert offers["claimed limits",].breaks == ("rho",)
    helping = [each for each in outlook.changes if each.is_enough]
    assert all((each.min_sep or 0) >= 4 and each.separation is not None for each in helping)
    assert all("separation of" in each.text for each in helping)
    # Those that let all devices come now are first, and stopping and noise are last.
    shares = [each.share_waiting for each in helping if each.share_waiting is not None]
    assert shares == sorted(shares)
    assert [each.kinds for each in helping[-2:]] == [("last round",), ("noise",)]
    assert outlook.advised is outlook.changes[0]
    # A device without a participation cannot be on a list.
    assert offers["cap",].waits_now == 0


def test_what_is_left_of_a_claim_that_is_lost_in_part_can_still_be_kept(
    tmp_path: Path, monkeypatch, fedray_command
) -> None:
    """Two rounds of devices 0 and 5 are four apart: min_sep is lost, rho and participations are not."""
    trace = a_log(tmp_path, PATTERNS)
    audit = audited(trace, rho=5 / 18, min_sep=6, max_participations=6)
    outlook = look_ahead(audit, 34)
    assert (outlook.state, outlook.state_left) == (State.LOST, State.IN_DANGER)
    left = look_ahead(audited(trace, rho=5 / 18, max_participations=6), 34)
    assert [replace(each, first=None) for each in outlook.changes] == [
        replace(each, first=None) for each in left.changes
    ]
    assert outlook.advised is not None
    assert "The claimed min_sep 6 was lost" in outlook.headline
    said = "The rest (max_participations, rho) is in danger. Kept if the server enforces, from round 10"
    assert said in outlook.headline
    table = next(each for each in outlook.tables() if each.title.startswith("What to change"))
    assert "keeps the rest of the claim" in table.columns
    # With the change in force the rest is kept, and the claim stays lost.
    (tmp_path / "force.toml").write_text(outlook.adoption or "")
    outlook.write_hold(tmp_path / "hold.csv")
    adopted = look_ahead(audit, 34, in_force=read_in_force(tmp_path / "force.toml"))
    assert (adopted.state, adopted.state_left, adopted.changes) == (State.LOST, State.KEPT, ())
    assert "The rest (max_participations, rho) is kept if the server enforces" in adopted.headline
    monkeypatch.chdir(tmp_path)
    Path("claim.toml").write_text(
        'mechanism = "identity"\nnoise_multiplier = 3.0\nrho = 0.27778\nmin_sep = 6\n'
    )
    options = ("audit", "t", "--claim", "claim.toml", "--until", "34", "--hold", "now.csv")
    code, _, err = fedray_command(*options)
    assert (code, Path("now.csv").exists()) == (1, True)
    assert "no change keeps" not in err
    # Of a claim that is lost as a whole nothing is kept, and nothing is written.
    Path("claim.toml").write_text('mechanism = "identity"\nnoise_multiplier = 3.0\nmin_sep = 6\n')
    code, _, err = fedray_command(*options[:-1], "none.csv")
    assert (code, Path("none.csv").exists()) == (1, False)
    assert "no change keeps the claim" in err


def test_nothing_is_left_of_a_claim_about_other_noise(run) -> None:
    claim = Claim(mechanism=Identity(), noise_multiplier=4.0, max_participations=3)
    outlook = look_ahead(audit_trace(run(), claim=claim), 20)
    assert outlook.state is outlook.state_left is State.LOST
    assert not outlook.changes
    assert outlook.hold() is None


def test_statements_that_a_log_does_not_show_are_not_said_to_be_kept(tmp_path: Path) -> None:
    trace = a_log(tmp_path, PATTERNS)
    outlook = look_ahead(audited(trace, min_sep=4), 34)
    tables = {each.title: each for each in outlook.tables()}
    rows = {row[0]: row[4] for row in tables["Statements of the claim"].rows}
    assert rows == {
        "mechanism": "unchecked",
        "noise_multiplier": "unchecked",
        "min_sep": "in danger",
    }
