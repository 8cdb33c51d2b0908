"""A privacy target in place of a noise multiplier: by the rules before a run, and by those of a trace."""

import html
import json
import math
import re
import shlex

import pytest

import fedray
from fedray.base.errors import ScenarioError
from fedray.runs.calibrated import calibrated, worst_participation
from fedray.runs.sustainable import why_unsustainable

HERE = fedray.Placement(1, "in-process")
RULES = {
    "separation": "participation={timer_hours=0, round_separation=4}",
    "cap": "participation={timer_hours=0, max_participations=2}",
    "both": "participation={timer_hours=0, round_separation=3, max_participations=2}",
    "timer": "rounds={count=12, report_goal=200, max_days=20}",
}
TARGETS = ["target_epsilon=8.0", "target_epsilon=0.7", "target_rho=0.25"]
LATE = "privacy.delta=1e-6"


def spent(trace, z: float, mechanism, kind: str = "enforced"):
    return getattr(fedray.audit_trace(trace, z, 1e-6, mechanism).mechanisms[0], kind)


def figure(of, target: str) -> float:
    return of.rho if target.startswith("target_rho") else of.epsilon


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("mechanism", ["tree", "identity"])
def test_the_audit_of_a_run_meets_its_target(
    small, tmp_path, rules: str, target: str, mechanism: str
) -> None:
    """If every round may be met at the limits, a thousandth less noise exceeds the target: separations and caps do not depend on times."""
    overrides = (
        "participation.timer_hours=300",
        RULES[rules],
        LATE,
        f"privacy.mechanism={mechanism}",
        "training.enabled=false",
    )
    scenario = small(*overrides, f"privacy.{target}")
    trace = fedray.run_scenario(scenario, HERE, tmp_path / "t")
    most = float(target.partition("=")[2])
    z = trace.scenario["privacy"]["noise_multiplier"]
    assert "target" not in json.dumps(trace.scenario)
    own = fedray.audit_trace(trace).mechanisms[0].enforced
    assert figure(own, target) <= most
    strategy = scenario.privacy.strategy
    less = figure(spent(trace, 0.999 * z, strategy), target)
    if rules != "timer":
        assert less > most
    # The same noise, stated as a number, gives the same run.
    wanted = [f"privacy.wanted_epsilon={most}"] * target.startswith("target_epsilon")
    again = small(*overrides, f"privacy.noise_multiplier={z}", *wanted)
    assert again.digest == calibrated(scenario).digest == trace.run["scenario_digest"]


def test_a_run_says_whether_it_meets_its_target(small, trace_of) -> None:
    """In the verdict and on the page, for the delta, mechanism and noise of the run."""
    rules = "participation={timer_hours=0, round_separation=3}", LATE, "privacy.mechanism=tree"
    plain = fedray.audit_trace(trace_of([[0, 3], [1], [2]], 4, small(*rules)))
    epsilon = plain.mechanisms[0].enforced.epsilon
    assert plain.meets_target is None
    for wanted, is_met in ((1.001 * epsilon, True), (0.999 * epsilon, False)):
        scenario = small(*rules, f"privacy.wanted_epsilon={wanted!r}")
        trace = trace_of([[0, 3], [1], [2]], 4, scenario)
        audit = fedray.audit_trace(trace)
        verb = "meets" if is_met else "misses"
        said = f"The epsilon of a device {verb} the target epsilon {wanted:.12g}"[:60]
        assert audit.meets_target is is_met
        assert said in audit.verdict
        assert said in audit.page()
        assert f'class="verdict {"holds" if is_met else "broken"}"' in audit.page()
        for others in ({"noise_multiplier": 9.0}, {"delta": 1e-5}):
            assert "target" not in fedray.audit_trace(trace, **others).verdict


@pytest.mark.parametrize("target", TARGETS)
def test_a_training_is_calibrated_to_the_rules_at_the_times_of_its_trace(
    small, trace_of, target: str
) -> None:
    trace = trace_of([[0, 5], [1], [2], [3], [4]], 6, small("participation.timer_hours=0.09"))
    own = fedray.Scenario.from_tables(trace.scenario)
    found = calibrated(own.with_overrides(LATE, f"privacy.{target}"), trace)
    most, privacy = float(target.partition("=")[2]), found.privacy
    for kind in ("enforced", "observed"):
        z = calibrated(
            own.with_overrides(LATE, f"privacy.{target}"), trace, basis=kind
        ).privacy.noise_multiplier
        assert figure(spent(trace, z, privacy.strategy, kind), target) <= most
        assert figure(spent(trace, 0.999 * z, privacy.strategy, kind), target) > most
        assert (z == privacy.noise_multiplier) == (kind == "enforced")


def test_a_scenario_without_a_target_keeps_its_digest_and_one_with_it_has_its_own(small) -> None:
    plain = small()
    assert calibrated(plain) is plain
    targets = [small(f"privacy.{target}") for target in TARGETS]
    assert len({plain.digest, *(each.digest for each in targets)}) == 4
    assert not any("target" in name for name in plain.to_tables()["privacy"])
    for each in targets:
        assert fedray.Scenario.from_tables(each.to_tables()).digest == each.digest
        assert math.isnan(each.privacy.noise_multiplier)


def test_the_limits_before_a_run_hold_for_every_pattern_that_its_rules_allow(small) -> None:
    """The longest chain of rounds by brute force, for a separation and a cap."""
    for separation in (1, 2, 5, 12):
        for cap in (1, 2, 30):
            rules = f"round_separation={separation}, max_participations={cap}"
            found = worst_participation(small(f"participation={{timer_hours=0, {rules}}}"))
            chain = len(range(0, 12, separation))
            assert found.max_participations == min(cap, chain)
            if found.max_participations > 1:
                assert found.min_sep == separation


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["participation.timer_hours=0"],
            "needs a rule that keeps every device out of some rounds, whenever",
        ),
        (
            ["participation.timer_violators=0.1"],
            "the timer ensures nothing: some devices ignore it.*max_participations",
        ),
        (["rounds={count=40, report_goal=200}", "participation.timer_hours=2"], "needs a rule"),
    ],
)
def test_rules_that_ensure_nothing_before_a_run_are_refused(small, overrides, words: str) -> None:
    with pytest.raises(fedray.InputError, match=rf"privacy.target_epsilon=8.0 .*{words}"):
        calibrated(small(*overrides, "privacy.target_epsilon=8.0"))


@pytest.mark.parametrize(
    "keys",
    [
        ("participation.timer_hours=0",),
        ("participation.timer_violators=0.1",),
        ("rounds={count=40, report_goal=200}", "participation.timer_hours=2"),
        ("rounds={count=400, report_goal=1000}", "participation.timer_hours=0"),
    ],
)
def test_the_refusal_of_a_target_names_one_number_to_choose(small, keys: tuple[str, ...]) -> None:
    """It is a cap that the target is calibrated to, with room for every round; a smaller one needs less noise."""
    target = "privacy.target_epsilon=8.0"
    with pytest.raises(fedray.InputError) as refused:
        calibrated(small(*keys, target))
    said = str(refused.value).partition("; set ")[2]
    (cap,) = re.findall(r"participation.max_participations=(\d+)", said)
    assert re.findall(r"[\w.]+=", said) == ["participation.max_participations="]
    noise = []
    for most in (int(cap) + 1, int(cap)):
        capped = small(*keys, target, f"participation.max_participations={most}")
        noise.append(calibrated(capped).privacy.noise_multiplier)
    assert noise[1] < noise[0]
    assert why_unsustainable(small(*keys, f"participation.max_participations={cap}")) is None


def test_a_device_that_is_in_nearly_every_round_has_no_cap_to_choose(small) -> None:
    keys = "rounds={count=3, report_goal=15000}", "participation.timer_hours=0"
    with pytest.raises(fedray.InputError, match="set privacy.noise_multiplier, since each device"):
        calibrated(small(*keys, "privacy.target_epsilon=8.0"))


@pytest.mark.slow
def test_a_target_that_is_hardly_spent_has_the_share_and_two_commands_that_spend_it(
    small, fedray_command, tmp_path
) -> None:
    """A timer of 12 h permits 29 participations in two weeks, and the 60 rounds took a day or two. The noise of the first command and the
    days of the second spend what the verdict says is left."""
    keys = (
        *("rounds={count=60, report_goal=200, max_days=14}", "participation.timer_hours=12"),
        *(LATE, "privacy.mechanism=tree", "training.enabled=false"),
    )
    file = tmp_path / "s.toml"
    file.write_text(small(*keys, "privacy.target_epsilon=8.0").to_toml())
    trace = fedray.run_scenario(fedray.Scenario.from_toml(file), HERE, tmp_path / "a trace")
    audit = fedray.audit_trace(trace)
    epsilon = audit.mechanisms[0].enforced.epsilon
    assert epsilon < 4.0
    said = f"The epsilon of a device meets the target epsilon 8, and spends {epsilon / 8:.0%} of it"
    assert said.replace("%", " %") in audit.verdict
    assert audit.verdict in html.unescape(audit.page())
    (command,) = re.findall(r"`fedray (calibrate [^`]+)`", audit.verdict)
    code, out, _ = fedray_command(*shlex.split(command), "--json")
    assert code == 0
    z = json.loads(out)["enforced"]["noise_multiplier"]
    assert spent(trace, z, audit.mechanisms[0].strategy).epsilon == pytest.approx(8.0, rel=1e-3)
    options = re.findall(r"--set ([\w.]+=[\d.]*\d)", audit.verdict)
    assert options[0] == "privacy.target_epsilon=8"
    again = fedray.Scenario.from_toml(file, options)
    assert audit.days < again.rounds.max_days < 1.2 * audit.days + 0.1
    trace = fedray.run_scenario(again, HERE, tmp_path / "again")
    audit = fedray.audit_trace(trace)
    assert audit.rounds == 60
    assert epsilon < 0.7 * audit.mechanisms[0].enforced.epsilon <= 8.0


@pytest.mark.slow
def test_a_target_that_is_spent_has_no_command_that_spends_it(small, tmp_path) -> None:
    """A cap that the devices come to does not depend on days."""
    keys = "participation={timer_hours=0, max_participations=2}", LATE, "privacy.mechanism=tree"
    scenario = small(*keys, "training.enabled=false", "privacy.target_epsilon=8.0")
    audit = fedray.audit_trace(fedray.run_scenario(scenario, HERE, tmp_path / "t"))
    assert "spends 100 % of it." in audit.verdict
    assert "fedray calibrate" not in audit.verdict


@pytest.mark.parametrize(
    ("privacy", "words"),
    [
        ("target_epsilon=8.0, target_rho=1.0", "target_epsilon=8 with target_rho"),
        ("target_epsilon=8.0, noise_multiplier=1.0", "target_epsilon=8 with noise_multiplier"),
        ("target_rho=8.0, stop_at={rho=1.0}", "target_rho=8 with stop_at"),
        ("target_rho=8.0, mechanism='none'", "the run adds no noise"),
        ("target_epsilon=0.0", "target_epsilon"),
    ],
)
def test_a_target_is_the_only_statement_of_the_noise(small, privacy: str, words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        small(f"privacy={{{privacy}}}")


def test_an_override_replaces_the_other_statement_of_the_noise(small) -> None:
    both = small("privacy.target_epsilon=2.0")
    assert both.privacy.target == ("target_epsilon", 2.0)
    assert both.with_overrides("privacy.target_rho=1.0").privacy.target == ("target_rho", 1.0)
    assert both.with_overrides("privacy.noise_multiplier=4.0").privacy.target is None


def test_noise_that_is_not_calibrated_is_never_added(small, trace_of, tmp_path) -> None:
    scenario = small("privacy.target_epsilon=8.0", "training.enabled=true")
    words = re.escape("privacy.target_epsilon=8.0 states no noise multiplier yet")
    with pytest.raises(fedray.InputError, match=words):
        fedray.simulate(scenario, HERE, tmp_path / "t")
    with pytest.raises(fedray.InputError, match=words):
        _ = scenario.update_noise_multiplier
    with pytest.raises(fedray.InputError, match=words):
        fedray.train(trace_of([[0], [1]], 2), scenario, HERE, tmp_path / "r")
    assert not (tmp_path / "t").exists()


@pytest.mark.slow
def test_the_commands_say_the_noise_in_one_line(small, fedray_command, tmp_path) -> None:
    overrides = ("participation={timer_hours=0, round_separation=4}", "training.enabled=false")
    (tmp_path / "s.toml").write_text(small(*overrides, "privacy.target_rho=0.5").to_toml())
    out = str(tmp_path / "t")
    code, _, err = fedray_command("run", str(tmp_path / "s.toml"), "--out", out)
    assert code == 0
    said = re.findall(
        r"^noise +noise multiplier ([\d.]+): target_rho 0.5 for min-sep 4 .*$", err, re.M
    )
    assert [float(each) for each in said] == [
        fedray.Trace.open(out).scenario["privacy"]["noise_multiplier"]
    ]
    code, _, err = fedray_command(
        "run", str(tmp_path / "s.toml"), "--set", "participation.round_separation=0"
    )
    assert (code, err.count("\n")) == (2, 1)


def test_noise_that_is_set_twice_is_refused(fedray_command) -> None:
    twice = ("--set", "privacy.target_epsilon=6", "--set", "privacy.noise_multiplier=3")
    code, _, err = fedray_command("run", "small", *twice)
    assert code == 2
    assert "state the noise twice; leave one out" in err
