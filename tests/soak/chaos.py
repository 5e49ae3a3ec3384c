"""What happens to the soak's proxy and engines: tables, deaths, standstills, no files left."""

import asyncio
import contextlib
import json
import random
import resource
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.soak.content import VERSION
from tests.soak.processes import EngineProcess, ProxyProcess
from tests.soak.world import World


class Tables:
    """The fleet table on disk."""

    def __init__(self, file: Path, engines: Mapping[str, Sequence[EngineProcess]]) -> None:
        self.file = file
        self.engines = engines
        self.written = 0

    def write(self, *, closed: frozenset[str] = frozenset(), without: str | None = None) -> None:
        """Replace it. Engines are named by pool and number, as ``steady-0``."""
        pools = []
        for model, engines in self.engines.items():
            rows: list[dict[str, Any]] = [
                {
                    "id": f"{model}-{number}",
                    "url": engine.url,
                    "weightVersion": VERSION,
                    "gate": "closed" if f"{model}-{number}" in closed else "open",
                }
                for number, engine in enumerate(engines)
            ]
            rows = [row for row in rows if row["id"] != without]
            pools.append({"name": model, "model": model, "engines": rows})
        draft = self.file.with_suffix(".new")
        draft.write_text(json.dumps({"pools": pools}))
        draft.rename(self.file)
        self.written += 1

    async def change(self, world: World, chance: random.Random) -> None:
        """Pauses of single engines and of whole pools, an engine that leaves and comes back."""
        names = {
            model: frozenset(f"{model}-{number}" for number in range(len(engines)))
            for model, engines in self.engines.items()
        }
        everybody = frozenset[str]().union(*names.values())
        try:
            while world.running:
                match chance.randrange(5):
                    case 0:
                        closed = names[chance.choice(sorted(names))]
                    case 1:
                        closed = frozenset(chance.sample(sorted(everybody), 2))
                    case 2:
                        closed = everybody
                    case _:
                        closed = frozenset[str]()
                self.write(closed=closed, without=chance.choice((None, "faulty-2")))
                await asyncio.sleep(0.1 + 0.6 * chance.random())
        finally:
            self.write()


async def deaths(world: World, engines: Sequence[EngineProcess], chance: random.Random) -> None:
    """Engines are killed and come back, or stand still for a while."""
    while world.running:
        engine = chance.choice(engines)
        if chance.random() < 0.5:
            await engine.die()
            await asyncio.sleep(chance.random())
            await engine.start()
        else:
            await engine.stand_still(chance.choice((0.2, 2.0)))
        await asyncio.sleep(0.3 + chance.random())


async def too_many_clients(world: World, *, clients: int) -> None:
    """Connect more clients than there is room for, for a while. The others wait, and lose nothing."""
    async with contextlib.AsyncExitStack() as stack:
        loop = asyncio.get_running_loop()
        for _ in range(clients):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", world.port))
        await asyncio.sleep(1.0)


async def no_files_left(world: World, proxy: ProxyProcess) -> None:
    """Let the proxy have no more files than it has by now, for a while."""
    with world.ledger.excusing(afterwards=1.0):
        soft, hard = resource.prlimit(proxy.process.pid, resource.RLIMIT_NOFILE)
        open_now = sum(proxy.descriptors.values())
        resource.prlimit(proxy.process.pid, resource.RLIMIT_NOFILE, (open_now - 5, hard))
        try:
            await asyncio.sleep(1.0)
        finally:
            resource.prlimit(proxy.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
