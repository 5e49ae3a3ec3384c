"""The routes of SGLang 0.5.23."""

import time
from typing import Any

from aiohttp import web

from steersman_sim.engine.call import Access, Call, Routes
from steersman_sim.engine.extras import Extras
from steersman_sim.engine.other_chats import OtherChats
from steersman_sim.engine.replies import empty_reply, json_reply, text_reply
from steersman_sim.engine.sglang import control, generate, info, openai, weights
from steersman_sim.engine.sglang.core import core_of


async def models(call: Call) -> web.Response:
    """``/v1/models``: one model, whose name a disk refit changes."""
    return json_reply({"object": "list", "data": [_card(call)]})


async def model(call: Call) -> web.Response:
    """``/v1/models/{id}``."""
    wanted = call.entry.path.removeprefix("/v1/models/")
    if wanted == core_of(call).model:
        return json_reply(_card(call))
    error = {
        "message": f"The model '{wanted}' does not exist",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }
    return json_reply({"error": error}, status=404)


def _card(call: Call) -> dict[str, Any]:
    core = core_of(call)
    return {
        "id": core.model,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "sglang",
        "root": core.model,
        "parent": None,
        "max_model_len": core.config.context_length,
    }


async def set_internal_state(call: Call) -> web.Response:
    """``/set_internal_state``: accepted, without effect."""
    call.object()
    return json_reply([True for _ in core_of(call).ranks])


async def no_effect(call: Call) -> web.Response:
    """Control routes whose effect no router can see."""
    return empty_reply()


async def profile(call: Call) -> web.Response:
    """``/start_profile`` and ``/stop_profile``."""
    return text_reply("Start profiling.\n" if "start" in call.entry.path else "Stop profiling.\n")


async def session(call: Call) -> web.Response:
    """``/open_session`` and ``/close_session``: sessions have no effect."""
    body = call.object()
    return json_reply(body.get("session_id") or "sim-session")


def sglang_routes() -> Routes:
    """The table. What is not in it is a 404, as ``/get_load`` and ``/weight_version`` are."""
    routes = Routes()
    extras = Extras(openai.STYLE)
    chats = OtherChats(openai.STYLE)
    add = routes.add

    add("POST PUT", "/generate", generate.generate)
    add("POST", "/v1/chat/completions", openai.chat_completions)
    add("POST", "/v1/completions", openai.completions)
    add("POST", "/v1/responses", chats.responses)
    add("POST", "/v1/messages", chats.messages)
    add("POST", "/v1/embeddings", extras.embeddings)
    add("POST PUT", "/encode", extras.encode)
    add("POST PUT", "/classify", extras.classify)
    add("POST", "/v1/classify", extras.classify)
    add("POST", "/v1/score", extras.score)
    add("POST PUT", "/v1/rerank", extras.rerank)
    add("POST", "/tokenize /v1/tokenize", extras.tokenize)
    add("POST", "/detokenize /v1/detokenize", extras.detokenize)
    add("GET POST", "/open_session /close_session", session)

    add("GET", "/model_info /get_model_info", info.model_info)
    add("GET", "/server_info /get_server_info", info.server_info)
    add("GET", "/v1/loads", info.loads)
    add("GET", "/v1/models", models)
    add("GET", "/v1/models/*", model)
    add("GET", "/ready", info.ready, access=Access.OPEN)
    add("GET", "/ping", info.ping)
    add("GET", "/health", info.health, access=Access.OPEN)
    add("GET", "/health_generate", info.health_generate, access=Access.OPEN)
    add("GET", "/metrics", info.metrics, access=Access.OPEN)

    def admin(methods: str, paths: str, handler: Any) -> None:
        add(methods, paths, handler, access=Access.ADMIN, control=True)

    admin("POST", "/pause_generation", control.pause_generation)
    admin("POST", "/continue_generation", control.continue_generation)
    admin("POST", "/abort_request", control.abort_request)
    admin("GET POST", "/flush_cache", control.flush_cache)
    admin("GET POST", "/release_memory_occupation", control.release_memory_occupation)
    admin("GET POST", "/resume_memory_occupation", control.resume_memory_occupation)
    admin("POST", "/update_weights_from_disk", weights.update_from_disk)
    admin("POST", "/update_weights_from_tensor", weights.update_from_tensor)
    admin("POST", "/update_weights_from_distributed", weights.update_from_distributed)
    admin("POST", "/update_weights_from_ipc", weights.update_from_ipc)
    admin("POST", "/begin_weight_update", weights.begin_weight_update)
    admin("POST", "/end_weight_update", weights.end_weight_update)
    admin("POST", "/init_weights_update_group", weights.init_group)
    admin("POST", "/destroy_weights_update_group", weights.destroy_group)
    admin("POST", "/update_weight_version", weights.update_weight_version)
    admin("GET POST", "/weights_checker", weights.weights_checker)
    admin("GET POST", "/get_weights_by_name", weights.get_weights_by_name)
    admin("POST PUT", "/set_internal_state", set_internal_state)
    admin("GET POST", "/slow_down /freeze_gc /configure_logging /set_trace_level", no_effect)
    admin("GET POST", "/start_profile /stop_profile", profile)
    return routes
