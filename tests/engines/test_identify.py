"""Which engine it is, whether it may be steered, and with which key."""

import asyncio

import pytest

from steersman.clock import Deadline, MonotonicClock
from steersman.engine import Runtime
from steersman_operator.engines import EngineClient, EngineKeys, Identity, identify
from steersman_operator.fleet.facts import Outcome
from steersman_sim.engine import Fault
from tests.engines.serving import answering
from tests.engines.support import RUNTIMES, once, paused, steered, steering
from tests.sim.support import sglang, vllm

BOTH = pytest.mark.parametrize("runtime", RUNTIMES)
CLOCK = MonotonicClock()


async def identified(url: str) -> Identity:
    client = EngineClient(url, clock=CLOCK)
    try:
        return await identify(client, deadline=Deadline.after(CLOCK, 30))
    finally:
        await client.close()


@BOTH
async def test_the_two_are_told_apart(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        assert await identified(it.engine.url) == Identity(runtime=runtime)
        assert all(entry.path != "/health" for entry in it.engine.journal.entries)


async def test_an_older_sglang_is_known_by_its_older_name() -> None:
    async with steered(Runtime.SGLANG) as it:
        it.engine.faults.arm("/model_info", Fault(status=404))
        assert (await identified(it.engine.url)).runtime is Runtime.SGLANG


async def test_who_wants_a_key_for_its_model_is_sglang() -> None:
    async with steering(sglang(api_key="secret")) as it:
        assert (await identified(it.engine.url)).runtime is Runtime.SGLANG


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"version":1}',
        b"SSH-2.0-OpenSSH_9.6\r\n",
    ],
)
async def test_other_software_is_not_supported(raw: bytes) -> None:
    async with answering(raw, close=False) as url:
        found = await asyncio.wait_for(identified(url), 30)
        assert found.runtime is Runtime.UNKNOWN
        assert "not supported" in found.detail


async def test_nobody_there_is_not_another_engine(free_port: int) -> None:
    found = await identified(f"http://127.0.0.1:{free_port}")
    assert (found.answered, found.detail) == (False, "cannot connect: connection refused")


async def test_an_unknown_engine_is_not_touched() -> None:
    async with steered(Runtime.VLLM) as it:
        for path in ("/version", "/model_info", "/get_model_info"):
            it.engine.faults.arm(path, Fault(status=404))
        result = await it.pause()
        assert result.outcome is Outcome.REFUSED
        assert "not supported" in result.detail
        seen = await it.look()
        assert not seen.reachable
        assert "not supported" in seen.detail
        assert await it.load() is None
        assert it.paths() == []
        it.engine.faults.disarm()
        assert (await it.pause()).ok, "it is asked again"


@BOTH
async def test_what_is_declared_is_checked_against_what_answers(runtime: Runtime) -> None:
    """vLLM's way of looking would be harmful to SGLang: /health submits a request."""
    other = {Runtime.SGLANG: Runtime.VLLM, Runtime.VLLM: Runtime.SGLANG}[runtime]
    async with steered(runtime) as it:
        it.declared = other
        result = await it.pause()
        assert result.outcome is Outcome.REFUSED
        assert f"the engine is {runtime.value}, but declared as {other.value}" in result.detail
        assert not (await it.look()).reachable
        assert not it.engine.journal.of("/health")
        it.declared = runtime
        assert (await it.pause()).ok


async def test_a_declared_runtime_is_believed_of_an_engine_that_does_not_say() -> None:
    async with steered(Runtime.SGLANG) as it:
        it.declared = Runtime.SGLANG
        for path in ("/model_info", "/get_model_info"):
            it.engine.faults.arm(path, Fault(status=404))
        assert (await it.pause()).ok


@BOTH
async def test_what_an_engine_is_is_asked_once(runtime: Runtime) -> None:
    async with steered(runtime) as it:
        await it.look()
        await it.look()
        before = len(it.engine.journal.of("/version"))
        await it.pause()
        await it.load()
        assert len(it.engine.journal.of("/version")) == before


async def test_another_engine_at_the_same_address_is_asked_anew() -> None:
    async with steering(sglang()) as it:
        await it.look()
        port = it.engine.port
        await it.engine.stop()
        assert not (await it.look()).reachable
        async with steering(vllm(port=port)) as other:
            other_url = other.engine.url
            assert other_url == f"http://127.0.0.1:{port}"
            other.engines = it.engines
            assert (await other.pause()).ok
            assert paused(other.engine)
            other.engines = type(it.engines)()


# --- Control routes that are missing or guarded ---------------------------------------------------


async def test_vllm_without_its_development_mode_says_how_to_start_it() -> None:
    async with steered(Runtime.VLLM, dev_mode=False) as it:
        for call in (it.pause, it.resume, it.wake):
            result = await call()
            assert result.outcome is Outcome.REFUSED
            assert "VLLM_SERVER_DEV_MODE=1" in result.detail
        sleep = await it.sleep()
        assert sleep.outcome is Outcome.REFUSED
        assert "VLLM_SERVER_DEV_MODE=1" in sleep.detail
        seen = await it.look()
        assert seen.reachable
        assert (seen.paused, seen.released, seen.version_known) == (None, None, False)
        assert "VLLM_SERVER_DEV_MODE=1" in seen.detail
        assert seen.boot_id is not None
        assert await it.load() == 0


@pytest.mark.parametrize("keys", [EngineKeys(), EngineKeys(data="d"), EngineKeys(admin="wrong")])
async def test_a_wrong_admin_key_is_refused_and_blamed(keys: EngineKeys) -> None:
    config = sglang(api_key="d", admin_api_key="a")
    async with steering(config, keys=keys) as it:
        result = await it.pause()
        assert (result.outcome, result.http) == (Outcome.REFUSED, 401)
        assert "does not accept the key" in result.detail
        assert "wrong" not in result.detail
        assert not paused(it.engine)


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        (sglang(api_key="d"), EngineKeys(data="d")),
        (sglang(admin_api_key="a"), EngineKeys(admin="a")),
        (sglang(api_key="d", admin_api_key="a"), EngineKeys(data="d", admin="a")),
        (vllm(api_key="d"), EngineKeys(data="d")),
        (vllm(api_key="d"), EngineKeys()),
    ],
    ids=["api", "admin", "both", "vllm", "vllm without"],
)
async def test_with_the_right_keys_everything_works(config: object, keys: EngineKeys) -> None:
    async with steering(config, keys=keys) as it:
        boot = (await it.look()).boot_id
        assert boot is not None
        assert (await it.pause(boot_id=boot)).ok
        assert (await it.sleep(boot_id=boot)).ok
        assert (await it.wake(boot_id=boot)).ok
        assert (await it.resume(boot_id=boot)).ok
        assert (await it.look()).paused is False
        assert await it.load() == 0


async def test_keys_are_asked_each_time() -> None:
    async with steering(sglang(admin_api_key="new")) as it:
        shown = {"key": EngineKeys(admin="old")}
        it.engines = type(it.engines)(keys=lambda _: shown["key"])
        assert (await it.pause()).outcome is Outcome.REFUSED
        shown["key"] = EngineKeys(admin="new")
        assert (await it.pause()).ok


async def test_an_engine_may_move_to_another_url() -> None:
    async with steered(Runtime.SGLANG) as one, steered(Runtime.VLLM) as two:
        two.engines, spare = one.engines, two.engines
        await spare.close()
        assert (await one.pause()).ok
        assert (await two.pause()).ok
        assert paused(two.engine)
        one.engine.faults.arm("/ready", once(status=500))
        await one.engines.forget("e")
        await one.engines.forget("nobody")
