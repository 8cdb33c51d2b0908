"""Shown names of devices: a log's devices appear by a hash of their name, unless names are
requested."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedray.trace.imported import ImportedTrace, hashed_name, name_text
from fedray.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class DeviceNames:
    """Names of a trace's devices.

    A log's device is shown by `hashed_name`. Simulated devices are shown by their ids.
    """

    trace: Trace | ImportedTrace
    is_shown: bool = False
    """Whether a log's devices appear by their names."""

    def of(self, device_id: int) -> str:
        """Returns the shown name of a device: of a log its name or a hash of it, of a simulated run
        its id."""
        return self.all_of([device_id])[0]

    def owner(self, owner_id: int) -> str:
        """Returns the shown name of a person, as `of` does for a device."""
        return self._shown(self.trace.owner_names([owner_id]))[0]

    def all_of(self, device_ids: Sequence[int]) -> list[str]:
        """Returns the shown names of devices, in their order, each as `of` returns it."""
        return self._shown(self.trace.names_of(device_ids))

    def in_text(self, text: str) -> str:
        """Returns a text of the import with the shown names of this trace's devices."""
        if self.is_shown and isinstance(self.trace, ImportedTrace) and "device #" in text:
            for name in self.trace.ids_of("device").to_pylist():
                hashed = hashed_name(name, self.trace.run["devices_digest"])
                text = text.replace(hashed, name_text(name))
        return text

    def _shown(self, names: list[str]) -> list[str]:
        if self.is_shown or not isinstance(self.trace, ImportedTrace):
            return names
        # The key is the trace's own, so that a device has one hash in all audits of the trace.
        return [hashed_name(name, self.trace.run["devices_digest"]) for name in names]
