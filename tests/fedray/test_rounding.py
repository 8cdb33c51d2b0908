"""What is shown of a privacy loss is never smaller than the loss."""

import math
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from fedray.base import rounding
from fedray.base.rounding import as_set, counted, down, in_words, up

SAME = Fraction(rounding.SAME)


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 12))
def test_what_is_shown_is_on_the_safe_side_and_has_no_digit_more_than_needed(
    value: float, decimals: int
) -> None:
    """Up to a relative 1e-12, within which two floats are one number: then the nearest is shown."""
    step, true = Fraction(1, 10**decimals), Fraction(value)
    slack = SAME * abs(true)
    for above in (
        Fraction(up(value, decimals)) - true,
        true - Fraction(down(value, decimals)),
    ):
        assert -slack <= above < step
        assert above <= slack or above - step < -slack, "a step less would do"


@given(st.integers(-(10**6), 10**6).filter(bool), st.integers(0, 6), st.floats(-9.9e-13, 9.9e-13))
def test_an_error_of_floats_adds_no_digit(number: int, decimals: int, error: float) -> None:
    short = f"{number / 10**decimals:.{decimals}f}"
    value = float(short) * (1 + error)
    assert up(value, decimals) == down(value, decimals) == short


@given(st.floats(1e-3, 1e6), st.integers(0, 6), st.floats(2e-12, 1e-3))
def test_a_difference_that_no_float_makes_by_itself_is_shown(
    value: float, decimals: int, more: float
) -> None:
    short = float(up(value, decimals))
    assert Fraction(up(short * (1 + more), decimals)) > Fraction(f"{short:.{decimals}f}")
    assert Fraction(down(short * (1 - more), decimals)) < Fraction(f"{short:.{decimals}f}")


def test_a_sensitivity_of_two_is_two() -> None:
    value = 2.000000000000001
    assert rounding.fine(value) == "2.000000"
    assert rounding.significant(value) == "2.0000"
    assert rounding.significant(0.9999999999999999) == "1.0000"
    assert rounding.needed_noise(value) == "2.0000"
    assert rounding.fine(2.00000001) == "2.000001"
    assert up(1e-15, 6) == "0.000001", "something is more than nothing"


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
    assert -SAME * z <= z - float(rounding.shown_noise(z)) < 1e-4


@given(st.floats(0.01, 1e6))
def test_a_needed_noise_that_is_copied_from_a_table_is_enough(z: float) -> None:
    assert -SAME * z - math.ulp(z) <= float(rounding.needed_noise(z)) - z < 1e-4


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
    assert [as_set(value) for value in (True, False, None, 0.1)] == ["true", "false", "none", "0.1"]
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


def test_noise_that_a_run_takes_is_never_below_what_a_target_needs() -> None:
    """Of rho 49.99999999999999, the noise multiplier is the float above 0.1."""
    assert rounding.at_least(0.10000000000000002, 6) == "0.100001"
    assert rounding.at_least(0.1, 6) == "0.100000"
