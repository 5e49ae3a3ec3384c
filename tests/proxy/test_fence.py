"""A fenced pool gets nothing from a proxy that its operator may have counted out by then.

The clock may run on between the choice of an engine and the first byte: a process is stopped, or
collects garbage, or connecting takes its time.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from steersman.settings import PoolSettings
from steersman_proxy.routing.engines import Engine
from steersman_sim.engine import EngineConfig
from tests.proxy.support import Rig, Watching, rig

pytestmark = pytest.mark.usefixtures("adapter")

INSTANT = EngineConfig(speed=0)


def after_the_choice(world: Rig, do: Callable[[], None]) -> None:
    """Have something happen between the choice of an engine and the first byte, once."""
    inner = world.app.context.observer
    left = [do]

    def selected(engine: Engine) -> None:
        if left:
            left.pop()()

    world.app.context.observer = Watching(inner, selected)


def out_of_contact(world: Rig) -> None:
    world.app.fleet.set_control(True, until=0.0)


@pytest.mark.parametrize("reused", [False, True])
async def test_after_a_stall_the_engine_receives_nothing(tmp_path: Path, *, reused: bool) -> None:
    fenced = PoolSettings(fence=True)
    async with rig(tmp_path, {"e0": "7"}, config=INSTANT, routing=fenced) as world:
        if reused:
            assert (await world.generate(1))[0] == 200
        before = world.received("e0")
        after_the_choice(world, lambda: out_of_contact(world))

        status, headers, body = await world.generate(1)

        assert (status, body["error"]["code"]) == (503, "control_stale")
        assert "retry-after" in headers
        assert world.received("e0") == before
        await world.idle()

        world.app.fleet.set_control(True)
        assert (await world.generate(1))[0] == 200


async def test_whoever_is_in_contact_again_by_then_is_served(tmp_path: Path) -> None:
    fenced = PoolSettings(fence=True)
    async with rig(tmp_path, {"e0": "7"}, config=INSTANT, routing=fenced) as world:
        asked = 0
        fleet = world.app.fleet
        true = fleet.fenced_out

        def fenced_out(engine: Engine) -> bool:
            nonlocal asked
            asked += 1
            if asked == 1:
                return True  # and a ping comes right then
            return true(engine)

        fleet.fenced_out = fenced_out  # type: ignore[method-assign]
        status, headers, _ = await world.generate(1)

        assert status == 200
        assert world.received("e0") == 1
        assert headers["x-smg-routed-worker-id"] == world.engines["e0"].url
        await world.idle()


async def test_a_pool_that_is_not_fenced_serves_any_version_on(tmp_path: Path) -> None:
    async with rig(tmp_path, {"e0": "7"}, config=INSTANT) as world:
        after_the_choice(world, lambda: out_of_contact(world))

        assert (await world.generate(1))[0] == 200


async def test_without_rl_there_is_no_fence(tmp_path: Path) -> None:
    fenced = PoolSettings(fence=True)
    async with rig(
        tmp_path, {"e0": "7"}, config=INSTANT, routing=fenced, rl_enabled=False
    ) as world:
        after_the_choice(world, lambda: out_of_contact(world))

        assert (await world.generate(1))[0] == 200
