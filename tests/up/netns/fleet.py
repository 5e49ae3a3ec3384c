"""An operator, two proxy processes and a link between them that a test cuts.

The operator and the engines are in the test's own process, so that the test sees what each engine
received and what the operator believes. Both proxies are real processes, one of them beyond the link.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import msgspec
import zmq

from steersman.clock import MonotonicClock
from steersman.engine import Control
from steersman.engine import Runtime as SharedRuntime
from steersman_operator.api.standing import Standing, standing
from steersman_operator.control import ControlServer, Security
from steersman_operator.engines import Engines
from steersman_operator.fleet.events import (
    Elected,
    LeaseRenewed,
    ProxiesRequired,
    ProxyRef,
    SpecChanged,
)
from steersman_operator.fleet.spec import EngineSpec, OnUnreachable, PoolSpec
from steersman_operator.fleet.state import Timing
from steersman_operator.shell.file_store import FileStore
from steersman_operator.shell.fleet import FleetShell
from steersman_operator.standalone.processes import dying_with
from steersman_sim.engine import EngineConfig, Runtime, SimEngine
from tests.up.killed.journals import trespassers
from tests.up.netns.traffic import Traffic
from tests.up.netns.ways import Way

WITHIN = 30.0
"""Seconds after which something is taken to be stuck; the machine may be busy."""

TIMING = Timing(grant=2.5, fence_margin=0.5, idle_gap=0.1, look_every=0.5, look_soon=0.1)
HEARTBEAT = 0.2

PROXIES = ("near", "far")


class Network(Protocol):
    """Where everything is, and the link that can be cut."""

    operator: str
    near: str
    far: str
    engines: str
    addresses: dict[str, str]

    async def open_control(self, port: int) -> dict[str, str]: ...

    def command(self, proxy: str, command: list[str]) -> list[str]: ...

    def cut(self, way: Way) -> None: ...

    def heal(self) -> None: ...


class Keys:
    """The key pairs of the control socket; the proxies' is in files, as a Secret would be."""

    def __init__(self, directory: Path) -> None:
        server_public, self._server_secret = (key.decode() for key in zmq.curve_keypair())
        self._client_public, client_secret = (key.decode() for key in zmq.curve_keypair())
        self.files = {
            "serverKeyFile": str(directory / "server.key"),
            "secretKeyFile": str(directory / "proxy.key"),
        }
        (directory / "server.key").write_text(server_public)
        (directory / "proxy.key").write_text(client_secret)

    @property
    def security(self) -> Security:
        return Security(
            secret_key=self._server_secret, client_keys=frozenset({self._client_public})
        )


class Operator:
    """One operator; closing it leaves everything as it is, as its death would."""

    def __init__(self, fleet: "PartitionedFleet") -> None:
        self._fleet = fleet
        clock = MonotonicClock()
        self._engines = Engines(clock=clock, look_timeout=1.0)
        store = FileStore(fleet.directory / "state.json")
        self._term, self._durable = store.open()
        self.shell = FleetShell(clock=clock, engines=self._engines, store=store, timing=TIMING)
        self.server = ControlServer(
            self.shell,
            clock=clock,
            endpoints=[f"tcp://{fleet.network.operator}:{fleet.port or '*'}"],
            heartbeat=HEARTBEAT,
            grant=TIMING.grant,
            security=fleet.keys.security,
            check_peer=lambda ref, address: fleet.network.addresses.get(ref.uid) == address,
        )
        self.shell.publisher = self.server

    async def start(self) -> None:
        await self.server.start()
        shell = self.shell
        self.server.lead(term=self._term, api_url="")
        shell.start()
        shell.feed(LeaseRenewed(now=shell.now, valid_until=float("inf")))
        shell.feed(Elected(now=shell.now, term=self._term, durable=self._durable))
        self.require(PROXIES)
        self.feed()

    async def close(self) -> None:
        await self.shell.close()
        await self.server.close()
        await self._engines.close()

    def require(self, proxies: tuple[str, ...]) -> None:
        """The platform's account of proxies."""
        refs = tuple(ProxyRef(uid=uid, boot="") for uid in proxies)
        self.shell.feed(ProxiesRequired(now=self.shell.now, proxies=refs))

    def feed(self) -> None:
        """What people want, as it is now."""
        pools = (self._fleet.pool, *self._fleet.others)
        self.shell.feed(SpecChanged(now=self.shell.now, pools=pools))


class PartitionedFleet:
    """Everything of one test."""

    def __init__(
        self, directory: Path, network: Network, *, engines: list[SimEngine], **pool: Any
    ) -> None:
        self.directory = directory
        self.network = network
        self.engines = engines
        self.keys = Keys(directory)
        self.port = 0
        self.traffic = Traffic({engine.url: f"e{n}" for n, engine in enumerate(engines)})
        specs = tuple(
            EngineSpec(id=f"e{number}", url=engine.url, runtime=SharedRuntime.SGLANG)
            for number, engine in enumerate(engines)
        )
        self.pool = PoolSpec(name="p", models=("m",), engines=specs, **pool)
        self.others: tuple[PoolSpec, ...] = ()
        """Pools that nobody sends to."""
        self.operator = Operator(self)
        self.processes: dict[str, asyncio.subprocess.Process] = {}

    # --- life -------------------------------------------------------------------------------------

    async def start_operator(self) -> None:
        await self.operator.start()
        self.port = int(self.operator.server.endpoints[0].rpartition(":")[2])

    async def replace_operator(self) -> None:
        """Another operator takes over at the same address, with what this one has written down."""
        await self.operator.close()
        self.operator = Operator(self)
        await self.start_operator()

    async def start_proxy(self, name: str, *, control: str, host: str) -> str:
        """Start a proxy process; returns its URL."""
        config = self.directory / f"{name}.yaml"
        settings = {
            "control": self.keys.files,
            "shutdown": {"drain": 0, "grace": "5s"},
            "logging": {"access": False},
        }
        config.write_text(json.dumps(settings))  # JSON is YAML
        command = [sys.executable, "-m", "steersman.cli", "proxy", "--config", str(config)]
        command += ["--control", control, "--host", host, "--port", "0"]
        command += ["--metrics-host", host, "--metrics-port", "0"]
        with (self.directory / f"{name}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *self.network.command(name, command),
                env=os.environ | {"POD_UID": name},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                preexec_fn=dying_with(os.getpid()),
            )
        self.processes[name] = process
        assert process.stdout is not None
        async with asyncio.timeout(WITHIN):
            line = (await process.stdout.readline()).decode()
        assert line.startswith("listening on "), self.log(name)
        return line.replace(",", "").split()[2]

    async def end(self) -> None:
        await self.traffic.stop()
        for process in self.processes.values():
            if process.returncode is None:
                process.kill()
            await process.wait()
        await self.operator.close()

    def log(self, proxy: str) -> str:
        return (self.directory / f"{proxy}.log").read_text()

    # --- the link ---------------------------------------------------------------------------------

    async def cut(self, way: Way) -> None:
        """Cut the link, and wait until the operator knows that it speaks to nobody there.

        What it says from then on is in no buffer that is delivered when the link is back.
        """
        self.network.cut(way)
        await self.until(
            lambda: {one.ref.uid for one in self.operator.server.stats.sessions} == {"near"},
            "the operator misses the proxy",
        )

    # --- what is wanted and believed --------------------------------------------------------------

    def want(self, state: Control, engine: str = "e0") -> None:
        """Ask for a state of one engine, by an override, as a person would."""
        pool = self.pool
        overrides = {**pool.overrides, engine: state}
        self.pool = msgspec.structs.replace(
            pool, overrides=overrides, generation=pool.generation + 1
        )
        self.operator.feed()

    def standing(self, engine: str = "e0") -> Standing:
        """Where an engine stands, in the words of the status."""
        shell = self.operator.shell
        return standing(
            shell.state.engines[engine],
            self.pool,
            state=shell.state,
            timing=TIMING,
            now=shell.now,
        )

    def settled(self, state: Control, engine: str = "e0") -> bool:
        found = self.operator.shell.state.engines[engine]
        return found.op is None and found.facts.control is state is self.pool.goal(engine)

    def acknowledged(self) -> bool:
        """Whether every proxy has the newest table of the operator that leads now."""
        state = self.operator.shell.state
        return state.published and all(
            proxy.acked == state.epoch for proxy in state.proxies.values()
        )

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a state of the world."""
        try:
            async with asyncio.timeout(WITHIN):
                while not condition():  # noqa: ASYNC110 - any state, not one event
                    await asyncio.sleep(0.005)
        except TimeoutError:
            words = {name: self.standing(name) for name in self.operator.shell.state.engines}
            logs = {name: self.log(name)[-2000:] for name in self.processes}
            found = [trespassers(engine) for engine in self.engines]
            raise AssertionError(f"{what}: {found}\n{words}\n{self.traffic}\n{logs}") from None

    # --- what engines have received ---------------------------------------------------------------

    def requests(self, engine: int, *, by: str | None = None) -> list[int]:
        """Journal numbers of the requests of clients (through one proxy) at an engine."""
        return [
            entry.number
            for entry in self.engines[engine].journal.of("/generate")
            if by is None or entry.header("x-client") == by
        ]


@contextlib.asynccontextmanager
async def partitioned(
    directory: Path,
    network: Network,
    *,
    on_unreachable: OnUnreachable,
    **pool: Any,
) -> AsyncIterator[PartitionedFleet]:
    """A fleet that serves through both proxies, with traffic on both."""
    config = EngineConfig(
        runtime=Runtime.SGLANG,
        host=network.engines,
        model="m",
        weight_version="7",
        weights_cpu_backup=True,
        speed=20.0,
    )
    async with contextlib.AsyncExitStack() as stack:
        made = [await stack.enter_async_context(SimEngine(config)) for _ in range(2)]
        fleet = PartitionedFleet(
            directory, network, engines=made, on_unreachable=on_unreachable, **pool
        )
        connector = aiohttp.TCPConnector(limit=0)
        client = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        stack.push_async_callback(fleet.end)
        await fleet.start_operator()
        control = await network.open_control(fleet.port)
        hosts = {"near": network.near, "far": network.far}
        urls = await asyncio.gather(
            *(fleet.start_proxy(name, control=control[name], host=hosts[name]) for name in PROXIES)
        )
        await fleet.until(fleet.acknowledged, "both proxies have the table")
        for name, url in zip(PROXIES, urls, strict=True):
            fleet.traffic.start(client, name, url=url)
        await fleet.until(
            lambda: all(fleet.requests(engine, by=name) for engine in (0, 1) for name in PROXIES),
            "both proxies serve from every engine",
        )
        yield fleet
