"""Claims of a frontier: each device keeps one of several pairs (min-sep, participations)."""

import itertools

import numpy as np
import pytest

from fedray.audit.audit import Audit
from fedray.audit.auditing import audit_trace
from fedray.audit.claims import Claim, read_claim
from fedray.audit.findings import Verdict
from fedray.audit.guarantees import Limits, of_limits
from fedray.audit.noise import ServerNoise
from fedray.audit.participation import Patterns
from fedray.audit.privacy_statement import privacy_statement
from fedray.audit.statements.frontier import frontier_of, tightened
from fedray.audit.verdict import AuditVerdict
from fedray.base.errors import InputError
from fedray.base.rounding import up
from fedray.imports.importer import import_log
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import BLT, Identity, Toeplitz, Tree

STRATEGIES = (
    BLT(theta=(0.9, 0.5), omega=(0.2, 0.3)),
    Identity(),
    Toeplitz(coefficients=(1.0, 0.5, 0.25)),
    Tree(),
)


def drawn(rng: np.random.Generator, n: int) -> list[list[int]]:
    """Patterns of two to five devices in n rounds: some are regular, the others come as they like."""
    patterns = []
    for _ in range(rng.integers(2, 6)):
        regular = range(0, n, int(rng.integers(2, 4)))
        own = np.flatnonzero(rng.random(n) < rng.uniform(0.1, 0.5)).tolist()
        patterns.append([*regular] if rng.random() < 0.6 else own[:2])
    return [each for each in patterns if each] or [[0]]


def as_patterns(patterns: list[list[int]], n: int) -> Patterns:
    return Patterns(
        n,
        np.arange(len(patterns), dtype=np.uint64),
        np.array([len(each) for each in patterns]),
        np.concatenate([np.array(each, np.uint32) for each in patterns]),
    )


def is_allowed(pattern: tuple[int, ...], pairs: tuple[tuple[int, int], ...]) -> bool:
    least = min(np.diff(pattern), default=len(pattern) + 10**6)
    return any(len(pattern) <= k and least >= b for b, k in pairs)


def claimed_sensitivity(strategy, pairs, n: int) -> tuple[float, bool]:
    hull = MinSep(n, 1, n)
    limits = Limits(hull, "", pairs=tightened(pairs, hull))
    found = of_limits("claimed", limits, strategy, ServerNoise(1.0), 1e-6, False).sensitivity
    assert found is not None
    return found.value, found.is_exact


def test_the_sensitivity_of_a_frontier_is_the_largest_of_all_admissible_patterns() -> None:
    """Of 500 random logs, by brute force over all patterns that the frontier of the log allows: never below, and equal where it says exact."""
    rng = np.random.default_rng(51)
    exact = tighter = 0
    for number in range(500):
        n = int(rng.integers(5, 10))
        patterns, strategy = drawn(rng, n), STRATEGIES[number % len(STRATEGIES)]
        pairs = frontier_of(as_patterns(patterns, n))
        assert all(is_allowed(tuple(each), pairs) for each in patterns)
        columns = strategy.definition(n)
        largest = max(
            np.linalg.norm(columns[:, list(pattern)].sum(axis=1))
            for size in range(1, n + 1)
            for pattern in itertools.combinations(range(n), size)
            if is_allowed(pattern, pairs)
        )
        found, is_exact = claimed_sensitivity(strategy, pairs, n)
        assert found >= largest * (1 - 1e-12)
        if is_exact:
            assert found == pytest.approx(largest, rel=1e-9)
            exact += 1
        b, k = min(b for b, _ in pairs), max(k for _, k in pairs)
        limits = strategy.participation_sensitivity(MinSep(n, b, min(k, -(-n // b)))).value
        assert found <= limits * (1 + 1e-12)
        tighter += found < 0.999 * limits
    assert exact > 250
    assert tighter > 50


@pytest.fixture
def audited(tmp_path):
    """The audit of a log with a claim: devices take part every 45 rounds seven times, or twice 22 apart."""

    def audited(patterns: list[list[int]], **claim) -> Audit:
        rows = [f"{device},{each}" for device, rounds in enumerate(patterns) for each in rounds]
        (tmp_path / "log.csv").write_text("device,round\n" + "\n".join(rows) + "\n")
        number = len(list(tmp_path.iterdir()))
        trace = import_log(tmp_path / "log.csv", "device", "round", 315, tmp_path / f"t{number}")
        return audit_trace(
            trace, claim=Claim(**{"mechanism": KIND, "noise_multiplier": 7.0, **claim})
        )

    return audited


KIND = BLT(theta=(0.9925, 0.7717), omega=(0.1524, 0.3205))
SELDOM = [[start + 45 * each for each in range(7)] for start in range(45)]
CLOSE = [[start, start + 22] for start in range(0, 280, 7)]


def test_a_frontier_gives_less_than_limits_that_never_meet_in_a_device(audited) -> None:
    of_limits = audited([*SELDOM, *CLOSE], min_sep=22, max_participations=7)
    assert of_limits.claim_holds
    of_pairs = audited([*SELDOM, *CLOSE], frontier=[[45, 7], [22, 2]])
    assert of_pairs.claim_holds
    (claimed,) = [each for each in of_pairs.to_json()["guarantees"] if each["name"] == "claimed"]
    assert claimed["pairs"] == [[45, 7], [22, 2]]
    assert of_pairs.supported_epsilon < 0.85 * of_limits.supported_epsilon
    # The audit of the limits proposes the frontier, with its epsilon; that of the frontier has no better one.
    assert (
        "A claim of frontier = [[45, 7], [22, 2]], if enforced, would give epsilon"
        in of_limits.would_do
    )
    assert f"{of_pairs.supported_epsilon:.2f}"[:4] in of_limits.would_do
    assert of_pairs.would_do is None
    assert "(min-sep, participations) of [[45, 7], [22, 2]]" in of_pairs.supported_by
    # A published statement names what must be enforced.
    said = (
        "If this noise was added and for each device one pair (min-sep, participations) of "
        "[[45, 7], [22, 2]] were enforced"
    )
    assert said in privacy_statement(of_pairs).summary


def test_a_device_that_keeps_no_pair_breaks_the_frontier(audited) -> None:
    audit = audited([*SELDOM, *CLOSE, [0, 22, 44]], frontier=[[45, 7], [22, 2]])
    (finding,) = [each for each in audit.findings if each.statement == "frontier"]
    assert (finding.verdict, finding.broken_by) == (Verdict.BROKEN, 1)
    assert finding.evidence[0].rounds == (0, 22, 44)
    assert finding.should_say == "frontier = [[45, 7], [22, 3]]"
    assert not audit.claim_holds
    # What may be published is by the log's own frontier.
    corrected = audited([*SELDOM, *CLOSE, [0, 22, 44]], frontier=[[45, 7], [22, 3]])
    assert audit.supported_epsilon == corrected.supported_epsilon


def test_an_epsilon_follows_from_a_frontier_with_other_statements(audited) -> None:
    free = audited([*SELDOM, *CLOSE], frontier=[[45, 7], [22, 2]]).supported_epsilon
    held = audited([*SELDOM, *CLOSE], frontier=[[45, 7], [22, 2]], epsilon=1.001 * free)
    assert held.claim_holds
    broken = audited([*SELDOM, *CLOSE], frontier=[[45, 7], [22, 2]], epsilon=0.8 * free)
    assert not broken.claim_holds
    # A limit that holds for every device tightens every pair.
    both = audited(SELDOM, frontier=[[22, 7]], min_sep=45)
    alone = audited(SELDOM, min_sep=45, max_participations=7)
    assert both.supported_epsilon == alone.supported_epsilon


@pytest.mark.parametrize(
    ("broken", "pairs"),
    [
        ({"frontier": [[45, 7], [22, 1]]}, "[[45, 7], [22, 2]]"),
        ({"frontier": [[45, 7], [22, 2]], "min_sep": 40}, "[[45, 7], [22, 2]]"),
        ({"frontier": [[45, 7], [22, 2]], "max_participations": 3}, "[[45, 7], [22, 2]]"),
        ({"frontier": [[45, 7], [22, 2]], "rounds": 300}, "[[45, 7], [22, 2]]"),
    ],
)
def test_a_broken_claim_with_a_frontier_and_an_epsilon_names_the_corrected_pairs(
    audited, broken, pairs
) -> None:
    audit = audited([*SELDOM, *CLOSE], epsilon=1.0, **broken)
    assert not audit.claim_holds
    assert f"(min-sep, participations) of {pairs}" in audit.supported_by
    (finding,) = [each for each in audit.findings if each.statement == "epsilon"]
    assert f"(min-sep, participations) of {pairs} in 315 rounds give" in finding.explanation
    right = audited([*SELDOM, *CLOSE], frontier=[[45, 7], [22, 2]])
    assert audit.supported_epsilon == right.supported_epsilon


@pytest.mark.parametrize("strategy", [KIND, Tree()])
@pytest.mark.parametrize("rounds", [316, 1000])
def test_a_frontier_is_proposed_for_the_claimed_rounds(audited, strategy, rounds) -> None:
    """Its epsilon is the one that a claim of it then supports, over rounds beyond the recorded ones too."""
    common = {"rounds": rounds, "mechanism": strategy}
    said = audited([*SELDOM, *CLOSE], min_sep=22, max_participations=7, **common).would_do
    of_pairs = audited([*SELDOM, *CLOSE], frontier=[[45, 7], [22, 2]], **common)
    recorded = audited([*SELDOM, *CLOSE], frontier=[[45, 7], [22, 2]], mechanism=strategy)
    assert said == (
        "A claim of frontier = [[45, 7], [22, 2]], if enforced, would give epsilon "
        f"{up(of_pairs.supported_epsilon)}."
    )
    assert of_pairs.supported_epsilon >= recorded.supported_epsilon


OWN = [[45, 7], [22, 2]]


@pytest.mark.parametrize(
    ("claim", "is_read_off"),
    [
        ({"frontier": OWN}, True),
        # Beyond the rounds; under another pair; under none, but beside those of the log.
        ({"frontier": [*OWN, [315, 50]]}, True),
        ({"frontier": [*OWN, [46, 3]]}, True),
        ({"frontier": [*OWN, [44, 3]]}, True),
        ({"frontier": [*OWN, [125, 8]], "rounds": 1000}, True),
        # Limits that exclude nothing.
        ({"frontier": OWN, "min_sep": 1}, True),
        ({"min_sep": 22, "max_participations": 300}, True),
        ({"min_sep": 22, "max_participations": 7, "frontier": [[22, 7]]}, True),
        ({"frontier": [[45, 7], [21, 2]]}, False),
        ({"frontier": [[40, 8], [22, 2]]}, False),
        ({"min_sep": 22, "max_participations": 8}, False),
        ({"frontier": [[45, 7], [30, 2]], "min_sep": 30}, False),
    ],
)
def test_nothing_beside_the_limits_of_the_log_removes_the_caveat(
    audited, claim, is_read_off
) -> None:
    audit = audited([*SELDOM, *CLOSE], **claim)
    assert ("Its limits are what the log shows" in audit.verdict) == is_read_off
    assert (AuditVerdict(audit).standing == "open") == is_read_off


def test_an_empty_frontier_is_refused(tmp_path) -> None:
    text = 'mechanism = "tree"\nnoise_multiplier = 1.0\nfrontier = []\n'
    (tmp_path / "claim.toml").write_text(text)
    with pytest.raises(InputError):
        read_claim(tmp_path / "claim.toml")
