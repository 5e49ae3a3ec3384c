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
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import msgspec

from steersman.clock import Clock, Deadline
from steersman_operator.engines.answers import Reply
from steersman_operator.engines.wire import Connection, Exchanged, Target, connect, reason

CONNECT_TIMEOUT = 5.0
"""Seconds that opening a connection may take."""


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


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """What came of several questions that were asked at once."""

    replies: list[Reply | None]
    """One for each question; ``None`` for those that were not answered."""
    error: NoAnswer | None = None
    """Why the first of them was not."""
    connection: int = 0
    """The number of the connection. What came over the same one came from the same process. 0 if it
    took several."""
    ended: bool = False
    """Whether the connection was closed between two of the answers."""


class EngineClient:
    """Requests to one engine. Redirects are not followed. What changes an engine is never sent
    twice; a question is asked again if the connection that it was asked on turns out to have been
    closed meanwhile.
    """

    def __init__(self, url: str, *, keys: EngineKeys | None = None, clock: Clock) -> None:
        """``url`` is the engine's base URL; ``clock`` is the one of the deadlines."""
        self.url = url.rstrip("/")
        self.keys = keys or EngineKeys()
        self.clock = clock
        try:
            self._target: Target | None = Target.of(self.url)
        except ValueError:
            self._target = None
        self._printable = _printable(self.keys)
        self._open: set[Connection] = set()
        self._idle: list[Connection] = []
        self._turn: asyncio.Lock | None = None
        """Of a pinned client: whose turn it is on its one connection."""
        self._pinned: Connection | None = None
        """The one that it has, or had."""
        self._questions: dict[tuple[str, ...], bytes] = {}

    async def close(self) -> None:
        """End all connections."""
        for connection in list(self._open):
            connection.close()
        self._idle.clear()
        await asyncio.sleep(0)  # in which they are closed

    @asynccontextmanager
    async def pinned(self) -> AsyncIterator["EngineClient"]:
        """A client all of whose requests reach one process, over a connection of its own.

        When that connection is lost the next request is a :class:`NoAnswer` that was not sent. If
        the engine (or something in between) closes the connection after each answer, the promise
        cannot be kept, and a new one is opened.
        """
        client = EngineClient(self.url, keys=self.keys, clock=self.clock)
        client._turn = asyncio.Lock()
        try:
            yield client
        finally:
            await client.close()

    @property
    def connection(self) -> int:
        """The number of the connection that the next question goes over; 0 for a new one."""
        idle = self._idle
        while idle and not idle[-1].open:
            idle.pop()
        return idle[-1].number if idle else 0

    async def get(
        self, path: str, *, deadline: Deadline, query: Mapping[str, Any] | None = None
    ) -> Reply:
        """Read something, with the data key.

        Raises:
            NoAnswer: there was none before the deadline.
        """
        if query:
            path += "?" + urlencode(query, doseq=True)
        return _only(await self.ask((path,), deadline=deadline))

    async def ask(self, paths: Sequence[str], *, deadline: Deadline) -> Answers:
        """Read several things, with the data key. They are answered one after another, in this order
        and over one connection, so that a later one is never older than an earlier one.
        """
        rest = tuple(paths)
        replies: list[Reply | None] = []
        while True:
            requests = self._questions.get(rest)
            if requests is None:
                made = [self._request("GET", path) for path in rest]
                requests = self._questions[rest] = b"".join(made)
            answers = await self._send(requests, rest, deadline=deadline, again=True)
            if not answers.ended:
                break
            # Some servers close the connection after each answer, and some after so many.
            answered = [reply for reply in answers.replies if reply is not None]
            replies += answered
            rest = rest[len(answered) :]
        if not replies:
            return answers
        return Answers(replies=replies + answers.replies, error=answers.error)

    async def options(self, path: str, *, deadline: Deadline) -> Reply:
        """Ask for a route in a way that does nothing: 404 if it is not there.

        Raises:
            NoAnswer: there was none before the deadline.
        """
        request = self._request("OPTIONS", path)
        return _only(await self._send(request, (path,), deadline=deadline, again=True))

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
        target = path + "?" + urlencode(query, doseq=True) if query else path
        data = b"" if body is None else json.dumps(body).encode()
        request = self._request("POST", target, data=data, json_body=body is not None)
        return _only(await self._send(request, (path,), deadline=deadline, again=False))

    # --- Inside ----------------------------------------------------------------------------------

    def _request(
        self, method: str, path: str, *, data: bytes = b"", json_body: bool = False
    ) -> bytes:
        target = self._target
        if target is None:
            return b""
        lines = [
            b"%b %b%b HTTP/1.1" % (method.encode(), target.path, path.encode()),
            b"Host: " + target.authority,
            b"User-Agent: steersman",
            b"Accept: */*",
        ]
        key = self.keys.bearer(admin=method == "POST")
        if key:
            lines.append(b"Authorization: Bearer " + key.encode())
        if json_body:
            lines.append(b"Content-Type: application/json")
        if method == "POST":
            lines.append(b"Content-Length: %d" % len(data))
        return b"\r\n".join([*lines, b"", data])

    async def _send(
        self, requests: bytes, paths: tuple[str, ...], *, deadline: Deadline, again: bool
    ) -> Answers:
        """Send requests and wait for their answers; does not raise for the engine's fault."""
        count, path = len(paths), paths[0]
        if self._target is None:
            return self._none(count, "the URL is not an HTTP one", sent=False, garbled=True)
        if not self._printable:
            return self._none(count, "its key has characters that cannot be sent", sent=False)
        if deadline.remaining(self.clock) <= 0:
            return self._none(count, f"there was no time left for {path}", sent=False)
        while True:
            try:
                connection, kept = await self._connection(path, deadline=deadline)
            except NoAnswer as error:
                return Answers(replies=[None] * count, error=error)
            seconds = deadline.remaining(self.clock)
            if seconds <= 0:
                self._done_with(connection)
                return self._none(count, f"there was no time left for {path}", sent=False)
            try:
                outcome = await connection.exchange(requests, count=count, seconds=seconds)
            finally:
                self._done_with(connection)
            harmless = not outcome.sent or (again and not outcome.replies)
            if kept and self._turn is None and outcome.lost and harmless:
                continue  # It was closed before the question came.
            return self._answers(outcome, paths, connection=connection, seconds=seconds)

    async def _connection(self, path: str, *, deadline: Deadline) -> tuple[Connection, bool]:
        """A connection, and whether it is one that was kept.

        Raises:
            NoAnswer: there is none.
        """
        if self._turn is not None:
            await self._take_turn(path, deadline=deadline)
        elif self.connection:
            return self._idle.pop(), True
        had = self._pinned
        if had is not None:
            if had.open:
                return had, True
            if not had.closes:
                self._end_turn()
                raise self._no_answer(f"the connection was lost before {path}", sent=False)
        assert self._target is not None
        seconds = min(CONNECT_TIMEOUT, deadline.remaining(self.clock))
        try:
            fresh = await connect(self._target, seconds=seconds, gone=self._open.discard)
        except TimeoutError:
            self._end_turn()
            what = f"cannot connect within {seconds:.3g} s"
            raise self._no_answer(what, sent=False) from None
        except OSError as error:
            self._end_turn()
            raise self._no_answer(f"cannot connect: {reason(error)}", sent=False) from None
        except BaseException:
            self._end_turn()
            raise
        if fresh.open:
            self._open.add(fresh)
        if self._turn is not None:
            self._pinned = fresh
        return fresh, False

    async def _take_turn(self, path: str, *, deadline: Deadline) -> None:
        assert self._turn is not None
        seconds = deadline.remaining(self.clock)
        try:
            async with asyncio.timeout(seconds):
                await self._turn.acquire()
        except TimeoutError:
            raise self._no_answer(f"no answer to {path} within {seconds:.3g} s", sent=False) from (
                None
            )

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._turn.release()

    def _done_with(self, connection: Connection) -> None:
        if self._turn is not None:
            self._turn.release()
        elif connection.open:
            self._idle.append(connection)

    def _answers(
        self, outcome: Exchanged, paths: tuple[str, ...], *, connection: Connection, seconds: float
    ) -> Answers:
        replies: list[Reply | None] = [*outcome.replies]
        if not outcome.failed:
            return Answers(replies=replies[: len(paths)], connection=connection.number)
        path = paths[len(replies)]
        garbled = False
        if outcome.late:
            what = f"no answer to {path} within {seconds:.3g} s"
        elif outcome.broken is not None and outcome.broken.garbled:
            what, garbled = f"the answer to {path} is not HTTP/1.1", True
        elif outcome.broken is not None:
            what = f"the connection was lost during {path}: {outcome.broken}"
        elif not outcome.sent:
            what = f"the connection was lost before {path}"
        else:
            what = f"the connection was lost during {path}: {outcome.lost}"
        replies += [None] * (len(paths) - len(replies))
        return Answers(
            replies=replies,
            error=self._no_answer(what, sent=outcome.sent, garbled=garbled),
            connection=connection.number,
            ended=bool(outcome.replies and outcome.lost and outcome.broken is None),
        )

    def _none(self, count: int, detail: str, *, sent: bool, garbled: bool = False) -> Answers:
        error = self._no_answer(detail, sent=sent, garbled=garbled)
        return Answers(replies=[None] * count, error=error)

    def _no_answer(self, detail: str, *, sent: bool, garbled: bool = False) -> NoAnswer:
        return NoAnswer(self.keys.blank(detail), sent=sent, garbled=garbled)


def _only(answers: Answers) -> Reply:
    """The answer to the one question.

    Raises:
        NoAnswer: there was none.
    """
    reply = answers.replies[0]
    if reply is None:
        assert answers.error is not None
        raise answers.error
    return reply


def _printable(keys: EngineKeys) -> bool:
    return all(re.fullmatch(r"[\x20-\x7e]*", key or "") for key in (keys.data, keys.admin))
