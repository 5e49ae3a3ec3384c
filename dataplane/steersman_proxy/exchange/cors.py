"""Cross-origin requests from browsers (Fetch standard, section 3.2).

By default no origin is allowed, and an engine's own ``Access-Control-*`` headers are taken out:
the proxy owns the answer.
"""

from collections.abc import Sequence

from steersman_proxy.exchange.messages import Header, RequestHead, Respond

PREFIX = b"access-control-"
"""How the names of all cross-origin headers begin, those of the future included."""


EXPOSED = b"x-smg-routed-worker-id, x-smg-weight-version, x-smg-mixed-version, x-request-id"
ALLOWED = (
    b"content-type, authorization, x-api-key, x-request-id, x-smg-version-policy, "
    b"x-smg-routing-key, x-session-id, x-smg-target-worker, x-steersman-pool"
)
METHODS = b"GET, HEAD, POST, PUT, OPTIONS"
MAX_AGE = b"600"
_VARY: Header = (b"vary", b"Origin")


class Cors:
    """The rules for one list of origins; ``*`` allows every one."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._any = "*" in origins
        self._origins = frozenset(origins)
        # Also on answers that allow nothing: a cache must not keep those for an allowed origin.
        self.enabled = bool(self._origins)
        """Whether any origin is allowed."""
        self._vary: tuple[Header, ...] = (_VARY,) if self._origins and not self._any else ()

    def preflight(self, head: RequestHead) -> Respond | None:
        """The answer to a preflight of an allowed origin; it needs no key (browsers send none)."""
        if head.method != "OPTIONS" or head.first(b"access-control-request-method") is None:
            return None
        allowed = self._allowed(head)
        if allowed is None:
            return None
        return Respond(
            204,
            (
                allowed,
                *self._vary,
                (b"access-control-allow-methods", METHODS),
                (b"access-control-allow-headers", ALLOWED),
                (b"access-control-max-age", MAX_AGE),
            ),
            b"",
        )

    def headers(self, head: RequestHead) -> tuple[Header, ...]:
        """What is added to the head of every answer to ``head`` but a preflight's."""
        allowed = self._allowed(head) if self._origins else None
        if allowed is None:
            return self._vary
        return (allowed, *self._vary, (PREFIX + b"expose-headers", EXPOSED))

    def _allowed(self, head: RequestHead) -> Header | None:
        """The header that lets the request's origin read the answer."""
        origin = head.first(b"origin")
        if origin is None:
            return None
        if self._any:
            return (PREFIX + b"allow-origin", b"*")
        if origin not in self._origins:
            return None
        return (PREFIX + b"allow-origin", origin.encode("latin-1"))
