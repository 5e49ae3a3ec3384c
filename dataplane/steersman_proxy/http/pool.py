"""The idle connections to all engines."""

from steersman_proxy.http.connection import Connection
from steersman_proxy.http.endpoint import Endpoint


class IdleConnections:
    """Last in, first out: the connection used most lately is the least likely to be closed already.

    The others age until their idle limit, so that a burst's connections do not stay for ever.
    """

    def __init__(self, *, max_per_endpoint: int) -> None:
        self._max = max_per_endpoint
        # Dictionaries as ordered sets: taken from the end, removed from anywhere.
        self._idle: dict[Endpoint, dict[Connection, None]] = {}

    def put(self, endpoint: Endpoint, connection: Connection) -> None:
        """Keep a connection; the one that was idle longest is closed if there are too many."""
        idle = self._idle.setdefault(endpoint, {})
        idle[connection] = None
        if len(idle) > self._max:
            oldest = next(iter(idle))
            del idle[oldest]
            oldest.abort()

    def take(self, endpoint: Endpoint) -> Connection | None:
        """The connection that was put last and is still usable; unusable ones are closed."""
        idle = self._idle.get(endpoint)
        while idle:
            connection, _ = idle.popitem()
            if connection.usable:
                return connection
            connection.abort()
        return None

    def discard(self, endpoint: Endpoint, connection: Connection) -> None:
        """Forget a connection that was lost, if it is here."""
        idle = self._idle.get(endpoint)
        if idle is not None:
            idle.pop(connection, None)
            if not idle:
                del self._idle[endpoint]

    def count(self, endpoint: Endpoint) -> int:
        """How many connections to the endpoint are idle."""
        return len(self._idle.get(endpoint, ()))

    def close(self) -> None:
        """Close them all."""
        for idle in self._idle.values():
            for connection in idle:
                connection.abort()
        self._idle.clear()
