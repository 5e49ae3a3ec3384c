"""One request on one connection, and the answer to it as far as it has come."""

import asyncio
from collections.abc import Callable, Iterator

from steersman.settings import Timeouts
from steersman_proxy.http.failure import AttemptFailed
from steersman_proxy.http.framing import AnswerFraming
from steersman_proxy.http.request import Piece


class Attempt:
    """Shared by the connection, which fills it, and by the one reader, who empties it.

    It outlives its use of the connection: a whole answer may still wait here while the connection
    serves somebody else.
    """

    __slots__ = (
        "_waiter",
        "drop",
        "failure",
        "framing",
        "may_start",
        "relay",
        "resume",
        "timeouts",
        "unwritten",
    )

    def __init__(
        self,
        *,
        framing: AnswerFraming,
        unwritten: Iterator[Piece],
        timeouts: Timeouts,
        may_start: Callable[[], bool] | None = None,
    ) -> None:
        self.framing = framing
        self.timeouts = timeouts
        self.may_start = may_start
        """Whether the request may still be written; ``None`` if it may whatever happens."""
        self.unwritten: Iterator[Piece] | None = unwritten
        """What of the request was not handed to the socket yet; ``None`` when all was."""
        self.failure: AttemptFailed | None = None
        self.relay: Callable[[bytes, float], bool] | None = None
        """Offered what was read where a chunk may begin, and when; takes it if it is whole chunks."""
        self.drop: Callable[[], None] | None = None
        """Closes the connection; ``None`` while it is not ours."""
        self.resume: Callable[[], None] | None = None
        """Tells a connection that stopped reading to go on; ``None`` when it did not stop."""
        self._waiter: asyncio.Future[None] | None = None

    async def head(self) -> None:
        """Wait for the head of the final answer; raises :class:`AttemptFailed`."""
        while not self.framing.head_done:
            if self.failure is not None:
                raise self.failure
            await self._change()

    async def read(self) -> bytes | None:
        """Wait for more of the body; ``None`` at its proper end; raises :class:`AttemptFailed`."""
        framing = self.framing
        while not framing.parts:
            if framing.complete:
                return None
            if self.failure is not None:
                raise self.failure
            await self._change()
        data = framing.take()
        if self.resume is not None:
            self.resume()
        return data

    def close(self) -> None:
        """Close the connection if it is still ours."""
        if self.drop is not None:
            self.drop()

    def wake(self) -> None:
        """Let the reader look again."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _change(self) -> None:
        if self._waiter is not None:
            raise RuntimeError("an answer has one reader at a time")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
