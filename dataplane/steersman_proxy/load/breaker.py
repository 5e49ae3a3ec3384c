"""The circuit breaker: an engine that fails again and again is left alone for a while, then tried.

An engine whose requests failed ``failures`` times in a row is *open*: nobody is sent there. After
``cooldown`` seconds it is *half-open*: exactly one request goes there and decides. If it succeeds the
breaker is *closed* again, if it fails the next ``cooldown`` begins; if nothing is learnt from it (the
client left, the engine was busy), the next request is the probe.

Every request carries the *generation* that it was admitted under. The generation moves on whenever
the breaker opens, is probed, or closes, so that only outcomes of the present one are looked at. Of a
hundred requests that were running when an engine died the first five open the breaker; the others
say the same thing later and would otherwise open it anew, or close it by an answer from before.

A breaker belongs to an engine's identity, not to a row of the table. It does no I/O and has no timer:
:class:`Cooldowns` knows the earliest moment at which time alone changes something, and whoever is
about to rely on a breaker calls :meth:`Cooldowns.expire` first.
"""

import heapq
from collections.abc import Callable
from enum import StrEnum
from itertools import count

from steersman.clock import Clock
from steersman.settings import BreakerSettings


class BreakerState(StrEnum):
    """What a breaker lets through."""

    CLOSED = "closed"
    """Everything."""
    OPEN = "open"
    """Nothing, until the cooldown is over."""
    HALF_OPEN = "half_open"
    """One request, the probe."""


class Judgement(StrEnum):
    """What a request that ended says of its engine."""

    SUCCESS = "success"
    FAILURE = "failure"
    NEUTRAL = "neutral"
    """Nothing: it ended for a reason that is not the engine's, or the engine was busy."""


_CLOSED = BreakerState.CLOSED
_HALF_OPEN = BreakerState.HALF_OPEN
_SUCCESS = Judgement.SUCCESS
_FAILURE = Judgement.FAILURE


class Breaker:
    """The breaker of one engine."""

    __slots__ = (
        "_cooldowns",
        "_ended",
        "blocked",
        "due",
        "failures",
        "generation",
        "on_change",
        "settings",
        "state",
        "successes",
        "transitions",
    )

    def __init__(
        self,
        cooldowns: "Cooldowns",
        *,
        settings: BreakerSettings | None = None,
    ) -> None:
        self.settings = settings or BreakerSettings()
        self.on_change: Callable[[BreakerState], None] | None = None
        """Called with the state from before, after each change of the state or of ``blocked``."""
        self.state = _CLOSED
        self.blocked = False
        """Whether no request may go to the engine: open, or the probe is on its way."""
        self.generation = 0
        """Of the requests that are admitted now."""
        self.due: float | None = None
        """When an open breaker may be probed, on the clock; ``None`` unless it is open."""
        self.failures = 0
        """In a row, of this generation."""
        self.successes = 0
        """In a row, of this generation."""
        self._ended = [0, 0, 0]
        self.transitions: dict[tuple[BreakerState, BreakerState], int] = {}
        """How often each change of state has happened."""
        self._cooldowns = cooldowns

    def __repr__(self) -> str:
        return f"Breaker({self.state.value}, generation={self.generation}, due={self.due})"

    @property
    def outcomes(self) -> dict[Judgement, int]:
        """All that were ever told, also those that came too late to count."""
        return dict(zip(Judgement, self._ended, strict=True))

    @property
    def probing(self) -> bool:
        """Whether the one probe of a half-open breaker is on its way."""
        return self.blocked and self.state is _HALF_OPEN

    @property
    def wait(self) -> float:
        """Seconds until the engine may be probed; 0 unless it is open."""
        return 0.0 if self.due is None else max(0.0, self.due - self._cooldowns.clock.now())

    def configure(self, settings: BreakerSettings) -> None:
        """Follow other settings from now on. A cooldown that runs keeps its end."""
        self.settings = settings
        if not settings.enabled:
            self.reset()

    def reset(self) -> None:
        """Close, and forget what was learnt: it was of another process, or does not count."""
        self.failures = self.successes = 0
        self.generation += 1
        if self.state is not _CLOSED:
            self._become(_CLOSED, blocked=False)

    def admit(self) -> int:
        """A request goes to the engine now; the generation that its outcome has to carry.

        Half-open this takes the probe's slot. Must not be called while :attr:`blocked`.
        """
        if self.state is _HALF_OPEN:
            self.generation += 1
            self._become(_HALF_OPEN, blocked=True)
        return self.generation

    def record(self, generation: int, judgement: Judgement) -> None:
        """A request that was admitted under ``generation`` has ended."""
        if not self.settings.enabled:
            return
        # A list, since looking a member of an enum up in a dictionary costs as much as all of this.
        self._ended[0 if judgement is _SUCCESS else 1 if judgement is _FAILURE else 2] += 1
        if generation != self.generation:
            return
        if judgement is _SUCCESS:
            self.failures = 0
            self.successes += 1
            if self.state is _HALF_OPEN:
                self._close()
        elif judgement is _FAILURE:
            self.successes = 0
            self.failures += 1
            if self.state is _HALF_OPEN or self.failures >= self.settings.failures:
                self._open()
        elif self.state is _HALF_OPEN:
            self.generation += 1
            self._become(_HALF_OPEN, blocked=False)

    def ripen(self) -> None:
        """The cooldown is over: the next request is the probe."""
        self._become(_HALF_OPEN, blocked=False)

    def _open(self) -> None:
        self.generation += 1
        self._become(BreakerState.OPEN, blocked=True)

    def _close(self) -> None:
        self.generation += 1
        self._become(_CLOSED, blocked=False)

    def _become(self, state: BreakerState, *, blocked: bool) -> None:
        before, self.state = self.state, state
        self.blocked = blocked
        self.due = (
            self._cooldowns.begin(self, self.settings.cooldown)
            if state is BreakerState.OPEN
            else None
        )
        if before is not state:
            change = (before, state)
            self.transitions[change] = self.transitions.get(change, 0) + 1
        if self.on_change is not None:
            self.on_change(before)


class Cooldowns:
    """All cooldowns that run, the first to end in front: time is compared with one number."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.next_due: float | None = None
        """When :meth:`expire` has something to do; ``None`` while no breaker is open."""
        self._heap: list[tuple[float, int, Breaker]] = []
        self._numbers = count()

    def begin(self, breaker: Breaker, seconds: float) -> float:
        """Let a cooldown run; when it ends."""
        due = self.clock.now() + seconds
        heapq.heappush(self._heap, (due, next(self._numbers), breaker))
        self.next_due = self._heap[0][0]
        return due

    def expire(self) -> None:
        """Let the breakers whose cooldown is over be probed."""
        now, heap = self.clock.now(), self._heap
        while heap and heap[0][0] <= now:
            due, _, breaker = heapq.heappop(heap)
            if breaker.due == due:  # else it was closed meanwhile
                breaker.ripen()
        self.next_due = heap[0][0] if heap else None
