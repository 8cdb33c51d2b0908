"""Converts events to events of Google's dp_accounting, an independent check of the figures."""

import math
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from .events import (
    ApproximateDP,
    Composed,
    DiscreteGaussianSum,
    Event,
    EventRefused,
    GaussianEvent,
    PoissonSampled,
    PostProcessed,
    Repeated,
)
from .gdp import mu_of, sampled_noise
from .limits import check_delta
from .zcdp import rho_of

if TYPE_CHECKING:
    from dp_accounting import DpEvent


def peer_event(event: Event) -> "DpEvent":
    """Returns the equivalent event of dp_accounting.

    A strategy's stream becomes one Gaussian with its sensitivity, since dp_accounting has no event
    for correlated noise. Discrete Gaussian noise and a stated epsilon become events with their rho.

    Raises:
        EventRefused: the event is unknown.
    """
    import dp_accounting as peer

    match event:
        case GaussianEvent():
            # At sensitivity 0 nothing is released, and noise_at_unit_sensitivity is infinite.
            if event.mu == 0.0:
                return peer.NoOpDpEvent()
            return peer.GaussianDpEvent(event.noise_at_unit_sensitivity)
        case DiscreteGaussianSum() | ApproximateDP(delta=0.0):
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
        case ApproximateDP():
            raise EventRefused(
                "dp_accounting has no event for a stated delta; use the accountant pld or zcdp"
            )
        case _:
            raise EventRefused(
                f"event {event.kind!r} has no equivalent in dp_accounting; describe the release by "
                "the events of mechanisms/accounting/events.py"
            )


@dataclass(frozen=True, slots=True)
class PeerFigures:
    """Figures of an event from dp_accounting's own composition."""

    event: str
    """Repr of the event of dp_accounting."""
    rho: float | None
    """Half the Renyi divergence of order 2; None for sampled events, which have no zCDP."""
    pld_epsilon: float | None
    """Epsilon by loss distributions, a pessimistic estimate; None if dp_accounting has none for the
    event, or if their grid is too coarse for delta."""
    renyi_epsilon: float
    """Epsilon by Renyi DP."""
    version: str
    """Version of dp_accounting."""


def peer_figures(event: Event, delta: float) -> PeerFigures:
    """Computes an event's figures with dp_accounting.

    Raises:
        EventRefused: the event is unknown.
        InputError: delta is outside [1e-30, 1).
    """
    check_delta(delta)
    composed = peer_event(event)
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    losses = PLDAccountant(value_discretization_interval=_interval(event))
    # dp_accounting truncates its distributions, so a delta below the truncated mass has no epsilon.
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
    """Returns the grid step of the losses: 1e-4, or more to avoid millions of points."""
    try:
        return max(1e-4, mu_of(event) / 1e3)
    except EventRefused:
        return 1e-4


def _peer_rho(event: Event) -> float | None:
    """Returns half the Renyi divergence of order 2."""
    try:
        rho_of(event)
    except EventRefused:
        return None
    from dp_accounting.rdp import RdpAccountant

    # dp_accounting returns only epsilons; with a single order, epsilon determines the divergence.
    order, log_delta = 2.0, -600.0
    accountant = RdpAccountant(orders=[order]).compose(peer_event(event))
    epsilon = float(accountant.get_epsilon(math.exp(log_delta)))
    # Canonne, Kamath, Steinke 2020, Proposition 12, solved for the divergence.
    given_up = math.log1p(-1.0 / order) - (log_delta + math.log(order)) / (order - 1.0)
    return max(0.0, epsilon - given_up) / order
