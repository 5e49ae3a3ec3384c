"""``/abort_request`` and ``/abort_requests``: stop requests on whichever engine has them.

Nobody keeps book of which engine has which request, so every engine is told; one that does not know
the request answers 200 as well. SGLang takes an id as the *beginning* of ids: ``a`` stops ``ab``.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from steersman.engine import Runtime
from steersman.errors import InvalidBody, InvalidRequest, NoAvailableEngine, UpstreamError
from steersman_proxy.own.answer import OwnAnswer, error_answer, json_answer
from steersman_proxy.own.asking import EngineAnswer, EngineAsker
from steersman_proxy.own.fanout import Refused, fan_out
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.view import PoolView

TIMEOUT = 30.0

MAX_IDS = 4096
"""Requests that one call may name."""


class Abort(msgspec.Struct, frozen=True):
    """What to stop."""

    ids: tuple[str, ...] = ()
    everything: bool = False
    prefix: str | None = None
    """An extension of some SGLang builds; passed on as it came."""
    raw: bytes = b""
    """The body as it came."""
    as_came: bool = False
    """Whether an SGLang engine may get ``raw``."""
    model: str | None = None


def read_abort(path: str, body: Sequence[bytes]) -> Abort:
    """Read a body of SGLang's form (``rid``, ``abort_all``) or of vLLM's (``request_ids``).

    vLLM's route without ``request_ids`` means all requests.

    :raises InvalidBody: if it is not a JSON object with such members.
    :raises InvalidRequest: if it names no request.
    """
    raw = b"".join(body)
    try:
        content = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise InvalidBody('an abort takes a JSON object, such as {"rid": "..."}')
    model = content.get("model")
    if model is not None and not isinstance(model, str):
        raise InvalidBody("`model` must be a text")
    everything = content.get("abort_all") is True
    prefix = content.get("prefix")
    if prefix is not None and not isinstance(prefix, str):
        raise InvalidBody("`prefix` must be a text")
    ids = _ids(content)
    if path == "/abort_requests" and not content.keys() & {"rid", "request_ids", "prefix"}:
        everything = everything or "abort_all" not in content
    if not (ids or everything or prefix):
        raise InvalidRequest("the body names no request; give `rid`, `request_ids` or `abort_all`")
    as_came = isinstance(content.get("rid", ""), str) and "request_ids" not in content
    as_came = as_came and (bool(ids) or bool(prefix) or "abort_all" in content)
    return Abort(ids, everything, prefix, raw, as_came, model)


def _ids(content: dict[str, Any]) -> tuple[str, ...]:
    found: list[str] = []
    for name in ("rid", "request_ids"):
        value = content.get(name)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(item, str) for item in values):
            raise InvalidBody(f"`{name}` must be a text or a list of texts")
        found += filter(None, values)
    if len(found) > MAX_IDS:
        raise InvalidRequest(f"one call may name at most {MAX_IDS} requests")
    return tuple(dict.fromkeys(found))


async def abort(asker: EngineAsker, pool: PoolView, request: Abort) -> OwnAnswer:
    """Tell every engine of the pool with an open gate that is awake; 200 if any accepted."""

    async def ask(engine: Engine) -> int:
        return await _abort_on(asker, engine, request)

    result = await fan_out(pool.engines, ask)
    content = {
        "results": [
            {"engine": engine.id, "url": engine.url, "status": status}
            for engine, status in result.answered
        ],
        "failed": result.failed,
        "skipped": result.skipped,
    }
    if result.answered:
        return json_answer(content)
    if result.failed:
        message = f"no engine of pool {pool.name} accepted the abort"
        return error_answer(UpstreamError(message), **content)
    message = f"no engine of pool {pool.name} may be asked now"
    return error_answer(NoAvailableEngine(message), **content)


async def abort_one(asker: EngineAsker, engine: Engine, rid: str) -> None:
    """Tell one engine that nobody waits for a request any more; ``rid`` is one that we made.

    :raises Refused, NotAsked, AskFailed: if it could not be told; its connection is closed anyway.
    """
    raw = msgspec.json.encode({"rid": rid})
    await _abort_on(asker, engine, Abort(ids=(rid,), raw=raw, as_came=True))


async def _abort_on(asker: EngineAsker, engine: Engine, request: Abort) -> int:
    """The status of an engine that accepted.

    :raises Refused: if it did not.
    """
    runtime = engine.row.runtime
    if runtime is Runtime.VLLM:
        answer = await _abort_on_vllm(asker, engine, request)
    else:
        answer = await _abort_on_sglang(asker, engine, request)
        if runtime is Runtime.UNKNOWN and answer.status == 404:
            answer = await _abort_on_vllm(asker, engine, request)
    if not answer.ok:
        raise Refused(f"the engine answered {answer.status}", status=answer.status)
    return answer.status


async def _abort_on_sglang(asker: EngineAsker, engine: Engine, request: Abort) -> EngineAnswer:
    if request.as_came:
        bodies = [request.raw]
    elif request.everything:
        bodies = [msgspec.json.encode({"rid": "", "abort_all": True})]
    else:
        bodies = [msgspec.json.encode({"rid": rid}) for rid in request.ids]
    answer = EngineAnswer(200, b"")
    for body in bodies:
        answer = await _post(asker, engine, "/abort_request", body)
        if not answer.ok:
            break
    return answer


async def _abort_on_vllm(asker: EngineAsker, engine: Engine, request: Abort) -> EngineAnswer:
    if request.everything:
        answer = await _post(asker, engine, "/abort_requests", b"{}")
        if answer.status == 404:
            raise Refused("abort_all needs VLLM_SERVER_DEV_MODE=1", status=404)
        return answer
    if not request.ids:
        raise Refused("vLLM cannot abort by prefix", status=400)
    body = msgspec.json.encode({"request_ids": request.ids})
    answer = await _post(asker, engine, "/inference/v1/abort_requests", body)
    if answer.status in (403, 404, 405):  # a route that this build or its flags do not have
        answer = await _post(asker, engine, "/abort_requests", body)
    return answer


async def _post(asker: EngineAsker, engine: Engine, target: str, body: bytes) -> EngineAnswer:
    return await asker.ask(engine, method="POST", target=target, body=body, timeout=TIMEOUT)
