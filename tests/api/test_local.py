"""The local API on a real unix socket."""

import asyncio
import json
import resource
import stat
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from steersman_operator.api.local import MAX_BODY, LocalApi
from tests.api.asking import STATUS, error_of
from tests.api.support import Done, FakeFleet, NoSuch, Refused, engine, fleet, pool, serving

EDIT = {"kind": "RolloutEngine", "name": "qwen", "verb": "pause", "engine": None}


# --- answers --------------------------------------------------------------------------------------


async def test_the_status(http: aiohttp.ClientSession) -> None:
    async with http.get("/v1/status") as answer:
        assert answer.status == 200
        assert await answer.json() == STATUS


async def test_only_the_owner_may_open_the_socket(api: LocalApi, socket: Path) -> None:
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600


async def test_a_socket_of_an_operator_before_is_replaced(there: FakeFleet, socket: Path) -> None:
    socket.write_text("left over")
    async with serving(there, socket):
        assert socket.is_socket()
    assert not socket.exists()


async def test_an_edit(http: aiohttp.ClientSession, there: FakeFleet) -> None:
    there.answer = Done(4, changed=True, message="e1 has its own state, Asleep")

    async with http.post("/v1/edit", json=EDIT | {"engine": "e0"}) as answer:
        assert answer.status == 200
        assert await answer.json() == {
            "generation": 4,
            "changed": True,
            "message": "e1 has its own state, Asleep",
        }
    (edit,) = there.edits
    assert (edit.name, edit.verb, edit.engine) == ("qwen", "pause", "e0")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NoSuch("there is no RolloutEngine quen"), 404, "no_such_resource"),
        (Refused("qwen is asleep; wake it first"), 409, "refused"),
    ],
)
async def test_an_edit_that_is_refused(
    http: aiohttp.ClientSession, there: FakeFleet, error: Exception, status: int, code: str
) -> None:
    there.answer = error

    async with http.post("/v1/edit", json=EDIT) as answer:
        assert await error_of(answer) == (status, code, str(error))


async def test_a_read_is_answered_once_the_status_has_it(
    http: aiohttp.ClientSession, there: FakeFleet
) -> None:
    def read() -> None:
        there.now = numbered(2)

    there.on_read = read

    async with http.post("/v1/read") as answer:
        assert (answer.status, await answer.json()) == (200, {})
    async with http.get("/v1/status") as answer:
        assert generation(await answer.json()) == 2
    async with http.get("/v1/read") as answer:
        assert (await error_of(answer))[0] == 405
    assert there.reads == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"pause"',
        b"\xff\xfe",
        json.dumps(EDIT | {"verb": "stop"}).encode(),
        json.dumps(EDIT | {"kind": "Pod"}).encode(),
        json.dumps(EDIT | {"name": 7}).encode(),
        json.dumps(EDIT | {"more": 1}).encode(),
        json.dumps({"kind": "RolloutEngine"}).encode(),
        b"[" * 60_000,
    ],
)
async def test_what_is_no_edit_is_refused_and_reaches_nobody(
    http: aiohttp.ClientSession, there: FakeFleet, body: bytes
) -> None:
    async with http.post("/v1/edit", data=body) as answer:
        status, code, message = await error_of(answer)

    assert (status, code) == (422, "invalid_edit")
    assert message.startswith("the body is not an edit: ")
    assert there.edits == []


async def test_a_body_beyond_the_limit(http: aiohttp.ClientSession, there: FakeFleet) -> None:
    async with http.post("/v1/edit", data=b" " * (MAX_BODY + 1)) as answer:
        assert (await error_of(answer))[:2] == (413, "body_too_large")
    assert there.edits == []


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/v1/status", "GET, HEAD"),
        ("DELETE", "/v1/status", "GET, HEAD"),
        ("GET", "/v1/edit", "POST"),
        ("GET", "/v1/refit", "POST"),
        ("PUT", "/v1/rollout", "POST"),
        ("GET", "/v1/publish", "POST"),
        ("HEAD", "/v1/watch", "GET"),
    ],
)
async def test_a_wrong_method(
    http: aiohttp.ClientSession, method: str, path: str, allow: str
) -> None:
    async with http.request(method, path) as answer:
        assert answer.status == 405
        assert answer.headers["Allow"] == allow
        if method != "HEAD":
            assert (await answer.json())["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/status/", "/v1/explain", "/%ff", "/../etc"])
async def test_an_unknown_path(http: aiohttp.ClientSession, path: str) -> None:
    async with http.get(path) as answer:
        assert (await error_of(answer))[:2] == (404, "unknown_url")


async def test_a_fault_is_told_and_survived(
    http: aiohttp.ClientSession, there: FakeFleet, caplog: pytest.LogCaptureFixture
) -> None:
    there.hurt = ZeroDivisionError("oh")
    async with http.get("/v1/status") as answer:
        assert (await error_of(answer))[:2] == (500, "internal_error")
    assert "ZeroDivisionError: oh" in caplog.text
    there.hurt = None

    async with http.get("/v1/status") as answer:
        assert answer.status == 200


async def test_an_edit_goes_on_when_whoever_asked_has_left(
    http: aiohttp.ClientSession, there: FakeFleet
) -> None:
    begun, go, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
    whole = there.edit

    async def slowly(edit: Any) -> Done:
        begun.set()
        await go.wait()
        result = await whole(edit)
        done.set()
        return result

    there.edit = slowly  # type: ignore[method-assign]
    asking = asyncio.ensure_future(http.post("/v1/edit", json=EDIT))
    await begun.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    go.set()

    await asyncio.wait_for(done.wait(), 10)
    assert len(there.edits) == 1


async def test_an_edit_under_way_is_carried_out_before_the_end(
    there: FakeFleet, socket: Path
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    whole = there.edit

    async def slowly(edit: Any) -> Done:
        begun.set()
        await go.wait()
        return await whole(edit)

    there.edit = slowly  # type: ignore[method-assign]
    connector = aiohttp.UnixConnector(str(socket))
    async with aiohttp.ClientSession("http://operator", connector=connector) as http:
        async with serving(there, socket) as api:
            asking = asyncio.ensure_future(http.post("/v1/edit", json=EDIT))
            await begun.wait()
            closing = asyncio.ensure_future(api.close())
            await asyncio.sleep(0)
            go.set()
            await closing
        await asyncio.gather(asking, return_exceptions=True)
    assert len(there.edits) == 1


# --- watching -------------------------------------------------------------------------------------


class Watch:
    """One watcher, reading line by line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, socket: Path) -> "Watch":
        watch = cls(*await asyncio.open_unix_connection(str(socket), limit=2**21))
        # HTTP/1.0, so that the lines come as they are.
        watch.writer.write(b"GET /v1/watch HTTP/1.0\r\n\r\n")
        head = await watch.reader.readuntil(b"\r\n\r\n")
        assert b"200" in head.splitlines()[0]
        assert b"application/x-ndjson" in head
        return watch

    async def line(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await asyncio.wait_for(self.reader.readline(), 20))
        return found

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


def generation(status: dict[str, Any]) -> int:
    return int(status["pools"][0]["generation"])


def numbered(number: int) -> dict[str, Any]:
    return fleet(pool("qwen", engine(), generation=number))


async def left(api: LocalApi) -> None:
    """Wait until nobody watches."""
    async with asyncio.timeout(20):
        while api.watchers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_watch_tells_the_state_and_each_change(
    api: LocalApi, there: FakeFleet, socket: Path
) -> None:
    watch = await Watch.open(socket)
    try:
        assert await watch.line() == STATUS
        for number in (2, 3):
            there.become(numbered(number))
            assert generation(await watch.line()) == number
    finally:
        await watch.close()
    await left(api)


async def test_many_watchers_cost_one_status_for_each_change(
    api: LocalApi, there: FakeFleet, socket: Path
) -> None:
    watches = [await Watch.open(socket) for _ in range(100)]
    try:
        await asyncio.gather(*(watch.line() for watch in watches))
        assert api.watchers == 100
        before = there.made
        for number in (2, 3, 4):
            there.become(numbered(number))
            lines = await asyncio.gather(*(watch.line() for watch in watches))
            assert {generation(line) for line in lines} == {number}
        assert there.made - before < 12, "not one for each of them"
    finally:
        for watch in watches:
            await watch.close()
    await left(api)


async def test_a_watch_beside_others_begins_with_the_present(
    api: LocalApi, there: FakeFleet, socket: Path
) -> None:
    """Whoever has just asked for something must not be told how it was before."""
    first = await Watch.open(socket)
    await first.line()
    there.now = numbered(2)  # and nobody was told yet
    second = await Watch.open(socket)
    try:
        assert generation(await second.line()) == 2
        assert generation(await first.line()) == 2
    finally:
        await first.close()
        await second.close()


async def test_ages_are_no_change(api: LocalApi, there: FakeFleet, socket: Path) -> None:
    watch = await Watch.open(socket)
    try:
        await watch.line()
        older = numbered(1)
        older["operator"]["uptime"] = 99.0
        before = there.made
        there.become(older)
        async with asyncio.timeout(20):
            while there.made == before:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        there.become(numbered(2))
        assert generation(await watch.line()) == 2
    finally:
        await watch.close()


async def test_a_watch_tells_that_the_operator_lives(
    api: LocalApi, there: FakeFleet, socket: Path
) -> None:
    api._lines._refresh = 0.3
    watch = await Watch.open(socket)
    try:
        assert await watch.line() == await watch.line() == STATUS
    finally:
        await watch.close()


async def test_a_slow_watcher_holds_one_line_and_gets_the_newest(
    api: LocalApi, there: FakeFleet, socket: Path
) -> None:
    api._lines._gap = 0.001
    slow, quick = await Watch.open(socket), await Watch.open(socket)
    big = "x" * 2**20
    try:
        for number in range(2, 42):
            there.become(fleet(pool("qwen", engine(problem=big), generation=number)))
            while generation(await quick.line()) != number:
                pass
        # It has read nothing so far. What was sent to it is what its buffers hold.
        seen: list[int] = []
        while not seen or seen[-1] != 41:
            seen.append(generation(await slow.line()))
        assert len(seen) < 20
        assert seen == sorted(seen)
    finally:
        await quick.close()
        await slow.close()
    await left(api)


async def test_a_watcher_that_leaves_in_silence_is_found_out(
    api: LocalApi, there: FakeFleet, socket: Path
) -> None:
    watches = [await Watch.open(socket) for _ in range(3)]
    for watch in watches:
        await watch.line()
    for watch in watches:
        await watch.close()
    # Nothing changes meanwhile.
    await left(api)
    made = there.made
    there.become(numbered(2))
    await asyncio.sleep(0)
    assert there.made == made, "nobody asks any more"


async def test_a_watch_survives_a_status_that_cannot_be_made(
    api: LocalApi, there: FakeFleet, socket: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = await Watch.open(socket)
    try:
        await watch.line()
        there.hurt = ZeroDivisionError("oh")
        there.become(numbered(2))
        async with asyncio.timeout(20):
            while "could not be made" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        there.hurt = None
        there.become(numbered(3))
        assert generation(await watch.line()) == 3
    finally:
        await watch.close()


async def test_watchers_are_let_go_at_the_end(there: FakeFleet, socket: Path) -> None:
    async with serving(there, socket):
        watch = await Watch.open(socket)
        await watch.line()
    assert await asyncio.wait_for(watch.reader.read(), 20) == b""
    await watch.close()


async def test_a_watch_begun_anew_tells_the_present(
    api: LocalApi, there: FakeFleet, socket: Path
) -> None:
    first = await Watch.open(socket)
    await first.line()
    await first.close()
    await left(api)
    there.become(numbered(9))

    second = await Watch.open(socket)
    try:
        assert generation(await second.line()) == 9
    finally:
        await second.close()


# --- many and strange connections -----------------------------------------------------------------


def open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


async def test_a_thousand_connections_that_say_nothing(
    api: LocalApi, http: aiohttp.ClientSession, socket: Path
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 3000
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip("the system allows too few open files")
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        before = open_files()
        mute = [await asyncio.open_unix_connection(str(socket)) for _ in range(1000)]
        async with http.get("/v1/status") as answer:
            assert answer.status == 200
        for _, writer in mute:
            writer.close()
        for _, writer in mute:
            await writer.wait_closed()
        async with asyncio.timeout(20):
            while open_files() > before + 10:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        async with http.get("/v1/status") as answer:
            assert answer.status == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("noise", [b"\x00\xff\x00\r\n\r\n", b"GET\r\n\r\n", b"\r\n" * 50])
async def test_noise_hurts_nobody(
    http: aiohttp.ClientSession, api: LocalApi, socket: Path, noise: bytes
) -> None:
    _, writer = await asyncio.open_unix_connection(str(socket))
    writer.write(noise)
    await writer.drain()
    writer.close()
    await writer.wait_closed()

    async with http.get("/v1/status") as answer:
        assert answer.status == 200
