"""How the reading of the fleet table is going: what `/status` and the metrics tell of it."""

from steersman.clock import Clock


class TableStatus:
    """Kept by whoever reads the table; looked at by the metrics and by ``/status``.

    ``source`` says where tables come from: a file name, or the operator's address.
    """

    def __init__(self, *, clock: Clock, source: str | None = None) -> None:
        self._clock = clock
        self._loaded_at: float | None = None
        self.source = source
        self.failures = 0
        """Tables that could not be used, ever."""
        self.last_error: str | None = None
        """Why the newest table could not be used; ``None`` if it was used."""

    def loaded(self) -> None:
        """A good table was read, whether or not it differs from the one in force."""
        self._loaded_at = self._clock.now()
        self.last_error = None

    def failed(self, message: str) -> None:
        """A table could not be used, and the one in force stays; ``message`` names the place."""
        self.failures += 1
        self.last_error = message

    @property
    def age(self) -> float | None:
        """Seconds since a good table was read last; ``None`` if none was."""
        return None if self._loaded_at is None else self._clock.now() - self._loaded_at
