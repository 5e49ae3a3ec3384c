"""Where a request wants to go: its pool, its routing key, its named engine."""

import msgspec

from steersman.errors import InvalidBody, ModelNotFound, NoTable
from steersman_proxy.exchange.messages import RequestHead
from steersman_proxy.routing.view import PoolView, RoutingView

POOL = b"x-steersman-pool"
TARGET = b"x-smg-target-worker"
ROUTING_KEYS = (b"x-smg-routing-key", b"x-session-id")
EXPLAIN = b"x-steersman-explain"


class _Body(msgspec.Struct):
    model: str | None = None


_body = msgspec.json.Decoder(_Body)


def choose_pool(view: RoutingView | None, head: RequestHead, body: list[bytes]) -> PoolView:
    """The pool that the header names, or the only one, or the one of the body's ``model``.

    With a single pool the body is not read.

    :raises NoTable: if no table has come yet.
    :raises ModelNotFound: if the pool or the model is unknown.
    :raises InvalidBody: if the body must be read and cannot be.
    :raises ModelRequired: if the body names no model and no pool is the default.
    """
    if view is None:
        raise NoTable("this proxy has no fleet table yet")
    if POOL in head.raw:
        name = head.first(POOL)
        if name:
            return named_pool(view, name)
    if view.single_pool is not None:
        return view.single_pool
    return view.pool_of_model(_model(body))


def named_pool(view: RoutingView, name: str) -> PoolView:
    """The pool of that name.

    :raises ModelNotFound: if there is none.
    """
    pool = view.pools.get(name)
    if pool is None:
        raise ModelNotFound(f"x-steersman-pool names {name[:200]!r}, which is not a pool here")
    return pool


def _model(body: list[bytes]) -> str | None:
    content = body[0] if len(body) == 1 else b"".join(body)
    if not content.strip():
        return None
    try:
        return _body.decode(content).model
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidBody(
            "several pools are served, and the body is not a JSON object with a text `model`: "
            f"{error}"
        ) from None


def affinity_key(head: RequestHead) -> str | None:
    """The routing key of the request, if it carries one; an empty one is none."""
    raw = head.raw
    for name in ROUTING_KEYS:
        if name in raw:
            key = head.first(name)
            if key:
                return key
    return None


def wants_explanation(head: RequestHead) -> bool:
    """Whether the client asks why instead of asking an engine."""
    return EXPLAIN in head.raw and head.first(EXPLAIN) in ("1", "true")
