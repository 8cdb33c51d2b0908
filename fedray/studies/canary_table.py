"""The table of a canary study."""

from fedray.base.rounding import given, up
from fedray.report.table import Table
from fedray.studies.canary import CONFIDENCE, CanaryResult


def canary_tables(canary: CanaryResult) -> list[Table]:
    """Mechanism, pattern, mu, signal, noise and p-values of a `canary`, and what is wrong."""
    noise = given(canary.noise_multiplier)
    p_values = [f"{test.name} {test.p:.3g}" for test in canary.tests]
    facts = [
        ("mechanism", f"{canary.mechanism}, noise multiplier {noise}, {canary.rounds:,} rounds"),
        ("pattern", f"rounds {', '.join(map(str, canary.pattern))}"),
        (
            "mu",
            f"claimed {up(canary.claimed_mu)}, expected of the released rounds "
            f"{canary.expected_mu:.4f}",
        ),
        ("", f"measured {_measured(canary)} ({100 * CONFIDENCE:g} %)"),
        ("signal", f"{canary.signal:.4f} of what it should be; noise {canary.noise:.4f}"),
        ("p-values", ", ".join(p_values)),
    ]
    if canary.counts is not None:
        facts.append(("counts", _counts(canary.counts)))
    return [Table.facts("", [*facts, *(("WRONG", problem) for problem in canary.problems)])]


def _measured(canary: CanaryResult) -> str:
    return f"{canary.mu:.4f} [{canary.mu_low:.4f}, {canary.mu_high:.4f}]"


def _counts(counts: CanaryResult) -> str:
    return (
        f"noise multiplier {given(counts.noise_multiplier)}, mu claimed {up(counts.claimed_mu)}, "
        f"expected {counts.expected_mu:.4f}, measured {_measured(counts)}; noise "
        f"{counts.noise:.4f} of what it should be"
    )
