"""The trainer's side: requests at a steady rate, and what their clients get."""

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec

from steersman_sim.demo.engine_calls import NUMBER_HEADER
from steersman_sim.demo.manifest import MODEL
from steersman_sim.demo.records import Kind, Outcome, Records

SESSIONS = 24
"""Routing keys in use."""

_PATHS = {
    Kind.GENERATE: "/generate",
    Kind.STREAM: "/generate",
    Kind.CHAT: "/v1/chat/completions",
}
_TIMEOUT = aiohttp.ClientTimeout(total=120.0)
_DONE = b"data: [DONE]"

_PROMPTS = (
    "Prove that the square root of two is irrational.",
    "A train leaves Basel at nine. When does it meet the one from Bern?",
    "Write a function that merges two sorted lists.",
    "How many ways are there to climb ten stairs in steps of one or two?",
)


class Planned(msgspec.Struct, kw_only=True, frozen=True):
    """A request that is to be sent."""

    outcome: Outcome
    """Where its fate is noted."""
    body: dict[str, Any]
    headers: dict[str, str]


class Mix:
    """Draws requests: kinds, version policies, sessions and lengths, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"demo/{seed}")
        self._number = 0

    def gap(self, rate: float) -> float:
        """Seconds to the next request. Uneven, but without the bursts of independent clients:
        what is seen to go up and down shall be the routing.
        """
        return self._random.uniform(0.5, 1.5) / rate

    def draw(self, *, now: float) -> Planned:
        """The next request."""
        chance = self._random
        self._number += 1
        kind = chance.choices(list(Kind), weights=(45, 25, 30))[0]
        # Sessions and version policies are kept apart, so that it can be seen what each does.
        lot = chance.random()
        outcome = Outcome(
            number=self._number,
            kind=kind,
            latest_only=lot < 0.35,
            session=f"session-{chance.randrange(SESSIONS)}" if lot >= 0.85 else None,
            sent=now,
        )
        return Planned(
            outcome=outcome,
            body=_body(kind, prompt=chance.choice(_PROMPTS), length=chance.randint(16, 40)),
            headers=_headers(outcome),
        )


def _headers(outcome: Outcome) -> dict[str, str]:
    headers = {NUMBER_HEADER: str(outcome.number)}
    if outcome.latest_only:
        headers["x-smg-version-policy"] = "latest-only"
    if outcome.session is not None:
        headers["x-smg-routing-key"] = outcome.session
    return headers


def _body(kind: Kind, *, prompt: str, length: int) -> dict[str, Any]:
    if kind is Kind.CHAT:
        return {
            "model": MODEL,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": length,
            "ignore_eos": True,
            "stream": True,
        }
    sampling = {"max_new_tokens": length, "temperature": 1.0, "ignore_eos": True}
    body: dict[str, Any] = {"text": prompt, "sampling_params": sampling}
    return body | {"stream": True} if kind is Kind.STREAM else body


class Traffic:
    """Sends requests to the endpoint at a rate, whether or not earlier ones were answered."""

    def __init__(self, url: str, *, session: aiohttp.ClientSession, records: Records) -> None:
        self._url = url
        self._session = session
        self._records = records

    async def run(self, mix: Mix, *, rate: float, until: asyncio.Event) -> None:
        """Send until told to stop, then wait for all answers."""
        due = time.monotonic()
        async with asyncio.TaskGroup() as group:
            while not until.is_set():
                due += mix.gap(rate)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                planned = mix.draw(now=time.monotonic())
                self._records.outcomes.append(planned.outcome)
                group.create_task(self._send(planned), name=f"request-{planned.outcome.number}")
        self._records.ended = time.monotonic()

    async def _send(self, planned: Planned) -> None:
        outcome = planned.outcome
        try:
            outcome.error = await self._exchange(planned)
        except (aiohttp.ClientError, TimeoutError) as error:
            outcome.error = f"{outcome.kind}: {error!r}"
        outcome.ended = time.monotonic()

    async def _exchange(self, planned: Planned) -> str | None:
        """Send a request and read its whole answer; returns what is wrong with it."""
        outcome = planned.outcome
        async with self._session.post(
            self._url + _PATHS[outcome.kind],
            json=planned.body,
            headers=planned.headers,
            timeout=_TIMEOUT,
        ) as answer:
            outcome.worker = answer.headers.get("x-smg-routed-worker-id")
            outcome.version = answer.headers.get("x-smg-weight-version")
            outcome.mixed = answer.headers.get("x-smg-mixed-version") == "true"
            if answer.status != 200:
                text = (await answer.text())[:200]
                return f"{outcome.kind}: status {answer.status}: {text}"
            if outcome.kind is Kind.GENERATE:
                fault = answer_fault(await answer.read())
            else:
                fault = events_fault([line.strip() async for line in answer.content])
            return fault and f"{outcome.kind}: {fault}"


def events_fault(lines: Sequence[bytes]) -> str | None:
    """What is wrong with the lines of a streamed answer; ``None`` if it is whole."""
    events = [line for line in lines if line.startswith(b"data: ")]
    if events[-1:] != [_DONE]:
        return f"the stream ended with {events[-1:]!r:.100}"
    if len(events) < 2:
        return "the stream was empty"
    # The reason why it ended is in the last event of a choice, which a count of tokens may follow.
    faults = [answer_fault(event.removeprefix(b"data: ")) for event in events[-3:-1]]
    return None if None in faults else faults[-1]


def answer_fault(body: bytes) -> str | None:
    """What is wrong with a whole answer, or the last event of one, in the shape of either API."""
    try:
        answer = msgspec.json.decode(body)
        if "choices" in answer:
            reason = answer["choices"][0]["finish_reason"]
        else:
            reason = answer["meta_info"]["finish_reason"]["type"]
    except (msgspec.DecodeError, LookupError, TypeError):
        return f"no answer, or not its end: {body[:100]!r}"
    return None if reason in {"length", "stop"} else f"ended by {reason}"
