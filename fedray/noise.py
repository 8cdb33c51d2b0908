"""Correlated noise for a user's own training loop, and its accounting.

It draws the same rows as simulated trainings (server/learning/noise.py).
"""

import json
import math
import secrets
from collections.abc import Iterable
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedray.base.errors import InputError
from fedray.mechanisms.accounting.limits import check_noise_multiplier
from fedray.mechanisms.figures import Figures, mechanism_figures
from fedray.mechanisms.files import read_strategy
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.strategy import Strategy
from fedray.runtime.devices import kind_of_device
from fedray.server.learning.noise import NoiseStream, noise_stream

SEED_BITS = 128
"""Bits of a seed drawn from the operating system, equal to the key size of draws on a CPU."""


class CorrelatedNoise:
    """Noise of a matrix mechanism for a training loop that sums clipped contributions itself.

    Step t adds row t of z * clip_norm * C^-1 Z, where z is the noise multiplier and Z has standard
    normal entries (Choquette-Choo et al. 2023, "Multi-epoch matrix factorization mechanisms for
    private machine learning", section 1; for a tree: its decoder times Z). All steps together
    release a function of C X + z * clip_norm * N(0, I), whose privacy is `rho` and `epsilon`. Every
    row is used once.

    The noise protects only while the seed is secret, because the seed allows subtracting it.
    `state_dict` contains the seed.

    Args:
        strategy: matrix C of the mechanism, or the path of a file for `read_strategy`.
        steps: planned number of steps. Fewer may be taken; more have no noise.
        parameters: trained tensors [..], in the order of their gradients, on one device, a CPU or a
            CUDA GPU. Only their shapes and device are read.
        noise_multiplier: z, standard deviation of the noise in units of the clip norm.
        clip_norm: largest L2 norm, over all parameters together, of the contribution of one unit of
            privacy (an example, or a user) to the sum of one step.
        seed: secret key of the draws, a whole number from 0; None draws one from the operating
            system. Each training must have its own.

    Raises:
        InputError: an argument is out of range, the strategy has fewer steps, or its noise grows
            beyond the precision of float32.
    """

    def __init__(
        self,
        strategy: Strategy | str | Path,
        steps: int,
        parameters: Iterable[Tensor],
        *,
        noise_multiplier: float,
        clip_norm: float,
        seed: int | None = None,
    ) -> None:
        check_noise_multiplier(noise_multiplier)
        _check_positive("clip_norm", clip_norm)
        if not isinstance(strategy, Strategy):
            strategy = read_strategy(strategy)
        strategy.check_rounds(steps)
        strategy.check_noise_growth(steps)
        self._strategy = strategy
        self._steps = steps
        self._noise_multiplier = noise_multiplier
        self._clip_norm = clip_norm
        tensors = list(parameters)
        self._shapes = [tuple(each.shape) for each in tensors]
        self._sizes = [each.numel() for each in tensors]
        self._device = _device_of(tensors)
        self._seed = secrets.randbits(SEED_BITS) if seed is None else _whole(seed)
        self._stream = self._stream_of(self._seed)

    def __repr__(self) -> str:
        return (
            f"<CorrelatedNoise of {self._strategy.kind}, {sum(self._sizes):,} parameters, noise "
            f"multiplier {self._noise_multiplier:g}, clip norm {self._clip_norm:g}: step "
            f"{self.next_step:,} of {self._steps:,}>"
        )

    @property
    def next_step(self) -> int:
        """Number of the next step, from 0: the number of rows used so far."""
        return self._stream.next_round

    @property
    def clip_norm(self) -> float:
        """Largest L2 norm of the contribution of one unit of privacy to the sum of one step."""
        return self._clip_norm

    @property
    def deviation(self) -> float:
        """noise_multiplier * clip_norm, the scale of the noise on the *sum* of one step."""
        return self._noise_multiplier * self._clip_norm

    @torch.no_grad()
    def add_(self, gradients: Iterable[Tensor | None], *, divisor: float = 1.0) -> None:
        """Adds the noise of the next step to gradients, in place.

        Every call is a step. If several workers compute a step, add the noise once, to their total.

        Args:
            gradients: sums of clipped contributions, one per parameter and of its shape, in float32
                or float64. Coarser sums are rounded before the noise is added, by as much as the
                noise should hide.
            divisor: number by which the sums were already divided, such as the expected batch size
                if gradients are means. It must not depend on private data.

        Raises:
            InputError: a gradient is missing, has another shape or is coarser than float32, or all
                planned steps were taken. Nothing is added then, and the step does not count.
        """
        _check_positive("divisor", divisor)
        # Checks come first, because a row is used only once.
        targets = self._checked(gradients)
        row = self._stream.next()
        for target, part in zip(targets, row.split(self._sizes), strict=True):
            target.add_(part.view(target.shape), alpha=self.deviation / divisor)

    def next_noise(self) -> list[Tensor]:
        """Returns the noise on the sum of the next step: a float32 tensor for each parameter, of
        its shape and on its device.

        Every call is a step, as for `add_`.

        Raises:
            InputError: all planned steps were taken.
        """
        # A new tensor, because the next step overwrites the row.
        noise = torch.mul(self._stream.next(), self.deviation)
        parts = noise.split(self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def figures(self, participation: MinSep, delta: float) -> Figures:
        """Returns errors, sensitivity and privacy of all planned steps. They also hold for fewer
        steps.

        Args:
            participation: steps to which one unit of privacy may contribute, over all `steps`. For
                passes over the data in a fixed order, min_sep is the number of steps of a pass, and
                max_participations the number of passes. The training loop must enforce it.
            delta: delta of epsilon, from 1e-30 to below 1.

        Raises:
            InputError: the participation is not over the planned steps, delta is out of range, or
                no theorem gives the sensitivity (`SensitivityUnknown`).
        """
        if participation.rounds != self._steps:
            raise InputError.of(
                "participation.rounds",
                participation.rounds,
                f"must be steps={self._steps}, the planned number",
                f"give MinSep(rounds={self._steps}, ...)",
            )
        return mechanism_figures(self._strategy, participation, self._noise_multiplier, delta)

    def rho(self, participation: MinSep) -> float:
        """Returns rho of zero-concentrated DP of all planned steps, under zero-out of one unit:
        exact if the sensitivity is, else an upper bound. See `figures`."""
        # rho does not depend on delta.
        rho = self.figures(participation, delta=0.5).rho
        assert rho is not None
        return rho

    def epsilon(self, participation: MinSep, delta: float) -> float:
        """Returns epsilon at `delta` of all planned steps: exact if the sensitivity is, else an
        upper bound. See `figures`."""
        epsilon = self.figures(participation, delta).epsilon
        assert epsilon is not None
        return epsilon

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint: numbers, strings and tensors on the CPU, which
        `torch.load(..., weights_only=True)` reads.

        Keep it secret, because it contains the seed.
        """
        state = self._stream.state()
        return {
            **self._setting(),
            "seed": self._seed,
            "next_step": self.next_step,
            "buffers": torch.from_numpy(state["buffers"]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a state, with the same noise for the same steps.

        Steps taken after the state was saved get the same rows again. If their releases were seen,
        they must release the same values again: the difference of two releases with the same row of
        noise has no noise.

        Args:
            state: state of a `CorrelatedNoise` with the same arguments, on the same kind of device.

        Raises:
            InputError: the state has other arguments, or this object already gave noise.
        """
        if self.next_step:
            raise InputError.of(
                "next_step",
                self.next_step,
                "is not 0: this object already gave noise",
                "load the state into a new CorrelatedNoise",
            )
        setting = self._setting()
        missing = {*setting, "seed", "next_step", "buffers"} - state.keys()
        if missing:
            raise InputError(
                f"the state has no {', '.join(sorted(missing))}; load a result of state_dict"
            )
        for name, own in setting.items():
            if state[name] != own:
                raise InputError(
                    f"the state is of {name}={state[name]!r}, and this noise has {own!r}; give the "
                    "arguments of that training"
                )
        # Seed and position are loaded together: the seed with position 0 would repeat rows.
        seed = _whole(state["seed"])
        stream = self._stream_of(seed)
        buffers = state["buffers"].cpu().numpy()
        stream.load({"buffers": buffers, "next_round": state["next_step"]})
        self._seed, self._stream = seed, stream

    def _stream_of(self, seed: int) -> NoiseStream:
        return noise_stream(self._strategy, seed, sum(self._sizes), self._device, self._steps)

    def _setting(self) -> dict[str, Any]:
        """Returns everything except the seed that determines the noise."""
        strategy = {"kind": self._strategy.kind, **self._strategy.parameters}
        return {
            "strategy": json.dumps(strategy, sort_keys=True),
            "steps": self._steps,
            "shapes": [list(shape) for shape in self._shapes],
            "noise_multiplier": self._noise_multiplier,
            "clip_norm": self._clip_norm,
            "device": kind_of_device(self._device),
        }

    def _checked(self, gradients: Iterable[Tensor | None]) -> list[Tensor]:
        """Returns the gradients if noise can be added to all of them. Raises InputError."""
        targets = list(gradients)
        if len(targets) != len(self._shapes):
            raise InputError(
                f"{len(targets)} gradients for {len(self._shapes)} parameters; give one for each, "
                "in their order"
            )
        # All are checked before any is changed, so that an error leaves them unchanged.
        checked = []
        for place, (target, shape) in enumerate(zip(targets, self._shapes, strict=True)):
            if target is None:
                raise InputError(
                    f"gradient {place} is None: a parameter without noise would not be protected; "
                    "give zeros, or leave out parameters that are not trained"
                )
            # The sum of a million bfloat16 numbers is rounded by more than the clip norm.
            is_fine = target.dtype in (torch.float32, torch.float64)
            if tuple(target.shape) != shape or not is_fine:
                raise InputError(
                    f"gradient {place} is {target.dtype} of shape {tuple(target.shape)}, and must "
                    f"be float32 or float64 of its parameter's shape, {shape}; sum clipped "
                    "gradients in float32, and convert the sum only after the noise is added"
                )
            if target.device != self._device:
                raise InputError(
                    f"gradient {place} is on {str(target.device)!r} and this noise on "
                    f"{str(self._device)!r}; move it there"
                )
            checked.append(target)
        return checked


def _whole(seed: int) -> int:
    """Returns the seed as an int. Raises InputError."""
    # Keys are made from the seed's digits, so 3, 3.0 and True would be three seeds.
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise InputError.of(
            "seed", seed, "must be a whole number from 0", "leave it out to draw a secret one"
        )
    return int(seed)


def _device_of(tensors: list[Tensor]) -> torch.device:
    """Returns the device of the tensors. Raises InputError."""
    devices = {each.device for each in tensors}
    if len(devices) != 1 or not sum(each.numel() for each in tensors):
        where = ", ".join(sorted(map(str, devices))) or "none"
        raise InputError(
            f"parameters: {len(tensors)} tensors on devices {where}; give at least one number to "
            "train, all on one device"
        )
    (device,) = devices
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"parameters are on {str(device)!r}; use 'cpu' or 'cuda'")
    return device


def _check_positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise InputError.of(name, value, "must be positive and finite")
