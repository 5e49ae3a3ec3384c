"""The commands that change the fleet, run one at a time as a person types them."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from steersman_sim.demo.options import DemoError
from steersman_sim.demo.processes import start_steersman

_WITHIN = 60.0
"""Seconds that a command gets. It ends when what it asks for is so; a busy machine needs longer."""


def typed(words: Sequence[str]) -> str:
    """A command as a person types it."""
    return " ".join(("steersman", *words))


class Commands:
    """Runs ``steersman ...`` in the directory of the fleet, where no option need say which is meant."""

    def __init__(self, directory: Path, *, within: float = _WITHIN) -> None:
        self._directory = directory
        self._within = within

    async def run(self, *words: str) -> str:
        """Run a command to its end; returns what it printed.

        :raises DemoError: it failed or did not end; has its output.
        """
        process = await start_steersman(
            words,
            directory=self._directory,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdout is not None, "its output is a pipe"
        output = bytearray()
        try:
            async with asyncio.timeout(self._within):
                while part := await process.stdout.read(65536):
                    output += part
                code = await process.wait()
        except TimeoutError:
            raise self._failure(words, f"has not ended after {self._within:g} s", output) from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if code:
            raise self._failure(words, f"ended with exit code {code}", output)
        return output.decode(errors="replace")

    @staticmethod
    def _failure(words: Sequence[str], what: str, output: bytes | bytearray) -> DemoError:
        lines = output.decode(errors="replace").rstrip().splitlines()
        said = ":\n" + "\n".join(f"  {line}" for line in lines) if lines else " without a word."
        return DemoError(f"`{typed(words)}` {what}{said}")
