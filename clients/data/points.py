"""Synthetic points around a centre of each device: the data of the quadratic task.

With `mean` m, a device's centre is c = m + between * normal, and its points are c + within *
normal. The model w of least expected loss 0.5 |w - x|^2, over all possible devices, is m, and its
loss 0.5 dimension (between^2 + within^2). For the devices of one population it is the average of
their `centers`, and for participating devices the average weighted by participation.
"""

import numpy as np

from fedray.base.arrays import Float64Array
from fedray.base.compiled import njit
from fedray.base.rng import Stream, stream_generator, stream_key
from fedray.scenario import Scenario
from fedray.scenario.data import PointsData
from .drawn import DrawnSource, fill_with_normals
from .source import Examples, Field, Ids, Integers


class Points(DrawnSource):
    """Synthetic points around a centre of each device."""

    def __init__(self, scenario: Scenario, table: PointsData) -> None:
        inputs = Field(shape=(table.dimension,), kind="real")
        least_loss = 0.5 * table.dimension * (table.between**2 + table.within**2)
        # Another task of these points has another loss.
        is_quadratic = scenario.training.task.kind == "quadratic"
        super().__init__(scenario, {"inputs": inputs}, {"loss": least_loss} if is_quadratic else {})
        seed = scenario.training_seed
        self._key = stream_key(seed, Stream.EXAMPLES)
        self._between = table.between
        self._within = table.within
        generator = stream_generator(seed, Stream.EXAMPLES)
        self.mean: Float64Array = generator.standard_normal(table.dimension)
        """Mean of all points, [dimension], which is the optimum of the quadratic task."""

    def centers(self, device_ids: Ids) -> Float64Array:
        """Returns the means of the points of devices [G], [G, dimension]."""
        normals = _normals_of(self._key, device_ids, self.mean.size)
        return self.mean + self._between * normals

    def examples(self, device_ids: Ids, positions: Integers) -> Examples:
        centers = self.centers(device_ids)
        points = _points_of(self._key, device_ids, positions, centers, self._within)
        return {"inputs": points}


@njit(cache=True, nogil=True)
def _normals_of(key, device_ids, size):
    """Addresses: (device, 0, from 1 on)."""
    found = np.empty((device_ids.size, size))
    for row in range(device_ids.size):
        fill_with_normals(found[row], key, device_ids[row], 0)
    return found


@njit(cache=True, nogil=True)
def _points_of(key, device_ids, positions, centers, within):
    """Addresses: (device, 1 + position, from 1 on)."""
    size = centers.shape[1]
    points = np.empty((*positions.shape, size), np.float32)
    noise = np.empty(size)
    for row in range(device_ids.size):
        for column in range(positions.shape[1]):
            # Address 0 of a device belongs to its centre.
            example = 1 + positions[row, column]
            fill_with_normals(noise, key, device_ids[row], example)
            points[row, column] = centers[row] + within * noise
    return points
