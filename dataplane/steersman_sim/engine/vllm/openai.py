"""How vLLM 0.32 speaks the OpenAI API. Its answers carry no weight version."""

import uuid
from typing import Any

from aiohttp import web

from steersman_sim.engine.call import Call
from steersman_sim.engine.core import EngineCore
from steersman_sim.engine.openai import Style, serve
from steersman_sim.engine.openai_shapes import CHAT, COMPLETION
from steersman_sim.engine.replies import vllm_error
from steersman_sim.engine.sequence import Finish, Sampling, Sequence
from steersman_sim.engine.tokens import EOS


def asked_rank(call: Call) -> int | None:
    """``X-data-parallel-rank``; a bad one is ignored."""
    header = call.header("X-data-parallel-rank")
    if header is None or not header.isdigit():
        return None
    rank = int(header)
    return rank if rank < call.core.config.dp_size else None


def stop_reason(finish: Finish) -> int | str | None:
    """What stopped a sequence; EOS is the unspoken case."""
    return None if finish.matched == EOS else finish.matched


class VllmStyle(Style):
    """Errors, ids and members of vLLM."""

    wraps_rerank = True

    def error(self, message: str) -> web.Response:
        """The error object."""
        return vllm_error(message)

    def check_model(self, core: EngineCore, body: dict[str, Any]) -> web.Response | None:
        """An unknown model is a 404."""
        model = body.get("model")
        if model is None or model == core.model:
            return None
        return vllm_error(
            f"The model `{model}` does not exist.", status=404, kind="NotFoundError", param="model"
        )

    def request_id(self, call: Call, body: dict[str, Any], *, prefix: str) -> str:
        """``prefix-<X-Request-Id, the body's request_id, or a fresh one>``."""
        stem = call.header("X-Request-Id") or body.get("request_id") or uuid.uuid4().hex
        return f"{prefix}-{stem}"

    def rank(self, call: Call, body: dict[str, Any]) -> int | None:
        """The header; a bad one is ignored."""
        return asked_rank(call)

    def choice(self, sequence: Sequence, finish: Finish) -> dict[str, Any]:
        """What stopped it."""
        return {"stop_reason": stop_reason(finish)}

    def extend(self, core: EngineCore, answer: dict[str, Any], sequences: list[Sequence]) -> None:
        """The members that are always there."""
        answer["prompt_logprobs"] = None
        answer["kv_transfer_params"] = None

    def check_length(self, core: EngineCore, prompt: list[int], sampling: Sampling) -> None:
        """Refuse what does not fit into the context."""
        longest = core.config.context_length
        if len(prompt) + max(1, sampling.max_tokens) > longest:
            raise ValueError(
                f"This model's maximum context length is {longest} tokens. However, you requested "
                f"{sampling.max_tokens} output tokens and your prompt contains {len(prompt)} "
                "tokens."
            )


STYLE = VllmStyle()


async def chat_completions(call: Call) -> web.StreamResponse:
    """``/v1/chat/completions``."""
    return await serve(call, style=STYLE, api=CHAT)


async def completions(call: Call) -> web.StreamResponse:
    """``/v1/completions``."""
    return await serve(call, style=STYLE, api=COMPLETION)
