"""``/model_info`` and ``/server_info``: what one engine of a pool says of itself."""

from typing import Any

import msgspec

from steersman.engine import Role
from steersman.errors import NoAvailableEngine, UpstreamError
from steersman.policy import AnyVersion
from steersman_proxy.own.answer import OwnAnswer, json_answer
from steersman_proxy.own.asking import AskFailed, EngineAnswer, EngineAsker, NotAsked
from steersman_proxy.own.redaction import redact, redact_text
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.view import PoolView

TIMEOUT = 30.0
"""Seconds for one engine: SGLang asks its scheduler, which may be in a long step."""

MAX_ENGINES = 3
"""Engines that are tried before giving up."""

# SGLang renamed the routes; either end may be the older one.
_OTHER_SPELLING = {
    "/model_info": "/get_model_info",
    "/get_model_info": "/model_info",
    "/server_info": "/get_server_info",
    "/get_server_info": "/server_info",
}


async def engine_info(asker: EngineAsker, pool: PoolView, *, path: str, query: str) -> OwnAnswer:
    """Pass on one engine's answer, without secrets and with the pool's newest ``weight_version``.

    The engine is chosen here and not by the pool's policy: looking must not move the policy's
    rotation, and must not wait behind held requests.

    :raises NoAvailableEngine: if no engine may be asked.
    :raises UpstreamError: if those that were asked gave no answer.
    """
    eligible = pool.eligible(Role.PLAIN, AnyVersion())
    engines = sorted(eligible.engines, key=lambda engine: engine.load.requests)[:MAX_ENGINES]
    failure: str | None = None
    for engine in engines:
        try:
            answer = await _ask(asker, engine, path=path, query=query)
        except NotAsked:
            continue  # It closed while another one was asked.
        except AskFailed as error:
            failure = f"engine {engine.id}: {error}"
            continue
        if answer.status in (401, 403):
            # Passed on, it would tell the client that *its* key is wrong.
            failure = f"engine {engine.id} refuses the proxy's key; see engineKeys"
            continue
        return _pass_on(answer, engine=engine, pool=pool, key=asker.key(pool.name))
    if failure is not None:
        raise UpstreamError(failure)
    reasons = {reason.value: count for reason, count in eligible.filtered.items()}
    raise NoAvailableEngine(f"no engine of pool {pool.name} may be asked now", reasons=reasons)


async def _ask(asker: EngineAsker, engine: Engine, *, path: str, query: str) -> EngineAnswer:
    answer = await asker.ask(engine, target=path + query, timeout=TIMEOUT)
    if answer.status in (404, 405):
        other = _OTHER_SPELLING[path]
        second = await asker.ask(engine, target=other + query, timeout=TIMEOUT)
        if second.status not in (404, 405):
            return second
        if path.endswith("model_info"):
            return await _from_models(asker, engine, otherwise=answer)
    return answer


async def _from_models(
    asker: EngineAsker, engine: Engine, *, otherwise: EngineAnswer
) -> EngineAnswer:
    """The same, made of ``/v1/models``: vLLM has no ``/model_info``, and trainers read it."""
    models = await asker.ask(engine, target="/v1/models", timeout=TIMEOUT)
    content = models.json()
    entries = content.get("data") if models.ok and isinstance(content, dict) else None
    first = entries[0] if isinstance(entries, list) and entries else None
    if not isinstance(first, dict):
        return otherwise
    info = {
        "model_path": first.get("root") or first.get("id"),
        "served_model_name": first.get("id"),
        "max_model_len": first.get("max_model_len"),
        "is_generation": True,
        "weight_version": engine.version,
    }
    return EngineAnswer(200, msgspec.json.encode(info), "application/json")


def _pass_on(answer: EngineAnswer, *, engine: Engine, pool: PoolView, key: str | None) -> OwnAnswer:
    content: Any = answer.json()
    if content is None:
        text = redact_text(answer.body.decode("utf-8", "replace"), known=key)
        headers = ((b"content-type", (answer.content_type or "text/plain").encode("latin-1")),)
        return OwnAnswer(answer.status, headers, text.encode(), engine)
    content = redact(content, known=key)
    if answer.ok and isinstance(content, dict) and pool.fleet_max is not None:
        content["weight_version"] = pool.fleet_max
    return json_answer(content, status=answer.status, engine=engine)
