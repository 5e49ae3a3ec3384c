"""Who may connect: CURVE keys of the server, and of the clients that it lets in."""

from typing import Any

import msgspec
import zmq
import zmq.asyncio
from zmq.auth.asyncio import AsyncioAuthenticator


class Security(msgspec.Struct, frozen=True, kw_only=True):
    """Keys as ZeroMQ writes them (Z85, 40 characters). Its ``repr`` shows no secret."""

    secret_key: str
    """The server's own."""
    client_keys: frozenset[str]
    """Public keys of the clients; all proxies may share one."""

    @property
    def public_key(self) -> str:
        """What clients are given to know the server by."""
        return zmq.curve_public(self.secret_key.encode()).decode()

    def __repr__(self) -> str:
        return f"Security(<secret>, {len(self.client_keys)} client keys)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("client_keys", len(self.client_keys))]


class _Allowed:
    """The answer to ZeroMQ's question whether a client's key is good."""

    def __init__(self, keys: frozenset[str]) -> None:
        self._keys = keys
        self.refused = 0

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether the holder of ``key`` may connect; ``domain`` is ours alone."""
        allowed = key.decode("ascii", "replace") in self._keys
        self.refused += not allowed
        return allowed


class Gatekeeper:
    """Answers ZeroMQ's questions of one context while it runs."""

    def __init__(self, context: zmq.asyncio.Context, security: Security) -> None:
        self._allowed = _Allowed(security.client_keys)
        self._authenticator = AsyncioAuthenticator(context)
        self._security = security

    @property
    def refused(self) -> int:
        """Connections with a key that is not let in."""
        return self._allowed.refused

    def start(self, socket: zmq.asyncio.Socket) -> None:
        """Begin to answer, and make a socket ask. Before the socket is bound."""
        self._authenticator.start()
        self._authenticator.configure_curve_callback("*", credentials_provider=self._allowed)
        socket.curve_server = True
        socket.curve_secretkey = self._security.secret_key.encode()

    def stop(self) -> None:
        """Stop answering; before the context ends."""
        self._authenticator.stop()
