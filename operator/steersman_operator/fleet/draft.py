"""A state under change, within one step."""

from collections.abc import Mapping
from typing import Any

import msgspec

from steersman.engine import Gate
from steersman_operator.fleet.commands import Command, Note
from steersman_operator.fleet.spec import PoolSpec
from steersman_operator.fleet.state import EngineState, ProxyState, State, Timing


class Draft:
    """Collects the changes of one step; the state that it began from stays as it was.

    Most steps change one engine or one proxy, or none, in fleets of hundreds: what is not changed is
    not copied, and :attr:`changed` tells what has to be looked at afterwards.
    """

    def __init__(self, state: State, *, timing: Timing) -> None:
        self.before = state
        self.state = state
        self.timing = timing
        self.engines: Mapping[str, EngineState] = state.engines
        self.proxies: Mapping[str, ProxyState] = state.proxies
        self.changed: dict[str, None] = {}
        """The engines that were changed, added or removed, in the order of their first change."""
        self.commands: list[Command] = []
        self.planning = True
        """Whether engines may be given their turn to be loaded in this step."""
        self._own_engines: dict[str, EngineState] | None = None
        self._own_proxies: dict[str, ProxyState] | None = None

    @property
    def now(self) -> float:
        """The time of the event."""
        return self.state.now

    def change(self, **fields: Any) -> None:
        """Change fields of the state other than engines and proxies."""
        self.state = msgspec.structs.replace(self.state, **fields)

    def change_engine(self, engine: str, **fields: Any) -> EngineState:
        """Change fields of one engine."""
        changed = msgspec.structs.replace(self.engines[engine], **fields)
        self.put_engine(changed)
        return changed

    def put_engine(self, engine: EngineState) -> None:
        """Add an engine, or replace all that is known of it."""
        self._engines_to_change(engine.spec.id)[engine.spec.id] = engine

    def remove_engine(self, engine: str) -> EngineState:
        """Take an engine out; returns what was known of it."""
        return self._engines_to_change(engine).pop(engine)

    def _engines_to_change(self, engine: str) -> dict[str, EngineState]:
        if self._own_engines is None:
            self.engines = self._own_engines = dict(self.engines)
        self.changed[engine] = None
        return self._own_engines

    def change_proxy(self, uid: str, **fields: Any) -> ProxyState:
        """Change fields of one proxy."""
        changed = msgspec.structs.replace(self.proxies[uid], **fields)
        self.put_proxy(changed)
        return changed

    def put_proxy(self, proxy: ProxyState) -> None:
        """Add a proxy, or replace all that is known of it."""
        self._proxies_to_change()[proxy.ref.uid] = proxy

    def remove_proxy(self, uid: str) -> None:
        """Take a proxy out."""
        del self._proxies_to_change()[uid]

    def _proxies_to_change(self) -> dict[str, ProxyState]:
        if self._own_proxies is None:
            self.proxies = self._own_proxies = dict(self.proxies)
        return self._own_proxies

    def pool_of(self, engine: EngineState) -> PoolSpec:
        """The pool of an engine."""
        return self.state.pools[engine.pool]

    def leads(self, engine: str) -> bool:
        """Whether what happens to an engine is this operator's business."""
        return self.state.leading and engine in self.engines

    def number(self) -> int:
        """A number for a command that will be answered."""
        self.change(numbers=self.state.numbers + 1)
        return self.state.numbers

    def emit(self, command: Command) -> None:
        """Have something done."""
        self.commands.append(command)

    def note(
        self, engine: EngineState, reason: str, message: str, *, warning: bool = False
    ) -> None:
        """Tell people."""
        self.emit(
            Note(
                engine=engine.spec.id,
                pool=engine.pool,
                reason=reason,
                message=message,
                warning=warning,
            )
        )

    def close_gate(self, engine: str) -> EngineState:
        """Close a gate; the table that says so is published at the end of the step."""
        state = self.engines[engine]
        if not state.gate.open:
            return state
        gate = Gate(open=False, count=state.gate.count + 1)
        return self.change_engine(engine, gate=gate, closed_at=None)

    def open_gate(self, engine: str) -> EngineState:
        """Open a gate; the engine's version counts from now on."""
        state = self.engines[engine]
        if state.gate.open:
            return state
        gate = Gate(open=True, count=state.gate.count + 1)
        return self.change_engine(engine, gate=gate, closed_at=None, counted_version=state.version)

    def finished(self) -> State:
        """The state at the end of the step."""
        return msgspec.structs.replace(self.state, engines=self.engines, proxies=self.proxies)
