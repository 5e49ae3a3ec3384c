"""What is kept of one engine between the calls and looks of all that speak to it.

Which process answers, and whether its weights survive a sleep, changes with the process alone, and
takes an engine's longest answers to find out. A connection ends with the process that has accepted
it. So as long as the questions of a look are answered over the connection over which this was read,
and show nothing new, it is not read again; except once in a while, since something in between may
hold the connection.
"""

import msgspec

REREAD = 30.0
"""Seconds after which everything is read again."""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What a whole look has read, and a short one takes over."""

    boot_id: str | None = None
    backup: bool | None = None
    """Whether weights survive the release of their memory."""
    released: tuple[str, ...] | None = None
    """vLLM: the memory that is given up."""


class Memory:
    """Of one engine at one address. What belongs to a process is forgotten with its boot."""

    def __init__(self) -> None:
        self.boot: str | None = None
        """The last boot that could be read."""
        self.woken: tuple[str, ...] = ()
        """vLLM: the memory that was taken back, or never given up, of an engine that sleeps on. It can
        be asked whether it sleeps, and not how much of it."""
        self.seen: tuple[object, ...] = ()
        """What the last look has seen of what may change at any time."""
        self.version_path: str | None = None
        """SGLang: under which of its names the version was found."""
        self.known = Known()
        self.mark = 0
        """Changes whenever what is known may not be so any more."""
        self._connection = 0
        self._read_at = float("-inf")

    def belongs_to(self, boot: str | None) -> None:
        """A boot was read; ``None`` if it could not be."""
        if boot is None:
            return
        if self.boot not in (None, boot):
            self.woken = ()
        self.boot = boot

    def holds(self, connection: int, *, now: float) -> bool:
        """Whether what is known belongs to whoever answers over a connection."""
        return 0 < connection == self._connection and now - self._read_at < REREAD

    def keep(self, known: Known, *, connection: int, now: float, mark: int) -> None:
        """Everything was read over a connection, by a look that began at ``mark``."""
        if mark == self.mark:
            self.known, self._connection, self._read_at = known, connection, now

    def forget(self) -> None:
        """Something was changed, or went wrong: the next look reads everything."""
        self.mark += 1
        self._connection = 0
