"""All figures of a mechanism at one setting: errors, sensitivity, losses and privacy."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from fedray.base.document import IfAny, InJson, InPlace, Key, Keys, NotInJson
from fedray.base.errors import InputError
from fedray.base.result import DrawnResult
from .accounting.accountants import epsilon_of
from .accounting.calibration import (
    check_one_target,
    least_noise_multiplier,
    noise_multiplier_for,
)
from .accounting.events import Event, EventRefused, StrategyRelease
from .accounting.gdp import gdp_epsilon, mu_of
from .accounting.limits import check_delta, check_noise_multiplier
from .accounting.monte_carlo import BY_DRAWS
from .accounting.renyi import renyi_epsilon
from .accounting.sampled import PoissonSampling, sampled_release
from .accounting.zcdp import rho_of
from .loss import Loss, Objective, Purpose, loss
from .participation import MinSep
from .registry import BLT
from .strategy import Strategy
from .triangular import MatrixFile
from .workload import PREFIX, Workload, workload_of

DELTA = 1e-10
"""Delta of epsilon, unless another is given."""
HYPOTHETICAL = (
    "only if every device was Poisson-sampled as stated; devices that choose when they come are not"
)
"""Condition under which an amplified figure holds."""


@dataclass(frozen=True, slots=True)
class Hypothetical:
    """Privacy of a mechanism if devices were Poisson-sampled."""

    epsilon: float | None
    """Upper bound on epsilon at delta, by the privacy loss distribution, or for random rounds by
    Monte Carlo, which fails with a probability of at most 1e-6; None without a noise multiplier."""
    renyi_epsilon: float | None
    """Upper bound on epsilon by Renyi DP: looser, for comparison with other tools. None if no
    moments are proven for the sampling."""
    sampling: Annotated[PoissonSampling, Keys("probability partitions compositions min_sep")]
    is_exact: bool = False
    """Always False: both epsilons are upper bounds."""
    assumption: str = HYPOTHETICAL
    """The assumption, in words; the schedules poisson, cyclic_poisson and min_sep of stored uploads
    sample in this way."""


@dataclass(frozen=True, slots=True)
class Figures(DrawnResult):
    """Errors, sensitivity, losses and privacy of one strategy under one participation.

    Privacy is computed on demand; each of its figures is exact or an upper bound.
    """

    TABLES: ClassVar[str] = "fedray.report.mechanisms:figures_tables"
    SUBJECT: ClassVar[str] = "fedray.report.mechanisms:figures_subject"
    HEADLINE: ClassVar[str] = "fedray.report.mechanisms:figures_verdict"
    FIGURES: ClassVar[str] = "fedray.report.mechanism_figures:mechanism_figures"
    PAGE: ClassVar[str] = "fedray.report.mechanism_figures:mechanism_page"

    strategy: Annotated[Strategy, Keys("kind paper")]
    participation: InPlace[MinSep]
    loss: Annotated[
        Loss,
        Keys(
            "sensitivity=sensitivity.value sensitivity_is_exact=sensitivity.is_exact "
            "sensitivity_theorem=sensitivity.theorem "
            "sensitivity_lower_bound=sensitivity.lower_bound "
            "worst_pattern=sensitivity.worst_pattern max_error rms_error max_loss rms_loss"
        ),
    ]
    """Errors, sensitivity and losses under that participation."""
    noise_multiplier: float | None
    """z; without it mu, rho and epsilon are None."""
    delta: float
    """delta of epsilon."""
    sampling: NotInJson[PoissonSampling | None] = None
    """Poisson sampling assumed by the amplified epsilon, or None."""
    workload: NotInJson[Workload] = PREFIX
    """Matrix A of the errors."""
    objective: Annotated[Objective, Key("loss")] = "rms"
    """Loss by which the mechanism is compared: "rms" or "max"."""
    name: NotInJson[str] = ""
    """Name in tables and legends, such as the stem of its file; empty if it is that by which it
    was given."""
    purpose: NotInJson[Purpose | None] = None
    """Loss and workload that the mechanism was made for; None if it was made for none, or if that
    is unknown."""

    def __repr__(self) -> str:
        return f"<Figures of {self.headline.rstrip('.')}>"

    @property
    def made_for(self) -> IfAny[str]:
        """Loss and workload that the mechanism was made for, such as "RmsLoss" or "MaxLoss of
        momentum=0.9"; absent if it was made for none, or if that is unknown."""
        return None if self.purpose is None else str(self.purpose)

    @property
    def is_for_another(self) -> bool:
        """Whether the mechanism was made for another loss or workload than it is compared by."""
        own = Purpose(self.objective, str(self.workload))
        return self.purpose is not None and self.purpose.differs_from(own)

    @property
    def is_at_bound(self) -> Annotated[IfAny[bool], Key("theta_is_at_bound")]:
        """Whether the largest theta is the bound of the search, so that its buffer forgets nothing;
        absent if it is not."""
        return (isinstance(self.strategy, BLT) and self.strategy.is_at_bound) or None

    @property
    def event(self) -> Event | None:
        """The release without sampling, as the accountants take it; None without a noise
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
    def mu(self) -> InJson[float | None]:
        """mu of Gaussian DP (Dong, Roth, Su 2022): sensitivity / noise multiplier. Exact if the
        sensitivity is, else an upper bound; None without a noise multiplier."""
        return None if self.event is None else mu_of(self.event)

    @property
    def rho(self) -> InJson[float | None]:
        """rho of zero-concentrated DP (Bun and Steinke 2016): mu^2 / 2. Exact if the sensitivity
        is, else an upper bound; None without a noise multiplier."""
        return None if self.event is None else rho_of(self.event)

    @property
    def epsilon(self) -> InJson[float | None]:
        """Epsilon of (epsilon, delta)-DP at `delta`, without any sampling. Exact if the sensitivity
        is, else an upper bound; None without a noise multiplier."""
        return None if self.event is None else gdp_epsilon(self.event, self.delta)

    @property
    def amplified_event(self) -> Event | None:
        """The release if devices are Poisson-sampled by `sampling`; None without a noise multiplier
        or sampling. Raises InputError if no amplification is proven."""
        if self.noise_multiplier is None or self.sampling is None:
            return None
        return sampled_release(self.strategy, self.sampling, self.noise_multiplier)

    @property
    def amplified_epsilon(self) -> float | None:
        """Upper bound on epsilon at delta if devices are sampled by `sampling`, by the first
        accountant that accepts it; None without a noise multiplier or sampling."""
        event = self.amplified_event
        return None if event is None else epsilon_of(event, self.delta).epsilon

    @property
    def amplified_renyi_epsilon(self) -> float | None:
        """Upper bound on the amplified epsilon by Renyi DP: looser, for comparison with other
        tools; None also if no moments are proven for the sampling."""
        event = self.amplified_event
        try:
            return None if event is None else renyi_epsilon(event, self.delta)
        except EventRefused:
            return None

    def parameters(self) -> dict[str, Any]:
        """Returns the strategy's own parameters, as in its JSON; for a matrix also its size and
        bands, which a reader cannot see from its digest."""
        own = self.strategy.parameters
        if isinstance(self.strategy, MatrixFile):
            own |= {"rounds": self.strategy.most_rounds, "bands": self.strategy.bands}
        return own

    @property
    def own_parameters(self) -> Annotated[dict[str, Any], Key("parameters")]:
        """The mechanism's own parameters, as in its file."""
        return self.parameters()

    @property
    def workload_name(self) -> Annotated[IfAny[str], Key("workload")]:
        """Workload of the errors and losses, such as "momentum=0.9"; absent for prefix sums."""
        return None if self.workload.is_prefix else str(self.workload)

    @property
    def condition(self) -> str:
        """Condition under which the amplified epsilon holds."""
        if self.sampling is not None and self.sampling.min_sep > 1:
            return f"{HYPOTHETICAL}. {BY_DRAWS.rstrip('.')}"
        turns = 0 if self.sampling is None else self.sampling.compositions
        # A cap on participations is no cap on the rounds in which a device may be drawn.
        is_capped = self.participation.max_participations < turns
        return HYPOTHETICAL + (f"; it may be drawn in {turns:,} rounds" if is_capped else "")

    @property
    def hypothetical(self) -> IfAny[Hypothetical]:
        """Figures under Poisson sampling; only with `--sampling`."""
        if self.sampling is None:
            return None
        figures = self.amplified_epsilon, self.amplified_renyi_epsilon, self.sampling
        return Hypothetical(*figures, assumption=self.condition)


@dataclass(frozen=True, slots=True)
class Mechanisms(DrawnResult):
    """Figures of several mechanisms at one setting."""

    TABLES: ClassVar[str] = "fedray.report.mechanisms:mechanism_tables"
    SUBJECT: ClassVar[str] = "fedray.report.mechanisms:mechanism_subject"
    HEADLINE: ClassVar[str] = "fedray.report.mechanisms:mechanisms_verdict"
    FIGURES: ClassVar[str] = Figures.FIGURES
    PAGE: ClassVar[str] = Figures.PAGE

    by_name: Annotated[dict[Annotated[str, "mechanism"], Figures], Key("mechanisms")]
    """Figures of each, by its file or kind as it was typed, in order; at least one."""

    @property
    def first(self) -> Figures:
        """Figures of the first mechanism, which has the setting of all."""
        return next(iter(self.by_name.values()))


def mechanism_figures(
    strategy: Strategy,
    participation: MinSep,
    noise_multiplier: float | None = None,
    delta: float = DELTA,
    sampling: PoissonSampling | None = None,
    workload: Workload | str = PREFIX,
) -> Figures:
    """Returns the figures of a strategy under a participation.

    Args:
        strategy: the mechanism.
        participation: enforced (rounds, min-sep, max participations).
        noise_multiplier: z; None for only errors and sensitivity.
        delta: delta of epsilon.
        sampling: Poisson sampling assumed by the amplified epsilon.
        workload: workload of the errors, or its text, such as "momentum=0.9,decay=0.95".

    Raises:
        InputError: a setting is impossible, or amplification by the sampling is not proven.
    """
    check_delta(delta)
    if noise_multiplier is not None:
        check_noise_multiplier(noise_multiplier)
    matrix = workload_of(workload)
    found = loss(strategy, participation, matrix)
    figures = Figures(strategy, participation, found, noise_multiplier, delta, sampling, matrix)
    # Computed now, so that a setting without these figures is refused here and not on first use.
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
    workload: Workload | str = PREFIX,
) -> Figures:
    """Returns the figures at the smallest noise multiplier that meets a target, rounded up by at
    most a relative 1e-7.

    Args:
        strategy: the mechanism.
        participation: enforced (rounds, min-sep, max participations).
        delta: delta of epsilon.
        epsilon: target for epsilon at delta. Give this or rho.
        rho: target for rho (zCDP).
        sampling: if given, the target is the epsilon amplified by this sampling.
        workload: workload of the errors, or its text.

    Raises:
        InputError: a setting is impossible, not exactly one target is given, or rho is given with
            sampling, for which no zCDP is proven, or epsilon with random rounds.
    """
    check_one_target(epsilon, rho)
    if sampling is None:
        # Without sampling the release is one Gaussian, so a closed form gives the noise multiplier.
        sensitivity = strategy.participation_sensitivity(participation)
        z = noise_multiplier_for(sensitivity.value, delta, epsilon=epsilon, rho=rho)
    elif rho is not None:
        raise InputError.of(
            "rho", rho, "cannot be met with sampling, for which no zCDP is proven", "give epsilon"
        )
    elif sampling.min_sep > 1:
        # Each bound by Monte Carlo may fail, and a search would choose among them.
        raise InputError(
            f"epsilon={epsilon:g} cannot be met with random rounds, whose bounds are drawn; give a "
            "noise multiplier instead"
        )
    else:
        assert epsilon is not None

        def amplified_epsilon(z: float) -> float:
            event = sampled_release(strategy, sampling, z)
            return epsilon_of(event, delta).epsilon

        # With sampling, epsilon has no closed form, so the noise multiplier is searched for.
        z = least_noise_multiplier(amplified_epsilon, epsilon)
    return mechanism_figures(strategy, participation, z, delta, sampling, workload)
