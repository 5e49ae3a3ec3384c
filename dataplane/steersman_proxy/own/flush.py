"""``/flush_cache``: empty the prefix caches of all engines.

Trainers poll this until it says 200, and read 400 as "still busy".
"""

from steersman.engine import Runtime
from steersman.errors import CacheBusy, NoAvailableEngine, UpstreamError
from steersman_proxy.exchange.messages import RequestHead
from steersman_proxy.own.answer import OwnAnswer, error_answer, json_answer
from steersman_proxy.own.asking import EngineAnswer, EngineAsker
from steersman_proxy.own.fanout import Refused, fan_out
from steersman_proxy.own.pools import query_value, query_without
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.view import PoolView

TIMEOUT = 30.0
"""Seconds beyond the ``timeout`` that the client gives SGLang to become idle."""

MAX_WAIT = 600.0

Verdict = tuple[bool, int, str]
"""Whether the cache was flushed, the engine's status and its words."""


async def flush(asker: EngineAsker, pool: PoolView, head: RequestHead) -> OwnAnswer:
    """Flush every engine of the pool with an open gate that is awake.

    200 if all did; 502 if one could not be asked or failed; else 400 if one is busy; 503 if there
    is none to ask. Engines that were skipped are listed: their caches are as they were.
    """
    query = query_without(head, "model")
    timeout = TIMEOUT + _wait(query_value(head, "timeout"))

    async def ask(engine: Engine) -> Verdict:
        return await _flush_one(asker, engine, method=head.method, query=query, timeout=timeout)

    result = await fan_out(pool.engines, ask)
    content = {
        "results": [
            {"engine": e.id, "url": e.url, "flushed": flushed, "status": status, "message": text}
            for e, (flushed, status, text) in result.answered
        ],
        "failed": result.failed,
        "skipped": result.skipped,
    }
    if result.failed:
        message = f"{len(result.failed)} engines of pool {pool.name} did not flush"
        return error_answer(UpstreamError(message), **content)
    busy = sum(not flushed for _, (flushed, _, _) in result.answered)
    if busy:
        message = f"{busy} engines of pool {pool.name} are busy and kept their caches"
        return error_answer(CacheBusy(message), **content)
    if not result.answered:
        message = f"no engine of pool {pool.name} may be asked now"
        return error_answer(NoAvailableEngine(message), **content)
    return json_answer(content)


def _wait(text: str | None) -> float:
    try:
        return min(MAX_WAIT, max(0.0, float(text or 0)))
    except ValueError:
        return 0.0  # The engine will say what it thinks of it.


async def _flush_one(
    asker: EngineAsker, engine: Engine, *, method: str, query: str, timeout: float
) -> Verdict:
    """One engine's verdict.

    :raises Refused: if it is neither "done" nor "busy".
    """
    runtime = engine.row.runtime
    if runtime is not Runtime.VLLM:
        target = f"/flush_cache{query}"
        answer = await asker.ask(engine, method=method, target=target, timeout=timeout)
        if answer.status != 404 or runtime is Runtime.SGLANG:
            return _verdict(answer, flushed=answer.ok)
    answer = await asker.ask(engine, method="POST", target="/reset_prefix_cache", timeout=timeout)
    if answer.status == 404:
        raise Refused("/reset_prefix_cache needs VLLM_SERVER_DEV_MODE=1", status=404)
    content = answer.json()
    # vLLM refuses with 200 and success: false; older builds answer an empty 200 when they did it.
    refused = isinstance(content, dict) and content.get("success") is False
    return _verdict(answer, flushed=answer.ok and not refused)


def _verdict(answer: EngineAnswer, *, flushed: bool) -> Verdict:
    if not answer.ok and answer.status != 400:
        raise Refused(f"the engine answered {answer.status}", status=answer.status)
    return flushed, answer.status, answer.body[:500].decode("utf-8", "replace")
