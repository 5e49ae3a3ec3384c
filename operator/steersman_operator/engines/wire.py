"""One connection to an engine, over which one exchange takes place at a time.

Nothing of a general HTTP client is needed here, and a look at an engine is a handful of questions
whose answers are short: what a general one does for each of them would cost most of what an operator
of five hundred engines may cost. All questions of a look are written at once, and answered in turn.
"""

import asyncio
import contextlib
import itertools
import os
import re
import socket
import ssl
from collections.abc import Callable
from functools import cache
from typing import cast
from urllib.parse import quote, urlsplit

import msgspec

from steersman_operator.engines.answers import AnswerReader, Broken, Reply

_numbers = itertools.count(1)


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where a URL leads."""

    host: str
    port: int
    tls: bool
    authority: bytes
    """As it stands in ``Host``."""
    path: bytes
    """What goes before every path."""

    @classmethod
    def of(cls, url: str) -> "Target":
        """Read a base URL.

        Raises:
            ValueError: it is not an HTTP one.
        """
        parts = urlsplit(url)
        host, port, tls = parts.hostname, parts.port, parts.scheme == "https"
        if parts.scheme not in ("http", "https") or not host:
            raise ValueError(url)
        shown = f"[{host}]" if ":" in host else host.encode("idna").decode()
        if port not in (None, 443 if tls else 80):
            shown += f":{port}"
        return cls(
            host=host,
            port=port or (443 if tls else 80),
            tls=tls,
            authority=shown.encode(),
            path=quote(parts.path, safe="/%:@!$&'()*+,;=~-._").encode(),
        )


class Exchanged(msgspec.Struct, frozen=True, kw_only=True):
    """How an exchange ended."""

    replies: list[Reply]
    """The answers, in the order of the requests; fewer than were asked for if it failed."""
    sent: bool = True
    """Whether anything was written."""
    late: bool = False
    broken: Broken | None = None
    lost: str = ""
    """Why the connection is gone: a clause; empty if it is not."""

    @property
    def failed(self) -> bool:
        """Whether answers are missing."""
        return self.late or self.broken is not None or bool(self.lost)


class Connection(asyncio.Protocol):
    """One connection; made by :func:`connect`."""

    def __init__(self, *, gone: Callable[["Connection"], None]) -> None:
        """``gone`` is called once, when it has ended."""
        self.number = next(_numbers)
        """Different for every connection of this process."""
        self.open = False
        """Whether another exchange may be begun on it."""
        self._gone = gone
        self._reader = AnswerReader()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._replies: list[Reply] = []
        self._wanted = 0
        self._broken: Broken | None = None
        self._lost = ""

    @property
    def closes(self) -> bool:
        """Whether the engine has said that it closes it after the last answer."""
        return self._reader.closes

    async def exchange(self, requests: bytes, *, count: int, seconds: float) -> Exchanged:
        """Write so many requests, and wait for their answers. A connection on which one is missing
        is closed.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            self.close()
            return Exchanged(replies=[], sent=False, lost=self._lost or "the engine has closed it")
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        self._replies, self._wanted = [], count
        timer = loop.call_later(seconds, self._wake)
        transport.write(requests)
        try:
            await waiter
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            timer.cancel()
            self._waiter = None
        replies = self._replies
        outcome = Exchanged(replies=replies)
        if len(replies) < count:
            late = self._broken is None and not self._lost
            outcome = Exchanged(replies=replies, late=late, broken=self._broken, lost=self._lost)
        if len(replies) != count or self.closes or not self._reader.between:
            self.close()
        return outcome

    def close(self) -> None:
        """End it at once."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- Called by the loop ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It stands."""
        # Those of uvloop are no subclass of it.
        self._transport = cast(asyncio.Transport, transport)
        self.open = True

    def data_received(self, data: bytes) -> None:
        """Some bytes have come."""
        try:
            self._replies += self._reader.feed(data)
        except Broken as error:
            self._broken = error
        if self._waiter is None or self._broken is not None:
            # Nobody has asked for it, or it is no answer.
            self.close()
        if self._broken is not None or len(self._replies) >= self._wanted:
            self._wake()

    def eof_received(self) -> None:
        """Nothing more will come; the connection is closed."""
        self.open = False
        try:
            last = self._reader.end()
        except Broken as error:
            self._broken = error
        else:
            if last is not None:
                self._replies.append(last)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self.open = False
        self._lost = reason(exc) if exc is not None else "the engine has closed it"
        self._wake()
        self._gone(self)


async def connect(
    target: Target, *, seconds: float, gone: Callable[[Connection], None]
) -> Connection:
    """Open a connection.

    Raises:
        TimeoutError: not in time.
        OSError: it cannot be opened.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(seconds):
        _, connection = await loop.create_connection(
            lambda: Connection(gone=gone),
            target.host,
            target.port,
            ssl=_tls() if target.tls else None,
        )
    return connection


@cache
def _tls() -> ssl.SSLContext:
    """The same for all, as it takes milliseconds to make."""
    return ssl.create_default_context()


def reason(error: BaseException) -> str:
    """Why, without an address: the engine is named by whoever shows it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, socket.gaierror):
        return str(error.strerror).lower()
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno:
        with contextlib.suppress(ValueError):
            return os.strerror(error.errno).lower()
    return re.sub(r"\s+", " ", str(error)).strip().lower()[:80] or type(error).__name__
