"""Pausing, aborting, flushing and memory of SGLang 0.5.23, with their traps."""

import asyncio
from typing import Literal

import msgspec
from aiohttp import web

from steersman_sim.engine.call import Call
from steersman_sim.engine.rank import Rank
from steersman_sim.engine.replies import empty_reply, json_reply, openai_error, text_reply
from steersman_sim.engine.scheduler import Hold
from steersman_sim.engine.sglang.core import MEMORY_TAGS, SglangCore, core_of


class _Pause(msgspec.Struct, kw_only=True):
    mode: Literal["abort", "retract", "in_place"] = "abort"


class _Continue(msgspec.Struct, kw_only=True):
    torch_empty_cache: bool = True


class _Abort(msgspec.Struct, kw_only=True):
    rid: str = ""
    abort_all: bool = False


class _Memory(msgspec.Struct, kw_only=True):
    tags: list[Literal["kv_cache", "weights", "cuda_graph"]] | None = None


# --- Pause and continue --------------------------------------------------------------------------


async def pause_generation(call: Call) -> web.Response:
    """``/pause_generation``.

    ``abort`` is a drain by abort: it answers when no request is left, and leaves the scheduler
    alone. ``in_place`` and ``retract`` are told to the scheduler and answered at once, before the
    scheduler has acted.
    """
    core = core_of(call)
    body = call.json(_Pause)
    gate = core.gate
    async with gate.condition:
        gate.paused = True
        if body.mode == "abort":
            while True:
                abort_all(core)
                if not gate.lock.locked:
                    break
                await _poll(core)
        else:
            retract = body.mode == "retract"

            async def freeze(rank: Rank) -> None:
                if retract:
                    rank.scheduler.retract_all()
                rank.set_hold(Hold.EVERYTHING)

            for rank in core.ranks:
                core.spawn(rank.execute(freeze), name="freeze")
    core.watch.notify()
    return json_reply({"message": "Generation paused successfully.", "status": "ok"})


async def _poll(core: SglangCore) -> None:
    """One interval of the abort loop; in instant time, until there is something else to abort."""
    interval = core.config.timings.abort_poll_s
    if core.pace.wall(interval):
        await core.pace.sleep(interval)
    else:
        await core.watch.until(
            lambda: not core.gate.lock.locked or any(rank.scheduler.waiting for rank in core.ranks)
        )


async def continue_generation(call: Call) -> web.Response:
    """``/continue_generation``. Waits behind a weight update that holds the pause condition."""
    core = core_of(call)
    call.json(_Continue)
    async with core.gate.condition:
        core.gate.paused = False

        async def thaw(rank: Rank) -> None:
            rank.set_hold(Hold.NOTHING)

        for rank in core.ranks:
            core.spawn(rank.execute(thaw), name="thaw")
        core.gate.condition.notify_all()
    core.watch.notify()
    return json_reply({"message": "Generation continued successfully.", "status": "ok"})


# --- Abort and flush -----------------------------------------------------------------------------


def abort_all(core: SglangCore) -> int:
    """Abort everything that has reached the schedulers; requests at the gate are not there yet."""
    return core.abort(lambda _: True)


async def abort_request(call: Call) -> web.Response:
    """``/abort_request``: fire and forget. A request id matches as a prefix; an unknown one is
    answered like any other.
    """
    core = core_of(call)
    body = call.json(_Abort)
    if body.abort_all:
        abort_all(core)
    elif body.rid:
        core.abort(lambda sequence: sequence.rid.startswith(body.rid))
    return empty_reply()


async def flush(core: SglangCore) -> bool:
    """Ask all ranks to flush; the answer is that of the first (SGLang 0.5.23)."""
    results: dict[int, bool] = {}

    async def one(rank: Rank) -> None:
        results[rank.number] = rank.scheduler.flush()

    await core.on_all_ranks(one)
    return results[0]


async def flush_cache(call: Call) -> web.Response:
    """``/flush_cache``. With a timeout it waits until nothing runs *and nothing waits*, so on an
    engine that is paused with requests in its queue only timeout 0 can succeed.
    """
    core = core_of(call)
    try:
        timeout = float(call.query("timeout", "0"))
    except ValueError:
        return openai_error("timeout: Input should be a valid number")
    if timeout < 0:
        return openai_error("timeout: Input should be greater than or equal to 0")
    if core.flushing:
        return text_reply("Another flush_cache is already in progress.\n", status=400)
    if timeout > 0:
        core.flushing = True
        core.watch.notify()
        try:
            async with asyncio.timeout(timeout):
                await core.watch.until(lambda: core.unfinished == 0)
        except TimeoutError:
            return text_reply("Timed out waiting for idle state.\n", status=400)
        finally:
            core.flushing = False
    if await flush(core):
        return text_reply(
            "Cache flushed.\nPlease check backend logs for more details. "
            "(When there are running or waiting requests, the operation will not be performed.)\n"
        )
    return text_reply("Flush cache failed.\n", status=400)


# --- Memory --------------------------------------------------------------------------------------


async def release_memory_occupation(call: Call) -> web.Response:
    """``/release_memory_occupation``. An engine that is not idle dies of it, and one of which a tag
    is released already too: its memory saver ends the process when it is told to pause an allocation
    that is not active.
    """
    core = core_of(call)
    tags = set(call.json(_Memory).tags or MEMORY_TAGS)

    async def release(rank: Rank) -> None:
        if not rank.scheduler.idle():
            await core.die("release_memory_occupation on an engine that is not idle")
        if tags & core.released:
            await core.die("release_memory_occupation of a tag that is released already")
        await core.pace.sleep(core.config.timings.release_s)
        if "kv_cache" in tags:
            rank.scheduler.flush()
        if "weights" in tags and not core.config.weights_cpu_backup:
            rank.weights.discard()

    await core.on_all_ranks(release)
    core.released |= tags
    core.watch.notify()
    return json_reply(None)


async def resume_memory_occupation(call: Call) -> web.Response:
    """``/resume_memory_occupation``. Without tags it means all three; a tag that is not released
    now kills the scheduler.
    """
    core = core_of(call)
    tags = set(call.json(_Memory).tags or MEMORY_TAGS)

    async def resume(_: Rank) -> None:
        if not tags <= core.released:
            await core.die("resume_memory_occupation of a tag that is not released")
        await core.pace.sleep(core.config.timings.resume_s)

    await core.on_all_ranks(resume)
    core.released -= tags
    core.watch.notify()
    return json_reply(None)
