"""Our events as events of Google's dp_accounting, so that another tool can check a figure."""

import math
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from fedray.mechanisms.accounting.events import (
    Composed,
    DiscreteGaussianSum,
    Event,
    EventRefused,
    GaussianEvent,
    PoissonSampled,
    PostProcessed,
    Repeated,
)
from fedray.mechanisms.accounting.gdp import mu_of, sampled_noise
from fedray.mechanisms.accounting.limits import check_delta
from fedray.mechanisms.accounting.zcdp import rho_of

if TYPE_CHECKING:
    from dp_accounting import DpEvent


def peer_event(event: Event) -> "DpEvent":
    """Returns the equivalent event of dp_accounting, to be composed there.

    A strategy's stream is one Gaussian of its sensitivity, since dp_accounting has no event for
    correlated noise. Discrete Gaussian noise is an event of its rho.

    Raises:
        EventRefused: the event is unknown.
    """
    import dp_accounting as peer

    match event:
        case GaussianEvent():
            # At sensitivity 0 nothing is revealed, and the noise at unit sensitivity would be
            # infinite.
            if event.mu == 0.0:
                return peer.NoOpDpEvent()
            return peer.GaussianDpEvent(event.noise_at_unit_sensitivity)
        case DiscreteGaussianSum():
            return peer.ZCDpEvent(rho_of(event))
        case PoissonSampled():
            step = peer.GaussianDpEvent(sampled_noise(event))
            return peer.PoissonSampledDpEvent(event.probability, step)
        case PostProcessed():
            return peer_event(event.event)
        case Repeated():
            return peer.SelfComposedDpEvent(peer_event(event.event), event.count)
        case Composed():
            return peer.ComposedDpEvent([peer_event(each) for each in event.events])
        case _:
            raise EventRefused(
                f"event {event.kind!r} has no event of dp_accounting that is as private; describe "
                "the release by the events of mechanisms/accounting/events.py"
            )


@dataclass(frozen=True, slots=True)
class PeerFigures:
    """Figures of dp_accounting for an event, by its own composition."""

    event: str
    """Its event, as Python writes it."""
    rho: float | None
    """Half the Renyi divergence of order 2; None for sampled events, which have no zCDP."""
    pld_epsilon: float | None
    """By its loss distributions, a pessimistic estimate; None if it has none for the event, or none
    that is finite at so small a delta."""
    renyi_epsilon: float
    """By Renyi DP."""
    version: str
    """Version of dp_accounting."""


def peer_figures(event: Event, delta: float) -> PeerFigures:
    """Composes an event with dp_accounting.

    Args:
        event: the release.
        delta: delta of the epsilons.

    Raises:
        EventRefused: the event is unknown.
        InputError: delta is impossible.
    """
    check_delta(delta)
    composed = peer_event(event)
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    losses = PLDAccountant(value_discretization_interval=_interval(event))
    # Its distributions are cut off, so that a delta below the cut has no epsilon.
    epsilon = math.inf
    if losses.supports(composed):
        epsilon = float(losses.compose(composed).get_epsilon(delta))
    return PeerFigures(
        event=repr(composed),
        rho=_peer_rho(event),
        pld_epsilon=epsilon if math.isfinite(epsilon) else None,
        renyi_epsilon=float(RdpAccountant().compose(composed).get_epsilon(delta)),
        version=metadata.version("dp-accounting"),
    )


def _interval(event: Event) -> float:
    """To which losses are rounded: 1e-4, and more where there would be millions of them."""
    try:
        return max(1e-4, mu_of(event) / 1e3)
    except EventRefused:
        return 1e-4


def _peer_rho(event: Event) -> float | None:
    """Half the Renyi divergence of order 2, from the epsilon that follows from it."""
    try:
        rho_of(event)
    except EventRefused:
        return None
    from dp_accounting.rdp import RdpAccountant

    # The peer only reports epsilons; with one order and delta the divergence follows.
    order, log_delta = 2.0, -600.0
    accountant = RdpAccountant(orders=[order]).compose(peer_event(event))
    epsilon = float(accountant.get_epsilon(math.exp(log_delta)))
    # Canonne, Kamath, Steinke 2020, Proposition 12, solved for the divergence.
    given_up = math.log1p(-1.0 / order) - (log_delta + math.log(order)) / (order - 1.0)
    return max(0.0, epsilon - given_up) / order
