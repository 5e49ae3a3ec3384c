"""Weight updates and versions of vLLM 0.32.

Nothing here looks whether requests run, and nothing clears the prefix cache: an update on a busy
engine takes effect in the middle of its requests. Pausing and clearing are the caller's part.
"""

from typing import Any

import msgspec
from aiohttp import web

from steersman_sim.engine.call import Call
from steersman_sim.engine.loading import MISSING, load_weights, spoil_weights
from steersman_sim.engine.rank import Rank
from steersman_sim.engine.replies import empty_reply, json_reply
from steersman_sim.engine.vllm.control import string_error
from steersman_sim.engine.vllm.core import RanksDisagree, VllmCore, core_of


class _Rpc(msgspec.Struct, kw_only=True):
    method: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    timeout: float | None = None


class _Init(msgspec.Struct, kw_only=True):
    init_info: dict[str, Any]


class _Update(msgspec.Struct, kw_only=True):
    update_info: dict[str, Any] | list[dict[str, Any]]


class _Finish(msgspec.Struct, kw_only=True):
    weight_version: str | None = None


class _Label(msgspec.Struct, kw_only=True):
    new_version: str


class _Check(msgspec.Struct, kw_only=True):
    action: str = "checksum"
    baseline: dict[str, Any] | None = None


async def _relabel(core: VllmCore, version: str) -> None:
    async def relabel(rank: Rank) -> None:
        rank.weights.relabel(version)

    await core.on_all_ranks(relabel)
    core.watch.notify()


async def collective_rpc(call: Call) -> web.Response:
    """``/collective_rpc``: ``reload_weights`` loads from disk; other methods do nothing.

    The parameters are given up before the first file is opened, so that a path where nothing is
    leaves half-written weights.
    """
    core = core_of(call)
    try:
        body = call.json(_Rpc)
    except msgspec.MsgspecError as error:
        return json_reply({"detail": str(error)}, status=400)
    workers = core.config.tp_size * core.config.dp_size
    if body.method == "reload_weights":
        path = body.kwargs.get("weights_path") or core.model_path
        if path.startswith(MISSING):
            await spoil_weights(core)
            raise RuntimeError(f"Cannot find any model weights with `{path}`")
        await load_weights(call, f"disk:{path}", version=None)
        return json_reply({"results": [None] * workers})
    return empty_reply()


async def init_transfer(call: Call) -> web.Response:
    """``/init_weight_transfer_engine``: needs a backend chosen at launch."""
    core = core_of(call)
    call.json(_Init)
    if core.config.weight_transfer is None:
        return string_error("Weight transfer not configured", status=500)
    core.transfer_ready = True
    return json_reply({"message": "Weight transfer initialized"})


async def start_update(call: Call) -> web.Response:
    """``/start_weight_update``: a second start is a 500."""
    core = core_of(call)
    if core.config.weight_transfer is None:
        return string_error("Weight transfer not configured", status=500)
    if core.updating:
        return string_error("A weight update is already in progress", status=500)
    core.updating = True
    return json_reply({"message": "Weight update started"})


async def update(call: Call) -> web.Response:
    """``/update_weights``: without a start it is a 500."""
    core = core_of(call)
    body = call.json(_Update)
    if not core.updating:
        return string_error("update_weights called before start_weight_update", status=500)
    if not core.transfer_ready:
        return string_error("Weight transfer engine is not initialized", status=500)
    count = core.ranks[0].weights.weights.revision + 1
    shown = msgspec.json.encode(body.update_info, order="sorted").decode()
    await load_weights(call, f"transfer:{count}:{shown}", version=None)
    return json_reply({"message": "Weights updated"})


async def finish_update(call: Call) -> web.Response:
    """``/finish_weight_update``: sets the version after the commit; checks no pause, clears no
    cache.
    """
    core = core_of(call)
    body = msgspec.json.decode(call.body or b"{}", type=_Finish)
    if not core.updating:
        return string_error("finish_weight_update called before start_weight_update", status=500)
    core.updating = False
    if body.weight_version is not None:
        await _relabel(core, body.weight_version)
    return json_reply({"message": "Weight update finished"})


async def shutdown_transfer(call: Call) -> web.Response:
    """``/shutdown_weight_transfer_engine``: an error in the middle of an update."""
    core = core_of(call)
    if core.updating:
        return string_error("A weight update is in progress", status=500)
    core.transfer_ready = core.config.weight_transfer == "ipc"
    return json_reply({"message": "Weight transfer engine shut down"})


async def update_version(call: Call) -> web.Response:
    """``/update_weight_version``: the label alone; nothing is aborted."""
    body = call.json(_Label)
    await _relabel(core_of(call), body.new_version)
    return json_reply({"success": True, "new_version": body.new_version})


async def weight_info(call: Call) -> web.Response:
    """``/weight_info``: a 500 when the data-parallel engines disagree."""
    try:
        return json_reply({"weight_version": core_of(call).version()})
    except RanksDisagree as error:
        return string_error(str(error), status=500)


async def weight_checker(call: Call) -> web.Response:
    """``/weight_checker``. ``reset`` zeroes the weights."""
    core = core_of(call)
    body = msgspec.json.decode(call.body or b"{}", type=_Check)
    if body.action == "compare" and body.baseline is None:
        detail = "action='compare' requires a 'baseline' object"
        return json_reply({"detail": detail}, status=400)
    sums = {f"rank{rank.number}.model": rank.weights.weights.checksum() for rank in core.ranks}
    match body.action:
        case "checksum":
            return json_reply({"checksums": sums})
        case "reset":

            async def zero(rank: Rank) -> None:
                rank.weights.discard()

            await core.on_all_ranks(zero)
            return json_reply({"status": "reset"})
        case "compare":
            known = body.baseline or {}
            wrong = sorted(name for name, value in sums.items() if known.get(name) != value)
            return json_reply({"match": not wrong, "mismatches": wrong})
        case other:
            return core.invalid(f"unknown action {other!r}")
