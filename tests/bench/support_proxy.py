"""The control side of a proxy as a process of its own: the real client, the real routing fleet.

    python -m tests.bench.support_proxy ENDPOINT UID

It takes no requests. It ends when its standard input does.
"""

import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import uvloop

from steersman.clock import MonotonicClock
from steersman.settings import PoolSettings
from steersman_proxy.control import ControlClient
from steersman_proxy.routing.fleet import Fleet
from tests.bench.support import TOP, end_of_input


async def serve(endpoint: str, uid: str) -> None:
    clock = MonotonicClock()
    fleet = Fleet(clock=clock, defaults=PoolSettings(), pool_settings={}, rl_enabled=True)
    client = ControlClient(
        fleet,
        addresses=(endpoint,),
        uid=uid,
        boot=secrets.token_hex(8),
        clock=clock,
        cut=lambda engine, reason: None,
    )
    await client.start()
    try:
        await end_of_input()
    finally:
        await client.close()


@contextmanager
def proxy_processes(count: int, endpoint: str) -> Iterator[list[str]]:
    """So many proxies, each in a process of its own; their uids."""
    uids = [f"proxy-{number}" for number in range(count)]
    command = [sys.executable, "-m", "tests.bench.support_proxy", endpoint]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes.extend(
            subprocess.Popen([*command, uid], cwd=TOP, stdin=subprocess.PIPE) for uid in uids
        )
        yield uids
    finally:
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in processes:
            process.wait()


if __name__ == "__main__":
    uvloop.run(serve(*sys.argv[1:]))
