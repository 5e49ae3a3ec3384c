"""One account of the fleet for everybody who watches: made once per change, whoever reads it."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import msgspec

_log = logging.getLogger("steersman.api")

WATCH_GAP = 0.2
"""Seconds between two lines; changes in between are told together."""

REFRESH = 5.0
"""Seconds after which a line is told without a change, so that a watcher knows that we live."""

AGES = {"uptime", "heard_age"}
"""What grows by itself and is no change."""


class Lines:
    """The newest status as a line of JSON, and who waits for the next one.

    A watcher that reads slowly holds the line that it is at and no other; the next that it gets is
    the newest. Nothing is done while nobody watches.
    """

    def __init__(
        self,
        status: Callable[[], dict[str, Any]],
        changed: Callable[[], Awaitable[None]],
        *,
        gap: float = WATCH_GAP,
        refresh: float = REFRESH,
    ) -> None:
        self._status = status
        self._changed = changed
        self._gap = gap
        self._refresh = refresh
        self._line = b""
        self._number = 0
        self._content: dict[str, Any] = {}
        self._news = asyncio.Event()
        self._watchers = 0
        self._teller: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def watchers(self) -> int:
        """How many watch now."""
        return self._watchers

    async def follow(self) -> AsyncGenerator[bytes, None]:
        """The status now, and again whenever it has changed; ends when this is closed."""
        self._watchers += 1
        try:
            # Whoever has just changed something must not be told how it was before.
            self._look()
            if self._teller is None or self._teller.done():
                self._teller = asyncio.create_task(self._tell(), name="tell watchers")
            told = -1
            while not self._closed:
                if told == self._number:
                    await self._news.wait()
                    continue
                told = self._number
                yield self._line
        finally:
            self._watchers -= 1
            if not self._watchers and self._teller is not None:
                self._teller.cancel()
                self._teller = None

    async def close(self) -> None:
        """Let everybody go."""
        self._closed = True
        self._wake()
        if self._teller is not None:
            self._teller.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._teller

    async def _tell(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._refresh
        while True:
            # Waiting before it is looked, so that no change falls in between.
            change = asyncio.ensure_future(self._changed())
            try:
                await asyncio.sleep(self._gap)
                overdue = loop.time() >= due
                try:
                    if self._look(anyway=overdue) or overdue:
                        due = loop.time() + self._refresh
                except Exception:  # noqa: BLE001
                    # The watchers keep what they have; perhaps the next account can be made.
                    _log.exception("the status could not be made")
                    due = loop.time() + self._refresh
                await asyncio.wait([change], timeout=max(0.0, due - loop.time()))
            finally:
                change.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await change

    def _look(self, *, anyway: bool = False) -> bool:
        """Make the line anew; returns whether there is a new one."""
        status = self._status()
        content = without_ages(status)
        if content == self._content and not anyway:
            return False
        self._content = content
        self._line = msgspec.json.encode(status) + b"\n"
        self._number += 1
        self._wake()
        return True

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


def without_ages(status: dict[str, Any]) -> dict[str, Any]:
    """The status without what grows by itself."""
    return {
        **status,
        "operator": _without(status.get("operator", {})),
        "proxies": [_without(proxy) for proxy in status.get("proxies", ())],
    }


def _without(content: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name not in AGES}
