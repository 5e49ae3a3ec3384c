"""A state under change, within one step."""

from typing import Any

import msgspec

from steersman.engine import Gate
from steersman_operator.fleet.commands import Command, Note
from steersman_operator.fleet.spec import PoolSpec
from steersman_operator.fleet.state import EngineState, ProxyState, State, Timing


class Draft:
    """Collects the changes of one step; the state that it began from stays as it was."""

    def __init__(self, state: State, *, timing: Timing) -> None:
        self.before = state
        self.state = state
        self.timing = timing
        self.engines = dict(state.engines)
        self.proxies = dict(state.proxies)
        self.commands: list[Command] = []

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
        self.engines[engine] = changed
        return changed

    def change_proxy(self, uid: str, **fields: Any) -> ProxyState:
        """Change fields of one proxy."""
        changed = msgspec.structs.replace(self.proxies[uid], **fields)
        self.proxies[uid] = changed
        return changed

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
