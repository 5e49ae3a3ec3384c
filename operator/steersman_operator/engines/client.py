"""HTTP to one engine's control routes: one question, one answer, or why there was none.

What matters of a call without an answer is whether the engine may have received it. A call of which
no byte was written surely changed nothing; any other one may have happened, or may happen yet. So
every failure is one :class:`NoAnswer` that says which of the two it is.

A call that must reach the very process that was looked at goes over :meth:`EngineClient.pinned`: a
TCP connection ends with the process that accepted it, so that a restarted engine never gets a call
that was meant for the one before.
"""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import aiohttp
import msgspec

from steersman.clock import Clock, Deadline

CONNECT_TIMEOUT = 5.0
"""Seconds that opening a connection may take."""

BODY_LIMIT = 8 << 20
"""Bytes of the longest answer that is read; SGLang's ``/server_info`` has some 100 kB."""

EXCERPT = 160
"""Characters of an engine's own words that a detail repeats."""


class EngineKeys(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine asks to be shown as a bearer token.

    SGLang 0.5.23 started with both keys refuses the data key on its control routes, and the admin
    key on the others.
    """

    data: str | None = None
    admin: str | None = None

    def __repr__(self) -> str:
        """Without the keys."""
        return "EngineKeys(…)"

    def bearer(self, *, admin: bool) -> str | None:
        """The key for a route."""
        return self.admin or self.data if admin else self.data

    def blank(self, text: str) -> str:
        """A text of the engine's in which no key can be read."""
        for key in (self.data, self.admin):
            if key:
                text = text.replace(key, "***")
        return text


class NoAnswer(Exception):
    """An engine did not answer. ``str()`` is a clause for a person."""

    def __init__(self, detail: str, *, sent: bool, garbled: bool = False) -> None:
        super().__init__(detail)
        self.sent = sent
        """Whether the engine may have received it."""
        self.garbled = garbled
        """Whether something answered that does not speak HTTP/1.1."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer."""

    status: int
    body: bytes

    @property
    def ok(self) -> bool:
        """Whether it is a 200."""
        return self.status == 200

    @property
    def text(self) -> str:
        """The body as text, whatever it is."""
        return self.body.decode(errors="replace")

    def value(self) -> Any:
        """The body as JSON; ``None`` also if it is none."""
        try:
            return msgspec.json.decode(self.body)
        except (ValueError, RecursionError):
            pass
        try:
            # Slower, and knows NaN and Infinity, which Python's servers write.
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def fields(self) -> dict[str, Any]:
        """The body as a JSON object; an empty one if it is none."""
        value = self.value()
        return value if isinstance(value, dict) else {}

    def words(self) -> str:
        """What the engine says in it, on one line and cut short."""
        fields = self.fields()
        said: Any = fields.get("error") or fields.get("message") or fields.get("detail")
        if isinstance(said, dict):
            said = said.get("message")
        text = said if isinstance(said, str) else self.text
        text = re.sub(r"\s+", " ", text).strip()
        return text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…"


class _OtherConnection(Exception):
    """A pinned connection is gone."""


class _Pin:
    """Lets a session open one connection, and another only if the engine closes each itself."""

    def __init__(self) -> None:
        self.opened = False
        self.closed_by_engine = False

    def open(self) -> None:
        if self.opened and not self.closed_by_engine:
            raise _OtherConnection
        self.opened = True


class EngineClient:
    """Requests to one engine. Redirects are not followed; nothing is ever sent twice."""

    def __init__(self, url: str, *, keys: EngineKeys | None = None, clock: Clock) -> None:
        """``url`` is the engine's base URL; ``clock`` is the one of the deadlines."""
        self.url = url.rstrip("/")
        self.keys = keys or EngineKeys()
        self.clock = clock
        self._pin: _Pin | None = None
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """End all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def pinned(self) -> AsyncIterator["EngineClient"]:
        """A client all of whose requests reach one process, over a connection of its own.

        When that connection is lost the next request is a :class:`NoAnswer` that was not sent. If
        the engine (or something in between) closes the connection after each answer, the promise
        cannot be kept, and a new one is opened.
        """
        client = EngineClient(self.url, keys=self.keys, clock=self.clock)
        client._pin = _Pin()
        try:
            yield client
        finally:
            await client.close()

    async def get(
        self, path: str, *, deadline: Deadline, query: Mapping[str, Any] | None = None
    ) -> Reply:
        """Read something, with the data key.

        Raises:
            NoAnswer: there was none before the deadline.
        """
        return await self._send("GET", path, deadline=deadline, query=query)

    async def options(self, path: str, *, deadline: Deadline) -> Reply:
        """Ask for a route in a way that does nothing: 404 if it is not there.

        Raises:
            NoAnswer: there was none before the deadline.
        """
        return await self._send("OPTIONS", path, deadline=deadline, query=None)

    async def post(
        self,
        path: str,
        *,
        deadline: Deadline,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Reply:
        """Change something, with the admin key if there is one. ``body`` goes as JSON.

        Raises:
            NoAnswer: there was none before the deadline.
        """
        return await self._send("POST", path, deadline=deadline, query=query, body=body)

    async def _send(
        self,
        method: str,
        path: str,
        *,
        deadline: Deadline,
        query: Mapping[str, Any] | None,
        body: Mapping[str, Any] | None = None,
    ) -> Reply:
        seconds = deadline.remaining(self.clock)
        if seconds <= 0:
            raise NoAnswer(f"there was no time left for {path}", sent=False)
        headers = {"User-Agent": "steersman"}
        key = self.keys.bearer(admin=method == "POST")
        if key:
            headers["Authorization"] = f"Bearer {key}"
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        target = self.url + path + ("?" + urlencode(query, doseq=True) if query else "")
        attempt = SimpleNamespace(sent=False)
        try:
            async with asyncio.timeout(seconds):
                return await self._exchange(
                    method, target, headers=headers, data=data, attempt=attempt
                )
        except TimeoutError:
            raise self._no_answer(f"no answer to {path} within {seconds:.3g} s", attempt) from None
        except _OtherConnection:
            raise self._no_answer(f"the connection was lost before {path}", attempt) from None
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
            raise self._no_answer("the URL is not an HTTP one", attempt, garbled=True) from None
        except aiohttp.ClientResponseError:
            what = f"the answer to {path} is not HTTP/1.1"
            raise self._no_answer(what, attempt, garbled=True) from None
        except aiohttp.ClientConnectorError as error:
            raise self._no_answer(f"cannot connect: {_reason(error)}", attempt) from None
        except (aiohttp.ClientError, OSError) as error:
            what = f"the connection was lost during {path}: {_reason(error)}"
            raise self._no_answer(what, attempt) from None

    def _no_answer(
        self, detail: str, attempt: SimpleNamespace, *, garbled: bool = False
    ) -> NoAnswer:
        return NoAnswer(self.keys.blank(detail), sent=attempt.sent, garbled=garbled)

    async def _exchange(
        self,
        method: str,
        target: str,
        *,
        headers: dict[str, str],
        data: bytes | None,
        attempt: SimpleNamespace,
    ) -> Reply:
        session = self._open_session()
        async with session.request(
            method,
            target,
            headers=headers,
            data=data,
            allow_redirects=False,
            trace_request_ctx=attempt,
        ) as response:
            if self._pin is not None:
                closing = response.headers.get("Connection", "").lower() == "close"
                self._pin.closed_by_engine = closing
            parts: list[bytes] = []
            size = 0
            async for part in response.content.iter_any():
                size += len(part)
                if size > BODY_LIMIT:
                    raise aiohttp.ClientPayloadError("the answer is too long")
                parts.append(part)
            return Reply(status=response.status, body=b"".join(parts))

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            traces = aiohttp.TraceConfig()
            traces.on_request_headers_sent.append(_sent)
            pin = self._pin
            if pin is not None:

                async def opening(*_: object) -> None:
                    pin.open()

                traces.on_connection_create_start.append(opening)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=1 if pin else 8),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
                cookie_jar=aiohttp.DummyCookieJar(),
                trace_configs=[traces],
            )
        return self._session


async def _sent(
    _: aiohttp.ClientSession, context: SimpleNamespace, __: aiohttp.TraceRequestHeadersSentParams
) -> None:
    """Called right before the first byte is written."""
    context.trace_request_ctx.sent = True


def _reason(error: BaseException) -> str:
    """Why, without an address: the engine is named by whoever shows it."""
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return re.sub(r"\s+", " ", str(error)).strip().lower()[:80] or type(error).__name__
