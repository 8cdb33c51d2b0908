"""All figures of a mechanism at one setting: loss, sensitivity, privacy."""

from dataclasses import dataclass
from typing import Any

from fedray.base.errors import InputError
from fedray.base.result import Result
from fedray.base.rounding import given, up
from fedray.mechanisms.accounting.calibration import (
    check_one_target,
    least_noise_multiplier,
    noise_multiplier_for,
)
from fedray.mechanisms.accounting.events import Event, StrategyRelease
from fedray.mechanisms.accounting.gdp import gdp_epsilon, mu_of
from fedray.mechanisms.accounting.limits import check_delta, check_noise_multiplier
from fedray.mechanisms.accounting.pld import pld_epsilon
from fedray.mechanisms.accounting.renyi import renyi_epsilon
from fedray.mechanisms.accounting.sampled import PoissonSampling, cyclically_sampled
from fedray.mechanisms.accounting.zcdp import rho_of
from fedray.mechanisms.loss import Loss, loss
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.strategy import Strategy
from fedray.mechanisms.triangular import MatrixFile

HYPOTHETICAL = (
    "only if every device was Poisson-sampled as stated; devices that choose when they come are not"
)
"""Assumption of amplified figures."""


@dataclass(frozen=True, slots=True)
class Figures(Result):
    """Errors, sensitivity, losses and privacy of one strategy under one participation.

    Privacy is computed when read; every figure is exact or an upper bound.
    """

    strategy: Strategy
    participation: MinSep
    loss: Loss
    """Errors, sensitivity and losses under that participation."""
    noise_multiplier: float | None
    """z, or None, in which case mu, rho and epsilon are None."""
    delta: float
    """Delta of epsilon."""
    sampling: PoissonSampling | None = None
    """Poisson sampling assumed by the amplified epsilon, or None."""

    def __repr__(self) -> str:
        n, b, k = self._participation()
        spent = (
            "" if self.epsilon is None else f", epsilon {up(self.epsilon)} at {given(self.delta)}"
        )
        return (
            f"<Figures of {self.strategy.kind}, rounds {n:,}, min-sep {b:,}, participations {k:,}: "
            f"sensitivity {up(self.loss.sensitivity.value, 6)}{spent}>"
        )

    @property
    def event(self) -> Event | None:
        """The release without sampling, as an event for accountants; None without a noise
        multiplier."""
        if self.noise_multiplier is None:
            return None
        return StrategyRelease(
            strategy=self.strategy,
            rounds=self.participation.rounds,
            noise_multiplier=self.noise_multiplier,
            sensitivity=self.loss.sensitivity,
            participation=self.participation,
        )

    @property
    def mu(self) -> float | None:
        """mu of Gaussian DP (Dong, Roth, Su 2022): sensitivity / noise multiplier. Exact if the
        sensitivity is, else an upper bound; None without a noise multiplier."""
        return None if self.event is None else mu_of(self.event)

    @property
    def rho(self) -> float | None:
        """rho of zero-concentrated DP (Bun and Steinke 2016): mu^2 / 2. Exact if the sensitivity
        is, else an upper bound; None without a noise multiplier."""
        return None if self.event is None else rho_of(self.event)

    @property
    def epsilon(self) -> float | None:
        """Epsilon of (epsilon, delta)-DP at `delta`, without sampling. Exact if the sensitivity is,
        else an upper bound; None without a noise multiplier."""
        return None if self.event is None else gdp_epsilon(self.event, self.delta)

    @property
    def amplified_event(self) -> Event | None:
        """The release if devices are Poisson-sampled as in `sampling`. Raises InputError if nothing
        is proven."""
        if self.noise_multiplier is None or self.sampling is None:
            return None
        return cyclically_sampled(self.strategy, self.sampling, self.noise_multiplier)

    @property
    def amplified_epsilon(self) -> float | None:
        """Upper bound of epsilon at delta with sampling, by the privacy loss distribution; None
        without a noise multiplier or sampling."""
        event = self.amplified_event
        return None if event is None else pld_epsilon(event, self.delta)

    @property
    def amplified_renyi_epsilon(self) -> float | None:
        """The same by Renyi DP, which is looser, for comparison with other tools."""
        event = self.amplified_event
        return None if event is None else renyi_epsilon(event, self.delta)

    def parameters(self) -> dict[str, Any]:
        """Returns the parameters of the strategy, as in its JSON; for a matrix also its size and
        bands."""
        own = self.strategy.parameters
        if isinstance(self.strategy, MatrixFile):
            own |= {"rounds": self.strategy.most_rounds, "bands": self.strategy.bands}
        return own

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON object that `--json` prints; privacy is null without a noise
        multiplier."""
        sensitivity = self.loss.sensitivity
        return {
            "kind": self.strategy.kind,
            "paper": self.strategy.paper,
            "rounds": self.participation.rounds,
            "min_sep": self.participation.min_sep,
            "max_participations": self.participation.max_participations,
            "sensitivity": sensitivity.value,
            "sensitivity_is_exact": sensitivity.is_exact,
            "sensitivity_theorem": sensitivity.theorem,
            "sensitivity_lower_bound": sensitivity.lower_bound,
            "worst_pattern": list(sensitivity.worst_pattern),
            "max_error": self.loss.max_error,
            "rms_error": self.loss.rms_error,
            "max_loss": self.loss.max_loss,
            "rms_loss": self.loss.rms_loss,
            "noise_multiplier": self.noise_multiplier,
            "mu": self.mu,
            "rho": self.rho,
            "epsilon": self.epsilon,
            "delta": self.delta,
            **self._amplified(),
            "parameters": self.parameters(),
        }

    def _amplified(self) -> dict[str, Any]:
        if self.sampling is None:
            return {}
        sampling = self.sampling
        return {
            "hypothetical": {
                "epsilon": self.amplified_epsilon,
                "renyi_epsilon": self.amplified_renyi_epsilon,
                "is_exact": False,
                "probability": sampling.probability,
                "partitions": sampling.partitions,
                "compositions": sampling.compositions,
                "assumption": HYPOTHETICAL,
            }
        }

    def _participation(self) -> tuple[int, int, int]:
        return (
            self.participation.rounds,
            self.participation.min_sep,
            self.participation.max_participations,
        )


def mechanism_figures(
    strategy: Strategy,
    participation: MinSep,
    noise_multiplier: float | None,
    delta: float,
    sampling: PoissonSampling | None = None,
) -> Figures:
    """Computes the figures of a strategy under a participation.

    Args:
        strategy: the mechanism.
        participation: enforced (rounds, min-sep, max participations).
        noise_multiplier: z; None for errors and sensitivity only.
        delta: delta of epsilon.
        sampling: Poisson sampling assumed by the amplified epsilon.

    Raises:
        InputError: the setting is impossible, or no amplification is proven for the sampling.
    """
    check_delta(delta)
    if noise_multiplier is not None:
        check_noise_multiplier(noise_multiplier)
    found = loss(strategy, participation)
    figures = Figures(strategy, participation, found, noise_multiplier, delta, sampling)
    # Both may raise, and must do so here rather than when read.
    _ = figures.epsilon, figures.amplified_epsilon
    return figures


def calibrated_figures(
    strategy: Strategy,
    participation: MinSep,
    delta: float,
    *,
    epsilon: float | None = None,
    rho: float | None = None,
    sampling: PoissonSampling | None = None,
) -> Figures:
    """Computes figures at the least noise multiplier that meets a target, rounded up by a relative
    1e-7 at most.

    Args:
        strategy: the mechanism.
        participation: enforced (rounds, min-sep, max participations).
        delta: delta of epsilon.
        epsilon: target at delta. Give this or rho.
        rho: target of zCDP.
        sampling: Poisson sampling to assume; epsilon is then the amplified one.

    Raises:
        InputError: the setting is impossible, both or neither target are given, or rho is given
            with sampling, for which no zCDP is proven.
    """
    check_one_target(epsilon, rho)
    if sampling is None:
        sensitivity = loss(strategy, participation).sensitivity
        z = noise_multiplier_for(sensitivity.value, delta, epsilon=epsilon, rho=rho)
    elif rho is not None:
        raise InputError.of(
            "rho", rho, "with sampling: no zCDP is proven for sampled mechanisms", "give epsilon"
        )
    else:
        assert epsilon is not None

        def amplified_epsilon(z: float) -> float:
            event = cyclically_sampled(strategy, sampling, z)
            return pld_epsilon(event, delta)

        # With sampling, epsilon has no closed form.
        z = least_noise_multiplier(amplified_epsilon, epsilon)
    return mechanism_figures(strategy, participation, z, delta, sampling=sampling)
