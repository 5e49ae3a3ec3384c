"""The control socket's messages, between an operator and its proxies.

Each message is one ZeroMQ frame of msgpack: an array of a tag and the fields in order. Fields are
only ever added at the end and with a default, and what a reader does not know is ignored, so that
neighbouring releases understand each other. Tags are never used twice.

Whatever comes from the socket is hostile until it is decoded: :func:`decode_from_proxy` and
:func:`decode_from_operator` bound sizes, counts and lengths, and raise
:class:`~steersman.errors.ControlProtocolError` for everything else.

Only durations cross the wire, never moments: the clocks of two machines have nothing in common.
"""

from typing import TypeVar

import msgspec

from steersman.control_messages import (
    MAX_NAME,
    MAX_PROXY_FRAME,
    MAX_ROWS,
    MAX_TABLE_FRAME,
    PROTOCOL,
    SAID_VERSION,
    Ack,
    Bye,
    Cut,
    Digest,
    FromOperator,
    FromProxy,
    Hello,
    InFlight,
    Nack,
    Observe,
    Peers,
    Ping,
    Pong,
    Reject,
    RejectCode,
    Retire,
    Seconds,
    Snapshot,
    Watch,
    Welcome,
    Whole,
)
from steersman.errors import ControlProtocolError, UnusableTable
from steersman.table import Epoch, Table

__all__ = [
    "MAX_NAME",
    "MAX_PROXY_FRAME",
    "MAX_ROWS",
    "MAX_TABLE_FRAME",
    "PROTOCOL",
    "SAID_VERSION",
    "Ack",
    "Bye",
    "ControlProtocolError",
    "Cut",
    "FromOperator",
    "FromProxy",
    "Hello",
    "InFlight",
    "Nack",
    "Observe",
    "Ping",
    "Pong",
    "Reject",
    "RejectCode",
    "Retire",
    "Snapshot",
    "UnusableTable",
    "Watch",
    "Welcome",
    "check_table",
    "decode_from_operator",
    "decode_from_proxy",
    "decode_table",
    "encode",
    "encode_snapshot",
    "encode_table",
]

T = TypeVar("T")


class _RawSnapshot(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A :class:`Snapshot` whose table is left as it came."""

    session: Whole
    table: msgspec.Raw
    digest: Digest
    peers: Peers = ()
    removed_ok: bool = False
    age: Seconds = 0.0


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """What can be read of any table."""

    epoch: Epoch


_encoder = msgspec.msgpack.Encoder()
_from_proxy = msgspec.msgpack.Decoder(FromProxy)
_from_operator = msgspec.msgpack.Decoder(
    Welcome | Reject | _RawSnapshot | Watch | Cut | Ping | Retire
)
_table = msgspec.msgpack.Decoder(Table)
_head = msgspec.msgpack.Decoder(_Head)
# A whole number of msgspec has no upper end, an epoch's must.
_MOST = 2**62


def encode(message: FromProxy | FromOperator) -> bytes:
    """A message as one frame."""
    return _encoder.encode(message)


def encode_table(table: Table) -> bytes:
    """The part of a :class:`Snapshot` that is the same for every proxy.

    :raises ControlProtocolError: if :func:`decode_table` would not take it.
    """
    content = _encoder.encode(table)
    if decode_table(content) != table:
        raise ControlProtocolError("a table is not the same after it was encoded and decoded")
    return content


def encode_snapshot(
    content: bytes,
    *,
    session: int,
    digest: str,
    peers: tuple[str, ...],
    removed_ok: bool,
    age: float,
) -> bytes:
    """A :class:`Snapshot` around ``content`` of :func:`encode_table`."""
    message = _RawSnapshot(session, msgspec.Raw(content), digest, peers, removed_ok, age)
    return _encoder.encode(message)


def decode_from_proxy(frame: bytes | memoryview) -> FromProxy:
    """A message from a proxy.

    :raises ControlProtocolError: if it is none.
    """
    if len(frame) > MAX_PROXY_FRAME:
        raise ControlProtocolError(f"a message of {len(frame)} bytes is too long for a proxy's")
    message: FromProxy = _decode(_from_proxy, frame)
    match message:
        case Hello(last_epoch=epoch) | Pong(epoch=epoch):
            _check_epoch(epoch)
        case Ack(epoch=epoch) | InFlight(epoch=epoch):
            _check_epoch(epoch)
        case Nack(epoch=epoch, still=still):
            _check_epoch(epoch)
            _check_epoch(still)
        case Reject() | Observe() | Bye():
            pass
    return message


def decode_from_operator(frame: bytes | memoryview) -> FromOperator:
    """A message from an operator.

    :raises UnusableTable: if it is a snapshot whose table cannot be used.
    :raises ControlProtocolError: if it is no message.
    """
    if len(frame) > MAX_TABLE_FRAME:
        raise ControlProtocolError(f"a message of {len(frame)} bytes is too long")
    message: FromOperator | _RawSnapshot = _decode(_from_operator, frame)
    if isinstance(message, Ping):
        _check_epoch(message.epoch)
    if not isinstance(message, _RawSnapshot):
        return message
    try:
        table = decode_table(message.table)
    except ControlProtocolError as error:
        epoch = _decode(_head, message.table).epoch
        _check_epoch(epoch)
        raise UnusableTable(str(error), session=message.session, epoch=epoch) from None
    return Snapshot(
        message.session, table, message.digest, message.peers, message.removed_ok, message.age
    )


def decode_table(content: bytes | msgspec.Raw) -> Table:
    """A table from its encoding.

    :raises ControlProtocolError: if it is none, or beyond the limits.
    """
    table: Table = _decode(_table, content)
    check_table(table)
    return table


def check_table(table: Table) -> None:
    """Whether a table can be sent and put in force.

    :raises ControlProtocolError: if it is too large, or names an engine or a pool twice.
    """
    _check_epoch(table.epoch)
    if len(table.engines) > MAX_ROWS or len(table.pools) > MAX_ROWS:
        raise ControlProtocolError(
            f"a table of {len(table.engines)} engines and {len(table.pools)} pools is too large; "
            f"at most {MAX_ROWS} of each"
        )
    for pool in table.pools:
        texts = (pool.name, pool.fleet_max or "", *pool.models, *pool.ordinals)
        if not pool.name or max(map(len, texts)) > MAX_NAME:
            raise ControlProtocolError("a pool has no name, or a text that is too long")
        if len(pool.models) > MAX_ROWS or len(pool.ordinals) > MAX_ROWS:
            raise ControlProtocolError(f"pool {pool.name} has too many models or ordinals")
    for row in table.engines:
        if not row.id or not row.url.startswith(("http://", "https://")):
            raise ControlProtocolError(f"engine {row.id[:80]!a} has no id, or no HTTP URL")
        texts = (row.id, row.url, row.pool, row.zone or "", row.version or "", row.boot_id or "")
        if max(map(len, texts)) > MAX_NAME or sum(map(len, row.released)) > MAX_NAME:
            raise ControlProtocolError(f"engine {row.id[:80]!a} has a text that is too long")
    for kind, names in (
        ("engine", [row.id for row in table.engines]),
        ("pool", [pool.name for pool in table.pools]),
    ):
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ControlProtocolError(f"{kind} {twice[:80]!a} is in the table twice")


def _check_epoch(epoch: Epoch | None) -> None:
    if epoch is not None and not (0 <= epoch.term <= _MOST and 0 <= epoch.seq <= _MOST):
        raise ControlProtocolError("an epoch is out of range")


def _decode(decoder: msgspec.msgpack.Decoder[T], content: bytes | memoryview | msgspec.Raw) -> T:
    try:
        return decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # The text may repeat a value of the message.
        detail = ascii(str(error))[1:-1][:300]
        raise ControlProtocolError(f"not a message of the control socket: {detail}") from None
