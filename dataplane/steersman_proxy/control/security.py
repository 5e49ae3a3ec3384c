"""The keys by which this proxy and the operator know each other."""

from typing import Any

import msgspec


class ClientSecurity(msgspec.Struct, frozen=True, kw_only=True):
    """CURVE keys as ZeroMQ writes them (Z85, 40 characters). Its ``repr`` shows no secret."""

    server_key: str
    """The operator's public key."""
    secret_key: str
    """The proxy's own; all proxies may share one."""

    def __repr__(self) -> str:
        return f"ClientSecurity(server_key={self.server_key!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("server_key", self.server_key)]
