"""The connections of an engine client: kept, shared by several questions, ended, and secured."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from steersman.clock import Deadline, FakeClock
from steersman_operator.engines import EngineClient, EngineKeys
from steersman_operator.engines import wire as wire_module
from steersman_operator.engines.answers import Reply
from steersman_operator.engines.wire import Target
from steersman_sim.engine import Fault
from tests.engines.serving import (
    PATHS,
    Handler,
    answering,
    bodies,
    counted,
    no_answer,
    served_by,
    soon,
    to,
)
from tests.engines.support import TIMEOUT, once
from tests.sim.support import serving, sglang

# --- Several questions at once --------------------------------------------------------------------


async def test_questions_are_answered_in_order_over_one_connection() -> None:
    async with serving(sglang()) as engine, to(engine.engine.url) as client:
        answers = await client.ask(("/ping", "/nothing", "/v1/models"), deadline=soon())
        assert [reply and reply.status for reply in answers.replies] == [200, 404, 200]
        assert answers.error is None
        again = await client.ask(("/ping",), deadline=soon())
        assert again.connection == answers.connection == client.connection != 0
        assert len({entry.connection for entry in engine.engine.journal.entries}) == 1


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nConnection: close\r\n"]
)
@pytest.mark.parametrize("per_connection", [1, 2])
async def test_an_engine_that_closes_between_two_answers_is_asked_for_the_rest(
    head: bytes, per_connection: int
) -> None:
    async with served_by(counted(head, per_connection=per_connection)) as url, to(url) as client:
        answers = await client.ask(PATHS, deadline=soon())
        assert bodies(answers) == [b"/a", b"/b", b"/c"]
        assert (answers.error, answers.connection) == (None, 0)


async def test_what_was_answered_before_a_question_hangs() -> None:
    async with serving(sglang()) as engine, to(engine.engine.url) as client:
        engine.engine.faults.arm("/ready", Fault(hang=True))
        answers = await client.ask(("/ping", "/ready", "/model_info"), deadline=soon(TIMEOUT))
        assert [reply and reply.status for reply in answers.replies] == [200, None, None]
        assert answers.error is not None
        assert "no answer to /ready within" in str(answers.error)
        assert client.connection == 0, "what comes late must not be taken for another answer"
        assert (await client.get("/ping", deadline=soon())).ok


async def test_an_engine_that_dies_between_two_answers() -> None:
    async with serving(sglang()) as engine, to(engine.engine.url) as client:
        engine.engine.faults.arm("/ready", once(die=True))
        answers = await client.ask(("/ping", "/ready", "/model_info"), deadline=soon())
        assert [reply and reply.status for reply in answers.replies] == [200, None, None]
        assert answers.error is not None


async def test_answers_that_nobody_asked_for_end_the_connection() -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    async with answering(raw * 2, close=False) as url, to(url) as client:
        assert (await client.get("/a", deadline=soon())).ok
        assert client.connection == 0
    async with answering(raw + b"HTTP/1.1 2", close=False) as url, to(url) as client:
        assert (await client.get("/a", deadline=soon())).ok
        assert client.connection == 0, "half of one is no better"


# --- Connections that are kept --------------------------------------------------------------------


class Closing:
    """Closes each connection when the next request has come, without an answer."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.requests.append(await reader.readuntil(b"\r\n"))
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            self.requests.append(await reader.readuntil(b"\r\n"))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def test_a_question_is_asked_again_if_its_connection_was_closed_meanwhile() -> None:
    handler = Closing()
    async with served_by(handler) as url, to(url) as client:
        assert (await client.get("/a", deadline=soon())).ok
        assert (await client.get("/b", deadline=soon())).ok
        assert [line.split()[1] for line in handler.requests] == [b"/a", b"/b", b"/b"]


async def test_a_change_is_not() -> None:
    handler = Closing()
    async with served_by(handler) as url, to(url) as client:
        assert (await client.get("/a", deadline=soon())).ok
        assert (await no_answer(client.post("/b", deadline=soon()))).sent
        assert [line.split()[1] for line in handler.requests] == [b"/a", b"/b"]


async def test_nor_is_a_question_that_was_for_one_process() -> None:
    handler = Closing()
    async with served_by(handler) as url, to(url) as client, client.pinned() as pinned:
        assert (await pinned.get("/a", deadline=soon())).ok
        assert (await no_answer(pinned.get("/b", deadline=soon()))).sent
        assert not (await no_answer(pinned.get("/c", deadline=soon()))).sent
        assert [line.split()[1] for line in handler.requests] == [b"/a", b"/b"]


async def test_whoever_waits_for_the_one_connection_in_vain_has_sent_nothing() -> None:
    async with serving(sglang()) as engine, to(engine.engine.url) as client:
        engine.engine.faults.arm("/ping", Fault(hang=True))
        async with client.pinned() as pinned:
            hanging = asyncio.create_task(pinned.get("/ping", deadline=soon()))
            await engine.engine.until(lambda: bool(engine.engine.journal.of("/ping")))
            error = await no_answer(pinned.post("/pause_generation", deadline=soon(0.1)))
            assert not error.sent
            hanging.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await hanging
            assert not (await no_answer(pinned.get("/ready", deadline=soon()))).sent
        assert not engine.engine.journal.of("/pause_generation")


async def test_a_call_that_is_given_up_ends_its_connection() -> None:
    async with serving(sglang()) as engine, to(engine.engine.url) as client:
        engine.engine.faults.arm("/generate", Fault(hang=True))
        task = asyncio.create_task(client.post("/generate", body={}, deadline=soon()))
        await engine.engine.until(lambda: bool(engine.engine.journal.entries))
        task.cancel()
        await engine.engine.until(lambda: engine.engine.journal.entries[0].disconnected)
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_closing_ends_calls_that_are_under_way() -> None:
    async with serving(sglang()) as engine, to(engine.engine.url) as client:
        engine.engine.faults.arm("/ping", Fault(hang=True))
        task = asyncio.create_task(no_answer(client.get("/ping", deadline=soon())))
        await engine.engine.until(lambda: bool(engine.engine.journal.entries))
        await client.close()
        assert (await task).sent


# --- URLs and keys --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "host", "path"),
    [
        ("http://engine-0:30000", b"engine-0:30000", b"/ping"),
        ("http://engine-0", b"engine-0", b"/ping"),
        ("http://engine-0:80/", b"engine-0", b"/ping"),
        ("https://engine-0:443", b"engine-0", b"/ping"),
        ("https://engine-0:80", b"engine-0:80", b"/ping"),
        ("http://[fd00::1]:30000", b"[fd00::1]:30000", b"/ping"),
        ("http://[fd00::1]", b"[fd00::1]", b"/ping"),
        ("http://engine-0:1/below/here/", b"engine-0:1", b"/below/here/ping"),
        ("http://engine-0:1/a b", b"engine-0:1", b"/a%20b/ping"),
        ("http://münchen:1", b"xn--mnchen-3ya:1", b"/ping"),
    ],
)
def test_what_a_url_says(url: str, host: bytes, path: bytes) -> None:
    target = Target.of(url.rstrip("/"))
    assert target.authority == host
    assert target.path + b"/ping" == path


@pytest.mark.parametrize("url", ["http://a:b", "http://a:99999", "ftp://a", "http:///x", ""])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Target.of(url)


async def test_an_engine_below_a_path() -> None:
    handler = counted(b"HTTP/1.1 200 OK\r\n", per_connection=9)
    async with served_by(handler) as url, to(url + "/below") as client:
        query = {"a": "b c", "d": ["1", "2"]}
        reply = await client.get("/ping", query=query, deadline=soon())
        assert reply.body == b"/below/ping?a=b+c&d=1&d=2"


async def test_a_key_cannot_carry_a_header() -> None:
    keys = EngineKeys(data="k\r\nX-Evil: 1")
    async with serving(sglang()) as engine, to(engine.engine.url, keys=keys) as client:
        error = await no_answer(client.get("/ping", deadline=soon()))
        assert not error.sent
        assert "X-Evil" not in str(error)
        assert not engine.engine.journal.entries


async def test_a_name_that_nobody_knows_is_said() -> None:
    async with to("http://engine.invalid:1") as client:
        error = await no_answer(client.get("/ping", deadline=soon()))
        assert not error.sent
        assert str(error).startswith("cannot connect: ")


async def test_whoever_has_only_just_connected_in_time_sends_nothing() -> None:
    """A request that nobody has time to wait for would have an unknown end."""
    clock = FakeClock()

    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.set_result(await reader.read())
        writer.close()

    async with served_by(serve) as url:
        client = EngineClient(url, clock=clock)
        deadline = Deadline.after(clock, 1.0)
        task = asyncio.create_task(no_answer(client.post("/sleep", deadline=deadline)))
        await asyncio.sleep(0)
        clock.advance(1.0)
        error = await task
        assert not error.sent
        assert "no time left" in str(error)
        await client.close()
        assert await received == b""


# --- TLS ------------------------------------------------------------------------------------------

PEM = Path(__file__).parents[1] / "http" / "engine.pem"
"""Signs itself, for 127.0.0.1."""


@asynccontextmanager
async def secured(handler: Handler) -> AsyncIterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(PEM)
    server = await asyncio.start_server(handler, "127.0.0.1", 0, ssl=context)
    async with server:
        yield "https://{}:{}".format(*server.sockets[0].getsockname())


async def test_an_https_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    trusting = ssl.create_default_context(cafile=PEM)
    monkeypatch.setattr(wire_module, "_tls", lambda: trusting)
    handler = counted(b"HTTP/1.1 200 OK\r\n", per_connection=9)
    async with secured(handler) as url, to(url) as client:
        first = await client.ask(PATHS, deadline=soon())
        assert bodies(first) == [b"/a", b"/b", b"/c"]
        assert (await client.ask(("/d",), deadline=soon())).connection == first.connection


async def test_a_certificate_that_nobody_vouches_for_gets_nothing() -> None:
    handler = counted(b"HTTP/1.1 200 OK\r\n", per_connection=9)
    async with secured(handler) as url, to(url) as client:
        error = await no_answer(client.get("/a", deadline=soon()))
        assert not error.sent
        assert "its certificate is not trusted" in str(error)


async def test_an_https_engine_that_speaks_no_tls() -> None:
    handler = counted(b"HTTP/1.1 200 OK\r\n", per_connection=9)
    async with served_by(handler) as url, to(url.replace("http", "https")) as client:
        error = await no_answer(client.get("/a", deadline=soon(TIMEOUT)))
        assert not error.sent
        assert str(error).startswith("cannot connect")


# --- The loop that programs run on ----------------------------------------------------------------


def test_it_is_the_same_on_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    trusting = ssl.create_default_context(cafile=PEM)
    monkeypatch.setattr(wire_module, "_tls", lambda: trusting)
    handler = counted(b"HTTP/1.1 200 OK\r\n", per_connection=9)

    async def whole() -> None:
        async with secured(handler) as url, to(url) as client:
            assert bodies(await client.ask(PATHS, deadline=soon())) == [b"/a", b"/b", b"/c"]
        async with served_by(handler) as url, to(url) as client, client.pinned() as pinned:
            assert (await pinned.get("/a", deadline=soon())).body == b"/a"
            assert bodies(await client.ask(PATHS, deadline=soon())) == [b"/a", b"/b", b"/c"]
        closing = Closing()
        async with served_by(closing) as url, to(url) as client:
            for path in ("/a", "/b"):
                assert (await client.get(path, deadline=soon())).ok
            assert len(closing.requests) == 3
        assert "connection refused" in str(await no_answer(gone(url)))

    async def gone(url: str) -> Reply:
        async with to(url) as client:
            return await client.get("/a", deadline=soon())

    uvloop.run(whole())
