"""Keys that `fedray audit --json` prints beside the audit, as in `printed.py`."""

from typing import NotRequired, TypedDict

from fedray.audit.distribution import DevicePrivacy, Frontier, SpentByDevice
from fedray.audit.over_rounds import SpentAfter


class Verified(TypedDict):
    """Key that `fedray audit` adds to every audit."""

    digest_verified: bool
    """Whether `--verify` recomputed every digest."""


class WithAudit(TypedDict):
    """Keys that `fedray audit` adds to the audit of one trace."""

    worst_devices: NotRequired[tuple[SpentByDevice, ...]]
    """The devices that spent most under the first mechanism. Only with `--claim`."""
    device_privacy: NotRequired[DevicePrivacy | None]
    """Privacy of the devices under the first mechanism; None without noise. Only with `--claim`."""
    frontier: NotRequired[Frontier | None]
    """Its frontier; None without a mechanism, a min-sep, or a theorem. Only with `--claim`."""
    over_rounds: NotRequired[list[SpentAfter]]
    """Privacy over rounds of the first mechanism; empty without noise. Only with `--claim`."""
    integrity: str
    """Protection of the figures of the trace against damage, as a sentence."""
    events: NotRequired[str]
    """Path of the events; only with `--events`."""
    evidence: NotRequired[str]
    """Path of the evidence that breaks the claim; only with `--evidence`."""
    statement: NotRequired[str]
    """Folder of the privacy statement; only with `--statement`."""
