"""Examples of every kind of mechanism, which the suites of strategies, of noise and of released noise share."""

import numpy as np

from fedray.mechanisms.registry import (
    BISR,
    BLT,
    Banded,
    BandFHU,
    Dense,
    Identity,
    IntegerToeplitz,
    Matrix,
    Toeplitz,
    Tree,
    TreeFull,
)
from fedray.mechanisms.strategy import Strategy
from fedray.mechanisms.triangular import lower_factor

ROUNDS = 45
"""Rounds of the matrices, and of the trees that have a last round."""
LAGS = np.abs(np.subtract.outer(np.arange(ROUNDS), np.arange(ROUNDS)))
MECHANISMS: dict[str, Strategy] = {
    "identity": Identity(),
    "blt": BLT(theta=(0.95, 0.6), omega=(0.2, 0.3)),
    "blt, one buffer": BLT(theta=(0.9,), omega=(0.3,)),
    "blt, optimised": BLT(
        theta=(0.9953348970002772, 0.8122920858683399),
        omega=(0.12828660029532482, 0.32906048602262866),
    ),
    "blt, outside Theorem 3.1": BLT(theta=(0.7, 0.4), omega=(0.9, 0.5)),  # c_1 > c_0
    "toeplitz": Toeplitz(coefficients=(0.8, 0.5, 0.25)),
    "toeplitz, not monotone": Toeplitz(coefficients=(1.0, 0.2, 0.4, 0.1)),
    "toeplitz, with signs": Toeplitz(coefficients=(1.0, -0.5, 0.25)),
    "integer-toeplitz": IntegerToeplitz(coefficients=(4, 2, 1)),
    "integer-toeplitz, with signs": IntegerToeplitz(coefficients=(3, -1, 2)),
    "band-fhu": BandFHU(bands=6),
    "band-fhu, all bands": BandFHU(bands=1000),
    "bisr": BISR(bands=4),
    "bisr, one band": BISR(bands=1),
    "banded": Banded.from_matrix(
        lower_factor(np.where(LAGS < 4, 0.6**LAGS, 0.0) + np.eye(ROUNDS)), "banded.npy"
    ),
    "dense": Dense.from_matrix(lower_factor(0.9**LAGS), "dense.npy"),
    "matrix": Matrix.from_matrix(np.tril(np.cos(LAGS)) + np.eye(ROUNDS), "matrix.npy"),
    "tree": Tree(),
    "tree, restarts": Tree(restarts=(1, 13, 20, 99)),
    "tree, completion": Tree(completion=True, rounds=ROUNDS),
    "tree, both": Tree(restarts=(13, 20), completion=True, rounds=ROUNDS),
    "tree-full": TreeFull(rounds=ROUNDS),
}
"""By names that begin with the kind."""
OF_EACH_KIND = {name: strategy for name, strategy in MECHANISMS.items() if name == strategy.kind}
"""The plainest of each kind."""
