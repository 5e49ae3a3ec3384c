"""What must hold of the parts that do no I/O, for any bytes at all.

Each function takes bytes, the first of which choose where the others are cut, and fails with an
``AssertionError``. Hypothesis and atheris (``atheris_heads.py``) make the bytes.
"""

import re
from collections.abc import Callable, Iterator

from steersman.errors import InvalidRequest
from steersman_proxy.http.framing import AnswerFraming, InvalidAnswer
from steersman_proxy.http.request_framing import RequestFraming
from steersman_proxy.http.request_rules import read_head
from steersman_proxy.http.splice.head import may_become_regular, regular_head
from steersman_proxy.stamping.sse import EventReader
from tests.fuzz.answering import Reply, State, read_reply
from tests.fuzz.reading import Fate, Request, read

MAX_HEAD = 65536

_NOTHING = re.compile(rb"[\r\n]*(0+(;[^\r\n]*)?\r\n([^\r\n]+\r\n)*\r\n)?[\r\n]*")
"""Empty lines, or the empty chunked body of an answer that has none."""


def cut(data: bytes) -> list[bytes]:
    """``data[2:]`` in pieces whose size the first two bytes choose."""
    first, second, rest = data[0], data[1], data[2:]
    if not rest:
        return []
    if first < 64:
        size = 1 + second % 16
        return [rest[at : at + size] for at in range(0, len(rest), size)]
    at = (first * 256 + second) % len(rest)
    return [piece for piece in (rest[:at], rest[at:]) if piece]


# --- Requests -------------------------------------------------------------------------------------


def check_head(data: bytes) -> None:
    """What splice reads as a regular head, the gate and the model read in the same way."""
    if len(data) < 3:
        return
    data = data[2:]
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return
    for size in range(max(0, end - 40), end):
        if regular_head(data, end) is not None:
            assert may_become_regular(data[:size]), "the beginning of a regular head is given away"
    head = regular_head(data, end)
    if head is None:
        return
    gate = read_head(data[: end + 4])  # an InvalidRequest is a failure
    assert (gate.method, gate.target) == (
        head.method,
        head.target.encode("utf-8", "surrogateescape"),
    )
    assert (gate.length, gate.chunked) == (head.body_length, False)
    model = read(data[: end + 4] + bytes(head.body_length if head.body_length < 10**6 else 0))
    if model.fate is Fate.ODD:
        return
    request = model.request
    assert request is not None, model.why
    assert request.method == head.method.encode()
    assert request.target == head.target.encode()
    assert request.headers == head.headers
    assert request.persists is head.keep_alive
    assert int(request.value(b"content-length") or 0) == head.body_length


def check_gate(data: bytes) -> None:
    """The gate passes on what the model reads, refuses what that refuses, whatever the cuts."""
    if len(data) < 3:
        return
    passed, refused = _gated(cut(data))
    whole, whole_refused = _gated([data[2:]])
    requests, fate = _modelled(data[2:])
    if fate in (Fate.REGULAR, Fate.REFUSED):  # a hopeless beginning is refused sooner or later
        assert refused == whole_refused, "it depends on the cuts whether it is refused"
    assert passed == whole or refused, "it depends on the cuts what is passed on"
    if fate is Fate.REFUSED:
        assert refused, "the model refuses it"
    if fate is Fate.REGULAR:
        assert not refused, "the model takes it"
    if fate is not Fate.ODD:
        assert len([one for one in passed if one[1]]) == len(requests)
    for (raw, _), request in zip(passed, requests, strict=False):
        head, _, body = raw.partition(b"\r\n\r\n")
        assert head.split(b" ", 1)[0] == request.method
        if request.value(b"transfer-encoding") is None:
            assert body == request.body
        else:
            again = read(raw)
            assert again.request is not None and again.request.body == request.body


def _gated(pieces: list[bytes]) -> tuple[list[tuple[bytes, bool]], bool]:
    """Each request that the gate passes on, with whether it is whole; and whether it refuses."""
    framing = RequestFraming()
    passed: list[tuple[bytes, bool]] = []
    current = b""
    try:
        for piece in pieces:
            framing.receive(piece)
            while True:
                taken = framing.take()
                current += taken
                if framing.ended:
                    passed.append((current, True))
                    current = b""
                    framing.following()
                elif not taken:
                    break
    except InvalidRequest:
        return passed, True
    return passed, False


def _modelled(data: bytes) -> tuple[list[Request], Fate]:
    requests: list[Request] = []
    while data:
        found = read(data)
        if found.fate is not Fate.REGULAR:
            return requests, found.fate
        assert found.request is not None
        requests.append(found.request)
        data = found.rest
    return requests, Fate.REGULAR


# --- Answers --------------------------------------------------------------------------------------


def check_answer(data: bytes) -> None:
    """An answer is read as the model reads it, whatever the cuts."""
    if len(data) < 4:
        return
    method = "HEAD" if data[2] % 8 == 0 else "POST"
    data = data[:2] + data[3:]
    reply = read_reply(data[2:], method=method.encode(), end="fin")
    at_once, by_pieces = (_framed(pieces, method) for pieces in ([data[2:]], cut(data)))
    if _NOTHING.fullmatch(reply.rest):
        # Which the parser swallows if it comes in the same read, and is surplus if not.
        reply = reply._replace(reusable=True)
        at_once, by_pieces = (
            (*seen[:-1], True) if seen[0] == "whole" else seen for seen in (at_once, by_pieces)
        )
    assert at_once[0] == by_pieces[0], (at_once, by_pieces)
    if at_once[0] != "bad":
        assert at_once == by_pieces, (at_once, by_pieces)
    _compare(reply, at_once)


def _framed(pieces: list[bytes], method: str) -> tuple[object, ...]:
    framing = AnswerFraming(method=method, max_head_bytes=MAX_HEAD)
    body = b""
    try:
        for piece in pieces:
            framing.feed(bytes(piece))
            body += framing.take()
    except InvalidAnswer:
        return ("bad", framing.head_done, body)
    if not framing.head_done:
        return ("waits",)
    whole = framing.complete
    eof = whole or framing.eof()
    keeps = framing.keep_alive and not framing.surplus
    return ("whole" if eof else "stopped", framing.status, framing.headers, body, whole and keeps)


def _compare(reply: Reply, framed: tuple[object, ...]) -> None:
    match reply.state:
        case State.ODD:
            return
        case State.NOTHING:
            raise AssertionError("something came")
        case State.BAD:
            # A fault of the body may stand behind the end that the head tells.
            assert framed[0] in ("bad", "stopped"), (reply, framed)
        case State.STOPPED:
            assert framed[0] == ("stopped" if reply.status else "waits"), (reply, framed)
        case State.WHOLE:
            headers = [(name, value.strip(b" \t")) for name, value in framed[2]]  # type: ignore[attr-defined]
            seen = (framed[0], framed[1], headers, framed[3], framed[4])
            wanted = ("whole", reply.status, reply.headers, reply.body, reply.reusable)
            assert seen == wanted, (reply, framed)


# --- Events ---------------------------------------------------------------------------------------


def check_events(data: bytes) -> None:
    """A stream passes unchanged but for the notes; its events are those of the standard's lines."""
    if len(data) < 3:
        return
    events: list[bytes] = []
    note = b": note\n\n"

    def on_event(event: bytes) -> bytes | None:
        events.append(event)
        return note if noting else None

    noting = data[0] % 2 == 0
    reader = EventReader(on_event)
    out = b"".join(part for piece in cut(data) for part in reader.feed(piece))
    wanted, noted = _events(data[2:], note if noting else b"")
    assert events == wanted, (events, wanted)
    assert out == noted, (out, noted)


def _events(data: bytes, note: bytes) -> tuple[list[bytes], bytes]:
    events, out, collected = [], b"", []
    for line in _lines(data):
        out += line
        if not line.endswith(b"\n"):
            break
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        if text.startswith(b"data:"):
            collected.append(text.removeprefix(b"data:").removeprefix(b" "))
        elif not text:
            if collected:
                events.append(b"\n".join(collected))
                out += note
            collected = []
    return events, out


def _lines(data: bytes) -> Iterator[bytes]:
    while data:
        line, end, data = data.partition(b"\n")
        yield line + end


CHECKS: tuple[Callable[[bytes], None], ...] = (check_head, check_gate, check_answer, check_events)
