"""What this proxy knows of one operator address. State only."""

from collections import OrderedDict
from collections.abc import Callable
from enum import Enum

from steersman.control import FromProxy, encode

PONGS = 64
"""Pongs whose moment is remembered."""


class LinkState(Enum):
    """Where the conversation stands."""

    DOWN = "down"
    """Not connected."""
    ASKING = "asking"
    """Hello was said."""
    WAITING = "waiting"
    """It was turned away, or has no reason to ask; it asks again later."""
    JOINED = "joined"
    """In a session with the leader."""


class OperatorLink:
    """One address. ``send`` hands a frame to the socket, and says whether it took it."""

    def __init__(self, address: str, *, send: Callable[[bytes], bool]) -> None:
        self.address = address
        self._send = send
        self.state = LinkState.DOWN
        self.detail = "not connected"
        self.asked_at: float | None = None
        """When the first hello was said that was not answered yet."""
        self.ask_at: float | None = None
        """When to say hello (again)."""
        self.heard = 0.0
        self.session = 0
        self.term = 0
        self.server_boot = ""
        self.api_url = ""
        self.heartbeat = 2.0
        self.grant = 10.0
        self.proven_at = float("-inf")
        """When the last message was sent that it has certainly heard."""
        self.has_table = False
        """Whether a table of this session is in force."""
        self._pongs: OrderedDict[int, float] = OrderedDict()

    def send(self, message: FromProxy) -> bool:
        """Send a message, or not."""
        return self._send(encode(message))

    def go(self, state: LinkState, detail: str = "", *, ask_at: float | None = None) -> None:
        """Change the state; ``detail`` says why, for people."""
        self.state, self.detail, self.ask_at = state, detail, ask_at
        if state is not LinkState.ASKING:
            self.asked_at = None
        if state is not LinkState.JOINED:
            self._pongs.clear()

    def pong_sent(self, n: int, *, at: float) -> None:
        """Remember when a pong was sent."""
        self._pongs[n] = at
        while len(self._pongs) > PONGS:
            self._pongs.popitem(last=False)

    def heard_pong(self, n: int) -> float | None:
        """When the pong was sent that the operator says it has heard; earlier ones are forgotten."""
        at = self._pongs.get(n)
        if at is not None:
            for number in [number for number in self._pongs if number < n]:
                del self._pongs[number]
        return at
