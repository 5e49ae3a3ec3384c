"""``/generate`` of SGLang 0.5.23: single, batch and ``n``; buffered and streamed."""

import time
import uuid
from typing import Any

import msgspec
from aiohttp import web

from steersman_sim.engine.call import Call
from steersman_sim.engine.core import Job
from steersman_sim.engine.replies import (
    EventStream,
    Refusal,
    helper_error,
    json_reply,
    openai_error,
)
from steersman_sim.engine.sampling import copies, limit, parse_sampling
from steersman_sim.engine.sequence import Finish, FinishKind, Sampling, Sequence
from steersman_sim.engine.serving import Collector, Emitter, run
from steersman_sim.engine.sglang.core import SglangCore, core_of
from steersman_sim.engine.spans import stamped_spans
from steersman_sim.engine.tokens import decode, encode

_DEFAULT_NEW_TOKENS = 128


class _Body(msgspec.Struct, kw_only=True):
    """The members that change what the sim engine does; others are accepted, as the real one does."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    rid: str | list[str] | None = None
    stream: bool = False
    return_logprob: bool | list[bool] | None = False
    logprob_start_len: int | list[int] | None = None
    top_logprobs_num: int | list[int] | None = None
    return_text_in_logprobs: bool = False
    routed_dp_rank: int | None = None
    data_parallel_rank: int | None = None
    cache_salt: str | list[str] | None = None
    extra_key: str | list[str] | None = None


class _Plan(msgspec.Struct, kw_only=True):
    """A parsed request."""

    jobs: list[Job]
    single: bool
    """Whether the answer is one object instead of a list."""
    logprob_start: int
    top_logprobs: int
    text_in_logprobs: bool


def check_length(core: SglangCore, prompt: list[int], sampling: Sampling) -> None:
    """Refuse what does not fit into the context.

    Raises:
        ValueError: the prompt, or prompt and answer, are too long.
    """
    longest = core.config.context_length
    if len(prompt) >= longest:
        raise ValueError(
            f"The input ({len(prompt)} tokens) is longer than the model's context length "
            f"({longest} tokens)."
        )
    if len(prompt) + sampling.max_tokens > longest:
        raise ValueError(
            f"Requested token count exceeds the model's maximum context length of {longest} "
            f"tokens. You requested a total of {len(prompt) + sampling.max_tokens} tokens."
        )


def sampling_of(values: dict[str, Any], *, default: int = _DEFAULT_NEW_TOKENS) -> Sampling:
    """``sampling_params`` in SGLang's spelling.

    Raises:
        ValueError: a parameter has a wrong type or range.
    """
    return parse_sampling(
        values,
        max_tokens=limit(values, "max_new_tokens", default=default),
        min_tokens=limit(values, "min_new_tokens", default=0),
        seed_name="sampling_seed",
    )


def checked_rank(core: SglangCore, rank: int | None) -> int | None:
    """A data-parallel rank that was asked for.

    Raises:
        ValueError: there is no such rank.
    """
    if rank is not None and not 0 <= rank < core.config.dp_size:
        raise ValueError(f"routed_dp_rank={rank} is out of range for dp_size={core.config.dp_size}")
    return rank


def _each(value: Any, count: int, *, name: str) -> list[Any]:
    """A member that may be given once for all prompts or once for each."""
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"the length of {name} should be equal to the batch size")
    return value


def _prompts(body: _Body) -> tuple[list[list[int]], bool]:
    """The prompts as tokens, and whether there was one instead of a list of them."""
    if (body.text is None) == (body.input_ids is None):
        raise ValueError("Either text, input_ids or input_embeds should be provided.")
    if isinstance(body.text, str):
        return [encode(body.text)], True
    if body.text is not None:
        return [encode(text) for text in body.text], False
    ids = body.input_ids or []
    if ids and isinstance(ids[0], list):
        return [_tokens(one) for one in ids], False
    return [_tokens(ids)], True


def _tokens(value: Any) -> list[int]:
    """A list that must be one of token ids."""
    if not isinstance(value, list) or not value:
        raise ValueError("input_ids should be a list of int or a list of lists of int")
    if not all(type(token) is int for token in value):
        raise ValueError("input_ids should be a list of int or a list of lists of int")
    return value


def _plan(core: SglangCore, body: _Body) -> _Plan:
    prompts, single = _prompts(body)
    count = len(prompts)
    if not count:
        raise ValueError("The batch is empty.")
    parameters = _each(body.sampling_params, count, name="sampling_params")
    salts = [
        f"{salt or ''}{extra or ''}"
        for salt, extra in zip(
            _each(body.cache_salt, count, name="cache_salt"),
            _each(body.extra_key, count, name="extra_key"),
            strict=True,
        )
    ]
    wants = _each(body.return_logprob, count, name="return_logprob")
    n = max(copies(values or {}) for values in parameters)
    total = count * n
    match body.rid:
        case None:
            rids = [uuid.uuid4().hex for _ in range(total)]
        case str() as rid:
            rids = [rid] if total == 1 else [f"{rid}_{number}" for number in range(total)]
        case list() as given if len(given) == count:
            rids = given if n == 1 else [f"{rid}_{k}" for rid in given for k in range(n)]
        case _:
            raise ValueError("The rids should be a list of the batch size.")
    rank = body.data_parallel_rank if body.routed_dp_rank is None else body.routed_dp_rank
    checked_rank(core, rank)
    jobs: list[Job] = []
    for number, prompt in enumerate(prompts):
        sampling = sampling_of(parameters[number] or {})
        check_length(core, prompt, sampling)
        for _ in range(n):
            jobs.append(
                Job(
                    rid=rids[len(jobs)],
                    prompt=prompt,
                    sampling=sampling,
                    want_logprobs=bool(wants[number]),
                    salt=salts[number],
                    rank=rank,
                )
            )
    start = body.logprob_start_len
    top = body.top_logprobs_num
    return _Plan(
        jobs=jobs,
        single=single and n == 1,
        logprob_start=start if isinstance(start, int) else -1,
        top_logprobs=top if isinstance(top, int) else 0,
        text_in_logprobs=body.return_text_in_logprobs,
    )


def finish_reason(finish: Finish, sequence: Sequence) -> dict[str, Any]:
    """``finish_reason`` as SGLang writes it."""
    match finish.kind:
        case FinishKind.LENGTH:
            return {"type": "length", "length": len(sequence.output)}
        case FinishKind.STOP:
            return {"type": "stop", "matched": finish.matched}
        case FinishKind.ABORT:
            return {
                "type": "abort",
                "message": finish.message,
                "status_code": None,
                "err_type": None,
            }


def version_fields(core: SglangCore, sequence: Sequence) -> dict[str, Any]:
    """``weight_version`` and, at the end, ``weight_versions``.

    SGLang 0.5.23: before the end it is the tokenizer's present value, at the end that of the last
    span. A sequence without any output token has no span.
    """
    if sequence.finish is None:
        return {"weight_version": core.version}
    spans = stamped_spans(sequence.marks, length=len(sequence.output))
    if not spans:
        return {"weight_version": core.version}
    return {"weight_version": spans[-1].version, "weight_versions": spans}


def meta_info(core: SglangCore, sequence: Sequence) -> dict[str, Any]:
    """``meta_info`` without log-probabilities."""
    finish = sequence.finish
    info: dict[str, Any] = {
        "id": sequence.rid,
        "finish_reason": None if finish is None else finish_reason(finish, sequence),
        "prompt_tokens": len(sequence.prompt),
        **version_fields(core, sequence),
        "num_retractions": sequence.retractions,
        "reasoning_tokens": 0,
        "completion_tokens": len(sequence.output),
        "cached_tokens": sequence.cached_tokens,
    }
    if core.config.dp_size > 1:
        info["dp_rank"] = sequence.rank
    if finish is not None:
        info["e2e_latency"] = time.monotonic() - sequence.arrived
    return info


def _add_logprobs(info: dict[str, Any], sequence: Sequence, plan: _Plan, start: int) -> None:
    """``[logprob, token id, text or null]`` for each output token from ``start`` on."""
    if sequence.logprobs is None:
        return

    def item(logprob: float, token: int) -> tuple[float, int, str | None]:
        return (logprob, token, decode([token]) if plan.text_in_logprobs else None)

    tokens = sequence.output[start:]
    output = [item(p, t) for p, t in zip(sequence.logprobs[start:], tokens, strict=True)]
    first = plan.logprob_start
    prompt = sequence.prompt[first:] if first >= 0 else []
    info["input_token_logprobs"] = [item(-1.0, token) for token in prompt]
    info["output_token_logprobs"] = output
    info["output_token_logprobs_length"] = len(output)
    if plan.top_logprobs:
        info["output_top_logprobs"] = [[one] * plan.top_logprobs for one in output]


def _result(core: SglangCore, sequence: Sequence, plan: _Plan, *, start: int = 0) -> dict[str, Any]:
    info = meta_info(core, sequence)
    _add_logprobs(info, sequence, plan, start)
    output = sequence.output
    return {
        "text": sequence.text(start=start),
        "output_ids": output[start:] if start else output,
        "meta_info": info,
    }


async def generate(call: Call) -> web.StreamResponse:
    """``POST`` or ``PUT /generate``."""
    core = core_of(call)
    try:
        body = call.json(_Body)
    except msgspec.ValidationError as error:
        # The schema gate answers a string where every other error is an object.
        raise Refusal(json_reply({"error": str(error)}, status=400)) from None
    except msgspec.DecodeError as error:
        raise Refusal(openai_error(str(error))) from None
    if body.stream:
        return await _stream(call, core, body)
    try:
        plan = _plan(core, body)
        sequences = await run(call, plan.jobs, collector=Collector(len(plan.jobs)), core=core)
    except ValueError as error:
        return helper_error(str(error))
    results = [_result(core, sequence, plan) for sequence in sequences]
    return json_reply(results[0] if plan.single else results)


async def _stream(call: Call, core: SglangCore, body: _Body) -> web.StreamResponse:
    """The streamed answer: its head goes out before anything else, so errors come in the stream."""
    stream = EventStream(call.request)
    await stream.open()
    try:
        plan = _plan(core, body)
        order = {job.rid: number for number, job in enumerate(plan.jobs)}
        written = dict.fromkeys(order, 0)
        incremental = core.config.stream_incremental

        def write(sequence: Sequence, final: bool) -> None:
            start = written[sequence.rid] if incremental else 0
            chunk = _result(core, sequence, plan, start=start)
            if not plan.single:
                chunk["index"] = order[sequence.rid]
            written[sequence.rid] = len(sequence.output)
            stream.send(chunk)

        emitter = Emitter(len(plan.jobs), stream=stream, write=write)
        await run(call, plan.jobs, collector=emitter, core=core)
    except ValueError as error:
        stream.send({"error": {"message": str(error)}})
    stream.send_raw(b"data: [DONE]\n\n")
    return await stream.close()
