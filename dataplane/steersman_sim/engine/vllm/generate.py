"""``/inference/v1/generate`` of vLLM 0.32: tokens in, tokens out, with version spans.

It is the only route of vLLM that says which weights made which tokens.
"""

import uuid
from typing import Any, Literal

import msgspec
from aiohttp import web

from steersman_sim.engine.call import Call
from steersman_sim.engine.core import Job
from steersman_sim.engine.openai_shapes import usage
from steersman_sim.engine.replies import EventStream, json_reply, vllm_error
from steersman_sim.engine.sampling import copies, limit, parse_sampling
from steersman_sim.engine.sequence import Sequence
from steersman_sim.engine.serving import Collector, Emitter, run
from steersman_sim.engine.spans import Span, stamped_spans
from steersman_sim.engine.tokens import decode
from steersman_sim.engine.vllm.core import VllmCore, core_of
from steersman_sim.engine.vllm.openai import STYLE, asked_rank, stop_reason

UNLABELLED = "default"
"""The version of an engine that nobody labelled."""


class _Body(msgspec.Struct, kw_only=True):
    token_ids: list[int]
    sampling_params: dict[str, Any] = {}
    request_id: str | None = None
    model: str | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    cache_salt: str | None = None
    priority: int = 0
    output_mode: Literal["tokens", "text"] = "tokens"


def _jobs(call: Call, core: VllmCore, body: _Body, request_id: str) -> list[Job]:
    values = body.sampling_params
    if not body.token_ids:
        raise ValueError("token_ids must not be empty")
    count = copies(values)
    room = core.config.context_length - len(body.token_ids)
    sampling = parse_sampling(
        values,
        max_tokens=limit(values, "max_tokens", default=min(16, max(1, room))),
        min_tokens=limit(values, "min_tokens", default=0),
        seed_name="seed",
    )
    STYLE.check_length(core, body.token_ids, sampling)
    return [
        Job(
            rid=request_id if count == 1 else f"{request_id}-{number}",
            prompt=body.token_ids,
            sampling=sampling,
            want_logprobs=values.get("logprobs") is not None,
            salt=body.cache_salt or "",
            rank=asked_rank(call),
        )
        for number in range(count)
    ]


def _labelled_spans(sequence: Sequence) -> list[Span] | None:
    """The version spans; null as long as nobody labelled the weights."""
    spans = stamped_spans(sequence.marks, length=len(sequence.output))
    return spans if any(span.version != UNLABELLED for span in spans) else None


def _choice(body: _Body, index: int, sequence: Sequence, *, start: int = 0) -> dict[str, Any]:
    """One choice: with its spans when it is finished, and null before."""
    finish = sequence.finish
    logprobs = None
    if sequence.logprobs is not None:
        pairs = zip(sequence.output[start:], sequence.logprobs[start:], strict=True)
        logprobs = {
            "content": [{"token": f"token_id:{t}", "logprob": p, "bytes": None} for t, p in pairs]
        }
    spans = None if finish is None else _labelled_spans(sequence)
    choice: dict[str, Any] = {
        "index": index,
        "token_ids": sequence.output[start:],
        "finish_reason": None if finish is None else finish.kind.value,
        "stop_reason": None if finish is None else stop_reason(finish),
        "logprobs": logprobs,
        "routed_experts": None,
        "weight_versions": spans,
    }
    if body.output_mode == "text":
        choice["text"] = decode(sequence.output[start:])
    return choice


async def generate(call: Call) -> web.StreamResponse:
    """``POST /inference/v1/generate``."""
    core = core_of(call)
    if not core.config.scale_out:
        return vllm_error("This endpoint requires --enable-scale-out", status=403, kind="Forbidden")
    body = call.json(_Body)
    refusal = STYLE.check_model(core, {"model": body.model})
    if refusal is not None:
        return refusal
    request_id = body.request_id or call.header("X-Request-Id") or uuid.uuid4().hex
    try:
        jobs = _jobs(call, core, body, request_id)
        if body.stream:
            return await _stream(call, core, body, request_id, jobs)
        sequences = await run(call, jobs, collector=Collector(len(jobs)), core=core)
    except ValueError as error:
        return vllm_error(str(error))
    return json_reply(
        {
            "request_id": request_id,
            "choices": [_choice(body, index, sequence) for index, sequence in enumerate(sequences)],
            "prompt_logprobs": None,
            "kv_transfer_params": None,
            "usage": usage(sequences, copies_of_prompt=len(sequences)),
        }
    )


async def _stream(
    call: Call, core: VllmCore, body: _Body, request_id: str, jobs: list[Job]
) -> web.StreamResponse:
    stream = EventStream(call.request)
    await stream.open()
    order = {job.rid: index for index, job in enumerate(jobs)}
    sent = [0] * len(jobs)

    def write(sequence: Sequence, final: bool) -> None:
        index = order[sequence.rid]
        choice = _choice(body, index, sequence, start=sent[index])
        sent[index] = len(sequence.output)
        stream.send({"request_id": request_id, "choices": [choice], "usage": None})

    emitter = Emitter(len(jobs), stream=stream, write=write)
    try:
        sequences = await run(call, jobs, collector=emitter, core=core)
    except ValueError as error:
        stream.send({"error": {"message": str(error), "type": "BadRequestError", "code": 400}})
    else:
        if (body.stream_options or {}).get("include_usage"):
            counted = usage(sequences, copies_of_prompt=len(sequences))
            stream.send({"request_id": request_id, "choices": [], "usage": counted})
    stream.send_raw(b"data: [DONE]\n\n")
    return await stream.close()
