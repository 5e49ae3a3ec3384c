"""The nearest thing to a cut link that needs no privilege: a relay that stops passing on.

Both connections stay, nobody sees their end, and nothing arrives. Other than with a link that is cut
the system acknowledges what is sent, and takes new connections; nobody answers them.
"""

import asyncio
from collections.abc import Sequence

from tests.up.netns.ways import Way

CHUNK = 65536


class Relay:
    """The same as :class:`~tests.up.netns.network.Namespaces`, on 127.0.0.1."""

    def __init__(self) -> None:
        self.operator = self.near = self.far = self.engines = "127.0.0.1"
        self.addresses = dict.fromkeys(("near", "far"), "127.0.0.1")
        self._server: asyncio.Server | None = None
        self._target = 0
        self._to_operator = asyncio.Event()
        self._to_proxy = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.heal()

    async def open_control(self, port: int) -> dict[str, str]:
        """The control addresses by proxy; ``port`` is the operator's."""
        self._target = port
        if self._server is None:
            self._server = await asyncio.start_server(self._accepted, self.operator, 0)
        relayed = self._server.sockets[0].getsockname()[1]
        return {"near": f"tcp://127.0.0.1:{port}", "far": f"tcp://127.0.0.1:{relayed}"}

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def command(self, proxy: str, command: Sequence[str]) -> list[str]:
        """A command that is run where a proxy runs."""
        return list(command)

    def cut(self, way: Way) -> None:
        """Cut the control link from now on."""
        if way is not Way.TO_PROXY:
            self._to_operator.clear()
        if way is not Way.TO_OPERATOR:
            self._to_proxy.clear()

    def heal(self) -> None:
        """Let everything through again, also what was held up."""
        self._to_operator.set()
        self._to_proxy.set()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._relay(reader, writer), name="relay")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            await self._to_operator.wait()
            onward, back = await asyncio.open_connection(self.operator, self._target)
            ends.append(back)
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, back, gate=self._to_operator))
                group.create_task(_pump(onward, writer, gate=self._to_proxy))
        except* OSError:
            pass  # either end is gone, and the other will be told now
        finally:
            for end in ends:
                end.transport.abort()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, gate: asyncio.Event
) -> None:
    while True:
        data = await reader.read(CHUNK)
        await gate.wait()
        if not data:
            raise ConnectionResetError
        writer.write(data)
        await writer.drain()
