"""The other inference routes, answered sensibly so that a proxy in front has something to forward:
responses, messages, embeddings, scores, reranks, classification, tokenizing.
"""

import time
import uuid
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from aiohttp import web

from steersman_sim.engine.call import Call
from steersman_sim.engine.chat import completion_prompts, content_text, render_chat
from steersman_sim.engine.core import EngineCore, Job
from steersman_sim.engine.openai import Style
from steersman_sim.engine.replies import EventStream, Refusal, json_reply
from steersman_sim.engine.sampling import limit, parse_sampling
from steersman_sim.engine.sequence import FinishKind, Sequence
from steersman_sim.engine.serving import Collector, Emitter, run
from steersman_sim.engine.tokens import decode, encode

_DIMENSIONS = 64


def fractions(core: EngineCore, *parts: object, count: int) -> list[float]:
    """Numbers from -1 to 1 that depend on the weights and on ``parts``."""
    weights = core.ranks[0].weights.weights.identity
    seed = "\x00".join(map(str, (core.config.seed, weights, *parts))).encode()
    values: list[float] = []
    block = 0
    while len(values) < count:
        digest = blake2b(seed + block.to_bytes(4, "big"), digest_size=64).digest()
        values += [round(byte / 127.5 - 1.0, 6) for byte in digest]
        block += 1
    return values[:count]


def _texts(style: Style, value: Any) -> list[str]:
    try:
        return [decode(prompt) for prompt in completion_prompts(value)]
    except ValueError as error:
        raise Refusal(style.error(str(error))) from None


def _plain_usage(*texts: str) -> dict[str, int]:
    tokens = sum(len(encode(text)) for text in texts)
    return {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}


class Extras:
    """The routes, in one engine's style."""

    def __init__(self, style: Style) -> None:
        self._style = style

    # --- Tokenizing ------------------------------------------------------------------------------

    async def tokenize(self, call: Call) -> web.Response:
        """``/tokenize``: ``prompt`` or ``messages`` to ids."""
        body = call.object()
        try:
            if "messages" in body:
                generate = bool(body.get("add_generation_prompt", True))
                found: list[list[int]] = [render_chat(body["messages"], generate=generate)]
                single = True
            else:
                prompt = body.get("prompt")
                found = completion_prompts(prompt)
                single = isinstance(prompt, str)
        except ValueError as error:
            return self._style.error(str(error))
        counts = [len(tokens) for tokens in found]
        answer: dict[str, Any] = {
            "tokens": found[0] if single else found,
            "count": counts[0] if single else counts,
            "max_model_len": call.core.config.context_length,
        }
        if body.get("return_token_strs"):
            answer["token_strs"] = [decode([token]) for token in found[0]]
        return json_reply(answer)

    async def detokenize(self, call: Call) -> web.Response:
        """``/detokenize``: ids to text, under the member that each engine uses."""
        tokens = call.object().get("tokens")
        if not isinstance(tokens, list):
            return self._style.error("tokens must be a list")
        if tokens and isinstance(tokens[0], list):
            texts = [decode(one) for one in tokens]
            return json_reply({"text": texts, "prompt": texts})
        text = decode(tokens)
        return json_reply({"text": text, "prompt": text})

    # --- Embeddings and scores -------------------------------------------------------------------

    async def embeddings(self, call: Call) -> web.Response:
        """``/v1/embeddings``."""
        body = call.object()
        texts = _texts(self._style, body.get("input"))
        dimensions = body.get("dimensions") or _DIMENSIONS
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": fractions(call.core, "embed", text, count=int(dimensions)),
            }
            for index, text in enumerate(texts)
        ]
        return json_reply(
            {
                "object": "list",
                "data": data,
                "model": body.get("model") or call.core.model,
                "usage": _plain_usage(*texts),
            }
        )

    async def encode(self, call: Call) -> web.Response:
        """``/encode`` (SGLang): an embedding with ``meta_info``."""
        body = call.object()
        value = body.get("text") or body.get("input_ids")
        results = [
            {
                "embedding": fractions(call.core, "embed", text, count=_DIMENSIONS),
                "meta_info": {"id": uuid.uuid4().hex, "prompt_tokens": len(encode(text))},
            }
            for text in _texts(self._style, value)
        ]
        return json_reply(results if isinstance(body.get("text"), list) else results[0])

    async def classify(self, call: Call) -> web.Response:
        """``/classify`` and ``/v1/classify``."""
        body = call.object()
        texts = _texts(self._style, body.get("input") or body.get("text"))
        data: list[dict[str, Any]] = []
        for index, text in enumerate(texts):
            raw = fractions(call.core, "class", text, count=1)[0]
            positive = round((raw + 1) / 2, 6)
            label = "LABEL_1" if positive >= 0.5 else "LABEL_0"
            probabilities = [round(1 - positive, 6), positive]
            data.append({"index": index, "label": label, "probs": probabilities, "num_classes": 2})
        return json_reply(
            {
                "id": f"classify-{uuid.uuid4().hex}",
                "object": "list",
                "created": int(time.time()),
                "model": body.get("model") or call.core.model,
                "data": data,
                "usage": _plain_usage(*texts),
            }
        )

    async def score(self, call: Call) -> web.Response:
        """``/v1/score``: SGLang's query and items, vLLM's two texts."""
        body = call.object()
        if "items" in body or "query" in body:
            query = content_text(body.get("query"))
            items = _texts(self._style, body.get("items"))
            labels = body.get("label_token_ids") or [0, 1]
            scores: list[Any] = [
                [
                    (value + 1) / 2
                    for value in fractions(call.core, "score", query, item, count=len(labels))
                ]
                for item in items
            ]
            return json_reply(
                {
                    "scores": scores,
                    "model": body.get("model") or call.core.model,
                    "object": "scoring",
                    "usage": _plain_usage(query, *items),
                }
            )
        left = _texts(self._style, body.get("text_1"))
        right = _texts(self._style, body.get("text_2"))
        pairs = [(left[i % len(left)], text) for i, text in enumerate(right)]
        data = [
            {"index": index, "object": "score", "score": self._relevance(call.core, a, b)}
            for index, (a, b) in enumerate(pairs)
        ]
        return json_reply(
            {
                "id": f"score-{uuid.uuid4().hex}",
                "object": "list",
                "created": int(time.time()),
                "model": body.get("model") or call.core.model,
                "data": data,
                "usage": _plain_usage(*left, *right),
            }
        )

    async def rerank(self, call: Call) -> web.Response:
        """``/v1/rerank`` and vLLM's ``/rerank``."""
        body = call.object()
        query = content_text(body.get("query"))
        documents = _texts(self._style, body.get("documents"))
        ranked = sorted(
            (
                {"index": index, "score": self._relevance(call.core, query, text), "text": text}
                for index, text in enumerate(documents)
            ),
            key=lambda one: -float(one["score"]),
        )[: body.get("top_n")]
        return json_reply(self._ranked(call, body, ranked, _plain_usage(query, *documents)))

    def _ranked(
        self,
        call: Call,
        body: dict[str, Any],
        ranked: list[dict[str, Any]],
        tokens: dict[str, int],
    ) -> Any:
        if not self._style.wraps_rerank:
            return [
                {
                    "score": one["score"],
                    "document": one["text"] if body.get("return_documents", True) else None,
                    "index": one["index"],
                    "meta_info": {"id": "", "prompt_tokens": tokens["prompt_tokens"]},
                }
                for one in ranked
            ]
        return {
            "id": f"rerank-{uuid.uuid4().hex}",
            "model": body.get("model") or call.core.model,
            "usage": tokens,
            "results": [
                {
                    "index": one["index"],
                    "document": {"text": one["text"]},
                    "relevance_score": one["score"],
                }
                for one in ranked
            ],
        }

    def _relevance(self, core: EngineCore, query: str, text: str) -> float:
        return round((fractions(core, "rank", query, text, count=1)[0] + 1) / 2, 6)

    # --- Responses and messages ------------------------------------------------------------------

    def _job(self, call: Call, prompt: list[int], body: dict[str, Any], most: str) -> Job:
        try:
            room = max(1, call.core.config.context_length - len(prompt))
            sampling = parse_sampling(
                body,
                max_tokens=limit(body, most, default=room),
                min_tokens=0,
                seed_name="seed",
            )
            self._style.check_length(call.core, prompt, sampling)
        except ValueError as error:
            raise Refusal(self._style.error(str(error))) from None
        return Job(rid=uuid.uuid4().hex, prompt=prompt, sampling=sampling)

    async def responses(self, call: Call) -> web.StreamResponse:
        """``/v1/responses``: one message, buffered or as the main events of a stream."""
        body = call.object()
        wanted = body.get("input")
        try:
            messages = [{"role": "user", "content": wanted}] if isinstance(wanted, str) else wanted
            prompt = render_chat(messages)
        except ValueError as error:
            return self._style.error(str(error))
        job = self._job(call, prompt, body, "max_output_tokens")
        identity = f"resp_{job.rid}"

        def answer(sequence: Sequence | None) -> dict[str, Any]:
            text = "" if sequence is None else sequence.text()
            output = {
                "id": f"msg_{job.rid}",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": text, "annotations": []}],
            }
            counted = None
            if sequence is not None:
                counted = {
                    "input_tokens": len(sequence.prompt),
                    "input_tokens_details": {"cached_tokens": sequence.cached_tokens},
                    "output_tokens": len(sequence.output),
                    "output_tokens_details": {"reasoning_tokens": 0},
                    "total_tokens": sequence.context,
                }
            return {
                "id": identity,
                "object": "response",
                "created_at": int(time.time()),
                "model": body.get("model") or call.core.model,
                "status": "in_progress" if sequence is None else "completed",
                "output": [] if sequence is None else [output],
                "usage": counted,
            }

        if not body.get("stream"):
            (sequence,) = await run(call, [job], collector=Collector(1), core=call.core)
            return json_reply(answer(sequence))
        events = _Events(call, job)
        await events.open()
        events.send("response.created", response=answer(None))

        def delta(text: str) -> None:
            events.send("response.output_text.delta", item_id=f"msg_{job.rid}", delta=text)

        sequence = await events.run(delta)
        events.send("response.completed", response=answer(sequence))
        return await events.close()

    async def messages(self, call: Call) -> web.StreamResponse:
        """``/v1/messages``: the Anthropic shape, buffered or streamed."""
        body = call.object()
        try:
            system = content_text(body.get("system"))
            turns = body.get("messages") or []
            prompt = render_chat([{"role": "system", "content": system}, *turns])
        except (ValueError, TypeError) as error:
            return self._style.error(str(error))
        job = self._job(call, prompt, body, "max_tokens")
        reasons = {
            FinishKind.STOP: "end_turn",
            FinishKind.LENGTH: "max_tokens",
            FinishKind.ABORT: "refusal",
        }

        def message(sequence: Sequence | None) -> dict[str, Any]:
            ended = None if sequence is None else sequence.finish
            text = "" if sequence is None else sequence.text()
            return {
                "id": f"msg_{job.rid}",
                "type": "message",
                "role": "assistant",
                "model": body.get("model") or call.core.model,
                "content": [] if sequence is None else [{"type": "text", "text": text}],
                "stop_reason": None if ended is None else reasons[ended.kind],
                "stop_sequence": None,
                "usage": {
                    "input_tokens": len(prompt),
                    "output_tokens": 0 if sequence is None else len(sequence.output),
                },
            }

        if not body.get("stream"):
            (sequence,) = await run(call, [job], collector=Collector(1), core=call.core)
            return json_reply(message(sequence))
        events = _Events(call, job)
        await events.open()
        events.send("message_start", message=message(None))
        block = {"type": "text", "text": ""}
        events.send("content_block_start", index=0, content_block=block)

        def delta(text: str) -> None:
            piece = {"type": "text_delta", "text": text}
            events.send("content_block_delta", index=0, delta=piece)

        sequence = await events.run(delta)
        events.send("content_block_stop", index=0)
        whole = message(sequence)
        ending = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
        events.send("message_delta", delta=ending, usage=whole["usage"])
        events.send("message_stop")
        return await events.close()


class _Events:
    """A stream of typed events about one sequence."""

    def __init__(self, call: Call, job: Job) -> None:
        self._call = call
        self._job = job
        self._stream = EventStream(call.request)
        self._sent = 0

    async def open(self) -> None:
        await self._stream.open()

    def send(self, kind: str, **members: Any) -> None:
        self._stream.send_named(kind, {"type": kind, **members})

    async def run(self, delta: Callable[[str], None]) -> Sequence:
        def write(sequence: Sequence, final: bool) -> None:
            text = sequence.text(start=self._sent)
            self._sent = len(sequence.output)
            delta(text)

        emitter = Emitter(1, stream=self._stream, write=write)
        (sequence,) = await run(self._call, [self._job], collector=emitter, core=self._call.core)
        return sequence

    async def close(self) -> web.StreamResponse:
        return await self._stream.close()
