"""The table of limits in ``docs/http.md``, from the constants that the proxy keeps to."""

from collections.abc import Mapping

from steersman.settings import Timeouts
from steersman_proxy.exchange.admission import OWN_BODY_LIMIT
from steersman_proxy.http import accepting, limits
from steersman_proxy.http.connection import MAX_BUFFERED
from steersman_proxy.settings import ProxySettings

KIB = 1024
MIB = KIB * KIB


def pages() -> Mapping[str, str]:
    """None of its own."""
    return {}


def inserts() -> Mapping[str, Mapping[str, str]]:
    """The table."""
    lines = ["| What | At most | Beyond it |", "|---|---|---|"]
    lines += [f"| {what} | {most} | {beyond} |" for what, most, beyond in _rows()]
    return {"docs/http.md": {"limits": "\n".join(lines)}}


def _rows() -> list[tuple[str, str, str]]:
    settings, timeouts = ProxySettings(), Timeouts()
    return [
        ("Head of a request, request line included", _size(limits.MAX_HEAD), "414 or 431"),
        ("Headers of a request", str(limits.MAX_HEADERS), "431"),
        ("Digits of `Content-Length`", str(limits.MAX_LENGTH_DIGITS), "400"),
        (
            "Body of a request (`limits.maxBodyBytes`, configurable)",
            _size(settings.max_body_bytes),
            "413",
        ),
        ("Body for one of the proxy's own routes", _size(OWN_BODY_LIMIT), "413"),
        ("Line before a chunk, with extensions", _size(limits.MAX_CHUNK_LINE), "400"),
        ("Trailers of a body", _size(limits.MAX_TRAILERS), "400"),
        ("From the first byte of a head to its last", _time(limits.HEAD_LIMIT), "408"),
        (
            "Between two parts of an upload (`timeouts.clientStall` of the defaults, configurable)",
            _time(timeouts.client_stall),
            "the connection is cut",
        ),
        (
            "For which a client takes nothing of its answer (`timeouts.clientStall`, configurable)",
            _time(timeouts.client_stall),
            "the connection is cut",
        ),
        ("Idle connection of a client", _time(limits.KEEP_ALIVE), "it is closed"),
        (
            "Rest of an upload after its answer",
            _time(limits.LINGER),
            "the connection is closed",
        ),
        (
            "Requests that were sent ahead of their turn",
            _size(limits.SURPLUS),
            "the client is not read until their turn comes",
        ),
        (
            "An answer in the proxy that its client has yet to take",
            _size(limits.WRITE_LIMIT + 2 * MAX_BUFFERED),
            "the engine is not read until it is taken",
        ),
        (
            "Clients",
            f"half of the files that the process may have open, less {accepting.RESERVED}",
            "they wait to be accepted; see [operations.md](operations.md#open-files)",
        ),
    ]


def _size(count: int) -> str:
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} bytes"


def _time(seconds: float) -> str:
    return f"{seconds / 3600:g} h" if seconds >= 3600 else f"{seconds:g} s"
