"""Pictures of C in docstrings show the matrices that the code defines."""

import re
from types import ModuleType

import numpy as np
import pytest

from fedray.mechanisms import matrix_files, toeplitz, tree
from fedray.mechanisms.toeplitz import Toeplitz
from fedray.mechanisms.tree import Tree

C = {"c_0": 5.0, "c_1": 3.0, "c_2": 2.0, "c_3": 1.0, "x": 1.0, "1": 1.0, ".": 0.0}


def pictures(module: ModuleType) -> list[np.ndarray]:
    """Matrices between bars in the docstring of a module, from left to right; they start on one line."""
    assert module.__doc__ is not None
    found: dict[int, list[list[float]]] = {}
    for line in module.__doc__.splitlines():
        for row in re.finditer(r"\| ([^|]+) \|", line):
            found.setdefault(row.start(), []).append([C[entry] for entry in row[1].split()])
    return [np.array(rows) for _, rows in sorted(found.items())]


def test_toeplitz_matrices_are_as_drawn() -> None:
    full, banded = pictures(toeplitz)
    np.testing.assert_array_equal(full, Toeplitz(coefficients=(5, 3, 2, 1)).definition(4))
    np.testing.assert_array_equal(banded, Toeplitz(coefficients=(5, 3)).definition(4))


@pytest.mark.parametrize(
    ("place", "shape", "rounds"),
    [(0, Tree(), 4), (1, Tree(), 3), (2, Tree(completion=True, rounds=3), 3)],
)
def test_trees_are_as_drawn(place: int, shape: Tree, rounds: int) -> None:
    np.testing.assert_array_equal(pictures(tree)[place], shape.definition(rounds))


def test_bands_are_as_drawn() -> None:
    banded, dense = pictures(matrix_files)
    np.testing.assert_array_equal(dense, np.tri(4))
    np.testing.assert_array_equal(banded, np.tri(4) - np.tri(4, k=-2))
