"""A client that speaks to one sim engine over a real socket, and short names for what tests need."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from steersman_sim.engine import EngineConfig, Runtime, SimEngine, Timings
from steersman_sim.engine.sglang.core import SglangCore
from steersman_sim.engine.vllm.core import VllmCore

FAST = Timings(
    refit_s=0.0,
    release_s=0.0,
    resume_s=0.0,
    abort_poll_s=0.0,
    health_poll_s=0.01,
    health_timeout_s=0.1,
)

CONNECTION_LOST = (aiohttp.ClientConnectionError, ConnectionError)
"""What a client sees of a connection that was reset or refused."""
STREAM_CUT = (*CONNECTION_LOST, aiohttp.ClientPayloadError)
"""The same in the middle of an answer."""

INSTANTLY: dict[str, Any] = {"speed": 0.0, "timings": FAST}


def sglang(**options: Any) -> EngineConfig:
    """An instant SGLang engine."""
    return EngineConfig(runtime=Runtime.SGLANG, **(INSTANTLY | options))


def vllm(**options: Any) -> EngineConfig:
    """An instant vLLM engine."""
    return EngineConfig(runtime=Runtime.VLLM, **(INSTANTLY | options))


class Reply:
    """A whole answer."""

    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Requests to one engine."""

    def __init__(self, engine: SimEngine, session: aiohttp.ClientSession) -> None:
        self.engine = engine
        self.session = session

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> Reply:
        if isinstance(body, bytes):
            options["data"] = body
        elif body is not None:
            options["json"] = body
        async with self.session.request(method, self.engine.url + path, **options) as response:
            return Reply(response.status, response.headers, await response.read())

    async def post(self, path: str, body: Any = None, **options: Any) -> Reply:
        return await self.call("POST", path, body, **options)

    async def get(self, path: str, **options: Any) -> Reply:
        return await self.call("GET", path, **options)

    def soon(self, path: str, body: Any = None, **options: Any) -> asyncio.Task[Reply]:
        """A request under way."""
        return asyncio.create_task(self.post(path, body, **options))

    async def events(self, path: str, body: Any) -> list[Any]:
        """The data of all events of a stream, JSON decoded; ``[DONE]`` as a string."""
        reply = await self.post(path, body)
        assert reply.status == 200, reply.text
        assert reply.headers["Content-Type"].startswith("text/event-stream")
        return parse_events(reply.text)


def parse_events(text: str) -> list[Any]:
    events: list[Any] = []
    for block in text.split("\n\n"):
        for line in block.splitlines():
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
                events.append(data if data == "[DONE]" else json.loads(data))
    return events


@asynccontextmanager
async def serving(config: EngineConfig) -> AsyncIterator[Client]:
    """A started engine with its client."""
    async with SimEngine(config) as engine, aiohttp.ClientSession() as session:
        yield Client(engine, session)


def generate_body(
    text: str | list[str] = "hello", *, tokens: int = 8, **more: Any
) -> dict[str, Any]:
    """A ``/generate`` body that ends after exactly ``tokens`` tokens."""
    sampling = {"max_new_tokens": tokens, "ignore_eos": True} | more.pop("sampling", {})
    return {"text": text, "sampling_params": sampling, **more}


def chat_body(text: str = "hello", *, tokens: int = 8, **more: Any) -> dict[str, Any]:
    """A chat body that ends after exactly ``tokens`` tokens."""
    messages = [{"role": "user", "content": text}]
    return {"messages": messages, "max_tokens": tokens, "ignore_eos": True, **more}


def tokens_body(prompt: list[int], *, tokens: int = 8, **more: Any) -> dict[str, Any]:
    """An ``/inference/v1/generate`` body that ends after exactly ``tokens`` tokens."""
    sampling = {"max_tokens": tokens, "ignore_eos": True} | more.pop("sampling", {})
    return {"token_ids": prompt, "sampling_params": sampling, **more}


async def running(client: Client, count: int = 1, *, rank: int = 0) -> None:
    """Wait until so many sequences are in the batch (manual mode: takes the steps for it)."""
    scheduler = client.engine.core.ranks[rank].scheduler
    await client.engine.until(lambda: scheduler.unfinished >= count)
    if client.engine.config.manual:
        await client.engine.step(rank=rank)
    await client.engine.until(lambda: scheduler.running >= count)


def sglang_core(client: Client) -> SglangCore:
    """The present boot of an SGLang engine."""
    core = client.engine.core
    assert isinstance(core, SglangCore)
    return core


def vllm_core(client: Client) -> VllmCore:
    """The present boot of a vLLM engine."""
    core = client.engine.core
    assert isinstance(core, VllmCore)
    return core
