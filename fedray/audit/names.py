"""How devices are called in what is printed: those of a log by a hash of their name, unless their
names are asked for."""

import hashlib
from dataclasses import dataclass

from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class DeviceNames:
    """Names of a trace's devices.

    A log's device is shown as `#` and twelve hex digits of BLAKE2b over its name, keyed by the
    digest of the trace's list of devices. Whoever holds the trace can find the device again;
    whoever sees the page alone cannot try names, unless the whole list of devices can be guessed.
    Simulated devices belong to nobody and are shown by their ids.
    """

    trace: Trace | ImportedTrace
    is_shown: bool = False

    def of(self, device_id: int) -> str:
        """What a device is called."""
        name = self.trace.name_of(device_id)
        if self.is_shown or not isinstance(self.trace, ImportedTrace):
            return name
        key = self.trace.run["devices_digest"].encode()[:64]
        return f"#{hashlib.blake2b(name.encode(), key=key, digest_size=6).hexdigest()}"
