"""A client's connection, as the requests that come on it know it."""

from collections.abc import Sequence
from typing import Protocol


class Client(Protocol):
    """The connection that the request came on."""

    stall: float
    """Seconds for which the client may take nothing."""

    @property
    def closing(self) -> bool:
        """Whether nothing more can be written."""
        ...

    @property
    def writing_paused(self) -> bool:
        """Whether so much waits for the client that no more should be written."""
        ...

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Hand bytes over to the socket."""
        ...

    def answer(self, whole: bytes) -> None:
        """Hand a whole answer over to the socket at the end of this turn of the loop, or now.

        Not if :attr:`writing_paused` or :attr:`closing`.
        """
        ...

    def put(self, part: bytes) -> None:
        """Hand bytes over to the socket, in one piece."""
        ...

    def cut(self, *, at_once: bool = False) -> None:
        """End the connection so that the client sees a broken answer.

        What was written before still gets there, unless ``at_once``.
        """
        ...

    def finished(self, *, persistent: bool) -> None:
        """The request is over; ``persistent`` says whether its connection may be used again."""
        ...
