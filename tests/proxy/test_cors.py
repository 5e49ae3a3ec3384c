"""Requests from pages of other origins, as browsers make them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.proxy.support import Rig, rig, running

pytestmark = pytest.mark.usefixtures("adapter")

HERE = "https://app.example.org"
ELSEWHERE = "https://evil.example.org"


class Seen(NamedTuple):
    """An answer, as far as cross-origin rules are concerned."""

    status: int
    cors: dict[str, str]
    vary: list[str]


async def ask(world: Rig, method: str, path: str, *, origin: str | None, **headers: str) -> Seen:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if origin is not None:
        sent["Origin"] = origin
    body = {"text": "a", "sampling_params": {"max_new_tokens": 2}}
    async with world.client.request(
        method, world.url + path, json=body if method == "POST" else None, headers=sent
    ) as answer:
        await answer.read()
        names = [name.lower() for name in answer.headers]
        found = {n: answer.headers[n] for n in names if n.startswith("access-control-")}
        assert len(found) == sum(n.startswith("access-control-") for n in names)
        return Seen(answer.status, found, answer.headers.getall("vary", []))


async def preflight(world: Rig, path: str, *, origin: str | None, asks: str = "POST") -> Seen:
    return await ask(
        world,
        "OPTIONS",
        path,
        origin=origin,
        Access_Control_Request_Method=asks,
        Access_Control_Request_Headers="authorization,content-type,x-smg-version-policy",
    )


def listed(text: str) -> set[str]:
    return {word.strip().lower() for word in text.split(",")}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path, {"e0": "7"}, allowed_origins=(HERE,), api_keys=("k",)) as started:
        yield started


async def test_by_default_no_origin_may_read_anything(tmp_path: Path) -> None:
    async with rig(tmp_path, {"e0": "7"}) as world:
        for path in ("/generate", "/nowhere"):
            assert (await ask(world, "POST", path, origin=HERE)).cors == {}
        assert (await ask(world, "GET", "/v1/models", origin=HERE)).cors == {}
        before = world.received("e0")
        refused = await preflight(world, "/generate", origin=HERE)
        assert (refused.status, refused.cors) == (405, {})
        assert world.received("e0") == before


async def test_a_preflight_of_an_allowed_origin_needs_no_key_and_reaches_no_engine(
    world: Rig,
) -> None:
    for path in ("/generate", "/v1/chat/completions", "/v1/models"):
        seen = await preflight(world, path, origin=HERE)
        assert seen.status == 204
        assert seen.cors["access-control-allow-origin"] == HERE
        assert {"authorization", "content-type"} <= listed(
            seen.cors["access-control-allow-headers"]
        )
        assert {"x-smg-version-policy", "x-smg-routing-key", "x-session-id"} <= listed(
            seen.cors["access-control-allow-headers"]
        )
        assert "post" in listed(seen.cors["access-control-allow-methods"])
        assert "access-control-allow-credentials" not in seen.cors
        assert seen.vary == ["Origin"]

    assert world.engines["e0"].journal.count == 0


async def test_an_allowed_origin_reads_the_answer_and_the_stamps(world: Rig) -> None:
    seen = await ask(world, "POST", "/generate", origin=HERE, Authorization="Bearer k")

    assert seen.status == 200
    assert seen.cors["access-control-allow-origin"] == HERE
    assert listed(seen.cors["access-control-expose-headers"]) == {
        "x-smg-routed-worker-id",
        "x-smg-weight-version",
        "x-smg-mixed-version",
        "x-request-id",
    }
    assert seen.vary == ["Origin"]


async def test_an_allowed_origin_reads_the_proxys_errors_too(world: Rig) -> None:
    """Otherwise a page sees a network failure where a key is missing."""
    for method, path, key, status in (
        ("POST", "/generate", "wrong", 401),
        ("POST", "/nowhere", "k", 404),
        ("GET", "/generate", "k", 405),
        ("GET", "/v1/models", "k", 200),
        ("GET", "/health", "", 200),
    ):
        seen = await ask(world, method, path, origin=HERE, Authorization=f"Bearer {key}")
        assert seen.status == status
        assert seen.cors["access-control-allow-origin"] == HERE, path
        assert seen.vary == ["Origin"]


async def test_another_origin_gets_no_leave(world: Rig) -> None:
    refused = await preflight(world, "/generate", origin=ELSEWHERE)
    assert refused.cors == {}
    assert refused.status == 401

    for origin in (ELSEWHERE, f"{HERE}.evil.example", HERE.replace("https", "http"), "null", None):
        seen = await ask(world, "POST", "/generate", origin=origin, Authorization="Bearer k")
        assert (seen.status, seen.cors) == (200, {})


async def test_caches_are_told_that_the_answer_depends_on_the_origin(world: Rig) -> None:
    """Without it a cache gives a page the answer that was made for nobody's origin."""
    for origin in (None, ELSEWHERE):
        seen = await ask(world, "GET", "/v1/models", origin=origin, Authorization="Bearer k")
        assert seen.vary == ["Origin"]


async def test_every_origin_may_be_allowed(tmp_path: Path) -> None:
    async with rig(tmp_path, {"e0": "7"}, allowed_origins=("*",)) as world:
        for origin in (HERE, ELSEWHERE, "null"):
            assert (await preflight(world, "/generate", origin=origin)).status == 204
            seen = await ask(world, "POST", "/generate", origin=origin)
            assert seen.cors["access-control-allow-origin"] == "*"
            assert "access-control-allow-credentials" not in seen.cors
            assert seen.vary == []


@pytest.mark.parametrize("allowed", [(), (HERE,), ("*",)])
async def test_an_engines_own_rules_are_taken_out(tmp_path: Path, allowed: tuple[str, ...]) -> None:
    head = (
        "HTTP/1.1 200 OK",
        "Access-Control-Allow-Origin: https://of-the-engine.example",
        "Access-Control-Allow-Credentials: true",
        "access-control-expose-headers: x-secret",
        "Access-Control-Allow-Private-Network: true",
        "Vary: Accept-Encoding",
        "content-length: 2",
        "",
        "ok",
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write("\r\n".join(head).encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        rows = [{"id": "e0", "url": url, "weightVersion": "7"}]
        async with running(tmp_path, rows, allowed_origins=allowed) as world:
            seen = await ask(world, "POST", "/generate", origin=HERE)
            expected = {(): None, (HERE,): HERE, ("*",): "*"}[allowed]
            assert seen.cors.get("access-control-allow-origin") == expected
            assert "access-control-allow-credentials" not in seen.cors
            assert "access-control-allow-private-network" not in seen.cors
            assert "x-secret" not in seen.cors.get("access-control-expose-headers", "")
            assert seen.vary[0] == "Accept-Encoding"
    finally:
        server.close()
        await server.wait_closed()
