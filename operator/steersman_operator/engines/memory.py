"""What is kept of one engine between the calls and looks of all that speak to it."""


class Memory:
    """Of one engine at one address. What belongs to a process is forgotten with its boot."""

    def __init__(self) -> None:
        self.boot: str | None = None
        """The boot that the rest belongs to."""
        self.woken: tuple[str, ...] = ()
        """vLLM: the memory that was taken back, or never given up, of an engine that sleeps on. It can
        be asked whether it sleeps, and not how much of it."""

    def belongs_to(self, boot: str | None) -> None:
        """A boot was read; ``None`` if it could not be."""
        if boot is None:
            return
        if self.boot not in (None, boot):
            self.woken = ()
        self.boot = boot
