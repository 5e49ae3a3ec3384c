"""Keys of clients, of administrators and of engines, at real sockets."""

import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from steersman_proxy.settings import ProbeSettings
from steersman_sim.engine import EngineConfig, Fault, Runtime
from tests.proxy.support import Rig, rig, until

pytestmark = pytest.mark.usefixtures("adapter")

K0 = "k0-of-the-clients"
K1 = "k1-of-the-engine"
ADMIN = "k2-of-the-admin"
PROBING = ProbeSettings(enabled=True, interval=0.02, timeout=5.0)


@pytest.fixture(params=[Runtime.SGLANG, Runtime.VLLM], ids=["sglang", "vllm"])
def config(request: pytest.FixtureRequest) -> EngineConfig:
    """An engine that wants its key on everything, its probes included."""
    return EngineConfig(runtime=request.param, speed=50.0, api_key=K1, weight_version="7", seed=1)


@pytest.fixture
async def world(config: EngineConfig, tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(
        tmp_path,
        {"e0": "7"},
        config=config,
        api_keys=(K0,),
        admin_key=ADMIN,
        engine_keys={"pool": K1},
        probe=PROBING,
    ) as started:
        yield started


async def fetch(
    world: Rig, method: str, path: str, *, key: str | None, body: Any = None, **headers: str
) -> tuple[int, str]:
    """Status, and everything that the client reads in one text."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if key is not None:
        sent["Authorization"] = f"Bearer {key}"
    async with world.client.request(method, world.url + path, json=body, headers=sent) as answer:
        lines = [f"{name.decode()}: {value.decode()}" for name, value in answer.raw_headers]
        return answer.status, "\n".join([*lines, await answer.text()])


REQUESTS = [
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ("POST", "/v1/completions", {"prompt": "hi", "stream": True, "max_tokens": 3}),
    ("POST", "/v1/embeddings", {"input": "hi"}),
    ("POST", "/tokenize", {"prompt": "hi"}),
    ("POST", "/v1/completions", {"nonsense": True}),
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/sim-model", None),
    ("GET", "/server_info", None),
    ("GET", "/model_info", None),
    ("GET", "/v1/loads", None),
    ("POST", "/abort_request", {"rid": "x"}),
    ("GET", "/health", None),
    ("GET", "/nowhere", None),
]


def sent_keys(world: Rig) -> set[str | None]:
    return {entry.header("authorization") for entry in world.engines["e0"].journal.entries}


def raw_heads(world: Rig) -> str:
    entries = world.engines["e0"].journal.entries
    return repr([entry.raw_headers for entry in entries]) + repr([e.query for e in entries])


async def test_field_failure_51_the_engines_key_is_on_every_call_and_the_clients_on_none(
    world: Rig,
) -> None:
    """vllm-project/router#159, sglang#30046, sglang#3031."""
    for method, path, body in REQUESTS:
        status, _ = await fetch(world, method, path, key=K0, body=body)
        assert status not in (401, 403, 502, 503), (method, path)
    status, _ = await fetch(world, "POST", "/flush_cache", key=ADMIN)
    assert status == 200
    status, _ = await fetch(
        world, "POST", "/v1/completions", key=None, body={"prompt": "hi"}, x_api_key=K0
    )
    assert status == 200
    probed = {"/ping", "/health"}
    await world.engines["e0"].until(
        lambda: any(entry.path in probed for entry in world.engines["e0"].journal.entries)
    )

    assert sent_keys(world) == {f"Bearer {K1}"}
    assert K0 not in raw_heads(world)
    assert ADMIN not in raw_heads(world)
    assert {entry.status for entry in world.engines["e0"].journal.of("/ping")} <= {200, None}
    assert world.engine("e0").healthy


async def test_field_failure_51_no_key_is_shown_to_anybody(
    config: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = io.StringIO()
    monkeypatch.setattr("sys.stderr", logs)
    shown: list[str] = []
    async with rig(
        tmp_path,
        {"e0": "7"},
        config=config,
        api_keys=(K0,),
        admin_key=ADMIN,
        engine_keys={"pool": K1},
        probe=PROBING,
        log_level="debug",
        access_log=True,
    ) as world:
        for key in (K0, ADMIN, K1, "wrong", None):
            for method, path, body in [*REQUESTS, ("POST", "/flush_cache", None)]:
                shown.append((await fetch(world, method, path, key=key, body=body))[1])
        shown.append((await fetch(world, "GET", f"/v1/models/{K1}x", key=K1))[1])
        # Also when the engine refuses what it gets, and when it is gone.
        world.app.settings.engine_keys["pool"] = "stale-" + K1
        for method, path, body in REQUESTS:
            shown.append((await fetch(world, method, path, key=K0, body=body))[1])
        await world.engines["e0"].stop()
        for method, path, body in REQUESTS:
            shown.append((await fetch(world, method, path, key=K0, body=body))[1])
        for path in ("/status", "/metrics", "/explain", "/livez", "/readyz"):
            async with world.client.get(world.app.metrics_url + path) as answer:
                shown += [str(answer.headers), await answer.text()]
        shown.append(repr(world.app.settings))

    text = "\n".join([*shown, logs.getvalue()])
    assert "request_id=" in logs.getvalue()
    for key in (K0, K1, ADMIN):
        assert key not in text


async def test_a_strangers_request_reaches_no_engine(world: Rig) -> None:
    guarded = [request for request in REQUESTS if request[1] not in ("/health", "/v1/models")]
    before = [e for e in world.engines["e0"].journal.entries if e.path not in ("/ping", "/health")]
    for key in ("wrong", K1, None):
        for method, path, body in [*guarded, ("POST", "/flush_cache", None)]:
            status, said = await fetch(world, method, path, key=key, body=body)
            assert status == 401, (method, path)
            assert "www-authenticate: Bearer" in said
            assert '"code":"unauthorized"' in said

    after = [e for e in world.engines["e0"].journal.entries if e.path not in ("/ping", "/health")]
    assert after == before == []


async def test_where_the_proxy_has_no_keys_the_clients_own_is_passed_on(
    config: EngineConfig, tmp_path: Path
) -> None:
    async with rig(tmp_path, {"e0": "7"}, config=config) as world:
        body = {"prompt": "hi", "max_tokens": 2}
        assert (await fetch(world, "POST", "/v1/completions", key=K1, body=body))[0] == 200
        status, said = await fetch(world, "POST", "/v1/completions", key="wrong", body=body)

        # The engine's own refusal, as it gave it.
        assert status == 401
        assert "x-smg-error-code" not in said
        assert sent_keys(world) == {f"Bearer {K1}", "Bearer wrong"}


async def test_a_key_that_is_not_the_proxys_is_not_the_engines_either(
    config: EngineConfig, tmp_path: Path
) -> None:
    """Where the engines have a key of their own, the client's header gives way to it."""
    async with rig(tmp_path, {"e0": "7"}, config=config, engine_keys={"pool": K1}) as world:
        body = {"prompt": "hi", "max_tokens": 2}
        for key in ("anything", None):
            assert (await fetch(world, "POST", "/v1/completions", key=key, body=body))[0] == 200

        assert sent_keys(world) == {f"Bearer {K1}"}


async def test_each_pool_gets_its_own_key(tmp_path: Path) -> None:
    config = EngineConfig(speed=0, api_key=K1)
    async with rig(
        tmp_path, {"e0": "7", "e1": "7"}, config=config, engine_keys={"pool": K1, "other": "x"}
    ) as world:
        world.file.others = [{"name": "other", "model": "m2", "engines": [world.file.rows.pop()]}]
        world.file.write()
        await until(lambda: world.app.fleet.pool("other") is not None)
        for model, wanted in (("sim-model", 200), ("m2", 401)):
            body = {"model": model, "prompt": "hi", "max_tokens": 1}
            assert (await fetch(world, "POST", "/v1/completions", key=None, body=body))[0] == wanted

        assert sent_keys(world) == {f"Bearer {K1}"}
        (entry,) = world.engines["e1"].journal.entries
        assert entry.header("authorization") == "Bearer x"


async def test_only_the_admin_key_flushes(world: Rig) -> None:
    status, said = await fetch(world, "POST", "/flush_cache", key=K0)
    assert status == 403
    assert '"code":"admin_key_required"' in said
    path = (
        "/flush_cache"
        if world.engines["e0"].config.runtime is Runtime.SGLANG
        else ("/reset_prefix_cache")
    )
    assert world.received("e0", path) == 0

    assert (await fetch(world, "POST", "/flush_cache", key=ADMIN))[0] == 200
    assert world.received("e0", path) == 1
    # It opens everything else too.
    body = {"prompt": "hi", "max_tokens": 2}
    assert (await fetch(world, "POST", "/v1/completions", key=ADMIN, body=body))[0] == 200


async def test_field_failure_51_a_refused_probe_is_a_condition_and_the_engine_stays_in(
    config: EngineConfig, tmp_path: Path
) -> None:
    async with rig(
        tmp_path, {"e0": "7"}, config=config, engine_keys={"pool": "stale"}, probe=PROBING
    ) as world:
        engine = world.engines["e0"]
        probe = "/ping" if config.runtime is Runtime.SGLANG else "/health"
        if config.runtime is Runtime.VLLM:
            # It wants its key below /v1 only; a gateway before it may want it everywhere.
            engine.faults.arm(probe, Fault(status=401, body={"error": "Unauthorized"}))
        await until(lambda: bool(world.app.health.conditions(world.engine("e0"))))
        refused = len(engine.journal.of(probe))
        await until(lambda: len(engine.journal.of(probe)) > refused + PROBING.failures)

        async with world.client.get(f"{world.app.metrics_url}/status") as answer:
            row = (await answer.json())["pools"][0]["engines"][0]
        assert row["conditions"] == ["AuthFailed"]
        assert row["healthy"] is True
        assert row["eligible"] is True
        # Requests go on getting the engine's own word.
        body = {"prompt": "hi", "max_tokens": 2}
        status, _ = await fetch(world, "POST", "/v1/completions", key=None, body=body)
        assert status == 401
