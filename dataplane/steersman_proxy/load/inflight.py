"""Requests in flight: counted where they were chosen, given back exactly once.

A request is in flight from its selection until its exchange is closed. The count belongs to an
engine's identity (id and URL), not to a row of the table: it survives every table change, so an
engine that leaves and comes back finds its own count, and a newcomer at another URL starts at 0.
"""

from collections.abc import Callable

import msgspec

from steersman_proxy.load.breaker import Breaker, Judgement

_NEUTRAL = Judgement.NEUTRAL


class EngineLoad:
    """What this proxy has running on one engine."""

    __slots__ = ("on_release", "requests", "total")

    def __init__(self, *, on_release: Callable[[], None] | None = None) -> None:
        self.requests = 0
        """In flight now; the sum over all proxies is the operator's business."""
        self.total = 0
        """Ever selected since this identity became known."""
        self.on_release = on_release
        """Called after each release; the owner of the engine learns that there is room."""

    def __repr__(self) -> str:
        return f"EngineLoad(requests={self.requests}, total={self.total})"

    def take(self) -> "Guard":
        """Count one request in flight until the guard is released."""
        self.requests += 1
        self.total += 1
        return Guard(self)


class Guard(msgspec.Struct, eq=False):
    """One request in flight. It holds the very load that it incremented, and what it was admitted
    under by the engine's breaker.

    Whatever happens to tables and rows in the meantime, the release is counted where the take was.
    """

    load: EngineLoad | None
    breaker: Breaker | None = None
    """``None`` once the engine was judged, or if this request says nothing of it."""
    admission: int = 0
    """The breaker's generation at the selection."""

    @property
    def probe(self) -> bool:
        """Whether this request is the one that decides over a half-open breaker."""
        breaker = self.breaker
        return breaker is not None and breaker.probing and breaker.generation == self.admission

    def judge(self, judgement: Judgement) -> None:
        """Tell the breaker how the request ended; only the first time counts."""
        breaker = self.breaker
        if breaker is not None:
            self.breaker = None
            breaker.record(self.admission, judgement)

    @property
    def released(self) -> bool:
        """Whether the request is no longer counted."""
        return self.load is None

    def release(self) -> None:
        """Stop counting; further calls do nothing, so that every path out may call it.

        A request that was not judged by now says nothing of its engine; if it was the probe, the
        next request is.
        """
        load = self.load
        if load is None:
            return
        self.load = None
        load.requests -= 1
        try:
            self.judge(_NEUTRAL)
        finally:
            if load.on_release is not None:
                load.on_release()
