"""A call is for one boot of an engine: another one, which may be in any state, does not get it."""

import asyncio

import pytest

from steersman.engine import Runtime
from steersman_operator.fleet.facts import CallKind, Outcome
from steersman_sim.engine import Fault
from tests.engines.support import CALLS as KINDS
from tests.engines.support import RUNTIMES, once, paused, steered

BOTH = pytest.mark.parametrize("runtime", RUNTIMES)
CALLS = pytest.mark.parametrize("kind", KINDS)


@BOTH
@CALLS
async def test_another_boot_does_not_get_the_call(runtime: Runtime, kind: CallKind) -> None:
    """A wake of a fresh SGLang engine would end it."""
    async with steered(runtime) as it:
        boot = (await it.look()).boot_id
        await it.engine.restart()
        result = await it.do(kind, boot_id=boot)
        assert result.outcome is Outcome.REFUSED
        assert "was restarted" in result.detail
        assert it.paths() == []
        assert it.engine.died is None


@BOTH
@CALLS
async def test_the_boot_that_was_meant_gets_it(runtime: Runtime, kind: CallKind) -> None:
    async with steered(runtime) as it:
        boot = (await it.look()).boot_id
        if kind is CallKind.WAKE:
            await it.sleep()
        assert (await it.do(kind, boot_id=boot)).ok


@BOTH
async def test_a_boot_of_the_platform_is_not_for_the_engine_to_know(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        for boot in ("9f2c1e0a-77aa-4b6e-8a6e-aaaaaaaaaaaa/0", "containerd://abc", "sglang-x"):
            assert (await it.pause(boot_id=boot)).ok


@pytest.mark.parametrize("kind", [CallKind.SLEEP, CallKind.WAKE, CallKind.REFIT, CallKind.LABEL])
@BOTH
async def test_memory_and_weights_are_left_alone_if_the_boot_cannot_be_read(
    runtime: Runtime, kind: CallKind
) -> None:
    async with steered(runtime) as it:
        boot = (await it.look()).boot_id
        path = "/server_info" if runtime is Runtime.SGLANG else "/metrics"
        it.engine.faults.arm(path, Fault(status=500))
        if runtime is Runtime.SGLANG:
            it.engine.faults.arm("/get_server_info", Fault(status=500))
        result = await it.do(kind, boot_id=boot)
        assert result.outcome is Outcome.REFUSED
        assert "which boot" in result.detail
        assert it.paths() == []


@BOTH
async def test_pause_and_resume_do_no_harm_to_another_boot(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        boot = (await it.look()).boot_id
        for path in ("/server_info", "/get_server_info", "/metrics"):
            it.engine.faults.arm(path, Fault(status=500))
        assert (await it.pause(boot_id=boot)).ok
        assert (await it.resume(boot_id=boot)).ok


async def test_an_engine_that_restarts_in_the_middle_of_a_sleep_is_not_put_to_sleep() -> None:
    """The proof of idleness was another process's; the connection ends with that."""
    async with steered(Runtime.SGLANG) as it:
        await it.look()
        it.engine.faults.arm("/flush_cache", once(status=400, body="not yet"))
        sleeping = asyncio.create_task(it.sleep())
        await it.engine.until(lambda: bool(it.engine.journal.of("/flush_cache")))
        await it.engine.restart()
        result = await sleeping
        assert result.outcome is Outcome.REFUSED
        assert not it.engine.journal.of("/release_memory_occupation")
        assert not paused(it.engine)


@BOTH
async def test_a_change_uses_one_connection_of_its_own(runtime: Runtime) -> None:
    async with steered(runtime, keep_alive_s=60.0) as it:
        boot = (await it.look()).boot_id
        looks = {entry.connection for entry in it.engine.journal.entries}
        before = it.engine.journal.count
        await it.pause(boot_id=boot)
        entries = [entry for entry in it.engine.journal.entries if entry.number > before]
        connections = {entry.connection for entry in entries}
        assert len(connections) == 1
        assert not connections & looks
