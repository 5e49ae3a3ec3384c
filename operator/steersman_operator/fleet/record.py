"""What happened to a core, written down so that it can happen again.

A record is JSON lines: a header with the timing and the state to begin from, then one line for each
event. A line with a digest tells what the state was after the event before it; whoever replays the
record compares, and so finds the first step in which two versions of the core differ.
"""

import hashlib
from collections.abc import Iterator
from typing import IO, Self, TypeVar

import msgspec

from steersman.errors import SteersmanError
from steersman_operator.fleet.commands import Command
from steersman_operator.fleet.events import Event
from steersman_operator.fleet.state import State, Timing
from steersman_operator.fleet.step import step

VERSION = 1


class RecordUnreadable(SteersmanError):
    """A record of events cannot be read."""

    code = "record_unreadable"
    remedy = "Give a file that was written with --record, by this release or one that reads it."


class Header(msgspec.Struct, frozen=True, kw_only=True, tag="header"):
    """The first line."""

    version: int
    timing: Timing = Timing()
    state: State = State()


class Digest(msgspec.Struct, frozen=True, kw_only=True, tag="digest"):
    """The state after the event before this line."""

    state: str


def digest_of(state: State) -> str:
    """Eight bytes in hex that differ when the states differ."""
    content = msgspec.msgpack.encode(state, order="deterministic")
    return hashlib.blake2b(content, digest_size=8).hexdigest()


class Recorder:
    """Writes a record. Each line is written at once: it is most wanted after a crash."""

    def __init__(self, file: IO[bytes], *, timing: Timing, state: State) -> None:
        self._file = file
        self._encoder = msgspec.json.Encoder(order="deterministic")
        self._write(Header(version=VERSION, timing=timing, state=state))

    def record(self, event: Event) -> None:
        """Write an event down, before it is acted on."""
        self._write(event)

    def check(self, state: State) -> None:
        """Write down what the state is after the last event, for whoever replays it."""
        self._write(Digest(state=digest_of(state)))

    def _write(self, line: Header | Digest | Event) -> None:
        self._file.write(self._encoder.encode(line) + b"\n")
        self._file.flush()


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a replay."""

    number: int
    """Of the event, from 1."""
    event: Event
    commands: list[Command]
    state: State
    """After the event."""
    recorded: str | None = None
    """The digest in the record, if there is one for this step."""

    @property
    def digest(self) -> str:
        """Of the state after the event."""
        return digest_of(self.state)

    @property
    def differs(self) -> bool:
        """Whether the record says that the state was another one."""
        return self.recorded is not None and self.recorded != self.digest


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A record that was read."""

    header: Header
    events: tuple[tuple[Event, str | None], ...]
    """With the digest after each, where there is one."""
    cut_off: bool = False
    """Whether the last line is incomplete, as after a crash."""

    @classmethod
    def read(cls, data: bytes, *, name: str) -> Self:
        """Read a record.

        :raises RecordUnreadable: if it is not one. A last line without an end is left out.
        """
        lines = data.split(b"\n")
        cut_off = lines.pop() != b""
        if not lines:
            raise RecordUnreadable(f"{name} is empty")
        header = _decode(_HEADER, lines[0], name=name, number=1)
        if header.version != VERSION:
            raise RecordUnreadable(f"{name} has format {header.version}, this reads {VERSION}")
        events: list[tuple[Event, str | None]] = []
        for number, line in enumerate(lines[1:], start=2):
            entry = _decode(_LINE, line, name=name, number=number)
            if not isinstance(entry, Digest):
                events.append((entry, None))
            elif events:
                events[-1] = (events[-1][0], entry.state)
        return cls(header=header, events=tuple(events), cut_off=cut_off)

    def replay(self) -> Iterator[Replayed]:
        """Let it happen again."""
        state = self.header.state
        for number, (event, recorded) in enumerate(self.events, start=1):
            state, commands = step(state, event, timing=self.header.timing)
            yield Replayed(
                number=number, event=event, commands=commands, state=state, recorded=recorded
            )


_HEADER: msgspec.json.Decoder[Header] = msgspec.json.Decoder(Header)
_LINE: msgspec.json.Decoder[Event | Digest] = msgspec.json.Decoder(Event | Digest)

_T = TypeVar("_T")


def _decode(decoder: msgspec.json.Decoder[_T], line: bytes, *, name: str, number: int) -> _T:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordUnreadable(f"{name}, line {number}: {error}") from None
