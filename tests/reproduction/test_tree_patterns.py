"""Which patterns are the worst of a tree, against all patterns one by one."""

import itertools

import numpy as np
import pytest
import tree_patterns

import fedray
from fedray.mechanisms import Tree


@pytest.mark.slow
def test_the_settings_in_which_a_regular_pattern_is_not_the_worst_are_found_by_brute_force() -> (
    None
):
    differing = {}
    for n, b in itertools.combinations(range(16, 0, -1), 2):
        C = Tree().definition(n)
        regular = worst = 0
        for k in range(1, min(8, -(-n // b)) + 1):
            for pattern in itertools.combinations(range(n), k):
                gaps = np.diff(pattern)
                if (gaps < b).any():
                    continue
                square = round(float(np.square(C[:, pattern].sum(axis=1)).sum()))
                worst = max(worst, square)
                if (gaps == b).all():
                    regular = max(regular, square)
            if worst > regular:
                differing[n, b, k] = regular, worst
    assert differing[16, 3, 5] == (55, 57)
    for row in tree_patterns.compared(16):
        of_k = {
            key: squares for key, squares in differing.items() if key[2] == row.max_participations
        }
        assert row.worse == len(of_k)
        assert (row.largest is None) == (not of_k)
        if row.largest is not None:
            n, b, *squares = row.largest
            assert tuple(squares) == of_k[n, b, row.max_participations]


def test_the_published_run_that_shows_it() -> None:
    """pt-PT of Xu et al. 2023: 174 for every shift of the regular pattern, and 182."""
    G = np.pad(Tree().gram(530), (0, 1)).astype(np.int64)
    assert tree_patterns.regular_squares(G, 55)[7] == 174
    found = Tree().participation_sensitivity(fedray.MinSep(530, 55, 8))
    assert (found.is_exact, round(found.value**2)) == (True, 182)
