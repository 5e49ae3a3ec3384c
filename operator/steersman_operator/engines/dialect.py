"""What both dialects have in common: their interface, and how an answer becomes an outcome."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from steersman.clock import Clock, Deadline
from steersman.engine import Runtime
from steersman_operator.engines.answers import Reply
from steersman_operator.engines.client import EngineKeys, NoAnswer
from steersman_operator.fleet.facts import Observation, Outcome
from steersman_operator.fleet.spec import PauseMode, Weights

UNLABELLED = "default"
"""What both engines call weights that nobody named."""

BOOT_LENGTH = 16
"""Hexadecimal digits of a boot identity."""

FLUSH_SKIPPED = "FlushSkipped"
"""The word in the detail of a call that did what was wanted and could not empty the engine's cache:
what it computed with other weights may still be used."""

AFTERWARDS = 5.0
"""Seconds at least for the look whether a call has done what the engine says that it has."""


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

    async def refit(self, weights: Weights, *, mode: PauseMode, deadline: Deadline) -> CallResult:
        """Have an engine that is paused read all of its weights from disk, name them, and prove it.

        ``mode`` is how it was paused. OK is said of an engine that says that it has loaded them and
        shows the version, and has the checksum if one is wanted; REFUSED only if surely nothing was
        changed. The detail has :data:`FLUSH_SKIPPED` in it if its cache could not be emptied.
        """
        ...

    async def label_version(self, version: str, *, deadline: Deadline) -> CallResult:
        """Name the weights that it has, and read the name back. No request is ended for it."""
        ...

    async def invalidate_cache(self, *, deadline: Deadline) -> CallResult:
        """Forget what was computed for earlier prompts; refused while requests hold it."""
        ...

    async def checksum(self, *, deadline: Deadline) -> str | None:
        """A digest of the weights in memory; ``None`` if the engine cannot tell."""
        ...

    async def begin(self, *, deadline: Deadline) -> CallResult:
        """Make ready for weights that a trainer is about to transfer."""
        ...

    async def commit(self, version: str, *, deadline: Deadline) -> CallResult:
        """End what :meth:`begin` has begun, and name the weights that have arrived."""
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


def once_changed(result: CallResult, *, done: str) -> CallResult:
    """How a call ended of which an earlier step has changed the engine: not with a refusal.

    ``done`` is a clause that says what was done before.
    """
    if result.ok:
        return result
    outcome = Outcome.UNKNOWN if result.outcome is Outcome.REFUSED else result.outcome
    return CallResult(outcome=outcome, http=result.http, detail=f"{done}, but {result.detail}")


def flush_skipped(why: str) -> CallResult:
    """It was done, and the cache still has what was computed before."""
    return CallResult(outcome=Outcome.OK, http=200, detail=f"{FLUSH_SKIPPED}: {why}")


def at_least(deadline: Deadline, seconds: float, *, clock: Clock) -> Deadline:
    """The deadline, or ``seconds`` from now if that is later."""
    return max(deadline, Deadline.after(clock, seconds), key=lambda one: one.at)


def label(version: object) -> str | None:
    """A weight version as an engine reports it; ``None`` if nobody named the weights."""
    return version if isinstance(version, str) and version not in ("", UNLABELLED) else None
