"""What the fleet core wants of engines, carried out: changes, looks and questions for their load.

A change goes to the process that it is meant for or to none: the boot identity is read and the
change made over one connection. Nothing here raises for an engine's fault, and no change is tried
again; that is the core's to decide.
"""

import asyncio
import re
from collections.abc import Callable

from steersman.clock import Clock, Deadline, MonotonicClock
from steersman.engine import Runtime
from steersman_operator.engines.client import EngineClient, EngineKeys
from steersman_operator.engines.dialect import (
    CallResult,
    EngineDialect,
    flush_skipped,
    once_changed,
    refused,
    unknown,
)
from steersman_operator.engines.identify import Identity, dialect_for, identify
from steersman_operator.engines.memory import Memory
from steersman_operator.fleet.commands import AskLoad, Call, Look
from steersman_operator.fleet.facts import CallKind, Observation

LOOK_TIMEOUT = 5.0
"""Seconds for a look, a question for the load, or for learning what an engine is. Below the core's
``look_timeout``, so that it learns why there was no answer."""

_OURS = re.compile(r"(sglang|vllm)-[0-9a-f.]+")
"""Boot identities that an engine told us. Others are the platform's, and no engine knows them."""


class _Managed:
    """What is kept of one engine from call to call."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self.memory = Memory()
        self.identity: Identity | None = None
        self.boot_id: str | None = None
        """The one last seen; another one may be other software."""
        self.resuming: tuple[str | None, asyncio.Task[CallResult]] | None = None
        """The resume under way, and the boot that it is for."""


class Engines:
    """All engines of a fleet, each with its client. Implements the shell's ``EngineCaller``."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        keys: Callable[[str], EngineKeys] | None = None,
        look_timeout: float = LOOK_TIMEOUT,
    ) -> None:
        """``keys`` returns the keys of an engine by its id, and is asked each time."""
        self._clock = clock or MonotonicClock()
        self._keys = keys or (lambda _: EngineKeys())
        self._look_timeout = look_timeout
        self._managed: dict[str, _Managed] = {}

    async def close(self) -> None:
        """End all connections, and the resumes under way."""
        for engine in [*self._managed]:
            await self.forget(engine)

    async def forget(self, engine: str) -> None:
        """Drop what is kept of an engine that is not managed any more."""
        managed = self._managed.pop(engine, None)
        if managed is not None:
            await _release(managed)

    # --- The three things that the core wants ----------------------------------------------------

    async def perform(self, call: Call) -> CallResult:
        """Change an engine. Of several resumes of one boot there is one, whose end all get: vLLM
        with several engines fails a second one, and each of SGLang's waits for the one before.
        """
        managed = await self._of(call.engine, call.url)
        deadline = Deadline.after(self._clock, call.timeout)
        if call.kind is not CallKind.RESUME:
            return await self._change(managed, call, deadline=deadline)
        while managed.resuming is not None:
            boot, task = managed.resuming
            result = await _shared(task)
            if boot == call.boot_id:
                return result
        task = asyncio.create_task(
            self._change(managed, call, deadline=deadline), name=f"resume {call.engine}"
        )
        managed.resuming = (call.boot_id, task)
        task.add_done_callback(lambda _: setattr(managed, "resuming", None))
        return await _shared(task)

    async def look(self, command: Look) -> Observation:
        """Read what an engine is."""
        managed = await self._of(command.engine, command.url)
        deadline = Deadline.after(self._clock, self._look_timeout)
        dialect, why = await self._dialect(
            managed, managed.client, declared=command.runtime, deadline=deadline
        )
        if dialect is None:
            return Observation(reachable=False, detail=why)
        seen = await dialect.observe(deadline=deadline)
        boot = seen.boot_id or managed.boot_id
        if not seen.reachable or managed.boot_id not in (None, boot):
            managed.identity = None
        managed.boot_id = boot
        return seen

    async def ask_load(self, command: AskLoad) -> int | None:
        """Running and waiting requests; ``None`` if the engine cannot tell."""
        managed = await self._of(command.engine, command.url)
        deadline = Deadline.after(self._clock, self._look_timeout)
        dialect, _ = await self._dialect(
            managed, managed.client, declared=command.runtime, deadline=deadline
        )
        return None if dialect is None else await dialect.load(deadline=deadline)

    # --- Inside ----------------------------------------------------------------------------------

    async def _of(self, engine: str, url: str) -> _Managed:
        keys = self._keys(engine)
        managed = self._managed.get(engine)
        if managed is not None:
            client = managed.client
            if (client.url, client.keys) == (url.rstrip("/"), keys):
                return managed
        fresh = _Managed(EngineClient(url, keys=keys, clock=self._clock))
        self._managed[engine] = fresh
        if managed is not None:
            await _release(managed)
        return fresh

    async def _change(self, managed: _Managed, call: Call, *, deadline: Deadline) -> CallResult:
        async with managed.client.pinned() as client:
            dialect, why = await self._dialect(
                managed, client, declared=call.runtime, deadline=deadline
            )
            if dialect is None:
                return refused(f"nothing was sent: {why}")
            why = await self._wrong_boot(call, dialect, deadline=deadline)
            if why:
                return refused(f"nothing was sent: {why}")
            try:
                return await self._carry_out(dialect, call, deadline=deadline)
            finally:
                # Whatever became of it: no look takes over what was seen before.
                managed.memory.forget()

    async def _carry_out(
        self, dialect: EngineDialect, call: Call, *, deadline: Deadline
    ) -> CallResult:
        match call.kind:
            case CallKind.PAUSE:
                return await dialect.pause(call.pause_mode, deadline=deadline)
            case CallKind.RESUME:
                return await dialect.resume(deadline=deadline)
            case CallKind.SLEEP:
                return await dialect.sleep(call.tags, mode=call.pause_mode, deadline=deadline)
            case CallKind.WAKE:
                return await dialect.wake(call.tags, deadline=deadline)
            case CallKind.REFIT | CallKind.LABEL:
                return await self._weights(dialect, call, deadline=deadline)
            case CallKind.TRANSFER:
                return refused("nothing was sent: a transfer is the trainer's to make")

    async def _weights(
        self, dialect: EngineDialect, call: Call, *, deadline: Deadline
    ) -> CallResult:
        """New weights, or the name of those that a trainer has transferred."""
        weights = call.weights
        if weights is None:
            return refused("nothing was sent: no weights were named")
        if call.kind is CallKind.REFIT:
            return await dialect.refit(weights, mode=call.pause_mode, deadline=deadline)
        named = await dialect.label_version(weights.version, deadline=deadline)
        if not named.ok:
            return named
        emptied = await dialect.invalidate_cache(deadline=deadline)
        if emptied.http is None:
            return once_changed(emptied, done="the weights were named")
        return named if emptied.ok else flush_skipped(emptied.detail)

    async def _wrong_boot(self, call: Call, dialect: EngineDialect, *, deadline: Deadline) -> str:
        """Why the call is not for the process that answers; empty if it is, as far as is known."""
        if call.boot_id is None or not _OURS.fullmatch(call.boot_id):
            return ""
        boot = await dialect.boot(deadline=self._soon(deadline))
        if boot == call.boot_id:
            return ""
        if boot is not None:
            return f"the engine was restarted: it is {boot}, not {call.boot_id}"
        if call.kind in (CallKind.PAUSE, CallKind.RESUME):
            return ""  # which do no harm to another boot, and are seen in the next look
        return "the engine does not say which boot it is"

    async def _dialect(
        self, managed: _Managed, client: EngineClient, *, declared: Runtime, deadline: Deadline
    ) -> tuple[EngineDialect | None, str]:
        """The dialect to speak through ``client``, or why there is none.

        Also a declared runtime is looked at once: what does no harm to one kind of engine ends the
        other. If what answers is neither, it is believed.
        """
        identity = managed.identity
        if identity is None:
            identity = await identify(client, deadline=self._soon(deadline))
            if not identity.answered:
                return None, identity.detail
            if identity.runtime is not Runtime.UNKNOWN:
                managed.identity = identity
        found = identity.runtime
        if declared is Runtime.UNKNOWN:
            return dialect_for(found, client, managed.memory), identity.detail
        if found not in (declared, Runtime.UNKNOWN):
            return None, f"the engine is {found.value}, but declared as {declared.value}"
        return dialect_for(declared, client, managed.memory), ""

    def _soon(self, deadline: Deadline) -> Deadline:
        """Earlier than ``deadline``, so that a question does not use up the time of the change."""
        return min(
            deadline, Deadline.after(self._clock, self._look_timeout), key=lambda one: one.at
        )


async def _shared(task: "asyncio.Task[CallResult]") -> CallResult:
    """The result of a call that others wait for too; it goes on when one of them leaves."""
    await asyncio.wait((task,))
    if task.cancelled():
        return unknown("the call was given up, since the operator stops or the engine is no more")
    return task.result()


async def _release(managed: _Managed) -> None:
    if managed.resuming is not None:
        task = managed.resuming[1]
        task.cancel()
        await asyncio.wait((task,))
    await managed.client.close()
