"""The README's commands, run as they stand there."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.up.fleet import short_directory

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(
    r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
)


READY = {"steersman up": "serving on ", "steersman proxy": "listening on "}
"""Programs that run until Ctrl-C, and what each says once it serves."""

WITHIN = 90.0


class Terminal:
    """One shell after the other, in one directory; what stays running is ended at the end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.running: list[asyncio.subprocess.Process] = []
        self.variables = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(directory),
        }

    async def run(self, block: str) -> str:
        """Run a block as a reader would; returns what it says."""
        for line in block.splitlines():
            if match := re.fullmatch(r"export (\w+)=(\S+)", line):
                self.variables[match[1]] = match[2]
        log = self.directory / f"block-{len(list(self.directory.glob('block-*')))}.log"
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                *("bash", "-euo", "pipefail", "-c", block),
                cwd=self.directory,
                env=self.variables,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.running.append(process)
        serves = next((said for start, said in READY.items() if f"\n{start}" in f"\n{block}"), None)
        async with asyncio.timeout(WITHIN):
            if serves is None:
                assert await process.wait() == 0, f"{block}\n{log.read_text()}"
            else:
                while serves not in log.read_text():
                    assert process.returncode is None, f"{block}\n{log.read_text()}"
                    await asyncio.sleep(0.05)
        return log.read_text()

    async def close(self) -> None:
        """End whatever still runs, what each block has left in the background too."""
        for number in (signal.SIGINT, signal.SIGKILL):
            for process in reversed(self.running):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            for process in self.running:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(15):
                        await process.wait()


@contextlib.asynccontextmanager
async def terminal() -> AsyncIterator[Terminal]:
    with short_directory() as directory:
        shutil.copytree(ROOT / "docs" / "examples", directory / "docs" / "examples")
        made = Terminal(directory)
        try:
            yield made
        finally:
            await made.close()


@pytest.mark.timeout(300)
async def test_every_command_of_the_readme_works_in_its_order() -> None:
    said: list[str] = []
    async with terminal() as it:
        for block in BLOCKS:
            if block.startswith("make "):
                continue
            said.append(await it.run(block))

    everything = "\n".join(said)
    assert "HTTP/1.1 200 OK" in everything
    assert re.search(r"x-smg-routed-worker-id: http://127\.0\.0\.1:810[12]", everything)
    assert re.search(r"^qwen-1 +qwen +Asleep +Asleep +closed +Settled", everything, re.MULTILINE)
    assert "rolloutengine/llama paused" in everything
    assert "condition met: Ready=True" in everything


def test_what_is_not_run_here_is_a_stage_of_the_check_of_every_submission() -> None:
    check = (ROOT / ".ci" / "run").read_text()
    left_out = [block.split("\n")[0] for block in BLOCKS if block.startswith("make ")]
    assert left_out
    for line in "\n".join(block for block in BLOCKS if block.startswith("make ")).splitlines():
        command = line.partition("#")[0].partition("&&")[0].strip()
        assert any(
            f"|{command}" in stage
            or stage.strip().endswith(f'{command}"')
            or (command == "make bench" and "make bench-smoke" in stage)
            for stage in check.splitlines()
        ), command
