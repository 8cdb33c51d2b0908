"""What is shown of a privacy loss is never smaller than the loss."""

import math
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from fedray.rounding import down, up


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 12))
def test_what_is_shown_is_on_the_safe_side_by_less_than_one_step(
    value: float, decimals: int
) -> None:
    step = Fraction(1, 10**decimals)
    assert 0 <= Fraction(up(value, decimals)) - Fraction(value) < step
    assert 0 <= Fraction(value) - Fraction(down(value, decimals)) < step


def test_examples_that_were_once_shown_too_small() -> None:
    assert up(5.21002, 3) == "5.211"
    assert up(6.40001) == "6.4001"
    assert up(2.0) == "2.0000"
    assert down(0.71999, 2) == "0.71"
    assert up(-0.00001, 2) == "0.00"
    assert (up(math.inf), down(-math.inf)) == ("inf", "-inf")
