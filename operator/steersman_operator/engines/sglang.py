"""The control routes of SGLang, as of 0.5.23; older names of reading routes are tried too.

SGLang ends its own process when it is misused: a release while anything runs, a release of what is
released, a resume of what is not. So a sleep goes through here only after the engine has *proven*
that nothing runs, and always over one connection, so that the process that has proven it is the
one that is put to sleep.
"""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from steersman.clock import Deadline
from steersman.engine import Runtime
from steersman_operator.engines.client import EngineClient, NoAnswer, Reply
from steersman_operator.engines.dialect import (
    BOOT_LENGTH,
    OK,
    CallResult,
    failed,
    label,
    refused,
    unanswered,
    unknown,
    verdict,
)
from steersman_operator.engines.sglang_load import sglang_load
from steersman_operator.fleet.facts import Observation
from steersman_operator.fleet.spec import PauseMode

MODES = {
    PauseMode.KEEP: "in_place",
    PauseMode.RECOMPUTE: "retract",
    PauseMode.ABORT: "abort",
}

TAGS = ("kv_cache", "weights", "cuda_graph")
"""The memory that can be named in a release, in the order in which it is named."""

FLUSH_TRIES = 5
"""How often an engine is asked whether it is idle. After some pauses a flush can never succeed, so
this must have an end (sgl-project/sglang#33784, radixark/miles#1497)."""

FLUSH_WAIT = 0.05
"""Seconds between the first two tries; doubled each time. A retract pause is acknowledged before
the scheduler has acted on it, so the first try may come too early."""

BESIDES = 1.0
"""Seconds for the rest of a look after a route that does not answer has used them up."""

AFTERWARDS = 5.0
"""Seconds for the look whether an engine has survived a call."""


class SglangDialect:
    """One SGLang engine."""

    runtime = Runtime.SGLANG

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    # --- Looking ---------------------------------------------------------------------------------

    async def alive(self, *, deadline: Deadline) -> bool:
        """``/ping``. Never ``/health``: it submits a request, which waits while paused, and a probe
        that times out makes the engine call itself unhealthy.
        """
        return await self._status("/ping", deadline=deadline) == 200

    async def ready(self, *, deadline: Deadline) -> bool:
        """``/ready``: not paused and healthy."""
        return await self._status("/ready", deadline=deadline) == 200

    async def observe(self, *, deadline: Deadline) -> Observation:
        """``/ping`` is 200 and ``/ready`` 503: paused. Which memory is released nobody can ask.

        One after the other: at once they would need a connection each, at every look.
        """
        ready = await self._status("/ready", deadline=deadline)
        version = await self._version(deadline=deadline) if ready == 200 else None
        alive = True
        if version is None:  # else there is nothing left to learn from ``/ping``
            if deadline.passed(self._client.clock):
                deadline = Deadline.after(self._client.clock, BESIDES)
            try:
                ping = await self._client.get("/ping", deadline=deadline)
            except NoAnswer as error:
                return Observation(reachable=False, detail=str(error))
            if ping.status in (401, 403):
                return Observation(reachable=True, detail="the engine does not accept the data key")
            if ping.status >= 500:
                return Observation(
                    reachable=False,
                    detail=f"/ping answers {ping.status}: starting, stopping or unhealthy",
                )
            if ready != 200:
                alive = ping.ok
                if ready is not None:
                    # It may have been starting until the ping.
                    ready = await self._status("/ready", deadline=deadline)
                version = await self._version(deadline=deadline)
        launch = await self._launch(deadline=deadline)
        backup = launch.get("enable_weights_cpu_backup")
        paused = {200: False, 503: True}.get(ready or 0)
        return Observation(
            reachable=True,
            boot_id=_boot(launch),
            backup=backup if isinstance(backup, bool) else None,
            paused=paused if alive else None,
            version=label(version),
            version_known=version is not None,
            detail="" if paused is not None else "/ready does not say whether it is paused",
        )

    async def load(self, *, deadline: Deadline) -> int | None:
        """See :func:`sglang_load`."""
        paused = await self._paused(deadline=deadline)
        return await sglang_load(self._client, paused=paused, deadline=deadline)

    async def boot(self, *, deadline: Deadline) -> str | None:
        """A digest of how long each phase of the start took, to the last digit.

        SGLang has no identity of its process, nor says when it was started. Engines older than
        ``startup_time`` have none.
        """
        return _boot(await self._launch(deadline=deadline))

    async def _launch(self, *, deadline: Deadline) -> dict[str, Any]:
        """The launch arguments, and what else an engine says of its start."""
        for path in ("/server_info", "/get_server_info"):
            info = await self._fields(path, deadline=deadline)
            if info:
                return info
        return {}

    async def _version(self, *, deadline: Deadline) -> str | None:
        """The live version. ``/server_info`` has that of the launch, and is not asked."""
        for path in ("/model_info", "/get_model_info", "/get_weight_version", "/weight_version"):
            version = ((await self._fields(path, deadline=deadline)) or {}).get("weight_version")
            if isinstance(version, str):
                return version
        return None

    async def _paused(self, *, deadline: Deadline) -> bool | None:
        ready, ping = await asyncio.gather(
            self._status("/ready", deadline=deadline), self._status("/ping", deadline=deadline)
        )
        if ready == 200:
            return False
        return True if (ready, ping) == (503, 200) else None

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

    # --- Pausing ---------------------------------------------------------------------------------

    async def pause(self, mode: PauseMode, *, deadline: Deadline) -> CallResult:
        """``/pause_generation``.

        An abort of requests that are frozen in place would never end, and would keep every resume
        waiting: the engine repeats its abort until nothing runs, and nothing that is frozen ends.
        So an engine that may be paused already is retracted first, which thaws them.
        """
        if mode is PauseMode.ABORT and not await self.ready(deadline=deadline):
            result = await self._pause("retract", deadline=deadline)
            if not result.ok:
                return result
        return await self._pause(MODES[mode], deadline=deadline)

    async def _pause(self, mode: str, *, deadline: Deadline) -> CallResult:
        return await self._call("/pause_generation", {"mode": mode}, deadline=deadline)

    async def resume(self, *, deadline: Deadline) -> CallResult:
        """``/continue_generation``. Only resumes: emptying torch's cache is the default, but calls
        into CUDA from the scheduler of whatever hardware it is.
        """
        body = {"torch_empty_cache": False}
        return await self._call("/continue_generation", body, deadline=deadline)

    # --- Memory ----------------------------------------------------------------------------------

    async def sleep(
        self, tags: Sequence[str], *, mode: PauseMode, deadline: Deadline
    ) -> CallResult:
        """Retract, prove that nothing runs, release exactly these tags.

        Retracted whatever it was paused with: the pause could have been in place, which leaves
        requests running, and schedulers carry out what they are told in order, so that after it the
        release finds nothing running on any rank.
        """
        wrong = _wrong_tags(tags)
        if wrong:
            return refused(wrong)
        paused = await self._pause("retract", deadline=deadline)
        if not paused.ok:
            return refused(f"it cannot be paused before the sleep: {paused.detail}")
        idle = await self._prove_idle(deadline=deadline)
        if not idle.ok:
            return idle
        ordered = [tag for tag in TAGS if tag in tags]
        body = {"tags": ordered}
        result = await self._call("/release_memory_occupation", body, deadline=deadline)
        return await self._survived(result, what="sleep")

    async def _prove_idle(self, *, deadline: Deadline) -> CallResult:
        """A flush with 200 says that nothing runs; requests that wait keep their place.

        With several data-parallel ranks the answer is the first one's. What speaks for the others
        is an abort pause: it is answered when no request is left in the engine, on any rank.
        """
        info = (await self._fields("/server_info", deadline=deadline)) or {}
        if info.get("dp_size", 1) != 1:
            result = await self._pause("abort", deadline=deadline)
            if not result.ok:
                return refused(f"not proven idle, {result.detail}")
        clock, wait = self._client.clock, FLUSH_WAIT
        detail = ""
        for attempt in range(FLUSH_TRIES):
            if attempt:
                await asyncio.sleep(min(wait, deadline.remaining(clock)))
                wait *= 2
            try:
                # Timeout 0: the deferred flush does not ignore requests that wait.
                reply = await self._client.post(
                    "/flush_cache", query={"timeout": 0}, deadline=deadline
                )
            except NoAnswer as error:
                return refused(f"not put to sleep, since it is not proven idle: {error}")
            if reply.ok:
                return OK
            detail = verdict(reply, what="/flush_cache", keys=self._client.keys).detail
            if reply.status != 400:
                break
        return refused(f"not put to sleep, since it is not proven idle: {detail}")

    async def wake(self, tags: Sequence[str], *, deadline: Deadline) -> CallResult:
        """``/resume_memory_occupation`` with explicit tags: without any it means all three, and one
        that is not released ends the process. The gate stays as it was.
        """
        wrong = _wrong_tags(tags)
        if wrong:
            return refused(wrong)
        body = {"tags": [tag for tag in TAGS if tag in tags]}
        result = await self._call("/resume_memory_occupation", body, deadline=deadline)
        return await self._survived(result, what="wake")

    async def _survived(self, result: CallResult, *, what: str) -> CallResult:
        """A 200 is not believed of an engine that is gone (vllm-project/vllm#45520)."""
        if not result.ok:
            return result
        clock = self._client.clock
        try:
            ping = await self._client.get("/ping", deadline=Deadline.after(clock, AFTERWARDS))
        except NoAnswer as error:
            gone = f"the engine said that {what} succeeded, and does not answer since: {error}"
            return unknown(gone, http=200) if error.sent else failed(gone, http=200)
        if ping.status >= 500:
            return failed(f"after {what} the engine calls itself unhealthy", http=ping.status)
        return result

    # --- Requests --------------------------------------------------------------------------------

    async def abort(self, ids: Sequence[str] | None = None, *, deadline: Deadline) -> CallResult:
        """``/abort_request``, fire and forget. An id also ends every request whose id begins with
        it; an empty one means nothing.
        """
        if ids is None:
            return await self._call("/abort_request", {"abort_all": True}, deadline=deadline)
        for rid in filter(None, ids):
            result = await self._call("/abort_request", {"rid": rid}, deadline=deadline)
            if not result.ok:
                return result
        return OK

    async def _call(self, path: str, body: dict[str, Any], *, deadline: Deadline) -> CallResult:
        """One change. The body is always JSON: without one these routes answer 400."""
        try:
            reply: Reply = await self._client.post(path, body=body, deadline=deadline)
        except NoAnswer as error:
            return unanswered(error)
        return verdict(reply, what=path, keys=self._client.keys)


def _wrong_tags(tags: Sequence[str]) -> str:
    """Why these tags are not sent; empty if they are good."""
    if not tags:
        return "no memory was named, and an engine must never be told to choose by itself"
    strange = sorted(set(tags).difference(TAGS))
    return f"SGLang knows no memory named {', '.join(strange)}" if strange else ""


def _boot(launch: dict[str, Any]) -> str | None:
    if not launch.get("startup_time"):
        return None
    seed = [launch["startup_time"], launch.get("random_seed")]
    digest = hashlib.sha256(json.dumps(seed, sort_keys=True).encode()).hexdigest()
    return f"sglang-{digest[:BOOT_LENGTH]}"
