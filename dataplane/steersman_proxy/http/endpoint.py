"""Where an engine is dialled, read out of its base URL."""

import ipaddress
import re
from contextlib import suppress
from functools import lru_cache
from urllib.parse import urlsplit

import msgspec

_PORTS = {"http": 80, "https": 443}

_PATH = re.compile(r"/[^\x00-\x20\x7f]*")


class Endpoint(msgspec.Struct, frozen=True):
    """One address that connections are opened to; two spellings of one address are equal."""

    scheme: str
    host: str
    """A name in lower case or an IP address, without brackets."""
    port: int


class BaseUrl(msgspec.Struct, frozen=True):
    """An engine's URL, taken apart."""

    endpoint: Endpoint
    authority: bytes
    """The value of the ``Host`` header: IPv6 in brackets, a scheme's own port left out."""
    path: str
    """Goes before the target of every request; empty, or begins with a slash and does not end so."""
    host_line: bytes
    """The line of the ``Host`` header."""

    def request_line(self, method: str, target: str) -> bytes:
        """The first line of a request, of a method and target that are known to be good.

        :raises ValueError: if the engine's own path cannot stand there.
        """
        if not self.path:
            return f"{method} {target} HTTP/1.1".encode()
        if _PATH.fullmatch(self.path) is None:
            raise ValueError(f"{self.path[:80]!a} is not a path that can be sent to an engine")
        return f"{method} {self.path}{target} HTTP/1.1".encode()


@lru_cache(maxsize=8192)
def base_url(url: str) -> BaseUrl:
    """Take an engine's URL apart; ``ValueError`` says what is wrong with it.

    Remembered, since every request asks and a fleet has few URLs.
    """
    parts = urlsplit(url)
    if parts.scheme not in _PORTS:
        raise ValueError(f"{url!r} is not an http or https URL")
    if not parts.hostname or parts.username is not None:
        raise ValueError(f"{url!r} does not name one host")
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r} has a query or a fragment; a base URL has neither")
    host = parts.hostname
    with suppress(ValueError):
        host = ipaddress.ip_address(host).compressed
    # `port` raises ValueError when it is out of range.
    endpoint = Endpoint(parts.scheme, host, parts.port or _PORTS[parts.scheme])
    authority = _authority(endpoint)
    return BaseUrl(endpoint, authority, parts.path.rstrip("/"), b"Host: " + authority)


def _authority(endpoint: Endpoint) -> bytes:
    # The zone of a link-local address means something on this machine only (RFC 6874).
    host = endpoint.host.partition("%")[0]
    if ":" in host:
        host = f"[{host}]"
    if endpoint.port != _PORTS[endpoint.scheme]:
        host = f"{host}:{endpoint.port}"
    return host.encode("ascii")
