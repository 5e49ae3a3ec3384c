"""The control routes of SGLang, as of 0.5.23; older names of reading routes are tried too.

SGLang ends its own process when it is misused: a release while anything runs, a release of what is
released, a resume of what is not. So a sleep goes through here only after the engine has *proven*
that nothing runs, and always over one connection, so that the process that has proven it is the
one that is put to sleep.
"""

import asyncio
from collections.abc import Sequence

from steersman.clock import Deadline
from steersman_operator.engines.answers import Reply
from steersman_operator.engines.client import NoAnswer
from steersman_operator.engines.dialect import (
    AFTERWARDS,
    OK,
    CallResult,
    failed,
    label,
    refused,
    unknown,
)
from steersman_operator.engines.memory import Known
from steersman_operator.engines.sglang_load import sglang_load
from steersman_operator.engines.sglang_refit import SglangRefits
from steersman_operator.engines.sglang_routes import VERSION_PATHS, boot_of, version_of
from steersman_operator.fleet.facts import Observation
from steersman_operator.fleet.spec import PauseMode

MODES = {
    PauseMode.KEEP: "in_place",
    PauseMode.RECOMPUTE: "retract",
    PauseMode.ABORT: "abort",
}

TAGS = ("kv_cache", "weights", "cuda_graph")
"""The memory that can be named in a release, in the order in which it is named."""

BESIDES = 1.0
"""Seconds for the rest of a look after a route that does not answer has used them up."""


class SglangDialect(SglangRefits):
    """One SGLang engine."""

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

        The boot stands in an answer of 100 kB, for which every scheduler is asked; see
        :mod:`~steersman_operator.engines.memory` for how often that is done.
        """
        client, memory = self._client, self._memory
        now = client.clock.now()
        version_path = memory.version_path or VERSION_PATHS[0]
        mark, known = memory.mark, memory.known
        questions = ["/ping", "/ready", version_path]
        if not memory.holds(client.connection, now=now):
            questions.append("/server_info")
        answers = await client.ask(questions, deadline=deadline)
        ping, ready, info, *launched = answers.replies
        if ping is None:
            memory.forget()
            return Observation(reachable=False, detail=str(answers.error))
        if ping.status in (401, 403):
            return Observation(reachable=True, detail="the engine does not accept the data key")
        if ping.status >= 500:
            memory.forget()
            return Observation(
                reachable=False,
                detail=f"/ping answers {ping.status}: starting, stopping or unhealthy",
            )
        late = answers.error is not None and deadline.passed(client.clock)
        if late:
            deadline = Deadline.after(client.clock, BESIDES)
        paused = self._paused_by(ping, ready)
        if paused and paused not in memory.seen[:1]:
            # Or it was starting until the ping.
            again = await client.ask(("/ready",), deadline=deadline)
            paused = self._paused_by(ping, again.replies[0])
        version = version_of(info)
        if version is None:
            version = await self._version(deadline=deadline)
        seen = (paused, version)
        if launched or seen != memory.seen or not memory.holds(answers.connection, now=now):
            launch = launched[0].fields() if launched and launched[0] and launched[0].ok else {}
            if not launch and not (late and info is not None):
                launch = await self._launch(deadline=deadline)
            backup = launch.get("enable_weights_cpu_backup")
            known = Known(
                boot_id=boot_of(launch), backup=backup if isinstance(backup, bool) else None
            )
            memory.belongs_to(known.boot_id)
            if launch:
                memory.keep(known, connection=answers.connection, now=now, mark=mark)
            else:
                memory.forget()
        memory.seen = seen
        return Observation(
            reachable=True,
            boot_id=known.boot_id,
            backup=known.backup,
            paused=paused,
            version=label(version),
            version_known=version is not None,
            detail="" if paused is not None else "/ready does not say whether it is paused",
        )

    @staticmethod
    def _paused_by(ping: Reply, ready: Reply | None) -> bool | None:
        if ready is not None and ready.status == 200:
            return False
        return True if ready is not None and ready.status == 503 and ping.ok else None

    async def load(self, *, deadline: Deadline) -> int | None:
        """See :func:`sglang_load`."""
        paused = await self._paused(deadline=deadline)
        return await sglang_load(self._client, paused=paused, deadline=deadline)

    async def boot(self, *, deadline: Deadline) -> str | None:
        """See :func:`boot_of`."""
        return boot_of(await self._launch(deadline=deadline))

    async def _paused(self, *, deadline: Deadline) -> bool | None:
        ready, ping = await asyncio.gather(
            self._status("/ready", deadline=deadline), self._status("/ping", deadline=deadline)
        )
        if ready == 200:
            return False
        return True if (ready, ping) == (503, 200) else None

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
        """A flush that is granted says that nothing runs, on the first rank at least. What speaks for
        the others is an abort pause: it is answered when no request is left in the engine.
        """
        info = (await self._fields("/server_info", deadline=deadline)) or {}
        if info.get("dp_size", 1) != 1:
            result = await self._pause("abort", deadline=deadline)
            if not result.ok:
                return refused(f"not proven idle, {result.detail}")
        flush = await self._flush(deadline=deadline)
        if flush.ok:
            return OK
        return refused(f"not put to sleep, since it is not proven idle: {flush.detail}")

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


def _wrong_tags(tags: Sequence[str]) -> str:
    """Why these tags are not sent; empty if they are good."""
    if not tags:
        return "no memory was named, and an engine must never be told to choose by itself"
    strange = sorted(set(tags).difference(TAGS))
    return f"SGLang knows no memory named {', '.join(strange)}" if strange else ""
