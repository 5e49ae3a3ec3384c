"""``https`` engines: the certificate is checked, and TLS changes nothing else."""

import asyncio
import ssl
from pathlib import Path

import pytest

from steersman.clock import MonotonicClock
from steersman.settings import Timeouts
from steersman_proxy.exchange.messages import Failure
from steersman_proxy.http.upstream import AttemptFailed, UpstreamPool
from tests.http.client import ask, read_all, until
from tests.http.fake_engine import OK, Wire, always, fake_engine

# A key and a certificate that are of use to nobody: it signs itself, for 127.0.0.1 and localhost.
PEM = Path(__file__).with_name("engine.pem")


def server_side() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(PEM)
    return context


def trusting_pool() -> UpstreamPool:
    return UpstreamPool(clock=MonotonicClock(), tls=ssl.create_default_context(cafile=PEM))


async def test_an_https_engine() -> None:
    pool = trusting_pool()
    body = bytes(range(256)) * 2**14
    async with fake_engine(always(OK), tls=server_side()) as engine:
        for _ in range(3):
            assert await read_all(await ask(pool, engine.url, body=[body])) == b"ok"
        assert engine.connections == 1
        assert all(request.body == body for request in engine.received)
        host = engine.url.removeprefix("https://").encode()
        assert engine.received[0].values(b"host") == [host]
    await pool.close()


async def test_a_long_answer_and_backpressure() -> None:
    pool = trusting_pool()
    body = bytes(range(256)) * 2**15
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    async with fake_engine(always(answer), tls=server_side()) as engine:
        reply = await ask(pool, engine.url)
        await until(lambda: reply._attempt.resume is not None)
        assert reply._attempt.framing.size <= 2**18
        assert await read_all(reply) == body
        assert pool.idle(engine.url) == 1
    await pool.close()


async def test_a_certificate_that_nobody_vouches_for_is_refused(pool: UpstreamPool) -> None:
    async with fake_engine(always(OK), tls=server_side()) as engine:
        with pytest.raises(AttemptFailed) as caught:
            await ask(pool, engine.url)
        assert caught.value.failure is Failure.CONNECT_REFUSED
        assert "certificate" in str(caught.value)
        assert engine.received == []
        assert pool.open == 0


async def test_an_engine_without_tls_is_not_waited_for(pool: UpstreamPool) -> None:
    """It waits for the end of what it takes for a head; the handshake counts as connecting."""
    timeouts = Timeouts(connect=0.1)
    async with fake_engine(always(OK)) as engine:
        with pytest.raises(AttemptFailed) as caught:
            await ask(pool, engine.url.replace("http:", "https:"), timeouts=timeouts)
        assert caught.value.failure is Failure.CONNECT_TIMEOUT
        assert caught.value.unsent


async def test_giving_up_closes() -> None:
    closed = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome")
        await wire.gone()
        closed.set()

    pool = trusting_pool()
    async with fake_engine(script, tls=server_side()) as engine:
        answer = await ask(pool, engine.url)
        assert await answer.read() == b"some"
        answer.abort()
        await asyncio.wait_for(closed.wait(), 1)
    await pool.close()
