"""The audit against brute force: every device of random small traces, with C materialised in float64."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import slow_twins as reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedray.audit.auditing import audit_trace
from fedray.audit.noise import ServerNoise
from fedray.audit.over_rounds import privacy_over_rounds
from fedray.audit.participation import Patterns, read_patterns
from fedray.audit.sensitivity import trace_sensitivity
from fedray.base.errors import InputError, TraceCorrupt
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import (
    BISR,
    BLT,
    BandFHU,
    Dense,
    Identity,
    Matrix,
    Toeplitz,
    Tree,
    TreeFull,
)
from fedray.mechanisms.sensitivity import PatternSensitivities
from fedray.trace.reader import Trace

STRATEGIES = [
    Identity(),
    BLT(
        theta=(0.9953348970002772, 0.8122920858683399),
        omega=(0.12828660029532482, 0.32906048602262866),
    ),
    BLT(theta=(0.7, 0.4), omega=(0.9, 0.5)),
    Tree(),
    Tree(restarts=(4, 17), completion=True, rounds=30),
    TreeFull(rounds=30),
    BandFHU(bands=4),
    BISR(bands=3),
    Toeplitz(coefficients=(1.0, 0.2, 0.4)),
    Dense.from_matrix(np.tril(np.random.default_rng(0).random((30, 30))) + np.eye(30), "dense.npy"),
]


def covering(patterns: list[list[int]], rounds: int) -> list[list[int]]:
    """The patterns, and one more device in each round that would else have nobody."""
    taken = {index for pattern in patterns for index in pattern}
    return [*patterns, *([index] for index in range(rounds) if index not in taken)]


def as_patterns(patterns: list[list[int]], rounds: int) -> Patterns:
    kept = [(device, sorted(pattern)) for device, pattern in enumerate(patterns) if pattern]
    return Patterns(
        rounds,
        np.array([device for device, _ in kept], np.uint64),
        np.array([len(pattern) for _, pattern in kept]),
        np.concatenate([np.array(pattern, np.uint32) for _, pattern in kept]),
    )


@st.composite
def traces(draw) -> tuple[int, list[list[int]]]:
    rounds = draw(st.integers(1, 30))
    patterns = draw(
        st.lists(st.sets(st.integers(0, rounds - 1), max_size=7), min_size=1, max_size=12)
    )
    return rounds, covering([sorted(pattern) for pattern in patterns], rounds)


@pytest.mark.slow
@given(traces(), st.sampled_from(STRATEGIES))
@settings(max_examples=400, deadline=None)
def test_trace_sensitivity_is_the_largest_over_every_device(trace, strategy) -> None:
    rounds, patterns = trace
    C = strategy.definition(rounds)
    each = [float(np.linalg.norm(C[:, pattern].sum(axis=1))) for pattern in patterns if pattern]
    found = trace_sensitivity(strategy, as_patterns(patterns, rounds))
    assert found.value == pytest.approx(max(each), rel=1e-12)
    assert patterns[found.device_id] == list(found.rounds)
    assert reference.pattern_sensitivity(strategy, found.rounds, rounds) == pytest.approx(
        found.value, rel=1e-12
    )


@given(traces(), st.sampled_from(STRATEGIES))
@settings(max_examples=100, deadline=None)
def test_no_trace_exceeds_its_own_schema(trace, strategy) -> None:
    rounds, patterns = trace
    found = as_patterns(patterns, rounds)
    participation = MinSep(rounds, found.min_sep, found.max_participations)
    assert max(map(len, patterns)) <= participation.max_participations
    assert all(
        b - a >= participation.min_sep
        for each in patterns
        for a, b in itertools.pairwise(sorted(each))
    )
    assert trace_sensitivity(strategy, found).value <= strategy.participation_sensitivity(
        participation
    ).value * (1 + 1e-12)


@given(traces())
@settings(max_examples=100, deadline=None)
def test_min_sep_and_max_participations_are_counted_exactly(trace) -> None:
    rounds, patterns = trace
    found = as_patterns(patterns, rounds)
    gaps = [b - a for pattern in patterns for a, b in zip(pattern, pattern[1:], strict=False)]
    assert found.pairs_by_gap.tolist() == [gaps.count(gap) for gap in range(rounds)]
    assert found.min_sep == min(gaps, default=rounds)
    assert found.max_participations == max(len(pattern) for pattern in patterns)
    assert found.participations == sum(len(pattern) for pattern in patterns)


@given(traces(), st.sampled_from(STRATEGIES))
@settings(max_examples=40, deadline=None)
def test_privacy_over_rounds_audits_each_prefix(trace, strategy) -> None:
    rounds, patterns = trace
    for entry in privacy_over_rounds(
        strategy, as_patterns(patterns, rounds), ServerNoise(2.0), 1e-6, entries=4
    ):
        C = strategy.definition(entry.rounds)
        prefixes = [[index for index in pattern if index < entry.rounds] for pattern in patterns]
        expected = max(
            float(np.linalg.norm(C[:, pattern].sum(axis=1))) for pattern in prefixes if pattern
        )
        assert entry.sensitivity == pytest.approx(expected, rel=1e-12)
        assert entry.rho == pytest.approx(expected**2 / 8)
    assert entry.rounds == rounds


@given(traces())
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_patterns_survive_the_disk(trace_of, trace) -> None:
    rounds, patterns = trace
    read = read_patterns(trace_of(patterns, rounds))
    direct = as_patterns(patterns, rounds)
    assert (read.rounds == direct.rounds).all()
    assert (read.counts == direct.counts).all()
    assert (read.device_ids == direct.device_ids).all()


def test_the_json_of_an_audit_has_what_is_promised(trace_of) -> None:
    audit = audit_trace(trace_of([[0, 4, 8], [1, 6], [2], [3], [5], [7]], 9))
    document = json.loads(json.dumps(audit.to_json()))
    assert document["rounds"] == 9
    assert document["devices"] == 6
    assert document["participations"] == 9
    assert document["min_sep"] == 4
    assert document["max_participations"] == 3
    assert [m["name"] for m in document["mechanisms"]] == ["blt"]
    found = document["guarantees"][0]
    assert (found["name"], found["is_exact"]) == ("observed", True)
    assert found["rho"] == pytest.approx(found["sensitivity"] ** 2 / (2 * 49))
    assert reference.gaussian_delta(found["sensitivity"] / 7, found["epsilon"]) <= 1e-10
    title = f"Audit of {audit.path}, of small (20,000 devices), in one run"
    assert "".join(str(audit).split()).startswith("".join(f"{title} rounds (committed)".split()))


def test_another_multiplier_and_delta_are_taken(trace_of) -> None:
    trace = trace_of([[0, 1], [2]], 3)
    audit = audit_trace(trace, noise_multiplier=2.0, delta=1e-5)
    assert audit.mechanisms[0].noise_multiplier == 2.0
    assert audit.mechanisms[0].observed.delta == 1e-5
    assert audit.mechanisms[0].rho > audit_trace(trace).mechanisms[0].rho


def test_an_edited_scenario_is_noticed(trace_of) -> None:
    trace = trace_of([[0]], 1)
    file = trace.path / "run.json"
    file.write_text(file.read_text().replace('"noise_multiplier": 7.0', '"noise_multiplier": 20.0'))
    with pytest.raises(TraceCorrupt, match="digest"):
        audit_trace(trace.path)
    with pytest.raises(TraceCorrupt, match="it was edited"):
        audit_trace(Trace.open(trace.path, verify=False))


@pytest.mark.parametrize(
    "arguments",
    [{"noise_multiplier": 0.0}, {"noise_multiplier": float("nan")}, {"delta": 0.0}, {"delta": 1.0}],
)
def test_impossible_figures_are_refused(trace_of, arguments) -> None:
    with pytest.raises(InputError, match="must be"):
        audit_trace(trace_of([[0]], 1), **arguments)


@given(traces(), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_negative_gram_entries_leave_the_trace_sensitivity_exact(trace, seed: int) -> None:
    """Against each device's certified maximum over unit contributions, one by one; and no choice of signs is above it."""
    rounds, patterns = trace
    C = np.tril(np.random.default_rng(seed).normal(size=(rounds, rounds)))
    C[np.diag_indices(rounds)] = 1.0 + np.abs(np.diag(C))
    strategy = Matrix.from_matrix(C, "C.npy")
    found = trace_sensitivity(strategy, as_patterns(patterns, rounds))
    each = [
        PatternSensitivities(strategy, rounds).exact(np.array(sorted(pattern)))
        for pattern in patterns
        if pattern
    ]
    assert found.value == pytest.approx(max(one.value for one in each), rel=1e-7)
    assert found.is_exact
    signed = [
        np.linalg.norm(C[:, sorted(p)] @ signs)
        for p in patterns
        for signs in itertools.product([-1, 1], repeat=len(p))
        if len(p) <= 8
    ]
    assert max(signed, default=0.0) <= found.value * (1 + 1e-9)


def test_a_run_that_ended_before_its_timer_says_that_min_sep_is_no_evidence(
    trace_of, small, fedray_command, tmp_path: Path
) -> None:
    """Rounds are 100 s apart in this trace; three of them are over within 200 s."""
    patterns = [[0], [1], [2]]

    def note(*overrides: str, rounds: int = 3) -> str:
        return audit_trace(trace_of(patterns[:rounds], rounds, small(*overrides))).short_run_note

    expected = "No device could take part twice, because the 3 rounds were over before the rules"
    assert note("participation.timer_hours=1").startswith(expected)
    assert note("participation.timer_hours=0", "participation.round_separation=3") != ""
    # Nobody came twice, but somebody could have.
    assert note("participation.timer_hours=0.04") == ""
    assert note("participation.timer_hours=0") == ""
    assert note("participation.timer_hours=1", "participation.timer_violators=0.1") == ""
    # One participation is what these rules are for, in a run of any length.
    assert note("participation.timer_hours=1", "participation.max_participations=1") == ""
    assert note("participation.timer_hours=1", rounds=1) == ""
    trace = trace_of(patterns, 3, small("participation.timer_hours=1"))
    _, out, _ = fedray_command("audit", str(trace.path), "--page", str(tmp_path / "page.html"))
    assert expected in " ".join(out.split())
    assert expected in (tmp_path / "page.html").read_text()


def test_the_comparison_says_whose_rho_it_has(trace_of, small, fedray_command) -> None:
    """Where no rule is known, that of the observed limits, which is not the observed guarantee's."""
    patterns = [[0, 2], [1], [3]]
    for overrides, name, told in (
        (("participation.timer_hours=0.04",), "enforced", "(enforced)"),
        (
            ("participation.timer_hours=1", "participation.timer_violators=0.5"),
            "enforced",
            "(enforced)",
        ),
        # Devices broke the rule, so nothing was enforced.
        (("participation.timer_hours=1",), "observed limits", "(observed limits)"),
    ):
        trace = trace_of(patterns, 4, small(*overrides))
        assert audit_trace(trace).to_json()["utility_basis"] == name
        _, out, _ = fedray_command("audit", str(trace.path), "--verbose")
        assert f"{told}; the errors" in " ".join(out.split())
