"""Who may call what: the proxy's own keys.

Clients send a key as ``Authorization: Bearer <key>`` or, as clients of Anthropic's API do, as
``x-api-key``. A key that was ours is not passed on to engines.
"""

import hashlib
import hmac
from collections.abc import Iterable

from steersman.errors import AdminKeyRequired, RequestError, Unauthorized
from steersman_proxy.exchange.messages import Header, RequestHead
from steersman_proxy.exchange.routes import Access

_CARRIERS = (b"authorization", b"x-api-key")

_NOTHING: frozenset[bytes] = frozenset()

_REMEMBERED = 1024
"""Credentials that were found valid and are remembered, at most."""


class KeyRing:
    """The data-plane keys and the admin key.

    Without data-plane keys the data routes are open; without an admin key the data-plane keys (if
    any) open the admin routes too. The admin key opens everything.
    """

    def __init__(self, *, api_keys: Iterable[str] = (), admin_key: str | None = None) -> None:
        self._data = tuple(_digest(key.encode()) for key in api_keys)
        self._admin = () if admin_key is None else (_digest(admin_key.encode()),)
        # The dictionary compares only what has the same keyed hash, so that the time of a wrong
        # guess tells nothing of how much of it was right.
        self._valid: dict[Header, tuple[bool, bool]] = {}

    def check(
        self, head: RequestHead, access: Access
    ) -> tuple[RequestError | None, frozenset[bytes]]:
        """Whether the request may go on, and the names of the headers that carried a key of ours.

        A key that is not valid takes the same time whatever it is.
        """
        if not self._data and not self._admin:
            return None, _NOTHING
        data_match = admin_match = False
        consumed = _NOTHING
        for carrier, value in _carried(head):
            is_data, is_admin = self._valid.get((carrier, value)) or self._compare(carrier, value)
            if is_data or is_admin:
                consumed |= {carrier}
            data_match |= is_data
            admin_match |= is_admin
        return self._verdict(access, data_match, admin_match), consumed

    def _compare(self, carrier: bytes, value: bytes) -> tuple[bool, bool]:
        """Whether a header carries a data-plane key, and whether the admin key."""
        digest = _digest(_credential(carrier, value))
        found = (_matches(digest, self._data), _matches(digest, self._admin))
        if any(found) and len(self._valid) < _REMEMBERED:
            self._valid[carrier, value] = found
        return found

    def _verdict(self, access: Access, data_match: bool, admin_match: bool) -> RequestError | None:
        match access:
            case Access.OPEN:
                return None
            case Access.DATA:
                if admin_match or data_match or not self._data:
                    return None
                return Unauthorized(
                    "the request carries no valid key; send `Authorization: Bearer`"
                )
            case Access.ADMIN:
                if admin_match or (not self._admin and (data_match or not self._data)):
                    return None
                if data_match:
                    return AdminKeyRequired("this route takes the admin key, not a data-plane key")
                return Unauthorized(
                    "the request carries no valid key; this route takes the admin key"
                )


def _carried(head: RequestHead) -> list[Header]:
    """The headers that may carry a key, names in lower case."""
    if head.repeats:
        named = ((name.lower(), value) for name, value in head.headers)
        return [header for header in named if header[0] in _CARRIERS]
    return [(name, head.raw[name]) for name in _CARRIERS if name in head.raw]


def _credential(carrier: bytes, value: bytes) -> bytes:
    value = value.strip()
    if carrier != b"authorization":
        return value
    scheme, _, rest = value.partition(b" ")
    return rest.strip() if scheme.lower() == b"bearer" else value


def _digest(key: bytes) -> bytes:
    # Equal lengths, so that the comparison does not tell the length of a key.
    return hashlib.sha256(key).digest()


def _matches(digest: bytes, keys: tuple[bytes, ...]) -> bool:
    found = False
    for key in keys:
        found |= hmac.compare_digest(digest, key)
    return found
