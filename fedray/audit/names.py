"""How devices are called in what is printed: those of a log by a hash of their name, unless their
names are asked for."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedray.trace.imported import ImportedTrace, hashed_name
from fedray.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class DeviceNames:
    """Names of a trace's devices.

    A log's device is shown by `hashed_name`. Simulated devices belong to nobody and are shown by
    their ids.
    """

    trace: Trace | ImportedTrace
    is_shown: bool = False
    """Whether devices of a log are called as the log calls them."""

    def of(self, device_id: int) -> str:
        """What the device `device_id` is called: its name in the log, or a hash of it where names
        are not to be shown; its id in a run of ours."""
        return self.all_of([device_id])[0]

    def all_of(self, device_ids: Sequence[int]) -> list[str]:
        """What devices are called, in their order, each as `of` gives it."""
        names = self.trace.names_of(device_ids)
        if self.is_shown or not isinstance(self.trace, ImportedTrace):
            return names
        # The key is the trace's own, so that all audits of a trace give a device one hash.
        return [hashed_name(name, self.trace.run["devices_digest"]) for name in names]
