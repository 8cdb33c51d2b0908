"""Our events as those of Google's dp_accounting, so that another tool can check a figure."""

from typing import TYPE_CHECKING

from mechanisms.accounting.events import (
    Composed,
    DiscreteGaussianSum,
    Event,
    EventRefused,
    GaussianEvent,
    PoissonSampled,
    PostProcessed,
    Repeated,
)
from mechanisms.accounting.gdp import sampled_noise
from mechanisms.accounting.zcdp import rho_of

if TYPE_CHECKING:
    from dp_accounting import DpEvent


def peer_event(event: Event) -> "DpEvent":
    """The equivalent event of dp_accounting, to be composed there.

    A strategy's stream is one Gaussian of its sensitivity, since dp_accounting has no event for
    correlated noise. Discrete Gaussian noise is an event of its rho.

    Raises:
        EventRefused: for an unknown event.
    """
    import dp_accounting as peer

    match event:
        case GaussianEvent():
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
