"""Engine URLs in one spelling, so that two spellings of one engine are seen to be the same."""

import ipaddress
import re
from typing import Any
from urllib.parse import SplitResult, urlsplit

from steersman.documents.problems import what

_DEFAULT_PORTS = {"http": 80, "https": 443}
_LABEL = r"(?!-)[a-z0-9_-]{1,63}"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?")
_ID = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9._:\[\]-]{0,127}")


def engine_url(value: Any) -> str:
    """The base URL of an engine: ``http://host[:port]``, lower case, default port left out.

    :raises ValueError: if it is not one; a user and password in it are not repeated.
    """
    if not isinstance(value, str):
        raise ValueError(f"must be text such as http://10.0.0.1:30000, found {what(value)}")
    if "@" in value:
        raise ValueError(
            "must not have a user or password (not shown); keys towards engines belong into "
            "`engineAuth`"
        )
    shown = ascii(value[:120])
    if not value.isascii() or any(char.isspace() or not char.isprintable() for char in value):
        raise ValueError(f"must be ASCII without spaces, found {shown}")
    scheme = value.partition("://")[0].lower()
    if "://" not in value or scheme not in _DEFAULT_PORTS:
        remedy = "" if "://" in value else f"; write {f'http://{value}'[:120]!a}"
        raise ValueError(f"must begin with http:// or https://, found {shown}{remedy}")
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"is not a URL ({error}), found {shown}") from None
    if port == 0:
        raise ValueError(f"must have a port from 1 to 65535, found {shown}")
    base = f"{scheme}://{_host(parts, shown=shown)}"
    if port is not None and port != _DEFAULT_PORTS[scheme]:
        base += f":{port}"
    if parts.query or parts.fragment or value.endswith(("?", "#")):
        raise ValueError(f"must not have a query or fragment; write {base}")
    if parts.path not in {"", "/"}:
        # Routes are sent to the engine's root; a prefix would have to be put before each.
        raise ValueError(
            f"must not have the path {parts.path[:80]!a}, as routes are sent to the engine's "
            f"root; write {base}"
        )
    return base


def _host(parts: SplitResult, *, shown: str) -> str:
    host = (parts.hostname or "").lower()
    if "[" in parts.netloc:
        try:
            # A zone such as %eth0 means something on one machine only, and not in a Host header.
            return f"[{ipaddress.IPv6Address(host.replace('%', ' '))}]"
        except ValueError:
            raise ValueError(f"must have an IPv6 address between brackets, found {shown}") from None
    try:
        return str(ipaddress.IPv4Address(host))
    except ValueError:
        pass
    if not _NAME.fullmatch(host) or re.fullmatch(r"[0-9.]+", host) or len(host) > 253:
        raise ValueError(f"must have a host name or IP address, found {shown}")
    return host


def authority(url: str) -> str:
    """Host and port of a URL that :func:`engine_url` made; the id of an engine without one."""
    return url.partition("://")[2]


def engine_id(value: Any) -> str:
    """The id of an engine: it is sent in headers and is part of paths.

    :raises ValueError: if it has other characters than those, or could be taken for an index.
    """
    if isinstance(value, bool) or not isinstance(value, str):
        raise ValueError(f"must be text, found {what(value)}; quote it, and begin with a letter")
    if not _ID.fullmatch(value):
        raise ValueError(
            "must be 1 to 128 letters, digits, `-`, `_`, `.`, `:`, `[` or `]`, "
            f"found {value[:80]!a}"
        )
    if value.isdigit():
        raise ValueError(
            f"must not be a number, as the header x-smg-target-worker takes {value} for an index; "
            f"write e{value}"
        )
    return value
