"""How SGLang 0.5.23 speaks the OpenAI API."""

import uuid
from typing import Any

from aiohttp import web

from steersman_sim.engine.call import Call
from steersman_sim.engine.core import EngineCore
from steersman_sim.engine.openai import Style, serve
from steersman_sim.engine.openai_shapes import CHAT, COMPLETION
from steersman_sim.engine.replies import Refusal, openai_error
from steersman_sim.engine.sequence import Finish, FinishKind, Sampling, Sequence
from steersman_sim.engine.sglang.core import SglangCore, core_of
from steersman_sim.engine.sglang.generate import check_length, checked_rank, version_fields


class SglangStyle(Style):
    """Errors, ids and members of SGLang."""

    def error(self, message: str) -> web.Response:
        """The OpenAI-style error of the ``/v1`` routes."""
        return openai_error(message)

    def check_model(self, core: EngineCore, body: dict[str, Any]) -> web.Response | None:
        """SGLang serves whatever model is named."""
        return None

    def request_id(self, call: Call, body: dict[str, Any], *, prefix: str) -> str:
        """The body's ``rid``, else a fresh one."""
        rid = body.get("rid")
        return rid if isinstance(rid, str) and rid else uuid.uuid4().hex

    def rank(self, call: Call, body: dict[str, Any]) -> int | None:
        """The header wins over the body; one that is no integer is a 400."""
        header = call.header("X-Data-Parallel-Rank")
        wanted: Any = body.get("routed_dp_rank", body.get("data_parallel_rank"))
        if header is not None:
            try:
                wanted = int(header)
            except ValueError:
                raise ValueError(f"Invalid X-Data-Parallel-Rank header: {header!r}") from None
        if wanted is not None and type(wanted) is not int:
            raise ValueError("routed_dp_rank must be an integer")
        return checked_rank(core_of(call), wanted)

    def choice(self, sequence: Sequence, finish: Finish) -> dict[str, Any]:
        """What stopped it."""
        return {"matched_stop": finish.matched if finish.kind is FinishKind.STOP else None}

    def extend(self, core: EngineCore, answer: dict[str, Any], sequences: list[Sequence]) -> None:
        """The versions of the first choice; a stream has no such member (SGLang 0.5.23)."""
        assert isinstance(core, SglangCore)
        answer["metadata"] = version_fields(core, sequences[0])

    def check_length(self, core: EngineCore, prompt: list[int], sampling: Sampling) -> None:
        """Refuse what does not fit into the context."""
        assert isinstance(core, SglangCore)
        check_length(core, prompt, sampling)


STYLE = SglangStyle()


async def chat_completions(call: Call) -> web.StreamResponse:
    """``/v1/chat/completions``."""
    _check_content_type(call)
    return await serve(call, style=STYLE, api=CHAT)


async def completions(call: Call) -> web.StreamResponse:
    """``/v1/completions``."""
    _check_content_type(call)
    return await serve(call, style=STYLE, api=COMPLETION)


def _check_content_type(call: Call) -> None:
    kind = (call.header("Content-Type") or "").partition(";")[0].strip().lower()
    if kind != "application/json":
        message = "Unsupported Media Type: Only 'application/json' is allowed"
        raise Refusal(openai_error(message))
