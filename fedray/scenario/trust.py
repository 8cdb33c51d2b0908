"""The tables `privacy.trust`: who is trusted with updates without noise."""

from typing import Annotated, Literal

from pydantic import Tag

from fedray.base.table import Table, told_apart_by
from fedray.encoding.tables import DevicesTrust, LocalTrust

__all__ = ["EnclaveTrust", "ServerTrust"]


class ServerTrust(Table):
    """Trust in the server, which adds the noise."""

    kind: Literal["server"] = "server"
    """The server sees sums of updates, and adds the noise."""


class EnclaveTrust(Table):
    """Trust in attested hardware, which sums updates and adds the noise out of the operator's
    sight."""

    kind: Literal["enclave"] = "enclave"
    """An enclave on the server sums updates and adds the noise."""


AnyTrust = Annotated[
    Annotated[ServerTrust, Tag("server")]
    | Annotated[DevicesTrust, Tag("devices")]
    | Annotated[EnclaveTrust, Tag("enclave")]
    | Annotated[LocalTrust, Tag("local")],
    told_apart_by("kind", "server"),
]
"""The union of all tables of trust, by `kind`."""
