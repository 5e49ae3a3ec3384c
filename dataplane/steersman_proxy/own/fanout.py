"""The same question to many engines."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar

import msgspec

from steersman_proxy.own.asking import AskFailed, NotAsked
from steersman_proxy.routing.engines import Engine

CONCURRENCY = 32
"""Engines asked at a time, for one request."""

T = TypeVar("T")


class Refused(Exception):
    """An engine answered, but not with what was wanted; ``status`` is its answer's."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class FanOut(msgspec.Struct, Generic[T], frozen=True):
    """What came of it, each list in the order of the engines."""

    answered: list[tuple[Engine, T]]
    failed: list[dict[str, Any]]
    """Entries with ``engine``, ``url``, ``error``, ``message`` and, of an answer, ``status``."""
    skipped: list[dict[str, Any]]
    """Engines that were not asked, with the ``reason``."""


async def fan_out(engines: Iterable[Engine], ask: Callable[[Engine], Awaitable[T]]) -> FanOut[T]:
    """Call ``ask`` for each engine, :data:`CONCURRENCY` at a time, and wait for all.

    ``ask`` may raise :class:`NotAsked`, :class:`AskFailed` and :class:`Refused`. If the caller is
    cancelled, because its client has left, so are the questions.
    """
    slots = asyncio.Semaphore(CONCURRENCY)

    async def one(engine: Engine) -> T | AskFailed | NotAsked | Refused:
        async with slots:
            try:
                return await ask(engine)
            except (AskFailed, NotAsked, Refused) as error:
                return error

    async with asyncio.TaskGroup() as group:
        tasks = [(engine, group.create_task(one(engine))) for engine in engines]
    answered: list[tuple[Engine, T]] = []
    failed: list[dict[str, Any]] = []
    skipped: list[dict[str, Any]] = []
    for engine, task in tasks:
        outcome = task.result()
        entry: dict[str, Any] = {"engine": engine.id, "url": engine.url}
        match outcome:
            case NotAsked():
                skipped.append(entry | {"reason": str(outcome)})
            case AskFailed():
                error = "upstream_timeout" if outcome.timeout else "upstream_unreachable"
                failed.append(entry | {"error": error, "message": str(outcome)})
            case Refused():
                entry |= {"error": "upstream_error", "message": str(outcome)}
                failed.append(entry | {"status": outcome.status})
            case _:
                answered.append((engine, outcome))
    return FanOut(answered, failed, skipped)
