"""The clients that people use: the official openai package, httpx and curl."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from steersman_sim.engine import EngineConfig, Runtime
from tests.proxy.support import Rig, rig

pytestmark = pytest.mark.usefixtures("adapter")

CHAT = {"model": "sim-model", "messages": [{"role": "user", "content": "hello"}]}
STREAMED_CHAT = CHAT | {"stream": True, "max_tokens": 8}


@pytest.fixture(params=[Runtime.SGLANG, Runtime.VLLM], ids=["sglang", "vllm"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    config = EngineConfig(runtime=request.param, speed=50.0)
    async with rig(tmp_path, {"e0": "7"}, config=config) as started:
        yield started


async def curl(*arguments: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run curl without anybody's configuration or HTTP proxy."""
    process = await asyncio.create_subprocess_exec(
        "curl",
        "--disable",
        "--silent",
        "--show-error",
        "--noproxy",
        "*",
        *arguments,
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await process.communicate(stdin)
    assert process.returncode is not None
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def stamped(world: Rig, headers: httpx.Headers) -> None:
    assert headers["x-smg-weight-version"] == "7"
    assert headers["x-smg-routed-worker-id"] == world.engines["e0"].url
    assert "x-smg-mixed-version" not in headers


# --- openai -----------------------------------------------------------------------------------------


def sync_openai(base: str) -> dict[str, Any]:
    """Everything that the synchronous client is asked to do; what it saw."""
    seen: dict[str, Any] = {}
    with openai.OpenAI(api_key="unused", base_url=base, max_retries=0) as client:
        chat = client.chat.completions.create(
            model="sim-model", messages=[{"role": "user", "content": "hi"}], max_tokens=6
        )
        seen["chat"] = (chat.model, chat.choices[0].message.content, chat.usage)
        raw = client.chat.completions.with_raw_response.create(
            model="sim-model", messages=[{"role": "user", "content": "hi"}], max_tokens=6
        )
        seen["chat headers"] = raw.headers
        with client.chat.completions.create(
            model="sim-model",
            messages=[{"role": "user", "content": "hi"}],
            max_tokens=6,
            stream=True,
            stream_options={"include_usage": True},
        ) as stream:
            seen["stream headers"] = stream.response.headers
            chunks = list(stream)
        seen["stream"] = "".join(
            chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices
        )
        seen["stream usage"] = chunks[-1].usage
        completion = client.completions.create(model="sim-model", prompt="hi", max_tokens=6)
        seen["completion"] = completion.choices[0].text
        with client.completions.create(
            model="sim-model", prompt="hi", max_tokens=6, stream=True
        ) as words:
            seen["completion stream"] = "".join(word.choices[0].text for word in words)
        embedding = client.embeddings.with_raw_response.create(model="sim-model", input=["a", "b"])
        seen["embedding headers"] = embedding.headers
        seen["embeddings"] = [item.embedding for item in embedding.parse().data]
        seen["models"] = [model.id for model in client.models.list()]
        seen["model"] = client.models.retrieve("sim-model").id
        try:
            client.models.retrieve("another")
        except openai.NotFoundError as error:
            seen["not found"] = error.code
    return seen


async def test_the_openai_client(world: Rig) -> None:
    seen = await asyncio.to_thread(sync_openai, f"{world.url}/v1")

    model, content, usage = seen["chat"]
    assert model == "sim-model"
    assert content
    assert usage.completion_tokens == 6
    assert seen["stream"]
    assert seen["stream usage"].completion_tokens == 6
    assert seen["completion"]
    assert seen["completion stream"]
    assert len(seen["embeddings"]) == 2
    for name in ("chat headers", "stream headers", "embedding headers"):
        stamped(world, seen[name])
    assert seen["models"] == ["sim-model"]
    assert seen["model"] == "sim-model"
    assert seen["not found"] == "model_not_found"


async def test_the_async_openai_client(world: Rig) -> None:
    async with openai.AsyncOpenAI(
        api_key="unused", base_url=f"{world.url}/v1", max_retries=0
    ) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="sim-model", messages=[{"role": "user", "content": "hi"}], max_tokens=6
        )
        stamped(world, raw.headers)  # type: ignore[arg-type]
        assert raw.parse().choices[0].message.content

        async with await client.chat.completions.create(
            model="sim-model",
            messages=[{"role": "user", "content": "hi"}],
            max_tokens=6,
            stream=True,
        ) as stream:
            stamped(world, stream.response.headers)  # type: ignore[arg-type]
            chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices[0].finish_reason == "length"

        words = await client.completions.create(
            model="sim-model", prompt="hi", max_tokens=6, stream=True
        )
        assert "".join([word.choices[0].text async for word in words])
        completion = await client.completions.create(model="sim-model", prompt="hi", max_tokens=6)
        assert completion.choices[0].text
        embedding = await client.embeddings.create(model="sim-model", input="a")
        assert embedding.data[0].embedding
        assert [model.id async for model in client.models.list()] == ["sim-model"]
        assert (await client.models.retrieve("sim-model")).id == "sim-model"


async def test_an_openai_client_that_leaves_a_stream_stops_its_engine(world: Rig) -> None:
    async with openai.AsyncOpenAI(
        api_key="unused", base_url=f"{world.url}/v1", max_retries=0
    ) as client:
        async with await client.chat.completions.create(
            model="sim-model",
            messages=[{"role": "user", "content": "hi"}],
            max_tokens=100_000,
            stream=True,
            extra_body={"ignore_eos": True},
        ) as stream:
            await anext(aiter(stream))
        await world.idle()

        (entry,) = world.engines["e0"].journal.of("/v1/chat/completions")
        await world.engines["e0"].until(lambda: entry.ended is not None)
        assert entry.disconnected


async def test_the_openai_client_reads_the_proxys_errors(tmp_path: Path) -> None:
    async with (
        rig(tmp_path, {"e0": "7"}, api_keys=("right",)) as world,
        openai.AsyncOpenAI(api_key="wrong", base_url=f"{world.url}/v1", max_retries=0) as stranger,
        openai.AsyncOpenAI(api_key="right", base_url=f"{world.url}/v1", max_retries=0) as client,
    ):
        with pytest.raises(openai.AuthenticationError) as refused:
            await stranger.completions.create(model="sim-model", prompt="hi")
        assert refused.value.code == "unauthorized"

        await world.edit("e0", control="asleep")
        with pytest.raises(openai.InternalServerError) as out:
            await client.completions.create(model="sim-model", prompt="hi")
        assert out.value.status_code == 503
        assert out.value.code == "no_available_workers"
        assert "1 asleep" in out.value.message
        assert world.engines["e0"].journal.count == 0


# --- httpx ------------------------------------------------------------------------------------------


def sync_httpx(base: str) -> tuple[httpx.Headers, list[str], int]:
    with httpx.Client(base_url=base, trust_env=False) as client:
        with client.stream("POST", "/v1/chat/completions", json=STREAMED_CHAT) as answer:
            lines = [line for line in answer.iter_lines() if line]
        buffered = client.post("/v1/chat/completions", json=CHAT | {"max_tokens": 8})
        return answer.headers, lines, len(buffered.json()["choices"])


async def test_httpx(world: Rig) -> None:
    headers, lines, choices = await asyncio.to_thread(sync_httpx, world.url)

    stamped(world, headers)
    assert lines[-1] == "data: [DONE]"
    assert choices == 1


async def test_async_httpx(world: Rig) -> None:
    async with httpx.AsyncClient(base_url=world.url, trust_env=False) as client:
        async with client.stream("POST", "/v1/chat/completions", json=STREAMED_CHAT) as answer:
            stamped(world, answer.headers)
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = [line async for line in answer.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert all(line.startswith("data: ") for line in lines)

        async def parts() -> AsyncIterator[bytes]:
            yield b'{"model": "sim-model", '
            yield b'"prompt": "hi", "max_tokens": 4}'

        chunked = await client.post(
            "/v1/completions", content=parts(), headers={"content-type": "application/json"}
        )
        assert chunked.status_code == 200
        stamped(world, chunked.headers)


async def test_many_httpx_requests_share_few_connections(world: Rig) -> None:
    async with httpx.AsyncClient(
        base_url=world.url, trust_env=False, limits=httpx.Limits(max_connections=8)
    ) as client:
        answers = await asyncio.gather(
            *(client.post("/v1/chat/completions", json=CHAT | {"max_tokens": 2}) for _ in range(64))
        )

    assert {answer.status_code for answer in answers} == {200}
    assert world.received("e0", "/v1/chat/completions") == 64
    connections = {entry.connection for entry in world.engines["e0"].journal.entries}
    assert len(connections) <= 8


# --- curl -------------------------------------------------------------------------------------------


def head_and_body(output: bytes) -> tuple[str, dict[str, str], bytes]:
    head, _, body = output.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(": ") for line in lines)
    return status, {name.lower(): value for name, _, value in pairs}, body


async def test_curl_buffered(world: Rig) -> None:
    done = await curl("--include", "--json", json.dumps(CHAT), f"{world.url}/v1/chat/completions")

    assert (done.returncode, done.stderr) == (0, b"")
    status, headers, body = head_and_body(done.stdout)
    assert status == "HTTP/1.1 200 OK"
    assert headers["x-smg-weight-version"] == "7"
    assert headers["content-length"] == str(len(body))
    assert json.loads(body)["object"] == "chat.completion"


async def test_curl_streamed(world: Rig) -> None:
    done = await curl(
        "--no-buffer",
        "--include",
        "--json",
        json.dumps(STREAMED_CHAT),
        f"{world.url}/v1/chat/completions",
    )

    assert (done.returncode, done.stderr) == (0, b"")
    status, headers, body = head_and_body(done.stdout)
    assert status == "HTTP/1.1 200 OK"
    assert headers["x-smg-weight-version"] == "7"
    assert body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("streamed", [False, True])
async def test_curl_speaking_http_1_0(world: Rig, streamed: bool) -> None:
    """The end of the connection is the end of a stream there; there are no chunks."""
    body = STREAMED_CHAT if streamed else CHAT
    done = await curl(
        "--http1.0",
        "--include",
        "--json",
        json.dumps(body),
        f"{world.url}/v1/chat/completions",
    )

    assert (done.returncode, done.stderr) == (0, b"")
    status, headers, answer = head_and_body(done.stdout)
    assert status.endswith("200 OK")
    assert headers["x-smg-weight-version"] == "7"
    assert "transfer-encoding" not in headers
    if streamed:
        assert answer.endswith(b"data: [DONE]\n\n")
    else:
        assert json.loads(answer)["choices"]


async def test_curl_uploads_after_100_continue(world: Rig, tmp_path: Path) -> None:
    """curl asks before it sends a large body, and waits for a second if nobody answers."""
    upload = tmp_path / "upload.json"
    prompt = "word " * 400_000
    upload.write_text(json.dumps({"model": "sim-model", "input": prompt}))

    done = await curl(
        "--verbose",
        "--header",
        "content-type: application/json",
        "--header",
        "expect: 100-continue",
        "--data-binary",
        f"@{upload}",
        f"{world.url}/v1/embeddings",
    )

    assert done.returncode == 0
    # A verbose curl shows the interim answer before the final one.
    assert b"< HTTP/1.1 100 Continue" in done.stderr
    (entry,) = world.engines["e0"].journal.of("/v1/embeddings")
    assert entry.body_size == upload.stat().st_size
    # The proxy has the whole body already: the engine is not asked for leave again.
    assert entry.header("expect") is None


async def test_curl_chunked_upload(world: Rig) -> None:
    body = json.dumps({"model": "sim-model", "prompt": "hi", "max_tokens": 4}).encode()
    done = await curl(
        "--header",
        "transfer-encoding: chunked",
        "--header",
        "content-type: application/json",
        "--data-binary",
        "@-",
        f"{world.url}/v1/completions",
        stdin=body,
    )

    assert done.returncode == 0
    assert json.loads(done.stdout)["choices"]
    (entry,) = world.engines["e0"].journal.of("/v1/completions")
    assert entry.body == body


async def test_curl_head_of_models(world: Rig) -> None:
    """``curl -I``: the head of a GET, and no byte of a body."""
    done = await curl("--head", f"{world.url}/v1/models")
    whole = await curl(f"{world.url}/v1/models")

    assert (done.returncode, done.stderr) == (0, b"")
    status, headers, body = head_and_body(done.stdout)
    assert status == "HTTP/1.1 200 OK"
    assert headers["content-length"] == str(len(whole.stdout))
    assert body == b""


async def test_curl_reuses_its_connection(world: Rig) -> None:
    url = f"{world.url}/v1/models"
    done = await curl("--output", "/dev/null", url, "--next", "--write-out", "%{num_connects}", url)

    assert done.returncode == 0
    assert done.stdout.endswith(b"0")
