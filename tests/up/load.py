"""Traffic of many clients, and what the engines' journals say of it."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp

from steersman_sim.engine import SimEngine
from steersman_sim.engine.journal import Entry

PAUSING = {
    "/pause_generation": True,
    "/pause": True,
    "/continue_generation": False,
    "/resume": False,
}
RELEASING = {
    "/release_memory_occupation": True,
    "/sleep": True,
    "/resume_memory_occupation": False,
    "/wake_up": False,
}
"""Control routes of both runtimes, and whether they take the engine out of service."""

WORK = {"/generate", "/v1/completions", "/v1/chat/completions"}

DOCUMENTED = {"no_available_workers", "hold_timeout", "hold_full", "draining", "control_stale"}
"""Codes of the 503s that docs/errors.md explains."""


class Load:
    """Clients that send one request after the other, through one address."""

    def __init__(self, url: str, *, path: str, body: dict[str, Any]) -> None:
        self.url = url
        self._path = path
        self._body = body
        self.answers: Counter[tuple[int, str | None]] = Counter()
        self.stamps: Counter[str] = Counter()
        self.broken: list[str] = []
        self._stop = asyncio.Event()

    @property
    def total(self) -> int:
        return sum(self.answers.values())

    @property
    def good(self) -> int:
        return sum(count for (status, _), count in self.answers.items() if status == 200)

    @property
    def undocumented(self) -> dict[tuple[int, str | None], int]:
        """Answers that nobody was promised."""
        return {
            answer: count
            for answer, count in self.answers.items()
            if answer[0] != 200 and not (answer[0] == 503 and answer[1] in DOCUMENTED)
        }

    async def client(self, number: int) -> None:
        # A connection of its own, thrown away now and then, so that every proxy gets some.
        while not self._stop.is_set():
            async with aiohttp.ClientSession() as session:
                for _ in range(10):
                    if self._stop.is_set():
                        return
                    await self._once(session, number)

    async def _once(self, session: aiohttp.ClientSession, number: int) -> None:
        try:
            async with session.post(self.url + self._path, json=self._body) as answer:
                content = await answer.json()
        except aiohttp.ClientError as error:
            self.broken.append(f"client {number}: {error!r}")
            return
        code = None if answer.status == 200 else str(content["error"]["code"])
        self.answers[answer.status, code] += 1
        if answer.status == 200:
            self.stamps[answer.headers["x-smg-routed-worker-id"]] += 1
        else:
            await asyncio.sleep(0.02)

    def stop(self) -> None:
        self._stop.set()


@contextlib.asynccontextmanager
async def load(url: str, *, clients: int, path: str, body: dict[str, Any]) -> AsyncIterator[Load]:
    """Run clients; at the end each finishes its request."""
    made = Load(url, path=path, body=body)
    tasks = [asyncio.create_task(made.client(number)) for number in range(clients)]
    try:
        yield made
        made.stop()
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def trespasses(engines: Sequence[SimEngine]) -> list[str]:
    """Work that reached an engine between a call that took it out of service and its reversal."""
    found = []
    for engine in engines:
        out: dict[int, Entry] = {}
        for entry in engine.journal.entries:
            for axis, routes in enumerate((PAUSING, RELEASING)):
                if routes.get(entry.path):
                    out[axis] = entry
                elif entry.path in routes and entry.status == 200:
                    out.pop(axis, None)
            if entry.path == "/wake_up" and entry.status == 200:
                out.clear()  # vLLM resumes with the last of its memory
            if entry.path in WORK:
                found += [
                    f"{engine.url}: {entry!r} after {since!r}"
                    for since in out.values()
                    if since.boot == entry.boot
                ]
    return found


def calls(engines: Sequence[SimEngine]) -> Counter[str]:
    """How often each control route was called."""
    return Counter(
        entry.path
        for engine in engines
        for entry in engine.journal.entries
        if entry.path in PAUSING or entry.path in RELEASING
    )
