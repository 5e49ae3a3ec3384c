"""What a scheduler says of its load: the fields of one element of SGLang 0.5.23 ``/v1/loads``."""

from typing import Any

import msgspec

from steersman_sim.engine.scheduler import Scheduler


class LoadSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The load of one rank at one moment. All zeros and timestamp 0 mean: never reported."""

    timestamp: float = 0.0
    """Wall clock, seconds."""
    dp_rank: int = 0
    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_waiting_uncached_tokens: int = 0
    num_used_tokens: int = 0
    num_total_tokens: int = 0
    num_active_tokens: int = 0
    num_prealloc_ready_tokens: int = 0
    max_total_num_tokens: int = 0
    max_running_requests: int = 0
    token_usage: float = 0.0
    gen_throughput: float = 0.0
    cache_hit_rate: float = 0.0
    utilization: float = 0.0
    total_prefill_uncached_tokens: int = 0
    num_retracted_reqs: int = 0
    generated_tokens: int = 0
    """Output tokens ever made; not part of the answer."""


def snapshot_of(
    scheduler: Scheduler, *, rank: int, timestamp: float, before: LoadSnapshot
) -> LoadSnapshot:
    """Read a scheduler; the throughput is that since the snapshot ``before``."""
    elapsed = timestamp - before.timestamp
    made = scheduler.generated_tokens - before.generated_tokens
    throughput = made / elapsed if elapsed > 0 and before.timestamp else 0.0
    used = scheduler.used_tokens
    prompts = scheduler.prompt_tokens
    waiting = sum(len(sequence.prompt) for sequence in scheduler.waiting)
    return LoadSnapshot(
        timestamp=timestamp,
        dp_rank=rank,
        num_running_reqs=scheduler.running,
        num_waiting_reqs=len(scheduler.waiting),
        num_waiting_uncached_tokens=scheduler.waiting_uncached_tokens,
        num_used_tokens=used,
        num_total_tokens=used + waiting,
        num_active_tokens=used,
        max_total_num_tokens=scheduler.capacity,
        max_running_requests=scheduler.max_running,
        token_usage=round(used / scheduler.capacity, 4),
        gen_throughput=round(throughput, 2),
        generated_tokens=scheduler.generated_tokens,
        cache_hit_rate=round(scheduler.cached_tokens / prompts, 4) if prompts else 0.0,
        utilization=round(scheduler.running / scheduler.max_running, 4),
        total_prefill_uncached_tokens=scheduler.prefilled_tokens,
        num_retracted_reqs=scheduler.retractions,
    )


def load_json(snapshot: LoadSnapshot, *, include: frozenset[str]) -> dict[str, Any]:
    """One element of ``loads``, with the sections that the query asked for."""
    fields: dict[str, Any] = msgspec.to_builtins(snapshot)
    retracted = fields.pop("num_retracted_reqs")
    del fields["generated_tokens"]
    everything = "all" in include
    if everything or "memory" in include:
        fields["memory"] = {
            "weight_gb": 16.0,
            "kv_cache_gb": 38.4,
            "graph_gb": 1.0,
            "token_capacity": snapshot.max_total_num_tokens,
        }
    if everything or "spec" in include:
        fields["speculative"] = {"accept_length": 0.0, "accept_rate": 0.0}
    if everything or "lora" in include:
        fields["lora"] = {"slots_used": 0, "slots_total": 0, "utilization": 0.0}
    if everything or "disagg" in include:
        fields["disaggregation"] = {
            "mode": "null",
            "prefill_bootstrap_queue_reqs": 0,
            "prefill_inflight_queue_reqs": 0,
            "decode_prealloc_queue_reqs": 0,
            "decode_transfer_queue_reqs": 0,
            "decode_retracted_queue_reqs": 0,
            "kv_transfer_speed_gb_s": 0.0,
            "kv_transfer_latency_ms": 0.0,
        }
    if everything or "queues" in include:
        fields["queues"] = {
            "waiting": snapshot.num_waiting_reqs,
            "grammar": 0,
            "paused": 0,
            "retracted": retracted,
            "prealloc_ready": 0,
        }
    return fields
