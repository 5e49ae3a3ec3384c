"""What the engine received and what it did with it, for tests to assert on."""

import base64
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

from steersman_sim.engine.sequence import FinishKind, Sequence
from steersman_sim.engine.spans import Span, TrueSpan, stamped_spans, true_spans


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """One finished sequence of a request: what was generated, and by which weights."""

    rid: str
    rank: int
    prompt_tokens: int
    cached_tokens: int
    stale_cached_tokens: int
    """Of ``cached_tokens``, those whose KV older weights had computed."""
    output: list[int]
    truth: list[TrueSpan]
    """The weights that really made the tokens; partitions ``output``."""
    stamped: list[Span]
    """The labels under which they were made; partitions ``output``."""
    finish: FinishKind
    retractions: int


def generation_of(sequence: Sequence) -> Generation:
    """The record of a finished sequence."""
    assert sequence.finish is not None, "the sequence has not ended"
    length = len(sequence.output)
    return Generation(
        rid=sequence.rid,
        rank=sequence.rank,
        prompt_tokens=len(sequence.prompt),
        cached_tokens=sequence.cached_tokens,
        stale_cached_tokens=sequence.stale_cached_tokens,
        output=sequence.output,
        truth=true_spans(sequence.marks, length=length),
        stamped=stamped_spans(sequence.marks, length=length),
        finish=sequence.finish.kind,
        retractions=sequence.retractions,
    )


class Entry:
    """One request that reached the engine."""

    __slots__ = (
        "_sequences",
        "arrived",
        "body",
        "body_size",
        "boot",
        "connection",
        "cut",
        "disconnected",
        "ended",
        "fault",
        "method",
        "number",
        "path",
        "query",
        "raw_headers",
        "status",
    )

    def __init__(
        self,
        number: int,
        *,
        boot: int,
        connection: int,
        method: str,
        path: str,
        query: str,
        raw_headers: tuple[tuple[bytes, bytes], ...],
    ) -> None:
        self.number = number
        self.boot = boot
        """Which start of the engine received it, counted from 1."""
        self.connection = connection
        """Which accepted connection it came on, counted from 1 over all boots."""
        self.method = method
        self.path = path
        self.query = query
        self.raw_headers = raw_headers
        self.body = b""
        self.body_size = 0
        self.arrived = time.monotonic()
        """Monotonic seconds at which its head was read."""
        self.ended: float | None = None
        """Monotonic seconds at which the handler was done; ``None`` while it runs."""
        self.status: int | None = None
        """The status answered; ``None`` when no answer was made."""
        self.disconnected = False
        """Whether the client went away before the answer was complete."""
        self.cut = False
        """Whether the engine itself ended it: by a death, a restart or a fault."""
        self.fault = ""
        """The injected fault that it met, if any."""
        self._sequences: list[Sequence | Generation] = []

    def header(self, name: str) -> str | None:
        """The first value of a header, or ``None``."""
        wanted = name.lower().encode()
        for key, value in self.raw_headers:
            if key.lower() == wanted:
                return value.decode("latin-1")
        return None

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            ValueError: it is none, or it was too long to be kept whole.
        """
        return msgspec.json.decode(self.body)

    @property
    def generations(self) -> list[Generation]:
        """The finished sequences of this request."""
        done: list[Generation] = []
        for position, sequence in enumerate(self._sequences):
            if isinstance(sequence, Sequence):
                if sequence.finish is None:
                    continue
                # Only now, and only once: the prompt need not be kept for the record.
                sequence = self._sequences[position] = generation_of(sequence)
            done.append(sequence)
        return done

    def follow(self, sequence: Sequence) -> None:
        """Make a sequence part of this request."""
        self._sequences.append(sequence)

    def close(self) -> None:
        """The request is over."""
        self.ended = time.monotonic()
        _ = self.generations

    def to_json(self) -> dict[str, Any]:
        """A JSON object; a body that is no text is base64 under ``body_base64``."""
        shown: dict[str, Any] = {
            name: getattr(self, name)
            for name in (
                "number boot connection method path query arrived ended status disconnected cut "
                "fault body_size"
            ).split()
        }
        shown["headers"] = [
            [key.decode("latin-1"), value.decode("latin-1")] for key, value in self.raw_headers
        ]
        try:
            shown["body"] = self.body.decode()
        except UnicodeDecodeError:
            shown["body_base64"] = base64.b64encode(self.body).decode()
        shown["generations"] = msgspec.to_builtins(self.generations)
        return shown

    def __repr__(self) -> str:
        return f"<{self.number} {self.method} {self.path} {self.status}>"


class Journal:
    """The entries, oldest first. Outlives restarts of the engine."""

    def __init__(self, *, limit: int, body_bytes: int) -> None:
        self.entries: deque[Entry] = deque(maxlen=limit)
        self.count = 0
        """Requests ever received."""
        self._body_bytes = body_bytes

    def open(self, **head: Any) -> Entry:
        """Record the arrival of a request (arguments of :class:`Entry`)."""
        self.count += 1
        entry = Entry(self.count, **head)
        self.entries.append(entry)
        return entry

    def keep_body(self, entry: Entry, body: bytes) -> None:
        """Record a body, cut to the limit."""
        entry.body = body if len(body) <= self._body_bytes else body[: self._body_bytes]
        entry.body_size = len(body)

    def of(self, path: str, *, method: str | None = None) -> list[Entry]:
        """The entries of one path, oldest first."""
        return [e for e in self.entries if e.path == path and method in (None, e.method)]

    def generations(self) -> Iterator[Generation]:
        """All finished sequences, by order of request."""
        for entry in self.entries:
            yield from entry.generations

    def generation(self, rid: str) -> Generation:
        """The newest finished sequence of a request id.

        Raises:
            KeyError: there is none.
        """
        for entry in reversed(self.entries):
            for generation in entry.generations:
                if generation.rid == rid:
                    return generation
        raise KeyError(rid)

    def clear(self) -> None:
        """Forget all entries."""
        self.entries.clear()
