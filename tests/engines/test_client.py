"""The HTTP client of one engine: what kind of no answer there was, keys, and pinned connections."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from steersman.clock import Deadline, FakeClock, MonotonicClock
from steersman_operator.engines import EngineClient, EngineKeys
from steersman_operator.engines import answers as answers_module
from steersman_operator.engines import client as client_module
from steersman_operator.engines import wire as wire_module
from steersman_operator.engines.answers import Reply
from steersman_operator.engines.client import Answers, NoAnswer
from steersman_operator.engines.wire import Target
from steersman_sim.engine import Fault
from tests.engines.support import TIMEOUT, once, once_after
from tests.sim.support import serving, sglang

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


# --- Whether it may have arrived ------------------------------------------------------------------


async def test_a_refused_connection_was_surely_not_sent(free_port: int) -> None:
    async with to(f"http://127.0.0.1:{free_port}") as client:
        error = await no_answer(client.post("/pause", deadline=soon()))
        assert (error.sent, str(error)) == (False, "cannot connect: connection refused")


async def test_without_time_left_nothing_is_sent() -> None:
    clock = FakeClock()
    client = EngineClient("http://127.0.0.1:1", clock=clock)
    deadline = Deadline.after(clock, 1.0)
    clock.advance(1.0)
    error = await no_answer(client.post("/pause", deadline=deadline))
    assert not error.sent
    assert "no time left" in str(error)


@pytest.mark.parametrize("url", ["grpc://127.0.0.1:1", "127.0.0.1:1", "http://"])
async def test_what_is_no_http_url_is_not_dialled(url: str) -> None:
    async with to(url) as client:
        error = await no_answer(client.get("/x", deadline=soon()))
        assert (error.sent, error.garbled) == (False, True)


@pytest.mark.parametrize("fault", [once(drop=True), once_after(drop=True), once(die=True)])
async def test_a_lost_connection_may_have_been_a_call(fault: object) -> None:
    async with serving(sglang()) as engine, to(engine.engine.url) as client:
        engine.engine.faults.arm("/pause_generation", fault)
        call = client.post("/pause_generation", body={}, deadline=soon())
        assert (await no_answer(call)).sent


async def test_a_timeout_may_have_been_a_call() -> None:
    async with serving(sglang()) as engine, to(engine.engine.url) as client:
        engine.engine.faults.arm("/pause_generation", once(hang=True))
        call = client.post("/pause_generation", body={}, deadline=soon(TIMEOUT))
        error = await no_answer(call)
        assert error.sent
        assert "no answer to /pause_generation within" in str(error)


async def test_a_call_that_waits_for_a_connection_in_vain_was_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as full:
        # A full backlog: the kernel lets further connections wait.
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
            fillers.append(filler)
        monkeypatch.setattr(client_module, "CONNECT_TIMEOUT", 0.1)
        async with to(f"http://127.0.0.1:{port}") as client:
            assert not (await no_answer(client.post("/pause", deadline=soon()))).sent
        for filler in fillers:
            filler.close()


async def test_nothing_is_sent_twice() -> None:
    async with serving(sglang()) as engine, to(engine.engine.url) as client:
        assert (await client.get("/ping", deadline=soon())).ok
        engine.engine.faults.arm("/pause_generation", once(drop=True))
        await no_answer(client.post("/pause_generation", body={}, deadline=soon()))
        assert len(engine.engine.journal.of("/pause_generation")) == 1


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x80",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
    ],
    ids=["gRPC", "ssh", "no status"],
)
async def test_what_is_not_http_is_told_from_what_is_lost(raw: bytes) -> None:
    async with answering(raw) as url, to(url) as client:
        error = await no_answer(client.get("/model_info", deadline=soon()))
        assert error.sent
        assert error.garbled


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhal",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope",
    ],
    ids=["short", "chunk cut", "not gzip"],
)
async def test_half_an_answer_is_none(raw: bytes) -> None:
    async with answering(raw) as url, to(url) as client:
        assert (await no_answer(client.post("/sleep", deadline=soon()))).sent


async def test_an_endless_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_module, "BODY_LIMIT", 10)
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n12345678901"
    async with answering(raw) as url, to(url) as client:
        error = await no_answer(client.get("/server_info", deadline=soon()))
        assert "too long" in str(error)


async def test_redirects_are_answers() -> None:
    raw = b"HTTP/1.1 307 Temporary\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    async with answering(raw) as url, to(url) as client:
        assert (await client.post("/sleep", deadline=soon())).status == 307


# --- Keys and words -------------------------------------------------------------------------------


async def test_reading_shows_the_data_key_and_changing_the_admin_key() -> None:
    keys = EngineKeys(data="data-key", admin="admin-key")
    config = sglang(api_key="data-key", admin_api_key="admin-key")
    async with serving(config) as engine, to(engine.engine.url, keys=keys) as client:
        assert (await client.get("/ping", deadline=soon())).ok
        assert (await client.post("/pause_generation", body={}, deadline=soon())).ok


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        (EngineKeys(), (None, None)),
        (EngineKeys(data="d"), ("Bearer d", "Bearer d")),
        (EngineKeys(admin="a"), (None, "Bearer a")),
    ],
)
async def test_what_is_shown_without_both_keys(
    keys: EngineKeys, shown: tuple[str | None, str | None]
) -> None:
    async with serving(sglang()) as engine, to(engine.engine.url, keys=keys) as client:
        await client.get("/ping", deadline=soon())
        await client.post("/continue_generation", body={}, deadline=soon())
        entries = engine.engine.journal.entries
        assert tuple(entry.header("Authorization") for entry in entries) == shown


async def test_keys_are_never_printed() -> None:
    keys = EngineKeys(data="sesame", admin="open")
    assert "sesame" not in f"{keys} {keys!r}"
    assert keys.blank("got sesame, not open") == "got ***, not ***"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error":{"message":"no such\\n mode"}}', "no such mode"),
        (b'{"error":"plain"}', "plain"),
        (b'{"detail":"Not Found"}', "Not Found"),
        (b'{"message":"m","object":"error"}', "m"),
        (b"Flush cache failed.\n", "Flush cache failed."),
        (b"", ""),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b'{"error":["odd"]}', '{"error":["odd"]}'),
        (b"x" * 500, "x" * 159 + "…"),
        (b"[" * 100_000, "[" * 159 + "…"),
    ],
)
def test_the_words_of_an_answer(body: bytes, words: str) -> None:
    assert Reply(status=400, body=body).words() == words


# --- One process ----------------------------------------------------------------------------------


async def test_a_pinned_client_uses_one_connection() -> None:
    async with serving(sglang()) as engine, to(engine.engine.url) as client:
        async with client.pinned() as pinned:
            await asyncio.gather(*(pinned.get("/ping", deadline=soon()) for _ in range(3)))
            await pinned.post("/pause_generation", body={}, deadline=soon())
        assert len({entry.connection for entry in engine.engine.journal.entries}) == 1


async def test_a_restarted_engine_gets_nothing_of_a_pinned_client() -> None:
    async with serving(sglang()) as engine, to(engine.engine.url) as client:
        async with client.pinned() as pinned:
            assert (await pinned.get("/ping", deadline=soon())).ok
            await engine.engine.restart()
            await no_answer(pinned.post("/pause_generation", body={}, deadline=soon()))
            later = await no_answer(pinned.post("/pause_generation", body={}, deadline=soon()))
            assert not later.sent
            assert "connection was lost before" in str(later)
        assert not engine.engine.journal.of("/pause_generation")
        assert (await client.get("/ping", deadline=soon())).ok, "others go on"


async def test_an_engine_that_closes_each_connection_itself_can_be_called() -> None:
    raw = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    async with answering(raw) as url, to(url) as client, client.pinned() as pinned:
        for _ in range(3):
            assert (await pinned.post("/resume", deadline=soon())).ok


# --- Several questions at once --------------------------------------------------------------------


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
