"""The messages of the control socket, as structs; :mod:`steersman.control` reads and writes them.

Each becomes an array of its tag and its fields in order. Fields are only ever added at the end and
with a default; tags are never used twice. A tag that the reader does not know ends the session, so a
new one is said only to whom :class:`Hello` or :class:`Welcome` have shown to know it.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from steersman.table import Epoch, Table

PROTOCOL = 1
"""The version of the conversation; goes up when an old peer would misunderstand a new one."""

MAX_ROWS = 4096
"""Engines of one table, pools of one table, and engines that one report may name."""

MAX_TABLE_FRAME = 16 * 1024**2
"""Bytes of a message from the operator."""

MAX_PROXY_FRAME = 1024**2
"""Bytes of a message from a proxy; the largest is a report on :data:`MAX_ROWS` engines."""

SAID_VERSION = "version"
"""The kind of an :class:`Observe` of an engine whose own answer named another version than the table
does; ``sample`` is that version, empty if the engine has none any more."""

MAX_NAME = 512
"""Characters of an id, a URL, a name or an address."""

Name = Annotated[str, Meta(max_length=MAX_NAME)]
Text = Annotated[str, Meta(max_length=2048)]
Digest = Annotated[str, Meta(max_length=64)]
Whole = Annotated[int, Meta(ge=0, le=2**62)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Names = Annotated[tuple[Name, ...], Meta(max_length=MAX_ROWS)]
Counts = Annotated[dict[Name, Whole], Meta(max_length=MAX_ROWS)]
Peers = Annotated[tuple[Name, ...], Meta(max_length=MAX_ROWS)]


class RejectCode(StrEnum):
    """Why somebody will not talk."""

    NOT_LEADER = "not_leader"
    BAD_PROTO = "bad_proto"
    UNAUTHORISED = "unauthorised"
    STALE = "stale"
    """From a proxy: it follows a later term. From an operator: there is no such session (any more);
    say hello again."""
    MALFORMED = "malformed"


class _Message(msgspec.Struct, frozen=True, array_like=True):
    pass


class Hello(_Message, frozen=True, array_like=True, tag=1):
    """A proxy asks to be told the table. Begins a session, or a session anew."""

    proto_min: Whole
    proto_max: Whole
    uid: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
    """Of the pod; of the process where there are no pods."""
    boot: Annotated[str, Meta(min_length=1, max_length=64)]
    """Random; of this process and no other."""
    build: Name = ""
    caps: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()
    """Things that this release can do beyond the protocol version."""
    last_epoch: Epoch | None = None
    """Of the table in force; ``None`` before the first."""
    max_term: Whole = 0
    """The latest term that this process has ever been told of."""


class Welcome(_Message, frozen=True, array_like=True, tag=2):
    """The leader takes the proxy in."""

    proto: Whole
    term: Whole
    session: Whole
    heartbeat: Seconds
    """Between two pings."""
    grant: Seconds
    """How long the table counts as fresh after the leader has heard the proxy."""
    api_url: Name
    """Where the leader's HTTP interface is."""
    server_boot: Name
    """Random; two addresses that answer with the same one are the same process."""


class Reject(_Message, frozen=True, array_like=True, tag=3):
    """No."""

    code: RejectCode
    retry_after: Seconds = 1.0
    detail: Text = ""
    leader_hint: Name | None = None
    max_term: Whole = 0
    """From a proxy: the term that it follows."""


class Snapshot(_Message, frozen=True, array_like=True, tag=4):
    """The whole table. Answered by :class:`Ack` or :class:`Nack`."""

    session: Whole
    table: Table
    digest: Digest
    """Of the table's contents, by the operator's account; a proxy repeats it."""
    peers: Peers = ()
    """Addresses of the other ready proxies."""
    removed_ok: bool = False
    """Whether an empty table is meant."""
    age: Seconds = 0.0
    """Since the table was made."""


class Ack(_Message, frozen=True, array_like=True, tag=6):
    """The table is in force: this process starts nothing by an older one any more."""

    session: Whole
    epoch: Epoch
    digest: Digest


class Nack(_Message, frozen=True, array_like=True, tag=7):
    """The table cannot be used; ``still`` is the epoch of the one that stays in force."""

    session: Whole
    epoch: Epoch
    still: Epoch | None
    code: Name
    detail: Text = ""


class Watch(_Message, frozen=True, array_like=True, tag=8):
    """Report what is in flight on these engines, and on no others: as soon as an engine is among
    them, with each table, when one gets to 0, and twice a second while anything is.
    """

    engines: Names


class InFlight(_Message, frozen=True, array_like=True, tag=9):
    """What this process has in flight on engines, by the table of ``epoch``."""

    session: Whole
    epoch: Epoch
    counts: Counts
    seq: Whole = 0
    """Goes up by one with each report."""


class Cut(_Message, frozen=True, array_like=True, tag=10):
    """End what is in flight on an engine."""

    engine: Name
    reason: Text


class Ping(_Message, frozen=True, array_like=True, tag=11):
    """Are you there? ``n`` goes up by one in each session."""

    n: Whole
    epoch: Epoch | None = None
    """Of the newest table that was sent to anybody."""
    digest: Digest = ""
    heard: Whole = 0
    """The newest pong of this session that has arrived; 0 before the first. It tells the proxy from
    when on the leader may count it as silent."""


class Observe(_Message, frozen=True, array_like=True, tag=12):
    """A proxy saw something of an engine that the operator may want to look at. Advisory.

    Any ``kind`` is a message, so that a proxy may have kinds that its operator does not know.
    """

    engine: Name
    kind: Name
    """:data:`SAID_VERSION`, or a word for people."""
    sample: Text = ""


class Bye(_Message, frozen=True, array_like=True, tag=13):
    """The proxy shuts down. It counts until it is gone, and reports until nothing is in flight."""

    reason: Text = ""


class Retire(_Message, frozen=True, array_like=True, tag=14):
    """The operator leads no more: keep the table and ask again, here or elsewhere."""

    reason: Text = ""


class Pong(_Message, frozen=True, array_like=True, tag=15):
    """The answer to a :class:`Ping`, from the loop that routes requests."""

    n: Whole
    epoch: Epoch | None = None
    """Of the table in force."""
    digest: Digest = ""
    loop_lag: Seconds = 0.0
    """How late that loop was at worst since the last pong."""


FromProxy = Hello | Reject | Ack | Nack | InFlight | Observe | Bye | Pong
FromOperator = Welcome | Reject | Snapshot | Watch | Cut | Ping | Retire
