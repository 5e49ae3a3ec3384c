"""What all of the SGLang dialect stands on: how its routes are read and called, and a flush."""

import asyncio
import hashlib
import json
from typing import Any

from steersman.clock import Deadline
from steersman_operator.engines.answers import Reply
from steersman_operator.engines.client import EngineClient, NoAnswer
from steersman_operator.engines.dialect import (
    BOOT_LENGTH,
    OK,
    CallResult,
    unanswered,
    verdict,
)
from steersman_operator.engines.memory import Memory

FLUSH_TRIES = 5
"""How often an engine is asked for a flush that should succeed. After some pauses it never can, so
this must have an end (sgl-project/sglang#33784, radixark/miles#1497)."""

FLUSH_WAIT = 0.05
"""Seconds between the first two tries; doubled each time. A retract pause is acknowledged before
the scheduler has acted on it, so the first try may come too early."""


VERSION_PATHS = ("/model_info", "/get_model_info", "/get_weight_version", "/weight_version")
"""Where the live version may be found; the older ones last."""


class SglangRoutes:
    """The routes of one SGLang engine."""

    def __init__(self, client: EngineClient, memory: Memory | None = None) -> None:
        """``memory`` is shared by all that speak to this engine."""
        self._client = client
        self._memory = memory or Memory()

    async def _launch(self, *, deadline: Deadline) -> dict[str, Any]:
        """The launch arguments, and what else an engine says of its start."""
        for path in ("/server_info", "/get_server_info"):
            info = await self._fields(path, deadline=deadline)
            if info:
                return info
        return {}

    async def _version(self, *, deadline: Deadline) -> str | None:
        """The live version. ``/server_info`` has that of the launch, and is not asked."""
        for path in VERSION_PATHS:
            try:
                version = version_of(await self._client.get(path, deadline=deadline))
            except NoAnswer:
                continue
            if version is not None:
                self._memory.version_path = path
                return version
        return None

    async def _flush(self, *, tries: int = FLUSH_TRIES, deadline: Deadline) -> CallResult:
        """Ask for a flush until it is granted. A 200 says that nothing runs; requests that wait
        behind a pause keep their place. With several data-parallel ranks the answer is the first
        one's.
        """
        clock, wait = self._client.clock, FLUSH_WAIT
        result = OK
        for attempt in range(tries):
            if attempt:
                await asyncio.sleep(min(wait, deadline.remaining(clock)))
                wait *= 2
            # Timeout 0: the deferred flush does not ignore requests that wait.
            query = {"timeout": 0}
            try:
                reply = await self._client.post("/flush_cache", query=query, deadline=deadline)
            except NoAnswer as error:
                return unanswered(error)
            result = verdict(reply, what="/flush_cache", keys=self._client.keys)
            if reply.status != 400:
                break
        return result

    async def _status(self, path: str, *, deadline: Deadline) -> int | None:
        try:
            return (await self._client.get(path, deadline=deadline)).status
        except NoAnswer:
            return None

    async def _fields(self, path: str, *, deadline: Deadline) -> dict[str, Any] | None:
        """The object that a route answers; ``None`` if it does not answer with one."""
        try:
            reply = await self._client.get(path, deadline=deadline)
        except NoAnswer:
            return None
        return reply.fields() if reply.ok else None

    async def _call(self, path: str, body: dict[str, Any], *, deadline: Deadline) -> CallResult:
        """One change. The body is always JSON: without one these routes answer 400."""
        try:
            reply = await self._client.post(path, body=body, deadline=deadline)
        except NoAnswer as error:
            return unanswered(error)
        return verdict(reply, what=path, keys=self._client.keys)


def version_of(reply: Reply | None) -> str | None:
    """The version in an answer; ``None`` if there is none."""
    if reply is None or not reply.ok:
        return None
    version = reply.fields().get("weight_version")
    return version if isinstance(version, str) else None


def boot_of(launch: dict[str, Any]) -> str | None:
    """A digest of how long each phase of the start took, to the last digit.

    SGLang has no identity of its process, nor says when it was started. Engines older than
    ``startup_time`` have none.
    """
    if not launch.get("startup_time"):
        return None
    seed = [launch["startup_time"], launch.get("random_seed")]
    digest = hashlib.sha256(json.dumps(seed, sort_keys=True).encode()).hexdigest()
    return f"sglang-{digest[:BOOT_LENGTH]}"
