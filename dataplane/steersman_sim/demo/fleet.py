"""The processes of the run, from the first start to the last end: simulated engines, and the fleet
of `steersman up` over them.
"""

import asyncio
import os
import re
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

import aiohttp
import msgspec

from steersman_sim.demo.commands import Commands
from steersman_sim.demo.engine_calls import EngineCalls
from steersman_sim.demo.manifest import MODEL, render_manifest
from steersman_sim.demo.options import PROXIES, DemoError, DemoOptions
from steersman_sim.demo.processes import Child, end_all, free_ports
from steersman_sim.demo.proxy_status import ProxyWatch
from steersman_sim.demo.records import OLD
from steersman_sim.demo.scenario import LOAD_FOR

_START_WITHIN = 60.0
"""Generous: a busy machine may need long to import the libraries of seven processes."""

_SERVING = re.compile(r"^serving on (http://\S+) with", re.MULTILINE)
"""What `steersman up` prints when every proxy has a table."""

_LONGEST_PARENT = 59
"""Bytes. The fleet has sockets below its directory, and the path of a unix socket is limited."""

UP = "up"
"""The name of the process that keeps operator and proxies running."""


class Fleet(msgspec.Struct, kw_only=True):
    """What runs."""

    directory: Path
    """Holds the manifest, the fleet's state and the logs."""
    children: list[Child]
    url: str
    """Where clients send their requests."""
    commands: Commands
    proxies: ProxyWatch
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
    parent = short_parent(tempfile.gettempdir())
    directory = Path(tempfile.mkdtemp(prefix="steersman-demo-", dir=parent))
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
        if told is error:
            _add_log(error, children)
        told.add_note(f"The logs are in {directory}")
        raise told from None
    finally:
        await end_all(children)
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


def short_parent(wanted: str) -> str:
    """A directory for temporary files in which the paths of sockets are short enough."""
    return wanted if len(os.fsencode(wanted)) <= _LONGEST_PARENT else "/tmp"  # noqa: S108


def _add_log(error: DemoError, children: Sequence[Child]) -> None:
    """Add what `steersman up` said last: it starts its processes again, and tells why they ended."""
    for child in children:
        if child.name == UP and child.output():
            error.add_note(f"{child.log.name}: {child.last_words()}")


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
    engines: dict[str, EngineCalls] = {}
    for number, port in enumerate(free_ports(options.engines), start=1):
        name = f"engine-{number}"
        arguments = _engine_arguments(options, port=port, seed=options.seed + number)
        children.append(await Child.start(name, arguments=arguments, directory=directory))
        engines[name] = EngineCalls(name, url=f"http://127.0.0.1:{port}", session=session)
    await asyncio.gather(
        *(_ready(child, check=engines[child.name].ready, what="answer") for child in children)
    )
    manifest = render_manifest({name: calls.url for name, calls in engines.items()})
    (directory / "rollout.yaml").write_text(manifest, encoding="utf-8")
    fleet = await Child.start(UP, arguments=_up_arguments(directory), directory=directory)
    children.append(fleet)

    async def serves() -> bool:
        return _SERVING.search(fleet.output()) is not None

    await _ready(fleet, check=serves, what="serve")
    served = _SERVING.search(fleet.output())
    assert served is not None, "it was there before"
    commands = Commands(directory)
    proxies = ProxyWatch(
        metrics_urls(await commands.run("get", "proxies", "-o", "json")), session=session
    )

    async def all_open() -> bool:
        status = await proxies.ask()
        return all(status.all_open(calls.url, version=OLD) for calls in engines.values())

    await _ready(fleet, check=all_open, what="open the engines")
    return Fleet(
        directory=directory,
        children=children,
        url=served[1],
        commands=commands,
        proxies=proxies,
        engines=engines,
    )


def _engine_arguments(options: DemoOptions, *, port: int, seed: int) -> list[str]:
    arguments = {
        "--runtime": "sglang",
        "--port": port,
        "--model": MODEL,
        "--weight-version": OLD,
        "--seed": seed,
        # A real load takes minutes.
        "--refit-seconds": round(options.duration * LOAD_FOR, 2),
        "--journal-limit": 1_000_000,
    }
    words = [str(word) for pair in arguments.items() for word in pair]
    # Without it SGLang wakes with memory full of nothing, and stays closed until it is refitted.
    return ["sim-engine", *words, "--enable-weights-cpu-backup"]


def _up_arguments(directory: Path) -> list[str]:
    ports = ["--port", "0", "--metrics-port", "0", "--operator-metrics-port", "0"]
    return ["up", "-f", str(directory), "--proxies", str(PROXIES), *ports, "--plain"]


class _Proxy(msgspec.Struct):
    metrics_url: str


class _Item(msgspec.Struct):
    status: _Proxy


class _Items(msgspec.Struct):
    items: list[_Item]


def metrics_urls(output: str) -> list[str]:
    """Where the proxies tell of themselves, from the output of ``steersman get proxies -o json``.

    :raises DemoError: it is something else.
    """
    try:
        return [item.status.metrics_url for item in msgspec.json.decode(output, type=_Items).items]
    except msgspec.MsgspecError as error:
        raise DemoError(f"`steersman get proxies` has another form ({error}): {output}") from None


async def _ready(child: Child, *, check: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until a process does ``what``.

    :raises DemoError: it ends, or does not come to that in time.
    """
    began = time.monotonic()
    while not await check():
        if not child.running:
            raise await child.died()
        if time.monotonic() - began > _START_WITHIN:
            raise DemoError(
                f"{child.name} does not {what} {_START_WITHIN:g} s after its start. "
                f"{child.last_words()}"
            )
        await asyncio.sleep(0.05)
