"""Synthetic classes: the inputs of a class are Gaussian around the mean of the class.

With no more classes than inputs, the means are orthogonal vectors of length separation / sqrt(2)
in a random rotation, so that any two are `separation` apart. With more classes they are random
vectors of that length, of which any two are about as far apart. The noise is standard normal. A
device draws its shares of the classes from a Dirichlet if the table has a `skew`; over all devices
the classes are equally frequent.

The best accuracy of one model for all devices is the accuracy of the nearest mean. For orthogonal
means it is the probability that N(a, 1), where a = separation / sqrt(2), exceeds classes - 1
independent standard normals: the integral of phi(t - a) Phi(t)^(classes - 1) over t.
"""

import math

import numpy as np
from scipy import integrate, special

from fedray.base.arrays import Float32Array
from fedray.base.compiled import njit
from fedray.base.rng import Stream, draw, stream_generator, stream_key, uniform
from fedray.scenario import Scenario
from fedray.scenario.data import ClassesData
from .drawn import DrawnSource, fill_with_gammas, fill_with_normals
from .source import Examples, Field, Ids, Integers


class Classes(DrawnSource):
    """Examples of synthetic classes."""

    def __init__(self, scenario: Scenario, table: ClassesData) -> None:
        fields = {
            "inputs": Field(shape=table.shape, kind="real"),
            "targets": Field(shape=(), kind="whole", values=table.classes),
        }
        optimum: dict[str, float] = {}
        # Random directions are not orthogonal, and have no optimum in closed form.
        if table.classes <= math.prod(table.shape):
            optimum["accuracy"] = best_accuracy(table.separation, table.classes)
        super().__init__(scenario, fields, optimum)
        seed = scenario.training_seed
        self._key = stream_key(seed, Stream.EXAMPLES)
        self._classes = table.classes
        self._skew = 0.0 if table.skew is None else table.skew
        self.means = _means(table, stream_generator(seed, Stream.EXAMPLES))
        """Mean inputs of each class, [classes, inputs]."""

    def examples(self, device_ids: Ids, positions: Integers) -> Examples:
        targets = _classes_of(self._key, device_ids, positions, self._classes, self._skew)
        inputs = _inputs_of(self._key, device_ids, positions, targets, self.means)
        shape = (*positions.shape, *self.fields["inputs"].shape)
        return {"inputs": inputs.reshape(shape), "targets": targets}


def best_accuracy(separation: float, classes: int) -> float:
    """Returns the accuracy of the nearest of orthogonal means, by quadrature to about 1e-10.

    The head of this file has the integral.

    Args:
        separation: distance of two means, in standard deviations.
        classes: number of equally frequent classes.
    """
    # The score of the true class is N(lead, 1), the scores of the others are N(0, 1).
    lead = separation / math.sqrt(2.0)

    def integrand(t: float) -> float:
        log_below = (classes - 1) * float(special.log_ndtr(t))
        bell = math.exp(-0.5 * (t - lead) ** 2)
        return math.exp(log_below) * bell / math.sqrt(2.0 * math.pi)

    # Beyond 12 standard deviations the density is below 1e-31.
    low, high = lead - 12.0, lead + 12.0
    accuracy, *_ = integrate.quad(integrand, low, high, epsabs=1e-12, limit=400)
    return float(accuracy)


def _means(table: ClassesData, generator: np.random.Generator) -> Float32Array:
    """Draws the means of the classes, [classes, inputs]."""
    size = math.prod(table.shape)
    drawn = generator.standard_normal((size, table.classes))
    if table.classes <= size:
        directions, triangle = np.linalg.qr(drawn)
        # Independent of the signs that QR chooses.
        directions *= np.sign(np.diag(triangle))
    else:
        directions = drawn / np.linalg.norm(drawn, axis=0)
    # Orthogonal vectors of this length are `separation` apart.
    length = table.separation / math.sqrt(2.0)
    return (length * directions.T).astype(np.float32)


@njit(cache=True, nogil=True)
def _classes_of(key, device_ids, positions, classes, skew):
    """Addresses: (device, 0, b) for the shares, (device, 1 + position, 0) for the class."""
    found = np.empty(positions.shape, np.int64)
    edges = np.arange(1, classes + 1) / classes
    shares = np.empty(classes)
    for row in range(device_ids.size):
        device = device_ids[row]
        if skew > 0.0:
            fill_with_gammas(shares, skew, key, device)
            total = shares.sum()
            if total > 0.0:
                edges = np.cumsum(shares / total)
            else:
                # All shares underflowed: a single class has all examples.
                w0, _, _, _ = draw(key, device, 0, 1000 * classes)
                only = min(classes - 1, int(uniform(w0) * classes))
                edges = (np.arange(classes) >= only).astype(np.float64)
        for column in range(positions.shape[1]):
            w0, _, _, _ = draw(key, device, 1 + positions[row, column], 0)
            chosen = np.searchsorted(edges, uniform(w0))
            # The last edge may be rounded to less than 1.
            found[row, column] = min(classes - 1, chosen)
    return found


@njit(cache=True, nogil=True)
def _inputs_of(key, device_ids, positions, targets, means):
    """Addresses: (device, 1 + position, from 1 on)."""
    inputs = np.empty((*positions.shape, means.shape[1]), np.float32)
    for row in range(device_ids.size):
        for column in range(positions.shape[1]):
            values = inputs[row, column]
            example = 1 + positions[row, column]
            fill_with_normals(values, key, device_ids[row], example)
            values += means[targets[row, column]]
    return inputs
