"""The HTTP client of one engine: what kind of no answer there was, keys, and pinned connections."""

import asyncio
import socket

import pytest

from steersman.clock import Deadline, FakeClock
from steersman_operator.engines import EngineClient, EngineKeys
from steersman_operator.engines import answers as answers_module
from steersman_operator.engines import client as client_module
from steersman_operator.engines.answers import Reply
from tests.engines.serving import answering, no_answer, soon, to
from tests.engines.support import TIMEOUT, once, once_after
from tests.sim.support import serving, sglang

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
