"""Converts events to events of Google's dp_accounting, an independent check of the figures."""

import logging
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
    FixedSizeSampled,
    GaussianEvent,
    PoissonSampled,
    PostProcessed,
    Repeated,
)
from .gdp import mu_of, sampled_noise
from .limits import check_delta
from .pld import parts_of
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
        case FixedSizeSampled():
            # dp_accounting takes the noise over the sensitivity, and a device that is replaced, or
            # whose place another one takes, changes the sum by two clip norms.
            noise = event.event.noise_at_unit_sensitivity / 2.0
            step = peer.GaussianDpEvent(noise)
            return peer.SampledWithoutReplacementDpEvent(event.devices, event.size, step)
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


def peer_epsilon(event: Event, delta: float) -> float:
    """Returns dp_accounting's epsilon by Renyi DP.

    Raises:
        EventRefused: the event is unknown, or mixes kinds of samples that have no common theorem.
    """
    from dp_accounting import NeighboringRelation, UnsupportedEventError
    from dp_accounting.rdp import RdpAccountant

    composed = peer_event(event)
    # Samples of a fixed size are accounted for replaced devices, of which a device that is zeroed
    # out is one.
    is_replaced = any(isinstance(part, FixedSizeSampled) for part in parts_of(event))
    relation = "REPLACE_ONE" if is_replaced else "ADD_OR_REMOVE_ONE"
    accountant = RdpAccountant(neighboring_relation=NeighboringRelation[relation])
    logger = logging.getLogger("absl")
    level = logger.level
    # dp_accounting warns of each order that does not converge; the bound is valid without it.
    logger.setLevel(logging.ERROR)
    try:
        return float(accountant.compose(composed).get_epsilon(delta))
    except UnsupportedEventError:
        raise EventRefused(
            "the event has samples of a fixed size beside Poisson samples, for which no common "
            "theorem is known; describe the releases as two events"
        ) from None
    finally:
        logger.setLevel(level)


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

    losses = PLDAccountant(value_discretization_interval=_interval(event))
    # dp_accounting truncates its distributions, so a delta below the truncated mass has no epsilon.
    epsilon = math.inf
    if losses.supports(composed):
        epsilon = float(losses.compose(composed).get_epsilon(delta))
    return PeerFigures(
        event=repr(composed),
        rho=_peer_rho(event),
        pld_epsilon=epsilon if math.isfinite(epsilon) else None,
        renyi_epsilon=peer_epsilon(event, delta),
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
