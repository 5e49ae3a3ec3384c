"""The routes of vLLM 0.32, those of the development mode only when it is on."""

from typing import Any

from steersman_sim.engine.call import Access, Routes
from steersman_sim.engine.config import EngineConfig
from steersman_sim.engine.extras import Extras
from steersman_sim.engine.other_chats import OtherChats
from steersman_sim.engine.vllm import control, generate, info, openai, weights


def vllm_routes(config: EngineConfig) -> Routes:
    """The table. What is not in it is a 404."""
    routes = Routes()
    extras = Extras(openai.STYLE)
    chats = OtherChats(openai.STYLE)
    add = routes.add

    add("POST", "/v1/chat/completions", openai.chat_completions)
    add("POST", "/v1/completions", openai.completions)
    add("POST", "/inference/v1/generate", generate.generate)
    add("POST", "/v1/responses", chats.responses)
    add("POST", "/v1/messages", chats.messages)
    add("POST", "/v1/embeddings", extras.embeddings)
    add("POST", "/classify", extras.classify)
    add("POST", "/score /v1/score", extras.score)
    add("POST", "/rerank /v1/rerank", extras.rerank)
    add("POST", "/tokenize", extras.tokenize)
    add("POST", "/detokenize", extras.detokenize)
    add("POST", "/inference/v1/abort_requests", control.abort_scale_out, control=True)

    add("GET", "/v1/models", info.models)
    add("GET", "/v1/models/*", info.model)
    add("GET", "/version", info.version)
    add("GET", "/health", info.health)
    add("GET POST", "/ping", info.health)
    add("GET", "/load", info.load)
    add("GET", "/metrics", info.metrics)
    add("GET", "/kv_event_sources", info.kv_event_sources)

    if not config.dev_mode:
        return routes

    def dev(methods: str, paths: str, handler: Any) -> None:
        add(methods, paths, handler, access=Access.OPEN, control=True)

    dev("POST", "/pause", control.pause)
    dev("POST", "/resume", control.resume)
    dev("GET", "/is_paused", control.is_paused)
    dev("POST", "/sleep", control.sleep)
    dev("POST", "/wake_up", control.wake_up)
    dev("GET", "/is_sleeping", control.is_sleeping)
    dev("POST", "/release_kv_cache_memory", control.release_kv_cache_memory)
    dev("POST", "/reset_prefix_cache", control.reset_prefix_cache)
    dev("POST", "/reset_mm_cache /reset_encoder_cache", control.reset_other_cache)
    dev("POST", "/abort_requests", control.abort_requests)
    dev("POST", "/collective_rpc", weights.collective_rpc)
    dev("POST", "/init_weight_transfer_engine", weights.init_transfer)
    dev("POST", "/start_weight_update /start_draft_weight_update", weights.start_update)
    dev("POST", "/update_weights", weights.update)
    dev("POST", "/finish_weight_update", weights.finish_update)
    dev("POST", "/shutdown_weight_transfer_engine", weights.shutdown_transfer)
    dev("POST", "/update_weight_version", weights.update_version)
    dev("GET", "/weight_info", weights.weight_info)
    dev("POST", "/weight_checker", weights.weight_checker)
    dev("GET", "/server_info", info.server_info)
    dev("GET", "/get_world_size", info.world_size)
    return routes
