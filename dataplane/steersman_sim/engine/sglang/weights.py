"""Weight updates of SGLang 0.5.23, with their traps.

An update on an engine that is not paused waits for every request in flight (the writer lock). The
flush that follows an update can be refused, when requests run or wait on an engine paused in place:
the answer is then 400 although the weights *are* changed, the schedulers stamp the new version, and
the tokenizer keeps the old one.
"""

from hashlib import blake2b
from typing import Any, Literal

import msgspec
from aiohttp import web

from steersman_sim.engine.call import Call
from steersman_sim.engine.loading import MISSING, load_weights, shown_after
from steersman_sim.engine.rank import Rank
from steersman_sim.engine.replies import helper_error, json_reply
from steersman_sim.engine.sglang.control import abort_all, flush
from steersman_sim.engine.sglang.core import SglangCore, core_of

Selector = Literal["target", "draft", "all"]

DEFAULT_GROUP = "weight_update_group"


class _Options(msgspec.Struct, kw_only=True):
    """What all updates take."""

    load_format: str | None = None
    flush_cache: bool = True
    abort_all_requests: bool = False
    weight_version: str | None = None
    torch_empty_cache: bool = False


class _FromDisk(_Options, kw_only=True):
    model_path: str
    is_async: bool = False
    keep_pause: bool = False
    token_step: int = 0
    recapture_cuda_graph: bool = False
    manifest: Any = None


class _FromTensor(_Options, kw_only=True):
    serialized_named_tensors: list[str]
    selector: Selector = "all"


class _FromDistributed(_Options, kw_only=True):
    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    group_name: str = DEFAULT_GROUP
    selector: Selector = "all"


class _FromIpc(_Options, kw_only=True):
    zmq_handles: dict[str, str]


class _Begin(msgspec.Struct, kw_only=True):
    selector: Selector = "all"


class _InitGroup(msgspec.Struct, kw_only=True):
    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    group_name: str = DEFAULT_GROUP
    backend: str = "nccl"


class _DestroyGroup(msgspec.Struct, kw_only=True):
    group_name: str = DEFAULT_GROUP


class _Label(msgspec.Struct, kw_only=True):
    new_version: str
    abort_all_requests: bool = True


class _Check(msgspec.Struct, kw_only=True):
    action: str = "checksum"
    allow_quant_error: bool = False
    skip_tensor_list: list[str] | None = None
    selector: Selector = "all"


def _outcome(success: bool, message: str) -> web.Response:
    return json_reply({"success": success, "message": message}, status=200 if success else 400)


def _several_replicas(core: SglangCore) -> bool:
    return core.config.dp_size > 1


async def _commit(call: Call, *, source: str, options: _Options) -> tuple[bool, str]:
    """Load the weights on all ranks, between two steps of each; then flush, if asked to."""
    core = core_of(call)
    await load_weights(call, source, version=options.weight_version)
    refuses = call.fault is not None and call.fault.refuse_flush
    if options.flush_cache and (refuses or not await flush(core)):
        return False, "Cache flush failed after updating weights"
    if options.load_format is not None:
        core.load_format = options.load_format
    message = "Succeeded to update model weights."
    if options.weight_version is not None:
        core.version = shown_after(call, options.weight_version) or core.version
        message += f" Weight version updated to {options.weight_version}."
    core.watch.notify()
    return True, message


async def update_from_disk(call: Call) -> web.Response:
    """``/update_weights_from_disk``. On success the served model takes the name of the path; where
    there is nothing to read, nothing is changed.
    """
    core = core_of(call)
    body = call.json(_FromDisk)
    if body.abort_all_requests:
        abort_all(core)
    async with core.gate.exclusive(hold_condition=False):
        if body.model_path.startswith(MISSING):
            message = f"Failed to get weights iterator: no weights found at {body.model_path}."
            success = False
        else:
            source = f"disk:{body.model_path}"
            success, message = await _commit(call, source=source, options=body)
        if success:
            core.model = core.model_path = body.model_path
    paused: int | list[int] = [0] * core.config.dp_size if _several_replicas(core) else 0
    reply = {"success": success, "message": message, "num_paused_requests": paused}
    return json_reply(reply, status=200 if success else 400)


async def _update_in_session(call: Call, body: _Options, *, source: str) -> web.Response:
    core = core_of(call)
    if body.abort_all_requests:
        abort_all(core)
    async with core.gate.exclusive(hold_condition=True):
        if core.session is None:
            return _outcome(False, "No weight update session is open; call /begin_weight_update.")
        return _outcome(*await _commit(call, source=source, options=body))


async def update_from_tensor(call: Call) -> web.Response:
    """``/update_weights_from_tensor``: needs an open session, and one data-parallel replica."""
    core = core_of(call)
    body = call.json(_FromTensor)
    assert not _several_replicas(core), "dp_size must be 1 for an update from tensors"
    digest = blake2b("".join(body.serialized_named_tensors).encode(), digest_size=16).hexdigest()
    return await _update_in_session(call, body, source=f"tensor:{digest}")


async def update_from_distributed(call: Call) -> web.Response:
    """``/update_weights_from_distributed``: needs an open session, a group, and one replica."""
    core = core_of(call)
    body = call.json(_FromDistributed)
    assert not _several_replicas(core), "dp_size must be 1 for an update through a group"
    if body.group_name not in core.groups:
        return _outcome(False, f"Group {body.group_name} not in the weight update groups.")
    shown = body.weight_version or core.ranks[0].weights.weights.revision + 1
    return await _update_in_session(call, body, source=f"distributed:{shown}")


async def update_from_ipc(call: Call) -> web.Response:
    """``/update_weights_from_ipc``: needs no session (checkpoint-engine)."""
    core = core_of(call)
    body = call.json(_FromIpc)
    if _several_replicas(core):
        return _outcome(False, "dp_size must be 1 for an update through IPC")
    if body.abort_all_requests:
        abort_all(core)
    handles = ",".join(f"{uuid}={path}" for uuid, path in sorted(body.zmq_handles.items()))
    async with core.gate.exclusive(hold_condition=True):
        return _outcome(*await _commit(call, source=f"ipc:{handles}", options=body))


async def begin_weight_update(call: Call) -> web.Response:
    """``/begin_weight_update``."""
    core = core_of(call)
    body = call.json(_Begin)
    async with core.gate.exclusive(hold_condition=True):
        if core.session is not None:
            return _outcome(False, "A weight update session is already open.")
        core.session = body.selector
    return _outcome(True, "Weight update session started.")


async def end_weight_update(call: Call) -> web.Response:
    """``/end_weight_update``."""
    core = core_of(call)
    call.object()
    async with core.gate.exclusive(hold_condition=True):
        if core.session is None:
            return _outcome(False, "No weight update session is open.")
        core.session = None
    return _outcome(True, "Weight update session ended.")


async def init_group(call: Call) -> web.Response:
    """``/init_weights_update_group``. The rendezvous always succeeds."""
    core = core_of(call)
    body = call.json(_InitGroup)
    assert not _several_replicas(core), "dp_size must be 1 to join a weight update group"
    if body.group_name in core.groups:
        return _outcome(False, f"Group {body.group_name} has already been initialized.")
    core.groups.add(body.group_name)
    return _outcome(True, "Succeeded to initialize custom process group.")


async def destroy_group(call: Call) -> web.Response:
    """``/destroy_weights_update_group``."""
    core = core_of(call)
    body = call.json(_DestroyGroup)
    if body.group_name not in core.groups:
        return _outcome(False, "The group to be destroyed does not exist.")
    core.groups.discard(body.group_name)
    return _outcome(True, "Succeeded to destroy custom process group.")


async def update_weight_version(call: Call) -> web.Response:
    """``/update_weight_version``: sets the label, and by default aborts every request."""
    core = core_of(call)
    body = call.json(_Label)
    if body.abort_all_requests:
        abort_all(core)

    async def relabel(rank: Rank) -> None:
        rank.weights.relabel(body.new_version)

    await core.on_all_ranks(relabel)
    core.version = body.new_version
    core.watch.notify()
    return json_reply(
        {
            "success": True,
            "message": f"Weight version updated to {body.new_version}",
            "new_version": body.new_version,
        }
    )


async def weights_checker(call: Call) -> web.Response:
    """``/weights_checker``: checksum, snapshot, compare and reset_tensors of what is in memory."""
    core = core_of(call)
    body = msgspec.json.decode(call.body or b"{}", type=_Check)
    sums = [rank.weights.weights.checksum() for rank in core.ranks]
    match body.action:
        case "checksum":
            whole = blake2b("".join(sums).encode(), digest_size=32).hexdigest()
            return json_reply(
                {
                    "success": True,
                    "message": "Success.",
                    "ranks": [
                        {"dp_rank": number, "checksum": one} for number, one in enumerate(sums)
                    ],
                    "per_engine_checksum": whole,
                }
            )
        case "snapshot":
            core.snapshot = sums
            return _outcome(True, "Success.")
        case "compare":
            if core.snapshot is None:
                return _outcome(False, "No snapshot was taken.")
            same = core.snapshot == sums
            return _outcome(same, "Success." if same else "The weights differ.")
        case "reset_tensors":

            async def reset(rank: Rank) -> None:
                rank.weights.discard()

            await core.on_all_ranks(reset)
            return _outcome(True, "Success.")
        case other:
            return _outcome(False, f"Unsupported action={other!r}")


async def get_weights_by_name(call: Call) -> web.Response:
    """``/get_weights_by_name``: a few numbers that depend on the weights."""
    body = call.object() if call.body else {}
    name = str(body.get("name") or call.query("name"))
    if not name:
        return helper_error("Get parameter by name failed")
    size = max(1, min(int(body.get("truncate_size", 100)), 100))
    source = core_of(call).ranks[0].weights.weights.source
    digest = blake2b(f"{source}\x00{name}".encode(), digest_size=64).digest()
    return json_reply([round(digest[i % 64] / 255 - 0.5, 4) for i in range(size)])
