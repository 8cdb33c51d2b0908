"""Clipping: by which factors each device's update is scaled down before it is encoded."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedray.scenario.clipping import Clip
from fedray.scenario.privacy import Privacy

_MARGIN = 1.0 - 2.0**-24
"""Clipped updates end this much below the clip norm, so that rounding cannot exceed it.

The norm is a float64 sum of D squares, in whatever order off by at most D 2^-53 of itself: less
than the margin up to D = 2^29."""
_LAYER_MARGIN = 1.0 - 2.0**-22
"""The same of layers, which are scaled in float32: each coordinate grows by 2^-24 of itself at
most."""


_LANES = 64
"""Sums of squares that are added side by side. One sum alone waits for every addition before the
next: 2.4 M parameters then take seven times as long. Their number decides the last bits of a norm,
so it is fixed, and not a machine's choice."""


class Clipped(IntEnum):
    """What clipping did to an update."""

    KEPT = 0
    """It was no longer than the clip norm."""
    SHORTENED = 1
    """It was scaled down to the clip norm, or one of its layers to the layer's."""
    NOT_FINITE = 2
    """It has a NaN or an infinity, and counts as zero."""
    ZEROED = 3
    """It was so long that it counts as zero."""


@dataclass(frozen=True, slots=True)
class ClippedGroup:
    """What clipping did to the updates of G devices.

    factors: [G] float64; factors[g] times the update is no longer than the clip norm. 0 where it
        counts as zero.
    done: [G], as `Clipped`.
    norms: [G] float64, before clipping.
    """

    factors: NDArray[np.float64]
    done: NDArray[np.int8]
    norms: NDArray[np.float64]


class Clipper:
    """Clips as a scenario says.

    Args:
        privacy: the scenario's table.
        shapes: of the model's parameters by name, in order; each is a layer.

    Raises:
        ScenarioError: if the table has norms for another number of layers.
    """

    def __init__(self, privacy: Privacy, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.first = privacy.clipping.clip(privacy.clip_norm)
        """How updates are clipped in the first round."""
        sizes = [math.prod(shape) for shape in shapes.values()]
        self._starts = np.cumsum([0, *sizes])
        self._layer_norms = privacy.clipping.layer_norms(list(shapes), privacy.clip_norm)

    def clip(self, updates_GD: NDArray[np.float32], clip: Clip) -> ClippedGroup:
        """What is to be done to updates [G, D] so that their L2 norm is at most `clip.norm`.

        Layers that are longer than their own clip norms are scaled down in place. An update that is
        not finite counts as zero: a device whose training diverged contributes nothing.
        """
        if self._layer_norms is None:
            return _clip_whole(updates_GD, clip)
        return _clip_layers(updates_GD, clip, self._starts, np.array(self._layer_norms))


def clip_factors(
    updates_GD: NDArray[np.float32], clip_norm: float
) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    """By which factor each update [G, D] is to be scaled, so that its L2 norm is at most clip_norm.

    Returns:
        The factors [G], from 0 to 1; and what that does to each update [G], as `Clipped`.
    """
    group = _clip_whole(updates_GD, Clip(clip_norm))
    return group.factors, group.done


def _clip_whole(updates_GD: NDArray[np.float32], clip: Clip) -> ClippedGroup:
    norms = _norms(updates_GD, np.array([0, updates_GD.shape[1]]))[:, 0]
    done = _done(norms, norms > clip.norm * _MARGIN, clip)
    # What is neither kept nor shortened keeps the factor 0, and so counts as zero.
    factors = (done == Clipped.KEPT).astype(np.float64)
    is_shortened = done == Clipped.SHORTENED
    factors[is_shortened] = clip.norm * _MARGIN / norms[is_shortened]
    return ClippedGroup(factors, done, norms)


def _clip_layers(
    updates_GD: NDArray[np.float32],
    clip: Clip,
    starts: NDArray[np.int64],
    layer_norms: NDArray[np.float64],
) -> ClippedGroup:
    by_layer, bounds = _norms(updates_GD, starts), layer_norms * _LAYER_MARGIN
    # Of the update as it was computed: layers are scaled below, and `zero_above` is about this
    # norm.
    norms = np.sqrt((by_layer**2).sum(axis=1))
    done = _done(norms, np.any(by_layer > bounds, axis=1), clip)
    _shorten_layers(updates_GD, starts, by_layer, bounds, done == Clipped.SHORTENED)
    # Layers that were too long are scaled in place by now, and no factor scales them again.
    factors = ((done == Clipped.KEPT) | (done == Clipped.SHORTENED)).astype(np.float64)
    return ClippedGroup(factors, done, norms)


def _done(norms: NDArray[np.float64], is_long: NDArray[np.bool_], clip: Clip) -> NDArray[np.int8]:
    """What is done to updates of norms [G], of which some are longer than they may be."""
    done = np.where(is_long, Clipped.SHORTENED, Clipped.KEPT).astype(np.int8)
    # Order matters: an infinite norm is above any bound, and is told as not finite below.
    done[norms > clip.zero_above] = Clipped.ZEROED
    done[~np.isfinite(norms)] = Clipped.NOT_FINITE
    return done


@njit(cache=True)
def _norms(updates, starts):
    """L2 norms [G, L] of the layers of updates [G, D]; layer j is [starts[j], starts[j + 1])."""
    devices, layers = updates.shape[0], starts.size - 1
    norms = np.empty((devices, layers))
    for device in range(devices):
        update = updates[device]
        for layer in range(layers):
            square = _sum_of_squares(update[starts[layer] : starts[layer + 1]])
            norms[device, layer] = math.sqrt(square)
    return norms


@njit(cache=True)
def _sum_of_squares(values):
    """The same bits on every machine: squares of float32 are exact in float64, fused with an
    addition or not, and the order of the additions is the code's."""
    lanes = np.zeros(_LANES)
    # The rest, which fills no whole row of lanes, is added one by one.
    in_lanes = values.size // _LANES * _LANES
    for first in range(0, in_lanes, _LANES):
        row = values[first : first + _LANES]
        for lane in range(_LANES):
            lanes[lane] += np.float64(row[lane]) ** 2
    for place in range(in_lanes, values.size):
        lanes[place - in_lanes] += np.float64(values[place]) ** 2
    total = 0.0
    for lane in range(_LANES):
        total += lanes[lane]
    return total


@njit(cache=True)
def _shorten_layers(updates, starts, norms, bounds, is_shortened):
    """Scales each layer of some updates [G, D] down to its bound, in place."""
    for device in range(updates.shape[0]):
        if not is_shortened[device]:
            continue
        for layer in range(bounds.size):
            if norms[device, layer] > bounds[layer]:
                factor = bounds[layer] / norms[device, layer]
                for coordinate in range(starts[layer], starts[layer + 1]):
                    # In float64, so that the only rounding is that to float32, which
                    # `_LAYER_MARGIN` covers.
                    scaled = np.float64(updates[device, coordinate]) * factor
                    updates[device, coordinate] = np.float32(scaled)
