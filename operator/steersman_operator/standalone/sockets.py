"""Sockets that others find by their path: whether they are still there.

Whoever removes one cuts everybody off who comes later, and a socket cannot be put back. An operator whose
sockets are gone ends, and is started again with new ones.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from steersman.errors import SteersmanError

POLL = 1.0
"""Seconds between two looks."""


class SocketGone(SteersmanError):
    """A socket of the operator was removed or replaced."""

    code = "socket_gone"
    remedy = "Leave the files in .steersman alone; `steersman up` starts the operator anew."


async def watch_sockets(paths: Iterable[Path], *, every: float = POLL) -> None:
    """Look at sockets that are there now until one of them is another file, or none.

    :raises SocketGone: then.
    """
    known = {path: _identity(path) for path in paths}
    while True:
        await asyncio.sleep(every)
        for path, identity in known.items():
            if _identity(path) != identity:
                raise SocketGone(f"{path} was removed or replaced; the operator starts anew")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
