"""How often the regular pattern is not the worst of a tree (McMahan, Xu, Zhang 2024, Remark 3.2).

    python tests/reproduction/tree_patterns.py          a minute

By their Theorem 3.1, rounds 0, b, 2b, ... are the worst for a Toeplitz C whose coefficients do not
increase. A tree is not such a C. For each setting (n, b, k), the worst shift of the regular pattern
is compared with the exact sensitivity (Kairouz et al. 2021, appendix D). The paper leaves the
question open, so no figure is printed; docs/published.md has the table.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import fedray
from fedray.mechanisms import Tree

MOST_ROUNDS, MOST_PARTICIPATIONS = 256, 8
"""Largest n and k; the published runs have k from 3 to 8."""


@dataclass(frozen=True, slots=True)
class OfParticipations:
    """Settings of one number of participations."""

    max_participations: int
    """k."""
    settings: int
    """Settings (n, b, k) that have room for k participations."""
    worse: int
    """Settings in which another pattern is worse than every shift of the regular one."""
    largest: tuple[int, int, int, int] | None
    """n and b of the setting with the largest ratio, and the squared sensitivities, both exact, of
    its worst regular pattern and of its worst pattern; None if they are equal in all settings."""


def compared(most_rounds: int = MOST_ROUNDS) -> list[OfParticipations]:
    """Compares all settings of up to `most_rounds` rounds, by k from 2 on."""
    # Index k - 2 of each: settings, and n, b, regular and exact square of those that differ.
    counts = np.zeros(MOST_PARTICIPATIONS - 1, np.int64)
    found: list[list[tuple[int, int, int, int]]] = [[] for _ in counts]
    for n in range(2, most_rounds + 1):
        G = np.pad(Tree().gram(n), (0, 1)).astype(np.int64)
        for b in range(1, n):
            regular = regular_squares(G, b)
            most = min(MOST_PARTICIPATIONS, -(-n // b))
            counts[: most - 1] += 1
            for k in range(2, most + 1):
                sensitivity = Tree().participation_sensitivity(fedray.MinSep(n, b, k))
                assert sensitivity.is_exact
                square = round(sensitivity.value**2)
                if square > regular[k - 1]:
                    found[k - 2].append((n, b, int(regular[k - 1]), square))
    rows = []
    for k, each in enumerate(found, start=2):
        largest = max(each, key=lambda one: one[3] / one[2], default=None)
        rows.append(OfParticipations(k, int(counts[k - 2]), len(each), largest))
    return rows


def regular_squares(G: NDArray[np.int64], min_sep: int) -> NDArray[np.int64]:
    """Returns the largest squared sensitivity of rounds s, s + b, s + 2b, ... over all shifts s, of
    at most 1, 2, ... participations each.

    Args:
        G: Gram matrix, with a row and a column of zeros for rounds after the last.
        min_sep: b.
    """
    n = len(G) - 1
    shifted = np.add.outer(np.arange(n), min_sep * np.arange(MOST_PARTICIPATIONS))
    pattern = np.minimum(shifted, n)
    sums = G[pattern[:, :, None], pattern[:, None, :]].cumsum(axis=1).cumsum(axis=2)
    return np.diagonal(sums, axis1=1, axis2=2).max(axis=0)


def main() -> None:
    """Prints a line for each number of participations."""
    for row in compared():
        share = 100 * row.worse / row.settings
        print(f"k {row.max_participations}: another is worse in {row.worse:,} of", end=" ")
        print(f"{row.settings:,} settings ({share:.1f} %)", end="")
        if row.largest is not None:
            n, b, regular, square = row.largest
            ratio = 100 * (square / regular - 1)
            print(f"; n {n}, b {b}: {square} against {regular} (+{ratio:.1f} %)", end="")
        print()


if __name__ == "__main__":
    main()
