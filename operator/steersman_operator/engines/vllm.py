"""The control routes of vLLM, as of 0.32. They exist only with ``VLLM_SERVER_DEV_MODE=1``.

vLLM forgives what kills an SGLang engine: its sleep pauses first, and waking what is awake does
nothing. What it does not forgive is being resumed while its memory is away.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from steersman.clock import Deadline
from steersman_operator.engines.client import NoAnswer
from steersman_operator.engines.dialect import (
    AFTERWARDS,
    OK,
    CallResult,
    failed,
    label,
    refused,
    unanswered,
    unknown,
    verdict,
)
from steersman_operator.engines.exposition import Samples, parse
from steersman_operator.engines.memory import Known
from steersman_operator.engines.vllm_refit import VllmRefits
from steersman_operator.engines.vllm_routes import (
    NO_DEV_MODE,
    fields_of,
    flag_of,
    samples_of,
    with_dev_mode,
)
from steersman_operator.fleet.facts import ALL_TAGS, Observation
from steersman_operator.fleet.spec import PauseMode

MODES: dict[PauseMode, dict[str, str]] = {
    PauseMode.KEEP: {"mode": "keep", "clear_cache": "false"},
    PauseMode.RECOMPUTE: {"mode": "keep", "clear_cache": "true"},
    PauseMode.ABORT: {"mode": "abort", "clear_cache": "true"},
}
"""``keep`` with ``clear_cache`` preempts what runs, in spite of what its documentation says."""

TAGS = ("weights", "kv_cache")
"""In the order in which they are woken. SGLang's ``cuda_graph`` does not exist here."""

SLEEP_LEVEL = 1
"""What giving up the weights means: moved to the host's memory, so that a wake needs no refit. At
level 2 they would be dropped, and an engine that wakes without a refit would answer garbage."""


class VllmDialect(VllmRefits):
    """One vLLM engine."""

    # --- Looking ---------------------------------------------------------------------------------

    async def alive(self, *, deadline: Deadline) -> bool:
        """``/health``: of the process alone, 200 while paused or asleep."""
        try:
            return (await self._client.get("/health", deadline=deadline)).ok
        except NoAnswer:
            return False

    async def ready(self, *, deadline: Deadline) -> bool:
        """Healthy, not paused and not asleep; without the control routes healthy is enough."""
        alive, paused, sleeping = await asyncio.gather(
            self.alive(deadline=deadline),
            self._flag("/is_paused", deadline=deadline),
            self._flag("/is_sleeping", deadline=deadline),
        )
        return alive and not paused and not sleeping

    async def observe(self, *, deadline: Deadline) -> Observation:
        """``/is_paused``, ``/is_sleeping``, ``/weight_info``, and the metrics for the rest.

        The metrics are long, and come last, since they may be behind the others, and never ahead. Of
        an engine that stays as it was they are read when its process may be another
        (:mod:`~steersman_operator.engines.memory`), and while it sleeps at every other look.
        """
        client, memory = self._client, self._memory
        now = client.clock.now()
        mark, known = memory.mark, memory.known
        questions = ["/health", "/is_paused", "/is_sleeping", "/weight_info"]
        if not memory.holds(client.connection, now=now):
            questions.append("/metrics")
        answers = await client.ask(questions, deadline=deadline)
        health, pause, sleep, info, *metrics = answers.replies
        if health is None or not health.ok:
            memory.forget()
            detail = str(answers.error) if health is None else f"/health answers {health.status}"
            return Observation(reachable=False, detail=detail)
        paused, sleeping = flag_of("is_paused", pause), flag_of("is_sleeping", sleep)
        if sleeping and paused is False:
            # Or it was paused in between.
            paused = await self._flag("/is_paused", deadline=deadline)
        version = fields_of(info).get("weight_version")
        seen = (paused, sleeping, version)
        if metrics or seen != memory.seen or not memory.holds(answers.connection, now=now):
            said = metrics[0] if metrics else await self._get("/metrics", deadline=deadline)
            known = self._known(samples_of(said), paused=paused, sleeping=sleeping)
            if said is not None and said.ok:
                memory.keep(known, connection=answers.connection, now=now, mark=mark)
            else:
                memory.forget()
        elif sleeping:
            memory.forget()
        memory.seen = seen
        detail = ""
        if paused is None:
            detail = "/is_paused does not say whether it is paused"
            if pause is not None and pause.status == 404:
                detail = NO_DEV_MODE
        return Observation(
            reachable=True,
            boot_id=known.boot_id,
            paused=paused,
            released=known.released,
            backup=known.backup,
            version=label(version),
            version_known=isinstance(version, str),
            detail=detail,
        )

    def _known(self, samples: Samples, *, paused: bool | None, sleeping: bool | None) -> Known:
        """What the metrics say."""
        boot = _boot(samples)
        self._memory.belongs_to(boot)
        if sleeping is False:
            self._memory.woken = ()
        return Known(
            boot_id=boot,
            # We put it to sleep at level 1, which keeps them in the host's memory.
            backup=not samples.total("vllm:engine_sleep_state", sleep_state="discard_all"),
            released=self._released(sleeping=sleeping, paused=paused, samples=samples),
        )

    async def load(self, *, deadline: Deadline) -> int | None:
        """Running and waiting, from the metrics of all its engines.

        They are as of the last step, so that a request in the middle of its first prefill may be
        missed; vLLM itself lets what runs end before it sleeps. Without them (``--disable-log-
        stats``) ``/load`` counts the requests of this process, but only if it was told to: its zero
        says nothing.
        """
        samples = await self._samples(deadline=deadline)
        running = samples.total("vllm:num_requests_running")
        waiting = samples.total("vllm:num_requests_waiting")
        if running is not None and waiting is not None:
            return int(running + waiting)
        load = (await self._fields("/load", deadline=deadline)).get("server_load")
        return load if isinstance(load, int) and load > 0 else None

    async def boot(self, *, deadline: Deadline) -> str | None:
        """When the process was started, as its metrics say; not with several API servers."""
        return _boot(await self._samples(deadline=deadline))

    def _released(
        self, *, sleeping: bool | None, paused: bool | None, samples: Samples
    ) -> tuple[str, ...] | None:
        """What is out of memory.

        ``/is_sleeping`` is also true of an engine that is merely paused. The metric that tells them
        apart is set after the sleep, by the process that was asked for it; in between, a paused
        engine is taken for one that is awake. That an engine is half awake it does not tell: 0.32
        shows the sleep until all is awake, others the contrary. It is known if it was done here;
        else the engine is taken to be wholly asleep, which does no harm when it is woken.
        """
        if sleeping is None:
            return None
        if not sleeping:
            return ()
        if self._memory.woken:
            return tuple(tag for tag in ALL_TAGS if tag not in self._memory.woken)
        if paused is False:
            return ALL_TAGS
        level = {
            state: samples.total("vllm:engine_sleep_state", sleep_state=state)
            for state in ("awake", "weights_offloaded", "discard_all")
        }
        if level["awake"]:
            return ()
        if level["weights_offloaded"] or level["discard_all"]:
            return ALL_TAGS
        return None

    # --- Pausing ---------------------------------------------------------------------------------

    async def pause(self, mode: PauseMode, *, deadline: Deadline) -> CallResult:
        """``/pause``, answered when the pause is complete."""
        return await self._call("/pause", MODES[mode], deadline=deadline)

    async def resume(self, *, deadline: Deadline) -> CallResult:
        """``/resume``. Refused here for an engine that sleeps: it would run without its memory, and
        end with the first request.
        """
        paused, sleeping, samples = await asyncio.gather(
            self._flag("/is_paused", deadline=deadline),
            self._flag("/is_sleeping", deadline=deadline),
            self._samples(deadline=deadline),
        )
        if self._released(sleeping=sleeping, paused=paused, samples=samples):
            return refused("the engine sleeps; it has to be woken first")
        return await self._call("/resume", {}, deadline=deadline)

    # --- Memory ----------------------------------------------------------------------------------

    async def sleep(
        self, tags: Sequence[str], *, mode: PauseMode, deadline: Deadline
    ) -> CallResult:
        """``/sleep`` for the weights (and with them the KV memory), else
        ``/release_kv_cache_memory``; in both cases of an engine that is paused already.

        vLLM's own pause within ``/sleep`` was seen to kill it with requests in flight
        (vllm-project/vllm#45520), so the pause comes first and is waited for.
        """
        wanted = set(tags) & set(TAGS)
        if not wanted:
            return refused("no memory that vLLM can give up was named")
        if await self._flag("/is_paused", deadline=deadline) is not True:
            paused = await self.pause(mode, deadline=deadline)
            if not paused.ok:
                return refused(f"it cannot be paused before the sleep: {paused.detail}")
        if "weights" in wanted:
            query = {"level": str(SLEEP_LEVEL), "mode": MODES[mode]["mode"]}
            result = await self._call("/sleep", query, deadline=deadline)
        else:
            result = await self._call("/release_kv_cache_memory", {}, deadline=deadline)
        if result.ok:
            self._memory.woken = () if "weights" in wanted else ("weights",)
        return await self._confirmed(result, asleep=True)

    async def wake(self, tags: Sequence[str], *, deadline: Deadline) -> CallResult:
        """``/wake_up`` with the tags; once everything is awake vLLM resumes by itself, even if it
        was paused. Until then it sleeps on, and what of it is awake only we can tell.

        If any of the tags is awake vLLM wakes none of them, and answers 200 with the status
        ``sleeping``. Then each is tried alone.
        """
        wanted = [tag for tag in TAGS if tag in tags]
        if not wanted:
            return refused("no memory that vLLM has was named")
        result, status = await self._wake(wanted, deadline=deadline)
        if result.ok and status == "sleeping" and len(wanted) > 1:
            for tag in wanted:
                result, status = await self._wake([tag], deadline=deadline)
                if not result.ok:
                    return result
        if not result.ok:
            return result
        memory = self._memory
        memory.woken = tuple(tag for tag in TAGS if tag in memory.woken or tag in wanted)
        if status != "awake" and memory.woken != TAGS:
            return result
        memory.woken = ()
        return await self._confirmed(result, asleep=False)

    async def _wake(self, tags: Sequence[str], *, deadline: Deadline) -> tuple[CallResult, object]:
        try:
            reply = await self._client.post(
                "/wake_up", query={"tags": list(tags)}, deadline=deadline
            )
        except NoAnswer as error:
            return unanswered(error), None
        return with_dev_mode(verdict(reply, what="/wake_up", keys=self._client.keys)), (
            reply.fields().get("status")
        )

    async def _confirmed(self, result: CallResult, *, asleep: bool) -> CallResult:
        """A 200 is not believed: an engine that dies of its sleep has answered 200 before
        (vllm-project/vllm#45520).
        """
        if not result.ok:
            return result
        what = "sleep" if asleep else "wake"
        deadline = Deadline.after(self._client.clock, AFTERWARDS)
        try:
            reply = await self._client.get("/is_sleeping", deadline=deadline)
            metrics = await self._client.get("/metrics", deadline=deadline)
        except NoAnswer as error:
            gone = f"the engine said that {what} succeeded, and does not answer since: {error}"
            return unknown(gone, http=200) if error.sent else failed(gone, http=200)
        sleeping = reply.fields().get("is_sleeping")
        samples = parse(metrics.text if metrics.ok else "")
        released = self._released(sleeping=sleeping is True, paused=True, samples=samples)
        if sleeping is asleep and not (asleep and released == ()):
            return OK
        return failed(
            f"the engine said that {what} succeeded, and now says otherwise", http=reply.status
        )

    # --- Requests --------------------------------------------------------------------------------

    async def abort(self, ids: Sequence[str] | None = None, *, deadline: Deadline) -> CallResult:
        """``/abort_requests``. An empty list would end all, so it is not sent."""
        if ids is not None and not ids:
            return OK
        body: dict[str, Any] = {} if ids is None else {"request_ids": list(ids)}
        return await self._call("/abort_requests", {}, body=body, deadline=deadline)


def _boot(samples: Samples) -> str | None:
    started = samples.total("process_start_time_seconds")
    return None if started is None else f"vllm-{started:.3f}"
