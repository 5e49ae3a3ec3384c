"""Information, load and health routes of SGLang 0.5.23."""

import asyncio
import time
import uuid
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from steersman_sim.engine.call import Call
from steersman_sim.engine.core import Job
from steersman_sim.engine.load import load_json
from steersman_sim.engine.replies import (
    empty_reply,
    json_reply,
    openai_error,
    text_reply,
)
from steersman_sim.engine.sequence import Sampling
from steersman_sim.engine.serving import Collector
from steersman_sim.engine.sglang.core import SglangCore, core_of

VERSION = "0.5.23"

_SECTIONS = frozenset({"core", "memory", "spec", "lora", "disagg", "queues", "all"})


async def model_info(call: Call) -> web.Response:
    """``/model_info``: its ``weight_version`` is the tokenizer's live value."""
    core = core_of(call)
    return json_reply(
        {
            "model_path": core.model_path,
            "served_model_name": core.model,
            "tokenizer_path": core.config.model,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": core.version,
            "load_format": core.load_format,
            "reasoning_parser": None,
            "tool_call_parser": None,
            "disaggregation_mode": "null",
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
        }
    )


def _launch_fields(core: SglangCore) -> dict[str, Any]:
    """The launch arguments, as resolved when the engine started."""
    config = core.config
    return {
        "model_path": config.model,
        "served_model_name": config.model,
        "host": config.host,
        "dp_size": config.dp_size,
        "tp_size": config.tp_size,
        "pp_size": 1,
        "page_size": config.block_size,
        "context_length": config.context_length,
        "chunked_prefill_size": config.time.chunk_tokens,
        "max_running_requests": config.max_running * config.dp_size,
        "kv_events_config": None,
        "load_publish_endpoint": None,
        "load_balance_method": "round_robin",
        "disaggregation_mode": "null",
        "disaggregation_bootstrap_port": 8998,
        "disaggregation_transfer_backend": "mooncake",
        "enable_memory_saver": True,
        "enable_weights_cpu_backup": config.weights_cpu_backup,
        "stream_interval": 1,
        "random_seed": config.seed,
    }


async def server_info(call: Call) -> web.Response:
    """``/server_info``: ``weight_version`` at the top is that of the launch, not the live one; each
    internal state has its scheduler's own.
    """
    core = core_of(call)
    launch = _launch_fields(core)
    states = [
        launch
        | {
            "weight_version": rank.weights.label,
            "world_size": core.config.tp_size * core.config.dp_size,
            "effective_max_running_requests_per_dp": core.config.max_running,
            "startup_time": core.startup_time,
            "last_gen_throughput": rank.load.gen_throughput,
            "memory_usage": {"weight": 16.0, "kvcache": 38.4, "token_capacity": capacity},
            "avg_spec_accept_length": None,
        }
        for rank in core.ranks
        for capacity in (rank.scheduler.capacity,)
    ]
    return json_reply(
        launch
        | {
            "weight_version": core.config.weight_version,
            "launch_command": "python -m sglang.launch_server",
            "status": "ready",
            "max_total_num_tokens": core.ranks[0].scheduler.capacity,
            "max_req_input_len": core.config.context_length - 6,
            "startup_time": core.startup_time,
            "hicache_object_layout": None,
            "internal_states": states,
            "version": VERSION,
            "frontend": "python",
            "kv_events": None,
        }
    )


async def loads(call: Call) -> web.Response:
    """``/v1/loads``: the snapshots that the schedulers last published."""
    core = core_of(call)
    include = frozenset(filter(None, call.query("include", "all").split(",")))
    if not include <= _SECTIONS:
        unknown = ", ".join(sorted(include - _SECTIONS))
        return openai_error(f"Invalid include sections: {unknown}")
    wanted = call.query("dp_rank")
    try:
        number = int(wanted) if wanted else None
    except ValueError:
        return openai_error("dp_rank: Input should be a valid integer")
    snapshots = [
        rank.current_load() for rank in core.ranks if number is None or rank.number == number
    ]
    match call.query("format", "json"):
        case "json":
            return json_reply(
                {
                    "timestamp": datetime.now(UTC).isoformat(),
                    "version": VERSION,
                    "accelerator": "sim",
                    "num_accelerators": core.config.tp_size * core.config.dp_size,
                    "loads": [load_json(snapshot, include=include) for snapshot in snapshots],
                }
            )
        case "prometheus":
            lines = [
                f'sglang_{name}{{dp_rank="{snapshot.dp_rank}"}} {value}'
                for snapshot in snapshots
                for name, value in load_json(snapshot, include=frozenset({"core"})).items()
                if isinstance(value, int | float) and name not in ("dp_rank", "timestamp")
            ]
            return text_reply("\n".join(lines) + "\n")
        case other:
            return openai_error(f"Invalid format: {other}")


# --- Health --------------------------------------------------------------------------------------


async def ready(call: Call) -> web.Response:
    """``/ready``: not paused and healthy."""
    core = core_of(call)
    return empty_reply(status=200 if core.healthy and not core.gate.paused else 503)


async def ping(call: Call) -> web.Response:
    """``/ping``: healthy, paused or not."""
    return empty_reply(status=200 if core_of(call).healthy else 503)


async def health(call: Call) -> web.Response:
    """``/health``: the same as ``/health_generate`` unless the engine was told otherwise."""
    core = core_of(call)
    if core.config.health_generation:
        return await health_generate(call)
    return empty_reply()


async def health_generate(call: Call) -> web.Response:
    """``/health_generate``: submits a request for one token and waits until the scheduler speaks.

    While the engine is paused that request waits at the gate, so unless other requests make the
    scheduler speak the probe fails at its deadline, and ``/ready`` and ``/ping`` stay 503 until the
    next good probe.
    """
    core = core_of(call)
    timings = core.config.timings
    if time.time() - core.started < core.pace.wall(core.config.startup_s):
        return empty_reply(status=503)
    began = time.monotonic()
    probe = core.spawn(_probe(core), name="health-probe")
    try:
        while time.monotonic() - began < timings.health_timeout_s:
            await asyncio.sleep(timings.health_poll_s)
            if any(rank.spoke_at > began for rank in core.ranks):
                core.healthy = True
                return empty_reply()
        core.healthy = False
        return empty_reply(status=503)
    finally:
        core.watch.notify()
        probe.cancel()


async def _probe(core: SglangCore) -> None:
    collector = Collector(1)
    job = Job(
        rid=f"HEALTH_CHECK_{uuid.uuid4().hex}",
        prompt=[0],
        sampling=Sampling(max_tokens=1, greedy=True, ignore_eos=True),
    )
    sequence = core.sequence(job, sink=collector)
    try:
        async with core.admitted():
            core.submit(sequence)
            await collector.done
    except asyncio.CancelledError:
        core.abort(lambda other: other is sequence)
        raise


async def metrics(call: Call) -> web.Response:
    """``/metrics``: the gauges that a dashboard or an autoscaler reads, from the load snapshots."""
    core = core_of(call)
    lines: list[str] = []
    for rank in core.ranks:
        load = rank.current_load()
        labels = f'{{model_name="{core.model}",dp_rank="{rank.number}"}}'
        gauges = {
            "num_running_reqs": load.num_running_reqs,
            "num_queue_reqs": load.num_waiting_reqs,
            "num_used_tokens": load.num_used_tokens,
            "token_usage": load.token_usage,
            "max_total_num_tokens": load.max_total_num_tokens,
            "cache_hit_rate": load.cache_hit_rate,
            "utilization": load.utilization,
            "num_retracted_reqs": load.num_retracted_reqs,
            "page_size": core.config.block_size,
        }
        lines += [f"sglang:{name}{labels} {value}" for name, value in gauges.items()]
    return text_reply("\n".join(lines) + "\n")
