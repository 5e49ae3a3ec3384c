"""Direct calls to an engine: the trainer's, and the journal of the simulation.

The judge must tell calls that change or look at an engine from requests that came through a proxy.
The trainer's are marked by a header of the demonstration, the operator's by how it calls itself.
"""

import asyncio
from typing import Any

import aiohttp
import msgspec

from steersman_sim.demo.options import DemoError
from steersman_sim.demo.records import Arrival

NUMBER_HEADER = "x-demo-request"
"""Carries the number of a request of our traffic through the proxy into the journal."""
CONTROL_HEADER = "x-demo-control"

OPERATOR = "steersman"
"""The operator's ``User-Agent``. Proxies have none of their own, they pass on that of the client."""

_REQUESTS = frozenset({"/generate", "/v1/chat/completions", "/v1/completions"})
"""No operator calls these, whatever a header says."""

_CALL_TIMEOUT = aiohttp.ClientTimeout(total=30.0)


class EngineCalls:
    """One engine, called directly."""

    def __init__(self, name: str, *, url: str, session: aiohttp.ClientSession) -> None:
        self.name = name
        self.url = url
        self._session = session
        self._entries: dict[int, Arrival] = {}
        self._settled = 0
        """Up to this number all entries of the journal have ended."""

    async def load(self, version: str) -> None:
        """Load the weights of a version, as a trainer does while the engine is paused."""
        path = f"checkpoints/step-{version}"
        await self._call(
            "/update_weights_from_disk", {"model_path": path, "weight_version": version}
        )

    async def ready(self) -> bool:
        """Whether it answers."""
        try:
            async with self._session.get(f"{self.url}/_sim/state", timeout=_CALL_TIMEOUT) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def arrivals(self) -> list[Arrival]:
        """Everything that it has received, calls of trainer and operator aside."""
        url = f"{self.url}/_sim/journal?since={self._settled}"
        async with self._session.get(url, timeout=_CALL_TIMEOUT) as answer:
            entries: list[dict[str, Any]] = msgspec.json.decode(await answer.read())
        open_numbers = [entry["number"] for entry in entries if entry["ended"] is None]
        for entry in entries:
            arrival = arrival_of(entry, engine=self.name)
            if arrival is not None:
                self._entries[entry["number"]] = arrival
        if entries:
            # What still runs is read again until it has ended: its versions come with its end.
            self._settled = min(open_numbers, default=entries[-1]["number"] + 1) - 1
        return list(self._entries.values())

    async def _call(self, path: str, body: dict[str, Any]) -> None:
        headers = {CONTROL_HEADER: "1"}
        try:
            async with self._session.post(
                self.url + path, json=body, headers=headers, timeout=_CALL_TIMEOUT
            ) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise DemoError(f"{self.name} did not answer {path}: {error!r}") from error
        if answer.status != 200:
            raise DemoError(f"{self.name} answered {path} with {answer.status}: {text[:200]}")


def arrival_of(entry: dict[str, Any], *, engine: str) -> Arrival | None:
    """An entry of the journal; ``None`` for calls of trainer and operator."""
    headers = {name.lower(): value for name, value in entry["headers"]}
    number = headers.get(NUMBER_HEADER)
    known = CONTROL_HEADER in headers or headers.get("user-agent") == OPERATOR
    if known and number is None and entry["path"] not in _REQUESTS:
        return None
    versions: list[str] = []
    for generation in entry["generations"]:
        for span in generation["truth"]:
            version = str(span["version"])
            if versions[-1:] != [version]:
                versions.append(version)
    return Arrival(
        engine=engine,
        at=entry["arrived"],
        request=None if number is None else int(number),
        path=entry["path"],
        versions=tuple(versions),
    )


async def read_all(calls: list[EngineCalls]) -> list[Arrival]:
    """The arrivals at several engines."""
    found = await asyncio.gather(*(call.arrivals() for call in calls))
    return [arrival for arrivals in found for arrival in arrivals]
