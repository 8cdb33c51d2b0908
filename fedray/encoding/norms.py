"""Norms of rounded updates, and the variance of devices' noise: the figures of secure aggregation
on which devices, server and audit must agree.

Notation: d coordinates, a power of two; C the clip norm; S (`scale`) steps in a clip norm; Cinfl
the largest norm of an encoded update (Kairouz, Liu and Steinke 2021, Theorem 1, with beta =
exp(-1/2)).
"""

import math
from fractions import Fraction


def padded(dimension: int) -> int:
    """Returns d, the number of coordinates of a rotated vector of D parameters: the least power of
    two from D on, and at least 4, which the bounds need."""
    return max(4, 1 << (dimension - 1).bit_length())


def inflation(scale: int, coordinates: int) -> float:
    """Returns Cinfl / C, the largest norm of an encoded update in clip norms."""
    return math.sqrt(1.0 + 1.0 / scale + rounding_square(coordinates) / scale**2)


def largest_square(scale: int, coordinates: int) -> int:
    """Returns the largest squared norm of an encoded update, in steps: (S Cinfl / C)^2, rounded
    down."""
    # The factor sqrt(2 ln(1 / alpha)) of the bound is 1, because alpha is exp(-1/2).
    return scale**2 + scale + math.floor(rounding_square(coordinates))


def largest_coordinate(scale: int, coordinates: int) -> int:
    """Returns Cinf, the largest coordinate of an encoded update, in steps."""
    return math.ceil(scale * min(1.0, 2.0 * math.log(coordinates) / math.sqrt(coordinates)))


def rounding_square(coordinates: int) -> float:
    """Returns the largest increase of the squared norm by rounding, in squared steps, without its
    term S."""
    return coordinates / 4.0 + math.sqrt(coordinates) / 2.0


def device_variance(
    noise_multiplier: float, scale: int, coordinates: int, devices: int
) -> Fraction:
    """Returns the variance of the noise that each of `devices` devices adds to a coordinate, in
    squared steps. Their total has a standard deviation of noise_multiplier times Cinfl."""
    return Fraction(noise_multiplier) ** 2 * largest_square(scale, coordinates) / devices
