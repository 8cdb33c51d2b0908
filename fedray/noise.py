"""Correlated noise for a training loop of the user's own, and its accounting.

Rows, draws and recurrences are those of simulated trainings (server/learning/noise.py).
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
from fedray.server.learning.draws import kind_of_device
from fedray.server.learning.noise import NoiseStream, noise_stream

SEED_BITS = 128
"""Bits of a seed that is drawn here, as many as the keys of draws on a CPU have."""


class CorrelatedNoise:
    """Noise of a matrix mechanism for a loop that sums clipped contributions itself.

    Step t adds row t of z * clip_norm * C^-1 Z, where z is the noise multiplier and Z has standard
    normal entries (Choquette-Choo et al. 2023, "Multi-epoch matrix factorization mechanisms for
    private machine learning", section 1; for a tree: of its decoder times Z). The releases of all
    steps are then a function of C X + z * clip_norm * N(0, I), with privacy `rho` and `epsilon`.
    Every row is given once.

    The noise protects only as long as the seed, which `state_dict` contains, stays secret: a holder
    of the seed can subtract the noise.

    Args:
        strategy: the mechanism's matrix C, or the path of a file that `read_strategy` reads.
        steps: planned steps; there is no noise for more. Fewer may be taken.
        parameters: trained tensors [..], in the order of their gradients. Only shapes and devices
            are read; all are on one device, a CPU or a CUDA GPU.
        noise_multiplier: z, the noise's standard deviation in units of the clip norm.
        clip_norm: largest L2 norm, over all parameters together, of the contribution of one unit of
            privacy (an example, or a user) to the sum of one step.
        seed: secret key of the draws, a whole number from 0; None draws one from the operating
            system. Two trainings must never have the same.

    Raises:
        InputError: a value is impossible, the strategy has fewer steps, or its noise grows beyond
            float32.
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
        strategy = _read(strategy)
        strategy.check_rounds(steps)
        strategy.check_noise_growth(steps)
        self._strategy, self._steps = strategy, steps
        self._noise_multiplier, self._clip_norm = noise_multiplier, clip_norm
        tensors = _tensors(parameters)
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
        """The step whose noise comes next, counted from 0; the number of rows that were given."""
        return self._stream.next_round

    @property
    def clip_norm(self) -> float:
        """Largest L2 norm of the contribution of one unit of privacy to the sum of one step."""
        return self._clip_norm

    @property
    def deviation(self) -> float:
        """noise_multiplier * clip_norm: the scale of the noise on the *sum* of one step's
        contributions."""
        return self._noise_multiplier * self._clip_norm

    @torch.no_grad()
    def add_(self, gradients: Iterable[Tensor | None], *, divisor: float = 1.0) -> None:
        """Adds the next step's noise to gradients, in place.

        Every call is a step. If several workers share a step's sum, add the noise once, after their
        sums were joined.

        Args:
            gradients: sums of clipped contributions, one for each parameter and of its shape, in
                float32 or float64. A coarser sum is rounded before the noise is added, by as much
                as the noise should hide.
            divisor: divisor already applied to the sums, such as the expected batch size if
                gradients are means. It must not depend on private data.

        Raises:
            InputError: a gradient is missing, has another shape or is coarser than float32, or all
                planned steps were taken. Then nothing was added, and the step is still to come.
        """
        _check_positive("divisor", divisor)
        # Everything is checked before the row is taken, because a row is given once.
        targets = self._checked(gradients)
        row = self._stream.next()
        for target, part in zip(targets, row.split(self._sizes), strict=True):
            target.add_(part.view(target.shape), alpha=self.deviation / divisor)

    def next_noise(self) -> list[Tensor]:
        """The next step's noise: for the sum of contributions, a float32 tensor for each parameter,
        of its shape and on its device.

        Every call is a step, as it is of `add_`.

        Raises:
            InputError: all planned steps were taken.
        """
        # The product is a tensor of its own; the row is overwritten at the next step.
        noise = torch.mul(self._stream.next(), self.deviation)
        parts = noise.split(self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def figures(self, participation: MinSep, delta: float) -> Figures:
        """Returns errors, sensitivity and privacy of all planned steps.

        Args:
            participation: steps in which one unit of privacy may contribute, over all `steps`. For
                passes over the data in one fixed order, min_sep is the steps of a pass and
                max_participations the number of passes. The training loop must enforce it.
            delta: delta of epsilon.

        Returns:
            Figures that hold for fewer steps too; each says whether it is exact or an upper bound.

        Raises:
            InputError: the participation is not over the planned steps, delta is not from 1e-30 to
                below 1, or no theorem gives the sensitivity (`SensitivityUnknown`).
        """
        if participation.rounds != self._steps:
            raise InputError.of(
                "participation.rounds",
                participation.rounds,
                f"must be steps={self._steps}, for which this noise was planned",
                f"give MinSep(rounds={self._steps}, ...)",
            )
        return mechanism_figures(self._strategy, participation, self._noise_multiplier, delta)

    def rho(self, participation: MinSep) -> float:
        """rho of zero-concentrated DP of all planned steps, under zero-out of one unit: exact where
        the sensitivity is, else an upper bound. See `figures`."""
        # It does not depend on delta, of which figures need some value.
        rho = self.figures(participation, delta=0.5).rho
        assert rho is not None
        return rho

    def epsilon(self, participation: MinSep, delta: float) -> float:
        """Epsilon at `delta` of all planned steps: exact where the sensitivity is, else an upper
        bound. See `figures`."""
        epsilon = self.figures(participation, delta).epsilon
        assert epsilon is not None
        return epsilon

    def state_dict(self) -> dict[str, Any]:
        """The state, to be kept with a checkpoint: numbers, strings and tensors on the CPU, which
        `torch.load(..., weights_only=True)` reads.

        It contains the seed, and has to be kept as secret as that.
        """
        state = self._stream.state()
        return {
            **self._setting(),
            "seed": self._seed,
            "next_step": self.next_step,
            "buffers": torch.from_numpy(state["buffers"]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a `state_dict`, with the same noise for the same steps.

        Steps after the state was written get the same rows again. If their releases were seen, they
        must be released unchanged: the difference of two releases with one row of noise has no
        noise.

        Args:
            state: state of a `CorrelatedNoise` with the same arguments, on the same kind of device.

        Raises:
            InputError: the state has another setting, or noise was drawn here already.
        """
        if self.next_step:
            raise InputError.of(
                "next_step",
                self.next_step,
                "is not 0: noise was drawn here already, and two states do not make one mechanism",
                "load the state into a new CorrelatedNoise",
            )
        setting = self._setting()
        missing = {*setting, "seed", "next_step", "buffers"} - state.keys()
        if missing:
            raise InputError(
                f"the state has no {', '.join(sorted(missing))}; load what state_dict gave"
            )
        for name, own in setting.items():
            if state[name] != own:
                raise InputError(
                    f"the state is of {name}={state[name]!r}, and this noise has {own!r}; its rows "
                    "would not go on with the same noise: give the arguments of that training"
                )
        # The seed is only taken up together with its place: from the first step it would repeat
        # rows.
        seed = _whole(state["seed"])
        stream = self._stream_of(seed)
        buffers = state["buffers"].cpu().numpy()
        stream.load({"buffers": buffers, "next_round": state["next_step"]})
        self._seed, self._stream = seed, stream

    def _stream_of(self, seed: int) -> NoiseStream:
        return noise_stream(self._strategy, seed, sum(self._sizes), self._device, self._steps)

    def _setting(self) -> dict[str, Any]:
        """All that determines the noise, but for the seed."""
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
        """The gradients, if noise can be added to all of them. Raises InputError."""
        targets = list(gradients)
        if len(targets) != len(self._shapes):
            raise InputError(
                f"{len(targets)} gradients for {len(self._shapes)} parameters; give one for each, "
                "in their order"
            )
        checked = []
        # All are looked at before any changes, so that a refusal leaves them as they were.
        for place, (target, shape) in enumerate(zip(targets, self._shapes, strict=True)):
            if target is None:
                raise InputError(
                    f"gradient {place} is None: a parameter without noise would not be protected; "
                    "give zeros, or leave parameters out that are not trained"
                )
            if not isinstance(target, Tensor):
                raise InputError(
                    f"gradient {place} is of type {type(target).__name__}; give tensors, such as "
                    "(each.grad for each in model.parameters())"
                )
            if tuple(target.shape) != shape or not target.is_floating_point():
                raise InputError(
                    f"gradient {place} has shape {tuple(target.shape)} and type {target.dtype}; "
                    f"its parameter has shape {shape}, and noise needs floating-point numbers"
                )
            # The sum of a million bfloat16 numbers is rounded by more than the clip norm.
            if torch.finfo(target.dtype).eps > torch.finfo(torch.float32).eps:
                raise InputError(
                    f"gradient {place} is {target.dtype}, whose sum was rounded before the noise "
                    "hides it; sum the clipped gradients in float32, add the noise to that sum, "
                    "and only then convert it: .to(parameter.dtype)"
                )
            if target.device != self._device:
                raise InputError(
                    f"gradient {place} is on {str(target.device)!r} and this noise on "
                    f"{str(self._device)!r}; move it there"
                )
            checked.append(target)
        return checked


def _read(strategy: Strategy | str | Path) -> Strategy:
    """Returns the strategy, read from its file if a path is given."""
    return read_strategy(strategy) if isinstance(strategy, str | Path) else strategy


def _whole(seed: int) -> int:
    """The seed as an int. Raises InputError."""
    # A key is made of the seed's digits, so 3, 3.0 and True would be three seeds.
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise InputError.of(
            "seed", seed, "must be a whole number from 0", "leave it out to draw a secret one"
        )
    return int(seed)


def _tensors(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The parameters as a list. Raises InputError."""
    tensors = list(parameters)
    for each in tensors:
        if not isinstance(each, Tensor):
            raise InputError(
                f"parameters have a value of type {type(each).__name__}; give tensors, such as "
                "model.parameters()"
            )
    return tensors


def _device_of(tensors: list[Tensor]) -> torch.device:
    """The one device of the tensors. Raises InputError."""
    devices = {each.device for each in tensors}
    if len(devices) != 1 or not sum(each.numel() for each in tensors):
        where = ", ".join(sorted(map(str, devices))) or "none"
        raise InputError(
            f"parameters: {len(tensors)} tensors on devices {where}; give at least one number to "
            "train, all on one device"
        )
    (device,) = devices
    if device.type not in ("cpu", "cuda"):
        raise InputError(
            f"parameters are on {str(device)!r}, where noise has no addressed draws; use 'cpu' or "
            "'cuda'"
        )
    return device


def _check_positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise InputError.of(name, value, "must be positive and finite", "correct it")
