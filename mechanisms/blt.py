"""BLT, the buffered linear Toeplitz strategy: c_0 = 1, c_i = sum_j omega_j theta_j^(i-1).

Source: McMahan, Xu, Zhang 2024 ("A hassle-free algorithm for private learning in practice",
multi-participation BLT) and Dvijotham et al. 2024 (arXiv 2404.16706).
"""

from functools import lru_cache
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedray.base.arrays import Float64Array, Int64Array
from .recurrence import Buffers
from .toeplitz import ToeplitzStrategy

LEAST_DECAY = 1e-13
"""Bound of the search on -log(theta): a buffer with this decay forgets nothing."""


class BLT(ToeplitzStrategy):
    """Buffered linear Toeplitz strategy.

    Its noise keeps one buffer of the model's size per pair (theta_j, omega_j), for any number of
    rounds.
    """

    kind: Literal["blt"] = "blt"  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen, so narrowing is safe)
    """Buffered linear Toeplitz."""
    theta: Annotated[
        tuple[Annotated[float, Field(ge=1e-6, lt=1)], ...], Field(strict=False, min_length=1)
    ]
    """Decay per round of each buffer: distinct values, from 1e-6 to below 1."""
    omega: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(strict=False, min_length=1)]
    """Weight of each buffer; positive."""
    paper: ClassVar[str] = "McMahan, Xu, Zhang 2024"

    @model_validator(mode="after")
    def _buffers_match(self) -> Self:
        if len(self.theta) != len(self.omega):
            raise ValueError(
                f"theta has {len(self.theta)} entries and omega {len(self.omega)}; give one omega "
                "per theta"
            )
        if len(set(self.theta)) != len(self.theta):
            raise ValueError(
                f"theta={list(self.theta)} must be distinct; merge equal entries and add their "
                "omegas"
            )
        # Each round maps the buffers of C^-1 to diag(theta) S - 1 omega' S (Algorithm 3).
        transition = np.diag(self.theta) - np.array(self.omega)[None, :]
        # Its eigenvalues are the decays theta_hat of the inverse, because det(x - diag(theta) + 1
        # omega') is prod (x - theta_j) times c(1 / x) (Dvijotham et al. 2024, Lemma 5.2).
        radius = max(abs(np.linalg.eigvals(transition)))
        if not radius <= 1.0:
            raise ValueError(
                f"omega={list(self.omega)}: the recurrence of the noise, diag(theta) - 1 omega', "
                f"must have spectral radius at most 1, not {radius:g}; lower omega"
            )
        return self

    @property
    def is_at_bound(self) -> bool:
        """Whether the largest theta is the bound of the search, to the last digits of a float."""
        return -np.log(max(self.theta)) < 1.01 * LEAST_DECAY

    def first_column(self, rounds: int) -> Float64Array:
        return _coefficients(self.theta, self.omega, rounds)

    def defined_coefficients(self, rounds: int) -> list[float]:
        # c_i = sum_j omega_j theta_j^(i-1) (Dvijotham et al. 2024).
        buffers = list(zip(self.theta, self.omega, strict=True))
        later = [sum(w * t ** (i - 1) for t, w in buffers) for i in range(1, rounds)]
        return [1.0, *later]

    def inverse_first_column(self, rounds: int) -> Float64Array:
        """Returns the coefficients of C^-1, [rounds], by the recurrence of the noise (McMahan, Xu,
        Zhang 2024, Algorithm 3), in O(rounds x buffers)."""
        theta_b = np.array(self.theta)
        omega_b = np.array(self.omega)
        inverse = np.empty(rounds)
        inverse[0] = 1.0
        # S has the buffers: noise of earlier rounds, decayed.
        S = np.ones(len(self.theta))
        for t in range(1, rounds):
            inverse[t] = -(omega_b @ S)
            S = theta_b * S + inverse[t]
        return inverse

    def recurrence(self, rounds: int) -> Buffers:
        del rounds
        return Buffers(theta=self.theta, omega=self.omega)

    def noise_growth(self, rounds: int) -> float:
        # Validation bounds the spectral radius of the recurrence by 1.
        del rounds
        return 1.0

    def is_non_increasing(self, rounds: int) -> bool:
        # With theta < 1 and omega > 0 only c_1 <= c_0 may fail. Parameters decide, since computed
        # coefficients are rounded.
        # c_i falls from i = 1 on, because every theta is below 1.
        return rounds == 1 or sum(self.omega) <= 1.0

    def gram_entries(self, first: Int64Array, second: Int64Array, rounds: int) -> Float64Array:
        """Returns sum_{s < n-j} c_s c_(s+j-i) = c_(j-i) + sum_q theta_q^(j-i) T_q(n-j), with the
        geometric series T_q of `_gram_tables` in closed form."""
        lag = second - first
        terms = rounds - second
        c, powers, tails = _gram_tables(self.theta, self.omega, rounds)
        entries = c[lag]
        for power, tail in zip(powers, tails, strict=True):
            entries += power[lag] * tail[terms]
        return entries


def _coefficients(theta: tuple[float, ...], omega: tuple[float, ...], rounds: int) -> Float64Array:
    exponents = np.arange(rounds - 1)
    powers = np.array(theta) ** exponents[:, None]
    return np.concatenate([[1.0], powers @ np.array(omega)])


@lru_cache(maxsize=8)
def _gram_tables(
    theta: tuple[float, ...], omega: tuple[float, ...], rounds: int
) -> tuple[Float64Array, list[Float64Array], list[Float64Array]]:
    """Returns c, and per buffer q theta_q^lag and T_q(m) = omega_q sum_p omega_p (1 - (theta_p
    theta_q)^(m-1)) / (1 - theta_p theta_q)."""
    lags = np.arange(rounds, dtype=np.float64)
    terms = np.arange(rounds + 1, dtype=np.float64)
    powers = []
    tails = []
    for theta_q, omega_q in zip(theta, omega, strict=True):
        tail = np.zeros(rounds + 1)
        for theta_p, omega_p in zip(theta, omega, strict=True):
            # 1 - product^(m-1) by expm1, which is accurate if the product is near 1.
            product = theta_p * theta_q
            # Near 1 most digits of 1 - product are lost, but both uses lose the same ones: the sum
            # is that of a product one ulp away, which changes it by a relative m ulp at most.
            missing = -np.expm1((terms - 1) * np.log(product))
            tail += omega_p * missing / (1.0 - product)
        powers.append(theta_q**lags)
        tails.append(omega_q * tail)
    return _coefficients(theta, omega, rounds), powers, tails
