"""Clipping: the factors that scale each device's update down before it is encoded."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from numba import njit
from torch import Tensor

from fedray.base.arrays import Int64Array
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
    """Effect of clipping on the updates of G devices, on the device of the updates.

    factors: factors [G] float64 that make updates no longer than the clip norm; 0 if an update
        counts as zero.
    done: effect on each update, [G] int8, as `Clipped`.
    norms: norms before clipping, [G] float64.
    """

    factors: Tensor
    done: Tensor
    norms: Tensor


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

    def clip(self, updates_GD: Tensor, clip: Clip) -> ClippedGroup:
        """Returns factors that limit the L2 norm of updates [G, D] to `clip.norm`.

        Layers above their own clip norms are scaled down in place. An update that is not finite
        counts as zero: a device whose training diverged contributes nothing.
        """
        if self._layer_norms is None:
            return clip_whole(updates_GD, clip)
        return _clip_layers(updates_GD, clip, self._starts, self._layer_norms)


def clip_whole(updates_GD: Tensor, clip: Clip) -> ClippedGroup:
    """Returns factors that limit the L2 norm of updates [G, D] to `clip.norm`, without layers."""
    single_layer = np.array([0, updates_GD.shape[1]])
    norms = _norms(updates_GD, single_layer)[:, 0]
    bound = clip.norm * _MARGIN
    done = _done(norms, norms > bound, clip)
    # Updates that are neither kept nor shortened keep the factor 0, and so count as zero.
    factors = torch.where(done == Clipped.SHORTENED, _ratio(bound, norms), done == Clipped.KEPT)
    return ClippedGroup(factors, done, norms)


def _clip_layers(
    updates_GD: Tensor,
    clip: Clip,
    starts: Int64Array,
    layer_norms: Sequence[float],
) -> ClippedGroup:
    by_layer = _norms(updates_GD, starts)
    bounds = [norm * _LAYER_MARGIN for norm in layer_norms]
    is_long = torch.stack([norms > bound for norms, bound in zip(by_layer.T, bounds, strict=True)])
    # `zero_above` limits the norm of the whole update, before its layers are scaled below.
    norms = by_layer.square().sum(dim=1).sqrt()
    done = _done(norms, is_long.any(dim=0), clip)
    is_shortened = done == Clipped.SHORTENED
    for layer, bound in enumerate(bounds):
        part = updates_GD[:, starts[layer] : starts[layer + 1]]
        ratios = _ratio(bound, by_layer[:, layer])
        factors = torch.where(is_shortened & is_long[layer], ratios, 1.0)
        # In float64: the only rounding is to float32, which `_LAYER_MARGIN` covers.
        part.copy_(part.double().mul_(factors[:, None]))
    # Long layers are scaled in place already, so no factor may scale them again.
    return ClippedGroup(((done == Clipped.KEPT) | is_shortened).double(), done, norms)


def _ratio(bound: float, norms: Tensor) -> Tensor:
    # Torch would divide a number by multiplying it with the inverse, which has other last bits.
    return torch.full_like(norms, bound) / norms


def _done(norms: Tensor, is_long: Tensor, clip: Clip) -> Tensor:
    done = torch.where(is_long, int(Clipped.SHORTENED), int(Clipped.KEPT)).to(torch.int8)
    # Order matters: an infinite norm exceeds any bound, and must end as not finite.
    done.masked_fill_(norms > clip.zero_above, Clipped.ZEROED)
    return done.masked_fill_(~norms.isfinite(), Clipped.NOT_FINITE)


def _norms(updates_GD: Tensor, starts: Int64Array) -> Tensor:
    """Returns the L2 norms [G, L] of layers [starts[j], starts[j + 1]) of updates [G, D]."""
    if updates_GD.device.type == "cpu":
        return torch.from_numpy(_norms_on_cpu(updates_GD.numpy(), starts))
    layers = updates_GD.split(np.diff(starts).tolist(), dim=1)
    norms = [torch.linalg.vector_norm(layer, dim=1, dtype=torch.float64) for layer in layers]
    return torch.stack(norms, dim=1)


@njit(cache=True)
def _norms_on_cpu(updates, starts):
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
