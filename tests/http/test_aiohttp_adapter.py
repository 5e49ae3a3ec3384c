"""What only the aiohttp adapter can get wrong: it has a task for each request."""

from steersman.errors import Fault, InvalidRequest
from steersman_proxy.exchange.messages import Outcome
from tests.http.adapter import adapter_rig, client_of, post
from tests.http.client import until
from tests.http.fake_engine import OK, always, fake_engine
from tests.http.refusals import recorded, refused
from tests.http.shapes import head


async def test_a_client_that_leaves_as_it_is_released_gives_its_engine_back() -> None:
    """The guard is counted in the queue's turn, the request runs in a later one."""
    async with fake_engine(always(OK)) as engine, adapter_rig(engine.url, adapter="aiohttp") as rig:
        rig.apply(gates_open=False)
        async with client_of(rig) as client:
            await client.send(post())
            await until(lambda: rig.hold.depth("p") == 1)
            rig.apply(gates_open=True)
            assert not rig.hold.pump()
            assert rig.in_flight == 1
            (task,) = rig.adapter._running  # type: ignore[attr-defined]
            task.cancel()
            await until(lambda: rig.in_flight == 0)
        assert engine.received == []


async def test_a_client_that_is_gone_before_its_refusal_was_begun_is_recorded() -> None:
    async with adapter_rig(adapter="aiohttp") as rig, client_of(rig):
        await until(lambda: rig.adapter.connections)
        (connection,) = rig.adapter.connections
        assert connection.transport is not None
        # In one turn, as when the reset is there already when the bytes are read.
        connection.data_received(b"\x16\x03\x01")  # type: ignore[attr-defined]
        connection.transport.abort()
        await until(lambda: rig.recorder.records)
        (record,) = rig.recorder.records
        assert record.outcome is Outcome.CLIENT_GONE
        assert isinstance(record.error, InvalidRequest)
        assert record.error.fault is Fault.TLS


async def test_what_only_aiohttp_refuses_is_refused_in_our_words() -> None:
    """The gate lets through what has one reading; aiohttp has an opinion on one header's name."""
    async with adapter_rig(adapter="aiohttp") as rig, client_of(rig) as client:
        sent = head(b"Sec-WebSocket-Key1: x", line=b"GET /liveness HTTP/1.1\r\n", body=b"")
        await client.send(sent + sent)
        await refused(client)
        await recorded(rig, fault=Fault.OTHER)
