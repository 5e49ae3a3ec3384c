"""What went wrong in the field with streams, over sockets, with each adapter (rows of section C)."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from steersman_proxy.stamping.sse import DEFAULT_CAP, EventReader
from tests.http.adapter import post
from tests.http.fake_engine import STREAM, Received, Wire, always, fake_engine
from tests.proxy.raw import chunk, connected, rows, sample
from tests.proxy.support import Rig, running

pytestmark = pytest.mark.usefixtures("adapter")

MIB = 2**20
DONE = b"data: [DONE]\n\n"
PATHS = (b"/generate", b"/v1/chat/completions", b"/inference/v1/generate", b"/encode")
"""Streams that are read along and may be added to, that pass unread, that are only read along, and
those of a route that reports nothing."""

# --- 23: sglang#7301, TensorRT-LLM#13952, aiohttp#4453 -----------------------------------------------


def line_of(size: int) -> bytes:
    """One event without a newline before its end."""
    line = b'data: {"meta_info":{"output_token_logprobs":['
    return line + b"[-0.1,5]," * ((size - len(line)) // 9) + b"[-0.1,5]]}}\n\n"


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The most bytes that a reader of stamps has kept at a time."""
    keep, most = EventReader._keep, 0

    def watched(reader: EventReader, rest: bytes) -> None:
        nonlocal most
        keep(reader, rest)
        most = max(most, sum(map(len, (*reader._partial, *reader._data))))

    monkeypatch.setattr(EventReader, "_keep", watched)
    return lambda: most


@pytest.mark.parametrize("size", [3 * MIB, 9 * MIB])
@pytest.mark.parametrize("path", PATHS)
async def test_field_failure_23_a_line_of_megabytes_is_passed_on_whole(
    tmp_path: Path, path: bytes, size: int, kept: Callable[[], int]
) -> None:
    line = line_of(size)
    parts = [chunk(line[start : start + 2**16]) for start in range(0, len(line), 2**16)]

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(STREAM, *parts, chunk(DONE), b"0\r\n\r\n")
        await wire.gone()

    async with (
        fake_engine(script) as engine,
        running(tmp_path, rows(engine, weightVersion="7")) as world,
        connected(world.app.port) as client,
    ):
        got = await client.post(b'{"stream":true}', path=path)
        assert got.whole
        assert got.body == line + DONE
        assert kept() <= DEFAULT_CAP
        if path in (b"/generate", b"/inference/v1/generate"):
            assert kept() > size // 2 or size > DEFAULT_CAP, (
                "the reader was not there to be bounded"
            )


async def test_field_failure_23_after_a_line_over_the_cap_the_next_version_is_seen(
    tmp_path: Path,
) -> None:
    line = line_of(DEFAULT_CAP + MIB)
    after = b'data: {"meta_info":{"weight_version":"8"}}\n\n'
    stream = STREAM + chunk(line) + chunk(after) + b"0\r\n\r\n"
    async with (
        fake_engine(always(stream)) as engine,
        running(tmp_path, rows(engine, weightVersion="7")) as world,
        connected(world.app.port) as client,
    ):
        got = await client.post(b'{"stream":true}')
        assert got.body == line + after + b": x-smg-weight-version: 8\n\n"
        assert world.engine("e0").version == "8"


# --- 26: litellm#33404, litellm#39748, open-webui#29628 ----------------------------------------------

EVENT_26 = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
CHUNKED_26 = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
LENGTH_26 = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 1000\r\n\r\n"
VARIANTS_26 = {
    "RST": (CHUNKED_26 + chunk(EVENT_26), "RST"),
    "FIN without the last chunk": (CHUNKED_26 + chunk(EVENT_26), "FIN"),
    "FIN within a chunk": (CHUNKED_26 + chunk(EVENT_26) + b"ff\r\ndata: ", "FIN"),
    "a length cut short": (LENGTH_26 + EVENT_26, "FIN"),
    "a length and RST": (LENGTH_26 + EVENT_26, "RST"),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("variant", VARIANTS_26)
async def test_field_failure_26_a_stream_that_breaks_is_broken_for_the_client(
    tmp_path: Path, variant: str, path: bytes
) -> None:
    answer, how = VARIANTS_26[variant]
    seen = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(answer)
        await seen.wait()  # or the RST would overtake what was sent
        if how == "RST":
            wire.reset()
        else:
            await wire.close()

    async with (
        fake_engine(script) as one,
        fake_engine(script) as other,
        running(tmp_path, rows(one, other)) as world,
        connected(world.app.port) as client,
    ):
        await client.send(post(b'{"stream":true}', path=path) + post(b'{"next":true}', path=path))
        head = await client.head()
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        sent = EVENT_26 + (b"data: " if "within" in variant else b"")
        got = b""
        if b"transfer-encoding: chunked" in head.lower():
            while len(got) < len(sent):
                got += await client.chunk()
        else:
            assert b"content-length: 1000\r\n" in head.lower()
            got = await client.reader.readexactly(len(sent))
        assert got == sent
        seen.set()
        # Neither a last chunk nor anything that the client could take for the end or for its next
        # answer: the connection ends here.
        assert await client.reader.read() == b""
        await world.idle()
        assert len(one.received) + len(other.received) == 1
        assert await failures(world) == 1
        assert sum(engine.breaker.failures for engine in world.app.fleet.engines()) == 1
        counted = await sample(
            world, "smg_router_request_errors_total", error_type="upstream_body_incomplete"
        )
        assert counted == 1


async def failures(world: Rig) -> float:
    return await sample(world, "steersman_upstream_failures_total", failure="incomplete")


async def test_field_failure_26_a_reset_that_overtakes_its_answer_is_an_error(
    tmp_path: Path,
) -> None:
    """As it was reported: right after the chunk. What the kernel still gives out is passed on."""

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(CHUNKED_26 + chunk(EVENT_26))
        wire.reset()

    async with fake_engine(script) as engine, running(tmp_path, rows(engine)) as world:
        async with connected(world.app.port) as client:
            await client.send(post(b'{"stream":true}', path=b"/v1/chat/completions"))
            got = await client.answer()
            assert await client.reader.read() == b"" if got.status == 200 else True
        if got.status == 200:
            assert not got.whole
            assert EVENT_26.startswith(got.body)
        else:
            assert (got.status, got.whole) == (502, True)
        assert len(engine.received) == 1


@pytest.mark.parametrize("how", ["RST", "FIN"])
async def test_field_failure_26_http_1_0_has_no_end_but_the_connection_s(
    tmp_path: Path, how: str
) -> None:
    seen = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(CHUNKED_26 + chunk(EVENT_26))
        await seen.wait()
        if how == "RST":
            wire.reset()
        else:
            await wire.close()

    async with (
        fake_engine(script) as engine,
        running(tmp_path, rows(engine)) as world,
        connected(world.app.port) as client,
    ):
        await client.send(post(b"{}").replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert b"ransfer-" not in await client.head()
        assert await client.reader.readexactly(len(EVENT_26)) == EVENT_26
        seen.set()
        with pytest.raises(ConnectionResetError):
            await client.reader.read()


# --- 27: tt-studio#936, graniet/llm#90 ---------------------------------------------------------------

ESCAPED_27 = (
    b'data: {"meta_info":{"weight_version":"7"}}\r\n\r\n: ping\n\n'
    rb'data:{"t":"\u00e9"}'
    b"\n\ndata: [DONE]\n\n"
)
AS_UTF8_27 = ESCAPED_27.replace(rb"\u00e9", "\u00e9".encode())
BEFORE_27 = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 36\r\n\r\n"
BEFORE_27 += b'{"meta_info":{"weight_version":"6"}}'


def told(events: bytes, path: bytes) -> bytes:
    """What the client reads: only `/generate` tells of the version that the table did not know."""
    first, blank, rest = events.partition(b"\r\n\r\n")
    note = b": x-smg-weight-version: 7\n\n" if path == b"/generate" else b""
    return first + blank + note + rest


@pytest.mark.parametrize("path", [b"/generate", b"/inference/v1/generate", b"/v1/chat/completions"])
@pytest.mark.parametrize("events", [ESCAPED_27, AS_UTF8_27], ids=["escaped", "UTF-8"])
async def test_field_failure_27_where_a_stream_is_cut_means_nothing(
    tmp_path: Path, events: bytes, path: bytes
) -> None:
    answer = STREAM + chunk(events) + b"0\r\n\r\n"
    single = STREAM + b"".join(chunk(events[at : at + 1]) for at in range(len(events)))
    cuts: dict[bytes, list[bytes]] = {
        b"all in one write": [answer],
        b"each byte a write": [answer[at : at + 1] for at in range(len(answer))],
        b"each byte a chunk": [single + b"0\r\n\r\n"],
    }
    for at in range(1, len(answer)):
        cuts[b"at byte %d of the answer" % at] = [answer[:at], answer[at:]]
    for at in range(1, len(events)):
        parts = STREAM + chunk(events[:at]) + chunk(events[at:]) + b"0\r\n\r\n"
        cuts[b"a chunk of %d bytes" % at] = [parts]

    def answer_to(request: Received) -> list[bytes]:
        # Asked for its version in between, the engine seems to be at 6 again.
        return cuts.get(request.body) or [BEFORE_27]

    async def script(wire: Wire) -> None:
        while True:
            await wire.cut(*answer_to(await wire.request()))

    async with (
        fake_engine(script) as engine,
        running(tmp_path, rows(engine, weightVersion="6")) as world,
        connected(world.app.port) as client,
    ):
        for cut in cuts:
            assert (await client.post()).values(b"x-smg-weight-version") == [b"6"]
            assert world.engine("e0").version == "6"
            got = await client.post(cut, path=path)
            assert (got.body, got.whole) == (told(events, path), True), cut
            read = path != b"/v1/chat/completions"
            assert world.engine("e0").version == ("7" if read else "6"), cut
        assert engine.connections == 1
