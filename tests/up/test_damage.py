"""What lies in `.steersman`, damaged while the fleet runs."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.up.fleet import UpFleet, end, manifest, sims, up


def connected(status: dict[str, Any]) -> int:
    return sum(proxy["connected"] for proxy in status["proxies"])


async def test_a_proxy_that_ends_while_the_account_cannot_be_written_is_started_again() -> None:
    async with sims(1) as engines, up({"a.yaml": manifest("a", engines)}, proxies=2) as fleet:
        await fleet.until(lambda now: connected(now) == 2)
        victim = (await fleet.proxy_pids())[0]
        # As on a full disk: there is no way to put another file in its place.
        account = fleet.state / "proxies.json"
        account.unlink()
        account.mkdir()
        os.kill(victim, signal.SIGKILL)
        await _until_said(fleet, "proxy-0 cannot be started")
        account.rmdir()

        # Another one has taken its place, and nobody waits for the one that is gone.
        status = await fleet.until(
            lambda now: (
                connected(now) == 2 and victim not in [proxy["pid"] for proxy in now["proxies"]]
            )
        )
        assert len(status["proxies"]) == 2
        assert (await fleet.edit("a", "pause"))[0] == 200
        await fleet.settled("paused")


async def test_a_second_up_is_refused_also_after_the_lock_file_was_removed() -> None:
    async with sims(1) as engines, up({"a.yaml": manifest("a", engines)}) as fleet:
        pids = await fleet.proxy_pids()
        (fleet.state / "lock").unlink()
        second = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "steersman.cli", "up", "-f", str(fleet.directory)),
            *("--port", "0", "--metrics-port", "0", "--operator-metrics-port", "0"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(60):
                said, _ = await second.communicate()
        finally:
            await end(second)
        assert second.returncode == 1
        assert f"a fleet runs in {fleet.directory} already" in said.decode()
        assert await fleet.proxy_pids() == pids


def _remove(account: Path) -> None:
    account.unlink()


def _truncate(account: Path) -> None:
    account.write_bytes(account.read_bytes()[:20])


@pytest.mark.parametrize("damage", [_remove, _truncate])
async def test_an_operator_that_starts_after_the_account_was_damaged_gets_it_anew(
    damage: Callable[[Path], None],
) -> None:
    async with sims(1) as engines, up({"a.yaml": manifest("a", engines)}) as fleet:
        before = (await fleet.status())["operator"]
        damage(fleet.state / "proxies.json")
        os.kill(before["pid"], signal.SIGKILL)

        await fleet.until(
            lambda now: now["operator"]["term"] > before["term"] and now["operator"]["published"]
        )
        assert (await fleet.edit("a", "pause"))[0] == 200
        await fleet.settled("paused")


async def _until_said(fleet: UpFleet, text: str) -> None:
    async with asyncio.timeout(30):
        while text not in fleet.output:  # noqa: ASYNC110 (said by another process)
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("name", ["api.sock", "control.sock"])
async def test_a_socket_that_is_removed_is_made_anew(name: str) -> None:
    async with sims(1) as engines, up({"a.yaml": manifest("a", engines)}) as fleet:
        before = (await fleet.status())["operator"]
        (fleet.state / name).unlink()
        await fleet.until(
            lambda now: now["operator"]["term"] > before["term"] and now["operator"]["published"]
        )
        assert (await fleet.edit("a", "pause"))[0] == 200
        await fleet.settled("paused")
        assert f"{name} was removed or replaced" in fleet.log()
