"""Keeps the processes of a standalone fleet running: one operator and N proxies.

A process that ends is started again, at once the first time and then more slowly. The account of
proxies (:mod:`steersman_operator.standalone.account`) is kept so that the operator never believes a
proxy gone before the system has confirmed its end.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine

import msgspec

from steersman.clock import Clock
from steersman_operator.standalone.account import (
    Account,
    ProxyProcess,
    starts_before,
    write_account,
)
from steersman_operator.standalone.layout import Layout
from steersman_operator.standalone.processes import Child
from steersman_operator.standalone.proxy_config import write_proxy_config
from steersman_operator.standalone.settings import UpSettings
from steersman_operator.standalone.strays import FLEET_VARIABLE, end_strays

_log = logging.getLogger("steersman.up")

FIRST_DELAY = 0.1
LONGEST_DELAY = 5.0
UID_VARIABLE = "POD_UID"
"""Where a proxy looks for the uid under which it says hello."""

BOOT_VARIABLE = "STEERSMAN_BOOT"
"""The same for the name of this one process."""

DRAIN_GRACE = 40.0
"""Seconds that a proxy may take to end; its own configuration ends the drain before."""

STEADY = 10.0
"""Seconds of life after which a death counts as the first again."""


class Supervisor:
    """Starts, watches, restarts and ends the processes."""

    def __init__(self, layout: Layout, settings: UpSettings, *, clock: Clock) -> None:
        self._layout = layout
        self._settings = settings
        self._clock = clock
        self._environment = {FLEET_VARIABLE: str(layout.state)}
        self._account = Account()
        self._leaving = False
        self._tasks: list[asyncio.Task[None]] = []
        self._children: dict[str, Child] = {}

    async def begin(self) -> None:
        """Carry on the account of a supervisor before this one, whose children have ended."""
        ended = await end_strays(self._layout.state)
        if ended:
            _log.warning("%d processes of a fleet that was killed here are ended", ended)
        self._account = Account(starts=starts_before(self._layout.proxies))
        self._write()

    def start(self) -> None:
        """Start everything."""
        self._tasks.append(asyncio.create_task(self._keep_operator(), name="keep operator"))
        for slot in range(self._settings.proxies):
            self._tasks.append(asyncio.create_task(self._keep_proxy(slot), name=f"keep {slot}"))

    async def close(self, *, hurry: asyncio.Event | None = None) -> None:
        """End everything: the proxies drain first, then the operator goes.

        ``hurry`` ends the drain when it is set.
        """
        self._leaving = True
        proxies = [child for name, child in self._children.items() if name != "operator"]
        hurried = asyncio.create_task(_kill_when(hurry or asyncio.Event(), proxies))
        await asyncio.gather(*(child.stop(grace=DRAIN_GRACE) for child in proxies))
        hurried.cancel()
        await asyncio.gather(hurried, return_exceptions=True)
        operator = self._children.get("operator")
        if operator is not None:
            await operator.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- keeping ----------------------------------------------------------------------------------

    async def _keep_operator(self) -> None:
        arguments = ["steersman_operator.standalone.main", str(self._layout.directory)]
        arguments += ["--metrics-host", self._settings.metrics_host]
        arguments += ["--metrics-port", str(self._settings.operator_metrics_port)]
        arguments += ["--endpoint", self._settings.endpoint]
        if self._settings.record is not None:
            arguments += ["--record", self._settings.record]
        log = self._layout.log("operator")

        async def run() -> None:
            # Whoever has removed or damaged the account meanwhile: a new operator has no other.
            self._write_if_possible()
            child = Child("operator", arguments, log=log, environment=self._environment)
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
        code = await child.wait()
        if not self._leaving:
            _log.warning("%s ended (%s); %s", name, _how(code), " | ".join(child.last_lines(2)))

    async def _run_proxy(self, slot: int) -> None:
        """One life of a proxy: in the account before it starts, out of it after its end."""
        number = self._account.starts + 1
        uid = f"proxy-{slot}.{number}"
        metrics_port = self._settings.metrics_ports[slot]
        boot = secrets.token_hex(8)
        url = self._settings.metrics_url(metrics_port)
        process = ProxyProcess(uid=uid, boot=boot, metrics_url=url)
        self._account = msgspec.structs.replace(
            self._account, starts=number, processes=(*self._account.processes, process)
        )
        try:
            self._write()
            child = Child(
                f"proxy-{slot}",
                self._proxy_arguments(metrics_port),
                log=self._layout.log(f"proxy-{slot}"),
                environment=self._environment | {UID_VARIABLE: uid, BOOT_VARIABLE: boot},
            )
            pid = await child.start()
        except OSError as error:
            _log.error("proxy-%d cannot be started: %s", slot, error)
            self._strike(uid)
            return
        self._change(uid, pid=pid)
        self._children[f"proxy-{slot}"] = child
        code = await child.wait()
        self._strike(uid)
        if not self._leaving:
            lines = " | ".join(child.last_lines(2))
            _log.warning("proxy-%d ended (%s); %s", slot, _how(code), lines)

    def _proxy_arguments(self, metrics_port: int) -> list[str]:
        settings = self._settings
        arguments = ["steersman.cli", "proxy", "--control", self._layout.control_endpoint]
        arguments += ["--host", settings.host, "--port", str(settings.port), "--reuse-port"]
        arguments += ["--metrics-host", settings.metrics_host, "--metrics-port", str(metrics_port)]
        if settings.proxy_config is None:
            # At each start anew: a proxy that ended for a wrong key gets the right one.
            write_proxy_config(self._layout)
        config = settings.proxy_config or str(self._layout.proxy_config)
        return [*arguments, "--config", config]

    # --- the account ------------------------------------------------------------------------------

    def _change(self, uid: str, *, pid: int) -> None:
        processes = tuple(
            msgspec.structs.replace(process, pid=pid) if process.uid == uid else process
            for process in self._account.processes
        )
        self._account = msgspec.structs.replace(self._account, processes=processes)
        self._write_if_possible()

    def _strike(self, uid: str) -> None:
        left = tuple(process for process in self._account.processes if process.uid != uid)
        self._account = msgspec.structs.replace(self._account, processes=left)
        self._write_if_possible()

    def _write(self) -> None:
        """Write the account; without it no proxy may be started.

        :raises OSError: if it cannot be written.
        """
        write_account(self._layout.proxies, self._account)

    def _write_if_possible(self) -> None:
        """The same where nothing depends on it at once: it is written again before the next start."""
        try:
            self._write()
        except OSError as error:
            _log.error("%s cannot be written: %s", self._layout.proxies, error.strerror)


async def _kill_when(hurry: asyncio.Event, children: list[Child]) -> None:
    await hurry.wait()
    for child in children:
        child.kill()


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
