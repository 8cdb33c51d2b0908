"""Toeplitz strategies with whole coefficients: C[i, j] = c_(i-j) / c_0, c whole.

Devices that add noise to integers modulo M can only release whole multiples of earlier sums, so
their C must be a whole matrix. Scaling it does not change the mechanism.
"""

import math
from functools import lru_cache
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedray.base.arrays import Float64Array
from fedray.base.errors import InputError
from .band_fhu import BandFHU
from .identity import Identity
from .strategy import Strategy
from .toeplitz import Toeplitz, ToeplitzStrategy

MOST_COEFFICIENT = 1 << 53
"""Largest absolute value of a coefficient, up to which floats represent every integer."""
Coefficient = Annotated[int, Field(ge=-MOST_COEFFICIENT, le=MOST_COEFFICIENT)]


class IntegerToeplitz(ToeplitzStrategy):
    """A Toeplitz strategy defined by whole coefficients, divided by the first; later ones are
    zero."""

    kind: Literal["integer-toeplitz"] = "integer-toeplitz"  # pyright: ignore[reportIncompatibleVariableOverride]  (frozen, so narrowing is safe)
    """Toeplitz, by whole coefficients."""
    coefficients: Annotated[tuple[Coefficient, ...], Field(strict=False, min_length=1)]
    """c_0, c_1, ..., whole, without a common divisor; c_0 must be positive, and the last one must
    not be 0."""

    @model_validator(mode="after")
    def _in_lowest_terms(self) -> Self:
        c = self.coefficients
        if not c[0] > 0 or not c[-1]:
            raise ValueError(
                f"coefficients={list(c)} must begin with a positive number and end with one that "
                "is not 0; trim them"
            )
        divisor = math.gcd(*c)
        if divisor > 1:
            raise ValueError(
                f"coefficients={list(c)} have the common divisor {divisor}; divide them by it"
            )
        return self

    def first_column(self, rounds: int) -> Float64Array:
        c = np.zeros(rounds)
        given = self.coefficients[:rounds]
        c[: len(given)] = given
        return c / self.coefficients[0]

    def defined_coefficients(self, rounds: int) -> list[float]:
        zeros = [0] * rounds
        return [each / self.coefficients[0] for each in [*self.coefficients, *zeros][:rounds]]


def integer_of(
    strategy: Strategy, bits: int, most: int | None = None
) -> "IntegerToeplitz | Identity":
    """Returns a strategy whose coefficients are rounded to multiples of c_0 / 2^bits, divided by
    their greatest common divisor. The identity stays as it is.

    Args:
        strategy: lower triangular Toeplitz strategy.
        bits: q.
        most: number of coefficients to keep; None for all.

    Raises:
        InputError: the strategy is not Toeplitz, or has no last coefficient and `most` is None.
    """
    if isinstance(strategy, Identity):
        return strategy
    if isinstance(strategy, IntegerToeplitz):
        return _in_lowest_terms(strategy.coefficients[:most])
    if not isinstance(strategy, ToeplitzStrategy):
        raise InputError(
            f"mechanism.kind={strategy.kind!r} has no constant diagonals, so no store opens its "
            "sums; use identity, toeplitz, band-fhu, blt or bisr"
        )
    kept = _kept(strategy, most)
    return _rounded(strategy, bits, kept)  # pyright: ignore[reportArgumentType]  (frozen, so it has a hash)


def _kept(strategy: ToeplitzStrategy, most: int | None) -> int:
    """Returns the number of coefficients to keep. Raises InputError."""
    match strategy:
        case Toeplitz():
            has = len(strategy.coefficients)
        case BandFHU():
            has = strategy.bands
        case _:
            has = most
    if has is None:
        raise InputError(
            f"mechanism.kind={strategy.kind!r} has no last coefficient; set trust.coefficients to "
            "the number that is kept, such as 32"
        )
    return has if most is None else min(has, most)


@lru_cache(maxsize=16)
def _rounded(strategy: ToeplitzStrategy, bits: int, kept: int) -> IntegerToeplitz | Identity:
    c = strategy.first_column(kept)
    with np.errstate(over="ignore"):
        relative = 2**bits * (c / c[0])
    largest = float(np.abs(relative).max())
    if not largest <= MOST_COEFFICIENT:
        raise InputError(
            f"mechanism.kind={strategy.kind!r} has a coefficient of {largest:g} steps of c_0 / "
            f"2^{bits}, and the most is 2^53; lower trust.coefficient_bits or the coefficient"
        )
    return _in_lowest_terms(tuple(round(each) for each in relative.tolist()))


def _in_lowest_terms(coefficients: tuple[int, ...]) -> IntegerToeplitz | Identity:
    whole = list(coefficients)
    while not whole[-1]:
        whole.pop()
    if len(whole) == 1:
        return Identity(kind="identity")
    divisor = math.gcd(*whole)
    return IntegerToeplitz(
        kind="integer-toeplitz", coefficients=tuple(each // divisor for each in whole)
    )
