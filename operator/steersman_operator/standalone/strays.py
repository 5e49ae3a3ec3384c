"""Processes of a supervisor that was killed: found by what they were started with, and ended.

The system kills them with their parent. Until it has, a second fleet of the same directory must not
begin: nobody could tell the end of a proxy that is in no account.
"""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

FLEET_VARIABLE = "STEERSMAN_FLEET"
"""In the environment of every child: the state directory of its fleet."""


def strays(state: Path) -> list[int]:
    """The processes of the fleet of a state directory."""
    mark = f"{FLEET_VARIABLE}={state}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue  # it has ended, or is somebody else's
        if mark in environment.split(b"\0"):
            found.append(int(entry.name))
    return found


async def end_strays(state: Path) -> int:
    """End them, and wait until the system says that they have; returns how many there were."""
    ended: set[int] = set()
    while left := strays(state):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended.update(left)
        await asyncio.sleep(0.02)
    return len(ended)
