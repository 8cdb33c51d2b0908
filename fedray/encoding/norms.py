"""Effect of rounding to whole steps on norms, and the noise of devices: figures of secure
aggregation on which devices, server and audit must agree.

Notation: d coordinates, a power of two; C the clip norm; S steps in a clip norm; Cinfl the longest
encoded update (Kairouz, Liu and Steinke 2021, Theorem 1, with beta = exp(-1/2)).
"""

import math
from fractions import Fraction


def padded(dimension: int) -> int:
    """The coordinates d that a vector of D parameters is rotated in: the least power of two from D
    on, and 4 at least, since the bounds need a few."""
    return max(4, 1 << (dimension - 1).bit_length())


def inflation(scale: int, coordinates: int) -> float:
    """Returns the factor by which an encoded update may be longer than the clip norm: Cinfl / C.

    Args:
        scale: S, steps in a clip norm.
        coordinates: d, a power of two.
    """
    return math.sqrt(1.0 + 1.0 / scale + rounding_square(coordinates) / scale**2)


def largest_square(scale: int, coordinates: int) -> int:
    """The largest squared length of an encoded update, in steps: (S Cinfl / C)^2, rounded down.

    Args:
        scale: S, steps in a clip norm.
        coordinates: d, a power of two.
    """
    # The root sqrt(2 ln(1 / alpha)) of the bound is 1, because alpha is exp(-1/2).
    return scale**2 + scale + math.floor(rounding_square(coordinates))


def largest_coordinate(scale: int, coordinates: int) -> int:
    """Cinf: the largest coordinate of an encoded update, in steps.

    Args:
        scale: S, steps in a clip norm.
        coordinates: d, a power of two.
    """
    return math.ceil(scale * min(1.0, 2.0 * math.log(coordinates) / math.sqrt(coordinates)))


def rounding_square(coordinates: int) -> float:
    """Returns the largest addition of rounding to the squared length, in squared steps, beside S.

    Args:
        coordinates: d, a power of two.
    """
    return coordinates / 4.0 + math.sqrt(coordinates) / 2.0


def device_variance(
    noise_multiplier: float, scale: int, coordinates: int, devices: int
) -> Fraction:
    """Returns the variance of the noise that each device adds to a coordinate, in squared steps, so
    that their noise together has a standard deviation of noise_multiplier times the inflated norm.

    Args:
        noise_multiplier: z.
        scale: S, steps in a clip norm.
        coordinates: d, a power of two.
        devices: number of devices that add noise.
    """
    return Fraction(noise_multiplier) ** 2 * largest_square(scale, coordinates) / devices
