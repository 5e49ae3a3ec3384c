"""The health of engines: what connections and probes said, made into in or out.

Two judges that do not know of each other; an engine is in while neither has it out.

*Passive.* After ``passive.failures`` connections in a row that did not come about, the engine is
out for ``passive.eject_for`` seconds. Then it is in again on trial: the next failure puts it out at
once, the next answer clears it. An answer that comes while it is out belongs to an old connection
and changes nothing.

*Probes* (if they are on). ``probe.failures`` bad probes in a row put the engine out until
``probe.successes`` good ones bring it back. A probe that times out, or an answer that calls the
engine unhealthy, counts only against an engine that has no excuse: a long prefill, a compilation, a
pause or a refit look just like it. The excuses are a row that is not active, a closed gate, and
requests in flight that got something from the engine within the time that the failures took. A
refused key is a mistake of configuration, not an engine that is down.

If every engine of a pool is out, its requests get 503 with the reason ``unhealthy`` and are not
sent anywhere on trial: what failed were connections, so that a request would fail as well, and
``eject_for`` is short.
"""

from collections.abc import Callable
from enum import Enum

from steersman.clock import Clock
from steersman.engine import Control
from steersman_proxy.routing.engines import Engine
from steersman_proxy.routing.fleet import Fleet
from steersman_proxy.settings import PassiveHealth, ProbeSettings


class ProbeResult(Enum):
    """What came of one probe."""

    OK = "ok"
    AUTH_FAILED = "auth_failed"
    """401 or 403: the engine is alive and wants another key."""
    TIMEOUT = "timeout"
    UNHEALTHY = "unhealthy"
    """The engine answered that it is not well."""
    REFUSED = "refused"
    """No connection, or one that broke."""


class Condition(Enum):
    """What `/status` tells of an engine's health beyond in or out."""

    EJECTED = "Ejected"
    """Out because connections failed; ends by itself."""
    PROBES_FAILED = "ProbesFailed"
    """Out because probes failed."""
    AUTH_FAILED = "AuthFailed"
    """The last probe's key was refused; see ``engineKeys`` in the configuration."""


class _State:
    """What is held against one engine. Engines without any of it have no state."""

    __slots__ = ("auth_failed", "ejected_until", "failures", "probe_failures", "probe_successes")

    def __init__(self) -> None:
        self.failures = 0
        self.ejected_until: float | None = None
        self.probe_failures = 0
        self.probe_successes: int | None = None
        """Good probes since the probes put it out; ``None`` while they have not."""
        self.auth_failed = False

    @property
    def healthy(self) -> bool:
        return self.ejected_until is None and self.probe_successes is None

    @property
    def spotless(self) -> bool:
        return self.healthy and not (self.failures or self.probe_failures or self.auth_failed)


class HealthTracker:
    """Judges every engine of a fleet and tells the fleet; sans-I/O.

    :meth:`expire` must be called when :attr:`next_deadline` has come.
    """

    def __init__(
        self, fleet: Fleet, *, clock: Clock, passive: PassiveHealth, probe: ProbeSettings
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._passive = passive
        self._probe = probe
        self._states: dict[Engine, _State] = {}
        # In the order of their deadlines, because every ejection lasts equally long.
        self._ejected: dict[Engine, None] = {}
        self._last_sign: dict[Engine, float] = {}
        self.on_wake: Callable[[], None] | None = None
        """Called when there is a new first deadline."""
        fleet.on_change.append(self._forget_gone)

    # --- from the traffic -------------------------------------------------------------------------

    def connect_failed(self, engine: Engine) -> None:
        """No connection to the engine came about."""
        if self._passive.failures == 0 or engine.pool is None:
            return
        state = self._state(engine)
        if state.ejected_until is not None:
            return  # An attempt that began before the ejection; it says nothing new.
        state.failures += 1
        if state.failures >= self._passive.failures:
            state.ejected_until = self._clock.now() + self._passive.eject_for
            self._ejected[engine] = None
            self._tell(engine, state)
            if self.on_wake is not None:
                self.on_wake()

    def reached(self, engine: Engine) -> None:
        """The engine sent something: the head of an answer, or a part of its body."""
        if self._probe.enabled:
            self._last_sign[engine] = self._clock.now()
        if not self._states:
            return
        state = self._states.get(engine)
        if state is not None and state.failures and state.ejected_until is None:
            state.failures = 0
            self._tidy(engine, state)

    @property
    def next_deadline(self) -> float | None:
        """When the first ejection ends, on the clock; ``None`` if there is none."""
        first = next(iter(self._ejected), None)
        return None if first is None else self._states[first].ejected_until

    def expire(self) -> None:
        """Let the engines whose ejection has ended in again, on trial."""
        now = self._clock.now()
        while (deadline := self.next_deadline) is not None and deadline <= now:
            engine = next(iter(self._ejected))
            del self._ejected[engine]
            state = self._states[engine]
            state.ejected_until = None
            state.failures = self._passive.failures - 1
            self._tell(engine, state)

    # --- from probes ------------------------------------------------------------------------------

    def probe_result(self, engine: Engine, result: ProbeResult) -> None:
        """One probe has ended; it is no longer counted in flight."""
        if engine.pool is None:
            return
        state = self._state(engine)
        match result:
            case ProbeResult.OK | ProbeResult.AUTH_FAILED:
                state.auth_failed = result is ProbeResult.AUTH_FAILED
                state.probe_failures = 0
                if state.probe_successes is not None:
                    state.probe_successes += 1
                    if state.probe_successes >= self._probe.successes:
                        state.probe_successes = None
            case ProbeResult.REFUSED:
                self._probe_failed(state)
            case ProbeResult.TIMEOUT | ProbeResult.UNHEALTHY:
                if not self._excused(engine):
                    self._probe_failed(state)
        self._tell(engine, state)

    def _probe_failed(self, state: _State) -> None:
        state.probe_failures += 1
        if state.probe_successes is not None or state.probe_failures >= self._probe.failures:
            state.probe_successes = 0

    def _excused(self, engine: Engine) -> bool:
        row = engine.row
        if row.control is not Control.ACTIVE or not row.gate.open:
            return True
        sign = self._last_sign.get(engine)
        if engine.load.requests == 0 or sign is None:
            return False
        return self._clock.now() - sign <= self.progress_window

    @property
    def progress_window(self) -> float:
        """Seconds for which a sign of life excuses failed probes.

        As long as it takes to collect the failures that put an engine out.
        """
        return self._probe.interval * self._probe.failures + self._probe.timeout

    # --- what is known ----------------------------------------------------------------------------

    def conditions(self, engine: Engine) -> list[Condition]:
        """What is to be told of the engine's health."""
        state = self._states.get(engine)
        if state is None:
            return []
        found = []
        if state.ejected_until is not None:
            found.append(Condition.EJECTED)
        if state.probe_successes is not None:
            found.append(Condition.PROBES_FAILED)
        if state.auth_failed:
            found.append(Condition.AUTH_FAILED)
        return found

    def _state(self, engine: Engine) -> _State:
        state = self._states.get(engine)
        if state is None:
            state = self._states[engine] = _State()
        return state

    def _tell(self, engine: Engine, state: _State) -> None:
        healthy = state.healthy
        self._tidy(engine, state)
        if engine.healthy is not healthy:
            self._fleet.set_health(engine, healthy)

    def _tidy(self, engine: Engine, state: _State) -> None:
        if state.spotless:
            del self._states[engine]

    def _forget_gone(self) -> None:
        """An engine that left the table is forgotten; if it comes back it starts with a clean slate."""
        for engine in [engine for engine in self._states if engine.pool is None]:
            del self._states[engine]
            self._ejected.pop(engine, None)
        for engine in [engine for engine in self._last_sign if engine.pool is None]:
            del self._last_sign[engine]
