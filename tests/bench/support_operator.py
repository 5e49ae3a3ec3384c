"""The operator's side of a fleet: core, shell, records and control socket, as they really are."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from steersman.clock import MonotonicClock
from steersman.engine import Control, Runtime
from steersman_operator.control import ControlServer
from steersman_operator.engines.dialect import OK, CallResult
from steersman_operator.fleet.commands import AskLoad, Call, Look
from steersman_operator.fleet.events import (
    Elected,
    LeaseRenewed,
    ProxiesRequired,
    ProxyRef,
    SpecChanged,
)
from steersman_operator.fleet.facts import CallKind, Observation
from steersman_operator.fleet.spec import EngineSpec, PoolSpec
from steersman_operator.fleet.state import Timing
from steersman_operator.shell.file_store import FileStore
from steersman_operator.shell.fleet import FleetShell
from steersman_operator.shell.observer import ShellObserver
from steersman_operator.shell.ports import EngineCaller

PATIENCE = 120.0
"""Seconds within which anything that is waited for must have happened."""


class OperatorSide:
    """The shell, and what the people want of its one pool."""

    def __init__(self, shell: FleetShell, server: ControlServer, *, endpoint: str) -> None:
        self.shell = shell
        self.server = server
        self.endpoint = endpoint
        self.pool = PoolSpec(name="policy-model", models=("policy-model",))

    def edit(
        self,
        *,
        state: Control | None = None,
        overrides: dict[str, Control] | None = None,
        engines: Sequence[EngineSpec] | None = None,
    ) -> None:
        """Somebody has edited the pool; what is not given stays as it is."""
        pool = self.pool
        self.pool = msgspec.structs.replace(
            pool,
            generation=pool.generation + 1,
            state=pool.state if state is None else state,
            overrides=pool.overrides if overrides is None else overrides,
            engines=pool.engines if engines is None else tuple(engines),
        )
        self.shell.feed(SpecChanged(now=self.shell.now, pools=(self.pool,)))

    def require(self, uids: Sequence[str]) -> None:
        """The platform's account of the proxies."""
        refs = tuple(ProxyRef(uid=uid, boot="") for uid in uids)
        self.shell.feed(ProxiesRequired(now=self.shell.now, proxies=refs))

    def at_rest(self, state: Control, *, of: Sequence[str] | None = None) -> bool:
        """Whether these engines (or all) are in a state, nothing is under way, and all know it."""
        fleet = self.shell.state
        engines = fleet.engines if of is None else {name: fleet.engines[name] for name in of}
        return (
            all(one.op is None and one.facts.control is state for one in engines.values())
            and all(one.op is None for one in fleet.engines.values())
            and all(proxy.acked == fleet.epoch for proxy in fleet.proxies.values())
        )

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a fact of the state; looked at after each change."""
        changed = asyncio.Event()
        self.shell.on_change.append(changed.set)
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition():
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            raise SystemExit(f"{what}: not within {PATIENCE:g} s") from None
        finally:
            self.shell.on_change.remove(changed.set)


@asynccontextmanager
async def operator_side(
    directory: Path,
    engines: EngineCaller,
    *,
    observer: ShellObserver | None = None,
    timing: Timing | None = None,
) -> AsyncIterator[OperatorSide]:
    """A leader over an empty pool, on a socket in ``directory``."""
    clock, endpoint = MonotonicClock(), f"ipc://{directory}/control.sock"
    store = FileStore(directory / "state.json")
    term, durable = store.open()
    shell = FleetShell(
        clock=clock, engines=engines, store=store, timing=timing or Timing(), observer=observer
    )
    server = ControlServer(shell, clock=clock, endpoints=[endpoint])
    shell.publisher = server
    async with AsyncExitStack() as stack:
        await server.start()
        stack.push_async_callback(server.close)
        server.lead(term=term, api_url="")
        shell.start()
        stack.push_async_callback(shell.close)
        shell.feed(LeaseRenewed(now=shell.now, valid_until=float("inf")))
        shell.feed(Elected(now=shell.now, term=term, durable=durable))
        yield OperatorSide(shell, server, endpoint=endpoint)


def specs(count: int) -> list[EngineSpec]:
    """Static engines of one pool, all of one kind."""
    hosts = [f"10.0.{number // 256}.{number % 256}:30000" for number in range(count)]
    return [EngineSpec(id=host, url=f"http://{host}", runtime=Runtime.SGLANG) for host in hosts]


class IdleEngines:
    """Engines in the mind: always reachable, always idle, and everything succeeds at once."""

    def __init__(self) -> None:
        self._paused: set[str] = set()

    async def perform(self, call: Call) -> CallResult:
        if call.kind is CallKind.PAUSE:
            self._paused.add(call.engine)
        elif call.kind is CallKind.RESUME:
            self._paused.discard(call.engine)
        return OK

    async def look(self, command: Look) -> Observation:
        return Observation(
            reachable=True,
            boot_id="sglang-3f1c9a0b7d2e4f68",
            paused=command.engine in self._paused,
            backup=True,
            version="step-1200",
            version_known=True,
        )

    async def ask_load(self, command: AskLoad) -> int | None:
        return 0
