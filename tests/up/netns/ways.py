"""The ways in which a link can be cut."""

from enum import Enum


class Way(Enum):
    """What does not get through any more."""

    BOTH = "nothing gets through"
    TO_OPERATOR = "only the operator's words get through"
    TO_PROXY = "only the proxy's words get through"
