"""Short words for what the tests of the upstream client do all the time."""

import asyncio
from collections.abc import Callable, Sequence

from steersman.settings import Timeouts
from steersman_proxy.http.endpoint import base_url
from steersman_proxy.http.headers import request_headers
from steersman_proxy.http.upstream import Answer, UpstreamPool

TIMEOUTS = Timeouts(connect=20.0, answer_head=20.0, stream_idle=20.0)


async def ask(
    pool: UpstreamPool,
    url: str,
    *,
    method: str = "POST",
    target: str = "/generate",
    headers: Sequence[tuple[bytes, bytes]] = (),
    body: Sequence[bytes] = (b"{}",),
    timeouts: Timeouts = TIMEOUTS,
    may_start: Callable[[], bool] | None = None,
) -> Answer:
    """One exchange, with the headers made as the adapters make them."""
    made = request_headers(
        headers,
        authority=base_url(url).authority,
        method=method,
        body_length=sum(map(len, body)),
    )
    return await pool.exchange(
        url,
        method=method,
        target=target,
        headers=made,
        body=body,
        timeouts=timeouts,
        may_start=may_start,
    )


async def read_all(answer: Answer) -> bytes:
    """The body, to its proper end."""
    parts = []
    while (part := await answer.read()) is not None:
        assert part
        parts.append(part)
    return b"".join(parts)


async def until(condition: Callable[[], object]) -> None:
    """Let the event loop turn until the condition holds; the test's own timeout bounds it."""
    while not condition():  # noqa: ASYNC110 (states of the code under test, which has no events)
        await asyncio.sleep(0.001)
