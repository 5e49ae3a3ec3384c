"""A table on its way to the proxies: encoded once, however many there are."""

from steersman.control import encode_snapshot, encode_table
from steersman.table import Epoch, Table


class Outgoing:
    """One table with what goes along. ``made_at`` is on the operator's clock, in seconds."""

    def __init__(
        self, table: Table, *, peers: tuple[str, ...], removed_ok: bool, made_at: float
    ) -> None:
        self.epoch: Epoch = table.epoch
        self.made_at = made_at
        self._table = table
        self._peers = peers
        self._removed_ok = removed_ok
        self._content = b""
        self.digest = ""
        """Known once encoded."""

    def encode(self) -> None:
        """Encode the table, and decode it again with the proxies' decoder.

        :raises ControlProtocolError: if that does not give the same table.
        """
        self._content = encode_table(self._table)
        self.digest = self._table.digest()

    @property
    def identity(self) -> tuple[Epoch, str]:
        """Epoch and digest, once encoded."""
        return self.epoch, self.digest

    def frame(self, session: int, *, now: float) -> bytes:
        """The message for one session."""
        return encode_snapshot(
            self._content,
            session=session,
            digest=self.digest,
            peers=self._peers,
            removed_ok=self._removed_ok,
            age=max(0.0, now - self.made_at),
        )
