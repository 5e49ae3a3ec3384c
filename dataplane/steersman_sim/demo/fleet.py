"""The processes of the run: engines and one proxy, from the first start to the last end."""

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

import aiohttp
import msgspec

from steersman_sim.demo.engine_calls import EngineCalls
from steersman_sim.demo.options import DemoError, DemoOptions
from steersman_sim.demo.processes import Child, end_all, free_ports
from steersman_sim.demo.proxy_status import ProxyWatch
from steersman_sim.demo.records import OLD
from steersman_sim.demo.table import MODEL, Row, TableFile, render_config

_START_WITHIN = 30.0
"""Generous: a busy machine may need long to import the libraries of four processes."""


class Fleet(msgspec.Struct, kw_only=True):
    """What runs."""

    directory: Path
    """Holds the two files and the logs."""
    children: list[Child]
    url: str
    """Where clients send their requests."""
    table: TableFile
    proxy: ProxyWatch
    engines: dict[str, EngineCalls]
    keep_directory: bool = False
    """Whether the logs are worth reading afterwards."""

    async def watch(self) -> NoReturn:
        """Wait for a process to end by itself.

        :raises DemoError: says which one, and the last lines of its log.
        """
        raise await _first_death(self.children)


@asynccontextmanager
async def running_fleet(
    options: DemoOptions, *, session: aiohttp.ClientSession
) -> AsyncIterator[Fleet]:
    """Start everything, and end it whatever happens inside.

    The directory is removed afterwards, unless something broke: then its logs are worth reading.

    :raises DemoError: a process does not start.
    """
    directory = Path(tempfile.mkdtemp(prefix="steersman-demo-"))
    children: list[Child] = []
    keep = True
    try:
        fleet = await _start(options, directory=directory, children=children, session=session)
        yield fleet
        keep = fleet.keep_directory
    except asyncio.CancelledError:
        keep = False  # a signal; nothing is broken
        raise
    except DemoError as error:
        # When a process dies, others complain first; the death is what the reader must know.
        told = await _recent_death(children) or error
        told.add_note(f"The logs are in {directory}")
        raise told from None
    finally:
        await end_all(children)
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


async def _first_death(children: Sequence[Child]) -> DemoError:
    deaths = [asyncio.create_task(child.died()) for child in children]
    try:
        done, _ = await asyncio.wait(deaths, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in deaths:
            task.cancel()
        await asyncio.gather(*deaths, return_exceptions=True)
    return done.pop().result()


async def _recent_death(children: Sequence[Child]) -> DemoError | None:
    if not children:
        return None
    try:
        async with asyncio.timeout(0.5):
            return await _first_death(children)
    except TimeoutError:
        return None


async def _start(
    options: DemoOptions,
    *,
    directory: Path,
    children: list[Child],
    session: aiohttp.ClientSession,
) -> Fleet:
    port, metrics_port, *engine_ports = free_ports(2 + options.engines)
    names = {f"engine-{number + 1}": port for number, port in enumerate(engine_ports)}
    rows = {
        name: Row(id=name, url=f"http://127.0.0.1:{port}", version=OLD)
        for name, port in names.items()
    }
    table = TableFile(directory / "table.yaml", rows=rows)
    config = directory / "proxy.yaml"
    config.write_text(render_config(port=port, metrics_port=metrics_port), encoding="utf-8")
    commands = {
        name: _engine_arguments(options, port=port, seed=options.seed + number)
        for number, (name, port) in enumerate(names.items())
    }
    commands["proxy"] = ["proxy", "--config", str(config), "--table", str(table.path)]
    for name, arguments in commands.items():
        children.append(await Child.start(name, arguments=arguments, directory=directory))
    fleet = Fleet(
        directory=directory,
        children=children,
        url=f"http://127.0.0.1:{port}",
        table=table,
        proxy=ProxyWatch(f"http://127.0.0.1:{metrics_port}", session=session),
        engines={
            name: EngineCalls(name, url=row.url, session=session) for name, row in rows.items()
        },
    )
    checks = {name: calls.ready for name, calls in fleet.engines.items()}
    checks["proxy"] = fleet.proxy.ready
    await asyncio.gather(*(_ready(child, check=checks[child.name]) for child in children))
    return fleet


def _engine_arguments(options: DemoOptions, *, port: int, seed: int) -> list[str]:
    arguments = {
        "--runtime": "sglang",
        "--port": port,
        "--model": MODEL,
        "--weight-version": OLD,
        "--seed": seed,
        # A real load takes minutes; here it takes a twentieth of the run.
        "--refit-seconds": round(options.duration / 20, 2),
        "--journal-limit": 1_000_000,
    }
    return ["sim-engine", *(str(word) for pair in arguments.items() for word in pair)]


async def _ready(child: Child, *, check: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a process serves.

    :raises DemoError: it ends, or does not serve in time.
    """
    began = time.monotonic()
    while not await check():
        if not child.running:
            raise await child.died()
        if time.monotonic() - began > _START_WITHIN:
            raise DemoError(
                f"{child.name} does not answer {_START_WITHIN:g} s after its start. "
                f"{child.last_words()}"
            )
        await asyncio.sleep(0.05)
