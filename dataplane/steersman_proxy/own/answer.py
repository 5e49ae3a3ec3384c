"""The answer of one of the proxy's own routes."""

from typing import Any

import msgspec

from steersman.errors import RequestError
from steersman_proxy.exchange.messages import Header
from steersman_proxy.exchange.replies import JSON, reply_with
from steersman_proxy.routing.engines import Engine


class OwnAnswer(msgspec.Struct, frozen=True):
    """A whole answer, without the framing and without what every answer of the proxy carries.

    After HEAD the adapter leaves the body out.
    """

    status: int
    headers: tuple[Header, ...]
    body: bytes
    engine: Engine | None = None
    """The one engine whose answer this is, for the stamp."""


def json_answer(
    content: Any,
    *,
    status: int = 200,
    engine: Engine | None = None,
    headers: tuple[Header, ...] = (),
) -> OwnAnswer:
    """``content`` as JSON."""
    return OwnAnswer(status, (JSON, *headers), msgspec.json.encode(content), engine)


def error_answer(error: RequestError, **more: Any) -> OwnAnswer:
    """The answer that tells of ``error``, with ``more`` members beside its object."""
    reply = reply_with(error)
    body = reply.body
    if more:
        body = msgspec.json.encode(msgspec.json.decode(body) | more)
    return OwnAnswer(reply.status, reply.headers, body)
