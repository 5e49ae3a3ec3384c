"""Two proxies that live on while one operator after the other is killed."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from steersman_operator.standalone.account import Account, ProxyProcess, write_account
from steersman_operator.standalone.layout import Layout
from steersman_operator.standalone.processes import dying_with
from tests.up.fleet import short_directory

WITHIN = 60.0
"""Seconds after which something is taken to be stuck; the machine may be busy."""

ROOT = Path(__file__).parents[3]
PROXIES = ("proxy-0.1", "proxy-1.2")


class Stage:
    """A directory with two proxy processes, as `steersman up` makes them; operators come and go."""

    def __init__(self, directory: Path) -> None:
        self.layout = Layout(directory)
        self.urls: list[str] = []
        self._proxies: dict[str, subprocess.Popen[str]] = {}
        self._processes: list[subprocess.Popen[str]] = []
        self._maker: subprocess.Popen[str] | None = None
        self._doomed: int | None = None
        self._successor: subprocess.Popen[str] | None = None

    # --- proxies ----------------------------------------------------------------------------------

    def start_proxies(self) -> None:
        """In the account before they start, as the supervisor does it."""
        self.layout.make()
        self._account([ProxyProcess(uid=uid) for uid in PROXIES])
        config = self.layout.state / "proxy.yaml"
        # JSON is YAML.
        config.write_text(json.dumps({"logging": {"access": False}, "shutdown": {"drain": 0}}))
        arguments = ["steersman.cli", "proxy", "--control", self.layout.control_endpoint]
        arguments += ["--port", "0", "--metrics-port", "0", "--config", str(config)]
        self._proxies = {
            uid: self._start(uid, *arguments, environment={"POD_UID": uid}) for uid in PROXIES
        }

    def proxies_started(self) -> None:
        """Wait for them."""
        listed = []
        for uid, process in self._proxies.items():
            assert process.stdout is not None
            words = process.stdout.readline().replace(",", "").split()
            assert words[:2] == ["listening", "on"], self.layout.log(uid).read_text()
            self.urls.append(words[2])
            listed.append(ProxyProcess(uid=uid, pid=process.pid, metrics_url=words[5]))
        self._account(listed)

    def _account(self, processes: list[ProxyProcess]) -> None:
        account = Account(starts=len(PROXIES), processes=tuple(processes))
        write_account(self.layout.proxies, account)

    @property
    def proxy_pids(self) -> list[int]:
        return [process.pid for process in self._proxies.values()]

    # --- operators --------------------------------------------------------------------------------

    async def start_doomed(self, *words: object) -> int:
        """An operator that kills itself (see killed_operator.py for the words); returns its pid."""
        if self._maker is None:
            self._maker = self._start("operator", "tests.up.killed.killed_operator")
        assert self._maker.stdin is not None
        print(self.layout.directory, *words, file=self._maker.stdin, flush=True)
        self._doomed = int(await self._said())
        return self._doomed

    async def doomed_ended(self) -> int:
        """Wait for its end; returns how it ended."""
        code = int(await self._said())
        self._doomed = None
        return code

    async def _said(self) -> str:
        assert self._maker is not None and self._maker.stdout is not None
        async with asyncio.timeout(WITHIN):
            return await asyncio.to_thread(self._maker.stdout.readline)

    def start_successor(self) -> None:
        """The operator as `steersman up` starts it; it takes over when the one before is gone."""
        arguments = ["steersman_operator.standalone.main", str(self.layout.directory)]
        self._successor = self._start("operator", *arguments, "--metrics-port", "0")

    def end_operators(self, *, failed: bool = False) -> None:
        """End the operators of the case before.

        If that has ``failed``, a thread may wait for word of one: it would do so for ever.
        """
        successor, self._successor = self._successor, None
        if (failed or self._doomed is not None) and self._maker is not None:
            self._end(self._maker)  # and what it has forked with it
            self._maker = self._doomed = None
        if successor is not None:
            self._end(successor)

    def _start(
        self, log: str, *arguments: str, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        with self.layout.log(log).open("a") as stderr:
            process = subprocess.Popen(
                (sys.executable, "-m", *arguments),
                cwd=ROOT,
                env=os.environ | (environment or {}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                bufsize=1,
                preexec_fn=dying_with(os.getpid()),
            )
        self._processes.append(process)
        return process

    def end(self) -> None:
        """End everything."""
        for process in self._processes:
            self._end(process)

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


@contextlib.contextmanager
def stages(count: int) -> Iterator[list[Stage]]:
    """Such directories, with their proxies running."""
    with contextlib.ExitStack() as stack:
        made = [Stage(stack.enter_context(short_directory())) for _ in range(count)]
        for stage in made:
            stack.callback(stage.end)
            stage.start_proxies()
        for stage in made:
            stage.proxies_started()
        yield made
