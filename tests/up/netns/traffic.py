"""Clients of each proxy: some take any version, some insist on the newest."""

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

import aiohttp

BODY = {"text": "a", "sampling_params": {"max_new_tokens": 20, "ignore_eos": True}}
POLICIES = ("any", "any", "any", "latest-only")
"""One client each, at each proxy."""

LAST_ANSWERS = 10.0
"""Seconds that the last answers may take at the end."""

PAUSE = 0.004
"""Seconds between two requests of a client."""


class Answer(NamedTuple):
    """What a client read."""

    proxy: str
    policy: str
    status: int
    code: str | None
    """Of an error."""
    engine: str | None
    """Which one has answered, or was to."""


SERVED = (200, None)
STALE = (503, "control_stale")


class Traffic:
    """All clients, and all that they have read."""

    def __init__(self, names: dict[str, str]) -> None:
        """``names`` of engines by URL."""
        self._names = names
        self.answers: list[Answer] = []
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, client: aiohttp.ClientSession, proxy: str, *, url: str) -> None:
        """Begin to send to a proxy."""
        for policy in POLICIES:
            work = self._send(client, proxy, url=url, policy=policy)
            self._tasks.append(asyncio.create_task(work, name=f"client of {proxy}, {policy}"))

    async def stop(self) -> None:
        """End all clients; each gets the answer that it waits for."""
        self._stopping = True
        if self._tasks:
            _, stuck = await asyncio.wait(self._tasks, timeout=LAST_ANSWERS)
            for task in stuck:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def since(self, mark: int, *, proxy: str, policy: str = "any") -> Iterator[Answer]:
        """Answers that came after a moment (a length of ``answers``)."""
        return (
            answer
            for answer in self.answers[mark:]
            if (answer.proxy, answer.policy) == (proxy, policy)
        )

    def count(
        self, mark: int, what: tuple[int, str | None], *, proxy: str, policy: str = "any"
    ) -> int:
        """How many of them were of one kind."""
        found = self.since(mark, proxy=proxy, policy=policy)
        return sum((answer.status, answer.code) == what for answer in found)

    def engines(self, mark: int, *, proxy: str) -> set[str | None]:
        """From which engines clients of any version were served."""
        return {answer.engine for answer in self.since(mark, proxy=proxy) if answer.status == 200}

    def kinds(self) -> dict[tuple[str, int, str | None], int]:
        """All of them, counted by kind."""
        counts: dict[tuple[str, int, str | None], int] = {}
        for answer in self.answers:
            kind = (answer.proxy, answer.status, answer.code)
            counts[kind] = counts.get(kind, 0) + 1
        return counts

    def __str__(self) -> str:
        return f"{self.kinds()}, last {self.answers[-10:]}"

    async def _send(
        self, client: aiohttp.ClientSession, proxy: str, *, url: str, policy: str
    ) -> None:
        headers = {"x-client": proxy, "x-smg-version-policy": policy}
        while not self._stopping:
            try:
                async with client.post(f"{url}/generate", json=BODY, headers=headers) as got:
                    content = await got.json(content_type=None)
                    code = None if got.status == 200 else content["error"]["code"]
                    engine = self._names.get(got.headers.get("x-smg-routed-worker-id", ""))
                    self.answers.append(Answer(proxy, policy, got.status, code, engine))
            except aiohttp.ClientError:
                return  # the proxy was killed
            await asyncio.sleep(PAUSE)
