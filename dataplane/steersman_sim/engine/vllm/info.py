"""Information, load and health routes of vLLM 0.32."""

import time
from typing import Any

from aiohttp import web

from steersman_sim.engine.call import Call
from steersman_sim.engine.replies import empty_reply, json_reply, text_reply, vllm_error
from steersman_sim.engine.vllm.control import string_error
from steersman_sim.engine.vllm.core import core_of

VERSION = "0.32.0"


async def version(call: Call) -> web.Response:
    """``/version``."""
    return json_reply({"version": VERSION})


async def health(call: Call) -> web.Response:
    """``/health``: of the process alone; 200 while paused or asleep."""
    return empty_reply()


async def load(call: Call) -> web.Response:
    """``/load``: HTTP requests in flight, if the engine was told to count them."""
    core = core_of(call)
    return json_reply({"server_load": core.in_flight if core.config.load_tracking else 0})


async def server_info(call: Call) -> web.Response:
    """``/server_info?config_format=text|json``."""
    config = core_of(call).config
    shown: dict[str, Any] = {
        "model": config.model,
        "max_model_len": config.context_length,
        "data_parallel_size": config.dp_size,
        "tensor_parallel_size": config.tp_size,
        "block_size": config.block_size,
        "max_num_seqs": config.max_running,
        "enable_sleep_mode": True,
    }
    match call.query("config_format", "text"):
        case "text":
            text = ", ".join(f"{name}={value!r}" for name, value in shown.items())
            return json_reply({"vllm_config": text, "vllm_env": {}, "system_env": {}})
        case "json":
            return json_reply({"vllm_config": shown, "vllm_env": {}, "system_env": {}})
        case other:
            return string_error(f"unknown config_format {other!r}", status=400)


async def world_size(call: Call) -> web.Response:
    """``/get_world_size?include_dp=``."""
    config = core_of(call).config
    with_dp = call.query("include_dp", "true").lower() in ("true", "1")
    return json_reply({"world_size": config.tp_size * (config.dp_size if with_dp else 1)})


async def kv_event_sources(call: Call) -> web.Response:
    """``/kv_event_sources``: none, as on an engine without a KV event configuration."""
    return json_reply({})


async def models(call: Call) -> web.Response:
    """``/v1/models``: the name of the launch, whatever weights were loaded since."""
    return json_reply({"object": "list", "data": [_card(call)]})


async def model(call: Call) -> web.Response:
    """``/v1/models/{id}``."""
    wanted = call.entry.path.removeprefix("/v1/models/")
    if wanted == core_of(call).model:
        return json_reply(_card(call))
    return vllm_error(
        f"The model `{wanted}` does not exist.", status=404, kind="NotFoundError", param="model"
    )


def _card(call: Call) -> dict[str, Any]:
    core = core_of(call)
    return {
        "id": core.model,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "vllm",
        "root": core.model_path,
        "parent": None,
        "max_model_len": core.config.context_length,
        "permission": [],
    }


async def metrics(call: Call) -> web.Response:
    """``/metrics``: gauges as of the last output, frozen while the scheduler is fully paused."""
    core = core_of(call)
    lines = [f"process_start_time_seconds {core.started!r}"]
    level = core.sleep_level
    sleep_state = {
        "awake": level is None,
        "weights_offloaded": level == 1,
        "discard_all": level == 2,
    }
    for rank in core.ranks:
        gauges = rank.current_load()
        scheduler = rank.scheduler
        labels = f'{{model_name="{core.model}",engine="{rank.number}"}}'
        values = {
            "num_requests_running": gauges.num_running_reqs,
            "num_requests_waiting": gauges.num_waiting_reqs,
            "kv_cache_usage_perc": gauges.token_usage,
            "num_preemptions_total": scheduler.retractions,
            "prompt_tokens_total": scheduler.prompt_tokens,
            "generation_tokens_total": scheduler.generated_tokens,
            "prefix_cache_queries_total": scheduler.prompt_tokens,
            "prefix_cache_hits_total": scheduler.cached_tokens,
        }
        lines += [f"vllm:{name}{labels} {value}" for name, value in values.items()]
        lines += [
            f'vllm:engine_sleep_state{{engine="{rank.number}",model_name="{core.model}",'
            f'sleep_state="{state}"}} {float(shown)}'
            for state, shown in sleep_state.items()
        ]
        blocks = scheduler.pool.blocks
        size = core.config.block_size
        lines.append(
            f'vllm:cache_config_info{{block_size="{size}",num_gpu_blocks="{blocks}",'
            f'engine="{rank.number}"}} 1.0'
        )
    return text_reply("\n".join(lines) + "\n")
