"""Embeddings, scores, reranks, classification and tokenizing.

Answered sensibly, so that a proxy in front has something to forward; nothing here is scheduled.
"""

import time
import uuid
from hashlib import blake2b
from typing import Any

from aiohttp import web

from steersman_sim.engine.call import Call
from steersman_sim.engine.chat import completion_prompts, content_text, render_chat
from steersman_sim.engine.core import EngineCore
from steersman_sim.engine.openai import Style
from steersman_sim.engine.replies import Refusal, json_reply
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
        scores = [self._relevance(call.core, query, text) for text in documents]
        order = sorted(range(len(documents)), key=lambda index: -scores[index])
        ranked: list[dict[str, Any]] = [
            {"index": index, "score": scores[index], "text": documents[index]} for index in order
        ][: body.get("top_n")]
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
