"""Which engine answers at a URL, and whether it can be steered.

The routes that tell the two apart change nothing and are answered while an engine is paused. Asked
first is SGLang, because of what must never be asked of it: its ``/health`` is a request for a token
(engines.md 0.6).
"""

import msgspec

from steersman.clock import Deadline
from steersman.engine import Runtime
from steersman_operator.engines.client import EngineClient, NoAnswer
from steersman_operator.engines.dialect import EngineDialect
from steersman_operator.engines.memory import Memory
from steersman_operator.engines.sglang import SglangDialect
from steersman_operator.engines.vllm import VllmDialect

UNSUPPORTED = (
    "it answers like neither SGLang nor vLLM over HTTP; gRPC and other engines are not supported"
)


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the software behind a URL."""

    runtime: Runtime = Runtime.UNKNOWN
    answered: bool = True
    """Whether anything answered; if not, ``runtime`` says nothing."""
    detail: str = ""
    """Why it is unknown: one clause."""


async def identify(client: EngineClient, *, deadline: Deadline) -> Identity:
    """Ask what it is: SGLang has ``/model_info`` (older: ``/get_model_info``), vLLM ``/version``.

    vLLM's keys guard neither, so that whoever wants one for the first is SGLang.
    """
    try:
        info = await client.get("/model_info", deadline=deadline)
        if info.status in (401, 403) or "model_path" in info.fields():
            return Identity(runtime=Runtime.SGLANG)
        version = await client.get("/version", deadline=deadline)
        if version.ok and isinstance(version.fields().get("version"), str):
            return Identity(runtime=Runtime.VLLM)
        info = await client.get("/get_model_info", deadline=deadline)
        if "model_path" in info.fields():
            return Identity(runtime=Runtime.SGLANG)
    except NoAnswer as error:
        if error.garbled:
            return Identity(detail=UNSUPPORTED)
        return Identity(answered=False, detail=str(error))
    return Identity(detail=UNSUPPORTED)


def dialect_for(
    runtime: Runtime, client: EngineClient, memory: Memory | None = None
) -> EngineDialect | None:
    """The dialect of an engine, with what is kept of it; ``None`` for an unknown one."""
    match runtime:
        case Runtime.SGLANG:
            return SglangDialect(client, memory)
        case Runtime.VLLM:
            return VllmDialect(client, memory)
        case Runtime.UNKNOWN:
            return None
