"""Finding out what an engine is from its own answers, without I/O.

:func:`identify` is a conversation: it yields paths to GET, is sent the replies, and returns a
:class:`Finding`. Only routes that cost the engine nothing are asked. SGLang's ``/health`` is not
one of them: it runs a request, and a paused engine that does not finish it in time reports itself
as unhealthy from then on.
"""

from collections.abc import Generator
from typing import Any

import msgspec

from steersman.engine import Role, Runtime
from steersman.versions import reported_version


class Reply(msgspec.Struct, frozen=True):
    """The answer to one GET. ``json`` is ``None`` if the body is not JSON."""

    status: int
    json: Any = None


class NotIdentified(Exception):
    """Why an engine could not be recognised, in a few words for the person who asked."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine said of itself."""

    runtime: Runtime
    models: tuple[str, ...]
    """The names that it serves its model under."""
    version: str | None = None
    """Its weight version; ``None`` if it has none, or keeps it to itself."""
    role: Role = Role.PLAIN
    note: str = ""
    """What a person should know about this finding."""


Conversation = Generator[str, Reply, Finding]


def identify() -> Conversation:
    """Ask an engine what it is.

    :raises NotIdentified: if it is neither SGLang nor vLLM, wants a key or serves no model.
    """
    for path in ("/model_info", "/get_model_info"):
        reply = _allowed((yield path))
        if reply.status == 200 and isinstance(reply.json, dict) and "model_path" in reply.json:
            return (yield from _sglang(reply.json))
        if reply.status != 404:
            break
    reply = _allowed((yield "/version"))
    if reply.status == 200 and isinstance(reply.json, dict) and "version" in reply.json:
        return (yield from _vllm())
    raise NotIdentified(
        f"NotAnEngine: neither /model_info (SGLang) nor /version (vLLM) is answered as expected "
        f"(last status {reply.status})"
    )


def _sglang(info: dict[str, Any]) -> Conversation:
    name = info.get("served_model_name")
    models = (name,) if isinstance(name, str) and name else (yield from _served_models())
    mode = info.get("disaggregation_mode")
    role = Role(mode) if mode in {Role.PREFILL.value, Role.DECODE.value} else Role.PLAIN
    return Finding(
        runtime=Runtime.SGLANG,
        models=models,
        version=reported_version(info.get("weight_version")),
        role=role,
    )


def _vllm() -> Conversation:
    models = yield from _served_models()
    # Only there in vLLM's development mode; without it the engine has no versions.
    reply = _allowed((yield "/weight_info"))
    version, note = None, ""
    if reply.status == 200 and isinstance(reply.json, dict):
        version = reported_version(reply.json.get("weight_version"))
    elif reply.status == 404:
        note = "it does not tell its weight version (VLLM_SERVER_DEV_MODE is off)"
    else:
        note = f"it does not tell its weight version (/weight_info: status {reply.status})"
    return Finding(runtime=Runtime.VLLM, models=models, version=version, note=note)


def _served_models() -> Generator[str, Reply, tuple[str, ...]]:
    """The names of the base model; adapters on top of it have a parent."""
    reply = _allowed((yield "/v1/models"))
    listed = reply.json.get("data") if isinstance(reply.json, dict) else None
    names = [
        card["id"]
        for card in (listed if isinstance(listed, list) else [])
        if isinstance(card, dict) and isinstance(card.get("id"), str) and not card.get("parent")
    ]
    if reply.status != 200 or not names:
        raise NotIdentified(f"NoModel: /v1/models lists no model (status {reply.status})")
    return tuple(dict.fromkeys(names))


def _allowed(reply: Reply) -> Reply:
    if reply.status in {401, 403}:
        raise NotIdentified("AuthFailed: needs a key (--api-key-file)")
    return reply
