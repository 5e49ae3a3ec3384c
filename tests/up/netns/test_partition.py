"""A proxy that is cut off from the operator while it serves: nobody is told, no FIN, no RST."""

import re
import socket
from pathlib import Path

import pytest

from steersman.engine import Control
from steersman_operator.fleet.spec import EngineSpec, OnUnreachable, PoolSpec
from steersman_operator.fleet.state import Phase
from tests.up.killed.journals import called, trespassers
from tests.up.netns.fleet import Network, PartitionedFleet, partitioned
from tests.up.netns.relay import Relay
from tests.up.netns.traffic import SERVED, STALE
from tests.up.netns.ways import Way

ACTIVE, ASLEEP = Control.ACTIVE, Control.ASLEEP
UNREACHABLE = re.compile(r"waiting for far \(unreachable, silent for \d+ s\)")
ways = pytest.mark.parametrize("way", Way)


async def until_unreachable(fleet: PartitionedFleet) -> None:
    await fleet.until(
        lambda: UNREACHABLE.fullmatch(fleet.standing().sentence), "the proxy is named unreachable"
    )


async def until_heard(
    fleet: PartitionedFleet, what: tuple[int, str | None], *, proxy: str, policy: str = "any"
) -> None:
    """Wait until clients of a proxy read something, from now on, several times."""
    traffic, mark = fleet.traffic, len(fleet.traffic.answers)
    await fleet.until(
        lambda: traffic.count(mark, what, proxy=proxy, policy=policy) >= 5,
        f"{what} at {proxy} for {policy}",
    )


async def until_served_by(fleet: PartitionedFleet, engines: set[str], *, proxy: str) -> None:
    """Wait until a proxy serves from all these engines, from now on."""
    traffic, mark = fleet.traffic, len(fleet.traffic.answers)
    await fleet.until(
        lambda: traffic.engines(mark, proxy=proxy) >= engines, f"{proxy} serves from {engines}"
    )


async def sleeps_and_wakes(fleet: PartitionedFleet) -> None:
    """With everybody in contact: nothing reaches the engine that sleeps, and all of it comes back."""
    await fleet.until(lambda: fleet.settled(ASLEEP), "the engine sleeps")
    for proxy in ("near", "far"):
        await until_served_by(fleet, {"e1"}, proxy=proxy)
        await until_heard(fleet, SERVED, proxy=proxy, policy="latest-only")
    kept(fleet)
    assert called(fleet.engines[0]).count("sleep") == 1
    fleet.want(ACTIVE)
    for proxy in ("near", "far"):
        await until_served_by(fleet, {"e0", "e1"}, proxy=proxy)
    await fleet.until(lambda: fleet.settled(ACTIVE), "the engine is active")
    kept(fleet)


def kept(fleet: PartitionedFleet) -> None:
    """The promise: so far nobody reached a closed engine, nobody died, nobody else was called."""
    assert [trespassers(engine) for engine in fleet.engines] == [[]] * len(fleet.engines)
    assert [engine.died for engine in fleet.engines] == [None] * len(fleet.engines)
    assert [called(engine) for engine in fleet.engines[1:]] == [[]] * len(fleet.engines[1:])
    kinds = {(status, code) for _, status, code in fleet.traffic.kinds()}
    assert kinds <= {SERVED, STALE}


@ways
async def test_with_wait_nothing_is_done_to_an_engine_before_the_link_is_back(
    tmp_path: Path, network: Network, way: Way
) -> None:
    async with partitioned(tmp_path, network, on_unreachable=OnUnreachable.WAIT) as fleet:
        await fleet.cut(way)
        fleet.want(ASLEEP)
        await until_unreachable(fleet)
        await until_heard(fleet, STALE, proxy="far", policy="latest-only")

        # What takes any version goes on by the last table, which still has both engines open.
        await until_served_by(fleet, {"e0", "e1"}, proxy="far")
        # This side has let go of the engine and serves from the other.
        near = fleet.requests(0, by="near")
        await until_served_by(fleet, {"e1"}, proxy="near")
        assert fleet.requests(0, by="near") == near
        await until_unreachable(fleet)
        assert fleet.standing().phase == Phase.DRAINING
        assert not called(fleet.engines[0])

        fleet.network.heal()
        await sleeps_and_wakes(fleet)


async def test_with_wait_an_operation_that_a_missing_proxy_holds_up_is_given_up_in_the_end(
    tmp_path: Path, network: Network
) -> None:
    async with partitioned(
        tmp_path, network, on_unreachable=OnUnreachable.WAIT, drain_timeout=2.0
    ) as fleet:
        await fleet.cut(Way.BOTH)
        fleet.want(ASLEEP)
        await fleet.until(lambda: fleet.standing().phase == "GivenUp", "it is given up")

        assert re.fullmatch(
            r"not drained within 2 s: waiting for far \(unreachable, silent for \d+ s\)",
            fleet.standing().sentence,
        )
        assert not called(fleet.engines[0])
        await until_served_by(fleet, {"e0", "e1"}, proxy="near")
        await until_served_by(fleet, {"e0", "e1"}, proxy="far")

        fleet.network.heal()
        await fleet.until(fleet.acknowledged, "the proxy is back")
        fleet.want(ASLEEP)  # as any edit of the spec
        await sleeps_and_wakes(fleet)


@ways
async def test_with_fence_the_operation_goes_on_when_the_proxy_has_stopped_by_itself(
    tmp_path: Path, network: Network, way: Way
) -> None:
    async with partitioned(tmp_path, network, on_unreachable=OnUnreachable.FENCE) as fleet:
        await fleet.cut(way)
        fleet.want(ASLEEP)
        await fleet.until(lambda: fleet.settled(ASLEEP), "the engine sleeps")

        # Until then it may have gone on; from then on it starts nothing, anywhere in the pool.
        stopped = [fleet.requests(engine, by="far") for engine in (0, 1)]
        for policy in ("any", "latest-only"):
            await until_heard(fleet, STALE, proxy="far", policy=policy)
        await until_served_by(fleet, {"e1"}, proxy="near")
        assert [fleet.requests(engine, by="far") for engine in (0, 1)] == stopped
        kept(fleet)

        fleet.network.heal()
        await until_served_by(fleet, {"e1"}, proxy="far")
        await sleeps_and_wakes(fleet)


async def test_with_fence_a_proxy_that_comes_back_to_another_operator_waits_for_its_table(
    tmp_path: Path, network: Network
) -> None:
    """Its own table is of before, and the engine was put to sleep without it."""
    async with partitioned(tmp_path, network, on_unreachable=OnUnreachable.FENCE) as fleet:
        await fleet.cut(Way.BOTH)
        fleet.want(ASLEEP)
        await fleet.until(lambda: fleet.settled(ASLEEP), "the engine sleeps")

        with socket.create_server(("127.0.0.1", 0)) as silent:
            # The next operator publishes late: it waits for an engine that does not answer.
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            fleet.others = (
                PoolSpec(name="q", models=("q",), engines=(EngineSpec(id="q", url=url),)),
            )
            await fleet.replace_operator()
            fleet.network.heal()
            await fleet.until(
                lambda: fleet.operator.shell.state.proxies["far"].connected, "the proxy is back"
            )
            traffic, mark = fleet.traffic, len(fleet.traffic.answers)
            await fleet.until(
                lambda: any(traffic.since(mark, proxy="far")) or trespassers(fleet.engines[0]),
                "the proxy says what it does",
            )
            kept(fleet)
            await until_heard(fleet, STALE, proxy="far")
            assert not fleet.operator.shell.state.published

            fleet.others = ()
            fleet.operator.feed()
        await until_served_by(fleet, {"e1"}, proxy="far")
        await sleeps_and_wakes(fleet)


async def test_a_proxy_that_has_certainly_ended_is_waited_for_no_more(
    tmp_path: Path, network: Network
) -> None:
    async with partitioned(tmp_path, network, on_unreachable=OnUnreachable.WAIT) as fleet:
        await fleet.cut(Way.BOTH)
        fleet.want(ASLEEP)
        await until_unreachable(fleet)
        fleet.processes["far"].kill()
        await fleet.processes["far"].wait()
        # Its end does not get through either: the platform has to tell it.
        await until_heard(fleet, SERVED, proxy="near")
        assert UNREACHABLE.fullmatch(fleet.standing().sentence)
        assert not called(fleet.engines[0])

        fleet.operator.require(("near",))
        await fleet.until(lambda: fleet.settled(ASLEEP), "the engine sleeps")
        assert called(fleet.engines[0]).count("sleep") == 1
        kept(fleet)


async def test_the_relay_stands_for_the_link_where_there_are_no_namespaces(
    tmp_path: Path, relay: Relay
) -> None:
    async with partitioned(tmp_path, relay, on_unreachable=OnUnreachable.FENCE) as fleet:
        await fleet.cut(Way.BOTH)
        await until_heard(fleet, STALE, proxy="far")
        fleet.want(ASLEEP)
        await until_unreachable(fleet)
        await fleet.until(lambda: fleet.settled(ASLEEP), "the engine sleeps")
        fleet.network.heal()
        await until_served_by(fleet, {"e1"}, proxy="far")
        await sleeps_and_wakes(fleet)
