"""What both dialects have in common: their interface, and how an answer becomes an outcome."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from steersman.clock import Deadline
from steersman.engine import Runtime
from steersman_operator.engines.client import EngineKeys, NoAnswer, Reply
from steersman_operator.fleet.facts import Observation, Outcome
from steersman_operator.fleet.spec import PauseMode

UNLABELLED = "default"
"""What both engines call weights that nobody named."""

BOOT_LENGTH = 16
"""Hexadecimal digits of a boot identity."""


class CallResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a call to an engine ended."""

    outcome: Outcome
    http: int | None = None
    """The status that decided; ``None`` if there was no answer, or nothing was asked."""
    detail: str = ""
    """One sentence without keys; empty if there is nothing to say."""

    @property
    def ok(self) -> bool:
        """Whether the engine did it."""
        return self.outcome is Outcome.OK


class EngineDialect(Protocol):
    """The control routes of one kind of engine.

    Nothing raises for an engine's fault. Nothing is sent a second time, except where the dialect
    says that it asks again whether the engine is idle.
    """

    @property
    def runtime(self) -> Runtime:
        """Which engines it is for."""
        ...

    async def alive(self, *, deadline: Deadline) -> bool:
        """Whether the process answers and calls itself healthy, paused or not."""
        ...

    async def ready(self, *, deadline: Deadline) -> bool:
        """Whether it takes new requests and runs them."""
        ...

    async def observe(self, *, deadline: Deadline) -> Observation:
        """What the engine says of itself."""
        ...

    async def load(self, *, deadline: Deadline) -> int | None:
        """How many requests run or wait in it; ``None`` if that cannot be told."""
        ...

    async def boot(self, *, deadline: Deadline) -> str | None:
        """The identity of the running process, with the runtime's prefix; ``None`` if unknown."""
        ...

    async def pause(self, mode: PauseMode, *, deadline: Deadline) -> CallResult:
        """Stop generating; requests that arrive from now on wait."""
        ...

    async def resume(self, *, deadline: Deadline) -> CallResult:
        """Generate again; does nothing to an engine that is not paused."""
        ...

    async def sleep(
        self, tags: Sequence[str], *, mode: PauseMode, deadline: Deadline
    ) -> CallResult:
        """Give up memory, once nothing runs. ``mode`` is for what has to be paused for it."""
        ...

    async def wake(self, tags: Sequence[str], *, deadline: Deadline) -> CallResult:
        """Take memory back: exactly what these tags name, all of which must be released."""
        ...

    async def abort(self, ids: Sequence[str] | None = None, *, deadline: Deadline) -> CallResult:
        """End requests with what they have: those with these ids, or all (``None``)."""
        ...


OK = CallResult(outcome=Outcome.OK, http=200)


def refused(detail: str, *, http: int | None = None) -> CallResult:
    """Nothing was changed."""
    return CallResult(outcome=Outcome.REFUSED, http=http, detail=detail)


def failed(detail: str, *, http: int | None = None) -> CallResult:
    """What the engine is now has to be looked at."""
    return CallResult(outcome=Outcome.FAILED, http=http, detail=detail)


def unknown(detail: str, *, http: int | None = None) -> CallResult:
    """It may have happened, may happen yet, or not."""
    return CallResult(outcome=Outcome.UNKNOWN, http=http, detail=detail)


def unanswered(error: NoAnswer) -> CallResult:
    """The outcome of a call without an answer: refused if it surely was not sent."""
    if error.sent:
        return unknown(f"{error}; whether it was carried out is unknown")
    return refused(f"{error}; nothing was sent")


def verdict(reply: Reply, *, what: str, keys: EngineKeys) -> CallResult:
    """The outcome of a changing call by its status alone.

    A 4xx is a no before anything was done. 408, 502 and 504 come from something in between, behind
    which the call may still be running.
    """
    status = reply.status
    words = keys.blank(reply.words())
    said = f": {words}" if words else ""
    if 200 <= status < 300:
        return OK
    if status in (401, 403):
        return refused(
            f"the engine does not accept the key for {what}; "
            "set its admin key, or its only key if it has one",
            http=status,
        )
    if status in (404, 405):
        return refused(f"the engine has no route for {what}", http=status)
    if status in (408, 502, 504):
        return unknown(f"{what} was answered {status} on the way to the engine", http=status)
    if status < 500:
        return refused(f"{what} was answered {status}{said}", http=status)
    return failed(f"{what} was answered {status}{said}", http=status)


def label(version: object) -> str | None:
    """A weight version as an engine reports it; ``None`` if nobody named the weights."""
    return version if isinstance(version, str) and version not in ("", UNLABELLED) else None
