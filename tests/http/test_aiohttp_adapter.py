"""What only the aiohttp adapter can get wrong: it has a task for each request."""

from tests.http.adapter import adapter_rig, client_of, post
from tests.http.client import until
from tests.http.fake_engine import OK, always, fake_engine


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
