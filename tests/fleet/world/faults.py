"""What happens in a storm: wishes that change, and everything that can go wrong."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from steersman.engine import Control
from steersman_operator.fleet.spec import PauseMode, SourceKind, Weights

if TYPE_CHECKING:
    from tests.fleet.world.world import World

STATES = (Control.ACTIVE, Control.PAUSED, Control.ASLEEP)


class Faults:
    """Draws what happens next. Each storm has a few kinds of fault of its own."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = world.rng
        self._storm = False
        kinds: list[Callable[[], None]] = [
            self._crash_proxy,
            self._stall_proxy,
            self._cut_link,
            self._crash_manager,
            self._stall_manager,
            self._cut_off_manager,
            self._begin_later_term,
            self._restart_engine,
            self._touch_engine,
            self._change_weather,
            self._remove_engines,
            self._new_weights,
            self._trouble_engine,
            self._scale_proxies,
        ]
        self._kinds = self._rng.sample(kinds, self._rng.randint(1, 6))
        self._pace = self._rng.choice((0.3, 0.8, 1.6))

    def begin(self) -> None:
        self._storm = True
        self._next_wish()
        self._next_fault()

    def _next_wish(self) -> None:
        if self._storm:
            self._wish()
            self._world.scheduler.after(
                self._rng.expovariate(1 / (2 * self._pace)), self._next_wish
            )

    def _next_fault(self) -> None:
        if self._storm:
            self._rng.choice(self._kinds)()
            self._world.scheduler.after(self._rng.expovariate(1 / self._pace), self._next_fault)

    def end(self) -> None:
        """Nothing goes wrong any more; what was broken is whole again."""
        world = self._world
        self._storm = False
        world.network.calm()
        world.cluster.unreachable.clear()
        world.store_trouble = 0.0
        world.trainer.gives_up = 0.0
        if world.pool.rollout_paused:
            world.change_spec(rollout_paused=False)
        for engine in world.engines.values():
            engine.trouble = 0.0
            if not engine.alive:
                engine.start()
        for slot, proxy in list(world.proxies.items()):
            proxy.stalled_until = 0.0
            if not proxy.alive:
                world.start_proxy(slot)
        for slot, manager in list(world.managers.items()):
            manager.stalled_until = 0.0
            if not manager.alive:
                world.start_manager(slot)

    # --- wishes -----------------------------------------------------------------------------------

    def _wish(self) -> None:
        rng, world = self._rng, self._world
        if world.asks_for_weights and rng.random() < 0.4:
            self._wish_weights()
        elif rng.random() < 0.5:
            world.change_spec(state=rng.choice(STATES), overrides={})
        else:
            overrides = dict(world.pool.overrides)
            overrides[rng.choice(tuple(world.engines))] = rng.choice(STATES)
            world.change_spec(overrides=overrides)
        if rng.random() < 0.4:
            # Somebody cannot decide.
            world.scheduler.after(rng.uniform(0.01, 0.6), self._wish_again)

    def _wish_weights(self) -> None:
        rng, world = self._rng, self._world
        if rng.random() < 0.2:
            world.change_spec(rollout_paused=not world.pool.rollout_paused)
        elif rng.random() < 0.1:
            world.change_spec(weights=None)
        else:
            weights = Weights(
                version=str(rng.randint(1, 3)),
                source=rng.choice((SourceKind.DISK, SourceKind.DISK, SourceKind.EXTERNAL)),
                nonce=rng.choice(("", "n", "m")),
            )
            world.change_spec(weights=weights)

    def _wish_again(self) -> None:
        if self._storm:
            self._wish()

    # --- proxies ----------------------------------------------------------------------------------

    def _slot(self) -> str:
        return self._rng.choice(tuple(self._world.proxies))

    def _crash_proxy(self) -> None:
        slot = self._slot()
        proxy = self._world.proxies[slot]
        if proxy.alive:
            proxy.crash()
            self._world.list_proxies(lag=self._rng.uniform(0, 1.5))
            self._world.scheduler.after(self._rng.uniform(0.05, 2), self._revive_proxy, slot)

    def _revive_proxy(self, slot: str) -> None:
        proxy = self._world.proxies.get(slot)
        if proxy is not None and not proxy.alive:
            self._world.start_proxy(slot)

    def _scale_proxies(self) -> None:
        world = self._world
        if len(world.proxies) > 1 and self._rng.random() < 0.5:
            slot = self._slot()
            world.proxies.pop(slot).crash()
            world.list_proxies(lag=self._rng.uniform(0, 1.5))
        elif len(world.proxies) < 4:
            world.start_proxy(f"p{world.number()}x")

    def _stall_proxy(self) -> None:
        self._world.proxies[self._slot()].stall(self._rng.uniform(0.2, 6))

    # --- the network ------------------------------------------------------------------------------

    def _cut_link(self) -> None:
        world, rng = self._world, self._rng
        uid = world.proxies[self._slot()].uid
        name = rng.choice(tuple(world.managers.values())).name
        link = (uid, name) if rng.random() < 0.5 else (name, uid)
        world.network.block(*link, both=rng.random() < 0.6)
        world.scheduler.after(rng.uniform(0.5, 8), self._mend_link, uid, name)

    def _mend_link(self, uid: str, name: str) -> None:
        self._world.network.blocked -= {(uid, name), (name, uid)}

    def _change_weather(self) -> None:
        network, rng = self._world.network, self._rng
        network.latency = rng.choice((0.005, 0.02, 0.1))
        network.loss = rng.choice((0.0, 0.05, 0.3))
        network.doubling = rng.choice((0.0, 0.2))
        network.lateness = rng.choice((0.0, 0.05))

    # --- operators --------------------------------------------------------------------------------

    def _manager_slot(self) -> str:
        return self._rng.choice(tuple(self._world.managers))

    def _crash_manager(self) -> None:
        slot = self._manager_slot()
        manager = self._world.managers[slot]
        if manager.alive:
            manager.alive = False
            self._world.scheduler.after(self._rng.uniform(0.05, 4), self._revive_manager, slot)

    def _revive_manager(self, slot: str) -> None:
        if not self._world.managers[slot].alive:
            self._world.start_manager(slot)

    def _stall_manager(self) -> None:
        self._world.managers[self._manager_slot()].stall(self._rng.uniform(0.2, 8))

    def _cut_off_manager(self) -> None:
        world = self._world
        name = world.managers[self._manager_slot()].name
        world.cluster.unreachable.add(name)
        world.scheduler.after(self._rng.uniform(0.5, 8), world.cluster.unreachable.discard, name)
        world.store_trouble = self._rng.choice((0.0, 0.0, 0.3))

    def _begin_later_term(self) -> None:
        manager = self._world.managers[self._manager_slot()]
        if manager.alive:
            manager.begin_later_term()

    # --- engines ----------------------------------------------------------------------------------

    def _engine(self) -> str:
        return self._rng.choice(tuple(self._world.engines))

    def _restart_engine(self) -> None:
        name = self._engine()
        engine = self._world.engines[name]
        if engine.alive:
            engine.crash()
            self._world.scheduler.after(self._rng.uniform(0.1, 3), self._revive_engine, name)

    def _revive_engine(self, name: str) -> None:
        engine = self._world.engines[name]
        if not engine.alive:
            engine.start()
            engine.version = self._rng.choice((None, engine.version))

    def _touch_engine(self) -> None:
        """Somebody else's hands. Only on engines that show it: others must not be touched."""
        engine = self._world.engines[self._engine()]
        # Nobody lets an engine go on that a trainer may be writing into.
        calm = not engine.released and not engine.pending and engine.whole and not engine.told
        if engine.alive and engine.shows_paused and calm:
            if engine.undefined:
                engine.load_weights()
            elif engine.paused:
                engine.resume()
            else:
                engine.pause(self._rng.choice(tuple(PauseMode)), by_us=False)

    def _new_weights(self) -> None:
        engine = self._world.engines[self._engine()]
        if engine.whole:
            # Whoever writes names what it writes at the end, and nobody else does meanwhile.
            engine.version = str(self._rng.randint(1, 9))

    def _trouble_engine(self) -> None:
        engine = self._world.engines[self._engine()]
        engine.trouble = self._rng.choice((0.0, 0.2, 0.6))

    def _remove_engines(self) -> None:
        world, rng = self._world, self._rng
        kept = tuple(spec for spec in world.pool.engines if rng.random() < 0.6)
        deliberate = rng.random() < 0.3
        if deliberate:
            for spec in world.pool.engines:
                if spec not in kept:
                    world.engines[spec.id].crash()
        world.change_spec(engines=kept, deliberate=deliberate)
        world.scheduler.after(rng.uniform(0.05, 4), self._put_back)

    def _put_back(self) -> None:
        from tests.fleet.world.world import spec_of

        world = self._world
        for engine in world.engines.values():
            if not engine.alive:
                engine.start()
        world.change_spec(engines=tuple(spec_of(name) for name in world.engines))
