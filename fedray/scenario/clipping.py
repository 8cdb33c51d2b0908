"""The tables `privacy.clipping`: how updates are clipped, and how the clip norm is chosen."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, Tag, field_validator

from fedray.base.errors import ScenarioError
from fedray.base.table import Positive, Table, told_apart_by

__all__ = [
    "AdaptiveClipping",
    "ClipStep",
    "FixedClipping",
    "NoClipping",
    "PerLayerClipping",
    "ScheduledClipping",
]

UNCLIPPED = 1024.0
"""Largest norm, in clip norms, of an update that is not clipped. A sum of integers must be bounded,
and an update a thousand times as long as others has diverged."""
LEAST_NORM, MOST_NORM = 1e-6, 1e6
"""Limits of a clip norm."""
# Andrew et al. 2021 use a standard deviation of a twentieth of the cohort.
COUNT_NOISE_SHARE = 20
"""Number of reports per standard deviation of the noise on a count, if a scenario sets none."""


@dataclass(frozen=True, slots=True)
class Clip:
    """Clipping of a round's updates."""

    norm: float
    """Largest L2 norm of a clipped update."""
    zero_above: float = math.inf
    """Norm above which an update counts as zero; infinite to keep all."""
    counted_norm: float | None = None
    """Largest norm of an update that is counted; None to count none."""


class Clipping(Table):
    """Base class of clipping tables."""

    counts_short: ClassVar[bool] = False
    """Whether each round releases a noisy count of its short updates."""

    zero_above: Annotated[float, Field(gt=1)] | None = None
    """Updates longer than this many clip norms count as zero. Default: they are scaled down like
    all others. The key costs no privacy, because zero is shorter than the clip norm."""

    @property
    def later_norms(self) -> str | None:
        """Rule by which the clip norm changes, as the end of "1 at first; then it ..."; None if it
        never changes. It can change only in rounds at which the mechanism restarts."""
        return None

    @property
    def changes(self) -> tuple[int, ...]:
        """Rounds in which the clip norm changes, if they are known before the run."""
        return ()

    def noise_on_count(self, report_goal: int) -> float | None:
        """Returns the standard deviation of the noise on a round's count of short updates, or None
        if nothing is counted."""
        del report_goal
        return None

    def counting_as(self, report_goal: int) -> Self:
        """Returns the table with the noise on counts written out for this report goal."""
        del report_goal
        return self

    def clip(self, norm: float, counted_norm: float | None = None) -> Clip:
        """Returns the clipping in a round with the clip norm `norm`."""
        # No update is longer than infinity, so without the key none counts as zero.
        factor = math.inf if self.zero_above is None else self.zero_above
        return Clip(norm, factor * norm, counted_norm)

    def check_clip_norm(self, clip_norm: float) -> None:
        """Raises ValueError if an update could be longer than `privacy.clip_norm`."""

    def layer_norms(self, layers: Sequence[str], clip_norm: float) -> tuple[float, ...] | None:
        """Returns the clip norm of each layer of the model, or None if updates are clipped whole.

        Raises:
            ScenarioError: the table has norms for another number of layers.
        """
        del layers, clip_norm
        return None


class FixedClipping(Clipping):
    """An update longer than `privacy.clip_norm` is scaled down to it."""

    kind: Literal["fixed"] = "fixed"
    """One clip norm for whole updates and all rounds."""


class NoClipping(Clipping):
    """Updates are summed as they are; one of more than 1,024 clip norms counts as zero. Only with
    the mechanism none."""

    kind: Literal["none"] = "none"
    """No clipping."""

    def clip(self, norm: float, counted_norm: float | None = None) -> Clip:
        most = min(self.zero_above or UNCLIPPED, UNCLIPPED)
        return Clip(UNCLIPPED * norm, most * norm, counted_norm)


class PerLayerClipping(Clipping):
    """Clips each named parameter of the model separately (McMahan et al. 2018, Algorithm 1).

    The root of the sum of squared norms is at most `privacy.clip_norm`, so the noise is the same as
    for updates that are clipped whole.
    """

    kind: Literal["per_layer"] = "per_layer"
    """A clip norm for each layer."""
    norms: Annotated[tuple[Positive, ...], Field(strict=False, min_length=1)] | None = None
    """Clip norm of each layer, in the model's order. Default: clip_norm / sqrt(layers) for each."""

    def check_clip_norm(self, clip_norm: float) -> None:
        # Without norms the sum is 0, since the norms that are then derived fit by construction.
        whole = math.hypot(*(self.norms or ()))
        # The slack lets norms pass that a user computed as clip_norm / sqrt(layers) and rounded.
        if whole > clip_norm * (1 + 1e-9):
            raise ValueError(
                f"clipping.norms: the root of the sum of their squares is {whole:g}, more than "
                f"clip_norm={clip_norm:g}, which sets the noise; raise clip_norm to {whole:g}, or "
                "lower the norms"
            )

    def layer_norms(self, layers: Sequence[str], clip_norm: float) -> tuple[float, ...]:
        if self.norms is None:
            return (clip_norm / math.sqrt(len(layers)),) * len(layers)
        # The model is known only now, so a table could not refuse this when it was read.
        if len(self.norms) != len(layers):
            raise ScenarioError(
                f"privacy.clipping.norms has {len(self.norms)} norms, but the model has "
                f"{len(layers)} layers ({', '.join(layers)}); give one norm per layer, or leave "
                "the key out"
            )
        return self.norms


class AdaptiveClipping(Clipping):
    """The clip norm follows a quantile of the updates' norms (Andrew et al. 2021; Xu et al. 2023,
    Algorithm 1).

    Devices also report whether their update is at most as long as an estimate C_t. With b_t the
    noisy share of such updates, C_(t+1) = C_0 exp(-learning_rate (b_0 + ... + b_t - (t + 1)
    quantile)) and C_0 = `privacy.clip_norm`. Updates are clipped to the estimate at the latest
    restart of the mechanism. Both releases together have the noise multiplier
    `privacy.noise_multiplier`.
    """

    kind: Literal["adaptive"] = "adaptive"
    """A clip norm that follows a quantile."""
    counts_short: ClassVar[bool] = True
    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Target share of updates within the clip norm (gamma in the papers)."""
    learning_rate: Positive = 0.2
    """Step size of the logarithm of the clip norm (eta in the papers)."""
    count_noise: Positive | None = None
    """Standard deviation of the noise on a round's count of short updates (sigma_b in the papers).
    Default: rounds.report_goal / 20."""

    @property
    def later_norms(self) -> str:
        return "follows a quantile of the updates' norms"

    def noise_on_count(self, report_goal: int) -> float:
        # The type refuses 0, so `or` falls back only where no noise is given.
        return self.count_noise or report_goal / COUNT_NOISE_SHARE

    def counting_as(self, report_goal: int) -> Self:
        return self.model_copy(update={"count_noise": self.noise_on_count(report_goal)})


class ClipStep(Table):
    """A change of the clip norm."""

    from_round: Annotated[int, Field(ge=1, lt=2**31)]
    """First round with this norm."""
    norm: Annotated[float, Field(ge=LEAST_NORM, le=MOST_NORM)]
    """Clip norm from then on."""


class ScheduledClipping(Clipping):
    """The clip norm changes in given rounds, from `privacy.clip_norm` on (McMahan et al. 2018,
    figures 4 and 8).

    The noise of a round is `privacy.noise_multiplier` times its clip norm, so the sensitivity per
    unit of noise is constant, and privacy is that of a fixed norm.
    """

    kind: Literal["schedule"] = "schedule"
    """A clip norm for each phase of the training."""
    steps: Annotated[tuple[ClipStep, ...], Field(strict=False, min_length=1)]
    """Changes, each a table with from_round and norm, in the order of their rounds."""

    @field_validator("steps")
    @classmethod
    def _are_in_order(cls, steps: tuple[ClipStep, ...]) -> tuple[ClipStep, ...]:
        rounds = [each.from_round for each in steps]
        if rounds != sorted(set(rounds)):
            raise ValueError(
                f"from_round of the steps is {', '.join(map(str, rounds))}, which must increase; "
                "sort the steps, and keep one for each round"
            )
        return steps

    @property
    def later_norms(self) -> str:
        return ", and ".join(
            f"is {each.norm:g} from round {each.from_round}" for each in self.steps
        )

    @property
    def changes(self) -> tuple[int, ...]:
        return tuple(each.from_round for each in self.steps)

    def norm_in(self, round_index: int, first: float) -> float:
        """Returns the clip norm of a round; `first` before the first step."""
        past = [each.norm for each in self.steps if each.from_round <= round_index]
        return past[-1] if past else first


AnyClipping = Annotated[
    Annotated[FixedClipping, Tag("fixed")]
    | Annotated[PerLayerClipping, Tag("per_layer")]
    | Annotated[AdaptiveClipping, Tag("adaptive")]
    | Annotated[ScheduledClipping, Tag("schedule")]
    | Annotated[NoClipping, Tag("none")],
    told_apart_by("kind", "fixed"),
]
"""Tables of clipping, distinguished by `kind`."""
