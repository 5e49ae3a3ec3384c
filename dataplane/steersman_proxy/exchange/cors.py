"""Cross-origin requests from browsers (Fetch standard, section 3.2).

By default no origin is allowed, and an engine's own ``Access-Control-*`` headers are taken out:
the proxy owns the answer.
"""

from collections.abc import Sequence

from steersman_proxy.exchange.messages import HeadEdit, Header, RequestHead, Respond

EXPOSED = b"x-smg-routed-worker-id, x-smg-weight-version, x-smg-mixed-version, x-request-id"
ALLOWED = (
    b"content-type, authorization, x-api-key, x-request-id, x-smg-version-policy, "
    b"x-smg-routing-key, x-session-id, x-smg-target-worker, x-steersman-pool"
)
METHODS = b"GET, HEAD, POST, PUT, OPTIONS"
MAX_AGE = b"600"

_OWNED = frozenset(
    b"access-control-" + name
    for name in (
        b"allow-origin",
        b"allow-credentials",
        b"allow-methods",
        b"allow-headers",
        b"expose-headers",
        b"max-age",
    )
)


class Cors:
    """The rules for one list of origins; ``*`` allows every one."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._any = "*" in origins
        self._origins = frozenset(origins)

    @property
    def enabled(self) -> bool:
        """Whether any origin is allowed."""
        return bool(self._origins)

    def preflight(self, head: RequestHead) -> Respond | None:
        """The answer to a preflight of an allowed origin; it needs no key (browsers send none)."""
        if head.method != "OPTIONS" or head.first(b"access-control-request-method") is None:
            return None
        allow = self._allow(head)
        if not allow:
            return None
        return Respond(
            204,
            (
                *allow,
                (b"access-control-allow-methods", METHODS),
                (b"access-control-allow-headers", ALLOWED),
                (b"access-control-max-age", MAX_AGE),
            ),
            b"",
        )

    def edit(self, head: RequestHead) -> HeadEdit:
        """The change to the head of an answer to ``head``."""
        allow = self._allow(head) if self._origins else ()
        if not allow:
            return HeadEdit(remove=_OWNED)
        return HeadEdit(remove=_OWNED, add=(*allow, (b"access-control-expose-headers", EXPOSED)))

    def _allow(self, head: RequestHead) -> tuple[Header, ...]:
        origin = head.first(b"origin")
        if origin is None:
            return ()
        if self._any:
            return ((b"access-control-allow-origin", b"*"),)
        if origin not in self._origins:
            return ()
        return (
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"vary", b"Origin"),
        )
