"""What the end of a request says of its engine; the breaker counts it.

A client's mistake is no fault of the engine: trainers send prompts that are too long by the hundred,
and an engine that says so works. 429 and 503 come from an engine that is busy, paused or starting:
it is not to be left alone for half a minute, and not to be called well either.
"""

from steersman_proxy.exchange.messages import Failure
from steersman_proxy.load.breaker import Judgement

_BUSY = frozenset({429, 503})


def of_status(status: int) -> Judgement:
    """The judgement of a whole answer."""
    if status in _BUSY:
        return Judgement.NEUTRAL
    return Judgement.FAILURE if status >= 500 else Judgement.SUCCESS


def of_failure(failure: Failure) -> Judgement:
    """The judgement of an attempt, or of an answer, that ended badly."""
    match failure:
        case Failure.EXHAUSTED | Failure.WITHHELD:
            # The proxy itself could not, or may not, send.
            return Judgement.NEUTRAL
        case (
            Failure.CONNECT_REFUSED
            | Failure.CONNECT_TIMEOUT
            | Failure.CLOSED_BEFORE_ANSWER
            | Failure.INCOMPLETE
            | Failure.PROTOCOL
            | Failure.HEAD_TIMEOUT
            | Failure.IDLE_TIMEOUT
        ):
            return Judgement.FAILURE
