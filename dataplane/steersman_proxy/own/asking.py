"""One question of our own to one engine: a probe, a look at its load, an abort.

Such calls obey the same rule as a client's request: they count in flight from the moment that the
gate was seen open, so that nobody pauses, sleeps or refits an engine under one. They carry the
pool's engine key and nothing of the client's head.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from steersman.settings import Timeouts
from steersman_proxy.exchange.messages import Failure
from steersman_proxy.http.endpoint import base_url
from steersman_proxy.http.failure import AttemptFailed
from steersman_proxy.http.headers import request_headers
from steersman_proxy.http.upstream import Answer, UpstreamPool
from steersman_proxy.load.inflight import Guard
from steersman_proxy.routing.engines import Engine

MAX_ANSWER = 16 * 1024**2
"""Bytes of an engine's answer that are read; the biggest known is a `/metrics` of some 1 MiB."""

_TIMEOUTS = frozenset({Failure.CONNECT_TIMEOUT, Failure.HEAD_TIMEOUT, Failure.IDLE_TIMEOUT})


class NotAsked(Exception):
    """The engine must not be asked now; ``str()`` is the reason, one word."""


class AskFailed(Exception):
    """The engine did not answer whole. ``str()`` says what happened, without any key."""

    def __init__(self, message: str, *, timeout: bool = False, exhausted: bool = False) -> None:
        super().__init__(message)
        self.exhausted = exhausted
        """Whether the proxy could not try, so that nothing is known of the engine."""
        self.timeout = timeout
        """Whether the engine may still be working on it."""


class EngineAnswer(msgspec.Struct, frozen=True):
    """An engine's whole answer."""

    status: int
    body: bytes
    content_type: str = ""

    @property
    def ok(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    def json(self) -> Any:
        """The body as JSON; ``None`` if it is none, or is the JSON ``null``."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None


class EngineAsker:
    """Asks engines, over the proxy's own connections.

    ``engine_keys`` are the keys by pool. With RL off, gates and control states do not count.
    """

    def __init__(
        self, upstream: UpstreamPool, *, engine_keys: Mapping[str, str], rl_enabled: bool = True
    ) -> None:
        self._upstream = upstream
        self._keys = engine_keys
        self._rl_enabled = rl_enabled

    def out(self, engine: Engine) -> str | None:
        """Why the engine must not be asked now; ``None`` if it may be.

        A paused engine may: aborts and flushes are for those as well, as long as the gate is open.
        """
        if engine.pool is None:
            return "gone"
        if not self._rl_enabled:
            return None
        if engine.row.failed:
            return "failed"
        if engine.row.released:
            return "asleep"
        return None if engine.row.gate.open else "gate_closed"

    def key(self, pool: str) -> str | None:
        """The key of the pool's engines."""
        return self._keys.get(pool)

    async def ask(
        self,
        engine: Engine,
        *,
        target: str,
        timeout: float,
        method: str = "GET",
        body: bytes | None = None,
    ) -> EngineAnswer:
        """Send one request and read the whole answer, within ``timeout`` seconds.

        ``body`` is JSON.

        :raises NotAsked: if the engine's gate is closed, or it sleeps, or has left the table.
        :raises AskFailed: if there was no whole answer.
        """
        reason = self.out(engine)
        if reason is not None:
            raise NotAsked(reason)
        # Counted before the first pause, so that a gate that was seen open is a gate kept open.
        guard = _count(engine)
        answer: Answer | None = None
        try:
            async with asyncio.timeout(timeout):
                answer = await self._send(
                    engine, method=method, target=target, body=body, timeout=timeout
                )
                return await _read(answer)
        except AttemptFailed as error:
            raise AskFailed(
                error.detail,
                timeout=error.failure in _TIMEOUTS,
                exhausted=error.failure is Failure.EXHAUSTED,
            ) from None
        except TimeoutError:
            raise AskFailed(f"no answer within {timeout:g} s", timeout=True) from None
        except ValueError as error:  # a URL or a header that cannot be sent
            raise AskFailed(str(error)) from None
        finally:
            if answer is not None:
                answer.abort()  # does nothing after the end
            guard.release()

    async def _send(
        self, engine: Engine, *, method: str, target: str, body: bytes | None, timeout: float
    ) -> Answer:
        add = [(b"Accept", b"application/json, */*")]
        key = self._keys.get(engine.row.pool)
        if key is not None:
            add.append((b"Authorization", b"Bearer " + key.encode()))
        if body is not None:
            add.append((b"Content-Type", b"application/json"))
        headers = request_headers(
            (),
            authority=base_url(engine.url).authority,
            method=method,
            body_length=len(body or b""),
            add=add,
        )
        return await self._upstream.exchange(
            engine.url,
            method=method,
            target=target,
            headers=headers,
            body=[body] if body else [],
            timeouts=Timeouts(connect=min(5.0, timeout), answer_head=timeout, stream_idle=timeout),
        )


def _count(engine: Engine) -> Guard:
    """Count one question in flight, in the order of loads that its pool keeps as well."""
    requests = engine.load.requests
    guard = engine.load.take()
    if engine.pool is not None and engine.pool.levels is not None:
        engine.pool.levels.move(1 << engine.index, old=requests, new=requests + 1)
    return guard


async def _read(answer: Answer) -> EngineAnswer:
    parts = []
    size = 0
    while (part := await answer.read()) is not None:
        size += len(part)
        if size > MAX_ANSWER:
            raise AskFailed(f"the answer is over {MAX_ANSWER} bytes")
        parts.append(part)
    content_type = next(
        (
            value.decode("latin-1")
            for name, value in answer.headers
            if name.lower() == b"content-type"
        ),
        "",
    )
    return EngineAnswer(answer.status, b"".join(parts), content_type)
