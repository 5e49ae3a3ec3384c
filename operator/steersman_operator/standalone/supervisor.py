"""Keeps the processes of a standalone fleet running: one operator and N proxies.

A process that ends is started again, at once the first time and then more slowly. The account of
proxies (:mod:`steersman_operator.standalone.account`) is kept so that the operator never believes a
proxy gone before the system has confirmed its end.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec

from steersman.clock import Clock
from steersman_operator.standalone.account import (
    Account,
    ProxyProcess,
    is_alive,
    read_account,
    write_account,
)
from steersman_operator.standalone.layout import Layout
from steersman_operator.standalone.processes import Child

_log = logging.getLogger("steersman.up")

FIRST_DELAY = 0.1
LONGEST_DELAY = 5.0
UID_VARIABLE = "POD_UID"
"""Where a proxy looks for the uid under which it says hello."""

STEADY = 10.0
"""Seconds of life after which a death counts as the first again."""


class UpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What `steersman up` was told."""

    proxies: int = 1
    host: str = "127.0.0.1"
    port: int = 30000
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 29000
    """Of the operator; the proxies have those after it."""
    proxy_config: str | None = None
    record: str | None = None


class Supervisor:
    """Starts, watches, restarts and ends the processes."""

    def __init__(self, layout: Layout, settings: UpSettings, *, clock: Clock) -> None:
        self._layout = layout
        self._settings = settings
        self._clock = clock
        self._account = Account()
        self._leaving = False
        self._tasks: list[asyncio.Task[None]] = []
        self._children: dict[str, Child] = {}
        self.on_change: Callable[[], None] = lambda: None
        self.restarts = 0
        """Processes that ended without having been asked to."""

    def begin_account(self) -> None:
        """Carry on the account of a supervisor before this one.

        Its children died with it. One that has not ended yet is ended here: nobody could ever
        confirm its end afterwards.
        """
        before = read_account(self._layout.proxies)
        if before is not None:
            for process in before.processes:
                if process.pid is not None and _is_ours(process.pid, process.uid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGKILL)
        self._account = Account(starts=0 if before is None else before.starts)

    async def wait_for_strays(self) -> None:
        """Wait until no child of a supervisor before this one is left."""
        before = read_account(self._layout.proxies)
        for process in () if before is None else before.processes:
            # Not a child of this process, so that its end can only be looked for.
            while process.pid is not None and _is_ours(process.pid, process.uid):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        self._write()

    def start(self) -> None:
        """Start everything."""
        self._tasks.append(asyncio.create_task(self._keep_operator(), name="keep operator"))
        for slot in range(self._settings.proxies):
            self._tasks.append(asyncio.create_task(self._keep_proxy(slot), name=f"keep {slot}"))

    async def close(self) -> None:
        """End everything: the proxies drain first, then the operator goes."""
        self._leaving = True
        proxies = [child for name, child in self._children.items() if name != "operator"]
        await asyncio.gather(*(child.stop() for child in proxies))
        operator = self._children.get("operator")
        if operator is not None:
            await operator.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def pids(self) -> dict[str, int | None]:
        """The processes by name."""
        return {name: child.pid for name, child in self._children.items()}

    # --- keeping ----------------------------------------------------------------------------------

    async def _keep_operator(self) -> None:
        arguments = ["steersman_operator.standalone.main", str(self._layout.directory)]
        arguments += ["--metrics-host", self._settings.metrics_host]
        arguments += ["--metrics-port", str(self._settings.metrics_port)]
        if self._settings.record is not None:
            arguments += ["--record", self._settings.record]
        log = self._layout.log("operator")

        async def run() -> None:
            child = Child("operator", arguments, log=log, environment={})
            await self._run("operator", child)

        await self._keep(run)

    async def _keep_proxy(self, slot: int) -> None:
        async def run() -> None:
            await self._run_proxy(slot)

        await self._keep(run)

    async def _keep(self, run: Callable[[], Coroutine[None, None, None]]) -> None:
        delay = FIRST_DELAY
        while True:
            started = self._clock.now()
            await run()
            if self._leaving:
                return
            self.restarts += 1
            lived = self._clock.now() - started
            delay = FIRST_DELAY if lived > STEADY else min(LONGEST_DELAY, delay * 2)
            await asyncio.sleep(delay)

    async def _run(self, name: str, child: Child) -> None:
        try:
            pid = await child.start()
        except OSError as error:
            _log.error("%s cannot be started: %s", name, error)
            return
        _log.info("%s started, pid %d", name, pid)
        self._children[name] = child
        self.on_change()
        code = await child.wait()
        if not self._leaving:
            _log.warning("%s ended (%s); %s", name, _how(code), " | ".join(child.last_lines(2)))
        self.on_change()

    async def _run_proxy(self, slot: int) -> None:
        """One life of a proxy: in the account before it starts, out of it after its end."""
        number = self._account.starts + 1
        uid = f"proxy-{slot}.{number}"
        metrics_port = self._settings.metrics_port + 1 + slot if self._settings.metrics_port else 0
        process = ProxyProcess(uid=uid, metrics_port=metrics_port)
        self._account = msgspec.structs.replace(
            self._account, starts=number, processes=(*self._account.processes, process)
        )
        self._write()
        child = Child(
            f"proxy-{slot}",
            self._proxy_arguments(metrics_port),
            log=self._layout.log(f"proxy-{slot}"),
            environment={UID_VARIABLE: uid},
        )
        try:
            pid = await child.start()
        except OSError as error:
            _log.error("proxy-%d cannot be started: %s", slot, error)
            self._strike(uid)
            return
        self._change(uid, pid=pid)
        self._children[f"proxy-{slot}"] = child
        self.on_change()
        code = await child.wait()
        self._strike(uid)
        if not self._leaving:
            lines = " | ".join(child.last_lines(2))
            _log.warning("proxy-%d ended (%s); %s", slot, _how(code), lines)
        self.on_change()

    def _proxy_arguments(self, metrics_port: int) -> list[str]:
        settings = self._settings
        arguments = ["steersman.cli", "proxy", "--control", self._layout.control_endpoint]
        arguments += ["--host", settings.host, "--port", str(settings.port), "--reuse-port"]
        arguments += ["--metrics-host", settings.metrics_host, "--metrics-port", str(metrics_port)]
        if settings.proxy_config is not None:
            arguments += ["--config", settings.proxy_config]
        return arguments

    # --- the account ------------------------------------------------------------------------------

    def _change(self, uid: str, *, pid: int) -> None:
        processes = tuple(
            msgspec.structs.replace(process, pid=pid) if process.uid == uid else process
            for process in self._account.processes
        )
        self._account = msgspec.structs.replace(self._account, processes=processes)
        self._write()

    def _strike(self, uid: str) -> None:
        left = tuple(process for process in self._account.processes if process.uid != uid)
        self._account = msgspec.structs.replace(self._account, processes=left)
        self._write()

    def _write(self) -> None:
        write_account(self._layout.proxies, self._account)


def _is_ours(pid: int, uid: str) -> bool:
    """Whether a pid still belongs to the proxy that was started under it."""
    if not is_alive(pid):
        return False
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{UID_VARIABLE}={uid}".encode() in environment.split(b"\0")


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
