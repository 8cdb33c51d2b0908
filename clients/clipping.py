"""Clipping: the factors that scale each device's update down before it is encoded."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedray.base.arrays import BoolArray, Float32Array, Float64Array, Int64Array
from fedray.scenario.clipping import Clip
from fedray.scenario.privacy import Privacy

# Clipped updates end this much below the clip norm, so that rounding cannot exceed it. The norm is
# a float64 sum of D squares, whose relative error is at most D 2^-53 in any order: less than the
# margin up to D = 2^29.
_MARGIN = 1.0 - 2.0**-24
# Margin of layers, which are scaled in float32: each coordinate grows by at most 2^-24 of itself.
_LAYER_MARGIN = 1.0 - 2.0**-22
# Parallel sums of squares. A single sum would wait for every addition: 2.4 M parameters then take
# seven times as long. The number determines the last bits of a norm, so no machine may choose it.
_LANES = 64


class Clipped(IntEnum):
    """Effect of clipping on an update."""

    KEPT = 0
    """It was no longer than the clip norm."""
    SHORTENED = 1
    """It was scaled down to the clip norm, or one of its layers to the layer's norm."""
    NOT_FINITE = 2
    """It has a NaN or an infinity, and counts as zero."""
    ZEROED = 3
    """It was too long to be shortened, and counts as zero."""


@dataclass(frozen=True, slots=True)
class ClippedGroup:
    """Effect of clipping on the updates of G devices.

    factors: factors [G] float64 that make updates no longer than the clip norm; 0 if an update
        counts as zero.
    done: effect on each update, [G], as `Clipped`.
    norms: norms before clipping, [G] float64.
    """

    factors: Float64Array
    done: NDArray[np.int8]
    norms: Float64Array


class Clipper:
    """Clips by the rule of a scenario.

    Args:
        privacy: table of the scenario.
        shapes: shapes of the model's parameters by name, in order; each is a layer.

    Raises:
        ScenarioError: the table has norms for another number of layers.
    """

    def __init__(self, privacy: Privacy, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.first = privacy.clipping.clip(privacy.clip_norm)
        """Clipping of the first round."""
        sizes = [math.prod(shape) for shape in shapes.values()]
        self._starts = np.cumsum([0, *sizes])
        self._layer_norms = privacy.clipping.layer_norms(list(shapes), privacy.clip_norm)

    def clip(self, updates_GD: Float32Array, clip: Clip) -> ClippedGroup:
        """Returns factors that limit the L2 norm of updates [G, D] to `clip.norm`.

        Layers above their own clip norms are scaled down in place. An update that is not finite
        counts as zero: a device whose training diverged contributes nothing.
        """
        if self._layer_norms is None:
            return clip_whole(updates_GD, clip)
        return _clip_layers(updates_GD, clip, self._starts, np.array(self._layer_norms))


def clip_whole(updates_GD: Float32Array, clip: Clip) -> ClippedGroup:
    """Returns factors that limit the L2 norm of updates [G, D] to `clip.norm`, without layers."""
    single_layer = np.array([0, updates_GD.shape[1]])
    norms = _norms(updates_GD, single_layer)[:, 0]
    bound = clip.norm * _MARGIN
    done = _done(norms, norms > bound, clip)
    # Updates that are neither kept nor shortened keep the factor 0, and so count as zero.
    factors = (done == Clipped.KEPT).astype(np.float64)
    is_shortened = done == Clipped.SHORTENED
    factors[is_shortened] = bound / norms[is_shortened]
    return ClippedGroup(factors, done, norms)


def _clip_layers(
    updates_GD: Float32Array,
    clip: Clip,
    starts: Int64Array,
    layer_norms: Float64Array,
) -> ClippedGroup:
    by_layer = _norms(updates_GD, starts)
    bounds = layer_norms * _LAYER_MARGIN
    # `zero_above` limits the norm of the whole update, before its layers are scaled below.
    norms = np.sqrt((by_layer**2).sum(axis=1))
    done = _done(norms, np.any(by_layer > bounds, axis=1), clip)
    is_shortened = done == Clipped.SHORTENED
    _shorten_layers(updates_GD, starts, by_layer, bounds, is_shortened)
    # Long layers are scaled in place already, so no factor may scale them again.
    factors = ((done == Clipped.KEPT) | is_shortened).astype(np.float64)
    return ClippedGroup(factors, done, norms)


def _done(norms: Float64Array, is_long: BoolArray, clip: Clip) -> NDArray[np.int8]:
    done = np.where(is_long, Clipped.SHORTENED, Clipped.KEPT).astype(np.int8)
    # Order matters: an infinite norm exceeds any bound, and must end as not finite.
    done[norms > clip.zero_above] = Clipped.ZEROED
    done[~np.isfinite(norms)] = Clipped.NOT_FINITE
    return done


@njit(cache=True)
def _norms(updates, starts):
    """Returns the L2 norms [G, L] of layers [starts[j], starts[j + 1]) of updates [G, D]."""
    devices = updates.shape[0]
    layers = starts.size - 1
    norms = np.empty((devices, layers))
    for device in range(devices):
        update = updates[device]
        for layer in range(layers):
            square = _sum_of_squares(update[starts[layer] : starts[layer + 1]])
            norms[device, layer] = math.sqrt(square)
    return norms


@njit(cache=True)
def _sum_of_squares(values):
    # The same bits on every machine: squares of float32 are exact in float64, fused with an
    # addition or not, and the code fixes the order of additions.
    lanes = np.zeros(_LANES)
    in_lanes = values.size // _LANES * _LANES
    for first in range(0, in_lanes, _LANES):
        row = values[first : first + _LANES]
        for lane in range(_LANES):
            lanes[lane] += np.float64(row[lane]) ** 2
    # The rest does not fill a row of lanes.
    for place in range(in_lanes, values.size):
        lanes[place - in_lanes] += np.float64(values[place]) ** 2
    total = 0.0
    for lane in range(_LANES):
        total += lanes[lane]
    return total


@njit(cache=True)
def _shorten_layers(updates, starts, norms, bounds, is_shortened):
    """Scales each long layer of the updates [G, D] to be shortened down to its bound, in place."""
    for device in range(updates.shape[0]):
        if not is_shortened[device]:
            continue
        for layer in range(bounds.size):
            if norms[device, layer] > bounds[layer]:
                factor = bounds[layer] / norms[device, layer]
                for coordinate in range(starts[layer], starts[layer + 1]):
                    # In float64: the only rounding is to float32, which `_LAYER_MARGIN` covers.
                    scaled = np.float64(updates[device, coordinate]) * factor
                    updates[device, coordinate] = np.float32(scaled)
