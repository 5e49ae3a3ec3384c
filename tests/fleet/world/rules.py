"""What must hold in every world, whatever happens. Looked at when it could be broken."""

from typing import TYPE_CHECKING

from steersman_operator.fleet.commands import Call
from steersman_operator.fleet.facts import CallKind
from steersman_operator.fleet.readiness import needs_clear

if TYPE_CHECKING:
    from tests.fleet.world.engine import ModelEngine
    from tests.fleet.world.manager import Manager
    from tests.fleet.world.proxy import ModelProxy
    from tests.fleet.world.world import World

DISTURBING = (CallKind.PAUSE, CallKind.SLEEP, CallKind.REFIT)


class Violation(AssertionError):
    """A rule is broken."""


class Rules:
    """The rules, over one world."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def call_begins(self, manager: "Manager", call: Call) -> None:
        """Invariant B, one call at a time, and only by who leads."""
        world, name = self._world, call.engine
        engine = world.engines[name]
        lease = world.cluster.lease
        if lease.term != manager.state.term:
            raise Violation(f"{call.kind} of {name} by {manager.name}, which does not lead")
        pending = [one for one in engine.pending if not one.obscured]
        if pending and call.boot_id in (None, engine.boot_id):
            raise Violation(f"{call.kind} of {name} while {pending[0].kind} may still run")
        if call.kind not in DISTURBING:
            return
        state = manager.state.engines[name]
        assert state.op is not None
        clear = needs_clear(state.op, manager.state.pools[state.pool])
        for proxy in world.proxies.values():
            if not proxy.alive:
                continue
            if proxy.may_start(name):
                raise Violation(f"{call.kind} of {name}, and {proxy.uid} may still send to it")
            if clear and proxy.in_flight(name) and not proxy.is_fenced_out():
                raise Violation(f"{call.kind} of {name}, and {proxy.uid} has requests on it")

    def request_begins(self, proxy: "ModelProxy", name: str) -> None:
        """A proxy has chosen an engine."""
        row = proxy.rows.get(name)
        if row is None or not row.gate.open:
            raise Violation(f"{proxy.uid} starts a request on {name}, which its table closes")
        engine = self._world.engines[name]
        if not engine.alive:
            return
        if any(one.kind in DISTURBING and not one.obscured for one in engine.pending):
            raise Violation(f"{proxy.uid} starts a request on {name} while it is being changed")
        if not engine.whole:
            raise Violation(f"{proxy.uid} starts a request on {name}, whose weights are not whole")
        if engine.released:
            raise Violation(f"{proxy.uid} starts a request on {name}, which is asleep")
        if engine.paused and engine.paused_by_us:
            raise Violation(f"{proxy.uid} starts a request on {name}, which was paused for good")

    def transfer_begins(self, name: str) -> None:
        """A trainer has read that it may write."""
        for proxy in self._world.proxies.values():
            if proxy.alive and proxy.may_start(name):
                raise Violation(f"{name} waits for a transfer, and {proxy.uid} may send to it")

    def undefined_weights(self, engine: "ModelEngine") -> None:
        """Nothing is generated with weights that a sleep has given up."""
        raise Violation(f"{engine.name} is let go on with undefined weights")

    def request_sent(self, proxy: "ModelProxy", name: str) -> None:
        """The first byte goes; whoever may have been counted out by then sends nothing."""
        if proxy.is_fenced_out():
            raise Violation(f"{proxy.uid} sends to {name}, and may have been counted out")

    def table_applied(self, proxy: "ModelProxy", before: object, after: object) -> None:
        """An epoch never goes back."""
        if before is not None and after <= before:  # type: ignore[operator]
            raise Violation(f"{proxy.uid} went from table {before} to {after}")

    def engine_died(self, engine: "ModelEngine", why: str) -> None:
        """No engine dies of what was done to it."""
        raise Violation(f"{engine.name} died: {why}")
