"""Engines with the traps of real ones: what kills SGLang and vLLM kills these."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from steersman_operator.fleet.commands import Call
from steersman_operator.fleet.facts import CallKind, Observation, Outcome
from steersman_operator.fleet.spec import PauseMode
from tests.fleet.world.scheduler import Scheduler

if TYPE_CHECKING:
    from tests.fleet.world.proxy import Request
    from tests.fleet.world.rules import Rules

Reply = Callable[[Outcome, str], None]


class Pending:
    """A call that has not had its effect yet."""

    __slots__ = ("kind", "obscured")

    def __init__(self, kind: CallKind, *, obscured: bool) -> None:
        self.kind = kind
        self.obscured = obscured
        """Whether somebody else has done the same: the effect that is seen is not this call's."""


class ModelEngine:
    """One engine: SGLang-like ones do not tell which memory is released, some not even a pause."""

    def __init__(
        self, name: str, *, scheduler: Scheduler, rng: random.Random, rules: "Rules", vllm: bool
    ) -> None:
        self.name = name
        self._scheduler = scheduler
        self._rng = rng
        self._rules = rules
        self.vllm = vllm
        self.shows_released = vllm
        self.shows_paused = vllm or rng.random() < 0.5
        self.keeps = vllm or not self.shows_paused or rng.random() < 0.5
        """Whether its weights survive the release of their memory."""
        self.trouble = 0.0
        """The share of calls and looks that go wrong."""
        self.boots = 0
        self.told = False
        """Whether the operator was told which weights to bring in, so that nobody else does."""
        self.version: str | None = "1"
        self.start()

    def start(self) -> None:
        self.boots += 1
        self.alive = True
        self.paused = False
        self.paused_by_us = False
        self.released: tuple[str, ...] = ()
        self.undefined = False
        """Whether its weights were given up and not loaded since."""
        self.whole = True
        """Whether its weights are of one version; not while somebody writes, or after half of it."""
        self.running: set[Request] = set()
        self.waiting: list[Request] = []
        self.pending: list[Pending] = []

    @property
    def boot_id(self) -> str:
        return f"{self.name}.{self.boots}"

    @property
    def busy(self) -> int:
        return len(self.running) + len(self.waiting)

    def crash(self) -> None:
        """The process ends; everything on it fails."""
        if not self.alive:
            return
        self.alive = False
        self.pending = []
        ended = [*self.running, *self.waiting]
        self.running, self.waiting = set(), []
        for request in ended:
            request.end()

    def _die(self, why: str) -> None:
        self.crash()
        self._rules.engine_died(self, why)

    # --- requests ---------------------------------------------------------------------------------

    def arrive(self, request: "Request") -> None:
        if not self.alive:
            request.end()
        elif request.aborted:
            pass
        elif self.released:
            self._die("a request has reached it asleep")
        elif self.paused:
            self.waiting.append(request)
        else:
            self._begin(request)

    def _begin(self, request: "Request") -> None:
        if self.undefined or not self.whole:
            self._rules.undefined_weights(self)
        self.running.add(request)
        self._scheduler.after(request.duration, self._finish, request)

    def _finish(self, request: "Request") -> None:
        if request in self.running and not self.paused:
            self.running.discard(request)
            request.end()

    def abort(self, request: "Request") -> None:
        """A connection is gone, and the engine has noticed."""
        self.running.discard(request)
        if request in self.waiting:
            self.waiting.remove(request)

    # --- looks ------------------------------------------------------------------------------------

    def observe(self) -> Observation:
        if not self.alive or self._rng.random() < self.trouble:
            return Observation(reachable=False)
        return Observation(
            reachable=True,
            boot_id=self.boot_id,
            paused=self.paused if self.shows_paused else None,
            released=self.released if self.shows_released else None,
            backup=self.keeps,
            version=self.version,
            version_known=True,
        )

    def load(self) -> int | None:
        if not self.alive or self._rng.random() < self.trouble:
            return None
        return self.busy

    # --- calls ------------------------------------------------------------------------------------

    def call(self, call: Call, reply: Reply) -> None:
        """A call arrives. ``reply`` is told how it ended, unless the answer gets lost."""
        if not self.alive:
            reply(self._rng.choice((Outcome.REFUSED, Outcome.FAILED)), "connection refused")
            return
        if call.boot_id not in (None, self.boot_id):
            reply(Outcome.REFUSED, "another boot")
            return
        fate = self._rng.random()
        if fate < self.trouble * 0.3:
            reply(Outcome.REFUSED, "not now")
            return
        done = self.paused if call.kind is CallKind.PAUSE else not self.paused
        obscured = done and call.kind in (CallKind.PAUSE, CallKind.RESUME)
        pending = Pending(call.kind, obscured=obscured)
        self.pending.append(pending)
        # Whatever becomes of the answer, the effect comes within the time that the call may take.
        slow = self._rng.random() < self.trouble
        takes = call.timeout * self._rng.uniform(0.2, 0.9) if slow else self._rng.uniform(0.01, 0.2)
        if fate < self.trouble * 0.6:
            self._scheduler.after(self._rng.uniform(0, takes), reply, Outcome.UNKNOWN, "reset")
            reply = _nobody
        elif fate < self.trouble:
            # Nothing comes of it, and nothing is said.
            self._scheduler.after(takes, self._forget, pending)
            return
        if call.kind is CallKind.REFIT:
            if "weights" in self.released:
                self._die("weights were loaded into memory that is given up")
                return
            self.whole = False
        self._scheduler.after(takes, self._effect, pending, call, self.boots, reply)

    def _forget(self, pending: Pending) -> None:
        if pending in self.pending:
            self.pending.remove(pending)

    def _effect(self, pending: Pending, call: Call, boots: int, reply: Reply) -> None:
        if pending not in self.pending or boots != self.boots:
            reply(Outcome.UNKNOWN, "the process is gone")
            return
        self.pending.remove(pending)
        if self._rng.random() < self.trouble * 0.3:
            if self._rng.random() < 0.5:
                self._change(call, obscured=pending.obscured)
            reply(Outcome.FAILED, "500")
            return
        self._change(call, obscured=pending.obscured)
        reply(Outcome.OK, "")

    def _change(self, call: Call, *, obscured: bool) -> None:
        match call.kind:
            case CallKind.PAUSE:
                self.pause(call.pause_mode, by_us=not obscured or self.paused_by_us)
            case CallKind.RESUME:
                if self.undefined or not self.whole:
                    self._rules.undefined_weights(self)
                self.resume()
            case CallKind.SLEEP:
                if self.busy:
                    self._die("it was put to sleep with requests")
                elif set(call.tags) & set(self.released) or not call.tags:
                    self._die("memory was released that is released")
                else:
                    self.released = call.tags
                    self.undefined = self.undefined or not self.keeps
            case CallKind.WAKE:
                if not call.tags or not set(call.tags) <= set(self.released):
                    self._die("memory was resumed that is not released")
                else:
                    self.released = tuple(tag for tag in self.released if tag not in call.tags)
                    if self.vllm and not self.released:
                        self.resume()
                    if self.undefined:
                        self._await_trainer()
            case CallKind.REFIT:
                assert call.weights is not None
                self.whole, self.undefined, self.version = True, False, call.weights.version
            case CallKind.LABEL:
                assert call.weights is not None
                self.version = call.weights.version
            case CallKind.TRANSFER:
                raise AssertionError("nobody calls for it")

    def _await_trainer(self) -> None:
        self._scheduler.after(self._rng.uniform(0.2, 4), self._trainer_loads, self.boots)

    def _trainer_loads(self, boots: int) -> None:
        """A trainer has seen it awake, loads weights into it and lets it go on."""
        if not self.alive or boots != self.boots or not self.undefined or self.released:
            return
        if self.pending or self.told:
            self._await_trainer()
            return
        self.load_weights()

    def load_weights(self) -> None:
        self.undefined, self.whole = False, True
        self.version = str(self._rng.randint(1, 9))
        self.resume()

    def pause(self, mode: PauseMode, *, by_us: bool) -> None:
        self.paused, self.paused_by_us = True, by_us
        stopped, self.running = self.running, set()
        if mode is PauseMode.ABORT:
            for request in stopped:
                request.end()
        else:
            self.waiting += sorted(stopped, key=lambda request: request.number)

    def resume(self) -> None:
        self.paused = False
        queue, self.waiting = self.waiting, []
        for request in queue:
            self._begin(request)


def _nobody(outcome: Outcome, detail: str) -> None:
    """The answer got lost on its way."""
