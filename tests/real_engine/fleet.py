"""A fleet over real engines, steered by commands, and clients that remember what they read."""

import asyncio
import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, NamedTuple

import aiohttp

from tests.real_engine.engines import MODEL, RealEngine, completion
from tests.up.fleet import UpFleet, up
from tests.up.load import DOCUMENTED

POOL = "tiny"

ROUTED = "x-smg-routed-worker-id"
VERSION = "x-smg-weight-version"
MIXED = "x-smg-mixed-version"
POLICY = "x-smg-version-policy"


def manifest(engines: Sequence[RealEngine], *, extra: str = "") -> str:
    """One pool of all engines, named e0, e1, ..."""
    listed = "".join(
        f"\n      - {{name: e{number}, url: {engine.url}}}" for number, engine in enumerate(engines)
    )
    return f"""\
apiVersion: rollout.steersman.io/v1alpha1
kind: RolloutEngine
metadata:
  name: {POOL}
spec:
  model: {MODEL}
  runtime: vllm
  endpoints:
    static:{listed}
{extra}"""


@contextlib.asynccontextmanager
async def fleet_of(engines: Sequence[RealEngine], *, extra: str = "") -> AsyncIterator[UpFleet]:
    """An operator and one proxy, as `steersman up` runs them."""
    async with up({f"{POOL}.yaml": manifest(engines, extra=extra)}) as fleet:
        yield fleet


class Said(list[str]):
    """The lines that a command has printed, and its exit code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text.splitlines())
        self.code = code

    def __str__(self) -> str:
        return "\n".join(self)


async def steersman(fleet: UpFleet, *arguments: str, within: float = 120.0) -> Said:
    """Run a command about the fleet to its end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "steersman.cli", *arguments, "-f", str(fleet.directory)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(within):
            out, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise AssertionError(
            f"{arguments}: {await fleet.status()}\n{fleet.log()[-3000:]}"
        ) from None
    assert process.returncode is not None
    return Said(process.returncode, out.decode())


async def done(fleet: UpFleet, *arguments: str) -> Said:
    """A command that has to succeed."""
    said = await steersman(fleet, *arguments)
    assert said.code == 0, said
    print(f"$ steersman {' '.join(arguments)}\n{said}")
    return said


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one request came to."""

    began: float
    ended: float
    policy: str
    stream: bool
    status: int
    code: str | None = None
    engine: str | None = None
    version: str | None = None
    mixed: bool = False
    text: str = ""
    finish: str | None = None


@dataclass
class Traffic:
    """What all clients have read so far."""

    answers: list[Answer] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    _another: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, answer: Answer) -> None:
        self.answers.append(answer)
        self._another.set()

    @property
    def good(self) -> list[Answer]:
        return [one for one in self.answers if one.status == 200]

    @property
    def undocumented(self) -> Counter[tuple[int, str | None]]:
        """Failures that nobody was promised."""
        return Counter(
            (one.status, one.code)
            for one in self.answers
            if one.status != 200 and not (one.status == 503 and one.code in DOCUMENTED)
        )

    @property
    def versions(self) -> Counter[str | None]:
        return Counter(one.version for one in self.good)

    async def until(self, more: int, *, within: float = 60.0) -> None:
        """Until there are that many more good answers."""
        wanted = len(self.good) + more
        async with asyncio.timeout(within):
            while len(self.good) < wanted:
                self._another.clear()
                await self._another.wait()


async def ask(
    client: aiohttp.ClientSession, url: str, prompt: str, *, tokens: int, policy: str, stream: bool
) -> Answer:
    """One request, read to its end."""
    began = time.monotonic()
    body = completion(prompt, tokens=tokens, stream=stream)
    async with client.post(f"{url}/v1/completions", json=body, headers={POLICY: policy}) as answer:
        text, finish, code = "", None, None
        if answer.status != 200:
            code = str((await answer.json())["error"]["code"])
        else:
            chunks = events(await answer.text()) if stream else [await answer.json()]
            for chunk in chunks:
                choice = chunk["choices"][0]
                text += choice["text"]
                finish = choice["finish_reason"] or finish
        return Answer(
            began=began,
            ended=time.monotonic(),
            policy=policy,
            stream=stream,
            status=answer.status,
            code=code,
            engine=answer.headers.get(ROUTED),
            version=answer.headers.get(VERSION),
            mixed=MIXED in answer.headers,
            text=text,
            finish=finish,
        )


class Spans(NamedTuple):
    """What an answer with spans says of the weights that made it."""

    version: str
    mixed: bool
    spans: list[tuple[str, int, int]]


async def generate(fleet: UpFleet, tokens: Sequence[int], *, count: int) -> Spans:
    """A request on the only route of vLLM whose answer says which weights made which token."""
    sampling = {"max_tokens": count, "temperature": 0, "ignore_eos": True}
    body = {"model": MODEL, "token_ids": tokens, "sampling_params": sampling}
    async with fleet.client.post(f"{fleet.endpoint}/inference/v1/generate", json=body) as answer:
        content = await answer.json()
        assert answer.status == 200, content
        spans = content["choices"][0]["weight_versions"]
        return Spans(
            answer.headers[VERSION],
            MIXED in answer.headers,
            [(span["version"], span["start"], span["end"]) for span in spans],
        )


def events(text: str) -> list[dict[str, Any]]:
    """The JSON of a stream that came to its end."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines and lines[-1] == "[DONE]", text[-300:]
    return [json.loads(line) for line in lines[:-1]]


@contextlib.asynccontextmanager
async def traffic(
    fleet: UpFleet,
    prompt: str,
    *,
    tokens: int,
    clients: int = 4,
    policies: Sequence[str] = ("any",),
    rest: float = 0.0,
) -> AsyncIterator[Traffic]:
    """Clients that send one request after the other, with a rest in between; at the end each
    finishes its last one.
    """
    made = Traffic()
    stop = asyncio.Event()

    async def client(number: int) -> None:
        kinds = cycle((stream, policy) for policy in policies for stream in (False, True))
        for _ in range(number):
            next(kinds)
        async with aiohttp.ClientSession() as session:
            while not stop.is_set():
                stream, policy = next(kinds)
                try:
                    answer = await ask(
                        session, fleet.endpoint, prompt, tokens=tokens, policy=policy, stream=stream
                    )
                except aiohttp.ClientError as error:
                    made.broken.append(repr(error))
                    continue
                made.add(answer)
                await asyncio.sleep(rest if answer.status == 200 else max(rest, 0.05))

    tasks = [asyncio.create_task(client(number)) for number in range(clients)]
    try:
        yield made
        stop.set()
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
