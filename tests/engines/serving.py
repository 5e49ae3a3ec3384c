"""An engine client, and servers that answer whatever a test wants."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from steersman.clock import Deadline, MonotonicClock
from steersman_operator.engines import EngineClient, EngineKeys
from steersman_operator.engines.answers import Reply
from steersman_operator.engines.client import Answers, NoAnswer

CLOCK = MonotonicClock()

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def soon(seconds: float = 30.0) -> Deadline:
    return Deadline.after(CLOCK, seconds)


@asynccontextmanager
async def to(url: str, **options: EngineKeys) -> AsyncIterator[EngineClient]:
    client = EngineClient(url, clock=CLOCK, **options)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def answering(raw: bytes, *, close: bool = True) -> AsyncIterator[str]:
    """A server that answers each request with these bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(raw)
                await writer.drain()
                if close:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield "http://{}:{}".format(*server.sockets[0].getsockname())


async def no_answer(call: Awaitable[Reply]) -> NoAnswer:
    with pytest.raises(NoAnswer) as caught:
        await call
    return caught.value


def counted(head: bytes, *, per_connection: int) -> Handler:
    """Answers each question with its path, and closes the connection after so many of them."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for _ in range(per_connection):
                path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
                writer.write(head + b"Content-Length: %d\r\n\r\n%b" % (len(path), path))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    return serve


@asynccontextmanager
async def served_by(handler: Handler) -> AsyncIterator[str]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    async with server:
        yield "http://{}:{}".format(*server.sockets[0].getsockname())


PATHS = ("/a", "/b", "/c")


def bodies(answers: Answers) -> list[bytes | None]:
    return [None if reply is None else reply.body for reply in answers.replies]
