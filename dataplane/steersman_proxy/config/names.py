"""The texts of a configuration that have a grammar: hosts, origins, header and pool names."""

import ipaddress
import re
from typing import Any
from urllib.parse import urlsplit

from steersman.documents.problems import what
from steersman_proxy.control.addresses import checked_address

_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.(?!-)[A-Za-z0-9_-]{1,63})*\.?")
_POOL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_DEFAULT_PORTS = {"http": 80, "https": 443}

# The proxy sets or removes these itself.
_TAKEN_HEADERS = frozenset(
    (
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)


def host(value: Any) -> str:
    """A host name or IP address to listen on; brackets around IPv6 are taken off.

    :raises ValueError: for anything else, such as a URL or ``host:port``.
    """
    text = _text(value)
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        pass
    if bare != text or not _HOST_NAME.fullmatch(text) or len(text) > 253:
        raise ValueError(
            f"must be a host name or an IP address without scheme and port, found {text[:80]!a}"
        )
    if re.fullmatch(r"[0-9.]+", text):
        raise ValueError(f"must be an IP address of four numbers, found {text[:80]}")
    return text


def control_address(value: Any) -> str:
    """The address of a control socket.

    :raises ValueError: if it is not ``ipc://`` with a path or ``tcp://`` with host and port.
    """
    return checked_address(_text(value))


def pool_name(value: Any) -> str:
    """A pool name: it is sent in a header and is a label of metrics.

    :raises ValueError: if it has other characters than those.
    """
    text = _text(value)
    if not _POOL.fullmatch(text):
        raise ValueError(
            "must be 1 to 128 letters, digits, `-`, `_`, `.` or `/`, beginning with a letter or "
            f"digit, found {text[:80]!a}"
        )
    return text


def header_name(value: Any) -> str:
    """The name of a header that the proxy may add to requests.

    :raises ValueError: if it is not a header name, or one that means something else.
    """
    text = _text(value)
    if not _TOKEN.fullmatch(text):
        raise ValueError(f"must be a header name such as X-Request-Id, found {text[:80]!a}")
    if text.lower() in _TAKEN_HEADERS:
        raise ValueError(f"cannot be {text}, which has another meaning; use X-Request-Id")
    return text


def origin(value: Any) -> str:
    """An origin as browsers send it, or ``*``.

    :raises ValueError: if it is not of the form ``scheme://host[:port]``.
    """
    text = _text(value)
    if text == "*":
        return text
    problem = f'must be an origin such as https://example.org or "*", found {text[:80]!a}'
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError(problem) from None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.username is not None:
        raise ValueError(problem)
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    suffix = "" if port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{port}"
    bare = f"{parts.scheme}://{name}{suffix}"
    if parts.path or parts.query or parts.fragment or text.endswith(("?", "#")):
        raise ValueError(f"must be an origin without a path; write {bare!a}")
    if not bare.isascii() or any(char.isspace() or char == "*" for char in bare):
        raise ValueError(problem)
    return bare


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, found {what(value)}")
    return value
