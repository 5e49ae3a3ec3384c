"""How many requests an SGLang engine has, as far as its snapshots can be believed.

``/v1/loads`` (0.5.23) shows what each scheduler last published: at every prefill batch, every few
decode steps, and in every turn of its loop while it is idle. A number above zero is taken as it is.
A zero means something only if the scheduler said it after it was asked, because a request whose
first prefill is still running is in no snapshot.
"""

from datetime import datetime
from typing import Any

from steersman.clock import Deadline
from steersman_operator.engines.client import EngineClient, NoAnswer

FRESH = 0.1
"""Seconds: a snapshot of this age was published by a scheduler that is idle right now."""


class _Snapshots:
    """One answer of ``/v1/loads``."""

    def __init__(self, fields: dict[str, Any]) -> None:
        loads = fields.get("loads")
        ranks = loads if isinstance(loads, list) else []
        self.ranks = [rank for rank in ranks if isinstance(rank, dict)]
        self.now = _moment(fields.get("timestamp"))
        """The engine's wall clock when it answered."""

    @property
    def busy(self) -> int | None:
        """Running and waiting, of all ranks; ``None`` if it is not said of every rank."""
        counts = [
            rank.get(name)
            for rank in self.ranks
            for name in ("num_running_reqs", "num_waiting_reqs")
        ]
        return _sum(counts)

    def since(self, moment: float) -> bool:
        """Whether every rank published it after ``moment``. One that never did has timestamp 0."""
        stamps = [_moment(rank.get("timestamp")) for rank in self.ranks]
        return bool(stamps) and all(stamp is not None and stamp >= moment for stamp in stamps)


async def sglang_load(
    client: EngineClient, *, paused: bool | None, deadline: Deadline
) -> int | None:
    """Running and waiting requests; ``None`` if it cannot be told.

    A scheduler that is paused in place or retracted publishes nothing any more, but it answers
    whether it could flush: if it could, nothing runs (requests that wait behind the pause do not
    count). That empties its prefix cache, which a paused engine that is asked for its load is about
    to lose anyway. With several ranks the flush speaks for the first alone, and is not asked.
    """
    try:
        seen = await _snapshots(client, deadline=deadline)
        if seen is None:
            return await _older(client, deadline=deadline)
        if seen.busy is None:
            return None
        if not seen.busy and seen.now is not None and seen.since(seen.now - FRESH):
            return 0
        if paused:
            if len(seen.ranks) > 1:
                return seen.busy or None
            flush = await client.post("/flush_cache", query={"timeout": 0}, deadline=deadline)
            return 0 if flush.ok else max(1, seen.busy)
        if seen.busy:
            return seen.busy
        return await _asked_again(client, seen, deadline=deadline)
    except NoAnswer:
        return None


async def _snapshots(client: EngineClient, *, deadline: Deadline) -> _Snapshots | None:
    """``None`` if the engine has no such route."""
    reply = await client.get("/v1/loads", query={"include": "core"}, deadline=deadline)
    if reply.status == 404:
        return None
    return _Snapshots(reply.fields() if reply.ok else {})


async def _asked_again(
    client: EngineClient, before: _Snapshots, *, deadline: Deadline
) -> int | None:
    """Zero, but long ago: a scheduler that dozes, or one deep in a prefill.

    ``/server_info`` is answered by the scheduler itself, between two of its steps, and wakes it.
    """
    if before.now is None:
        return None
    await client.get("/server_info", deadline=deadline)
    seen = await _snapshots(client, deadline=deadline)
    if seen is None or seen.busy is None:
        return None
    return seen.busy or (0 if seen.since(before.now) else None)


async def _older(client: EngineClient, *, deadline: Deadline) -> int | None:
    """``/get_load`` of engines before ``/v1/loads``: asked of each scheduler, so always true.

    ``num_reqs`` has the waiting ones in it.
    """
    reply = await client.get("/get_load", deadline=deadline)
    value = reply.value() if reply.ok else None
    ranks = value if isinstance(value, list) else [value]
    return _sum([rank.get("num_reqs") for rank in ranks if isinstance(rank, dict)])


def _sum(counts: list[Any]) -> int | None:
    """``None`` if there are none, or if one is no number."""
    numbers = [count for count in counts if isinstance(count, int)]
    return sum(numbers) if numbers and len(numbers) == len(counts) else None


def _moment(value: object) -> float | None:
    """Seconds on the engine's wall clock, from a number or an ISO 8601 text."""
    try:
        if isinstance(value, str):
            return datetime.fromisoformat(value).timestamp()
        if isinstance(value, int | float) and value > 0:
            return float(value)
    except (ValueError, OverflowError):
        pass
    return None
