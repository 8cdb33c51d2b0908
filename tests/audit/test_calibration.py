"""Noise for a target by the participation of a trace: enforced and observed, each with its own
sensitivity."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slow_twins import gaussian_delta, patterns_of

import fedray
from fedray.audit.auditing import audit_trace
from fedray.audit.calibration import (
    AT_OTHER_TIMES,
    KNOWN_AFTERWARDS,
    OF_A_LOG,
    TraceCalibration,
    calibrate_trace,
)
from fedray.base.errors import InputError, TraceError
from fedray.imports.importer import import_log
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import BLT, Banded, Identity, Tree, TreeFull
from fedray.mechanisms.strategy import Strategy

PATTERNS = [[0, 4, 9], [1, 6], [2], [3, 11], [5], [7], [8], [10]]
ROUNDS = 12
RULES = (
    "participation.timer_hours=0",
    "participation.round_separation=3",
    "participation.max_participations=3",
)
BANDS = np.eye(12) + 0.6 * np.eye(12, k=-1) + 0.3 * np.eye(12, k=-2)
MECHANISMS = [
    BLT(theta=(0.9, 0.4), omega=(0.3, 0.2)),
    Tree(),
    # Later columns are longer, so that the rules allow more than the devices of the trace did.
    Banded.from_matrix(BANDS * np.linspace(1.0, 1.5, 12), "m.npy"),
]
TARGETS = [{"epsilon": 3.0}, {"epsilon": 0.4}, {"rho": 0.2}]


def norm(matrix: np.ndarray, pattern: Any) -> float:
    return float(np.linalg.norm(matrix[:, list(pattern)].sum(axis=1)))


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("strategy", MECHANISMS, ids=lambda each: each.kind)
def test_an_audit_with_that_noise_has_the_target_and_with_a_little_less_it_has_not(
    trace_of, small, strategy: Strategy, target: dict[str, float]
) -> None:
    trace = trace_of(PATTERNS, ROUNDS, small(*RULES))
    found = calibrate_trace(trace, mechanism=strategy, delta=1e-8, **target)
    (what, most) = next(iter(target.items()))
    for name in ("enforced", "observed"):
        z = getattr(found, name).noise_multiplier
        again, less = (
            getattr(audit_trace(trace, each, 1e-8, strategy).mechanisms[0], name)
            for each in (z, z * (1 - 1e-6))
        )
        # The privacy that is told with the noise is that of the audit, to the last bit.
        assert getattr(found, name).guarantee.event == again.event
        assert getattr(again, what) <= most < getattr(less, what)
    assert found.enforced.noise_multiplier > found.observed.noise_multiplier


@pytest.mark.parametrize("strategy", MECHANISMS, ids=lambda each: each.kind)
def test_noise_is_that_of_sensitivities_by_brute_force(trace_of, small, strategy: Strategy) -> None:
    """Every recorded device, and every pattern that the rules allow, with the dense matrix; delta
    by Balle and Wang's formula in many digits."""
    trace = trace_of(PATTERNS, ROUNDS, small(*RULES))
    C = strategy.definition(ROUNDS)
    sensitivities = {
        "observed": max(norm(C, pattern) for pattern in PATTERNS),
        "enforced": max(norm(C, pattern) for pattern in patterns_of(MinSep(ROUNDS, 3, 3))),
    }
    by_rho = calibrate_trace(trace, rho=0.2, mechanism=strategy)
    by_epsilon = calibrate_trace(trace, epsilon=2.0, delta=1e-9, mechanism=strategy)
    for name, expected in sensitivities.items():
        z = getattr(by_rho, name).noise_multiplier
        assert z == pytest.approx(expected / math.sqrt(0.4), rel=1e-12)
        z = getattr(by_epsilon, name).noise_multiplier
        assert gaussian_delta(expected / z * (1 - 1e-12), 2.0) <= 1e-9
        assert gaussian_delta(expected / z * (1 + 1e-6), 2.0) > 1e-9


def test_the_runs_own_mechanism_and_delta_are_the_default(trace_of, small) -> None:
    value = small(
        *RULES,
        "privacy.mechanism={kind='identity'}",
        "privacy.noise_multiplier=2.5",
        "privacy.delta=1e-6",
    )
    trace = trace_of(PATTERNS, ROUNDS, value)
    found = calibrate_trace(trace.path, rho=0.5)
    assert (found.strategy, found.delta) == (Identity(), 1e-6)
    assert found.run_noise_multiplier == 2.5
    # Independent noise: the sensitivity is the root of the number of participations.
    assert found.observed.noise_multiplier == pytest.approx(math.sqrt(3.0), rel=1e-12)
    assert found.digest == trace.digest
    # The multiplier of another mechanism would not be comparable.
    assert calibrate_trace(trace, rho=0.5, mechanism=Tree()).run_noise_multiplier is None


def test_only_the_enforced_noise_carries_a_guarantee(trace_of, small) -> None:
    found = calibrate_trace(trace_of(PATTERNS, ROUNDS, small(*RULES)), epsilon=1.0)
    assert found.enforced.guarantee.may_rest_on
    assert not found.observed.guarantee.may_rest_on
    assert KNOWN_AFTERWARDS in found.observed.guarantee.reason
    assert KNOWN_AFTERWARDS not in found.enforced.guarantee.reason
    assert found.notes == (AT_OTHER_TIMES,)


def test_rules_that_the_trace_breaks_leave_the_observed_noise_alone(trace_of, small) -> None:
    """Rounds 100 s apart, and a timer of 12 h."""
    found = calibrate_trace(trace_of([[0, 1], [2]], 3, small()), rho=0.3)
    assert found.enforced.noise_multiplier is None
    assert "so the rules were not kept" in found.enforced.guarantee.reason
    assert found.enforced.guarantee.epsilon is None
    assert found.observed.noise_multiplier is not None
    assert AT_OTHER_TIMES not in found.notes


def test_a_log_has_the_observed_noise_alone_and_its_doubts_beside_it(tmp_path) -> None:
    (tmp_path / "log.csv").write_text("device,round\na,0\nb,1\na,2\n,1\n")
    trace = import_log(
        tmp_path / "log.csv", "device", "round", 3, tmp_path / "trace", leave_out_invalid=True
    )
    found = calibrate_trace(trace, rho=0.5, mechanism=Identity())
    assert found.observed.noise_multiplier == pytest.approx(math.sqrt(2.0), rel=1e-12)
    assert (found.delta, found.run_noise_multiplier) == (1e-10, None)
    assert found.enforced.noise_multiplier is None
    assert "does not say which rules" in found.enforced.guarantee.reason
    assert found.notes[0] == OF_A_LOG
    assert "left out rows" in found.notes[1]
    with pytest.raises(InputError, match="^trace .* is a log, which has no mechanism of its own"):
        calibrate_trace(trace, rho=0.5)


def test_noise_of_adaptive_clipping_is_that_of_sums_and_counts_together(trace_of, small) -> None:
    """A run with that noise, whose counts have their share of it, has the target."""
    clipping = (
        *RULES,
        "privacy.clipping={kind='adaptive'}",
        "privacy.mechanism={kind='identity'}",
    )
    found = calibrate_trace(trace_of(PATTERNS, ROUNDS, small(*clipping)), rho=0.2)
    value = small(*clipping)
    assert value.count_noise is not None
    assert f"only one below {2 * value.count_noise:g}" in found.notes[-1]
    z = found.enforced.noise_multiplier
    again = audit_trace(
        trace_of(PATTERNS, ROUNDS, small(*clipping, f"privacy.noise_multiplier={z!r}"))
    )
    assert len(again.releases) == 2
    # The run's own mechanism stays that when it is named.
    assert audit_trace(again.path, mechanism=Identity()).releases == again.releases
    trace = trace_of(PATTERNS, ROUNDS, value)
    named = calibrate_trace(trace, rho=0.2, mechanism=Identity())
    assert replace(named, path=found.path) == found
    assert again.mechanisms[0].enforced.rho == pytest.approx(0.2, rel=1e-12)


def test_noise_calibrated_to_a_claim_makes_the_claim_hold(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("d,r\na,0\na,3\nb,1\nb,4\nc,2\n")
    trace = fedray.import_log(tmp_path / "log.csv", "d", "r", 5, tmp_path / "t")
    claim = fedray.Claim(
        mechanism=Tree(), noise_multiplier=1.0, min_sep=3, max_participations=2, epsilon=2.0
    )
    found = fedray.audit_trace(trace, claim=claim)
    assert found.needs_noise, found.verdict
    found = calibrate_trace(trace, claim=claim).claimed
    assert found.guarantee.epsilon == pytest.approx(2.0, rel=1e-6)
    for share, verdict in ((1.0, "holds"), (0.99, "does not hold")):
        z = share * found.noise_multiplier
        again = fedray.audit_trace(trace, claim=claim.model_copy(update={"noise_multiplier": z}))
        (epsilon,) = (each for each in again.findings if each.statement == "epsilon")
        assert (epsilon.verdict == "holds") == (verdict == "holds")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("privacy.stop_at={rho=9.0}",), "ended the run elsewhere"),
        (
            (
                "privacy.stop_at={rho=9.0}",
                "privacy.at_limit='exclude'",
                "rounds.mode='on-device'",
            ),
            "would have excluded other devices",
        ),
    ],
)
def test_a_budget_that_counted_with_other_noise_is_told(
    trace_of, small, overrides: tuple[str, ...], said: str
) -> None:
    found = calibrate_trace(trace_of(PATTERNS, ROUNDS, small(*RULES, *overrides)), rho=0.2)
    assert said in found.notes[-1]
    assert "noise multiplier 7." in found.notes[-1]


def test_a_task_of_several_tells_that_the_others_are_not_counted(trace_of, small) -> None:
    trace = trace_of(PATTERNS, ROUNDS, small(*RULES))
    trace.run["task"] = {"name": "a", "scenario_digest": ""}
    assert "one of several tasks" in calibrate_trace(trace, rho=0.2).notes[-1]


def test_what_has_no_such_noise_is_refused_in_one_line(trace_of, small, tmp_path) -> None:
    trace = trace_of(PATTERNS, ROUNDS, small(*RULES))
    matrix = Banded.from_matrix(np.eye(ROUNDS - 1), "m.npy")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "tasks.json").write_text("{}")
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (trace, {}, "exactly one target"),
        (trace, {"epsilon": 1.0, "rho": 1.0}, "exactly one target"),
        (trace, {"epsilon": 0.0}, r"^epsilon=0.0 must be positive"),
        (trace, {"rho": -1.0}, r"^rho=-1.0 must be positive"),
        (trace, {"rho": 1e9}, r"^rho=1000000000.0 needs the noise multiplier .*outside 0.01 to"),
        (trace, {"epsilon": 1.0, "delta": 2.0}, r"^delta=2.0 must be"),
        (trace, {"rho": 1.0, "mechanism": matrix}, r"^rounds=12 is more than this .* strategy has"),
        (trace_of([[], []], 0, small()), {"rho": 1.0}, r"^trace '.*' has no committed round"),
    ]
    for given, options, message in refused:
        with pytest.raises(InputError, match=message) as caught:
            calibrate_trace(given, **options)
        assert "\n" not in str(caught.value)
    with pytest.raises(TraceError, match="traces of several tasks, but only one is possible here"):
        calibrate_trace(tmp_path / "tasks", rho=1.0)


def test_a_calibration_is_one_json_object_and_a_short_line(trace_of, small) -> None:
    found = calibrate_trace(
        trace_of(PATTERNS, ROUNDS, small(*RULES)), epsilon=2.0, mechanism=TreeFull(rounds=16)
    )
    assert isinstance(found, TraceCalibration)
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    for name in ("enforced", "observed"):
        assert document[name]["noise_multiplier"] == getattr(found, name).noise_multiplier
        assert document[name]["sensitivity"] == getattr(found, name).guarantee.sensitivity.value
        assert document[name]["epsilon"] <= 2.0
    assert repr(found).startswith("<TraceCalibration of tree-full to epsilon 2 at 1e-10: enforced ")
    assert len(repr(found)) < 200


@pytest.mark.parametrize(("rho", "stricter"), [(0.001, "rho"), (10.0, "epsilon")])
def test_a_claim_of_epsilon_and_rho_needs_the_noise_of_the_stricter_one(
    trace_of, small, rho: float, stricter: str
) -> None:
    trace = trace_of(PATTERNS, ROUNDS, small(*RULES))
    claim = fedray.Claim(
        mechanism=Tree(), noise_multiplier=7.0, min_sep=3, max_participations=3,
        epsilon=2.0, rho=rho,
    )  # fmt: skip
    found = calibrate_trace(trace, claim=claim)
    assert (found.target_rho is None) == (stricter == "epsilon")
    z = found.claimed.noise_multiplier
    alone = [calibrate_trace(trace, claim=claim, **{name: getattr(claim, name)}) for name in ("epsilon", "rho")]  # fmt: skip
    assert z == max(each.claimed.noise_multiplier for each in alone)
