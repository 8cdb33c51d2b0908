"""Addressed normals by the row, for synthetic data."""

from numba import njit

from fedray.base.rng import draw, normal


@njit
def fill_with_normals(values, key, device, a):
    """Fills a vector [N] with standard normals, those of the addresses (device, a, 1 + n // 4).

    Args:
        values: [N], any type of real.
        key: of the stream.
        device: the device's id.
        a: the first part of the address within the device.
    """
    for place in range(0, values.size, 4):
        words = draw(key, device, a, 1 + place // 4)
        for offset in range(min(4, values.size - place)):
            values[place + offset] = normal(words[offset])
