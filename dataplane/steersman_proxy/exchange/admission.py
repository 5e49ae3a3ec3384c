"""The judgement of a request's head: key, route, size, version policy; in this order.

The key comes first, so that a stranger learns nothing of routes and grammar.
"""

import msgspec

from steersman.errors import (
    BodyTooLarge,
    Draining,
    InvalidRequest,
    InvalidVersionPolicy,
    MethodNotAllowed,
    RequestError,
    UnknownRoute,
)
from steersman.policy import VersionPolicy, parse_policy
from steersman_proxy.exchange.context import Context
from steersman_proxy.exchange.messages import Header, RequestHead
from steersman_proxy.exchange.routes import UNKNOWN, Kind, Route, find_route

OWN_BODY_LIMIT = 1024**2
"""Bytes of the body of a route of our own. The largest lists thousands of requests to abort; the
probes take none at all, but open to strangers as they are, must not make us keep one."""


_OWN = Kind.OWN
"""Looked up once: a member of an enum costs 70 ns each time in Python 3.11."""


class Admission(msgspec.Struct, frozen=True):
    """What was found. With an ``error`` the request goes no further."""

    route: Route = UNKNOWN
    consumed: frozenset[bytes] = frozenset()
    """Headers that carried a key of ours; they are not passed on."""
    policy: VersionPolicy | None = None
    """The version policy of the header; ``None`` leaves it to the pool."""
    body_limit: int = 0
    """Bytes that the body may have."""
    error: RequestError | None = None
    headers: tuple[Header, ...] = ()
    """Headers that go with the error."""
    close: bool = False
    """Whether the connection cannot be used after the error."""


def admit(context: Context, head: RequestHead) -> Admission:
    """Judge a head; nothing of the body has been read yet."""
    route = find_route(head.path)
    error, consumed = context.keys.check(head, (route or UNKNOWN).access)
    if error is not None:
        challenge = ((b"www-authenticate", b"Bearer"),) if error.status == 401 else ()
        return Admission(route or UNKNOWN, error=error, headers=challenge)
    if route is None:
        return Admission(error=UnknownRoute(f"{head.path[:200]!r} is not a route of this proxy"))
    if head.method not in route.methods:
        allow = ", ".join(route.methods)
        error = MethodNotAllowed(f"{route.path} takes {allow}, not {head.method[:20]}")
        return Admission(route, error=error, headers=((b"allow", allow.encode()),))
    if context.draining and route.kind is not _OWN:
        return Admission(route, error=Draining("the proxy is shutting down"), close=True)
    limit = context.settings.max_body_bytes
    if route.kind is _OWN:
        limit = min(limit, OWN_BODY_LIMIT)
    raw = head.raw
    if head.length > limit if head.length is not None else b"content-length" in raw:
        error = oversize(head, limit=limit)
        if error is not None:
            return Admission(route, error=error, close=True)
    if b"x-smg-version-policy" not in raw:
        return Admission(route, consumed, None, limit)
    try:
        policy = _policy(head) if context.settings.rl_enabled else None
    except (InvalidVersionPolicy, InvalidRequest) as invalid:
        return Admission(route, error=invalid)
    return Admission(route, consumed, policy, limit)


def oversize(head: RequestHead, *, limit: int) -> BodyTooLarge | None:
    """The error of a request whose Content-Length is over the limit."""
    raw = head.raw.get(b"content-length", b"").strip()
    if not raw.isdigit() or int(raw[:20]) <= limit:
        return None
    length = raw[:20].decode()
    return BodyTooLarge(f"the body of {length} bytes is over the limit of {limit} bytes")


def _policy(head: RequestHead) -> VersionPolicy | None:
    text = head.first(b"x-smg-version-policy")
    return None if text is None else parse_policy(text)
