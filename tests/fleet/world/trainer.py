"""A trainer that brings weights into engines that wait for it, and says so when it is done."""

from typing import TYPE_CHECKING, NamedTuple

from steersman_operator.fleet.events import Published
from steersman_operator.fleet.state import Phase

if TYPE_CHECKING:
    from tests.fleet.world.world import World

PERIOD = 0.3
"""Seconds between two looks at what the operator shows."""


class Transfer(NamedTuple):
    """One turn of the trainer at one engine."""

    engine: str
    boot: str
    version: str
    turn: tuple[int, int]
    """What the operator calls it: an engine that was loaded and lost its weights waits again."""


class Trainer:
    """Works from what the leader shows. ``gives_up`` is the share of transfers that it leaves half
    done."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.gives_up = 0.2
        self._begun: set[Transfer] = set()
        self._done: set[Transfer] = set()
        world.scheduler.after(PERIOD, self._look)

    def _look(self) -> None:
        self._world.scheduler.after(PERIOD, self._look)
        awaited = self._awaited()
        for transfer in awaited:
            if transfer not in self._begun and transfer not in self._done:
                self._begin(transfer)
        leader = self._world.leader()
        if leader is not None and awaited and all(one in self._done for one in awaited):
            version = awaited[0].version
            leader.feed(Published(now=leader.clock, pool="pool", version=version))

    def _awaited(self) -> list[Transfer]:
        """What the leader waits for; of engines that are as it believes."""
        leader = self._world.leader()
        if leader is None:
            return []
        found: list[Transfer] = []
        for name, engine in leader.state.engines.items():
            op, truth = engine.op, self._world.engines[name]
            if op is None or op.phase is not Phase.AWAITING or op.weights is None:
                continue
            if truth.alive and engine.facts.boot_id == truth.boot_id:
                turn = (leader.state.term, op.number)
                found.append(Transfer(name, truth.boot_id, op.weights.version, turn))
        return found

    def _begin(self, transfer: Transfer) -> None:
        world, name = self._world, transfer.engine
        world.rules.transfer_begins(name)
        truth = world.engines[name]
        if not truth.alive or "weights" in truth.released:
            return
        # It writes one version at a time.
        self._begun = {one for one in self._begun if one.engine != name} | {transfer}
        truth.whole = False
        world.scheduler.after(world.rng.uniform(0.2, 2), self._end, transfer)

    def _end(self, transfer: Transfer) -> None:
        world = self._world
        if transfer not in self._begun:
            return
        self._begun.discard(transfer)
        truth = world.engines[transfer.engine]
        if truth.boot_id != transfer.boot or transfer not in self._awaited():
            return
        if world.rng.random() < self.gives_up:
            return
        truth.whole, truth.undefined = True, False
        self._done.add(transfer)
        if world.rng.random() < 0.5:
            truth.version = transfer.version
