"""Engines whose weights nobody vouches for, over sockets: what they receive is what counts."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from steersman.engine import Trust
from steersman.settings import PoolSettings
from steersman.table import Epoch, Table
from steersman_proxy.routing.engines import Engine
from steersman_sim.engine import EngineConfig
from tests.http.fake_engine import Received, Wire, always, fake_engine
from tests.proxy.raw import connected, rows
from tests.proxy.support import Rig, Watching, refit, rig, running, until

pytestmark = pytest.mark.usefixtures("adapter")

INSTANT = EngineConfig(speed=0)
BODY = b'{"text":"x","meta_info":{"weight_version":"7"}}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (
    len(BODY)
)


def put(world: Rig, **changes: dict[str, Any]) -> None:
    """Put a table in force, at once, in which these engines' rows are changed."""
    fleet = world.app.fleet
    assert fleet.view is not None
    fleet.apply(
        Table(
            epoch=Epoch(1, fleet.view.epoch.seq + 1),
            pools=tuple(pool.row for pool in fleet.view.pools.values()),
            engines=tuple(
                msgspec.structs.replace(engine.row, **changes.get(engine.id, {}))
                for engine in fleet.engines()
            ),
        )
    )


def after_the_choice(world: Rig, do: Callable[[], None]) -> None:
    """Have something happen between the choice of an engine and the first byte, once."""
    left = [do]

    def selected(engine: Engine) -> None:
        if left:
            left.pop()()

    world.app.context.observer = Watching(world.app.context.observer, selected)


UNTRUSTED = [
    {"trust": Trust.UNCERTAIN},
    {"trust": Trust.UNSYNCED, "version": None},
]


@pytest.mark.parametrize(
    ("trust", "admits"), [("uncertain", False), ("uncertain", True), ("unsynced", False)]
)
async def test_it_gets_no_request_of_any_kind(tmp_path: Path, trust: str, admits: bool) -> None:
    routing = PoolSettings(admit_unsynced=admits)
    async with rig(tmp_path, {"bad": "7", "good": "7"}, config=INSTANT, routing=routing) as world:
        bad, good = world.engines["bad"], world.engines["good"]
        await world.edit("bad", trust=trust)

        for policy in ("any", "latest-only", "min-version:1", "max-staleness:100"):
            for key in range(8):
                kinds: list[dict[str, str]] = [
                    {},
                    {"x_smg_routing_key": f"k{key}"},
                    {"x_session_id": f"s{key}"},
                    {"x_steersman_pool": "pool"},
                ]
                for headers in kinds:
                    status, said, _ = await world.generate(
                        1, x_smg_version_policy=policy, **headers
                    )
                    assert (status, said["x-smg-routed-worker-id"]) == (200, good.url)
            for target in ("bad", bad.url, "0"):
                status, _, body = await world.generate(
                    1, x_smg_version_policy=policy, x_smg_target_worker=target
                )
                assert (status, body["error"]["code"]) == (503, "target_unavailable")
                assert body["error"]["reasons"] == {trust: 1}
        for _ in range(20):
            assert (await world.generate(1))[0] == 200
        # Nor if the other one cannot be reached, where a request goes on to the next.
        await good.die()
        for _ in range(5):
            status, _, body = await world.generate(1)
            assert status in (502, 503), body

        assert world.received("bad") == 0


@pytest.mark.parametrize("changes", UNTRUSTED)
@pytest.mark.parametrize("reused", [False, True])
async def test_weights_that_become_untrusted_right_after_the_choice_answer_nothing(
    tmp_path: Path, changes: dict[str, Any], *, reused: bool
) -> None:
    async with rig(tmp_path, {"e0": "7", "e1": "7"}, config=INSTANT) as world:
        await world.edit("e1", gate="closed")
        if reused:
            assert (await world.generate(1))[0] == 200
        before = world.received("e0")
        gate = msgspec.structs.replace(world.engine("e1").row.gate, open=True)
        after_the_choice(world, lambda: put(world, e0=changes, e1={"gate": gate}))

        status, headers, _ = await world.generate(1)

        assert (status, headers["x-smg-routed-worker-id"]) == (200, world.engines["e1"].url)
        assert (world.received("e0"), world.received("e1")) == (before, 1)
        await world.idle()


async def test_without_another_engine_the_client_is_told_why(tmp_path: Path) -> None:
    async with rig(tmp_path, {"e0": "7"}, config=INSTANT) as world:
        after_the_choice(world, lambda: put(world, e0={"trust": Trust.UNCERTAIN}))

        status, _, body = await world.generate(1)

        assert (status, body["error"]["code"]) == (503, "no_available_workers")
        assert body["error"]["reasons"] == {"uncertain": 1}
        assert world.received("e0") == 0
        await world.idle()


async def test_an_unsynced_engine_that_the_pool_admits_is_sent_to(tmp_path: Path) -> None:
    routing = PoolSettings(admit_unsynced=True)
    async with rig(tmp_path, {"e0": "7"}, config=INSTANT, routing=routing) as world:
        after_the_choice(world, lambda: put(world, e0=UNTRUSTED[1]))

        assert (await world.generate(1))[0] == 200
        assert world.received("e0") == 1


@pytest.mark.parametrize("changes", UNTRUSTED)
async def test_a_request_is_not_sent_once_more_to_weights_that_became_untrusted(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """A kept connection closes without a byte: mostly because an idle one ends just then. But it may
    be a refit in place that failed, or a process that died and is another one by now.
    """
    asked = asyncio.Event()
    become_untrusted = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(ANSWER + BODY)
        await wire.request()
        asked.set()
        await become_untrusted.wait()
        await wire.close()

    async with (
        fake_engine(script) as one,
        fake_engine(always(ANSWER + BODY)) as other,
        running(tmp_path, rows(one, other, weightVersion="7")) as world,
        connected(world.app.port) as client,
    ):
        await world.edit("e1", gate="closed")
        assert (await client.post()).status == 200
        sending = asyncio.create_task(client.post(b'{"second":true}'))
        await asked.wait()
        gate = msgspec.structs.replace(world.engine("e1").row.gate, open=True)
        put(world, e0=changes, e1={"gate": gate})
        become_untrusted.set()

        got = await sending

        # Nor does another one get it: the first may have died of it.
        assert (got.status, got.values(b"x-smg-error-code")) == (502, [b"upstream_body_incomplete"])
        assert b"may not be started any more" in got.body
        assert (len(one.received), len(other.received)) == (2, 0)
        await world.idle()


async def test_while_nothing_is_known_against_it_the_same_engine_gets_it_once_more(
    tmp_path: Path,
) -> None:
    """The rule that the test before is an exception of; also if a gate has closed meanwhile."""
    asked, closed = asyncio.Event(), asyncio.Event()

    async def script(wire: Wire) -> None:
        received: Received = await wire.request()
        if received.body == b'{"second":true}':
            await wire.send(ANSWER + BODY)
            return
        await wire.send(ANSWER + BODY)
        await wire.request()
        asked.set()
        await closed.wait()
        await wire.close()

    async with (
        fake_engine(script) as one,
        running(tmp_path, rows(one, weightVersion="7")) as world,
        connected(world.app.port) as client,
    ):
        assert (await client.post()).status == 200
        sending = asyncio.create_task(client.post(b'{"second":true}'))
        await asked.wait()
        await world.edit("e0", gate="closed")
        closed.set()

        assert (await sending).status == 200
        assert len(one.received) == 3


@pytest.mark.parametrize("policy", ["any", "latest-only", "min-version:8"])
async def test_who_is_held_while_the_only_engine_is_refitted_is_served_by_the_new_version(
    tmp_path: Path, policy: str
) -> None:
    async with rig(tmp_path, {"e0": "7"}, config=INSTANT) as world:
        engine = world.engines["e0"]
        await world.edit("e0", gate="closed")
        waiting = [
            asyncio.create_task(world.generate(3, x_smg_version_policy=policy)) for _ in range(5)
        ]
        await until(lambda: world.app.hold.depth("pool") == 5)

        await refit(world, "e0", "8")
        answers = await asyncio.gather(*waiting)

        assert [
            (status, headers["x-smg-weight-version"], headers.get("x-smg-mixed-version"))
            for status, headers, _ in answers
        ] == [(200, "8", None)] * 5
        made_by = [
            [span.version for span in generation.truth]
            for entry in engine.journal.of("/generate")
            for generation in entry.generations
        ]
        assert made_by == [["8"]] * 5


async def test_who_is_held_is_told_if_the_refit_of_the_only_engine_fails(tmp_path: Path) -> None:
    async with rig(tmp_path, {"e0": "7"}, config=INSTANT) as world:
        await world.edit("e0", gate="closed")
        waiting = [asyncio.create_task(world.generate(1)) for _ in range(3)]
        await until(lambda: world.app.hold.depth("pool") == 3)

        await world.edit("e0", trust="uncertain")
        answers = await asyncio.gather(*waiting)

        assert [(status, body["error"]["reasons"]) for status, _, body in answers] == [
            (503, {"uncertain": 1})
        ] * 3
        assert world.received("e0") == 0
        # Until a whole reload was verified.
        await refit(world, "e0", "8")
        assert (await world.generate(1))[0] == 503
        await world.edit("e0", trust="verified")
        assert (await world.generate(1))[0] == 200
        assert world.received("e0") == 1
