"""Watching the fleet for the terminal of ``steersman up``: its status, as often as it changes."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from steersman.errors import SteersmanError
from steersman_operator.client import FleetClient
from steersman_operator.standalone.layout import Layout
from steersman_operator.standalone.settings import UpSettings

POLL = 0.25
"""Seconds between two questions."""


async def watch_fleet(
    layout: Layout, settings: UpSettings, *, show: Callable[[dict[str, Any], UpSettings], None]
) -> None:
    """Show the fleet until cancelled. While the operator does not answer, nothing is shown anew."""
    client = FleetClient(layout.directory)
    while True:
        with contextlib.suppress(SteersmanError, OSError):
            show(await asyncio.to_thread(client.status), settings)
        await asyncio.sleep(POLL)
