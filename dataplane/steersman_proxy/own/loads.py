"""``/v1/loads``: the load of all engines, in the shape of SGLang's answer for one.

``loads`` has one row for each rank of each engine. A row is the engine's own, with ``engine``,
``url`` and ``pool`` added, so that whoever reads SGLang's rows can read these. vLLM has no such
route; its rows are made from its metrics. ``engines`` adds what only this proxy knows.
"""

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from steersman.engine import Runtime
from steersman.errors import InvalidRequest, UpstreamError
from steersman_proxy.exchange.messages import RequestHead
from steersman_proxy.own.answer import OwnAnswer, error_answer, json_answer
from steersman_proxy.own.asking import EngineAnswer, EngineAsker
from steersman_proxy.own.fanout import Refused, fan_out
from steersman_proxy.own.pools import query_value, query_without
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.view import PoolView

TIMEOUT = 10.0

Rows = list[dict[str, Any]]


async def loads(asker: EngineAsker, pools: Sequence[PoolView], head: RequestHead) -> OwnAnswer:
    """Ask every engine with an open gate that is awake, and put their rows together.

    502 only if none of several answered: rows of some engines are better than none.
    """
    if query_value(head, "format") not in (None, "json"):
        raise InvalidRequest("only format=json is offered here; scrape the engines for the other")
    query = query_without(head, "model", "format")
    engines = [engine for pool in pools for engine in pool.engines]
    # Read before our own questions count.
    in_flight = {engine: engine.load.requests for engine in engines}

    async def ask(engine: Engine) -> Rows:
        return await _rows(asker, engine, query=query)

    result = await fan_out(engines, ask)
    skipped = {entry["engine"] for entry in result.skipped}
    content: dict[str, Any] = {
        "timestamp": datetime.now(UTC).isoformat(),
        "loads": [
            row | {"engine": engine.id, "url": engine.url, "pool": engine.row.pool}
            for engine, rows in result.answered
            for row in rows
        ],
        "engines": [
            {"engine": e.id, "url": e.url, "pool": e.row.pool, "in_flight": in_flight[e]}
            for e in engines
            if e.id not in skipped
        ],
        "failed": result.failed,
        "skipped": result.skipped,
    }
    if result.failed and not result.answered:
        return error_answer(UpstreamError("no engine told its load"), **content)
    return json_answer(content)


async def _rows(asker: EngineAsker, engine: Engine, *, query: str) -> Rows:
    """One engine's rows.

    :raises Refused: if its answer has none.
    """
    if engine.row.runtime is not Runtime.VLLM:
        answer = await asker.ask(engine, target=f"/v1/loads{query}", timeout=TIMEOUT)
        if answer.status == 404:  # an older SGLang, with its older rows
            answer = await asker.ask(engine, target="/get_load", timeout=TIMEOUT)
        if answer.status != 404 or engine.row.runtime is Runtime.SGLANG:
            return _sglang_rows(answer)
    answer = await asker.ask(engine, target="/metrics", timeout=TIMEOUT)
    rows = vllm_rows(answer.body.decode("utf-8", "replace")) if answer.ok else []
    if rows:
        return rows
    answer = await asker.ask(engine, target="/load", timeout=TIMEOUT)
    content = answer.json()
    if not answer.ok or not isinstance(content, dict) or "server_load" not in content:
        raise Refused("the engine has no load to tell", status=answer.status)
    # 0 unless the engine was started with --enable-server-load-tracking; `engines` has our count.
    return [{"timestamp": time.time(), "dp_rank": 0, "num_running_reqs": content["server_load"]}]


def _sglang_rows(answer: EngineAnswer) -> Rows:
    content = answer.json()
    if isinstance(content, dict):
        content = content.get("loads")
    if not answer.ok or not isinstance(content, list):
        raise Refused("the engine's answer has no loads", status=answer.status)
    return [row for row in content if isinstance(row, dict)]


_SAMPLE = re.compile(
    r"^vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc)\{([^}]*)\} (\S+)",
    re.MULTILINE,
)
_ENGINE = re.compile(r'engine="(\d+)"')
_MEMBERS = {
    "num_requests_running": "num_running_reqs",
    "num_requests_waiting": "num_waiting_reqs",
    "kv_cache_usage_perc": "token_usage",
}


def vllm_rows(metrics: str) -> Rows:
    """Rows in SGLang's words from vLLM's ``/metrics``, one for each data-parallel engine."""
    by_rank: dict[int, dict[str, Any]] = {}
    now = time.time()
    for name, labels, text in _SAMPLE.findall(metrics):
        rank = _ENGINE.search(labels)
        number = int(rank[1]) if rank is not None else 0
        row = by_rank.setdefault(number, {"timestamp": now, "dp_rank": number})
        value = float(text)
        row[_MEMBERS[name]] = value if name == "kv_cache_usage_perc" else int(value)
    return [by_rank[rank] for rank in sorted(by_rank)]
