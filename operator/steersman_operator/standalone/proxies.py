"""What the operator knows of proxy processes: the supervisor's account, read as it changes."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from steersman.clock import Clock
from steersman_operator.fleet.events import ProxiesRequired, ProxyRef
from steersman_operator.standalone.account import Account, ProxyProcess, read_account

POLL = 0.1
"""Seconds between two looks at the account."""


class ProxyAccount:
    """Turns the account into events, and says who may say hello.

    Whoever is not in the account is turned away: a process is written into it before it starts, so
    that nobody can serve without being waited for, and nobody is waited for whose end the supervisor
    could not tell.
    """

    def __init__(
        self, path: Path, *, clock: Clock, feed: Callable[[ProxiesRequired], None]
    ) -> None:
        self._path = path
        self._clock = clock
        self._feed = feed
        self._signature: tuple[int, int, int] | None = None
        self._account = Account()

    @property
    def processes(self) -> tuple[ProxyProcess, ...]:
        """Those that were listed when it was last read."""
        return self._account.processes

    def read(self) -> None:
        """Read the account if it has changed, and tell the core."""
        signature = _signature(self._path)
        if signature is None or signature == self._signature:
            return
        account = read_account(self._path)
        if account is None:
            return
        self._signature, before, self._account = signature, self._account, account
        if account.refs != before.refs or not before.starts:
            self._feed(ProxiesRequired(now=self._clock.now(), proxies=account.refs))

    def may_join(self, ref: ProxyRef, _: str | None) -> bool:
        """Whether a hello is from a process of this fleet; it is then known to the core, too."""
        self.read()
        return any(
            known.uid == ref.uid and known.boot in ("", ref.boot) for known in self._account.refs
        )

    async def follow(self) -> None:
        """Read it again and again, until cancelled."""
        while True:
            self.read()
            await asyncio.sleep(POLL)


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
