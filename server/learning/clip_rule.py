"""Clip rules, which choose the norm to which the updates of each round are clipped. To add one:
docs/extending.md."""

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fedray.base.rng import Stream
from fedray.mechanisms.recurrence import Independent
from fedray.scenario import Scenario
from fedray.scenario.clipping import (
    LEAST_NORM,
    MOST_NORM,
    AdaptiveClipping,
    AnyClipping,
    Clip,
    ScheduledClipping,
)
from fedray.trace.checkpoints import prefixed, under
from fedray.wire.messages import TrainReport
from .noise import noise_stream


class ClipRule(Protocol):
    """Chooses the clip norm of each round.

    A norm may depend only on earlier releases. It is constant between two restarts of the
    mechanism, because one norm measures the noise of such a segment.
    """

    def clip(self) -> Clip:
        """Returns the clipping of the next round's updates."""
        ...

    def commit(self, report: TrainReport) -> None:
        """Ends a round; rounds come in order.

        Args:
            report: the round's report.
        """
        ...

    def state(self) -> dict[str, NDArray]:
        """Named arrays from which `load` restores the rule."""
        ...

    def load(self, state: dict[str, NDArray]) -> None:
        """Restores a state."""
        ...


class FixedRule:
    """The scenario's clip norm in every round."""

    def __init__(self, table: AnyClipping, scenario: Scenario) -> None:
        self._clip = table.clip(scenario.privacy.clip_norm)

    def clip(self) -> Clip:
        return self._clip

    def commit(self, report: TrainReport) -> None:
        """See `ClipRule`."""

    def state(self) -> dict[str, NDArray]:
        return {}

    def load(self, state: dict[str, NDArray]) -> None:
        """See `ClipRule`."""


class ScheduledRule:
    """The norm of the round's phase; see `fedray.scenario.clipping.ScheduledClipping`."""

    def __init__(self, table: ScheduledClipping, scenario: Scenario) -> None:
        self._table, self._first_norm = table, scenario.privacy.clip_norm
        self._round = 0

    def clip(self) -> Clip:
        return self._table.clip(self._table.norm_in(self._round, self._first_norm))

    def commit(self, report: TrainReport) -> None:
        self._round = report.round_index + 1

    def state(self) -> dict[str, NDArray]:
        return {"round": np.array(self._round)}

    def load(self, state: dict[str, NDArray]) -> None:
        """See `ClipRule`."""
        self._round = int(state["round"])


class AdaptiveRule:
    """The norm follows a quantile, estimated from counts with noise (Xu et al. 2023, Algorithm 1);
    see `fedray.scenario.clipping.AdaptiveClipping`.

    The noise on the counts is made by the run's mechanism from a stream of draws of its own. In
    each round it is scaled, like the noise on the sums, by the share of the accepted devices that
    train.
    """

    def __init__(self, table: AdaptiveClipping, scenario: Scenario) -> None:
        rounds, goal = scenario.rounds.count, scenario.rounds.report_goal
        strategy = scenario.privacy.strategy
        self._table, self._first_norm = table, scenario.privacy.clip_norm
        # Without noise every round stands alone, as with independent noise.
        self._recurrence = Independent() if strategy is None else strategy.recurrence(rounds)
        self._deviation = table.noise_on_count(goal)
        seed, cpu = scenario.training_seed, torch.device("cpu")
        # The counts have their own stream, or their noise would be that of the first coordinate.
        self._noise = noise_stream(strategy, seed, 1, cpu, rounds, stream=Stream.CLIP_COUNT)
        self._shares = 0.0
        """Sum of the rounds' shares of short updates, noise included."""
        self._norm = self._first_norm

    def clip(self) -> Clip:
        return self._table.clip(self._norm, self._estimate())

    def commit(self, report: TrainReport) -> None:
        """See `ClipRule`. Devices that sent nothing count half, so that one device that is zeroed
        out changes the count by 1/2 at most."""
        # Andrew et al. 2021 subtract 1/2 from each bit for the same reason: the sensitivity of the
        # count is then 1/2 and not 1.
        silent = report.devices - report.short - report.long
        noise = report.sampled_share * self._deviation * float(self._noise.next()[0])
        self._shares += (report.short + silent / 2.0 + noise) / report.devices
        next_round = self._noise.next_round
        # One norm measures the noise of a segment, so the norm changes only between segments.
        if self._recurrence.begins_anew(next_round):
            self._norm = self._estimate()

    def state(self) -> dict[str, NDArray]:
        own = {"shares": np.array(self._shares), "norm": np.array(self._norm)}
        return {**own, **prefixed("noise.", self._noise.state())}

    def load(self, state: dict[str, NDArray]) -> None:
        self._shares, self._norm = float(state["shares"]), float(state["norm"])
        self._noise.load(under("noise.", state))

    def _estimate(self) -> float:
        """Returns C_t before round t, which follows from released values only."""
        # The geometric update C <- C exp(-eta (share - quantile)) of Andrew et al. 2021 (Algorithm
        # 1), unrolled: log C_t depends on a prefix sum of the noised shares, which is what
        # correlated noise is good at.
        excess = self._shares - self._noise.next_round * self._table.quantile
        logarithm = math.log(self._first_norm) - self._table.learning_rate * excess
        least, most = math.log(LEAST_NORM), math.log(MOST_NORM)
        # Before the first count it is exactly the scenario's norm.
        return math.exp(min(max(logarithm, least), most)) if excess else self._first_norm


RULES: dict[str, Callable[..., ClipRule]] = {
    "adaptive": AdaptiveRule,
    "fixed": FixedRule,
    "none": FixedRule,
    "per_layer": FixedRule,
    "schedule": ScheduledRule,
}
"""Clip rules by `privacy.clipping.kind`; they take their table and the scenario."""


def clip_rule_of(scenario: Scenario) -> ClipRule:
    """Returns the rule for a scenario's table `privacy.clipping`."""
    table = scenario.privacy.clipping
    return RULES[table.kind](table, scenario)
