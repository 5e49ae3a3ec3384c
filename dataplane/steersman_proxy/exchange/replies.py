"""Answers of our own, and the errors that stand for an engine's failure."""

from steersman.errors import (
    RequestError,
    UpstreamError,
    UpstreamIncomplete,
    UpstreamProtocol,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from steersman_proxy.exchange.messages import Failure, Header, Respond
from steersman_proxy.routing.engines import Engine

JSON = (b"content-type", b"application/json")


def reply_with(error: RequestError, *headers: Header, close: bool = False) -> Respond:
    """The answer that an error becomes."""
    extra: list[Header] = [JSON, (b"x-smg-error-code", error.code.encode())]
    if error.retry_after is not None:
        extra.append((b"retry-after", str(max(1, round(error.retry_after))).encode()))
    return Respond(error.status, (*extra, *headers), error.body(), close=close)


def failure_error(failure: Failure, *, engine: Engine, detail: str) -> UpstreamError:
    """The error of an attempt that ended badly; names the engine and, if known, the cause."""
    cause = f" ({detail})" if detail else ""
    who = f"engine {engine.id}"
    match failure:
        case Failure.CONNECT_REFUSED:
            return UpstreamUnreachable(f"{who} cannot be reached{cause}")
        case Failure.CONNECT_TIMEOUT:
            return UpstreamUnreachable(f"{who} took no connection in time{cause}")
        case Failure.EXHAUSTED:
            return UpstreamUnreachable(
                f"the proxy has no file or port left for a connection to {who}{cause}"
            )
        case Failure.WITHHELD:
            return UpstreamUnreachable(f"nothing may be sent to {who} now{cause}")
        case Failure.CLOSED_BEFORE_ANSWER:
            return UpstreamIncomplete(f"{who} closed the connection before answering{cause}")
        case Failure.INCOMPLETE:
            return UpstreamIncomplete(f"{who} closed the connection within its answer{cause}")
        case Failure.PROTOCOL:
            return UpstreamProtocol(f"{who} did not answer in HTTP/1.1{cause}")
        case Failure.HEAD_TIMEOUT:
            return UpstreamTimeout(f"{who} did not answer within timeouts.answerHead{cause}")
        case Failure.IDLE_TIMEOUT:
            return UpstreamTimeout(f"{who} stopped sending for timeouts.streamIdle{cause}")
