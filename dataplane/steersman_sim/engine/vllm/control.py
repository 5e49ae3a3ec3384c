"""Pause, sleep, wake and caches of vLLM 0.32. None of these routes needs a key."""

from typing import Any

import msgspec
from aiohttp import web

from steersman_sim.engine.call import Call
from steersman_sim.engine.rank import Rank
from steersman_sim.engine.replies import empty_reply, json_reply
from steersman_sim.engine.scheduler import Hold
from steersman_sim.engine.vllm.core import RanksDisagree, VllmCore, core_of

_MODES = ("abort", "wait", "keep")
_MEMORY = frozenset({"weights", "kv_cache"})


def string_error(message: str, *, status: int) -> web.Response:
    """The error of the control routes: a string, not an object."""
    return json_reply({"error": message}, status=status)


def _flag(call: Call, name: str, *, default: bool) -> bool:
    match call.query(name, str(default)).lower():
        case "true" | "1" | "yes" | "on":
            return True
        case "false" | "0" | "no" | "off":
            return False
        case other:
            raise ValueError(f"{name} must be a boolean, got {other!r}")


# --- Pause ---------------------------------------------------------------------------------------


async def pause_ranks(core: VllmCore, *, mode: str, clear_cache: bool) -> None:
    """Pause, and return when the pause is complete.

    ``abort`` and ``wait`` hold back new work only; ``keep`` takes no step at all. With
    ``clear_cache`` a ``keep`` preempts what runs, to be computed anew after the resume, in spite of
    what its documentation says.
    """
    core.pausing += 1
    core.watch.notify()
    try:
        if mode == "keep":

            async def freeze(rank: Rank) -> None:
                rank.set_hold(Hold.EVERYTHING)
                if clear_cache:
                    rank.scheduler.retract_all()

            await core.on_all_ranks(freeze)
        else:
            await core.set_hold(Hold.NEW)
            if mode == "abort":
                core.abort(lambda _: True)
            await core.watch.until(lambda: not any(rank.scheduler.draining for rank in core.ranks))
        if clear_cache:
            for rank in core.ranks:
                rank.scheduler.pool.clear()
    finally:
        core.pausing -= 1
        core.watch.notify()


async def pause(call: Call) -> web.Response:
    """``/pause?mode=&clear_cache=``: the answer comes when the pause is complete."""
    core = core_of(call)
    mode = call.query("mode", "abort")
    if mode not in _MODES:
        return string_error(f"Invalid pause mode: {mode!r}. Must be one of {_MODES}", status=400)
    try:
        clear_cache = _flag(call, "clear_cache", default=True)
    except ValueError as error:
        return string_error(str(error), status=400)
    await pause_ranks(core, mode=mode, clear_cache=clear_cache)
    return json_reply({"status": "paused"})


async def resume(call: Call) -> web.Response:
    """``/resume``. With several data-parallel engines a pause still in flight is a 500.

    On an engine that sleeps it starts a scheduler without memory: the engine dies of the first
    request.
    """
    core = core_of(call)
    if core.pausing and core.config.dp_size > 1:
        return string_error("a pause is still in progress", status=500)
    if core.asleep and core.unfinished:
        await core.die("resumed with requests while asleep")
    await core.set_hold(Hold.NOTHING)
    return json_reply({"status": "resumed"})


async def is_paused(call: Call) -> web.Response:
    """``/is_paused``."""
    try:
        return json_reply({"is_paused": core_of(call).paused()})
    except RanksDisagree as error:
        return string_error(str(error), status=500)


# --- Sleep ---------------------------------------------------------------------------------------


async def sleep(call: Call) -> web.Response:
    """``/sleep?level=&mode=``: pauses first, then frees. Level 0 is a pause and nothing more; level
    1 moves the weights away, level 2 drops them. An engine whose weights are away stays as it is.
    """
    core = core_of(call)
    mode = call.query("mode", "abort")
    level_text = call.query("level", "1")
    if level_text not in ("0", "1", "2") or mode not in _MODES:
        return string_error("level must be 0, 1 or 2 and mode abort, wait or keep", status=400)
    level = int(level_text)
    await pause_ranks(core, mode=mode, clear_cache=level > 0)
    core.sleep_level = level
    if level > 0 and "weights" not in core.asleep:

        async def free(rank: Rank) -> None:
            await core.pace.sleep(core.config.timings.release_s)
            if level == 2:
                rank.weights.discard()

        await core.on_all_ranks(free)
        core.asleep |= _MEMORY
    core.watch.notify()
    return json_reply({"status": "sleeping", "level": level})


async def release_kv_cache_memory(call: Call) -> web.Response:
    """``/release_kv_cache_memory``: needs a complete pause and an engine that is awake."""
    core = core_of(call)
    if core.pausing or not core.paused() or core.asleep:
        raise RuntimeError("release_kv_cache_memory requires a paused engine that is awake")

    async def free(rank: Rank) -> None:
        await core.pace.sleep(core.config.timings.release_s)
        rank.scheduler.retract_all()
        rank.scheduler.pool.clear()

    await core.on_all_ranks(free)
    core.asleep.add("kv_cache")
    core.sleep_level = 0
    core.watch.notify()
    return json_reply({"status": "kv_cache_released"})


async def wake_up(call: Call) -> web.Response:
    """``/wake_up?tags=&tags=``. If one of the tags is unknown or awake, nothing is woken, and the
    answer is 200. An engine that is awake afterwards resumes its scheduler, even if somebody had
    paused it.
    """
    core = core_of(call)
    tags = call.request.query.getall("tags", [])
    memory = set(tags) - {"scheduling"}
    waking = set(core.asleep)
    if tags:
        waking = memory if memory <= core.asleep else set()

    async def restore(_: Rank) -> None:
        await core.pace.sleep(core.config.timings.resume_s)

    if waking:
        await core.on_all_ranks(restore)
    core.asleep -= waking
    if not core.asleep:
        await core.set_hold(Hold.NOTHING)
        core.sleep_level = None
    core.watch.notify()
    sleeping = bool(core.asleep) or core.paused()
    return json_reply({"status": "sleeping" if sleeping else "awake", "tags": tags or None})


async def is_sleeping(call: Call) -> web.Response:
    """``/is_sleeping``: true also when merely paused."""
    core = core_of(call)
    try:
        return json_reply({"is_sleeping": bool(core.asleep) or core.paused()})
    except RanksDisagree as error:
        return string_error(str(error), status=500)


# --- Caches and aborts ---------------------------------------------------------------------------


async def reset_prefix_cache(call: Call) -> web.Response:
    """``/reset_prefix_cache``: 200 also when it could not (``success: false``)."""
    core = core_of(call)
    try:
        preempt = _flag(call, "reset_running_requests", default=False)
    except ValueError as error:
        return string_error(str(error), status=400)
    cleared: list[bool] = []

    async def reset(rank: Rank) -> None:
        if preempt:
            rank.scheduler.retract_all()
        cleared.append(rank.scheduler.pool.clear())

    await core.on_all_ranks(reset)
    if preempt and not all(cleared):
        raise RuntimeError("Failed to reset the prefix cache although all requests were preempted")
    return json_reply({"success": all(cleared)})


async def reset_other_cache(call: Call) -> web.Response:
    """``/reset_mm_cache`` and ``/reset_encoder_cache``: there is nothing in them."""
    return empty_reply()


def _ids(body: dict[str, Any]) -> list[str] | None:
    ids = body.get("request_ids")
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
        raise ValueError("request_ids must be a list of strings")
    return ids


def _abort(core: VllmCore, ids: list[str]) -> int:
    """Abort requests by id: of the answer, of the caller's ``X-Request-Id``, or of a sequence."""
    wanted = set(ids)

    def matches(rid: str) -> bool:
        if rid in wanted:
            return True
        stem = rid.rpartition("-")[0]
        bare = rid.partition("-")[2]
        return stem in wanted or bare in wanted or bare.rpartition("-")[0] in wanted

    return core.abort(lambda sequence: matches(sequence.rid))


async def abort_requests(call: Call) -> web.Response:
    """``/abort_requests``: a JSON body is required; without ids, or with an empty list of them, it
    aborts everything.
    """
    core = core_of(call)
    try:
        body = msgspec.json.decode(call.body, type=dict[str, Any])
        ids = _ids(body)
    except (ValueError, msgspec.MsgspecError) as error:
        return json_reply({"detail": str(error)}, status=400)
    count = _abort(core, ids) if ids else core.abort(lambda _: True)
    return json_reply({"status": "aborted", "aborted": count})


async def abort_scale_out(call: Call) -> web.Response:
    """``/inference/v1/abort_requests``: ids are required; the answer does not wait."""
    ids = _ids(call.object())
    if ids is None:
        return core_of(call).invalid("request_ids is required")
    _abort(core_of(call), ids)
    return empty_reply()
