"""Whether a training diverged, by its model's figures before and after it."""

import math
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from fedray.wire.messages import Measured, Metric

ERRORS = 1.96
"""Standard errors of a difference within which two evaluations are alike."""
LEAST_ERROR = 1e-4
"""Standard error, in units of the figure, below which it is rounding: that of devices with the
same examples."""
WITHOUT_ERROR = 0.1
"""Change, in units of the figure, within which two evaluations without an error are alike."""
Trend = Literal["better", "alike", "worse", "not finite"]
"""Change of a figure over a training, beyond its errors."""


class Change(NamedTuple):
    """A held-out figure of a model before its training, and after it."""

    metric: Metric
    """The figure."""
    before: Measured
    """Its value before the training, which is finite."""
    after: Measured
    """Its value after the last round."""

    @property
    def trend(self) -> Trend:
        """Whether the figure is better or worse by more than ERRORS standard errors of the
        difference of two independent evaluations.

        Both are of the same devices, so the real error is usually smaller. A figure without an
        error, such as that of one device or of devices with the same examples, must change by more
        than WITHOUT_ERROR of its size.
        """
        if not math.isfinite(self.after.value):
            return "not finite"
        gain = self.metric.sign * (self.after.value - self.before.value)
        size = abs(self.before.value)
        least = ERRORS * self._error if self._has_error else WITHOUT_ERROR * size
        if abs(gain) <= least:
            return "alike"
        return "better" if gain > 0 else "worse"

    @property
    def _error(self) -> float:
        return math.hypot(self.before.standard_error, self.after.standard_error)

    @property
    def _has_error(self) -> bool:
        return self._error > LEAST_ERROR * abs(self.before.value)

    @property
    def is_far(self) -> bool:
        """Whether the figure is worse by more than its own size."""
        loss = self.metric.sign * (self.before.value - self.after.value)
        return self.trend == "worse" and loss > abs(self.before.value)

    def __str__(self) -> str:
        """The change as a clause."""
        name, trend = f"the held-out {self.metric.title}", self.trend
        before, after = self.before.value, self.after.value
        if trend == "not finite":
            return f"{name} was {before:.4f} before the training and is not finite"
        if trend == "alike":
            least = "its errors" if self._has_error else "a tenth, and has no error"
            return f"{name} ({before:.4f}, then {after:.4f}) changed by less than {least}"
        return f"{name} {'rose' if after > before else 'fell'} from {before:.4f} to {after:.4f}"


def has_diverged(
    trends: Collection[Trend], *, has_risen: bool = False, is_often_not_finite: bool = False
) -> bool:
    """Returns whether a training diverged: a held-out figure is not finite, or the model got worse
    and no figure is better.

    The model got worse if all held-out figures are worse, or many updates were not finite, or
    the loss rose far while a held-out figure is worse. A model that began at chance has only
    the last kind, because its accuracy cannot fall.

    Args:
        trends: trends of the held-out loss and of the metric that judges models; empty if both are
            unknown, and then the loss on the devices decides.
        has_risen: whether the loss on the devices rose by more than its own size, or that on
            held-out data did while that on the devices rose too.
        is_often_not_finite: whether many updates were not finite.
    """
    if "not finite" in trends:
        return True
    if "better" in trends:
        return False
    if is_often_not_finite or not trends:
        return is_often_not_finite or has_risen
    return set(trends) == {"worse"} or (has_risen and "worse" in trends)


def seen(changes: Sequence[Change], others: Sequence[str]) -> str:
    """Returns a sentence on the figures of a training that did not diverge; empty if no figure
    got worse.

    Args:
        changes: changes of held-out figures.
        others: further clauses on figures that got worse.
    """
    worse = [*others, *(str(each) for each in changes if each.trend == "worse")]
    if not worse:
        return ""
    rest = [str(each) for each in changes if each.trend != "worse"]
    said = " while ".join(" and ".join(each) for each in (worse, rest) if each)
    return f"{said[0].upper()}{said[1:]}."


def remedy(noise: float, warning: str, mean_norm: float | None) -> str:
    """Returns what to change after a divergence, in sentences. The cause follows from the noise
    that was printed before the training, so that the two never contradict each other.

    Args:
        noise: noise in effect, in clip norms (see `update_noise` of training.json); 0 without it.
        warning: the warning that was printed about it; empty if models learn with it.
        mean_norm: mean norm of updates before clipping in clip norms; None if it is not known, or
            clipping follows the norms.
    """
    rates = "training.client.learning_rate or training.server.learning_rate."
    if warning:
        return f"{warning} If it still diverges then, lower {rates}"
    if not noise:
        return f"Lower {rates}"
    said = f"The noise on a mean update, in effect {noise:.2g} times the clip norm,"
    # Updates shorter than the clip norm bear less noise than longer ones.
    if mean_norm is not None and noise > mean_norm:
        return (
            f"{said} is {noise / mean_norm:.3g} times the mean norm of an update: lower "
            f"privacy.clip_norm to near {mean_norm:.2g} of it. "
            f"If it still diverges then, lower {rates}"
        )
    if mean_norm is None:
        return f"Lower {rates}"
    return f"Lower {rates} {said} is not the cause."
