"""Rounding to the safe side: a privacy loss is never shown smaller than it is, a protection never
larger.

Epsilon, rho, mu, sensitivity, participations and the noise that a target needs are shown by `up`;
min-sep, spans of time and the added noise by `down`. A number that a user gave is shown with every
digit (`given`). `up` and `down` round the exact binary value of the float, so that no earlier
rounding loses a digit. Differences up to `SAME` are errors of floats: 2.000000000000001 is 2.
"""

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from typing import Any

DIGITS = 5
"""Significant digits of figures in tables."""
SAME = Decimal("1e-12")
"""Relative difference up to which two figures are the same."""
_EXACT = Context(prec=1100)
"""Enough digits for every float."""


def up(value: float, decimals: int = 4) -> str:
    """Returns the least number with `decimals` decimals that is at least `value`, up to `SAME`, as
    text; `inf` and `nan` stay."""
    return _rounded(value, decimals, ROUND_CEILING)


def down(value: float, decimals: int = 4) -> str:
    """Returns the largest number with `decimals` decimals that is at most `value`, up to `SAME`, as
    text; `inf` and `nan` stay."""
    return _rounded(value, decimals, ROUND_FLOOR)


def fine(value: float | None) -> str:
    """Returns a rho, sensitivity or error as text, rounded up to six decimals; "-" if unknown."""
    return "-" if value is None else up(value, 6)


def shown_min_sep(min_sep: float | None) -> str:
    """Returns a min-sep, or a mean or quantile of several, as text, rounded down; None means that
    no device took part twice."""
    return "none (k = 1)" if min_sep is None else f"{Decimal(down(min_sep)).normalize():,f}"


def or_dash(text: Callable[[Any], str], value: Any) -> str:
    """Returns the text of a value; "-" for None."""
    return "-" if value is None else text(value)


def counted(count: int, noun: str) -> str:
    """Returns a count with its noun: `1 round`, `2,000 rounds`.

    Args:
        count: the count.
        noun: noun in the singular; the plural adds an s.
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def bytes_text(size: int) -> str:
    """Returns a size in bytes as text, in powers of 1,000: `61 MB`."""
    if size < 1000:
        return counted(size, "byte")
    units, number = iter(("kB", "MB", "GB", "TB")), size / 1000
    unit = next(units)
    # 999,999 bytes are 1.0 MB, not 1000 kB.
    while number >= 999.5 and (larger := next(units, None)):
        number, unit = number / 1000, larger
    return f"{number:.1f} {unit}" if number < 9.95 else f"{number:,.0f} {unit}"


def number_text(value: float, decimals: int = 4) -> str:
    """Returns a measured figure, rounded to `decimals`; a dash if it is not finite."""
    return f"{value:.{decimals}f}" if math.isfinite(value) else "-"


def given(value: float) -> str:
    """Returns a number as a user gave it, such as a noise multiplier, with every digit but without
    digits that floats add: 1.4000000000000001 is 1.4."""
    short = f"{value:.12g}"
    # The shorter number is never above the value.
    return short if 0 <= value - float(short) <= math.ulp(value) else exact(value)


def given_delta(delta: float) -> str:
    """Returns a delta as `given`, or the shorter number just above it, which promises less: five
    times 1e-06 is 5e-06."""
    short = f"{delta:.12g}"
    return short if 0 <= float(short) - delta <= math.ulp(delta) else given(delta)


def exact(value: float) -> str:
    """Returns a number with every digit, so that the text reads back as the same number; 7.0 is
    "7"."""
    return str(value).removesuffix(".0")


def shown_noise(noise_multiplier: float, decimals: int = 4) -> str:
    """Returns the noise multiplier of a run, for a table: every digit if they are few, else rounded
    down."""
    return min(given(noise_multiplier), down(noise_multiplier, decimals), key=len)


def needed_noise(noise_multiplier: float, decimals: int = 4) -> str:
    """Returns a noise multiplier that a target needs, for a table: every digit if they are few,
    else rounded up, so that a copied one meets the target."""
    return min(given(noise_multiplier), up(noise_multiplier, decimals), key=len)


def at_least(value: float, decimals: int) -> str:
    """Returns a figure that is used again, such as the noise of a run, as `up` but never below the
    value, not even by the rounding of floats."""
    text = up(value, decimals)
    if float(text) >= value:
        return text
    return f"{Decimal(text) + Decimal(1).scaleb(-decimals):f}"


def simulated_time(seconds: float) -> str:
    """Returns a simulated time as text, in days, or in hours if it is less than one day."""
    return f"{seconds / 86_400:.1f} days" if seconds >= 86_400 else f"{seconds / 3600:.1f} hours"


def significant(value: float | str | None) -> str:
    """Returns a figure for a table: losses, errors and needed noise are rounded up to `DIGITS`
    significant digits; "-" for None."""
    if value is None:
        return "-"
    return up(value, decimals_of(value)) if isinstance(value, float) else str(value)


def decimals_of(value: float) -> int:
    """Returns the number of decimals that show a value with `DIGITS` significant digits; at least
    0."""
    # Neither infinity nor zero has a logarithm.
    if not math.isfinite(value) or value == 0.0:
        return 0
    # 0.9999999999999999 is 1, which has one digit more in front of the point.
    return max(0, DIGITS - 1 - math.floor(math.log10(abs(value)) + float(SAME)))


def in_words(value: Any, most: int | None = None) -> str:
    """Returns a parameter of a mechanism or a scenario in words: yes, no, none, or its numbers with
    every digit.

    Args:
        value: value of a key.
        most: largest number of list values to show; None for all.
    """
    # Checked before numbers, because a bool is an int in Python.
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        named = value.items()
        return "; ".join(f"{name.replace('_', ' ')} {in_words(each, most)}" for name, each in named)
    if value is None or value in ([], ()):
        return "none"
    if isinstance(value, list | tuple):
        shown = ", ".join(in_words(each, most) for each in value[:most])
        is_cut = most is not None and len(value) > most
        return f"{shown}, ... ({len(value):,} in all)" if is_cut else shown
    return str(value)


def as_set(value: Any) -> str:
    """Returns the value of a key as a file of settings has it, true or false; others in words."""
    return str(value).lower() if isinstance(value, bool) else in_words(value)


def _rounded(value: float, decimals: int, direction: str) -> str:
    if not math.isfinite(value):
        return str(float(value))
    step, binary = Decimal(1).scaleb(-decimals), Decimal(float(value))
    rounded = binary.quantize(step, rounding=ROUND_HALF_EVEN, context=_EXACT)
    slack = _EXACT.multiply(binary.copy_abs(), SAME)
    if _EXACT.subtract(rounded, binary).copy_abs() > slack:
        rounded = binary.quantize(step, rounding=direction, context=_EXACT)
    return f"{abs(rounded) if rounded.is_zero() else rounded:f}"
