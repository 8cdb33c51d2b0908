"""Claims: every statement is held against the trace, and what breaks it is named."""

import itertools
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedray.audit.audit import Audit
from fedray.audit.auditing import audit_trace
from fedray.audit.claims import STATEMENTS, Claim, read_claim
from fedray.audit.evidence import write_evidence
from fedray.audit.findings import Finding, Verdict
from fedray.audit.statements.most_per_period import MostPerPeriod
from fedray.audit.verdict import AuditVerdict
from fedray.base.errors import InputError
from fedray.base.rounding import up
from fedray.imports.importer import import_log
from fedray.mechanisms.accounting.events import Gaussian
from fedray.mechanisms.accounting.gdp import gaussian_epsilon
from fedray.mechanisms.files import write_strategy
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Banded, Identity, Tree
from fedray.mechanisms.triangular import lower_factor
from fedray.scenario.data import VocabularyCost

PATTERNS = [[0, 7, 15], [1, 9], [2], [3, 4, 5, 6], [8, 10, 11, 12, 13, 14, 16]]
HONEST = 'mechanism = {kind = "tree"}\nnoise_multiplier = 3.0\nrounds = 17\nmin_sep = 1\nmax_participations = 7\n'
BROKEN = {
    **{"rounds": 12, "min_sep": 2, "max_participations": 3, "timer_hours": 0.1},
    "most_per_period": MostPerPeriod(participations=2, hours=0.1),
    "frontier": [[2, 3], [1, 4]],
}
"""A value of each statement that PATTERNS break. Add one for a new statement. Stored uploads have a
trace of their own: tests/simulation/test_ensured.py breaks `keep_days`."""


def claimed(trace, tmp_path: Path, text: str) -> Audit:
    (tmp_path / "claim.toml").write_text(text)
    return audit_trace(trace, claim=read_claim(tmp_path / "claim.toml"))


def by_statement(audit: Audit) -> dict[str, Finding]:
    return {finding.statement: finding for finding in audit.findings}


@pytest.fixture
def run(small, trace_of):
    """A trace of a run with the mechanism and noise that HONEST claims."""
    scenario = small("privacy.noise_multiplier=3.0", 'privacy.mechanism={kind = "tree"}')
    return lambda patterns, rounds: trace_of(patterns, rounds, scenario)


def test_an_honest_claim_holds(run, tmp_path: Path) -> None:
    sensitivity = Tree().participation_sensitivity(MinSep(17, 1, 7)).value
    rho = sensitivity**2 / (2 * 9.0)
    audit = claimed(run(PATTERNS, 17), tmp_path, HONEST + f"rho = {rho!r}\ntimer_hours = 0.01\n")
    assert audit.claim_holds
    statements = [
        "mechanism",
        "noise_multiplier",
        "rounds",
        "min_sep",
        "max_participations",
        "timer_hours",
        "rho",
    ]
    assert {f.statement: f.verdict for f in audit.findings} == dict.fromkeys(
        statements, Verdict.HOLDS
    )
    assert audit.verdict == f"The claim holds. {AuditVerdict(audit).text_about_epsilon}"
    assert "above 20 protects nobody" in AuditVerdict(audit).text_about_epsilon


def test_a_device_that_comes_back_after_exactly_the_timer_keeps_it(run) -> None:
    """A device of the next round checks in 51 s after its report."""
    claim, trace = Claim(mechanism=Tree(), noise_multiplier=3.0), run(PATTERNS, 17)
    for hours, verdict in ((51 / 3600, Verdict.HOLDS), (51.001 / 3600, Verdict.BROKEN)):
        audit = audit_trace(trace, claim=claim.model_copy(update={"timer_hours": hours}))
        assert by_statement(audit)["timer_hours"].verdict is verdict


@pytest.mark.parametrize("key", [each.key for each in STATEMENTS if each.key != "keep_days"])
def test_every_statement_can_be_broken_and_holds_as_it_should_be_said(
    run, tmp_path: Path, key: str
) -> None:
    assert key in BROKEN, f"{key}: add a value to BROKEN that PATTERNS break"
    claim, trace = Claim(mechanism=Tree(), noise_multiplier=3.0), run(PATTERNS, 17)
    audit = audit_trace(trace, claim=claim.model_copy(update={key: BROKEN[key]}))
    finding = by_statement(audit)[key]
    assert finding.verdict is Verdict.BROKEN
    assert write_evidence(audit, tmp_path / "evidence.csv") > 0
    said = tomllib.loads(finding.should_say)
    corrected = audit_trace(trace, claim=Claim(mechanism=Tree(), noise_multiplier=3.0, **said))
    assert by_statement(corrected)[key].verdict is Verdict.HOLDS


def test_every_broken_statement_is_named_with_who_broke_it(run, tmp_path: Path) -> None:
    text = (
        HONEST.replace("min_sep = 1", "min_sep = 2")
        .replace("participations = 7", "participations = 3")
        .replace("17", "12")
    )
    text = text.replace("noise_multiplier = 3.0", "noise_multiplier = 5.0").replace(
        '"tree"', '"identity"'
    )
    audit = claimed(
        run(PATTERNS, 17),
        tmp_path,
        text + "rho = 0.01\nepsilon = 0.1\ndelta = 1e-8\ntimer_hours = 0.1\n",
    )
    found = by_statement(audit)
    assert not audit.claim_holds
    assert {finding.verdict for finding in audit.findings} == {Verdict.BROKEN}
    assert (found["rounds"].found, found["rounds"].broken_by) == (17, 5)
    # A row per device, that with most pairs first.
    assert [(each.device, each.rounds, each.shows) for each in found["min_sep"].evidence] == [
        ("4", (10, 11), "1 round apart, the closest of 4 pairs"),
        ("3", (3, 4), "1 round apart, the closest of 3 pairs"),
    ]
    assert (found["min_sep"].broken_by, found["min_sep"].broken_by_devices) == (7, 2)
    assert found["min_sep"].should_say == "min_sep = 1"
    assert [(each.device, each.rounds) for each in found["max_participations"].evidence] == [
        ("4", tuple(PATTERNS[4])),
        ("3", tuple(PATTERNS[3])),
    ]
    # Rounds are 100 s apart in this trace; a device checks in 51 s after its last report, and 6 minutes are claimed.
    assert found["timer_hours"].found == pytest.approx(51 / 3600)
    assert found["timer_hours"].broken_by == sum(
        100 * (b - a) - 49 < 360
        for pattern in PATTERNS
        for a, b in zip(pattern, pattern[1:], strict=False)
    )
    waits = found["timer_hours"].evidence
    assert (
        len({each.device for each in waits}) == len(waits) == found["timer_hours"].broken_by_devices
    )
    own = audit.mechanisms[0]
    assert (found["rho"].found, found["epsilon"].found) == (own.rho, own.epsilon)
    # The advice is for a claim in which every other statement is put right.
    advised = Identity().participation_sensitivity(MinSep(17, 1, found["max_participations"].found))
    assert float(found["rho"].should_say.removeprefix("rho = ")) == pytest.approx(
        advised.value**2 / 50, abs=1.1e-4
    )
    assert float(found["rho"].should_say.removeprefix("rho = ")) >= own.rho
    put_right = (
        f"min-sep 1 and at most {found['max_participations'].found} participations in 17 rounds"
    )
    assert f"; with the other statements put right, {put_right} give " in found["rho"].explanation
    assert found["rho"].evidence[0].rounds == own.trace.rounds


def test_a_finding_shows_what_the_trace_has_and_what_is_supported(
    tmp_path: Path, fedray_command
) -> None:
    """The participations hold and the min-sep is broken: what follows from participations at min-sep
    1 is neither."""
    rows = [(0, 0), (0, 3), (0, 6), (1, 1), (1, 4), (2, 2), (2, 5)]
    (tmp_path / "log.csv").write_text("d,r\n" + "".join(f"u{d},{r}\n" for d, r in rows))
    log = import_log(tmp_path / "log.csv", "d", "r", 7, tmp_path / "log")
    text = 'mechanism = "tree"\nnoise_multiplier = 3.0\nmin_sep = 5\nmax_participations = 3\n'
    audit = claimed(log, tmp_path, text + "rho = 0.1\nepsilon = 4.0\n")
    found = by_statement(audit)
    own = audit.mechanisms[0].observed
    assert (found["rho"].found, found["epsilon"].found) == (own.rho, own.epsilon)
    noise, limits = 2 * 3.0**2, MinSep(7, 3, 3)
    supported = Tree().participation_sensitivity(limits).value ** 2 / noise
    assert found["rho"].should_say == f"rho = {up(supported, 6)}"
    alone = Tree().participation_sensitivity(MinSep(7, 1, 3)).value ** 2 / noise
    assert alone > supported
    assert "min-sep 1 " not in "".join(each.explanation for each in audit.findings)
    given = ("--claim", str(tmp_path / "claim.toml"))
    page = tmp_path / "p.html"
    code, shown, _ = fedray_command("audit", str(log.path), *given, "--page", str(page))
    assert code == 1
    shown += page.read_text()
    assert up(own.rho) in shown
    assert not any(
        f"{alone:.{digits}f}" in shown or up(alone, digits) in shown for digits in (4, 6)
    )


def test_what_a_log_that_lost_rows_shows_is_no_figure_of_rho(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("d,r\na,0\na,1\n,1\n")
    log = import_log(tmp_path / "log.csv", "d", "r", 2, tmp_path / "log", leave_out_invalid=True)
    text = 'mechanism = "tree"\nnoise_multiplier = 3.0\nmax_participations = 2\n'
    found = by_statement(claimed(log, tmp_path, text + "rho = 9.0\n"))["rho"]
    assert (found.verdict, found.found) == (Verdict.UNCHECKED, None)


def test_more_bands_than_the_actual_min_sep_has_an_exact_trace_value_beside_the_bound(
    trace_of, tmp_path: Path
) -> None:
    """As in the Gboard audits: bands for an estimated min-sep of 6, of which 4 was seen; only a bound is known for (4, 3)."""
    lags = np.abs(np.subtract.outer(np.arange(17), np.arange(17)))
    matrix = lower_factor(np.where(lags < 6, 0.8**lags, 0.0) + np.eye(17))
    write_strategy(Banded.from_matrix(matrix, "m.npy"), tmp_path / "m.json")
    patterns = [[0, 6, 12], [1, 5], [2, 8, 14], [3, 9, 15], [4, 10, 16], [7, 13], [11]]
    text = 'mechanism = "m.json"\nnoise_multiplier = 2.0\nmin_sep = 6\nmax_participations = 3\n'
    audit = claimed(trace_of(patterns, 17), tmp_path, text)
    brute = max(float(np.linalg.norm(matrix[:, pattern].sum(axis=1))) for pattern in patterns)
    used = audit.mechanisms[0]
    assert used.trace.is_exact
    assert used.trace.value == pytest.approx(brute, rel=1e-12)
    assert not used.observed_limits.sensitivity.is_exact
    assert used.observed_limits.sensitivity.value > used.trace.value * 1.001
    assert by_statement(audit)["min_sep"].verdict == Verdict.BROKEN
    assert (
        audit.frontier.sensitivity < used.observed_limits.sensitivity.value
    )  # 3 participations were 6 apart, 4 apart only 2
    assert audit.frontier.sensitivity >= used.trace.value


def test_more_participations_than_the_claimed_min_sep_permits_are_those_it_permits(
    run, tmp_path: Path
) -> None:
    """(min-sep 7, at most 6 times) over 17 rounds is (7, 3); a claim without rounds says it of any run."""
    text = 'mechanism = {kind = "tree"}\nnoise_multiplier = 3.0\nmin_sep = 7\nmax_participations = 6\nrho = 50.0\n'
    found = by_statement(
        claimed(
            run([[0, 7, 15], *([i] for i in range(17) if i not in (0, 7, 15))], 17), tmp_path, text
        )
    )
    expected = Tree().participation_sensitivity(MinSep(17, 7, 3)).value ** 2 / 18
    assert found["rho"].found == pytest.approx(expected)


def test_a_claim_of_which_nothing_can_be_checked_does_not_hold(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("d,r\na,0\nb\n1,1\n".replace("b\n1", '"b\n1"'))
    trace = import_log(tmp_path / "log.csv", "d", "r", 2, tmp_path / "t")
    audit = claimed(
        trace, tmp_path, 'mechanism = {kind = "tree"}\nnoise_multiplier = 3.0\ntimer_hours = 5.0\n'
    )
    assert {finding.verdict for finding in audit.findings} == {Verdict.UNCHECKED}
    assert not audit.claim_holds
    assert claimed(
        trace, tmp_path, 'mechanism = {kind = "tree"}\nnoise_multiplier = 3.0\nmin_sep = 1\n'
    ).claim_holds


def test_a_claimed_epsilon_that_cannot_be_checked_is_no_pass(run, tmp_path: Path) -> None:
    audit = claimed(run(PATTERNS, 17), tmp_path, HONEST + "epsilon = 50.0\n")
    assert audit.claim_holds
    doubted = [
        replace(each, verdict=Verdict.UNCHECKED) if each.statement == "epsilon" else each
        for each in audit.findings
    ]
    assert not replace(audit, findings=tuple(doubted)).claim_holds


def test_a_log_without_a_claimed_epsilon_is_said_to_claim_none(
    tmp_path: Path, fedray_command
) -> None:
    """Mechanism and noise multiplier alone, which no log shows, are neither a pass of privacy nor a failure."""
    (tmp_path / "log.csv").write_text("d,r\na,0\nb,1\na,2\n")
    import_log(tmp_path / "log.csv", "d", "r", 3, tmp_path / "t")
    noise = 'mechanism = {kind = "tree"}\nnoise_multiplier = 3.0\n'
    for claim, expected, says in (
        (
            noise + "min_sep = 2\n",
            0,
            "The claim holds. Not checked: mechanism, noise multiplier. It states no rho or epsilon. "
            "Its limits are what the log shows",
        ),
        (
            noise + "min_sep = 3\n",
            1,
            "of a device. broken min-sep, by device #",
        ),
        (noise, 1, "The claim cannot be checked. Not checked: mechanism, noise multiplier. It"),
        (
            noise + "min_sep = 2\nepsilon = 50.0\n",
            0,
            "so the log is no evidence that they were enforced. Epsilon that may be published: ",
        ),
    ):
        (tmp_path / "claim.toml").write_text(claim)
        code, out, _ = fedray_command(
            "audit", str(tmp_path / "t"), "--claim", str(tmp_path / "claim.toml")
        )
        assert code == expected
        assert says in " ".join(out.split())


def test_the_verdict_names_every_statement_that_fails_and_what_would_hold(
    run, tmp_path: Path
) -> None:
    text = (
        HONEST.replace("min_sep = 1", "min_sep = 2")
        .replace("participations = 7", "participations = 3")
        .replace("17", "12")
    )
    audit = claimed(run(PATTERNS, 17), tmp_path, text + "epsilon = 2.0\n")
    assert audit.verdict == (
        "The claim does not hold: rounds is 17, not 12; min-sep is 1, not 2 (7 consecutive pairs of 2 devices); max "
        "participations is 7, not 3 (2 devices); epsilon 2 does not follow from the claimed limits, "
        f"which give {up(audit.findings[-1].of_claimed_limits)}; "
        f"{up(audit.supported_epsilon)} is supported. {AuditVerdict(audit).text_about_epsilon}"
    )
    assert audit.supported_epsilon is not None
    again = text.replace("min_sep = 2", "min_sep = 1").replace("= 3\n", "= 7\n")
    again = again.replace("12", "17") + f"epsilon = {audit.supported_epsilon}\n"
    assert claimed(run(PATTERNS, 17), tmp_path, again).claim_holds


def test_a_claim_that_contradicts_its_limits_is_told_apart_from_one_whose_limits_are_broken(
    run, tmp_path: Path
) -> None:
    trace = run(PATTERNS, 17)
    limits = HONEST.replace("min_sep = 1", "min_sep = 4").replace("= 7", "= 2")
    own = claimed(trace, tmp_path, limits + "epsilon = 1000.0\n").findings[-1].of_claimed_limits
    mechanism = Claim.model_validate(claimed(trace, tmp_path, limits).claim).mechanism
    sensitivity = mechanism.participation_sensitivity(MinSep(17, 4, 2)).value
    z = claimed(trace, tmp_path, limits).mechanisms[0].noise_multiplier
    assert own == pytest.approx(gaussian_epsilon(sensitivity / z, 1e-10))
    for share, says in (
        (0.9, f"does not follow from the claimed limits, which give {up(own)}; "),
        (1.1, "would hold if the claimed limits did; the corrected ones give "),
    ):
        audit = claimed(trace, tmp_path, f"{limits}epsilon = {share * own!r}\n")
        assert says in audit.verdict
        assert audit.supported_epsilon is not None
        assert up(audit.supported_epsilon) in audit.verdict
        assert "only if the claimed noise was added and this was enforced" in audit.supported_by
        assert audit.needs_noise


def test_a_mechanism_is_shown_by_its_kind_and_other_parameters_are_told(
    small, trace_of, tmp_path: Path
) -> None:
    trace = trace_of(
        [[0], [1], [2]], 3, small("privacy.mechanism={kind='blt',theta=[0.5],omega=[0.1]}")
    )
    blt = 'mechanism = {kind = "blt", theta = [0.4], omega = [0.1]}\nnoise_multiplier = 7.0\n'
    found = by_statement(claimed(trace, tmp_path, blt))["mechanism"]
    assert (found.claimed, found.found, found.verdict) == ("blt", "blt", Verdict.BROKEN)
    assert "other parameters" in found.explanation
    assert "mechanism blt had other parameters" in claimed(trace, tmp_path, blt).verdict


def test_how_much_of_the_evidence_is_shown_is_said(run, tmp_path: Path, fedray_command) -> None:
    patterns = [[2 * device, 2 * device + 1] for device in range(12)]
    trace = run(patterns, 24)
    audit = claimed(
        trace,
        tmp_path,
        HONEST.replace("min_sep = 1", "min_sep = 2").replace("17", "24").replace("= 7", "= 2"),
    )
    found = by_statement(audit)["min_sep"]
    assert (found.broken_by, len(found.evidence)) == (12, 10)
    assert found.evidence_note == "the 10 worst of 12 devices are shown"
    claim = str(tmp_path / "claim.toml")
    _, out, _ = fedray_command("audit", str(trace.path), "--claim", claim, "--verbose")
    assert "Of min_sep the 10 worst of 12 devices are shown." in out
    assert by_statement(audit)["max_participations"].evidence_note == ""  # it holds


def test_a_timer_that_the_log_cannot_show_is_marked_where_it_is_listed(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("d,r\na,0\nb,1\na,2\n")
    (tmp_path / "rounds.csv").write_text(
        "r,time\n" + "".join(f"{r},2025-01-0{r + 1}T00:00:00Z\n" for r in range(3))
    )
    text = 'mechanism = {kind = "tree"}\nnoise_multiplier = 3.0\nmin_sep = 1\ntimer_hours = 30.0\n'
    bare = import_log(tmp_path / "log.csv", "d", "r", 3, tmp_path / "bare")
    reason = claimed(bare, tmp_path, text).mechanisms[0].claimed.reason
    assert "timer_hours = 30.0 (claimed, not checked and not used, as no times are known)" in reason
    timed = import_log(
        tmp_path / "log.csv",
        "d",
        "r",
        None,
        tmp_path / "timed",
        rounds_file=tmp_path / "rounds.csv",
    )
    reason = claimed(timed, tmp_path, text).mechanisms[0].claimed.reason
    assert "timer_hours = 30.0 (claimed, not checked)" in reason
    assert "that timer alone ensures min-sep 2 and at most 2 participations" in reason


def test_epsilon_is_not_broken_by_its_discretisation(run, tmp_path: Path) -> None:
    """s = 1, z = 1 at delta 1e-5: exactly 4.37717810 (Balle and Wang 2018); the library says 4.3771785."""
    trace = run([[i] for i in range(3)], 3)
    text = 'mechanism = {kind = "identity"}\nnoise_multiplier = 1.0\ndelta = 1e-5\nmax_participations = 1\n'
    assert (
        by_statement(claimed(trace, tmp_path, text + "epsilon = 4.3771782\n"))["epsilon"].verdict
        == Verdict.HOLDS
    )
    assert (
        by_statement(claimed(trace, tmp_path, text + "epsilon = 4.37716\n"))["epsilon"].verdict
        == Verdict.BROKEN
    )


def test_a_claim_may_name_a_user_s_matrix(trace_of, tmp_path: Path) -> None:
    matrix = np.tril(np.random.default_rng(0).random((17, 17))) + np.eye(17)
    np.save(tmp_path / "C.npy", matrix)
    audit = claimed(
        trace_of(PATTERNS, 17),
        tmp_path,
        'mechanism = "C.npy"\nnoise_multiplier = 2.0\nmin_sep = 1\n',
    )
    brute = max(float(np.linalg.norm(matrix[:, pattern].sum(axis=1))) for pattern in PATTERNS)
    assert audit.mechanisms[0].trace.value == pytest.approx(brute, rel=1e-12)


def test_a_bound_above_the_claim_is_unproven_not_broken(trace_of, tmp_path: Path) -> None:
    """The claim's own (2, 2) has no exact sensitivity for 3 bands; its bound is above what it says."""
    lags = np.abs(np.subtract.outer(np.arange(8), np.arange(8)))
    matrix = lower_factor(
        np.where(
            lags < 4, 0.7**lags * np.add.outer(np.linspace(1, 2, 8), np.linspace(1, 2, 8)), 0.0
        )
        + 3 * np.eye(8)
    )
    strategy = Banded.from_matrix(matrix, "m.npy")
    write_strategy(strategy, tmp_path / "m.json")
    under = strategy.participation_sensitivity(MinSep(8, 2, 3))
    assert not under.is_exact
    between = (under.value + under.lower_bound) / 2
    text = f'mechanism = "m.json"\nnoise_multiplier = 1.0\nmin_sep = 2\nmax_participations = 3\nrho = {between**2 / 2}\n'
    found = by_statement(
        claimed(trace_of([[0], [1, 6], [2], [3], [4], [5], [7]], 8), tmp_path, text)
    )
    assert found["rho"].verdict == Verdict.UNPROVEN
    low = text.replace(str(between**2 / 2), str(under.lower_bound**2 / 2 * 0.99))
    found = by_statement(
        claimed(trace_of([[0], [1, 6], [2], [3], [4], [5], [7]], 8), tmp_path, low)
    )
    assert found["rho"].verdict == Verdict.TRACE_ONLY


def test_every_problem_of_a_claim_is_named_with_its_key_value_and_the_nearest_key(
    tmp_path: Path,
) -> None:
    (tmp_path / "claim.toml").write_text(
        'mechansim = "blt.json"\nnoise_multiplier = 7.0\nminsep = 3\nepsilon = -1.0\n'
    )
    with pytest.raises(InputError) as caught:
        read_claim(tmp_path / "claim.toml")
    message = str(caught.value)
    assert "3 problems" in message
    assert (
        "unknown key mechansim = 'blt.json' in the top level; did you mean 'mechanism'?" in message
    )
    assert "unknown key minsep = 3 in the top level; did you mean 'min_sep'?" in message
    assert (
        "epsilon = -1.0: input should be greater than 0; correct it (Epsilon at delta)" in message
    )
    assert "missing" not in message  # of a misspelt key it is told once


def test_keys_inside_a_mechanism_are_explained_as_those_of_its_kind(tmp_path: Path) -> None:
    for table, expected in (
        (
            '{kind = "blt", thta = [0.5], omega = [0.1]}',
            "unknown key mechanism.thta = [0.5] in [mechanism]; did you mean 'theta'?",
        ),
        ('{kind = "tre"}', "mechanism.kind = 'tre' is not one of identity,"),
        ("{theta = [0.5]}", "mechanism.kind is missing; it is one of identity, blt"),
    ):
        (tmp_path / "claim.toml").write_text(f"mechanism = {table}\nnoise_multiplier = 7.0\n")
        with pytest.raises(InputError) as caught:
            read_claim(tmp_path / "claim.toml")
        assert expected in str(caught.value)


def test_a_kind_without_parameters_is_named_alone_unless_there_is_such_a_file(
    tmp_path: Path,
) -> None:
    claim = tmp_path / "claim.toml"
    for kind, expected in (("tree", Tree()), ("identity", Identity())):
        claim.write_text(f'mechanism = "{kind}"\nnoise_multiplier = 7.0\n')
        assert read_claim(claim).mechanism == expected
    (tmp_path / "identity").write_text('{"kind": "tree", "restarts": [3]}')
    assert read_claim(claim).mechanism == Tree(restarts=(3,))
    claim.write_text('mechanism = "blt"\nnoise_multiplier = 7.0\n')
    with pytest.raises(InputError, match="mechanism 'blt' needs parameters; name a file"):
        read_claim(claim)


def test_a_missing_mechanism_file_is_told_with_its_path_and_what_it_is_relative_to(
    tmp_path: Path,
) -> None:
    (tmp_path / "claim.toml").write_text('mechanism = "none.json"\nnoise_multiplier = 1.0\n')
    with pytest.raises(InputError) as caught:
        read_claim(tmp_path / "claim.toml")
    message = str(caught.value)
    assert f"{str(tmp_path / 'none.json')!r} does not exist" in message
    assert "a path relative to the claim file" in message
    assert "Errno" not in message
    assert "min_sep" not in message  # keys that have nothing to do with it


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("noise_multiplier = 1.0\n", "mechanism is missing; add it"),
        ('mechanism = {kind = "tree"}\nnoise_multiplier = 0.0\n', "noise_multiplier"),
        ('mechanism = {kind = "tree"}\nnoise_multiplier = 1.0\nminsep = 3\n', "minsep"),
        ('mechanism = "none.json"\nnoise_multiplier = 1.0\n', "none.json"),
        (
            'mechanism = {kind = "tree"}\nnoise_multiplier = 1.0\nrounds = 10\nmin_sep = 5\nmax_participations = 3\n',
            "ceil(rounds",
        ),
        ("mechanism = \n", "not valid TOML"),
    ],
)
def test_a_claim_that_cannot_be_read_gets_one_line(
    tmp_path: Path, text: str, expected: str
) -> None:
    (tmp_path / "claim.toml").write_text(text)
    with pytest.raises(InputError) as caught:
        read_claim(tmp_path / "claim.toml")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_command_checks_a_claim(run, tmp_path: Path, fedray_command) -> None:
    trace = run(PATTERNS, 17)
    (tmp_path / "claim.toml").write_text(HONEST + "rho = 100.0\n")
    code, stdout, _ = fedray_command(
        "audit", str(trace.path), "--claim", str(tmp_path / "claim.toml"), "--json"
    )
    document = json.loads(stdout)
    assert (code, document["claim_holds"]) == (0, True)
    assert [each["verdict"] for each in document["findings"]] == ["holds"] * 6
    (tmp_path / "claim.toml").write_text(HONEST + "rho = 0.01\n")
    code, stdout, _ = fedray_command(
        "audit",
        str(trace.path),
        "--claim",
        str(tmp_path / "claim.toml"),
        "--page",
        str(tmp_path / "page.html"),
    )
    assert code == 1
    assert stdout.startswith(
        "The claim does not hold: rho 0.01 does not follow from the claimed limits, "
    )
    assert stdout.endswith(f"page     {tmp_path / 'page.html'}\n")
    assert "rho 0.01 does not follow" in (tmp_path / "page.html").read_text()
    code, _, stderr = fedray_command(
        "audit", str(trace.path), "--claim", str(tmp_path / "claim.toml"), "--noise-multiplier", "2"
    )
    assert code == 2
    assert "leave them out beside the claim" in stderr


def test_no_advice_is_given_that_could_not_be_followed(tmp_path: Path) -> None:
    """No min-sep can be claimed of devices that come twice in a round, and of a log with unknown rows nothing can be supported."""
    claim = Claim(mechanism=Tree(), noise_multiplier=4.0, min_sep=2, max_participations=1)
    repeated, unknown = tmp_path / "repeated.csv", tmp_path / "unknown.csv"
    repeated.write_text("device,round\na,0\na,0\na,1\n")
    unknown.write_text("device,round\na,0\na,1\n,1\n")
    of_repeated = import_log(repeated, "device", "round", 2, tmp_path / "repeated", repeats="each")
    of_unknown = import_log(
        unknown, "device", "round", 2, tmp_path / "unknown", leave_out_invalid=True
    )
    found = by_statement(audit_trace(of_repeated, claim=claim))
    assert found["min_sep"].verdict is Verdict.BROKEN
    assert found["min_sep"].should_say == ""
    honest = claim.model_copy(update={"min_sep": 1, "max_participations": 2, "epsilon": 90.0})
    unchecked = by_statement(audit_trace(of_unknown, claim=honest))
    assert {each.verdict for each in unchecked.values()} == {Verdict.UNCHECKED}
    assert {each.should_say for each in unchecked.values()} == {""}


def test_exit_code_1_says_whether_a_claim_fails_or_cannot_be_checked(
    tmp_path: Path, fedray_command
) -> None:
    text = 'mechanism = {kind = "tree"}\nnoise_multiplier = 4.0\n'
    (tmp_path / "honest.toml").write_text(
        f"{text}min_sep = 1\nmax_participations = 2\nepsilon = 90.0\n"
    )
    (tmp_path / "wrong.toml").write_text(f"{text}min_sep = 1\nmax_participations = 1\n")
    told = {}
    for name, last in (("whole", "b,1"), ("unnamed", ",1")):
        (tmp_path / f"{name}.csv").write_text(f"device,round\na,0\na,1\n{last}\n")
        import_log(
            tmp_path / f"{name}.csv", "device", "round", 2, tmp_path / name, leave_out_invalid=True
        )
        for claim in ("honest", "wrong"):
            file = str(tmp_path / f"{claim}.toml")
            told[name, claim] = fedray_command(
                "--quiet", "audit", str(tmp_path / name), "--claim", file, "--json"
            )
    assert {each: code for each, (code, _, _) in told.items()} == {
        ("whole", "honest"): 0,
        ("whole", "wrong"): 1,
        ("unnamed", "honest"): 1,
        ("unnamed", "wrong"): 1,
    }
    assert told["whole", "honest"][2] == ""
    assert told["whole", "wrong"][2].startswith("fedray: The claim does not hold: ")
    unchecked = told["unnamed", "honest"][2]
    assert unchecked.startswith("fedray: The claim cannot be checked. ")
    assert "left out rows that may be participations" in unchecked
    assert unchecked.count("\n") == 1


def test_rows_that_belong_to_unknown_devices_have_a_worst_case(tmp_path: Path) -> None:
    """Every assignment of two unattributed rows to devices and rounds is within the stated bound, and one has its participations."""
    known, n = [("a", 0), ("a", 2), ("b", 1), ("b", 3)], 4
    log = "".join(f"{device},{index}\n" for device, index in known)
    (tmp_path / "log.csv").write_text(f"d,r\n{log},0\n,3\n")
    claim = Claim(mechanism=Tree(), noise_multiplier=4.0)
    trace = import_log(tmp_path / "log.csv", "d", "r", n, tmp_path / "t", leave_out_invalid=True)
    audit = audit_trace(trace, claim=claim)
    bound, of_one = (
        float(each) for each in re.findall(r"at most (\d+\.\d+)", audit.left_out_bound)
    )
    assert "at most 4 participations and epsilon at most" in audit.left_out_bound
    matrix = Tree().definition(n)
    worst = worst_of_one = 0.0
    for owners in itertools.product("abc", repeat=2):
        rows = [*known, (owners[0], 0), (owners[1], 3)]
        for name in "abc":
            mine = [index for device, index in rows if device == name]
            column = matrix[:, mine].sum(axis=1)
            found = gaussian_epsilon(float(np.sqrt(column @ column)) / 4.0, 1e-10)
            worst = max(worst, found)
            if owners[0] != owners[1]:
                worst_of_one = max(worst_of_one, found)
    assert worst <= bound
    assert worst_of_one <= of_one < bound
    assert audit_trace(import_log(tmp_path / "log.csv", "d", "r", n, tmp_path / "u", leave_out_invalid=True)).left_out_bound.endswith("participations.")  # fmt: skip


def test_a_claim_of_samples_adds_nothing_to_a_run_whose_server_is_known(
    trace_of, small, tmp_path: Path
) -> None:
    """Two rounds cannot refute the samples, which the scenario does."""
    trace = trace_of([[0], [1], [0, 1]], 2, small("privacy.mechanism={kind='identity'}"))
    text = (
        'mechanism = {kind = "identity"}\nnoise_multiplier = 7.0\ndelta = 1e-6\nepsilon = 0.5\n'
        'sampling = {kind = "poisson", probability = 0.05, devices = 40}\n'
    )
    audit = claimed(trace, tmp_path, text)
    sampled = by_statement(audit)
    assert sampled["sampling"].verdict is Verdict.HOLDS
    assert sampled["epsilon"].verdict is not Verdict.HOLDS
    assert not audit.claim_holds


def test_a_private_vocabulary_leaves_nothing_to_claim_or_to_publish_for_other_noise(
    trace_of, small, monkeypatch
) -> None:
    trace = trace_of([[0], [1]], 2, small("privacy.mechanism={kind='tree'}"))
    cost = VocabularyCost(
        trust="server",
        mechanism="gaussian",
        theorem="t",
        windows=1,
        delta=1e-5,
        event=Gaussian(noise_multiplier=5.0, sensitivity=1.0).model_dump(mode="json"),
        vocabulary_sha256="0" * 64,
        run="0" * 64,
    )
    monkeypatch.setattr("fedray.audit.auditing.vocabulary_cost", lambda _: cost)
    audit = audit_trace(trace, 100.0)
    assert audit.supported_epsilon is None
    claim = Claim(mechanism=audit.mechanisms[0].strategy, noise_multiplier=100.0)
    with pytest.raises(InputError, match="this trace has a private vocabulary"):
        audit_trace(trace, claim=claim)
