"""What is shown of a privacy loss is never smaller than the loss."""

import math
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from fedray.base import rounding
from fedray.base.rounding import counted, down, in_words, up


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


@given(st.floats(0.01, 1e6))
def test_noise_is_never_shown_above_what_it_is(z: float) -> None:
    assert float(rounding.exact(z)) == z
    assert 0 <= z - float(rounding.given(z)) <= math.ulp(z)
    assert 0 <= z - float(rounding.shown_noise(z)) < 1e-4


@given(st.floats(0.01, 1e6))
def test_a_needed_noise_that_is_copied_from_a_table_is_enough(z: float) -> None:
    assert -math.ulp(z) <= float(rounding.needed_noise(z)) - z < 1e-4


def test_noise_multipliers_are_short_where_they_can_be() -> None:
    numbers = (7.0, 1300 * 7 / 6500, 0.1, 910, 4.08248290463863)
    assert [rounding.given(z) for z in numbers] == ["7", "1.4", "0.1", "910", "4.08248290463863"]
    assert [rounding.shown_noise(z) for z in numbers] == ["7", "1.4", "0.1", "910", "4.0824"]


def test_a_mean_of_min_seps_is_rounded_down() -> None:
    values = (None, 910, 1200.0, 1227 + 2 / 3)
    shown = [rounding.shown_min_sep(each) for each in values]
    assert shown == ["none (k = 1)", "910", "1,200", "1,227.6666"]


def test_counts_have_their_plural_and_parameters_are_told_in_words() -> None:
    assert [counted(n, "round") for n in (0, 1, 2000)] == ["0 rounds", "1 round", "2,000 rounds"]
    assert [in_words(value) for value in (True, False, None, [], 0, 0.1)] == [
        *("yes", "no", "none", "none", "0", "0.1")
    ]
    assert in_words([3, 2, 1], most=2) == "3, 2, ... (3 in all)"
    assert in_words({"kind": "bisr", "bands_of_C": [1, 2]}) == "kind bisr; bands of C 1, 2"


def test_a_delta_is_printed_without_digits_that_floats_add() -> None:
    deltas = (5 * 1e-6, 1e-10, 0.1 + 0.2, 1 / 3)
    assert 5 * 1e-6 < 5e-6
    assert [rounding.given_delta(each) for each in deltas] == [
        "5e-06",
        "1e-10",
        "0.3",
        "0.3333333333333333",
    ]
