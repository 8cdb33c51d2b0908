"""Clipping: the factors that scale each device's update down before it is encoded."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch

from fedray.base.arrays import Float64Array, Int64Array, Numbers
from fedray.base.compiled import njit
from fedray.runtime import devices
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
    """Effect of clipping on the updates of G devices: arrays, or tensors on a GPU."""

    factors: Numbers
    """Factors [G] float64 that make updates no longer than the clip norm; 0 if an update counts as
    zero."""
    done: Numbers
    """Effect on each update, [G], as `Clipped`."""
    norms: Numbers
    """Norms before clipping, [G] float64."""


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

    def clip(self, updates_GD: Numbers, clip: Clip) -> ClippedGroup:
        """Returns factors that limit the L2 norm of updates [G, D] to `clip.norm`.

        Layers above their own clip norms are scaled down in place. An update that is not finite
        counts as zero: a device whose training diverged contributes nothing.
        """
        if self._layer_norms is None:
            return clip_whole(updates_GD, clip)
        return _clip_layers(updates_GD, clip, self._starts, np.array(self._layer_norms))


def clip_whole(updates_GD: Numbers, clip: Clip) -> ClippedGroup:
    """Returns factors that limit the L2 norm of updates [G, D] to `clip.norm`, without layers."""
    single_layer = np.array([0, updates_GD.shape[1]])
    norms = _norms(updates_GD, single_layer)[:, 0]
    bound = clip.norm * _MARGIN
    done = _done(norms, norms > bound, clip)
    # Updates that are neither kept nor shortened keep the factor 0, and so count as zero.
    # min(1, S / |u|) of Abadi et al. 2016 (Algorithm 1), here for updates of whole devices.
    factors = _ratios(done == Clipped.SHORTENED, bound, norms) * (done <= Clipped.SHORTENED)
    return ClippedGroup(factors, done, norms)


def _clip_layers(
    updates_GD: Numbers,
    clip: Clip,
    starts: Int64Array,
    layer_norms: Float64Array,
) -> ClippedGroup:
    by_layer = _norms(updates_GD, starts)
    bounds = devices.like(layer_norms * _LAYER_MARGIN, by_layer)
    is_long = by_layer > bounds
    # `zero_above` limits the norm of the whole update, before its layers are scaled below.
    norms = (by_layer**2).sum(axis=1) ** 0.5
    done = _done(norms, is_long.any(axis=1), clip)
    # Layers no longer than S_j with the sum of S_j^2 = S^2 make an update no longer than S (McMahan
    # et al. 2018).
    ratios = _ratios(is_long & (done == Clipped.SHORTENED)[:, None], bounds, by_layer)
    for layer in range(ratios.shape[1]):
        # In float64: the only rounding is to float32, which `_LAYER_MARGIN` covers.
        updates_GD[:, starts[layer] : starts[layer + 1]] *= ratios[:, layer, None]
    # Long layers are scaled in place already, so no factor may scale them again.
    return ClippedGroup(norms**0.0 * (done <= Clipped.SHORTENED), done, norms)


def _done(norms: Numbers, is_long: Numbers, clip: Clip) -> Numbers:
    where = devices.library_of(norms).where
    done = where(is_long, int(Clipped.SHORTENED), int(Clipped.KEPT))
    done = where(norms > clip.zero_above, int(Clipped.ZEROED), done)
    # Order matters: an infinite norm exceeds any bound, and must end as not finite.
    return where(norms < math.inf, done, int(Clipped.NOT_FINITE))


def _ratios(is_shortened: Numbers, bounds: Numbers | float, norms: Numbers) -> Numbers:
    """Returns the factors that shorten norms to their bounds, and 1 for the others."""
    where = devices.library_of(norms).where
    return where(is_shortened, bounds / where(is_shortened, norms, 1.0), 1.0)


def _norms(updates_GD: Numbers, starts: Int64Array) -> Numbers:
    """Returns the L2 norms [G, L] of layers [starts[j], starts[j + 1]) of updates [G, D]."""
    if isinstance(updates_GD, np.ndarray):
        return _norms_on_cpu(updates_GD, starts)
    layers = updates_GD.split(np.diff(starts).tolist(), dim=1)
    norms = [torch.linalg.vector_norm(layer, dim=1, dtype=torch.float64) for layer in layers]
    return torch.stack(norms, dim=1)


@njit(cache=True)
def _norms_on_cpu(updates, starts):
    layers = starts.size - 1
    norms = np.empty((updates.shape[0], layers))
    for device in range(updates.shape[0]):
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
