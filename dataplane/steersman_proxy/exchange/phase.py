"""Where an exchange stands."""

from enum import Enum


class Phase(Enum):
    """Where an exchange stands."""

    HEAD = "head"
    BODY = "body"
    OWN = "own"
    HOLD = "hold"
    SENT = "sent"
    ANSWER = "answer"
    DONE = "done"
